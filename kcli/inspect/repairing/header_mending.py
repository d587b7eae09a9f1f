"""Putting right what of a batch's header follows from the rest of the batch and from its neighbours.

Four fields lie outside of the CRC, and the CRC does not cover itself, so a batch with a bit flipped in one of them is whole:

    field         it is put right where                                            with
    ------------  ---------------------------------------------------------------  --------------------------------------
    batchLength   the CRC is right over all bytes up to the next sound batch       that length
    magic         likewise                                                         2
    crc           it differs in one bit from the one computed, which no one or     the one computed
                  two wrong bits elsewhere can bring about
    baseOffset    the batch fills the gap that it leaves in the offsets exactly    the first offset of the gap
    leaderEpoch   the batches beside it have another, and epochs never go back     theirs

What is put right must open as well: its records are read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kcli.format.primitives import INT32_MAX
from kcli.format.record_batch import (
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
    RecordBatch,
    read_header,
)
from kcli.inspect.repairing.salvage_batches import Batch, Batches
from kcli.log.disk import DiskFile
from kcli.log.log_reader import LogBatch
from kcli.log.resynchronise import streamed_crc

LENGTH_POSITION = HEADER.offset_of("batch_length")
LEADER_EPOCH_POSITION = HEADER.offset_of("partition_leader_epoch")
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
) -> list[Mend]:
    """Try each stretch between the batches `kept` of a segment, whose offsets lie in [first, end) -> what is put right.

    Batches that are whole again join `kept`. `content_fault` tells what is wrong with a batch's records. Raises OSError.
    """
    mender = _Mender(file, kept, offsets, size_bytes, content_fault)
    mender.mend()
    return mender.mends


def leader_epoch_mend(position: int, epoch: int) -> Mend:
    """Give the batch at byte `position` the leader epoch of those beside it."""
    why = f"the batches beside the one at byte {position} have leader epoch {epoch}"
    return Mend(position + LEADER_EPOCH_POSITION, epoch.to_bytes(4, "big"), why)


class _Mender:
    """Puts headers of one segment right; what it mends joins the batches that stay."""

    def __init__(
        self,
        file: DiskFile,
        kept: Batches,
        offsets: tuple[int, int],
        size_bytes: int,
        content_fault: Callable[[LogBatch], str | None],
    ) -> None:
        self.file = file
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
        """Try each stretch between the batches."""
        index = 0
        while index <= len(self.kept):
            start = self.kept.end[index - 1] if index else 0
            end = self.kept.position[index] if index < len(self.kept) else self.size_bytes
            if HEADER_BYTES <= end - start <= INT32_MAX + LOG_OVERHEAD_BYTES:
                self._mend_stretch(index, start, end)
            index += 1
        self._mend_leader_epochs()

    def _mend_stretch(self, index: int, start: int, end: int) -> None:
        """Where bytes [start, end) are one whole batch but for its first 17 bytes, put those right."""
        head = self.file.read_at(start, HEADER_BYTES)
        if len(head) < HEADER_BYTES:
            return
        stated = read_header(head, 0, start)
        header = stated._replace(batch_length=end - start - LOG_OVERHEAD_BYTES, magic=MAGIC)
        crc = streamed_crc(self.file, header)
        if crc is None or (crc ^ header.crc).bit_count() > 1 or header.last_offset_delta < 0 or header.record_count < 0:
            return
        offset = self._offset_that_fits(index, header)
        if offset is None:
            return
        mended = header._replace(base_offset=offset, crc=crc)
        # Where its header was right its records are not, or it would have stayed.
        if mended != stated and self.content_fault(LogBatch(mended, None, mended.crc, self.file)) is None:
            self._note(stated, mended)
            self.kept.insert(index, Batch(start, end, offset, mended.last_offset, mended.partition_leader_epoch))

    def _offset_that_fits(self, index: int, header: RecordBatch) -> int | None:
        """The stated base offset where it lies between the neighbours', else that of a gap which the batch fills."""
        before = self.kept.last_offset[index - 1] if index else self.first_offset - 1
        behind = self.kept.base_offset[index] if index < len(self.kept) else None
        if before < header.base_offset and header.last_offset < (self.end_offset if behind is None else behind):
            return header.base_offset
        last = before + 1 + header.last_offset_delta
        if behind is None:
            return before + 1 if index and not self.has_gaps and last < self.end_offset else None
        return before + 1 if last + 1 == behind else None

    def _note(self, stated: RecordBatch, mended: RecordBatch) -> None:
        start = stated.position
        if stated.base_offset != mended.base_offset:
            why = f"the batch at byte {start} fills the gap before the next: its base offset is {mended.base_offset}"
            self.mends.append(Mend(start, mended.base_offset.to_bytes(8, "big"), why))
        if stated.batch_length != mended.batch_length:
            why = f"the CRC of the batch at byte {start} is right with a length of {mended.batch_length} bytes"
            self.mends.append(Mend(start + LENGTH_POSITION, mended.batch_length.to_bytes(4, "big"), why))
        if stated.crc != mended.crc:
            why = f"the CRC of the batch at byte {start} has one wrong bit"
            self.mends.append(Mend(start + CRC_POSITION, mended.crc.to_bytes(4, "big"), why))
        if stated.magic != mended.magic:
            why = f"the CRC of the batch at byte {start} is right with magic {MAGIC}"
            self.mends.append(Mend(start + MAGIC_POSITION, bytes([MAGIC]), why))

    def _mend_leader_epochs(self) -> None:
        """Leader epochs never go back: one between two equal others, or above the next, or below the one before, is wrong."""
        epochs = self.kept.leader_epoch
        last = len(epochs) - 1
        for index in range(1, last):
            if epochs[index] != epochs[index - 1] == epochs[index + 1]:
                self._set_leader_epoch(index, epochs[index - 1])
        if last > 0 and epochs[0] > epochs[1]:
            self._set_leader_epoch(0, epochs[1])
        if last > 0 and epochs[last] < epochs[last - 1]:
            self._set_leader_epoch(last, epochs[last - 1])

    def _set_leader_epoch(self, index: int, epoch: int) -> None:
        if epoch >= 0 and self.kept.magic[index] == MAGIC:
            self.kept.leader_epoch[index] = epoch
            self.mends.append(leader_epoch_mend(self.kept.position[index], epoch))
