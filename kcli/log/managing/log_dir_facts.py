"""What there is to tell of a broker's log directories (DescribeLogDirs, KIP-113, KIP-827).

fact              is
----------------  ----------------------------------------------------------------------------------------------------
offset lag        of a replica that is moving, how far it is behind the one that it is to replace; of any other, how far
                  its log end is behind its high watermark, which a replica that was cut may be; never negative
total, usable     the bytes of the file system, and those that may still be written; -1 where they cannot be told
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.format.kafka_uuid import Uuid
from kcli.log.disk.port import parent_path
from kcli.log.managing.log_registry import LogRegistry
from kcli.log.unified_log import UnifiedLog

UNKNOWN_BYTES = -1


class ReplicaFacts(NamedTuple):
    """One replica in a log directory; `size_bytes` are those of its segments."""

    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    is_future: bool


class LogDirFacts(NamedTuple):
    """One log directory; one that is offline (`offline_reason`) has no replicas and no bytes."""

    path: str
    directory_id: Uuid | None
    offline_reason: str | None
    total_bytes: int
    usable_bytes: int
    replicas: list[ReplicaFacts]


def describe_log_dirs(registry: LogRegistry) -> list[LogDirFacts]:
    """The facts of every log directory, in the order of log.dirs; one whose file system cannot be asked goes offline."""
    by_dir: dict[str, list[ReplicaFacts]] = {}
    for logs in (registry.logs, registry.future_logs):
        is_future = logs is registry.future_logs
        for (topic, partition), log in sorted(logs.items()):
            lag = _offset_lag(log, registry.logs.get((topic, partition)) if is_future else None)
            facts = ReplicaFacts(topic, partition, log.size_bytes, lag, is_future)
            by_dir.setdefault(parent_path(log.directory), []).append(facts)
    found = []
    for log_dir in registry.dirs.values():
        total_bytes = usable_bytes = UNKNOWN_BYTES
        if log_dir.is_online:
            try:
                total_bytes, usable_bytes = registry.disk.total_bytes(log_dir.path), registry.disk.free_bytes(log_dir.path)
            except OSError as error:
                registry.take_offline(log_dir.path, error)
        replicas = by_dir.get(log_dir.path, []) if log_dir.is_online else []
        found.append(
            LogDirFacts(log_dir.path, log_dir.directory_id, log_dir.offline_reason, total_bytes, usable_bytes, replicas)
        )
    return found


def _offset_lag(log: UnifiedLog, current: UnifiedLog | None) -> int:
    behind = log.high_watermark if current is None else current.log_end_offset
    return max(behind - log.log_end_offset, 0)
