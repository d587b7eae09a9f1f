"""The disk of the operating system: the only module below the shells that uses `os`.

Reading is strictly read-only (no lock, no created file, no access time where the system allows) and leaves the page cache
unchanged: a large file is read in windows, and the pages of a window that were not cached are dropped when the reader leaves it
or closes the file. Read-ahead is off for such files, since it would load pages outside the window.

Which pages of a window are not cached is found without changing that, by mincore(2) of a mapping that is not read.
A read that does not wait (RWF_NOWAIT) is not usable for this: on Linux 6.18 it starts to read the missing pages, and on a fast
device they arrive before the call returns, or before the next call, and look as if they had been cached.
Linux answers only if the process owns the file or may write it. Otherwise, and on other systems, every page counts as cached.

An fsync of a dirty file commits the file system's journal, which takes milliseconds. `flush_paths` flushes MANY_PATHS files and
more as follows: after one syncfs(2) they are clean, and an fsync of each, in FLUSH_THREADS threads, takes some microseconds,
because the device merges the barriers of several. The fsyncs remain necessary: syncfs does not report all errors. The order of
the paths has no meaning then; nor has it for a file system that writes back by itself.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import stat
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from kcli.log.disk.port import DiskFile

# Smaller files are read through the page cache.
CACHE_NEUTRAL_FILE_BYTES = 32 * 1024 * 1024
# Finding the cached pages and dropping the others takes as long as some small reads, so it is done for a window at once.
WINDOW_BYTES = 256 * 1024
# The window of a sequential reader.
AHEAD_BYTES = 4 * 1024 * 1024
MANY_PATHS = 64
FLUSH_THREADS = 16
# The windows of a reader that goes back and forth, as the search after damage does.
MAX_WINDOWS = 24
# Reads of this size need no check of the file's size, which only limits the memory that they allocate.
SMALL_READ_BYTES = 64 * 1024


class _Descriptor:
    """A descriptor of the operating system; it is closed with the last reference at the latest."""

    _fd = -1

    def size(self) -> int:
        """Return the size in bytes now."""
        return os.fstat(self._fd).st_size

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill `buffer` from byte `position` on; return the number of bytes, fewer only at the end of the file."""
        done = 0
        while done < len(buffer):
            count = os.preadv(self._fd, [buffer[done:]], position + done)
            if count == 0:
                break
            done += count
        return done

    def close(self) -> None:
        """Close the file; closing twice is not an error."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    __del__ = close


class OsFile(_Descriptor):
    """An open file of the operating system; see DiskFile."""

    def __init__(self, path: str) -> None:
        self.name = path
        self._window = (0, 0)  # the current one
        # The ranges of each window that were not cached before; the current window is the last one.
        self._windows: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self._fd = _open_read_only(path)
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            code = errno.EISDIR if stat.S_ISDIR(status.st_mode) else errno.EINVAL
            raise OSError(code, os.strerror(code) if code == errno.EISDIR else "Not a regular file", path)
        self._cache_neutral = status.st_size >= CACHE_NEUTRAL_FILE_BYTES and hasattr(os, "posix_fadvise")
        if self._cache_neutral:
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill `buffer` from byte `position` on; return the number of bytes, fewer only at the end of the file."""
        if self._cache_neutral and not (self._window[0] <= position and position + len(buffer) <= self._window[1]):
            self._move_window(position, position + len(buffer))
        return super().read_into(position, buffer)

    def _move_window(self, start: int, end: int) -> None:
        kept = next((window for window in self._windows if window[0] <= start and end <= window[1]), None)
        if kept is None:
            if self._window[0] <= start <= self._window[1] < end:  # a sequential reader does not return
                end = max(end, start + AHEAD_BYTES)
                self._drop_uncached(self._window)
            elif len(self._windows) == MAX_WINDOWS:
                self._drop_uncached(next(iter(self._windows)))
            kept = (start - start % WINDOW_BYTES, end + -end % WINDOW_BYTES)
            found: list[tuple[int, int]] = []
            with suppress(OSError, ValueError):  # a file system without mappings, or a file that was truncated concurrently
                found = uncached_ranges(self._fd, kept[0], min(kept[1], self.size()))
            # What another window has read is cached now, and was not before.
            ranges = (one for others in self._windows.values() for one in others)
            found += [(max(first, kept[0]), min(last, kept[1])) for first, last in ranges if first < kept[1] and kept[0] < last]
        else:
            found = self._windows.pop(kept)
        self._windows[kept] = found
        self._window = kept

    def _drop_uncached(self, window: tuple[int, int]) -> None:
        for start, end in self._windows.pop(window, []):
            os.posix_fadvise(self._fd, start, end - start, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the file; closing twice is not an error."""
        if self._fd >= 0:
            for window in list(self._windows):
                self._drop_uncached(window)
        super().close()

    __del__ = close

    def read_at(self, position: int, size: int) -> bytes:
        """Return `size` bytes from byte `position` on; fewer only at the end of the file."""
        if 0 <= size <= SMALL_READ_BYTES and position >= 0:
            if self._cache_neutral and not (self._window[0] <= position and position + size <= self._window[1]):
                self._move_window(position, position + size)
            return os.pread(self._fd, size, position)
        buffer = bytearray(max(0, min(size, self.size() - position)))
        count = self.read_into(position, memoryview(buffer))
        return bytes(memoryview(buffer)[:count])

    def next_data(self, position: int) -> int:
        """Return the first byte from `position` on that is not in a hole of a sparse file, or the size if there is none."""
        if not hasattr(os, "SEEK_DATA"):
            return position
        try:
            return os.lseek(self._fd, position, os.SEEK_DATA)
        except OSError as error:
            return max(position, self.size()) if error.errno == errno.ENXIO else position


class OsLogFile(_Descriptor):
    """An open file of the operating system, for appending and reading; see LogFile."""

    def __init__(self, path: str, *, create: bool) -> None:
        self.name = path
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o644)

    def append(self, parts: Sequence[bytes | bytearray | memoryview]) -> int:
        """Append the parts; return the number of bytes. Raises OSError, with the file's name, if not all could be written."""
        total = sum(map(len, parts))
        try:
            written = os.writev(self._fd, parts)
            if written != total:
                for part in parts:
                    if written < len(part):
                        _write_all(self._fd, memoryview(part)[written:])
                    written = max(0, written - len(part))
        except OSError as error:
            _name_file(error, self.name)
            raise
        return total

    def read_at(self, position: int, size: int) -> bytes:
        """Return `size` bytes from byte `position` on; fewer only at the end of the file."""
        return os.pread(self._fd, size, position)

    def truncate(self, size: int) -> None:
        """Cut or extend the file to `size` bytes; appending continues from there."""
        os.ftruncate(self._fd, size)

    def flush(self) -> None:
        """Wait until the file's bytes are on the device."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            _name_file(error, self.name)
            raise

    def fileno(self) -> int:
        """Return the descriptor, for sendfile."""
        return self._fd


def _open_read_only(path: str) -> int:
    # O_NONBLOCK: a pipe in a log directory must not hang the tool. O_NOATIME is refused for other people's files.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
    try:
        return os.open(path, flags | getattr(os, "O_NOATIME", 0))
    except PermissionError:
        try:
            return os.open(path, flags)
        except PermissionError as error:
            raise _explained(error, "read") from None
    except FileNotFoundError:
        raise _missing(path) from None


def _missing(path: str) -> OSError:
    """Return the error for a path without a file; a symbolic link exists even if its target is missing."""
    if os.path.islink(path):
        return OSError(errno.ELOOP, "it is a symbolic link to a file that does not exist", path)
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _explained(error: PermissionError, what: str) -> PermissionError:
    """Return the error with the user who may not do `what` with which path, the owner of that path, and what to do.

    The path is the first directory that the user may not search, or the parent of a file that does not exist yet.
    """
    if error.errno != errno.EACCES:
        return error
    path = os.path.abspath(error.filename)
    parts = path.split("/")
    parents = ["/".join(parts[:count]) or "/" for count in range(1, len(parts))]
    closed = next((at for at in parents if not os.access(at, os.X_OK, effective_ids=True)), None)
    if closed is not None:
        path, what = closed, "search"
    elif not os.path.lexists(path):
        path = parents[-1]
    try:
        status = os.stat(path)
    except OSError:
        return error
    user, owner = _user_name(os.geteuid()), _user_name(status.st_uid)
    advice = "change its mode" if user == owner else f"run kcli as user {owner}, or use a copy that belongs to {user}"
    mode = stat.filemode(status.st_mode)
    text = f"{error.strerror}: user {user} may not {what} {path}, which belongs to {owner} ({mode}); {advice}"
    return PermissionError(error.errno, text, error.filename)


def _user_name(user_id: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return str(user_id)


class OsDisk:
    """The file system of the machine; see Disk."""

    def open_file(self, path: str) -> DiskFile:
        """Open for reading."""
        return OsFile(path)

    def open_log_file(self, path: str, *, create: bool) -> OsLogFile:
        """Open a segment for appending and reading. Raises OSError(ENOENT) for a missing one, unless `create`."""
        return OsLogFile(path, create=create)

    def list_directory(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        try:
            return sorted(os.listdir(path))
        except PermissionError as error:
            raise _explained(error, "read") from None

    def is_directory(self, path: str) -> bool:
        """Return True for a directory."""
        return os.path.isdir(path)

    def exists(self, path: str) -> bool:
        """Return True if a file, directory or symbolic link has that path."""
        return os.path.lexists(path)

    def is_regular(self, path: str) -> bool:
        """Return True for a regular file: not a directory, pipe, socket or device."""
        return os.path.isfile(path)

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            raise _missing(path) from None
        except PermissionError as error:
            raise _explained(error, "read") from None

    def file_id(self, path: str) -> int:
        """Return the file's inode number."""
        return os.stat(path).st_ino

    def mtime_ms(self, path: str) -> int:
        """Return when the file was last modified, in ms since 1970."""
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        """Set when the file was last modified, in ms since 1970; the time of access stays."""
        os.utime(path, ns=(os.stat(path).st_atime_ns, mtime_ms * 1_000_000))

    def read_file(self, path: str, limit: int) -> bytes:
        """Read a whole file. Raises OSError(EFBIG) if it has more than `limit` bytes."""
        file = OsFile(path)
        try:
            size = file.size()
            if size > limit:
                raise OSError(errno.EFBIG, f"larger than {limit} bytes", path)
            return file.read_at(0, size)
        finally:
            file.close()

    def write_file(self, path: str, data: bytes) -> None:
        """Write a whole file atomically: a temporary one is written, flushed and renamed; after an error it is removed."""
        temporary = path + ".tmp"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            try:
                _write_all(fd, data)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(temporary, path)
        except BaseException as error:
            _name_file(error, path)
            with suppress(OSError):
                os.remove(temporary)
            raise
        self.flush_directory(os.path.dirname(path) or ".")

    def append(self, path: str, data: bytes | memoryview) -> None:
        """Append to a file, which is created if it is missing."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            _write_all(fd, data)
        except OSError as error:
            _name_file(error, path)
            raise
        finally:
            os.close(fd)

    def write_at(self, path: str, position: int, data: bytes) -> None:
        """Overwrite bytes of an existing file."""
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.lseek(fd, position, os.SEEK_SET)
            _write_all(fd, data)
        except OSError as error:
            _name_file(error, path)
            raise
        finally:
            os.close(fd)

    def truncate(self, path: str, size: int) -> None:
        """Cut or extend a file to `size` bytes."""
        os.truncate(path, size)

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing the target."""
        os.replace(source, target)

    def remove(self, path: str) -> None:
        """Remove a file."""
        os.remove(path)

    def make_directory(self, path: str) -> None:
        """Create a directory with its parents, if it does not exist."""
        try:
            try:
                os.mkdir(path)  # most often its parent exists
            except FileExistsError:
                if not os.path.isdir(path):
                    raise
            except FileNotFoundError:
                os.makedirs(path, exist_ok=True)
        except PermissionError as error:
            raise _explained(error, "write to") from None

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        os.rmdir(path)

    def free_bytes(self, path: str) -> int:
        """Return how many bytes an unprivileged process may still write to the file system of `path`."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def device(self, path: str) -> int:
        """Return a number that is equal for all paths on one file system."""
        return os.stat(path).st_dev

    def total_bytes(self, path: str) -> int:
        """Return the size in bytes of the file system of `path`."""
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize

    def lock(self, path: str) -> Callable[[], None] | None:
        """Take a POSIX record lock on a file, created if missing; return its release, None if another process has it.

        It is the lock of Java's FileChannel.tryLock: lockf, which flock does not see. The file itself stays, as a
        broker's does.
        """
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except PermissionError as error:
            raise _explained(error, "write to") from None
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(fd)
            return None
        return lambda: os.close(fd)

    def is_locked(self, path: str) -> bool:
        """Return True if another process holds a POSIX record lock on the file; takes and creates nothing."""
        import struct

        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            # struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid.
            layout = struct.Struct("hhqqi4x")
            asked = layout.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            return bool(layout.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))[0] != fcntl.F_UNLCK)
        except OSError:
            return False
        finally:
            os.close(fd)

    def flush(self, path: str) -> None:
        """Wait until a file's bytes are on the device."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            _name_file(error, path)
            raise
        finally:
            os.close(fd)

    def flush_directory(self, path: str) -> None:
        """Wait until a directory's entries are on the device; no error if the system cannot flush directories."""
        with suppress(OSError):
            self.flush(path)


def flush_paths(paths: Sequence[str]) -> OSError | None:
    """Flush files and directories with fsync; return an error, None if there is none.

    Fewer than MANY_PATHS are flushed in their order. The error is then that of the first that fails, and the paths after it
    are not flushed: an active segment must not be durable before the rolled one that it follows. Of several errors of many
    paths, one of a device is returned before one of a missing file.
    """
    if len(paths) < MANY_PATHS:
        return _flush_in_order(paths)
    from concurrent.futures import ThreadPoolExecutor  # a command does not need it

    _write_back_file_system(paths[0])
    share = -(-len(paths) // FLUSH_THREADS)
    with ThreadPoolExecutor(FLUSH_THREADS, "kcli-flush") as threads:
        results = threads.map(_flush_in_order, (paths[first : first + share] for first in range(0, len(paths), share)))
        errors = [error for error in results if error is not None]
    return min(errors, key=lambda error: isinstance(error, FileNotFoundError), default=None)


def _flush_in_order(paths: Sequence[str]) -> OSError | None:
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            _name_file(error, path)
            return error
    return None


def _write_back_file_system(path: str) -> None:
    """Write back all dirty pages of the file system of `path`, if the system supports this; errors are those of the fsyncs."""
    import ctypes

    syncfs = getattr(ctypes.CDLL(None), "syncfs", None)
    if syncfs is None:
        return
    with suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            syncfs(fd)
        finally:
            os.close(fd)


def _name_file(error: BaseException, path: str) -> None:
    """Give an error of a descriptor (no space, a limit of sizes) the name of its file, so that a message can name it."""
    if isinstance(error, OSError) and error.filename is None:
        error.filename = path


def _write_all(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


@functools.cache
def _mincore() -> Any:
    import ctypes  # 5 ms, which only large files need

    # On other systems the byte of a page has more bits than that for being resident.
    return getattr(ctypes.CDLL(None), "mincore", None) if sys.platform == "linux" else None


def uncached_ranges(descriptor: int, start: int, end: int) -> list[tuple[int, int]]:
    """Return the ranges [start, end) of whole pages with bytes between `start` and `end` that are not cached.

    `end` is at most the file's size. Raises OSError or ValueError if the file cannot be mapped up to there.
    """
    import ctypes
    import mmap

    mincore = _mincore()
    start -= start % mmap.PAGESIZE
    pages = -(-(end - start) // mmap.PAGESIZE)
    if mincore is None or pages <= 0:
        return []
    resident = ctypes.create_string_buffer(pages)
    # Private and writable because ctypes returns the address only of writable buffers; no page is touched.
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    with mmap.mmap(descriptor, end - start, flags=mmap.MAP_PRIVATE, prot=protection, offset=start) as view:
        if mincore(ctypes.byref(ctypes.c_char.from_buffer(view)), ctypes.c_size_t(end - start), resident) != 0:
            return []
    found, states = [], resident.raw
    page = states.find(0)
    while page >= 0:
        behind = states.find(1, page)
        behind = pages if behind < 0 else behind
        found.append((start + page * mmap.PAGESIZE, start + behind * mmap.PAGESIZE))
        page = states.find(0, behind)
    return found
