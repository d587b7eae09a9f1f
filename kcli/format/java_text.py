"""What Java makes of texts and numbers and the orders of its collections, where Kafka's tools, files or decisions show it.

    what                  Java                            where it differs from Python
    --------------------  ------------------------------  -------------------------------------------------------------
    bytes as UTF-8        new String(bytes, UTF_8)        a surrogate's three bytes give one U+FFFD, not three
    JSON                  Jackson's toString              no blanks; doubles as below, as strings where not finite
    a JSON string         Jackson's TextNode              control characters as \\u00XX in capitals, and no others
    a double              Double.toString                 1.0E10, 1.0E-5, 4.9E-324: at least two digits, E from 1e7 and
                                                          below 1e-3

Doubles are those of a JDK 19 or later, the shortest that read back the same; older ones print some with a digit too many.

Java's int and long wrap around on overflow. Integer.parseInt and Long.parseLong take a sign of either kind, then digits.
Python's int() is looser (spaces, underscores, any size), so names and text files are read through parse_integer.

The orders of collections and texts decide:

    which of two equally loaded processes of a streams group gets a task
    the order in which an assignment of a classic group lists its topics; which of several partitions moves back
    the order of the producers in a snapshot

A HashMap is read by the buckets of its table; keys of one bucket are in the order of insertion. The table is doubled when it
has more than 3/4 as many entries. Buckets with eight keys, which Java makes trees of, are not modelled. A PriorityQueue is a
binary heap: which of equal elements is first follows from its moves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from kcli.format.primitives import Buffer

_REPLACEMENT = "\ufffd".encode()
_SHORT_ESCAPES = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_ESCAPES = str.maketrans({chr(code): f"\\u{code:04X}" for code in range(0x20)} | _SHORT_ESCAPES)
_INTEGER = re.compile(r"[+-]?\d+")
# The longest number of 64 bits has 20 characters; zeros in front may make it longer, within reason.
_MAX_CHARACTERS = 64
_Item = TypeVar("_Item")
_DEFAULT_CAPACITY = 16


def hash_map_order(keys: Iterable[str], capacity: int = _DEFAULT_CAPACITY, *, is_computed: bool = False) -> list[str]:
    """Return texts in the iteration order of a HashMap that was made with this capacity; it was filled by put.

    With `is_computed` it was filled by computeIfAbsent with these keys, of which some may be the same: a new key comes before
    those of its bucket, and the table is doubled one call later.
    """
    inserted: dict[str, None] = {}
    table = 1
    while table < capacity:
        table *= 2
    for key in keys:
        if is_computed and len(inserted) * 4 > table * 3:
            table *= 2
        inserted[key] = None
        if not is_computed and len(inserted) * 4 > table * 3:
            table *= 2
    return sorted(reversed(inserted) if is_computed else inserted, key=lambda key: _spread(java_hash(key)) & table - 1)


def long_map_order(keys: Iterable[int], most: int = 0) -> list[int]:
    """Return int64 keys, which are in the order of insertion, in the iteration order of a HashMap<Long, ...>.

    `most` is the largest number of entries that the map has had: its table never shrinks.
    """
    ordered = list(keys)
    table = _DEFAULT_CAPACITY
    while max(len(ordered), most) * 4 > table * 3:
        table *= 2
    # The hash code of a Long is the exclusive or of its two halves.
    return sorted(ordered, key=lambda key: _spread(key ^ key >> 32) & table - 1)


def text_order(text: str) -> bytes:
    """Return a key that sorts texts as String.compareTo does, by their UTF-16 code units."""
    return text.encode("utf-16-be", "surrogatepass")


def _spread(hash_code: int) -> int:
    number = hash_code & 0xFFFF_FFFF
    return number ^ number >> 16


class HashSet(Generic[_Item]):
    """A set that returns the first item in the iteration order of a HashSet. Its table does not shrink."""

    def __init__(self, hash_code: Callable[[_Item], int]) -> None:
        self._hash_code = hash_code
        self._spread_hashes: dict[_Item, int] = {}
        self._table = _DEFAULT_CAPACITY

    def __len__(self) -> int:
        return len(self._spread_hashes)

    def add(self, item: _Item) -> None:
        """Add an item."""
        self._spread_hashes.setdefault(item, _spread(self._hash_code(item)))
        if len(self) * 4 > self._table * 3:
            self._table *= 2

    def remove(self, item: _Item) -> None:
        """Remove an item. Raises KeyError if the set does not have it."""
        del self._spread_hashes[item]

    def first(self) -> _Item:
        """Return the first item. Raises ValueError if the set is empty."""
        mask = self._table - 1
        return min(self._spread_hashes, key=lambda item: self._spread_hashes[item] & mask)


class PriorityQueue(Generic[_Item]):
    """A queue whose first item is one of those with the least `load`, which must not change while an item is in it."""

    def __init__(self, load: Callable[[_Item], float], items: Iterable[_Item]) -> None:
        self._load = load
        self._heap: list[_Item] = []
        for item in items:
            self.put(item)

    def put(self, item: _Item) -> None:
        """Add an item."""
        heap, load, at = self._heap, self._load(item), len(self._heap)
        heap.append(item)
        while at:
            parent = (at - 1) // 2
            if load >= self._load(heap[parent]):
                break
            heap[at] = heap[parent]
            at = parent
        heap[at] = item

    def take(self) -> _Item | None:
        """Remove and return the first item, None if there is none."""
        heap = self._heap
        if not heap:
            return None
        first, last = heap[0], heap.pop()
        if not heap:
            return first
        load, at = self._load(last), 0
        while 2 * at + 1 < len(heap):
            child = 2 * at + 1
            if child + 1 < len(heap) and self._load(heap[child]) > self._load(heap[child + 1]):
                child += 1
            if load <= self._load(heap[child]):
                break
            heap[at] = heap[child]
            at = child
        heap[at] = last
        return first


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


def decode_utf8(data: Buffer) -> str:
    """Decode bytes; what is not UTF-8 becomes U+FFFD, as many of them as Java makes."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError:
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
