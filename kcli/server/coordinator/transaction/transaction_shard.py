"""The transactional ids of one partition of __transaction_state, and the records of their entries (KIP-98, KIP-890).

entry                  is
---------------------  -----------------------------------------------------------------------------------------------
in `state`             what the records make, and the changes that are not committed yet
in `changing`          before and after a change that is not committed; DescribeTransactions shows the entry before it
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kcli.protocol.message_types import message_type
from kcli.server.coordinator.coordinator_record import CoordinatorRecord, EndTransaction, ShardRecord
from kcli.server.coordinator.transaction import transitions
from kcli.state.state_error import StateError
from kcli.state.transaction_state import TRANSACTION_STATES, TransactionMetadata, TransactionState

_STATE_IDS = {name: number for number, name in TRANSACTION_STATES.items()}


class PendingChange(NamedTuple):
    """A change of an entry that is not committed: the entry before and after it, None if there is none."""

    before: TransactionMetadata | None
    after: TransactionMetadata | None


class ListFilter(NamedTuple):
    """What ListTransactions lists; empty sets and a negative duration do not filter."""

    states: frozenset[str]
    producer_ids: frozenset[int]
    duration_ms: int
    is_wanted: Callable[[str], bool]

    def passes(self, entry: TransactionMetadata, now_ms: int) -> bool:
        """Return whether an entry is listed; `now_ms` is the time on the wall clock."""
        if self.producer_ids and entry.producer_id not in self.producer_ids:
            return False
        if self.states and entry.state not in self.states:
            return False
        if self.duration_ms >= 0 and now_ms - entry.start_timestamp_ms <= self.duration_ms:
            return False
        return self.is_wanted(entry.transactional_id)


class TransactionShard:
    """The transactional ids of partition `index` of __transaction_state.

    `changing` has the entries whose change is not committed.
    """

    def __init__(
        self,
        index: int,
        on_loaded: Callable[[TransactionShard, int], None],
        on_unloaded: Callable[[TransactionShard], None],
    ) -> None:
        self.index = index
        self.state = TransactionState()
        self.changing: dict[str, PendingChange] = {}
        self._on_loaded = on_loaded
        self._on_unloaded = on_unloaded

    def apply(self, record: ShardRecord, offset: int) -> None:
        """Apply a record of the partition. Raises StateError."""
        if isinstance(record, EndTransaction):
            raise StateError("__transaction_state has no transactions")
        change = self.changing.get(record.key.transactional_id)
        if change is not None and change.after is not None:
            self.state.put(change.after)  # it has the last epoch, which is not in the record
        else:
            self.state.apply(record.key, record.value)

    def committed(self, transactional_id: str) -> TransactionMetadata | None:
        """Return the committed entry of a transactional id."""
        change = self.changing.get(transactional_id)
        return self.state.transactions.get(transactional_id) if change is None else change.before

    def transactional_ids(self) -> list[str]:
        """Return the ids that have a committed entry, or a change that is not committed."""
        return [*self.state.transactions, *(self.changing.keys() - self.state.transactions.keys())]

    def loaded(self, now_ms: int) -> None:
        """Continue the transactions that were ending."""
        self._on_loaded(self, now_ms)

    def unloaded(self) -> None:
        """Drop the markers that are not written yet."""
        self._on_unloaded(self)


def transaction_record(transactional_id: str, entry: TransactionMetadata | None, version: int) -> CoordinatorRecord:
    """Return the record of an entry, a tombstone for None; `version` is the cluster's transaction.version."""
    key = message_type("transaction_records", "TransactionLogKey").new(transactional_id=transactional_id)
    if entry is None:
        return CoordinatorRecord(key, None)
    found = message_type("transaction_records", "TransactionLogValue")
    make = found.classes["PartitionsSchema"]
    partitions = [make(topic=name, partition_ids=numbers) for name, numbers in entry.partitions_by_topic.items()]
    value = found.new(
        schema_version=min(version, 1),
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        transaction_timeout_ms=entry.timeout_ms,
        transaction_status=_STATE_IDS[entry.state],
        transaction_partitions=None if entry.state == transitions.EMPTY else partitions,
        transaction_last_update_timestamp_ms=entry.last_update_timestamp_ms,
        transaction_start_timestamp_ms=entry.start_timestamp_ms,
    )
    if version:
        value.previous_producer_id, value.next_producer_id = entry.previous_producer_id, entry.next_producer_id
        value.next_producer_epoch = entry.next_producer_epoch
        value.client_transaction_version = entry.client_transaction_version
    return CoordinatorRecord(key, value)
