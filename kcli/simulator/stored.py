"""Files and directories of a simulated disk: what readers see, what is on the device, and the changes between.

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

from random import Random
from typing import NamedTuple

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
