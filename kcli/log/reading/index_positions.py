"""The entries of a segment's .index, for a reader that has to find the next batch after damage, or to check offsets.

An index whose positions do not ascend is ignored. The entries are hints: the reader checks the bytes at their positions.

A reader of a part of a segment gets the entries of this part by `near`, which finds them in the file by bisection: a segment of
1 GiB has 250,000 entries, and to read them all takes as long as to read 30 MB of the segment.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from kcli.format import limits
from kcli.format.file_names import FileKind, FileState, parse_file_name, segment_file_name
from kcli.format.index_entries import OffsetIndex, TimeIndex, ascends
from kcli.format.structs import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from kcli.log.disk.port import Disk, DiskFile

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch
    from kcli.format.record_batch import RecordBatch

# An index is read in pieces of this number of entries, then twice as many, and so on; by `near` up to the second number.
_FIRST_ENTRIES, _MOST_ENTRIES = 512, 8192


class IndexPositions:
    """The entries in the indexes of the segment `log_path`; each file is read at the first use, and no entries if it cannot be.

    `base_offset` is None if the file is not a segment in use: then it has no indexes.
    """

    def __init__(self, disk: Disk, log_path: str) -> None:
        self._disk = disk
        directory, slash, name = log_path.rpartition("/")
        self._directory = directory + slash
        parsed = parse_file_name(name)
        is_segment = parsed.kind is FileKind.LOG and parsed.state is FileState.CURRENT
        self.base_offset = parsed.base_offset if is_segment else None
        # What `near` has read: consecutive entries, the number of the first, whether the last is that of the file.
        self._part, self._first_slot, self._is_end = OffsetIndex.of(0), 0, False
        self._entries = _FIRST_ENTRIES

    @cached_property
    def as_read(self) -> OffsetIndex:
        """The `.index` without a tail of zeros; its entries may have any order."""
        return OffsetIndex.decode(self._read(FileKind.INDEX, OFFSET_INDEX_ENTRY.size), self.base_offset or 0).trimmed()

    @cached_property
    def index(self) -> OffsetIndex:
        """The `.index`, empty if its positions do not ascend."""
        found = self.as_read
        return found if ascends(found.positions) else OffsetIndex.of(found.base_offset)

    @cached_property
    def times(self) -> dict[int, int]:
        """The offsets in `.timeindex` by timestamp (ms)."""
        data = self._read(FileKind.TIME_INDEX, TIME_INDEX_ENTRY.size)
        return {entry.timestamp: entry.offset for entry in TimeIndex.decode(data, self.base_offset or 0).trimmed().entries()}

    def _read(self, kind: FileKind, entry_bytes: int) -> bytes:
        """Return the entries of an index, and not all of the zeros after them: a preallocated file has a million."""
        if self.base_offset is None:
            return b""
        data, size = b"", _FIRST_ENTRIES * entry_bytes
        try:
            file = self._disk.open_file(self._directory + segment_file_name(self.base_offset, kind))
            try:
                while len(data) < limits.MAX_INDEX_FILE_BYTES:
                    piece = file.read_at(len(data), size)
                    data += piece
                    if len(piece) < size or not any(data[-entry_bytes:]):
                        break
                    size *= 2
            finally:
                file.close()
        except OSError:
            return b""
        return data

    def near(self, position: int, end: int, before: int = 1) -> OffsetIndex:
        """Return consecutive entries of `.index`: the last ones before byte `position`, those up to byte `end`, maybe more.

        If the positions of these do not ascend, there are none.
        """
        if "index" in self.__dict__:
            return self.index
        part = self._part
        is_first = not self._first_slot or bisect_left(part.positions, position) >= before
        if len(part) and is_first and (self._is_end or part.positions[-1] >= end):
            return part
        if self.base_offset is None:
            return OffsetIndex.of(0)
        try:
            file = self._disk.open_file(self._directory + segment_file_name(self.base_offset, FileKind.INDEX))
            try:
                return self._read_near(file, position, end, before)
            finally:
                file.close()
        except OSError:
            return OffsetIndex.of(self.base_offset)

    def _read_near(self, file: DiskFile, position: int, end: int, before: int) -> OffsetIndex:
        size, base_offset = OFFSET_INDEX_ENTRY.size, self.base_offset or 0

        def reaches(slot: int) -> bool:
            relative_offset, at = OFFSET_INDEX_ENTRY.unpack(file.read_at(slot * size, size))
            return at >= position or (slot > 0 and not relative_offset)  # zeros follow the entries

        total = min(file.size(), limits.MAX_INDEX_FILE_BYTES) // size
        first = max(bisect_left(range(total), True, key=reaches) - before, 0)
        data, part, self._is_end = b"", OffsetIndex.of(base_offset), False
        while not self._is_end and (not len(part) or part.positions[-1] < end):
            data += file.read_at(first * size + len(data), self._entries * size)
            self._entries = min(2 * self._entries, _MOST_ENTRIES)
            part = OffsetIndex.decode(data, base_offset).trimmed()
            self._is_end = first + len(data) // size >= total or len(part) < len(data) // size
        self._part, self._first_slot = part if ascends(part.positions) else OffsetIndex.of(base_offset), first
        return self._part

    def after(self, position: int) -> Iterator[tuple[int, int]]:
        """Yield (position, offset) of the entries after byte `position`, ascending; nothing without a valid index."""
        index = self.index
        for slot in range(bisect_right(index.positions, position), len(index)):
            entry = index.entry(slot)
            yield entry.position, entry.offset

    def points_at(self, header: RecordBatch | LegacyBatch) -> bool:
        """Return True if an entry points at this header, with an offset at or above its base offset."""
        found = next(self.after(header.position - 1), None)
        return found is not None and found[0] == header.position and found[1] >= header.base_offset
