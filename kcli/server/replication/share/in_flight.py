"""The states of records in flight in a share partition, and the locks of those that members hold (Kafka: InFlightState).

    state          the records                                                    next
    -------------  -------------------------------------------------------------  ----------------------------------
    AVAILABLE      may be delivered (again)                                       ACQUIRED
    ACQUIRED       are with a member, until it acknowledges them or its lock      AVAILABLE, ACKNOWLEDGED, ARCHIVING,
                   expires                                                        ARCHIVED
    ACKNOWLEDGED   were accepted                                                  none
    ARCHIVING      were rejected, or delivered too often, and are being written   ARCHIVED
                   to the dead letter queue of the group
    ARCHIVED       were rejected, delivered too often, deleted, or do not exist   none

A transition that a member requests counts when the persister has written it. Until then the state is the new one, the
transition is ongoing, and nothing else may change it; a failed write rolls it back.
"""

from __future__ import annotations

from enum import IntEnum

from kcli.network.timing_wheel import TimerTask

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
    """The state of consecutive records of a batch."""

    __slots__ = ("_is_archived_for_good", "_rollback", "delivery_count", "lock", "member_id", "state")

    def __init__(self, state: RecordState, delivery_count: int, member_id: str, lock: AcquisitionLock | None = None) -> None:
        self.state = state
        self.delivery_count = delivery_count
        self.member_id = member_id
        self.lock = lock
        # The state and member before an ongoing transition, and the delivery count limit at its time.
        self._rollback: tuple[RecordState, str, int] | None = None
        self._is_archived_for_good = False
        if lock is not None:
            lock.users += 1

    def copy(self) -> InFlightState:
        """Return the same state for a part of the records; its lock has one more user."""
        made = InFlightState(self.state, self.delivery_count, self.member_id, self.lock)
        made._rollback = self._rollback
        made._is_archived_for_good = self._is_archived_for_good
        return made

    def is_equal(self, other: InFlightState) -> bool:
        """Return whether the records of both states may have one; not while a transition is ongoing."""
        return (
            self.state is other.state
            and self._rollback is None
            and other._rollback is None
            and self.lock is other.lock
            and self.delivery_count == other.delivery_count
            and self.member_id == other.member_id
        )

    def join(self) -> None:
        """Leave the records to an equal state of neighbours, which has the same lock."""
        if self.lock is not None:
            self.lock.users -= 1

    @property
    def is_in_transition(self) -> bool:
        """Whether a transition is not written yet."""
        return self._rollback is not None

    @property
    def is_final(self) -> bool:
        """Whether the records are acknowledged or archived, and that is written: the state never changes again."""
        return self._rollback is None and (self.state is ACKNOWLEDGED or self.state is ARCHIVED)

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
