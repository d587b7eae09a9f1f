"""A batch of records in flight in a share partition, and the states of its records (Kafka: InFlightBatch, InFlightState).

    state          the records                                                    next
    -------------  -------------------------------------------------------------  ----------------------------------
    AVAILABLE      may be delivered (again)                                       ACQUIRED
    ACQUIRED       are with a member, until it acknowledges them or its lock      AVAILABLE, ACKNOWLEDGED, ARCHIVING,
                   expires                                                        ARCHIVED
    ACKNOWLEDGED   were accepted                                                  none
    ARCHIVING      were rejected, or delivered too often, and are being written   ARCHIVED
                   to the dead letter queue of the group
    ARCHIVED       were rejected, delivered too often, deleted, or do not exist   none

A batch has one state for all of its records until one of them gets another; then each offset has a state of its own.
A transition that a member requests counts when the persister has written it. Until then the state is the new one, the
transition is ongoing, and nothing else may change it; a failed write rolls it back.
"""

from __future__ import annotations

from enum import IntEnum

from kcli.server.timing_wheel import TimerTask

NO_MEMBER = ""


class RecordState(IntEnum):
    """The delivery state of a record, by its number in the share coordinator's records."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4

    @property
    def is_terminal(self) -> bool:
        """Whether the record is never delivered again."""
        return self is RecordState.ACKNOWLEDGED or self is RecordState.ARCHIVED


AVAILABLE = RecordState.AVAILABLE
ACQUIRED = RecordState.ACQUIRED
ACKNOWLEDGED = RecordState.ACKNOWLEDGED
ARCHIVING = RecordState.ARCHIVING
ARCHIVED = RecordState.ARCHIVED


class AcquisitionLock:
    """The time until which a member holds records of first_offset..last_offset that it acquired together.

    Each state that the lock protects is one of its `users`; without any the timer's task is cancelled.
    """

    __slots__ = ("first_offset", "has_expired", "last_offset", "task", "users")

    def __init__(self, first_offset: int, last_offset: int) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.has_expired = False
        self.users = 0
        self.task: TimerTask | None = None


class InFlightState:
    """The state of a batch or of one of its records."""

    __slots__ = ("_is_archived_for_good", "_rollback", "delivery_count", "lock", "member_id", "state")

    def __init__(self, state: RecordState, delivery_count: int, member_id: str, lock: AcquisitionLock | None = None) -> None:
        self.state = state
        self.delivery_count = delivery_count
        self.member_id = member_id
        self.lock: AcquisitionLock | None = None
        # The state and member before an ongoing transition, and the delivery count limit at its time.
        self._rollback: tuple[RecordState, str, int] | None = None
        self._is_archived_for_good = False
        if lock is not None:
            self.hold(lock)

    @property
    def is_in_transition(self) -> bool:
        """Whether a transition is not written yet."""
        return self._rollback is not None

    @property
    def is_final(self) -> bool:
        """Whether the records are acknowledged or archived, and that is written: the state never changes again."""
        return self._rollback is None and self.state.is_terminal

    @property
    def is_acquirable(self) -> bool:
        """Whether a member may acquire the records now."""
        return self.state is AVAILABLE and self._rollback is None

    def hold(self, lock: AcquisitionLock) -> None:
        """Protect the records by a lock, instead of by the one that they have."""
        self.release()
        self.lock = lock
        lock.users += 1

    def release(self) -> None:
        """Give the lock back, if there is one."""
        lock, self.lock = self.lock, None
        if lock is not None:
            lock.users -= 1
            if lock.users == 0 and lock.task is not None:
                lock.task.cancel()

    def update(self, state: RecordState, most_deliveries: int, member_id: str, exhausted: RecordState = ARCHIVED) -> bool:
        """Change the state at once; return False if it may not change so. An acquisition counts as a delivery.

        Records that have been delivered `most_deliveries` times become `exhausted` instead of available.
        """
        if self._rollback is not None:
            return False
        if state is AVAILABLE and self.delivery_count >= most_deliveries:
            state = exhausted
        if state is self.state or self.state.is_terminal or (self.state is AVAILABLE and state is not ACQUIRED):
            return False
        self.state = state
        self.member_id = member_id
        if state is ACQUIRED:
            self.delivery_count += 1
        return True

    def begin_transition(self, state: RecordState, most_deliveries: int, exhausted: RecordState = ARCHIVED) -> bool:
        """Begin a transition from ACQUIRED, after which no member has the records; return False if there is none such."""
        before = (self.state, self.member_id, most_deliveries)
        if not self.update(state, most_deliveries, NO_MEMBER, exhausted):
            return False
        self._rollback = before
        return True

    def end_transition(self, *, is_written: bool) -> None:
        """End the transition, or roll it back; if the lock has expired while it ran, the records become available."""
        rollback, self._rollback = self._rollback, None
        if is_written or self._is_archived_for_good or rollback is None:
            self.release()
            return
        state, member_id, most_deliveries = rollback
        if self.lock is not None and self.lock.has_expired:
            self.state = ARCHIVED if self.delivery_count >= most_deliveries else AVAILABLE
            self.member_id = NO_MEMBER
            self.release()
        else:
            self.state = state
            self.member_id = member_id

    def archive(self) -> None:
        """Archive the records whatever their state is; a transition that fails later does not revive them."""
        self._is_archived_for_good = True
        self.state = ARCHIVED
        self.member_id = NO_MEMBER
        self.release()


class InFlightBatch:
    """The records first_offset..last_offset. `whole` is their state, or `offsets` has the state of each of them."""

    __slots__ = ("_final_count", "first_offset", "last_offset", "offsets", "whole")

    def __init__(self, first_offset: int, last_offset: int, whole: InFlightState) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.whole: InFlightState | None = whole
        self.offsets: list[InFlightState] = []
        self._final_count = 0  # of the first offsets with a state of their own

    @property
    def count(self) -> int:
        """The number of offsets."""
        return self.last_offset - self.first_offset + 1

    def is_within(self, first_offset: int, last_offset: int) -> bool:
        """Return whether all offsets of the batch are in first_offset..last_offset."""
        return self.first_offset >= first_offset and self.last_offset <= last_offset

    def state_at(self, offset: int) -> InFlightState:
        """Return the state of the record at `offset`, which the batch has."""
        return self.whole if self.whole is not None else self.offsets[offset - self.first_offset]

    def final_count(self) -> int:
        """Return how many records at the front have a final state; each is counted once only."""
        if self.whole is not None:
            return self.count if self.whole.is_final else 0
        count, offsets = self._final_count, self.offsets
        while count < len(offsets) and offsets[count].is_final:
            count += 1
        self._final_count = count
        return count

    def split(self) -> list[InFlightState]:
        """Give each offset a state of its own, with the lock of the batch, and return them."""
        whole, self.whole = self.whole, None
        if whole is not None:
            state, count, member_id, lock = whole.state, whole.delivery_count, whole.member_id, whole.lock
            self.offsets = [InFlightState(state, count, member_id, lock) for _ in range(self.count)]
            whole.release()
        return self.offsets

    def split_after(self, last_acquired_offset: int) -> None:
        """Give each offset of a batch that was acquired for the first time its state; those after an offset are available."""
        for offset, state in enumerate(self.split(), self.first_offset):
            if offset > last_acquired_offset:
                state.release()
                state.state = AVAILABLE
                state.delivery_count -= 1
                state.member_id = NO_MEMBER

    def states(self, first_offset: int, last_offset: int) -> list[tuple[int, InFlightState]]:
        """Return the offsets in first_offset..last_offset that have a state of their own, with it."""
        start = max(0, first_offset - self.first_offset)
        end = max(0, last_offset - self.first_offset + 1)
        return list(enumerate(self.offsets[start:end], self.first_offset + start))

    def first_acquirable(self) -> int | None:
        """Return the first offset that may be acquired now, None if there is none."""
        if self.whole is not None:
            return self.first_offset if self.whole.is_acquirable else None
        return next((offset for offset, state in enumerate(self.offsets, self.first_offset) if state.is_acquirable), None)
