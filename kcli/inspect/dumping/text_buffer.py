"""Lines on their way out: one buffer that compiled and plain code fill, written in large pieces."""

from __future__ import annotations

from array import array
from collections.abc import Callable

OUTPUT_BUFFER_BYTES = 1024 * 1024


class TextBuffer:
    """Collects bytes and hands them to `write` a buffer at a time; `place[0]` is how far `memory` is filled."""

    __slots__ = ("_write", "memory", "place")

    def __init__(self, write: Callable[[memoryview], object], size: int = OUTPUT_BUFFER_BYTES) -> None:
        self._write = write
        self.memory = memoryview(bytearray(size))
        self.place = array("q", (0,))

    def put(self, text: bytes) -> None:
        """Append `text`; what does not fit goes out first. Raises what `write` raises."""
        position = self.place[0]
        end = position + len(text)
        if end > len(self.memory):
            self.flush()
            if len(text) > len(self.memory):
                self._write(memoryview(text))
                return
            position, end = 0, len(text)
        self.memory[position:end] = text
        self.place[0] = end

    def flush(self) -> None:
        """Hand over what was collected. Raises what `write` raises."""
        if end := self.place[0]:
            self.place[0] = 0
            self._write(self.memory[:end])
