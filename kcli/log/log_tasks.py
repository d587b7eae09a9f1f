"""What a broker does to its logs as time goes by, each a task that a timer calls, in slices that hold nobody up.

    task (Kafka's name)                  every                                               does
    -----------------------------------  --------------------------------------------------  -------------------------------
    kafka-log-retention                  log.retention.check.interval.ms                     takes out segments by retention;
                                                                                             their files go later
    kafka-log-flusher                    log.flush.scheduler.interval.ms                     flushes logs by flush.ms
    kafka-recovery-point-checkpoint      log.flush.offset.checkpoint.interval.ms             writes recovery points
    kafka-log-start-offset-checkpoint    log.flush.start.offset.checkpoint.interval.ms       writes log start offsets
    highwatermark-checkpoint             replica.high.watermark.checkpoint.interval.ms       writes high watermarks
    kafka-delete-logs                    when something is due                               removes files and directories
    PeriodicProducerExpirationCheck      producer.id.expiration.check.interval.ms            forgets idle producers
    flush-log                            with high watermarks (Kafka: at each roll)          flushes logs that have rolled, so
                                                                                             that a recovery reads less
    ReplicaAlterLogDirsThread            while a replica is moving                           kcli.log.replica_mover

A sweep over all logs does LOGS_PER_STEP a step and comes back at once until it is through; logs that are made meanwhile have
their turn in the next one. `run` of a task returns when it wants to be called next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from kcli.format.file_names import FileKind
from kcli.log.deletion_queue import NEVER_MS
from kcli.log.log_directory import parent_path
from kcli.log.unified_log import UnifiedLog

if TYPE_CHECKING:
    from kcli.log.log_manager import LogManager

LOGS_PER_STEP = 256
# Retention renames the files of segments: about a millisecond for ten of them.
RETENTION_LOGS_PER_STEP = 8
SEGMENTS_PER_VISIT = 8


class Cancellable(Protocol):
    """What scheduling gives: a way to take it back."""

    def cancel(self) -> None:
        """The callback will not be called."""
        ...


Schedule = Callable[[int, Callable[[int], None]], Cancellable]


class Sweep:
    """A visit to every log each `interval_ms`; `finish` is called behind the last.

    A visit that returns True is not through with its log, which is then visited again.
    """

    def __init__(
        self,
        manager: LogManager,
        visit: Callable[[UnifiedLog, int], bool | None],
        interval_ms: int,
        logs_per_step: int = LOGS_PER_STEP,
        finish: Callable[[], None] = lambda: None,
    ) -> None:
        self._manager = manager
        self._visit = visit
        self._finish = finish
        self._interval_ms = interval_ms
        self._logs_per_step = logs_per_step
        self._left: list[UnifiedLog] | None = None

    def run(self, now_ms: int) -> int:
        """The next slice -> when to come again."""
        if self._left is None:
            self._left = self._manager.all_logs()[::-1]
        for _ in range(min(self._logs_per_step, len(self._left))):
            log = self._left.pop()
            if self._manager.is_live(log) and self._visit(log, now_ms):
                self._left.append(log)
        if self._left:
            return now_ms
        self._left = None
        self._finish()
        return min(now_ms + self._interval_ms, NEVER_MS)


class Task:
    """One task on a timer: it runs when it is due, and earlier when it is woken."""

    def __init__(self, run: Callable[[int], int], schedule: Schedule, after: Callable[[int], None]) -> None:
        self._run = run
        self._schedule = schedule
        self._after = after
        self._due_ms = NEVER_MS
        self._pending: Cancellable | None = None

    def wake(self, at_ms: int) -> None:
        """Have it run at `at_ms`, unless it runs before."""
        if at_ms >= self._due_ms:
            return
        if self._pending is not None:
            self._pending.cancel()
        self._due_ms = at_ms
        self._pending = self._schedule(at_ms, self._call)

    def _call(self, now_ms: int) -> None:
        self._pending, self._due_ms = None, NEVER_MS
        next_ms = self._run(now_ms)
        if next_ms < NEVER_MS:
            self.wake(next_ms)
        self._after(now_ms)


class LogSweeps:
    """The visits of the sweeps over a manager's logs; a disk's error takes the log directory offline."""

    def __init__(self, manager: LogManager) -> None:
        self._manager = manager

    def apply_retention(self, log: UnifiedLog, now_ms: int) -> bool:
        """Take out some of the segments that retention wants gone -> whether there were any."""
        try:
            renamed = log.delete_old_segments(now_ms, SEGMENTS_PER_VISIT)
        except OSError as error:
            self._manager.take_offline(log.directory, error)
            return False
        self._manager.deletions.add(renamed, now_ms + log.config.file_delete_delay_ms)
        return bool(renamed)

    def flush_by_time(self, log: UnifiedLog, now_ms: int) -> None:
        """Flush a log whose flush.ms is over."""
        if log.needs_flush(now_ms):
            self._manager.flush_log(log)

    def flush_rolled(self, log: UnifiedLog, now_ms: int) -> None:
        """Flush a log of which more than the active segment is not on the device."""
        if log.recovery_point < log.active_base_offset:
            self._manager.flush_log(log)

    def expire_producers(self, log: UnifiedLog, now_ms: int) -> None:
        """Forget producers that have been idle for too long."""
        if log.producers.producers:
            log.producers.remove_expired(now_ms, self._manager.settings.producer_id_expiration_ms)


class Checkpoint:
    """Gathers what one kind of checkpoint is to hold, log by log, and writes it for each log directory."""

    def __init__(self, manager: LogManager, kind: FileKind) -> None:
        self._manager = manager
        self._kind = kind
        self._found: dict[str, dict[tuple[str, int], int]] = {}

    def visit(self, log: UnifiedLog, now_ms: int) -> None:
        """Take a log into account."""
        offset = self._manager.checkpoints.offset_of(log, self._kind)
        if offset is not None:
            self._found.setdefault(parent_path(log.directory), {})[log.topic, log.partition] = offset

    def finish(self) -> None:
        """Write what was found."""
        found, self._found = self._found, {}
        for log_dir in self._manager.online_dirs():
            self._manager.checkpoints.write(log_dir, self._kind, found.get(log_dir.path, {}))


def begin_tasks(manager: LogManager, now_ms: int, schedule: Schedule, after: Callable[[int], None]) -> dict[str, Task]:
    """Put all tasks on a timer, each with its name; see LogManager.begin_tasks."""
    settings, visits = manager.settings, LogSweeps(manager)
    recovery_points, log_starts, high_watermarks = (
        Checkpoint(manager, kind)
        for kind in (
            FileKind.RECOVERY_POINT_CHECKPOINT,
            FileKind.LOG_START_OFFSET_CHECKPOINT,
            FileKind.REPLICATION_CHECKPOINT,
        )
    )

    def visit_high_watermark(log: UnifiedLog, now_ms: int) -> None:
        high_watermarks.visit(log, now_ms)
        visits.flush_rolled(log, now_ms)

    first_ms = now_ms + settings.initial_task_delay_ms
    sweeps = {
        "kafka-log-retention": (
            Sweep(manager, visits.apply_retention, settings.retention_check_interval_ms, RETENTION_LOGS_PER_STEP),
            first_ms,
        ),
        "kafka-log-flusher": (Sweep(manager, visits.flush_by_time, settings.flush_scheduler_interval_ms), first_ms),
        "kafka-recovery-point-checkpoint": (
            Sweep(
                manager,
                recovery_points.visit,
                settings.flush_offset_checkpoint_interval_ms,
                finish=recovery_points.finish,
            ),
            first_ms,
        ),
        "kafka-log-start-offset-checkpoint": (
            Sweep(manager, log_starts.visit, settings.flush_start_offset_checkpoint_interval_ms, finish=log_starts.finish),
            first_ms,
        ),
        "highwatermark-checkpoint": (
            Sweep(
                manager,
                visit_high_watermark,
                settings.high_watermark_checkpoint_interval_ms,
                finish=high_watermarks.finish,
            ),
            now_ms + settings.high_watermark_checkpoint_interval_ms,
        ),
        "PeriodicProducerExpirationCheck": (
            Sweep(manager, visits.expire_producers, settings.producer_id_expiration_check_interval_ms),
            now_ms + settings.producer_id_expiration_check_interval_ms,
        ),
    }
    tasks = {}
    for name, (sweep, due_ms) in sweeps.items():
        tasks[name] = Task(sweep.run, schedule, after)
        tasks[name].wake(due_ms)
    tasks["kafka-delete-logs"] = deletions = Task(manager.deletions.run, schedule, after)
    manager.deletions.on_added(deletions.wake)
    tasks["ReplicaAlterLogDirsThread"] = moves = Task(manager.mover.run, schedule, after)
    manager.mover.on_work(moves.wake)
    return tasks
