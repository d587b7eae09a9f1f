"""dump-log as text, JSON and CSV: reads the files that paths name and passes their contents to a renderer.

    path                          without a selection                    with a selection, or with statistics
    ----------------------------  -------------------------------------  ------------------------------------------
    a file                        all of it, by the kind in its name     its records, if it is a log
    a partition's directory       every file, by name                    its segments as one log
    a log directory               its own files, then every partition    every partition
    a pattern                     the paths that it matches              the same

No fault ends the run: files that cannot be opened or read are problems, and both problems and damage are reported and counted.
Files that Kafka deletes when it starts (.cleaned, .tmp, .part) may be half written: their damage is a note.

The files of a log directory that are not logs, read as a whole, with their entries.

    file                          type of its entries   fields
    ----------------------------  --------------------  -------------------------------------------------------------
    .index                        offsetIndexEntry      offset, position
    .timeindex                    timeIndexEntry        timestamp, offset
    .txnindex                     abortedTransaction    producerId, firstOffset, lastOffset, lastStableOffset
    .snapshot                     producer              producerId, producerEpoch, coordinatorEpoch,
                                                        currentTxnFirstOffset, firstSequence, lastSequence, lastOffset,
                                                        offsetDelta, lastTimestamp
    leader-epoch-checkpoint       leaderEpoch           epoch, startOffset
    *-offset-checkpoint           partitionOffset       topic, partition, offset
    partition.metadata            partitionMetadata     version, topicId
    meta.properties               metaProperties        version, clusterId, nodeId, directoryId
    .kafka_cleanshutdown          cleanShutdown         version, brokerEpoch
    quorum-state                  quorumState           version, leaderId, leaderEpoch, votedId and, by version, more

A field that a file does not have is null. The name decides, with any suffix (.deleted, .swap, .tmp ...).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from kcli.format import limits
from kcli.format.file_names import FileKind, FileName, FileState, parse_file_name, parse_partition_directory
from kcli.format.primitives import FormatError
from kcli.inspect.dumping.record_contents import decoder_for
from kcli.inspect.dumping.renderer import DumpedFile, DumpResult, Entry, Renderer
from kcli.inspect.instants import format_instant
from kcli.inspect.sound_batches import LeftOutBatches, is_left_out
from kcli.log.disk.port import base_name, join_path, parent_path
from kcli.log.files.log_directory import (
    DIRECTORY_NOT_FILE,
    NOT_OF_KAFKA,
    PARTITION_KINDS,
    FoundFile,
    LogDirectory,
    PartitionDirectory,
    ResolvedPath,
    Segment,
    is_file_name,
    read_partition,
    resolve_paths,
)
from kcli.log.reading.segment_reader import Damage, LogBatch, SegmentReader
from kcli.selecting.lookup import Copies, segments_in_range, start_position
from kcli.selecting.record_filter import RecordFilter
from kcli.selecting.selected_log import Budget, Event, Limit, Note, SelectedRecords, Selector, walk
from kcli.selecting.selection import Selection

if TYPE_CHECKING:
    from kcli.format.index_entries import OffsetIndex, TimeIndex
    from kcli.format.producer_snapshot import ProducerEntry
    from kcli.inspect.dumping.kafka_text import ContentParser
    from kcli.inspect.dumping.statistics import Statistics
    from kcli.log.disk.port import Disk
    from kcli.log.reading.transaction_filter import AbortedTransactions

UNREADABLE = "unreadable"
LOG_KINDS = frozenset((FileKind.LOG, FileKind.METADATA_SNAPSHOT, FileKind.BOOTSTRAP_CHECKPOINT))
METADATA_TOPIC = "__cluster_metadata"
_UNFINISHED_STATES = frozenset((FileState.CLEANED, FileState.TEMPORARY, FileState.PARTIAL))


class SmallFile(NamedTuple):
    """The contents of a file: entries, faults as (byte, sentence), and remarks that are not damage.

    `preallocated_bytes` are the zeros after the entries of an index: an index of an active segment has 10 MiB by default. An
    index of nothing but zeros has no entry.
    """

    entries: Iterable[Entry]
    faults: tuple[tuple[int, str], ...] = ()
    preallocated_bytes: int = 0
    notes: tuple[str, ...] = ()


def read_small_file(disk: Disk, path: str, name: FileName) -> SmallFile:
    """Read and decode the file at `path`, whose parsed name is `name`.

    Raises FormatError if its bytes are not in the format that the name states, OSError as the disk does.
    """
    reader = _READERS.get(name.kind)
    if reader is None:
        return SmallFile(())
    limit = limits.MAX_INDEX_FILE_BYTES if name.kind in _BINARY_KINDS else limits.MAX_TEXT_FILE_BYTES
    return reader(disk.read_file(path, limit), name.base_offset or 0)


def _offset_index(data: bytes, base_offset: int) -> SmallFile:
    from kcli.format.index_entries import OffsetIndex
    from kcli.format.structs import OFFSET_INDEX_ENTRY

    return _index("offsetIndexEntry", data, OffsetIndex.decode(data, base_offset), OFFSET_INDEX_ENTRY.size)


def _time_index(data: bytes, base_offset: int) -> SmallFile:
    from kcli.format.index_entries import TimeIndex
    from kcli.format.structs import TIME_INDEX_ENTRY

    return _index("timeIndexEntry", data, TimeIndex.decode(data, base_offset), TIME_INDEX_ENTRY.size)


def _index(entry_type: str, data: bytes, index: OffsetIndex | TimeIndex, entry_bytes: int) -> SmallFile:
    end = len(index) * entry_bytes
    left = len(data) - end
    faults = ((end, f"{left} bytes after the last whole entry"),) if left else ()
    if len(index) > 1 and index.used_entries == 1 and not any(data[:entry_bytes]):
        return SmallFile((), faults, end)  # preallocated and never written to; Kafka's tool prints the first of the zeros
    entries = (Entry(entry_type, entry._asdict()) for entry in index.entries())
    return SmallFile(entries, faults, end - index.used_entries * entry_bytes)


def _transaction_index(data: bytes, base_offset: int) -> SmallFile:
    from kcli.format.index_entries import ABORTED_TXN_VERSION, TransactionIndex
    from kcli.format.structs import ABORTED_TXN

    index = TransactionIndex.decode(data, base_offset)
    faults = []
    for slot, txn in enumerate(index.aborted):
        if txn.kafka_version > ABORTED_TXN_VERSION:
            faults.append((slot * ABORTED_TXN.size, f"entry {slot} has version {txn.kafka_version}; version 0 is known"))
    if index.trailing:
        faults.append((len(data) - len(index.trailing), f"{len(index.trailing)} bytes after the last whole entry"))
    entries = (
        Entry(
            "abortedTransaction",
            {
                "producerId": txn.producer_id,
                "firstOffset": txn.first_offset,
                "lastOffset": txn.last_offset,
                "lastStableOffset": txn.last_stable_offset,
            },
        )
        for txn in index.aborted
    )
    return SmallFile(entries, tuple(faults))


def _producer_snapshot(data: bytes, base_offset: int) -> SmallFile:
    from kcli.format.producer_snapshot import decode_producer_snapshot

    snapshot = decode_producer_snapshot(data)
    faults = ((len(data) - len(snapshot.trailing), f"{len(snapshot.trailing)} bytes after the last entry"),)
    return SmallFile(_producers(snapshot.entries), faults if snapshot.trailing else ())


def _producers(entries: Iterable[ProducerEntry]) -> Iterator[Entry]:
    for entry in entries:
        has_batch = entry.has_batch
        yield Entry(
            "producer",
            {
                "producerId": entry.producer_id,
                "producerEpoch": entry.producer_epoch,
                "coordinatorEpoch": entry.coordinator_epoch,
                "currentTxnFirstOffset": entry.open_txn_first_offset,
                "firstSequence": entry.first_sequence if has_batch else None,
                "lastSequence": entry.last_sequence if has_batch else None,
                "lastOffset": entry.last_offset if has_batch else None,
                "offsetDelta": entry.offset_delta if has_batch else None,
                "lastTimestamp": entry.timestamp,
            },
        )


def _offset_checkpoint(data: bytes, base_offset: int) -> SmallFile:
    from kcli.format.checkpoint import decode_offset_checkpoint

    return SmallFile([Entry("partitionOffset", entry._asdict()) for entry in decode_offset_checkpoint(data).entries])


def _leader_epochs(data: bytes, base_offset: int) -> SmallFile:
    from kcli.format.checkpoint import decode_leader_epochs

    entries = decode_leader_epochs(data).entries
    return SmallFile([Entry("leaderEpoch", {"epoch": entry.epoch, "startOffset": entry.start_offset}) for entry in entries])


def _partition_metadata(data: bytes, base_offset: int) -> SmallFile:
    from kcli.format.metadata_files import decode_partition_metadata

    metadata = decode_partition_metadata(data)
    return SmallFile([Entry("partitionMetadata", {"version": metadata.version, "topicId": str(metadata.topic_id)})])


def _meta_properties(data: bytes, base_offset: int) -> SmallFile:
    from kcli.format.metadata_files import decode_meta_properties

    meta = decode_meta_properties(data)
    directory_id = None if meta.directory_id is None else str(meta.directory_id)
    fields = {"version": meta.version, "clusterId": meta.cluster_id, "nodeId": meta.node_id, "directoryId": directory_id}
    return SmallFile([Entry("metaProperties", fields)])


def _clean_shutdown(data: bytes, base_offset: int) -> SmallFile:
    from kcli.format.metadata_files import decode_clean_shutdown

    clean = decode_clean_shutdown(data)
    if clean.version is None:
        return SmallFile((), notes=("the file is empty, as brokers before KRaft leave it",))
    return SmallFile([Entry("cleanShutdown", {"version": clean.version, "brokerEpoch": clean.broker_epoch})])


def _quorum_state(data: bytes, base_offset: int) -> SmallFile:
    from kcli.format.metadata_files import decode_quorum_state

    state = decode_quorum_state(data)
    fields: dict[str, object] = {
        "version": state.version,
        "leaderId": state.leader_id,
        "leaderEpoch": state.leader_epoch,
        "votedId": state.voted_id,
    }
    if state.version:
        fields["votedDirectoryId"] = str(state.voted_directory_id)
    else:
        voters = None if state.current_voters is None else list(state.current_voters)
        fields |= {"clusterId": state.cluster_id, "appliedOffset": state.applied_offset, "currentVoters": voters}
    return SmallFile([Entry("quorumState", fields)])


_BINARY_KINDS = frozenset((FileKind.INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX, FileKind.PRODUCER_SNAPSHOT))
_READERS: dict[FileKind, Callable[[bytes, int], SmallFile]] = {
    FileKind.INDEX: _offset_index,
    FileKind.TIME_INDEX: _time_index,
    FileKind.TXN_INDEX: _transaction_index,
    FileKind.PRODUCER_SNAPSHOT: _producer_snapshot,
    FileKind.LEADER_EPOCH_CHECKPOINT: _leader_epochs,
    FileKind.RECOVERY_POINT_CHECKPOINT: _offset_checkpoint,
    FileKind.LOG_START_OFFSET_CHECKPOINT: _offset_checkpoint,
    FileKind.REPLICATION_CHECKPOINT: _offset_checkpoint,
    FileKind.CLEANER_CHECKPOINT: _offset_checkpoint,
    FileKind.PARTITION_METADATA: _partition_metadata,
    FileKind.META_PROPERTIES: _meta_properties,
    FileKind.CLEAN_SHUTDOWN: _clean_shutdown,
    FileKind.QUORUM_STATE: _quorum_state,
}


class DumpOptions(NamedTuple):
    """What is shown of logs: `batches` and records, or `statistics` instead; `max_bytes` limits how much of each is read.

    Of a record above `max_record_bytes` only the sizes are shown, so that memory stays bounded. `parser` decodes keys and
    values; None leaves that to the topic's name.
    """

    batches: bool = True
    statistics: bool = False
    max_bytes: int | None = None
    parser: ContentParser | None = None
    max_record_bytes: int = limits.MAX_SHOWN_RECORD_BYTES


def dump(
    paths: Iterable[str],
    selection: Selection,
    renderer: Renderer,
    options: DumpOptions,
    disk: Disk,
    *,
    report: Callable[[str], object],
    absolute: Callable[[str], str] = str,
) -> DumpResult:
    """Pass everything that the paths name to `renderer`; return counts of what was shown, of damage and of problems.

    `report` is called with a sentence for each problem, for damage that the renderer has no place for, and if a selection
    matches nothing. `absolute` makes a path absolute, so that the directory's name shows the partition. Raises what the
    renderer's stream raises.
    """
    return Dump(selection, renderer, options, disk, report, absolute).run(paths)


class Dump:
    """One run of `dump`."""

    def __init__(
        self,
        selection: Selection,
        renderer: Renderer,
        options: DumpOptions,
        disk: Disk,
        report: Callable[[str], object],
        absolute: Callable[[str], str],
    ) -> None:
        self.selection = selection
        self.renderer = renderer
        self.options = options
        self.disk = disk
        self.report = report
        self.absolute = absolute
        self.limit = Limit(selection.limit)
        self.statistics: Statistics | None = None
        self.result = DumpResult()
        self._named: frozenset[str] = frozenset()
        self._left_out: dict[str, LeftOutBatches] = {}
        self._only_logs = options.statistics or not selection.is_everything
        if options.statistics:
            from kcli.inspect.dumping.statistics import Statistics

            self.statistics = Statistics()

    def run(self, paths: Iterable[str]) -> DumpResult:
        """See `dump`."""
        named = tuple(paths)
        for target in self.resolve(named):
            if self.is_done():
                break
            if target.log_directory is not None:
                self._log_directory(target.log_directory)
            elif target.partition is not None:
                self._partition(target.partition)
            elif target.file is None:
                continue
            elif target.file.kind is FileKind.UNKNOWN and target.path in named:  # in a directory, such files are shown by name
                self.result = self.result._replace(unopened=self.result.unopened + 1)
                self.problem(target.path, NOT_OF_KAFKA)
            else:
                self._file(target.file)
        return self.finish()

    def resolve(self, paths: Iterable[str]) -> list[ResolvedPath]:
        """Return what the paths of the command line name; a path that names nothing is a problem."""
        targets, problems = resolve_paths(self.disk, paths)
        self._named = frozenset([target.path for target in targets])
        for path, message in problems:
            self.result = self.result._replace(unopened=self.result.unopened + 1)
            self.problem(path, message.removeprefix(f"{path}: "))
        return targets

    def finish(self) -> DumpResult:
        """Report what is left to report, and end the output."""
        if self.statistics is not None and self._named:
            self.statistics.batches_left_out = sum(left_out.count for left_out in self._left_out.values())
            self.renderer.statistics(self.statistics.report())
        self.renderer.end(self.result)
        for path, left_out in self._left_out.items():
            self.report(f"{path}: {left_out.sentence()}")
        if self._named and not self.result.records and self._selects_records():
            self.report(f"0 records matched{_searched_times(self.selection)}")
        return self.result

    def _selects_records(self) -> bool:
        """Return True if records were asked for by what they are; a limit asks for any."""
        return not self.selection._replace(limit=None).is_everything

    def _log_directory(self, directory: LogDirectory) -> None:
        for path, message in directory.unreadable:
            self.problem(path, message)
        if not self._only_logs:
            for file in directory.files:
                if file.kind not in PARTITION_KINDS:  # a broker ignores these in a log directory
                    self._file(file)
            for name in directory.other_directories:
                self._loose_files(join_path(directory.path, name))
        for partition in directory.partitions:
            if not self.is_done():
                self._partition(partition)

    def _loose_files(self, directory: str) -> None:
        """Show the files of Kafka in a directory that is not a partition, such as the cache of remote indexes."""
        try:
            names = self.disk.list_directory(directory)
        except OSError as error:
            self.problem(directory, error.strerror or str(error))
            return
        for name in names:
            parsed = parse_file_name(name)
            if parsed.kind is not FileKind.UNKNOWN:
                self._file(FoundFile(join_path(directory, name), parsed))

    def _partition(self, partition: PartitionDirectory) -> None:
        self._check_log(partition)
        if self._only_logs:
            self._segments(partition, partition.segments)
            return
        for name in partition.directories:
            if is_file_name(name):
                self.problem(join_path(partition.path, name), DIRECTORY_NOT_FILE)
        copies = Copies(self.disk, partition.segments)
        for file in _files_of(partition):
            if not self.is_done():
                self._file(file, copies)

    def _check_log(self, partition: PartitionDirectory) -> None:
        """Report a partition whose `.log` is missing, as `kcli verify` does: otherwise it would seem to have no records."""
        if partition.segments:
            return
        from kcli.inspect.verification.directories import read_root
        from kcli.inspect.verification.evidence import missing_log
        from kcli.inspect.verification.findings import FindingList

        root = read_root(self.disk, partition.log_directory, FindingList(), with_topics=False)
        sentence = missing_log(self.disk, partition, root.options(partition))
        if sentence is not None:
            self.problem(partition.path, sentence, is_opened=True)

    def _file(self, file: FoundFile, copies: Copies | None = None) -> None:
        if file.kind not in LOG_KINDS:
            if not self._only_logs:
                self._small_file(file)
            return
        segment = Segment(file.base_offset, file.path)
        partition = None
        if self.selection != Selection():
            partition, segment = self._segment_of(file, segment)
        self._segments(partition, [segment], copies)

    def _segment_of(self, file: FoundFile, lone: Segment) -> tuple[PartitionDirectory | None, Segment]:
        """Return the partition of a log file, and the file with its index files; without these `lone`."""
        try:
            partition = read_partition(self.disk, parent_path(file.path))
        except OSError:
            return None, lone
        found = (segment for segment in partition.segments if base_name(segment.log) == file.name)
        return partition, next(found, lone)

    def _segments(self, partition: PartitionDirectory | None, segments: list[Segment], copies: Copies | None = None) -> None:
        """Show the selected records of consecutive segments; `copies` is that of their partition if they are not all of it."""
        copies = copies or Copies(self.disk, segments)
        try:
            segments = segments_in_range(segments, self.selection.offsets, copies)
            if not segments:
                return
            selector, first, position = self.start(partition, segments)
        except OSError as error:
            self.problem(error.filename or segments[0].log, error.strerror or str(error))
            return
        for slot in range(first, len(segments)):
            if self.is_done():
                return
            segment = segments[slot]
            known = position if slot == first else None
            self.show_log(segment.log, lambda at=segment, known=known: self._events(at, selector, known, copies))  # type: ignore[misc]

    def start(self, partition: PartitionDirectory | None, segments: list[Segment]) -> tuple[Selector, int, int | None]:
        """Return the selector for a log, the number of the segment to begin with, and the byte in it (None: by its indexes).

        Raises OSError as the disk does.
        """
        transactions = None
        if self.selection.needs_transactions:
            transactions = self.transactions(_with_segments(self.disk, partition, segments))
        record_filter = RecordFilter(self.selection, transactions)
        selector = self._selector(record_filter, Budget(self.limit))
        if self.selection.tail is None:
            return selector, 0, None
        from kcli.selecting.lookup import find_tail

        found = find_tail(self.disk, segments, self._selector(record_filter, Budget()), self.selection.tail)
        selector.budget.skip = found.skip
        return selector, found.segment, found.position

    def _selector(self, record_filter: RecordFilter, budget: Budget) -> Selector:
        return Selector(record_filter, budget, only_sound=not self._shows_damage, large_bytes=self.options.max_record_bytes)

    def transactions(self, partition: PartitionDirectory) -> AbortedTransactions:
        """Return the transactions of a partition. Raises OSError as the disk does."""
        from kcli.log.reading.transaction_filter import AbortedTransactions

        transactions = AbortedTransactions.for_partition(self.disk, partition)
        for problem in transactions.problems:
            self.report(problem)
        return transactions

    def is_done(self) -> bool:
        """Return True if the limit is reached."""
        return self.limit.left is not None and self.limit.left <= 0

    def _events(self, segment: Segment, selector: Selector, position: int | None, copies: Copies) -> Iterator[Event]:
        if copies.is_copy(segment):
            yield Note("all batches of this file are copies of batches in other segments of the partition; left out")
            return
        if position is None:
            position = start_position(self.disk, segment, self.selection)
        with SegmentReader(self.disk, segment.log, end=self.options.max_bytes, doubts_offsets=True) as reader:
            yield from walk(reader, position, selector)

    def show_log(self, path: str, events: Callable[[], Iterator[Event]]) -> None:
        """Show the events of a log; with a selection, the file is shown only if it has events."""
        begun = False
        try:
            file = self.described(path, self.disk.size(path))
            if not self._only_logs:
                begun = self._begin(file)
            for event in events():
                begun = begun or self._begin(file)
                self.show(event, path)
        except OSError as error:
            self.problem(path, error.strerror or str(error))
        if begun and self.statistics is None:
            self.renderer.end_file()

    def begin_file(self, path: str) -> None:
        """Begin a log file, which may have been deleted since."""
        try:
            size = self.disk.size(path)
        except OSError:
            size = 0
        self._begin(self.described(path, size))

    def _begin(self, file: DumpedFile) -> bool:
        self.result = self.result._replace(files=self.result.files + 1)
        if self.statistics is not None:
            self.statistics.begin_file(file)
        else:
            self.renderer.begin_file(file)
        return True

    def show(self, event: Event, path: str) -> None:
        """Pass an event to the renderer or the statistics."""
        if isinstance(event, Damage):
            self._damage(path, event)
        elif isinstance(event, Note):
            self._note(path, event.message)
        elif isinstance(event, SelectedRecords):
            self.result = self.result._replace(records=self.result.records + len(event.indexes))
            if self.statistics is not None:
                self.statistics.add_records(event)
            else:
                self.renderer.records(event)
        else:
            self._batch(event)

    def _batch(self, batch: LogBatch) -> None:
        self.result = self.result._replace(batches=self.result.batches + 1)
        if self.statistics is not None:
            self.statistics.add_batch(batch)
        elif self.options.batches:
            self.renderer.batch(batch)

    def _damage(self, path: str, damage: Damage) -> None:
        unfinished = parse_file_name(base_name(path)).state in _UNFINISHED_STATES
        place = f"byte {damage.position}: {damage.message}"
        if not self._shows_damage and is_left_out(damage):
            self._left_out.setdefault(path, LeftOutBatches()).add(damage.position)
        if not unfinished:
            self.result = self.result._replace(damages=self.result.damages + 1)
        if unfinished:
            self._note(path, f"unfinished from {place}")
        elif self._shows_damage:
            self.renderer.damage(damage)
        else:
            self.report(f"{path}: {place}")

    def _note(self, path: str, message: str) -> None:
        if self._shows_damage:
            self.renderer.note(message)
        else:
            self.report(f"{path}: {message}")

    @property
    def _shows_damage(self) -> bool:
        """Whether the renderer has a place for damage and notes."""
        return self.statistics is None and self.renderer.shows_damage

    def problem(self, path: str, message: str, *, is_opened: bool = False) -> None:
        """Report a path that cannot be opened or read, or (`is_opened`) in which a file is missing."""
        unopened = self.result.unopened + (path in self._named and not is_opened and not self._can_be_opened(path))
        self.result = self.result._replace(problems=self.result.problems + 1, unopened=unopened)
        self.renderer.flush()  # so that a terminal shows the sentence after the output before it
        self.report(f"{path}: {message}")
        self.renderer.problem(path, message)

    def _can_be_opened(self, path: str) -> bool:
        """Return True for a file that may be read, even if it is damaged, or larger than any file of its kind."""
        try:
            self.disk.open_file(path).close()
        except OSError:
            return False
        return True

    def described(self, path: str, size_bytes: int) -> DumpedFile:
        """Return what the names of a file and of its directory say about it."""
        name = parse_file_name(base_name(path))
        topic, partition = self._topic_of(path, name)
        decoder = decoder_for(topic, self.options.parser) if name.kind in LOG_KINDS else None
        return DumpedFile(path, name.kind.value, name.sentence(), size_bytes, topic, partition, name.base_offset, decoder)

    def _topic_of(self, path: str, name: FileName) -> tuple[str | None, int | None]:
        try:
            directory = parse_partition_directory(base_name(parent_path(self.absolute(path))))
        except FormatError:
            is_metadata = name.kind in (FileKind.BOOTSTRAP_CHECKPOINT, FileKind.METADATA_SNAPSHOT)
            return (METADATA_TOPIC, 0) if is_metadata else (None, None)
        return directory.topic, directory.partition

    def _small_file(self, file: FoundFile) -> None:

        try:
            size = self.disk.size(file.path)
            described = self.described(file.path, size)
            try:
                contents = read_small_file(self.disk, file.path, file.parsed)
            except FormatError as error:
                self._begin(described)
                self._damage(file.path, Damage(error.position or 0, size, UNREADABLE, error.message))
            else:
                self._begin(described._replace(preallocated_bytes=contents.preallocated_bytes))
                self.renderer.entries(self._counted(contents.entries))
                for note in contents.notes:
                    self._note(file.path, note)
                for position, message in contents.faults:
                    self._damage(file.path, Damage(position, size, UNREADABLE, message))
            self.renderer.end_file()
        except OSError as error:
            self.problem(file.path, error.strerror or str(error))

    def _counted(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        count = 0
        for count, entry in enumerate(entries, 1):  # noqa: B007
            yield entry
        self.result = self.result._replace(entries=self.result.entries + count)


def _searched_times(selection: Selection) -> str:
    """Return "; the timestamps searched are from A up to, not including, B", or nothing without --time."""
    first, end = (None if bound is None else format_instant(bound) for bound in selection.times)
    if first is None and end is None:
        return ""
    bounds = [f"from {first} on" if end is None else f"from {first}"] if first is not None else []
    bounds += [f"up to, not including, {end}"] if end is not None else []
    return f"; the timestamps searched are {' '.join(bounds)}"


def _with_segments(disk: Disk, partition: PartitionDirectory | None, segments: list[Segment]) -> PartitionDirectory:
    """Return the partition of the segments; for a file that its directory does not list, one with that file only."""
    if partition is None:
        partition = read_partition(disk, parent_path(segments[0].log))
    return partition if segments[0] in partition.segments else partition._replace(segments=segments, snapshots=[])


def _files_of(partition: PartitionDirectory) -> list[FoundFile]:
    """Return every file of a partition's directory, by name."""
    paths = [
        path
        for segment in partition.segments
        for path in (segment.log, segment.offset_index, segment.time_index, segment.transaction_index)
        if path is not None
    ]
    files = [FoundFile(path, parse_file_name(base_name(path))) for path in paths]
    files += [*partition.snapshots, *partition.metadata_snapshots, *partition.others]
    return sorted(files, key=lambda file: file.name)
