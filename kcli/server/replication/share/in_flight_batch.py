"""A batch of records in flight in a share partition (Kafka: InFlightBatch).

A batch has one state for all of its records until some of them get another; then its states are kept by runs of offsets.
Kafka keeps a state for each offset then. What members and the persister see is the same.
"""

from __future__ import annotations

from kcli.server.replication.share.in_flight import AVAILABLE, NO_MEMBER, InFlightState
from kcli.server.replication.share.state_runs import StateRuns


class InFlightBatch(StateRuns):
    """The records first_offset..last_offset."""

    __slots__ = ("_final_count",)

    def __init__(self, first_offset: int, last_offset: int, whole: InFlightState) -> None:
        super().__init__(first_offset, last_offset, whole)
        self._final_count = 0  # of the first offsets; final states never change

    @property
    def count(self) -> int:
        """The number of offsets."""
        return self.last_offset - self.first_offset + 1

    def is_within(self, first_offset: int, last_offset: int) -> bool:
        """Return whether all offsets of the batch are in first_offset..last_offset."""
        return self.first_offset >= first_offset and self.last_offset <= last_offset

    @property
    def whole(self) -> InFlightState | None:
        """The state of all records, None if the batch is split; a split batch remains so even if its states become equal."""
        return None if self.is_split else self._blocks[0].states[0]

    def split_after(self, last_acquired_offset: int) -> None:
        """Make the records after an offset available, in a batch that was acquired for the first time."""
        state = self.isolate(last_acquired_offset + 1, self.last_offset)
        state.release()
        state.state = AVAILABLE
        state.delivery_count -= 1
        state.member_id = NO_MEMBER

    def final_count(self) -> int:
        """Return how many records at the front have a final state; each run is counted once only."""
        if self._final_count < self.count:
            offset = self.first_with(_is_not_final, self.first_offset + self._final_count)
            self._final_count = self.count if offset is None else offset - self.first_offset
        return self._final_count

    def first_acquirable(self) -> int | None:
        """Return the first offset that may be acquired now, None if there is none."""
        first_offset = min(self.first_offset + self._final_count, self.last_offset)
        return self.first_with(is_acquirable, first_offset)


def _is_not_final(state: InFlightState) -> bool:
    return not state.is_final


def is_acquirable(state: InFlightState) -> bool:
    """Return whether a member may acquire records with a state now."""
    return state.is_acquirable
