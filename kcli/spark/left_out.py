"""Counting the records that planning leaves out and that no task reads, for the summary at the end of an export.

    left out before any task runs                    counted by
    -----------------------------------------------  -----------------------------------------------------------------
    below the log start offset                       the headers of their batches; a batch with offsets on both sides is
    at or above the last stable offset               opened
    at or above the checkpointed high watermark

Control records count as records, as in Kafka. Records outside the user's own offsets and times are not counted, and neither are
records below the offset at which an incremental run begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kcli.format.record_batch import RecordBatch
from kcli.log.files.checkpoint_files import TopicPartition
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.header_reader import HeaderReader
from kcli.log.reading.offset_lookup import OffsetLookup
from kcli.log.reading.segment_reader import LogBatch
from kcli.spark.cluster_partitions import ClusterPartition
from kcli.spark.log_partitions import LogPartition
from kcli.spark.planning import OffsetRange, used_high_watermark
from kcli.spark.read_options import ReadOptions
from kcli.spark.report import ABOVE_HIGH_WATERMARK, BELOW_LOG_START, BEYOND_LAST_STABLE, Report


class PlanCounts(NamedTuple):
    """The records that a plan leaves out, and how many partitions it reads to their high watermark and to their end."""

    left_out: Report
    to_high_watermark: int
    to_log_end: int


def count_plan(ranges: Iterable[OffsetRange], options: ReadOptions, begun: Mapping[TopicPartition, int]) -> PlanCounts:
    """Return the counts of a plan; earlier runs have read the offsets below those in `begun`. Raises OSError."""
    report, bounded, partitions = Report(), 0, 0
    for part, _, _ in ranges:
        count_left_out(part, options, report, begun.get(part.key))
        bounded += used_high_watermark(part, options) is not None
        partitions += 1
    return PlanCounts(report, bounded, partitions - bounded)


def count_left_out(partition: LogPartition, options: ReadOptions, report: Report, begun: int | None = None) -> None:
    """Add to `report` the records of a partition, from offset `begun` on, that planning leaves out. Raises OSError."""
    end = partition.log_end_offset
    first = partition.first_offset if begun is None else max(partition.first_offset, begun)
    if not options.include_below_log_start and partition.log_start_offset > first:
        count = count_records(partition, first, partition.log_start_offset)
        report.add_left_out(*partition.key, BELOW_LOG_START, count)
    until = end
    if options.cuts_at_last_stable_offset:
        until = max(min(end, partition.transactions.last_stable_offset), partition.log_start_offset, first)
        report.add_left_out(*partition.key, BEYOND_LAST_STABLE, count_records(partition, until, end) if until < end else 0)
    high_watermark = used_high_watermark(partition, options)
    if high_watermark is not None and high_watermark < until:
        mark = max(high_watermark, partition.log_start_offset, first)
        report.add_left_out(*partition.key, ABOVE_HIGH_WATERMARK, count_records(partition, mark, until))


def count_records(partition: LogPartition, first: int, end: int) -> int:
    """Return how many records with offsets in [first, end) the partition has."""
    if isinstance(partition, ClusterPartition):
        return partition.count_records(first, end)
    count = 0
    scanner = RecordScanner()
    for segment in partition.segments_from(first):
        if segment.base_offset >= end:
            break
        with OffsetLookup(partition.disk, segment) as lookup:
            walk = HeaderReader(lookup.reader.file, lookup.first_batch(first), lookup.reader.end_position())
            for header in walk.headers():
                if isinstance(header, RecordBatch) and header.base_offset >= end:
                    break
                if isinstance(header, RecordBatch) and header.base_offset >= first and header.last_offset < end:
                    count += header.record_count
                    continue
                batch = lookup.reader.batch_at(header.position)
                if isinstance(batch, LogBatch):
                    for window in batch.windows(scanner, skip_large=True):
                        offsets = window.columns.offset[: window.count]
                        count += sum(1 for offset in offsets if first <= offset < end)
    return count
