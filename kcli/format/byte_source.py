"""Bytes taken front to back, out of one buffer or out of chunks that are asked for as they are needed.

Inflating reads through this: a small batch is in memory whole, a large one comes in the chunks that its file is read in.
Holds one chunk. A read returns a view of it; bytes that span two chunks are copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kcli.format.primitives import Buffer, InflationError


class ByteSource:
    """Compressed bytes, read front to back from one buffer or from chunks."""

    __slots__ = ("_chunks", "_position", "_view")

    def __init__(self, data: Buffer | Iterable[Buffer]) -> None:
        try:
            self._view = memoryview(data)  # type: ignore[arg-type]
            self._chunks: Iterator[Buffer] = iter(())
        except TypeError:
            self._view = memoryview(b"")
            self._chunks = iter(data)  # type: ignore[arg-type]
        self._position = 0

    def _fill(self, count: int) -> bool:
        """Collect `count` bytes behind the position; False if fewer are left."""
        missing = count - (len(self._view) - self._position)
        if missing <= 0:
            return True
        pieces: list[Buffer] = [self._view[self._position :]]
        for chunk in self._chunks:
            pieces.append(chunk)
            missing -= len(chunk)
            if missing <= 0:
                break
        self._view = memoryview(b"".join(pieces))
        self._position = 0
        return missing <= 0

    def peek(self, count: int) -> memoryview:
        """Return the next `count` bytes, fewer at the end, without taking them."""
        self._fill(count)
        return self._view[self._position : self._position + count]

    def take(self, count: int) -> memoryview:
        """Take the next `count` bytes. Raises InflationError if there are fewer."""
        if not self._fill(count):
            raise InflationError("the compressed bytes end early")
        start = self._position
        self._position = start + count
        return self._view[start : start + count]

    def take_some(self, at_most: int) -> memoryview:
        """Return the next bytes without joining chunks: 1 to `at_most`, or none at the end."""
        self._fill(1)
        start = self._position
        self._position = min(start + at_most, len(self._view))
        return self._view[start : self._position]

    def skip(self, count: int) -> int:
        """Skip up to `count` bytes; return the number skipped."""
        left = count
        while left > 0 and (passed := len(self.take_some(left))):
            left -= passed
        return count - left

    def give_back(self, count: int) -> None:
        """Undo the last `count` bytes of the last take."""
        self._position -= count

    def take_rest(self) -> memoryview:
        """Take all bytes that are left."""
        rest: list[Buffer] = [self._view[self._position :], *self._chunks]
        self._view, self._position = memoryview(b""), 0
        return memoryview(rest[0] if len(rest) == 1 else b"".join(rest))

    def at_end(self) -> bool:
        """Return True if no byte is left."""
        return not self._fill(1)
