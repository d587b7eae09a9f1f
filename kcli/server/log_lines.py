"""How grave a line of a node's log is: cores tell texts, and a grave one is a text of a kind of its own.

    kind         level  for
    -----------  -----  ------------------------------------------------------------------------------------------
    str, Line    INFO   what a node does
    WarningLine  WARN   what somebody may want to look at: a connection closed for what came in, a limit reached
    FailureLine  ERROR  what somebody has to look at: a disk that failed, a fault of kcli

A line of these kinds, or a Line, has fields besides, for programs (kcli.log.report_line): --log-format json writes them.
So a core needs no more than a function of one text, and who does not care for levels (a test, the simulator) has a text.
"""

from __future__ import annotations

from kcli.log.report_line import Line as Line
from kcli.log.report_line import fields_of as fields_of

INFO, WARN, ERROR = "INFO", "WARN", "ERROR"


class WarningLine(Line):
    """A line that somebody may want to look at."""

    __slots__ = ()


class FailureLine(Line):
    """A line that somebody has to look at."""

    __slots__ = ()


def level_of(line: str) -> str:
    """The level of a line: INFO, WARN or ERROR."""
    if isinstance(line, FailureLine):
        return ERROR
    return WARN if isinstance(line, WarningLine) else INFO
