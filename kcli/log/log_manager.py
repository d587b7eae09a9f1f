"""All logs of a broker in its log directories: open, find, make, delete, checkpoint, describe, close (Kafka: LogManager).

    what                       how
    -------------------------  -----------------------------------------------------------------------------------------
    start                      `start` (kcli.log.managing.log_startup): a generator of time slices
    a new partition            is made in the directory with the requested id, else in the one with the fewest logs that
                               is not cordoned
    deletion                   the directory is renamed to `<topic>-<partition>.<32 hex digits>-delete` and removed later
    background tasks           see below: retention, flushes, checkpoints, deletions, producers, moving replicas;
                               kcli.log.cleaner: compacted logs, the one with the largest dirty ratio first
    a disk error               kcli.log.managing.log_registry takes the log directory offline
    clean stop                 `shutdown`: a generator; logs are closed and flushed, then checkpoints and clean stop marks

Only the last step of `shutdown` waits for a device: other flushes are queued, and the broker takes them with `take_flushes`
after each event (see kcli.log.disk.flush_request). A caller that gets an OSError from a log passes it to `take_offline`.

DescribeLogDirs (KIP-113, KIP-827): the offset lag of a future log is the number of offsets that it is behind its log. For any
other log the lag is max(0, high watermark - log end offset). It is above 0 only after a truncation.

A timer calls the background tasks of a broker's logs in time slices (Kafka: LogManager, KafkaScheduler).

    task (Kafka's name)                  every                                               does
    -----------------------------------  --------------------------------------------------  -------------------------------
    kafka-log-retention                  log.retention.check.interval.ms                     deletes segments by retention;
                                                                                             files are removed later
    kafka-log-flusher                    log.flush.scheduler.interval.ms                     flushes logs by flush.ms
    kafka-recovery-point-checkpoint      log.flush.offset.checkpoint.interval.ms             writes recovery points
    kafka-log-start-offset-checkpoint    log.flush.start.offset.checkpoint.interval.ms       writes log start offsets
    highwatermark-checkpoint             replica.high.watermark.checkpoint.interval.ms       writes high watermarks
    kafka-delete-logs                    when a deletion is due                              removes files and directories
    PeriodicProducerExpirationCheck      producer.id.expiration.check.interval.ms            removes idle producers
    flush-log                            with high watermarks (Kafka: at each roll)          flushes logs that were rolled, so
                                                                                             that recovery reads less
    ReplicaAlterLogDirsThread            while a replica is moving                           kcli.log.managing.replica_mover
    leader-epoch-checkpoint              with the first record of an epoch                   LeaderEpochFileWriter;
                                                                                             not a task in Kafka
    closed-segment-check                 once, 1 segment each 10 ms                          ClosedSegmentCheck;
                                                                                             not a task in Kafka
    kafka-log-cleaner-thread-0           while a log is dirty, else log.cleaner.backoff.ms   kcli.log.cleaner.log_cleaner,
                                                                                             scheduled by LogManager

A sweep visits all logs, LOGS_PER_STEP in a step, and is called again at once until it has visited all; it does not visit logs
that are made during the sweep. `run` of a task returns the time of its next call.

An unexpected exception of a task is logged, and the task continues as with KafkaScheduler: a sweep with the next log (it writes
no checkpoint then), any other task after FAULT_PAUSE_MS. OSError and StorageError are passed on (see LogRegistry).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kcli.format.file_names import DirectoryState, FileKind, partition_directory_name
from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import TopicPartition
from kcli.log.disk.deletion_queue import NEVER_MS
from kcli.log.disk.flush_request import FlushSequence
from kcli.log.disk.port import LogDisk, parent_path
from kcli.log.errors import InconsistentTopicIdError, KafkaStorageError, StorageError
from kcli.log.file_cache import FileCache
from kcli.log.log_config import LogConfig
from kcli.log.log_opener import SegmentEnd, read_end
from kcli.log.log_segment import LogSegment
from kcli.log.managing.log_dir import CHECKPOINT_KINDS, LogDir
from kcli.log.managing.log_registry import LogCheckpoints, LogManagerSettings, LogRegistry
from kcli.log.managing.replica_mover import CaughtUp, ReplicaMover
from kcli.log.report_line import WarningLine, fault_line
from kcli.log.rng import Random
from kcli.log.slices import Slices, finish
from kcli.log.unified_log import UnifiedLog
from kcli.log.wall_time import WallTime

if TYPE_CHECKING:
    from kcli.log.cleaner.log_cleaner import LogCleaner

NO_CLEANER = (
    "log.cleaner.enable=false: topics with cleanup.policy=compact are neither compacted nor limited by retention, and grow; "
    "Kafka 5.0 will ignore this setting"
)
# Directory ids that do not identify a directory (Kafka: DirectoryId.UNASSIGNED, LOST, MIGRATING).
_RESERVED_DIRECTORY_IDS = frozenset(Uuid(number.to_bytes(16, "big")) for number in range(100))


UNKNOWN_BYTES = -1  # of a file system that cannot be read


class ReplicaInfo(NamedTuple):
    """A replica in a log directory; `size_bytes` is the size of its segments."""

    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    is_future: bool


class LogDirDescription(NamedTuple):
    """A log directory; total and usable bytes are those of its file system. One that is offline has no replicas."""

    path: str
    directory_id: Uuid | None
    offline_reason: str | None
    total_bytes: int
    usable_bytes: int
    replicas: list[ReplicaInfo]


class LogManager(LogRegistry):
    """All logs of a broker; the parameters are those of LogRegistry.

    `on_caught_up(topic, partition, now_ms)` is called when a future log has all records of its log (see ReplicaMover).
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
        on_caught_up: CaughtUp = lambda topic, partition, now_ms: None,
    ) -> None:
        super().__init__(disk, files, log_dirs, rng, settings, report, wall)
        self.checkpoints = LogCheckpoints(self)
        self.mover = ReplicaMover(self, on_caught_up)
        # The directories that get no new logs (KIP-1066), which may change at any time.
        self.cordoned_dirs: Callable[[], Collection[str]] = lambda: ()
        self.tasks_began_ms = 0
        self._is_closing = False
        self._cleaning: Task | None = None
        self._outdated: dict[str, None] = {}  # directories whose recovery points are to be written

    @cached_property
    def cleaner(self) -> LogCleaner:
        """The cleaner of compacted logs; its modules are imported at its first use, so that a start does not wait for them."""
        from kcli.log.cleaner.log_cleaner import LogCleaner
        from kcli.log.cleaner.log_cleaner_manager import LogCleanerManager

        cleaner_manager = LogCleanerManager(
            self, lambda log: self.checkpoints.write_all(self.log_dir_of(log), FileKind.CLEANER_CHECKPOINT)
        )
        return LogCleaner(self, cleaner_manager, lambda at_ms: None if self._cleaning is None else self._cleaning.wake(at_ms))

    def start(
        self,
        config_of: Callable[[str], LogConfig],
        is_hosted: Callable[[Uuid, int], bool],
        now_ms: int,
        directory_of: Callable[[Uuid, int], Uuid | None] = lambda topic_id, partition: None,
        clock: Callable[[], int] | None = None,
        is_known: Callable[[Uuid], bool] | None = None,
        topic_id_of: Callable[[str], Uuid | None] = lambda topic: None,
    ) -> Iterator[None]:
        """Open all logs, in time slices.

        `config_of` returns a topic's settings, `is_hosted` whether the metadata places a partition of a topic id on this
        broker, and `directory_of` in which log directory, if known. `clock` returns the present time in ms. `is_known` returns
        whether the metadata has, or had, a topic; None accepts that it has no topic of the logs. `topic_id_of` returns the
        topic id of a name; if it does, a log with records must have its partition.metadata.
        Raises what LogStartup.run does, and AllLogDirsOfflineError; the broker cannot start then.
        """
        from kcli.log.managing.log_startup import LogStartup

        return LogStartup(
            self, config_of, is_hosted, directory_of, now_ms, clock or (lambda: now_ms), is_known, topic_id_of
        ).run()

    def begin_tasks(self, now_ms: int, schedule: Schedule, after: Callable[[int], None]) -> None:
        """Schedule the background tasks (kcli.log.log_manager).

        `schedule(at_ms, callback)` is the timer's; `after(now_ms)` is called after each step, for its flushes. The tasks end
        with `shutdown`, since a change of a closed log would make the stop unclean.
        """

        def until_shutdown(at_ms: int, callback: Callable[[int], None]) -> Cancellable:
            return schedule(at_ms, lambda now_ms: None if self._is_closing else callback(now_ms))

        def is_uncleanable(log: UnifiedLog) -> bool:
            return log in self.cleaner.manager.uncleanable

        begin_tasks(self, self.checkpoints, self.mover, is_uncleanable, now_ms, until_shutdown, after)
        self.tasks_began_ms = now_ms
        if self.settings.cleaner_enable:
            self._cleaning = Task(
                "kafka-log-cleaner-thread-0", lambda now_ms: self.cleaner.run(now_ms), until_shutdown, after, self.report
            )
            self._cleaning.wake(now_ms + self.settings.cleaner_backoff_ms)
        else:
            self.report(WarningLine(NO_CLEANER, key="log.cleaner.enable"))

    def change_settings(self, **settings: Any) -> None:
        """Change settings of LogManagerSettings. The cleaner checks all logs at once, as Kafka's does, which is restarted."""
        self.settings = self.settings._replace(**settings)
        if self._cleaning is not None:
            self.cleaner.skip_backoff()

    def clean_broker_epoch(self) -> int:
        """Return the broker epoch of the last stop if it was clean and the same in all log directories, else -1."""
        epochs = {log_dir.clean_broker_epoch if log_dir.is_online else None for log_dir in self.dirs.values()}
        epoch = epochs.pop() if len(epochs) == 1 else None
        return -1 if epoch is None else epoch

    # -------------------------------------------------------------------------------------------------------- creating

    def get_or_create_log(
        self,
        topic: str,
        partition: int,
        topic_id: Uuid,
        config: LogConfig,
        *,
        now_ms: int,
        directory_id: Uuid | None = None,
        is_new: bool = False,
    ) -> UnifiedLog:
        """Return the log of a partition; make it in the directory with that id, or in the one with the fewest logs.

        `is_new` means that the partition was just created: otherwise a missing log may be in a directory that is offline.
        Raises KafkaStorageError, and InconsistentTopicIdError if the log belongs to another topic id.
        """
        key = (topic, partition)
        log = self.get_log(*key)
        if log is None:
            offline = [log_dir.path for log_dir in self.dirs.values() if not log_dir.is_online]
            if offline and not is_new:
                raise KafkaStorageError(
                    f"cannot make a log for {topic}-{partition}: it may be in {', '.join(offline)}, which is offline"
                )
            name = partition_directory_name(topic, partition)
            log = self.create_log(
                (topic, partition), name, topic_id, config, self._wanted_dirs((topic, partition), directory_id), now_ms
            )
            self.logs[topic, partition] = log
            self.preferred_dirs.pop((topic, partition), None)
            self.epoch_writer.defer_writes(log)
        elif log.topic_id is not None and log.topic_id != topic_id:
            raise InconsistentTopicIdError(
                f"{log.directory} belongs to topic id {Uuid(log.topic_id)}, not to {topic_id}: "
                "the topic was deleted and created again"
            )
        return log

    def _wanted_dirs(self, key: TopicPartition, directory_id: Uuid | None) -> list[LogDir]:
        """Return the log directories for a new partition, the best first; a requested one is the only one."""
        wanted = self.preferred_dirs.get(key)
        if wanted is None and directory_id is not None and directory_id not in _RESERVED_DIRECTORY_IDS:
            found = [log_dir for log_dir in self.online_dirs() if log_dir.directory_id == directory_id]
            if found:
                return found
        if wanted is not None:
            return [self.dirs[wanted]]
        counts = dict.fromkeys(self.dirs, 0)
        for log in self.all_logs():
            counts[parent_path(log.directory)] += 1
        cordoned = self.cordoned_dirs()
        online = list(self.online_dirs())
        usable = [log_dir for log_dir in online if log_dir.path not in cordoned] or online
        return sorted(usable, key=lambda log_dir: counts[log_dir.path])

    # ------------------------------------------------------------------------------------------------- configurations

    def update_topic_config(self, topic: str, partitions: Iterable[int], config: LogConfig) -> None:
        """Apply settings to the open logs of these partitions.

        It does not visit other logs, because after a change of a broker default it is called for each topic.
        """
        for partition in partitions:
            for logs in (self.logs, self.future_logs):
                log = logs.get((topic, partition))
                if log is not None:
                    log.config = config

    # ------------------------------------------------------------------------------------------------------ describing

    def describe_log_dirs(self) -> list[LogDirDescription]:
        """Describe the log directories, in the order of log.dirs; one whose file system returns an error goes offline."""
        by_dir: dict[str, list[ReplicaInfo]] = {}
        for logs in (self.logs, self.future_logs):
            is_future = logs is self.future_logs
            for (topic, partition), log in sorted(logs.items()):
                lag = _offset_lag(log, self.logs.get((topic, partition)) if is_future else None)
                info = ReplicaInfo(topic, partition, log.size_bytes, lag, is_future)
                by_dir.setdefault(parent_path(log.directory), []).append(info)
        found = []
        for log_dir in self.dirs.values():
            total_bytes = usable_bytes = UNKNOWN_BYTES
            if log_dir.is_online:
                try:
                    total_bytes, usable_bytes = self.disk.total_bytes(log_dir.path), self.disk.free_bytes(log_dir.path)
                except OSError as error:
                    self.take_offline(log_dir.path, error)
            replicas = by_dir.get(log_dir.path, []) if log_dir.is_online else []
            found.append(
                LogDirDescription(
                    log_dir.path, log_dir.directory_id, log_dir.offline_reason, total_bytes, usable_bytes, replicas
                )
            )
        return found

    # ------------------------------------------------------------------------------------------------------ truncating

    def truncate(self, log: UnifiedLog, offset: int, now_ms: int) -> None:
        """Remove a follower's records from `offset` on, which the leader does not have. Raises OSError.

        `write_truncated` must follow before other records are appended.
        """
        recovery_point = log.recovery_point
        self._truncated(log, log.truncate_to(offset, self.wall.at(now_ms)), recovery_point, now_ms)

    def truncate_fully(self, log: UnifiedLog, offset: int, now_ms: int, log_start_offset: int | None = None) -> None:
        """Remove all records of a follower, and begin at `offset`. Raises OSError. `write_truncated` must follow."""
        recovery_point = log.recovery_point
        renamed = log.truncate_fully_and_start_at(offset, self.wall.at(now_ms), log_start_offset)
        self._truncated(log, renamed, recovery_point, now_ms)

    def _truncated(self, log: UnifiedLog, renamed: list[str], recovery_point: int, now_ms: int) -> None:
        self.deletions.add(renamed, now_ms + log.config.file_delete_delay_ms)
        if log.recovery_point != recovery_point:
            self._outdated[self.log_dir_of(log).path] = None

    def write_truncated(self) -> None:
        """Write the recovery points of the directories with truncated logs.

        A recovery after a crash would otherwise believe that the records which follow a truncation were flushed.
        """
        outdated, self._outdated = self._outdated, {}
        for path in outdated:
            self.checkpoints.write_all(self.dirs[path], FileKind.RECOVERY_POINT_CHECKPOINT)

    # -------------------------------------------------------------------------------------------------------- removing

    def delete_logs(
        self, partitions: Iterable[TopicPartition], now_ms: int, *, stray: bool = False, with_checkpoints: bool = True
    ) -> None:
        """Delete the logs and future logs of partitions; partitions without a log are skipped.

        Directories are renamed at once and removed file.delete.delay.ms later; with `stray` they are renamed and kept. A caller
        that deletes many logs in several calls omits the checkpoints, and calls `remove_deleted` at the end. Raises
        KafkaStorageError if a log is in a directory that is offline.
        """
        offline = []
        for key in partitions:
            offline += [key] if self.offline_partitions.get(key) else []
            for logs in (self.logs, self.future_logs):
                log = logs.pop(key, None)
                if log is not None:
                    self.set_aside(log, now_ms, DirectoryState.STRAY if stray else DirectoryState.DELETE)
        if with_checkpoints:
            finish(self.remove_deleted())
        if offline:
            names = ", ".join(f"{topic}-{partition}" for topic, partition in offline)
            raise KafkaStorageError(f"cannot delete {names} while the log directory is offline")

    def remove_deleted(self) -> Slices[None]:
        """Remove the entries of deleted logs from the checkpoints and from the cleaner, in time slices."""
        sweeps = [CheckpointSweep(self, self.checkpoints, kind) for kind in CHECKPOINT_KINDS]
        for number, log in enumerate(self.all_logs(), 1):
            for sweep in sweeps:
                sweep.visit(log, 0)
            if number % LOGS_PER_STEP == 0:
                yield
        for sweep in sweeps:
            sweep.finish()
            if len(self.logs) > LOGS_PER_STEP:
                yield
        if self._cleaning is not None:
            self.cleaner.manager.remove_deleted()

    # -------------------------------------------------------------------------------------------------------- stopping

    def shutdown(self, broker_epoch: int) -> FlushSequence[None]:
        """Close and flush all logs in time slices, then write checkpoints and clean stop marks."""
        from kcli.log.managing.log_startup import close_logs

        self._is_closing = True
        self.epoch_writer.end()
        if self._cleaning is not None:
            self.cleaner.abort_rounds()
            self.cleaner.manager.remove_deleted()
        return close_logs(self, self.checkpoints, broker_epoch)


def _offset_lag(log: UnifiedLog, current: UnifiedLog | None) -> int:
    behind = log.high_watermark if current is None else current.log_end_offset
    return max(behind - log.log_end_offset, 0)


LOGS_PER_STEP = 256
# Retention renames the files of segments: about a millisecond for ten of them.
RETENTION_LOGS_PER_STEP = 8
SEGMENTS_PER_VISIT = 8
FAULT_PAUSE_MS = 30_000
CHECK_PAUSE_MS = 10


class Cancellable(Protocol):
    """A scheduled callback."""

    def cancel(self) -> None:
        """Cancel the call."""
        ...


Schedule = Callable[[int, Callable[[int], None]], Cancellable]
Visit = Callable[[UnifiedLog, int], bool | None]


class Sweep:
    """A visit to every log each `interval_ms`; `finish` is called after the last, or `abandon` if a visit has failed.

    If a visit returns True, it visits the same log again. `name` is Kafka's name of the task.
    """

    def __init__(
        self,
        name: str,
        registry: LogRegistry,
        visit: Visit,
        interval_ms: int,
        logs_per_step: int = LOGS_PER_STEP,
        finish: Callable[[], None] = lambda: None,
        abandon: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self._registry = registry
        self._visit = visit
        self._finish = finish
        self._abandon = abandon
        self._has_failed = False
        self._interval_ms = interval_ms
        self._logs_per_step = logs_per_step
        self._left: list[UnifiedLog] | None = None

    def run(self, now_ms: int) -> int:
        """Visit the next logs; return the time of the next call in ms."""
        if self._left is None:
            self._left = self._registry.all_logs()[::-1]
        for _ in range(min(self._logs_per_step, len(self._left))):
            log = self._left.pop()
            try:
                if self._registry.is_live(log) and self._visit(log, now_ms):
                    self._left.append(log)
            except (OSError, StorageError):
                raise
            except Exception as error:
                self._has_failed = True
                what = f"the task {self.name} at {log.topic}-{log.partition}"
                self._registry.report(fault_line(what, error, "; the task continues with the next log"))
        if self._left:
            return now_ms
        self._left = None
        end, self._has_failed = self._abandon if self._has_failed else self._finish, False
        end()
        return min(now_ms + self._interval_ms, NEVER_MS)


class Task:
    """A task on a timer: it runs at the time that its last run has returned, or earlier after `wake`."""

    def __init__(
        self,
        name: str,
        run: Callable[[int], int],
        schedule: Schedule,
        after: Callable[[int], None],
        report: Callable[[str], None],
    ) -> None:
        self._name = name
        self._run = run
        self._report = report
        self._schedule = schedule
        self._after = after
        self._due_ms = NEVER_MS
        self._pending: Cancellable | None = None

    def wake(self, at_ms: int) -> None:
        """Run the task at `at_ms`, unless it is due before."""
        if at_ms >= self._due_ms:
            return
        if self._pending is not None:
            self._pending.cancel()
        self._due_ms = at_ms
        self._pending = self._schedule(at_ms, self._call)

    def _call(self, now_ms: int) -> None:
        self._pending, self._due_ms = None, NEVER_MS
        try:
            next_ms = self._run(now_ms)
        except (OSError, StorageError):
            raise
        except Exception as error:
            then = f"; it runs again in {FAULT_PAUSE_MS // 1000} s"
            self._report(fault_line(f"the task {self._name}", error, then))
            next_ms = now_ms + FAULT_PAUSE_MS
        if next_ms < NEVER_MS:
            self.wake(next_ms)
        self._after(now_ms)


class LogSweeps:
    """The visits of the sweeps; a disk error takes the log directory offline."""

    def __init__(self, registry: LogRegistry, is_uncleanable: Callable[[UnifiedLog], bool]) -> None:
        self._registry = registry
        self._is_uncleanable = is_uncleanable

    def apply_retention(self, log: UnifiedLog, now_ms: int) -> bool:
        """Delete some of the segments that retention has found; return whether there were any.

        In Kafka the cleaner applies retention to compacted logs, whatever else cleanup.policy contains. So a compacted log is
        skipped if log.cleaner.enable is false, or the log is uncleanable.
        """
        if log.config.is_compacted and (not self._registry.settings.cleaner_enable or self._is_uncleanable(log)):
            return False
        try:
            wall_ms = self._registry.wall.at(now_ms)
            renamed = log.delete_old_segments(wall_ms, SEGMENTS_PER_VISIT)
            held = None if renamed else log.segment_in_future(wall_ms)
        except OSError as error:
            self._registry.take_offline(log.directory, error)
            return False
        if held is not None:
            segment, timestamp = held
            text = (
                f"{log.topic}-{log.partition}: {segment.log_path} has a record with timestamp {timestamp} ms, which is in the "
                "future: retention.ms deletes neither this segment nor later ones before that time"
            )
            self._registry.report(WarningLine(text, topic=log.topic, partition=log.partition, path=segment.log_path))
        due_ms = now_ms + log.config.file_delete_delay_ms
        # Leader epochs below the first segment look like a missing segment, so its files stay until the epochs are written.
        log.leader_epochs.when_written(partial(self._registry.deletions.add, renamed, due_ms))
        return bool(renamed)

    def flush_by_time(self, log: UnifiedLog, now_ms: int) -> None:
        """Flush a log if flush.ms has passed."""
        if log.needs_flush(now_ms):
            self._registry.flush_log(log)

    def flush_rolled(self, log: UnifiedLog, now_ms: int) -> None:
        """Flush a log with unflushed records below its active segment."""
        if log.recovery_point < log.active_base_offset:
            self._registry.flush_log(log)

    def expire_producers(self, log: UnifiedLog, now_ms: int) -> None:
        """Remove producers that were idle for producer.id.expiration.ms."""
        if log.producers.producers:
            wall_ms = self._registry.wall.at(now_ms)
            log.producers.remove_expired(wall_ms, self._registry.settings.producer_id_expiration_ms)


class ClosedSegmentCheck:
    """Reports older segments that were cut while no broker ran; one segment each CHECK_PAUSE_MS.

    The start reads the last segment of a log only, so that it takes no longer with more segments. A cut segment is not a reason
    to recover the log: the recovery would remove all segments after it. Nothing is changed, and reads skip what is missing.
    """

    def __init__(self, registry: LogRegistry) -> None:
        self._registry = registry
        self._left = self._closed_segments()

    def _closed_segments(self) -> Iterator[tuple[UnifiedLog, int, int]]:
        """Yield the log of each closed segment, its base offset and that of the next segment."""
        for log in self._registry.all_logs():
            for base_offset, next_base_offset in itertools.pairwise(log.base_offsets):
                yield log, base_offset, next_base_offset

    def run(self, now_ms: int) -> int:
        """Check the next segment; return the time of the next call in ms."""
        found = next(self._left, None)
        if found is None:
            return NEVER_MS
        log, base_offset, next_base_offset = found
        segment = next((one for one in log.local_log().segments if one.base_offset == base_offset), None)
        if segment is not None and self._registry.is_live(log):
            try:
                end = read_end(self._registry.disk, segment)
            except OSError as error:
                reason = error.strerror or str(error)
                text = f"{segment.log_path}: {reason}: this older segment cannot be read"
                self._registry.report(WarningLine(text, path=segment.log_path, error=reason))
            else:
                self._compare(log, segment, end, next_base_offset)
        return now_ms + CHECK_PAUSE_MS

    def _compare(self, log: UnifiedLog, segment: LogSegment, end: SegmentEnd, next_base_offset: int) -> None:
        # The offsets after the last batch of a compacted segment were cleaned.
        are_missing = end.next_offset < next_base_offset and not log.config.is_compacted and log.cleaned_offset is None
        if end.position == segment.size_bytes and end.is_as_indexed and not are_missing:
            return
        why = f"its complete batches end at byte {end.position} of {segment.size_bytes} and at offset {end.next_offset}"
        if end.next_offset < next_base_offset:
            why += f", the next segment begins at offset {next_base_offset}"
        if not end.is_as_indexed:
            why += ", and its offset index ends elsewhere"
        text = (
            f"{segment.log_path} does not end as a broker has left it: {why}. What is missing is not served; "
            f"`kcli verify {parent_path(log.directory)}` shows the damage"
        )
        self._registry.report(WarningLine(text, topic=log.topic, partition=log.partition, path=segment.log_path, error=why))


class CheckpointSweep:
    """Collects the entries of one kind of checkpoint, log by log, and writes it for each log directory."""

    def __init__(self, registry: LogRegistry, checkpoints: LogCheckpoints, kind: FileKind) -> None:
        self._registry = registry
        self._checkpoints = checkpoints
        self._kind = kind
        self._found: dict[str, dict[tuple[str, int], int]] = {}

    def visit(self, log: UnifiedLog, now_ms: int) -> None:
        """Add the entry of a log."""
        offset = self._checkpoints.offset_of(log, self._kind)
        if offset is not None:
            self._found.setdefault(parent_path(log.directory), {})[log.topic, log.partition] = offset

    def abandon(self) -> None:
        """Discard the entries, which are incomplete."""
        self._found = {}

    def finish(self) -> None:
        """Write the entries."""
        found, self._found = self._found, {}
        for log_dir in self._registry.online_dirs():
            self._checkpoints.write(log_dir, self._kind, found.get(log_dir.path, {}))


def begin_tasks(
    registry: LogRegistry,
    checkpoints: LogCheckpoints,
    mover: ReplicaMover,
    is_uncleanable: Callable[[UnifiedLog], bool],
    now_ms: int,
    schedule: Schedule,
    after: Callable[[int], None],
) -> None:
    """Schedule all tasks; see LogManager.begin_tasks. `is_uncleanable` returns whether the cleaner skips a log."""
    settings, visits = registry.settings, LogSweeps(registry, is_uncleanable)
    recovery_points, log_starts, high_watermarks = (
        CheckpointSweep(registry, checkpoints, kind)
        for kind in (
            FileKind.RECOVERY_POINT_CHECKPOINT,
            FileKind.LOG_START_OFFSET_CHECKPOINT,
            FileKind.REPLICATION_CHECKPOINT,
        )
    )

    def visit_high_watermark(log: UnifiedLog, now_ms: int) -> None:
        high_watermarks.visit(log, now_ms)
        visits.flush_rolled(log, now_ms)
        registry.flush_topic_id(log)

    def sweep(due_ms: int, made: Sweep) -> None:
        Task(made.name, made.run, schedule, after, registry.report).wake(due_ms)

    def checkpoint(name: str, due_ms: int, visit: Visit, kind: CheckpointSweep, interval_ms: int) -> None:
        sweep(due_ms, Sweep(name, registry, visit, interval_ms, finish=kind.finish, abandon=kind.abandon))

    first_ms, interval_ms = now_ms + settings.initial_task_delay_ms, settings.retention_check_interval_ms
    sweep(first_ms, Sweep("kafka-log-retention", registry, visits.apply_retention, interval_ms, RETENTION_LOGS_PER_STEP))
    sweep(first_ms, Sweep("kafka-log-flusher", registry, visits.flush_by_time, settings.flush_scheduler_interval_ms))
    interval_ms = settings.flush_offset_checkpoint_interval_ms
    checkpoint("kafka-recovery-point-checkpoint", first_ms, recovery_points.visit, recovery_points, interval_ms)
    interval_ms = settings.flush_start_offset_checkpoint_interval_ms
    checkpoint("kafka-log-start-offset-checkpoint", first_ms, log_starts.visit, log_starts, interval_ms)
    interval_ms = settings.high_watermark_checkpoint_interval_ms
    checkpoint("highwatermark-checkpoint", now_ms + interval_ms, visit_high_watermark, high_watermarks, interval_ms)
    interval_ms = settings.producer_id_expiration_check_interval_ms
    sweep(now_ms + interval_ms, Sweep("PeriodicProducerExpirationCheck", registry, visits.expire_producers, interval_ms))
    Task("closed-segment-check", ClosedSegmentCheck(registry).run, schedule, after, registry.report).wake(
        now_ms + CHECK_PAUSE_MS
    )
    for name, run, on_work in (
        ("kafka-delete-logs", registry.deletions.run, registry.deletions.on_added),
        ("ReplicaAlterLogDirsThread", mover.run, mover.on_work),
        ("leader-epoch-checkpoint", registry.epoch_writer.run, registry.epoch_writer.on_work),
    ):
        on_work(Task(name, run, schedule, after, registry.report).wake)
