"""The loggers of a node and the levels of its lines (kcli.log.report_line has the kinds, and `fault_line` for faults of kcli).

    logger                               writes about
    -----------------------------------  ---------------------------------------------------------------------------------
    kafka.request.logger                 each request of a client, at DEBUG; its first level is WARN, as in Kafka
    kcli.log                             partitions on disk: their recovery, cleaning, retention
    kcli.network                         connections to other nodes
    kcli.server                          the process: its start and end, its listeners and metrics
    kcli.server.broker                   the broker's start, registration and metadata; faults while it serves requests
    kcli.server.controller               the controller and its metadata log
    kcli.server.coordinator.group,       groups, transactions and the states of share groups
    ....share, ....transaction
    kcli.server.replication              replicas, and the records of share groups that go to a dead letter queue
    kcli.server.shell                    connections of clients
    root                                 nothing: its level, at first INFO, is that of the loggers without one of their own

A logger writes the lines of its level and above: TRACE, DEBUG, INFO, WARN, ERROR, FATAL. A client changes the levels by
the resource BROKER_LOGGER (KIP-412), until the process ends. A node that is broker and controller has these loggers once.
"""

from __future__ import annotations

from collections.abc import Callable

from kcli.log.report_line import DebugLine as DebugLine
from kcli.log.report_line import FailureLine as FailureLine
from kcli.log.report_line import Line as Line
from kcli.log.report_line import WarningLine as WarningLine
from kcli.log.report_line import fault_line as fault_line
from kcli.log.report_line import fields_of as fields_of

DEBUG, INFO, WARN, ERROR = "DEBUG", "INFO", "WARN", "ERROR"
LEVELS = ("TRACE", DEBUG, INFO, WARN, ERROR, "FATAL")
ROOT = "root"
REQUESTS, LOG, NETWORK, SERVER = "kafka.request.logger", "kcli.log", "kcli.network", "kcli.server"
BROKER, CONTROLLER, REPLICATION, SHELL = (f"{SERVER}.{name}" for name in ("broker", "controller", "replication", "shell"))
GROUPS, SHARE, TRANSACTIONS = (f"{SERVER}.coordinator.{name}" for name in ("group", "share", "transaction"))
_NAMES = (REQUESTS, LOG, NETWORK, SERVER, BROKER, CONTROLLER, GROUPS, SHARE, TRANSACTIONS, REPLICATION, SHELL)


def level_of(line: str) -> str:
    """Return the level of a line: DEBUG, INFO, WARN or ERROR."""
    if isinstance(line, FailureLine):
        return ERROR
    if isinstance(line, WarningLine):
        return WARN
    return DEBUG if isinstance(line, DebugLine) else INFO


class Logger:
    """Writes the lines of one part of a node; called with a line. `is_debug`: lines of level DEBUG are written."""

    __slots__ = ("_least", "_write", "is_debug")

    def __init__(self, write: Callable[[str], None], level: str) -> None:
        self._write = write
        self.set_level(level)

    def __call__(self, line: str) -> None:
        """Write a line if its level is high enough."""
        if LEVELS.index(level_of(line)) >= self._least:
            self._write(line)

    @property
    def level(self) -> str:
        """The lowest level that is written."""
        return LEVELS[self._least]

    def set_level(self, level: str) -> None:
        """Write the lines of a level and above."""
        self._least = LEVELS.index(level)
        self.is_debug = self._least <= LEVELS.index(DEBUG)  # asked at each request


class Loggers:
    """The loggers of one node; `write` writes a line of the node's log."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._own = {ROOT: INFO, REQUESTS: WARN}
        self._loggers = {name: Logger(write, self._own.get(name, INFO)) for name in _NAMES}

    def __getitem__(self, name: str) -> Logger:
        """Return a logger of the table above, which is not `root`."""
        return self._loggers[name]

    def levels(self) -> dict[str, str]:
        """Return the level of each logger by its name, that of `root` included."""
        return {**{name: one.level for name, one in self._loggers.items()}, ROOT: self._own[ROOT]}

    def set_level(self, name: str, level: str | None) -> None:
        """Change the level of a logger of `levels`, and log that. None means the level of its parent, and not for `root`."""
        if level is None:
            self._own.pop(name, None)
        else:
            self._own[name] = level
        for one, logger in self._loggers.items():
            logger.set_level(self._inherited(one))
        self._write(Line(f"the level of logger {name} is {self.levels()[name]}", logger=name))

    def _inherited(self, name: str) -> str:
        """Return the level of a logger, or of the next one above it by the dots of its name."""
        while name not in self._own:
            name = name.rpartition(".")[0] or ROOT
        return self._own[name]


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
