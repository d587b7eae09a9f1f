"""Opening all logs of a broker's log directories, a slice of work a step.

    a directory in a log directory            what becomes of it (Kafka: LogManager.loadLogs)
    ----------------------------------------  -------------------------------------------------------------------------
    `<topic>-<partition>`                     opened; after a crash what lies above its recovery point is read again
    the same, not of this broker by metadata  renamed to -stray and left alone: a topic that was deleted or moved away
                                              meanwhile, or a directory that never got its partition.metadata
    ...-future                                opened; the replica goes on moving
    ...-delete                                removed after file.delete.delay.ms
    ...-stray                                 left alone
    `__cluster_metadata-0`                    KRaft's, which opens it itself
    anything else                             left alone and reported (Kafka refuses to start over it)

Where Kafka opens a log before it looks whose it is, here whose it is comes first: a stray one is renamed as it lies.
A log that Kafka would refuse to load (LogRefusedError) takes its log directory offline, as an OSError does; with the last
one the start has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from kcli.format import limits
from kcli.format.file_names import (
    METADATA_TOPIC,
    REMOTE_INDEX_CACHE_DIRECTORY,
    DirectoryState,
    FileKind,
    PartitionDirectory,
    parse_partition_directory,
    partition_directory_name,
)
from kcli.format.kafka_uuid import Uuid
from kcli.format.metadata_files import decode_partition_metadata
from kcli.format.primitives import FormatError
from kcli.log.log_dir import LogDir
from kcli.log.log_directory import join_path
from kcli.log.log_segment import LogRefusedError
from kcli.log.offset_checkpoint_file import TopicPartition
from kcli.log.storage_errors import DuplicateLogError

if TYPE_CHECKING:
    from kcli.log.log_manager import LogManager

_Checkpoints = dict[FileKind, dict[TopicPartition, int]]


def load_logs(manager: LogManager, is_hosted: Callable[[Uuid, int], bool], now_ms: int) -> Iterator[None]:
    """Open all logs into the manager, about one a step; see LogManager.start."""
    for log_dir in manager.online_dirs():
        try:
            yield from _load_dir(manager, log_dir, is_hosted, now_ms)
            log_dir.is_loaded = True
        except OSError as error:
            manager.fail_dir(log_dir.path, error)
        except LogRefusedError as error:
            sentence = f"{error.path}: {error.message}; `kcli verify --repair {log_dir.path}` says what can be done"
            manager.fail_dir(log_dir.path, OSError(sentence))


def _load_dir(manager: LogManager, log_dir: LogDir, is_hosted: Callable[[Uuid, int], bool], now_ms: int) -> Iterator[None]:
    checkpoints = log_dir.begin_loading(manager.report)
    yield
    for name in manager.disk.list_directory(log_dir.path):
        found = _partition_of(manager, log_dir, name)
        if found is None:
            continue
        path = join_path(log_dir.path, name)
        if found.state is DirectoryState.DELETE:
            manager.deletions.add((path,), now_ms + manager.settings.file_delete_delay_ms)
        elif found.state is DirectoryState.STRAY:
            manager.stray_directories.append(path)
        else:
            topic_id = _read_topic_id(manager, path)
            if topic_id is None or not is_hosted(topic_id, found.partition):
                _set_stray(manager, log_dir, path, found, topic_id)
            else:
                _open(manager, log_dir, path, found, topic_id, checkpoints, now_ms)
            yield


def _partition_of(manager: LogManager, log_dir: LogDir, name: str) -> PartitionDirectory | None:
    """What a name in a log directory says of a partition's directory; None for anything else."""
    try:
        found = parse_partition_directory(name)
    except FormatError as error:
        if name != REMOTE_INDEX_CACHE_DIRECTORY and manager.disk.is_directory(join_path(log_dir.path, name)):
            manager.report(f"{log_dir.path}: {error.message}; it is left alone")
        return None
    if found.topic == METADATA_TOPIC or not manager.disk.is_directory(join_path(log_dir.path, name)):
        return None
    return found


def _read_topic_id(manager: LogManager, path: str) -> Uuid | None:
    """The topic id in partition.metadata; None where the file is missing or empty: it was not on the device before a crash."""
    at = join_path(path, FileKind.PARTITION_METADATA.value)
    try:
        data = manager.disk.read_file(at, limits.MAX_TEXT_FILE_BYTES)
    except FileNotFoundError:
        return None
    try:
        return decode_partition_metadata(data).topic_id if data.strip(b"\0") else None
    except FormatError as error:
        raise LogRefusedError(error.message, at) from error


def _set_stray(manager: LogManager, log_dir: LogDir, path: str, found: PartitionDirectory, topic_id: Uuid | None) -> None:
    target = join_path(
        log_dir.path, partition_directory_name(found.topic, found.partition, DirectoryState.STRAY, manager.unique_id())
    )
    why = "it has no topic id" if topic_id is None else f"the metadata does not place topic id {topic_id} on this broker"
    manager.report(f"{path}: {why}; renamed to {target}")
    manager.disk.rename(path, target)
    manager.flush_directory(log_dir.path)
    manager.stray_directories.append(target)


def _open(
    manager: LogManager,
    log_dir: LogDir,
    path: str,
    found: PartitionDirectory,
    topic_id: Uuid,
    checkpoints: _Checkpoints,
    now_ms: int,
) -> None:
    key = (found.topic, found.partition)
    logs = manager.future_logs if found.state is DirectoryState.FUTURE else manager.logs
    if key in logs:
        raise DuplicateLogError(
            f"{found.topic}-{found.partition} lies twice, in {logs[key].directory} and in {path}: remove the one that is "
            "older, most likely that of the log directory which failed last"
        )
    log = manager.open_log(
        path,
        key,
        topic_id,
        now_ms,
        clean_shutdown=log_dir.had_clean_shutdown,
        recovery_point=checkpoints[FileKind.RECOVERY_POINT_CHECKPOINT].get(key, 0),
        log_start_offset=checkpoints[FileKind.LOG_START_OFFSET_CHECKPOINT].get(key, 0),
    )
    log.update_high_watermark(checkpoints[FileKind.REPLICATION_CHECKPOINT].get(key, 0))
    logs[key] = log
