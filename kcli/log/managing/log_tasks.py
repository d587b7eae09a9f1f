"""The background tasks of a broker's logs; a timer calls each of them in time slices (Kafka: LogManager, KafkaScheduler).

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
    leader-epoch-checkpoint              with the first record of an epoch                   leader_epoch_file_writer;
                                                                                             not a task in Kafka
    kafka-log-cleaner-thread-0           while a log is dirty, else log.cleaner.backoff.ms   kcli.log.cleaner.log_cleaner,
                                                                                             scheduled by LogManager

A sweep visits all logs, LOGS_PER_STEP in a step, and is called again at once until it has visited all; it does not visit logs
that are made during the sweep. `run` of a task returns the time of its next call.

An unexpected exception of a task is logged, and the task continues as with KafkaScheduler: a sweep with the next log (it writes
no checkpoint then), any other task after FAULT_PAUSE_MS. OSError and StorageError are passed on (see LogRegistry).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from kcli.format.file_names import FileKind
from kcli.log.disk.deletion_queue import NEVER_MS
from kcli.log.disk.port import parent_path
from kcli.log.errors import StorageError
from kcli.log.managing.log_registry import LogCheckpoints, LogRegistry
from kcli.log.managing.replica_mover import ReplicaMover
from kcli.log.report_line import WarningLine, fault_line
from kcli.log.unified_log import UnifiedLog

LOGS_PER_STEP = 256
# Retention renames the files of segments: about a millisecond for ten of them.
RETENTION_LOGS_PER_STEP = 8
SEGMENTS_PER_VISIT = 8
FAULT_PAUSE_MS = 30_000


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
    for name, run, on_work in (
        ("kafka-delete-logs", registry.deletions.run, registry.deletions.on_added),
        ("ReplicaAlterLogDirsThread", mover.run, mover.on_work),
        ("leader-epoch-checkpoint", registry.epoch_writer.run, registry.epoch_writer.on_work),
    ):
        on_work(Task(name, run, schedule, after, registry.report).wake)
