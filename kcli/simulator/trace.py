"""What happened, one line an event: `ms since the start, who, what`; and a digest of all lines, by which two runs are compared.

The last lines are kept for whoever looks for the cause of a failure; all of them are handed on where that is asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import sha256

from kcli.format.primitives import crc32c

KEPT_LINES = 400


class Trace:
    """The lines of one run; `write` gets each of them, `clock` gives the virtual time."""

    def __init__(self, clock: Callable[[], int], write: Callable[[str], None] | None = None) -> None:
        self.tail: deque[str] = deque(maxlen=KEPT_LINES)
        self.line_count = 0
        self._clock = clock
        self._start_ms = clock()
        self._write = write
        self._digest = sha256()

    def add(self, who: str, what: str) -> None:
        """One more line."""
        line = f"{self._clock() - self._start_ms:>8} {who:<12} {what}"
        self.line_count += 1
        self._digest.update(line.encode() + b"\n")
        self.tail.append(line)
        if self._write is not None:
            self._write(line)

    def digest(self) -> str:
        """The digest of all lines so far, in hexadecimal digits."""
        return self._digest.hexdigest()


def frame_text(frame: bytes | bytearray | memoryview) -> str:
    """A frame in a trace: its bytes by size and checksum."""
    return f"{len(frame)} bytes {crc32c(frame):08x}"
