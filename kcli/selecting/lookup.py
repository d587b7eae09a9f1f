"""Where offsets, times and the last records of a log begin.

A walk over a log may begin at a position before which nothing is selected (`start_position`):

    skipped                                  known from
    ---------------------------------------  ----------------------------------------------------------------
    segments before and after the offsets    their names
    a segment's start, by offset             `.index`: the batch that an entry points at ends with its offset
    a whole segment, by time                 the last entries of `.timeindex` and `.index`, and the headers after
    a segment's start, by time               `.timeindex`: the batch that an entry names has its timestamp

An index that is missing, unsorted or wrong is not used: the segment is scanned from its start. The end of a range of times
skips nothing, because timestamps of producers may go back.

The offset at which a time begins (`find_time`) is that of the first record at or after it, as in Kafka. The batches are read
from such a position on, also behind damage. Bytes that cannot be read may have had such a record, so the result names their
offset.

The last N selected records are found from the end of the partition, and nothing before them is read:

    segment                 is read
    ----------------------  ------------------------------------------------------------------------------
    with a sound `.index`   in parts of about PART_BYTES between index entries, the last part first
    without                 as a whole; only the positions of the last N records are kept

A stray copy of a segment, under another name, has batches of the other segment (`Copies`). No reader gives them twice:

    the first batch of the file begins    its sound batches are                              the file is
    ------------------------------------  -------------------------------------------------  -------------------------------
    at or above the offset in its name,   any                                                read: this costs one header
    below the next segment
    elsewhere                             the same, byte for byte by their CRCs, as sound    a copy: nothing of it is read,
                                          batches of segments of the first kind              and its name bounds no segment
    elsewhere                             others, if only one of them                        read, as damage at its offsets
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kcli.format.primitives import INT64_MAX
from kcli.selecting.selection import Range, Selection

if TYPE_CHECKING:
    from kcli.log.disk.port import Disk, DiskFile
    from kcli.log.files.log_directory import Segment
    from kcli.log.reading.offset_lookup import OffsetLookup
    from kcli.log.reading.segment_reader import LogBatch, SegmentReader
    from kcli.selecting.selected_log import Selector

PART_BYTES = 1024 * 1024


def segments_in_range(segments: Sequence[Segment], offsets: Range, copies: Copies | None = None) -> list[Segment]:
    """Return the segments, sorted by base offset, that may have one of the offsets according to their names.

    With `copies` the first one is not a copy, whose name may be inside of the segment before. Raises OSError then.
    """
    ends = (*(segment.base_offset for segment in segments[1:]), INT64_MAX + 1)
    found = [
        segment
        for segment, next_base in zip(segments, ends, strict=False)
        if (offsets.first is None or next_base > offsets.first) and (offsets.end is None or segment.base_offset < offsets.end)
    ]
    if copies is None or not found:
        return found
    begin = first = segments.index(found[0])
    while first and copies.is_copy(segments[first]):
        first -= 1
    return [*segments[first:begin], *found]


class Copies:
    """Which of the segments of a partition, sorted by base offset, are stray copies of others.

    A method reads the first header of a segment, and all of a segment only if that header is of offsets of another one.
    """

    def __init__(self, disk: Disk, segments: Sequence[Segment]) -> None:
        self._disk = disk
        self._segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._is_copy: dict[str, bool] = {}
        self._is_in_place: dict[str, bool] = {}

    def is_copy(self, segment: Segment) -> bool:
        """Return whether all sound batches of a segment are in other segments. Raises OSError."""
        found = self._is_copy.get(segment.log)
        if found is None:
            found = self._is_copy[segment.log] = not self._begins_in_place(segment) and self._is_covered(segment)
        return found

    def bound_of(self, segment: Segment) -> int:
        """Return the base offset of the next segment that is not a copy, INT64_MAX if there is none. Raises OSError."""
        later = range(self._after(segment), len(self._segments))
        return next((self._bases[slot] for slot in later if not self.is_copy(self._segments[slot])), INT64_MAX)

    def _after(self, segment: Segment) -> int:
        return bisect_right(self._bases, segment.base_offset)

    def _begins_in_place(self, segment: Segment) -> bool:
        found = self._is_in_place.get(segment.log)
        if found is None:
            file = self._disk.open_file(segment.log)
            try:
                head = file.read_at(0, 8)
            finally:
                file.close()
            first_offset, slot = int.from_bytes(head, "big", signed=True), self._after(segment)
            bound = self._bases[slot] if slot < len(self._bases) else INT64_MAX + 1
            found = len(head) < 8 or segment.base_offset <= first_offset < bound
            self._is_in_place[segment.log] = found
        return found

    def _is_covered(self, copy: Segment) -> bool:
        from kcli.log.reading.segment_reader import LogBatch, SegmentReader

        others: Iterator[LogBatch] | None = None
        with SegmentReader(self._disk, copy.log) as reader:
            for batch in reader.batches():
                if not isinstance(batch, LogBatch) or not batch.is_valid:
                    continue
                others = self._sound_from(batch.header.base_offset) if others is None else others
                header = batch.header
                same = next((other for other in others if other.header.base_offset >= header.base_offset), None)
                if same is None or same.header._replace(position=header.position) != header:
                    return False
        return others is not None

    def _sound_from(self, offset: int) -> Iterator[LogBatch]:
        """Yield the sound batches of the segments that begin in place, from that with `offset` on."""
        from kcli.log.reading.offset_lookup import OffsetLookup
        from kcli.log.reading.segment_reader import LogBatch

        homes = [segment for segment in self._segments if self._begins_in_place(segment)]
        first = max((at for at, home in enumerate(homes) if home.base_offset <= offset), default=0)
        for home in homes[first:]:
            with OffsetLookup(self._disk, home) as lookup:
                for found in lookup.reader.batches(lookup.start_of_offset(offset)[0]):
                    if isinstance(found, LogBatch) and found.is_valid:
                        yield found


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


class TimeOffset(NamedTuple):
    """Where a time begins in a log.

    `offset` is that of the first sound record at or after the time, None if there is none. `damage_offset` is the first offset
    of what cannot be read directly before that record, or at the end of the log if there is none; None if all can be read.
    """

    offset: int | None
    damage_offset: int | None = None


def find_time(disk: Disk, segments: Sequence[Segment], timestamp_ms: int, from_offset: int) -> TimeOffset:
    """Return where a time begins, at or after `from_offset`, in segments sorted by base offset.

    Raises OSError as the disk does.
    """
    from kcli.log.reading.offset_lookup import OffsetLookup
    from kcli.log.time_lookup import first_record

    damage_offset, copies = None, Copies(disk, segments)
    for segment in segments_in_range(segments, Range(from_offset, None), copies):
        if copies.is_copy(segment):
            continue
        bound = copies.bound_of(segment)
        if _end_if_before(disk, segment, timestamp_ms) is not None:
            damage_offset = None
            continue
        with OffsetLookup(disk, segment) as lookup:
            next_offset = max(segment.base_offset, from_offset)
            for batch in _sound_or_damage(disk, lookup, timestamp_ms, from_offset, bound):
                if batch is None:
                    damage_offset = next_offset if damage_offset is None else damage_offset
                    continue
                header = batch.header
                if header.last_offset >= from_offset and header.max_timestamp >= timestamp_ms:
                    record = first_record(batch, timestamp_ms, from_offset)
                    if record is not None:
                        is_first = record.offset <= max(batch.first_offset(), from_offset)
                        return TimeOffset(record.offset, damage_offset if is_first else None)
                next_offset, damage_offset = max(header.next_offset, from_offset), None
    return TimeOffset(None, damage_offset)


def _sound_or_damage(
    disk: Disk, lookup: OffsetLookup, timestamp_ms: int, from_offset: int, bound: int
) -> Iterator[LogBatch | None]:
    """Yield the batches of a segment that may be at or after a time and an offset, from a sound one on; None for damage."""
    from kcli.log.reading.segment_reader import ZEROS, LogBatch

    reader, start = lookup.reader, lookup.hint(from_offset)
    position, last_offset = max(start, _position_of_time(disk, lookup, timestamp_ms)), -1
    if position > start:
        first = reader.batch_at(position)
        if not isinstance(first, LogBatch) or not first.is_valid:
            position = start
    for found in reader.batches(position):
        if isinstance(found, LogBatch) and found.is_valid and offset_fault(found, reader, last_offset, bound) is None:
            last_offset = found.header.last_offset
            yield found
        elif isinstance(found, LogBatch) or found.kind != ZEROS:
            yield None


def largest_timestamp(disk: Disk, segment: Segment, *, is_closed: bool = False) -> int:
    """Return the largest timestamp (ms) of the sound batches of a segment, -1 for none.

    The batches are read from that of the last entry of `.timeindex` on. A wrong offset makes no time wrong: the CRC covers the
    times. Of a segment that is closed that entry alone is read, as by a broker. Raises OSError as the disk does.
    """
    from kcli.format.index_entries import TimeIndex
    from kcli.format.structs import TIME_INDEX_ENTRY
    from kcli.log.reading.offset_lookup import OffsetLookup
    from kcli.log.reading.segment_reader import LogBatch

    if is_closed and segment.time_index is not None:
        last = _last_bytes(disk, segment.time_index, TIME_INDEX_ENTRY.size)
        index = None if last is None else TimeIndex.decode(last, segment.base_offset)
        # Zeros are the preallocated end of an index that was not closed.
        if (
            index is not None
            and index.relative_offsets[0] >= 0
            and (index.timestamps[0] or disk.size(segment.time_index) == TIME_INDEX_ENTRY.size)
        ):
            return index.timestamps[0]
    with OffsetLookup(disk, segment) as lookup:
        batches = lookup.reader.batches(_position_of_time(disk, lookup, INT64_MAX))
        right = (at for at in batches if isinstance(at, LogBatch) and (at.is_valid or at.contradiction is not None))
        return max((batch.header.max_timestamp for batch in right), default=-1)


def offset_fault(batch: LogBatch, reader: SegmentReader, last_offset: int, bound: int) -> str | None:
    """Return what is wrong with the offsets of a sound batch, or None.

    `last_offset` is that of the sound batch before, and the batches must end before offset `bound`. The CRC does not cover a
    batch's base offset, so a flipped bit in it shows only by the offsets around the batch. Raises OSError.
    """
    header = batch.header
    if header.base_offset <= last_offset or header.last_offset < header.base_offset:
        return f"the batch begins at offset {header.base_offset}, after offset {last_offset}"
    if header.last_offset >= bound:
        return f"the batch ends at offset {header.last_offset}, and the next one begins at {bound}"
    if header.base_offset > last_offset + 1:
        next_base = _next_base_offset(reader, batch.end_position)
        # A next batch that begins too early for this one's records is wrong itself.
        least = last_offset + 1 + header.last_offset - header.base_offset
        if next_base is not None and least < next_base <= header.last_offset:
            return f"the batch ends at offset {header.last_offset}, and the next one begins at {next_base}"
    return None


def _next_base_offset(reader: SegmentReader, position: int) -> int | None:
    """Return the base offset that is stored at byte `position`, or None at the end of what is read."""
    if position + 8 > reader.end_position():
        return None
    return int.from_bytes(reader.file.read_at(position, 8), "big", signed=True)


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

    copies = Copies(disk, segments)
    for slot in range(len(segments) - 1, -1, -1):
        if copies.is_copy(segments[slot]):
            continue
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
    for first in reversed(lookup.boundaries(0, end, PART_BYTES, by_headers=False, proves_offsets=False)):
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
