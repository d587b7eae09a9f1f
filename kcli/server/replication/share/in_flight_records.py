"""The progress of a share group in a partition: its start and end offsets and the batches between them (Kafka: SharePartition).

    offset               meaning
    -------------------  --------------------------------------------------------------------------------------------------
    start offset (SPSO)  the records below are acknowledged, archived or deleted
    end offset (SPEO)    the last offset that was acquired once; without batches in flight the next one to be fetched
    next fetch offset    the first available record in flight, else the one after the end offset

Only whole batches leave the front, so batches may reach below the start offset.

The persister has no batch for records that were acquired and not acknowledged before it was read, for example after a change
of the leader. Such a gap between persisted batches (`gap`) is fetched again. Gaps after the end offset of that time are
natural: the log has no records there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence

from kcli.server.replication.share.in_flight import AVAILABLE, NO_MEMBER, InFlightState, RecordState
from kcli.server.replication.share.in_flight_batch import InFlightBatch
from kcli.state.share_group_state import StateBatch


class GapWindow:
    """The range in which gaps between batches are fetched: from `start_offset` to the end offset at the initialization."""

    __slots__ = ("end_offset", "start_offset")

    def __init__(self, start_offset: int, end_offset: int) -> None:
        self.start_offset = start_offset
        self.end_offset = end_offset


class InFlightRecords:
    """The records in flight. `delivery_complete_count` is the number of those that are acknowledged or archived.

    `may_have_available` is False if no record in flight is known to be available.
    """

    def __init__(self) -> None:
        self.start_offset = 0
        self.end_offset = 0
        self.delivery_complete_count = 0
        self.may_have_available = False
        self.gap: GapWindow | None = None
        self._first_offsets: list[int] = []
        self._batches: dict[int, InFlightBatch] = {}

    # --------------------------------------------------------------------------------------------------------- batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[InFlightBatch]:
        """Yield the batches in the order of their offsets; the caller must not add or remove any."""
        return map(self._batches.__getitem__, self._first_offsets)

    @property
    def last(self) -> InFlightBatch | None:
        """The batch with the highest offsets."""
        return self._batches[self._first_offsets[-1]] if self._first_offsets else None

    @property
    def record_count(self) -> int:
        """The number of offsets from the start offset to the end offset, 0 without batches."""
        return self.end_offset - self.start_offset + 1 if self._first_offsets else 0

    def floor(self, offset: int) -> InFlightBatch | None:
        """Return the last batch that begins at or below an offset; it may end below."""
        slot = bisect_right(self._first_offsets, offset)
        return self._batches[self._first_offsets[slot - 1]] if slot else None

    def beginning_in(self, first_offset: int, last_offset: int) -> list[InFlightBatch]:
        """Return the batches that begin in first_offset..last_offset."""
        start, end = bisect_left(self._first_offsets, first_offset), bisect_right(self._first_offsets, last_offset)
        return [self._batches[offset] for offset in self._first_offsets[start:end]]

    def overlapping(self, first_offset: int, last_offset: int) -> list[InFlightBatch]:
        """Return the batches with offsets in first_offset..last_offset."""
        floor = self.floor(first_offset)
        start = floor.first_offset if floor is not None and floor.last_offset >= first_offset else first_offset
        return self.beginning_in(start, last_offset)

    def add(self, batch: InFlightBatch) -> None:
        """Add a batch."""
        if batch.first_offset not in self._batches:
            insort(self._first_offsets, batch.first_offset)
        self._batches[batch.first_offset] = batch

    def _remove_below(self, offset: int) -> None:
        """Remove the batches that begin below an offset."""
        slot = bisect_left(self._first_offsets, offset)
        for first_offset in self._first_offsets[:slot]:
            del self._batches[first_offset]
        del self._first_offsets[:slot]

    def live_count(self, first_offset: int, last_offset: int) -> int:
        """Return how many of the offsets are at or above the start offset."""
        return max(0, last_offset - max(first_offset, self.start_offset) + 1)

    # ---------------------------------------------------------------------------------------------------- initial state

    def restore(self, start_offset: int, batches: Sequence[StateBatch]) -> None:
        """Begin with a persisted state. Raises ValueError for a batch below the start offset."""
        self.start_offset = self.end_offset = start_offset
        gap_offset, last_offset = None, start_offset - 1
        for batch in batches:
            if batch.first_offset < start_offset:
                raise ValueError(f"the persisted batch at {batch.first_offset} is below the start offset {start_offset}")
            if gap_offset is None and batch.first_offset > last_offset + 1:
                gap_offset = last_offset + 1
            last_offset = batch.last_offset
            state = RecordState(batch.delivery_state)
            whole = InFlightState(state, batch.delivery_count, NO_MEMBER)
            self.add(InFlightBatch(batch.first_offset, batch.last_offset, whole))
            if state.is_terminal:
                self.delivery_complete_count += batch.last_offset - batch.first_offset + 1
        if batches:
            self.may_have_available = True
            self.end_offset = last_offset
            if gap_offset is not None:
                self.gap = GapWindow(gap_offset, last_offset)
            self.advance()

    @property
    def active_gap(self) -> GapWindow | None:
        """The gap window while no record after it was acquired."""
        return self.gap if self.gap is not None and self.gap.end_offset == self.end_offset else None

    def narrow_gap(self, offset: int) -> None:
        """Note that the gaps below an offset were acquired."""
        if self.gap is None:
            return
        if self.gap.end_offset == self.end_offset and offset <= self.gap.end_offset:
            self.gap.start_offset = offset
        else:
            self.gap = None

    # ------------------------------------------------------------------------------------------------------- next fetch

    def next_fetch_offset(self) -> int:
        """Return the offset from which the next records are to be fetched."""
        last = self.last
        if last is None or self.start_offset > last.last_offset:
            self.may_have_available = False
            return self.end_offset
        if not self.may_have_available:
            return self.end_offset + 1
        gap = self.active_gap
        gap_offset = -1 if gap is None else gap.start_offset
        for batch in self:
            if gap is not None:
                if batch.first_offset > gap_offset:
                    return gap_offset
                gap_offset = max(batch.last_offset + 1, gap_offset)
            found = batch.first_acquirable()
            if found is not None:
                return found
        self.may_have_available = False
        return self.end_offset + 1

    # --------------------------------------------------------------------------------------------------------- archiving

    def archive(
        self, first_offset: int, end_offset: int, batches: Iterable[InFlightBatch], state: RecordState, *, is_counted: bool
    ) -> bool:
        """Archive the records of `batches` in [first_offset, end_offset) that have a state; return whether there are any."""
        is_any = False
        for batch in batches:
            if batch.first_offset >= end_offset:
                break
            whole = batch.whole
            if whole is not None and whole.state is not state:
                continue
            if not batch.is_within(first_offset, end_offset - 1):
                batch.is_split = True
            for run in batch.matching(lambda found: found.state is state, first_offset, end_offset - 1):
                batch.isolate(run.first_offset, run.last_offset).archive()
                batch.changed(run.first_offset)
                is_any = True
                if is_counted:
                    self.delivery_complete_count += run.record_count
        return is_any

    def archive_missing(self, fetch_offset: int, base_offset: int) -> None:
        """Archive available records that a fetch from `fetch_offset` did not find: compaction has removed them.

        `base_offset` is that of the first batch found.
        """
        if not self._batches or fetch_offset >= base_offset:
            return
        batches = self.overlapping(fetch_offset, base_offset - 1)
        if self.archive(fetch_offset, base_offset, batches, AVAILABLE, is_counted=True):
            self.may_have_available = True

    def log_start_moved(self, log_start_offset: int) -> None:
        """Move the start offset up to the log start offset. Acquired records stay so until their lock expires."""
        if log_start_offset <= self.start_offset:
            return
        if not self._batches:
            self.start_offset = self.end_offset = log_start_offset
            self.delivery_complete_count = 0
            return
        removed = self._terminal_count_below(log_start_offset)
        if self.archive(self.start_offset, log_start_offset, self, AVAILABLE, is_counted=False):
            self.may_have_available = True
        self.start_offset = log_start_offset
        self.delivery_complete_count -= removed
        self.end_offset = max(self.end_offset, log_start_offset)

    def _terminal_count_below(self, offset: int) -> int:
        """Return the number of acknowledged and archived records from the start offset to an offset."""
        count = 0
        for batch in self:
            if batch.first_offset >= offset:
                break
            found = batch.matching(lambda found: found.state.is_terminal, self.start_offset, offset - 1)
            count += sum(run.record_count for run in found)
        return count

    # ---------------------------------------------------------------------------------------------------- start offset

    def advance(self) -> bool:
        """Move the start offset beyond the acknowledged and archived records at the front; return whether it can move."""
        if not self._may_advance():
            return False
        offset, count = self._last_terminal()
        last = self.last
        if offset is None or last is None:
            return False
        if offset == last.last_offset:
            self.start_offset = self.end_offset = max(self.start_offset, offset + 1)
            self.delivery_complete_count = 0
            self._remove_below(offset + 1)
            return True
        batch = self.floor(offset)
        assert batch is not None
        if offset == batch.last_offset:
            following = self._first_offsets[bisect_right(self._first_offsets, offset)]
            self.start_offset = max(self.start_offset, following)
            gap = self.active_gap
            if gap is not None:
                self.start_offset = min(gap.start_offset, self.start_offset)
            self._remove_below(following)
        else:
            self.start_offset = max(self.start_offset, offset + 1)
            self._remove_below(batch.first_offset)
        self.delivery_complete_count -= count
        return True

    def _may_advance(self) -> bool:
        """Return whether the record at the start offset is acknowledged or archived for good; a gap there is not."""
        batch = self.floor(self.start_offset)
        if batch is None:
            return False
        state = batch.state_at(min(self.start_offset, batch.last_offset))
        return state.is_final

    def _last_terminal(self) -> tuple[int | None, int]:
        """Return the end of the run of acknowledged and archived records at the front, and how many are counted."""
        offset: int | None = None
        count, gap = 0, self.active_gap
        for batch in self:
            if gap is not None and batch.last_offset >= gap.start_offset:
                break
            final = batch.final_count()
            if final:
                offset = batch.first_offset + final - 1
                count += self.live_count(batch.first_offset, offset)
            if final < batch.count:
                break
        return offset, count


def merged(batches: Iterable[StateBatch]) -> tuple[StateBatch, ...]:
    """Return batches with neighbours of the same state and delivery count as one."""
    found: list[StateBatch] = []
    for batch in batches:
        if found and found[-1].last_offset + 1 == batch.first_offset and found[-1][2:] == batch[2:]:
            found[-1] = found[-1]._replace(last_offset=batch.last_offset)
        else:
            found.append(batch)
    return tuple(found)


def state_batch(first_offset: int, last_offset: int, state: InFlightState) -> StateBatch:
    """Return what the persister is to write for records with a state."""
    return StateBatch(first_offset, last_offset, int(state.state), state.delivery_count)
