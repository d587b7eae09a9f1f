"""The filter for every batch: of any format and size, and damaged ones (FormatError).

It follows the rules of kcli.log.cleaner.batch_filter, whose map, statistics and limits it shares, and opens a batch as windows
of records, in bounded memory. The cleaner calls it for batches that the compiled filter does not handle.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import compress

from kcli.format.compression import deflate
from kcli.format.legacy_message_set import LegacyBatch, LegacyRecord
from kcli.format.legacy_upgrade import UpgradedBatch
from kcli.format.primitives import Buffer, CorruptRecordError
from kcli.format.record_batch import DELETE_HORIZON_FLAG, MAGIC, NO_TIMESTAMP, RecordBatch, empty_batch, with_records
from kcli.format.record_copy import copy_records
from kcli.log.cleaner.batch_filter import BatchFilter, FilterSettings
from kcli.log.reading.batch_records import RecordScanner, RecordWindow
from kcli.log.reading.segment_reader import LogBatch

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
