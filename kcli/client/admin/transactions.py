"""Transactions: list, describe, abort, fence producers, find hanging ones (Kafka: TransactionListing, AbortTransactionSpec).

    operation                  API                     node
    -------------------------  ----------------------  --------------------------------------------
    list_transactions          ListTransactions        each broker
    describe_transactions      DescribeTransactions    the coordinator of each transactional id
    fence_producers            InitProducerId          the coordinator of each transactional id
    abort_transaction          WriteTxnMarkers         the leader of the partition
    find_hanging_transactions  DescribeProducers, ...  leaders, each broker, coordinators

A transaction hangs if a partition has it open and no coordinator will end it (KIP-664): its producer is older than the
longest timeout, and its coordinator either has no transaction of that producer, or one without this partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from kcli.client.admin.brokers import run_on_each_broker
from kcli.client.admin.error_sentences import kafka_error, outcome_error
from kcli.client.admin.operation import TRIED_AGAIN, Call, Operation, Outcomes, RequestContext, Route, run, run_one
from kcli.client.admin.partitions import ActiveProducer, producers_call
from kcli.client.errors import ClientError, KafkaError
from kcli.format.primitives import TopicPartition
from kcli.protocol import error_codes
from kcli.protocol.apis import (
    API_KEYS,
    DESCRIBE_TRANSACTIONS,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    WRITE_TXN_MARKERS,
)
from kcli.protocol.message import Message

ANY_DURATION = -1
NO_TRANSACTION = -1
MAX_TIMEOUT_MS = 15 * 60 * 1000  # transaction.max.timeout.ms of a broker, unless it is configured
_FENCE_RETRIED = TRIED_AGAIN | {error_codes.CONCURRENT_TRANSACTIONS}


class TransactionListing(NamedTuple):
    """A transactional id in a list."""

    transactional_id: str
    producer_id: int
    state: str


class ListedTransactions(NamedTuple):
    """The transactions by broker, and the errors of brokers that did not list theirs."""

    by_broker: dict[int, list[TransactionListing]]
    errors: dict[int, ClientError]


class TransactionDescription(NamedTuple):
    """A transactional id; `start_ms` is -1 if no transaction is under way."""

    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    partitions: tuple[TopicPartition, ...]


class AbortTransactionSpec(NamedTuple):
    """A transaction of a partition, as describe_producers shows it."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int


class FencedProducer(NamedTuple):
    """The producer id and epoch since the fencing; requests with older ones are refused."""

    producer_id: int
    producer_epoch: int


class HangingTransaction(NamedTuple):
    """A transaction that is open on a partition and that no coordinator will end."""

    topic: str
    partition: int
    producer: ActiveProducer


class HangingTransactions(NamedTuple):
    """The hanging transactions of partitions, and those of the partitions that do not exist (any more)."""

    found: list[HangingTransaction]
    missing: list[TopicPartition]


# ----------------------------------------------------------------------------------------------------------- list, describe


def list_transactions(
    *,
    states: Iterable[str] = (),
    producer_ids: Iterable[int] = (),
    duration_ms: int = ANY_DURATION,
    transactional_id_pattern: str | None = None,
) -> Operation[ListedTransactions]:
    """Return the transactional ids with one of the states and producers, whose transaction runs longer than `duration_ms`."""
    wanted_states, wanted_ids = list(states), list(producer_ids)

    def request(_keys: Sequence[int], _context: RequestContext) -> Message:
        return API_KEYS[LIST_TRANSACTIONS].request.new(
            state_filters=wanted_states,
            producer_id_filters=wanted_ids,
            duration_filter=duration_ms,
            transactional_id_pattern=transactional_id_pattern,
        )

    found = yield from run_on_each_broker(LIST_TRANSACTIONS, request, _read_listed)
    return ListedTransactions(
        {at: outcome for at, outcome in found.items() if not isinstance(outcome, ClientError)},
        {at: outcome for at, outcome in found.items() if isinstance(outcome, ClientError)},
    )


def _read_listed(answer: Message) -> list[TransactionListing] | ClientError:
    if answer.error_code:
        return kafka_error(answer.error_code)
    states = answer.transaction_states
    return sorted(TransactionListing(one.transactional_id, one.producer_id, one.transaction_state) for one in states)


def describe_transactions(transactional_ids: Iterable[str]) -> Operation[Outcomes[str, TransactionDescription]]:
    """Return what the coordinators know of transactional ids."""

    def request(keys: Sequence[str], _context: RequestContext) -> Message:
        return API_KEYS[DESCRIBE_TRANSACTIONS].request.new(transactional_ids=list(keys))

    return (yield from run(Call(DESCRIBE_TRANSACTIONS, Route.TRANSACTION, request, _read_described), transactional_ids))


def _read_described(_keys: Sequence[str], answer: Message) -> Iterator[tuple[str, TransactionDescription | ClientError]]:
    for one in answer.transaction_states:
        if one.error_code:
            yield one.transactional_id, kafka_error(one.error_code)
            continue
        partitions = tuple(sorted((topic.topic, index) for topic in one.topics for index in topic.partitions))
        yield (
            one.transactional_id,
            TransactionDescription(
                one.transaction_state,
                one.producer_id,
                one.producer_epoch,
                one.transaction_timeout_ms,
                one.transaction_start_time_ms,
                partitions,
            ),
        )


# -------------------------------------------------------------------------------------------------------------- abort, fence


def abort_transaction(spec: AbortTransactionSpec) -> Operation[None]:
    """End a transaction on one partition by a marker. Raises KafkaError.

    This is for hanging transactions: the partition then has an aborted transaction that its coordinator does not know.
    """

    def request(_keys: Sequence[TopicPartition], _context: RequestContext) -> Message:
        kind = API_KEYS[WRITE_TXN_MARKERS].request
        topic = kind.classes["WritableTxnMarkerTopic"](name=spec.topic, partition_indexes=[spec.partition])
        marker = kind.classes["WritableTxnMarker"](
            producer_id=spec.producer_id,
            producer_epoch=spec.producer_epoch,
            coordinator_epoch=spec.coordinator_epoch,
            transaction_result=False,
            topics=[topic],
        )
        return kind.new(markers=[marker])

    def read(_keys: Sequence[TopicPartition], answer: Message) -> Iterator[tuple[TopicPartition, ClientError | None]]:
        for marker in answer.markers:
            for topic in marker.topics:
                for one in topic.partitions:
                    yield (topic.name, one.partition_index), outcome_error(one.error_code)

    key: TopicPartition = (spec.topic, spec.partition)
    yield from run_one(Call(WRITE_TXN_MARKERS, Route.LEADER, request, read), key)


def fence_producers(transactional_ids: Iterable[str]) -> Operation[Outcomes[str, FencedProducer]]:
    """Fence the producers with transactional ids: their transactions are aborted, and they cannot begin others."""

    def request(keys: Sequence[str], context: RequestContext) -> Message:
        return API_KEYS[INIT_PRODUCER_ID].request.new(
            transactional_id=keys[0], transaction_timeout_ms=context.timeout_ms, producer_epoch=-1
        )

    def read(keys: Sequence[str], answer: Message) -> Iterator[tuple[str, FencedProducer | ClientError]]:
        error = outcome_error(answer.error_code)
        yield keys[0], error or FencedProducer(answer.producer_id, answer.producer_epoch)

    call = Call(INIT_PRODUCER_ID, Route.TRANSACTION, request, read, retried=_FENCE_RETRIED, is_single=True)
    return (yield from run(call, transactional_ids))


# ------------------------------------------------------------------------------------------------------------------ hanging


def find_hanging_transactions(
    partitions: Iterable[TopicPartition],
    *,
    older_than_ms: int,
    broker_id: int | None = None,
) -> Operation[HangingTransactions]:
    """Return the hanging transactions of partitions whose producers last wrote before the timestamp `older_than_ms`.

    That is the time now, less the longest transaction timeout. Raises the first error of a broker, since what it did not
    answer may hide a transaction. A topic that was deleted has none.
    """
    call = producers_call(broker_id)._replace(settled=frozenset((error_codes.UNKNOWN_TOPIC_OR_PARTITION,)))
    described = yield from run(call, partitions)
    opened: list[HangingTransaction] = []
    missing: list[TopicPartition] = []
    for (topic, partition), outcome in described.items():
        if isinstance(outcome, ClientError):
            if isinstance(outcome, KafkaError) and outcome.code == error_codes.UNKNOWN_TOPIC_OR_PARTITION:
                missing.append((topic, partition))
                continue
            raise outcome
        opened += (
            HangingTransaction(topic, partition, one)
            for one in outcome
            if one.transaction_start_offset != NO_TRANSACTION and one.last_timestamp < older_than_ms
        )
    if not opened:
        return HangingTransactions([], missing)
    listed = yield from list_transactions(producer_ids=sorted({one.producer.producer_id for one in opened}))
    for error in listed.errors.values():
        raise error
    ids = {one.producer_id: one.transactional_id for found in listed.by_broker.values() for one in found}
    known = yield from describe_transactions(sorted(set(ids.values())))
    hanging = []
    for one in opened:
        transactional_id = ids.get(one.producer.producer_id)
        description = None if transactional_id is None else known[transactional_id]
        if isinstance(description, ClientError):
            if not isinstance(description, KafkaError) or description.code != error_codes.TRANSACTIONAL_ID_NOT_FOUND:
                raise description
            description = None
        if description is None or (one.topic, one.partition) not in description.partitions:
            hanging.append(one)
    return HangingTransactions(hanging, missing)
