"""The level of a line of a node's log. The kinds of lines are those of kcli.log.report_line, which logs share with servers."""

from __future__ import annotations

from kcli.log.report_line import FailureLine as FailureLine
from kcli.log.report_line import Line as Line
from kcli.log.report_line import WarningLine as WarningLine
from kcli.log.report_line import fault_line as fault_line
from kcli.log.report_line import fields_of as fields_of

INFO, WARN, ERROR = "INFO", "WARN", "ERROR"


def level_of(line: str) -> str:
    """The level of a line: INFO, WARN or ERROR."""
    if isinstance(line, FailureLine):
        return ERROR
    return WARN if isinstance(line, WarningLine) else INFO
