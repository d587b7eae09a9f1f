"""Segments, partitions and log directories as the source of a replay.

    path                    what is replayed
    ----------------------  ------------------------------------------------------------------------------------------------
    a log directory         its partitions that are in use (not those with -delete, -future or -stray in their names)
    a partition             its segments
    a `.log` file           that segment; files of one partition are one log

Several replicas of a partition, as in the directories of several nodes: the newest log is replayed, that is the one of the
highest leader epoch, and of these the one that ends last. No CRC covers the offset and the leader epoch of a batch: a
last batch whose offsets the indexes contradict does not count, nor does an epoch that only the last batch states, if
leader-epoch-checkpoint lacks it; both are reported. Partitions with one topic name have to belong to one topic of one
cluster (kcli.log.files.log_dir_owner): else the records of one of them would be missing in the target. Where the replayed log
is damaged, the offsets that are missing there are read from another replica that has them whole; a batch has the same offsets
in all replicas, so that the next run makes the same batches again.

    of a topic                 source
    -------------------------  ---------------------------------------------------------------------------------------------
    partitions and settings    the newest metadata log among the log directories (`__cluster_metadata-0`) that is of the same
                               cluster and has the topic, with the id in partition.metadata; without one the number of
                               partitions is the highest that is there plus one, and there are no settings
    offsets of groups          the newest replica of each partition of `__consumer_offsets` in the log directories: an older
                               one has groups that were deleted since

A file that cannot be read ends the stream of its partition: the next run continues there.

The selection is that of dump-log, with the same damage in the same words: what dump-log does not show is not sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property, partial
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from kcli.format import limits
from kcli.format.checkpoint import decode_leader_epochs
from kcli.format.file_names import DirectoryState, FileKind
from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.format.primitives import INT64_MAX, CorruptCheckpointError, TopicPartition
from kcli.format.record_batch import NO_LEADER_EPOCH, RecordBatch
from kcli.inspect.description.coordinators import read_groups
from kcli.inspect.description.metadata_view import METADATA_DIRECTORY, ClusterTopics, read_cluster_topics
from kcli.inspect.description.remarks import Remarks, missing_name
from kcli.log.disk.port import Disk, base_name, join_path, parent_path
from kcli.log.files.log_dir_owner import Owner, TwoTopicsError, check_one_topic, read_owner
from kcli.log.files.log_directory import (
    FoundFile,
    LogDirectory,
    PartitionDirectory,
    Segment,
    log_bytes,
    read_partition,
    read_topic_id,
    resolve_paths,
)
from kcli.log.reading.offset_lookup import OffsetLookup
from kcli.log.reading.segment_reader import Damage, LogBatch, SegmentReader
from kcli.log.reading.transaction_filter import AbortedTransactions
from kcli.replay.batch_maker import NO_JOINING, SMALL_BATCH_BYTES, BatchMaker, Joining
from kcli.replay.progress import decode_metadata
from kcli.replay.source import NO_RUN, Bounds, CommittedOffset, EarlierRun, OutgoingBatch, SourceError, SourceTopic
from kcli.selecting.lookup import Copies, find_tail, segments_in_range, start_position
from kcli.selecting.record_filter import RecordFilter
from kcli.selecting.selected_log import Budget, Limit, Selector
from kcli.selecting.selection import Range, Selection

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch

CONSUMER_OFFSETS = "__consumer_offsets"


@dataclass
class Problems:
    """What a run reports: `report` gets a sentence for each; `damages` and `unopened` decide the exit code."""

    report: Callable[[str], object]
    damages: int = 0
    unopened: int = 0

    def damage(self, path: str, found: Damage) -> None:
        """Report bytes that were left out."""
        self.damages += 1
        self.report(f"{path}: byte {found.position}: {found.message}; left out")

    def problem(self, path: str, message: str, *, is_unopened: bool = False) -> None:
        """Report a file that cannot be read."""
        self.damages += 1
        self.unopened += is_unopened
        self.report(f"{path}: {message}")


@dataclass
class _Replica:
    """A partition to replay, with all or some of its segments."""

    directory: PartitionDirectory
    segments: list[Segment]


class _LogEnd(NamedTuple):
    """How far a log reaches; the largest one is the newest (Kafka: OffsetAndEpoch)."""

    leader_epoch: int
    offset: int


class _NotWholeError(Exception):
    """A replica that does not have some offsets whole."""


def _end_of(
    disk: Disk, directory: PartitionDirectory, segments: Sequence[Segment], report: Callable[[str], object] = str
) -> _LogEnd:
    """Return the end of a log, with the leader epoch of its last sound batch. A segment that cannot be read does not count.

    `report` gets what contradicts its last batch.
    """
    offset = -1
    for segment in reversed(segments):
        try:
            with OffsetLookup(disk, segment) as lookup:
                offset = max(offset, lookup.end_offset())
                doubt = lookup.reader.last_contradiction()
                if doubt is not None:
                    report(f"{segment.log}: byte {doubt.position}: {doubt.message}; so it does not count for the log's end")
                start = lookup.hint(INT64_MAX)
                last = _last_batches(lookup, start)
                while len(last) < 2 and start:
                    start = lookup.earlier(start)
                    last = _last_batches(lookup, start)
        except OSError:
            continue
        if last:
            return _LogEnd(_proven_epoch(disk, directory, segment.log, last, report), offset)
    return _LogEnd(NO_LEADER_EPOCH, offset)


def _last_batches(lookup: OffsetLookup, position: int) -> list[RecordBatch | LegacyBatch]:
    """Return the headers of the last two sound batches from byte `position` on, fewer if there are fewer."""
    sound = (found for found in lookup.reader.batches(position) if isinstance(found, LogBatch) and found.is_valid)
    return list(deque((found.header for found in sound), maxlen=2))


def _proven_epoch(
    disk: Disk,
    directory: PartitionDirectory,
    log_path: str,
    last: Sequence[RecordBatch | LegacyBatch],
    report: Callable[[str], object],
) -> int:
    """Return the leader epoch of a log that ends with the batches `last`.

    That is the epoch of the last batch if the one before it or leader-epoch-checkpoint has it, else that of the checkpoint for
    its offset. Without a readable checkpoint, nothing contradicts the batch.
    """
    epochs = [one.partition_leader_epoch if isinstance(one, RecordBatch) else NO_LEADER_EPOCH for one in last]
    stated = epochs[-1]
    if (len(epochs) > 1 and epochs[0] == stated) or stated == NO_LEADER_EPOCH:
        return stated
    path = directory.file(FileKind.LEADER_EPOCH_CHECKPOINT)
    try:
        entries = () if path is None else decode_leader_epochs(disk.read_file(path, limits.MAX_TEXT_FILE_BYTES)).entries
    except (CorruptCheckpointError, OSError):
        return stated
    known = [one.epoch for one in entries if one.start_offset <= last[-1].base_offset]
    if not known or any(one.epoch == stated for one in entries):
        return stated
    report(
        f"{log_path}: byte {last[-1].position}: the batch states leader epoch {stated}, which leader-epoch-checkpoint and the "
        f"batch before it do not have; so {known[-1]} counts for the log's end"
    )
    return known[-1]


class DirectorySource:
    """The partitions at `paths` whose topics `wants` accepts. Raises SourceError if there are none."""

    def __init__(
        self,
        disk: Disk,
        paths: Iterable[str],
        selection: Selection,
        wants: Callable[[str], bool],
        problems: Problems,
        absolute: Callable[[str], str] = str,
        join_bytes: int = 0,
    ) -> None:
        self.disk = disk
        self.join_bytes = join_bytes
        self.selection = selection
        self.problems = problems
        self._absolute = absolute
        self._replicas: dict[TopicPartition, list[_Replica]] = {}
        self._log_directories: dict[str, LogDirectory] = {}
        self._wants = wants
        self._quotas: dict[TopicPartition, int] | None = None
        self._resolve(paths)
        self._check_topics()
        self._found = {key: self._newest(replicas) for key, replicas in self._replicas.items()}
        self._metadata_of: dict[str, ClusterTopics | None] = {}

    def _resolve(self, paths: Iterable[str]) -> None:
        targets, faults = resolve_paths(self.disk, paths)
        for path, message in faults:
            self.problems.problem(path, message.removeprefix(f"{path}: "), is_unopened=True)
        for target in targets:
            if target.log_directory is not None:
                self._add_log_directory(target.log_directory)
            elif target.partition is not None:
                self._add(target.partition, target.partition.segments)
            elif target.file is not None:
                self._add_file(target.file)
        if not targets:
            raise SourceError("there is nothing to replay")

    def _add_log_directory(self, directory: LogDirectory) -> None:
        self._log_directories[directory.path.rstrip("/") or "/"] = directory
        for path, message in directory.unreadable:
            self.problems.problem(path, f"cannot be read: {message}")
        for partition in directory.partitions:
            if partition.state is DirectoryState.CURRENT:
                self._add(partition, partition.segments)

    def _add_file(self, file: FoundFile) -> None:
        if file.kind is not FileKind.LOG or not file.is_current:
            self.problems.problem(file.path, "a file without records; replay takes .log files", is_unopened=True)
            return
        try:
            partition = read_partition(self.disk, parent_path(file.path) or ".")
        except OSError as error:
            self.problems.problem(file.path, error.strerror or str(error), is_unopened=True)
            return
        segments = [segment for segment in partition.segments if base_name(segment.log) == file.name]
        self._add(partition, segments, is_file=True)

    def _add(self, directory: PartitionDirectory, segments: Sequence[Segment], *, is_file: bool = False) -> None:
        if not directory.is_named:
            named = read_partition(self.disk, self._absolute(directory.path))
            if not named.is_named:
                self.problems.problem(
                    directory.path,
                    "the name of the directory is not that of a partition, <topic>-<number>, so the topic is not known",
                    is_unopened=True,
                )
                return
            directory = directory._replace(topic=named.topic, partition=named.partition, is_named=True)
        if not self._wants(directory.topic):
            return
        replicas = self._replicas.setdefault((directory.topic, directory.partition), [])
        known = next((one for one in replicas if one.directory.path == directory.path), None)
        if known is None:
            replicas.append(_Replica(directory, list(segments)))
        elif is_file:
            known.segments = sorted({*known.segments, *segments})

    def _check_topics(self) -> None:
        """Raise SourceError if partitions with one topic name belong to two topics."""
        for topic, group in groupby(sorted(self._replicas), lambda key: key[0]):
            advice = (
                f"replay each log directory by itself, one of them with --map {topic}=NEW, or name other topics with --topic"
            )
            self._check_topic(topic, [one.directory for key in group for one in self._replicas[key]], advice)

    def _check_topic(self, topic: str, directories: Sequence[PartitionDirectory], advice: str) -> None:
        try:
            check_one_topic(self.disk, directories)
        except TwoTopicsError as error:
            raise SourceError(f"{error}: these are two topics named {topic}; {advice}") from None
        except CorruptCheckpointError as error:
            raise SourceError(
                f"{error.message}; so it is not known whether the directories of {topic} are of one cluster; {advice}"
            ) from None
        except OSError as error:
            raise SourceError(f"{error.filename or topic}: {error.strerror or error}") from None

    def _newest(self, replicas: Sequence[_Replica]) -> _Replica:
        """Return the replica whose log is the newest; of equal ones the first that was named."""
        return replicas[0] if len(replicas) == 1 else max(replicas, key=self._end_of_replica)

    def _end_of_replica(self, replica: _Replica) -> _LogEnd:
        return _end_of(self.disk, replica.directory, replica.segments, self.problems.report)

    # ---------------------------------------------------------------------------------------------------------- metadata

    def _owner(self, directory: str) -> Owner:
        try:
            return read_owner(self.disk, directory)
        except (CorruptCheckpointError, OSError):
            return Owner(directory)

    @cached_property
    def _metadata_logs(self) -> list[tuple[Owner, Callable[[], ClusterTopics | None]]]:
        """The metadata logs of the log directories, the newest first, each with its owner and a function that reads it."""
        found = []
        for path in dict.fromkeys([*self._log_directories, *(one.directory.log_directory for one in self._found.values())]):
            try:
                partition = read_partition(self.disk, join_path(path, METADATA_DIRECTORY))
            except OSError:
                continue
            snapshots = [_LogEnd(one.parsed.epoch or 0, one.base_offset) for one in partition.metadata_snapshots]
            end = max([_end_of(self.disk, partition, partition.segments, self.problems.report), *snapshots])
            found.append((end, self._owner(path), cache(partial(self._read_metadata, path))))
        return [(owner, read) for _, owner, read in sorted(found, key=lambda one: one[0], reverse=True)]

    def _read_metadata(self, path: str) -> ClusterTopics | None:
        try:
            return read_cluster_topics(self.disk, path)
        except OSError:
            return None

    def _metadata(self, topic: str) -> ClusterTopics | None:
        """Return the newest metadata log that has the settings of a topic; see the table above."""
        if topic not in self._metadata_of:
            directory = self._directory_of(topic)
            owner, topic_id = self._owner(directory.log_directory), self._stated_id(directory)
            read = (metadata() for other, metadata in self._metadata_logs if not owner.is_other_cluster(other))
            self._metadata_of[topic] = next(
                (
                    one
                    for one in read
                    if one is not None and one.ids.get(topic) in ({topic_id} if topic_id else one.ids.values())
                ),
                None,
            )
        return self._metadata_of[topic]

    def _directory_of(self, topic: str) -> PartitionDirectory:
        return next(one.directory for (name, _), one in self._found.items() if name == topic)

    def _stated_id(self, directory: PartitionDirectory) -> Uuid | None:
        """Return the topic id in partition.metadata, None if it is not known."""
        try:
            return read_topic_id(self.disk, directory)
        except (CorruptCheckpointError, OSError):
            return None

    @property
    def cluster_id(self) -> str | None:
        """None: a backup may go back to its cluster."""
        return None

    def topics(self) -> Mapping[str, SourceTopic]:
        """Return the topics of the partitions to replay."""
        found = {}
        for topic in dict.fromkeys(topic for topic, _ in self.partitions()):
            count = 1 + max(partition for name, partition in self._found if name == topic)
            metadata = self._metadata(topic)
            if metadata is None:
                found[topic] = SourceTopic(count, {}, is_known=False)
            else:
                count = max(count, sum(name == topic for name, _ in metadata.partitions))
                found[topic] = SourceTopic(count, metadata.configs.get(topic, {}))
        return found

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions to replay, sorted."""
        return sorted(self._found)

    def size_bytes(self, partition: TopicPartition) -> int:
        """Return the size of the segments."""
        found = self._found[partition]
        return log_bytes(self.disk, found.directory._replace(segments=found.segments))

    def topic_id(self, topic: str) -> Uuid:
        """Return the id that the metadata log or partition.metadata has, zero if neither has one."""
        metadata = self._metadata(topic)
        if metadata is not None:
            return metadata.ids[topic]
        return self._stated_id(self._directory_of(topic)) or ZERO_UUID

    def bounds(self, partition: TopicPartition) -> Bounds:
        """Return the offsets of the segments; the end is open if the last one cannot be read."""
        segments = self._found[partition].segments
        if not segments:
            return Bounds(0, 0)
        try:
            with OffsetLookup(self.disk, segments[-1]) as lookup:
                return Bounds(segments[0].base_offset, lookup.end_offset())
        except OSError:
            return Bounds(segments[0].base_offset, INT64_MAX)

    def path(self, partition: TopicPartition) -> str:
        """Return the directory of a partition."""
        return self._found[partition].directory.path

    def others(self, partition: TopicPartition) -> list[_Replica]:
        """Return the replicas of a partition that are not replayed."""
        return [one for one in self._replicas[partition] if one is not self._found[partition]]

    def committed_offsets(self, globs: Sequence[str] = ()) -> list[CommittedOffset]:
        """Return the committed offsets of the groups (all without `globs`) for these partitions. Raises SourceError."""
        replicas: dict[int, list[_Replica]] = {}
        for directory in self._log_directories.values():
            for partition in directory.partitions:
                if partition.topic == CONSUMER_OFFSETS and partition.state is DirectoryState.CURRENT:
                    replicas.setdefault(partition.partition, []).append(_Replica(partition, partition.segments))
        if not replicas:
            raise SourceError(f"--groups needs a log directory with {CONSUMER_OFFSETS}; there is none among the paths")
        directories = [one.directory for number in replicas for one in replicas[number]]
        self._check_topic(
            CONSUMER_OFFSETS, directories, "replay each log directory by itself, or leave out --groups and --group"
        )
        remarks = Remarks()
        found: list[CommittedOffset] = []
        groups: set[str] = set()
        for _, of_partition in sorted(replicas.items()):
            newest = self._newest(of_partition).directory
            for key, value in read_groups(self.disk, newest, remarks).committed_offsets.items():
                groups.add(key.group_id)
                if (key.topic, key.partition) not in self._found or decode_metadata(value.offset, value.metadata) is not None:
                    continue
                if globs and not any(fnmatchcase(key.group_id, glob) for glob in globs):
                    continue
                found.append(CommittedOffset(key.group_id, key.topic, key.partition, value.offset, value.metadata))
        for path, message in remarks.problems:
            self.problems.problem(path, message)
        for sentence in (missing_name("group", glob, groups) for glob in globs):
            if sentence is not None:
                raise SourceError(sentence)
        return sorted(found)

    # ----------------------------------------------------------------------------------------------------------- records

    def open(
        self, partition: TopicPartition, from_offset: int, watched: list[int], earlier: EarlierRun = NO_RUN
    ) -> DirectoryStream:
        """Return the batches of a partition that end above `from_offset`."""
        if self.selection.limit is not None and self._quotas is None:
            self._quotas = self._count_quotas()
        limit = Limit(None if self._quotas is None else self._quotas[partition])
        found = self._found[partition]
        start = found.segments[0].base_offset if found.segments else 0
        if 0 < from_offset < start:
            self.problems.problem(found.directory.path, f"the offsets {from_offset} to {start - 1} were deleted; left out")
        joining = Joining.after(earlier, from_offset, self.join_bytes)
        first_offset = from_offset if earlier.last_offset is None else earlier.last_offset
        return DirectoryStream(self, found, first_offset, watched, limit, joining)

    def _count_quotas(self) -> dict[TopicPartition, int]:
        """Divide --limit among the partitions: the first ones get as much as they have, as dump-log shows them."""
        left, quotas = self.selection.limit or 0, {}
        silent = Problems(lambda sentence: None)
        loud, self.problems = self.problems, silent
        for key in self.partitions():
            limit = Limit(left)
            stream = DirectoryStream(self, self._found[key], 0, [], limit)
            while stream.peek() is not None:
                stream.take()
            quotas[key] = left - (limit.left or 0)
            left = limit.left or 0
        self.problems = loud
        return quotas


class DirectoryStream:
    """The batches of one partition; files are read as batches are taken."""

    def __init__(
        self,
        source: DirectorySource,
        found: _Replica,
        from_offset: int,
        watched: list[int],
        limit: Limit,
        joining: Joining = NO_JOINING,
    ) -> None:
        self._joining = joining
        self._source = source
        self._found = found
        self._from_offset = from_offset
        self._watched = watched
        self._batches = self._read(limit)
        self._next: OutgoingBatch | None = None
        # A batch above `from_offset` was read, and one was yielded: what follows was not sent, whatever its offset.
        self._has_read_new = self._has_yielded_new = False
        self._is_ended = False
        # Damage behind the last sound batch, which ends before `_reached`: another replica may have what is missing.
        self._others = [] if source.selection.tail else source.others((found.directory.topic, found.directory.partition))
        self._pending: list[tuple[str, Damage]] = []
        self._reached = from_offset or (found.segments[0].base_offset if found.segments else 0)
        self.is_cut = False

    @property
    def is_ended(self) -> bool:
        """Whether all batches were taken."""
        return self._is_ended

    def peek(self) -> OutgoingBatch | None:
        """Return the next batch, None at the end."""
        if self._next is None and not self._is_ended:
            self._next = next(self._batches, None)
            self._is_ended = self._next is None
        return self._next

    def take(self) -> None:
        """Remove the batch that `peek` returned."""
        self._next = None

    def close(self) -> None:
        """Close the file that is read."""
        self._batches.close()

    def _read(self, limit: Limit) -> Generator[OutgoingBatch, None, None]:
        disk, selection = self._source.disk, self._source.selection
        budget = Budget(limit)
        is_counted = selection.limit is not None or selection.tail is not None
        if not is_counted:
            first = max(selection.offsets.first or 0, self._from_offset)
            selection = selection._replace(offsets=Range(first or None, selection.offsets.end))
        copies = Copies(disk, self._found.segments)
        try:
            segments = segments_in_range(self._found.segments, selection.offsets, copies)
        except OSError as error:
            self._cut(error.filename or self._found.directory.path, error)
            return
        if not segments:
            return
        try:
            maker, slot, position = self._start(selection, segments, budget)
        except OSError as error:
            self._cut(error.filename or segments[0].log, error)
            return
        for at in range(slot, len(segments)):
            segment = segments[at]
            try:
                if copies.is_copy(segment):
                    sentence = "all batches of this file are copies of batches in other segments of the partition; left out"
                    self._source.problems.report(f"{segment.log}: {sentence}")
                    continue
                if at > slot or position is None:
                    position = start_position(disk, segment, selection)
                for batch in self._read_segment(segment, position, selection, maker):
                    if self._has_yielded_new or batch.next_offset > self._from_offset:
                        self._has_yielded_new = True
                        yield batch
            except OSError as error:
                self._cut(segment.log, error)
                break
            if budget.is_spent():
                break
        self._report_pending()
        yield from maker.finish()

    def _cut(self, path: str, error: OSError) -> None:
        """End the stream: what follows would be sent as if nothing were missing, and never be sent in its place."""
        self.is_cut = True
        self._source.problems.problem(
            path, f"{error.strerror or error}; the rest of the partition is not sent, the same command continues here"
        )

    def _start(self, selection: Selection, segments: list[Segment], budget: Budget) -> tuple[BatchMaker, int, int | None]:
        """Return the maker, the number of the first segment, and the byte in it (None: by its indexes)."""
        source, directory = self._source, self._found.directory
        transactions = None
        if selection.needs_transactions:
            if segments[0] not in directory.segments:
                directory = directory._replace(segments=segments, snapshots=[])
            transactions = AbortedTransactions.for_partition(source.disk, directory)
            for problem in transactions.problems:
                source.problems.report(problem)
        # The range without the part that is done: it must not cut a batch.
        own = selection._replace(offsets=source.selection.offsets)
        record_filter = RecordFilter(own, transactions)
        maker = BatchMaker(record_filter, budget, self._watched, self._joining)
        if selection.tail is None:
            return maker, 0, None
        selector = Selector(maker.filter, Budget(), only_sound=True)
        tail = find_tail(source.disk, segments, selector, selection.tail)
        budget.skip = tail.skip
        return maker, tail.segment, tail.position

    def _read_segment(
        self, segment: Segment, position: int, selection: Selection, maker: BatchMaker
    ) -> Iterator[OutgoingBatch]:
        end_offset, beyond = selection.offsets.end, 0
        if maker.budget.is_spent():
            return
        floor = 0
        with SegmentReader(self._source.disk, segment.log, doubts_offsets=True) as reader:
            while True:
                began = position
                position = yield from self._join_runs(reader, position, end_offset, maker)
                if position > began:
                    beyond, floor = 0, maker.joined_offset
                    self._reached = max(self._reached, floor)
                for found in reader.batches(position, floor=floor):
                    if isinstance(found, Damage):
                        self._pending.append((segment.log, found))
                        continue
                    if found.is_valid:
                        yield from self._fill(found.header.base_offset, maker)
                        self._reached = max(self._reached, found.header.next_offset)
                    # Two in a row, as in dump-log: the offset of one may be a flipped bit.
                    beyond = beyond + 1 if end_offset is not None and found.header.base_offset >= end_offset else 0
                    if beyond > 1:
                        return
                    self._has_read_new |= found.header.next_offset > self._from_offset
                    if not self._has_read_new and maker.budget.limit.left is None and not maker.budget.skip:
                        continue
                    for made in maker.make(found):
                        if not isinstance(made, Damage):
                            yield made
                        elif found.is_valid:
                            self._source.problems.damage(segment.log, made)
                        else:
                            self._pending.append((segment.log, made))
                    if maker.budget.is_spent():
                        return
                    if maker.may_join_after(found):
                        position, floor = found.end_position, found.header.next_offset
                        break
                else:
                    return

    def _report_pending(self) -> None:
        """Report the damage that no other replica has made good."""
        for path, damage in self._pending:
            self._source.problems.damage(path, damage)
        self._pending.clear()

    def _fill(self, next_offset: int, maker: BatchMaker) -> Iterator[OutgoingBatch]:
        """Read the offsets that are missing before `next_offset` from a replica that has them whole, or report the damage."""
        if not self._pending or self._reached >= next_offset:
            if not self._others:
                self._report_pending()
            self._pending.clear()  # nothing is missing: an earlier run has sent what is there
            return
        for other in self._others:
            try:
                for _ in self._whole_batches(other, next_offset):
                    pass
            except (OSError, _NotWholeError):
                continue
            for batch in self._whole_batches(other, next_offset):
                self._has_read_new = True
                for made in maker.make(batch):
                    if isinstance(made, Damage):
                        self._source.problems.damage(other.directory.path, made)
                    else:
                        yield made
            for path, damage in self._pending:
                self._source.problems.report(
                    f"{path}: byte {damage.position}: {damage.message}; its records were read from {other.directory.path}"
                )
            self._pending.clear()
            return
        self._report_pending()

    def _whole_batches(self, replica: _Replica, end_offset: int) -> Iterator[LogBatch]:
        """Yield the batches from `_reached` to `end_offset`. Raises _NotWholeError if something may be missing, OSError."""
        disk, first = self._source.disk, self._reached
        if _end_of(disk, replica.directory, replica.segments).offset < end_offset or replica.segments[0].base_offset > first:
            raise _NotWholeError
        for segment in segments_in_range(replica.segments, Range(first, end_offset)):
            with OffsetLookup(disk, segment) as lookup:
                for found in lookup.reader.batches(lookup.start_of_offset(first)[0]):
                    if isinstance(found, Damage) or not found.is_valid:
                        raise _NotWholeError
                    if found.header.base_offset >= end_offset:
                        return
                    if not first <= found.header.base_offset <= found.header.last_offset < end_offset:
                        raise _NotWholeError
                    yield found

    def _join_runs(
        self, reader: SegmentReader, position: int, end_offset: int | None, maker: BatchMaker
    ) -> Generator[OutgoingBatch, None, int]:
        """Join the plain batches from byte `position` on; return the position of the first other one."""
        is_fresh = False
        while True:
            buffer, index, filled = reader.buffered(position, fresh=is_fresh)
            doubt = reader.contradiction_in(buffer, index, filled, position)
            filled = filled if doubt is None else index + doubt.position - position
            first_offset = 0 if self._has_read_new else self._from_offset
            passed, made = maker.join_run(buffer, index, filled, first_offset, end_offset)
            self._has_read_new |= passed > index
            yield from made
            if passed == index and (index == 0 or is_fresh or filled - index >= SMALL_BATCH_BYTES):
                return position
            is_fresh = passed == index
            position += passed - index
