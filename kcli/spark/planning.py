"""What is to be read of the partitions: offsets, and the splits that hold them. Runs where Spark plans, not in the tasks.

    1  offsets     -> [first, end) of each partition: log start offset, startingOffsets ... endingTimestamp, last stable offset
    2  segments    -> those that hold such offsets, cut to the bytes that do by the indexes
    3  ranges      -> cut at batches into pieces of at most maxPartitionBytes
    4  splits      -> small ranges packed together, one Spark task each

On a directory that a live broker holds, reading ends with the last whole batch; a torn one elsewhere is damage.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kcli.format.primitives import INT32_MAX, INT64_MAX
from kcli.log import log_directory as layout
from kcli.log.disk import Disk
from kcli.log.log_directory import Segment
from kcli.log.segment_seek import SegmentSeeker
from kcli.spark.options import EARLIEST, EARLIEST_OFFSET, ERROR, LATEST, LATEST_OFFSET, ByPartition, Offsets, ReadOptions
from kcli.spark.partitions import LogPartition, PlanError
from kcli.spark.splits import OPEN_COST_BYTES, LogSplit, SegmentRange, pack


class OffsetRange(NamedTuple):
    """The offsets [first, end) that are wanted of a partition."""

    partition: LogPartition
    first: int
    end: int


# -------------------------------------------------------------------------------------------------------------- offsets


def earliest_offset(partition: LogPartition, options: ReadOptions) -> int:
    """The first offset that the options let through."""
    return partition.first_offset if options.include_below_log_start else partition.log_start_offset


def latest_offset(partition: LogPartition, options: ReadOptions) -> int:
    """The offset behind the last that the options let through: the end of the log, or what cuts earlier."""
    end = partition.log_end_offset
    if options.cuts_at_last_stable_offset:
        end = min(end, partition.transactions.last_stable_offset)
    if options.stop_at_high_watermark:
        end = min(end, partition.committed_offset)
    return end


def offset_ranges(partitions: Iterable[LogPartition], options: ReadOptions) -> list[OffsetRange]:
    """The offsets that the options choose of each partition. Raises PlanError where they cannot be had."""
    ranges = []
    for part in partitions:
        earliest, latest = earliest_offset(part, options), latest_offset(part, options)
        first = _resolve(
            part,
            options.starting_timestamp,
            options.starting_by_timestamp,
            options.starting_offsets,
            earliest,
            latest,
            earliest,
            strict=options.timestamp_strategy == ERROR,
        )
        end = _resolve(
            part, options.ending_timestamp, options.ending_by_timestamp, options.ending_offsets, earliest, latest, latest
        )
        if first < earliest and options.fail_on_data_loss:
            raise PlanError(
                f"{part.name}: offsets from {first} on are asked for, and the log begins at {earliest}; "
                "option failOnDataLoss=false begins there"
            )
        ranges.append(OffsetRange(part, max(first, earliest), min(end, latest)))
    return ranges


def _resolve(
    part: LogPartition,
    timestamp: int | None,
    by_timestamp: ByPartition | None,
    offsets: Offsets,
    earliest: int,
    latest: int,
    otherwise: int,
    *,
    strict: bool = False,
) -> int:
    """One end of a partition's range, by Spark's precedence; `otherwise` where a partition is not mentioned."""
    if timestamp is None and by_timestamp is not None:
        timestamp = by_timestamp.get(part.topic, {}).get(part.partition)
        if timestamp is None:
            return otherwise
    if timestamp is not None:
        found = part.offset_of_time(timestamp, earliest)
        if found is None and strict:
            raise PlanError(f"{part.name}: no record is as young as {timestamp} ms")
        return latest if found is None else found
    if offsets == EARLIEST:
        return earliest
    if offsets == LATEST:
        return latest
    assert isinstance(offsets, dict)
    offset = offsets.get(part.topic, {}).get(part.partition)
    if offset is None:
        return otherwise
    return {EARLIEST_OFFSET: earliest, LATEST_OFFSET: latest}.get(offset, offset)


# --------------------------------------------------------------------------------------------------------------- ranges


def segment_ranges(
    wanted: OffsetRange, *, with_transactions: bool, least_timestamp_ms: int | None = None, with_torn_tail: bool = True
) -> list[tuple[Segment, SegmentRange]]:
    """The bytes of each segment that hold the offsets wanted; whole segments unless an end of them lies inside.

    Segments without a record as young as `least_timestamp_ms` are passed over. A torn batch at the end of the log is left out
    where `with_torn_tail` is False or a live broker holds the directory; else reading it will tell that it is damaged.
    """
    part = wanted.partition
    ranges: list[tuple[Segment, SegmentRange]] = []
    if wanted.end <= wanted.first:
        return ranges
    for slot, segment in enumerate(part.segments):
        is_last = slot + 1 == len(part.segments)
        next_base = INT64_MAX if is_last else part.segments[slot + 1].base_offset
        if next_base <= wanted.first or segment.base_offset >= wanted.end:
            continue
        with SegmentSeeker(part.disk, segment) as seeker:
            if least_timestamp_ms is not None and seeker.max_timestamp() < least_timestamp_ms:
                continue
            start = seeker.first_batch(wanted.first) if wanted.first > segment.base_offset else 0
            end, bound = seeker.reader.end_position(), next_base
            if wanted.end < min(next_base, part.log_end_offset):
                end = seeker.behind_offset(wanted.end - 1)
            elif is_last:
                end = _last_end(part, seeker, with_torn_tail)
            # Kafka's own bounds: the end of the log, and offsets that fit an index of the segment.
            bound = min(bound, segment.base_offset + INT32_MAX + 1, part.log_end_offset if is_last else bound)
        transactions = part.transactions.within(segment.base_offset, next_base) if with_transactions else None
        if end > start:
            found = SegmentRange(
                part.topic,
                part.partition,
                segment.log,
                segment.base_offset,
                start,
                end,
                wanted.first,
                wanted.end,
                bound,
                transactions,
            )
            ranges.append((segment, found))
    return ranges


def _last_end(part: LogPartition, seeker: SegmentSeeker, with_torn_tail: bool) -> int:
    """Where reading the last segment ends: before a tail of zeros, and before what is still being written."""
    sound, is_torn = seeker.sound_end()
    if not is_torn or not with_torn_tail or layout.is_live(part.disk, part.directory.log_directory):
        return sound
    return seeker.reader.end_position()


def cut_range(disk: Disk, segment: Segment, part: SegmentRange, target_bytes: int) -> list[SegmentRange]:
    """Cut a range at batches into pieces of about `target_bytes`; each knows where the next one's offsets begin."""
    if part.size_bytes <= target_bytes:
        return [part]
    with SegmentSeeker(disk, segment) as seeker:
        cuts = seeker.boundaries(part.position, part.end_position, target_bytes)
        bounds = [seeker.reader.header_at(cut).base_offset for cut in cuts]
    starts, ends = [part.position, *cuts], [*cuts, part.end_position]
    least = [part.least_offset, *bounds]
    return [
        part._replace(position=start, end_position=end, least_offset=first, bound_offset=bound)
        for start, end, first, bound in zip(starts, ends, least, [*bounds, part.bound_offset], strict=True)
    ]


def split_bytes(total_bytes: int, options: ReadOptions) -> int:
    """How large a split is to be: at most maxPartitionBytes, and so that their number is a multiple of minPartitions."""
    rounds = -(-total_bytes // (options.max_partition_bytes * options.min_partitions)) or 1
    return max(-(-total_bytes // (rounds * options.min_partitions)), 1)


def plan_splits(
    disk: Disk,
    wanted: Iterable[OffsetRange],
    options: ReadOptions,
    *,
    with_transactions: bool,
    least_timestamp_ms: int | None = None,
    with_torn_tail: bool = True,
) -> list[LogSplit]:
    """The splits that read the offsets wanted (see `segment_ranges`). Raises OSError as the disk does."""
    ranges = [
        part
        for offsets in wanted
        for part in segment_ranges(
            offsets,
            with_transactions=with_transactions,
            least_timestamp_ms=least_timestamp_ms,
            with_torn_tail=with_torn_tail,
        )
    ]
    target = split_bytes(sum(part.size_bytes for _, part in ranges), options)
    pieces = [piece for segment, part in ranges for piece in cut_range(disk, segment, part, target)]
    # Pieces end at batches, a little before or behind the target: those of one segment must not end up two and two.
    return pack(pieces, split_bytes(sum(piece.cost_bytes for piece in pieces), options) + OPEN_COST_BYTES // 2)
