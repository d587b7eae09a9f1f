"""kcli's own limits on what the coordinators of a broker keep; Kafka has no such limits.

    key                         counts                                        one more is refused with
    --------------------------  --------------------------------------------  ----------------------------------------------
    kcli.max.groups             groups of all kinds, also those that have     POLICY_VIOLATION: final for every client
                                only committed offsets
    kcli.max.open.transactions  transactions that have begun and whose        CONCURRENT_TRANSACTIONS: producers try again
                                markers are not all written

A limit is checked when a group is made or a transaction begins, never by a load. A broker that has loaded more than the limit
keeps them all, and refuses new ones until there are fewer. The first refusal is logged, and then at most one in a minute.
"""

from __future__ import annotations

from collections.abc import Callable

from kcli.network.timing_wheel import Timer
from kcli.server.config.server_config import ConfigReader
from kcli.server.coordinator.operation import CoordinatorError
from kcli.server.log_lines import LimitedLines, WarningLine

_NO_LIMIT = 2**31 - 1


class CoordinatorLimit:
    """The limit `key` on what `count` returns; an operation above it is refused with the error `code`."""

    def __init__(
        self,
        key: str,
        code: int,
        count: Callable[[], int],
        config: ConfigReader,
        timer: Timer,
        report: Callable[[str], None],
    ) -> None:
        self._key = key
        self._code = code
        self._count = count
        self._config = config
        self._timer = timer
        self._lines = LimitedLines(report)

    def check(self, what: str) -> None:
        """Check that there may be one more; `what` names it in the error and in the log. Raises CoordinatorError."""
        limit = self._config.get_int(self._key)
        if limit == _NO_LIMIT or self._count() < limit:
            return
        text = f"{what} is refused: the broker has reached its limit {self._key}={limit}"

        def line(count: int) -> str:
            more = f"; {count - 1} others were refused since the last of these lines" if count > 1 else ""
            return WarningLine(text + more, key=self._key, limit=limit, count=count)

        self._lines.report(line, self._timer.clock_ms)
        raise CoordinatorError(self._code, text)
