"""The log of a node on stderr: one line for an event, as text or, with --log-format json, as a JSON object.

    format  a line
    ------  --------------------------------------------------------------------------------------------
    text    2026-11-21T18:02:03.123Z INFO the sentence key=value key="a value with blanks"
    json    {"time":"2026-11-21T18:02:03.123Z","level":"INFO","message":"the sentence","key":"value"}

The sentence of a line contains its fields (kcli.log.report_line), so only json writes them separately.
Python's logging is not used: importing it takes a noticeable part of the start, and its handlers are not needed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType

from kcli.format.java_text import quote
from kcli.server.log_lines import WARN as WARN
from kcli.server.log_lines import fields_of, level_of


def write_stderr(line: str) -> None:
    """Write a line at once; it is lost if stderr is closed."""
    try:
        sys.stderr.write(line)
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


class LogWriter:
    """Writes events; called with a sentence. `clock` returns the seconds since 1970; `own` are fields of each line of json."""

    def __init__(
        self,
        log_format: str = "text",
        write: Callable[[str], None] = write_stderr,
        clock: Callable[[], float] = time.time,
        own: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self._own = own
        self._is_json = log_format == "json"
        self._write = write
        self._clock = clock

    def __call__(self, message: str, level: str | None = None, **fields: object) -> None:
        """Write one event, with the message's own level unless `level` is given; line breaks in it are escaped."""
        when, level = time_text(self._clock()), level or level_of(message)
        if self._is_json:
            self._write(json_line(when, level, message, {**self._own, **fields_of(message), **fields}))
        else:
            self._write(text_line(when, level, message, fields))


def time_text(seconds: float) -> str:
    """Format a time as ISO 8601, in UTC with ms."""
    whole = int(seconds)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{int((seconds - whole) * 1000):03d}Z"


def text_line(when: str, level: str, message: str, fields: dict[str, object]) -> str:
    """Format a line of text; fields are separated by blanks."""
    shown = "".join(f" {name}={_word(str(value))}" for name, value in fields.items())
    return f"{when} {level} {message.translate(_ONE_LINE)}{shown}\n"


def json_line(when: str, level: str, message: str, fields: dict[str, object]) -> str:
    """Format a line of JSON; numbers and booleans keep their type, all other values are text."""
    pairs = {"time": when, "level": level, "message": message, **fields}
    return "{" + ",".join(f"{quote(name)}:{_json(value)}" for name, value in pairs.items()) + "}\n"


# What would end a line, or move a terminal's cursor.
_ONE_LINE = {code: f"\\x{code:02x}" for code in (*range(32), 127)} | {10: "\\n", 13: "\\r", 9: "\\t"}


def _word(text: str) -> str:
    plain = text.translate(_ONE_LINE)
    return plain if plain and not set(plain) & set(' ="') else '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _json(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else quote(str(value))
