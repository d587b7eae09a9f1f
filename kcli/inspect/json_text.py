"""JSON in one line: as json.dumps(value, ensure_ascii=False, separators=(",", ":")) writes it, with one exception.

Characters that a terminal may act on are escaped as \\u00XX: those below 0x20, as JSON requires, and also DEL and C1.
Bytes become text if they are UTF-8, else base64 in a member of another name, so that no byte is lost.

By hand and not by the json module: its import takes 3 ms at start-up.
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Iterable
from math import isfinite
from typing import Any

from kcli.format.primitives import Buffer

try:
    from _json import encode_basestring  # the function of the json package, without its import
except ImportError:
    from json.encoder import encode_basestring

# A value of a report: None, bool, int, float, str, or a list or object of these. mypy does not check the members of objects.
JsonValue = Any
JsonObject = dict[str, Any]
_CONTROLS = re.compile("[\x7f-\x9f]")


def json_string(text: str) -> str:
    """Return text as a JSON string with its quotes."""
    quoted: str = encode_basestring(text)
    if quoted.isascii() and "\x7f" not in quoted:
        return quoted
    return _CONTROLS.sub(_escape, quoted)


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def dump(value: JsonValue) -> str:
    """Return a dict, list, str, number, bool or None as JSON; floats that are not finite as the strings NaN and Infinity."""
    if isinstance(value, str):
        return json_string(value)
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ",".join([f"{json_string(name)}:{dump(inner)}" for name, inner in value.items()]) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join([dump(inner) for inner in value]) + "]"
    if isinstance(value, float) and not isfinite(value):
        return '"NaN"' if value != value else '"Infinity"' if value > 0 else '"-Infinity"'
    return repr(value)


def bytes_member(name: str, data: Buffer | None) -> str:
    """Return the member for bytes: "name":"text", or "nameBase64":"..." if they are not UTF-8, or "name":null."""
    if data is None:
        return f'"{name}":null'
    try:
        return f'"{name}":{json_string(str(data, "utf-8"))}'
    except UnicodeDecodeError:
        return f'"{name}Base64":"{base64_text(data)}"'


def headers_array(headers: Iterable[tuple[bytes, bytes | None]]) -> str:
    """Return a record's headers as an array, because a key may occur twice."""
    return "[" + ",".join([f"{{{bytes_member('key', key)},{bytes_member('value', value)}}}" for key, value in headers]) + "]"


def base64_text(data: Buffer) -> str:
    """Return bytes in base64 (RFC 4648, padded)."""
    return b2a_base64(data, newline=False).decode("ascii")


def path_member(path: str) -> str:
    """Return the member for a path, whose bytes need not be UTF-8."""
    return bytes_member("path", path.encode("utf-8", "surrogateescape"))
