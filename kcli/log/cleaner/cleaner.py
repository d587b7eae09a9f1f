"""One round of the cleaner over one log: map the dirty part, write what is retained, put it in place (Kafka: Cleaner.doClean).

    step                                           slices   a crash then leaves
    ---------------------------------------------  -------  ----------------------------------------------------------
    flush what will be read                        flush    the log as it was
    build the offset map of [first dirty, first    yes      the log as it was
      uncleanable), as far as the memory allows
    for each group of segments (group_segments):
      write what is retained to `*.cleaned`        yes      the log as it was: a start removes `*.cleaned`
      flush these files                            flush    the same
      rename them to `*.swap`, the last first      flush    the log as it was, or all of them: a start puts `*.swap` in
                                                            place, unless a `*.cleaned` at or below it exists
      rename the group to `*.deleted`, and remove  flush    the group or what replaces it: a start removes `*.deleted`
        the suffix of the new files                         and puts `*.swap` in place

Kafka flushes the directory once, at the end; here no old file may be removed before a new one is durable.

All segments up to the map's end are cleaned, also those before the dirty part: a later record may have superseded theirs.
Each step yields the paths that are to be flushed before the next one, mostly none. If segments of the log are removed while
the round runs (retention, a truncation), it is aborted (CleaningAbortedError); what it has put in place stays, and nothing is
lost.

GeneralBatchFilter handles the batches that the compiled filter (kcli.log.cleaner.batch_filter) does not: of any format and
size, and damaged ones (FormatError). It follows the same rules, shares map, statistics and limits, and opens a batch as windows
of records, in bounded memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import NamedTuple

from kcli.format import limits
from kcli.format.compression import deflate, inflate_at_once
from kcli.format.file_names import FileKind
from kcli.format.legacy_message_set import LegacyBatch, LegacyRecord, UpgradedBatch
from kcli.format.loop_results import ENOUGH, NEED_MORE, OTHER, OUTSIDE_WINDOW, REWRITTEN
from kcli.format.primitives import INT32_MAX, INT64_MAX, Buffer, CorruptRecordError, crc32c
from kcli.format.record_batch import (
    DELETE_HORIZON_FLAG,
    MAGIC,
    NO_TIMESTAMP,
    RecordBatch,
    empty_batch,
    read_header,
    with_records,
)
from kcli.format.record_copy import copy_records
from kcli.log.cleaner.batch_filter import BatchFilter, CleanerStats, FilterSettings, LastRecord
from kcli.log.cleaner.batch_reader import BatchReader
from kcli.log.cleaner.cleaned_segment import CleanedSegment
from kcli.log.cleaner.log_cleaner_manager import LogToClean
from kcli.log.cleaner.offset_map import OffsetMap
from kcli.log.cleaner.offset_map_builder import MappedRanges, OffsetMapBuilder, located, sound_batch
from kcli.log.cleaner.retained_offsets import RetainedOffsets
from kcli.log.cleaner.throttler import RECOMPRESSED_FACTOR, ByteBudget
from kcli.log.cleaner.transaction_metadata import CleanedTransactionMetadata
from kcli.log.disk.flush_request import FlushSequence
from kcli.log.log_segment import LogSegment
from kcli.log.reading.batch_records import RecordScanner, RecordWindow
from kcli.log.reading.segment_reader import LogBatch, SegmentReader
from kcli.log.unified_log import UnifiedLog


class CleaningAbortedError(Exception):
    """The log changed during a round: its segments were removed, or it went out of service."""


class CleanedLog(NamedTuple):
    """What a round did: the next one begins at `end_offset`; the map had `keys`."""

    end_offset: int
    stats: CleanerStats
    keys: int


class Cleaner:
    """A round over `log`, which no other round may clean at the same time; times in ms.

    `buffer_bytes` are read at once, and the output is collected in as many; 0 is the default of kcli.format.limits.
    """

    def __init__(
        self,
        log: UnifiedLog,
        cleanable: LogToClean,
        offsets: OffsetMap,
        now_ms: int,
        buffer_bytes: int = 0,
    ) -> None:
        self._log = log
        self._local = log.local_log()
        self._cleanable = cleanable
        self._offsets = offsets
        self._now_ms = now_ms
        self._buffer_bytes = buffer_bytes or limits.READ_CHUNK_BYTES
        self._budget = ByteBudget()
        self._cleaned: list[CleanedSegment] = []  # segments that are being written
        self._removed: list[str] = []

    @property
    def moved_bytes(self) -> int:
        """The bytes that were read and written so far."""
        return self._budget.moved_bytes

    def take_removed(self) -> list[str]:
        """Return the paths of files that were replaced since the last call; the caller deletes them."""
        taken, self._removed = self._removed, []
        return taken

    def run(self) -> FlushSequence[CleanedLog]:
        """Yield the round's steps. Raises CleaningAbortedError; FormatError for a damaged batch; OSError.

        A caller that does not run it to its end calls `discard`. Closing the generator does not touch the disk: the garbage
        collector may do that long after the process has released its log directory.
        """
        try:
            # A superseded record is removed only when the later one of its key survives a power failure.
            yield tuple(self._log.unflushed_paths()[:-1])
            dirty = self._cleanable.first_dirty_offset, self._cleanable.first_uncleanable_offset
            builder = OffsetMapBuilder(self._log, self._offsets, *dirty, self._budget, self._check, self._buffer_bytes)
            yield from builder.build()
            return (yield from self._clean_groups(builder))
        except Exception:
            self.discard()
            raise

    def discard(self) -> None:
        """Abort the round: remove the files that are being written. Raises OSError."""
        cleaned, self._cleaned = self._cleaned, []
        for segment in cleaned:
            segment.discard()

    def _check(self, segments: list[LogSegment]) -> None:
        """Check that all of these are still part of the log. Raises CleaningAbortedError if one is not."""
        present = self._local.segments
        if not all(segment in present for segment in segments):
            raise CleaningAbortedError(f"{self._log}: its segments changed while it was cleaned")

    # ----------------------------------------------------------------------------------------------- groups of segments

    def _clean_groups(self, builder: OffsetMapBuilder) -> FlushSequence[CleanedLog]:
        end_offset = self._offsets.latest_offset + 1
        segments = [one for one in self._local.segments[:-1] if one.base_offset < end_offset]
        config = self._log.config
        uncleanable = self._cleanable.first_uncleanable_offset
        settings = FilterSettings(self._now_ms, config.delete_retention_ms, uncleanable, last_records_of(self._log))
        filters = self._make_filters(builder, settings)
        legacy_horizon_ms = self._legacy_horizon_ms(segments)
        by_base = {segment.base_offset: segment for segment in segments}
        sizes = [self._size_of(segment) for segment in segments]
        for group in group_segments(sizes, config.segment_bytes, config.segment_index_bytes, uncleanable):
            olds = [by_base[base] for base in group]
            yield from self._write_group(olds, filters, builder.ranges, legacy_horizon_ms)
            mtime_ms = self._local.disk.mtime_ms(olds[-1].log_path)
            news = self._cleaned
            yield (*(path for segment in news for path in segment.finish(mtime_ms)), self._local.directory)
            self._check(olds)
            for segment in reversed(news):
                segment.become_swap()
            yield (self._local.directory,)
            self._check(olds)
            self._cleaned = []
            replaced = self._log.replace_segments([(one.base_offset, one.size_bytes) for one in news], olds)
            yield (self._local.directory,)
            self._removed += replaced
        return CleanedLog(end_offset, filters[0].stats, len(self._offsets))

    def _make_filters(self, builder: OffsetMapBuilder, settings: FilterSettings) -> tuple[BatchFilter, GeneralBatchFilter]:
        scanner = RecordScanner()
        batch_filter = BatchFilter(
            BatchReader(scanner.columns, crc32c, inflate_at_once),
            self._offsets,
            RetainedOffsets(self._offsets, self._cleanable.first_dirty_offset),
            CleanedTransactionMetadata(),
            settings,
            memoryview(bytearray(self._buffer_bytes)),
        )
        if self._offsets.is_in_order:
            batch_filter.stats.without_key = builder.mapper.without_key
            batch_filter.stats.tombstones_dropped = builder.mapper.tombstones
        return batch_filter, GeneralBatchFilter(batch_filter, settings, scanner)

    def _legacy_horizon_ms(self, segments: list[LogSegment]) -> int:
        """Return the modification time up to which a segment loses its tombstones of format 0 and 1."""
        clean = [segment for segment in segments if segment.base_offset < self._cleanable.first_dirty_offset]
        if not clean:
            return 0
        return self._local.disk.mtime_ms(clean[-1].log_path) - self._log.config.delete_retention_ms

    def _size_of(self, segment: LogSegment) -> SegmentSize:
        disk = self._local.disk
        index, time_index = (segment.path(kind) for kind in (FileKind.INDEX, FileKind.TIME_INDEX))
        return SegmentSize(segment.base_offset, segment.size_bytes, disk.size(index), disk.size(time_index))

    def _next_start(self, segment: LogSegment) -> int:
        """Return the base offset of the segment after this one."""
        segments = self._local.segments
        return segments[segments.index(segment) + 1].base_offset

    # ---------------------------------------------------------------------------------------------------------- batches

    def _write_group(
        self,
        olds: list[LogSegment],
        filters: tuple[BatchFilter, GeneralBatchFilter],
        ranges: MappedRanges,
        legacy_horizon_ms: int,
    ) -> FlushSequence[None]:
        """Write what is retained of a group to segments that are not in place yet (Kafka: Cleaner.cleanInto)."""
        self._check(olds)
        disk, (batch_filter, general_filter) = self._local.disk, filters
        transactions = batch_filter.transactions
        self._begin_segment(olds[0].base_offset)
        for old in olds:
            transactions.add_aborted(self._log.aborted_transactions(old.base_offset, self._next_start(old)))
            keeps_legacy_tombstones = disk.mtime_ms(old.log_path) > legacy_horizon_ms
            with SegmentReader(disk, old.log_path, end=old.size_bytes, chunk_bytes=self._buffer_bytes) as reader:
                position = yield from self._filter_batches(reader, 0, old, batch_filter, ranges, olds)
                while position < old.size_bytes:
                    batch = sound_batch(reader, position)
                    with located(reader, batch):
                        written = general_filter.filter_batch(batch, keeps_legacy_tombstones=keeps_legacy_tombstones)
                    if written is not None:
                        header = read_header(written)
                        self._append(written, header.last_offset, header.max_timestamp)
                    self._cleaned[-1].add_aborted(transactions.take_retained())
                    size_bytes = batch.header.size_bytes
                    if self._budget.is_spent(size_bytes, RECOMPRESSED_FACTOR * size_bytes):
                        yield ()
                        self._check(olds)
                    position = yield from self._filter_batches(reader, batch.end_position, old, batch_filter, ranges, olds)

    def _filter_batches(
        self,
        reader: SegmentReader,
        position: int,
        old: LogSegment,
        batches: BatchFilter,
        ranges: MappedRanges,
        olds: list[LogSegment],
    ) -> FlushSequence[int]:
        """Filter batches from byte `position` on; return the byte of one that GeneralBatchFilter is to filter, or the end."""
        size_bytes, is_fresh = old.size_bytes, False
        while True:
            skipped_to, end = skip_ranges(ranges, old.base_offset, position, batches)
            self._budget.moved_bytes += skipped_to - position
            position = skipped_to
            if position >= size_bytes:
                break
            buffer, index, filled = reader.buffered(position, fresh=is_fresh)
            limit = min(filled, index + end - position)
            passed = batches.filter_batches(buffer, buffer, index, limit, index + size_bytes - position) - index
            if batches.batch_count:
                self._append_batches(batches.out_view[: batches.used_bytes], batches.batches())
            if batches.result == REWRITTEN:
                self._append(batches.compressed_batch(), batches.reader.header.last_offset, batches.max_timestamp)
            position += passed
            if self._budget.is_spent(passed, batches.work_bytes):
                yield ()
                self._check(olds)
            if batches.result == OUTSIDE_WINDOW:
                offset = read_header(buffer, index + passed).base_offset
                while batches.window.move_window(offset):
                    yield ()
                    self._check(olds)
            elif batches.result == OTHER or (not passed and (is_fresh or batches.result == ENOUGH)):
                break
            is_fresh = batches.result == NEED_MORE and not passed
        return position

    def _append_batches(self, data: memoryview, batches: Iterable[tuple[int, int, int]]) -> None:
        """Add consecutive batches: size, last offset and largest timestamp of each."""
        rows = list(batches)
        if self._cleaned[-1].fits(len(data), rows[-1][1]):
            self._cleaned[-1].append_batches(data, rows)
            self._budget.moved_bytes += len(data)
            return
        position = 0
        for size_bytes, last_offset, max_timestamp in rows:
            self._append(data[position : position + size_bytes], last_offset, max_timestamp)
            position += size_bytes

    def _append(self, batch: Buffer, last_offset: int, max_timestamp: int) -> None:
        """Add a batch; if it does not fit the segment, a new one begins with it (Kafka 4.4: KAFKA-20036)."""
        if not self._cleaned[-1].fits(len(batch), last_offset):
            self._begin_segment(read_header(batch).base_offset)
        self._cleaned[-1].append(batch, last_offset, max_timestamp)
        self._budget.moved_bytes += len(batch)

    def _begin_segment(self, base_offset: int) -> None:
        interval = self._log.config.index_interval_bytes
        self._cleaned.append(CleanedSegment(self._local.disk, self._local.directory, base_offset, interval))


def last_records_of(log: UnifiedLog) -> dict[int, LastRecord]:
    """Return what is retained of each active producer."""
    return {
        producer_id: LastRecord(entry.batches[-1].last_offset if entry.batches else None, entry.producer_epoch)
        for producer_id, entry in log.producers.producers.items()
    }


def skip_ranges(ranges: MappedRanges, segment: int, position: int, batches: BatchFilter) -> tuple[int, int]:
    """Skip ranges from a byte of a segment on that have no retained offset.

    Return the byte after them, and the byte where a range begins or ends next.
    """
    window, stats = batches.window, batches.stats
    while (start := ranges.seek(segment, position)) == position:
        first, last = ranges.offsets
        is_known = window.is_mapped(first, last) and window.is_in_window(first, last)
        if last >= batches.stop_offset or not is_known or window.has_any(first, last):
            return position, ranges.end
        stats.bytes_read += ranges.end - position
        stats.records_read += ranges.records
        window.skipped_records += ranges.records
        position = ranges.end
    return position, INT64_MAX if start is None else start


# ---------------------------------------------------------------------------------------------------- grouping of segments


class SegmentSize(NamedTuple):
    """A segment by its base offset and the bytes of its files."""

    base_offset: int
    log_bytes: int
    index_bytes: int
    time_index_bytes: int


def group_segments(
    sizes: Sequence[SegmentSize], segment_bytes: int, segment_index_bytes: int, first_uncleanable_offset: int
) -> list[list[int]]:
    """Return the base offsets of the segments that are cleaned into one (Kafka: Cleaner.groupSegmentsBySize).

    A group is consecutive segments. Its `.log` files have up to `segment_bytes` before the cleaning, its `.index` files and its
    `.timeindex` files up to `segment_index_bytes`, and its last offset is up to 2**31 - 1 above its base offset.
    """
    groups: list[list[int]] = []
    log_bytes = index_bytes = time_index_bytes = 0
    for slot, size in enumerate(sizes):
        following = sizes[slot + 1].base_offset if slot + 1 < len(sizes) else first_uncleanable_offset
        log_bytes += size.log_bytes
        index_bytes += size.index_bytes
        time_index_bytes += size.time_index_bytes
        # An empty segment is never too far from the group's base offset.
        is_far = bool(groups) and size.log_bytes > 0 and following - 1 - groups[-1][0] > INT32_MAX
        is_full = log_bytes > segment_bytes or max(index_bytes, time_index_bytes) > segment_index_bytes
        if not groups or is_far or is_full:
            groups.append([])
            _, log_bytes, index_bytes, time_index_bytes = size
        groups[-1].append(size.base_offset)
    return groups


# Markers are read apart from the records: a batch holds one.
_MARKER_RECORDS = 16


class _Retained:
    """What is retained of a batch. `window` is the last one of its `windows`, still in memory."""

    __slots__ = ("count", "is_control", "keeps_tombstones", "tombstones", "window", "windows")

    def __init__(self, *, is_control: bool, keeps_tombstones: bool) -> None:
        self.is_control = is_control
        self.keeps_tombstones = keeps_tombstones
        self.count = self.tombstones = self.windows = 0
        self.window: RecordWindow | None = None


class GeneralBatchFilter:
    """Filters batches in the order of the log, in turn with a BatchFilter; `scanner` has the columns of its reader."""

    def __init__(self, batch_filter: BatchFilter, settings: FilterSettings, scanner: RecordScanner) -> None:
        self._fast = batch_filter
        self._stats = batch_filter.stats
        self._transactions = batch_filter.transactions
        self._records = batch_filter.retained
        self._settings = settings
        self._scanner = scanner
        self._marker_scanner = RecordScanner(_MARKER_RECORDS)

    def filter_batch(self, batch: LogBatch, *, keeps_legacy_tombstones: bool = True) -> Buffer | None:
        """Return what is written of a batch, None for nothing; it is valid until the reader of the batch moves on.

        Raises FormatError for a damaged batch: what its records contain is unknown.
        """
        if not batch.is_valid:
            raise CorruptRecordError(f"the batch at byte {batch.position} has a wrong CRC", batch.position)
        header = batch.header
        self._stats.bytes_read += header.size_bytes
        self._fast.pass_stops(header.last_offset)
        if isinstance(header, RecordBatch):
            written = self._filter(batch, header)
        else:
            written = self._filter_legacy(batch, header, keeps_tombstones=keeps_legacy_tombstones)
        if written is not None:
            self._stats.bytes_kept += len(written)
        return written

    def _filter(self, batch: LogBatch, header: RecordBatch) -> Buffer | None:
        horizon_ms = header.delete_horizon_ms
        is_past_horizon = horizon_ms is not None and horizon_ms <= self._settings.now_ms
        is_bare_marker = False
        if header.is_control:
            is_bare_marker = self._transactions.on_control_batch_read(header, batch.read_marker(self._marker_scanner))
            is_discarded = is_bare_marker and is_past_horizon
        else:
            is_discarded = self._transactions.on_batch_read(header)
        retained = _Retained(is_control=header.is_control, keeps_tombstones=not is_past_horizon)
        if is_discarded:
            self._stats.records_discarded += header.record_count
        else:
            self._retain(batch, header, retained)
        if not retained.count:
            return empty_batch(header).encode() if self._keeps_empty(header) else None
        sets_horizon = horizon_ms is None and (retained.tombstones > 0 or is_bare_marker)
        if retained.count == header.record_count and not sets_horizon:
            return batch.read_whole() if batch.data is None else batch.data
        return self._rewrite(batch, header, retained, sets_horizon=sets_horizon)

    def _keeps_empty(self, header: RecordBatch) -> bool:
        """Return whether a batch is written even without records (Kafka: BatchRetention.RETAIN_EMPTY)."""
        if header.next_offset == self._settings.upper_bound_offset:
            return True
        last = self._settings.last_records.get(header.producer_id) if header.has_producer else None
        if last is None:
            return False
        if last.last_data_offset is not None:
            return header.last_offset == last.last_data_offset
        return header.is_control and header.producer_epoch == last.producer_epoch

    def _retain(self, batch: LogBatch, header: RecordBatch, retained: _Retained) -> None:
        """Decide which records are retained, and count them. Raises FormatError for damaged records."""
        # Of a batch that RetainedOffsets knows, what is dropped was counted when the map was built.
        is_mapped = (
            header.magic == MAGIC
            and not header.is_control
            and header.base_offset <= header.last_offset
            and self._fast.window.is_mapped(header.base_offset, header.last_offset)
        )
        for window in self._counted_windows(batch, retained, is_mapped=is_mapped):
            retained.window = window
            retained.windows += 1
            retained.count += self._records.count
            retained.tombstones += self._records.tombstones

    def _counted_windows(self, batch: LogBatch, retained: _Retained, *, is_mapped: bool) -> Iterator[RecordWindow]:
        """Yield the windows of a batch, with `_records` for each, and count them. Raises FormatError for damaged records."""
        stats, records = self._stats, self._records
        for window in batch.windows(self._scanner):
            self._retain_window(window, retained)
            stats.records_read += window.count
            stats.records_kept += records.count
            stats.tombstones_kept += records.tombstones
            if is_mapped:
                stats.tombstones_dropped -= records.tombstones
            else:
                stats.without_key += records.without_key
                stats.tombstones_dropped += records.dropped_tombstones
            yield window

    def _retain_window(self, window: RecordWindow, retained: _Retained) -> None:
        """Write to `_records` which records of a window are retained. Raises FormatError for damaged records."""
        if window.error is not None:
            raise window.error
        count, records = window.count, self._records
        if retained.is_control:
            records.flags[:count] = b"\1" * count
            records.count = count
            records.tombstones = records.without_key = records.dropped_tombstones = 0
        else:
            self._fast.offsets.retain(window.buffer, window.columns, count, records, keeps_tombstones=retained.keeps_tombstones)

    def _windows_again(self, batch: LogBatch, retained: _Retained) -> Iterator[RecordWindow]:
        """Yield the windows of a batch once more, with `_records` for each."""
        if retained.windows == 1 and retained.window is not None:
            yield retained.window
            return
        for window in batch.windows(self._scanner):
            self._retain_window(window, retained)
            yield window

    def _rewrite(self, batch: LogBatch, header: RecordBatch, retained: _Retained, *, sets_horizon: bool) -> bytes:
        """Return a batch of the records that are retained."""
        append_time_ms = header.log_append_time_ms
        base_timestamp: int | None = append_time_ms
        if sets_horizon:
            base_timestamp = self._fast.horizon_ms
        elif header.delete_horizon_ms is not None:
            base_timestamp = header.delete_horizon_ms
        parts: list[bytearray] = []
        largest: list[int] = []
        flags = self._records.flags
        for window in self._windows_again(batch, retained):
            timestamps = window.columns.timestamp
            if append_time_ms is not None:
                timestamps[: window.count] = array("q", (append_time_ms,)) * window.count
            kept = list(compress(timestamps[: window.count], flags))
            if kept:
                base_timestamp = kept[0] if base_timestamp is None else base_timestamp
                is_moved = base_timestamp != header.base_timestamp or append_time_ms is not None
                moved_to = base_timestamp if is_moved else None
                parts.append(copy_records(window.buffer, window.columns, window.count, flags, moved_to))
                largest.append(max(kept))
        rewritten = with_records(header, deflate(header.codec, b"".join(parts)))._replace(
            base_timestamp=NO_TIMESTAMP if base_timestamp is None else base_timestamp,
            max_timestamp=max(largest) if append_time_ms is None else append_time_ms,
            record_count=retained.count,
            attributes=header.attributes | (DELETE_HORIZON_FLAG if sets_horizon else 0),
        )
        return rewritten.encode()

    def _filter_legacy(self, batch: LogBatch, header: LegacyBatch, *, keeps_tombstones: bool) -> bytes | None:
        """Return a batch of format 2 of the messages that are retained."""
        retained = _Retained(is_control=False, keeps_tombstones=keeps_tombstones)
        kept: list[LegacyRecord] = []
        for window in self._counted_windows(batch, retained, is_mapped=False):
            kept += compress(window.legacy or (), self._records.flags)
        if not kept:
            return None
        has_tombstones = any(record.value is None for record in kept)
        upgraded = UpgradedBatch(
            is_log_append_time=header.is_log_append_time,
            flags=DELETE_HORIZON_FLAG if has_tombstones else 0,
            base_timestamp=self._fast.horizon_ms if has_tombstones else None,
        )
        for record in kept:
            upgraded.add(record)
        return upgraded.encode(header.codec)
