"""Planning a read in the driver: the offsets of each partition, and the splits of the tasks.

    1  offsets     -> [first, end) of each partition: log start offset, startingOffsets ... endingTimestamp, last stable offset
    2  segments    -> those with such offsets, cut to the bytes with such offsets by the indexes
    3  ranges      -> cut at batches into pieces of at most maxPartitionBytes
    4  splits      -> small ranges packed together, one for each Spark task

If a live broker holds the directory, reading ends with the last whole batch; otherwise an incomplete last batch is a fault.
Since a broker may append while Spark plans, the end of a log is determined once, its offset and its byte together.

The records that planning leaves out, and that no task reads, are counted for the summary of an export (`count_plan`): below
the log start offset, at or above the last stable offset, and at or above the checkpointed high watermark. Control records
count as records, as in Kafka. Records outside the user's own offsets and times are not counted, and neither are those below
the offset at which an incremental run begins.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from kcli.format.primitives import INT32_MAX, INT64_MAX, TopicPartition
from kcli.log.disk.port import Disk
from kcli.log.files.log_directory import Segment
from kcli.log.reading.offset_lookup import OffsetLookup
from kcli.selecting.lookup import segments_in_range
from kcli.selecting.selection import Range
from kcli.spark.log_partitions import DATA_LOSS_HINT, LogPartition, PlanError, find_directories
from kcli.spark.read_options import (
    EARLIEST,
    EARLIEST_OFFSET,
    ERROR,
    FAIL,
    FALSE,
    LATEST,
    LATEST_OFFSET,
    SKIP,
    TRUE,
    ByPartition,
    Offsets,
    ReadOptions,
)
from kcli.spark.report import ABOVE_HIGH_WATERMARK, BELOW_LOG_START, BEYOND_LAST_STABLE, Report
from kcli.spark.splits import OPEN_COST_BYTES, LogSplit, SegmentRange, pack

# The names of the options that choose offsets, in lower case.
_ENDS = {end + suffix for end in ("starting", "ending") for suffix in ("offsets", "timestamp", "offsetsbytimestamp")} | {
    "exactoffsets",
    "startingoffsetsbytimestampstrategy",
}


class OffsetRange(NamedTuple):
    """The offsets [first, end) that are wanted of a partition."""

    partition: LogPartition
    first: int
    end: int


def find_partitions(disk: Disk, options: ReadOptions) -> list[LogPartition]:
    """Return the partitions that paths and topics choose, sorted by name. Raises PlanError, and OSError as the disk does."""
    if not options.of_cluster:
        return find_directories(disk, options)
    from kcli.spark.cluster_partitions import find_cluster_partitions  # late: it loads the client

    return find_cluster_partitions(options)


# -------------------------------------------------------------------------------------------------------------- offsets


def earliest_offset(partition: LogPartition, options: ReadOptions) -> int:
    """Return the first offset that may be read."""
    return partition.first_offset if options.include_below_log_start else partition.log_start_offset


def latest_offset(partition: LogPartition, options: ReadOptions) -> int:
    """Return the end of the offsets that may be read: the log's end, last stable offset or high watermark."""
    end = partition.log_end_offset
    if options.cuts_at_last_stable_offset:
        end = min(end, partition.transactions.last_stable_offset)
    high_watermark = used_high_watermark(partition, options)
    return end if high_watermark is None else min(end, high_watermark)


def used_high_watermark(partition: LogPartition, options: ReadOptions) -> int | None:
    """Return the high watermark at which reading ends, or None if the log is read to its end."""
    if options.stop_at_high_watermark == FALSE:
        return None
    if options.stop_at_high_watermark == TRUE:
        return partition.committed_offset
    return partition.known_high_watermark


def offset_ranges(partitions: Iterable[LogPartition], options: ReadOptions) -> list[OffsetRange]:
    """Return the offsets that the options choose of each partition. Raises PlanError if they do not exist."""
    if options.exact_offsets:
        return _exact_ranges(partitions, options)
    ranges = []
    for part in partitions:
        earliest, latest = earliest_offset(part, options), latest_offset(part, options)
        first = _first_wanted(part, options, earliest, latest)
        end = _end_wanted(part, options, earliest, latest)
        if first < earliest and options.fail_on_data_loss:
            raise PlanError(
                f"{part.name}: the read begins at offset {first}, but the log begins at {earliest}; "
                "option failOnDataLoss=false begins there"
            )
        for what, offset in (("begins", first), ("ends", end)):
            if offset > part.log_end_offset and options.fail_on_data_loss:
                raise PlanError(
                    f"{part.name}: the read {what} at offset {offset}, but the log ends at {part.log_end_offset}; "
                    "option failOnDataLoss=false reads what is there"
                )
        ranges.append(OffsetRange(part, max(first, earliest), min(end, latest)))
    return ranges


def _exact_ranges(partitions: Iterable[LogPartition], options: ReadOptions) -> list[OffsetRange]:
    """Return the offsets of startingOffsets and endingOffsets, which an earlier plan has determined."""
    assert isinstance(options.starting_offsets, dict) and isinstance(options.ending_offsets, dict)
    there = {part.key: part for part in partitions}
    ranges = []
    for key, end in (((topic, number), end) for topic, ends in options.ending_offsets.items() for number, end in ends.items()):
        first, part = options.starting_offsets.get(key[0], {}).get(key[1], 0), there.get(key)
        if end <= first:
            continue
        earliest = end if part is None else earliest_offset(part, options)
        if first < earliest and options.fail_on_data_loss:
            gone = f"the partition {key[0]}-{key[1]} is gone" if part is None else gap(part, first, min(earliest, end))
            raise PlanError(gone + DATA_LOSS_HINT)
        if part is not None and end > part.log_end_offset:
            raise PlanError(
                f"{part.name}: the plan ends at offset {end}, but the log now ends at {part.log_end_offset}; run the job again"
            )
        if part is not None:
            ranges.append(OffsetRange(part, max(first, earliest), end))
    return ranges


def gap(part: LogPartition, first: int, end: int) -> str:
    """Return the clause that reports the offsets [first, end) as lost."""
    return f"{part.name}: the records with offsets {first} to {end - 1} are gone, the log begins at {end}"


def pinned(source: Mapping[str, str], ranges: Sequence[OffsetRange]) -> dict[str, str]:
    """Return the options with which the source reads exactly these offsets, one range of each partition."""
    first: ByPartition = {}
    end: ByPartition = {}
    for part, first_offset, end_offset in ranges:
        first.setdefault(part.topic, {})[part.partition] = first_offset
        end.setdefault(part.topic, {})[part.partition] = max(first_offset, end_offset)
    kept = {name: value for name, value in source.items() if name.lower() not in _ENDS}
    return {**kept, "exactOffsets": TRUE, "startingOffsets": json.dumps(first), "endingOffsets": json.dumps(end)}


def _first_wanted(part: LogPartition, options: ReadOptions, earliest: int, latest: int) -> int:
    """Return the offset at which reading a partition begins. Raises PlanError if the options name a time that it does not have.

    What cannot be read directly before the first record of a time may have had records of that time, so reading begins there.
    """
    if not options.is_start_a_time:
        return _named_offset(part, options.starting_offsets, earliest, latest, earliest)
    timestamp_ms = _time_of(part, options.starting_timestamp, options.starting_by_timestamp)
    if timestamp_ms is None:
        return earliest
    found, damage_offset = part.find_time(timestamp_ms, earliest)
    if found is None and damage_offset is not None and options.on_corrupt == FAIL and not part.is_live:
        if damage_offset >= latest:
            raise PlanError(
                f"{part.name}: no record that can be read has a timestamp of {timestamp_ms} ms or later, but the bytes behind "
                f"offset {damage_offset - 1} cannot be read; option onCorrupt=skip (--on-corrupt skip) leaves them out"
            )
        return damage_offset
    if found is None and options.timestamp_strategy == ERROR:
        raise PlanError(
            f"{part.name}: no record has a timestamp of {timestamp_ms} ms or later; option "
            "startingOffsetsByTimestampStrategy=latest reads no record of such a partition"
        )
    return latest if found is None else found if damage_offset is None else damage_offset


def _end_wanted(part: LogPartition, options: ReadOptions, earliest: int, latest: int) -> int:
    """Return the offset at which reading a partition ends: what cannot be read before the first record of a time is read."""
    if not options.is_end_a_time:
        return _named_offset(part, options.ending_offsets, earliest, latest, latest)
    timestamp_ms = _time_of(part, options.ending_timestamp, options.ending_by_timestamp)
    found = None if timestamp_ms is None else part.find_time(timestamp_ms, earliest).offset
    return latest if found is None else found


def _time_of(part: LogPartition, timestamp_ms: int | None, by_partition: ByPartition | None) -> int | None:
    """Return the time that the options name for a partition; that of all partitions takes precedence."""
    return timestamp_ms if timestamp_ms is not None else (by_partition or {}).get(part.topic, {}).get(part.partition)


def _named_offset(part: LogPartition, offsets: Offsets, earliest: int, latest: int, otherwise: int) -> int:
    """Return the offset that the options name for a partition; `otherwise` if they name offsets of others only."""
    if not isinstance(offsets, dict):
        return {EARLIEST: earliest, LATEST: latest}[offsets]
    offset = offsets.get(part.topic, {}).get(part.partition, otherwise)
    return {EARLIEST_OFFSET: earliest, LATEST_OFFSET: latest}.get(offset, offset)


# --------------------------------------------------------------------------------------------------------------- ranges


class RangeChoice(NamedTuple):
    """How `segment_ranges` makes ranges.

    `with_transactions` adds the transactions that are not committed. With `only_markers_read` a transaction counts as aborted
    only if its marker is among the wanted offsets, so that a range has the same rows whenever it is read.
    `with_torn_tail` adds an incomplete batch at the end of the log, unless a live broker holds the directory, so that it is a
    fault.
    """

    with_transactions: bool
    only_markers_read: bool = False
    with_torn_tail: bool = True


def segment_ranges(wanted: OffsetRange, choice: RangeChoice) -> list[tuple[Segment, SegmentRange]]:
    """Return the bytes of each segment with the wanted offsets: the whole segment, unless an end of the offsets is inside.

    Raises OSError as the disk does, FileNotFoundError for a segment that was removed.
    """
    part = wanted.partition
    ranges: list[tuple[Segment, SegmentRange]] = []
    if wanted.end <= wanted.first:
        return ranges
    log_end = part.log_end
    for segment in segments_in_range(part.segments, Range(wanted.first, wanted.end), part.copies):
        if part.copies.is_copy(segment):
            continue
        next_base = part.copies.bound_of(segment)
        is_last = next_base == INT64_MAX
        file_id = part.disk.file_id(segment.log)
        with OffsetLookup(part.disk, segment, log_end.size_bytes if is_last else None) as lookup:
            start, least = 0, segment.base_offset
            if wanted.first > segment.base_offset:
                start, least = lookup.start_of_offset(wanted.first)
            end, bound = lookup.reader.end_position(), next_base
            if wanted.end < min(next_base, log_end.offset):
                end = lookup.end_of_offset(wanted.end - 1)
            elif is_last and not (log_end.is_torn and choice.with_torn_tail and not part.is_live):
                end = log_end.position
            # Kafka's own bounds: the end of the log, and the offsets that fit an index of the segment.
            bound = min(bound, segment.base_offset + INT32_MAX + 1, log_end.offset if is_last else bound)
        if end > start:
            transactions = None
            if choice.with_transactions:
                known_below = wanted.end if choice.only_markers_read else None
                transactions = part.transactions.within(segment.base_offset, next_base, known_below)
            found = SegmentRange(
                part.topic,
                part.partition,
                segment.log,
                least_offset=least,
                position=start,
                end_position=end,
                first_offset=wanted.first,
                end_offset=wanted.end,
                bound_offset=bound,
                transactions=transactions,
                file_id=file_id,
            )
            ranges.append((segment, found))
    return ranges


def cut_range(
    disk: Disk, segment: Segment, part: SegmentRange, target_bytes: int, *, skips_corrupt: bool = False
) -> list[SegmentRange]:
    """Cut a range at batches into pieces of about `target_bytes`; `bound_offset` of each is the first offset of the next one.

    With `skips_corrupt` it is cut only at positions in the index, since lengths in damaged headers may lead to other bytes.
    """
    if part.size_bytes <= target_bytes:
        return [part]
    with OffsetLookup(disk, segment, part.end_position) as lookup:
        cuts = lookup.boundaries(part.position, part.end_position, target_bytes, by_headers=not skips_corrupt)
        # An offset that the segment cannot have is not believed here either: the next segment begins before it.
        bounds = [min(lookup.reader.header_at(cut).base_offset, part.bound_offset) for cut in cuts]
    starts, ends = [part.position, *cuts], [*cuts, part.end_position]
    least = [part.least_offset, *bounds]
    return [
        part._replace(position=start, end_position=end, least_offset=first, bound_offset=bound)
        for start, end, first, bound in zip(starts, ends, least, [*bounds, part.bound_offset], strict=True)
    ]


def split_bytes(total_bytes: int, options: ReadOptions) -> int:
    """Return the size of a split: at most maxPartitionBytes; the number of splits is a multiple of minPartitions."""
    least = options.min_partitions or 1
    rounds = -(-total_bytes // (options.max_partition_bytes * least)) or 1
    return max(-(-total_bytes // (rounds * least)), 1)


def plan_splits(disk: Disk, wanted: Iterable[OffsetRange], options: ReadOptions, choice: RangeChoice) -> list[LogSplit]:
    """Return the splits for the wanted offsets. Raises OSError as `segment_ranges` does."""
    wanted = list(wanted)
    if options.of_cluster:
        return _cluster_splits(wanted, options, choice)
    ranges = [part for offsets in wanted for part in segment_ranges(offsets, choice)]
    target = split_bytes(sum(part.size_bytes for _, part in ranges), options)
    skips_corrupt = options.on_corrupt == SKIP
    pieces = [
        piece for segment, part in ranges for piece in cut_range(disk, segment, part, target, skips_corrupt=skips_corrupt)
    ]
    # Pieces are a little smaller or larger than the target; two of them must not be packed into one split.
    return pack(pieces, split_bytes(sum(piece.cost_bytes for piece in pieces), options) + OPEN_COST_BYTES // 2)


def _cluster_splits(wanted: Sequence[OffsetRange], options: ReadOptions, choice: RangeChoice) -> list[LogSplit]:
    """Return the splits for offsets of a cluster's partitions, whose sizes are estimates."""
    from kcli.spark.cluster_partitions import ClusterPartition

    target = split_bytes(sum(part.size_of(first, end) for part, first, end in wanted), options)
    pieces = [
        piece
        for part, first, end in wanted
        if isinstance(part, ClusterPartition) and end > first
        for piece in part.pieces(first, end, part.transactions if choice.with_transactions else None, target)
    ]
    return pack(pieces, split_bytes(sum(piece.cost_bytes for piece in pieces), options) + OPEN_COST_BYTES // 2)


# -------------------------------------------------------------------------------------------------------------- left out


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
