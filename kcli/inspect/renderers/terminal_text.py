"""Payloads as text for a terminal, without characters that move the cursor, change a colour or reorder the line.

    bytes                            shown as
    -------------------------------  ------------------------------------------------------------------
    null, no bytes                   <null>, <empty>
    UTF-8                            the text; characters that are not printable as \\n, \\x1b, \\u202e
    mostly text, some bytes not      the text, those bytes as \\xff
    anything else                    0x and the bytes in hex
    more than fits                   the beginning, an ellipsis and, if it fits, the size in bytes

Only the part of a payload that can be shown is decoded.
"""

from __future__ import annotations

from kcli.format.primitives import Buffer

NULL = "<null>"
EMPTY = "<empty>"
ELLIPSIS = "…"
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0"}
# Of bytes that are not UTF-8, how many of a hundred characters must be printable for them to count as text.
_TEXT_PERCENT = 70
_MAX_UTF8_BYTES = 4
# The size is left out if fewer columns of the text would remain.
_LEAST_SHOWN_COLUMNS = 4


def show(data: Buffer | None, columns: int | None = None) -> str:
    """Return bytes as text of at most `columns` columns (None: all of it), as in the table above."""
    if data is None:
        return NULL
    size = len(data)
    if size == 0:
        return EMPTY
    if columns is None:
        return _text(bytes(data))
    head = bytes(data[: _MAX_UTF8_BYTES * (columns + 1)])
    text = _text(head, is_cut=len(head) < size)
    if len(head) == size and width(text) <= columns:
        return text
    tail = f"{ELLIPSIS}({size} B)"
    if len(tail) > columns - _LEAST_SHOWN_COLUMNS:
        tail = ELLIPSIS
    return cut(text, columns - len(tail)) + tail


def _text(data: bytes, *, is_cut: bool = False) -> str:
    try:
        return escape(str(data, "utf-8"))
    except UnicodeDecodeError as error:
        if is_cut and error.start > len(data) - _MAX_UTF8_BYTES and error.reason == "unexpected end of data":
            return escape(str(data[: error.start], "utf-8"))
    text = data.decode("utf-8", "surrogateescape")
    printable = sum(map(str.isprintable, text))
    if printable * 100 < len(text) * _TEXT_PERCENT:
        return "0x" + data.hex()
    return escape(text)


# The longest sentence that is shown, as it may quote bytes of a file; the JSON outputs have all of it.
MOST_SENTENCE = 300


def shorten(text: str) -> str:
    """Cut a sentence to MOST_SENTENCE characters."""
    return text if len(text) <= MOST_SENTENCE else f"{text[:MOST_SENTENCE]}... ({len(text) - MOST_SENTENCE} more characters)"


def escape(text: str) -> str:
    """Replace each character that is not printable by a backslash and its name or number."""
    if text.isprintable():
        return text
    return "".join([char if char.isprintable() else _SHORT_ESCAPES.get(char) or _numbered(ord(char)) for char in text])


def _numbered(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, as surrogateescape keeps it
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def width(text: str) -> int:
    """Return how many columns of a terminal a printable text takes."""
    return len(text) if text.isascii() else sum(map(_columns_of, text))


def cut(text: str, columns: int) -> str:
    """Return the beginning of a printable text that fits into `columns` columns."""
    if text.isascii():
        return text[:columns]
    for index, char in enumerate(text):
        columns -= _columns_of(char)
        if columns < 0:
            return text[:index]
    return text


def fitted(text: str, columns: int | None) -> str:
    """Cut a printable text to `columns` columns, with an ellipsis if it was longer; None leaves it whole."""
    return text if columns is None or width(text) <= columns else cut(text, columns - 1) + ELLIPSIS


def _columns_of(char: str) -> int:
    if char < "\u0300":
        return 1
    from unicodedata import combining, east_asian_width

    if combining(char):
        return 0
    return 2 if east_asian_width(char) in "WF" else 1
