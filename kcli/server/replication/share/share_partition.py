"""A partition that members of a share group read together, on the leader of the partition (KIP-932; Kafka: SharePartition).

    state         a fetch
    ------------  -----------------------------------------------------------------------------------------------------
    EMPTY         has the state read from the persister
    INITIALIZING  waits
    ACTIVE        is served
    FAILED        failed to read the state; the partition is removed, and the next fetch makes another
    FENCED        is removed: the leader has changed, the topic is deleted, the group is empty, or the persister has refused
                  this leader

Each change of delivery states is written to the persister. An acknowledgement or a release counts when it is written; if the
write fails, it is rolled back. The expiry of a lock counts at once, whether it can be written or not. A fenced partition writes
no expiries: the state may belong to a successor. Records that are ARCHIVING go to the dead letter queue once that is written; a
successor that reads this state sends them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial

from kcli.format.index_entries import AbortedTxn
from kcli.network.timing_wheel import Timer
from kcli.protocol import error_codes
from kcli.server.config.group_config import ShareGroupConfig
from kcli.server.replication.share.acknowledgement import (
    AcknowledgementBatch,
    ShareError,
    Transitions,
    release_expired,
)
from kcli.server.replication.share.acquisition import (
    AcquiredRecords,
    AcquireLimits,
    AcquireRequest,
    Acquisition,
    FetchedBatch,
    archive_aborted,
)
from kcli.server.replication.share.dead_letters import DELIVERED_TOO_OFTEN, REJECTED, DeadLetterQueue, DeadLetters
from kcli.server.replication.share.in_flight import ARCHIVED, ARCHIVING, AcquisitionLock
from kcli.server.replication.share.in_flight_records import InFlightRecords, merged
from kcli.server.replication.share_persister import ShareKey, SharePersister, ShareState, ShareUpdateBatches
from kcli.state.share_group_state import StateBatch

NO_START_OFFSET = -1
# The errors of the persister that clients get as they are, or as another; all others are UNKNOWN_SERVER_ERROR.
_PERSISTER_ERRORS = {
    error_codes.NOT_COORDINATOR: error_codes.COORDINATOR_NOT_AVAILABLE,
    error_codes.COORDINATOR_NOT_AVAILABLE: error_codes.COORDINATOR_NOT_AVAILABLE,
    error_codes.COORDINATOR_LOAD_IN_PROGRESS: error_codes.COORDINATOR_NOT_AVAILABLE,
    error_codes.GROUP_ID_NOT_FOUND: error_codes.GROUP_ID_NOT_FOUND,
    error_codes.UNKNOWN_TOPIC_OR_PARTITION: error_codes.UNKNOWN_TOPIC_OR_PARTITION,
    error_codes.FENCED_LEADER_EPOCH: error_codes.NOT_LEADER_OR_FOLLOWER,
    error_codes.FENCED_STATE_EPOCH: error_codes.NOT_LEADER_OR_FOLLOWER,
}

Done = Callable[[ShareError | None], None]
# Finds where a group without a start offset begins in the partition, and calls the function with it.
FindStart = Callable[[Callable[[int | ShareError], None]], None]


class ShareStatus(Enum):
    """The states of a share partition."""

    EMPTY = "empty"
    INITIALIZING = "initializing"
    ACTIVE = "active"
    FAILED = "failed"
    FENCED = "fenced"


class SharePartition:
    """The share partition of one group; `changed()` is called when records became available, or the start offset moved."""

    def __init__(
        self,
        key: ShareKey,
        topic: str,
        leader_epoch: int,
        config: ShareGroupConfig,
        persister: SharePersister,
        timer: Timer,
        find_start: FindStart,
        changed: Callable[[], None],
        dead_letters: DeadLetterQueue,
    ) -> None:
        self.key = key
        self.topic = topic
        self.leader_epoch = leader_epoch
        self.status = ShareStatus.EMPTY
        self.records = InFlightRecords()
        self._config = config
        self._persister = persister
        self._timer = timer
        self._find_start = find_start
        self._changed = changed
        self._dead_letters = dead_letters
        self.lock_timeout_count = 0  # of records, for the metrics
        self._state_epoch = 0

    @property
    def _most_deliveries(self) -> int:
        return self._config.delivery_count_limit(self.key.group_id)

    # -------------------------------------------------------------------------------------------------- initialization

    def initialize(self, done: Done) -> None:
        """Read the state if that was not done; `done` gets LEADER_NOT_AVAILABLE if it is being read for another request."""
        if self.status is ShareStatus.ACTIVE:
            done(None)
        elif self.status in (ShareStatus.INITIALIZING, ShareStatus.FENCED):
            done(ShareError(error_codes.LEADER_NOT_AVAILABLE, f"the share partition is {self.status.value}"))
        elif self.status is ShareStatus.FAILED:
            done(ShareError(error_codes.UNKNOWN_SERVER_ERROR, "the state of the share partition could not be read"))
        else:
            self.status = ShareStatus.INITIALIZING
            self._persister.read(self.key, self.leader_epoch, partial(self._read, done))

    def _read(self, done: Done, result: ShareState | int) -> None:
        if self.status is not ShareStatus.INITIALIZING:
            done(ShareError(error_codes.LEADER_NOT_AVAILABLE, "the share partition is fenced"))
        elif isinstance(result, int):
            self._fail(done, _persister_error(result))
        elif result.start_offset == NO_START_OFFSET:
            self._find_start(partial(self._begin, done, result))
        else:
            self._begin(done, result, result.start_offset)

    def _begin(self, done: Done, state: ShareState, start_offset: int | ShareError) -> None:
        if self.status is not ShareStatus.INITIALIZING:
            done(ShareError(error_codes.LEADER_NOT_AVAILABLE, "the share partition is fenced"))
            return
        if isinstance(start_offset, ShareError):
            self._fail(done, start_offset)
            return
        self._state_epoch = state.state_epoch
        try:
            self.records.restore(start_offset, state.batches)
        except ValueError as error:
            self._fail(done, ShareError(error_codes.UNKNOWN_SERVER_ERROR, str(error)))
            return
        self.status = ShareStatus.ACTIVE
        done(None)
        for batch in state.batches:
            if batch.delivery_state == ARCHIVING:
                is_exhausted = batch.delivery_count >= self._most_deliveries
                self._bury([batch], DELIVERED_TOO_OFTEN if is_exhausted else REJECTED)

    def _fail(self, done: Done, error: ShareError) -> None:
        self.status = ShareStatus.FAILED
        done(error)

    def fence(self) -> None:
        """Stop serving: nothing is acquired any more."""
        self.status = ShareStatus.FENCED

    # ----------------------------------------------------------------------------------------------------------- fetch

    @property
    def can_acquire(self) -> bool:
        """Whether records may be fetched: some in flight may be available, or there may be more in flight."""
        if self.status is not ShareStatus.ACTIVE:
            return False
        records = self.records
        if records.next_fetch_offset() != records.end_offset + 1:
            return True
        return records.record_count < self._config.max_record_locks(self.key.group_id)

    def acquire(
        self, request: AcquireRequest, batches: Sequence[FetchedBatch], aborted: Sequence[AbortedTxn]
    ) -> list[AcquiredRecords]:
        """Acquire records of fetched batches for a member; those of the aborted transactions are archived instead."""
        if self.status is not ShareStatus.ACTIVE or request.max_records <= 0:
            return []
        limits = AcquireLimits(self._config.max_record_locks(self.key.group_id), self._most_deliveries)
        acquired = Acquisition(self.records, request, limits, self._make_lock).acquire(batches)
        return archive_aborted(self.records, batches, aborted, acquired) if aborted else acquired

    def log_start_moved(self, log_start_offset: int) -> None:
        """Follow the log start offset."""
        self.records.log_start_moved(log_start_offset)

    # --------------------------------------------------------------------------------------------------- acknowledgement

    def acknowledge(self, member_id: str, batches: Sequence[AcknowledgementBatch], done: Done) -> None:
        """Acknowledge records of a member; `done` is called when the persister has written it."""
        transitions = Transitions(self.records, self._most_deliveries, has_dead_letters=self._has_dead_letters)
        may_renew = self._config.is_renew_enabled(self.key.group_id)
        transitions.acknowledge(member_id, batches, self._make_lock if may_renew else None)
        self._write_transitions(transitions, done)

    def release(self, member_id: str, done: Done) -> None:
        """Release the records of a member that has left."""
        transitions = Transitions(self.records, self._most_deliveries, has_dead_letters=self._has_dead_letters)
        transitions.release(member_id)
        self._write_transitions(transitions, done)

    def _write_transitions(self, transitions: Transitions, done: Done) -> None:
        if transitions.error is not None:
            transitions.end(is_written=False)
            done(transitions.error)
        elif not transitions.begun:
            done(None)
        else:
            self._write([begun.batch for begun in transitions.begun], partial(self._written, transitions, done))

    def _written(self, transitions: Transitions, done: Done, error: ShareError | None) -> None:
        has_changed = transitions.end(is_written=error is None)
        if error is None:
            has_changed |= self.records.advance()
        done(error)
        if has_changed:
            self._changed()
        if error is None:
            for is_rejected, cause in ((True, REJECTED), (False, DELIVERED_TOO_OFTEN)):
                self._bury([begun.batch for begun in transitions.begun if begun.is_rejected is is_rejected], cause)

    def _write(self, batches: Sequence[StateBatch], done: Done) -> None:
        records = self.records
        update = ShareUpdateBatches(
            self._state_epoch, self.leader_epoch, records.start_offset, records.delivery_complete_count, merged(batches)
        )

        def written(code: int) -> None:
            done(None if code == error_codes.NONE else _persister_error(code))

        self._persister.write(self.key, update, written)

    # ----------------------------------------------------------------------------------------------------------- locks

    def _make_lock(self, first_offset: int, last_offset: int) -> AcquisitionLock:
        lock = AcquisitionLock(first_offset, last_offset)
        expiry_ms = self._timer.clock_ms + self._config.record_lock_duration_ms(self.key.group_id)
        lock.task = self._timer.schedule(expiry_ms, partial(self._expire, lock))
        return lock

    def _expire(self, lock: AcquisitionLock, now_ms: int) -> None:
        """Release the records of an expired lock, whether the persister can write it or not."""
        lock.has_expired = True
        if self.status is ShareStatus.FENCED:
            return
        released = release_expired(self.records, lock, self._most_deliveries, has_dead_letters=self._has_dead_letters)
        if released:
            self.lock_timeout_count += sum(batch.last_offset - batch.first_offset + 1 for batch in released)
            self._write(released, partial(self._expiry_written, released))
            self._changed()

    def _expiry_written(self, released: list[StateBatch], error: ShareError | None) -> None:
        self._advance()
        self._bury(released, DELIVERED_TOO_OFTEN)

    def _advance(self) -> None:
        if self.records.advance():
            self._changed()

    # ---------------------------------------------------------------------------------------------------- dead letters

    @property
    def _has_dead_letters(self) -> bool:
        return self._dead_letters.is_enabled(self.key.group_id)

    def _bury(self, batches: Iterable[StateBatch], cause: str) -> None:
        """Send the batches that are archiving to the dead letter queue."""
        for batch in merged(batch for batch in batches if batch.delivery_state == ARCHIVING):
            letters = DeadLetters(self.key, self.topic, batch.first_offset, batch.last_offset, batch.delivery_count, cause)
            self._dead_letters.enqueue(letters, partial(self._buried, batch))

    def _buried(self, batch: StateBatch) -> None:
        """Archive records that are in the dead letter queue, or cannot be.

        A fenced partition does so, too: otherwise its successor sends the records again.
        """
        records, first_offset, last_offset = self.records, batch.first_offset, batch.last_offset
        known = records.overlapping(first_offset, last_offset)
        if records.archive(first_offset, last_offset + 1, known, ARCHIVING, is_counted=False):
            records.delivery_complete_count += records.live_count(first_offset, last_offset)
            self._write([batch._replace(delivery_state=int(ARCHIVED))], lambda error: self._advance())


def _persister_error(code: int) -> ShareError:
    return ShareError(
        _PERSISTER_ERRORS.get(code, error_codes.UNKNOWN_SERVER_ERROR),
        f"the share coordinator answered {error_codes.NAMES.get(code, code)}",
    )
