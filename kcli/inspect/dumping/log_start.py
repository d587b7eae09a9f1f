"""Where the walk over a log may begin, so that nothing before it is selected.

    what is skipped                          how it is known
    ---------------------------------------  ----------------------------------------------------------------
    segments before and behind the offsets   their names
    a segment's start, by offset             `.index`: the batch that an entry points at ends with its offset
    a whole segment, by time                 the last entries of `.timeindex` and `.index`, and the headers behind
    a segment's start, by time               `.timeindex`: the batch that an entry names has its timestamp

An index that is missing, unsorted or wrong is not used: the segment is scanned from its start. The end of a range of times
skips nothing, since producers' timestamps may go back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kcli.format.primitives import INT64_MAX
from kcli.inspect.dumping.selection import Range, Selection

if TYPE_CHECKING:
    from kcli.log.disk.port import Disk, DiskFile
    from kcli.log.files.log_directory import Segment
    from kcli.log.reading.offset_lookup import OffsetLookup


def segments_in_range(segments: Sequence[Segment], offsets: Range) -> list[Segment]:
    """The segments, sorted by base offset, that may hold one of the offsets, told by their names."""
    ends = (*(segment.base_offset for segment in segments[1:]), INT64_MAX + 1)
    return [
        segment
        for segment, next_base in zip(segments, ends, strict=False)
        if (offsets.first is None or next_base > offsets.first) and (offsets.end is None or segment.base_offset < offsets.end)
    ]


def start_position(disk: Disk, segment: Segment, selection: Selection) -> int:
    """A byte at which a batch of the segment begins, or its end, nothing before which is selected: 0 where nothing helps.

    Raises OSError as the disk does.
    """
    first_offset, first_time = selection.offsets.first, selection.times.first
    by_offset = first_offset is not None and first_offset > segment.base_offset
    if not by_offset and first_time is None:
        return 0
    if first_time is not None and (end := _end_if_before(disk, segment, first_time)) is not None:
        return end
    from kcli.log.reading.offset_lookup import OffsetLookup

    with OffsetLookup(disk, segment) as lookup:
        position = lookup.hint(first_offset) if by_offset and first_offset is not None else 0
        if first_time is not None:
            position = max(position, _position_of_time(disk, lookup, first_time))
    return position


def _end_if_before(disk: Disk, segment: Segment, first_time_ms: int) -> int | None:
    """The end of the segment in bytes where all of its timestamps lie before a time, as far as two reads tell; else None.

    The time index of a closed segment ends with the segment's largest timestamp. It is believed where the headers behind
    the last entry of the offset index agree; where the largest timestamp lies before these, the slower way decides.
    """
    from kcli.format.structs import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
    from kcli.log.reading.header_reader import HeaderReader
    from kcli.log.reading.offset_lookup import is_end_of_batch
    from kcli.log.reading.segment_reader import SegmentReader

    if segment.time_index is None or segment.offset_index is None:
        return None
    latest = _last_bytes(disk, segment.time_index, TIME_INDEX_ENTRY.size)
    indexed = _last_bytes(disk, segment.offset_index, OFFSET_INDEX_ENTRY.size)
    if latest is None or indexed is None:
        return None
    timestamp, relative_offset = TIME_INDEX_ENTRY.unpack_from(latest)
    index_offset, position = OFFSET_INDEX_ENTRY.unpack_from(indexed)
    if not 0 <= timestamp < first_time_ms or not 0 < index_offset <= relative_offset or position <= 0:
        return None
    with SegmentReader(disk, segment.log) as reader:
        if not is_end_of_batch(reader, segment.base_offset + index_offset, position):
            return None
        walk = HeaderReader(reader.file, position, reader.end_position())
        agrees = False
        for header in walk.headers():
            if header.max_timestamp >= first_time_ms:
                return None
            if header.base_offset <= segment.base_offset + relative_offset <= header.last_offset:
                agrees = header.max_timestamp == timestamp
        return walk.end if agrees and walk.position == walk.end else None


def _last_bytes(disk: Disk, path: str, size: int) -> bytes | None:
    """The last `size` bytes of a file of whole entries of that size; None where there is none, or it cannot be read."""
    file: DiskFile | None = None
    try:
        file = disk.open_file(path)
        end = file.size()
        if end < size or end % size:
            return None
        data = file.read_at(end - size, size)
        return data if len(data) == size else None
    except OSError:
        return None
    finally:
        if file is not None:
            file.close()


def _position_of_time(disk: Disk, lookup: OffsetLookup, first_time_ms: int) -> int:
    """The byte of a batch up to which, itself included, every timestamp lies before the time, as `.timeindex` knows."""
    from kcli.log.reading.header_reader import HeaderReader
    from kcli.log.reading.offset_lookup import load_time_index

    index = load_time_index(disk, lookup.segment)
    entry = index.lookup(first_time_ms - 1) if index is not None else None
    if entry is None or entry.timestamp < 0:
        return 0
    walk = HeaderReader(lookup.reader.file, lookup.hint(entry.offset), lookup.reader.end_position())
    for header in walk.headers():
        if header.last_offset >= entry.offset:
            sound = header.base_offset <= entry.offset and header.max_timestamp == entry.timestamp
            return header.position if sound else 0
    return 0
