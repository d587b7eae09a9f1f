"""The position at which a walk over a log may begin: nothing before it is selected.

    skipped                                  known from
    ---------------------------------------  ----------------------------------------------------------------
    segments before and after the offsets    their names
    a segment's start, by offset             `.index`: the batch that an entry points at ends with its offset
    a whole segment, by time                 the last entries of `.timeindex` and `.index`, and the headers after
    a segment's start, by time               `.timeindex`: the batch that an entry names has its timestamp

An index that is missing, unsorted or wrong is not used: the segment is scanned from its start. The end of a range of times
skips nothing, because timestamps of producers may go back.

The last N selected records are found from the end of the partition, and nothing before them is read:

    segment                 is read
    ----------------------  ------------------------------------------------------------------------------
    with a sound `.index`   in parts of about PART_BYTES between index entries, the last part first
    without                 as a whole; only the positions of the last N records are kept
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kcli.format.primitives import INT64_MAX
from kcli.selecting.selection import Range, Selection

if TYPE_CHECKING:
    from kcli.log.disk.port import Disk, DiskFile
    from kcli.log.files.log_directory import Segment
    from kcli.log.reading.offset_lookup import OffsetLookup
    from kcli.log.reading.segment_reader import SegmentReader
    from kcli.selecting.selected_log import Selector

PART_BYTES = 1024 * 1024


def segments_in_range(segments: Sequence[Segment], offsets: Range) -> list[Segment]:
    """Return the segments, sorted by base offset, that may have one of the offsets according to their names."""
    ends = (*(segment.base_offset for segment in segments[1:]), INT64_MAX + 1)
    return [
        segment
        for segment, next_base in zip(segments, ends, strict=False)
        if (offsets.first is None or next_base > offsets.first) and (offsets.end is None or segment.base_offset < offsets.end)
    ]


def start_position(disk: Disk, segment: Segment, selection: Selection) -> int:
    """Return a position where a batch begins, or the end of the segment: nothing before it is selected. 0 if no index helps.

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
    """Return the end of the segment in bytes if its last index entries show that all timestamps are before a time; else None.

    The time index of a closed segment ends with the segment's largest timestamp. It is used if the headers after the last entry
    of the offset index confirm it; if the batch with the largest timestamp is before these, the result is None.
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
    """Return the last entry, of `size` bytes, of a file; None if it has no whole entries or cannot be read."""
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
    """Return the position of a batch up to whose end every timestamp is before a time by `.timeindex`, or 0."""
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


# ------------------------------------------------------------------------------------------------------------- from the end


class Start(NamedTuple):
    """Where a walk begins: the number of the segment in the list, a byte of it, and how many selected records to skip."""

    segment: int
    position: int
    skip: int


def find_tail(disk: Disk, segments: Sequence[Segment], selector: Selector, wanted: int) -> Start:
    """Return where the last `wanted` selected records of the segments (sorted) begin. Raises OSError as the disk does."""
    from kcli.log.reading.offset_lookup import OffsetLookup

    for slot in range(len(segments) - 1, -1, -1):
        with OffsetLookup(disk, segments[slot]) as lookup:
            for first, end in _parts(lookup):
                places, total = _last_places(lookup.reader, first, end, selector, wanted)
                if total >= wanted:
                    position = places[0][0] if places else end
                    return Start(slot, position, total - wanted)
                wanted -= total
    return Start(0, 0, 0)


def _parts(lookup: OffsetLookup) -> Iterator[tuple[int, int]]:
    """Yield the parts [first, end) of a segment in bytes, from its end to its start; each begins with a batch."""
    end = lookup.reader.end_position()
    for first in reversed(lookup.boundaries(0, end, PART_BYTES, by_headers=False)):
        yield first, end
        end = first
    yield 0, end


def _last_places(
    reader: SegmentReader, position: int, end: int, selector: Selector, wanted: int
) -> tuple[deque[tuple[int, int]], int]:
    """Return (byte, selected records) of the last batches before `end` that have `wanted` or more, and the sum of records."""
    from kcli.log.reading.segment_reader import LogBatch

    places: deque[tuple[int, int]] = deque()
    total = 0
    for found in reader.batches(position):
        if found.position >= end:
            break
        if not isinstance(found, LogBatch):
            continue
        count = selector.count(found)
        if count:
            places.append((found.position, count))
            total += count
            while places and total - places[0][1] >= wanted:
                total -= places.popleft()[1]
    return places, total
