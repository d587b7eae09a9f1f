"""What is to be read: from paths and options to partitions, offsets and splits. Runs where Spark plans, not in the tasks.

    1  paths       -> partition directories (kcli.log.log_directory); single segments are partitions of one segment
    2  topics      -> subscribe, subscribePattern, assign; pushed filters on topic and partition
    3  offsets     -> [first, end) of each partition: log start offset, startingOffsets ... endingTimestamp, last stable offset
    4  segments    -> those that hold such offsets, cut to the bytes that do by the indexes
    5  ranges      -> cut at batches into pieces of at most maxPartitionBytes
    6  splits      -> small ranges packed together, one Spark task each

A partition that several log directories hold (brokers' replicas) would give its records twice: that is refused unless
`duplicatePartitions` says what to do. Directories that Kafka has marked for deletion, as stray or as a replica in the making
are read only when named themselves. On a directory that a live broker holds, reading ends with the last whole batch.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from kcli.format.file_names import DirectoryState, FileKind
from kcli.log import log_directory as layout
from kcli.log.disk import Disk
from kcli.log.log_directory import PartitionDirectory, Segment
from kcli.log.segment_seek import SegmentSeeker
from kcli.log.transaction_filter import AbortedTransactions
from kcli.spark.options import (
    ALL,
    EARLIEST,
    EARLIEST_OFFSET,
    ERROR,
    LATEST,
    LATEST_OFFSET,
    LONGEST,
    ByPartition,
    Offsets,
    ReadOptions,
)
from kcli.spark.splits import OPEN_COST_BYTES, LogSplit, SegmentRange, pack

INT64_END = 2**63 - 1


class PlanError(ValueError):
    """Paths or options that do not fit what is on the disk; the message is one sentence."""


class LogPartition:
    """One partition to be read: its directory, and what is found out about it as it is asked for."""

    def __init__(self, disk: Disk, directory: PartitionDirectory, checkpoints: layout.Checkpoints | None = None) -> None:
        self.disk = disk
        self.directory = directory
        self.topic = directory.topic
        self.partition = directory.partition
        self.segments = directory.segments
        self.checkpointed_start = checkpoints.log_start_offsets.get(self.key, 0) if checkpoints else 0
        self.high_watermark = checkpoints.high_watermarks.get(self.key) if checkpoints else None
        self._end_offset: int | None = None
        self._transactions: AbortedTransactions | None = None

    @property
    def key(self) -> tuple[str, int]:
        """(topic, partition)."""
        return self.topic, self.partition

    @property
    def name(self) -> str:
        """The directory's path, for messages."""
        return self.directory.path

    @property
    def first_offset(self) -> int:
        """The least offset that may lie in the files."""
        return self.segments[0].base_offset if self.segments else max(self.checkpointed_start, 0)

    @property
    def log_start_offset(self) -> int:
        """The first offset that a consumer would be given."""
        return max(self.first_offset, self.checkpointed_start)

    @property
    def log_end_offset(self) -> int:
        """The offset behind the last whole batch."""
        if self._end_offset is None:
            self._end_offset = self.first_offset
            if self.segments:
                with SegmentSeeker(self.disk, self.segments[-1]) as seeker:
                    self._end_offset = seeker.end_offset()
        return self._end_offset

    @property
    def transactions(self) -> AbortedTransactions:
        """The transactions of the partition that did not commit."""
        if self._transactions is None:
            self._transactions = AbortedTransactions.for_partition(self.disk, self.directory)
        return self._transactions

    def offset_of_time(self, timestamp_ms: int, from_offset: int) -> int | None:
        """The first record at or behind `from_offset` that is no older than `timestamp_ms`, or None."""
        for segment in self.segments_from(from_offset):
            with SegmentSeeker(self.disk, segment) as seeker:
                if segment is not self.segments[-1] and seeker.max_timestamp() < timestamp_ms:
                    continue
                found = seeker.offset_of_time(timestamp_ms, from_offset)
            if found is not None:
                return found
        return None

    def segments_from(self, offset: int) -> list[Segment]:
        """The segments that may hold `offset` or later ones."""
        for slot in range(len(self.segments) - 1, -1, -1):
            if self.segments[slot].base_offset <= offset:
                return self.segments[slot:]
        return self.segments


class OffsetRange(NamedTuple):
    """The offsets [first, end) that are wanted of a partition."""

    partition: LogPartition
    first: int
    end: int


# ----------------------------------------------------------------------------------------------------------- partitions


def find_partitions(disk: Disk, options: ReadOptions) -> list[LogPartition]:
    """The partitions that paths and topics choose, sorted by name. Raises PlanError, and OSError as the disk does."""
    found: list[PartitionDirectory] = []
    targets, problems = layout.resolve_paths(disk, _existing_paths(disk, options.paths))
    if problems:
        raise PlanError("; ".join(problem.message for problem in problems))
    for target in targets:
        if target.log_directory is not None:
            if target.log_directory.unreadable:
                path, sentence = target.log_directory.unreadable[0]
                raise PlanError(f"{path}: {sentence}")
            found += (part for part in target.log_directory.partitions if part.state is DirectoryState.CURRENT)
        elif target.partition is not None:
            found.append(target.partition)
        elif target.file is not None:
            found.append(_lone_segment(disk, target.file))
    chosen = [part for part in _merged(found) if _is_chosen(part, options)]
    _check_names(chosen, options)
    kept = _without_duplicates(disk, chosen, options.duplicate_partitions)
    kept.sort(key=lambda part: (part.topic, part.partition, part.path))
    checkpoints = {path: _read_checkpoints(disk, path) for path in {part.log_directory for part in kept}}
    return [LogPartition(disk, part, checkpoints[part.log_directory]) for part in kept]


def _read_checkpoints(disk: Disk, path: str) -> layout.Checkpoints:
    """The checkpoints of a log directory. Raises PlanError where the one that hides records cannot be read."""
    checkpoints = layout.read_checkpoints(disk, path)
    for problem_path, sentence in checkpoints.problems:
        if problem_path.endswith(FileKind.LOG_START_OFFSET_CHECKPOINT.value):
            raise PlanError(
                f"{problem_path}: {sentence}; without it records below the log start offset cannot be told from others "
                "(includeBelowLogStart=true reads them all)"
            )
    return checkpoints


def _existing_paths(disk: Disk, paths: Iterable[str]) -> list[str]:
    """The paths with `file:` taken off, as Spark's users write them."""
    return [re.sub(r"^file:(//)?(?=/)", "", path) for path in paths]


def _lone_segment(disk: Disk, file: layout.FoundFile) -> PartitionDirectory:
    """A segment that is named by itself, as a partition of one segment. Raises PlanError for any other file."""
    if file.kind is not FileKind.LOG or not file.is_current:
        raise PlanError(f"{file.path}: not a segment; name a log directory, a partition's directory or a .log file in it")
    directory = layout.read_partition(disk, layout.parent_path(file.path))
    segments = [segment for segment in directory.segments if segment.base_offset == file.base_offset]
    return directory._replace(segments=[segments[0]._replace(log=file.path)])


def _merged(found: list[PartitionDirectory]) -> list[PartitionDirectory]:
    """Segments of one directory that were named one by one are one partition again."""
    by_path: dict[str, PartitionDirectory] = {}
    for part in found:
        before = by_path.get(part.path)
        if before is not None:
            segments = {segment.base_offset: segment for segment in (*before.segments, *part.segments)}
            part = part._replace(segments=[segments[base] for base in sorted(segments)])
        by_path[part.path] = part
    return list(by_path.values())


def _is_chosen(part: PartitionDirectory, options: ReadOptions) -> bool:
    if options.topics:
        return part.topic in options.topics
    if options.pattern is not None:
        return re.fullmatch(options.pattern, part.topic) is not None
    if options.assignment is not None:
        return part.partition in options.assignment.get(part.topic, ())
    return True


def _check_names(chosen: list[PartitionDirectory], options: ReadOptions) -> None:
    """Raises PlanError where a topic or partition that was asked for by name is not there."""
    topics = {part.topic for part in chosen}
    missing = [topic for topic in options.topics if topic not in topics]
    if missing:
        raise PlanError(f"no partition of the topic {', '.join(missing)} lies in {', '.join(options.paths)}")
    if options.assignment is not None:
        there = {(part.topic, part.partition) for part in chosen}
        wanted = [(topic, partition) for topic, partitions in options.assignment.items() for partition in partitions]
        absent = [f"{topic}-{partition}" for topic, partition in wanted if (topic, partition) not in there]
        if absent:
            raise PlanError(f"the partition {', '.join(absent)} does not lie in {', '.join(options.paths)}")


def _without_duplicates(disk: Disk, chosen: list[PartitionDirectory], policy: str) -> list[PartitionDirectory]:
    by_key: dict[tuple[str, int], list[PartitionDirectory]] = defaultdict(list)
    for part in chosen:
        by_key[part.topic, part.partition].append(part)
    kept = []
    for (topic, partition), parts in by_key.items():
        if len(parts) == 1 or policy == ALL:
            kept += parts
        elif policy == LONGEST:
            kept.append(max(parts, key=lambda part: LogPartition(disk, part).log_end_offset))
        else:
            raise PlanError(
                f"{' and '.join(part.path for part in parts)} both hold the partition {topic}-{partition}, and its records "
                "would come twice; option duplicatePartitions=longest takes the one that reaches furthest, all takes each"
            )
    return kept


# -------------------------------------------------------------------------------------------------------------- offsets


def earliest_offset(partition: LogPartition, options: ReadOptions) -> int:
    """The first offset that the options let through."""
    return partition.first_offset if options.include_below_log_start else partition.log_start_offset


def latest_offset(partition: LogPartition, options: ReadOptions) -> int:
    """The offset behind the last that the options let through: the end of the log, or what cuts earlier."""
    end = partition.log_end_offset
    if options.cuts_at_last_stable_offset:
        end = min(end, partition.transactions.last_stable_offset)
    if options.stop_at_high_watermark and partition.high_watermark is not None:
        end = min(end, partition.high_watermark)
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
    wanted: OffsetRange, *, with_transactions: bool, least_timestamp_ms: int | None = None
) -> list[tuple[Segment, SegmentRange]]:
    """The bytes of each segment that hold the offsets wanted; whole segments unless an end of them lies inside.

    Segments without a record as young as `least_timestamp_ms` are passed over.
    """
    part = wanted.partition
    ranges: list[tuple[Segment, SegmentRange]] = []
    if wanted.end <= wanted.first:
        return ranges
    for slot, segment in enumerate(part.segments):
        is_last = slot + 1 == len(part.segments)
        next_base = INT64_END if is_last else part.segments[slot + 1].base_offset
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
                end = _sound_end(part, seeker)
            if is_last:
                bound = part.log_end_offset
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


def _sound_end(part: LogPartition, seeker: SegmentSeeker) -> int:
    """Where reading the last segment ends: before a tail of zeros, and before what a live broker is still writing."""
    sound, is_torn = seeker.sound_end()
    if not is_torn or layout.is_live(part.disk, part.directory.log_directory):
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
) -> list[LogSplit]:
    """The splits that read the offsets wanted. Raises OSError as the disk does."""
    ranges = [
        part
        for offsets in wanted
        for part in segment_ranges(offsets, with_transactions=with_transactions, least_timestamp_ms=least_timestamp_ms)
    ]
    target = split_bytes(sum(part.cost_bytes for _, part in ranges), options)
    pieces = [piece for segment, part in ranges for piece in cut_range(disk, segment, part, target)]
    # Pieces end at batches, a little behind the target: those of one segment must not end up two and two.
    return pack(pieces, target + OPEN_COST_BYTES)
