"""The sound batches of a damaged segment, and which of them agree with each other in their offsets.

Where offsets contradict each other (a batch twice, two changed about, a forged delta) the largest number of batches that
agree is chosen, and of equal choices the one in which more of them follow each other without a gap.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import NamedTuple

from kcli.format.record_batch import MAGIC


class Batch(NamedTuple):
    """Where a batch lies, bytes [position, end), and its offsets; the leader epoch is -1 in formats 0 and 1."""

    position: int
    end: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    magic: int = MAGIC


class Batches:
    """Batches of a segment as columns named as the fields of Batch: a segment may have millions."""

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
        """Put a batch before the one at `index`."""
        for column, value in zip(self._columns, batch, strict=True):
            column.insert(index, value)

    def pick(self, indexes: list[int]) -> Batches:
        """Those at `indexes`."""
        picked = Batches()
        for mine, theirs in zip(self._columns, picked._columns, strict=True):
            theirs.extend(mine[index] for index in indexes)
        return picked


def choose(batches: Batches, first_offset: int, end_offset: int) -> list[int]:
    """The batches that agree in offsets [first_offset, end_offset) -> their indexes; see the head of this module."""
    fitting = [
        index
        for index in range(len(batches))
        if batches.base_offset[index] >= first_offset and batches.last_offset[index] < end_offset
    ]
    before = first_offset - 1
    for index in fitting:
        if batches.base_offset[index] <= before:
            return _largest_choice(batches, fitting)
        before = batches.last_offset[index]
    return fitting


def _largest_choice(batches: Batches, fitting: list[int]) -> list[int]:
    """The choice with the highest score: two for each batch, one for each that follows its predecessor without a gap.

    Batches are tried in the order of the file; the best choice that ends with one depends on the best that end below it,
    which a tree of prefix maxima over the last offsets (Fenwick) gives in log n steps.
    """
    lasts = sorted({batches.last_offset[index] for index in fitting})
    tree: list[tuple[int, int]] = [(0, -1)] * (len(lasts) + 1)  # (score, index of the batch that it ends with)
    ending_at: dict[int, tuple[int, int]] = {}
    before: dict[int, int] = {}
    best_of_all = (0, -1)
    for index in fitting:
        base_offset, last_offset = batches.base_offset[index], batches.last_offset[index]
        best = (0, -1)
        slot = bisect_left(lasts, base_offset)
        while slot > 0:
            best = max(best, tree[slot])
            slot &= slot - 1
        if base_offset - 1 in ending_at:
            score, neighbour = ending_at[base_offset - 1]
            best = max(best, (score + 1, neighbour))
        before[index] = best[1]
        found = (best[0] + 2, index)
        if found[0] > ending_at.get(last_offset, (0, -1))[0]:
            ending_at[last_offset] = found
        slot = bisect_left(lasts, last_offset) + 1
        while slot <= len(lasts):
            tree[slot] = max(tree[slot], found)
            slot += slot & -slot
        best_of_all = max(best_of_all, found)
    chosen = []
    index = best_of_all[1]
    while index >= 0:
        chosen.append(index)
        index = before[index]
    return chosen[::-1]
