"""Verifies with the transaction coordinator that a partition is in a transaction, before its first batch (KIP-890).

Kafka: AddPartitionsToTxnManager and the verification guard of UnifiedLog. Without it a batch that arrives after its transaction
was aborted opens one that no coordinator ends.

    step                         what happens
    ---------------------------  ---------------------------------------------------------------------------------------
    begin                        an epoch below the partition's is refused with INVALID_PRODUCER_EPOCH; a transaction that
                                 is open in the partition needs no verification; else a guard is kept
    verify                       AddPartitionsToTxn to the coordinator, with those of other producers in one request
    check_verified, then append  refused with INVALID_TXN_STATE unless the transaction is open by now, or the guard is the
                                 same: a marker that was appended concurrently removes it

    operation (client)           the coordinator      a partition that is not in the transaction gets
    ---------------------------  -------------------  ---------------------------------------------------------------------
    VERIFY (Produce 3 to 10)     checks               INVALID_TXN_STATE
    VERIFY_ABORTABLE (11)        checks               TRANSACTION_ABORTABLE
    ADD (12 and above)           adds the partition   (is added: transaction.version 2)

ADD is tried again after CONCURRENT_TRANSACTIONS, with new guards, for add.partitions.to.txn.retry.backoff.max.ms at most: after
add.partitions.to.txn.retry.backoff.ms, or earlier when this broker has completed the end of the transaction before (Kafka: only
after the backoff).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from typing import Protocol

from kcli.format.primitives import TopicPartition
from kcli.format.record_batch import NO_SEQUENCE, Producer
from kcli.log.producer_state_manager import ProducerStateManager, VerificationStateEntry
from kcli.network.events import NodeRole, PeerNode
from kcli.network.peer_request import Answer, PeerFailure
from kcli.network.peers import Peers
from kcli.network.timing_wheel import Timer, TimerTask
from kcli.protocol import error_codes
from kcli.protocol.apis import ADD_PARTITIONS_TO_TXN, API_KEYS
from kcli.protocol.message import Message
from kcli.server.config.server_config import ConfigReader
from kcli.server.replication.partition import PartitionError

Codes = dict[TopicPartition, int]


class TransactionSupportedOperation(Enum):
    """What a client supports; see the head of this module."""

    VERIFY = 0
    VERIFY_ABORTABLE = 1
    ADD = 2


class TransactionCoordinators(Protocol):
    """What the verification uses of a TransactionCoordinator."""

    def node_for(self, transactional_id: str) -> int | None:
        """Return the broker that coordinates a transactional id, None if there is none that can be reached."""
        ...

    def when_ended(self, transactional_id: str, callback: Callable[[int], None]) -> None:
        """Have `callback(now_ms)` called when the transaction that this broker is ending now is complete."""
        ...

    def cancel_when_ended(self, transactional_id: str, callback: Callable[[int], None]) -> None:
        """Do not call a callback of `when_ended` any more."""
        ...


class _Verification:
    """One transaction that is being verified, or to which partitions are being added, until `deadline_ms`.

    `begin_again` renews the guards before it is tried again: a marker that was appended concurrently has removed them.
    """

    __slots__ = (
        "ask_again",
        "begin_again",
        "callback",
        "deadline_ms",
        "operation",
        "partitions",
        "producer",
        "retry",
        "transactional_id",
    )

    def __init__(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[TopicPartition],
        operation: TransactionSupportedOperation,
        begin_again: Callable[[], object],
        callback: Callable[[Codes, int], None],
        deadline_ms: int,
    ) -> None:
        self.transactional_id = transactional_id
        self.producer = producer
        self.partitions = list(partitions)
        self.operation = operation
        self.begin_again = begin_again
        self.callback = callback
        self.deadline_ms = deadline_ms
        self.retry: TimerTask | None = None
        self.ask_again: Callable[[int], None] | None = None  # while it waits for `retry`, or for the end of the one before

    def answer(self, code: int, now_ms: int) -> None:
        """Answer with the same code for all partitions."""
        self.callback(dict.fromkeys(self.partitions, code), now_ms)


class AddPartitionsToTxnManager:
    """Asks transaction coordinators for one broker. `listener` is the listener that brokers use for each other."""

    def __init__(
        self,
        config: ConfigReader,
        coordinators: TransactionCoordinators,
        peers: Peers,
        listener: str,
        timer: Timer,
    ) -> None:
        self._config = config
        self._coordinators = coordinators
        self._peers = peers
        self._listener = listener
        self._timer = timer
        self._queues: dict[int, list[_Verification]] = {}  # by broker
        self._is_closed = False

    def close(self) -> None:
        """Answer no request any more: the node stops, and its logs are being closed."""
        self._is_closed = True

    def begin(
        self,
        producers: ProducerStateManager,
        producer: Producer,
        operation: TransactionSupportedOperation,
        sequence: int = NO_SEQUENCE,
    ) -> VerificationStateEntry | None:
        """Return the guard if a batch of the producer has to be verified, None if it need not be; `sequence` is its first.

        Raises PartitionError for an epoch below the partition's: the coordinator need not be asked.
        """
        if operation is not TransactionSupportedOperation.ADD and not self.is_enabled:
            return None
        entry = producers.producers.get(producer.producer_id)
        if entry is not None and producer.producer_epoch < entry.producer_epoch:
            text = f"the epoch of producer {producer.producer_id} is {producer.producer_epoch}, below {entry.producer_epoch}"
            raise PartitionError(error_codes.INVALID_PRODUCER_EPOCH, text)
        if is_transaction_open(producers, producer):
            return None
        guard = producers.verifications.get(producer.producer_id)
        if guard is None:
            created_ms, is_bumped = self._timer.wall.at(self._timer.clock_ms), operation is TransactionSupportedOperation.ADD
            guard = VerificationStateEntry(producer.producer_epoch, created_ms, sequence, is_epoch_bumped=is_bumped)
            producers.verifications[producer.producer_id] = guard
        elif guard.producer_epoch < producer.producer_epoch:
            guard.producer_epoch, guard.lowest_sequence = producer.producer_epoch, sequence
        elif guard.producer_epoch == producer.producer_epoch:
            guard.lowest_sequence = min(guard.lowest_sequence, sequence)
        return guard

    @property
    def is_enabled(self) -> bool:
        """Whether a transaction must be verified before its first batch."""
        return self._config.get_bool("transaction.partition.verification.enable")

    def check_verified(self, producers: ProducerStateManager, producer: Producer, guard: VerificationStateEntry | None) -> None:
        """Check that a transactional batch may be appended. Raises PartitionError: INVALID_TXN_STATE."""
        if not self.is_enabled or is_transaction_open(producers, producer):
            return
        if guard is None or producers.verifications.get(producer.producer_id) is not guard:
            text = f"the batch of producer {producer.producer_id} is not part of an open transaction"
            raise PartitionError(error_codes.INVALID_TXN_STATE, text)

    def verify(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Iterable[TopicPartition],
        operation: TransactionSupportedOperation,
        begin_again: Callable[[], object],
        callback: Callable[[Codes, int], None],
    ) -> None:
        """Verify or add partitions; `callback(error code of each, now_ms)` is called once.

        `begin_again` is called before each further try; it calls `begin` for the partitions and keeps the new guards.
        """
        deadline_ms = self._timer.clock_ms + self._config.get_int("add.partitions.to.txn.retry.backoff.max.ms")
        self._ask(_Verification(transactional_id, producer, partitions, operation, begin_again, callback, deadline_ms))

    def _ask(self, verification: _Verification) -> None:
        node_id, now_ms = self._coordinators.node_for(verification.transactional_id), self._timer.clock_ms
        if node_id is None:
            verification.answer(error_codes.COORDINATOR_NOT_AVAILABLE, now_ms)
            return
        queue = self._queues.get(node_id)
        if queue is None:
            queue = self._queues[node_id] = []
            self._timer.schedule(now_ms, partial(self._send, node_id))
        queue.append(verification)

    def _send(self, node_id: int, now_ms: int) -> None:
        """Send what is queued for a broker; a transactional id can be in a request only once."""
        sent: dict[str, _Verification] = {}
        for verification in self._queues.pop(node_id):
            if verification.transactional_id in sent:
                self._ask(verification)
            else:
                sent[verification.transactional_id] = verification
        message = API_KEYS[ADD_PARTITIONS_TO_TXN].request.new(transactions=list(map(_transaction, sent.values())))
        deadline_ms = now_ms + self._config.get_int("request.timeout.ms")
        node = PeerNode(node_id, NodeRole.BROKER)
        self._peers.send(node, self._listener, ADD_PARTITIONS_TO_TXN, message, partial(self._answered, sent), deadline_ms)

    def _answered(self, sent: dict[str, _Verification], answer: Answer, now_ms: int) -> None:
        if self._is_closed:
            return
        if isinstance(answer, PeerFailure) or answer.error_code:
            code = error_codes.NETWORK_EXCEPTION if isinstance(answer, PeerFailure) else answer.error_code
            code = error_codes.INVALID_TXN_STATE if code == error_codes.CLUSTER_AUTHORIZATION_FAILED else code
            for verification in sent.values():
                verification.answer(code, now_ms)
            return
        for result in answer.results_by_transaction:
            verification = sent[result.transactional_id]
            codes = {
                (topic.name, part.partition_index): _client_code(part.partition_error_code, verification.operation)
                for topic in result.topic_results
                for part in topic.results_by_partition
            }
            if self._is_tried_again(verification, codes, now_ms):
                delay_ms = self._config.get_int("add.partitions.to.txn.retry.backoff.ms")
                verification.ask_again = ask_again = partial(self._ask_again, verification)
                verification.retry = self._timer.schedule(now_ms + delay_ms, ask_again)
                self._coordinators.when_ended(verification.transactional_id, ask_again)
            else:
                verification.callback(codes, now_ms)

    def _ask_again(self, verification: _Verification, now_ms: int) -> None:
        """Try again, once for each answer: the end of the transaction before, or the timer."""
        if verification.retry is None or verification.ask_again is None or self._is_closed:
            return
        verification.retry.cancel()
        self._coordinators.cancel_when_ended(verification.transactional_id, verification.ask_again)
        verification.retry = verification.ask_again = None
        verification.begin_again()
        self._ask(verification)

    def _is_tried_again(self, verification: _Verification, codes: Codes, now_ms: int) -> bool:
        is_concurrent = error_codes.CONCURRENT_TRANSACTIONS in codes.values()
        is_add = verification.operation is TransactionSupportedOperation.ADD
        return is_concurrent and is_add and now_ms < verification.deadline_ms


def is_transaction_open(producers: ProducerStateManager, producer: Producer) -> bool:
    """Return whether a producer has a transaction open in a partition, in this epoch."""
    entry = producers.producers.get(producer.producer_id)
    return entry is not None and entry.producer_epoch == producer.producer_epoch and entry.current_txn_first_offset is not None


def _transaction(verification: _Verification) -> Message:
    classes = API_KEYS[ADD_PARTITIONS_TO_TXN].request.classes
    by_topic: dict[str, list[int]] = {}
    for topic, index in verification.partitions:
        by_topic.setdefault(topic, []).append(index)
    return classes["AddPartitionsToTxnTransaction"](
        transactional_id=verification.transactional_id,
        producer_id=verification.producer.producer_id,
        producer_epoch=verification.producer.producer_epoch,
        verify_only=verification.operation is not TransactionSupportedOperation.ADD,
        topics=[classes["AddPartitionsToTxnTopic"](name=name, partitions=found) for name, found in by_topic.items()],
    )


def _client_code(code: int, operation: TransactionSupportedOperation) -> int:
    if code == error_codes.PRODUCER_FENCED:
        return error_codes.INVALID_PRODUCER_EPOCH
    if code == error_codes.TRANSACTION_ABORTABLE and operation is TransactionSupportedOperation.VERIFY:
        return error_codes.INVALID_TXN_STATE  # older clients do not know TRANSACTION_ABORTABLE
    return code
