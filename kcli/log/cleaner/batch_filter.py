"""What a cleaner leaves of a batch: all of it byte for byte, some of its records, its header alone, or nothing.

    batch                                                         what is left
    ------------------------------------------------------------  ------------------------------------------------------
    all records stay, no delete horizon is to be set              its bytes
    some stay, or it gets its delete horizon                      a batch of those, see below
    none stay, but it is an active producer's last, or the last   its header, with no records, so that the producer's
      one that the round may clean                                sequence and the log's end survive
    none stay                                                     nothing

    record                                                        stays
    ------------------------------------------------------------  ------------------------------------------------------
    of a batch that is discarded (an aborted transaction; a       no
      marker without data behind its horizon)
    a control record                                              yes
    any other                                                     as kcli.log.cleaner.offset_map says; a tombstone up to
                                                                  the delete horizon of its batch

The delete horizon (KIP-534) is when a tombstone or a marker without data may go. The first round that leaves such a record
sets it: attribute bit 6, and the base timestamp is now + delete.retention.ms, from which the deltas are counted anew. Batches
of format 0 and 1 have none: there a tombstone goes by the age of its segment, or it stays and its new batch gets a horizon.

A batch of some records keeps its base offset, its last offset, producer, sequence, epoch, flags and codec; its maxTimestamp is
that of what is left (of LogAppendTime: as it was). One of format 0 or 1 becomes format 2, from its first record that stays on.
(Kafka: MemoryRecords.filterTo, Cleaner.cleanInto.)
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import NamedTuple

from kcli.format.compression import deflate, inflate_at_once
from kcli.format.legacy_message_set import LegacyBatch, LegacyRecord
from kcli.format.legacy_upgrade import UpgradedBatch
from kcli.format.primitives import INT64_MAX, Buffer, CorruptRecordError, crc32c
from kcli.format.record_batch import (
    DELETE_HORIZON_FLAG,
    HEADER_BYTES,
    NO_TIMESTAMP,
    RecordBatch,
    empty_batch,
    read_header,
    with_records,
)
from kcli.format.record_copy import copy_records
from kcli.log.cleaner.batch_cut import BatchCutter
from kcli.log.cleaner.cut_strides import CutStride, clean_batches
from kcli.log.cleaner.live_offsets import LiveOffsets
from kcli.log.cleaner.noted_runs import NotedRuns
from kcli.log.cleaner.offset_map import COUNT_SLOTS, OffsetMap
from kcli.log.cleaner.stride_state import StrideColumns
from kcli.log.cleaner.transactions import CleanedTransactions, LastRecord
from kcli.log.reading.batch_records import RecordScanner, RecordWindow
from kcli.log.reading.segment_reader import LogBatch

# Markers are read apart from the records: a batch holds one.
_MARKER_RECORDS = 16


class RoundFacts(NamedTuple):
    """What holds for a whole round: times in ms, `upper_bound_offset` is where the round must stop."""

    now_ms: int
    delete_retention_ms: int
    upper_bound_offset: int
    last_records: Mapping[int, LastRecord]


class FilterCounts:
    """What the filter has met: records read, kept and dropped for want of a key; bytes read and kept; tombstones.

    `records_discarded` are those of aborted transactions and markers, which go without being read.
    """

    __slots__ = (
        "bytes_kept",
        "bytes_read",
        "records_discarded",
        "records_kept",
        "records_read",
        "tombstones_dropped",
        "tombstones_kept",
        "without_key",
    )

    def __init__(self) -> None:
        self.records_read = self.records_kept = self.records_discarded = self.without_key = 0
        self.tombstones_dropped = self.tombstones_kept = 0
        self.bytes_read = self.bytes_kept = 0


class _Selection:
    """What stays of a batch: how many records, and how many of them are tombstones. `window` is the last one, still at hand."""

    __slots__ = ("is_control", "keeps_tombstones", "stay", "tombstones", "window", "windows")

    def __init__(self, *, is_control: bool, keeps_tombstones: bool) -> None:
        self.is_control = is_control
        self.keeps_tombstones = keeps_tombstones
        self.stay = self.tombstones = self.windows = 0
        self.window: RecordWindow | None = None


class BatchFilter:
    """Applies a round's map to batches, which must be given front to back."""

    def __init__(
        self,
        offsets: OffsetMap,
        transactions: CleanedTransactions,
        facts: RoundFacts,
        live: LiveOffsets,
        buffer_bytes: int,
    ) -> None:
        self.counts = FilterCounts()
        self.live = live
        self._offsets = offsets
        self._transactions = transactions
        self._facts = facts
        self._scanner = RecordScanner()
        self._marker_scanner = RecordScanner(_MARKER_RECORDS)
        self._kept = bytearray(self._scanner.columns.capacity)
        self._record_counts = array("q", bytes(8 * COUNT_SLOTS))
        # Batches with these offsets may have to stay without a record.
        ends = {last.last_data_offset for last in facts.last_records.values() if last.last_data_offset is not None}
        self._stop_offsets = sorted(ends | {facts.upper_bound_offset - 1, INT64_MAX})
        self._next_stop = 0
        # Producers of which a marker is the last that was written, and stays.
        markers = (producer_id for producer_id, last in facts.last_records.items() if last.last_data_offset is None)
        self._out = memoryview(bytearray(buffer_bytes))
        self.cutter = BatchCutter(
            StrideColumns(self._scanner.columns),
            offsets,
            live.window,
            transactions.open,
            facts.now_ms,
            facts.now_ms + facts.delete_retention_ms,
            frozenset(markers),
            self._out,
            crc32c,
            inflate_at_once,
        )
        self.stride = CutStride()

    def pass_runs(self, runs: NotedRuns, segment: int, position: int) -> tuple[int, int]:
        """Pass over the dead runs from a byte of a segment on -> the byte behind them, and where one begins or ends next."""
        while (start := runs.seek(segment, position)) == position:
            first, last = runs.offsets
            if last >= self._stop_offsets[self._next_stop] or not self.live.has_none(first, last):
                return position, runs.end
            self.counts.bytes_read += runs.end - position
            self.counts.records_read += runs.records
            self.live.passed(runs.records)
            position = runs.end
        return position, INT64_MAX if start is None else start

    def clean_usual(self, buffer: memoryview, index: int, limit: int, file_limit: int) -> int:
        """Clean usual batches of buffer[index:limit] -> the index behind them, maybe behind `limit`; `stride` says why there.

        The segment ends at `file_limit`, counted as the others are. What is left of them lies in `left`.
        """
        stride, live = self.stride, self.live
        self.cutter.stop_offset = self._stop_offsets[self._next_stop]
        passes_dead = 1 if live.is_worth_it else 0
        behind = clean_batches(buffer, buffer, index, limit, file_limit, passes_dead, self.cutter, stride)
        live.passed(stride.dead_records)
        counts = self.counts
        counts.bytes_read += behind - index
        counts.bytes_kept += stride.used_bytes
        counts.records_read += stride.dead_records + stride.records
        counts.records_kept += stride.stay
        counts.tombstones_kept += stride.tombstones
        counts.without_key += stride.keyless
        counts.tombstones_dropped += stride.dropped_tombstones
        counts.records_discarded += stride.discarded
        if stride.is_at_stop:
            self._pass_stops(self.cutter.head.last_offset)
        return behind

    @property
    def left(self) -> memoryview:
        """What the last `clean_usual` left, without what `deflate_cut` gives."""
        return self._out[: self.stride.used_bytes]

    def deflate_cut(self) -> bytes:
        """The batch that `clean_usual` ended with, where it says CUT."""
        start = self.stride.used_bytes
        header = read_header(self._out, start)
        records = self._out[start + HEADER_BYTES : start + HEADER_BYTES + self.cutter.records_bytes]
        made = with_records(header, deflate(header.codec, records)).encode()
        self.counts.bytes_kept += len(made)
        return made

    def _pass_stops(self, offset: int) -> None:
        while self._stop_offsets[self._next_stop] <= offset < INT64_MAX:
            self._next_stop += 1

    def clean(self, batch: LogBatch, *, keeps_legacy_tombstones: bool = True) -> Buffer | None:
        """What is left of a batch, None for nothing; valid until the reader of the batch moves on.

        Raises FormatError for a batch that is damaged: what its records say cannot be known.
        """
        if not batch.is_valid:
            raise CorruptRecordError(f"the batch at byte {batch.position} has a wrong CRC", batch.position)
        header = batch.header
        self.counts.bytes_read += header.size_bytes
        self._pass_stops(header.last_offset)
        if isinstance(header, RecordBatch):
            left = self._clean(batch, header)
        else:
            left = self._clean_legacy(batch, header, keeps_tombstones=keeps_legacy_tombstones)
        if left is not None:
            self.counts.bytes_kept += len(left)
        return left

    def _clean(self, batch: LogBatch, header: RecordBatch) -> Buffer | None:
        horizon_ms = header.delete_horizon_ms
        is_past_horizon = horizon_ms is not None and horizon_ms <= self._facts.now_ms
        is_bare_marker = False
        if header.is_control:
            is_bare_marker = self._transactions.on_control(header, batch.read_marker(self._marker_scanner))
            is_discarded = is_bare_marker and is_past_horizon
        else:
            is_discarded = self._transactions.on_data(header)
        selection = _Selection(is_control=header.is_control, keeps_tombstones=not is_past_horizon)
        if is_discarded:
            self.counts.records_discarded += header.record_count
        else:
            self._select(batch, header, selection)
        if not selection.stay:
            return empty_batch(header).encode() if self._must_stay(header) else None
        sets_horizon = horizon_ms is None and (selection.tombstones > 0 or is_bare_marker)
        if selection.stay == header.record_count and not sets_horizon:
            return batch.read_whole() if batch.data is None else batch.data
        return self._rewrite(batch, header, selection, sets_horizon=sets_horizon)

    def _must_stay(self, header: RecordBatch) -> bool:
        """Whether a batch stays even with no records."""
        if header.next_offset == self._facts.upper_bound_offset:
            return True
        last = self._facts.last_records.get(header.producer_id) if header.has_producer else None
        if last is None:
            return False
        if last.last_data_offset is not None:
            return header.last_offset == last.last_data_offset
        return header.is_control and header.producer_epoch == last.producer_epoch

    def _select(self, batch: LogBatch, header: RecordBatch, selection: _Selection) -> None:
        """Decide which records stay. Raises FormatError where they are damaged."""
        is_known = self.live.holds(header)  # what goes of it was counted when the map was built
        for window in batch.windows(self._scanner):
            stay, tombstones, without_key, dropped = self._mark(window, selection)
            selection.window = window
            selection.windows += 1
            selection.stay += stay
            selection.tombstones += tombstones
            self.counts.records_read += window.count
            if is_known:
                self.counts.tombstones_dropped -= tombstones
            else:
                self.counts.without_key += without_key
                self.counts.tombstones_dropped += dropped
        self.counts.records_kept += selection.stay
        self.counts.tombstones_kept += selection.tombstones

    def _mark(self, window: RecordWindow, selection: _Selection) -> Sequence[int]:
        """Tell in `self._kept` which records of a window stay -> the counts of kcli.log.cleaner.offset_map."""
        if window.error is not None:
            raise window.error
        count = window.count
        if selection.is_control:
            self._kept[:count] = b"\1" * count
            return count, 0, 0, 0
        keeps_tombstones = selection.keeps_tombstones
        self._offsets.keep(
            window.buffer, window.columns, count, self._kept, self._record_counts, keeps_tombstones=keeps_tombstones
        )
        return self._record_counts

    def _marked(self, batch: LogBatch, selection: _Selection) -> Iterator[RecordWindow]:
        """The windows of a batch once more, with `self._kept` for each."""
        if selection.windows == 1 and selection.window is not None:
            yield selection.window
            return
        for window in batch.windows(self._scanner):
            self._mark(window, selection)
            yield window

    def _rewrite(self, batch: LogBatch, header: RecordBatch, selection: _Selection, *, sets_horizon: bool) -> bytes:
        """A batch of the records that stay."""
        append_time_ms = header.log_append_time_ms
        base_timestamp: int | None = append_time_ms
        if sets_horizon:
            base_timestamp = self.cutter.horizon_ms
        elif header.delete_horizon_ms is not None:
            base_timestamp = header.delete_horizon_ms
        parts: list[bytearray] = []
        timestamps: list[int] = []
        for window in self._marked(batch, selection):
            told = window.columns.timestamp
            if append_time_ms is not None:
                told[: window.count] = array("q", (append_time_ms,)) * window.count
            kept = list(compress(told[: window.count], self._kept))
            if kept:
                base_timestamp = kept[0] if base_timestamp is None else base_timestamp
                is_moved = base_timestamp != header.base_timestamp or append_time_ms is not None
                moved_to = base_timestamp if is_moved else None
                parts.append(copy_records(window.buffer, window.columns, window.count, self._kept, moved_to))
                timestamps.append(max(kept))
        made = with_records(header, deflate(header.codec, b"".join(parts)))._replace(
            base_timestamp=NO_TIMESTAMP if base_timestamp is None else base_timestamp,
            max_timestamp=max(timestamps) if append_time_ms is None else append_time_ms,
            record_count=selection.stay,
            attributes=header.attributes | (DELETE_HORIZON_FLAG if sets_horizon else 0),
        )
        return made.encode()

    def _clean_legacy(self, batch: LogBatch, header: LegacyBatch, *, keeps_tombstones: bool) -> bytes | None:
        """A batch of format 2 of the messages that stay."""
        selection = _Selection(is_control=False, keeps_tombstones=keeps_tombstones)
        stay: list[LegacyRecord] = []
        for window in batch.windows(self._scanner):
            count, tombstones, without_key, dropped = self._mark(window, selection)
            stay += compress(window.legacy or (), self._kept)
            self.counts.records_read += window.count
            self.counts.records_kept += count
            self.counts.tombstones_kept += tombstones
            self.counts.tombstones_dropped += dropped
            self.counts.without_key += without_key
        if not stay:
            return None
        has_tombstones = any(one.value is None for one in stay)
        upgraded = UpgradedBatch(
            is_log_append_time=header.is_log_append_time,
            flags=DELETE_HORIZON_FLAG if has_tombstones else 0,
            base_timestamp=self._facts.now_ms + self._facts.delete_retention_ms if has_tombstones else None,
        )
        for one in stay:
            upgraded.add(one)
        return upgraded.encode(header.codec)
