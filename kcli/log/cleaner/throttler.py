"""How a round of the cleaner is cut into slices: by the bytes that were moved since the last pause; and held to a rate."""

from math import ceil

from kcli.log.disk.deletion_queue import NEVER_MS

MS_PER_SECOND = 1000
# A slice ends behind so many bytes of a segment, read or written.
SLICE_BYTES = 512 * 1024
# Bytes that are written anew, and maybe deflated, count for so many.
REWRITTEN = 8


class Pace:
    """Counts what a round has read and written; `moved_bytes` is all of it so far."""

    __slots__ = ("_since_pause", "moved_bytes")

    def __init__(self) -> None:
        self.moved_bytes = 0
        self._since_pause = 0

    def pause_due(self, size_bytes: int, work_bytes: int = 0) -> bool:
        """Whether the slice is over after so many more bytes, which took as much work as `work_bytes` where that is more."""
        self.moved_bytes += size_bytes
        self._since_pause += max(size_bytes, work_bytes)
        if self._since_pause < SLICE_BYTES:
            return False
        self._since_pause = 0
        return True


class Throttle:
    """Holds work to a rate in bytes a second, which may change at any time; 0 lets nothing go on, less than that all.

    What was done is owed, and time pays it off: small pieces wait as large ones do, and one round for the one before.
    """

    __slots__ = ("_at_ms", "_owed_bytes")

    def __init__(self) -> None:
        self._owed_bytes = 0.0
        self._at_ms = 0

    def add(self, size_bytes: int, now_ms: int, rate: float) -> None:
        """So much was done."""
        self._pay(now_ms, rate)
        self._owed_bytes += size_bytes

    def due_ms(self, now_ms: int, rate: float) -> int:
        """When work may go on."""
        self._pay(now_ms, rate)
        if not self._owed_bytes:
            return now_ms
        return NEVER_MS if not rate else min(now_ms + ceil(self._owed_bytes * MS_PER_SECOND / rate), NEVER_MS)

    def _pay(self, now_ms: int, rate: float) -> None:
        passed_ms, self._at_ms = now_ms - self._at_ms, now_ms
        if rate < 0:
            self._owed_bytes = 0.0
        elif passed_ms > 0:
            self._owed_bytes = max(0.0, self._owed_bytes - passed_ms * rate / MS_PER_SECOND)
