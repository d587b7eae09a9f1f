"""Putting right what of a batch's header follows from the rest of the batch and from its neighbours.

Four fields lie outside of the CRC, and the CRC does not cover itself, so a batch with a bit flipped in one of them is whole:

    field         it is put right where                                            with
    ------------  ---------------------------------------------------------------  --------------------------------------
    batchLength   the CRC is right over all bytes up to the next sound batch       that length
    magic         likewise                                                         2
    crc           one bit differs from the one computed; one or two wrong bits     the one computed
                  elsewhere cannot cause that
    baseOffset    one byte of it is wrong and the batch fills the gap that it      the first offset of the gap
                    leaves in the offsets exactly; or, of the last batch, one bit
    leaderEpoch   epochs never go back, and most of the segment's batches have     that of the batch before it
                    epochs that rise together without it                             that is right, or of the next

What is put right must open as well: its records are read.
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


class Mend(NamedTuple):
    """Bytes of a header that are put right: `data` from byte `position` of the segment on."""

    position: int
    data: bytes
    why: str


def mend_headers(
    file: DiskFile,
    kept: Batches,
    offsets: tuple[int, int],
    size_bytes: int,
    content_fault: Callable[[LogBatch], str | None],
    edges: Sequence[int] = (),
) -> list[Mend]:
    """Try each range of bytes between the batches `kept` of a segment, whose offsets are in [first, end) -> what is fixed.

    A range that holds several of the bytes `edges`, at which unsound entries begin, is tried in the parts between them too.
    Batches that are whole again join `kept`. `content_fault` returns what is wrong with a batch's records. Raises OSError.
    """
    mender = _Mender(file, kept, offsets, size_bytes, content_fault, edges)
    mender.mend()
    return mender.mends


def mend_last_offset(kept: Batches, first_offset: int, known_ends: Sequence[int]) -> list[Mend]:
    """Fix the base offset of the last batch where one bit of it is wrong, and it is beyond all known ends of the log.

    Nothing may be missing before it, and with the other bit it must end within the largest known end.
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
    return [Mend(position, expected.to_bytes(8, "big"), why)]


def leader_epoch_mend(position: int, epoch: int) -> Mend:
    """Give the batch at byte `position` the leader epoch of those beside it."""
    why = f"the batches next to the one at byte {position} have leader epoch {epoch}"
    return Mend(position + BATCH_PARTITION_LEADER_EPOCH_AT, epoch.to_bytes(4, "big"), why)


class _Mender:
    """Puts headers of one segment right; what it mends joins the batches that stay."""

    def __init__(
        self,
        file: DiskFile,
        kept: Batches,
        offsets: tuple[int, int],
        size_bytes: int,
        content_fault: Callable[[LogBatch], str | None],
        edges: Sequence[int],
    ) -> None:
        self.file = file
        self.edges = sorted(edges)
        self.kept = kept
        self.first_offset, self.end_offset = offsets
        self.size_bytes = size_bytes
        self.content_fault = content_fault
        self.mends: list[Mend] = []
        # In a log without gaps the batch behind the last sound one begins at the next offset.
        self.has_gaps = any(
            self.kept.base_offset[index] != self.kept.last_offset[index - 1] + 1 for index in range(1, len(self.kept))
        )

    def mend(self) -> None:
        """Try each range between the batches, whole and in its parts."""
        index = 0
        while index <= len(self.kept):
            start = self.kept.end[index - 1] if index else 0
            end = self.kept.position[index] if index < len(self.kept) else self.size_bytes
            before = len(self.kept)
            self._mend_stretch(index, start, end)
            if len(self.kept) == before:
                self._mend_parts(index, start, end)
            index += 1 + len(self.kept) - before
        self._mend_leader_epochs()

    def _mend_parts(self, index: int, start: int, end: int) -> None:
        """Try the parts of a range between the unsound entries that begin in it."""
        inside = self.edges[bisect_right(self.edges, start) : bisect_left(self.edges, end)]
        if not inside:
            return
        for part_start, part_end in pairwise([start, *inside, end]):
            before = len(self.kept)
            self._mend_stretch(index, part_start, part_end)
            index += len(self.kept) - before

    def _mend_stretch(self, index: int, start: int, end: int) -> None:
        """Where bytes [start, end) are one whole batch but for its first 17 bytes, put those right."""
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
        mended = header._replace(base_offset=offset, crc=crc)
        # Where its header was right its records are not, or it would have stayed.
        if mended != stated and self.content_fault(LogBatch(mended, None, mended.crc, self.file)) is None:
            self._note(stated, mended)
            self.kept.insert(index, Batch(start, end, offset, mended.last_offset, mended.partition_leader_epoch))

    def _is_copy(self, header: RecordBatch) -> bool:
        """True where a batch that stays has the same offset, size and CRC: the bytes are there twice."""
        index = bisect_left(self.kept.base_offset, header.base_offset)
        if index == len(self.kept) or self.kept.base_offset[index] != header.base_offset:
            return False
        position = self.kept.position[index]
        crc = self.file.read_at(position + CRC_POSITION, 4)
        return self.kept.end[index] - position == header.size_bytes and crc == header.crc.to_bytes(4, "big")

    def _offset_that_fits(self, index: int, header: RecordBatch) -> int | None:
        """The stated base offset where it lies between the neighbours', else that of a gap which the batch fills."""
        before = self.kept.last_offset[index - 1] if index else self.first_offset - 1
        behind = self.kept.base_offset[index] if index < len(self.kept) else None
        if before < header.base_offset and header.last_offset < (self.end_offset if behind is None else behind):
            return header.base_offset
        last = before + 1 + header.last_offset_delta
        if behind is None:
            # Behind the last batch nothing else shows the offset: one wrong bit is believed to be one.
            is_flip = (header.base_offset ^ (before + 1)).bit_count() == 1
            return before + 1 if index and is_flip and not self.has_gaps and last < self.end_offset else None
        # A batch of another partition may fill a gap by chance: one byte of the offset is believed to be wrong, not more.
        differing = (header.base_offset ^ (before + 1)).to_bytes(8, "big", signed=False) if header.base_offset >= 0 else b""
        is_one_byte = header.base_offset < 0 or sum(byte != 0 for byte in differing) == 1
        return before + 1 if last + 1 == behind and is_one_byte else None

    def _note(self, stated: RecordBatch, mended: RecordBatch) -> None:
        start = stated.position
        if stated.base_offset != mended.base_offset:
            why = f"the batch at byte {start} fills the gap before the next: its base offset is {mended.base_offset}"
            self.mends.append(Mend(start, mended.base_offset.to_bytes(8, "big"), why))
        if stated.batch_length != mended.batch_length:
            why = f"the CRC of the batch at byte {start} is right with a length of {mended.batch_length} bytes"
            self.mends.append(Mend(start + BATCH_LENGTH_AT, mended.batch_length.to_bytes(4, "big"), why))
        if stated.crc != mended.crc:
            why = f"the CRC of the batch at byte {start} has one wrong bit"
            self.mends.append(Mend(start + CRC_POSITION, mended.crc.to_bytes(4, "big"), why))
        if stated.magic != mended.magic:
            why = f"the CRC of the batch at byte {start} is right with magic {MAGIC}"
            self.mends.append(Mend(start + MAGIC_POSITION, bytes([MAGIC]), why))

    def _mend_leader_epochs(self) -> None:
        """Leader epochs never go back: one between two equal others is wrong, and those that are not among the largest number
        that rise together."""
        epochs = self.kept.leader_epoch
        for index in range(1, len(epochs) - 1):
            if epochs[index] != epochs[index - 1] == epochs[index + 1]:
                self._set_leader_epoch(index, epochs[index - 1])
        if all(NO_LEADER_EPOCH <= before <= behind for before, behind in pairwise(epochs)):
            return
        right = rising(epochs)
        if 2 * len(right) <= len(epochs):
            return  # the other segments show which of them are right, see salvage.mend_epochs_across
        is_right = set(right)
        for index in range(len(epochs)):
            if index not in is_right:
                at = bisect_left(right, index)
                self._set_leader_epoch(index, epochs[right[max(at - 1, 0)]])

    def _set_leader_epoch(self, index: int, epoch: int) -> None:
        if epoch >= 0 and self.kept.magic[index] == MAGIC:
            self.kept.leader_epoch[index] = epoch
            self.mends.append(leader_epoch_mend(self.kept.position[index], epoch))


def rising(epochs: Sequence[int], weights: Sequence[int] | None = None) -> list[int]:
    """Return the indexes of the epochs that never go back and weigh most together; of equal choices one with low epochs.

    Each epoch weighs 1 if no `weights` are given. Epochs below NO_LEADER_EPOCH are never among them.
    """
    # The choices that no other one beats, by the epoch at which they end: of the next one both epoch and weight are higher.
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
