"""JSON in one line, quickly: what json.dumps(value, ensure_ascii=False, separators=(",", ":")) writes, but for one thing.

Characters that a terminal may act on are escaped as \\u00XX: not only those below 0x20, as JSON demands, but DEL and C1 too.
Bytes become text where they are UTF-8, and base64 in a member of another name where they are not: nothing is mangled.
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Iterable
from math import isfinite
from typing import Any

from kcli.format.primitives import Buffer

try:
    from _json import encode_basestring  # the same function, without the json package: 3 ms at start-up
except ImportError:
    from json.encoder import encode_basestring

_CONTROLS = re.compile("[\x7f-\x9f]")


def quote(text: str) -> str:
    """A JSON string with its quotes."""
    quoted: str = encode_basestring(text)
    if quoted.isascii() and "\x7f" not in quoted:
        return quoted
    return _CONTROLS.sub(_escape, quoted)


def _escape(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"


def dump(value: Any) -> str:
    """A dict, list, text, number, bool or None as JSON; floats that are not finite as the strings NaN and Infinity."""
    if isinstance(value, str):
        return quote(value)
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{" + ",".join([f"{quote(name)}:{dump(inner)}" for name, inner in value.items()]) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join([dump(inner) for inner in value]) + "]"
    if isinstance(value, float) and not isfinite(value):
        return '"NaN"' if value != value else '"Infinity"' if value > 0 else '"-Infinity"'
    return repr(value)


def bytes_member(name: str, data: Buffer | None) -> str:
    """The member for bytes: "name":"text", "nameBase64":"..." where they are not UTF-8, or "name":null."""
    if data is None:
        return f'"{name}":null'
    try:
        return f'"{name}":{quote(str(data, "utf-8"))}'
    except UnicodeDecodeError:
        return f'"{name}Base64":"{base64_text(data)}"'


def headers_array(headers: Iterable[tuple[bytes, bytes | None]]) -> str:
    """A record's headers: an array, since a key may come twice."""
    return "[" + ",".join([f"{{{bytes_member('key', key)},{bytes_member('value', value)}}}" for key, value in headers]) + "]"


def base64_text(data: Buffer) -> str:
    """Bytes in base64 (RFC 4648, padded)."""
    return b2a_base64(data, newline=False).decode("ascii")


def path_member(path: str) -> str:
    """The member for a path, whose bytes need not be UTF-8."""
    return bytes_member("path", path.encode("utf-8", "surrogateescape"))
