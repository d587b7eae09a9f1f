"""Moving a replica from one log directory to another while it serves (AlterReplicaLogDirs, KIP-113, KIP-858).

    state            files                                             next state
    ---------------  ------------------------------------------------  ------------------------------------------------------
    requested        `<topic>-<partition>.<id>-future` in the other    at once; after a restart the copy continues
                     directory, empty, from the log start offset on
    copying          the future log gets whole batches of the log,     at the log end offset
                     at most COPY_BYTES in a step
    caught up        `on_caught_up` was called: the broker reports     the broker calls `replace`, which copies new records
                     the new directory id to the controller            first
    replaced         the future log is flushed, its directory has      file.delete.delay.ms later the old directory is removed
                     the partition's name, the old one ends in
                     -delete

If the log is truncated below the end of the future log, that one is truncated, too; if the log start offset rises above its
end, it begins again there. If the log is compacted, it begins again in both cases: what was copied may lack records because of
later ones with their keys, which are cut off now (a power failure takes them from the log's device only). A log that ends with
an empty segment may have no records directly before it: the cleaner, or a power failure, took them. The future log then begins
a segment there, too. (Kafka's future log waits for the next record.)
replica.alter.log.dirs.io.max.bytes.per.second limits the rate.
"""

from __future__ import annotations

from collections.abc import Callable

from kcli.format.file_names import (
    MAX_NAME_CHARACTERS,
    DirectoryState,
    partition_directory_name,
)
from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import TopicPartition
from kcli.format.record_batch import read_header
from kcli.log.disk.deletion_queue import NEVER_MS
from kcli.log.disk.port import join_path, parent_path
from kcli.log.errors import (
    AppendError,
    InvalidTopicError,
    KafkaStorageError,
    LogDirNotFoundError,
    NotHostedError,
)
from kcli.log.managing.log_dir import LogDir
from kcli.log.managing.log_registry import LogRegistry
from kcli.log.report_line import WarningLine
from kcli.log.unified_log import UnifiedLog

# The bytes that a step copies, which takes about a millisecond in the page cache.
COPY_BYTES = 1024 * 1024
SECOND_MS = 1_000
# The interval between two checks of replicas that have caught up.
IDLE_MS = 100

# Called with topic, partition and now_ms.
CaughtUp = Callable[[str, int, int], None]


class ReplicaMover:
    """The moving replicas of one registry.

    `on_caught_up(topic, partition, now_ms)` is called once for each future log that has all records of its log. It is called
    again after a restart, after `report_again`, and if records were appended before `replace`.
    """

    def __init__(self, registry: LogRegistry, on_caught_up: CaughtUp) -> None:
        self._registry = registry
        self._reported: set[TopicPartition] = set()
        self._queue: list[TopicPartition] = []
        self._wake: Callable[[int], None] = lambda at_ms: None
        self._on_caught_up = on_caught_up

    def on_work(self, wake: Callable[[int], None]) -> None:
        """Call `wake(at_ms)` when there is a replica to move."""
        self._wake = wake
        if self._registry.future_logs:
            wake(0)

    # ---------------------------------------------------------------------------------------------------- requesting

    def move(self, topic: str, partition: int, path: str, now_ms: int) -> None:
        """Begin to move a partition to the log directory `path`; if its log is there, a move to another one is cancelled.

        For a partition without a log the directory is kept for its creation, as in Kafka. Raises InvalidTopicError,
        LogDirNotFoundError, KafkaStorageError, NotHostedError.
        """
        registry, key = self._registry, (topic, partition)
        future_name = partition_directory_name(topic, partition, DirectoryState.FUTURE, registry.unique_id())
        if len(future_name) > MAX_NAME_CHARACTERS:
            raise InvalidTopicError(f"the name of the topic {topic} is too long for a future log's directory")
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
            raise NotHostedError(f"{topic}-{partition} has no log on this broker yet; it will be made in {path}")
        if registry.log_dir_of(current) is log_dir or future is not None:
            return
        if len(registry.online_dirs()) < len(registry.dirs):
            raise KafkaStorageError(f"cannot move {topic}-{partition} while a log directory is offline")
        self._create_future_log(current, log_dir, now_ms)
        self._wake(now_ms)

    def _create_future_log(self, current: UnifiedLog, log_dir: LogDir, now_ms: int) -> None:
        """Make the future log in another directory. Raises KafkaStorageError."""
        registry, key = self._registry, (current.topic, current.partition)
        name = partition_directory_name(*key, DirectoryState.FUTURE, registry.unique_id())
        topic_id = Uuid(current.topic_id or bytes(16))
        registry.future_logs[key] = registry.create_log(key, name, topic_id, current.config, [log_dir], now_ms)

    def cancel(self, topic: str, partition: int, now_ms: int) -> None:
        """Cancel a move and delete the future log."""
        self._reported.discard((topic, partition))
        future = self._registry.future_logs.pop((topic, partition), None)
        if future is not None:
            self._registry.set_aside(future, now_ms)

    # -------------------------------------------------------------------------------------------------------- copying

    def run(self, now_ms: int) -> int:
        """Copy a part of the next replica; return the time of the next call in ms."""
        registry = self._registry
        if not registry.future_logs:
            self._reported.clear()
            return NEVER_MS
        if not self._queue:
            self._queue = list(registry.future_logs)
        copied = 0
        while self._queue and not copied:
            key = self._queue.pop()
            copied = self._copy(key, now_ms)
        if copied:
            limit = registry.settings.alter_log_dirs_max_bytes_per_second
            return now_ms + copied * SECOND_MS // limit
        return now_ms + IDLE_MS

    def _copy(self, key: TopicPartition, now_ms: int) -> int:
        """Copy a part of one replica; return its number of bytes."""
        current, future = self._registry.logs.get(key), self._registry.future_logs.get(key)
        if current is None or future is None:
            return 0
        failing = current  # the log that an OSError belongs to
        try:
            data = self._read(current, future, now_ms)
            failing = future
            if data:
                future.append_as_follower(memoryview(data), self._registry.wall.at(now_ms))
                future.update_high_watermark(min(current.high_watermark, future.log_end_offset))
        except OSError as error:
            self._registry.take_offline(failing.directory, error)
            return 0
        except AppendError as error:
            text = f"cannot copy {key[0]}-{key[1]} to {future.directory}: {error}; the move is cancelled"
            self._registry.report(WarningLine(text, topic=key[0], partition=key[1], path=future.directory, error=error))
            self.cancel(*key, now_ms)
            return 0
        if not data:
            if future.log_end_offset < current.log_end_offset:
                future.skip_to(current.log_end_offset, self._registry.wall.at(now_ms))
            self._caught_up(key, current, future, now_ms)
        return len(data)

    def _read(self, current: UnifiedLog, future: UnifiedLog, now_ms: int) -> bytearray:
        """Read the next batches for the future log, at most those of one append."""
        self._align(current, future, now_ms)
        most = min(COPY_BYTES, future.config.segment_bytes)
        part = current.read(future.log_end_offset, most, limit_offset=current.log_end_offset)
        data = bytearray(part.size)
        if part.file is not None:
            part.file.read_into(part.position, memoryview(data))
        self._begin_with_batch(future, data, now_ms)
        return data

    def _begin_with_batch(self, future: UnifiedLog, data: bytearray, now_ms: int) -> None:
        """Begin an empty future log with its first batch, which may contain records below the log start offset."""
        if data and future.log_end_offset == future.log_start_offset:
            base_offset = read_header(memoryview(data)).base_offset
            if base_offset < future.log_end_offset:
                renamed = future.truncate_fully_and_start_at(base_offset, self._registry.wall.at(now_ms))
                self._registry.deletions.add(renamed, now_ms + future.config.file_delete_delay_ms)

    def _align(self, current: UnifiedLog, future: UnifiedLog, now_ms: int) -> None:
        """Truncate the future log to the range of the log."""
        delay_ms = future.config.file_delete_delay_ms
        renamed: list[str] = []
        is_longer = future.log_end_offset > current.log_end_offset
        if future.log_end_offset < current.log_start_offset or (is_longer and "compact" in future.config.cleanup_policy):
            renamed = future.truncate_fully_and_start_at(current.log_start_offset, self._registry.wall.at(now_ms))
        elif is_longer:
            renamed = future.truncate_to(current.log_end_offset, self._registry.wall.at(now_ms))
        self._registry.deletions.add(renamed, now_ms + delay_ms)

    def _caught_up(self, key: TopicPartition, current: UnifiedLog, future: UnifiedLog, now_ms: int) -> None:
        if key in self._reported or future.log_end_offset != current.log_end_offset:
            return
        self._reported.add(key)
        self._on_caught_up(*key, now_ms)

    def report_again(self, topic: str, partition: int) -> None:
        """Call `on_caught_up` once more after IDLE_MS: the log cannot be replaced yet."""
        self._reported.discard((topic, partition))

    # ------------------------------------------------------------------------------------------------------ replacing

    def replace(self, topic: str, partition: int, now_ms: int) -> UnifiedLog | None:
        """Replace the log by the future log, and return it; None if it has not caught up (any more).

        Raises KafkaStorageError if one of the two is offline.
        """
        registry, key = self._registry, (topic, partition)
        current, future = registry.get_log(topic, partition), registry.future_logs.get(key)
        if current is None or future is None:
            raise KafkaStorageError(f"cannot move {topic}-{partition}: one of its log directories is offline")
        if future.log_end_offset != current.log_end_offset:
            self._reported.discard(key)
            self._wake(now_ms)
            return None
        return self._take_place(key, current, future, now_ms)

    def _take_place(self, key: TopicPartition, current: UnifiedLog | None, future: UnifiedLog, now_ms: int) -> UnifiedLog:
        registry = self._registry
        target = join_path(parent_path(future.directory), partition_directory_name(*key))
        try:
            self._flush(current, future)
            future.close_files()
            registry.disk.rename(future.directory, target)
            future.move(target)
        except OSError as error:
            registry.take_offline(future.directory, error)
            raise KafkaStorageError(f"cannot make {target}: the log directory is offline") from error
        registry.flush_directory(parent_path(target))
        if current is not None:
            future.update_high_watermark(current.high_watermark)
            future.maybe_increment_log_start_offset(min(current.log_start_offset, future.high_watermark))
        del registry.future_logs[key]
        registry.logs[key] = future
        registry.epoch_writer.defer_writes(future)
        self._reported.discard(key)
        if current is not None:
            registry.set_aside(current, now_ms)
        return future

    def _flush(self, current: UnifiedLog | None, future: UnifiedLog) -> None:
        """Flush the future log, so that records that were flushed in the old log stay durable. Raises OSError.

        This waits for the device, but only for the records since the flush after it had caught up. The old log counts as
        flushed, too, for the flushes under way.
        """
        for path in future.unflushed_paths():
            self._registry.disk.flush(path)
        future.mark_flushed(future.log_end_offset)
        if current is not None:
            current.mark_flushed(min(current.log_end_offset, future.log_end_offset))

    def recover_abandoned(self, directory_of: Callable[[UnifiedLog], object], now_ms: int) -> list[UnifiedLog]:
        """Replace logs, after a start, by future logs whose directory the metadata already has; return these future logs.

        `directory_of` returns the directory id that the metadata has for a log's topic id and partition, or None. If a crash
        left the future log shorter than the log, the copy continues.
        """
        registry = self._registry
        found = []
        for key, future in list(registry.future_logs.items()):
            directory_id, current = registry.directory_id_of(future), registry.logs.get(key)
            has_all = current is None or current.log_end_offset <= future.log_end_offset
            if directory_id is not None and directory_of(future) == directory_id and has_all:
                found.append(self._take_place(key, current, future, now_ms))
        return found
