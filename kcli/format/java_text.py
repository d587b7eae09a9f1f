"""Text as Java makes it, where Kafka's tools print it or its files hold it.

    what                  Java                            where it differs from Python
    --------------------  ------------------------------  -------------------------------------------------------------
    bytes as UTF-8        new String(bytes, UTF_8)        a surrogate's three bytes give one U+FFFD, not three
    JSON                  Jackson's toString              no blanks; doubles as below, as strings where not finite
    a JSON string         Jackson's TextNode              control characters as \\u00XX in capitals, and no others
    a double              Double.toString                 1.0E10, 1.0E-5, 4.9E-324: at least two digits, E from 1e7 and
                                                          below 1e-3

Doubles are those of a JDK 19 or later, the shortest that read back the same; older ones print some with a digit too many.
"""

from __future__ import annotations

from typing import Any

from kcli.format.primitives import Buffer

_REPLACEMENT = "\ufffd".encode()
_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_ESCAPES = str.maketrans({chr(code): f"\\u{code:04X}" for code in range(0x20)} | _SHORT_ESCAPES)


def decode_utf8(data: Buffer) -> str:
    """Decode bytes; what is not UTF-8 becomes U+FFFD, as many of them as Java makes."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
        import re

        # Python replaces each byte of an encoded surrogate, Java the two or three together; the rest they do alike.
        return re.sub(rb"\xed[\xa0-\xbf][\x80-\xbf]?", _REPLACEMENT, bytes(data)).decode("utf-8", "replace")


def quote(text: str) -> str:
    """Return a JSON string with its quotes, as Jackson writes it."""
    if text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return '"' + text.translate(_ESCAPES) + '"'


def json_text(value: Any) -> str:
    """Return JSON as Jackson's ObjectNode.toString prints it: without blanks, only what must be escaped is."""
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, dict):
        return "{" + ",".join([f"{quote(name)}:{json_text(inner)}" for name, inner in value.items()]) + "}"
    if isinstance(value, list):
        return "[" + ",".join([json_text(inner) for inner in value]) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        text = double_text(value)
        return text if text[-1].isdigit() else f'"{text}"'
    return str(value)


def double_text(value: float) -> str:
    """Format a double as Java's Double.toString does; values that are not finite are NaN, Infinity and -Infinity."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    sign = "-" if repr(value).startswith("-") else ""
    digits, exponent = _shortest_digits(abs(value))
    if value == 0 or -3 <= exponent < 7:
        digits = "0" * -exponent + digits if exponent < 0 else digits.ljust(exponent + 1, "0")
        point = max(exponent, 0) + 1
        return f"{sign}{digits[:point]}.{digits[point:].rstrip('0') or '0'}"
    return f"{sign}{digits[0]}.{digits[1:]}E{exponent}"


def _shortest_digits(value: float) -> tuple[str, int]:
    """Return the digits that Java prints, at least two, and the exponent of the first of them."""
    mantissa, _, exponent = repr(value).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0").rstrip("0")
    if len(digits) < 2:
        # Of the doubles that one digit would name, Java names the nearest with two: 4.9E-324, not 5.0E-324.
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return mantissa.replace(".", ""), int(exponent)
    leading = len(whole) - 1 if whole != "0" else -1 - (len(fraction) - len(fraction.lstrip("0")))
    return digits, leading + int(exponent or 0)


def java_length(text: str) -> int:
    """Return String.length() of a text: the number of its UTF-16 code units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def java_hash(text: str) -> int:
    """Return String.hashCode() of a text: a signed 32-bit number over its UTF-16 code units."""
    found = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        found = (31 * found + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return found - (1 << 32) if found >> 31 else found
