"""A planned file: a sequence of extents that is read like a file on the disk.

An extent is bytes in memory, a range of a real file, or zeros. A file that loses bytes in its middle is therefore not copied to
read the result.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

from kcli.log.disk.port import Disk, DiskFile


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
        buffer = bytearray(max(0, min(size, self.size() - position)))
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
