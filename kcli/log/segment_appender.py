"""The active segment: its index entries, and the conditions under which it must be rolled (Kafka: LogSegment).

kcli.log.files.indexes says which batches get an index entry. Where the entries are:

    what                        in memory                                        on disk
    --------------------------  -----------------------------------------------  ----------------------------------------
    entries of .index           all, in two arrays, after the first lookup or    groups of INDEX_GROUP, written when one is
                                append                                           full, at roll, and by `write_indexes`
    entries of .timeindex       those not yet written, and the last one          the same

While the segment is active, both files are preallocated with zeros to segment.index.bytes, as Kafka's are; `close` trims them
to their entries and adds the last entry of the time index. No descriptor is kept open. A crash loses at most index entries: the
segment is above the recovery point, so its indexes are rebuilt.

The segment must be rolled before a batch (Kafka: LogSegment.shouldRoll) if it would become larger than segment.bytes, if the
last offset is too large for the indexes, if an index is full, or if segment.ms minus the jitter has passed: between the largest
timestamps of the first batch and of the new batch, or since the segment was made if the first batch has no timestamp.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kcli.format.file_names import FileKind
from kcli.format.index_entries import NO_TIMESTAMP, OffsetIndex, TimeIndexEntry
from kcli.format.primitives import INT32_MAX
from kcli.format.record_batch import RecordBatch
from kcli.format.structs import ABORTED_TXN, OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from kcli.log.disk.port import LogDisk
from kcli.log.log_config import AppendRules
from kcli.log.log_segment import UNREAD, LogSegment
from kcli.log.reading.header_reader import HeaderReader

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch

# The number of index entries that are written with one call.
INDEX_GROUP = 64
NOT_LOADED = -1
NO_ROLL_TIMESTAMP = -1


class SegmentAppender:
    """The active segment of a log. Methods raise OSError as the disk does.

    `first_timestamp` is the largest timestamp of the first batch, -1 before there is one. `created_ms` is the time when the
    segment was made or opened.
    """

    __slots__ = (
        "_disk",
        "_index",
        "_index_entries",
        "_positions",
        "_relative_offsets",
        "_time_entries",
        "_time_waiting",
        "_written",
        "bytes_since_entry",
        "created_ms",
        "first_timestamp",
        "is_preallocated",
        "last_time_entry",
        "roll_jitter_ms",
        "segment",
    )

    def __init__(self, disk: LogDisk, segment: LogSegment, created_ms: int, roll_jitter_ms: int = 0) -> None:
        self.segment = segment
        self.created_ms = created_ms
        self.roll_jitter_ms = roll_jitter_ms
        self.first_timestamp = NO_ROLL_TIMESTAMP
        self.bytes_since_entry = 0
        self.is_preallocated = False
        self._disk = disk
        # All entries of .index once they are loaded; the first _written of them are on disk.
        self._index_entries = NOT_LOADED
        self._relative_offsets: array[int] | None = None
        self._positions: array[int] | None = None
        self._index: OffsetIndex | None = None  # of the two arrays, until they are replaced
        self._written = 0
        self._time_entries = 0
        self._time_waiting: list[tuple[int, int]] | None = None
        self.last_time_entry = -1  # its timestamp

    # ------------------------------------------------------------------------------------------------------ beginning

    def create(self, rules: AppendRules) -> None:
        """Make the index files of a new segment."""
        self._relative_offsets, self._positions, self._time_waiting = array("i"), array("i"), []
        self._index_entries = 0
        self.segment.largest_timestamp, self.segment.offset_of_largest = -1, self.segment.base_offset
        self.preallocate(rules)

    def load(self) -> None:
        """Read the indexes of an existing segment, once."""
        if self._index_entries != NOT_LOADED:
            return
        index = self.segment.read_offset_index(self._disk)
        times = self.segment.read_time_index(self._disk)
        self._relative_offsets, self._positions = index.relative_offsets, index.positions
        self._index_entries = self._written = len(index)
        self._time_entries = len(times)
        self._time_waiting = []
        self.last_time_entry = times.last_entry.timestamp
        segment = self.segment
        if segment.largest_timestamp == UNREAD:
            segment.largest_timestamp, segment.offset_of_largest = times.last_entry
        if self.first_timestamp < 0 and segment.size_bytes:
            self.first_timestamp = next((header.max_timestamp for header in self._headers(0)), NO_ROLL_TIMESTAMP)

    def _headers(self, position: int) -> Iterator[RecordBatch | LegacyBatch]:
        file = self._disk.open_file(self.segment.log_path)
        try:
            yield from HeaderReader(file, position, self.segment.size_bytes).headers()
        finally:
            file.close()

    def preallocate(self, rules: AppendRules) -> None:
        """Extend both index files to the size that they have while the segment is active."""
        for kind, size_bytes in (
            (FileKind.INDEX, rules.max_index_entries * OFFSET_INDEX_ENTRY.size),
            (FileKind.TIME_INDEX, (rules.max_time_entries + 1) * TIME_INDEX_ENTRY.size),
        ):
            file = self._disk.open_log_file(self.segment.path(kind), create=True)
            try:
                file.truncate(size_bytes)
            finally:
                file.close()
        self.is_preallocated = True

    # ------------------------------------------------------------------------------------------------------ appending

    def must_roll(self, rules: AppendRules, size_bytes: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        """Return whether the segment must be rolled before a batch with these values is appended."""
        if self._index_entries == NOT_LOADED:
            self.load()
        segment = self.segment
        if segment.size_bytes > rules.segment_bytes - size_bytes or last_offset - segment.base_offset > INT32_MAX:
            return True
        first = self.first_timestamp
        waited = max_timestamp - first if first >= 0 else now_ms - self.created_ms
        if waited > rules.max_segment_ms - self.roll_jitter_ms and segment.size_bytes:
            return True
        return self._index_entries >= rules.max_index_entries or self._time_entries >= rules.max_time_entries

    def add(self, rules: AppendRules, size_bytes: int, last_offset: int, max_timestamp: int) -> None:
        """Count a batch that was just written to the end of the segment, and index it."""
        segment = self.segment
        position = segment.size_bytes
        if max_timestamp > segment.largest_timestamp:
            segment.largest_timestamp = max_timestamp
            segment.offset_of_largest = last_offset
        if not position:
            self.first_timestamp = max_timestamp
        segment.size_bytes = position + size_bytes
        if self.bytes_since_entry > rules.index_interval_bytes:
            self._add_entry(rules, last_offset, position)
        self.bytes_since_entry += size_bytes

    def _add_entry(self, rules: AppendRules, last_offset: int, position: int) -> None:
        assert self._relative_offsets is not None and self._positions is not None
        if not self.is_preallocated:
            self.preallocate(rules)
        self._relative_offsets.append(last_offset - self.segment.base_offset)
        self._positions.append(position)
        self._index_entries += 1
        self.add_time_entry()
        self.bytes_since_entry = 0
        if self._index_entries - self._written >= INDEX_GROUP:
            self.write_indexes()

    def add_time_entry(self) -> None:
        """Add the largest timestamp so far to the time index, unless it is the last entry."""
        segment = self.segment
        if segment.largest_timestamp > self.last_time_entry:
            assert self._time_waiting is not None
            self.last_time_entry = segment.largest_timestamp
            self._time_waiting.append((segment.largest_timestamp, segment.offset_of_largest - segment.base_offset))
            self._time_entries += 1

    def write_indexes(self) -> None:
        """Write the pending entries to the files."""
        if self._index_entries == NOT_LOADED:
            return
        assert self._relative_offsets is not None and self._positions is not None and self._time_waiting is not None
        if self._index_entries > self._written:
            pairs = zip(self._relative_offsets[self._written :], self._positions[self._written :])
            data = b"".join(OFFSET_INDEX_ENTRY.pack(*pair) for pair in pairs)
            self._disk.write_at(self.segment.path(FileKind.INDEX), self._written * OFFSET_INDEX_ENTRY.size, data)
            self._written = self._index_entries
        if self._time_waiting:
            data = b"".join(TIME_INDEX_ENTRY.pack(*pair) for pair in self._time_waiting)
            at = (self._time_entries - len(self._time_waiting)) * TIME_INDEX_ENTRY.size
            self._disk.write_at(self.segment.path(FileKind.TIME_INDEX), at, data)
            self._time_waiting.clear()

    def time_entry_at_or_below(self, timestamp: int) -> TimeIndexEntry:
        """Return the last entry of the time index at or below `timestamp` (ms), (-1, base offset) if there is none.

        It bisects in the file: the file is preallocated, and decoding its 10 MB takes 10 ms.
        """
        self.write_indexes()
        try:
            file = self._disk.open_file(self.segment.path(FileKind.TIME_INDEX))
        except FileNotFoundError:
            return TimeIndexEntry(NO_TIMESTAMP, self.segment.base_offset)  # the file was lost: the scan reads the whole segment
        try:

            def entry(slot: int) -> tuple[int, int]:
                stamp, relative = TIME_INDEX_ENTRY.unpack(file.read_at(slot * TIME_INDEX_ENTRY.size, TIME_INDEX_ENTRY.size))
                return stamp, relative

            slot = bisect_right(range(self._time_entries), timestamp, key=lambda at: entry(at)[0]) - 1
            if slot < 0:
                return TimeIndexEntry(NO_TIMESTAMP, self.segment.base_offset)
            stamp, relative = entry(slot)
        finally:
            file.close()
        return TimeIndexEntry(stamp, self.segment.base_offset + relative)

    def close(self) -> bool:
        """Add the last time index entry, write pending entries and trim both files; return whether this changed a file."""
        if self._index_entries == NOT_LOADED and not self.is_preallocated and not self.bytes_since_entry:
            return False
        self.load()
        self.add_time_entry()
        self.write_indexes()
        self._disk.truncate(self.segment.path(FileKind.INDEX), self._index_entries * OFFSET_INDEX_ENTRY.size)
        self._disk.truncate(self.segment.path(FileKind.TIME_INDEX), self._time_entries * TIME_INDEX_ENTRY.size)
        self.is_preallocated = False
        return True

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Drop the index entries from `offset` on; the `.log` and `segment.size_bytes` are already truncated."""
        self.load()
        segment, disk = self.segment, self._disk
        self.write_indexes()
        index, times = self.offset_index(), segment.read_time_index(disk)
        index.truncate_to(offset)
        times.truncate_to(offset)
        self._index_entries = self._written = len(index)
        self._time_entries = len(times)
        self.last_time_entry = times.last_entry.timestamp
        self.is_preallocated = False
        for kind, data in ((FileKind.INDEX, index.encode()), (FileKind.TIME_INDEX, times.encode())):
            disk.append(segment.path(kind), b"")
            disk.truncate(segment.path(kind), len(data))
        self._truncate_transactions(offset)
        self.bytes_since_entry = 0
        segment.largest_timestamp, segment.offset_of_largest = times.last_entry
        for header in self._headers(index.lookup(times.last_entry.offset).position):
            if header.max_timestamp > segment.largest_timestamp:
                segment.largest_timestamp, segment.offset_of_largest = header.max_timestamp, header.last_offset
        if not segment.size_bytes:
            self.created_ms, self.first_timestamp = now_ms, NO_ROLL_TIMESTAMP

    def _truncate_transactions(self, offset: int) -> None:
        aborted = self.segment.read_transaction_index(self._disk).aborted
        kept = next((slot for slot, txn in enumerate(aborted) if txn.last_offset >= offset), len(aborted))
        if kept < len(aborted):
            self._disk.truncate(self.segment.path(FileKind.TXN_INDEX), kept * ABORTED_TXN.size)

    # -------------------------------------------------------------------------------------------------------- reading

    def offset_index(self) -> OffsetIndex:
        """Return the `.index` with the entries so far."""
        index = self._index
        if index is None or index.positions is not self._positions:
            self.load()
            assert self._relative_offsets is not None and self._positions is not None
            index = self._index = OffsetIndex(self.segment.base_offset, self._relative_offsets, self._positions)
        return index
