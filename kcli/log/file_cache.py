"""The open files of a broker: few descriptors for any number of segments.

`FileCache` keeps LogFiles open, at most `max_open`; the least recently used one is closed first. Nothing else in log/ holds
a descriptor. Whoever hands a file on past the event at hand (sendfile) duplicates its descriptor at once: the next call may
close the file. Closing loses nothing: what is written is in the page cache, and a flush works by path.
"""

from __future__ import annotations

from kcli.log.disk.port import LogDisk, LogFile
from kcli.log.offset_index_cache import OffsetIndexCache


class FileCache:
    """LogFiles by path, and the offset indexes that readers are at. Methods raise OSError as the disk does."""

    __slots__ = ("_disk", "_files", "indexes", "max_open")

    def __init__(self, disk: LogDisk, max_open: int = 256) -> None:
        self._disk = disk
        self._files: dict[str, LogFile] = {}
        self.indexes = OffsetIndexCache(disk)
        self.max_open = max(1, max_open)

    def __len__(self) -> int:
        return len(self._files)

    def get(self, path: str, *, create: bool = False) -> LogFile:
        """The open file at `path`, opened where it is not; a missing one only with `create`. Raises OSError."""
        files = self._files
        file = files.pop(path, None)
        if file is None:
            file = self._disk.open_log_file(path, create=create)
            while len(files) >= self.max_open:
                files.pop(next(iter(files))).close()
        files[path] = file
        return file

    def close(self, path: str) -> None:
        """Close one file; no error where it is not open. To be called before it is renamed, removed or written by others."""
        file = self._files.pop(path, None)
        if file is not None:
            file.close()
        self.indexes.forget(path)

    def close_all(self) -> None:
        """Close all of them."""
        for file in self._files.values():
            file.close()
        self._files.clear()
