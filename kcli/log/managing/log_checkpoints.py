"""What the offset checkpoints of log directories hold, and writing them while the broker runs.

    kind                               a log's line
    ---------------------------------  -----------------------------------------------------------------------------------
    recovery-point-offset-checkpoint   its recovery point
    log-start-offset-checkpoint        its log start offset, where that lies behind the first segment's base offset
    replication-offset-checkpoint      its high watermark
    cleaner-offset-checkpoint          up to where it is cleaned, where it was

    kcli-uncleanable-partitions        when and why the cleaner gave it up, where it did

A log and the future log that is to replace it lie in different directories, so each has a line of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kcli.format.file_names import FileKind
from kcli.format.uncleanable_partitions import UncleanablePartition
from kcli.log.disk.port import parent_path
from kcli.log.files.checkpoint_files import TopicPartition
from kcli.log.managing.log_dir import LogDir
from kcli.log.managing.log_registry import LogRegistry
from kcli.log.unified_log import UnifiedLog


class LogCheckpoints:
    """The checkpoints of a registry's log directories. What is to be flushed goes to the registry."""

    def __init__(self, registry: LogRegistry) -> None:
        self._registry = registry

    @staticmethod
    def offset_of(log: UnifiedLog, kind: FileKind) -> int | None:
        """What a checkpoint holds of a log; None where it has no line there."""
        if kind is FileKind.RECOVERY_POINT_CHECKPOINT:
            return log.recovery_point
        if kind is FileKind.REPLICATION_CHECKPOINT:
            return log.high_watermark
        if kind is FileKind.CLEANER_CHECKPOINT:
            return log.cleaned_offset
        return log.log_start_offset if log.log_start_offset > log.first_base_offset else None

    def offsets_in(self, log_dir: LogDir, kind: FileKind) -> dict[TopicPartition, int]:
        """What a checkpoint of a log directory is to hold now."""
        found = {}
        for log in self._registry.all_logs():
            if parent_path(log.directory) == log_dir.path:
                offset = self.offset_of(log, kind)
                if offset is not None:
                    found[log.topic, log.partition] = offset
        return found

    def write_all(self, log_dir: LogDir, kind: FileKind) -> None:
        """Write one checkpoint of a log directory, of all its logs."""
        self.write(log_dir, kind, self.offsets_in(log_dir, kind))

    def write_uncleanable(self, log_dir: LogDir, partitions: Iterable[UncleanablePartition]) -> None:
        """Write which logs of a log directory are not cleaned any more; an error takes it offline."""
        registry = self._registry
        if log_dir.is_online:
            try:
                registry.queue_flush(log_dir.uncleanable.write(partitions, registry.failing(log_dir.path)))
            except OSError as error:
                registry.take_offline(log_dir.path, error)

    def write(self, log_dir: LogDir, kind: FileKind, offsets: Mapping[TopicPartition, int]) -> None:
        """Write these offsets as one checkpoint of a log directory; an error takes it offline."""
        if not log_dir.is_online:
            return
        registry = self._registry
        try:
            registry.queue_flush(log_dir.checkpoints[kind].write(offsets, registry.failing(log_dir.path)))
        except OSError as error:
            registry.take_offline(log_dir.path, error)
