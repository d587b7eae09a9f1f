"""A set of offsets as sorted ranges that do not overlap; adding and lookups are binary searches."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class OffsetRanges:
    """Offsets as ranges [first, end). Ranges that overlap or follow each other are one; an empty range adds nothing."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        # The edges of the ranges, ascending: an even index is a first offset, an odd one an end.
        self._edges: list[int] = []
        # Sorted, so that each one is added at the end of the list.
        for first_offset, end_offset in sorted(ranges):
            self.add(first_offset, end_offset)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._edges[::2], self._edges[1::2], strict=True)

    def add(self, first_offset: int, end_offset: int) -> None:
        """Add the offsets of a range."""
        if first_offset >= end_offset:
            return
        start, end = bisect_left(self._edges, first_offset), bisect_right(self._edges, end_offset)
        left = [] if start % 2 else [first_offset]
        right = [] if end % 2 else [end_offset]
        self._edges[start:end] = left + right

    def covers(self, first_offset: int, end_offset: int) -> bool:
        """Return True if every offset of a range is in the set."""
        index = bisect_right(self._edges, first_offset)
        return first_offset >= end_offset or (index % 2 == 1 and end_offset <= self._edges[index])

    def overlaps(self, first_offset: int, end_offset: int) -> bool:
        """Return True if any offset of a range is in the set."""
        index = bisect_right(self._edges, first_offset)
        return first_offset < end_offset and (index % 2 == 1 or (index < len(self._edges) and self._edges[index] < end_offset))

    def missing(self, first_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """Return the parts of a range that are not in the set, ascending."""
        found: list[tuple[int, int]] = []
        index = bisect_right(self._edges, first_offset)
        if index % 2:
            first_offset = self._edges[index]
            index += 1
        while first_offset < end_offset:
            is_last = index == len(self._edges) or self._edges[index] >= end_offset
            found.append((first_offset, end_offset if is_last else self._edges[index]))
            first_offset = end_offset if is_last else self._edges[index + 1]
            index += 2
        return found

    def common(self, first_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """Return the parts of a range that are in the set, ascending."""
        absent = self.missing(first_offset, end_offset)
        edges = [first_offset, *(edge for part in absent for edge in part), end_offset]
        return [(first, end) for first, end in zip(edges[::2], edges[1::2], strict=True) if first < end]
