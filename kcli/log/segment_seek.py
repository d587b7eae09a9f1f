"""Finding the byte where an offset or a time begins: through the indexes where these are sound, by hopping where not.

    question                                  answered by
    ----------------------------------------  --------------------------------------------------------------------------
    first batch that reaches an offset        .index, then headers from the entry on
    bytes at which a segment may be cut       .index; without one, headers
    first record at or after a time           .timeindex (segments are skipped by its last entry), .index, headers, records
    where a log ends                          the last entry of .index, then headers to the end

An index is only ever a hint: of each entry that is used, the batch it points at must end with the entry's offset. An index
that is missing, unsorted, points behind its segment or fails that test is not used at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from kcli.format import limits
from kcli.format.index_entries import OffsetIndex, TimeIndex
from kcli.format.primitives import INT64_MAX, CorruptRecordError
from kcli.format.record_batch import RecordBatch
from kcli.log.disk import Disk
from kcli.log.header_walk import HeaderWalk
from kcli.log.log_directory import Segment
from kcli.log.log_reader import ZEROS, Damage, LogBatch, SegmentReader
from kcli.log.record_windows import RecordScanner


def load_offset_index(disk: Disk, segment: Segment) -> OffsetIndex | None:
    """The `.index` of a segment without its preallocated tail, or None where it is missing or cannot be right."""
    if segment.offset_index is None:
        return None
    try:
        data = disk.read_file(segment.offset_index, limits.MAX_INDEX_FILE_BYTES)
        size = disk.size(segment.log)
    except OSError:
        return None
    index = OffsetIndex.decode(data, segment.base_offset).trimmed()
    if not _ascends(index.relative_offsets) or not _ascends(index.positions):
        return None
    if len(index) and (index.relative_offsets[0] < 0 or index.positions[0] < 0 or index.positions[-1] >= max(size, 1)):
        return None
    return index


def load_time_index(disk: Disk, segment: Segment) -> TimeIndex | None:
    """The `.timeindex` of a segment without its preallocated tail, or None where it is missing or cannot be right."""
    if segment.time_index is None:
        return None
    try:
        data = disk.read_file(segment.time_index, limits.MAX_INDEX_FILE_BYTES)
    except OSError:
        return None
    index = TimeIndex.decode(data, segment.base_offset).trimmed()
    if not _ascends(index.timestamps) or not _ascends(index.relative_offsets, strictly=False):
        return None
    return index


def _ascends(numbers: Sequence[int], *, strictly: bool = True) -> bool:
    if strictly:
        return all(left < right for left, right in pairwise(numbers))
    return all(left <= right for left, right in pairwise(numbers))


def holds_entry(reader: SegmentReader, offset: int, position: int) -> bool:
    """True where a batch that ends with `offset` begins at byte `position`: what an entry of `.index` promises."""
    try:
        return reader.header_at(position).last_offset == offset
    except CorruptRecordError:
        return False


class SegmentSeeker:
    """Finds bytes in one segment. Raises OSError as the disk does; what the indexes say wrong it does not believe."""

    def __init__(self, disk: Disk, segment: Segment) -> None:
        self.segment = segment
        self._disk = disk
        self.index = load_offset_index(disk, segment)
        self.reader = SegmentReader(disk, segment.log)

    def __enter__(self) -> SegmentSeeker:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.close()

    def hint(self, offset: int) -> int:
        """A byte at which a batch begins, such that every batch before it ends before `offset`."""
        if self.index is None or not len(self.index):
            return 0
        entry = self.index.lookup(offset)
        if entry.position and not holds_entry(self.reader, entry.offset, entry.position):
            self.index = None
            return 0
        return entry.position

    def first_batch(self, offset: int) -> int:
        """The byte of the first batch that ends at or behind `offset`; the end of the sound part where there is none."""
        walk = HeaderWalk(self.reader.file, self.hint(offset), self.reader.end_position())
        for header in walk.headers():
            if header.last_offset >= offset:
                return header.position
        return walk.position

    def behind_offset(self, offset: int) -> int:
        """The byte behind the first batch that ends at or behind `offset`: no later batch is needed to read up to there."""
        walk = HeaderWalk(self.reader.file, self.hint(offset), self.reader.end_position())
        for header in walk.headers():
            if header.last_offset >= offset:
                return walk.position
        return walk.end

    def sound_end(self) -> tuple[int, bool]:
        """The byte behind the last batch, and whether what lies there is anything but zeros (a torn batch, damage)."""
        start = self.hint(INT64_MAX)
        walk = HeaderWalk(self.reader.file, start, self.reader.end_position())
        for _ in walk.headers():
            pass
        if walk.position == walk.end:
            return walk.end, False
        # Headers alone do not show it: a wrong length may lead into a batch, to payload that zeros of the batch follow.
        sound = start
        for found in self.reader.batches(start):
            if not isinstance(found, Damage):
                sound = found.end_position
            elif found.kind == ZEROS:
                return found.position, False
            elif found.end_position >= walk.end:
                return found.position, True
        return sound, sound < walk.end

    def end_offset(self) -> int:
        """The offset behind the last batch of the segment's sound part; its base offset where it holds none."""
        end = self.segment.base_offset
        start = self.hint(INT64_MAX)
        walk = HeaderWalk(self.reader.file, start, self.reader.end_position())
        last = None
        for header in walk.headers():
            end = max(end, header.last_offset + 1)
            last = header
        batch = None if last is None else self.reader.batch_at(last.position)
        if walk.position < walk.end or (isinstance(batch, LogBatch) and not batch.is_valid):
            # Damage: a length that lies may have led past batches, and what is behind damage still counts.
            for found in self.reader.batches(start):
                if isinstance(found, LogBatch) and found.is_valid:
                    end = max(end, found.header.last_offset + 1)
        return end

    def max_timestamp(self) -> int:
        """The largest timestamp (ms) of the segment, -1 where it has none; headers are read behind the last index entry."""
        times = load_time_index(self._disk, self.segment)
        largest, start = -1, 0
        if times is not None and len(times):
            largest, start = times.last_entry.timestamp, self.hint(times.last_entry.offset)
        walk = HeaderWalk(self.reader.file, start, self.reader.end_position())
        return max(largest, max((header.max_timestamp for header in walk.headers()), default=-1))

    def offset_of_time(self, timestamp_ms: int, from_offset: int) -> int | None:
        """The offset of the first record at or behind `from_offset` with a timestamp >= `timestamp_ms`, or None."""
        times = load_time_index(self._disk, self.segment)
        known = times.lookup(timestamp_ms).offset if times is not None and len(times) else self.segment.base_offset
        scanner = RecordScanner()
        walk = HeaderWalk(self.reader.file, self.hint(max(known, from_offset)), self.reader.end_position())
        for header in walk.headers():
            if header.max_timestamp < timestamp_ms or header.last_offset < from_offset:
                continue
            batch = self.reader.batch_at(header.position)
            if isinstance(batch, LogBatch):
                found = _first_at(batch, scanner, timestamp_ms, from_offset)
                if found is not None:
                    return found
        return None

    def boundaries(self, start: int, end: int, target_bytes: int) -> list[int]:
        """Bytes within (start, end) at which batches begin, about `target_bytes` apart, ascending.

        `start` must begin a batch. Each is checked to begin a batch that the index knows, or was reached by headers.
        """
        if end - start <= target_bytes:
            return []
        if self.index is None or not len(self.index):
            return list(self._boundaries_by_headers(start, end, target_bytes))
        cuts: list[int] = []
        ideal = start + target_bytes
        for offset, position in zip(self.index.relative_offsets, self.index.positions, strict=True):
            if position >= end:
                break
            if position >= ideal and holds_entry(self.reader, self.segment.base_offset + offset, position):
                cuts.append(position)
                ideal += -(-(position + 1 - ideal) // target_bytes) * target_bytes
        return cuts

    def _boundaries_by_headers(self, start: int, end: int, target_bytes: int) -> Iterator[int]:
        ideal = start + target_bytes
        for header in HeaderWalk(self.reader.file, start, end).headers():
            if header.position >= ideal:
                yield header.position
                ideal += -(-(header.position + 1 - ideal) // target_bytes) * target_bytes


def _first_at(batch: LogBatch, scanner: RecordScanner, timestamp_ms: int, from_offset: int) -> int | None:
    header = batch.header
    fixed = header.log_append_time_ms if isinstance(header, RecordBatch) else None
    for window in batch.windows(scanner, skip_large=True):
        columns = window.columns
        for index in range(window.count):
            timestamp = columns.timestamp[index] if fixed is None else fixed
            if timestamp >= timestamp_ms and columns.offset[index] >= from_offset:
                return columns.offset[index]
    return None
