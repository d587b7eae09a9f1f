"""The transactional batches of a ProduceRequest: verified before the first batch of a transaction in a partition (KIP-890).

partition of the request                                 what is done
-------------------------------------------------------  -----------------------------------------------------------
the epoch is below that of the producer in it            INVALID_PRODUCER_EPOCH, without a question
the transaction is open in it                            nothing: later batches of a transaction wait for no one
the transaction is not open in it                        verified, or from version 12 on added to the transaction; the
                                                         request waits, with copies of its batches (HoldMemory)
a batch of a transaction without a transactional id      TRANSACTIONAL_ID_AUTHORIZATION_FAILED
a batch of a transaction without a producer id           nothing, as in Kafka: it is appended
batches of several producers                             INVALID_PRODUCER_ID_MAPPING

error of the verification                                error of the partition
-------------------------------------------------------  -----------------------------------------------------------
the coordinator does not answer, or is not ready         NOT_ENOUGH_REPLICAS: every client sends the batch again
CONCURRENT_TRANSACTIONS                                  NOT_ENOUGH_REPLICAS; version 12 and above: CONCURRENT_TRANSACTIONS
any other                                                unchanged

A guard outlives a verification that fails: another request of the producer may wait with it, and it knows the lowest sequence
that was sent. It goes with the next marker, or after producer.id.expiration.ms.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import partial
from struct import Struct

from kcli.format.primitives import TopicPartition
from kcli.format.record_batch import (
    CONTROL_FLAG,
    HEADER_BYTES,
    MAGIC,
    MAGIC_POSITION,
    NO_PRODUCER_ID,
    TRANSACTIONAL_FLAG,
    Producer,
)
from kcli.format.structs import BATCH_ATTRIBUTES_AT, BATCH_BASE_SEQUENCE_AT, BATCH_PRODUCER_EPOCH_AT, BATCH_PRODUCER_ID_AT
from kcli.log.log_validator import ValidBatch
from kcli.log.producer_state_manager import VerificationStateEntry
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.events import Effect, HoldMemory
from kcli.server.replication.partition import Partition, PartitionError
from kcli.server.replication.transaction_verification import TransactionSupportedOperation

_ATTRIBUTES_LOW_BYTE = BATCH_ATTRIBUTES_AT + 1
_PRODUCER = Struct(">qhi")
_OPERATIONS = {
    10: TransactionSupportedOperation.VERIFY,
    11: TransactionSupportedOperation.VERIFY_ABORTABLE,
    12: TransactionSupportedOperation.ADD,
}
_NOT_READY = frozenset(
    (
        error_codes.NETWORK_EXCEPTION,
        error_codes.COORDINATOR_LOAD_IN_PROGRESS,
        error_codes.COORDINATOR_NOT_AVAILABLE,
        error_codes.NOT_COORDINATOR,
    )
)
assert (BATCH_PRODUCER_EPOCH_AT, BATCH_BASE_SEQUENCE_AT) == (BATCH_PRODUCER_ID_AT + 8, BATCH_PRODUCER_ID_AT + 10)


def is_transactional(records: memoryview | ValidBatch) -> bool:
    """Return whether it is data of a transaction; control batches of clients have an error of their own."""
    if isinstance(records, ValidBatch):
        return records.is_transactional and not records.is_control
    if len(records) < HEADER_BYTES or records[MAGIC_POSITION] != MAGIC:
        return False
    return records[_ATTRIBUTES_LOW_BYTE] & (TRANSACTIONAL_FLAG | CONTROL_FLAG) == TRANSACTIONAL_FLAG


def _producer_of(records: memoryview | ValidBatch) -> tuple[Producer, int]:
    """Return the producer of a batch, and its first sequence."""
    if isinstance(records, ValidBatch):
        return Producer(records.producer_id, records.producer_epoch), records.base_sequence
    producer_id, epoch, sequence = _PRODUCER.unpack_from(records, BATCH_PRODUCER_ID_AT)
    return Producer(producer_id, epoch), sequence


class TransactionalProduce:
    """The transactional batches of one ProduceRequest; `effects` is the node's list of effects."""

    __slots__ = ("_codes", "_context", "_effects", "_guards", "_operation", "_refused", "_request")

    def __init__(self, context: RequestContext, request: Message, effects: list[Effect]) -> None:
        self._context = context
        self._request = request
        self._effects = effects
        self._operation = _OPERATIONS[min(max(context.version, 10), 12)]
        self._guards: dict[TopicPartition, VerificationStateEntry] = {}
        self._codes: dict[TopicPartition, int] = {}
        self._refused: dict[TopicPartition, PartitionError] = {}  # before the coordinator was asked

    def verify(self, proceed: Callable[[int], None]) -> None:
        """Verify what has to be verified, then call `proceed(now_ms)`, which appends the batches."""
        context = self._context
        producers = self._begin()
        if not self._guards:
            proceed(context.now_ms)
        elif len(producers) > 1:
            self._codes = dict.fromkeys(self._guards, error_codes.INVALID_PRODUCER_ID_MAPPING)
            proceed(context.now_ms)
        else:
            size_bytes = self._hold()
            verified = partial(self._verified, proceed, size_bytes)
            verification, (producer,) = context.broker.txn_verification, producers
            transactional_id, guards = self._request.transactional_id, self._guards
            begin_again = partial(self._begin, guards)  # no others: a guard of another one would pass as verified
            verification.verify(transactional_id, producer, guards, self._operation, begin_again, verified)

    def _begin(self, only: Container[TopicPartition] | None = None) -> set[Producer]:
        """Find the partitions to verify, among `only` if it is given; return the producers of their batches."""
        context, producers = self._context, set[Producer]()
        broker = context.broker
        for topic in self._request.topic_data:
            name = topic.name or broker.metadata.topic_name(topic.topic_id)
            if name is None or not context.is_allowed("WRITE", "TOPIC", name):
                continue
            for data in topic.partition_data:
                partition = broker.replica_manager.partition(name, data.index)
                if partition is None or not partition.is_leader or partition.log is None:
                    continue
                if only is not None and partition.key not in only:
                    continue
                if data.records is None or not is_transactional(data.records):
                    continue
                producer, sequence = _producer_of(data.records)
                if producer.producer_id <= NO_PRODUCER_ID:
                    continue
                try:
                    guard = broker.txn_verification.begin(partition.log.producers, producer, self._operation, sequence)
                except PartitionError as error:
                    self._refused[partition.key] = error
                    continue
                if guard is not None:
                    self._guards[partition.key] = guard
                    producers.add(producer)
        return producers

    def _hold(self) -> int:
        """Copy the batches, since the shell reuses the frame after this event; return their size in bytes."""
        size_bytes = 0
        for topic in self._request.topic_data:
            for data in topic.partition_data:
                if data.records:
                    data.records = memoryview(bytearray(data.records))
                    size_bytes += len(data.records)
        self._effects.append(HoldMemory(size_bytes))
        return size_bytes

    def _verified(self, proceed: Callable[[int], None], size_bytes: int, codes: dict[TopicPartition, int], now_ms: int) -> None:
        self._codes = {where: code for where, code in codes.items() if code}
        try:
            proceed(now_ms)
        except Exception as error:
            self._context.failed(error)
        self._effects.append(HoldMemory(-size_bytes))

    def check(self, partition: Partition, records: memoryview | ValidBatch) -> None:
        """Check that a transactional batch may be appended now. Raises PartitionError."""
        partition.leader_log()  # a partition that another broker leads was not verified, and its batch goes there
        refused = self._refused.get(partition.key)
        if refused is not None:
            raise refused
        code = self._codes.get(partition.key)
        if code is not None:
            text = f"the transaction of {partition.topic}-{partition.index} could not be verified: {error_codes.NAMES[code]}"
            raise PartitionError(self._client_code(code), text)
        producer, _ = _producer_of(records)
        if partition.log is not None and producer.producer_id > NO_PRODUCER_ID:
            guard = self._guards.get(partition.key)
            self._context.broker.txn_verification.check_verified(partition.log.producers, producer, guard)

    def _client_code(self, code: int) -> int:
        is_concurrent = code == error_codes.CONCURRENT_TRANSACTIONS
        if code in _NOT_READY or (is_concurrent and self._operation is not TransactionSupportedOperation.ADD):
            return error_codes.NOT_ENOUGH_REPLICAS
        return code
