"""How much a cleaner may do: in one time slice, and in a second (Kafka: Throttler)."""

from math import ceil

from kcli.log.disk.deletion_queue import NEVER_MS

MS_PER_SECOND = 1000
# A time slice, and a call of a compiled loop, ends after this much work, in bytes that are read or written. Each batch counts
# for its bytes and a constant, and one that is compressed again for RECOMPRESSED_FACTOR times its bytes.
SLICE_BYTES = 512 * 1024
BATCH_WORK = 500
COMPRESSED_BATCH_WORK = 4000
RECOMPRESSED_FACTOR = 8


class ByteBudget:
    """The work that is left in the current time slice of a round; `moved_bytes` is what the round has read and written."""

    __slots__ = ("_work_bytes", "moved_bytes")

    def __init__(self) -> None:
        self.moved_bytes = 0
        self._work_bytes = 0

    def is_spent(self, size_bytes: int, work_bytes: int = 0) -> bool:
        """Add bytes that were moved; return whether the slice is over. `work_bytes` is their work, if that is more."""
        self.moved_bytes += size_bytes
        self._work_bytes += max(size_bytes, work_bytes)
        if self._work_bytes < SLICE_BYTES:
            return False
        self._work_bytes = 0
        return True


class Throttler:
    """Limits work to a rate in bytes a second, which may change at any time; 0 stops work, a negative rate removes the limit.

    Work above the rate is a debt that time reduces, so that small pieces wait as large ones do, and a round waits for the debt
    of the round before.
    """

    __slots__ = ("_at_ms", "_debt_bytes")

    def __init__(self) -> None:
        self._debt_bytes = 0.0
        self._at_ms = 0

    def add(self, size_bytes: int, now_ms: int, rate: float) -> None:
        """Add work that was done."""
        self._reduce(now_ms, rate)
        self._debt_bytes += size_bytes

    def due_ms(self, now_ms: int, rate: float) -> int:
        """Return when work may continue."""
        self._reduce(now_ms, rate)
        if not self._debt_bytes:
            return now_ms
        return NEVER_MS if not rate else min(now_ms + ceil(self._debt_bytes * MS_PER_SECOND / rate), NEVER_MS)

    def _reduce(self, now_ms: int, rate: float) -> None:
        passed_ms, self._at_ms = now_ms - self._at_ms, now_ms
        if rate < 0:
            self._debt_bytes = 0.0
        elif passed_ms > 0:
            self._debt_bytes = max(0.0, self._debt_bytes - passed_ms * rate / MS_PER_SECOND)
