"""The share partitions of one partition of __share_group_state (KIP-932; Kafka: ShareCoordinatorShard).

    operation     record                                            refused with
    ------------  ------------------------------------------------  ----------------------------------------------------------
    initialize    a snapshot, with the next snapshot epoch          FENCED_STATE_EPOCH: a lower state epoch than any before
    read          an update if the leader epoch is another one      INVALID_REQUEST: not initialized
                                                                    FENCED_LEADER_EPOCH: a lower leader epoch than any before
    write         an update; a snapshot after                       the same, and FENCED_STATE_EPOCH
                  share.coordinator.snapshot.update.records.per.snapshot updates
    read_summary  none
    delete        a tombstone of the snapshot, none if there is no state

    every operation refuses negative partitions (INVALID_REQUEST), and topics and partitions that do not exist
    (UNKNOWN_TOPIC_OR_PARTITION).

    of a request          in a cluster with the features of 4.4, as Kafka 4.4.0   before, as Kafka 4.3.1
    --------------------  ------------------------------------------------------  --------------------------------------
    an epoch below 0      is refused with INVALID_REQUEST                         -1 is not compared, others are fenced
    a start offset below  stays as in the state, with the count of records that   is recorded as it is in an update, and
    that of the state     are done (delivery_complete_count)                      in a snapshot unless it is -1
    the same start        the count does not go down                              the count is that of the request

A write keeps the leader epoch of the state: only a read changes it. Records that no state needs any more, which are those below
the oldest last snapshot of a share partition, are deleted from the start of the log every
share.coordinator.state.topic.prune.interval.ms. So that a share partition without changes does not hold its old snapshot there,
it gets a new one every share.coordinator.cold.partition.snapshot.interval.ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from kcli.network.timing_wheel import Timer, TimerTask
from kcli.protocol import error_codes
from kcli.protocol.message_types import message_type
from kcli.server.config.server_config import ConfigReader
from kcli.server.coordinator.coordinator_record import CoordinatorRecord, EndTransaction, ShardRecord
from kcli.server.coordinator.operation import CoordinatorError, Decision
from kcli.server.features import is_4_4
from kcli.server.metadata_cache import MetadataCache
from kcli.server.replication.share_persister import ShareKey, ShareState, ShareSummary, ShareUpdateBatches
from kcli.state.share_group_state import ShareGroupOffset, ShareGroupState, StateBatch, combine_batches
from kcli.state.state_error import StateError

_UPDATES_KEY = "share.coordinator.snapshot.update.records.per.snapshot"
_COLD_KEY = "share.coordinator.cold.partition.snapshot.interval.ms"
_PRUNE_KEY = "share.coordinator.state.topic.prune.interval.ms"
_NO_EPOCH = -1
_NO_OFFSET = -1
_UNKNOWN_COUNT = -1
_FENCED_BEFORE_4_4 = "The share coordinator rejected the request because the share-group state epoch did not match."
_SENTENCES = {
    error_codes.FENCED_LEADER_EPOCH: "The leader epoch in the request is older than the epoch on the broker.",
    error_codes.FENCED_STATE_EPOCH: "The coordinator rejected the request because the state epoch did not match.",
    error_codes.UNKNOWN_TOPIC_OR_PARTITION: "This server does not host this topic-partition.",
}


class ShareRefusal(CoordinatorError):
    """An operation that a shard refuses; other errors are those of the runtime."""


class ShardTasks(Protocol):
    """What a shard has its coordinator do from time to time."""

    written_count: int  # the written states, for the metrics

    def snapshot_cold_partitions(self, shard: ShareShard) -> None:
        """Write snapshots of the `cold_partitions`."""
        ...

    def prune(self, shard: ShareShard) -> None:
        """Delete the records below `redundant_offset`."""
        ...


class ShareShard:
    """The share partitions of partition `index`; `tasks` is the coordinator."""

    def __init__(self, index: int, config: ConfigReader, metadata: MetadataCache, timer: Timer, tasks: ShardTasks) -> None:
        self.index = index
        self.state = ShareGroupState(lambda: config.get_int(_UPDATES_KEY))
        self.pruned_below = _NO_OFFSET
        self._config = config
        self._metadata = metadata
        self._timer = timer
        self._tasks = tasks
        self._timers: dict[str, TimerTask] = {}

    def apply(self, record: ShardRecord, offset: int) -> None:
        """Apply a record of the partition. Raises StateError."""
        if isinstance(record, EndTransaction):
            raise StateError("__share_group_state has no transactions")
        self.state.apply(record.key, record.value, offset)

    def loaded(self, now_ms: int) -> None:
        """Begin the periodic tasks."""
        self._schedule(_COLD_KEY, lambda: self._tasks.snapshot_cold_partitions(self))
        self._schedule(_PRUNE_KEY, lambda: self._tasks.prune(self))

    def unloaded(self) -> None:
        """Cancel the periodic tasks."""
        for task in self._timers.values():
            task.cancel()
        self._timers.clear()

    def _schedule(self, interval_key: str, work: Callable[[], None]) -> None:
        def run(now_ms: int) -> None:
            self._schedule(interval_key, work)
            work()

        at_ms = self._timer.clock_ms + self._config.get_int(interval_key)
        self._timers[interval_key] = self._timer.schedule(at_ms, run)

    # ------------------------------------------------------------------------------------------------------ operations

    def initialize(self, key: ShareKey, state_epoch: int, start_offset: int) -> Decision[None]:
        """Begin a state, or begin it again. Raises ShareRefusal."""
        self._check_partition(key)
        self._check_negative(state_epoch=state_epoch)
        self._check_state_epoch(key, state_epoch)
        self._check_exists(key)
        before, now_ms = self.state.partitions.get(key), self._wall_ms()
        state = ShareGroupOffset(
            snapshot_epoch=0 if before is None else before.snapshot_epoch + 1,
            state_epoch=state_epoch,
            leader_epoch=0,
            start_offset=start_offset,
            delivery_complete_count=_UNKNOWN_COUNT if start_offset == _NO_OFFSET else 0,
            create_timestamp_ms=now_ms,
            write_timestamp_ms=now_ms,
            state_batches=[],
        )
        return Decision(None, (snapshot_record(key, state),))

    def read(self, key: ShareKey, leader_epoch: int) -> Decision[ShareState]:
        """Return a state to the leader in `leader_epoch`. Raises ShareRefusal."""
        self._check_partition(key)
        self._check_negative(leader_epoch=leader_epoch)
        state = self._initialized(key, "Read operation on uninitialized share partition not allowed.")
        self._check_leader_epoch(key, leader_epoch)
        self._check_exists(key)
        result = ShareState(state.state_epoch, state.start_offset, tuple(state.state_batches))
        if leader_epoch in (_NO_EPOCH, self.state.epochs[key].leader_epoch):
            return Decision(result)
        change = ShareUpdateBatches(
            state.state_epoch, leader_epoch, state.start_offset, state.delivery_complete_count, batches=()
        )
        return Decision(result, (self._change_record(key, state, change, leader_epoch),))

    def write(self, key: ShareKey, change: ShareUpdateBatches) -> Decision[None]:
        """Change a state. Raises ShareRefusal."""
        self._check_partition(key)
        self._check_negative(leader_epoch=change.leader_epoch, state_epoch=change.state_epoch)
        state = self._initialized(key, "Write operation on uninitialized share partition not allowed.")
        self._check_leader_epoch(key, change.leader_epoch)
        self._check_state_epoch(key, change.state_epoch)
        self._check_exists(key)
        self._tasks.written_count += 1
        return Decision(None, (self._change_record(key, state, change, state.leader_epoch),))

    def read_summary(self, key: ShareKey) -> Decision[ShareSummary]:
        """Return a state without its batches. Raises ShareRefusal."""
        self._check_partition(key)
        self._check_exists(key)
        state = self.state.partitions.get(key)
        if state is None:
            return Decision(ShareSummary(0, 0, _NO_OFFSET, _UNKNOWN_COUNT))
        return Decision(ShareSummary(state.state_epoch, state.leader_epoch, state.start_offset, state.delivery_complete_count))

    def delete(self, key: ShareKey) -> Decision[None]:
        """Delete a state. Raises ShareRefusal."""
        self._check_partition(key)
        self._check_exists(key)
        return Decision(None, (snapshot_record(key, None),) if key in self.state.partitions else ())

    def delete_all(self, keys: Iterable[ShareKey]) -> Decision[None]:
        """Delete the states of a topic that is deleted."""
        records = [snapshot_record(key, None) for key in keys if key in self.state.partitions]
        return Decision(None, records, is_atomic=False)

    def cold_partitions(self) -> list[ShareKey]:
        """Return the share partitions that have had no snapshot for long; none if all have such a snapshot already."""
        states = self.state.partitions
        if all(state.create_timestamp_ms != state.write_timestamp_ms for state in states.values()):
            return []
        now_ms, interval_ms = self._wall_ms(), self._config.get_int(_COLD_KEY)
        return [key for key, state in states.items() if now_ms - state.write_timestamp_ms >= interval_ms]

    def cold_snapshots(self, keys: Iterable[ShareKey]) -> Decision[None]:
        """Write snapshots of those of the share partitions that are cold still."""
        now_ms, interval_ms = self._wall_ms(), self._config.get_int(_COLD_KEY)
        records = []
        for key in keys:
            state = self.state.partitions.get(key)
            if state is not None and now_ms - state.write_timestamp_ms >= interval_ms:
                epoch = state.snapshot_epoch + 1
                records.append(snapshot_record(key, _copy(state, snapshot_epoch=epoch, write_timestamp_ms=now_ms)))
        return Decision(None, records, is_atomic=False)

    def redundant_offset(self) -> Decision[int]:
        """Return the offset below which no record is needed, as soon as that is committed."""
        return Decision(self.state.redundant_below)

    # ---------------------------------------------------------------------------------------------------------- checks

    def _wall_ms(self) -> int:
        return self._timer.wall.at(self._timer.clock_ms)

    def _check_partition(self, key: ShareKey) -> None:
        if key.partition < 0:
            raise ShareRefusal(error_codes.INVALID_REQUEST, "The partition id cannot be a negative number.")

    @property
    def _is_4_4(self) -> bool:
        return is_4_4(self._metadata.image.features)

    def _check_negative(self, *, leader_epoch: int = 0, state_epoch: int = 0) -> None:
        for epoch, name in ((leader_epoch, "leader"), (state_epoch, "state")):
            if epoch < 0 and self._is_4_4:
                raise ShareRefusal(error_codes.INVALID_REQUEST, f"The {name} epoch cannot be a negative number.")

    def _check_exists(self, key: ShareKey) -> None:
        topic = self._metadata.image.topics.get(key.topic_id)
        if topic is None or key.partition >= len(topic.partitions):
            raise _refusal(error_codes.UNKNOWN_TOPIC_OR_PARTITION)

    def _initialized(self, key: ShareKey, refusal: str) -> ShareGroupOffset:
        state = self.state.partitions.get(key)
        if state is None:
            raise ShareRefusal(error_codes.INVALID_REQUEST, refusal)
        return state

    def _check_leader_epoch(self, key: ShareKey, epoch: int) -> None:
        if epoch != _NO_EPOCH and epoch < self.state.epochs[key].leader_epoch:
            raise _refusal(error_codes.FENCED_LEADER_EPOCH)

    def _check_state_epoch(self, key: ShareKey, epoch: int) -> None:
        known = self.state.epochs.get(key)
        if epoch != _NO_EPOCH and known is not None and known.state_epoch is not None and epoch < known.state_epoch:
            if not self._is_4_4:
                raise ShareRefusal(error_codes.FENCED_STATE_EPOCH, _FENCED_BEFORE_4_4)
            raise _refusal(error_codes.FENCED_STATE_EPOCH)

    # --------------------------------------------------------------------------------------------------------- records

    def _change_record(
        self, key: ShareKey, state: ShareGroupOffset, change: ShareUpdateBatches, leader_epoch: int
    ) -> CoordinatorRecord:
        """Make the record of a change: an update, or a snapshot if there are enough updates."""
        if self._is_4_4:
            change = _effective(state, change)
        if self.state.update_counts.get(key, 0) < self._config.get_int(_UPDATES_KEY):
            return _update_record(key, state.snapshot_epoch, change, leader_epoch)
        start_offset = state.start_offset if change.start_offset == _NO_OFFSET else change.start_offset
        now_ms = self._wall_ms()
        changed = ShareGroupOffset(
            snapshot_epoch=state.snapshot_epoch + 1,
            state_epoch=state.state_epoch,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=change.delivery_complete_count,
            create_timestamp_ms=now_ms,
            write_timestamp_ms=now_ms,
            state_batches=combine_batches([*state.state_batches, *change.batches], start_offset),
        )
        return snapshot_record(key, changed)


def _effective(state: ShareGroupOffset, change: ShareUpdateBatches) -> ShareUpdateBatches:
    """Return a change that does not go back behind the state."""
    count = change.delivery_complete_count
    if change.start_offset == state.start_offset:
        count = max(count, state.delivery_complete_count)
    elif change.start_offset < state.start_offset:
        count = state.delivery_complete_count
    return change._replace(start_offset=max(change.start_offset, state.start_offset), delivery_complete_count=count)


def _refusal(code: int) -> ShareRefusal:
    return ShareRefusal(code, _SENTENCES[code])


def _copy(state: ShareGroupOffset, *, snapshot_epoch: int, write_timestamp_ms: int) -> ShareGroupOffset:
    return ShareGroupOffset(
        snapshot_epoch=snapshot_epoch,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
        create_timestamp_ms=state.create_timestamp_ms,
        write_timestamp_ms=write_timestamp_ms,
        state_batches=state.state_batches,
    )


def snapshot_record(key: ShareKey, state: ShareGroupOffset | None) -> CoordinatorRecord:
    """Make the record of a whole state, a tombstone for None."""
    made_key = message_type("share_records", "ShareSnapshotKey").new(**key._asdict())
    if state is None:
        return CoordinatorRecord(made_key, None)
    found = message_type("share_records", "ShareSnapshotValue")
    make = found.classes["StateBatch"]
    value = found.new(
        snapshot_epoch=state.snapshot_epoch,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=state.delivery_complete_count,
        create_timestamp=state.create_timestamp_ms,
        write_timestamp=state.write_timestamp_ms,
        state_batches=[make(**batch._asdict()) for batch in state.state_batches],
    )
    return CoordinatorRecord(made_key, value)


def _update_record(key: ShareKey, snapshot_epoch: int, change: ShareUpdateBatches, leader_epoch: int) -> CoordinatorRecord:
    """Make the record of a change, whose batches may overlap."""
    found = message_type("share_records", "ShareUpdateValue")
    make = found.classes["StateBatch"]
    batches: list[StateBatch] = combine_batches(change.batches, change.start_offset)
    value = found.new(
        snapshot_epoch=snapshot_epoch,
        leader_epoch=leader_epoch,
        start_offset=change.start_offset,
        delivery_complete_count=change.delivery_complete_count,
        state_batches=[make(**batch._asdict()) for batch in batches],
    )
    return CoordinatorRecord(message_type("share_records", "ShareUpdateKey").new(**key._asdict()), value)
