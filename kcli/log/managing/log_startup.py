"""Opening all logs of a broker's log directories, in time slices (Kafka: LogManager.loadLogs).

    a directory in a log directory            result
    ----------------------------------------  -------------------------------------------------------------------------
    `<topic>-<partition>`                     opened; after an unclean stop it is recovered from its recovery point on
    the same, not placed here by the          renamed to -stray and kept: the topic was deleted or moved while the broker was
    metadata, or without partition.metadata   down. The line names the offsets whose records are not served any more
    the same with records, and a partition    the start is refused (PartitionMetadataError), as by Kafka: without its topic id
    .metadata that cannot be read             the log would be a stray. It is one without records, or if no flush of the log
                                              is known: a lost power tears what was not flushed, and nothing is lost by it
    the same with records, no partition       refused in the same way; --accept-stray renames it. Kafka takes each directory
    .metadata, and the metadata places a      without topic id for a stray, for "it mostly means no data was appended"
    partition of this name here               (LogManager.isStrayReplica). Here data was, and an empty log would replace it
    the same with records, and the metadata   the start is refused (UnknownTopicsError): the metadata log is new, empty or of
    log has no topic of any directory         another cluster. `is_known=None` (--accept-stray) renames them all to -stray
    the same twice, both with records         if the metadata names the directory of one, the other is renamed to -stray: the
                                              broker crashed while a future log replaced it; else the start is refused
    ...-future                                opened; the copy continues
    ...-delete                                removed after file.delete.delay.ms
    ...-stray                                 kept
    `__cluster_metadata-0`                    skipped: the raft client opens it
    anything else                             kept and reported (Kafka refuses to start)

An unclean stop is reported, and so is everything that its recovery removes (recovery_journal). Kafka opens a log before it
checks the topic id; here the check comes first, so that a stray log is renamed unchanged.
A log that Kafka would refuse to load (LogRefusedError) takes its log directory offline, as an OSError does. The start fails if
no log directory is left.

`close_logs` is the clean stop, after which the next start needs no recovery.

    steps for each log directory, in order
    ---------------------------------------------------------------------------------------------
    close its logs, one in a step: trim the indexes, take a producer snapshot, write leader epochs to a temporary file
    flush their unflushed files, all together
    rename the temporary files, and flush their directories
    write the offset checkpoints
    write `.kafka_cleanshutdown` with the broker epoch, if all logs of the directory were loaded
    release the lock

The paths that a step yields must be flushed before the next step. A directory with an error gets no `.kafka_cleanshutdown`, so
that the next start recovers it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kcli.format import limits
from kcli.format.file_names import (
    METADATA_TOPIC,
    REMOTE_INDEX_CACHE_DIRECTORY,
    DirectoryState,
    FileKind,
    FileState,
    PartitionDirectoryName,
    parse_file_name,
    parse_partition_directory,
    partition_directory_name,
)
from kcli.format.kafka_uuid import Uuid
from kcli.format.metadata_files import decode_partition_metadata
from kcli.format.primitives import FormatError, TopicPartition
from kcli.log.disk.flush_request import FlushSequence, write_unflushed
from kcli.log.disk.port import join_path, parent_path
from kcli.log.errors import DuplicateLogError, PartitionMetadataError, UnknownTopicsError
from kcli.log.loading.recovering_segment import LogRefusedError
from kcli.log.loading.recovery_journal import KnownOffsets, RecoveryJournal, RecoveryProgress, quarantine_in
from kcli.log.log_config import LogConfig
from kcli.log.log_opener import read_end
from kcli.log.log_segment import LogSegment
from kcli.log.managing.log_dir import LogDir
from kcli.log.managing.log_registry import LogCheckpoints, LogRegistry
from kcli.log.report_line import WarningLine
from kcli.log.slices import Slices
from kcli.log.unified_log import UnifiedLog

_OPENED = (DirectoryState.CURRENT, DirectoryState.FUTURE)
_IDS_PER_SLICE = 100
# About a millisecond of work each.
LOGS_CLOSED_PER_STEP = 8
RENAMES_PER_STEP = 32
OFFSETS_PER_STEP = 256
_MAX_NAMES = 6  # of partitions in a message
_Checkpoints = dict[FileKind, dict[TopicPartition, int]]


class LogStartup:
    """Opens all logs into a registry; see LogManager.start."""

    def __init__(
        self,
        registry: LogRegistry,
        config_of: Callable[[str], LogConfig],
        is_hosted: Callable[[Uuid, int], bool],
        directory_of: Callable[[Uuid, int], Uuid | None],
        now_ms: int,
        clock: Callable[[], int],
        is_known: Callable[[Uuid], bool] | None = None,
        topic_id_of: Callable[[str], Uuid | None] = lambda topic: None,
    ) -> None:
        self._registry = registry
        self._disk = registry.disk
        self._config_of = config_of
        self._is_hosted = is_hosted
        self._directory_of = directory_of
        self._now_ms = now_ms
        self._clock = clock
        self._is_known = is_known
        self._topic_id_of = topic_id_of
        self._topic_ids: dict[str, Uuid | None] = {}  # by the path of a partition's directory

    def run(self) -> Iterator[None]:
        """Load the log directories; a step opens a small log or recovers a part of one.

        Raises PartitionMetadataError, UnknownTopicsError and DuplicateLogError; the first two before anything is changed.
        """
        registry = self._registry
        partitions = yield from self._read_topic_ids()
        self._refuse_if_no_topic_is_known()
        for log_dir in registry.online_dirs():
            try:
                checkpoints = yield from log_dir.begin_loading(registry.report)
                loading = _Loading(log_dir, checkpoints, partitions[log_dir.path], registry, self._clock)
                for _ in self._load_dir(loading):
                    loading.progress.step()
                    yield
                loading.finish()
                log_dir.is_loaded = True
            except OSError as error:
                registry.take_offline(log_dir.path, error)
            except LogRefusedError as error:
                sentence = f"{error.path}: {error.message}; `kcli verify --repair {log_dir.path}` shows how to repair it"
                registry.take_offline(log_dir.path, OSError(sentence))

    def _read_topic_ids(self) -> Slices[dict[str, dict[str, PartitionDirectoryName]]]:
        """Read the topic ids of all partitions; return the partitions of each log directory by name."""
        partitions: dict[str, dict[str, PartitionDirectoryName]] = {}
        for log_dir in list(self._registry.online_dirs()):
            try:
                found = partitions[log_dir.path] = {}
                for at, name in enumerate(self._disk.list_directory(log_dir.path), 1):
                    partition = self._partition_of(log_dir, name)
                    if partition is not None:
                        found[name] = partition
                        if partition.state in _OPENED:
                            path = join_path(log_dir.path, name)
                            self._topic_ids[path] = self._read_topic_id(path, log_dir, partition)
                    if at % _IDS_PER_SLICE == 0:
                        yield
            except OSError as error:
                self._registry.take_offline(log_dir.path, error)
            yield
        return partitions

    def _refuse_if_no_topic_is_known(self) -> None:
        """Raise UnknownTopicsError if there are partitions with records, and the metadata log has the topic of no partition.

        If it has one, it is the cluster's, and the other partitions were deleted or moved.
        """
        is_known = self._is_known
        if is_known is None or any(is_known(topic_id) for topic_id in self._topic_ids.values() if topic_id is not None):
            return
        paths = [path for path, topic_id in self._topic_ids.items() if topic_id is not None and self._has_bytes(path)]
        if paths:
            more = f" and {len(paths) - _MAX_NAMES} more" if len(paths) > _MAX_NAMES else ""
            raise UnknownTopicsError(
                f"the metadata log does not have the topics of {', '.join(paths[:_MAX_NAMES])}{more}, which have records: it "
                "is new, empty or of another cluster. Put __cluster_metadata-0 back as it was; or start once with "
                "--accept-stray, which renames these partitions to -stray and does not serve their records"
            )

    def _load_dir(self, loading: _Loading) -> Iterator[None]:
        registry, log_dir = self._registry, loading.log_dir
        for name, found in loading.partitions.items():
            path = join_path(log_dir.path, name)
            if found.state is DirectoryState.DELETE:
                registry.deletions.add((path,), self._now_ms + registry.settings.file_delete_delay_ms)
            elif found.state is DirectoryState.STRAY:
                registry.stray_directories.append(path)
            else:
                topic_id = self._topic_ids[path]
                if topic_id is None:
                    self._set_stray(log_dir.path, path, found, "it has no topic id")
                elif not self._is_hosted(topic_id, found.partition):
                    why = f"the metadata does not place topic id {topic_id} on this broker"
                    self._set_stray(log_dir.path, path, found, why)
                elif not self._is_second(log_dir, path, found, topic_id):
                    yield from self._open(loading, path, found, topic_id)
                yield
        yield from self._remove_old_entries(log_dir, loading.checkpoints)

    def _remove_old_entries(self, log_dir: LogDir, checkpoints: _Checkpoints) -> Slices[None]:
        """Remove the entries of partitions that are not in the log directory any more from its checkpoints.

        Otherwise a new log with the same name would begin with the offsets of the old one.
        """
        logs = {(log.topic, log.partition) for log in self._registry.all_logs() if parent_path(log.directory) == log_dir.path}
        for kind, checkpoint in log_dir.checkpoints.items():
            kept = {key: offset for key, offset in checkpoints[kind].items() if key in logs}
            if len(kept) < len(checkpoints[kind]):
                checkpoint.write_now(kept)
            yield

    def _partition_of(self, log_dir: LogDir, name: str) -> PartitionDirectoryName | None:
        """Parse the name of a partition's directory; return None for anything else."""
        path = join_path(log_dir.path, name)
        try:
            found = parse_partition_directory(name)
        except FormatError as error:
            if name != REMOTE_INDEX_CACHE_DIRECTORY and self._disk.is_directory(path):
                text = f"{log_dir.path}: {error.message}; ignored"
                self._registry.report(WarningLine(text, path=log_dir.path, error=error.message))
            return None
        return found if found.topic != METADATA_TOPIC and self._disk.is_directory(path) else None

    def _read_topic_id(self, path: str, log_dir: LogDir, found: PartitionDirectoryName) -> Uuid | None:
        """Return the topic id in partition.metadata, None if nothing is lost without one.

        It is written once, before the first records, and the first flush of the log flushes it, too. Raises
        PartitionMetadataError, and OSError.
        """
        at = join_path(path, FileKind.PARTITION_METADATA.value)
        repair = f"run `kcli verify --repair {parent_path(path)}`, which restores the file"
        try:
            return decode_partition_metadata(self._disk.read_file(at, limits.MAX_TEXT_FILE_BYTES)).topic_id
        except FileNotFoundError as error:
            expected = self._topic_id_of(found.topic)
            if expected is None or not self._is_hosted(expected, found.partition) or found.state is not DirectoryState.CURRENT:
                return None
            if not (records := self._records_in(path)) or not self._was_flushed(log_dir, found):
                return None
            raise PartitionMetadataError(
                f"{at} is missing, and the log has {records}, in place of which an empty log of topic id {expected} would be "
                f"served; nothing was changed: {repair} if the metadata log is in the same log directory; or start once with "
                "--accept-stray, which renames the partition to -stray and does not serve its records"
            ) from error
        except FormatError as error:
            if not self._has_bytes(path) or not self._was_flushed(log_dir, found):
                return None
            raise PartitionMetadataError(
                f"{at}: {error.message}; without it the topic of these records is not known, and nothing was changed: {repair}"
            ) from error

    def _set_stray(self, log_dir: str, path: str, found: PartitionDirectoryName, why: str) -> None:
        registry = self._registry
        name = partition_directory_name(found.topic, found.partition, DirectoryState.STRAY, registry.unique_id())
        target = join_path(log_dir, name)
        records = self._records_in(path)
        then = f"; its {records} are not served" if records else ""
        registry.report(WarningLine(f"{path}: {why}; renamed to {target}{then}", path=path, error=why, target=target))
        self._disk.rename(path, target)
        registry.flush_directory(log_dir)
        registry.stray_directories.append(target)

    def _is_second(self, log_dir: LogDir, path: str, found: PartitionDirectoryName, topic_id: Uuid) -> bool:
        """Return whether a directory was renamed to -stray, because its partition has another one; or rename the other one.

        If a log directory fails while a log is made in it, an empty log remains there, and the log is made in another one. If
        both have records, the metadata names the one that has replaced the other.
        """
        logs = self._logs_of(found)
        other = logs.get((found.topic, found.partition))
        if other is None:
            return False
        if not self._has_bytes(path):
            self._set_stray(log_dir.path, path, found, f"it is empty, and {other.directory} is another log of the partition")
            return True
        why = f"it is empty, and {path} is not"
        if self._has_bytes(other.directory):
            registered = self._directory_of(topic_id, found.partition)
            if registered is None or found.state is DirectoryState.FUTURE:
                return False
            why = f"the metadata has the replica in {registered}"
            if registered == self._registry.directory_id_of(other):
                self._set_stray(log_dir.path, path, found, why)
                return True
            if registered != log_dir.directory_id:
                return False
        del logs[found.topic, found.partition]
        other.close_files()
        self._set_stray(parent_path(other.directory), other.directory, found, why)
        return False

    def _has_bytes(self, path: str) -> bool:
        """Return whether a log has records, or had some."""
        found = ((name, parse_file_name(name)) for name in self._disk.list_directory(path))
        return any(
            file.base_offset or self._disk.size(join_path(path, name)) for name, file in found if file.kind is FileKind.LOG
        )

    def _records_in(self, path: str) -> str:
        """Return which records the headers of a log show, for a message; "" if it never had any. Raises OSError."""
        files = map(parse_file_name, self._disk.list_directory(path))
        bases = [file.base_offset for file in files if file.kind is FileKind.LOG and file.state is FileState.CURRENT]
        known = sorted(base for base in bases if base is not None)
        if not known or not self._has_bytes(path):
            return ""
        last = LogSegment(path, known[-1])
        last.size_bytes = self._disk.size(last.log_path)
        return f"records of offsets {known[0]} to {read_end(self._disk, last).next_offset - 1}"

    def _was_flushed(self, log_dir: LogDir, found: PartitionDirectoryName) -> bool:
        """Return whether a clean stop or a checkpoint shows a flush of partition.metadata: then no lost power tears the file.

        See LogCheckpoints. (Of a topic that was deleted and made again just before, an entry of the old log may remain.)
        """
        if log_dir.had_clean_shutdown:
            return True
        kinds = (FileKind.RECOVERY_POINT_CHECKPOINT, FileKind.REPLICATION_CHECKPOINT)
        entries = (log_dir.checkpoints[kind].read(lambda line: None) for kind in kinds)
        return any(offsets.get((found.topic, found.partition), 0) > 0 for offsets in entries)

    def _logs_of(self, found: PartitionDirectoryName) -> dict[TopicPartition, UnifiedLog]:
        return self._registry.future_logs if found.state is DirectoryState.FUTURE else self._registry.logs

    def _open(self, loading: _Loading, path: str, found: PartitionDirectoryName, topic_id: Uuid) -> Slices[None]:
        registry, log_dir = self._registry, loading.log_dir
        key = (found.topic, found.partition)
        logs = self._logs_of(found)
        if key in logs:
            raise DuplicateLogError(
                f"{found.topic}-{found.partition} has two logs, {logs[key].directory} and {path}: remove the older one, "
                "most likely that of the log directory which failed last"
            )
        high_watermark = loading.offset(FileKind.REPLICATION_CHECKPOINT, key)
        recovery_point = loading.offset(FileKind.RECOVERY_POINT_CHECKPOINT, key)
        known = KnownOffsets(high_watermark, recovery_point)
        journal = RecoveryJournal(*key, known, registry.report, loading.quarantine, loading.progress.counts)
        log = yield from registry.open_log(
            path,
            key,
            topic_id,
            self._config_of(found.topic),
            self._now_ms,
            clean_shutdown=log_dir.had_clean_shutdown,
            recovery_point=recovery_point,
            log_start_offset=loading.offset(FileKind.LOG_START_OFFSET_CHECKPOINT, key),
            high_watermark=high_watermark,
            journal=journal,
        )
        journal.loaded(log.log_end_offset)
        log.is_topic_id_flushed = max(high_watermark, recovery_point) > 0
        loading.progress.opened()
        log.update_high_watermark(high_watermark)
        log.cleaned_offset = loading.checkpoints[FileKind.CLEANER_CHECKPOINT].get(key)
        logs[key] = log
        if logs is registry.logs:
            registry.epoch_writer.defer_writes(log)
        if log_dir.had_clean_shutdown:
            registry.flush_log(log)  # missing indexes were rebuilt


class _Loading:
    """The load of one log directory: partitions by name, checkpoints, progress, and the quarantine of removed bytes."""

    def __init__(
        self,
        log_dir: LogDir,
        checkpoints: _Checkpoints,
        partitions: dict[str, PartitionDirectoryName],
        registry: LogRegistry,
        clock: Callable[[], int],
    ) -> None:
        self.log_dir = log_dir
        self.checkpoints = checkpoints
        self.partitions = partitions
        count = sum(found.state in _OPENED for found in partitions.values())
        self.progress = RecoveryProgress(log_dir.path, count, registry.report, clock)
        self.quarantine = quarantine_in(registry.disk, registry.settings.recovery_quarantine_dir, log_dir.path)
        self._is_recovery = count > 0 and not log_dir.had_clean_shutdown
        if self._is_recovery:
            self.progress.begin()

    def offset(self, kind: FileKind, key: TopicPartition) -> int:
        """Return the offset of a log in a checkpoint, 0 if it has no entry."""
        return self.checkpoints[kind].get(key, 0)

    def finish(self) -> None:
        """Report the end of the load."""
        if self.quarantine is not None:
            self.quarantine.finish()
        if self._is_recovery:
            self.progress.finish()


def close_logs(registry: LogRegistry, checkpoints: LogCheckpoints, broker_epoch: int) -> FlushSequence[None]:
    """Close all logs in time slices; see LogManager.shutdown."""
    for log_dir in registry.online_dirs():
        try:
            yield from _close_dir(registry, checkpoints, log_dir, broker_epoch)
        except OSError as error:
            registry.report(_not_marked(log_dir.path, error))
            log_dir.unlock()
    registry.logs.clear()
    registry.future_logs.clear()
    registry.files.close_all()


def _close_dir(registry: LogRegistry, checkpoints: LogCheckpoints, log_dir: LogDir, broker_epoch: int) -> FlushSequence[None]:
    logs = [log for log in registry.all_logs() if parent_path(log.directory) == log_dir.path]
    dirty: dict[str, None] = {}
    behind: list[tuple[UnifiedLog, str]] = []  # with the path of the leader epoch file
    for number, log in enumerate(logs, 1):
        dirty.update(dict.fromkeys(log.close(is_epoch_file_written=False)))
        if log.leader_epochs.is_unwritten:
            path = join_path(log.directory, FileKind.LEADER_EPOCH_CHECKPOINT.value)
            write_unflushed(registry.disk, path + FileState.TEMPORARY.value, log.leader_epochs.encoded())
            dirty[path + FileState.TEMPORARY.value] = None
            behind.append((log, path))
        if number % LOGS_CLOSED_PER_STEP == 0:
            yield ()
    if dirty:
        yield tuple(dirty)
    for number, (_, path) in enumerate(behind, 1):
        registry.disk.rename(path + FileState.TEMPORARY.value, path)
        if number % RENAMES_PER_STEP == 0:
            yield ()
    if behind:
        yield tuple(log.directory for log, _ in behind)
    for log, _ in behind:
        log.leader_epochs.written()
    offsets: _Checkpoints = {kind: {} for kind in log_dir.checkpoints}
    for number, log in enumerate(logs, 1):
        log.mark_flushed(log.log_end_offset)
        for kind, found in offsets.items():
            offset = checkpoints.offset_of(log, kind, is_closed=True)
            if offset is not None:
                found[log.topic, log.partition] = offset
        if number % OFFSETS_PER_STEP == 0:
            yield ()
    yield from log_dir.finish(broker_epoch, offsets)


def _not_marked(path: str, error: OSError) -> WarningLine:
    reason = error.strerror or error
    return WarningLine(
        f"{path}: {reason}: the stop of this log directory was not clean; the next start recovers its logs",
        path=path,
        error=reason,
    )
