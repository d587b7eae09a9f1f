"""The states of consecutive offsets, kept by runs: a run has consecutive offsets with one state.

A change of some offsets splits the runs at the edges of what changes. Neighbours with equal states are joined later. So the
cost of a change depends on the number of runs that it concerns, not on the number of records.

    change                  runs before          runs after it        runs when joined
    ----------------------  -------------------  -------------------  ----------------------
    accept 3..5 of 0..9     0..9                 0..2 3..5 6..9       0..2 3..5 6..9
    accept 6                0..2 3..5 6..9       0..2 3..5 6 7..9     0..2 3..6 7..9

The runs are stored in blocks, so that an insertion moves few entries even if each record has a state of its own. The runs of a
block are joined when it has had half as many changes as it has runs, so the cost of this per change is constant.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from kcli.server.replication.share.in_flight import InFlightState

MOST_RUNS_OF_BLOCK = 512
_LEAST_CHANGES = 64  # before the runs of a block are joined


class StateRun(NamedTuple):
    """The offsets first_offset..last_offset, which have the same state."""

    first_offset: int
    last_offset: int
    state: InFlightState

    @property
    def record_count(self) -> int:
        """The number of offsets."""
        return self.last_offset - self.first_offset + 1

    def cut(self, offset: int) -> tuple[StateRun, ...]:
        """Return the part below an offset and the part from it on; the run itself if it does not extend to both sides."""
        if not self.first_offset < offset <= self.last_offset:
            return (self,)
        return self._replace(last_offset=offset - 1), self._replace(first_offset=offset)


class _Block:
    """Some consecutive runs: states[i] is that of the offsets from edges[i] up to, without, edges[i + 1]."""

    __slots__ = ("change_count", "edges", "states")

    def __init__(self, edges: list[int], states: list[InFlightState]) -> None:
        self.edges = edges
        self.states = states
        self.change_count = 0  # since its runs were joined

    def join_equal(self) -> None:
        """Join neighbours with equal states."""
        self.change_count = 0
        edges, states = self.edges[:1], self.states[:1]
        for edge, state in zip(self.edges[1:], self.states[1:]):
            if states[-1].is_equal(state):
                state.join()
            else:
                edges.append(edge)
                states.append(state)
        edges.append(self.edges[-1])
        self.edges, self.states = edges, states


class StateRuns:
    """The states of first_offset..last_offset, which are one run at first. Each offset always is in a run.

    `is_split` is whether a part of the offsets has changed, or was about to.
    """

    __slots__ = ("_block_offsets", "_blocks", "first_offset", "is_split", "last_offset")

    def __init__(self, first_offset: int, last_offset: int, state: InFlightState) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.is_split = False
        self._blocks = [_Block([first_offset, last_offset + 1], [state])]
        self._block_offsets = [first_offset]  # the first offset of each block

    @property
    def run_count(self) -> int:
        """The number of runs."""
        return sum(len(block.states) for block in self._blocks)

    def state_at(self, offset: int) -> InFlightState:
        """Return the state of an offset."""
        block = self._blocks[bisect_right(self._block_offsets, offset) - 1]
        return block.states[bisect_right(block.edges, offset) - 1]

    def first_with(self, matches: Callable[[InFlightState], bool], offset: int) -> int | None:
        """Return the first offset from `offset` on whose state matches, None if there is none."""
        block_slot = bisect_right(self._block_offsets, offset) - 1
        slot = bisect_right(self._blocks[block_slot].edges, offset) - 1
        while block_slot < len(self._blocks):
            block = self._blocks[block_slot]
            for state in block.states[slot:] if slot else block.states:
                if matches(state):
                    return max(offset, block.edges[slot])
                slot += 1
            block_slot, slot = block_slot + 1, 0
        return None

    def runs(self, first_offset: int, last_offset: int) -> list[StateRun]:
        """Return the runs of the offsets in first_offset..last_offset; the first and the last one may be parts of runs."""
        if first_offset < self.first_offset:
            first_offset = self.first_offset
        if last_offset > self.last_offset:
            last_offset = self.last_offset
        if first_offset > last_offset:
            return []
        block_slot = bisect_right(self._block_offsets, first_offset) - 1
        block = self._blocks[block_slot]
        slot = bisect_right(block.edges, first_offset) - 1
        if last_offset < block.edges[slot + 1]:
            return [StateRun(first_offset, last_offset, block.states[slot])]
        found: list[StateRun] = []
        end_slot = bisect_right(self._block_offsets, last_offset)
        for block in self._blocks[block_slot:end_slot]:
            end = bisect_right(block.edges, last_offset, slot)
            ends = [edge - 1 for edge in block.edges[slot + 1 : end + 1]]
            found += map(StateRun, block.edges[slot:end], ends, block.states[slot:end])
            slot = 0
        found[0] = found[0]._replace(first_offset=first_offset)
        found[-1] = found[-1]._replace(last_offset=last_offset)
        return found

    def matching(self, matches: Callable[[InFlightState], bool], first_offset: int, last_offset: int) -> list[StateRun]:
        """Return the runs within first_offset..last_offset whose states match; the others cost little."""
        first_offset, last_offset = max(first_offset, self.first_offset), min(last_offset, self.last_offset)
        if first_offset > last_offset:
            return []
        block_slot = bisect_right(self._block_offsets, first_offset) - 1
        found: list[StateRun] = []
        for block in self._blocks[block_slot : bisect_right(self._block_offsets, last_offset)]:
            edges, states = block.edges, block.states
            start, end = bisect_right(edges, first_offset) - 1, bisect_right(edges, last_offset)
            for slot, state in enumerate(states[max(start, 0) : end], max(start, 0)):
                if matches(state):
                    found.append(StateRun(max(first_offset, edges[slot]), min(last_offset, edges[slot + 1] - 1), state))
        return found

    def isolate(self, first_offset: int, last_offset: int) -> InFlightState:
        """Split the run that has first_offset..last_offset at their edges; return their state, which no other offset has."""
        block_slot = bisect_right(self._block_offsets, first_offset) - 1
        block = self._blocks[block_slot]
        edges, states = block.edges, block.states
        slot = bisect_right(edges, first_offset) - 1
        state = states[slot]
        if edges[slot + 1] > last_offset + 1:
            edges.insert(slot + 1, last_offset + 1)
            states.insert(slot + 1, state.copy())
            self.is_split = True
        if edges[slot] < first_offset:
            edges.insert(slot + 1, first_offset)
            states.insert(slot, state.copy())
            self.is_split = True
        if len(states) > MOST_RUNS_OF_BLOCK:
            self._halve(block_slot)
        return state

    def _halve(self, block_slot: int) -> None:
        block = self._blocks[block_slot]
        half = len(block.states) // 2
        self._blocks.insert(block_slot + 1, _Block(block.edges[half:], block.states[half:]))
        self._block_offsets.insert(block_slot + 1, block.edges[half])
        del block.edges[half + 1 :], block.states[half:]

    def changed(self, offset: int) -> None:
        """Count a change of the run that has an offset; join equal runs of its block if there have been many changes."""
        block_slot = bisect_right(self._block_offsets, offset) - 1
        block = self._blocks[block_slot]
        block.change_count += 1
        if block.change_count >= _LEAST_CHANGES and 2 * block.change_count >= len(block.states):
            block.join_equal()
            self._merge_block(block_slot + 1)
            self._merge_block(block_slot)

    def _merge_block(self, block_slot: int) -> None:
        """Append the runs of a block to those of the one before, if both have few."""
        if not 0 < block_slot < len(self._blocks):
            return
        before, block = self._blocks[block_slot - 1], self._blocks[block_slot]
        if len(before.states) + len(block.states) > MOST_RUNS_OF_BLOCK // 2:
            return
        del self._blocks[block_slot], self._block_offsets[block_slot]
        before.edges[-1:] = block.edges
        before.states += block.states
        before.join_equal()
