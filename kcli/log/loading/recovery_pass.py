"""Recovers the plain batches of a segment fast: from the rows of kcli.format.batch_scan, without an object for each batch.

A batch is plain if it is of magic 2 and whole, its CRC is right, it is not a control batch, its offsets fit the segment, and
it does not break into an open transaction. The pass stops before the first one that is not, and RecoveringSegment.recover takes
that one as Kafka does; a test holds the two to the same outcome for a plain batch.
"""

from __future__ import annotations

from array import array

from kcli.format.batch_scan import BatchColumns, scan_batches
from kcli.format.loop_results import NEED_MORE, OTHER
from kcli.format.primitives import INT32_MAX, FormatError, crc32c
from kcli.format.record_batch import CONTROL_FLAG, LOG_OVERHEAD_BYTES, MAGIC, RecordBatch
from kcli.log.files.indexes import IndexAppender
from kcli.log.files.leader_epoch_file_cache import LeaderEpochFileCache
from kcli.log.producer_state_manager import ProducerStateManager
from kcli.log.reading.segment_reader import SegmentReader
from kcli.log.slices import Slices

# How many batches a time slice takes: about ten microseconds each.
BATCHES_PER_SLICE = 512
# What a disk writes whole.
SECTOR_BYTES = 512
# The offset is a batch's first field, and its length the next: of a length below 64 KiB the first bytes are 0 anyway.
_LENGTH_AT, _LENGTH_BYTES = 8, 4


class IndexGoesBackError(FormatError):
    """The plain batch at byte `position` would get an index entry that does not rise."""


def is_torn_offset(offset: int, expected: int, position: int) -> bool:
    """Whether the offset of the batch at byte `position` is what a write torn at a sector leaves of `expected`.

    Its bytes before the sector are 0, not written, and what the CRC covers begins behind it. Any other offset that goes back
    is taken as Kafka takes it.
    """
    missing = -position % SECTOR_BYTES
    if not 0 < missing <= _LENGTH_AT + _LENGTH_BYTES or offset >= expected:
        return False
    return offset == expected & (1 << 8 * max(0, _LENGTH_AT - missing)) - 1


class RecoveryPass:
    """The recovery of the segment of `base_offset`: it adds index entries, producers and leader epochs."""

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
        # With `keeps_order` a batch is plain only where its offsets lie behind those before it: see is_torn_offset.
        self.least_offset = base_offset if keeps_order else None
        self.next_offset = base_offset  # behind the last batch that was taken, here or by RecoveringSegment.recover
        self._reader = reader
        self._base_offset = base_offset
        self._indexes = indexes
        self._producers = producers
        self._epochs = epochs
        self._rows = BatchColumns(BATCHES_PER_SLICE)
        self._row = self._count = 0  # rows [_row, _count) are to be taken
        self._why = OTHER  # why the scan that filled the rows ended
        self._scratch = array("q", bytes(32))

    def run(self, position: int) -> Slices[int]:
        """Take the plain batches from byte `position` on -> the byte behind the last. Raises IndexGoesBackError and OSError."""
        while True:
            if self._row == self._count or self._rows.position[self._row] != position:
                self._scan(position)
            position, is_plain = self._take(position)
            if not is_plain or self._count == 0 or self._why == OTHER:
                return position
            yield

    def _scan(self, position: int) -> None:
        """Scan the batches from byte `position` on: those in the reader's buffer or, if none is whole there, of a new one."""
        for is_fresh in (False, True):
            buffer, index, filled = self._reader.buffered(position, fresh=is_fresh)
            self._row, shift = 0, position - index
            self._count = scan_batches(buffer, buffer, index, filled, shift, crc32c, self._rows, False, self._scratch)
            self._why = self._scratch[1]
            if self._count or self._why != NEED_MORE:
                return

    def _take(self, position: int) -> tuple[int, bool]:
        """Take the rows up to the first that is not plain -> (the file's byte behind them, whether all were plain)."""
        rows, base, add = self._rows, self._base_offset, self._indexes.add
        next_offset, is_plain = None, True
        for row in range(self._row, self._count):
            first_offset, last_offset, epoch = rows.base_offset[row], rows.last_offset[row], rows.leader_epoch[row]
            if (
                rows.attributes[row] & CONTROL_FLAG
                or (self.least_offset is not None and first_offset < self.least_offset)
                or not 0 <= last_offset - base <= INT32_MAX
                or (rows.producer_id[row] >= 0 and not self._take_producer(row))
            ):
                is_plain = False
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
        self._row = self._count if is_plain else row + 1  # the caller takes the one that is not plain, as Kafka does
        if next_offset is not None:
            self._producers.map_end_offset = self.next_offset = next_offset
        return position, is_plain

    def _take_producer(self, row: int) -> bool:
        """Apply a row's data batch to its producer; False, and nothing done, if it breaks into a transaction."""
        producers, rows = self._producers, self._rows
        producer_id = rows.producer_id[row]
        entry = producers.producers.get(producer_id)
        header = RecordBatch(  # by place: keywords would cost three times as much
            rows.position[row],
            rows.base_offset[row],
            rows.size_bytes[row] - LOG_OVERHEAD_BYTES,
            rows.leader_epoch[row],
            MAGIC,
            0,  # it was right
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
