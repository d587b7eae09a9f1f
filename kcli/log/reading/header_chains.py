"""Chains of batch headers in a damaged file: each header begins where the one before ends, with a higher offset.

Two chains that meet at a header are one from there on. Therefore the end of a chain is kept for headers of it, and a file with
many damaged batches is walked about once, not once for each of them:

    kept                     at most             effect
    -----------------------  ------------------  ---------------------------------------------------------------
    headers of one walk      MOST_OF_ONE_WALK,   a later walk ends at the first of them, after as many headers as
                             evenly spaced         are between two, and keeps those that it passed
    headers of all walks     MOST_KEPT           all are forgotten when there are more

No CRC is computed, so a chain alone proves nothing; kcli.log.reading.resynchronise decides what one means.
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

MOST_OF_ONE_WALK = 8 * 1024
MOST_KEPT = 64 * 1024

Answer = TypeVar("Answer")


class KeptAnswers(Generic[Answer]):
    """Answers by the byte that they are about, for a bounded number of bytes."""

    def __init__(self) -> None:
        self._answers: dict[int, Answer] = {}

    def get(self, position: int) -> Answer | None:
        """The answer for a byte, or None where there is none."""
        return self._answers.get(position)

    def keep(self, walked: Sequence[tuple[int, Answer]]) -> None:
        """Keep the answers for the bytes of one walk, or for some of them, evenly spaced, where they are many."""
        if len(self._answers) + MOST_OF_ONE_WALK > MOST_KEPT:
            self._answers.clear()
        self._answers.update(walked[:: len(walked) // MOST_OF_ONE_WALK + 1])


class ChainEnd(NamedTuple):
    """Where a chain ends: at byte `position`, or at a header that the .index points at (`is_indexed`).

    At `position` is a header that cannot follow, or no header at all: then `expected` is the offset that it should have, and
    `is_zeros` says whether nothing but zeros is left.
    """

    position: int
    is_indexed: bool = False
    expected: int | None = None
    is_zeros: bool = False


class HeaderChains:
    """Follows chains of headers up to byte `end` of a file. `is_indexed` says whether the .index points at a header."""

    def __init__(
        self, file: DiskFile, end: int, budget: SearchBudget, is_indexed: Callable[[RecordBatch | LegacyBatch], bool]
    ) -> None:
        self._file = file
        self._end = end
        self._budget = budget
        self._is_indexed = is_indexed
        self._kept: KeptAnswers[ChainEnd] = KeptAnswers()

    def end_of(self, position: int) -> ChainEnd:
        """The end of the chain that begins at byte `position`; that byte itself where no header is there."""
        passed: list[int] = []
        chain_end = self._follow(position, passed)
        self._kept.keep([(at, chain_end) for at in passed])
        return chain_end

    def _follow(self, position: int, passed: list[int]) -> ChainEnd:
        """Walk to the end of a chain; the bytes of its headers go to `passed`."""
        walk = HeaderReader(self._file, position, self._end)
        expected = 0
        for header in walk.headers():
            if not can_be_header(header) or least_offset(header) < expected or not self._budget.take(PROBE_BYTES):
                return ChainEnd(header.position)
            known = self._kept.get(header.position)
            if known is not None:
                return known
            if self._is_indexed(header):
                return ChainEnd(header.position, is_indexed=True)
            passed.append(header.position)
            expected = header.next_offset
        return ChainEnd(walk.position, False, expected, zeros_follow(self._file, walk.position, self._end))
