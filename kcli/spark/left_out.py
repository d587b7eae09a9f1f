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

from kcli.log.files.checkpoint_files import TopicPartition
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
        count = partition.count_records(first, partition.log_start_offset)
        report.add_left_out(*partition.key, BELOW_LOG_START, count)
    until = end
    if options.cuts_at_last_stable_offset:
        until = max(min(end, partition.transactions.last_stable_offset), partition.log_start_offset, first)
        report.add_left_out(*partition.key, BEYOND_LAST_STABLE, partition.count_records(until, end) if until < end else 0)
    high_watermark = used_high_watermark(partition, options)
    if high_watermark is not None and high_watermark < until:
        mark = max(high_watermark, partition.log_start_offset, first)
        report.add_left_out(*partition.key, ABOVE_HIGH_WATERMARK, partition.count_records(mark, until))
