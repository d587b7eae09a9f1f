"""The orders of Java's collections and texts, where Kafka's decisions show them.

    which of two equally loaded processes of a streams group gets a task
    the order in which an assignment of a classic group lists its topics; which of several partitions moves back
    the order of the producers in a snapshot

A HashMap is read by the buckets of its table; keys of one bucket are in the order of insertion. The table is doubled when it
has more than 3/4 as many entries. Buckets with eight keys, which Java makes trees of, are not modelled. A PriorityQueue is a
binary heap: which of equal elements is first follows from its moves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from kcli.format.java_text import java_hash

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
