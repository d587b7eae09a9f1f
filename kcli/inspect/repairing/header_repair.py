"""Corrects header fields of batches whose values follow from the bytes of the batch.

The CRC does not cover four fields, nor itself, so the records of a batch with a flipped bit in one of them are intact:

    field         is corrected if                                                  to
    ------------  ---------------------------------------------------------------  --------------------------------------
    batchLength   the CRC is right over all bytes up to the next sound batch       that length
    magic         the same                                                         2
    crc           one bit differs from the one computed; one or two wrong bits     the one computed
                  elsewhere cannot cause that
    baseOffset    kcli.log.reading.explanation says so
    leaderEpoch   the same

The records of a corrected batch must be readable too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from kcli.format.primitives import INT32_MAX, INT64_MAX
from kcli.format.record_batch import (
    CRC_START,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
    RecordBatch,
    read_header,
)
from kcli.format.structs import BATCH_LENGTH_AT, BATCH_PARTITION_LEADER_EPOCH_AT
from kcli.log.disk.port import DiskFile
from kcli.log.reading.batch_search import streamed_crc
from kcli.log.reading.explanation import Batch, Batches
from kcli.log.reading.segment_reader import LogBatch

CRC_POSITION = CRC_START - 4


class HeaderFix(NamedTuple):
    """The right bytes of a header field: `data` from byte `position` of the segment on."""

    position: int
    data: bytes
    why: str


def base_offset_fix(position: int, base_offset: int) -> HeaderFix:
    """Return the fix that gives the batch at byte `position` the base offset that its neighbours and other files show."""
    why = f"the batch at byte {position} fits its neighbours and the other files with base offset {base_offset}"
    return HeaderFix(position, base_offset.to_bytes(8, "big"), why)


def leader_epoch_fix(position: int, epoch: int) -> HeaderFix:
    """Return the fix that gives the batch at byte `position` the leader epoch of its neighbours."""
    why = f"the batches next to the one at byte {position} have leader epoch {epoch}"
    return HeaderFix(position + BATCH_PARTITION_LEADER_EPOCH_AT, epoch.to_bytes(4, "big"), why)


class HeaderFixer:
    """Corrects headers in the byte ranges between the sound batches of a segment, and adds these batches to `batches`.

    `edges` are the bytes at which unsound entries begin: a range that contains several is also tried in the parts between
    them. `content_fault` returns what is wrong with a batch's records. `fixes` are those of each corrected batch, by its byte.
    """

    def __init__(
        self,
        file: DiskFile,
        batches: Batches,
        size_bytes: int,
        content_fault: Callable[[LogBatch], str | None],
        edges: Sequence[int] = (),
    ) -> None:
        self.file = file
        self.edges = sorted(edges)
        self.batches = batches
        self.size_bytes = size_bytes
        self.content_fault = content_fault
        self.fixes: dict[int, list[HeaderFix]] = {}

    def fix(self) -> None:
        """Try each range between the batches, whole and in its parts. Raises OSError."""
        found: list[Batch] = []
        start = 0
        for position, end in [*zip(self.batches.position, self.batches.end, strict=True), (self.size_bytes, self.size_bytes)]:
            if start < position:
                whole = self._fixed(start, position)
                found += self._fixed_parts(start, position) if whole is None else [whole]
            start = end
        if found:
            self.batches.merge(found)

    def _fixed_parts(self, start: int, end: int) -> list[Batch]:
        """Try the parts of a range between the unsound entries that begin in it."""
        inside = self.edges[bisect_right(self.edges, start) : bisect_left(self.edges, end)]
        parts = pairwise([start, *inside, end]) if inside else ()
        return [fixed for part in parts if (fixed := self._fixed(*part)) is not None]

    def _fixed(self, start: int, end: int) -> Batch | None:
        """Correct length, magic and CRC of bytes [start, end), if these are one batch otherwise."""
        if not HEADER_BYTES <= end - start <= INT32_MAX + LOG_OVERHEAD_BYTES:
            return None
        head = self.file.read_at(start, HEADER_BYTES)
        if len(head) < HEADER_BYTES:
            return None
        stated = read_header(head, 0, start)
        header = stated._replace(batch_length=end - start - LOG_OVERHEAD_BYTES, magic=MAGIC)
        crc = streamed_crc(self.file, header)
        if crc is None or (crc ^ header.crc).bit_count() > 1 or header.last_offset_delta < 0 or header.record_count < 0:
            return None
        fixed = header._replace(crc=crc)
        # If the header was right, the records are wrong, or the batch would have stayed.
        if fixed == stated or fixed.last_offset >= INT64_MAX:
            return None
        if self.content_fault(LogBatch(fixed, None, fixed.crc, self.file)) is not None:
            return None
        self.fixes[start] = list(_fixes(stated, fixed))
        return Batch(start, end, fixed.base_offset, fixed.last_offset, fixed.partition_leader_epoch)


def _fixes(stated: RecordBatch, fixed: RecordBatch) -> Iterator[HeaderFix]:
    start = stated.position
    if stated.batch_length != fixed.batch_length:
        why = f"the CRC of the batch at byte {start} is right with a length of {fixed.batch_length} bytes"
        yield HeaderFix(start + BATCH_LENGTH_AT, fixed.batch_length.to_bytes(4, "big"), why)
    if stated.crc != fixed.crc:
        yield HeaderFix(
            start + CRC_POSITION, fixed.crc.to_bytes(4, "big"), f"the CRC of the batch at byte {start} has one wrong bit"
        )
    if stated.magic != fixed.magic:
        why = f"the CRC of the batch at byte {start} is right with magic {MAGIC}"
        yield HeaderFix(start + MAGIC_POSITION, bytes([MAGIC]), why)
