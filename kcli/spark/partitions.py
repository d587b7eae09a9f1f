"""The partitions that are to be read: which directories paths and topics choose, and what is known of each.

    path                              gives
    --------------------------------  ------------------------------------------------------------------------------------
    a log directory                   its partitions; not those that Kafka marked for deletion, as stray, or in the making
    a partition's directory           that partition, whatever its name says
    segments of a partition           that partition, with these segments only
    a pattern, several of the above   all of them together

Kafka's own topics are left out of a log directory's records unless they are named (includeInternal): the metadata log grows by
itself. A partition that several log directories hold (brokers' replicas) would give its records twice: that is refused unless
`duplicatePartitions` says what to do. Partitions of one topic name from several log directories must be of one topic: if
meta.properties or partition.metadata say otherwise (two clusters, or a topic that was created anew), that is refused as well,
since rows tell topics apart by name only. Topics of different names may come from different clusters.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from kcli.format.file_names import DirectoryState, FileKind
from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import CorruptCheckpointError
from kcli.log.disk.port import Disk, join_path, parent_path
from kcli.log.files import log_directory as layout
from kcli.log.files.log_dir_owner import Owner, cluster_conflict, read_owner, topic_id_conflict
from kcli.log.files.log_directory import PartitionDirectory, Segment
from kcli.log.reading.offset_lookup import OffsetLookup, SegmentEnd
from kcli.log.reading.transaction_filter import AbortedTransactions
from kcli.protocol.internal_records import decoder_for_topic
from kcli.spark import schema as tables
from kcli.spark.options import ALL, LONGEST, ReadOptions

# How often a plan is made anew for files that vanish while it is made.
MOST_PLANS = 20

Planned = TypeVar("Planned")


class PlanError(ValueError):
    """Paths or options that do not fit what is on the disk; the message is one sentence."""


class UnknownTopicError(PlanError):
    """Topics that were asked for by name, `missing`, have no partition in the paths; `known` are the topics that have one."""

    def __init__(self, message: str, missing: tuple[str, ...], known: frozenset[str]) -> None:
        super().__init__(message)
        self.missing = missing
        self.known = known


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
        self._end: SegmentEnd | None = None
        self._is_live: bool | None = None
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
    def topic_id(self) -> str | None:
        """The topic's id as partition.metadata has it; None where it is missing or cannot be read."""
        try:
            found = layout.read_topic_id(self.disk, self.directory)
        except CorruptCheckpointError:
            return None
        return None if found is None else str(found)

    @property
    def first_offset(self) -> int:
        """The least offset that may lie in the files."""
        return self.segments[0].base_offset if self.segments else max(self.checkpointed_start, 0)

    @property
    def log_start_offset(self) -> int:
        """The first offset that a consumer would be given."""
        return max(self.first_offset, self.checkpointed_start)

    @property
    def committed_offset(self) -> int:
        """The high watermark; the log start offset without one, as a broker starts: nothing then proves a record committed."""
        return self.log_start_offset if self.high_watermark is None else self.high_watermark

    @property
    def known_high_watermark(self) -> int | None:
        """The checkpointed high watermark, or None where there is none or it may be far behind.

        A broker writes it every few seconds and when it stops. After a kill it is as old as the last time: None then.
        """
        if self.high_watermark is None or not (self.is_live or self._is_clean()):
            return None
        return max(self.high_watermark, self.log_start_offset)

    def _is_clean(self) -> bool:
        return self.disk.exists(join_path(self.directory.log_directory, FileKind.CLEAN_SHUTDOWN.value))

    @property
    def is_live(self) -> bool:
        """True where a running broker held the log directory when this was asked first."""
        if self._is_live is None:
            self._is_live = layout.is_live(self.disk, self.directory.log_directory)
        return self._is_live

    @property
    def log_end(self) -> SegmentEnd:
        """Where the last segment ended when this was asked first; offset and byte belong together."""
        if self._end is None:
            self._end = SegmentEnd(self.first_offset, 0, 0, is_torn=False)
            if self.segments:
                with OffsetLookup(self.disk, self.segments[-1]) as lookup:
                    self._end = lookup.end(counts_damaged=not self.is_live)
        return self._end

    @property
    def log_end_offset(self) -> int:
        """The offset behind the last sound batch, as `log_end` found it."""
        return self.log_end.offset

    @property
    def transactions(self) -> AbortedTransactions:
        """The transactions of the partition that did not commit, those that end behind the segments chosen included."""
        if self._transactions is None:
            whole = layout.read_partition(self.disk, self.directory.path)
            self._transactions = AbortedTransactions.for_partition(self.disk, whole)
        return self._transactions

    def offset_of_time(self, timestamp_ms: int, from_offset: int) -> int | None:
        """The first record at or behind `from_offset` that is no older than `timestamp_ms`, or None."""
        for segment in self.segments_from(from_offset):
            with OffsetLookup(self.disk, segment) as lookup:
                if segment is not self.segments[-1] and lookup.max_timestamp() < timestamp_ms:
                    continue
                found = lookup.offset_of_time(timestamp_ms, from_offset)
            if found is not None:
                return found
        return None

    def segments_from(self, offset: int) -> list[Segment]:
        """The segments that may hold `offset` or later ones."""
        for slot in range(len(self.segments) - 1, -1, -1):
            if self.segments[slot].base_offset <= offset:
                return self.segments[slot:]
        return self.segments


def is_read(topic: str, partition: int, options: ReadOptions) -> bool:
    """True where a partition of a log directory is read if it is there."""
    return is_chosen(topic, partition, options) and not _is_hidden(topic, options)


def plan_anew(plan: Callable[[], Planned]) -> Planned:
    """Return what `plan` does; call it again where a file vanished meanwhile: a broker rolls, cleans and deletes segments.

    Raises FileNotFoundError where files vanish each time.
    """
    for _ in range(MOST_PLANS - 1):
        try:
            return plan()
        except FileNotFoundError:
            continue
    return plan()


def find_partitions(disk: Disk, options: ReadOptions) -> list[LogPartition]:
    """The partitions that paths and topics choose, sorted by name. Raises PlanError, and OSError as the disk does."""
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
    _check_names(chosen, paths, options, frozenset(part.topic for part in found))
    _check_one_topic_a_name(disk, chosen)
    kept = _without_duplicates(disk, chosen, options.duplicate_partitions)
    kept.sort(key=lambda part: (part.topic, part.partition, part.path))
    is_start_needed = not options.include_below_log_start
    checkpoints = {path: _read_checkpoints(disk, path, is_start_needed) for path in {part.log_directory for part in kept}}
    return [LogPartition(disk, part, checkpoints[part.log_directory]) for part in kept]


def _read_checkpoints(disk: Disk, path: str, is_start_needed: bool) -> layout.Checkpoints:
    """The checkpoints of a log directory. Raises PlanError where the one that hides records cannot be read."""
    checkpoints = layout.read_checkpoints(disk, path)
    for problem_path, sentence in checkpoints.problems:
        if is_start_needed and problem_path.endswith(FileKind.LOG_START_OFFSET_CHECKPOINT.value):
            raise PlanError(
                f"{problem_path}: {sentence}; without it records below the log start offset cannot be told from others "
                "(includeBelowLogStart=true reads them all)"
            )
    return checkpoints


def given_paths(disk: Disk, options: ReadOptions) -> list[str]:
    """The paths and patterns to be read, absolute, since executors have working directories of their own.

    A text with commas is one path where that exists, else several; `file:` is taken off, as Spark's users write it.
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
    """True for a topic of Kafka's own whose records are not asked for: it grows by itself, and no consumer reads it as data."""
    if options.table != tables.RECORDS or options.include_internal or decoder_for_topic(topic) is None:
        return False
    return topic not in options.topics and topic not in (options.assignment or {})


def _lone_segment(disk: Disk, file: layout.FoundFile) -> PartitionDirectory:
    """A segment that is named by itself, as a partition of one segment. Raises PlanError for any other file."""
    if file.kind is not FileKind.LOG or not file.is_current:
        raise PlanError(f"{file.path}: not a segment; name a log directory, a partition's directory or a .log file in it")
    directory = layout.read_partition(disk, parent_path(file.path))
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


def is_chosen(topic: str, partition: int, options: ReadOptions) -> bool:
    """True where the options that choose topics and partitions choose this one."""
    if options.topics:
        return topic in options.topics
    if options.pattern is not None:
        return re.fullmatch(options.pattern, topic) is not None
    if options.assignment is not None:
        return partition in options.assignment.get(topic, ())
    return True


def _check_names(chosen: list[PartitionDirectory], paths: list[str], options: ReadOptions, known: frozenset[str]) -> None:
    """Raises UnknownTopicError or PlanError if a topic or partition that was asked for by name is not there."""
    where = ", ".join(paths)
    missing = tuple(topic for topic in options.topics if topic not in known)
    if missing:
        raise UnknownTopicError(f"no partition of the topic {', '.join(missing)} is in {where}", missing, known)
    if options.assignment is not None:
        there = {(part.topic, part.partition) for part in chosen}
        wanted = [(topic, partition) for topic, partitions in options.assignment.items() for partition in partitions]
        absent = [f"{topic}-{partition}" for topic, partition in wanted if (topic, partition) not in there]
        if absent:
            raise PlanError(f"the partition {', '.join(absent)} does not lie in {where}")
    there = {(part.topic, part.partition) for part in chosen}
    for option, named in options.named_by_partition().items():
        numbers = ((topic, partition) for topic, of_topic in named.items() for partition in of_topic)
        strange = [f"{topic}-{partition}" for topic, partition in numbers if (topic, partition) not in there]
        if strange:
            raise PlanError(f"{option} names {', '.join(strange)}, which is not among the partitions read from {where}")


def _check_one_topic_a_name(disk: Disk, chosen: list[PartitionDirectory]) -> None:
    """Raises PlanError where partitions of one topic name are known to be of two topics, and OSError."""
    by_topic: dict[str, list[PartitionDirectory]] = defaultdict(list)
    for part in chosen:
        by_topic[part.topic].append(part)
    owners: dict[str, Owner] = {}
    for topic, parts in by_topic.items():
        directories = list(dict.fromkeys(part.log_directory for part in parts))
        if len(directories) < 2:
            continue
        ids: dict[Uuid, str] = {}
        for part in parts:
            _check_topic_id(disk, part, ids)
        for directory in directories:
            if directory not in owners:
                owners[directory] = _read_owner(disk, directory, is_needed=not ids)
        stated = [owners[directory] for directory in directories if owners[directory].cluster_id is not None]
        for other in stated[1:]:
            if stated[0].is_other_cluster(other):
                raise PlanError(f"{cluster_conflict(stated[0], other)}: {_mixed(topic)}")


def _check_topic_id(disk: Disk, part: PartitionDirectory, ids: dict[Uuid, str]) -> None:
    """Compare a partition's topic id with those of its topic's others, `ids`, and add it. Raises PlanError, OSError."""
    path = part.file(FileKind.PARTITION_METADATA)
    try:
        topic_id = layout.read_topic_id(disk, part)
    except CorruptCheckpointError:
        return  # it says nothing; kcli verify reports it
    if path is None or topic_id is None:
        return
    ids.setdefault(topic_id, path)
    if len(ids) > 1:
        (first_id, first), *_ = ids.items()
        raise PlanError(f"{topic_id_conflict(part.topic, first, first_id, path, topic_id)}: {_mixed(part.topic)}")


def _read_owner(disk: Disk, directory: str, *, is_needed: bool) -> Owner:
    """Whose a log directory is. Raises PlanError where that cannot be read and nothing else tells topics apart, OSError."""
    try:
        return read_owner(disk, directory)
    except CorruptCheckpointError as error:
        if is_needed:
            raise PlanError(f"{error.message}; so it is not known whether the directories are of one cluster") from None
        return Owner(directory)


def _mixed(topic: str) -> str:
    return (
        f"these are two topics named {topic}, and their rows could not be told apart; read them one by one, or choose other "
        "topics (subscribe, assign, --topic)"
    )


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
