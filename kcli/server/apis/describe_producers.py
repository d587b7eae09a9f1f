"""DescribeProducers: the producers whose last batches a partition remembers (KIP-664).

    field of a producer        of a producer without a batch or transaction
    -------------------------  --------------------------------------------
    last sequence, timestamp   -1
    coordinator epoch          -1
    current_txn_start_offset   -1

The leader answers; anything else is refused with Kafka's error and a sentence.
"""

from __future__ import annotations

from kcli.log.producer_state_manager import ProducerStateEntry
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.replication.partition import PartitionError
from kcli.state.topic_names import topic_name_fault

_NONE = -1


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
        return error_codes.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic}"
    return error_codes.NONE, None


def _describe(context: RequestContext, topic: str, answer: Message) -> None:
    partition = context.broker.replica_manager.partition(topic, answer.partition_index)
    if partition is None:
        answer.error_code = context.broker.replica_manager.missing_partition_code(topic, answer.partition_index)
        answer.error_message = f"{topic}-{answer.partition_index} is not on broker {context.broker.node_id}"
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
