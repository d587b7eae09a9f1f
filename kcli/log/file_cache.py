"""The open files and cached offset indexes of a broker: few descriptors for any number of segments.

`FileCache` keeps at most `max_open` LogFiles open and closes the least recently used one first. Nothing else in log/ holds a
descriptor. The next call may close a file, so a caller that needs it for longer (sendfile) duplicates its descriptor at once,
or asks with `touch` whether it is still open.
Closing loses no data: writes are in the page cache, and a flush opens the file by its path.

A consumer that is behind needs the index of the same closed segment for each read. `OffsetIndexCache` keeps the most recently
used indexes, at most `max_bytes` of entries, but always one.
"""

from __future__ import annotations

from kcli.format.index_entries import OffsetIndex
from kcli.format.structs import OFFSET_INDEX_ENTRY
from kcli.log.disk.port import Disk, LogDisk, LogFile
from kcli.log.log_segment import LogSegment

MAX_CACHED_INDEX_BYTES = 8 * 1024 * 1024


class OffsetIndexCache:
    """Decoded offset indexes of closed segments, by path. Methods raise OSError as the disk does."""

    __slots__ = ("_disk", "_indexes", "_size_bytes", "max_bytes")

    def __init__(self, disk: Disk, max_bytes: int = MAX_CACHED_INDEX_BYTES) -> None:
        self._disk = disk
        self._indexes: dict[str, OffsetIndex] = {}
        self._size_bytes = 0
        self.max_bytes = max_bytes

    def get(self, segment: LogSegment) -> OffsetIndex:
        """Return the index of a closed segment."""
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
        """Drop the index of the segment with this `.log`, which is removed, changed or made active."""
        index = self._indexes.pop(log_path, None)
        if index is not None:
            self._size_bytes -= _size_of(index)


def _size_of(index: OffsetIndex) -> int:
    return len(index) * OFFSET_INDEX_ENTRY.size


class FileCache:
    """Open LogFiles by path, and the cached offset indexes. Methods raise OSError as the disk does."""

    __slots__ = ("_disk", "_files", "indexes", "max_open")

    def __init__(self, disk: LogDisk, max_open: int = 256) -> None:
        self._disk = disk
        self._files: dict[str, LogFile] = {}
        self.indexes = OffsetIndexCache(disk)
        self.max_open = max(1, max_open)

    def __len__(self) -> int:
        return len(self._files)

    @property
    def max_held(self) -> int:
        """How many files a caller may use together; more could be closed while they are needed."""
        return max(1, self.max_open // 2)

    def get(self, path: str, *, create: bool = False) -> LogFile:
        """Return the open file at `path`; with `create` a missing one is made. Raises OSError."""
        files = self._files
        file = files.pop(path, None)
        if file is None:
            file = self._disk.open_log_file(path, create=create)
            while len(files) >= self.max_open:
                files.pop(next(iter(files))).close()
        files[path] = file
        return file

    def touch(self, path: str, file: object) -> bool:
        """Return whether `file` is still the open file at `path`; it is the most recently used one then."""
        files = self._files
        if files.get(path) is not file:
            return False
        files[path] = files.pop(path)
        return True

    def close(self, path: str) -> None:
        """Close a file if it is open. Call this before it is renamed, removed or written by others."""
        file = self._files.pop(path, None)
        if file is not None:
            file.close()
        self.indexes.forget(path)

    def close_all(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()
