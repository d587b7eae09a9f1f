"""The disk that kcli.log.loading.log_loader works on: a plan, or the files themselves.

    disk                               what a load's changes do           for
    ---------------------------------  ---------------------------------  --------------------------------------------------
    kcli.log.disk.planned_disk.PlannedDisk  are noted, with reasons            repair, which shows them first
    `LiveDisk`                         happen at once, as with Kafka      a broker that starts

A recovery may be cut short anywhere and run again: the recovery point stays where it was until it is done. So a LiveDisk
does not wait for the device where a file can be made anew from the log: indexes and snapshots. One thing it cannot do in
place, and raises NotInPlaceError: splitting a segment whose offsets outgrew its indexes. Then the load is planned, and the
plan applied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kcli.log.disk.planned_file import Content
from kcli.log.disk.port import Disk, DiskFile

_MADE_FROM_THE_LOG = (".index", ".timeindex", ".txnindex", ".snapshot")


class NotInPlaceError(Exception):
    """The load needs a plan."""


class LoadDisk(Disk, Protocol):
    """What a load asks of its disk; `is_planned` says that its changes are noted only."""

    is_planned: bool

    def explain(self, path: str, why: str) -> None:
        """Say why `path` is about to change."""
        ...

    def content(self, path: str) -> Content:
        """The extents of a file. Raises FileNotFoundError, NotInPlaceError."""
        ...

    def put(self, path: str, content: Content) -> None:
        """Make `path` a file of these extents. Raises NotInPlaceError."""
        ...


class LiveDisk:
    """A LoadDisk that changes the files of `disk` at once; see the head of this module.

    `unflushed` are the files that were written and not waited for: of segments that no later recovery makes anew, they
    must be flushed in time. `has_cut` tells whether a file was cut.
    """

    is_planned = False

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.unflushed: dict[str, None] = {}
        self.has_cut = False

    def explain(self, path: str, why: str) -> None:
        """Nothing: whoever wants reasons plans first."""

    def content(self, path: str) -> Content:
        """Raises NotInPlaceError."""
        raise NotInPlaceError(path)

    def put(self, path: str, content: Content) -> None:
        """Raises NotInPlaceError."""
        raise NotInPlaceError(path)

    def write_file(self, path: str, data: bytes) -> None:
        """Write a file whole; what can be made anew from the log without waiting for the device."""
        if not path.endswith(_MADE_FROM_THE_LOG):
            self._disk.write_file(path, data)
            return
        disk = self._disk
        if not disk.exists(path):
            disk.append(path, data)
            self.unflushed[path] = None
            return
        size = disk.size(path)
        if size == len(data) and disk.read_file(path, size) == data:
            return
        if size > len(data):
            disk.truncate(path, len(data))
        disk.write_at(path, 0, data)
        self.unflushed[path] = None

    def open_file(self, path: str) -> DiskFile:
        """Open for reading."""
        return self._disk.open_file(path)

    def list_directory(self, path: str) -> list[str]:
        """The names in a directory, sorted."""
        return self._disk.list_directory(path)

    def is_directory(self, path: str) -> bool:
        """True for a directory."""
        return self._disk.is_directory(path)

    def exists(self, path: str) -> bool:
        """True where something has that name."""
        return self._disk.exists(path)

    def is_regular(self, path: str) -> bool:
        """True for a plain file."""
        return self._disk.is_regular(path)

    def size(self, path: str) -> int:
        """The size of a file in bytes."""
        return self._disk.size(path)

    def file_id(self, path: str) -> int:
        """A number that the file keeps as long as it exists."""
        return self._disk.file_id(path)

    def mtime_ms(self, path: str) -> int:
        """When the file was last modified, in ms since 1970."""
        return self._disk.mtime_ms(path)

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        """Set when the file was last modified, in ms since 1970."""
        self._disk.set_mtime_ms(path, mtime_ms)

    def read_file(self, path: str, limit: int) -> bytes:
        """A small file whole. Raises OSError(EFBIG) when it has more than `limit` bytes."""
        return self._disk.read_file(path, limit)

    def append(self, path: str, data: bytes | memoryview) -> None:
        """Append to a file, created where it is missing."""
        self._disk.append(path, data)

    def write_at(self, path: str, position: int, data: bytes) -> None:
        """Overwrite bytes of an existing file."""
        self._disk.write_at(path, position, data)

    def truncate(self, path: str, size: int) -> None:
        """Cut or extend a file to `size` bytes."""
        self._disk.truncate(path, size)
        self.has_cut = True

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing the target."""
        self._disk.rename(source, target)
        self.unflushed.pop(source, None)

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._disk.remove(path)
        self.unflushed.pop(path, None)

    def make_directory(self, path: str) -> None:
        """Create a directory with its parents; no error where it is."""
        self._disk.make_directory(path)

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        self._disk.remove_directory(path)

    def free_bytes(self, path: str) -> int:
        """How many bytes may still be written where `path` lies."""
        return self._disk.free_bytes(path)

    def device(self, path: str) -> int:
        """A number that only paths on one file system have in common."""
        return self._disk.device(path)

    def lock(self, path: str) -> Callable[[], None] | None:
        """Take a lock on a file."""
        return self._disk.lock(path)

    def is_locked(self, path: str) -> bool:
        """True where another process holds the lock of the file."""
        return self._disk.is_locked(path)

    def flush(self, path: str) -> None:
        """Wait until a file's bytes are on the device."""
        self._disk.flush(path)

    def flush_directory(self, path: str) -> None:
        """Wait until a directory's entries are on the device."""
        self._disk.flush_directory(path)
