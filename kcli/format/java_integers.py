"""Java's int and long: wraparound on overflow, and the text that parseInt and parseLong accept.

Integer.parseInt and Long.parseLong take a sign of either kind, then digits. Python's int() is looser (spaces, underscores,
any size), so names and text files are read through this.
"""

from __future__ import annotations

import re

_INTEGER = re.compile(r"[+-]?\d+")
# The longest number of 64 bits has 20 characters; zeros in front may make it longer, within reason.
_MAX_CHARACTERS = 64


def parse_integer(text: str, bits: int) -> int | None:
    """Parse the signed integer of `bits` (32 or 64) bits in `text`; None if it is not one or does not fit."""
    if len(text) > _MAX_CHARACTERS or _INTEGER.fullmatch(text) is None:
        return None
    value = int(text)
    return value if -(1 << bits - 1) <= value < 1 << bits - 1 else None


def wrap_int32(value: int) -> int:
    """Return the int32 that Java's arithmetic makes of any integer."""
    return (value + 0x8000_0000 & 0xFFFF_FFFF) - 0x8000_0000


def wrap_int64(value: int) -> int:
    """Return the int64 that Java's arithmetic makes of any integer."""
    return (value + 0x8000_0000_0000_0000 & 0xFFFF_FFFF_FFFF_FFFF) - 0x8000_0000_0000_0000
