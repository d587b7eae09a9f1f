"""Records of scanned batches as Arrow batches: what a task does with its split.

A span is several batches in a row with the same attributes, whose records are scanned at once: each column of a span is filled
by one call. kcli.format.arrow_columns.span_length has the conditions. The rows are the same with and without spans.

    in the segment                                     is read as
    -------------------------------------------------  --------------------------------------------------------------
    a span, not compressed                             rows over the bytes of the file
    a span, compressed                                 rows over up to SPAN_BYTES of inflated records
    any other sound batch that is wanted               rows of each of its windows of records
    corrupt bytes or a corrupt batch                   a fault; the offsets up to the next sound batch are lost

An Arrow batch is returned as soon as it has `max_rows` rows or `max_bytes` of keys, values and headers; the last span or window
may exceed that. So a task needs a few MB in addition to what Arrow itself needs, whatever the size of the segment.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa
from pyspark.sql.types import StructType

from kcli.client.client_config import SCHEME
from kcli.format import limits
from kcli.format.arrow_columns import count_below, scan_span, span_length
from kcli.format.compression import inflate
from kcli.format.primitives import Buffer, FormatError
from kcli.format.record_batch import CONTROL_FLAG, HEADER_BYTES, TRANSACTIONAL_FLAG, RecordBatch
from kcli.log.disk.port import Disk
from kcli.log.reading.batch_records import RecordScanner, RecordWindow
from kcli.log.reading.columnar_reader import ColumnarReader
from kcli.log.reading.segment_reader import Damage, LogBatch
from kcli.spark.column_builders import Column, NullColumn, RecordColumn, Rows, Run, Span, column_for
from kcli.spark.log_partitions import PlanError
from kcli.spark.range_reader import CorruptRange, RangeReader, is_unchanged, ranges_now
from kcli.spark.read_options import ReadOptions
from kcli.spark.report import Report
from kcli.spark.splits import LogSplit, SegmentRange
from kcli.spark.task_progress import TaskProgress

# 256 KiB fit a core's own cache and are read twice as fast as 1 MiB.
BUFFER_BYTES = 256 * 1024
SPAN_BYTES = 512 * 1024
# How often a task looks up the offsets of one range again before it fails.
MAX_LOOKUPS = 20


def read_records(disk: Disk, split: LogSplit, schema: pa.Schema, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the records of a split as Arrow batches of `schema`; return the report as a last row or in a file, if asked for.

    Raises CorruptLogError for corrupt bytes with onCorrupt=fail, OSError as the disk does.
    """
    report, scanner = Report(), RecordScanner()
    builder = ArrowBatchBuilder(schema, options)
    progress, read_bytes = TaskProgress(disk, options.report_path, split.number), 0
    for planned in split.ranges:
        count = 0
        for reader in _open_range(disk, planned, options, report, scanner):
            for rows in reader.rows():
                count += rows.run.length
                if builder.add(rows):
                    yield builder.finish()
                    progress.reach(read_bytes + reader.read_bytes)
        read_bytes += planned.size_bytes
        progress.reach(read_bytes)
        if count:
            report.rows[planned.topic, planned.partition] += count
    if builder.rows:
        yield builder.finish()
    if options.report_column is not None:
        yield report_row(schema, options.report_column, report)
    progress.reach(read_bytes, is_end=True)
    if options.report_path is not None:
        disk.write_file(f"{options.report_path}/{split.number}.json", report.to_json().encode())


def _open_range(
    disk: Disk, planned: SegmentRange, options: ReadOptions, report: Report, scanner: RecordScanner
) -> Iterator[SpanReader]:
    """Open a range; if its segment was replaced since planning, open the ranges that have its offsets now.

    An open file does not change, so it is enough to check before and after it is opened. Raises as `ranges_now` does.
    """
    if planned.file.startswith(SCHEME):
        from kcli.spark.cluster_reader import window_ranges  # late: it loads the client

        for window_disk, window in window_ranges(planned, options, report):
            yield SpanReader(window_disk, window, options, report, scanner)
        return
    waiting, lookups = [planned], 0
    while waiting:
        part, reader = waiting.pop(0), None
        with suppress(FileNotFoundError):
            reader = SpanReader(disk, part, options, report, scanner) if is_unchanged(disk, part) else None
        if reader is not None and is_unchanged(disk, part):
            yield reader
            continue
        if reader is not None:
            reader.close()
        lookups += 1
        if lookups > MAX_LOOKUPS:
            raise PlanError(f"{part.file} was replaced {MAX_LOOKUPS} times while the job opened it; run the job again")
        waiting[:0] = ranges_now(disk, part, options, report)


def report_row(schema: pa.Schema, column: str, report: Report) -> pa.RecordBatch:
    """Return one row of nulls, with the report in `column`."""
    arrays = [pa.array([report.to_json()], field.type) if field.name == column else pa.nulls(1, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of batches for `schema`: equal in everything, nullability included."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


class SpanReader(RangeReader):
    """Reads the records of a range, by spans where possible."""

    def __init__(self, disk: Disk, part: SegmentRange, options: ReadOptions, report: Report, scanner: RecordScanner) -> None:
        super().__init__(disk, part, options, report, scanner)
        self._walk = ColumnarReader(
            disk, part.file, start=part.position, end=part.end_position, buffer_bytes=BUFFER_BYTES, doubts_offsets=True
        )
        self._excluded = CONTROL_FLAG if part.transactions is None else CONTROL_FLAG | TRANSACTIONAL_FLAG
        self._has_fault = False  # since the last sound batch
        self._scratch = array("q", (0, 0))

    @property
    def read_bytes(self) -> int:
        """The number of bytes of the range that are read."""
        return self._walk.position - self.part.position

    def close(self) -> None:
        """Close the file; `rows` does so at its end."""
        self._walk.close()

    def rows(self) -> Iterator[Rows]:
        """Yield the wanted records in the order of the file; rows are valid until the next ones.

        Raises CorruptLogError for corrupt bytes with onCorrupt=fail, OSError as the disk does.
        """
        try:
            for step in self._walk.steps():
                if isinstance(step, Damage):
                    self._skip(self.damage_fault(step))
                elif step.batch is not None:
                    yield from self._batch_rows(step.batch)
                else:
                    yield from self._scanned_rows(step.rows)
            self._report_lost(self.part.end_offset)
        finally:
            self._walk.close()

    def _skip(self, fault: CorruptRange) -> None:
        self.handle(fault)
        self._has_fault = True

    def _report_lost(self, base_offset: int) -> None:
        """Report the offsets between the last sound batch and `base_offset` as lost, if there was a fault in between."""
        if self._has_fault:
            self._has_fault = False
            self.report.add_lost(self.part, self._last_offset + 1, base_offset)

    def _scanned_rows(self, count: int) -> Iterator[Rows]:
        """Yield the rows of the `count` batches that the walk has scanned."""
        part, batches = self.part, self._walk.rows
        row = 0
        while row < count:
            length = span_length(
                batches,
                row,
                count,
                self._last_offset,
                part.first_offset,
                part.end_offset,
                part.bound_offset,
                self._excluded,
                self.scanner.columns.capacity,
            )
            rows = self._scan_span(row, length) if length else None
            if rows is None or rows.span is None:
                yield from self._batch_rows(self._walk.batch(row))
                row += 1
            else:
                self._report_lost(batches.base_offset[row])
                row += rows.span.batch_count
                self._last_offset = batches.last_offset[row - 1]
                yield rows

    def _batch_rows(self, batch: LogBatch) -> Iterator[Rows]:
        """Yield the rows of one batch, window by window; handle its faults, and count it if it is left out."""
        fault = self.batch_fault(batch, self._walk.reader)
        if fault is not None:
            self._skip(fault)
            return
        header, part = batch.header, self.part
        self._report_lost(header.base_offset)
        if not self.follows(batch):
            return
        reason = self.left_out(batch)
        if reason is not None:
            assert isinstance(header, RecordBatch)
            self.report.add_left_out(part.topic, part.partition, reason, header.record_count)
            return
        is_aborted = self.is_aborted(header)
        is_whole = (
            isinstance(header, RecordBatch) and header.base_offset >= part.first_offset and header.last_offset < part.end_offset
        )
        for window in self.windows(batch):
            first, end = 0, window.count
            if not is_whole:
                offsets = window.columns.offset
                first = count_below(offsets, window.count, part.first_offset)
                end = count_below(offsets, window.count, part.end_offset)
            if end > first:
                run = Run(header, end - first, part.topic, part.partition, part.file, is_aborted)
                yield Rows(run, window, first)

    def _scan_span(self, row: int, count: int) -> Rows | None:
        """Scan the records of as many of `count` batches as fit; return rows, or None if the first one has a fault."""
        batches, part, records = self._walk.rows, self.part, self.scanner.columns
        header = self._walk.batch(row).header
        assert isinstance(header, RecordBatch)
        buffer: Buffer
        if header.codec:
            buffer, starts, ends = self._inflate(header.codec, row, count)
        else:
            # The interpreted scanner reads bytes faster than anything else.
            buffer = self._walk.buffer
            shift = HEADER_BYTES - self._walk.buffer_start
            starts = array("q", [position + shift for position in batches.position[row : row + count]])
            sizes = batches.size_bytes[row : row + count]
            ends = array("q", [start + size - HEADER_BYTES for start, size in zip(starts, sizes, strict=True)])
        done = scan_span(buffer, starts, ends, batches, row, len(starts), records, self._scratch)
        if done == 0:
            return None
        length = self._scratch[0]
        run = Run(header, length, part.topic, part.partition, part.file, False)
        return Rows(run, RecordWindow(buffer, records, length, 0), 0, Span(batches, row, done, ends))

    def _inflate(self, codec: int, row: int, count: int) -> tuple[bytes, array[int], array[int]]:
        """Inflate batches into one buffer, up to SPAN_BYTES or the first fault; return it and where each starts and ends."""
        pieces: list[bytes] = []
        bounds = [0]
        for index in range(row, row + count):
            try:
                piece = inflate(codec, self._walk.payload(index), limit=limits.INFLATE_WINDOW_BYTES)
            except FormatError:
                break
            pieces.append(piece)
            bounds.append(bounds[-1] + len(piece))
            if bounds[-1] >= SPAN_BYTES:
                break
        buffer = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return buffer, array("q", bounds[:-1]), array("q", bounds[1:])


class ArrowBatchBuilder:
    """Collects rows into Arrow batches of `schema`, of the size that the options state."""

    def __init__(self, schema: pa.Schema, options: ReadOptions) -> None:
        self.schema = schema
        self.max_rows = options.arrow_batch_rows
        self.max_bytes = options.arrow_batch_bytes
        self.rows = 0
        self._runs: list[Run] = []
        capacity = self.max_rows + limits.SCAN_WINDOW_RECORDS
        self._columns: list[Column] = []
        for field in schema:
            make = NullColumn if field.name == options.report_column else column_for
            self._columns.append(make(field.name, field.type, capacity))
        self._filled = [column for column in self._columns if isinstance(column, RecordColumn)]
        self._sized = [column for column in self._filled if column.name in ("key", "value", "headers")]

    def add(self, rows: Rows) -> bool:
        """Append at most SCAN_WINDOW_RECORDS rows; return True if the batch is full, so that `finish` must be called."""
        for column in self._filled:
            column.add(rows, self.rows)
        self._runs.append(rows.run)
        self.rows += rows.run.length
        return self.rows >= self.max_rows or sum([column.data_bytes for column in self._sized]) >= self.max_bytes

    def finish(self) -> pa.RecordBatch:
        """Return the batch of the rows that were added, and begin an empty one."""
        arrays = [column.finish(self._runs, self.rows) for column in self._columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        for column in self._columns:
            column.begin()
        self.rows = 0
        self._runs = []
        return batch
