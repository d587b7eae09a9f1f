"""Where the files of a staged partition are kept: on the disk next to the files that they will replace, or in memory.

file                                     a real run                          a dry run
---------------------------------------  ----------------------------------  ------------------------------------------
a segment's (.log and its indexes)       `<offset>.<number>.<kind>.cleaned`  if no later round reads the file: its size
                                         in the target directory; the start  alone; otherwise as in a real run, in a
                                         of a broker removes these names     scratch directory
                                         after a crash
any other (snapshots, leader epochs)     in memory                           in memory
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import NoReturn

from kcli.format.file_names import FileState
from kcli.log.disk.port import LogDisk, LogFile, base_name, join_path

SEGMENT_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")


def _refuse(path: str) -> NoReturn:
    raise OSError(errno.EROFS, "the file belongs to the source and is read-only", path)


class StagedFile:
    """A file as readers see it: `path` is where its bytes are, None if they are in memory (`data`) or only the size is kept.

    `is_ours`: the file was created here, so the file at `path` may be changed.
    """

    __slots__ = ("data", "is_ours", "mtime_ms", "path", "size_bytes")

    def __init__(self, path: str | None, *, is_ours: bool, data: bytearray | None = None) -> None:
        self.path = path
        self.is_ours = is_ours
        self.data = data
        self.size_bytes = 0  # of a file of which only the size is kept
        self.mtime_ms = 0


class SizeOnly:
    """An open file of which only the size is kept; see kcli.log.disk.port.LogFile."""

    def __init__(self, name: str, staged: StagedFile) -> None:
        self.name = name
        self._staged = staged

    def size(self) -> int:
        """Return the size in bytes."""
        return self._staged.size_bytes

    def append(self, parts: Sequence[bytes | bytearray | memoryview]) -> int:
        """Add the sizes of the parts; return their bytes."""
        total = sum(map(len, parts))
        self._staged.size_bytes += total
        return total

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Raise OSError: the bytes are not kept."""
        _refuse(self.name)

    def read_at(self, position: int, size: int) -> bytes:
        """Raise OSError: the bytes are not kept."""
        _refuse(self.name)

    def truncate(self, size: int) -> None:
        """Set the size."""
        self._staged.size_bytes = size

    def flush(self) -> None:
        """Do nothing."""

    def fileno(self) -> int:
        """Return -1: a staged file has no descriptor."""
        return -1

    def close(self) -> None:
        """Do nothing."""


class Store:
    """Creates the places of new files; the files of segments are kept in `directory`.

    `keeps` is called for each file that a round of the cleaner starts, and returns False if only its size is needed. A real
    run keeps all files.
    """

    def __init__(self, disk: LogDisk, directory: str, keeps: Callable[[], bool] = lambda: True) -> None:
        self.directory = directory
        self.keeps = keeps
        self._disk = disk
        self._made = 0

    def make(self, path: str) -> StagedFile:
        """Return the place of a new file that readers see at `path`."""
        name = base_name(path)
        stem = name.removesuffix(FileState.CLEANED.value)
        if not stem.endswith(SEGMENT_SUFFIXES):
            return StagedFile(None, is_ours=True, data=bytearray())
        if stem != name and not self.keeps():
            return StagedFile(None, is_ours=True)
        if not self._made:
            self._disk.make_directory(self.directory)
        self._made += 1
        offset, _, kind = stem.partition(".")
        real = join_path(self.directory, f"{offset}.{self._made}.{kind}{FileState.CLEANED.value}")
        if self._disk.exists(real):  # left by a run that was killed
            self._disk.remove(real)
        return StagedFile(real, is_ours=True)

    def open(self, name: str, staged: StagedFile, *, create: bool) -> LogFile:
        """Open a file for appending and reading. Raises OSError for a file of the source."""
        if not staged.is_ours:
            _refuse(name)
        if staged.path is None:
            return SizeOnly(name, staged)
        return self._disk.open_log_file(staged.path, create=create)
