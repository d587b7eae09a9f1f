"""Where the files of a staged partition are kept: on the disk beside what they will replace, in memory, or nowhere.

file                                     a real run                         a dry run
---------------------------------------  ---------------------------------  ------------------------------------------
a segment's (.log and its indexes)       `<offset>.<number>.<kind>          what a round of the cleaner writes and
                                         .cleaned` in the directory that      nobody will read again: its size alone
                                         it is for: a crash leaves names    else as in a real run, in a scratch
                                         that a broker's start removes        directory
any other (snapshots, leader epochs)     in memory                          in memory
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from typing import NoReturn

from kcli.format.file_names import FileState
from kcli.log.disk.port import LogDisk, LogFile, base_name, join_path

SEGMENT_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")


def _refuse(path: str) -> NoReturn:
    raise OSError(errno.EROFS, "it is the source's, and is read only", path)


class StagedFile:
    """A file as it is seen: `path` is where its bytes lie, None for bytes in memory (`data`) or of no more than a size.

    `is_ours` tells that it was made here, and that the file at `path` may be changed.
    """

    __slots__ = ("data", "is_ours", "mtime_ms", "path", "size_bytes")

    def __init__(self, path: str | None, *, is_ours: bool, data: bytearray | None = None) -> None:
        self.path = path
        self.is_ours = is_ours
        self.data = data
        self.size_bytes = 0  # of what is neither on the disk nor in memory
        self.mtime_ms = 0


class SizeOnly:
    """An open file of which nothing but its size is kept; see kcli.log.disk.port.LogFile."""

    def __init__(self, name: str, staged: StagedFile) -> None:
        self.name = name
        self._staged = staged

    def size(self) -> int:
        """The bytes that were appended."""
        return self._staged.size_bytes

    def append(self, parts: Sequence[bytes | bytearray | memoryview]) -> int:
        """Count the parts -> their bytes."""
        total = sum(map(len, parts))
        self._staged.size_bytes += total
        return total

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Raises OSError: nothing is kept."""
        _refuse(self.name)

    def read_at(self, position: int, size: int) -> bytes:
        """Raises OSError, likewise."""
        _refuse(self.name)

    def truncate(self, size: int) -> None:
        """Cut or extend it."""
        self._staged.size_bytes = size

    def flush(self) -> None:
        """Nothing."""

    def fileno(self) -> int:
        """No descriptor: -1."""
        return -1

    def close(self) -> None:
        """Nothing."""


class Store:
    """Makes the places of new files. `directory` is where segments' files go; `keeps` tells whether their bytes are needed.

    It is asked for each file that a round of the cleaner begins; a real run keeps all.
    """

    def __init__(self, disk: LogDisk, directory: str, keeps: Callable[[], bool] = lambda: True) -> None:
        self.directory = directory
        self.keeps = keeps
        self._disk = disk
        self._made = 0

    def make(self, path: str) -> StagedFile:
        """The place of a new file that is seen at `path`."""
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
        if self._disk.exists(real):  # of a run that was killed
            self._disk.remove(real)
        return StagedFile(real, is_ours=True)

    def open(self, name: str, staged: StagedFile, *, create: bool) -> LogFile:
        """Open a file for appending and reading. Raises OSError for one of the source."""
        if not staged.is_ours:
            _refuse(name)
        if staged.path is None:
            return SizeOnly(name, staged)
        return self._disk.open_log_file(staged.path, create=create)
