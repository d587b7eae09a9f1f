"""Chains of batch headers in a damaged file: each header begins where the previous batch ends, with a higher offset.

Two chains that meet at a header are the same from there on. The end of a chain is therefore cached for its headers, and a file
with many damaged batches is read about once, not once for each of them:

    cached                    limit                   effect
    ------------------------  ----------------------  --------------------------------------------------------------
    headers of one chain      MAX_CACHED_PER_CHAIN,   a later chain that meets one of them ends there, after at most
                              evenly spaced             as many headers as are between two cached ones
    headers of all chains     MAX_CACHED              the cache is cleared when it would be exceeded

No CRC is computed, so a chain alone proves nothing; kcli.log.reading.resynchronise decides what it means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from kcli.format.record_batch import RecordBatch
from kcli.log.disk.port import DiskFile, zeros_follow
from kcli.log.reading.batch_search import SearchBudget, can_be_header, least_offset
from kcli.log.reading.header_reader import PROBE_BYTES, HeaderReader

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch

MAX_CACHED_PER_CHAIN = 8 * 1024
MAX_CACHED = 64 * 1024

Value = TypeVar("Value")


class PositionCache(Generic[Value]):
    """A cache of values by byte position, bounded in size."""

    def __init__(self) -> None:
        self._values: dict[int, Value] = {}

    def get(self, position: int) -> Value | None:
        """Return the value for a byte, or None."""
        return self._values.get(position)

    def keep(self, entries: Sequence[tuple[int, Value]]) -> None:
        """Cache the values for the bytes of one chain; if there are too many, for some of the bytes, evenly spaced."""
        if len(self._values) + MAX_CACHED_PER_CHAIN > MAX_CACHED:
            self._values.clear()
        self._values.update(entries[:: len(entries) // MAX_CACHED_PER_CHAIN + 1])


class ChainEnd(NamedTuple):
    """The end of a chain: byte `position`, where a header is that cannot follow, or that the .index points at (`is_indexed`).

    If no header is there, `expected` is the offset that the next batch should have, and `is_zeros` is True if only zeros
    follow.
    """

    position: int
    is_indexed: bool = False
    expected: int | None = None
    is_zeros: bool = False


class HeaderChains:
    """The chains of headers up to byte `end` of a file. `is_indexed` returns True if the .index points at a header."""

    def __init__(
        self, file: DiskFile, end: int, budget: SearchBudget, is_indexed: Callable[[RecordBatch | LegacyBatch], bool]
    ) -> None:
        self._file = file
        self._end = end
        self._budget = budget
        self._is_indexed = is_indexed
        self._kept: PositionCache[ChainEnd] = PositionCache()

    def end_of(self, position: int) -> ChainEnd:
        """Return the end of the chain that begins at byte `position`; that byte itself if no header is there."""
        passed: list[int] = []
        chain_end = self._follow(position, passed)
        self._kept.keep([(at, chain_end) for at in passed])
        return chain_end

    def _follow(self, position: int, passed: list[int]) -> ChainEnd:
        """Return the end of a chain; add the positions of its headers to `passed`."""
        reader = HeaderReader(self._file, position, self._end)
        expected = 0
        for header in reader.headers():
            if not can_be_header(header) or least_offset(header) < expected or not self._budget.take(PROBE_BYTES):
                return ChainEnd(header.position)
            known = self._kept.get(header.position)
            if known is not None:
                return known
            if self._is_indexed(header):
                return ChainEnd(header.position, is_indexed=True)
            passed.append(header.position)
            expected = header.next_offset
        return ChainEnd(reader.position, False, expected, zeros_follow(self._file, reader.position, self._end))
