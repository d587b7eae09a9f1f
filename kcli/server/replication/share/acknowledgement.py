"""Acknowledgements of acquired records, releases, and expired locks (Kafka: SharePartition.acknowledge and the like).

    type  name     the records become                             needs
    ----  -------  ---------------------------------------------  ----------------------------------------------------------
    0     gap      archived: the log has no records there
    1     accept   acknowledged
    2     release  available, or archived after the last delivery
    3     reject   archived, or archiving if the group has a dead letter
                   queue
    4     renew    acquired for another lock duration             share.renew.acknowledge.enable

A batch of acknowledgements has one type for all of its offsets, or one for each. The records must be acquired by the member,
and no other transition of them may be ongoing: INVALID_RECORD_STATE. Offsets that were never acquired: INVALID_REQUEST. Offsets
below the start offset are skipped. After an error none of the batches of the request counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from kcli.protocol import error_codes
from kcli.server.replication.share.in_flight import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    NO_MEMBER,
    AcquisitionLock,
    InFlightState,
    RecordState,
)
from kcli.server.replication.share.in_flight_batch import InFlightBatch
from kcli.server.replication.share.in_flight_records import InFlightRecords, state_batch
from kcli.server.replication.share.state_runs import StateRun
from kcli.state.share_group_state import StateBatch

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
_STATES = {GAP: ARCHIVED, ACCEPT: ACKNOWLEDGED, RELEASE: AVAILABLE}


class ShareError(NamedTuple):
    """Why a share partition refuses a request: Kafka's code, and a sentence if the client gets one."""

    code: int
    message: str | None = None


class AcknowledgementBatch(NamedTuple):
    """Acknowledgements of first_offset..last_offset: one type, or one for each offset."""

    first_offset: int
    last_offset: int
    types: Sequence[int]

    def runs(self, first_offset: int, last_offset: int) -> Iterator[AcknowledgementBatch]:
        """Yield parts with one type each, which have all of the offsets that are in first_offset..last_offset.

        A client that acknowledges record by record sends a type for each offset, mostly the same; a run costs one step.
        """
        if len(self.types) == 1 or last_offset < self.first_offset:
            yield self
            return
        first = max(first_offset, self.first_offset)
        for kind, run in groupby(self.types[first - self.first_offset : last_offset - self.first_offset + 1]):
            following = first + len(list(run))
            yield AcknowledgementBatch(first, following - 1, (kind,))
            first = following


class Transition(NamedTuple):
    """An ongoing transition of records in flight, and what the persister is to write for it; `is_rejected` by a member."""

    known: InFlightBatch
    batch: StateBatch
    is_rejected: bool


class Transitions:
    """The transitions of one request; `error` is why the request fails, if it does."""

    def __init__(self, records: InFlightRecords, most_deliveries: int, *, has_dead_letters: bool) -> None:
        self._records = records
        self._most_deliveries = most_deliveries
        self._dead = ARCHIVING if has_dead_letters else ARCHIVED
        self.begun: list[Transition] = []
        self.error: ShareError | None = None

    def _refuse(self, code: int, message: str) -> bool:
        self.error = ShareError(code, message)
        return False

    def _refuse_state(self, message: str) -> bool:
        return self._refuse(error_codes.INVALID_RECORD_STATE, message)

    def _begin(self, known: InFlightBatch, run: StateRun, wanted: RecordState) -> bool:
        """Begin a transition of a run of a batch."""
        state = known.isolate(run.first_offset, run.last_offset)
        if not state.begin_transition(wanted, self._most_deliveries, self._dead):
            return self._refuse_state(f"offset {run.first_offset} cannot become {wanted.name.lower()}")
        written = state_batch(run.first_offset, run.last_offset, state)
        self.begun.append(Transition(known, written, wanted is ARCHIVING))
        if state.state.is_terminal:
            self._records.delivery_complete_count += self._records.live_count(run.first_offset, run.last_offset)
        return True

    def end(self, *, is_written: bool) -> bool:
        """End all transitions, or roll them back; return whether records have become available.

        The records of a transition are more than one run if some of them were archived while it ran.
        """
        records, is_any_available = self._records, False
        for known, batch, _ in self.begun:
            for first_offset, last_offset, state in known.runs(batch.first_offset, batch.last_offset):
                state.end_transition(is_written=is_written)
                if state.state is AVAILABLE:
                    records.may_have_available = is_any_available = True
                if not is_written and RecordState(batch.delivery_state).is_terminal and not state.state.is_terminal:
                    records.delivery_complete_count -= records.live_count(first_offset, last_offset)
                known.changed(first_offset)
        return is_any_available

    # ---------------------------------------------------------------------------------------------- acknowledgements

    def acknowledge(
        self, member_id: str, batches: Sequence[AcknowledgementBatch], renew: Callable[[int, int], AcquisitionLock] | None
    ) -> None:
        """Begin the transitions of a member's acknowledgements; `renew` begins a new lock, None if the group may not renew."""
        for batch in batches:
            if min(batch.types) < GAP or max(batch.types) > RENEW:
                self._refuse(error_codes.INVALID_REQUEST, f"acknowledge types are 0 to 4, not {list(batch.types)}")
                return
            if batch.last_offset < self._records.start_offset:
                continue
            for known in self._find(batch):
                if known.last_offset < self._records.start_offset:
                    continue
                for run in batch.runs(known.first_offset, known.last_offset):
                    if not self._acknowledge(member_id, run, known, renew):
                        return
            if self.error is not None:
                return

    def _wanted(self, kind: int) -> RecordState:
        return self._dead if kind == REJECT else _STATES[kind]

    def _find(self, batch: AcknowledgementBatch) -> list[InFlightBatch]:
        """Return the batches in flight that acknowledgements are for; none, and the error, if they are not all in flight."""
        records = self._records
        floor = records.floor(batch.first_offset)
        if floor is None and batch.first_offset < records.start_offset <= batch.last_offset:
            floor = records.floor(records.start_offset)
        offsets = f"offsets {batch.first_offset} to {batch.last_offset}"
        if floor is None:
            self._refuse_state(f"{offsets} are not in flight")
            return []
        found = records.beginning_in(floor.first_offset, batch.last_offset)
        if not batch.first_offset <= batch.last_offset <= found[-1].last_offset:
            self._refuse(error_codes.INVALID_REQUEST, f"{offsets} are beyond the acquired records")
            return []
        return found

    def _acknowledge(
        self,
        member_id: str,
        run: AcknowledgementBatch,
        known: InFlightBatch,
        renew: Callable[[int, int], AcquisitionLock] | None,
    ) -> bool:
        """Begin the transitions that a run asks for in one batch in flight; return False after an error."""
        kind = run.types[0]
        whole = known.whole
        if whole is not None:
            if not self._check_owner(whole, member_id, known.first_offset) or not self._check_idle(whole, known.first_offset):
                return False
            is_at_start = known.first_offset < self._records.start_offset
            if known.is_within(run.first_offset, run.last_offset) and not is_at_start:
                return self._acknowledge_whole(known, whole, kind, renew)
            if whole.state is not ACQUIRED:
                return self._refuse_state(f"the batch at offset {known.first_offset} is not acquired")
            known.is_split = True
        renewed: AcquisitionLock | None = None
        for part in known.runs(max(run.first_offset, self._records.start_offset), run.last_offset):
            offset, state = part.first_offset, part.state
            if state.state is not ACQUIRED:
                return self._refuse_state(f"offset {offset} is not acquired")
            if not self._check_idle(state, offset) or not self._check_owner(state, member_id, offset):
                return False
            if kind != RENEW:
                if not self._begin(known, part, self._wanted(kind)):
                    return False
                continue
            if renew is None:
                return self._refuse_renewal()
            if renewed is None:
                renewed = renew(offset, min(run.last_offset, known.last_offset))
            known.isolate(offset, part.last_offset).hold(renewed)
            known.changed(offset)
        return True

    def _acknowledge_whole(
        self, known: InFlightBatch, whole: InFlightState, kind: int, renew: Callable[[int, int], AcquisitionLock] | None
    ) -> bool:
        if whole.state is not ACQUIRED:
            return self._refuse_state(f"the batch at offset {known.first_offset} is not acquired")
        if kind != RENEW:
            return self._begin(known, StateRun(known.first_offset, known.last_offset, whole), self._wanted(kind))
        if renew is None:
            return self._refuse_renewal()
        whole.hold(renew(known.first_offset, known.last_offset))
        return True

    def _refuse_renewal(self) -> bool:
        return self._refuse_state("the group may not renew acquisition locks (share.renew.acknowledge.enable)")

    def _check_owner(self, state: InFlightState, member_id: str, offset: int) -> bool:
        if state.member_id == member_id:
            return True
        if state.member_id == NO_MEMBER:
            return self._refuse_state(f"offset {offset} is not acquired")
        return self._refuse_state(f"offset {offset} is acquired by another member")

    def _check_idle(self, state: InFlightState, offset: int) -> bool:
        return not state.is_in_transition or self._refuse_state(f"another acknowledgement of {offset} is being written")

    # ------------------------------------------------------------------------------------------------------- release

    def release(self, member_id: str) -> None:
        """Begin to make the records of a member available again; those below the start offset are archived."""
        start_offset = self._records.start_offset

        def is_with_member(state: InFlightState) -> bool:
            return state.state is ACQUIRED and state.member_id == member_id

        for batch in self._records:
            for run in batch.matching(is_with_member, batch.first_offset, batch.last_offset):
                for part in run.cut(start_offset):
                    wanted = ARCHIVED if part.last_offset < start_offset else AVAILABLE
                    if not self._begin(batch, part, wanted):
                        return


def release_expired(
    records: InFlightRecords, lock: AcquisitionLock, most_deliveries: int, *, has_dead_letters: bool
) -> list[StateBatch]:
    """Make the records of an expired lock available again, or archive them; return what the persister is to write.

    Records with an ongoing transition follow if it is rolled back.
    """
    released: list[StateBatch] = []
    start_offset = records.start_offset

    def is_locked(state: InFlightState) -> bool:
        return state.lock is lock and state.state is ACQUIRED

    for batch in records.overlapping(lock.first_offset, lock.last_offset):
        for run in batch.matching(is_locked, lock.first_offset, lock.last_offset):
            for part in run.cut(start_offset):
                offset, last_offset, _ = part
                state = batch.isolate(offset, last_offset)
                wanted = ARCHIVED if last_offset < start_offset else AVAILABLE
                if not state.update(wanted, most_deliveries, NO_MEMBER, ARCHIVING if has_dead_letters else ARCHIVED):
                    continue
                state.release()
                released.append(state_batch(offset, last_offset, state))
                if state.state is AVAILABLE:
                    records.may_have_available = True
                elif state.state is not ARCHIVING:
                    records.delivery_complete_count += records.live_count(offset, last_offset)
                batch.changed(offset)
    return released
