"""What is to be read of the partitions: offsets, and the splits that hold them. Steps 1 to 4 run where Spark plans.

    1  offsets     -> [first, end) of each partition: log start offset, startingOffsets ... endingTimestamp, last stable offset
    2  segments    -> those that hold such offsets, cut to the bytes that do by the indexes
    3  ranges      -> cut at batches into pieces of at most maxPartitionBytes
    4  splits      -> small ranges packed together, one Spark task each
    5  in a task   -> a range whose segment was rolled, cleaned or deleted since is looked up again by its offsets

On a directory that a live broker holds, reading ends with the last whole batch; a torn one elsewhere is damage. The broker goes
on appending: where a log ends is found once, offset and byte together, and all that follows uses both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from kcli.format.primitives import INT32_MAX, INT64_MAX
from kcli.log.disk.port import Disk, parent_path
from kcli.log.files import log_directory as layout
from kcli.log.files.log_directory import Segment
from kcli.log.reading.offset_lookup import OffsetLookup
from kcli.log.reading.transaction_filter import AbortedTransactions
from kcli.spark.options import (
    EARLIEST,
    EARLIEST_OFFSET,
    ERROR,
    FALSE,
    LATEST,
    LATEST_OFFSET,
    SKIP,
    TRUE,
    ByPartition,
    Offsets,
    ReadOptions,
)
from kcli.spark.partitions import LogPartition, PlanError
from kcli.spark.splits import OPEN_COST_BYTES, LogSplit, SegmentRange, pack

# What the options that choose offsets are called, in lower case.
_ENDS = {end + suffix for end in ("starting", "ending") for suffix in ("offsets", "timestamp", "offsetsbytimestamp")} | {
    "exactoffsets",
    "startingoffsetsbytimestampstrategy",
}
GOES_ON = "; option failOnDataLoss=false goes on without these records"
# How often a task looks up the offsets of one range anew before it gives up.
MOST_LOOKUPS = 20


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
    high_watermark = used_high_watermark(partition, options)
    return end if high_watermark is None else min(end, high_watermark)


def used_high_watermark(partition: LogPartition, options: ReadOptions) -> int | None:
    """The high watermark that ends what is read of a partition, or None where the log is read to its end."""
    if options.stop_at_high_watermark == FALSE:
        return None
    if options.stop_at_high_watermark == TRUE:
        return partition.committed_offset
    return partition.known_high_watermark


def offset_ranges(partitions: Iterable[LogPartition], options: ReadOptions) -> list[OffsetRange]:
    """The offsets that the options choose of each partition. Raises PlanError where they cannot be had."""
    if options.exact_offsets:
        return _exact_ranges(partitions, options)
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


def _exact_ranges(partitions: Iterable[LogPartition], options: ReadOptions) -> list[OffsetRange]:
    """The offsets that a plan has chosen before, whatever ends reading now; none of a partition that is new since."""
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
            raise PlanError(gone + GOES_ON)
        if part is not None and end > part.log_end_offset:
            raise PlanError(
                f"{part.name}: records up to offset {end} were planned, and the log ends at {part.log_end_offset} now; run the "
                "job again"
            )
        if part is not None:
            ranges.append(OffsetRange(part, max(first, earliest), end))
    return ranges


def gap(part: LogPartition, first: int, end: int) -> str:
    """Return the clause that reports offsets [first, end) as gone."""
    return f"{part.name}: the records with offsets {first} to {end - 1} are gone, the log begins at {end}"


def pinned(source: Mapping[str, str], ranges: Sequence[OffsetRange]) -> dict[str, str]:
    """Return the options of the source with which it reads these offsets and no others, however the logs grow.

    The ranges are of one read, with one range for each partition at most.
    """
    first: ByPartition = {}
    end: ByPartition = {}
    for part, first_offset, end_offset in ranges:
        first.setdefault(part.topic, {})[part.partition] = first_offset
        end.setdefault(part.topic, {})[part.partition] = max(first_offset, end_offset)
    kept = {name: value for name, value in source.items() if name.lower() not in _ENDS}
    return {**kept, "exactOffsets": TRUE, "startingOffsets": json.dumps(first), "endingOffsets": json.dumps(end)}


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
            raise PlanError(
                f"{part.name}: no record has a timestamp of {timestamp} ms or later; option "
                "startingOffsetsByTimestampStrategy=latest reads nothing of such a partition"
            )
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


class RangeChoice(NamedTuple):
    """What is read of the offsets wanted, and what a task is told of them.

    `with_transactions`: which records belong to transactions that did not commit; with `only_markers_read` a transaction counts
    as aborted only where its marker is among the offsets wanted, so that a range says the same whenever it is read.
    `least_timestamp_ms`: segments without a record as young are passed over. `with_torn_tail`: see segment_ranges.
    """

    with_transactions: bool
    only_markers_read: bool = False
    least_timestamp_ms: int | None = None
    with_torn_tail: bool = True

    def transactions_within(self, wanted: OffsetRange, first_offset: int, end_offset: int) -> AbortedTransactions | None:
        """The transactions of a partition that touch [first_offset, end_offset), or None where they are not asked for."""
        if not self.with_transactions:
            return None
        known_below = wanted.end if self.only_markers_read else None
        return wanted.partition.transactions.within(first_offset, end_offset, known_below)


def segment_ranges(wanted: OffsetRange, choice: RangeChoice) -> list[tuple[Segment, SegmentRange]]:
    """The bytes of each segment that hold the offsets wanted; whole segments unless an end of them lies inside.

    A torn batch at the end of the log is left out where `choice` says so or a live broker holds the directory; else reading it
    will report the damage. Raises OSError as the disk does, FileNotFoundError for a segment that was removed meanwhile.
    """
    part = wanted.partition
    ranges: list[tuple[Segment, SegmentRange]] = []
    if wanted.end <= wanted.first:
        return ranges
    log_end = part.log_end
    for slot, segment in enumerate(part.segments):
        is_last = slot + 1 == len(part.segments)
        next_base = INT64_MAX if is_last else part.segments[slot + 1].base_offset
        if next_base <= wanted.first or segment.base_offset >= wanted.end:
            continue
        file_id = part.disk.file_id(segment.log)
        with OffsetLookup(part.disk, segment, log_end.size_bytes if is_last else None) as lookup:
            if choice.least_timestamp_ms is not None and lookup.max_timestamp() < choice.least_timestamp_ms:
                continue
            start = lookup.start_of_offset(wanted.first) if wanted.first > segment.base_offset else 0
            end, bound = lookup.reader.end_position(), next_base
            if wanted.end < min(next_base, log_end.offset):
                end = lookup.end_of_offset(wanted.end - 1)
            elif is_last and not (log_end.is_torn and choice.with_torn_tail and not part.is_live):
                end = log_end.position
            # Kafka's own bounds: the end of the log, and offsets that fit an index of the segment.
            bound = min(bound, segment.base_offset + INT32_MAX + 1, log_end.offset if is_last else bound)
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
                choice.transactions_within(wanted, segment.base_offset, next_base),
                file_id,
            )
            ranges.append((segment, found))
    return ranges


def cut_range(
    disk: Disk, segment: Segment, part: SegmentRange, target_bytes: int, *, goes_on: bool = False
) -> list[SegmentRange]:
    """Cut a range at batches into pieces of about `target_bytes`; each knows where the next one's offsets begin.

    Where reading `goes_on` behind damage, only where the index says that a batch begins. Else the piece before fails the job.
    """
    if part.size_bytes <= target_bytes:
        return [part]
    with OffsetLookup(disk, segment, part.end_position) as lookup:
        cuts = lookup.boundaries(part.position, part.end_position, target_bytes, by_headers=not goes_on)
        bounds = [lookup.reader.header_at(cut).base_offset for cut in cuts]
    starts, ends = [part.position, *cuts], [*cuts, part.end_position]
    least = [part.least_offset, *bounds]
    return [
        part._replace(position=start, end_position=end, least_offset=first, bound_offset=bound)
        for start, end, first, bound in zip(starts, ends, least, [*bounds, part.bound_offset], strict=True)
    ]


def split_bytes(total_bytes: int, options: ReadOptions) -> int:
    """How large a split is to be: at most maxPartitionBytes, and so that their number is a multiple of minPartitions."""
    least = options.min_partitions or 1
    rounds = -(-total_bytes // (options.max_partition_bytes * least)) or 1
    return max(-(-total_bytes // (rounds * least)), 1)


def plan_splits(disk: Disk, wanted: Iterable[OffsetRange], options: ReadOptions, choice: RangeChoice) -> list[LogSplit]:
    """The splits that read the offsets wanted (see `segment_ranges`). Raises OSError as the disk does."""
    ranges = [part for offsets in wanted for part in segment_ranges(offsets, choice)]
    target = split_bytes(sum(part.size_bytes for _, part in ranges), options)
    goes_on = options.on_corrupt == SKIP
    pieces = [piece for segment, part in ranges for piece in cut_range(disk, segment, part, target, goes_on=goes_on)]
    # Pieces end at batches, a little before or behind the target: those of one segment must not end up two and two.
    return pack(pieces, split_bytes(sum(piece.cost_bytes for piece in pieces), options) + OPEN_COST_BYTES // 2)


# ------------------------------------------------------------------------------------------------------------- in a task


class Closable(Protocol):
    """What `open_ranges` opens."""

    def close(self) -> None:
        """Close the file."""


Opened = TypeVar("Opened", bound=Closable)


def open_ranges(
    disk: Disk,
    part: SegmentRange,
    options: ReadOptions,
    opener: Callable[[SegmentRange], Opened],
    on_loss: Callable[[SegmentRange, int, int], None] = lambda part, first_offset, end_offset: None,
) -> Iterator[tuple[SegmentRange, Opened]]:
    """Open a range by `opener`; where its segment is no longer the one that was planned, the ranges that hold its offsets now.

    A broker rolls, cleans and deletes segments while a job runs. An open file stays as it is, so the check before and after the
    opening is enough. If offsets [first, end) of a range were deleted, it calls `on_loss` with them where failOnDataLoss is
    false, and raises PlanError where it is true. Raises OSError as the disk does.
    """
    waiting, lookups = [part], 0
    while waiting:
        head = waiting.pop(0)
        opened = _open_unchanged(disk, head, opener)
        if opened is not None:
            yield head, opened
            continue
        lookups += 1
        if lookups > MOST_LOOKUPS:
            raise PlanError(f"{head.file} was replaced {MOST_LOOKUPS} times while it was opened; run the job again")
        waiting[:0] = ranges_now(disk, head, options, on_loss)


def ranges_now(
    disk: Disk,
    part: SegmentRange,
    options: ReadOptions,
    on_loss: Callable[[SegmentRange, int, int], None] = lambda part, first_offset, end_offset: None,
) -> list[SegmentRange]:
    """The range itself while its file is the one that was planned, else the ranges that hold its offsets now.

    Raises as `open_ranges` does.
    """
    if _is_unchanged(disk, part):
        return [part]
    first, end = max(part.first_offset, part.least_offset), min(part.end_offset, part.bound_offset)
    try:
        directory = layout.read_partition(disk, parent_path(part.file))
    except FileNotFoundError:
        directory = None
    found = LogPartition(disk, directory) if directory is not None and directory.segments else None
    start = end if found is None else found.first_offset
    if start > first and options.fail_on_data_loss:
        raise PlanError(
            f"{part.topic}-{part.partition}: offsets {first} to {min(start, end) - 1} were deleted while the job ran; "
            "option failOnDataLoss=false goes on without them"
        )
    on_loss(part, first, min(start, end))
    if found is None or start >= end:
        return []
    wanted = OffsetRange(found, max(first, start), end)
    choice = RangeChoice(with_transactions=False, with_torn_tail=False)
    return [now._replace(transactions=part.transactions) for _, now in segment_ranges(wanted, choice)]


def _open_unchanged(disk: Disk, part: SegmentRange, opener: Callable[[SegmentRange], Opened]) -> Opened | None:
    if not _is_unchanged(disk, part):
        return None
    try:
        opened = opener(part)
    except FileNotFoundError:
        return None
    if _is_unchanged(disk, part):
        return opened
    opened.close()
    return None


def _is_unchanged(disk: Disk, part: SegmentRange) -> bool:
    """True where the file of a range is the one that was planned, and still has its bytes."""
    try:
        return not part.file_id or (disk.file_id(part.file) == part.file_id and disk.size(part.file) >= part.end_position)
    except FileNotFoundError:
        return False
