"""The first half of a cleaning round: the keys of the dirty part are put into the offset map (Kafka: Cleaner.buildOffsetMap).

    batch                                          its records
    ---------------------------------------------  -----------------------------------------------------------------------
    control, or data of an aborted transaction     are not put
    one that BatchReader handles                   are put with those of its neighbours, by BatchMapper
    any other                                      are opened as windows and put

The map ends at the end of the last segment, or where it is full, which may be inside a batch. A batch with a wrong CRC or
damaged records ends the round (FormatError).

BatchMapper is compiled (the same source runs interpreted, as kcli.format.record_scan does); its C types are in
offset_map_builder.pxd.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kcli.format import loop_results
from kcli.format.batch_header import read_int64
from kcli.format.compression import inflate_at_once
from kcli.format.primitives import Buffer, CorruptRecordError, FormatError, crc32c
from kcli.format.record_batch import MAGIC, RecordBatch
from kcli.log.cleaner import batch_reader, offset_map, transaction_metadata
from kcli.log.cleaner.throttler import BATCH_WORK, COMPRESSED_BATCH_WORK, SLICE_BYTES, ByteBudget
from kcli.log.disk.flush_request import FlushSequence
from kcli.log.log_segment import LogSegment
from kcli.log.reading.batch_records import RecordScanner, RecordWindow
from kcli.log.reading.segment_reader import LogBatch, SegmentReader
from kcli.log.unified_log import UnifiedLog


class BatchMapper:
    """Puts the keys of many batches into the offset map in one call."""

    def __init__(
        self,
        reader: batch_reader.BatchReader,
        transactions: transaction_metadata.CleanedTransactionMetadata,
        offsets: offset_map.OffsetMap,
        start_offset: int,
    ) -> None:
        self.reader = reader
        self.transactions = transactions  # OffsetMapBuilder writes it, too
        self.offsets = offsets
        self.start_offset = start_offset  # records below it are not put
        self.without_key = 0  # records without a key in batches from the start offset on; OffsetMapBuilder adds to it
        self.tombstones = 0  # the same, records without a value
        # The last call.
        self.result = loop_results.NEED_MORE  # why it ended: NEED_MORE, OTHER, ENOUGH or MAP_FULL
        self.records = 0  # records of data batches
        self.work_bytes = 0  # bytes read, or decompressed, and a constant for each batch
        self.has_transactions = False  # one of the batches is a marker or part of a transaction

    def put_batches(self, buffer: Buffer, view: memoryview, position: int, limit: int) -> int:
        """Put the keys of the batches in buffer[position:limit]; return the index where it ended, and set `result`.

        `view` is a memoryview of the same buffer.
        """
        reader = self.reader
        header = reader.header
        offsets = self.offsets
        self.records = 0
        self.work_bytes = 0
        self.has_transactions = False
        self.result = loop_results.ENOUGH
        while self.work_bytes < SLICE_BYTES:
            self.result = reader.read_header(buffer, view, position, limit, self.transactions)
            if self.result != loop_results.USUAL:
                break
            if header.is_control:
                if reader.read_marker(buffer) == batch_reader.NO_MARKER:
                    self.result = loop_results.OTHER
                    break
            elif not offsets.can_put(header.record_count):
                self.result = loop_results.MAP_FULL
                break
            elif reader.read_records(buffer, view):
                self._put_records()
            else:
                self.result = loop_results.OTHER
                break
            if header.codec:
                self.work_bytes += reader.records_end + COMPRESSED_BATCH_WORK
            else:
                self.work_bytes += header.end_position - position + BATCH_WORK
            if header.is_transactional or header.is_control:
                self.has_transactions = True
            if header.last_offset >= self.start_offset:
                offsets.latest_offset = header.last_offset
            position = header.end_position
            self.result = loop_results.ENOUGH
        return position

    def _put_records(self) -> None:
        """Put the keys of the batch that was read last."""
        reader = self.reader
        header = reader.header
        count = header.record_count
        key_sizes = reader.columns.key_size_view
        value_sizes = reader.columns.value_size_view
        if reader.columns.offset_view[0] < header.base_offset or reader.columns.offset_view[count - 1] > header.last_offset:
            self.offsets.is_in_order = False
        self.offsets.put(reader.data, reader.columns, count, self.start_offset)
        self.records += count
        if header.base_offset < self.start_offset:
            return
        without_key = 0
        tombstones = 0
        index = 0
        while index < count:
            if key_sizes[index] < 0:
                without_key += 1
            if value_sizes[index] < 0:
                tombstones += 1
            index += 1
        self.without_key += without_key
        self.tombstones += tombstones


class MappedRanges:
    """Byte ranges of segments whose records were all put into the map: a range without a retained offset is skipped whole.

    A range is what one call of BatchMapper read, half a megabyte or so, and only data of no transaction. It takes 48 bytes, so
    100 GB take 10 MB. Ranges are added, and searched, in the order of the log.
    """

    _FIELDS = 6

    def __init__(self) -> None:
        self._ranges = array("q")
        self._at = 0  # the index of the range that the properties return

    def add(self, segment: int, start: int, end: int, first_offset: int, last_offset: int, records: int) -> None:
        """Add bytes [start, end) of a segment (its base offset); the offsets are the first and last of these batches."""
        self._ranges.extend((segment, start, end, first_offset, last_offset, records))

    def seek(self, segment: int, position: int) -> int | None:
        """Move to the range that begins at a byte of a segment or after it; return where it begins, None if there is none."""
        ranges, at = self._ranges, self._at
        while at < len(ranges) and (ranges[at], ranges[at + 1]) < (segment, position):
            at += self._FIELDS
        self._at = at
        return ranges[at + 1] if at < len(ranges) and ranges[at] == segment else None

    @property
    def end(self) -> int:
        """The byte after the range."""
        return self._ranges[self._at + 2]

    @property
    def offsets(self) -> tuple[int, int]:
        """Its first and last offset."""
        return self._ranges[self._at + 3], self._ranges[self._at + 4]

    @property
    def records(self) -> int:
        """The number of its records."""
        return self._ranges[self._at + 5]


def sound_batch(reader: SegmentReader, position: int) -> LogBatch:
    """Return the batch at byte `position`, before the segment's end. Raises CorruptRecordError if there is no sound one.

    An incomplete batch is not the end of the log here: a repair may find records after it, which a cleaned segment would lose.
    """
    batch = next(reader.batches_as_kafka(position), None)
    if batch is None:
        raise CorruptRecordError(
            f"{reader.path}: the bytes [{position}, {reader.end_position()}) are not a complete batch", position
        )
    if not batch.is_valid:
        raise CorruptRecordError(f"{reader.path}: the batch at byte {batch.position} has a wrong CRC", batch.position)
    return batch


@contextmanager
def located(reader: SegmentReader, batch: LogBatch) -> Iterator[None]:
    """Add the file and the byte of the batch to a FormatError of its records."""
    try:
        yield
    except FormatError as error:
        if not error.message.startswith(reader.path):
            error.message = f"{reader.path}: the batch at byte {batch.position}: {error.message}"
        raise


class OffsetMapBuilder:
    """Fills `offsets` from the batches of offsets [start, end) of `log`, and finds `ranges`.

    `check(segments)` raises if these are no longer part of the log; `buffer_bytes` are read at once.
    """

    def __init__(
        self,
        log: UnifiedLog,
        offsets: offset_map.OffsetMap,
        start: int,
        end: int,
        budget: ByteBudget,
        check: Callable[[list[LogSegment]], None],
        buffer_bytes: int,
    ) -> None:
        self.ranges = MappedRanges()
        self._log = log
        self._local = log.local_log()
        self._offsets = offsets
        self._start = start
        self._end = end
        self._budget = budget
        self._check = check
        self._buffer_bytes = buffer_bytes
        self._scanner = RecordScanner()
        self._transactions = transaction_metadata.CleanedTransactionMetadata()
        reader = batch_reader.BatchReader(self._scanner.columns, crc32c, inflate_at_once)
        self.mapper = BatchMapper(reader, self._transactions, offsets, start)

    def build(self) -> FlushSequence[None]:
        """Put the keys in time slices. Raises FormatError, OSError, and what `check` raises."""
        start, end = self._start, self._end
        segments = [one for one in self._local.segments[self._local.floor(start) :] if one.base_offset < end]
        self._transactions.add_aborted(self._log.aborted_transactions(start, end))
        for slot, segment in enumerate(segments):
            next_start = segments[slot + 1].base_offset if slot + 1 < len(segments) else end
            if (yield from self._map_segment(segment)):
                return
            self._offsets.latest_offset = next_start - 1

    def _map_segment(self, segment: LogSegment) -> FlushSequence[bool]:
        """Put the keys of a segment; return whether the map is full."""
        start, mapper = self._start, self.mapper
        # An index is read whole, some milliseconds for a large one: only if the round begins inside the segment.
        position = 0 if start <= segment.base_offset else self._local.index_of(segment).lookup(start).position
        with SegmentReader(
            self._local.disk, segment.log_path, end=segment.size_bytes, chunk_bytes=self._buffer_bytes
        ) as reader:
            is_fresh = False
            while position < segment.size_bytes:
                buffer, index, filled = reader.buffered(position, fresh=is_fresh)
                passed = mapper.put_batches(buffer, buffer, index, filled) - index
                first_offset = read_int64(buffer, index) if passed else start - 1
                if first_offset >= start and not mapper.has_transactions:
                    last_offset = self._offsets.latest_offset
                    self.ranges.add(segment.base_offset, position, position + passed, first_offset, last_offset, mapper.records)
                position += passed
                if self._budget.is_spent(passed, mapper.work_bytes):
                    yield ()
                    self._check([segment])
                if mapper.result == loop_results.MAP_FULL and self._offsets.may_grow:
                    yield from self._grow()
                    continue
                is_fresh = mapper.result == loop_results.NEED_MORE and (passed > 0 or not is_fresh)
                if passed or is_fresh:
                    continue
                batch = sound_batch(reader, position)
                with located(reader, batch):
                    if (yield from self._map_batch(batch)):
                        return True
                position = batch.end_position
                self._check([segment])
        return False

    def _grow(self) -> FlushSequence[None]:
        while self._offsets.grow():
            yield ()

    def _map_batch(self, batch: LogBatch) -> FlushSequence[bool]:
        """Put the keys of a batch; return whether the map was full before its end."""
        header, offsets, start = batch.header, self._offsets, self._start
        is_data = counts = True
        if isinstance(header, RecordBatch):
            if header.is_control:
                self._transactions.on_control_batch_read(header, batch.read_marker(self._scanner))
                is_data = False
            else:
                is_data = not self._transactions.on_batch_read(header)
            counts = header.magic == MAGIC and header.base_offset >= start
        else:
            counts = False
        without_key = tombstones = 0
        for window in batch.windows(self._scanner) if is_data else ():
            if (yield from self._map_window(window)):
                return True
            columns, count = window.columns, window.count
            if counts and count:
                without_key += sum(size < 0 for size in columns.key_size[:count])
                tombstones += sum(size < 0 for size in columns.value_size[:count])
                if columns.offset[0] < header.base_offset or columns.offset[count - 1] > header.last_offset:
                    offsets.is_in_order = False
            if self._budget.is_spent(0, columns.end):
                yield ()
        self.mapper.without_key += without_key
        self.mapper.tombstones += tombstones
        if header.last_offset >= start:
            offsets.latest_offset = header.last_offset
        if self._budget.is_spent(header.size_bytes):
            yield ()
        return False

    def _map_window(self, window: RecordWindow) -> FlushSequence[bool]:
        """Put the keys of a window; return whether the map was full before its end. Raises FormatError for damaged records."""
        if window.error is not None:
            raise window.error
        offsets, done = self._offsets, 0
        while True:
            done = offsets.put(window.buffer, window.columns, window.count, self._start, done)
            if done == window.count:
                return False
            if not offsets.may_grow:
                break
            yield from self._grow()
        # The map accounts for all up to the last key that was put: a record without a key after it is left to the next round.
        keyed = (at for at in range(done - 1, -1, -1) if window.columns.key_size[at] >= 0)
        last = next((window.columns.offset[at] for at in keyed), offsets.latest_offset)
        offsets.latest_offset = max(offsets.latest_offset, last)
        return True
