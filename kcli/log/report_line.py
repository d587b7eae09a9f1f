"""A line of a log that knows what it is about: a text, which is all that most look at, and fields for programs.

field      is
---------  -------------------------------------------------------------------------------
error      what failed, in a sentence or as an error's own text
path       the file or directory
topic, partition, broker, node, listener, peer (HOST:PORT), host, key, api, ...   as named
"""

from __future__ import annotations

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


def fields_of(line: str) -> Mapping[str, object]:
    """The fields of a line; a mere text has none."""
    return line.fields if isinstance(line, Line) else {}
