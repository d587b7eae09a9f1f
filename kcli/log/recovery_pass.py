"""Recovering a segment, fast: stretches of plain batches in one loop over the bytes, without an object a batch.

A batch is plain when it is of magic 2 and whole, its CRC is right, it is no control batch, its offsets fit the segment, and
it does not break into an open transaction. The pass stops before the first one that is not, and LogSegment.recover takes
that one as Kafka does; what the two do to a plain batch is the same (a test pins it).
"""

from __future__ import annotations

from struct import Struct

from kcli.format.primitives import INT32_MAX, FormatError, crc32c
from kcli.format.record_batch import CONTROL_FLAG, CRC_START, HEADER, HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC, RecordBatch
from kcli.log.indexes import IndexAppender
from kcli.log.leader_epoch_cache import LeaderEpochCache
from kcli.log.log_reader import SegmentReader
from kcli.log.producer_state_manager import ProducerStateManager

_HEADER: Struct = HEADER.struct


class IndexGoesBackError(FormatError):
    """The plain batch at byte `position` would get an index entry that does not rise."""


class RecoveryPass:
    """What recovering the segment of `base_offset` adds up: index entries, producers, leader epochs."""

    def __init__(
        self,
        reader: SegmentReader,
        base_offset: int,
        indexes: IndexAppender,
        producers: ProducerStateManager,
        epochs: LeaderEpochCache,
    ) -> None:
        self._reader = reader
        self._base_offset = base_offset
        self._indexes = indexes
        self._producers = producers
        self._epochs = epochs

    def run(self, position: int) -> int:
        """Take the plain batches from byte `position` on -> the byte behind the last. Raises IndexGoesBackError and OSError."""
        is_fresh = False
        while True:
            buffer, index, filled = self._reader.at_hand(position, fresh=is_fresh)
            end, needs_more = self._take(buffer, index, filled, position)
            if not needs_more or (is_fresh and end == position):
                return end
            position, is_fresh = end, True

    def _take(self, buffer: memoryview, index: int, filled: int, position: int) -> tuple[int, bool]:
        """Take the plain batches of buffer[index:filled] -> (the file's byte behind them, whether the buffer ended)."""
        unpack, base, add = _HEADER.unpack_from, self._base_offset, self._indexes.add
        shift = position - index
        next_offset = None
        needs_more = False
        while True:
            if filled - index < HEADER_BYTES:
                needs_more = True
                break
            fields = unpack(buffer, index)
            size = fields[1] + LOG_OVERHEAD_BYTES
            if fields[3] != MAGIC or size < HEADER_BYTES:
                break
            if size > filled - index:
                needs_more = True
                break
            last_offset = fields[0] + fields[6]
            if (
                fields[5] & CONTROL_FLAG
                or fields[0] < 0
                or fields[6] < 0
                or not 0 <= last_offset - base <= INT32_MAX
                or crc32c(buffer[index + CRC_START : index + size]) != fields[4]
                or (fields[9] >= 0 and not self._take_producer(RecordBatch(index + shift, *fields)))
            ):
                break
            try:
                add(index + shift, size, last_offset, fields[8])
            except FormatError as error:
                raise IndexGoesBackError(error.message, index + shift) from error
            latest = self._epochs.latest_epoch
            if fields[2] >= 0 and (latest is None or fields[2] > latest):
                self._epochs.assign(fields[2], fields[0])
            next_offset = last_offset + 1
            index += size
        if next_offset is not None:
            self._producers.map_end_offset = next_offset
        return index + shift, needs_more

    def _take_producer(self, header: RecordBatch) -> bool:
        """Apply a data batch to its producer; False, and nothing done, where it breaks into a transaction."""
        producers = self._producers
        entry = producers.producers.get(header.producer_id)
        if entry is not None and entry.current_txn_first_offset is not None and not header.is_transactional:
            return False
        info = producers.prepare_update(header.producer_id)
        info.append(header, None)
        producers.update(info)
        return True
