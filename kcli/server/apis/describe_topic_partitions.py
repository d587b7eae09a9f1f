"""DescribeTopicPartitions: topics with their partitions, a page at a time (KIP-966).

what                     how
-----------------------  -------------------------------------------------------------------------------------------
no topics named          all that the client may describe
the order                by name; a topic that is named twice comes once
the page                 as many partitions as the client wants, at least 1, at most
                         max.request.partition.size.limit; a topic that is not there takes no place
a page that is full      next_cursor: the topic and partition where the next one begins
the cursor               where this page begins; it must be one of the named topics, its partition not negative:
                         else each named topic is answered with INVALID_REQUEST
a topic that the client  last, where it was named; never, where none was
may not describe
"""

from __future__ import annotations

from collections.abc import Iterator

from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.authorized_operations import authorized_operations
from kcli.server.apis.context import RequestContext
from kcli.server.apis.replica_state import ReplicaStates
from kcli.server.apis.slices import PARTITION_US, TOPIC_US, SliceBudget, answer_in_slices
from kcli.state.metadata_values import NO_LEADER, Topic
from kcli.state.topic_names import INTERNAL_TOPICS, topic_name_fault

_TOPIC = "DescribeTopicPartitionsResponseTopic"


def handle_describe_topic_partitions(context: RequestContext, request: Message) -> Message | None:
    """Answer a DescribeTopicPartitionsRequest, in slices where it asks for many."""
    image, cursor = context.broker.metadata.image, request.cursor
    is_all = not request.topics
    names = list(image.topic_ids) if is_all else [topic.name for topic in request.topics]
    if cursor is not None:
        if cursor.partition_index < 0 or (not is_all and cursor.topic_name not in names):
            return _refuse(context, request)
        names = [name for name in names if name >= cursor.topic_name]
    allowed: list[str] = []
    refused: list[str] = []
    for name in sorted(set(names)):
        (allowed if context.is_allowed("DESCRIBE", "TOPIC", name) else refused).append(name)
    response = context.new("DescribeTopicPartitionsResponse")
    answer_in_slices(context, _fill(context, request, response, allowed, [] if is_all else refused), response)
    return None


def _refuse(context: RequestContext, request: Message) -> Message:
    topics = [context.new(_TOPIC, name=topic.name, error_code=error_codes.INVALID_REQUEST) for topic in request.topics]
    return context.new("DescribeTopicPartitionsResponse", topics=topics)


def _fill(
    context: RequestContext, request: Message, response: Message, allowed: list[str], refused: list[str]
) -> Iterator[None]:
    yield from _fill_page(context, request, response, allowed)
    response.topics += [_failed(context, name, error_codes.TOPIC_AUTHORIZATION_FAILED) for name in refused]


def _fill_page(context: RequestContext, request: Message, response: Message, names: list[str]) -> Iterator[None]:
    image, cursor, budget = context.broker.metadata.image, request.cursor, SliceBudget()
    states = ReplicaStates(image.brokers, context.connection.listener)
    room = max(1, min(request.response_partition_limit, context.broker.config["max.request.partition.size.limit"]))
    for name in names:
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        if room <= 0:
            response.next_cursor = context.new("Cursor", topic_name=name, partition_index=0)
            return
        topic = image.topic(name)
        if topic is None:
            is_bad = topic_name_fault(name) is not None
            code = error_codes.INVALID_TOPIC_EXCEPTION if is_bad else error_codes.UNKNOWN_TOPIC_OR_PARTITION
            response.topics.append(_failed(context, name, code))
            continue
        indexes = [index for index in sorted(topic.partitions) if index >= first]
        yield from _found(context, states, topic, indexes[:room], response.topics, budget)
        if len(indexes) > room:
            response.next_cursor = context.new("Cursor", topic_name=name, partition_index=indexes[room])
            return
        room -= len(indexes)


def _failed(context: RequestContext, name: str, code: int) -> Message:
    operations = authorized_operations(context, "TOPIC", name)
    return context.new(
        _TOPIC, name=name, error_code=code, is_internal=name in INTERNAL_TOPICS, topic_authorized_operations=operations
    )


def _found(
    context: RequestContext, states: ReplicaStates, topic: Topic, indexes: list[int], topics: list[Message], budget: SliceBudget
) -> Iterator[None]:
    make = context.api.response.classes["DescribeTopicPartitionsResponsePartition"]
    partitions: list[Message] = []
    for index in indexes:
        if budget.is_spent(PARTITION_US):
            yield
        partition = topic.partitions[index]
        partitions.append(
            make(
                partition_index=index,
                leader_id=partition.leader if partition.leader in states.reached else NO_LEADER,
                leader_epoch=partition.leader_epoch,
                replica_nodes=partition.replicas,
                isr_nodes=partition.isr,
                eligible_leader_replicas=partition.eligible_leader_replicas,
                last_known_elr=partition.last_known_elr,
                offline_replicas=states.offline(partition),
            )
        )
    found = context.new(
        _TOPIC,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=partitions,
        topic_authorized_operations=authorized_operations(context, "TOPIC", topic.name),
    )
    topics.append(found)
    if budget.is_spent(TOPIC_US):
        yield
