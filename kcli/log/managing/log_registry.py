"""The logs of a broker, their log directories, and which of these are offline.

    state                                      changed by
    -----------------------------------------  -------------------------------------------------------------------------
    logs, future logs, by topic and partition  the modules that make, open, move or delete logs (kcli.log.log_manager,
                                               kcli.log.managing.log_startup, kcli.log.managing.replica_mover)
    log directories                            `take_offline`: requests for their partitions get KAFKA_STORAGE_ERROR;
                                               AllLogDirsOfflineError is raised after the last one
    requested flushes                          `queue_flush`; the broker takes them with `take_flushes`. Those of new logs,
                                               of log directories, of epoch files and of the periodic tasks are made together
                                               (kcli.log.disk.flush_request.FlushGroup), those that a client waits for alone
    directories of deleted logs                `set_aside`: renamed to -delete and removed later, or to -stray and kept

The parts of the log manager share the registry; none of them uses the manager above them.

LogCheckpoints writes the checkpoints of the log directories while the broker runs.

    checkpoint                         the entry of a log
    ---------------------------------  -----------------------------------------------------------------------------------
    recovery-point-offset-checkpoint   its recovery point
    log-start-offset-checkpoint        its log start offset, if that is above the first segment's base offset
    replication-offset-checkpoint      its high watermark, or 0 until its partition.metadata is on the device: so an entry
                                       above 0 shows that the file is there, as a recovery point above 0 does
    cleaner-offset-checkpoint          its first dirty offset, if it was cleaned

A log and its future log are in different directories, so each has its own entry.

LeaderEpochFileWriter writes the leader-epoch-checkpoint files of logs after their appends, so that no append waits for the
device.

    step                                               state after a crash
    -------------------------------------------------  ---------------------------------------------------------------
    the first record of an epoch is appended           the epoch is not in the file; recovery finds it in the records,
                                                       which are above the recovery point
    the file is replaced (kcli.log.disk.flush_request) the complete old file or the complete new one
    the log is flushed and the file is up to date      the epoch is in the file; only now does the recovery point rise

Kafka writes the file before the append and waits for the device. When many partitions get their first record together, their
files are flushed together; FILES_PER_STEP are written in a time slice. A future log is not in service and writes its file at
once. The file of a log that has left service is not written, because a new log may have the same directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from kcli.format.file_names import DirectoryState, FileKind, partition_directory_name
from kcli.format.kafka_uuid import UUID_BYTES, Uuid
from kcli.format.metadata_files import PartitionMetadata, encode_partition_metadata
from kcli.format.primitives import TopicPartition
from kcli.log.disk.deletion_queue import NEVER_MS, DeletionQueue
from kcli.log.disk.flush_request import FlushGroup, FlushRequest, FlushSequence, begin_flushes, replace_files
from kcli.log.disk.port import Disk, LogDisk, join_path, parent_path
from kcli.log.errors import AllLogDirsOfflineError, KafkaStorageError, LogDirNotFoundError
from kcli.log.file_cache import FileCache
from kcli.log.loading.recovery_journal import LoadJournal
from kcli.log.log_config import LogConfig
from kcli.log.log_opener import open_in_slices
from kcli.log.managing.log_dir import LogDir
from kcli.log.report_line import WarningLine
from kcli.log.rng import Random
from kcli.log.slices import Slices, finish
from kcli.log.unified_log import UnifiedLog
from kcli.log.wall_time import WallTime

# The epoch files that are written in a time slice, without their flushes.
FILES_PER_STEP = 16


class LogManagerSettings(NamedTuple):
    """The broker's settings for logs, in ms and bytes, with Kafka's defaults; INT64_MAX means never."""

    retention_check_interval_ms: int = 300_000  # log.retention.check.interval.ms
    flush_scheduler_interval_ms: int = (1 << 63) - 1  # log.flush.scheduler.interval.ms
    flush_offset_checkpoint_interval_ms: int = 60_000  # log.flush.offset.checkpoint.interval.ms
    flush_start_offset_checkpoint_interval_ms: int = 60_000  # log.flush.start.offset.checkpoint.interval.ms
    high_watermark_checkpoint_interval_ms: int = 5_000  # replica.high.watermark.checkpoint.interval.ms
    file_delete_delay_ms: int = 60_000  # log.segment.delete.delay.ms, for whole directories
    initial_task_delay_ms: int = 30_000  # log.initial.task.delay.ms
    producer_id_expiration_ms: int = 86_400_000  # producer.id.expiration.ms
    producer_id_expiration_check_interval_ms: int = 600_000  # producer.id.expiration.check.interval.ms
    alter_log_dirs_max_bytes_per_second: int = (1 << 63) - 1  # replica.alter.log.dirs.io.max.bytes.per.second
    cleaner_enable: bool = True  # log.cleaner.enable
    cleaner_threads: int = 1  # log.cleaner.threads
    cleaner_dedupe_buffer_bytes: int = 134_217_728  # log.cleaner.dedupe.buffer.size
    cleaner_io_buffer_bytes: int = 524_288  # log.cleaner.io.buffer.size
    cleaner_load_factor: float = 0.9  # log.cleaner.io.buffer.load.factor
    cleaner_max_bytes_per_second: float = float("inf")  # log.cleaner.io.max.bytes.per.second
    cleaner_backoff_ms: int = 15_000  # log.cleaner.backoff.ms
    recovery_quarantine_dir: str = ""  # kcli.recovery.quarantine.dir


class LogRegistry:
    """The state in the table of this module.

    `log_dirs` are the directory ids by path, in the order of log.dirs, None if meta.properties has no id. `report` writes a
    line of the broker's log (kcli.log.report_line). `logs` and `future_logs` are by (topic, partition).
    Raises LogDirLockedError if another process uses a directory, AllLogDirsOfflineError if none can be used.
    """

    def __init__(
        self,
        disk: LogDisk,
        files: FileCache,
        log_dirs: Mapping[str, Uuid | None],
        rng: Random,
        settings: LogManagerSettings = LogManagerSettings(),  # noqa: B008
        report: Callable[[str], None] = lambda line: None,
        wall: WallTime | None = None,
    ) -> None:
        self.disk = disk
        self.files = files
        self.settings = settings
        self.wall = wall or WallTime()
        self.report = report
        self.logs: dict[TopicPartition, UnifiedLog] = {}
        self.future_logs: dict[TopicPartition, UnifiedLog] = {}
        self.offline_partitions: dict[TopicPartition, str] = {}  # the log directory of each
        self.stray_directories: list[str] = []
        self.preferred_dirs: dict[TopicPartition, str] = {}
        self.deletions = DeletionQueue(disk, lambda path, error: self._take_offline(path, error))
        self.dirs = {path: LogDir(disk, path, directory_id) for path, directory_id in log_dirs.items()}
        self._rng = rng
        self._flushes: list[FlushRequest] = []
        self._topic_id_flushes: set[str] = set()  # the directories of partitions
        self._flush_groups = {path: FlushGroup(self.queue_flush) for path in self.dirs}
        self.epoch_writer = LeaderEpochFileWriter(disk, self._begin_with_others, self._fail_unless_gone, self.is_live)
        self._open_dirs()

    def _open_dirs(self) -> None:
        try:
            for log_dir in self.dirs.values():
                try:
                    log_dir.open()
                except OSError as error:
                    self.take_offline(log_dir.path, error)
        except Exception:
            for log_dir in self.dirs.values():
                log_dir.unlock()
            raise

    # ------------------------------------------------------------------------------------------------------ durability

    def take_flushes(self) -> list[FlushRequest]:
        """Return the flushes that were requested since the last call."""
        for group in self._flush_groups.values():
            self.queue_flush(group.begin())
        taken, self._flushes = self._flushes, []
        return taken

    def queue_flush(self, request: FlushRequest | None) -> None:
        """Request a flush; None is ignored."""
        if request is not None:
            self._flushes.append(request)

    def flush_log(self, log: UnifiedLog) -> None:
        """Request a flush of a log, with others of its log directory; its recovery point rises when that is done."""
        self._begin_with_others(log.directory, self._flush(log))

    def _begin_with_others(self, directory: str, flushes: FlushSequence[None]) -> None:
        """Begin flushes of a partition's directory, with others of the same log directory."""
        self._flush_groups[parent_path(directory)].add(flushes)

    def flush_request(self, log: UnifiedLog) -> FlushRequest | None:
        """Begin to make the log durable up to its present end; None if it is."""
        return begin_flushes(self._flush(log))

    def flush_topic_id(self, log: UnifiedLog) -> None:
        """Request a flush of a log's partition.metadata if its high watermark waits for that."""
        if log.high_watermark > 0 and not self.is_topic_id_flushed(log) and log.directory not in self._topic_id_flushes:
            self._begin_with_others(log.directory, self._flush_topic_id(log))

    def _flush_topic_id(self, log: UnifiedLog) -> FlushSequence[None]:
        directory = log.directory
        self._topic_id_flushes.add(directory)
        try:
            yield tuple(log.unflushed_topic_id())
        except OSError as error:
            # A future log that has replaced its log has another directory now; the next sweep flushes that.
            self._fail_unless_gone(log, error if log.directory == directory else None)
        else:
            log.is_topic_id_flushed = True
        self._topic_id_flushes.discard(directory)

    @staticmethod
    def is_topic_id_flushed(log: UnifiedLog) -> bool:
        """Return whether a log's partition.metadata is known to be on the device."""
        if not log.is_topic_id_flushed:
            log.is_topic_id_flushed = not log.unflushed_topic_id()
        return log.is_topic_id_flushed

    def _flush(self, log: UnifiedLog) -> FlushSequence[None]:
        paths = tuple(log.unflushed_paths())
        while paths:
            offset, truncations = log.log_end_offset, log.truncation_count
            try:
                yield paths
            except OSError as error:
                failed = paths
                if isinstance(error, FileNotFoundError) and self.is_live(log):
                    paths = tuple(log.unflushed_paths())
                if paths == failed:
                    self._fail_unless_gone(log, error)
                    return
                continue  # a segment was deleted or cut concurrently
            yield from self.epoch_writer.write(log)
            if not log.leader_epochs.is_unwritten and log.truncation_count == truncations:
                log.mark_flushed(offset)
            return

    def is_live(self, log: UnifiedLog) -> bool:
        """Return whether a log is in service."""
        key = (log.topic, log.partition)
        return self.logs.get(key) is log or self.future_logs.get(key) is log

    def _fail_unless_gone(self, log: UnifiedLog, error: OSError | None) -> None:
        """Take the log directory of a log offline, unless the error is that a deleted log's files are missing."""
        if error is not None and (self.is_live(log) or not isinstance(error, FileNotFoundError)):
            self._take_offline(log.directory, error)

    def failing(self, path: str) -> Callable[[OSError | None], None]:
        """Return a callback that takes the log directory of `path` offline if it is called with an error."""
        return lambda error: None if error is None else self._take_offline(path, error)

    def flush_directory(self, path: str) -> None:
        """Request a flush of a log directory: once for all requests until it begins."""

        def flushes() -> FlushSequence[None]:
            try:
                yield (path,)
            except OSError as error:
                self._take_offline(path, error)

        self._flush_groups[path].add(flushes())

    # --------------------------------------------------------------------------------------------------------- finding

    def get_log(self, topic: str, partition: int, *, future: bool = False) -> UnifiedLog | None:
        """Return the log of a partition, None if there is none. Raises KafkaStorageError if its log directory is offline."""
        key = (topic, partition)
        log = (self.future_logs if future else self.logs).get(key)
        if log is None and not future and key in self.offline_partitions:
            raise KafkaStorageError(f"{topic}-{partition} is in {self.offline_partitions[key]}, which is offline")
        return log

    def all_logs(self) -> list[UnifiedLog]:
        """Return the logs and the future logs."""
        return [*self.logs.values(), *self.future_logs.values()]

    def log_dir_of(self, log: UnifiedLog) -> LogDir:
        """Return the log directory of a log."""
        return self.dirs[parent_path(log.directory)]

    def directory_id_of(self, log: UnifiedLog) -> Uuid | None:
        """Return the id of the log directory of a log."""
        return self.log_dir_of(log).directory_id

    def online_dirs(self) -> list[LogDir]:
        """Return the log directories that are online."""
        return [log_dir for log_dir in self.dirs.values() if log_dir.is_online]

    def offline_directory_ids(self) -> list[Uuid]:
        """Return the ids of the log directories that are offline, for heartbeats."""
        return [found.directory_id for found in self.dirs.values() if not found.is_online and found.directory_id is not None]

    # -------------------------------------------------------------------------------------------------------- making

    def random_bytes(self, count: int) -> bytes:
        """Return `count` random bytes."""
        return self._rng.randbytes(count)

    def unique_id(self) -> str:
        """Return 32 random hex digits for the name of a deleted, future or stray directory."""
        return self._rng.randbytes(UUID_BYTES).hex()

    def create_log(
        self, key: TopicPartition, name: str, topic_id: Uuid, config: LogConfig, dirs: Iterable[LogDir], now_ms: int
    ) -> UnifiedLog:
        """Make a log directory `name` in the first of `dirs` without an error. Raises KafkaStorageError if all have one."""
        for log_dir in dirs:
            if log_dir.is_online:
                try:
                    return self._create_log_in(log_dir, key, name, topic_id, config, now_ms)
                except OSError as error:
                    self.take_offline(log_dir.path, error)
        raise KafkaStorageError(f"cannot make the log {name}: no log directory for it is online")

    def _create_log_in(
        self, log_dir: LogDir, key: TopicPartition, name: str, topic_id: Uuid, config: LogConfig, now_ms: int
    ) -> UnifiedLog:
        directory = join_path(log_dir.path, name)
        metadata = join_path(directory, FileKind.PARTITION_METADATA.value)
        self.disk.make_directory(directory)
        names = self.disk.list_directory(directory)
        if FileKind.PARTITION_METADATA.value not in names:
            self.disk.append(metadata, encode_partition_metadata(PartitionMetadata(0, topic_id)))
        log = finish(self.open_log(directory, key, topic_id, config, now_ms, names=names))
        log.add_unflushed((metadata, directory, log_dir.path))
        self.flush_log(log)
        return log

    def open_log(
        self,
        directory: str,
        key: TopicPartition,
        topic_id: Uuid | None,
        config: LogConfig,
        now_ms: int,
        *,
        clean_shutdown: bool = False,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        high_watermark: int = 0,
        journal: LoadJournal | None = None,
        names: list[str] | None = None,
    ) -> Slices[UnifiedLog]:
        """Open the log in a partition's directory; see kcli.log.log_opener.open_in_slices."""
        wall_ms = self.wall.at(now_ms)
        log = yield from open_in_slices(
            self.disk,
            self.files,
            directory,
            *key,
            config,
            wall_ms,
            clean_shutdown=clean_shutdown,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            high_watermark=high_watermark,
            topic_id=topic_id,
            rng=self._rng,
            journal=journal,
            names=names,
        )
        log.begin_flush_interval(now_ms)
        log.producers.remove_expired(wall_ms, self.settings.producer_id_expiration_ms)
        return log

    # -------------------------------------------------------------------------------------------------------- removing

    def set_aside(self, log: UnifiedLog, now_ms: int, state: DirectoryState = DirectoryState.DELETE) -> None:
        """Rename the directory of a deleted log and remove it file.delete.delay.ms later; a stray one is kept."""
        directory = log.directory
        log_dir = self.dirs[parent_path(directory)]
        target = join_path(log_dir.path, partition_directory_name(log.topic, log.partition, state, self.unique_id()))
        try:
            log.close_files()
            self.disk.rename(directory, target)
        except OSError as error:
            self.take_offline(log_dir.path, error)
            return
        self.flush_directory(log_dir.path)
        if state is DirectoryState.STRAY:
            self.stray_directories.append(target)
        else:
            self.deletions.add((target,), now_ms + self.settings.file_delete_delay_ms)

    # --------------------------------------------------------------------------------------------------------- failing

    def take_offline(self, path: str, error: OSError) -> list[TopicPartition]:
        """Take the log directory that is or contains `path` offline after an error; return its partitions.

        Requests for these get KAFKA_STORAGE_ERROR from now on. Raises AllLogDirsOfflineError if it was the last one.
        """
        log_dir = self._containing_dir(path)
        if not log_dir.is_online:
            return []
        where = f" ({error.filename})" if error.filename and error.filename != log_dir.path else ""
        reason = f"{log_dir.path}: {error.strerror or error}{where}: the log directory is offline until the broker restarts"
        log_dir.fail(reason)
        self.report(WarningLine(reason, path=log_dir.path, error=error.strerror or error))
        lost = []
        for logs in (self.logs, self.future_logs):
            for key, log in list(logs.items()):
                if parent_path(log.directory) == log_dir.path:
                    del logs[key]
                    log.close_files()
                    if logs is self.logs:
                        self.offline_partitions[key] = log_dir.path
                        lost.append(key)
        self.deletions.forget(log_dir.path)
        if not self.online_dirs():
            reasons = "; ".join(failed.offline_reason or "" for failed in self.dirs.values())
            raise AllLogDirsOfflineError(f"all log directories are offline: {reasons}")
        return lost

    def _take_offline(self, path: str, error: OSError) -> None:
        self.take_offline(path, error)

    def _containing_dir(self, path: str) -> LogDir:
        """Return the log directory that is or contains `path`. Raises LogDirNotFoundError."""
        at = path
        while at not in self.dirs:
            parent = parent_path(at)
            if parent == at:
                raise LogDirNotFoundError(f"{path} is not in a directory of log.dirs ({', '.join(self.dirs)})")
            at = parent
        return self.dirs[at]


class LogCheckpoints:
    """The checkpoints of a registry's log directories; an error takes the log directory offline."""

    def __init__(self, registry: LogRegistry) -> None:
        self._registry = registry

    @staticmethod
    def offset_of(log: UnifiedLog, kind: FileKind, *, is_closed: bool = False) -> int | None:
        """Return the offset of a log, which may be closed, in a checkpoint, None if it has no entry there."""
        if kind is FileKind.RECOVERY_POINT_CHECKPOINT:
            return log.recovery_point if is_closed else log.open_recovery_point
        if kind is FileKind.REPLICATION_CHECKPOINT:
            return log.high_watermark if log.high_watermark <= 0 or LogRegistry.is_topic_id_flushed(log) else 0
        if kind is FileKind.CLEANER_CHECKPOINT:
            return log.cleaned_offset
        return log.log_start_offset if log.log_start_offset > log.first_base_offset else None

    def offsets_in(self, log_dir: LogDir, kind: FileKind) -> dict[TopicPartition, int]:
        """Return the present entries of a checkpoint of a log directory."""
        found = {}
        for log in self._registry.all_logs():
            if parent_path(log.directory) == log_dir.path:
                offset = self.offset_of(log, kind)
                if offset is not None:
                    found[log.topic, log.partition] = offset
        return found

    def write_all(self, log_dir: LogDir, kind: FileKind) -> None:
        """Write a checkpoint of a log directory with all its logs."""
        self.write(log_dir, kind, self.offsets_in(log_dir, kind))

    def write(self, log_dir: LogDir, kind: FileKind, offsets: Mapping[TopicPartition, int]) -> None:
        """Write a checkpoint of a log directory with these offsets."""
        if not log_dir.is_online:
            return
        registry = self._registry
        try:
            registry.queue_flush(log_dir.checkpoints[kind].write(offsets, registry.failing(log_dir.path)))
        except OSError as error:
            registry.take_offline(log_dir.path, error)


class LeaderEpochFileWriter:
    """The logs whose leader-epoch-checkpoint is out of date.

    `begin(directory, flushes)` begins flushes of a partition's directory, `fail(log, error)` handles a disk error,
    `is_live(log)` returns whether a log is in service.
    """

    def __init__(
        self,
        disk: Disk,
        begin: Callable[[str, FlushSequence[None]], None],
        fail: Callable[[UnifiedLog, OSError | None], None],
        is_live: Callable[[UnifiedLog], bool],
    ) -> None:
        self._disk = disk
        self._begin = begin
        self._fail = fail
        self._is_live = is_live
        self._waiting: dict[UnifiedLog, None] = {}
        self._has_ended = False
        self._wake: Callable[[int], None] | None = None

    def on_work(self, wake: Callable[[int], None]) -> None:
        """Call `wake(due_ms)` when there is work; before this is set, files are written at once."""
        self._wake = wake

    def defer_writes(self, log: UnifiedLog) -> None:
        """Write the file of a log after its appends from now on."""
        log.leader_epochs.defer = partial(self._note, log)

    def _note(self, log: UnifiedLog) -> bool:
        if self._wake is None:
            return False
        self._waiting[log] = None
        self._wake(0)
        return True

    def end(self) -> None:
        """Write no more files, and finish no write: the logs are closing, and the clean stop writes the files."""
        self._has_ended = True

    def run(self, now_ms: int) -> int:
        """Start writing some of the outdated files; return `now_ms` if there are more, else NEVER_MS."""
        for _ in range(min(FILES_PER_STEP, len(self._waiting))):
            log = next(iter(self._waiting))
            del self._waiting[log]
            self._begin(log.directory, self.write(log))
        return now_ms if self._waiting else NEVER_MS

    def write(self, log: UnifiedLog) -> FlushSequence[None]:
        """Write a log's file if it is behind and the log is in service; `fail` gets an error of the disk."""
        epochs = log.leader_epochs
        if self._has_ended or not epochs.is_unwritten or not self._is_live(log):
            return
        version = epochs.begin_write()

        def is_wanted() -> bool:
            return epochs.version == version and self._is_live(log) and not self._has_ended

        path = join_path(log.directory, FileKind.LEADER_EPOCH_CHECKPOINT.value)
        try:
            yield from replace_files(self._disk, {path: epochs.encoded()}, is_wanted)
        except OSError as error:
            if is_wanted():  # else the directory may have another name by now
                self._fail(log, error)
        else:
            if is_wanted():
                epochs.written()
