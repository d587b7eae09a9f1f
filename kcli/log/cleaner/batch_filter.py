"""One batch is filtered here: `BatchFilter.filter_batch` (Kafka: Cleaner.cleanInto, RecordFilter, MemoryRecords.filterTo).

    batch                                                         written
    ------------------------------------------------------------  ------------------------------------------------------
    all records are retained, no delete horizon is to be set      its bytes (UNCHANGED)
    some are retained, or it gets its delete horizon              a batch of those, see below (REWRITTEN)
    none is retained, but it is an active producer's last batch   its header with no records, so that the producer's
      or the last one that the round may clean                    sequence and the log's end survive
    none is retained                                              nothing (EMPTY)

    record                                                        retained
    ------------------------------------------------------------  ------------------------------------------------------
    of a batch that is discarded (an aborted transaction; a       no
      marker without data after its delete horizon)
    a control record                                              yes
    any other                                                     if it is the last one of its key (OffsetMap.retain); a
                                                                  tombstone only until the delete horizon of its batch

The delete horizon (KIP-534) is when a tombstone or a marker without data may be removed. The first round that retains such a
record sets it: attribute bit 6, and the base timestamp is now + delete.retention.ms, from which the deltas are counted anew.
A batch of format 0 or 1 has none: there a tombstone is removed by the age of its segment, or its new batch gets a horizon.

A rewritten batch keeps its base offset, last offset, producer, sequence, epoch, flags and codec; its maxTimestamp is that of
its records (LogAppendTime: as it was). Format 0 or 1 becomes format 2, with the offset of its first retained record.

    filter                         batches
    -----------------------------  -----------------------------------------------------------------------------------------
    BatchFilter, compiled          those that BatchReader handles, except one that is written without records
    GeneralBatchFilter             all; the cleaner calls it for batches that BatchFilter does not handle (OTHER)

Both write the same bytes (tests/log/cleaner/test_filter_paths.py). This one source runs two ways, as kcli.format.record_scan
does; its C types are in batch_filter.pxd.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kcli.format import loop_results, record_copy, structs
from kcli.format.compression import deflate
from kcli.format.primitives import INT64_MAX, Buffer
from kcli.format.record_batch import DELETE_HORIZON_FLAG, HEADER_BYTES, read_header, with_records
from kcli.log.cleaner import batch_reader, offset_map, retained_offsets, transaction_metadata
from kcli.log.cleaner.throttler import BATCH_WORK, COMPRESSED_BATCH_WORK, RECOMPRESSED_FACTOR, SLICE_BYTES

# A call of `filter_batches` ends after this many batches, too.
MOST_BATCHES = 512
RECOMPRESSED_BATCH_WORK = 16_000

# Timestamps beyond 2**61, whose deltas may not fit into 64 bits, are left to GeneralBatchFilter.
MOST_TIMESTAMP = 2305843009213693952


class LastRecord(NamedTuple):
    """What is retained of an active producer: the batch with its last data offset or, if None, its last marker by epoch."""

    last_data_offset: int | None
    producer_epoch: int


class FilterSettings(NamedTuple):
    """What applies to a whole round; times in ms, the batch that ends at `upper_bound_offset` is the last one to clean."""

    now_ms: int
    delete_retention_ms: int
    upper_bound_offset: int
    last_records: Mapping[int, LastRecord]


class CleanerStats:
    """What the batches of a round contained; both filters count (Kafka: CleanerStats)."""

    def __init__(self) -> None:
        self.bytes_read = 0
        self.bytes_kept = 0  # bytes written
        self.records_read = 0
        self.records_kept = 0
        self.records_discarded = 0  # of aborted transactions, and markers: they are not read
        self.without_key = 0  # records that were dropped because they have no key
        self.tombstones_kept = 0
        self.tombstones_dropped = 0


class BatchFilter:
    """Filters batches in the order of the log into `out`."""

    def __init__(
        self,
        reader: batch_reader.BatchReader,
        offsets: offset_map.OffsetMap,
        window: retained_offsets.RetainedOffsets,
        transactions: transaction_metadata.CleanedTransactionMetadata,
        settings: FilterSettings,
        out: memoryview,
    ) -> None:
        self.reader = reader  # has the header and the columns of the last batch
        self.offsets = offsets  # complete, and only read
        self.window = window  # the cleaner moves it when the result is OUTSIDE_WINDOW
        self.transactions = transactions  # GeneralBatchFilter writes it, too
        self.stats = CleanerStats()  # GeneralBatchFilter and the cleaner, which skips ranges, write it, too
        self.now_ms = settings.now_ms
        self.horizon_ms = settings.now_ms + settings.delete_retention_ms  # the delete horizon that this round sets
        # The producers whose last marker is retained.
        last_records = settings.last_records.items()
        self.marker_ids = frozenset(producer_id for producer_id, last in last_records if last.last_data_offset is None)
        # A batch that reaches the next of these offsets may have to be written without records.
        ends = {last.last_data_offset for _, last in last_records if last.last_data_offset is not None}
        self.stop_offsets = sorted(ends | {settings.upper_bound_offset - 1, INT64_MAX})
        self.next_stop = 0
        self.stop_offset = self.stop_offsets[0]
        self.out = out
        self.out_view = out  # the same for Python code
        self.retained = offset_map.RetainedRecords(
            reader.columns.capacity
        )  # of the last batch; GeneralBatchFilter uses it, too
        # The last call of `filter_batches`.
        self.result = loop_results.NEED_MORE  # why it ended: NEED_MORE, OTHER, ENOUGH, OUTSIDE_WINDOW, or REWRITTEN: see there
        self.used_bytes = 0  # bytes of `out` with whole batches
        self.work_bytes = 0  # bytes of batches that were read, rewritten and compressed, and a constant for each
        self.batch_count = 0  # batches in `out`
        self.sizes = array("q", bytes(8 * MOST_BATCHES))  # their bytes
        self.last_offsets = array("q", bytes(8 * MOST_BATCHES))
        self.max_timestamps = array("q", bytes(8 * MOST_BATCHES))
        self.c_sizes = self.sizes  # the same three for compiled code
        self.c_last_offsets = self.last_offsets
        self.c_max_timestamps = self.max_timestamps
        # The last call of `filter_batch`.
        self.max_timestamp = 0  # of the batch that is written
        self.base_timestamp = 0  # the same
        self.records_bytes = 0  # of a rewritten batch: its records, not compressed
        self.is_mapped = False  # RetainedOffsets knows the batch: what is dropped of it was counted when the map was built
        self.is_discarded = False  # a marker that is removed
        self.sets_horizon = False  # a rewritten batch gets its delete horizon

    # ---------------------------------------------------------------------------------------------------- many batches

    def filter_batches(self, buffer: Buffer, view: memoryview, position: int, limit: int, file_limit: int) -> int:
        """Filter batches from buffer[position] on; return the index where it ended, perhaps after `limit`, and set `result`.

        `view` is a memoryview of `buffer`; the segment would end at buffer[file_limit]. REWRITTEN says that the last batch
        is to be compressed: it follows the others in `out`, and `compressed_batch` returns it.
        """
        header = self.reader.header
        out = self.out
        start = position
        self.result = loop_results.ENOUGH
        self.used_bytes = 0
        self.work_bytes = 0
        self.batch_count = 0
        while self.work_bytes < SLICE_BYTES and self.batch_count < MOST_BATCHES:
            if self.window.is_useful:
                skipped_to = self._skip_batches(buffer, position, limit, file_limit)
                self.work_bytes += skipped_to - position
                position = skipped_to
                if self.result != loop_results.OTHER:
                    break
            self.result = self.filter_batch(buffer, view, position, limit)
            size = header.end_position - position
            if self.result == loop_results.UNCHANGED and size > len(out) - self.used_bytes:
                self.result = loop_results.FULL
            if self.result == loop_results.FULL:
                self.result = loop_results.ENOUGH if self.used_bytes else loop_results.OTHER
                break
            if self.result == loop_results.NEED_MORE or self.result == loop_results.OTHER:
                break
            self._count_records()
            if header.last_offset >= self.stop_offset:
                self.pass_stops(header.last_offset)
            if self.result == loop_results.REWRITTEN and header.codec:
                self.work_bytes += RECOMPRESSED_FACTOR * size + RECOMPRESSED_BATCH_WORK
                position += size
                break
            self.work_bytes += size + (COMPRESSED_BATCH_WORK if header.codec else BATCH_WORK)
            if self.result == loop_results.UNCHANGED:
                out[self.used_bytes : self.used_bytes + size] = buffer[position : position + size]
                self._add_batch(size)
            elif self.result == loop_results.REWRITTEN:
                self.work_bytes += size  # it is read and written
                self._add_batch(structs.RECORD_BATCH_HEADER_BYTES + self.records_bytes)
            position += size
            self.result = loop_results.ENOUGH
        self.stats.bytes_read += position - start
        self.stats.bytes_kept += self.used_bytes
        return position

    def _skip_batches(self, buffer: Buffer, position: int, limit: int, file_limit: int) -> int:
        """Skip batches of the dirty part without a retained record; return the index of the next one, perhaps after `limit`.

        `result` is NEED_MORE, OUTSIDE_WINDOW, or OTHER for a batch that is to be read.
        """
        header = self.reader.header
        window = self.window
        records = 0
        while True:
            self.result = header.read(buffer, position, limit)
            if self.result != loop_results.USUAL:
                break
            self.result = loop_results.OTHER
            if (
                header.end_position > file_limit
                or header.record_count == 0
                or header.has_unknown_attributes
                or header.is_control
                or header.last_offset >= self.stop_offset
                or not window.is_mapped(header.base_offset, header.last_offset)
            ):
                break
            if not window.is_in_window(header.base_offset, header.last_offset):
                self.result = loop_results.OUTSIDE_WINDOW
                break
            if window.has_any(header.base_offset, header.last_offset):
                break
            if header.is_transactional:
                if self.transactions.may_be_aborted(header.producer_id, header.last_offset):
                    break
                self.transactions.add_ongoing(header.producer_id)
            records += header.record_count
            position = header.end_position
        self.stats.records_read += records
        window.skipped_records += records
        return position

    def _count_records(self) -> None:
        """Count the records of the batch that was filtered last."""
        stats = self.stats
        retained = self.retained
        if self.is_discarded:
            stats.records_discarded += 1
            return
        stats.records_read += self.reader.header.record_count
        stats.records_kept += retained.count
        stats.tombstones_kept += retained.tombstones
        if self.is_mapped:
            stats.tombstones_dropped -= retained.tombstones
        else:
            stats.without_key += retained.without_key
            stats.tombstones_dropped += retained.dropped_tombstones

    def _add_batch(self, size: int) -> None:
        """Add the batch that was filtered last, the next `size` bytes of `out`."""
        self.c_sizes[self.batch_count] = size
        self.c_last_offsets[self.batch_count] = self.reader.header.last_offset
        self.c_max_timestamps[self.batch_count] = self.max_timestamp
        self.batch_count += 1
        self.used_bytes += size

    def batches(self) -> Iterable[tuple[int, int, int]]:
        """Return size, last offset and largest timestamp of each batch that the last call wrote to out[:used_bytes]."""
        count = self.batch_count
        return zip(self.sizes[:count], self.last_offsets[:count], self.max_timestamps[:count], strict=True)

    def compressed_batch(self) -> bytes:
        """Return the batch that `filter_batches` ended with, if its result is REWRITTEN."""
        start = self.used_bytes
        header = read_header(self.out_view, start)
        records = self.out_view[start + HEADER_BYTES : start + HEADER_BYTES + self.records_bytes]
        batch = with_records(header, deflate(header.codec, records)).encode()
        self.stats.bytes_kept += len(batch)
        return batch

    def pass_stops(self, offset: int) -> None:
        """Move `stop_offset` above the last offset of a batch that was filtered."""
        while self.stop_offsets[self.next_stop] <= offset < INT64_MAX:
            self.next_stop += 1
        self.stop_offset = self.stop_offsets[self.next_stop]

    # ------------------------------------------------------------------------------------------------------- one batch

    def filter_batch(self, buffer: Buffer, view: memoryview, position: int, limit: int) -> int:
        """Filter the batch at buffer[position]; return EMPTY, UNCHANGED, REWRITTEN, FULL, NEED_MORE or OTHER.

        A batch that is REWRITTEN is in `out` from `used_bytes` on. FULL says that `out` may not have space for it.
        """
        reader = self.reader
        header = reader.header
        result = reader.read_header(buffer, view, position, limit, self.transactions)
        if result != loop_results.USUAL:
            return result
        self.max_timestamp = header.max_timestamp
        self.base_timestamp = header.base_timestamp
        self.is_mapped = False
        self.is_discarded = False
        if header.is_control:
            result = self._filter_marker(buffer)
        elif not reader.read_records(buffer, view):
            return loop_results.OTHER
        else:
            result = self._filter_records()
            if header.is_transactional and result != loop_results.OTHER:
                self.transactions.add_ongoing(header.producer_id)
        if result == loop_results.REWRITTEN:
            self._write_header(buffer)
        return result

    def _filter_marker(self, buffer: Buffer) -> int:
        """Filter a marker of a transaction that is not aborted."""
        header = self.reader.header
        retained = self.retained
        marker = self.reader.read_marker(buffer)
        if marker == batch_reader.NO_MARKER:
            return loop_results.OTHER
        retained.count = 1
        retained.tombstones = 0
        retained.without_key = 0
        retained.dropped_tombstones = 0
        if header.end_position - header.position + record_copy.MOST_GROWTH_BYTES > len(self.out) - self.used_bytes:
            return loop_results.FULL
        if marker == batch_reader.COMMIT and self.transactions.complete(header.producer_id):
            return loop_results.UNCHANGED
        # No data of its transaction was read before it.
        if not header.has_delete_horizon:
            retained.c_flags[0] = 1
            return self._copy_records(True)
        if header.base_timestamp > self.now_ms:
            return loop_results.UNCHANGED
        if header.last_offset >= self.stop_offset or header.producer_id in self.marker_ids:
            return loop_results.OTHER
        self.is_discarded = True
        return loop_results.EMPTY

    def _filter_records(self) -> int:
        """Filter a batch of data of a transaction that is not aborted, or of none."""
        header = self.reader.header
        retained = self.retained
        self._retain(not header.has_delete_horizon or header.base_timestamp > self.now_ms)
        sets_horizon = retained.tombstones > 0 and not header.has_delete_horizon
        if retained.count == 0:
            return loop_results.EMPTY if header.last_offset < self.stop_offset else loop_results.OTHER
        if retained.count == header.record_count and not sets_horizon:
            return loop_results.UNCHANGED
        return self._copy_records(sets_horizon)

    def _retain(self, keeps_tombstones: bool) -> None:
        """Write to `retained` which records are retained: by their offsets, or by their keys if these are not in the window."""
        reader = self.reader
        header = reader.header
        self.is_mapped = self.window.is_mapped(header.base_offset, header.last_offset)
        if self.is_mapped and self.window.is_in_window(header.base_offset, header.last_offset):
            self.window.retain(reader, header.record_count, keeps_tombstones, self.retained)
        else:
            self.offsets.retain(reader.data, reader.columns, header.record_count, self.retained, keeps_tombstones)

    def _copy_records(self, sets_horizon: bool) -> int:
        """Copy the retained records to `out`, after the bytes of the header; return REWRITTEN, FULL or OTHER.

        Timestamps count from the delete horizon, if there is one, else from the time of the first one that is retained.
        """
        reader = self.reader
        header = reader.header
        timestamps = reader.columns.timestamp_view
        flags = self.retained.c_flags
        count = header.record_count
        index = 0
        if header.is_log_append_time:
            while index < count:
                timestamps[index] = header.max_timestamp
                index += 1
            index = 0
        while not flags[index]:
            index += 1
        base = timestamps[index]
        largest = base
        smallest = base
        while index < count:
            if flags[index]:
                if timestamps[index] > largest:
                    largest = timestamps[index]
                if timestamps[index] < smallest:
                    smallest = timestamps[index]
            index += 1
        if sets_horizon:
            base = self.horizon_ms
        elif header.has_delete_horizon:
            base = header.base_timestamp
        if largest > MOST_TIMESTAMP or smallest < -MOST_TIMESTAMP or base > MOST_TIMESTAMP or base < -MOST_TIMESTAMP:
            return loop_results.OTHER
        out = self.out[self.used_bytes + structs.RECORD_BATCH_HEADER_BYTES :]
        positions = reader.columns.record_position_view
        end = reader.records_end
        if len(out) < end - positions[0] + count * record_copy.MOST_GROWTH_BYTES:
            return loop_results.FULL
        if base == header.base_timestamp and not header.is_log_append_time:
            self.records_bytes = record_copy.copy_unchanged(reader.data, positions, end, count, flags, out)
        else:
            self.records_bytes = record_copy.copy_rebased(
                reader.data,
                positions,
                timestamps,
                end,
                count,
                flags,
                base,
                record_copy.KEEP_OFFSET_DELTAS,
                out,
                reader.columns.scratch,
            )
        self.max_timestamp = largest
        self.base_timestamp = base
        self.sets_horizon = sets_horizon
        return loop_results.REWRITTEN

    def _write_header(self, buffer: Buffer) -> None:
        """Write the header of a batch whose records were copied; with a codec its length and CRC are not known yet."""
        out = self.out
        header = self.reader.header
        start = self.used_bytes
        records_position = start + structs.RECORD_BATCH_HEADER_BYTES
        out[start:records_position] = buffer[header.position : header.records_position]
        if self.sets_horizon:
            out[start + structs.BATCH_ATTRIBUTES_AT + 1] |= DELETE_HORIZON_FLAG
        put_integer(out, start + structs.BATCH_BASE_TIMESTAMP_AT, 8, self.base_timestamp)
        put_integer(out, start + structs.BATCH_MAX_TIMESTAMP_AT, 8, self.max_timestamp)
        put_integer(out, start + structs.BATCH_RECORD_COUNT_AT, 4, self.retained.count)
        if not header.codec:
            end_position = records_position + self.records_bytes
            put_integer(out, start + structs.BATCH_LENGTH_AT, 4, end_position - start - structs.LOG_OVERHEAD_BYTES)
            crc = self.reader.crc32c(self.out_view[start + structs.BATCH_ATTRIBUTES_AT : end_position])
            put_integer(out, start + structs.BATCH_CRC_AT, 4, crc)


def put_integer(out: memoryview, position: int, size: int, value: int) -> None:
    """Write a big-endian integer of `size` bytes at out[position]."""
    index = position + size
    while index > position:
        index -= 1
        out[index] = value & 255
        value >>= 8
