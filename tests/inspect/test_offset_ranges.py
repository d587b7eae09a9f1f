"""Protects the sets of offsets with which a repair counts lost ones: they agree with plain sets, and many take few steps."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from kcli.inspect.offset_ranges import OffsetRanges
from kcli.inspect.repairing.holes import Hole, Holes, without

END = 40


def drawn(rng: random.Random) -> tuple[int, int]:
    first = rng.randrange(END)
    return first, min(first + rng.randrange(8), END)


@pytest.mark.parametrize("seed", range(20))
def test_ranges_agree_with_a_plain_set(seed: int) -> None:
    """Every question gets the answer of a set of single offsets; the ranges stay sorted and apart."""
    rng = random.Random(seed)
    ranges, offsets = OffsetRanges(), set[int]()
    for _ in range(60):
        first, end = drawn(rng)
        wanted = set(range(first, end))
        assert ranges.covers(first, end) == (wanted <= offsets)
        assert ranges.overlaps(first, end) == bool(wanted & offsets)
        missing = ranges.missing(first, end)
        assert [offset for start, stop in missing for offset in range(start, stop)] == sorted(wanted - offsets)
        common = ranges.common(first, end)
        assert [offset for start, stop in common for offset in range(start, stop)] == sorted(wanted & offsets)
        if rng.random() < 0.4:
            ranges.add(first, end)
            offsets |= wanted
        listed = list(ranges)
        assert all(start < stop for start, stop in listed)
        assert all(stop < start for (_, stop), (start, _) in pairwise(listed))


@pytest.mark.parametrize("seed", range(20))
def test_offsets_without_those_of_batches(seed: int) -> None:
    """Also where batches overlap, one inside of another."""
    rng = random.Random(seed)
    ranges, kept = [drawn(rng) for _ in range(6)], [drawn(rng) for _ in range(6)]
    left = {offset for first, end in ranges for offset in range(first, end)}
    left -= {offset for first, end in kept for offset in range(first, end)}
    found = without(ranges, OffsetRanges(kept))
    assert [offset for first, end in found for offset in range(first, end)] == sorted(left)


def test_a_hole_without_an_end_covers_what_follows_until_it_is_closed() -> None:
    """Nothing behind it is named twice; once the log's end is known, what is missing behind that is a hole of its own."""
    holes = Holes("t-0")
    holes.append(Hole("t-0/0.log", 10, None, "cut"))
    holes.add(5, 20, "missing")
    assert [(hole.first_offset, hole.end_offset) for hole in holes.in_order()] == [(5, 10), (10, None)]
    holes.close(15)
    holes.add(5, 20, "missing")
    assert [(hole.first_offset, hole.end_offset) for hole in holes.in_order()] == [(5, 10), (10, 15), (15, 20)]


class CountedOffset(int):
    """An offset that counts how often it is compared."""

    comparisons = 0

    def __lt__(self, other: int) -> bool:
        CountedOffset.comparisons += 1
        return int(self) < int(other)

    def __le__(self, other: int) -> bool:
        CountedOffset.comparisons += 1
        return int(self) <= int(other)

    def __gt__(self, other: int) -> bool:
        CountedOffset.comparisons += 1
        return int(self) > int(other)

    def __ge__(self, other: int) -> bool:
        CountedOffset.comparisons += 1
        return int(self) >= int(other)


def test_many_holes_take_n_log_n_comparisons() -> None:
    """A rotten disk leaves a hole in every other batch: with 2,000 of them each one took 2,000 comparisons and more."""
    count = 2000
    ranges = [(CountedOffset(3 * number), CountedOffset(3 * number + 1)) for number in range(count)]
    CountedOffset.comparisons = 0
    holes = Holes("t-0")
    for first, end in ranges:
        holes.add(first, end, "missing")
    kept = OffsetRanges((first + 2, end + 2) for first, end in ranges)
    assert len(without(ranges, kept)) == count
    assert len(holes.in_order()) == count
    assert CountedOffset.comparisons < 10 * count * count.bit_length()
