"""The disk as an interface. Nothing below the shells and OsDisk (kcli.log.disk.os_disk) knows `os`.

    ===========  =====================================================================================
    interface    methods
    ===========  =====================================================================================
    `Disk`       open_file, list_directory, is_directory, exists, size, file_id, mtime_ms, set_mtime_ms,
                 read_file, write_file, append, truncate, rename, remove, make_directory, remove_directory,
                 free_bytes, device, lock, is_locked, flush, flush_directory
    `DiskFile`   name, size, read_into, read_at, next_data, close: an open file, read only
    `LogFile`    name, size, append, read_into, read_at, truncate, flush, fileno, close: an open segment of a broker
    `LogDisk`    what a broker needs in addition: open_log_file, total_bytes
    ===========  =====================================================================================

Everything in inspect/ and spark/ reads through these, so an object store or a simulated disk can take the place of the real
one. Paths are plain strings, relative or absolute, and stay as the caller typed them. Failures are OSError.
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
        """The size in bytes now; it may change while a broker writes."""

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill `buffer` from byte `position` on -> how many bytes came; fewer only at the end of the file."""

    def read_at(self, position: int, size: int) -> bytes:
        """At most `size` bytes from byte `position` on; fewer only at the end of the file."""

    def next_data(self, position: int) -> int:
        """The first byte from `position` on that is not in a hole of a sparse file, or the size where only holes follow.

        Where holes cannot be told it is `position`.
        """

    def close(self) -> None:
        """Give the file back."""


class LogFile(Protocol):
    """An open file that a broker appends to and reads from. Every method raises OSError as the system does."""

    name: str

    def size(self) -> int:
        """The size in bytes."""

    def append(self, parts: Sequence[bytes | bytearray | memoryview]) -> int:
        """Write the parts one behind the other at the end of the file, in one call of the system -> their bytes.

        Raises OSError where not all could be written; a part of them may then stand at the end of the file.
        """

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill `buffer` from byte `position` on -> how many bytes came; fewer only at the end of the file."""

    def read_at(self, position: int, size: int) -> bytes:
        """At most `size` bytes from byte `position` on; fewer only at the end of the file."""

    def truncate(self, size: int) -> None:
        """Cut or extend the file to `size` bytes; appending goes on from there."""

    def flush(self) -> None:
        """Wait until the file's bytes are on the device."""

    def fileno(self) -> int:
        """The descriptor, for sendfile; -1 where there is none, as on a simulated disk."""

    def close(self) -> None:
        """Give the file back; closing twice is no error."""


class Disk(Protocol):
    """What kcli asks of a file system. Every method raises OSError as the system does."""

    def open_file(self, path: str) -> DiskFile:
        """Open for reading."""

    def list_directory(self, path: str) -> list[str]:
        """The names in a directory, sorted."""

    def is_directory(self, path: str) -> bool:
        """True for a directory, False for anything else or nothing."""

    def exists(self, path: str) -> bool:
        """True where something has that name."""

    def is_regular(self, path: str) -> bool:
        """True for a plain file: not a directory, pipe, socket or device."""

    def size(self, path: str) -> int:
        """The size of a file in bytes."""

    def file_id(self, path: str) -> int:
        """A number that a file keeps as long as it exists; another file under its name has another. Raises OSError."""

    def mtime_ms(self, path: str) -> int:
        """When the file was last modified, in ms since 1970."""

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        """Set when the file was last modified, in ms since 1970."""

    def read_file(self, path: str, limit: int) -> bytes:
        """A small file whole. Raises OSError(EFBIG) when it has more than `limit` bytes."""

    def write_file(self, path: str, data: bytes) -> None:
        """Write a file whole and atomically: a temporary one is written, flushed and renamed."""

    def append(self, path: str, data: bytes | memoryview) -> None:
        """Append to a file, created where it is missing."""

    def write_at(self, path: str, position: int, data: bytes) -> None:
        """Overwrite bytes of an existing file."""

    def truncate(self, path: str, size: int) -> None:
        """Cut or extend a file to `size` bytes."""

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing the target."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def make_directory(self, path: str) -> None:
        """Create a directory with its parents; no error where it is."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""

    def free_bytes(self, path: str) -> int:
        """How many bytes may still be written where `path` lies."""

    def device(self, path: str) -> int:
        """A number that only paths on one file system have in common."""

    def lock(self, path: str) -> Callable[[], None] | None:
        """Take a POSIX record lock on a file, created where missing -> what gives it back, or None where another holds it."""

    def is_locked(self, path: str) -> bool:
        """True where another process holds a POSIX record lock on the file; takes and creates nothing."""

    def flush(self, path: str) -> None:
        """Wait until a file's bytes are on the device."""

    def flush_directory(self, path: str) -> None:
        """Wait until a directory's entries are on the device."""


class LogDisk(Disk, Protocol):
    """What a broker asks beyond what tools ask."""

    def open_log_file(self, path: str, *, create: bool) -> LogFile:
        """Open a segment for appending and reading. Raises OSError(ENOENT) for a missing one, unless `create`."""

    def total_bytes(self, path: str) -> int:
        """How many bytes the file system holds, free or not, where `path` lies."""


def join_path(directory: str, name: str) -> str:
    """The path of a name in a directory, as the caller typed the directory."""
    return f"{directory}{name}" if directory.endswith("/") else f"{directory}/{name}" if directory else name


def base_name(path: str) -> str:
    """The last part of a path, whatever slashes are behind it."""
    return path.rstrip("/").rpartition("/")[2] or path


def parent_path(path: str) -> str:
    """The directory that a path lies in; "." for a plain name."""
    head, slash, _ = path.rstrip("/").rpartition("/")
    return (head or slash) if slash else "."


def zeros_follow(file: DiskFile, position: int, end: int) -> bool:
    """True where bytes [position, end) are zeros, as far as the file reaches; holes are not read."""
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
