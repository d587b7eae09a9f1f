"""All logs of a broker, in one or several log directories: opened, found, made, moved aside, checkpointed, closed.

    what                       how (Kafka: LogManager; ReplicaManager for high watermarks and DescribeLogDirs)
    -------------------------  -----------------------------------------------------------------------------------------
    start                      `start` (kcli.log.managing.log_startup): a generator, a slice of work a step
    a new partition            goes to the directory asked for by id, or to the one with the fewest partitions
    deletion                   the directory is renamed to `<topic>-<partition>.<32 hex digits>-delete`, removed later
    background tasks           log_tasks: retention, flushes, checkpoints, deletions, producers, moving replicas;
                               kcli.log.cleaner: compacted logs, the filthiest first
    a disk error               kcli.log.managing.log_registry, which knows what logs and directories there are
    clean stop                 `shutdown`: a generator; every log is flushed and closed, then checkpoints and the marks

Nothing here waits for a device but `shutdown`: what has to be made durable is queued, and the broker takes it with
`take_flushes` after each event (kcli.log.disk.flush_request says how it is answered). Whoever gets an OSError from a log itself
hands it to `take_offline`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kcli.format.file_names import DirectoryState, FileKind, partition_directory_name
from kcli.format.kafka_uuid import Uuid
from kcli.log.disk.port import parent_path
from kcli.log.files.checkpoint_files import TopicPartition
from kcli.log.log_config import LogConfig
from kcli.log.managing.log_checkpoints import LogCheckpoints
from kcli.log.managing.log_dir import LogDir
from kcli.log.managing.log_registry import LogRegistry
from kcli.log.managing.log_tasks import Cancellable, Schedule, Task, begin_tasks
from kcli.log.managing.replica_mover import ReplicaMover
from kcli.log.report_line import WarningLine
from kcli.log.storage_errors import InconsistentTopicIdError, KafkaStorageError
from kcli.log.unified_log import UnifiedLog

if TYPE_CHECKING:
    from kcli.log.cleaner.log_cleaner import LogCleaner

NO_CLEANER = (
    "log.cleaner.enable=false: topics with cleanup.policy=compact are neither cleaned nor cut by retention, and grow; "
    "Kafka 5.0 is to ignore the setting"
)
# Directory ids that name no directory (Kafka: DirectoryId.UNASSIGNED, LOST, MIGRATING).
_RESERVED_DIRECTORY_IDS = frozenset(Uuid(number.to_bytes(16, "big")) for number in range(100))


class LogManager(LogRegistry):
    """See the head of this module; it is made as a LogRegistry is."""

    # Made when first asked for: so how a manager is made is told once, by the registry.
    checkpoints = cached_property(LogCheckpoints)
    mover = cached_property(ReplicaMover)
    tasks_began_ms = 0
    _is_closing = False
    _cleaning: Task | None = None

    @cached_property
    def cleaner(self) -> LogCleaner:
        """What cleans compacted logs; it is loaded when it runs first, since a start must not wait for it."""
        from kcli.log.cleaner.log_cleaner import LogCleaner

        made = LogCleaner(self, lambda at_ms: None if self._cleaning is None else self._cleaning.wake(at_ms))
        made.on_uncleanable = lambda path: self.checkpoints.write_uncleanable(self.dirs[path], made.uncleanable_in(path))
        made.on_cleaned = lambda log: self.checkpoints.write_all(self.log_dir_of(log), FileKind.CLEANER_CHECKPOINT)
        return made

    def start(
        self,
        config_of: Callable[[str], LogConfig],
        is_hosted: Callable[[Uuid, int], bool],
        now_ms: int,
        directory_of: Callable[[Uuid, int], Uuid | None] = lambda topic_id, partition: None,
        clock: Callable[[], int] | None = None,
    ) -> Iterator[None]:
        """Open all logs, a slice of work a step.

        `config_of` gives a topic's settings; `is_hosted` tells whether the metadata places a topic id's partition here, and
        `directory_of` in which log directory, if it says so. `clock` gives the time of now in ms while it goes on.
        Raises DuplicateLogError and AllLogDirsOfflineError, at which the broker cannot start.
        """
        from kcli.log.managing.log_startup import LogStartup

        return LogStartup(self, config_of, is_hosted, directory_of, now_ms, clock or (lambda: now_ms)).run()

    def begin_tasks(self, now_ms: int, schedule: Schedule, after: Callable[[int], None]) -> None:
        """Begin what is done as time goes by (kcli.log.managing.log_tasks).

        `schedule(at_ms, callback)` is a timer's; `after(now_ms)` is called behind each piece of work, for its flushes. They end
        with `shutdown`: what changes a log that is closed already costs the mark of a stop in order.
        """

        def until_shutdown(at_ms: int, callback: Callable[[int], None]) -> Cancellable:
            return schedule(at_ms, lambda now_ms: None if self._is_closing else callback(now_ms))

        def is_uncleanable(log: UnifiedLog) -> bool:
            return log in self.cleaner.uncleanable

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
        """Go by these from now on. The cleaner looks at once, as Kafka's does, which begins anew with them."""
        self.settings = self.settings._replace(**settings)
        if self._cleaning is not None:
            self.cleaner.look_again()

    def clean_broker_epoch(self) -> int:
        """The broker epoch that all log directories were cleanly stopped with; -1 where they were not, or differ."""
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
        """The log of a partition; it is made where it is missing, in the directory of that id or where the fewest are.

        `is_new` says that the metadata made the partition just now: else a missing log may lie in a directory that is offline.
        Raises KafkaStorageError, and InconsistentTopicIdError where the log belongs to a topic of another id.
        """
        key = (topic, partition)
        log = self.get_log(*key)
        if log is None:
            offline = [log_dir.path for log_dir in self.dirs.values() if not log_dir.is_online]
            if offline and not is_new:
                raise KafkaStorageError(
                    f"{topic}-{partition} is not made anew while it may lie in {', '.join(offline)}: offline"
                )
            name = partition_directory_name(topic, partition)
            log = self.create_log(
                (topic, partition), name, topic_id, config, self._wanted_dirs((topic, partition), directory_id), now_ms
            )
            self.logs[topic, partition] = log
            self.preferred_dirs.pop((topic, partition), None)
            self.epochs.follow(log)
        elif log.topic_id is not None and log.topic_id != topic_id:
            raise InconsistentTopicIdError(
                f"{log.directory} belongs to topic id {Uuid(log.topic_id)}, not to {topic_id}: "
                "a topic of that name was deleted and made anew"
            )
        return log

    def _wanted_dirs(self, key: TopicPartition, directory_id: Uuid | None) -> list[LogDir]:
        """Where a new partition may go, the best first; one place only where it is asked for."""
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
        return sorted(self.online_dirs(), key=lambda log_dir: counts[log_dir.path])

    # ------------------------------------------------------------------------------------------------- configurations

    def update_topic_config(self, topic: str, partitions: Iterable[int], config: LogConfig) -> None:
        """Let the open logs of these partitions of a topic follow these settings from now on.

        The other topics' logs are not visited: a change of a broker default comes here for each topic.
        """
        for partition in partitions:
            for logs in (self.logs, self.future_logs):
                log = logs.get((topic, partition))
                if log is not None:
                    log.config = config

    # -------------------------------------------------------------------------------------------------------- removing

    def delete_logs(
        self, partitions: Iterable[TopicPartition], now_ms: int, *, stray: bool = False, with_checkpoints: bool = True
    ) -> None:
        """Take partitions' logs, and the ones that were to replace them, out of service.

        Their directories are renamed at once and removed file.delete.delay.ms later; `stray` ones are renamed and kept. A
        partition without a log is passed over. The checkpoints of offsets follow, `with_checkpoints`: whoever deletes many a
        few at a time has them follow with the last. Raises KafkaStorageError where one lies in a directory that is offline.
        """
        offline = []
        for key in partitions:
            offline += [key] if self.offline_partitions.get(key) else []
            for logs in (self.logs, self.future_logs):
                log = logs.pop(key, None)
                if log is not None:
                    self.set_aside(log, now_ms, DirectoryState.STRAY if stray else DirectoryState.DELETE)
        for log_dir in self.dirs.values() if with_checkpoints else ():
            self.checkpoints.write_all(log_dir, FileKind.RECOVERY_POINT_CHECKPOINT)
            self.checkpoints.write_all(log_dir, FileKind.LOG_START_OFFSET_CHECKPOINT)
            self.checkpoints.write_all(log_dir, FileKind.CLEANER_CHECKPOINT)
        if with_checkpoints and self._cleaning is not None:
            self.cleaner.forget_the_gone()
        if offline:
            names = ", ".join(f"{topic}-{partition}" for topic, partition in offline)
            raise KafkaStorageError(f"{names} cannot be deleted while the log directory is offline")

    # -------------------------------------------------------------------------------------------------------- stopping

    def shutdown(self, broker_epoch: int) -> Iterator[None]:
        """Flush and close every log, one a step, then write checkpoints and the marks of a clean stop; waits for the device."""
        from kcli.log.managing.log_shutdown import close_logs

        self._is_closing = True
        if self._cleaning is not None:
            self.cleaner.give_up_rounds()
            self.cleaner.forget_the_gone()
        return close_logs(self, self.checkpoints, broker_epoch)
