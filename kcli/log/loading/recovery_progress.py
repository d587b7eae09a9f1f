"""The progress of the recovery of a log directory in the broker's log: at its start, periodically, and at its end.

    when                          line                                                     Kafka's
    ----------------------------  -------------------------------------------------------  ---------------------------------
    a directory without the mark  PATH was not stopped cleanly: recovering N partitions    Recovering N logs from DIR since no
    of a clean stop                                                                        clean shutdown file was found
    every PROGRESS_INTERVAL_MS    PATH: n of N partitions are recovered, with what was read  Remaining logs to recover (metric)
    all logs are open             PATH: N partitions are recovered in T ms, with what was    -
                                  read and removed

Nothing is logged for a directory without partitions or after a clean stop.
"""

from __future__ import annotations

from collections.abc import Callable

from kcli.log.loading.recovery_journal import RecoveryCounts
from kcli.log.report_line import Line

PROGRESS_INTERVAL_MS = 10_000


class RecoveryProgress:
    """The recovery of one log directory; `clock` returns the time in ms, `partitions` is their number."""

    def __init__(self, path: str, partitions: int, report: Callable[[str], None], clock: Callable[[], int]) -> None:
        self.counts = RecoveryCounts()
        self._path = path
        self._partitions = partitions
        self._report = report
        self._clock = clock
        self._began_ms = self._reported_ms = clock()
        self._opened = 0

    def begin(self) -> None:
        """Log that the recovery begins."""
        text = f"{self._path} was not stopped cleanly: recovering {_partitions(self._partitions)}"
        self._report(Line(text, path=self._path, partitions=self._partitions))

    def opened(self) -> None:
        """Count one more log as recovered."""
        self._opened += 1

    def step(self) -> None:
        """Log the progress if that is due; called after each slice of work."""
        now_ms = self._clock()
        if now_ms - self._reported_ms >= PROGRESS_INTERVAL_MS:
            self._reported_ms = now_ms
            text = f"{self._path}: {self._opened} of {_partitions(self._partitions)} are recovered"
            self._report(Line(f"{text}, {self._read()}", path=self._path, **self._fields()))

    def finish(self) -> None:
        """Log that all logs are recovered."""
        took_ms = self._clock() - self._began_ms
        is_one = "is" if self._opened == 1 else "are"
        text = f"{self._path}: {_partitions(self._opened)} {is_one} recovered in {took_ms} ms, {self._read()}"
        removed = f" and {self.counts.bytes_removed} bytes were removed" if self.counts.bytes_removed else ""
        self._report(Line(f"{text}{removed}", path=self._path, **self._fields(), took_ms=took_ms))

    def _read(self) -> str:
        counts = self.counts
        return f"{counts.bytes_read} bytes in {counts.segments} segment{'' if counts.segments == 1 else 's'} were read"

    def _fields(self) -> dict[str, object]:
        counts = self.counts
        return {
            "partitions": self._opened,
            "segments": counts.segments,
            "bytes_read": counts.bytes_read,
            "bytes_removed": counts.bytes_removed,
        }


def _partitions(count: int) -> str:
    return f"{count} partition{'' if count == 1 else 's'}"
