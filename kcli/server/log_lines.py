"""Levels of the lines of a node's log; kcli.log.report_line has the kinds of lines, and `fault_line` for faults of kcli."""

from __future__ import annotations

from collections.abc import Callable

from kcli.log.report_line import FailureLine as FailureLine
from kcli.log.report_line import Line as Line
from kcli.log.report_line import WarningLine as WarningLine
from kcli.log.report_line import fault_line as fault_line
from kcli.log.report_line import fields_of as fields_of

INFO, WARN, ERROR = "INFO", "WARN", "ERROR"


def level_of(line: str) -> str:
    """Return the level of a line: INFO, WARN or ERROR."""
    if isinstance(line, FailureLine):
        return ERROR
    return WARN if isinstance(line, WarningLine) else INFO


class LimitedLines:
    """Lines that clients can cause without limit: one line in `interval_ms` is written, with the count since the last one."""

    def __init__(self, report: Callable[[str], None], interval_ms: int = 60_000) -> None:
        self._report = report
        self._interval_ms = interval_ms
        self._next_ms: int | None = None
        self._count = 0

    def report(self, line: Callable[[int], str], now_ms: int) -> None:
        """Write `line(count)`, or count it for the next line."""
        self._count += 1
        if self._next_ms is not None and now_ms < self._next_ms:
            return
        self._next_ms = now_ms + self._interval_ms
        count, self._count = self._count, 0
        self._report(line(count))
