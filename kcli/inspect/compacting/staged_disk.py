"""A disk that keeps all changes of a partition apart from its files until they are put in place.

A partition is opened, rolled and cleaned in rounds on this disk. Readers see the directory as if all of that had happened;
no file in the directory itself is written, renamed or removed. `outcome()` returns the result:
kcli.inspect.compacting.compaction carries it out, in place or in another directory; a dry run discards it.

It is a kcli.log.disk.port.LogDisk for the paths of one directory. Paths elsewhere are read, and not changed. Files are kept on
the disk next to those that they will replace, or in memory:

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
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, NoReturn

from kcli.format import limits
from kcli.format.file_names import FileState
from kcli.log.disk.planned_disk import Extent, OverlayDisk, PlannedFile, missing_file
from kcli.log.disk.port import DiskFile, LogDisk, LogFile, base_name, join_path, parent_path

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


class StagedChanges(NamedTuple):
    """The changes of a directory's files, all by file name.

    `made`: new files, and the paths where they are now. `written`: new or changed files, and their bytes. `gone`: files to
    remove. `moved`: the new names of files of the directory, and their present paths.
    """

    made: dict[str, str]
    written: dict[str, bytes]
    gone: tuple[str, ...]
    moved: dict[str, str]


class StagedDisk(OverlayDisk[LogDisk]):
    """See the head of this module; `store` decides where new files are kept. Methods raise OSError as the disk does."""

    def __init__(self, disk: LogDisk, directory: str, store: Store) -> None:
        super().__init__(disk)
        self._directory = directory
        self._store = store
        self._files: dict[str, StagedFile | None] = {}  # by the path that readers see; None: removed
        self._real: set[str] = set()  # the true paths of the files that were created here

    # ------------------------------------------------------------------------------------------------------- the outcome

    def outcome(self) -> StagedChanges:
        """Return what differs from the files of the directory."""
        made, written, gone, moved = {}, {}, [], {}
        for path, staged in sorted(self._files.items()):
            name = path.removeprefix(join_path(self._directory, ""))
            if staged is None:
                if self.disk.exists(path) and path not in self._real:
                    gone.append(name)
            elif not staged.is_ours:
                assert staged.path is not None
                moved[name] = staged.path
            elif staged.data is not None:
                if not self._is_same(path, staged.data):
                    written[name] = bytes(staged.data)
            elif staged.path is not None:
                made[name] = staged.path
        return StagedChanges(made, written, tuple(gone), moved)

    def _is_same(self, path: str, data: bytearray) -> bool:
        """Return True if the file exists in the directory with these bytes."""
        if not self.disk.exists(path) or self.disk.size(path) != len(data):
            return False
        return self.disk.read_file(path, len(data)) == data

    def made(self, suffix: str) -> list[str]:
        """Return the paths that end with `suffix` of files that were created or changed here."""
        return sorted(path for path, one in self._files.items() if one is not None and one.is_ours and path.endswith(suffix))

    def discard(self) -> None:
        """Remove the files that were created here; those that cannot be removed are left for the start of a broker."""
        for path in sorted(self._real):
            with suppress(OSError):
                self.disk.remove(path)
        self._real.clear()

    # ------------------------------------------------------------------------------------------------------------ places

    def _look(self, path: str) -> StagedFile:
        """Return the file that readers see at `path`. Raises FileNotFoundError."""
        if path in self._files:
            staged = self._files[path]
        else:
            exists = path not in self._real and self.disk.exists(path)
            staged = StagedFile(path, is_ours=False) if exists else None
        if staged is None:
            raise missing_file(path)
        return staged

    def _new(self, path: str) -> StagedFile:
        self._drop(path)
        staged = self._files[path] = self._store.make(path)
        if staged.path is not None:
            self._real.add(staged.path)
        return staged

    def _own(self, path: str) -> StagedFile:
        """Return the file at `path` as one that may be changed; a file of the directory is copied first."""
        staged = self._look(path)
        if staged.is_ours:
            return staged
        source = staged.path
        assert source is not None
        copy = self._new(path)
        file = self.disk.open_file(source)
        try:
            position = 0
            while data := file.read_at(position, limits.READ_CHUNK_BYTES):
                self._add(copy, data)
                position += len(data)
        finally:
            file.close()
        return copy

    def _add(self, staged: StagedFile, data: bytes | memoryview) -> None:
        if staged.data is not None:
            staged.data += data
        elif staged.path is not None:
            self.disk.append(staged.path, data)
        else:
            staged.size_bytes += len(data)

    def _drop(self, path: str) -> None:
        """Remove the file that readers see at `path`."""
        staged = self._files.get(path)
        if staged is not None and staged.is_ours and staged.path is not None:
            if self.disk.exists(staged.path):
                self.disk.remove(staged.path)
            self._real.discard(staged.path)
        self._files[path] = None

    # ----------------------------------------------------------------------------------------------------------- reading

    def open_file(self, path: str) -> DiskFile:
        """Open a file for reading."""
        staged = self._look(path)
        if staged.path is not None:
            return self.disk.open_file(staged.path)
        data = bytes(staged.data or b"")
        return PlannedFile(self.disk, path, (Extent(data, 0, len(data)),) if data else ())

    def open_log_file(self, path: str, *, create: bool) -> LogFile:
        """Open a segment for appending and reading. Raises OSError for a segment of the directory itself."""
        if create and not self.exists(path):
            return self._store.open(path, self._new(path), create=True)
        return self._store.open(path, self._look(path), create=False)

    def list_directory(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        names = self.disk.list_directory(path)
        if path.rstrip("/") != self._directory.rstrip("/"):
            return names
        hidden = self._real | self._files.keys()
        seen = {name for name in names if join_path(path, name) not in hidden}
        inside = join_path(self._directory, "")
        seen |= {at.removeprefix(inside) for at, staged in self._files.items() if staged is not None}
        return sorted(seen)

    def exists(self, path: str) -> bool:
        """Return True if readers see something at `path`."""
        if path in self._files:
            return self._files[path] is not None
        return path not in self._real and self.disk.exists(path)

    def is_regular(self, path: str) -> bool:
        """Return True for a regular file."""
        if path in self._files:
            return self._files[path] is not None
        return path not in self._real and self.disk.is_regular(path)

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        staged = self._look(path)
        if staged.path is not None:
            return self.disk.size(staged.path)
        return len(staged.data) if staged.data is not None else staged.size_bytes

    def file_id(self, path: str) -> int:
        """Return the number of the real file; 0 for a file that is kept in memory."""
        staged = self._look(path)
        return 0 if staged.path is None else self.disk.file_id(staged.path)

    def mtime_ms(self, path: str) -> int:
        """Return when the file was last modified, in ms since 1970."""
        staged = self._look(path)
        return staged.mtime_ms if staged.path is None else self.disk.mtime_ms(staged.path)

    def read_file(self, path: str, limit: int) -> bytes:
        """Return the bytes of a small file. Raises OSError(EFBIG) if it has more than `limit` bytes."""
        staged = self._look(path)
        return bytes(staged.data or b"") if staged.path is None else self.disk.read_file(staged.path, limit)

    def total_bytes(self, path: str) -> int:
        """Return the size of the file system of `path` in bytes."""
        return self.disk.total_bytes(path)

    # ---------------------------------------------------------------------------------------------------------- changing

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        """Set when the file was last modified, in ms since 1970."""
        staged = self._own(path)
        if staged.path is None:
            staged.mtime_ms = mtime_ms
        else:
            self.disk.set_mtime_ms(staged.path, mtime_ms)

    def write_file(self, path: str, data: bytes) -> None:
        """Write a whole file."""
        self._add(self._new(path), data)

    def append(self, path: str, data: bytes | memoryview) -> None:
        """Append to a file; a missing file is created."""
        self._add(self._own(path) if self.exists(path) else self._new(path), data)

    def write_at(self, path: str, position: int, data: bytes) -> None:
        """Overwrite bytes of an existing file."""
        staged = self._own(path)
        if staged.data is not None:
            staged.data[position : position + len(data)] = data
        elif staged.path is not None:
            self.disk.write_at(staged.path, position, data)

    def truncate(self, path: str, size: int) -> None:
        """Cut or extend a file to `size` bytes."""
        if not self._look(path).is_ours and self.size(path) == size:
            return
        staged = self._own(path)
        if staged.data is not None:
            staged.data[size:] = bytes(max(0, size - len(staged.data)))
        elif staged.path is not None:
            self.disk.truncate(staged.path, size)
        else:
            staged.size_bytes = size

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing the target."""
        staged = self._look(source)
        self._drop(target)
        self._files[source] = None
        # A file of the directory that gets its own name back is not a change.
        if not staged.is_ours and staged.path == target:
            del self._files[target]
        else:
            self._files[target] = staged

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._look(path)
        self._drop(path)

    def make_directory(self, path: str) -> None:
        """Do nothing if the directory exists. Raises FileNotFoundError if it does not."""
        if not self.disk.is_directory(path):
            raise FileNotFoundError(errno.ENOENT, "No such directory", path)

    def flush(self, path: str) -> None:
        """Wait until the bytes of a file that was created here are on the device."""
        staged = self._files.get(path)
        if staged is not None and staged.is_ours and staged.path is not None:
            self.disk.flush(staged.path)

    def flush_directory(self, path: str) -> None:
        """Do nothing: `flush_made` flushes the directories."""

    def flush_made(self) -> None:
        """Wait until the bytes and names of all files that were created here are on the device."""
        for path in sorted(self._real):
            self.disk.flush(path)
        for directory in _directories(self._real):
            self.disk.flush_directory(directory)


def _directories(paths: Iterable[str]) -> list[str]:
    return sorted({parent_path(path) for path in paths})
