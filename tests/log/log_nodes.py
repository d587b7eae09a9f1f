"""Log managers for tests: one behind the other over the same directories, a device that does what is asked, batches."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from kcli.format.kafka_uuid import Uuid
from kcli.format.record_batch import NewRecordBatch
from kcli.format.records import Record, encode_records
from kcli.log.disk.flush_request import begin_flushes
from kcli.log.disk.os_disk import OsDisk
from kcli.log.disk.port import LogDisk
from kcli.log.file_cache import FileCache
from kcli.log.log_config import LogConfig
from kcli.log.log_manager import LogManager
from kcli.log.managing.log_registry import LogManagerSettings

TOPIC_ID = Uuid(b"topic-id-of-16-b")
OTHER_ID = Uuid(b"other-id-of-16-b")
NOW_MS = 1_700_000_000_000


def batch(count: int = 3, value: bytes = b"v", producer: int = -1, sequence: int = 0) -> memoryview:
    """A batch as a producer sends it."""
    records = encode_records(Record(delta, 0, None, value, ()) for delta in range(count))
    new = NewRecordBatch(
        base_offset=0,
        last_offset_delta=count - 1,
        base_timestamp=NOW_MS,
        max_timestamp=NOW_MS,
        record_count=count,
        records=records,
        producer_id=producer,
        producer_epoch=0 if producer >= 0 else -1,
        base_sequence=sequence if producer >= 0 else -1,
    )
    return memoryview(bytearray(new.encode()))


class Node:
    """Managers one behind the other over the same directories, with the device at hand: what is asked to be flushed is done."""

    def __init__(self, *directories: Path, ids: bool = True, disk: LogDisk | None = None) -> None:
        self.disk = disk or OsDisk()
        self.dirs = {str(path): Uuid(bytes([200 + at]) * 16) if ids else None for at, path in enumerate(directories)}
        self.config = LogConfig()
        self.reports: list[str] = []
        self.caught_up: list[tuple[str, int]] = []

    def manager(self, **settings: int) -> LogManager:
        return LogManager(
            self.disk,
            FileCache(self.disk),
            self.dirs,
            random.Random(7),
            LogManagerSettings(**settings),
            self.reports.append,
            on_caught_up=lambda topic, partition, now_ms: self.caught_up.append((topic, partition)),
        )

    def started(
        self,
        is_hosted: Callable[[Uuid, int], bool] = lambda topic_id, partition: True,
        directory_of: Callable[[Uuid, int], Uuid | None] = lambda topic_id, partition: None,
        **settings: int,
    ) -> LogManager:
        manager = self.manager(**settings)
        for _ in manager.start(lambda topic: self.config, is_hosted, NOW_MS, directory_of):
            pass
        return manager


def device(manager: LogManager, paths: tuple[str, ...]) -> OSError | None:
    """What a shell answers to a Flush of these paths."""
    try:
        for path in paths:
            manager.disk.flush(path)
    except OSError as error:
        return error
    return None


def flush(manager: LogManager, error: OSError | None = None) -> list[tuple[str, ...]]:
    """Do what is to be flushed, or fail it -> the paths."""
    done = []
    while waiting := manager.take_flushes():
        while waiting:
            request = waiting.pop()
            done.append(request.paths)
            more = request.done(error or device(manager, request.paths))
            if more is not None:
                waiting.append(more)
    return done


def stop(manager: LogManager, broker_epoch: int = 5) -> None:
    request = begin_flushes(manager.shutdown(broker_epoch))
    while request is not None:
        request = request.done(device(manager, request.paths))


def crash(manager: LogManager) -> None:
    """As after a kill: nothing is written any more, and the locks are gone."""
    manager.files.close_all()
    for log_dir in manager.dirs.values():
        log_dir.unlock()
