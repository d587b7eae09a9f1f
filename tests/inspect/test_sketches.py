"""Bounded summaries keep the promises of their table: quantiles, frequent keys and times against exact counts."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kcli.inspect.dumping.sketches import BUCKET_WIDTHS_MS, HeavyHitters, SizeHistogram, TimeBuckets, narrowed

SIZES = st.integers(0, 200) | st.integers(0, 2**31 - 1)


@given(st.lists(SIZES, min_size=1, max_size=200), st.floats(0.01, 1))
def test_quantiles(sizes: list[int], share: float) -> None:
    """At least the true quantile and at most 1/32 above; least, most, count and total are exact."""
    histogram = SizeHistogram()
    histogram.add_counts(Counter(sizes))
    ordered = sorted(sizes)
    true = next(size for rank, size in enumerate(ordered, 1) if rank >= share * len(sizes))
    found = histogram.quantile(share)
    assert true <= found <= true + true // 32
    assert (histogram.least, histogram.most, histogram.count, histogram.total) == (
        ordered[0],
        ordered[-1],
        len(sizes),
        sum(sizes),
    )


@given(st.lists(SIZES, max_size=100))
def test_doublings(sizes: list[int]) -> None:
    """Counts by power of two are exact."""
    histogram = SizeHistogram()
    for size in sizes:
        histogram.add(size)
    exact = Counter(1 << size.bit_length() - 1 if size else 0 for size in sizes)
    assert dict(histogram.doublings()) == dict(exact)


@given(st.lists(st.lists(st.integers(0, 60), max_size=40), max_size=30), st.integers(1, 8))
def test_frequent_keys(rounds: list[list[int]], capacity: int) -> None:
    """No more than twice the capacity is kept, a count is never too high, and too low by `error` at most, which is bounded."""
    keys: HeavyHitters[int] = HeavyHitters(capacity)
    exact: Counter[int] = Counter()
    for chunk in rounds:
        keys.add_counts(Counter(chunk))
        exact.update(chunk)
        assert len(keys.top(10**6)) <= 2 * capacity
    told = dict(keys.top(10**6))
    assert keys.error <= exact.total() // (capacity + 1)
    for key, count in exact.items():
        assert told.get(key, 0) <= count <= told.get(key, 0) + keys.error


@given(st.lists(st.tuples(st.integers(-(10**13), 10**13), st.integers(0, 9)), max_size=80), st.integers(1, 20))
def test_times(rows: list[tuple[int, int]], limit: int) -> None:
    """However times spread, there are few buckets, nothing is lost, and each row stands in the bucket of its time."""
    buckets = TimeBuckets(limit)
    for timestamp, size in rows:
        buckets.add(timestamp, 1, size)
    found = buckets.rows()
    assert len(found) <= max(limit, 2)
    width = buckets.width_ms
    exact = Counter(timestamp // width * width for timestamp, _ in rows)
    assert {start: records for start, records, _ in found} == dict(exact)
    assert sum(size for *_, size in found) == sum(size for _, size in rows)
    narrow, narrow_width = narrowed(found, width, 5)
    assert narrow_width % width == 0 and len(narrow) <= 5
    assert sum(records for _, records, _ in narrow) == len(rows)


def test_widths_nest() -> None:
    """Each width is a multiple of the one before, or buckets could not be joined."""
    assert all(wide % narrow == 0 for narrow, wide in pairwise(BUCKET_WIDTHS_MS))
