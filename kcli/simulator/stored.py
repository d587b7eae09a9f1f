"""Files and directories of a simulated disk: what a reader sees, what is on the device, and what lies between.

    kept of a file       what it is
    -------------------  ------------------------------------------------------------------------------------------
    data                 what a reader sees: the page cache
    durable              what is on the device
    writes               what was done since, in its order: bytes at a place, or a new size

    kept of a directory  what it is
    -------------------  ------------------------------------------------------------------------------------------
    entries              the names that are seen
    durable              the names on the device; what was done since stands in the disk's journal

A power loss gives each file what is durable and, as the dice have it, some of its `writes`: none, all, the first of them
with the next torn at a byte or at a sector, or single sectors in any order with zeros or old bytes between them. That is
what a file system may leave that orders nothing for a program that does not flush.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

SECTOR_BYTES = 512


class Write(NamedTuple):
    """Bytes that were written at a place."""

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
    """A file, linked or not."""

    __slots__ = ("data", "durable", "links", "mtime_ms", "writes")

    def __init__(self, mtime_ms: int) -> None:
        self.data = bytearray()
        self.durable = bytearray()
        self.writes: list[Write | Resize] = []
        self.mtime_ms = mtime_ms
        self.links = 0

    def write(self, position: int, data: bytes) -> None:
        """Put bytes at a place, with zeros before it where the file is shorter."""
        _put(self.data, position, data)
        self.writes.append(Write(position, data))

    def resize(self, size: int) -> None:
        """Cut or extend with zeros."""
        _resize(self.data, size)
        self.writes.append(Resize(size))

    def flush(self) -> None:
        """Bring all that was written to the device."""
        for write in self.writes:
            _apply(self.durable, write)
        self.writes.clear()

    def fail_flush(self, rng: Random) -> bool:
        """A flush that failed: what it should have written is seen on, but some of it will never reach the device.

        So Linux has it: the pages are marked clean, and the next fsync succeeds without them. -> whether anything is lost.
        """
        kept = [write for write in self.writes if rng.random() < 0.5]
        lost, self.writes = len(kept) < len(self.writes), kept
        return lost

    def lose_power(self, rng: Random) -> None:
        """Keep what is on the device and what the dice add to it."""
        if self.writes:
            self._keep_some(rng)
        self.writes.clear()
        self.data = bytearray(self.durable)

    def _keep_some(self, rng: Random) -> None:
        fate = rng.randrange(8)
        if fate < 2:
            return
        if fate < 4:
            self.flush()
        elif fate < 6:
            self._keep_first(rng)
        else:
            self._keep_sectors(rng)

    def _keep_first(self, rng: Random) -> None:
        """The first writes, and the next one torn."""
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
        """Any sectors of any write; the size may be the new one with zeros where bytes are missing."""
        for write in self.writes:
            if isinstance(write, Resize):
                if rng.random() < 0.5:
                    _resize(self.durable, write.size)
                continue
            at, end = write.position, write.position + len(write.data)
            while at < end:
                behind = min(end, at - at % SECTOR_BYTES + SECTOR_BYTES)
                if rng.random() < 0.5:
                    _put(self.durable, at, write.data[at - write.position : behind - write.position])
                at = behind
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
        """All files in it and below it, in the order of their names."""
        found = []
        for _, stored in sorted(self.entries.items()):
            found += [stored] if isinstance(stored, StoredFile) else stored.files()
        return found


Stored = StoredFile | StoredDirectory


class Edit(NamedTuple):
    """A name that a directory gets, or loses (None)."""

    directory: StoredDirectory
    name: str
    stored: Stored | None

    def apply_to_device(self) -> None:
        """Make it durable."""
        if self.stored is None:
            self.directory.durable.pop(self.name, None)
        else:
            self.directory.durable[self.name] = self.stored


class Journal:
    """The changes of names that are not on the device yet; each is one edit, or those of a rename, which is whole or not."""

    def __init__(self) -> None:
        self.changes: list[tuple[Edit, ...]] = []

    def add(self, *edits: Edit) -> None:
        """Change names in what is seen, and remember it."""
        for edit in edits:
            if edit.stored is None:
                del edit.directory.entries[edit.name]
            else:
                edit.directory.entries[edit.name] = edit.stored
        self.changes.append(edits)

    def flush(self, directory: StoredDirectory) -> None:
        """Bring a directory's changes to the device, and those of others that a rename ties to them."""
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
        fate = rng.randrange(4)
        if fate == 1:
            for change in self.changes[: rng.randrange(len(self.changes) + 1)]:
                for edit in change:
                    edit.apply_to_device()
        elif fate > 1:
            for change in list(self.changes):
                if fate == 3 or rng.random() < 0.5:
                    self.flush(change[0].directory)
        self.changes.clear()


def see_the_device(directory: StoredDirectory, rng: Random | None) -> None:
    """After a power loss: names and bytes are those of the device, and what the dice add (None: nothing)."""
    directory.entries = dict(directory.durable)
    for _, stored in sorted(directory.entries.items()):
        if isinstance(stored, StoredDirectory):
            see_the_device(stored, rng)
        elif rng is not None:
            stored.lose_power(rng)
            stored.links = 1
