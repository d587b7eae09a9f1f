"""Chooses the sound batches of a damaged segment whose offsets agree with each other.

If offsets contradict each other (a batch twice, two exchanged, a wrong delta), the largest number of batches that agree is
chosen. Of equal choices the one is preferred in which more batches follow their predecessor, or the start of the segment,
without a gap; then the one with smaller gaps. Another choice is better if a batch outside of it has a wrong offset and fills a
gap with the right one: therefore the choice that ends last in the file is an alternative.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Mapping
from typing import NamedTuple

from kcli.format.record_batch import MAGIC


class Batch(NamedTuple):
    """The bytes [position, end) of a batch, and its offsets; the leader epoch is -1 in formats 0 and 1."""

    position: int
    end: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    magic: int = MAGIC


class Batches:
    """Batches of a segment as columns with the names of Batch's fields: a segment may have millions."""

    def __init__(self) -> None:
        self.position = array("q")
        self.end = array("q")
        self.base_offset = array("q")
        self.last_offset = array("q")
        self.leader_epoch = array("q")
        self.magic = array("q")
        self._columns = (self.position, self.end, self.base_offset, self.last_offset, self.leader_epoch, self.magic)

    def __len__(self) -> int:
        return len(self.position)

    def insert(self, index: int, batch: Batch) -> None:
        """Insert a batch before the one at `index`."""
        for column, value in zip(self._columns, batch, strict=True):
            column.insert(index, value)

    def pick(self, indexes: list[int]) -> Batches:
        """Return the batches at `indexes`."""
        picked = Batches()
        for mine, theirs in zip(self._columns, picked._columns, strict=True):
            theirs.extend(mine[index] for index in indexes)
        return picked


def choose(batches: Batches, first_offset: int, end_offset: int) -> list[list[int]]:
    """Return the indexes of the batches in [first_offset, end_offset) that agree: the best choice, then an alternative."""
    fitting = [
        index
        for index in range(len(batches))
        if batches.base_offset[index] >= first_offset and batches.last_offset[index] < end_offset
    ]
    before = first_offset - 1
    for index in fitting:
        if batches.base_offset[index] <= before:
            return _largest_choices(batches, fitting, first_offset)
        before = batches.last_offset[index]
    return [fitting]


class _Score(NamedTuple):
    """The score of a choice: two points for each batch, one more if it follows its predecessor without a gap; its offsets."""

    points: int = 0
    offsets: int = 0

    def with_batch(self, points: int, offsets: int) -> _Score:
        """Return the score of the choice and one more batch."""
        return _Score(self.points + points, self.offsets + offsets)


def _largest_choices(batches: Batches, fitting: list[int], first_offset: int) -> list[list[int]]:
    """Return the choice with the highest score of batches that may begin at `first_offset`, and one with as many points.

    Batches are tried in the order of the file. The best choice that ends with a batch continues the best one that ends below
    its first offset, which a Fenwick tree of prefix maxima over the last offsets finds in log n steps.
    """
    lasts = sorted({batches.last_offset[index] for index in fitting})
    nothing = (_Score(), -1)
    tree = [nothing] * (len(lasts) + 1)  # (score, index of the batch that it ends with)
    ending_at = {first_offset - 1: nothing}
    before: dict[int, int] = {}
    best_of_all = latest = nothing
    least_gaps = 0
    for index in fitting:
        base_offset, last_offset = batches.base_offset[index], batches.last_offset[index]
        best = nothing
        slot = bisect_left(lasts, base_offset)
        while slot > 0:
            best = max(best, tree[slot])
            slot &= slot - 1
        if base_offset - 1 in ending_at:
            score, neighbour = ending_at[base_offset - 1]
            best = max(best, (score.with_batch(1, 0), neighbour))
        before[index] = best[1]
        found = (best[0].with_batch(2, last_offset - base_offset + 1), index)
        if found[0] > ending_at.get(last_offset, nothing)[0]:
            ending_at[last_offset] = found
        slot = bisect_left(lasts, last_offset) + 1
        while slot <= len(lasts):
            tree[slot] = max(tree[slot], found)
            slot += slot & -slot
        # Of the choices that end at one offset, the one with the most offsets has the smallest gaps.
        gaps = last_offset + 1 - first_offset - found[0].offsets
        if (found[0].points, -gaps) >= (best_of_all[0].points, -least_gaps):
            best_of_all, least_gaps = found, gaps
        if found[0].points >= latest[0].points:
            latest = found
    return [_choice(before, index) for index in dict.fromkeys((best_of_all[1], latest[1]))]


def _choice(before: Mapping[int, int], index: int) -> list[int]:
    """Return the batches of the choice that ends with the one at `index`."""
    chosen = []
    while index >= 0:
        chosen.append(index)
        index = before[index]
    return chosen[::-1]
