"""The disks on which kcli.log.loading.log_loader loads a log: a plan, or the files themselves.

    disk                               the changes of a load              used by
    ---------------------------------  ---------------------------------  --------------------------------------------------
    kcli.log.disk.planned_disk.PlannedDisk  are recorded, with reasons         repair, which shows them first
    `LiveDisk`                         are made at once, as by Kafka      a broker that starts

A recovery may be interrupted anywhere and repeated: the recovery point does not change before its end. So a LiveDisk does not
wait for the device for files that can be rebuilt from the log: indexes and snapshots. It cannot split a segment whose offsets
overflow its indexes, and raises NotInPlaceError: then the load is planned, and the plan is applied.

A recovery removes the snapshots of producers and writes most of them again, with the same bytes. With `defers_removals` a
LiveDisk keeps the file of a removed snapshot until another file is truncated or renamed, or `finish`: one that is written again
with the same bytes is neither removed nor made. Removing is the slowest step of a start of many small logs after a crash. To
the load the snapshot is missing. A crash in between leaves it, as a crash before its removal does.
"""

from __future__ import annotations

import errno
from typing import Protocol

from kcli.log.disk.planned_disk import Content
from kcli.log.disk.port import Disk, DiskFile, join_path

_SNAPSHOT = ".snapshot"
_REBUILT_FROM_THE_LOG = (".index", ".timeindex", ".txnindex", _SNAPSHOT)


class NotInPlaceError(Exception):
    """A change that has to be planned."""


class LoadDisk(Disk, Protocol):
    """The disk of a load; `is_planned` is True if changes are only recorded."""

    is_planned: bool

    def explain(self, path: str, why: str) -> None:
        """Set the reason of the next change of `path`."""
        ...

    def content(self, path: str) -> Content:
        """Return the extents of a file. Raises FileNotFoundError, NotInPlaceError."""
        ...

    def put(self, path: str, content: Content) -> None:
        """Make `path` a file of these extents. Raises NotInPlaceError."""
        ...


class LiveDisk:
    """A LoadDisk that changes the files of `disk` at once.

    `unflushed` are the files that were written but not flushed: those of segments that a later recovery would not rebuild must
    be flushed before the recovery point rises. `has_cut` is True if a file was truncated, `has_overwritten` if a file got
    other bytes in place of its own.
    """

    is_planned = False

    def __init__(self, disk: Disk, *, defers_removals: bool = False) -> None:
        self._disk = disk
        self._defers_removals = defers_removals
        self._removed: dict[str, None] = {}  # snapshots that still have a file
        self.unflushed: dict[str, None] = {}
        self.has_cut = self.has_overwritten = False
        # These are the calls of the disk itself.
        self.is_directory = disk.is_directory
        self.file_id, self.mtime_ms, self.set_mtime_ms = disk.file_id, disk.mtime_ms, disk.set_mtime_ms
        self.append, self.write_at = disk.append, disk.write_at
        self.make_directory, self.remove_directory = disk.make_directory, disk.remove_directory
        self.free_bytes, self.device = disk.free_bytes, disk.device
        self.lock, self.is_locked = disk.lock, disk.is_locked
        self.flush, self.flush_directory = disk.flush, disk.flush_directory

    def explain(self, path: str, why: str) -> None:
        """Do nothing: only a plan has reasons."""

    def content(self, path: str) -> Content:
        """Raise NotInPlaceError."""
        raise NotInPlaceError(path)

    def put(self, path: str, content: Content) -> None:
        """Raise NotInPlaceError."""
        raise NotInPlaceError(path)

    def write_file(self, path: str, data: bytes) -> None:
        """Write a whole file; if it can be rebuilt from the log, without waiting for the device."""
        if not path.endswith(_REBUILT_FROM_THE_LOG):
            self._disk.write_file(path, data)
            return
        disk = self._disk
        if path in self._removed:
            del self._removed[path]
            self.unflushed[path] = None
            if disk.size(path) == len(data) and disk.read_file(path, len(data)) == data:
                return
            disk.remove(path)
        if not disk.exists(path):
            disk.append(path, data)
            self.unflushed[path] = None
            return
        size = disk.size(path)
        file = disk.open_file(path)
        before = file.read_at(0, len(data))
        file.close()
        if before == data and size == len(data):
            return
        self.has_overwritten |= before != data
        if size > len(data):
            disk.truncate(path, len(data))
        disk.write_at(path, 0, data)
        self.unflushed[path] = None

    def truncate(self, path: str, size: int) -> None:
        """Cut or extend a file to `size` bytes."""
        self.finish()
        self._disk.truncate(path, size)
        self.has_cut = True

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing the target."""
        self.finish()
        self._disk.rename(source, target)
        self.unflushed.pop(source, None)

    def remove(self, path: str) -> None:
        """Remove a file."""
        if self._defers_removals and path.endswith(_SNAPSHOT) and self._disk.is_regular(path):
            self._removed[path] = None
        else:
            self._disk.remove(path)
        self.unflushed.pop(path, None)

    def finish(self) -> None:
        """Remove what is to be removed and was not written again."""
        removed, self._removed = self._removed, {}
        for path in removed:
            self._disk.remove(path)

    # ------------------------------------------------------------------------------------- without the removed snapshots

    def open_file(self, path: str) -> DiskFile:
        """Open for reading."""
        self._refuse_removed(path)
        return self._disk.open_file(path)

    def read_file(self, path: str, limit: int) -> bytes:
        """Read a whole file. Raises OSError(EFBIG) if it has more than `limit` bytes."""
        self._refuse_removed(path)
        return self._disk.read_file(path, limit)

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        self._refuse_removed(path)
        return self._disk.size(path)

    def exists(self, path: str) -> bool:
        """Return True if a file, directory or symbolic link has that path."""
        return path not in self._removed and self._disk.exists(path)

    def is_regular(self, path: str) -> bool:
        """Return True for a regular file."""
        return path not in self._removed and self._disk.is_regular(path)

    def list_directory(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        names = self._disk.list_directory(path)
        return [name for name in names if join_path(path, name) not in self._removed] if self._removed else names

    def _refuse_removed(self, path: str) -> None:
        if path in self._removed:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
