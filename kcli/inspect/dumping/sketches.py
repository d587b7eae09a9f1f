"""Summaries of streams of any length in bounded memory.

    sketch           result                      memory                          error
    ---------------  --------------------------  ------------------------------  --------------------------------------
    SizeHistogram    quantiles of sizes          at most 64 x 32 counters        a quantile is at most 1/32 too high
    HeavyHitters     the most frequent keys      2 x capacity keys of bounded    a count may be too low by `error`, at
                                                 size                            most total / capacity
    TimeBuckets      counts over time            MAX_TIME_BUCKETS buckets        none, but buckets widen as time spreads

HeavyHitters is the Space-Saving family in its batched form (Misra and Gries 1982; Agarwal and others 2012 on merging):
when there are twice as many counters as the capacity, the largest count of the smaller half is subtracted from all of them, and
those that are left without a count are removed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

_SUB_BUCKET_BITS = 5
MAX_TIME_BUCKETS = 512
_SECOND_MS = 1000
_MINUTE_MS = 60 * _SECOND_MS
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS
# The widths of time buckets in ms, each a multiple of the one before; above these ten times the one before.
BUCKET_WIDTHS_MS = (
    *(_SECOND_MS * n for n in (1, 5, 15)),
    *(_MINUTE_MS * n for n in (1, 5, 15)),
    *(_HOUR_MS * n for n in (1, 6)),
    *(_DAY_MS * n for n in (1, 7, 28, 364)),
)


class SizeHistogram:
    """Counts of sizes, which are not negative, in 32 buckets for each power of two."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.least = 0
        self.most = 0
        self._buckets: dict[int, int] = {}

    def add(self, size: int, times: int = 1) -> None:
        """Count a size `times` times."""
        if self.count == 0 or size < self.least:
            self.least = size
        self.most = max(self.most, size)
        self.count += times
        self.total += size * times
        shift = max(size.bit_length() - _SUB_BUCKET_BITS - 1, 0)
        bucket = (shift << _SUB_BUCKET_BITS) + (size >> shift)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + times

    def add_counts(self, counts: Mapping[int, int]) -> None:
        """Count sizes, each as often as `counts` says."""
        for size, times in counts.items():
            self.add(size, times)

    def quantile(self, share: float) -> int:
        """Return the size that a `share` (0 to 1) of the sizes do not exceed, at most 1/32 too high; 0 without sizes."""
        wanted = share * self.count
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return min(_bucket_end(bucket), self.most)
        return self.most

    def doublings(self) -> list[tuple[int, int]]:
        """Return (first size, count) of each power of two with any size, ascending; sizes 0 and 1 have rows of their own."""
        found: dict[int, int] = {}
        for bucket, count in self._buckets.items():
            first = _bucket_end(bucket)
            first = 1 << first.bit_length() - 1 if first else 0
            found[first] = found.get(first, 0) + count
        return sorted(found.items())


def _bucket_end(bucket: int) -> int:
    """Return the largest size in a bucket."""
    shift = max((bucket >> _SUB_BUCKET_BITS) - 1, 0)
    return ((bucket - (shift << _SUB_BUCKET_BITS)) + 1 << shift) - 1


class HeavyHitters(Generic[Key]):
    """The most frequent of many keys. The true count of a key is at most `error` above the count here."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.error = 0
        self._counts: dict[Key, int] = {}

    def add_counts(self, counts: Mapping[Key, int]) -> None:
        """Count keys, each as often as `counts` says."""
        mine = self._counts
        for key, times in counts.items():
            mine[key] = mine.get(key, 0) + times
        if len(mine) > 2 * self.capacity:
            self._shrink()

    def _shrink(self) -> None:
        limit = sorted(self._counts.values(), reverse=True)[self.capacity]
        self.error += limit
        self._counts = {key: count - limit for key, count in self._counts.items() if count > limit}

    def top(self, most: int) -> list[tuple[Key, int]]:
        """Return the keys with the largest counts, those first."""
        return sorted(self._counts.items(), key=lambda item: -item[1])[:most]


class TimeBuckets:
    """Records and bytes by time, in buckets of equal width. The width grows while there are more than `limit` buckets.

    The limit is at least two: buckets before and after 1970 are not merged at any width.
    """

    def __init__(self, limit: int = MAX_TIME_BUCKETS) -> None:
        self._limit = max(limit, 2)
        self._widths = iter(BUCKET_WIDTHS_MS)
        self.width_ms = next(self._widths)
        self._buckets: dict[int, tuple[int, int]] = {}

    def add(self, timestamp_ms: int, records: int, size_bytes: int) -> None:
        """Count `records` of `size_bytes` at a time."""
        bucket = timestamp_ms // self.width_ms
        known_records, known_bytes = self._buckets.get(bucket, (0, 0))
        self._buckets[bucket] = known_records + records, known_bytes + size_bytes
        while len(self._buckets) > self._limit:
            self.widen()

    def widen(self) -> None:
        """Merge the buckets to the next width."""
        wider = next(self._widths, self.width_ms * 10)
        factor = wider // self.width_ms
        self.width_ms = wider
        buckets: dict[int, tuple[int, int]] = {}
        for bucket, (records, size_bytes) in self._buckets.items():
            known_records, known_bytes = buckets.get(bucket // factor, (0, 0))
            buckets[bucket // factor] = known_records + records, known_bytes + size_bytes
        self._buckets = buckets

    def rows(self) -> list[tuple[int, int, int]]:
        """Return (start in ms, records, bytes) of each bucket with records, ascending."""
        return [(bucket * self.width_ms, *self._buckets[bucket]) for bucket in sorted(self._buckets)]


def narrowed(rows: Iterable[tuple[int, int, int]], width_ms: int, most: int) -> tuple[list[tuple[int, int, int]], int]:
    """Merge rows of TimeBuckets into at most `most` buckets; return the rows and their width in ms."""
    buckets = TimeBuckets(most)
    while buckets.width_ms < width_ms:
        buckets.widen()
    for start, records, size_bytes in rows:
        buckets.add(start, records, size_bytes)
    return buckets.rows(), buckets.width_ms
