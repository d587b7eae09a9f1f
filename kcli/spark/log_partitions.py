"""The partitions that are read: those that paths and topics choose, with their offsets and transactions.

    path                              chooses
    --------------------------------  ------------------------------------------------------------------------------------
    a log directory                   its partitions, without -delete, -stray and -future directories
    a partition's directory           that partition, whatever its state
    segments of a partition           that partition, with these segments only
    a pattern, several of the above   all of them together

The records of Kafka's internal topics are left out of a log directory unless the topic is named (or includeInternal is true):
the metadata log grows all the time. If a partition is in several log directories (replicas of several brokers), its records
would be read twice: this is refused unless `duplicatePartitions` allows it. Partitions with one topic name from several log
directories must belong to one topic: if meta.properties or partition.metadata state another one (two clusters, or a topic that
was recreated), this is refused as well, since rows have the topic's name but not its id. Topics with different names may come
from different clusters.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from functools import cached_property, wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from kcli.format.file_names import DirectoryState, FileKind
from kcli.format.primitives import INT64_MAX, CorruptCheckpointError, TopicPartition
from kcli.format.record_batch import RecordBatch
from kcli.log.disk.port import Disk, join_path, parent_path
from kcli.log.files import log_directory as layout
from kcli.log.files.log_dir_owner import Owner, TwoTopicsError, check_one_topic, read_owner
from kcli.log.files.log_directory import PartitionDirectory, Segment
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.offset_lookup import OffsetLookup, SegmentEnd
from kcli.log.reading.segment_reader import LogBatch
from kcli.log.reading.transaction_filter import AbortedTransactions
from kcli.protocol.internal_records import decoder_for_topic
from kcli.selecting.lookup import Copies, TimeOffset, find_time
from kcli.spark import table_schemas as tables
from kcli.spark.read_options import ALL, LONGEST, ReadOptions

DATA_LOSS_HINT = "; option failOnDataLoss=false continues without these records"
# How often planning is tried again if files vanish during it.
MAX_PLANS = 20

Parameters = ParamSpec("Parameters")
Planned = TypeVar("Planned")


class PlanError(ValueError):
    """Paths or options that do not fit the files; the message is one sentence."""


class UnknownTopicError(PlanError):
    """The topics `missing`, named in the options, have no partition in the paths; the topics `known` have one."""

    def __init__(self, message: str, missing: tuple[str, ...], known: frozenset[str]) -> None:
        super().__init__(message)
        self.missing = missing
        self.known = known


class UnknownPartitionError(PlanError):
    """The partitions `missing`, named by the option assign, are not in the paths."""

    def __init__(self, message: str, missing: tuple[TopicPartition, ...]) -> None:
        super().__init__(message)
        self.missing = missing


class LogPartition:
    """One partition to be read: its directory, and values that are determined when they are needed."""

    def __init__(self, disk: Disk, directory: PartitionDirectory, checkpoints: layout.Checkpoints | None = None) -> None:
        self.disk = disk
        self.directory = directory
        self.topic = directory.topic
        self.partition = directory.partition
        self.segments = directory.segments
        self.copies = Copies(disk, self.segments)
        self.checkpointed_start = checkpoints.log_start_offsets.get(self.key, 0) if checkpoints else 0
        self.high_watermark = checkpoints.high_watermarks.get(self.key) if checkpoints else None

    @property
    def key(self) -> TopicPartition:
        """(topic, partition)."""
        return self.topic, self.partition

    @property
    def name(self) -> str:
        """The directory's path, for messages."""
        return self.directory.path

    @property
    def topic_id(self) -> str | None:
        """The topic's id in partition.metadata; None if the file is missing or cannot be read."""
        try:
            found = layout.read_topic_id(self.disk, self.directory)
        except CorruptCheckpointError:
            return None
        return None if found is None else str(found)

    @property
    def first_offset(self) -> int:
        """The first offset that the files may have."""
        return self.segments[0].base_offset if self.segments else max(self.checkpointed_start, 0)

    @property
    def log_start_offset(self) -> int:
        """The first offset that a consumer can read."""
        return max(self.first_offset, self.checkpointed_start)

    @property
    def committed_offset(self) -> int:
        """The high watermark; without one the log start offset, as in Kafka: no record is known to be committed."""
        return self.log_start_offset if self.high_watermark is None else self.high_watermark

    @property
    def known_high_watermark(self) -> int | None:
        """The checkpointed high watermark, or None if there is none or it may be old.

        A broker writes it every few seconds and when it stops, but not when it is killed.
        """
        if self.high_watermark is None or not (self.is_live or self._is_clean()):
            return None
        return max(self.high_watermark, self.log_start_offset)

    def _is_clean(self) -> bool:
        return self.disk.exists(join_path(self.directory.log_directory, FileKind.CLEAN_SHUTDOWN.value))

    @cached_property
    def is_live(self) -> bool:
        """True if a running broker held the lock of the log directory at the first call."""
        return layout.is_live(self.disk, self.directory.log_directory)

    @cached_property
    def log_end(self) -> SegmentEnd:
        """The end of the last segment at the first call, as offset and byte of the same moment."""
        if not self.segments:
            return SegmentEnd(self.first_offset, 0, 0, is_torn=False)
        last = next((one for one in reversed(self.segments) if not self.copies.is_copy(one)), self.segments[-1])
        with OffsetLookup(self.disk, last) as lookup:
            return lookup.end(counts_damaged=not self.is_live)

    @property
    def log_end_offset(self) -> int:
        """The offset after the last sound batch of `log_end`."""
        return self.log_end.offset

    @cached_property
    def transactions(self) -> AbortedTransactions:
        """The transactions of the partition that are not committed, also those that end after the chosen segments."""
        return AbortedTransactions.for_partition(self.disk, layout.read_partition(self.disk, self.directory.path))

    def find_time(self, timestamp_ms: int, from_offset: int) -> TimeOffset:
        """Return where a time begins, at or after `from_offset`."""
        return find_time(self.disk, self.segments, timestamp_ms, from_offset)

    @cached_property
    def owner(self) -> Owner:
        """The cluster that the log directory belongs to."""
        try:
            return read_owner(self.disk, self.directory.log_directory)
        except CorruptCheckpointError:
            return Owner(self.directory.log_directory)  # kcli verify reports the file

    def size_of(self, first_offset: int, end_offset: int) -> int:
        """Return the size of the segments with offsets in [first_offset, end_offset), without those that were deleted since."""
        size_bytes = 0
        ends = [*(segment.base_offset for segment in self.segments[1:]), INT64_MAX]
        for segment, next_base in zip(self.segments, ends, strict=False):
            if segment.base_offset < end_offset and next_base > first_offset:
                with suppress(OSError):
                    size_bytes += self.disk.size(segment.log)
        return size_bytes

    def count_records(self, first_offset: int, end_offset: int) -> int:
        """Count the records of sound batches with offsets in [first_offset, end_offset), also behind damage. Raises OSError."""
        count, scanner = 0, RecordScanner()
        for segment in self.segments_from(first_offset):
            if segment.base_offset >= end_offset:
                break
            with OffsetLookup(self.disk, segment) as lookup:
                for batch in lookup.reader.batches(lookup.hint(first_offset)):
                    if isinstance(batch, LogBatch) and batch.is_valid:
                        count += _records_within(batch, first_offset, end_offset, scanner)
        return count

    def segments_from(self, offset: int) -> list[Segment]:
        """Return the segments that may have `offset` or later ones."""
        for slot in range(len(self.segments) - 1, -1, -1):
            if self.segments[slot].base_offset <= offset:
                return self.segments[slot:]
        return self.segments


def _records_within(batch: LogBatch, first_offset: int, end_offset: int, scanner: RecordScanner) -> int:
    """Return how many records of a batch have offsets in [first_offset, end_offset); only a batch with others is opened."""
    header = batch.header
    if header.last_offset < first_offset or (isinstance(header, RecordBatch) and header.base_offset >= end_offset):
        return 0
    if isinstance(header, RecordBatch) and header.base_offset >= first_offset and header.last_offset < end_offset:
        return header.record_count
    windows = batch.windows(scanner, skip_large=True)
    offsets = (offset for window in windows for offset in window.columns.offset[: window.count])
    return sum(1 for offset in offsets if first_offset <= offset < end_offset)


def is_read(topic: str, partition: int, options: ReadOptions) -> bool:
    """Return True if a partition is read if it is in a log directory."""
    return is_chosen(topic, partition, options) and not _is_hidden(topic, options)


def retry_planning(plan: Callable[Parameters, Planned]) -> Callable[Parameters, Planned]:
    """Wrap a function that plans a read: if a file vanishes, it is called again, up to MAX_PLANS times.

    A broker rolls, cleans and deletes segments at any time.
    """

    @wraps(plan)
    def planned(*args: Parameters.args, **named: Parameters.kwargs) -> Planned:
        for _ in range(MAX_PLANS - 1):
            with suppress(FileNotFoundError):
                return plan(*args, **named)
        return plan(*args, **named)

    return planned


def find_directories(disk: Disk, options: ReadOptions) -> list[LogPartition]:
    """Return the partitions that paths and topics choose, sorted by name. Raises PlanError, and OSError as the disk does."""
    found: list[PartitionDirectory] = []
    paths = given_paths(disk, options)
    targets, problems = layout.resolve_paths(disk, paths)
    if problems:
        raise PlanError("; ".join(problem.message for problem in problems))
    for target in targets:
        if target.log_directory is not None:
            if target.log_directory.unreadable:
                path, sentence = target.log_directory.unreadable[0]
                raise PlanError(f"{path}: {sentence}")
            found += (
                part
                for part in target.log_directory.partitions
                if part.state is DirectoryState.CURRENT and not _is_hidden(part.topic, options)
            )
        elif target.partition is not None:
            found.append(target.partition)
        elif target.file is not None:
            found.append(_lone_segment(disk, target.file))
    chosen = [part for part in _merged(found) if is_chosen(part.topic, part.partition, options)]
    check_chosen({(part.topic, part.partition) for part in chosen}, paths, options, frozenset(part.topic for part in found))
    _check_topic_identity(disk, chosen)
    kept = _without_duplicates(disk, chosen, options.duplicate_partitions)
    kept.sort(key=lambda part: (part.topic, part.partition, part.path))
    is_start_needed = not options.include_below_log_start
    checkpoints = {path: _read_checkpoints(disk, path, is_start_needed) for path in {part.log_directory for part in kept}}
    return [LogPartition(disk, part, checkpoints[part.log_directory]) for part in kept]


def _read_checkpoints(disk: Disk, path: str, is_start_needed: bool) -> layout.Checkpoints:
    """Return the checkpoints of a log directory. Raises PlanError if the log start offsets are needed and corrupt."""
    checkpoints = layout.read_checkpoints(disk, path)
    for problem_path, sentence in checkpoints.problems:
        if is_start_needed and problem_path.endswith(FileKind.LOG_START_OFFSET_CHECKPOINT.value):
            raise PlanError(
                f"{problem_path}: {sentence}; so the log start offsets are not known; option includeBelowLogStart=true reads "
                "the records below them, too"
            )
    return checkpoints


def given_paths(disk: Disk, options: ReadOptions) -> list[str]:
    """Return the paths and patterns to be read, absolute, since executors have other working directories.

    A text with commas is one path if that exists, else several. The prefix `file:`, which Spark's users write, is removed.
    """
    paths: list[str] = []
    for text in options.paths:
        words = [text] if "," not in text or disk.exists(_local(text)) else [word.strip() for word in text.split(",")]
        paths += (_local(word) for word in words if word)
    return paths


def _local(path: str) -> str:
    path = re.sub(r"^file:(//)?(?=/)", "", path)
    return path if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", path) else str(Path(path).absolute())


def _is_hidden(topic: str, options: ReadOptions) -> bool:
    """Return True for an internal topic whose records are not asked for; its records are not a user's data."""
    if options.table != tables.RECORDS or options.include_internal or decoder_for_topic(topic) is None:
        return False
    return topic not in options.topics and topic not in (options.assignment or {})


def _lone_segment(disk: Disk, file: layout.FoundFile) -> PartitionDirectory:
    """Return a segment named in the paths, as a partition of one segment. Raises PlanError for any other file."""
    if file.kind is not FileKind.LOG or not file.is_current:
        raise PlanError(f"{file.path}: not a segment; name a log directory, a partition's directory or a .log file in it")
    directory = layout.read_partition(disk, parent_path(file.path))
    segments = [segment for segment in directory.segments if segment.base_offset == file.base_offset]
    return directory._replace(segments=[segments[0]._replace(log=file.path)])


def _merged(found: list[PartitionDirectory]) -> list[PartitionDirectory]:
    """Merge the segments of one directory that were named one by one into one partition."""
    by_path: dict[str, PartitionDirectory] = {}
    for part in found:
        before = by_path.get(part.path)
        if before is not None:
            segments = {segment.base_offset: segment for segment in (*before.segments, *part.segments)}
            part = part._replace(segments=[segments[base] for base in sorted(segments)])
        by_path[part.path] = part
    return list(by_path.values())


def is_chosen(topic: str, partition: int, options: ReadOptions) -> bool:
    """Return True if the options that choose topics and partitions choose this one."""
    if options.topics:
        return topic in options.topics
    if options.pattern is not None:
        return re.fullmatch(options.pattern, topic) is not None
    if options.assignment is not None:
        return partition in options.assignment.get(topic, ())
    return True


def check_chosen(there: Collection[TopicPartition], paths: list[str], options: ReadOptions, known: frozenset[str]) -> None:
    """Raise UnknownTopicError, UnknownPartitionError or PlanError if a topic or partition of the options does not exist.

    With exactOffsets nothing is checked: what was deleted since the plan is a loss of data.
    """
    if options.exact_offsets:
        return
    where = ", ".join(paths)
    missing = tuple(topic for topic in options.topics if topic not in known)
    if missing:
        raise UnknownTopicError(f"no partition of the topic {', '.join(missing)} is in {where}", missing, known)

    def absent(named: Mapping[str, Iterable[int]]) -> tuple[TopicPartition, ...]:
        keys = ((topic, partition) for topic, partitions in named.items() for partition in partitions)
        return tuple(key for key in keys if key not in there)

    def text(keys: Iterable[TopicPartition]) -> str:
        return ", ".join(f"{topic}-{partition}" for topic, partition in keys)

    if found := absent(options.assignment or {}):
        raise UnknownPartitionError(f"the partition {text(found)} is not in {where}", found)
    for option, named in options.named_by_partition().items():
        if found := absent(named):
            raise PlanError(f"{option} names {text(found)}, which is not read from {where}")


def _check_topic_identity(disk: Disk, chosen: list[PartitionDirectory]) -> None:
    """Raise PlanError if partitions with one topic name are known to belong to two topics, and OSError."""
    by_topic: dict[str, list[PartitionDirectory]] = defaultdict(list)
    for part in chosen:
        by_topic[part.topic].append(part)
    for topic, parts in by_topic.items():
        try:
            check_one_topic(disk, parts)
        except TwoTopicsError as error:
            raise PlanError(f"{error}: {_two_topics(topic)}") from None
        except CorruptCheckpointError as error:
            raise PlanError(f"{error.message}; so it is not known whether the log directories belong to one cluster") from None


def _two_topics(topic: str) -> str:
    return (
        f"these are two topics named {topic}, and their rows would look alike; read each log directory by itself, or choose "
        "other topics (subscribe, assign, --topic)"
    )


def _without_duplicates(disk: Disk, chosen: list[PartitionDirectory], policy: str) -> list[PartitionDirectory]:
    by_key: dict[TopicPartition, list[PartitionDirectory]] = defaultdict(list)
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
                f"the partition {topic}-{partition} is in {' and in '.join(part.path for part in parts)}, so its records would "
                "be read twice; option duplicatePartitions=longest reads the longest log, all reads each of them"
            )
    return kept
