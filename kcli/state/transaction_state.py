"""The state of the transaction coordinator: the records of __transaction_state, applied in order.

    state                the transactional id
    -------------------  -----------------------------------------------------------------
    Empty                has a producer id, and no transaction yet
    Ongoing              is in a transaction; its partitions are those added so far
    PrepareCommit,       is ending its transaction; the markers are being written
      PrepareAbort
    CompleteCommit,      has ended its transaction; all markers are written
      CompleteAbort
    Dead                 is about to be removed
    PrepareEpochFence    is about to be fenced and aborted

Each record is the whole entry of one transactional id; a tombstone removes it.
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.format.primitives import TopicPartition
from kcli.format.record_batch import NO_PRODUCER_EPOCH
from kcli.protocol.message import Message
from kcli.state.speculative_state import MapsState
from kcli.state.state_error import StateError

TRANSACTION_STATES = {
    0: "Empty",
    1: "Ongoing",
    2: "PrepareCommit",
    3: "PrepareAbort",
    4: "CompleteCommit",
    5: "CompleteAbort",
    6: "Dead",
    7: "PrepareEpochFence",
}


# A transaction is open from its first partition until all of its markers are written.
_OPEN_STATES = frozenset(("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"))


class TransactionMetadata(NamedTuple):
    """The entry of a transactional id. Ids and epochs are -1 if there is none, times are in ms.

    `partitions` are those that were added to the open transaction. `client_transaction_version` is 2 for clients with KIP-890,
    whose epoch grows with every transaction; after a timeout or a fence it is the cluster's. `last_producer_epoch` is -1 after
    a load: it is not in the log.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    previous_producer_id: int
    next_producer_id: int
    next_producer_epoch: int
    timeout_ms: int
    state: str
    partitions: frozenset[TopicPartition]
    last_update_timestamp_ms: int
    start_timestamp_ms: int
    client_transaction_version: int
    last_producer_epoch: int = NO_PRODUCER_EPOCH

    @property
    def partitions_by_topic(self) -> dict[str, list[int]]:
        """The numbers of the partitions by topic, both in ascending order."""
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(self.partitions):
            by_topic.setdefault(topic, []).append(partition)
        return by_topic


class TransactionState(MapsState):
    """The entries of all transactional ids, and those of them whose transaction is open."""

    def __init__(self) -> None:
        super().__init__()
        self.transactions: dict[str, TransactionMetadata] = {}
        self.open_transactions: dict[str, TransactionMetadata] = {}

    def apply(self, key: Message, value: Message | None) -> None:
        """Apply one record that kcli.protocol.internal_records has decoded. Raises StateError for one of another topic."""
        if key.STRUCT.name != "TransactionLogKey":
            raise StateError(f"{key.STRUCT.name} is not a key of __transaction_state")
        if value is None:
            self._remove(self.transactions, key.transactional_id)
            self._remove(self.open_transactions, key.transactional_id)
            return
        parts = value.transaction_partitions or []
        transaction = TransactionMetadata(
            transactional_id=key.transactional_id,
            producer_id=value.producer_id,
            producer_epoch=value.producer_epoch,
            previous_producer_id=value.previous_producer_id,
            next_producer_id=value.next_producer_id,
            next_producer_epoch=value.next_producer_epoch,
            timeout_ms=value.transaction_timeout_ms,
            state=TRANSACTION_STATES.get(value.transaction_status, f"UNKNOWN({value.transaction_status})"),
            partitions=frozenset((part.topic, partition) for part in parts for partition in part.partition_ids),
            last_update_timestamp_ms=value.transaction_last_update_timestamp_ms,
            start_timestamp_ms=value.transaction_start_timestamp_ms,
            client_transaction_version=value.client_transaction_version,
        )
        self.put(transaction)

    def put(self, transaction: TransactionMetadata) -> None:
        """Replace the entry of a transactional id."""
        self._put(self.transactions, transaction.transactional_id, transaction)
        if transaction.state in _OPEN_STATES:
            self._put(self.open_transactions, transaction.transactional_id, transaction)
        else:
            self._remove(self.open_transactions, transaction.transactional_id)
