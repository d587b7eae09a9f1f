"""The disks on which kcli.log.loading.log_loader loads a log: a plan, or the files themselves.

    disk                               the changes of a load              used by
    ---------------------------------  ---------------------------------  --------------------------------------------------
    kcli.log.disk.planned_disk.PlannedDisk  are recorded, with reasons         repair, which shows them first
    `LiveDisk`                         are made at once, as by Kafka      a broker that starts

A recovery may be interrupted anywhere and repeated: the recovery point does not change before its end. So a LiveDisk does not
wait for the device for files that can be rebuilt from the log: indexes and snapshots. It cannot split a segment whose offsets
overflow its indexes, and raises NotInPlaceError: then the load is planned, and the plan is applied.

A broker's load names the partition's directory, which is changed by way of this disk only. What takes the most time when many
small logs start after a crash is then done once:

    questions   which files there are, which are regular and how large they are: the load asks some fifty times. The directory
                is listed and each file is examined at the first question
    removing    a recovery removes the snapshots of producers and writes most of them again, with the same bytes. The file of a
                removed snapshot is kept until another file is truncated or renamed, or `finish`: one that is written again with
                the same bytes is neither removed nor made. To the load the snapshot is missing. A crash in between leaves it,
                as a crash before its removal does
"""

from __future__ import annotations

import errno
from typing import Protocol

from kcli.log.disk.planned_disk import Content
from kcli.log.disk.port import Disk, DiskFile, base_name, join_path

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
    """A LoadDisk that changes the files of `disk` at once; `directory` is the partition's one in a broker's load.

    `unflushed` are the files that were written but not flushed: those of segments that a later recovery would not rebuild must
    be flushed before the recovery point rises. `has_cut` is True if a file was truncated, `has_overwritten` if a file got
    other bytes in place of its own.
    """

    is_planned = False

    def __init__(self, disk: Disk, directory: str | None = None) -> None:
        self._disk = disk
        self._directory = directory
        self._prefix = None if directory is None else join_path(directory, "")
        # What is known of the directory: the paths, whether they are regular files (None: not examined yet), and sizes.
        self._listed: dict[str, bool | None] | None = None
        self._sizes: dict[str, int] = {}
        self._removed: dict[str, None] = {}  # snapshots that still have a file
        self.unflushed: dict[str, None] = {}
        self.has_cut = self.has_overwritten = False
        # These are the calls of the disk itself.
        self.is_directory = disk.is_directory
        self.file_id, self.mtime_ms, self.set_mtime_ms = disk.file_id, disk.mtime_ms, disk.set_mtime_ms
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

    # -------------------------------------------------------------------------------------------------------- changing

    def _forget_listing(self) -> None:
        self._listed = None
        self._sizes.clear()

    def append(self, path: str, data: bytes | memoryview) -> None:
        """Append to a file, which is created if it is missing."""
        self._forget_listing()
        self._disk.append(path, data)

    def write_at(self, path: str, position: int, data: bytes) -> None:
        """Overwrite bytes of an existing file."""
        self._sizes.pop(path, None)
        self._disk.write_at(path, position, data)

    def write_file(self, path: str, data: bytes) -> None:
        """Write a whole file; if it can be rebuilt from the log, without waiting for the device."""
        if not path.endswith(_REBUILT_FROM_THE_LOG):
            self._forget_listing()
            self._disk.write_file(path, data)
            return
        disk = self._disk
        if path in self._removed:
            del self._removed[path]
            if self._listed is not None:
                self._listed[path] = True
            self.unflushed[path] = None
            if disk.size(path) == len(data) and disk.read_file(path, len(data)) == data:
                return
            self._forget_listing()
            disk.remove(path)
        if not self.exists(path):
            self.append(path, data)
            self.unflushed[path] = None
            return
        size = self.size(path)
        file = disk.open_file(path)
        before = file.read_at(0, len(data))
        file.close()
        if before == data and size == len(data):
            return
        self._sizes.pop(path, None)
        self.has_overwritten |= before != data
        if size > len(data):
            disk.truncate(path, len(data))
        disk.write_at(path, 0, data)
        self.unflushed[path] = None

    def truncate(self, path: str, size: int) -> None:
        """Cut or extend a file to `size` bytes."""
        self.finish()
        self._sizes.pop(path, None)
        self._disk.truncate(path, size)
        self.has_cut = True

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing the target."""
        self.finish()
        self._forget_listing()
        self._disk.rename(source, target)
        self.unflushed.pop(source, None)

    def remove(self, path: str) -> None:
        """Remove a file."""
        if self._is_inside(path) and path.endswith(_SNAPSHOT) and self.is_regular(path):
            self._removed[path] = None
            self._listing().pop(path)
            self._sizes.pop(path, None)
        else:
            self._forget_listing()
            self._disk.remove(path)
        self.unflushed.pop(path, None)

    def finish(self) -> None:
        """Remove what is to be removed and was not written again."""
        removed, self._removed = self._removed, {}
        for path in removed:
            self._disk.remove(path)

    # ------------------------------------------------------------------------------- reading, without removed snapshots

    def _is_inside(self, path: str) -> bool:
        """Return whether a path is directly in the partition's directory."""
        prefix = self._prefix
        return prefix is not None and path.rfind("/") + 1 == len(prefix) and path.startswith(prefix)

    def _listing(self) -> dict[str, bool | None]:
        if self._listed is None:
            assert self._directory is not None
            paths = (join_path(self._directory, name) for name in self._disk.list_directory(self._directory))
            self._listed = {path: None for path in paths if path not in self._removed}
        return self._listed

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
        size = self._sizes.get(path)
        if size is None:
            size = self._disk.size(path)
            if self._is_inside(path):
                self._sizes[path] = size
        return size

    def exists(self, path: str) -> bool:
        """Return True if a file, directory or symbolic link has that path."""
        return path in self._listing() if self._is_inside(path) else self._disk.exists(path)

    def is_regular(self, path: str) -> bool:
        """Return True for a regular file."""
        if not self._is_inside(path):
            return self._disk.is_regular(path)
        listing = self._listing()
        is_regular = listing.get(path, False)
        if is_regular is None:
            is_regular = listing[path] = self._disk.is_regular(path)
        return is_regular

    def list_directory(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        return sorted(map(base_name, self._listing())) if path == self._directory else self._disk.list_directory(path)

    def _refuse_removed(self, path: str) -> None:
        if path in self._removed:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
