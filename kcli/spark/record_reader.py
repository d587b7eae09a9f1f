"""What a task does with its split: read each range (kcli.spark.span_walk), give out its records as Arrow batches.

What becomes of a batch is told in kcli.spark.range_walker.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from kcli.format.record_batch import RecordBatch
from kcli.format.record_scan import RecordColumns
from kcli.log.disk.port import Disk
from kcli.log.reading.segment_reader import LogBatch
from kcli.spark.arrow_batches import ArrowBatchBuilder
from kcli.spark.arrow_columns import count_below
from kcli.spark.column_builders import Rows
from kcli.spark.options import ReadOptions
from kcli.spark.planning import open_ranges
from kcli.spark.range_walker import RangeWalker, is_aborted
from kcli.spark.report import Report
from kcli.spark.span_walk import SPAN_RECORDS, SpanWalk
from kcli.spark.splits import LogSplit, SegmentRange
from kcli.spark.task_progress import TaskProgress


def read_records(disk: Disk, split: LogSplit, schema: pa.Schema, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The records of a split as Arrow batches of `schema`; the report as a last row or in a file, where one is asked for.

    Raises CorruptLogError for corrupt bytes where the job is to fail, OSError as the disk does.
    """
    report = Report()
    walker = RangeWalker(disk, options, report)
    records = RecordColumns(SPAN_RECORDS)
    builder = ArrowBatchBuilder(
        schema, max_rows=options.arrow_batch_rows, max_bytes=options.arrow_batch_bytes, report=options.report_column
    )
    progress, read_bytes = TaskProgress(disk, options.report_path, split.number), 0
    for planned in split.ranges:
        given = 0
        for part, walk in open_ranges(disk, planned, options, lambda found: SpanWalk(walker, found, records), walker.lose):
            for found in walk.steps():
                for rows in (found,) if isinstance(found, Rows) else _wanted(walker, part, found):
                    given += rows.length
                    if builder.add(rows):
                        yield builder.finish()
                        progress.reach(read_bytes + walk.read_bytes)
        read_bytes += planned.size_bytes
        progress.reach(read_bytes)
        if given:
            report.rows[planned.topic, planned.partition] += given
    if builder.rows:
        yield builder.finish()
    if options.report_column is not None:
        yield report_row(schema, options.report_column, report)
    progress.reach(read_bytes, is_end=True)
    if options.report_path is not None:
        disk.write_file(f"{options.report_path}/{split.number}.json", report.to_json().encode())


def _wanted(walker: RangeWalker, part: SegmentRange, batch: LogBatch) -> Iterator[Rows]:
    """The batch's records, window by window, cut to the offsets wanted; none where they are left out, which is counted."""
    header = batch.header
    reason = walker.left_out(part, batch)
    if reason is not None:
        assert isinstance(header, RecordBatch)
        walker.report.leave_out(part.topic, part.partition, reason, header.record_count)
        return
    aborted = is_aborted(part, header)
    whole = isinstance(header, RecordBatch) and header.base_offset >= part.first_offset and header.last_offset < part.end_offset
    for window in walker.windows(part, batch):
        first, end = 0, window.count
        if not whole:
            offsets = window.columns.offset
            first = count_below(offsets, window.count, part.first_offset)
            end = count_below(offsets, window.count, part.end_offset)
        if end > first:
            yield Rows(header, window, first, end - first, part.topic, part.partition, part.file, aborted)


def report_row(schema: pa.Schema, column: str, report: Report) -> pa.RecordBatch:
    """One row of nulls but for the report."""
    arrays = [pa.array([report.to_json()], field.type) if field.name == column else pa.nulls(1, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
