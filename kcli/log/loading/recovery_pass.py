"""Recovering a segment, fast: stretches of plain batches in one loop over the bytes, without an object a batch.

A batch is plain when it is of magic 2 and whole, its CRC is right, it is no control batch, its offsets fit the segment, and
it does not break into an open transaction. The pass stops before the first one that is not, and RecoveringSegment.recover takes
that one as Kafka does; what the two do to a plain batch is the same (a test pins it).
"""

from __future__ import annotations

from kcli.format.primitives import INT32_MAX, FormatError, crc32c
from kcli.format.record_batch import CONTROL_FLAG, CRC_START, HEADER, HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC, RecordBatch
from kcli.log.files.indexes import IndexAppender
from kcli.log.files.leader_epoch_cache import LeaderEpochCache
from kcli.log.producer_state_manager import ProducerStateManager
from kcli.log.reading.log_reader import SegmentReader
from kcli.log.slices import Slices

# How many batches a slice of work takes: about ten microseconds each.
BATCHES_PER_SLICE = 512
# Why a slice ended.
_SLICE_IS_FULL, _NEEDS_MORE, _NOT_PLAIN = range(3)


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
    """What recovering the segment of `base_offset` adds up: index entries, producers, leader epochs."""

    def __init__(
        self,
        reader: SegmentReader,
        base_offset: int,
        indexes: IndexAppender,
        producers: ProducerStateManager,
        epochs: LeaderEpochCache,
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

    def run(self, position: int) -> Slices[int]:
        """Take the plain batches from byte `position` on -> the byte behind the last. Raises IndexGoesBackError and OSError."""
        is_fresh = False
        while True:
            buffer, index, filled = self._reader.at_hand(position, fresh=is_fresh)
            end, why = self._take(buffer, index, filled, position)
            if why == _NOT_PLAIN or (why == _NEEDS_MORE and is_fresh and end == position):
                return end
            position, is_fresh = end, why == _NEEDS_MORE
            yield

    def _take(self, buffer: memoryview, index: int, filled: int, position: int) -> tuple[int, int]:
        """Take plain batches of buffer[index:filled] -> (the file's byte behind them, why no more)."""
        unpack, base, add = HEADER.unpack_from, self._base_offset, self._indexes.add
        shift = position - index
        next_offset = None
        why = _SLICE_IS_FULL
        for _ in range(BATCHES_PER_SLICE):
            if filled - index < HEADER_BYTES:
                why = _NEEDS_MORE
                break
            fields = unpack(buffer, index)
            size = fields[1] + LOG_OVERHEAD_BYTES
            if fields[3] != MAGIC or size < HEADER_BYTES:
                why = _NOT_PLAIN
                break
            if size > filled - index:
                why = _NEEDS_MORE
                break
            last_offset = fields[0] + fields[6]
            if (
                fields[5] & CONTROL_FLAG
                or fields[0] < 0
                or fields[6] < 0
                or (self.least_offset is not None and fields[0] < self.least_offset)
                or not 0 <= last_offset - base <= INT32_MAX
                or crc32c(buffer[index + CRC_START : index + size]) != fields[4]
                or (fields[9] >= 0 and not self._take_producer(RecordBatch(index + shift, *fields)))
            ):
                why = _NOT_PLAIN
                break
            try:
                add(index + shift, size, last_offset, fields[8])
            except FormatError as error:
                raise IndexGoesBackError(error.message, index + shift) from error
            latest = self._epochs.latest_epoch
            if fields[2] >= 0 and (latest is None or fields[2] > latest):
                self._epochs.assign(fields[2], fields[0])
            next_offset = last_offset + 1
            if self.least_offset is not None:
                self.least_offset = next_offset
            index += size
        if next_offset is not None:
            self._producers.map_end_offset = self.next_offset = next_offset
        return index + shift, why

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
