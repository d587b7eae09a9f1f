"""A line of a node's log: a text, which is all that most readers need, with a level and with fields for programs.

    kind         level  for
    -----------  -----  ---------------------------------------------------------------------------------------------
    str, Line    INFO   what a node does
    WarningLine  WARN   what an operator may want to look at: a log that was cut, a connection that was closed
    FailureLine  ERROR  what an operator has to look at: a disk that failed, a fault of kcli

    field      is
    ---------  -------------------------------------------------------------------------------
    error      what failed, in a sentence or as an error's own text
    path       the file or directory
    topic, partition, broker, node, listener, peer (HOST:PORT), host, key, api, ...   as named

A core needs no more than a function of one text, and a caller that does not care for levels (a test, the simulator) has one.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Self


class Line(str):
    """A line; its text says all that its `fields` do."""

    __slots__ = ("fields",)
    fields: Mapping[str, object]

    def __new__(cls, text: str, /, **fields: object) -> Self:
        """A text with fields."""
        line = super().__new__(cls, text)
        line.fields = fields
        return line


class WarningLine(Line):
    """A line that an operator may want to look at."""

    __slots__ = ()


class FailureLine(Line):
    """A line that an operator has to look at."""

    __slots__ = ()


def fault_line(what: str, error: BaseException, then: str = "") -> FailureLine:
    """Make the line of a fault of this program: what it was doing, and where in the code."""
    where = traceback.extract_tb(error.__traceback__)
    at = f" at {where[-1].filename.rpartition('/')[2]}:{where[-1].lineno}" if where else ""
    return FailureLine(f"a fault of kcli in {what}{at}: {error!r}{then}; please report it", error=repr(error), what=what)


def fields_of(line: str) -> Mapping[str, object]:
    """The fields of a line; a mere text has none."""
    return line.fields if isinstance(line, Line) else {}
