"""Open a partition's log after a clean stop with a few small reads, if its files are as a broker left them.

    check                                  expected, else kcli.log.loading.log_loader loads the log
    -------------------------------------  -------------------------------------------------------------------------------
    the names in the directory             segments with both indexes, no leftovers, no transaction index
    sizes of the segments                  at most 2**31 - 1 bytes
    the last entry of the last `.index`    present, not of a preallocated tail, and matches its batch
    headers from there to the end          complete batches of format 2 up to the last byte: the log end offset
    snapshots                              a sound one at the log end (none if nothing was ever written)

Snapshots and leader epochs are then treated as by log_loader. No other segment is read.
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.format import limits
from kcli.format.file_names import FileKind, segment_file_name
from kcli.format.primitives import INT32_MAX, FormatError
from kcli.format.producer_snapshot import decode_producer_snapshot
from kcli.format.record_batch import RecordBatch
from kcli.format.structs import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from kcli.log.disk.port import Disk, join_path
from kcli.log.files.leader_epoch_file_cache import LeaderEpochFileCache, load_leader_epochs
from kcli.log.log_segment import LogSegment
from kcli.log.producer_state_manager import ProducerStateManager
from kcli.log.reading.header_reader import HeaderReader

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


def open_clean(disk: Disk, directory: str, names: list[str], log_start_offset: int) -> OpenedLog | None:
    """Open the log in `directory`, whose files are `names`; None, with nothing changed, if a check fails. Raises OSError."""
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
    if end_offset is None or end_offset < log_start_offset or (snapshots[-1] if snapshots else 0) != end_offset:
        return None
    try:
        if snapshots:
            _check_snapshot(disk, directory, end_offset)
        epochs = load_leader_epochs(disk, directory)
        producers = ProducerStateManager(disk, directory, snapshot_offsets=snapshots)
    except FormatError:
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
    entry = _last_entry(disk, segment)
    if entry is None:
        return None
    if not segment.size_bytes:
        return segment.base_offset if entry == (0, 0) else None
    relative_offset, position = entry
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


def _last_entry(disk: Disk, segment: LogSegment) -> tuple[int, int] | None:
    """Return the last entry of a segment's `.index`, (0, 0) for an empty one; None if it or the `.timeindex` is invalid."""
    if disk.size(segment.path(FileKind.TIME_INDEX)) % TIME_INDEX_ENTRY.size:
        return None
    file = disk.open_file(segment.path(FileKind.INDEX))
    try:
        size = file.size()
        if size % OFFSET_INDEX_ENTRY.size:
            return None
        if not size:
            return 0, 0
        relative_offset, position = OFFSET_INDEX_ENTRY.unpack(
            file.read_at(size - OFFSET_INDEX_ENTRY.size, OFFSET_INDEX_ENTRY.size)
        )
        is_entry = relative_offset >= 0 and 0 < position < segment.size_bytes
        return (relative_offset, position) if is_entry else None
    finally:
        file.close()
