"""The offset indexes of closed segments that readers work through, decoded, few at a time.

A reader that is behind asks the same index again and again: for the place where its next read ends. Its entries are kept
while they are among the last that were asked for, up to `max_bytes` of them in all; one is kept whatever its size.
"""

from __future__ import annotations

from kcli.format.index_entries import OffsetIndex
from kcli.format.structs import OFFSET_INDEX_ENTRY
from kcli.log.disk.port import Disk
from kcli.log.log_segment import LogSegment

MAX_CACHED_BYTES = 8 * 1024 * 1024


class OffsetIndexCache:
    """Indexes by path. Raises OSError as the disk does."""

    __slots__ = ("_disk", "_indexes", "_size_bytes", "max_bytes")

    def __init__(self, disk: Disk, max_bytes: int = MAX_CACHED_BYTES) -> None:
        self._disk = disk
        self._indexes: dict[str, OffsetIndex] = {}
        self._size_bytes = 0
        self.max_bytes = max_bytes

    def get(self, segment: LogSegment) -> OffsetIndex:
        """The index of a closed segment."""
        indexes = self._indexes
        index = indexes.pop(segment.log_path, None)
        if index is None:
            index = segment.read_offset_index(self._disk)
            self._size_bytes += _size_of(index)
        indexes[segment.log_path] = index
        while self._size_bytes > self.max_bytes and len(indexes) > 1:
            self.forget(next(iter(indexes)))
        return index

    def forget(self, log_path: str) -> None:
        """The segment with this `.log` goes, changes or becomes active."""
        index = self._indexes.pop(log_path, None)
        if index is not None:
            self._size_bytes -= _size_of(index)


def _size_of(index: OffsetIndex) -> int:
    return len(index) * OFFSET_INDEX_ENTRY.size
