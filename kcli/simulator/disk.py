"""A disk in memory with injected faults: a kcli.log.disk.port.LogDisk that keeps flushed and unflushed bytes apart.

    fault             injected by                    effect
    ----------------  -----------------------------  -----------------------------------------------------------------
    the process dies  `kill()`                       locks and open files are gone; all written bytes survive, since
                                                     the page cache belongs to the machine
    power is lost     `lose_power(rng)`              the same, and unflushed bytes and names are randomly lost, torn or
                                                     reordered
    ... in a call     `die_in(calls)`                a later call that changes something raises SimulatedCrash before,
                                                     after or (appending) in the middle of the change, and so does
                                                     every call after it, until `kill` or `lose_power`
    the disk is full  `capacity_bytes`               ENOSPC; an append writes as many bytes as fit
    a call fails      `faults.append(Fault(...))`    an OSError; a failed flush may lose the bytes that it should flush
    another process   `lock_elsewhere(path)`         `lock` returns None, until `unlock_elsewhere`

Paths are POSIX paths without links and `..`; the working directory is the root. `now_ms` returns the time for the mtime of
changed files.

A file or directory has what readers see, what is on the device, and the changes between.

    field of a file       contents
    --------------------  -----------------------------------------------------------------------------------------
    data                  what readers see: the page cache
    durable               what is on the device
    writes                the changes since then, in order: bytes at a position, or a new size

    field of a directory  contents
    --------------------  -----------------------------------------------------------------------------------------
    entries               the names that readers see
    durable               the names on the device; the changes since then are in the journal of the disk

After a power loss each file has its durable bytes and a random part of its `writes`: none, all, the first ones with the next
one torn at a byte or at a sector, or single sectors in any order with zeros or old bytes between them. A file system may
leave such states because it does not order the writes of a program that does not flush.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import NamedTuple, NoReturn

from kcli.simulator.faults import Fault, SimulatedCrash, raise_error

SECTOR_BYTES = 512


class Write(NamedTuple):
    """Bytes that were written at a position."""

    position: int
    data: bytes


class Resize(NamedTuple):
    """A file that was cut or extended."""

    size: int


def _put(content: bytearray, position: int, data: bytes | memoryview) -> None:
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _apply(content: bytearray, write: Write | Resize) -> None:
    if isinstance(write, Write):
        _put(content, write.position, write.data)
    else:
        _resize(content, write.size)


class StoredFile:
    """A file."""

    __slots__ = ("data", "durable", "mtime_ms", "writes")

    def __init__(self, mtime_ms: int) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.writes: list[Write | Resize] = []
        self.mtime_ms = mtime_ms

    def write(self, position: int, data: bytes) -> None:
        """Write bytes at a position; a gap after the end of the file is filled with zeros."""
        _put(self.data, position, data)
        self.writes.append(Write(position, data))

    def resize(self, size: int) -> None:
        """Cut the file, or extend it with zeros."""
        _resize(self.data, size)
        self.writes.append(Resize(size))

    def flush(self) -> None:
        """Bring all writes to the device."""
        for write in self.writes:
            _apply(self.durable, write)
        self.writes.clear()

    def fail_flush(self, rng: Random) -> bool:
        """Fail a flush: readers see all bytes, but some will never reach the device. Return True if any are lost.

        This is the behaviour of Linux: the pages are marked clean, and the next fsync succeeds without them.
        """
        kept = [write for write in self.writes if rng.random() < 0.5]
        lost, self.writes = len(kept) < len(self.writes), kept
        return lost

    def lose_power(self, rng: Random) -> None:
        """Keep what is on the device, and a random part of the other writes."""
        if self.writes:
            self._keep_some(rng)
        self.writes.clear()
        self.data = bytearray(self.durable)

    def _keep_some(self, rng: Random) -> None:
        outcome = rng.randrange(8)
        if outcome < 2:
            return
        if outcome < 4:
            self.flush()
        elif outcome < 6:
            self._keep_first(rng)
        else:
            self._keep_sectors(rng)

    def _keep_first(self, rng: Random) -> None:
        """Keep the first writes, and a part of the next one."""
        count = rng.randrange(len(self.writes))
        for write in self.writes[:count]:
            _apply(self.durable, write)
        torn = self.writes[count]
        if isinstance(torn, Write) and torn.data:
            end = torn.position + rng.randrange(len(torn.data))
            if rng.random() < 0.5:
                end -= end % SECTOR_BYTES
            if end > torn.position:
                _put(self.durable, torn.position, torn.data[: end - torn.position])

    def _keep_sectors(self, rng: Random) -> None:
        """Keep random sectors of all writes; the file may have its new size, with zeros instead of the missing bytes."""
        for write in self.writes:
            if isinstance(write, Resize):
                if rng.random() < 0.5:
                    _resize(self.durable, write.size)
                continue
            at, end = write.position, write.position + len(write.data)
            while at < end:
                sector_end = min(end, at - at % SECTOR_BYTES + SECTOR_BYTES)
                if rng.random() < 0.5:
                    _put(self.durable, at, write.data[at - write.position : sector_end - write.position])
                at = sector_end
        if rng.random() < 0.5 and len(self.data) > len(self.durable):
            _resize(self.durable, len(self.data))


class StoredDirectory:
    """A directory."""

    __slots__ = ("durable", "entries", "mtime_ms")

    def __init__(self, mtime_ms: int) -> None:
        self.entries: dict[str, StoredFile | StoredDirectory] = {}
        self.durable: dict[str, StoredFile | StoredDirectory] = {}
        self.mtime_ms = mtime_ms

    def files(self) -> list[StoredFile]:
        """Return all files in it and below it, in the order of their names."""
        found = []
        for _, stored in sorted(self.entries.items()):
            found += [stored] if isinstance(stored, StoredFile) else stored.files()
        return found


Stored = StoredFile | StoredDirectory


class Edit(NamedTuple):
    """A name that is added to a directory, or removed from it (`stored` is None)."""

    directory: StoredDirectory
    name: str
    stored: Stored | None

    def apply_to_device(self) -> None:
        """Make the change durable."""
        if self.stored is None:
            self.directory.durable.pop(self.name, None)
        else:
            self.directory.durable[self.name] = self.stored


class Journal:
    """The changes of names that are not on the device yet; the edits of one change, such as a rename, are atomic."""

    def __init__(self) -> None:
        self.changes: list[tuple[Edit, ...]] = []

    def add(self, *edits: Edit) -> None:
        """Change names for readers, and record the change."""
        for edit in edits:
            if edit.stored is None:
                del edit.directory.entries[edit.name]
            else:
                edit.directory.entries[edit.name] = edit.stored
        self.changes.append(edits)

    def flush(self, directory: StoredDirectory) -> None:
        """Bring the changes of a directory to the device, and those of other directories that a rename connects with it."""
        wanted = {id(directory)}
        taken = set()
        for number in range(len(self.changes) - 1, -1, -1):
            touched = {id(edit.directory) for edit in self.changes[number]}
            if touched & wanted:
                wanted |= touched
                taken.add(number)
        for number in sorted(taken):
            for edit in self.changes[number]:
                edit.apply_to_device()
        self.changes = [change for number, change in enumerate(self.changes) if number not in taken]

    def lose_power(self, rng: Random) -> None:
        """Keep the first changes, as a journal does, or those of some directories, or none, or all."""
        outcome = rng.randrange(4)
        if outcome == 1:
            for change in self.changes[: rng.randrange(len(self.changes) + 1)]:
                for edit in change:
                    edit.apply_to_device()
        elif outcome > 1:
            for change in list(self.changes):
                if outcome == 3 or rng.random() < 0.5:
                    self.flush(change[0].directory)
        self.changes.clear()


def show_device(directory: StoredDirectory, rng: Random) -> None:
    """Show what a power loss left: the names and bytes on the device, and a random part of the other writes of each file."""
    directory.entries = dict(directory.durable)
    for _, stored in sorted(directory.entries.items()):
        if isinstance(stored, StoredDirectory):
            show_device(stored, rng)
        else:
            stored.lose_power(rng)


class SimulatedFile:
    """An open file of a simulated disk: a DiskFile and a LogFile."""

    __slots__ = ("_disk", "_generation", "_is_open", "_stored", "name")

    def __init__(self, disk: SimulatedDisk, path: str, stored: StoredFile) -> None:
        self.name = path
        self._disk = disk
        self._stored = stored
        self._generation = disk.generation
        self._is_open = True

    def _live(self, call: str) -> StoredFile:
        if self._generation != self._disk.generation:
            raise SimulatedCrash(f"{self.name} was opened by a process that is dead")
        self._disk.begin(call, self.name)
        if not self._is_open:
            raise_error(errno.EBADF, self.name)
        return self._stored

    def size(self) -> int:
        """Return the size in bytes."""
        return len(self._live("size").data)

    def append(self, parts: Sequence[bytes | bytearray | memoryview]) -> int:
        """Write the parts at the end of the file; return their bytes. Raises OSError if not all could be written."""
        data = b"".join(parts)
        stored = self._live("append")
        self._disk.write(stored, self.name, len(stored.data), data)
        return len(data)

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill `buffer` from byte `position` on; return the number of bytes read, fewer only at the end of the file."""
        data = self._live("read").data[position : position + len(buffer)]
        buffer[: len(data)] = data
        return len(data)

    def read_at(self, position: int, size: int) -> bytes:
        """Return `size` bytes from byte `position` on; fewer only at the end of the file."""
        return bytes(memoryview(self._live("read").data)[position : position + size])

    def next_data(self, position: int) -> int:
        """Return `position`, or the size if that is lower: holes are not detected."""
        size = len(self._live("read").data)
        return position if position < size else max(position, size)

    def truncate(self, size: int) -> None:
        """Cut or extend the file to `size` bytes; the next append starts there."""
        self._disk.resize(self._live("truncate"), self.name, size)

    def flush(self) -> None:
        """Wait until the file's bytes are on the device."""
        if self._generation != self._disk.generation or not self._is_open:
            self._live("flush")
        self._disk.flush_stored(self._stored, self.name)

    def fileno(self) -> int:
        """Return -1: there is no descriptor."""
        return -1

    def close(self) -> None:
        """Close the file; closing it twice is not an error."""
        self._is_open = False


class SimulatedDisk:
    """See the head of this module; a kcli.log.disk.port.LogDisk."""

    def __init__(self, rng: Random, now_ms: Callable[[], int] = lambda: 0, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.faults: list[Fault] = []
        self.generation = 0
        self.changes = 0  # the number of calls that changed something, which `die_in` counts
        self.is_dead = False
        self.power_losses = 0
        self.has_lost_writes = False  # a failed flush has lost writes, which readers may still see
        self._rng = rng
        self._now_ms = now_ms
        self._root = StoredDirectory(0)
        self._journal = Journal()
        self._dies_in: int | None = None
        self._dies_before = False
        self._locked_elsewhere: set[str] = set()

    # ------------------------------------------------------------------------------------------------ crashes and faults

    def kill(self) -> None:
        """Let the process die; what it wrote is kept, flushed or not."""
        self.generation += 1
        self.is_dead = False
        self._dies_in = None

    def lose_power(self, rng: Random) -> None:
        """Let the machine lose power: a random part of the unflushed changes is kept."""
        self.kill()
        self.power_losses += 1
        self._journal.lose_power(rng)
        show_device(self._root, rng)

    def replace(self) -> None:
        """Put an empty disk in the place of this one; the process is dead."""
        self.kill()
        self.has_lost_writes = False
        self._root, self._journal = StoredDirectory(0), Journal()

    def die_in(self, calls: int) -> None:
        """Let a call raise SimulatedCrash after `calls` more calls that change something."""
        self._dies_in = calls
        self._dies_before = self._rng.random() < 0.5

    def die_never(self) -> None:
        """Cancel `die_in`."""
        self._dies_in = None

    @contextmanager
    def without_faults(self) -> Iterator[None]:
        """Suspend all faults, so that a checker can read the disk."""
        faults, self.faults = self.faults, []
        try:
            yield
        finally:
            self.faults = faults

    def flushed_image(self) -> SimulatedDisk:
        """Return another disk with what is on the device now."""
        image = SimulatedDisk(Random(0), self._now_ms)
        image._root = _durable_copy(self._root)
        return image

    def lock_elsewhere(self, path: str) -> None:
        """Let another process take the lock on a file."""
        self._locked_elsewhere.add(_normal(path))

    def unlock_elsewhere(self, path: str) -> None:
        """Release the lock of the other process."""
        self._locked_elsewhere.discard(_normal(path))

    def begin(self, call: str, path: str) -> None:
        """Start a call. Raises SimulatedCrash if the process is dead, OSError for an injected fault."""
        if self.is_dead:
            raise SimulatedCrash(f"{call} {path}: the process is dead")
        for fault in self.faults:
            if fault.strikes(call, path):
                raise_error(fault.code, path)

    def _dies_now(self) -> bool:
        """Count a call that changes something; return True if the process dies in it."""
        self.changes += 1
        if self._dies_in is None:
            return False
        self._dies_in -= 1
        return self._dies_in < 0

    def _change(self, call: str, path: str, change: Callable[[], None]) -> None:
        self.begin(call, path)
        dies = self._dies_now()
        if not dies or not self._dies_before:
            change()
        if dies:
            self._die(call, path)

    def _die(self, call: str, path: str) -> NoReturn:
        self.is_dead = True
        raise SimulatedCrash(f"{call} {path}: the process died in it")

    def write(self, stored: StoredFile, path: str, position: int, data: bytes) -> None:
        """Write bytes to a file after `begin`. Raises OSError(ENOSPC) after the bytes that fit."""
        stored.mtime_ms = self._now_ms()
        if self._dies_now():
            stored.write(position, data[: self._rng.randrange(len(data) + 1)])
            self._die("write", path)
        if self.capacity_bytes is not None:
            free = self.free_bytes(path)
            growth = position + len(data) - len(stored.data)
            if growth > free:
                fitting = max(0, len(data) - (growth - free))
                if fitting:
                    stored.write(position, data[:fitting])
                raise_error(errno.ENOSPC, path)
        if data:
            stored.write(position, data)

    def resize(self, stored: StoredFile, path: str, size: int) -> None:
        """Cut or extend a file after `begin`. Raises OSError(EINVAL) for a negative size."""
        if size < 0:
            raise_error(errno.EINVAL, path)
        dies = self._dies_now()
        if not dies or not self._dies_before:
            stored.resize(size)
            stored.mtime_ms = self._now_ms()
        if dies:
            self._die("truncate", path)

    def flush_stored(self, stored: StoredFile, path: str) -> None:
        """Flush the bytes of a file to the device. Raises OSError for an injected fault: some bytes are then lost."""
        try:
            self._change("flush", path, stored.flush)
        except OSError:
            self.has_lost_writes |= stored.fail_flush(self._rng)
            raise

    # ------------------------------------------------------------------------------------------------------------- paths

    def _find(self, path: str) -> Stored | None:
        """Return the file or directory at a path, or None. Raises OSError(ENOTDIR) if a parent is a file."""
        at: Stored = self._root
        for name in _names(path):
            if isinstance(at, StoredFile):
                raise_error(errno.ENOTDIR, path)
            found = at.entries.get(name)
            if found is None:
                return None
            at = found
        return at

    def _get(self, path: str) -> Stored:
        found = self._find(path)
        if found is None:
            raise_error(errno.ENOENT, path)
        return found

    def _file(self, path: str) -> StoredFile:
        found = self._get(path)
        if isinstance(found, StoredDirectory):
            raise_error(errno.EISDIR, path)
        return found

    def _parent(self, path: str) -> tuple[StoredDirectory, str]:
        """Return the directory of a path, and its last name. Raises OSError if there is no such directory."""
        names = _names(path)
        parent = self._get("/".join(names[:-1]))
        if isinstance(parent, StoredFile):
            raise_error(errno.ENOTDIR, path)
        return parent, names[-1] if names else ""

    def _file_or_new(self, path: str) -> StoredFile:
        found = self._find(path)
        if found is None:
            parent, name = self._parent(path)
            stored = StoredFile(self._now_ms())
            self._change("create", path, lambda: self._journal.add(Edit(parent, name, stored)))
            return stored
        if isinstance(found, StoredDirectory):
            raise_error(errno.EISDIR, path)
        return found

    # ----------------------------------------------------------------------------------------------------------- LogDisk

    def open_file(self, path: str) -> SimulatedFile:
        """Open a file for reading."""
        self.begin("open", path)
        return SimulatedFile(self, path, self._file(path))

    def open_log_file(self, path: str, *, create: bool) -> SimulatedFile:
        """Open a segment for appending and reading. Raises OSError(ENOENT) if it is missing, unless `create`."""
        self.begin("open", path)
        return SimulatedFile(self, path, self._file_or_new(path) if create else self._file(path))

    def list_directory(self, path: str) -> list[str]:
        """Return the names in a directory, sorted. Raises OSError."""
        self.begin("list", path)
        found = self._get(path)
        if isinstance(found, StoredFile):
            raise_error(errno.ENOTDIR, path)
        return sorted(found.entries)

    def _peek(self, path: str) -> Stored | None:
        self.begin("stat", path)
        try:
            return self._find(path)
        except OSError:
            return None

    def is_directory(self, path: str) -> bool:
        """Return True for a directory, False for anything else or nothing."""
        return isinstance(self._peek(path), StoredDirectory)

    def exists(self, path: str) -> bool:
        """Return True if there is a file or directory."""
        return self._peek(path) is not None

    def is_regular(self, path: str) -> bool:
        """Return True for a file."""
        return isinstance(self._peek(path), StoredFile)

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        self.begin("stat", path)
        found = self._get(path)
        return len(found.data) if isinstance(found, StoredFile) else 0

    def file_id(self, path: str) -> int:
        """Return a number that the file keeps as long as it exists."""
        self.begin("stat", path)
        return id(self._get(path))

    def mtime_ms(self, path: str) -> int:
        """Return when the file was last modified, in ms since 1970."""
        self.begin("stat", path)
        return self._get(path).mtime_ms

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        """Set when the file was last modified, in ms since 1970."""
        self.begin("stat", path)
        self._get(path).mtime_ms = mtime_ms

    def read_file(self, path: str, limit: int) -> bytes:
        """Return the bytes of a small file. Raises OSError(EFBIG) if it has more than `limit` bytes."""
        self.begin("read", path)
        data = self._file(path).data
        if len(data) > limit:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes", path)
        return bytes(data)

    def write_file(self, path: str, data: bytes) -> None:
        """Write a whole file: a temporary one is written, flushed and renamed; a crash may happen between these steps."""
        temporary = path + ".tmp"
        self.begin("write_file", path)
        stored = self._file_or_new(temporary)
        if stored.data:
            self.resize(stored, temporary, 0)
        self.write(stored, temporary, 0, bytes(data))
        self.flush_stored(stored, temporary)
        self.rename(temporary, path)
        self.flush_directory("/".join(_names(path)[:-1]))

    def append(self, path: str, data: bytes | memoryview) -> None:
        """Append to a file; a missing file is created."""
        self.begin("append", path)
        stored = self._file_or_new(path)
        self.write(stored, path, len(stored.data), bytes(data))

    def write_at(self, path: str, position: int, data: bytes) -> None:
        """Overwrite bytes of an existing file."""
        self.begin("write_at", path)
        self.write(self._file(path), path, position, bytes(data))

    def truncate(self, path: str, size: int) -> None:
        """Cut or extend a file to `size` bytes."""
        self.begin("truncate", path)
        if size < 0:
            raise_error(errno.EINVAL, path)
        self.resize(self._file(path), path, size)

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing the target. Raises OSError as rename(2) does."""
        old_parent, old_name = self._parent(source)
        new_parent, new_name = self._parent(target)
        moved = self._get(source)
        replaced = self._find(target)
        if isinstance(moved, StoredDirectory):
            if new_parent is moved or _is_below(new_parent, moved):
                raise_error(errno.EINVAL, source)
            if isinstance(replaced, StoredFile):
                raise_error(errno.ENOTDIR, source)
            if replaced is not None and replaced is not moved and replaced.entries:
                raise_error(errno.ENOTEMPTY, source)
        elif isinstance(replaced, StoredDirectory):
            raise_error(errno.EISDIR, source)
        if replaced is moved:
            return
        edits = (Edit(old_parent, old_name, None), Edit(new_parent, new_name, moved))
        self._change("rename", source, lambda: self._journal.add(*edits))

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._file(path)
        parent, name = self._parent(path)
        self._change("remove", path, lambda: self._journal.add(Edit(parent, name, None)))

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents, if they do not exist. Raises OSError if one of them is a file."""
        self.begin("make_directory", path)
        names = _names(path)
        for count in range(1, len(names) + 1):
            at = "/".join(names[:count])
            found = self._find(at)
            if isinstance(found, StoredFile):
                raise_error(errno.EEXIST if count == len(names) else errno.ENOTDIR, path)
            if found is None:
                self._make_one(at)

    def _make_one(self, path: str) -> None:
        parent, name = self._parent(path)
        made = StoredDirectory(self._now_ms())
        self._change("create", path, lambda: self._journal.add(Edit(parent, name, made)))

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory. Raises OSError if it is a file or not empty."""
        found = self._get(path)
        if isinstance(found, StoredFile):
            raise_error(errno.ENOTDIR, path)
        if found.entries:
            raise_error(errno.ENOTEMPTY, path)
        parent, name = self._parent(path)
        self._change("remove", path, lambda: self._journal.add(Edit(parent, name, None)))

    def free_bytes(self, path: str) -> int:
        """Return the number of bytes that may still be written."""
        return (1 << 40) if self.capacity_bytes is None else max(0, self.capacity_bytes - self.used_bytes())

    def device(self, path: str) -> int:
        """Return 0: there is one file system."""
        return 0

    def total_bytes(self, path: str) -> int:
        """Return the size of the disk in bytes."""
        return (1 << 40) if self.capacity_bytes is None else self.capacity_bytes

    def used_bytes(self) -> int:
        """Return the sum of the sizes of all files."""
        return sum(len(stored.data) for stored in self._root.files())

    def lock(self, path: str) -> Callable[[], None] | None:
        """Lock a file, which is created if missing; return a function that releases it, None if another process has it."""
        self.begin("lock", path)
        self._file_or_new(path)
        return None if _normal(path) in self._locked_elsewhere else lambda: None

    def is_locked(self, path: str) -> bool:
        """Return True if another process holds a lock on the file."""
        return _normal(path) in self._locked_elsewhere

    def flush(self, path: str) -> None:
        """Wait until the bytes of a file, or the entries of a directory, are on the device."""
        found = self._get(path)
        if isinstance(found, StoredFile):
            self.flush_stored(found, path)
        else:
            directory = found
            self._change("flush_directory", path, lambda: self._journal.flush(directory))

    def flush_directory(self, path: str) -> None:
        """Wait until the entries of a directory are on the device; errors are ignored."""
        try:
            self.flush(path)
        except OSError:
            pass


def _names(path: str) -> list[str]:
    """Return the names of a path from the root on."""
    return [name for name in path.split("/") if name not in ("", ".")]


def _normal(path: str) -> str:
    return "/".join(_names(path))


def _is_below(directory: StoredDirectory, above: StoredDirectory) -> bool:
    return any(
        stored is directory or (isinstance(stored, StoredDirectory) and _is_below(directory, stored))
        for stored in above.entries.values()
    )


def _durable_copy(directory: StoredDirectory) -> StoredDirectory:
    copy = StoredDirectory(directory.mtime_ms)
    for name, stored in directory.durable.items():
        if isinstance(stored, StoredDirectory):
            copy.entries[name] = _durable_copy(stored)
        else:
            kept = StoredFile(stored.mtime_ms)
            kept.data = bytearray(stored.durable)
            copy.entries[name] = kept
    return copy
