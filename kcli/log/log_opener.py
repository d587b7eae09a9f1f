"""Opening the log of a partition (Kafka: LogLoader).

the directory contains          how it is opened
------------------------------  --------------------------------------------------------------------------------------
no log                          the first segment is made at the log start offset
a log that was closed cleanly   kcli.log.loading.clean_opening: a few small reads
any other log                   kcli.log.loading.log_loader reads the segments from the recovery point on and changes the
                                files in place; if a segment must be split, it plans the changes first
"""

from __future__ import annotations

from kcli.format import limits
from kcli.format.file_names import FileKind
from kcli.format.kafka_uuid import Uuid
from kcli.log.disk.file_changes import Discard, apply_changes
from kcli.log.disk.load_disk import LiveDisk, NotInPlaceError
from kcli.log.disk.planned_disk import PlannedDisk
from kcli.log.disk.port import Disk, LogDisk, join_path, parent_path
from kcli.log.file_cache import FileCache
from kcli.log.files.indexes import IndexSettings
from kcli.log.files.leader_epoch_file_cache import leader_epochs_in
from kcli.log.loading.clean_opening import OpenedLog, open_clean
from kcli.log.loading.log_loader import LoadedLog, LoadSettings, load_log_in_slices
from kcli.log.loading.recovery_journal import LoadJournal
from kcli.log.local_log import LocalLog
from kcli.log.log_config import LogConfig
from kcli.log.log_segment import LogSegment
from kcli.log.producer_state_manager import ProducerStateManager
from kcli.log.rng import Random
from kcli.log.segment_appender import SegmentAppender
from kcli.log.slices import Slices, at_once
from kcli.log.unified_log import UnifiedLog


def open_in_slices(
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
    rng: Random | None = None,
    journal: LoadJournal | None = None,
) -> Slices[UnifiedLog]:
    """Open the log in `directory`, or make it. Raises LogRefusedError if Kafka would refuse to load it, and OSError.

    The offsets are those in the checkpoints of the log directory. The log must not be open elsewhere. `journal` records what
    the load removes. This is a generator of time slices for the start of a broker; `open_log` does the same in one call.
    """
    disk.make_directory(directory)
    names = disk.list_directory(directory)
    opened, is_flushed_at_once = None, False
    unflushed: list[str] = []
    is_new = not any(name != FileKind.PARTITION_METADATA.value for name in names)
    if is_new:
        opened = _begin(disk, directory, log_start_offset)
    elif clean_shutdown:
        opened = open_clean(disk, directory, names, log_start_offset)
    if opened is None:
        indexes = IndexSettings(config.index_interval_bytes, config.segment_index_bytes)
        settings = LoadSettings(clean_shutdown, log_start_offset, recovery_point, indexes, keeps_batches=True)
        opened, unflushed, is_flushed_at_once = yield from _load(disk, directory, settings, journal)
    active = SegmentAppender(disk, opened.segments[-1], now_ms)
    local = LocalLog(disk, files, directory, config, opened.segments, active, opened.log_end_offset)
    local.new_paths.update(dict.fromkeys(unflushed, opened.log_end_offset))
    if is_new:
        active.create(local.rules)
        files.get(active.segment.log_path, create=True)
        local.new_paths[directory] = log_start_offset
    if not clean_shutdown:
        snapshots = [path for offset, path in opened.producers.snapshots.items() if offset >= opened.recovery_point]
        _add_unflushed(local, names, snapshots, opened.recovery_point)
    log = UnifiedLog(
        local,
        topic,
        partition,
        opened.producers,
        opened.epochs,
        log_start_offset=opened.log_start_offset,
        recovery_point=opened.recovery_point,
        now_ms=now_ms,
        topic_id=topic_id,
        rng=rng,
    )
    if is_flushed_at_once:
        for path in log.unflushed_paths():
            disk.flush(path)
    return log


open_log = at_once(open_in_slices)


def _add_unflushed(local: LocalLog, names: list[str], snapshots: list[str], recovery_point: int) -> None:
    """Add the files above the recovery point, and the directories, to the next flush.

    The process that wrote them may have died before its flush. Their bytes can be read from the page cache, but only a flush
    makes sure that they are on the device.
    """
    segments = local.segments[local.floor(recovery_point) :]
    paths = [path for segment in segments for path in segment.paths[:3]]
    paths += [path for segment in segments if local.disk.exists(path := segment.paths[3])]
    paths += snapshots
    if FileKind.PARTITION_METADATA.value in names:
        metadata = join_path(local.directory, FileKind.PARTITION_METADATA.value)
        paths.append(metadata)
        # Written again: after a failed flush a later one succeeds without these bytes, and a log without them is a stray.
        local.disk.write_at(metadata, 0, local.disk.read_file(metadata, limits.MAX_TEXT_FILE_BYTES))
    paths += (local.directory, parent_path(local.directory))
    local.new_paths.update(dict.fromkeys(paths, local.end_offset))


def _begin(disk: Disk, directory: str, offset: int) -> OpenedLog:
    epochs = leader_epochs_in(disk, directory, ())
    disk.append(join_path(directory, FileKind.LEADER_EPOCH_CHECKPOINT.value), b"")
    producers = ProducerStateManager(disk, directory, snapshot_offsets=())
    producers.map_end_offset = offset
    return OpenedLog([LogSegment(directory, offset)], producers, epochs, offset, offset, offset)


def _load(
    disk: Disk, directory: str, settings: LoadSettings, journal: LoadJournal | None
) -> Slices[tuple[OpenedLog, list[str], bool]]:
    """Load the log; return it, the files that are not flushed, and whether to flush them before the first append.

    That is so if files were truncated: a power failure could mix old and new bytes, and if a client has sent a batch again, the
    two differ in the leader epoch only, which the CRC does not cover. And if an index was overwritten and its segment ends at
    the recovery point: after the next roll no recovery reads that segment again, and a power failure could leave an index of
    old and new entries.
    """
    live = LiveDisk(disk)
    try:
        loaded = yield from load_log_in_slices(live, directory, settings, journal)
    except NotInPlaceError:
        planned = PlannedDisk(disk)
        loaded = yield from load_log_in_slices(planned, directory, settings, journal)
        apply_changes(disk, planned.changes(), Discard(disk))
    unflushed = [path for path in live.unflushed if disk.exists(path)]
    is_mixable = live.has_overwritten and loaded.recovery_point >= loaded.log_end_offset
    return _opened(disk, directory, loaded), unflushed, live.has_cut or is_mixable


def _opened(disk: Disk, directory: str, loaded: LoadedLog) -> OpenedLog:
    segments = [LogSegment(directory, base) for base in loaded.segments]
    for segment in segments:
        segment.size_bytes = disk.size(segment.log_path)
    loaded.producers.use_disk(disk)
    return OpenedLog(
        segments,
        loaded.producers,
        leader_epochs_in(disk, directory, loaded.epochs.entries),
        loaded.log_start_offset,
        loaded.log_end_offset,
        loaded.recovery_point,
    )
