"""A line of a node's log: a text with a level and with fields for programs that read the log.

    kind         level  for
    -----------  -----  ---------------------------------------------------------------------------------------------
    DebugLine    DEBUG  one event of many, for a search: a request of a client
    str, Line    INFO   normal operation
    WarningLine  WARN   an operator may have to act: a log was truncated, a connection was closed
    FailureLine  ERROR  an operator has to act: a disk has failed, kcli has a bug

    field      value
    ---------  -------------------------------------------------------------------------------
    error      the failure, as a sentence or the text of the error
    path       the file or directory
    topic, partition, broker, node, listener, peer (HOST:PORT), host, key, api, ...   as named

A core calls a function with one str; callers without levels (tests, the simulator) pass any such function.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Self


class Line(str):
    """A line; the text contains the values of all `fields`."""

    __slots__ = ("fields",)
    fields: Mapping[str, object]

    def __new__(cls, text: str, /, **fields: object) -> Self:
        """Make a line from a text and its fields."""
        line = super().__new__(cls, text)
        line.fields = fields
        return line


class DebugLine(Line):
    """A line of level DEBUG."""

    __slots__ = ()


class WarningLine(Line):
    """A line of level WARN."""

    __slots__ = ()


class FailureLine(Line):
    """A line of level ERROR."""

    __slots__ = ()


def is_info(line: str) -> bool:
    """Return whether a line is of level INFO for a client, whose lines without a level are warnings."""
    return type(line) is Line


def fault_line(what: str, error: BaseException, then: str = "") -> FailureLine:
    """Make the line for a bug in kcli; `what` is the operation if the line does not name it yet, `then` what happens next."""
    where = traceback.extract_tb(error.__traceback__)
    at = f" at {where[-1].filename.rpartition('/')[2]}:{where[-1].lineno}" if where else ""
    operation = f" in {what}" if what else ""
    return FailureLine(f"a fault of kcli{operation}{at}: {error!r}{then}; please report it", error=repr(error), what=what)


def fields_of(line: str) -> Mapping[str, object]:
    """Return the fields of a line, none for a str."""
    return line.fields if isinstance(line, Line) else {}
