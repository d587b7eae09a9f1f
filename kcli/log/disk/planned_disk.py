"""A disk that reads the real one and only records changes, so that a plan can be shown before it is applied.

Code that changes files (the log loader, a repair) gets a `PlannedDisk` instead of the disk and reads from it what it has
changed so far. `changes()` compares the result with the real files; steps that undo each other, and files that are rewritten
with the same bytes, are not in it:

    kind      a file that                                                      kcli.log.disk.file_changes does
    --------  ---------------------------------------------------------------  -------------------------------------
    REMOVE    is gone                                                          gives it to the keeper
    RENAME    has another name and the same bytes (or the first of them)       renames
    TRUNCATE  ends earlier, or is the same but for zeros behind it             truncates
    REWRITE   has lost or changed some of its bytes, and keeps the others      writes a new file, replaces it
    WRITE     is new, or has other bytes altogether                            writes it

A file is a sequence of extents: bytes in memory, ranges of real files, or zeros. A file that is cut is therefore not copied.
`explain` sets the reason of a change; the last reason of a path is in its change.

OverlayDisk is the base of the two disks that keep changes apart from the files, PlannedDisk and
kcli.inspect.compacting.staged_disk.

question or change                               an overlay
-----------------------------------------------  ---------------------------------------------------------------
directories, free space, file systems, locks     asks the disk below
files: what they contain, their names            shows what was done on the overlay; each overlay has its own way
times, directories, locks that are to change     refuses them: it changes files, nothing else
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from io import UnsupportedOperation
from itertools import accumulate
from typing import Generic, NamedTuple, NoReturn, TypeVar

from kcli.format import limits
from kcli.log.disk.port import Disk, DiskFile, join_path, parent_path, zeros_follow

REMOVE = "remove"
RENAME = "rename"
TRUNCATE = "truncate"
REWRITE = "rewrite"
WRITE = "write"
DiskBelow = TypeVar("DiskBelow", bound=Disk)


class OverlayDisk(Generic[DiskBelow]):
    """What all overlays have in common; `disk` is the disk below, which is only read."""

    def __init__(self, disk: DiskBelow) -> None:
        self.disk = disk

    def is_directory(self, path: str) -> bool:
        """Return True for a directory, False for anything else or nothing."""
        return self.disk.is_directory(path)

    def free_bytes(self, path: str) -> int:
        """Return how many bytes may still be written to the file system of `path`."""
        return self.disk.free_bytes(path)

    def device(self, path: str) -> int:
        """Return a number that is equal for all paths on one file system."""
        return self.disk.device(path)

    def is_locked(self, path: str) -> bool:
        """Return True if another process holds a POSIX record lock on the file."""
        return self.disk.is_locked(path)

    def set_mtime_ms(self, path: str, mtime_ms: int) -> None:
        """Raise UnsupportedOperation, unless the overlay keeps times."""
        self._refuse(path)

    def make_directory(self, path: str) -> None:
        """Raise UnsupportedOperation, unless the overlay has directories."""
        self._refuse(path)

    def remove_directory(self, path: str) -> None:
        """Raise UnsupportedOperation."""
        self._refuse(path)

    def lock(self, path: str) -> Callable[[], None] | None:
        """Raise UnsupportedOperation: the code that changes the real files takes the lock."""
        self._refuse(path)

    def _refuse(self, path: str) -> NoReturn:
        raise UnsupportedOperation(f"{path}: an overlay changes files, nothing else")


def missing_file(path: str) -> FileNotFoundError:
    """Return the error that the operating system raises for a missing file."""
    return FileNotFoundError(errno.ENOENT, "No such file or directory", path)


class Extent(NamedTuple):
    """Bytes [start, end) of a real file (its path), of bytes in memory, or zeros (None)."""

    source: str | bytes | None
    start: int
    end: int


Content = tuple[Extent, ...]


class PlannedFile:
    """A file of a PlannedDisk, open for reading; see kcli.log.disk.port.DiskFile."""

    def __init__(self, disk: Disk, path: str, content: Content) -> None:
        self.name = path
        self._disk = disk
        self._content = content
        self._ends = list(accumulate(extent.end - extent.start for extent in content))  # the end of each extent
        self._open: dict[str, DiskFile] = {}

    def size(self) -> int:
        """Return the size in bytes."""
        return self._ends[-1] if self._ends else 0

    def _extents(self, position: int) -> Iterator[tuple[int, Extent]]:
        """Yield the start and the extent of each extent from that with byte `position` on."""
        for slot in range(bisect_right(self._ends, position), len(self._ends)):
            extent = self._content[slot]
            yield self._ends[slot] - (extent.end - extent.start), extent

    def read_into(self, position: int, buffer: memoryview) -> int:
        """Fill `buffer` from byte `position` on; return the number of bytes, fewer only at the end of the file."""
        done = 0
        for start, extent in self._extents(position):
            if done == len(buffer):
                break
            at = position + done - start + extent.start
            wanted = min(len(buffer) - done, extent.end - at)
            count = self._read_extent(extent.source, at, buffer[done : done + wanted])
            done += count
            if count < wanted:
                break
        return done

    def _read_extent(self, source: str | bytes | None, at: int, buffer: memoryview) -> int:
        if source is None:
            buffer[:] = bytes(len(buffer))
            return len(buffer)
        if isinstance(source, bytes):
            buffer[:] = source[at : at + len(buffer)]
            return len(buffer)
        return self._file(source).read_into(at, buffer)

    def read_at(self, position: int, size: int) -> bytes:
        """Return `size` bytes from byte `position` on; fewer only at the end of the file."""
        left = max(0, min(size, self.size() - position))
        first = self._content[0] if self._content else None
        if first is not None and isinstance(first.source, str) and position >= 0 and position + left <= self._ends[0]:
            return self._file(first.source).read_at(first.start + position, left)
        buffer = bytearray(left)
        count = self.read_into(position, memoryview(buffer))
        return bytes(memoryview(buffer)[:count])

    def next_data(self, position: int) -> int:
        """Return the first byte from `position` on that is not in a hole or in zeros, or the size if there is none."""
        for start, extent in self._extents(position):
            if extent.source is not None:
                if isinstance(extent.source, bytes):
                    return max(position, start)
                at = self._file(extent.source).next_data(max(position - start, 0) + extent.start)
                if at < extent.end:
                    return start + at - extent.start
        return max(position, self.size())

    def _file(self, path: str) -> DiskFile:
        file = self._open.get(path)
        if file is None:
            file = self._open[path] = self._disk.open_file(path)
        return file

    def close(self) -> None:
        """Close the real files."""
        for file in self._open.values():
            file.close()
        self._open.clear()


def content_size(content: Content) -> int:
    """Return the size in bytes of a sequence of extents."""
    return sum(extent.end - extent.start for extent in content)


def slice_content(content: Content, start: int, end: int) -> Content:
    """Return bytes [start, end) of a sequence of extents."""
    found: list[Extent] = []
    at = 0
    for extent in content:
        size = extent.end - extent.start
        first, last = max(start - at, 0), min(end - at, size)
        if first < last:
            found.append(Extent(extent.source, extent.start + first, extent.start + last))
        at += size
    return tuple(found)


def join_extents(content: Content) -> Content:
    """Join extents that are consecutive in the same file."""
    joined: list[Extent] = []
    for extent in content:
        if joined and isinstance(extent.source, str) and joined[-1].source == extent.source and joined[-1].end == extent.start:
            joined[-1] = Extent(extent.source, joined[-1].start, extent.end)
        else:
            joined.append(extent)
    return tuple(joined)


class Change(NamedTuple):
    """The change of one file. `path` is its present name, or the one that it will have where it is new.

    `size_bytes` is its size afterwards (of a removed one: before). `target` is the new name of a RENAME; a file that is
    renamed and changed has two changes, the second under its new name. `dropped` are the byte ranges of the present file
    that go with TRUNCATE, REWRITE and a WRITE that `replaces` a file. `content` is what is written.
    """

    kind: str
    path: str
    why: str
    size_bytes: int
    target: str = ""
    dropped: tuple[tuple[int, int], ...] = ()
    content: Content = ()
    replaces: bool = False


def _dropped(content: Content, source: str, real_size: int) -> list[tuple[int, int]] | None:
    """Return the byte ranges of a file that its new content drops; None if it has some twice or out of order."""
    dropped: list[tuple[int, int]] = []
    position = 0
    for extent in (*(extent for extent in content if extent.source == source), Extent(source, real_size, real_size)):
        if extent.start < position:
            return None
        if extent.start > position:
            dropped.append((position, extent.start))
        position = extent.end
    return dropped


class PlannedDisk(OverlayDisk[Disk]):
    """See the head of this module. A kcli.log.disk.port.Disk: reading shows the plan's outcome, changing changes the plan only.

    The real files must not change concurrently.
    """

    is_planned = True

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk)
        self._seen: dict[str, set[str]] = {}  # of each directory that was listed: its entries that are not files
        self._sizes: dict[str, int] = {}  # the real files in them
        self._files: dict[str, Content] = {}  # the files as planned
        self._whys: dict[str, str] = {}

    # ------------------------------------------------------------------------------------------------------ reading

    def _look(self, path: str) -> None:
        directory = parent_path(path)
        if directory in self._seen:
            return
        self._seen[directory] = set()
        if not self.disk.is_directory(directory):
            return
        for name in self.disk.list_directory(directory):
            at = join_path(directory, name)
            if self.disk.is_regular(at):
                size = self.disk.size(at)
                self._sizes[at] = size
                self._files[at] = (Extent(at, 0, size),) if size else ()
            else:
                self._seen[directory].add(name)

    def content(self, path: str) -> Content:
        """Return the extents of a file. Raises FileNotFoundError."""
        self._look(path)
        try:
            return self._files[path]
        except KeyError:
            raise missing_file(path) from None

    def open_file(self, path: str) -> PlannedFile:
        """Open for reading. Raises FileNotFoundError."""
        return PlannedFile(self.disk, path, self.content(path))

    def list_directory(self, path: str) -> list[str]:
        """Return the names in a directory, sorted."""
        inside = join_path(path, "")
        self._look(join_path(path, "."))
        names = {file[len(inside) :] for file in self._files if file.startswith(inside) and "/" not in file[len(inside) :]}
        return sorted(names | self._seen[parent_path(join_path(path, "."))])

    def exists(self, path: str) -> bool:
        """Return True if a file, directory or symbolic link has that path."""
        self._look(path)
        return path in self._files or (path not in self._sizes and self.disk.exists(path))

    def is_regular(self, path: str) -> bool:
        """Return True for a regular file."""
        self._look(path)
        return path in self._files

    def size(self, path: str) -> int:
        """Return the size of a file in bytes. Raises FileNotFoundError."""
        return content_size(self.content(path))

    def file_id(self, path: str) -> int:
        """Return the number of the real file with this name; 0 for one that is only planned."""
        return self.disk.file_id(path) if self.disk.exists(path) else 0

    def mtime_ms(self, path: str) -> int:
        """Return when the real file was last modified, in ms since 1970; 0 for one that is only planned."""
        content = self.content(path)
        source = content[0].source if content else path
        return self.disk.mtime_ms(source) if isinstance(source, str) and source in self._sizes else 0

    def read_file(self, path: str, limit: int) -> bytes:
        """Read a whole file. Raises OSError(EFBIG) if it has more than `limit` bytes."""
        size = self.size(path)
        if size > limit:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes", path)
        file = self.open_file(path)
        try:
            return file.read_at(0, size)
        finally:
            file.close()

    # ----------------------------------------------------------------------------------------------------- changing

    def explain(self, path: str, why: str) -> None:
        """Say why `path` is about to change: one sentence without a full stop; a later one takes its place."""
        self._whys[path] = why

    def put(self, path: str, content: Content) -> None:
        """Make `path` a file of these extents."""
        self._look(path)
        self._files[path] = join_extents(content)

    def write_file(self, path: str, data: bytes) -> None:
        """Make `path` a file of these bytes; as on a real disk, its temporary file is replaced."""
        self._look(path)
        self._files.pop(path + ".tmp", None)
        self.put(path, (Extent(data, 0, len(data)),) if data else ())

    def append(self, path: str, data: bytes | memoryview) -> None:
        """Append to a file, which is created if it is missing."""
        self._look(path)
        self.put(path, (*self._files.get(path, ()), Extent(bytes(data), 0, len(data))))

    def write_at(self, path: str, position: int, data: bytes) -> None:
        """Overwrite bytes of an existing file. Raises FileNotFoundError."""
        content = self.content(path)
        behind = slice_content(content, position + len(data), content_size(content))
        self.put(path, (*slice_content(content, 0, position), Extent(data, 0, len(data)), *behind))

    def restore(self, path: str) -> None:
        """Undo all changes of a file."""
        self._look(path)
        self._files.pop(path, None)
        if path in self._sizes:
            self._files[path] = (Extent(path, 0, self._sizes[path]),) if self._sizes[path] else ()

    def truncate(self, path: str, size: int) -> None:
        """Cut a file to `size` bytes, or extend it with zeros. Raises FileNotFoundError."""
        content = self.content(path)
        missing = size - content_size(content)
        if missing > 0:
            self.put(path, (*content, Extent(None, 0, missing)))
        else:
            self.put(path, slice_content(content, 0, size))

    def cut_out(self, path: str, ranges: Sequence[tuple[int, int]]) -> None:
        """Remove byte ranges [start, end), sorted, from a file. Raises FileNotFoundError."""
        content = self.content(path)
        kept: Content = ()
        position = 0
        for start, end in ranges:
            kept += slice_content(content, position, start)
            position = end
        self.put(path, kept + slice_content(content, position, content_size(content)))

    def rename(self, source: str, target: str) -> None:
        """Rename, replacing the target. Raises FileNotFoundError."""
        self.put(target, self.content(source))
        if source in self._whys:
            self._whys.setdefault(target, self._whys[source])
        del self._files[source]

    def remove(self, path: str) -> None:
        """Remove a file. Raises FileNotFoundError."""
        self.content(path)
        del self._files[path]

    def flush(self, path: str) -> None:
        """Do nothing: what is only planned needs no flush."""

    def flush_directory(self, path: str) -> None:
        """Do nothing: what is only planned needs no flush."""

    # ------------------------------------------------------------------------------------------------------ outcome

    def changes(self) -> list[Change]:
        """Return the changes of the real files, by path."""
        found: list[Change] = []
        moved: set[str] = set()
        for path in sorted(self._files):
            content = self._files[path]
            source = self._moved_from(path, content)
            if source is not None:
                moved.add(source)
                found.append(self._change(RENAME, source, self._sizes[source], why_path=path, target=path))
            found += self._changes_in_place(path, content, source or path)
        for path in sorted(set(self._sizes) - set(self._files) - moved):
            found.append(self._change(REMOVE, path, self._sizes[path]))
        # A file that a renamed one replaces is removed as well.
        for change in [change for change in found if change.kind == RENAME and change.target in self._sizes]:
            found.append(self._change(REMOVE, change.target, self._sizes[change.target]))
        return sorted(found, key=lambda change: (change.path, change.kind == RENAME))

    def _change(self, kind: str, path: str, size: int, *, why_path: str | None = None, target: str = "") -> Change:
        return Change(kind, path, self._whys.get(why_path or path, ""), size, target)

    def _moved_from(self, path: str, content: Content) -> str | None:
        """Return the real file, not at its own name any more and used here only, whose first bytes these are, or None."""
        if len(content) != 1 or not isinstance(content[0].source, str) or content[0].start != 0:
            return None
        source = content[0].source
        if source == path or source not in self._sizes or source in self._files:
            return None
        users = [at for at, used in self._files.items() if any(extent.source in (source, path) for extent in used)]
        return source if users == [path] else None

    def _changes_in_place(self, path: str, content: Content, source: str) -> list[Change]:
        """Return the changes that give the real file `source`, then named `path`, this content."""
        real_size = self._sizes.get(source)
        size = content_size(content)
        if real_size is None:
            return [self._change(WRITE, path, size)._replace(content=content)]
        if real_size == size == 0:
            # Above all .lock: a process that opens a file and closes it gives back the POSIX lock that it holds on it.
            return []
        if any(extent.source == source for extent in content) or (not content and path.endswith(".log")):
            dropped = _dropped(content, source, real_size)
            if dropped is not None:
                return self._change_of_part(path, content, size, dropped, real_size)
        elif size <= real_size and self._same_bytes(content, source):
            if size == real_size:
                return []
            if is_zeros(self.disk, source, size, real_size):
                return [self._change(TRUNCATE, path, size)._replace(dropped=((size, real_size),))]
        return [self._change(WRITE, path, size)._replace(content=content, replaces=True, dropped=((0, real_size),))]

    def _change_of_part(
        self, path: str, content: Content, size: int, dropped: list[tuple[int, int]], real_size: int
    ) -> list[Change]:
        if not dropped and size == real_size:
            return []
        kind = TRUNCATE if dropped == [(size, real_size)] else REWRITE
        return [self._change(kind, path, size)._replace(content=content, dropped=tuple(dropped))]

    def _same_bytes(self, content: Content, source: str) -> bool:
        """Return True if the real file begins with these bytes."""
        planned, real = PlannedFile(self.disk, source, content), self.disk.open_file(source)
        try:
            position, size = 0, planned.size()
            while position < size:
                wanted = min(limits.READ_CHUNK_BYTES, size - position)
                if planned.read_at(position, wanted) != real.read_at(position, wanted):
                    return False
                position += wanted
            return True
        finally:
            planned.close()
            real.close()


def is_zeros(disk: Disk, path: str, start: int, end: int) -> bool:
    """Return True if bytes [start, end) of a file are zeros, up to its end. Raises OSError."""
    file = disk.open_file(path)
    try:
        return zeros_follow(file, start, end)
    finally:
        file.close()
