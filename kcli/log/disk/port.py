"""The interfaces of disks. Only the shells and OsDisk (kcli.log.disk.os_disk) use `os`.

    ===========  =====================================================================================
    interface    methods
    ===========  =====================================================================================
    `Disk`       open_file, list_directory, is_directory, exists, size, file_id, mtime_ms, set_mtime_ms,
                 read_file, write_file, append, truncate, rename, remove, make_directory, remove_directory,
                 free_bytes, device, lock, is_locked, flush, flush_directory
    `DiskFile`   name, size, read_into, read_at, next_data, close: an open file, read only
    `LogFile`    name, size, append, read_into, read_at, truncate, flush, fileno, close: an open segment of a broker
    `LogDisk`    a `Disk` for a broker, with open_log_file and total_bytes
    ===========  =====================================================================================

inspect/ and spark/ read only through these, so that an object store or a simulated disk can replace the real one. Paths are
strings, relative or absolute, and are not normalised. Every failure is an OSError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kcli.format import limits

_FIRST_READ_BYTES = 4 * 1024


class DiskFile(Protocol):
    """An open file, for reading."""

    name: str

    def size(self) -> int:
        """Return the size in bytes now; it may change while a broker writes."""

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill `buffer` from byte `position` on; return the number of bytes, fewer only at the end of the file."""

    def read_at(self, position: int, size: int) -> bytes:
        """Return `size` bytes from byte `position` on; fewer only at the end of the file."""

    def next_data(self, position: int) -> int:
        """Return the first byte from `position` on that is not in a hole of a sparse file, or the size if there is none.

        If the disk cannot find holes it is `position`.
        """

    def close(self) -> None:
        """Close the file."""


class LogFile(Protocol):
    """An open file that a broker appends to and reads from. Every method raises OSError."""

    name: str

    def size(self) -> int:
        """Return the size in bytes."""

    def append(self, parts: Sequence[bytes | bytearray | memoryview]) -> int:
        """Write the parts to the end of the file in one system call; return the number of bytes.

        Raises OSError if not all could be written; some of them may then be at the end of the file.
        """

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill `buffer` from byte `position` on; return the number of bytes, fewer only at the end of the file."""

    def read_at(self, position: int, size: int) -> bytes:
        """Return `size` bytes from byte `position` on; fewer only at the end of the file."""

    def truncate(self, size: int) -> None:
        """Cut or extend the file to `size` bytes; appending continues from there."""

    def flush(self) -> None:
        """Wait until the file's bytes are on the device."""

    def fileno(self) -> int:
        """Return the descriptor, for sendfile; -1 if there is none, as on a simulated disk."""

    def close(self) -> None:
        """Close the file; closing twice is not an error."""


class Disk(Protocol):
    """A file system. Every method raises OSError."""

    def open_file(self, path: str) -> DiskFile:
        """Open for reading."""

    def list_directory(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""

    def is_directory(self, path: str) -> bool:
        """Return True for a directory."""

    def exists(self, path: str) -> bool:
        """Return True if a file, directory or symbolic link has that path."""

    def is_regular(self, path: str) -> bool:
        """Return True for a regular file: not a directory, pipe, socket or device."""

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""

    def file_id(self, path: str) -> int:
        """Return a number that identifies a file; a new file with the same name has another number."""

    def mtime_ms(self, path: str) -> int:
        """Return when the file was last modified, in ms since 1970."""

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        """Set when the file was last modified, in ms since 1970."""

    def read_file(self, path: str, limit: int) -> bytes:
        """Read a whole file. Raises OSError(EFBIG) if it has more than `limit` bytes."""

    def write_file(self, path: str, data: bytes) -> None:
        """Write a whole file atomically: a temporary one is written, flushed and renamed."""

    def append(self, path: str, data: bytes | memoryview) -> None:
        """Append to a file, which is created if it is missing."""

    def write_at(self, path: str, position: int, data: bytes) -> None:
        """Overwrite bytes of an existing file."""

    def truncate(self, path: str, size: int) -> None:
        """Cut or extend a file to `size` bytes."""

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing the target."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def make_directory(self, path: str) -> None:
        """Create a directory with its parents, if it does not exist."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""

    def free_bytes(self, path: str) -> int:
        """Return how many bytes may still be written to the file system of `path`."""

    def device(self, path: str) -> int:
        """Return a number that is equal for all paths on one file system."""

    def lock(self, path: str) -> Callable[[], None] | None:
        """Take a POSIX record lock on a file, created if missing; return its release, None if another process has it."""

    def is_locked(self, path: str) -> bool:
        """Return True if another process holds a POSIX record lock on the file; takes and creates nothing."""

    def flush(self, path: str) -> None:
        """Wait until a file's bytes are on the device."""

    def flush_directory(self, path: str) -> None:
        """Wait until a directory's entries are on the device."""


class LogDisk(Disk, Protocol):
    """A file system for a broker."""

    def open_log_file(self, path: str, *, create: bool) -> LogFile:
        """Open a segment for appending and reading. Raises OSError(ENOENT) for a missing one, unless `create`."""

    def total_bytes(self, path: str) -> int:
        """Return the size in bytes of the file system of `path`."""


def join_path(directory: str, name: str) -> str:
    """Return the path of a name in a directory, which is not normalised."""
    return f"{directory}{name}" if directory.endswith("/") else f"{directory}/{name}" if directory else name


def base_name(path: str) -> str:
    """Return the last part of a path, ignoring trailing slashes."""
    return path.rstrip("/").rpartition("/")[2] or path


def parent_path(path: str) -> str:
    """Return the parent directory of a path; "." for a name without slashes."""
    head, slash, _ = path.rstrip("/").rpartition("/")
    return (head or slash) if slash else "."


def zeros_follow(file: DiskFile, position: int, end: int) -> bool:
    """Return True if bytes [position, end) are zeros, up to the end of the file; holes are not read."""
    wanted = _FIRST_READ_BYTES
    while (position := file.next_data(position)) < end:
        chunk = file.read_at(position, min(wanted, end - position))
        if chunk.count(0) != len(chunk):
            return False
        if not chunk:
            return True
        position += len(chunk)
        wanted = min(2 * wanted, limits.READ_CHUNK_BYTES)
    return True
