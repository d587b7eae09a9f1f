"""The fast path of a segment's recovery: the rows of kcli.format.batch_scan, without an object for each batch.

A batch is eligible if it is complete and of magic 2, its CRC is correct, it is not a control batch, its offsets fit the
segment, and it does not conflict with an open transaction. The pass stops before the first batch that is not, which
RecoveringSegment.recover then handles; a test checks that both have the same outcome for an eligible batch.
"""

from __future__ import annotations

from array import array

from kcli.format.batch_scan import BatchColumns, scan_batches
from kcli.format.loop_results import NEED_MORE, OTHER
from kcli.format.primitives import INT32_MAX, FormatError, crc32c
from kcli.format.record_batch import CONTROL_FLAG, HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC, RecordBatch
from kcli.log.files.indexes import IndexAppender
from kcli.log.files.leader_epoch_file_cache import LeaderEpochFileCache
from kcli.log.producer_state_manager import ProducerStateManager
from kcli.log.reading.segment_reader import SegmentReader
from kcli.log.slices import Slices

# Batches in a time slice: about ten microseconds each.
BATCHES_PER_SLICE = 512
# The unit that a disk writes atomically.
SECTOR_BYTES = 512
# A batch begins with its offset, then its length, whose first bytes are 0 below 64 KiB.
_LENGTH_AT, _LENGTH_BYTES = 8, 4


class IndexGoesBackError(FormatError):
    """The batch at byte `position` would get an index entry that does not rise."""


def is_torn_offset(offset: int, expected: int, position: int) -> bool:
    """Return True if the offset of the batch at byte `position` is `expected` after a write torn at a sector boundary.

    Its bytes before the boundary are 0, since they were not written, and the bytes that the CRC covers are after it. Any other
    offset that goes back is handled as in Kafka.
    """
    missing = -position % SECTOR_BYTES
    if not 0 < missing <= _LENGTH_AT + _LENGTH_BYTES or offset >= expected:
        return False
    return offset == expected & (1 << 8 * max(0, _LENGTH_AT - missing)) - 1


class RecoveryPass:
    """The recovery of the segment of `base_offset`: it fills index entries, producers and leader epochs."""

    def __init__(
        self,
        reader: SegmentReader,
        base_offset: int,
        indexes: IndexAppender,
        producers: ProducerStateManager,
        epochs: LeaderEpochFileCache,
        *,
        keeps_order: bool = False,
    ) -> None:
        # With `keeps_order` a batch is eligible only if its offsets are above the previous ones: see is_torn_offset.
        self.least_offset = base_offset if keeps_order else None
        self.next_offset = base_offset  # after the last applied batch, here or in RecoveringSegment.recover
        self._reader = reader
        self._base_offset = base_offset
        self._indexes = indexes
        self._producers = producers
        self._epochs = epochs
        # A small segment gets small columns: those of a whole slice take 50 KB, a tenth of the time to open a log of one batch.
        self._rows = BatchColumns(min(BATCHES_PER_SLICE, reader.end_position() // HEADER_BYTES + 1))
        self._row = self._count = 0  # rows [_row, _count) are still to be applied
        self._why = OTHER  # why the scan of the rows ended
        self._scratch = array("q", bytes(32))

    def run(self, position: int) -> Slices[int]:
        """Apply the eligible batches from byte `position` on; return their end. Raises IndexGoesBackError and OSError."""
        while True:
            if self._row == self._count or self._rows.position[self._row] != position:
                self._scan(position)
            position, is_eligible = self._apply(position)
            if not is_eligible or self._count == 0 or self._why == OTHER:
                return position
            yield

    def _scan(self, position: int) -> None:
        """Scan the batches from byte `position` on in the reader's buffer; if it has no complete batch, read again."""
        if position == self._reader.end_position():
            self._row = self._count = 0
            return
        for is_fresh in (False, True):
            buffer, index, filled = self._reader.buffered(position, fresh=is_fresh)
            self._row, shift = 0, position - index
            self._count = scan_batches(buffer, buffer, index, filled, shift, crc32c, self._rows, None, self._scratch)
            self._why = self._scratch[1]
            if self._count or self._why != NEED_MORE:
                return

    def _apply(self, position: int) -> tuple[int, bool]:
        """Apply the rows up to the first that is not eligible; return their end in the file and whether all were eligible."""
        rows, base, add = self._rows, self._base_offset, self._indexes.add
        next_offset, is_eligible = None, True
        for row in range(self._row, self._count):
            first_offset, last_offset, epoch = rows.base_offset[row], rows.last_offset[row], rows.leader_epoch[row]
            if (
                rows.attributes[row] & CONTROL_FLAG
                or (self.least_offset is not None and first_offset < self.least_offset)
                or not 0 <= last_offset - base <= INT32_MAX
                or (rows.producer_id[row] >= 0 and not self._update_producer(row))
            ):
                is_eligible = False
                break
            try:
                add(position, rows.size_bytes[row], last_offset, rows.max_timestamp[row])
            except FormatError as error:
                raise IndexGoesBackError(error.message, position) from error
            latest = self._epochs.latest_epoch
            if epoch >= 0 and (latest is None or epoch > latest):
                self._epochs.assign(epoch, first_offset)
            next_offset = last_offset + 1
            if self.least_offset is not None:
                self.least_offset = next_offset
            position += rows.size_bytes[row]
        self._row = self._count if is_eligible else row + 1  # the caller handles the one that is not eligible
        if next_offset is not None:
            self._producers.map_end_offset = self.next_offset = next_offset
        return position, is_eligible

    def _update_producer(self, row: int) -> bool:
        """Apply a row's data batch to its producer; return False, with nothing done, if it conflicts with a transaction."""
        producers, rows = self._producers, self._rows
        producer_id = rows.producer_id[row]
        entry = producers.producers.get(producer_id)
        header = RecordBatch(  # positional: keyword arguments take three times as long
            rows.position[row],
            rows.base_offset[row],
            rows.size_bytes[row] - LOG_OVERHEAD_BYTES,
            rows.leader_epoch[row],
            MAGIC,
            0,  # the CRC was correct
            rows.attributes[row],
            rows.last_offset[row] - rows.base_offset[row],
            rows.base_timestamp[row],
            rows.max_timestamp[row],
            producer_id,
            rows.producer_epoch[row],
            rows.base_sequence[row],
            rows.record_count[row],
        )
        if entry is not None and entry.current_txn_first_offset is not None and not header.is_transactional:
            return False
        info = producers.prepare_update(producer_id)
        info.append(header, None)
        producers.update(info)
        return True
