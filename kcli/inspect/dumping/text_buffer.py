"""The output buffer of dump-log: compiled and interpreted code fill it with lines, and it is written in large pieces.

This one source runs two ways, as kcli.format.record_scan does; its C types are in text_buffer.pxd.
"""

from collections.abc import Callable

from kcli.format import byte_address

OUTPUT_BUFFER_BYTES = 1024 * 1024


class TextBuffer:
    """Collects bytes in memory[:position] and passes them to `write` when its `size`, in bytes, is not enough for more."""

    def __init__(self, write: Callable[[memoryview], object], size: int | None = None) -> None:
        self._write = write
        self.size = OUTPUT_BUFFER_BYTES if size is None else size
        self._view = memoryview(bytearray(self.size))
        self.memory = byte_address.writable(self._view)
        self.position = 0

    def put(self, text: bytes) -> None:
        """Append `text`; if it does not fit, write out what was collected first. Raises what `write` raises."""
        end = self.position + len(text)
        if end > self.size:
            self.flush()
            if len(text) > self.size:
                self._write(memoryview(text))
                return
            end = len(text)
        self._view[self.position : end] = text
        self.position = end

    def flush_if_half_full(self) -> bool:
        """Write out what was collected if more than half of the buffer is full; return whether it was written.

        Called for a line that did not fit: if the buffer is emptier, the line is too long for it.
        """
        if self.position <= self.size // 2:
            return False
        self.flush()
        return True

    def flush(self) -> None:
        """Write out what was collected. Raises what `write` raises."""
        end = self.position
        if end:
            self.position = 0
            self._write(self._view[:end])
