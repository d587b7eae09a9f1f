"""Finding the byte where an offset or a time begins: through the indexes where these are sound, by hopping where not.

    question                                  answered by
    ----------------------------------------  --------------------------------------------------------------------------
    first batch that reaches an offset        .index, then headers from the entry on
    bytes at which a segment may be cut       .index; without one, headers
    first record at or after a time           .timeindex (segments are skipped by its last entry), .index, headers, records
    where a log ends                          the last entry of .index, then headers to the end

An index is only ever a hint: each entry that is used is checked against the batch at its position. Brokers write two kinds:

    written by                       the entry's offset is                 the batch at the entry's position
    -------------------------------  ------------------------------------  -----------------------------------------------
    leaders, followers since 4.0     the last offset of that batch         must end with the offset
    followers before 4.0             the last offset of one append, which  must lie between the entry before and the
                                     may be of many batches                offset, and have a right CRC

An index that is missing, unsorted, points behind its segment or fails that check is not used at all.

A lookup reads the bytes that its segment has when it is opened, or less where `end_position` says so, whatever a broker appends
meanwhile: an offset and a byte that come from one lookup belong together.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from kcli.format import limits
from kcli.format.index_entries import OffsetIndex, TimeIndex
from kcli.format.primitives import INT64_MAX, CorruptRecordError
from kcli.format.record_batch import RecordBatch
from kcli.log.disk.port import Disk
from kcli.log.files.log_directory import Segment
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.header_reader import HeaderReader
from kcli.log.reading.segment_reader import ZEROS, LogBatch, SegmentReader

# Where a segment ends is found by its records behind the last index entry, by headers alone where these are more bytes.
MOST_PROVEN_BYTES = 16 * 1024 * 1024


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


def is_end_of_batch(reader: SegmentReader, offset: int, position: int) -> bool:
    """True where a batch that ends with `offset` begins at byte `position`, by its header."""
    try:
        return reader.header_at(position).last_offset == offset
    except CorruptRecordError:
        return False


def holds_entry(reader: SegmentReader, index: OffsetIndex, slot: int) -> bool:
    """True where a batch begins at the position of the entry in `slot` that the entry may point at; see the module."""
    offset, position = index.entry(slot)
    if is_end_of_batch(reader, offset, position):
        return True
    batch = reader.batch_at(position)
    if not isinstance(batch, LogBatch):
        return False
    header = batch.header
    offset_before = index.entry(slot - 1).offset if slot else index.base_offset - 1
    return offset_before < header.base_offset <= header.last_offset < offset and batch.is_valid


class SegmentEnd(NamedTuple):
    """Where the batches of a segment end.

    `offset` is the offset behind the last sound batch, the base offset where there is none; `position` is the byte behind it.
    The segment had `size_bytes` bytes; `is_torn` is True where some of those behind `position` are not zero.
    """

    offset: int
    position: int
    size_bytes: int
    is_torn: bool


class OffsetLookup:
    """Finds bytes in the first `end_position` bytes of a segment (None: in all that it has now).

    Raises OSError as the disk does; what the indexes say wrong it does not believe.
    """

    def __init__(self, disk: Disk, segment: Segment, end_position: int | None = None) -> None:
        self.segment = segment
        self._disk = disk
        size = disk.size(segment.log)
        self._end = size if end_position is None else min(size, end_position)
        self.index = load_offset_index(disk, segment)
        if self.index is not None and (used := bisect_left(self.index.positions, self._end)) < len(self.index):
            # A broker has added entries since.
            self.index = OffsetIndex(self.index.base_offset, self.index.relative_offsets[:used], self.index.positions[:used])
        self.reader = SegmentReader(disk, segment.log, end=self._end)

    def __enter__(self) -> OffsetLookup:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.close()

    def hint(self, offset: int) -> int:
        """A byte at which a batch begins, such that every batch before it ends before `offset`."""
        if self.index is None or not len(self.index):
            return 0
        slot = bisect_right(self.index.relative_offsets, offset - self.index.base_offset) - 1
        if slot < 0 or not self.index.positions[slot]:
            return 0
        if not holds_entry(self.reader, self.index, slot):
            self.index = None
            return 0
        return self.index.positions[slot]

    def first_batch(self, offset: int) -> int:
        """The byte of the first batch that ends at or behind `offset`; the end of the sound part where there is none."""
        walk = HeaderReader(self.reader.file, self.hint(offset), self.reader.end_position())
        for header in walk.headers():
            if header.last_offset >= offset:
                return header.position
        return walk.position

    def behind_lower(self, offset: int) -> int:
        """The byte behind the last sound batch that ends before `offset`: all from there on is needed to read from `offset` on.

        As in behind_offset the records are read: a wrong length may lead to payload with such an offset.
        """
        position = self.hint(offset)
        for batch in self.reader.batches(position):
            if not isinstance(batch, LogBatch) or not batch.is_valid:
                continue
            if batch.header.last_offset >= offset:
                break
            position = batch.end_position
        return position

    def behind_offset(self, offset: int) -> int:
        """The byte behind the first sound batch that ends at or behind `offset`: no later one is needed to read up to there.

        The records are read from the index entry on: a wrong length may lead to payload that looks like a batch of that offset.
        """
        reached: int | None = None
        for batch in self.reader.batches(self.hint(offset)):
            if not isinstance(batch, LogBatch) or not batch.is_valid:
                continue
            # The CRC does not cover the base offset: where the next batch contradicts a batch, that one reached nothing.
            if reached is not None and batch.header.base_offset > offset:
                return reached
            reached = batch.end_position if batch.header.last_offset >= offset else None
        return self.reader.end_position()

    def end(self, *, counts_rotten: bool = False) -> SegmentEnd:
        """Where the segment's batches end.

        A whole batch with a wrong CRC at the end may still be being written and is not counted. With `counts_rotten` it counts
        for one offset, since its header cannot be trusted, so that a reader comes to it and reports the damage.
        """
        start = self.hint(INT64_MAX)
        if self._end - start > MOST_PROVEN_BYTES and (found := self._end_by_headers(start)) is not None:
            return found
        while (found := self._end_behind(start, counts_rotten=counts_rotten)) is None:
            start = self._earlier(start)
        return found

    def _end_by_headers(self, start: int) -> SegmentEnd | None:
        """The end if headers lead to a sound last batch, and this to the last byte."""
        walk = HeaderReader(self.reader.file, start, self.reader.end_position())
        offset, last = self.segment.base_offset, None
        for header in walk.headers():
            if last is not None and header.base_offset > last.last_offset:
                offset = max(offset, last.last_offset + 1)
            last = header
        batch = None if last is None or walk.position < walk.end else self.reader.batch_at(last.position)
        if last is None or not isinstance(batch, LogBatch) or not batch.is_valid:
            return None
        return SegmentEnd(max(offset, last.last_offset + 1), walk.end, walk.end, is_torn=False)

    def _end_behind(self, start: int, *, counts_rotten: bool) -> SegmentEnd | None:
        """The end, by the sound batches from byte `start` on, or None where there is none and `start` is not 0."""
        size = self.reader.end_position()
        offset, position, last_offset, is_torn, is_rotten = self.segment.base_offset, 0, -1, False, False
        for found in self.reader.batches(start):
            is_rotten = isinstance(found, LogBatch) and not found.is_valid and found.end_position == size
            if isinstance(found, LogBatch) and found.is_valid:
                # As in behind_offset.
                offset = max(offset, last_offset + 1) if found.header.base_offset > last_offset else offset
                position, last_offset, is_torn = found.end_position, found.header.last_offset, False
            else:
                is_torn |= isinstance(found, LogBatch) or found.kind != ZEROS
        if start and not position:
            return None
        offset = max(offset, last_offset + 1)
        if counts_rotten and is_rotten:
            return SegmentEnd(offset + 1, size, size, is_torn=False)
        return SegmentEnd(offset, position, size, is_torn)

    def _earlier(self, position: int) -> int:
        """The byte of the batch of an earlier entry, about twice as far from the end of the segment; 0 where there is none."""
        if self.index is None:
            return 0
        slot = bisect_left(self.index.positions, position - (self._end - position) - 1) - 1
        return self.index.positions[slot] if slot >= 0 and holds_entry(self.reader, self.index, slot) else 0

    def end_offset(self) -> int:
        """The offset behind the last sound batch of the segment; its base offset where it holds none."""
        return self.end().offset

    def max_timestamp(self) -> int:
        """The largest timestamp (ms) of the segment, -1 where it has none; headers are read behind the last index entry."""
        times = load_time_index(self._disk, self.segment)
        largest, start = -1, 0
        if times is not None and len(times):
            largest, start = times.last_entry.timestamp, self.hint(times.last_entry.offset)
        walk = HeaderReader(self.reader.file, start, self.reader.end_position())
        return max(largest, max((header.max_timestamp for header in walk.headers()), default=-1))

    def offset_of_time(self, timestamp_ms: int, from_offset: int) -> int | None:
        """The offset of the first record at or behind `from_offset` with a timestamp >= `timestamp_ms`, or None."""
        times = load_time_index(self._disk, self.segment)
        known = times.lookup(timestamp_ms).offset if times is not None and len(times) else self.segment.base_offset
        scanner = RecordScanner()
        walk = HeaderReader(self.reader.file, self.hint(max(known, from_offset)), self.reader.end_position())
        for header in walk.headers():
            if header.max_timestamp < timestamp_ms or header.last_offset < from_offset:
                continue
            batch = self.reader.batch_at(header.position)
            if isinstance(batch, LogBatch):
                found = _first_at(batch, scanner, timestamp_ms, from_offset)
                if found is not None:
                    return found
        return None

    def boundaries(self, start: int, end: int, target_bytes: int, *, by_headers: bool = True) -> list[int]:
        """Bytes within (start, end) at which batches begin, about `target_bytes` apart, ascending.

        `start` must begin a batch. Each is checked to begin a batch that the index knows, or was reached by headers, unless
        `by_headers` is False: a wrong length leads to payload, which a reader that goes on behind damage takes for a batch.
        """
        if end - start <= target_bytes:
            return []
        if self.index is None or not len(self.index):
            return list(self._boundaries_by_headers(start, end, target_bytes)) if by_headers else []
        cuts: list[int] = []
        ideal = start + target_bytes
        for slot, position in enumerate(self.index.positions):
            if position >= end:
                break
            if position >= ideal and holds_entry(self.reader, self.index, slot):
                cuts.append(position)
                ideal += -(-(position + 1 - ideal) // target_bytes) * target_bytes
        return cuts or (list(self._boundaries_by_headers(start, end, target_bytes)) if by_headers else [])

    def _boundaries_by_headers(self, start: int, end: int, target_bytes: int) -> Iterator[int]:
        ideal = start + target_bytes
        for header in HeaderReader(self.reader.file, start, end).headers():
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
