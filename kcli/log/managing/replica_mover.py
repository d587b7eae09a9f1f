"""Moving a replica from one log directory to another while it serves (AlterReplicaLogDirs, KIP-113, KIP-858).

    state            what is there                                     goes on when
    ---------------  ------------------------------------------------  ------------------------------------------------------
    asked for        `<topic>-<partition>.<id>-future` in the other    at once; after a restart it goes on where it was
                     directory, empty, begins at the log's start
    copying          the future log follows the log: whole batches,    it has come to the log's end
                     at most COPY_BYTES a step
    caught up        `on_caught_up` was called: the controller is      the broker calls `replace`, which looks again: new
                     told of the new directory id                      records are copied first
    replaced         all of the future log is on the device, its       file.delete.delay.ms later the old one is removed
                     directory has the partition's name, the old one
                     ends in -delete

Where the log was cut below the end of the future one, that one is cut, too; where it starts behind it, it begins anew. The
speed is bounded by replica.alter.log.dirs.io.max.bytes.per.second.
"""

from __future__ import annotations

from collections.abc import Callable

from kcli.format.file_names import (
    MAX_NAME_CHARACTERS,
    DirectoryState,
    partition_directory_name,
)
from kcli.format.kafka_uuid import Uuid
from kcli.format.record_batch import read_header
from kcli.log.append_errors import AppendError
from kcli.log.disk.deletion_queue import NEVER_MS
from kcli.log.disk.port import join_path, parent_path
from kcli.log.files.checkpoint_files import TopicPartition
from kcli.log.managing.log_dir import LogDir
from kcli.log.managing.log_registry import LogRegistry
from kcli.log.report_line import WarningLine
from kcli.log.storage_errors import (
    InvalidTopicError,
    KafkaStorageError,
    LogDirNotFoundError,
    NotHostedError,
)
from kcli.log.unified_log import UnifiedLog

# A step reads and writes so much: about a millisecond of copying in the page cache.
COPY_BYTES = 1024 * 1024
SECOND_MS = 1_000
# How long a replica that has caught up rests before it is looked at again.
REST_MS = 100


class ReplicaMover:
    """The replicas of one registry that are moving. `on_caught_up(topic, partition, now_ms)` is called once for
    each that could take its place.

    It may be called again for one that a restart or an offline directory interrupted.
    """

    def __init__(self, registry: LogRegistry) -> None:
        self._registry = registry
        self._told: set[TopicPartition] = set()
        self._turn: list[TopicPartition] = []
        self._wake: Callable[[int], None] = lambda at_ms: None
        self.on_caught_up: Callable[[str, int, int], None] = lambda topic, partition, now_ms: None

    def on_work(self, wake: Callable[[int], None]) -> None:
        """Have `wake(at_ms)` called when there is something to move."""
        self._wake = wake
        if self._registry.future_logs:
            wake(0)

    # -------------------------------------------------------------------------------------------------------- asking

    def move(self, topic: str, partition: int, path: str, now_ms: int) -> None:
        """Begin to move a partition to the log directory at `path`; one that is there already stays, or stops moving.

        A partition that is not here yet is remembered for when it is made, as in Kafka. Raises InvalidTopicError,
        LogDirNotFoundError, KafkaStorageError, NotHostedError.
        """
        registry, key = self._registry, (topic, partition)
        future_name = partition_directory_name(topic, partition, DirectoryState.FUTURE, registry.unique_id())
        if len(future_name) > MAX_NAME_CHARACTERS:
            raise InvalidTopicError(f"the name of {topic} is too long for a directory that is moving")
        log_dir = registry.dirs.get(path)
        if log_dir is None:
            raise LogDirNotFoundError(f"{path} is not in log.dirs ({', '.join(registry.dirs)})")
        if not log_dir.is_online:
            raise KafkaStorageError(f"{path} is offline")
        future = registry.future_logs.get(key)
        if future is not None and registry.log_dir_of(future) is not log_dir:
            self.cancel(topic, partition, now_ms)
            future = None
        current = registry.get_log(topic, partition)
        if current is None:
            registry.preferred_dirs[key] = path
            raise NotHostedError(f"{topic}-{partition} has no replica here yet; it will be made in {path}")
        if registry.log_dir_of(current) is log_dir or future is not None:
            return
        if len(registry.online_dirs()) < len(registry.dirs):
            raise KafkaStorageError(f"{topic}-{partition} is not moved while a log directory is offline")
        self._create_future_log(current, log_dir, now_ms)
        self._wake(now_ms)

    def _create_future_log(self, current: UnifiedLog, log_dir: LogDir, now_ms: int) -> None:
        """Make the log that is to take a partition's place in another directory. Raises KafkaStorageError."""
        registry, key = self._registry, (current.topic, current.partition)
        name = partition_directory_name(*key, DirectoryState.FUTURE, registry.unique_id())
        topic_id = Uuid(current.topic_id or bytes(16))
        registry.future_logs[key] = registry.create_log(key, name, topic_id, current.config, [log_dir], now_ms)

    def cancel(self, topic: str, partition: int, now_ms: int) -> None:
        """Stop moving a partition and drop what was copied."""
        self._told.discard((topic, partition))
        future = self._registry.future_logs.pop((topic, partition), None)
        if future is not None:
            self._registry.set_aside(future, now_ms)

    # -------------------------------------------------------------------------------------------------------- copying

    def run(self, now_ms: int) -> int:
        """Copy a piece of the next replica -> when to come again."""
        registry = self._registry
        if not registry.future_logs:
            self._told.clear()
            return NEVER_MS
        if not self._turn:
            self._turn = list(registry.future_logs)
        copied = 0
        while self._turn and not copied:
            key = self._turn.pop()
            copied = self._copy(key, now_ms)
        if copied:
            limit = registry.settings.alter_log_dirs_max_bytes_per_second
            return now_ms + copied * SECOND_MS // limit
        return now_ms + REST_MS

    def _copy(self, key: TopicPartition, now_ms: int) -> int:
        """Copy a piece of one replica -> how many bytes."""
        current, future = self._registry.logs.get(key), self._registry.future_logs.get(key)
        if current is None or future is None:
            return 0
        at = current  # whose disk is at fault
        try:
            data = self._read(current, future, now_ms)
            at = future
            if data:
                future.append_as_follower(memoryview(data), self._registry.wall.at(now_ms))
                future.update_high_watermark(min(current.high_watermark, future.log_end_offset))
        except OSError as error:
            self._registry.take_offline(at.directory, error)
            return 0
        except AppendError as error:
            text = f"{key[0]}-{key[1]} cannot be copied to {future.directory}: {error}; it stays where it is"
            self._registry.report(WarningLine(text, topic=key[0], partition=key[1], path=future.directory, error=error))
            self.cancel(*key, now_ms)
            return 0
        if not data:
            self._caught_up(key, current, future, now_ms)
        return len(data)

    def _read(self, current: UnifiedLog, future: UnifiedLog, now_ms: int) -> bytearray:
        """The next batches that the future log needs, those of one append."""
        self._align(current, future, now_ms)
        most = min(COPY_BYTES, future.config.segment_bytes)
        part = current.read(future.log_end_offset, most, limit_offset=current.log_end_offset)
        data = bytearray(part.size)
        if part.file is not None:
            part.file.read_into(part.position, memoryview(data))
        self._begin_with_batch(future, data, now_ms)
        return data

    def _begin_with_batch(self, future: UnifiedLog, data: bytearray, now_ms: int) -> None:
        """Have an empty future log begin with its first batch, which may begin before the log's start (DeleteRecords)."""
        if data and future.log_end_offset == future.log_start_offset:
            base_offset = read_header(memoryview(data)).base_offset
            if base_offset < future.log_end_offset:
                gone = future.truncate_fully_and_start_at(base_offset, self._registry.wall.at(now_ms))
                self._registry.deletions.add(gone, now_ms + future.config.file_delete_delay_ms)

    def _align(self, current: UnifiedLog, future: UnifiedLog, now_ms: int) -> None:
        """Have the future log end at or before the log, and not before its start."""
        delay_ms = future.config.file_delete_delay_ms
        gone: list[str] = []
        if future.log_end_offset < current.log_start_offset:
            gone = future.truncate_fully_and_start_at(current.log_start_offset, self._registry.wall.at(now_ms))
        elif future.log_end_offset > current.log_end_offset:
            gone = future.truncate_to(current.log_end_offset, self._registry.wall.at(now_ms))
        self._registry.deletions.add(gone, now_ms + delay_ms)

    def _caught_up(self, key: TopicPartition, current: UnifiedLog, future: UnifiedLog, now_ms: int) -> None:
        if key in self._told or future.log_end_offset != current.log_end_offset:
            return
        self._told.add(key)
        self.on_caught_up(*key, now_ms)

    def look_again(self, topic: str, partition: int) -> None:
        """Tell once more of a replica that has caught up, after a rest: it cannot take its place yet."""
        self._told.discard((topic, partition))

    # ------------------------------------------------------------------------------------------------------ replacing

    def replace(self, topic: str, partition: int, now_ms: int) -> UnifiedLog | None:
        """Put the future log in the place of the log -> the log from now on; None where it has not caught up (any more).

        Raises KafkaStorageError where one of the two is offline.
        """
        registry, key = self._registry, (topic, partition)
        current, future = registry.get_log(topic, partition), registry.future_logs.get(key)
        if current is None or future is None:
            raise KafkaStorageError(f"{topic}-{partition} is not moving: one of its log directories is offline")
        if future.log_end_offset != current.log_end_offset:
            self._told.discard(key)
            self._wake(now_ms)
            return None
        return self._take_place(key, current, future, now_ms)

    def _take_place(self, key: TopicPartition, current: UnifiedLog | None, future: UnifiedLog, now_ms: int) -> UnifiedLog:
        registry = self._registry
        target = join_path(parent_path(future.directory), partition_directory_name(*key))
        try:
            self._bring_to_device(current, future)
            future.close_files()
            registry.disk.rename(future.directory, target)
            future.move(target)
        except OSError as error:
            registry.take_offline(future.directory, error)
            raise KafkaStorageError(f"{target} cannot be made: the log directory is offline") from error
        registry.flush_directory(parent_path(target))
        if current is not None:
            future.update_high_watermark(current.high_watermark)
            future.maybe_increment_log_start_offset(min(current.log_start_offset, future.high_watermark))
        del registry.future_logs[key]
        registry.logs[key] = future
        registry.epochs.follow(future)
        self._told.discard(key)
        if current is not None:
            registry.set_aside(current, now_ms)
        return future

    def _bring_to_device(self, current: UnifiedLog | None, future: UnifiedLog) -> None:
        """Wait for the device, so that what a flush of the old log has promised is kept by the new one. Raises OSError.

        The broker had it flushed when it caught up: this is what came since. Who waits for a flush of the old log finds it
        done.
        """
        for path in future.unflushed_paths():
            self._registry.disk.flush(path)
        future.mark_flushed(future.log_end_offset)
        if current is not None:
            current.mark_flushed(min(current.log_end_offset, future.log_end_offset))

    def recover_abandoned(self, directory_of: Callable[[UnifiedLog], object], now_ms: int) -> list[UnifiedLog]:
        """After a start: let future logs take their place that the metadata has in their directory already -> these logs.

        `directory_of` gives the directory id that the metadata has for a log's topic id and partition, or None. A future log
        that a crash has left shorter than the log goes on copying.
        """
        registry = self._registry
        found = []
        for key, future in list(registry.future_logs.items()):
            directory_id, current = registry.directory_id_of(future), registry.logs.get(key)
            has_all = current is None or current.log_end_offset <= future.log_end_offset
            if directory_id is not None and directory_of(future) == directory_id and has_all:
                found.append(self._take_place(key, current, future, now_ms))
        return found
