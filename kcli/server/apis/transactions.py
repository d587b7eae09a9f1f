"""The requests of clients and brokers to the transaction coordinator.

API                   needs                                                   answered
--------------------  ------------------------------------------------------  ---------------------------------------------
AddPartitionsToTxn    0 to 3: WRITE on the transactional id and each topic;   when the change of every transaction is
                      4, 5 (of brokers, several transactions):                committed; with verifyOnly when it is checked
                      CLUSTER_ACTION
AddOffsetsToTxn       WRITE on the transactional id, READ on the group        when the change is committed
EndTxn                WRITE on the transactional id                           when the end is committed; markers follow
DescribeTransactions  DESCRIBE on the transactional id; of the partitions     at once
                      those of topics with DESCRIBE
ListTransactions      the ids with DESCRIBE are listed                        at once

If a partition of AddPartitionsToTxn does not exist, or its topic is not allowed, none is added: the others get
OPERATION_NOT_ATTEMPTED. Old versions get INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from kcli.format.primitives import TopicPartition
from kcli.format.record_batch import Producer
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.coordinator.group.group_coordinator import GROUP_TOPIC
from kcli.server.coordinator.group.regex_resolver import compile_regex
from kcli.server.coordinator.operation import CoordinatorError
from kcli.server.coordinator.transaction.transaction_shard import ListFilter
from kcli.server.coordinator.transaction.transitions import EPOCH_BUMP_VERSION
from kcli.server.scheduler import SliceBudget
from kcli.state.topic_names import INTERNAL_TOPICS
from kcli.state.transaction_state import TRANSACTION_STATES, TransactionMetadata

_BROKERS_VERSION = 4  # of AddPartitionsToTxn: from here on brokers send it
_FENCED_VERSION = 2  # from here on clients know PRODUCER_FENCED
_LIST_US = 5
_EPOCH_BUMP_VERSION = 5  # of EndTxn: the client uses transaction.version 2


def _code(context: RequestContext, code: int) -> int:
    is_old = context.version < _FENCED_VERSION and code == error_codes.PRODUCER_FENCED
    return error_codes.INVALID_PRODUCER_EPOCH if is_old else code


# ----------------------------------------------------------------------------------------------------------- add partitions


def handle_add_partitions_to_txn(context: RequestContext, request: Message) -> Message | None:
    """Answer an AddPartitionsToTxnRequest when all of its transactions are changed or verified."""
    if context.version >= _BROKERS_VERSION:
        if not context.is_allowed("CLUSTER_ACTION", "CLUSTER"):
            return context.new("AddPartitionsToTxnResponse", error_code=error_codes.CLUSTER_AUTHORIZATION_FAILED)
        return _AddPartitions(context).start(request.transactions)
    request_struct = context.api.request.classes["AddPartitionsToTxnTransaction"]
    transaction = request_struct(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )
    return _AddPartitions(context).start([transaction])


class _AddPartitions:
    """One AddPartitionsToTxn that is being handled."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._results: list[Message] = []
        self._left = 0

    def start(self, transactions: list[Message]) -> Message | None:
        """Pass each transaction to the coordinator."""
        if not transactions:
            return self._context.new("AddPartitionsToTxnResponse")
        self._left = len(transactions)
        for transaction in transactions:
            self._add(transaction)
        return None

    def _add(self, transaction: Message) -> None:
        context = self._context
        partitions = [(topic.name, index) for topic in transaction.topics for index in topic.partitions]
        is_of_client = context.version < _BROKERS_VERSION
        name, producer = transaction.transactional_id, Producer(transaction.producer_id, transaction.producer_epoch)
        if is_of_client and not context.is_allowed("WRITE", "TRANSACTIONAL_ID", name):
            self._answered(name, dict.fromkeys(partitions, error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED), context.now_ms)
            return
        refused = {where: code for where in partitions if (code := self._partition_code(*where, is_of_client))}
        if refused:
            others = dict.fromkeys(partitions, error_codes.OPERATION_NOT_ATTEMPTED)
            self._answered(name, others | refused, context.now_ms)
            return
        coordinator = context.broker.transactions
        if transaction.verify_only:
            coordinator.verify_partitions(name, producer, partitions, partial(self._answered, name))
            return
        client_version = 0 if is_of_client else EPOCH_BUMP_VERSION

        def added(code: int, now_ms: int) -> None:
            self._take(name, [(where, _code(context, code)) for where in partitions])  # twice if it is in the request twice

        coordinator.add_partitions(name, producer, partitions, client_version, added)

    def _partition_code(self, topic: str, index: int, is_of_client: bool) -> int:
        context = self._context
        if is_of_client and (topic in INTERNAL_TOPICS or not context.is_allowed("WRITE", "TOPIC", topic)):
            return error_codes.TOPIC_AUTHORIZATION_FAILED
        found = context.broker.metadata.image.topic(topic)
        is_known = found is not None and index in found.partitions
        return error_codes.NONE if is_known else error_codes.UNKNOWN_TOPIC_OR_PARTITION

    def _answered(self, transactional_id: str, codes: dict[TopicPartition, int], now_ms: int) -> None:
        """Take the result of a transaction; respond after the last one."""
        self._take(transactional_id, codes.items())

    def _take(self, transactional_id: str, codes: Iterable[tuple[TopicPartition, int]]) -> None:
        new, by_topic = self._context.new, dict[str, list[Message]]()
        for (topic, index), code in codes:
            result = new("AddPartitionsToTxnPartitionResult", partition_index=index, partition_error_code=code)
            by_topic.setdefault(topic, []).append(result)
        topics = [
            new("AddPartitionsToTxnTopicResult", name=topic, results_by_partition=results)
            for topic, results in by_topic.items()
        ]
        self._results.append(new("AddPartitionsToTxnResult", transactional_id=transactional_id, topic_results=topics))
        self._left -= 1
        if self._left:
            return
        if self._context.version < _BROKERS_VERSION:
            self._context.respond(new("AddPartitionsToTxnResponse", results_by_topic_v3_and_below=topics))
        else:
            self._context.respond(new("AddPartitionsToTxnResponse", results_by_transaction=self._results))


def handle_add_offsets_to_txn(context: RequestContext, request: Message) -> Message | None:
    """Answer an AddOffsetsToTxnRequest: the partition of the group in __consumer_offsets is in the transaction."""
    if not context.is_allowed("WRITE", "TRANSACTIONAL_ID", request.transactional_id):
        return context.new("AddOffsetsToTxnResponse", error_code=error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if not context.is_allowed("READ", "GROUP", request.group_id):
        return context.new("AddOffsetsToTxnResponse", error_code=error_codes.GROUP_AUTHORIZATION_FAILED)

    def added(code: int, now_ms: int) -> None:
        context.respond(context.new("AddOffsetsToTxnResponse", error_code=_code(context, code)))

    where = (GROUP_TOPIC, context.broker.groups.partition_for(request.group_id))
    producer = Producer(request.producer_id, request.producer_epoch)
    context.broker.transactions.add_partitions(request.transactional_id, producer, [where], 0, added)
    return None


# ---------------------------------------------------------------------------------------------------------------------- end


def handle_end_txn(context: RequestContext, request: Message) -> Message | None:
    """Answer an EndTxnRequest when the end is committed."""
    if not context.is_allowed("WRITE", "TRANSACTIONAL_ID", request.transactional_id):
        return context.new("EndTxnResponse", error_code=error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)

    def ended(result: Producer | CoordinatorError, now_ms: int) -> None:
        if isinstance(result, CoordinatorError):
            context.respond(context.new("EndTxnResponse", error_code=_code(context, result.code)))
        else:
            context.respond(context.new("EndTxnResponse", producer_id=result.producer_id, producer_epoch=result.producer_epoch))

    version = EPOCH_BUMP_VERSION if context.version >= _EPOCH_BUMP_VERSION else 0
    producer = Producer(request.producer_id, request.producer_epoch)
    context.broker.transactions.end_transaction(request.transactional_id, producer, request.committed, version, ended)
    return None


# ---------------------------------------------------------------------------------------------------------- describe, list


def handle_describe_transactions(context: RequestContext, request: Message) -> Message:
    """Answer a DescribeTransactionsRequest."""
    states = []
    for transactional_id in request.transactional_ids:
        if not context.is_allowed("DESCRIBE", "TRANSACTIONAL_ID", transactional_id):
            code = error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            states.append(context.new("TransactionState", error_code=code, transactional_id=transactional_id))
            continue
        try:
            states.append(_described(context, context.broker.transactions.describe(transactional_id)))
        except CoordinatorError as error:
            states.append(context.new("TransactionState", error_code=error.code, transactional_id=transactional_id))
    return context.new("DescribeTransactionsResponse", transaction_states=states)


def _described(context: RequestContext, entry: TransactionMetadata) -> Message:
    return context.new(
        "TransactionState",
        error_code=error_codes.NONE,
        transactional_id=entry.transactional_id,
        transaction_state=entry.state,
        transaction_timeout_ms=entry.timeout_ms,
        transaction_start_time_ms=entry.start_timestamp_ms,
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        topics=[
            context.new("TopicData", topic=topic, partitions=partitions)
            for topic, partitions in entry.partitions_by_topic.items()
            if context.is_allowed("DESCRIBE", "TOPIC", topic)
        ],
    )


def handle_list_transactions(context: RequestContext, request: Message) -> Message | None:
    """Answer a ListTransactionsRequest; the pattern of version 2 has RE2's syntax and matches whole ids."""
    coordinator = context.broker.transactions
    if coordinator.runtime.loading_count():
        return context.new("ListTransactionsResponse", error_code=error_codes.COORDINATOR_LOAD_IN_PROGRESS)
    try:
        matches = compile_regex(request.transactional_id_pattern) if request.transactional_id_pattern else None
    except CoordinatorError as error:
        return context.new("ListTransactionsResponse", error_code=error.code)

    def is_wanted(name: str) -> bool:
        return (matches is None or bool(matches(name))) and context.is_allowed("DESCRIBE", "TRANSACTIONAL_ID", name)

    wanted = ListFilter(
        states=frozenset(request.state_filters),
        producer_ids=frozenset(request.producer_id_filters),
        duration_ms=request.duration_filter,
        is_wanted=is_wanted,
    )
    unknown = [name for name in request.state_filters if name not in TRANSACTION_STATES.values()]
    response = context.new("ListTransactionsResponse", unknown_state_filters=unknown)
    context.respond_after(_list_transactions(context, wanted, response.transaction_states), response)
    return None


def _list_transactions(context: RequestContext, wanted: ListFilter, states: list[Message]) -> Iterator[None]:
    """Fill in the transactions that pass a filter; yield after each time slice."""
    found: list[TransactionMetadata] = []
    yield from context.broker.transactions.list_transactions(wanted, found)
    budget = SliceBudget()
    for entry in found:
        fields = {"producer_id": entry.producer_id, "transaction_state": entry.state}
        states.append(context.new("TransactionState", transactional_id=entry.transactional_id, **fields))
        if budget.is_spent(_LIST_US):
            yield
