"""Corrects header fields of batches whose values follow from the rest of the batch and from its neighbours.

The CRC does not cover four fields, nor itself, so the records of a batch with a flipped bit in one of them are intact:

    field         is corrected if                                                  to
    ------------  ---------------------------------------------------------------  --------------------------------------
    batchLength   the CRC is right over all bytes up to the next sound batch       that length
    magic         the same                                                         2
    crc           one bit differs from the one computed; one or two wrong bits     the one computed
                  elsewhere cannot cause that
    baseOffset    one byte of it is wrong and the batch fills the gap that it      the first offset of the gap
                    leaves in the offsets exactly; or, of the last batch, one bit
    leaderEpoch   epochs never go back, and most of the segment's batches have     that of the batch before it
                    epochs that rise together without it                             that is right, or of the next

The records of a corrected batch must be readable too.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from kcli.format.primitives import INT32_MAX
from kcli.format.record_batch import (
    CRC_START,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
    NO_LEADER_EPOCH,
    RecordBatch,
    read_header,
)
from kcli.format.structs import BATCH_LENGTH_AT, BATCH_PARTITION_LEADER_EPOCH_AT
from kcli.inspect.repairing.salvage_batches import Batch, Batches
from kcli.log.disk.port import DiskFile
from kcli.log.reading.batch_search import streamed_crc
from kcli.log.reading.segment_reader import LogBatch

CRC_POSITION = CRC_START - 4


class HeaderFix(NamedTuple):
    """The right bytes of a header field: `data` from byte `position` of the segment on."""

    position: int
    data: bytes
    why: str


def fix_last_offset(kept: Batches, first_offset: int, known_ends: Sequence[int]) -> list[HeaderFix]:
    """Correct the base offset of the last batch if one bit of it is wrong and it is after all known ends of the log.

    Nothing may be missing before the batch, and with the other bit it must end at or before the largest known end.
    """
    last = len(kept) - 1
    known_end = max(known_ends, default=0)
    if last < 0 or kept.magic[last] != MAGIC or kept.base_offset[last] < known_end:
        return []
    follows = kept.position[last] == (kept.end[last - 1] if last else 0)
    expected = kept.last_offset[last - 1] + 1 if last else first_offset
    delta = kept.last_offset[last] - kept.base_offset[last]
    is_flip = (kept.base_offset[last] ^ expected).bit_count() == 1
    if not follows or not is_flip or expected + delta + 1 > known_end:
        return []
    kept.base_offset[last], kept.last_offset[last] = expected, expected + delta
    position = kept.position[last]
    why = f"the log is known to end at offset {known_end}: the base offset of the batch at byte {position} is {expected}"
    return [HeaderFix(position, expected.to_bytes(8, "big"), why)]


def leader_epoch_fix(position: int, epoch: int) -> HeaderFix:
    """Return the fix that gives the batch at byte `position` the leader epoch of its neighbours."""
    why = f"the batches next to the one at byte {position} have leader epoch {epoch}"
    return HeaderFix(position + BATCH_PARTITION_LEADER_EPOCH_AT, epoch.to_bytes(4, "big"), why)


class HeaderFixer:
    """Corrects headers in the byte ranges between the batches `kept` of a segment, and adds these batches to `kept`.

    The segment has the offsets [first, end) of `offsets`. `edges` are the bytes at which unsound entries begin: a range that
    contains several is also tried in the parts between them. `content_fault` returns what is wrong with a batch's records.
    """

    def __init__(
        self,
        file: DiskFile,
        kept: Batches,
        offsets: tuple[int, int],
        size_bytes: int,
        content_fault: Callable[[LogBatch], str | None],
        edges: Sequence[int] = (),
    ) -> None:
        self.file = file
        self.edges = sorted(edges)
        self.kept = kept
        self.first_offset, self.end_offset = offsets
        self.size_bytes = size_bytes
        self.content_fault = content_fault
        self.fixes: list[HeaderFix] = []
        # In a log without gaps the batch after the last sound one begins at the next offset.
        self.has_gaps = any(
            self.kept.base_offset[index] != self.kept.last_offset[index - 1] + 1 for index in range(1, len(self.kept))
        )

    def fix(self) -> list[HeaderFix]:
        """Try each range between the batches, whole and in its parts; return what was fixed. Raises OSError."""
        index = 0
        while index <= len(self.kept):
            start = self.kept.end[index - 1] if index else 0
            end = self.kept.position[index] if index < len(self.kept) else self.size_bytes
            before = len(self.kept)
            self._fix_range(index, start, end)
            if len(self.kept) == before:
                self._fix_parts(index, start, end)
            index += 1 + len(self.kept) - before
        self._fix_leader_epochs()
        return self.fixes

    def _fix_parts(self, index: int, start: int, end: int) -> None:
        """Try the parts of a range between the unsound entries that begin in it."""
        inside = self.edges[bisect_right(self.edges, start) : bisect_left(self.edges, end)]
        if not inside:
            return
        for part_start, part_end in pairwise([start, *inside, end]):
            before = len(self.kept)
            self._fix_range(index, part_start, part_end)
            index += len(self.kept) - before

    def _fix_range(self, index: int, start: int, end: int) -> None:
        """Correct the first 21 bytes of bytes [start, end), if these are one batch otherwise."""
        if not HEADER_BYTES <= end - start <= INT32_MAX + LOG_OVERHEAD_BYTES:
            return
        head = self.file.read_at(start, HEADER_BYTES)
        if len(head) < HEADER_BYTES:
            return
        stated = read_header(head, 0, start)
        header = stated._replace(batch_length=end - start - LOG_OVERHEAD_BYTES, magic=MAGIC)
        crc = streamed_crc(self.file, header)
        if crc is None or (crc ^ header.crc).bit_count() > 1 or header.last_offset_delta < 0 or header.record_count < 0:
            return
        offset = None if self._is_copy(header) else self._offset_that_fits(index, header)
        if offset is None:
            return
        fixed = header._replace(base_offset=offset, crc=crc)
        # If the header was right, the records are wrong, or the batch would have stayed.
        if fixed != stated and self.content_fault(LogBatch(fixed, None, fixed.crc, self.file)) is None:
            self._note(stated, fixed)
            self.kept.insert(index, Batch(start, end, offset, fixed.last_offset, fixed.partition_leader_epoch))

    def _is_copy(self, header: RecordBatch) -> bool:
        """Return True if a batch that stays has the same offset, size and CRC: the bytes are in the file twice."""
        index = bisect_left(self.kept.base_offset, header.base_offset)
        if index == len(self.kept) or self.kept.base_offset[index] != header.base_offset:
            return False
        position = self.kept.position[index]
        crc = self.file.read_at(position + CRC_POSITION, 4)
        return self.kept.end[index] - position == header.size_bytes and crc == header.crc.to_bytes(4, "big")

    def _offset_that_fits(self, index: int, header: RecordBatch) -> int | None:
        """Return the stated base offset if it is between the neighbours', else that of a gap that the batch fills exactly."""
        before = self.kept.last_offset[index - 1] if index else self.first_offset - 1
        behind = self.kept.base_offset[index] if index < len(self.kept) else None
        if before < header.base_offset and header.last_offset < (self.end_offset if behind is None else behind):
            return header.base_offset
        last = before + 1 + header.last_offset_delta
        if behind is None:
            # After the last batch nothing else shows the offset, so only one wrong bit is corrected.
            is_flip = (header.base_offset ^ (before + 1)).bit_count() == 1
            return before + 1 if index and is_flip and not self.has_gaps and last < self.end_offset else None
        # A batch of another partition may fill a gap by chance, so no more than one wrong byte is corrected.
        differing = (header.base_offset ^ (before + 1)).to_bytes(8, "big", signed=False) if header.base_offset >= 0 else b""
        is_one_byte = header.base_offset < 0 or sum(byte != 0 for byte in differing) == 1
        return before + 1 if last + 1 == behind and is_one_byte else None

    def _note(self, stated: RecordBatch, fixed: RecordBatch) -> None:
        start = stated.position
        if stated.base_offset != fixed.base_offset:
            why = f"the batch at byte {start} fills the gap before the next: its base offset is {fixed.base_offset}"
            self.fixes.append(HeaderFix(start, fixed.base_offset.to_bytes(8, "big"), why))
        if stated.batch_length != fixed.batch_length:
            why = f"the CRC of the batch at byte {start} is right with a length of {fixed.batch_length} bytes"
            self.fixes.append(HeaderFix(start + BATCH_LENGTH_AT, fixed.batch_length.to_bytes(4, "big"), why))
        if stated.crc != fixed.crc:
            why = f"the CRC of the batch at byte {start} has one wrong bit"
            self.fixes.append(HeaderFix(start + CRC_POSITION, fixed.crc.to_bytes(4, "big"), why))
        if stated.magic != fixed.magic:
            why = f"the CRC of the batch at byte {start} is right with magic {MAGIC}"
            self.fixes.append(HeaderFix(start + MAGIC_POSITION, bytes([MAGIC]), why))

    def _fix_leader_epochs(self) -> None:
        """Correct leader epochs that go back: one between two equal others, and those outside the longest ascending choice."""
        epochs = self.kept.leader_epoch
        for index in range(1, len(epochs) - 1):
            if epochs[index] != epochs[index - 1] == epochs[index + 1]:
                self._set_leader_epoch(index, epochs[index - 1])
        if all(NO_LEADER_EPOCH <= before <= behind for before, behind in pairwise(epochs)):
            return
        right = rising(epochs)
        if 2 * len(right) <= len(epochs):
            return  # the other segments show which of them are right: salvage.fix_epochs_across
        is_right = set(right)
        for index in range(len(epochs)):
            if index not in is_right:
                at = bisect_left(right, index)
                self._set_leader_epoch(index, epochs[right[max(at - 1, 0)]])

    def _set_leader_epoch(self, index: int, epoch: int) -> None:
        if epoch >= 0 and self.kept.magic[index] == MAGIC:
            self.kept.leader_epoch[index] = epoch
            self.fixes.append(leader_epoch_fix(self.kept.position[index], epoch))


def rising(epochs: Sequence[int], weights: Sequence[int] | None = None) -> list[int]:
    """Return the indexes of the epochs that ascend and have the largest total weight; of equal choices one with low epochs.

    Each epoch weighs 1 if no `weights` are given. Epochs below NO_LEADER_EPOCH are never chosen.
    """
    # The best choices by the epoch with which they end. Of each next one both the epoch and the weight are higher.
    lasts: list[int] = []
    totals: list[int] = []
    ends: list[int] = []  # the index of the epoch at which the choice ends
    before: dict[int, int] = {}
    for index, epoch in enumerate(epochs):
        if epoch < NO_LEADER_EPOCH:
            continue
        at = bisect_right(lasts, epoch)
        before[index] = ends[at - 1] if at else -1
        total = (totals[at - 1] if at else 0) + (1 if weights is None else weights[index])
        start = at - 1 if at and lasts[at - 1] == epoch else at
        beaten = slice(start, max(bisect_right(totals, total), start))
        lasts[beaten], totals[beaten], ends[beaten] = [epoch], [total], [index]
    chosen: list[int] = []
    index = ends[-1] if ends else -1
    while index >= 0:
        chosen.append(index)
        index = before[index]
    return chosen[::-1]
