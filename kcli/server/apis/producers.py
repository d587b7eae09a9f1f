"""InitProducerId and DescribeProducers: ids for producers, and the producers that a partition remembers (KIP-664).

transactional id   producer id, epoch   InitProducerId answers
-----------------  -------------------  ----------------------------------------------------------------------------
null               none                 a new id, epoch 0
null               any (KIP-360)        a new id as well: without a transaction no state has to be kept
any                                     the id and its next epoch, of the transaction coordinator

A transactional id needs WRITE on it, and TWO_PHASE_COMMIT if the request enables it (KIP-939). No transactional id needs
IDEMPOTENT_WRITE on the cluster or WRITE on some topic (KIP-679; KafkaApis of Kafka 4.3). Versions 0 to 3 get
INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED.

DescribeProducers is answered by the leader; other partitions get Kafka's error and a sentence. The last sequence and timestamp,
the coordinator epoch and current_txn_start_offset are -1 for a producer without a batch or transaction.
"""

from __future__ import annotations

from functools import partial

from kcli.format.record_batch import Producer
from kcli.log.producer_state_manager import ProducerStateEntry
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.coordinator.operation import CoordinatorError
from kcli.server.coordinator.transaction.transaction_coordinator import InitProducerIdRequest
from kcli.server.replication.partition import PartitionError
from kcli.state.topic_names import topic_name_fault

_NONE = -1
_FENCED_VERSION = 4  # of InitProducerId: from here on clients know PRODUCER_FENCED


def handle_init_producer_id(context: RequestContext, request: Message) -> Message | None:
    """Answer an InitProducerIdRequest once there is an id."""
    make = context.api.response.new
    transactional_id, producer = request.transactional_id, Producer(request.producer_id, request.producer_epoch)
    code = _init_refusal(context, request)
    if code:
        return make(error_code=code, producer_epoch=_NONE)
    if (producer.producer_id == _NONE) != (producer.producer_epoch == _NONE):
        return make(error_code=error_codes.INVALID_REQUEST, producer_epoch=_NONE)
    if transactional_id is not None:
        expected = None if producer.producer_id == _NONE else producer
        timeout_ms, is_two_phase, keeps = request.transaction_timeout_ms, request.enable2_pc, request.keep_prepared_txn
        wanted = InitProducerIdRequest(transactional_id, timeout_ms, expected, is_two_phase, keeps)
        context.broker.transactions.init_producer_id(wanted, partial(_initialised, context))
        return None

    def allocated(producer_id: int, now_ms: int) -> None:
        context.respond(make(error_code=error_codes.NONE, producer_id=producer_id, producer_epoch=0))

    context.broker.producer_ids.next(allocated, context.now_ms)
    return None


def _init_refusal(context: RequestContext, request: Message) -> int:
    """Return the error code if the client may not get an id; this is checked before anything else."""
    name = request.transactional_id
    if name is None:
        is_allowed = context.is_allowed("IDEMPOTENT_WRITE", "CLUSTER") or context.is_allowed_by_type("WRITE", "TOPIC")
        return error_codes.NONE if is_allowed else error_codes.CLUSTER_AUTHORIZATION_FAILED
    operations = ("WRITE", "TWO_PHASE_COMMIT") if request.enable2_pc else ("WRITE",)
    is_allowed = all(context.is_allowed(operation, "TRANSACTIONAL_ID", name) for operation in operations)
    return error_codes.NONE if is_allowed else error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def _initialised(context: RequestContext, result: Producer | CoordinatorError, now_ms: int) -> None:
    make = context.api.response.new
    if isinstance(result, CoordinatorError):
        is_old = context.version < _FENCED_VERSION and result.code == error_codes.PRODUCER_FENCED
        code = error_codes.INVALID_PRODUCER_EPOCH if is_old else result.code
        context.respond(make(error_code=code, producer_epoch=_NONE))
        return
    context.respond(make(error_code=error_codes.NONE, producer_id=result.producer_id, producer_epoch=result.producer_epoch))


def handle_describe_producers(context: RequestContext, request: Message) -> Message:
    """Answer a DescribeProducersRequest."""
    topics = []
    for topic in request.topics:
        code, sentence = _refusal(context, topic.name)
        partitions = []
        for index in topic.partition_indexes:
            answer = context.new("PartitionResponse", partition_index=index, error_code=code, error_message=sentence)
            partitions.append(answer)
            if not code:
                _describe(context, topic.name, answer)
        topics.append(context.new("TopicResponse", name=topic.name, partitions=partitions))
    return context.new("DescribeProducersResponse", topics=topics)


def _refusal(context: RequestContext, topic: str) -> tuple[int, str | None]:
    fault = topic_name_fault(topic)
    if fault is not None:
        return error_codes.INVALID_TOPIC_EXCEPTION, fault
    if not context.is_allowed("READ", "TOPIC", topic):
        return error_codes.TOPIC_AUTHORIZATION_FAILED, f"{context.connection.principal} may not read topic {topic}"
    if topic not in context.broker.metadata.image.topic_ids:
        return error_codes.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} does not exist"
    return error_codes.NONE, None


def _describe(context: RequestContext, topic: str, answer: Message) -> None:
    partition = context.broker.replica_manager.partition(topic, answer.partition_index)
    if partition is None:
        answer.error_code = context.broker.replica_manager.missing_partition_code(topic, answer.partition_index)
        answer.error_message = f"{topic}-{answer.partition_index} is not hosted by broker {context.broker.node_id}"
        return
    try:
        log = partition.leader_log()
    except PartitionError as error:
        answer.error_code, answer.error_message = error.code, str(error)
        return
    answer.active_producers = [_producer(context, entry) for entry in log.producers.producers.values()]


def _producer(context: RequestContext, entry: ProducerStateEntry) -> Message:
    first_offset = entry.current_txn_first_offset
    return context.new(
        "ProducerState",
        producer_id=entry.producer_id,
        producer_epoch=entry.producer_epoch,
        last_sequence=entry.batches[-1].last_sequence if entry.batches else _NONE,
        last_timestamp=entry.last_timestamp,
        coordinator_epoch=entry.coordinator_epoch,
        current_txn_start_offset=_NONE if first_offset is None else first_offset,
    )
