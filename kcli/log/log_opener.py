"""Opening the log of a partition: making a new one, or loading what is there as Kafka does (kcli.log.log_loader)."""

from __future__ import annotations

from kcli.format.file_names import FileKind, segment_file_name
from kcli.format.kafka_uuid import Uuid
from kcli.log.disk import LogDisk
from kcli.log.file_cache import FileCache
from kcli.log.file_changes import NOTHING_UNFLUSHED, Discard, apply_changes
from kcli.log.indexes import IndexSettings
from kcli.log.leader_epoch_cache import load_leader_epochs
from kcli.log.live_segment import LiveSegment
from kcli.log.local_log import LocalLog
from kcli.log.log_config import LogConfig
from kcli.log.log_directory import join_path
from kcli.log.log_loader import LoadedLog, LoadSettings, load_log
from kcli.log.planned_disk import PlannedDisk
from kcli.log.producer_state_manager import ProducerStateManager
from kcli.log.segment_appender import SegmentAppender
from kcli.log.unified_log import Dice, UnifiedLog


def open_log(
    disk: LogDisk,
    files: FileCache,
    directory: str,
    topic: str,
    partition: int,
    config: LogConfig,
    now_ms: int,
    *,
    clean_shutdown: bool = False,
    recovery_point: int = 0,
    log_start_offset: int = 0,
    topic_id: Uuid | None = None,
    rng: Dice | None = None,
) -> UnifiedLog:
    """Open the log in `directory`, made where it is missing. Raises LogRefusedError where Kafka refuses, and OSError."""
    settings = LoadSettings(
        clean_shutdown,
        log_start_offset,
        recovery_point,
        IndexSettings(config.index_interval_bytes, config.segment_index_bytes),
    )
    first_path = join_path(directory, segment_file_name(log_start_offset, FileKind.LOG))
    if not disk.exists(directory) or not disk.list_directory(directory):
        disk.make_directory(directory)
    planned = PlannedDisk(disk)
    loaded = load_log(planned, directory, settings)
    is_new = not disk.exists(first_path) and len(loaded.segments) == 1 and loaded.log_end_offset == log_start_offset
    apply_changes(disk, planned.changes(), Discard(disk), unflushed_from=_recovered_anew_from(loaded, clean_shutdown))
    segments = [
        LiveSegment(directory, base, disk.size(join_path(directory, segment_file_name(base, FileKind.LOG))))
        for base in loaded.segments
    ]
    active = SegmentAppender(disk, segments[-1], now_ms)
    if is_new:
        active.create(config)
    # The plan's state looks at the planned disk; from here on it is the real one's.
    producers = ProducerStateManager(disk, directory)
    producers.truncate_and_reload(loaded.log_start_offset, loaded.log_end_offset)
    producers.map_end_offset = loaded.log_end_offset
    return UnifiedLog(
        LocalLog(disk, files, directory, config, segments, active, loaded.log_end_offset),
        topic,
        partition,
        producers,
        load_leader_epochs(disk, directory),
        log_start_offset=loaded.log_start_offset,
        recovery_point=loaded.recovery_point,
        now_ms=now_ms,
        topic_id=topic_id,
        rng=rng,
    )


def _recovered_anew_from(loaded: LoadedLog, clean_shutdown: bool) -> int:
    """The base offset of the segment from which on another crash would have the log recovered as now; the last, if cleanly
    stopped: of that one nothing is left to do."""
    if clean_shutdown:
        return NOTHING_UNFLUSHED
    return max((base for base in loaded.segments if base <= loaded.recovery_point), default=NOTHING_UNFLUSHED)
