"""Quantities in text: bytes with a binary unit, counts with separators, ranges of offsets."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def format_bytes(size_bytes: int) -> str:
    """Format a size with its unit: 874 B, 1.2 KiB, 14.0 MiB."""
    if abs(size_bytes) < 1024:
        return f"{size_bytes} B"
    size = float(size_bytes)
    for unit in _UNITS:
        if abs(size) < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{size:.1f} {unit}"


def format_offsets(first_offset: int, end_offset: int) -> str:
    """Format the offsets [first_offset, end_offset): offset 3, offsets 3 to 5."""
    if end_offset == first_offset + 1:
        return f"offset {first_offset}"
    return f"offsets {first_offset} to {end_offset - 1}"


def format_byte_range(position: int, end_position: int) -> str:
    """Format the bytes of a file as the names in the quarantine do, without the end: byte 3, bytes [3, 6)."""
    return f"bytes [{position}, {end_position})" if end_position > position + 1 else f"byte {position}"


def format_count(count: int, what: str) -> str:
    """Format a count and its noun, in the plural unless it is one: 1 record, 1,234 batches."""
    if count == 1:
        return f"1 {what}"
    ending = "es" if what.endswith(("ch", "s", "x")) else "s"
    plural = what[:-1] + "ies" if what.endswith("y") and what[-2] not in "aeiou" else what + ending
    return f"{count:,} {plural}"
