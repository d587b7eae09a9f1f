"""Java's properties files, read as java.util.Properties reads them, with the line of each key.

    in the text                     means
    ------------------------------  -----------------------------------------------------------------------------------
    # or ! at a line's start        a comment; a backslash at its end has no meaning
    key=value, key:value, key value the key ends at the first =, : or blank without a backslash before it; blanks around
                                    = and : are ignored; blanks at the end of the value are part of it
    a backslash at a line's end     the next line continues this one, without its leading blanks
    \\t \\n \\r \\f                     a tab, line feed, carriage return, form feed
    \\uhhhh                          a UTF-16 unit in four hexadecimal digits
    \\ and any other character       that character

Bytes are ISO 8859-1, as Java reads them from a stream. The last value of a repeated key counts. javaproperties reads the same
and is what the tests compare with, but importing it takes 50 ms of a start of 310 ms (python -X importtime), and it reports no
line numbers.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_BLANKS = " \t\f"
_LINE_END = re.compile(r"\r\n|\r|\n")
_KEY = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    """A key, its value, and the number of the line on which it starts."""

    key: str
    value: str
    line: int


class PropertiesError(ValueError):
    """Text that java.util.Properties refuses."""


def parse_properties(data: bytes) -> list[Property]:
    """Return all properties in their order. Raises PropertiesError, which names the line of an incomplete \\u."""
    properties = []
    lines = _LINE_END.split(data.decode("latin-1"))
    number = 0
    while number < len(lines):
        start = number
        line = lines[number].lstrip(_BLANKS)
        number += 1
        if not line or line[0] in "#!":
            continue
        if line.endswith("\\"):
            while _continues(line) and number < len(lines):
                line = line[:-1] + lines[number].lstrip(_BLANKS)
                number += 1
            if _continues(line):
                line = line[:-1]
        properties.append(_split(line, start + 1))
    return properties


def _continues(line: str) -> bool:
    """Return whether the line ends with a backslash that is not escaped itself."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(line: str, number: int) -> Property:
    match = _KEY.match(line)
    assert match is not None  # it also matches the empty text
    key, value = match[1], line[match.end() :]
    if "\\" in line:
        return Property(_unescape(key, number), _unescape(value, number), number)
    return Property(key, value, number)


def _unescape(text: str, number: int) -> str:
    """Replace the escapes of a text; two of them may be the halves of one character."""
    if "\\" not in text:
        return text
    if re.search(r"(?<!\\)(?:\\\\)*\\u(?![0-9a-fA-F]{4})", text):
        raise PropertiesError(f"line {number}: \\u is followed by fewer than four hexadecimal digits")
    plain = _ESCAPE.sub(lambda match: chr(int(match[1], 16)) if match[1] else _CONTROLS.get(match[2], match[2]), text)
    return plain.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
