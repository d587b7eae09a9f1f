"""Opening the log of a partition (Kafka: LogLoader).

the directory contains          how it is opened
------------------------------  --------------------------------------------------------------------------------------
no log                          the first segment is made at the log start offset
a log that was closed cleanly   `open_clean`: a few small reads; as any other log if its files contradict the clean stop
any other log                   kcli.log.loading.log_loader reads the segments from the recovery point on and changes the
                                files in place; if a segment must be split, it plans the changes first

A clean opening needs the files as a broker left them at its clean stop.

    check                                  expected, else kcli.log.loading.log_loader loads the log
    -------------------------------------  -------------------------------------------------------------------------------
    the names in the directory             segments with both indexes, no leftovers, no transaction index
    sizes of the segments                  at most 2**31 - 1 bytes
    the last entry of the last `.index`    present, not of a preallocated tail, and matches its batch
    headers from there to the end          complete batches of format 2 up to the last byte: the log end offset
    snapshots                              a sound one at the log end (none if nothing was ever written)
    leader epochs, checkpoints             none above the log end

Snapshots and leader epochs are then treated as by log_loader. No other segment is read: the task closed-segment-check compares
them with their indexes when the broker runs (kcli.log.log_manager, `read_end`).
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.format import limits
from kcli.format.file_names import FileKind, segment_file_name
from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import INT32_MAX, CorruptIndexError, FormatError
from kcli.format.producer_snapshot import decode_producer_snapshot
from kcli.format.record_batch import RecordBatch
from kcli.format.structs import TIME_INDEX_ENTRY
from kcli.log.disk.file_changes import Discard, apply_changes
from kcli.log.disk.load_disk import LiveDisk, NotInPlaceError
from kcli.log.disk.planned_disk import PlannedDisk
from kcli.log.disk.port import Disk, LogDisk, join_path, parent_path
from kcli.log.file_cache import FileCache
from kcli.log.files.indexes import IndexSettings, last_index_entry
from kcli.log.files.leader_epoch_file_cache import LeaderEpochFileCache, leader_epochs_in, load_leader_epochs
from kcli.log.loading.log_loader import LoadedLog, LoadSettings, load_log_in_slices
from kcli.log.loading.recovery_journal import LoadJournal
from kcli.log.local_log import LocalLog
from kcli.log.log_config import LogConfig
from kcli.log.log_segment import LogSegment
from kcli.log.producer_state_manager import ProducerStateManager
from kcli.log.reading.header_reader import HeaderReader
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
    high_watermark: int = 0,
    topic_id: Uuid | None = None,
    rng: Random | None = None,
    journal: LoadJournal | None = None,
    names: list[str] | None = None,
) -> Slices[UnifiedLog]:
    """Open the log in `directory`, or make it. Raises LogRefusedError if Kafka would refuse to load it, and OSError.

    The offsets are those in the checkpoints of the log directory. `journal` records what the load removes. `names` are those in
    the directory before the caller wrote partition.metadata, None if it did not. `open_log` runs all time slices at once.
    """
    if names is None:
        disk.make_directory(directory)
        names = disk.list_directory(directory)
    opened, unflushed, is_flushed_at_once, known_end = None, list[str](), False, max(recovery_point, high_watermark)
    if is_new := not any(name != FileKind.PARTITION_METADATA.value for name in names):
        opened = _begin(disk, directory, log_start_offset)
    elif clean_shutdown:
        opened = open_clean(disk, directory, names, log_start_offset, known_end)
    if opened is None:
        indexes = IndexSettings(config.index_interval_bytes, config.segment_index_bytes)
        settings = LoadSettings(clean_shutdown, log_start_offset, recovery_point, indexes, is_broker=True, known_end=known_end)
        opened, unflushed, is_flushed_at_once = yield from _load(disk, directory, settings, journal)
    active = SegmentAppender(disk, opened.segments[-1], now_ms)
    local = LocalLog(disk, files, directory, config, opened.segments, active, opened.log_end_offset)
    local.new_paths.update(dict.fromkeys(unflushed, opened.log_end_offset))
    if is_new:
        active.create(local.rules)
        files.get(active.segment.log_path, create=True)
        local.new_paths[directory] = log_start_offset
    if not clean_shutdown:
        _add_unflushed(local, names, opened)
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


def _add_unflushed(local: LocalLog, names: list[str], opened: OpenedLog) -> None:
    """Add the files above the recovery point, and the directories, to the next flush.

    The process that wrote them may have died before its flush. Their bytes can be read from the page cache, but only a flush
    makes sure that they are on the device.
    """
    segments = local.segments[local.floor(opened.recovery_point) :]
    paths = [path for segment in segments for path in segment.paths[:3]]
    paths += [path for segment in segments if names and local.disk.exists(path := segment.paths[3])]
    paths += [path for offset, path in opened.producers.snapshots.items() if offset >= opened.recovery_point]
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
    live = LiveDisk(disk, directory)
    try:
        loaded = yield from load_log_in_slices(live, directory, settings, journal)
        live.finish()
    except NotInPlaceError:
        live.finish()
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


_OFFSET_DIGITS = 20
_SEGMENT_SUFFIXES = frozenset((".log", ".index", ".timeindex", ".snapshot"))
_KNOWN_NAMES = frozenset((FileKind.LEADER_EPOCH_CHECKPOINT.value, FileKind.PARTITION_METADATA.value))


class OpenedLog(NamedTuple):
    """The parts of an open log; offsets as in UnifiedLog."""

    segments: list[LogSegment]
    producers: ProducerStateManager
    epochs: LeaderEpochFileCache
    log_start_offset: int
    log_end_offset: int
    recovery_point: int


def open_clean(disk: Disk, directory: str, names: list[str], log_start_offset: int, known_end: int) -> OpenedLog | None:
    """Open the log in `directory`, whose files are `names`; None, with nothing changed, if a check fails. Raises OSError.

    `known_end` is the highest offset of the log in a checkpoint.
    """
    found = _sort(names)
    bases = found[".log"]
    if not bases or found[".index"] != bases or found[".timeindex"] != bases or found["other"]:
        return None
    segments = [LogSegment(directory, base) for base in bases]
    for segment in segments:
        segment.size_bytes = disk.size(segment.log_path)
        if segment.size_bytes > INT32_MAX:
            return None
    end_offset = _end_offset(disk, segments[-1])
    snapshots = found[".snapshot"]
    if end_offset is None or end_offset < max(log_start_offset, known_end):
        return None
    if (snapshots[-1] if snapshots else 0) != end_offset:
        return None
    try:
        if snapshots:
            _check_snapshot(disk, directory, end_offset)
        epochs = load_leader_epochs(disk, directory)
        producers = ProducerStateManager(disk, directory, snapshot_offsets=snapshots)
    except FormatError:
        return None
    if epochs.entries and epochs.entries[-1].start_offset > end_offset:
        return None
    start_offset = max(log_start_offset, bases[0])
    if snapshots:
        producers.remove_stray_snapshots(bases, is_listed=True)
        producers.truncate_and_reload(start_offset, end_offset)
    epochs.truncate_from_end(end_offset)
    epochs.truncate_from_start(log_start_offset)
    return OpenedLog(segments, producers, epochs, start_offset, end_offset, end_offset)


def _check_snapshot(disk: Disk, directory: str, offset: int) -> None:
    """Raise FormatError if the snapshot of an offset is damaged: nothing has been changed yet, so that log_loader can load."""
    path = join_path(directory, segment_file_name(offset, FileKind.PRODUCER_SNAPSHOT))
    decode_producer_snapshot(disk.read_file(path, limits.MAX_INDEX_FILE_BYTES))


class SegmentEnd(NamedTuple):
    """Where a segment ends: the last complete batch ends at byte `position`, and `next_offset` is the offset after it.

    `is_as_indexed` is False if no stop leaves the last entry of the `.index` next to a `.log` of this size.
    """

    next_offset: int
    position: int
    is_as_indexed: bool


def read_end(disk: Disk, segment: LogSegment) -> SegmentEnd:
    """Read the headers from the last index entry below the end of a segment on. Raises OSError."""
    is_as_indexed, starts = True, [0]
    try:
        _, start = last_index_entry(disk, segment.path(FileKind.INDEX), segment.base_offset, segment.size_bytes)
    except (CorruptIndexError, FileNotFoundError) as error:
        is_as_indexed = isinstance(error, FileNotFoundError)
        starts += segment.read_offset_index(disk).positions
        start = starts.pop()
    file = disk.open_file(segment.log_path)
    try:
        while True:
            headers, next_offset = HeaderReader(file, start, segment.size_bytes), segment.base_offset
            for header in headers.headers():
                next_offset = header.next_offset
            if headers.position > start or not start:
                return SegmentEnd(next_offset, headers.position, is_as_indexed)
            if len(starts) == 1:
                starts += (at for at in segment.read_offset_index(disk).positions if at < start)
            start = starts.pop()
    finally:
        file.close()


def _sort(names: list[str]) -> dict[str, list[int]]:
    """Return the offsets of the files by suffix; "other" has an entry for each file of another name."""
    found: dict[str, list[int]] = {suffix: [] for suffix in _SEGMENT_SUFFIXES}
    found["other"] = []
    for name in names:
        stem, suffix = name[:_OFFSET_DIGITS], name[_OFFSET_DIGITS:]
        if suffix in _SEGMENT_SUFFIXES and stem.isascii() and stem.isdigit():
            found[suffix].append(int(stem))
        elif name not in _KNOWN_NAMES:
            found["other"].append(0)
    return found


def _end_offset(disk: Disk, segment: LogSegment) -> int | None:
    """Return the next offset after a segment's last batch, None if its index or its end fails a check."""
    if disk.size(segment.path(FileKind.TIME_INDEX)) % TIME_INDEX_ENTRY.size:
        return None
    try:
        relative_offset, position = last_index_entry(
            disk, segment.path(FileKind.INDEX), segment.base_offset, segment.size_bytes
        )
    except CorruptIndexError:
        return None
    if not segment.size_bytes:
        return segment.base_offset
    file = disk.open_file(segment.log_path)
    try:
        headers = HeaderReader(file, position, segment.size_bytes)
        end_offset = None
        for header in headers.headers():
            if not isinstance(header, RecordBatch):
                return None
            if end_offset is None and position and header.last_offset != segment.base_offset + relative_offset:
                return None
            end_offset = header.last_offset + 1
        return end_offset if headers.position == segment.size_bytes else None
    finally:
        file.close()
