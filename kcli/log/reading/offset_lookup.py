"""Find the byte where an offset begins: by the indexes if they are sound, else by reading batch headers.

    lookup                                    uses
    ----------------------------------------  --------------------------------------------------------------------------
    first batch that reaches an offset        .index, then headers from the entry on
    bytes at which a segment may be split     .index; without one, headers
    end of a log                              the last entry of .index, then headers to the end

An index is only a hint: each entry that is used is checked against the batch at its position. There are two kinds of entries:

    written by                       the entry's offset is                 the batch at the entry's position
    -------------------------------  ------------------------------------  -----------------------------------------------
    leaders, followers since 4.0     the last offset of that batch         must end with the offset
    followers before 4.0             the last offset of one append, which  must lie between the entry before and the
                                     may be of many batches                offset, and have a correct CRC

An index is not used at all if it is missing, unsorted, points beyond its segment or fails that check.

The CRC does not cover the base offset of a batch. If a batch states offsets that its segment cannot have, below the one in the
name or more than INT32_MAX after it, they are wrong: they neither are the end of the log nor contradict the batch before.
A batch whose offsets the indexes contradict (kcli.log.reading.offset_witnesses) counts like one with a wrong CRC.

A lookup reads the bytes that its segment has at the construction, or up to `end_position`, even if a broker appends
concurrently: offsets and positions from one lookup are consistent.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from kcli.format import limits
from kcli.format.index_entries import OffsetIndex, TimeIndex, ascends
from kcli.format.primitives import INT32_MAX, INT64_MAX, CorruptRecordError
from kcli.log.disk.port import Disk
from kcli.log.files.log_directory import Segment
from kcli.log.reading.batch_search import least_offset
from kcli.log.reading.header_reader import HeaderReader
from kcli.log.reading.index_positions import IndexPositions
from kcli.log.reading.segment_reader import ZEROS, LogBatch, SegmentReader

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch
    from kcli.format.record_batch import RecordBatch

# The end of a segment is found by reading the batches after the last index entry; above this size by their headers alone.
MAX_PROVEN_BYTES = 16 * 1024 * 1024


def load_offset_index(segment: Segment, size: int, indexes: IndexPositions) -> OffsetIndex | None:
    """Return the `.index` of a segment of `size` bytes without its preallocated tail; None if it is missing or invalid."""
    index = indexes.as_read
    if segment.offset_index is None or indexes.base_offset is None:
        return None
    if not ascends(index.relative_offsets) or not ascends(index.positions):
        return None
    if len(index) and (index.relative_offsets[0] < 0 or index.positions[0] < 0 or index.positions[-1] >= max(size, 1)):
        return None
    return index


def load_time_index(disk: Disk, segment: Segment) -> TimeIndex | None:
    """Read the `.timeindex` of a segment without its preallocated tail; None if it is missing or invalid."""
    if segment.time_index is None:
        return None
    try:
        data = disk.read_file(segment.time_index, limits.MAX_INDEX_FILE_BYTES)
    except OSError:
        return None
    index = TimeIndex.decode(data, segment.base_offset).trimmed()
    if not ascends(index.timestamps) or not ascends(index.relative_offsets, strictly=False):
        return None
    return index


def is_end_of_batch(reader: SegmentReader, offset: int, position: int) -> bool:
    """Return True if, by its header, a batch that ends with `offset` begins at byte `position`."""
    try:
        return reader.header_at(position).last_offset == offset
    except CorruptRecordError:
        return False


def holds_entry(reader: SegmentReader, index: OffsetIndex, slot: int) -> bool:
    """Return True if the batch at the position of the entry in `slot` matches the entry; see the module docstring."""
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
    """The end of the batches of a segment.

    `offset` is the next offset after the last sound batch, or the base offset if there is none; `position` is the end of that
    batch. The segment had `size_bytes` bytes; `is_torn` is True if some of those from `position` on are not zero.
    """

    offset: int
    position: int
    size_bytes: int
    is_torn: bool


class OffsetLookup:
    """Lookups in the first `end_position` bytes of a segment (None: in all that it has now).

    Wrong indexes are ignored. The methods raise OSError.
    """

    def __init__(self, disk: Disk, segment: Segment, end_position: int | None = None) -> None:
        self.segment = segment
        self._disk = disk
        size = disk.size(segment.log)
        self._end = size if end_position is None else min(size, end_position)
        indexes = IndexPositions(disk, segment.log)
        self.index = load_offset_index(segment, size, indexes)
        if self.index is not None and (used := bisect_left(self.index.positions, self._end)) < len(self.index):
            # A broker has added entries concurrently.
            self.index = OffsetIndex(self.index.base_offset, self.index.relative_offsets[:used], self.index.positions[:used])
        self.reader = SegmentReader(disk, segment.log, end=self._end, doubts_offsets=True, indexes=indexes)

    def __enter__(self) -> OffsetLookup:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.close()

    def hint(self, offset: int) -> int:
        """Return the byte of a batch, such that every batch before it ends before `offset`."""
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
        """Return the byte of the first batch that ends at or after `offset`; if there is none, the end of the sound part."""
        headers = HeaderReader(self.reader.file, self.hint(offset), self.reader.end_position())
        for header in headers.headers():
            if header.last_offset >= offset:
                return header.position
        return headers.position

    def start_of_offset(self, offset: int) -> tuple[int, int]:
        """Return the end of the last sound batch that ends before `offset`, and the offset after it: where to begin to read.

        As in end_of_offset the batches are read: a wrong length may lead to payload with such an offset. A batch whose offsets
        go back is not counted either: its records may be those of `offset`.
        """
        position, last_offset = self.hint(offset), -1
        for batch in self.reader.batches(position):
            if not isinstance(batch, LogBatch) or not batch.is_valid or batch.header.base_offset <= last_offset:
                continue
            if batch.header.last_offset >= offset:
                break
            position, last_offset = batch.end_position, batch.header.last_offset
        return position, max(last_offset + 1, self.segment.base_offset)

    def end_of_offset(self, offset: int) -> int:
        """Return the end of the first sound batch that ends at or after `offset`: where to stop to read up to `offset`.

        The batches are read from the index entry on: a wrong length may lead to payload that looks like a batch of that offset.
        """
        reached: int | None = None
        for batch in self.reader.batches(self.hint(offset)):
            if not isinstance(batch, LogBatch) or not batch.is_valid:
                continue
            # The CRC does not cover the base offset: a batch whose offsets the next one contradicts does not count.
            if reached is not None and batch.header.base_offset > offset:
                return reached
            reached = batch.end_position if batch.header.last_offset >= offset else None
        return self.reader.end_position()

    def end(self, *, counts_damaged: bool = False) -> SegmentEnd:
        """Return where the segment's batches end.

        A complete batch with a wrong CRC at the end may be in the middle of being written and is not counted. With
        `counts_damaged` it counts for one offset, since its header is not trusted, so that a reader reports the damage.
        """
        start = self.hint(INT64_MAX)
        if self._end - start > MAX_PROVEN_BYTES and (found := self._end_by_headers(start)) is not None:
            return found
        while (found := self._end_behind(start, counts_damaged=counts_damaged)) is None:
            start = self.earlier(start)
        return found

    def _end_by_headers(self, start: int) -> SegmentEnd | None:
        """Return the end if the headers lead to a sound last batch that ends at the last byte, else None."""
        headers = HeaderReader(self.reader.file, start, self.reader.end_position())
        offset, last = self.segment.base_offset, None
        for header in headers.headers():
            if not self._may_have(header):
                return None
            if last is not None and header.base_offset > last.last_offset:
                offset = max(offset, last.last_offset + 1)
            last = header
        batch = None if last is None or headers.position < headers.end else self.reader.batch_at(last.position)
        if last is None or not isinstance(batch, LogBatch) or not batch.is_valid:
            return None
        return SegmentEnd(max(offset, last.last_offset + 1), headers.end, headers.end, is_torn=False)

    def _end_behind(self, start: int, *, counts_damaged: bool) -> SegmentEnd | None:
        """Return the end by the sound batches from byte `start` on; None if there is none and `start` is not 0."""
        size = self.reader.end_position()
        offset, position, last_offset, is_torn, is_damaged = self.segment.base_offset, 0, -1, False, False
        for found in self.reader.batches(start):
            is_damaged = isinstance(found, LogBatch) and not found.is_valid and found.end_position == size
            if isinstance(found, LogBatch) and found.is_valid:
                position, is_torn = found.end_position, False
                if self._may_have(found.header):
                    # As in end_of_offset.
                    offset = max(offset, last_offset + 1) if found.header.base_offset > last_offset else offset
                    last_offset = found.header.last_offset
            else:
                is_torn |= isinstance(found, LogBatch) or found.kind != ZEROS
        if start and last_offset < 0:
            return None
        offset = max(offset, last_offset + 1)
        if counts_damaged and is_damaged:
            return SegmentEnd(offset + 1, size, size, is_torn=False)
        return SegmentEnd(offset, position, size, is_torn)

    def _may_have(self, header: RecordBatch | LegacyBatch) -> bool:
        """Return True if the segment may have the offsets of a batch, by its name."""
        base = self.segment.base_offset
        return base <= header.base_offset <= header.last_offset <= base + INT32_MAX

    def earlier(self, position: int) -> int:
        """Return the byte of an earlier index entry, about twice as far from the end of the segment; 0 if there is none."""
        if self.index is None:
            return 0
        slot = bisect_left(self.index.positions, position - (self._end - position) - 1) - 1
        return self.index.positions[slot] if slot >= 0 and holds_entry(self.reader, self.index, slot) else 0

    def end_offset(self) -> int:
        """Return the next offset after the last sound batch of the segment, or its base offset."""
        return self.end().offset

    def boundaries(
        self, start: int, end: int, target_bytes: int, *, by_headers: bool = True, proves_offsets: bool = True
    ) -> list[int]:
        """Return bytes within (start, end) at which batches begin, about `target_bytes` apart, ascending.

        `start` must begin a batch. Each byte is of a checked index entry, or was reached by headers unless `by_headers` is
        False: a wrong length leads to payload, which a reader that continues after damage mistakes for a batch. A caller
        that uses only the bytes, not the offsets there, spares their proof, which reads each of these batches.
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
            if position >= ideal and (
                self._is_first_offset_proven(slot) if proves_offsets else holds_entry(self.reader, self.index, slot)
            ):
                cuts.append(position)
                ideal += -(-(position + 1 - ideal) // target_bytes) * target_bytes
        return cuts or (list(self._boundaries_by_headers(start, end, target_bytes)) if by_headers else [])

    def _is_first_offset_proven(self, slot: int) -> bool:
        """Return True if the batch at an entry's byte is sound and its offsets are those of the entry.

        It ends with the entry's offset, or consecutive batches lead from it to that offset. The CRC does not cover the base
        offset, and the ranges on both sides of a boundary end and begin with it.
        """
        assert self.index is not None
        offset, position = self.index.entry(slot)
        batch = self.reader.batch_at(position)
        if not isinstance(batch, LogBatch) or not batch.is_valid:
            return False
        expected = least_offset(batch.header)
        for header in HeaderReader(self.reader.file, position, self.reader.end_position()).headers():
            if least_offset(header) != expected or header.last_offset >= offset:
                return header.last_offset == offset and least_offset(header) == expected
            expected = header.next_offset
        return False

    def _boundaries_by_headers(self, start: int, end: int, target_bytes: int) -> Iterator[int]:
        ideal = start + target_bytes
        for header in HeaderReader(self.reader.file, start, end).headers():
            if header.position >= ideal:
                yield header.position
                ideal += -(-(header.position + 1 - ideal) // target_bytes) * target_bytes
