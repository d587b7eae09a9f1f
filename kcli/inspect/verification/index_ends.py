"""How far a log reached by the last entries of its .index and .timeindex: evidence where the batches are gone.

an index is evidence where                        because
------------------------------------------------  ----------------------------------------------------------------------
it has whole entries in ascending order and no    a broker cuts the file to its entries when it rolls the segment and when
  zeros behind them                                 it stops; while it runs, entries that it truncated stay in the file
its segment is the last with batches, or behind   the indexes of other segments end before the batches do
  it, or its .log is missing
the .log does not begin below the name's offset   the offsets of an index count from its name: under a later name they are
                                                    too large
a batch of the .log is where an entry of .index   the index of another segment was copied to this name
  says
it is not a copy of another .timeindex, where     the time index of another segment is never the same: timestamps go on
  its .log is missing
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from kcli.format import limits
from kcli.format.file_names import FileKind, FileState
from kcli.format.index_entries import OffsetIndex, TimeIndex
from kcli.format.primitives import CorruptRecordError
from kcli.format.structs import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from kcli.log.disk.port import Disk, base_name
from kcli.log.files.log_directory import FoundFile, PartitionDirectory, Segment
from kcli.log.reading.batch_search import begins_below
from kcli.log.reading.segment_reader import SegmentReader

# How many entries of an .index are held against the .log, from the last one on that is within it.
_MOST_ENTRIES_COMPARED = 16


class IndexEnd(NamedTuple):
    """The index file at `path` shows that the log reached `offset`."""

    path: str
    offset: int


def find_index_ends(disk: Disk, partition: PartitionDirectory, batch_end: int) -> list[IndexEnd]:
    """Return what the indexes show that reach beyond `batch_end`, the offset behind the last batch."""
    first = max((one.base_offset for one in partition.segments if one.base_offset <= batch_end), default=0)
    found = [end for one in partition.segments if one.base_offset >= first for end in segment_index_ends(disk, one)]
    return [end for end in (*found, *ends_without_log(disk, partition)) if end.offset > batch_end]


def segment_index_ends(disk: Disk, segment: Segment) -> list[IndexEnd]:
    """Return what the indexes of one segment show, whether its batches reach as far or not."""
    if _begins_below(disk, segment.log, segment.base_offset):
        return []
    found: list[IndexEnd] = []
    if segment.offset_index is not None:
        index = _read_offset_index(disk, segment.offset_index, segment.base_offset)
        if index is not None and _suits_log(disk, segment.log, index):
            found.append(IndexEnd(segment.offset_index, index.last_offset + 1))
    if segment.time_index is not None:
        found += _time_index_end(disk, segment.time_index, segment.base_offset)
    return found


def ends_without_log(disk: Disk, partition: PartitionDirectory) -> Iterator[IndexEnd]:
    """Yield what the indexes show whose .log is missing, and was not being removed by a broker."""
    going = {file.base_offset for file in partition.others if file.state is not FileState.CURRENT}
    orphans = [file for file in partition.others if file.is_current and file.base_offset >= 0 and file.base_offset not in going]
    time_indexes = [file for file in orphans if file.kind is FileKind.TIME_INDEX]
    paths = [segment.time_index for segment in partition.segments if segment.time_index is not None]
    copies = _copied_names(disk, time_indexes, paths) if time_indexes else set()
    for file in orphans:
        if file.base_offset in copies:
            continue
        if file.kind is FileKind.INDEX:
            index = _read_offset_index(disk, file.path, file.base_offset)
            if index is not None:
                yield IndexEnd(file.path, index.last_offset + 1)
        elif file.kind is FileKind.TIME_INDEX:
            yield from _time_index_end(disk, file.path, file.base_offset)


def _copied_names(disk: Disk, orphans: Sequence[FoundFile], paths: Iterable[str]) -> set[int]:
    """Return the base offsets of time indexes without a .log that have the content of another time index."""
    by_content: dict[bytes, set[str]] = {}
    sizes = {size for file in orphans if (size := _size(disk, file.path))}
    for path in (*paths, *(file.path for file in orphans)):
        if _size(disk, path) in sizes:
            by_content.setdefault(_read(disk, path), set()).add(path)
    return {file.base_offset for file in orphans for same in by_content.values() if file.path in same and len(same) > 1}


def _read_offset_index(disk: Disk, path: str, base_offset: int) -> OffsetIndex | None:
    """Return an .index that is complete and in order, None where it is empty, too."""
    data = _read(disk, path)
    index = OffsetIndex.decode(data, base_offset)
    if len(data) % OFFSET_INDEX_ENTRY.size or not len(index) or index.used_entries < len(index):
        return None
    columns = (index.relative_offsets, index.positions)
    if any(column[0] < 0 or any(left >= right for left, right in pairwise(column)) for column in columns):
        return None
    return None if len(index) == 1 and not index.positions[0] else index


def _time_index_end(disk: Disk, path: str, base_offset: int) -> list[IndexEnd]:
    """Return what a .timeindex shows that is complete and in order."""
    data = _read(disk, path)
    index = TimeIndex.decode(data, base_offset)
    if len(data) % TIME_INDEX_ENTRY.size or not len(index) or index.used_entries < len(index) or index.timestamps[0] <= 0:
        return []
    offsets = index.relative_offsets
    is_rising = all(left < right for left, right in pairwise(index.timestamps))
    if not is_rising or offsets[0] < 0 or any(left > right for left, right in pairwise(offsets)):
        return []
    return [IndexEnd(path, index.last_entry.offset + 1)]


def _begins_below(disk: Disk, log: str, base_offset: int) -> bool:
    """Return True if the segment had another name."""
    try:
        with SegmentReader(disk, log) as reader:
            return begins_below(reader.file, base_offset)
    except OSError:
        return False


def _suits_log(disk: Disk, log: str, index: OffsetIndex) -> bool:
    """Return True if one of the last entries points to a batch of a .log, or none of the entries is within it."""
    try:
        size = disk.size(log)
        slots = [slot for slot, position in enumerate(index.positions) if position < size][-_MOST_ENTRIES_COMPARED:]
        with SegmentReader(disk, log) as reader:
            return not slots or any(_is_entry_of(reader, index, slot) for slot in slots)
    except OSError:
        return False


def _is_entry_of(reader: SegmentReader, index: OffsetIndex, slot: int) -> bool:
    """Return True if the batch at the entry's byte ends at its offset, or between it and the entry before.

    The entry of a follower before Kafka 4.0 has the last offset of an append, which may be of several batches.
    """
    offset, position = index.entry(slot)
    try:
        header = reader.header_at(position)
    except CorruptRecordError:
        return False
    before = index.entry(slot - 1).offset if slot else None
    return header.last_offset == offset or (before is not None and before < header.base_offset <= header.last_offset < offset)


def _read(disk: Disk, path: str) -> bytes:
    try:
        return disk.read_file(path, limits.MAX_INDEX_FILE_BYTES)
    except OSError:
        return b""


def _size(disk: Disk, path: str) -> int:
    try:
        return disk.size(path)
    except OSError:
        return 0


def index_name(end: IndexEnd) -> str:
    """Name the evidence in a sentence."""
    return f"the last entry of {base_name(end.path)}"
