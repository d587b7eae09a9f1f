"""The trace of a run, one line per event: `ms since the start, actor, event`; and a digest of all lines, to compare two runs.

The last lines are kept, to find the cause of a failure; `write` gets all lines. `failure_of` runs the phases of a simulation.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Sequence
from hashlib import sha256

from kcli.format.primitives import crc32c

KEPT_LINES = 400


class Trace:
    """The lines of one run; `write` gets each of them, `clock` returns the virtual time in ms."""

    def __init__(self, clock: Callable[[], int], write: Callable[[str], None] | None = None) -> None:
        self.tail: deque[str] = deque(maxlen=KEPT_LINES)
        self._clock = clock
        self._start_ms = clock()
        self._write = write
        self._digest = sha256()

    def add(self, actor: str, event: str) -> None:
        """Add a line."""
        line = f"{self._clock() - self._start_ms:>8} {actor:<12} {event}"
        self._digest.update(line.encode() + b"\n")
        self.tail.append(line)
        if self._write is not None:
            self._write(line)

    def digest(self) -> str:
        """Return the SHA-256 of all lines so far, in hexadecimal digits."""
        return self._digest.hexdigest()


def failure_of(phases: Sequence[Callable[[], None]], violation: type[Exception]) -> str:
    """Run the phases of a simulation, one after the other, and return what failed; empty if nothing did.

    `violation` is raised where a guarantee is violated. Any other exception is a failure, too, named with its place.
    """
    try:
        for phase in phases:
            phase()
    except violation as error:
        return str(error)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__}: {error} ({where.filename.rpartition('/kcli/')[2]}:{where.lineno})"
    return ""


def frame_text(frame: bytes | bytearray | memoryview) -> str:
    """Return the size and CRC of a frame, for a line of the trace."""
    return f"{len(frame)} bytes {crc32c(frame):08x}"
