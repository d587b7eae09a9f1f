"""The base of disks that keep changes apart from the files: kcli.log.disk.planned_disk and kcli.inspect.compacting.staged_disk.

question or change                               an overlay
-----------------------------------------------  ---------------------------------------------------------------
directories, free space, file systems, locks     asks the disk below
files: what they contain, their names            shows what was done on the overlay; each overlay has its own way
times, directories, locks that are to change     refuses them: it changes files, nothing else
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from io import UnsupportedOperation
from typing import Generic, NoReturn, TypeVar

from kcli.log.disk.port import Disk

DiskBelow = TypeVar("DiskBelow", bound=Disk)


class OverlayDisk(Generic[DiskBelow]):
    """What all overlays have in common; `disk` is the disk below, which is only read."""

    def __init__(self, disk: DiskBelow) -> None:
        self.disk = disk

    def is_directory(self, path: str) -> bool:
        """Return True for a directory, False for anything else or nothing."""
        return self.disk.is_directory(path)

    def free_bytes(self, path: str) -> int:
        """Return how many bytes may still be written to the file system of `path`."""
        return self.disk.free_bytes(path)

    def device(self, path: str) -> int:
        """Return a number that is equal for all paths on one file system."""
        return self.disk.device(path)

    def is_locked(self, path: str) -> bool:
        """Return True if another process holds a POSIX record lock on the file."""
        return self.disk.is_locked(path)

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        """Raise UnsupportedOperation, unless the overlay keeps times."""
        self._refuse(path)

    def make_directory(self, path: str) -> None:
        """Raise UnsupportedOperation, unless the overlay has directories."""
        self._refuse(path)

    def remove_directory(self, path: str) -> None:
        """Raise UnsupportedOperation."""
        self._refuse(path)

    def lock(self, path: str) -> Callable[[], None] | None:
        """Raise UnsupportedOperation: the code that changes the real files takes the lock."""
        self._refuse(path)

    def _refuse(self, path: str) -> NoReturn:
        raise UnsupportedOperation(f"{path}: an overlay changes files, nothing else")


def missing_file(path: str) -> FileNotFoundError:
    """Return the error that the operating system raises for a missing file."""
    return FileNotFoundError(errno.ENOENT, "No such file or directory", path)
