"""Metadata: the brokers, and for topics their partitions and leaders.

    asked for (each once)             answered with
    --------------------------------  ----------------------------------------------------------------------------------
    null (version 0: an empty list)   all topics that the client may describe
    a name                            the topic; one that is missing is made, where the request and
                                      auto.create.topics.enable allow it: UNKNOWN_TOPIC_OR_PARTITION until it is there
    an id (from version 12 on)        the topic, or UNKNOWN_TOPIC_ID; its name is not looked at
    an id or no name (10 and 11)      INVALID_REQUEST for each topic of the request
    neither an id nor a name          INVALID_REQUEST

A leader that cannot be reached on the client's listener: LEADER_NOT_AVAILABLE, from version 6 on LISTENER_NOT_FOUND.
"""

from __future__ import annotations

from collections.abc import Iterator

from kcli.format.kafka_uuid import ZERO_UUID
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.authorized_operations import authorized_operations
from kcli.server.apis.context import RequestContext
from kcli.server.apis.replica_state import ReplicaStates
from kcli.server.apis.slices import PARTITION_US, TOPIC_US, SliceBudget, answer_in_slices
from kcli.state.metadata_values import BrokerRegistration, Partition, Topic
from kcli.state.topic_names import INTERNAL_TOPICS, topic_name_fault

_TOPIC_IDS_SINCE = 12
_LISTENER_NOT_FOUND_SINCE = 6


def handle_metadata(context: RequestContext, request: Message) -> Message | None:
    """Answer a MetadataRequest, in slices where it asks for many partitions."""
    broker = context.broker
    if context.version < _TOPIC_IDS_SINCE and any(
        item.name is None or item.topic_id != ZERO_UUID for item in request.topics or ()
    ):
        refused = [_failed(context, item.name or "", error_codes.INVALID_REQUEST, item.topic_id) for item in request.topics]
        return context.new("MetadataResponse", topics=refused)
    listener = context.connection.listener
    states = ReplicaStates(broker.metadata.image.brokers, listener)
    make = context.api.response.classes["MetadataResponseBroker"]
    brokers = []
    for node_id, registration in states.reached.items():
        endpoint = registration.endpoints[listener]
        brokers.append(make(node_id=node_id, host=endpoint.host, port=endpoint.port, rack=registration.rack))
    response = context.new(
        "MetadataResponse",
        brokers=brokers,
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id if broker.node_id in states.reached else next(iter(states.reached), -1),
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = authorized_operations(context, "CLUSTER")
    answer_in_slices(context, _fill(context, request, response.topics, states), response)
    return None


def _fill(context: RequestContext, request: Message, topics: list[Message], states: ReplicaStates) -> Iterator[None]:
    """Answer for one topic after the other."""
    image, budget = context.broker.metadata.image, SliceBudget()
    asked = request.topics
    if asked is None or (not asked and context.version == 0):
        for topic in list(image.topics.values()):
            if context.is_allowed("DESCRIBE", "TOPIC", topic.name):
                yield from _found(context, request, topics, topic, states, budget)
        return
    missing = []
    for item in {(item.topic_id, item.name): item for item in asked}.values():
        if item.name is None or item.topic_id != ZERO_UUID:
            yield from _by_id(context, request, topics, item, states, budget)
            continue
        if not context.is_allowed("DESCRIBE", "TOPIC", item.name):
            topics.append(_failed(context, item.name, error_codes.TOPIC_AUTHORIZATION_FAILED))
            continue
        found = image.topic(item.name)
        if found is not None:
            yield from _found(context, request, topics, found, states, budget)
        elif topic_name_fault(item.name) is not None:
            topics.append(_with_operations(context, request, _failed(context, item.name, error_codes.INVALID_TOPIC_EXCEPTION)))
        else:
            missing.append(item.name)
            answer = _failed(context, item.name, error_codes.UNKNOWN_TOPIC_OR_PARTITION)
            topics.append(_with_operations(context, request, answer))
    if missing and request.allow_auto_topic_creation and context.broker.config["auto.create.topics.enable"]:
        context.broker.topic_creation.create([name for name in missing if context.is_allowed("CREATE", "TOPIC", name)])


def _by_id(
    context: RequestContext, request: Message, topics: list[Message], item: Message, states: ReplicaStates, budget: SliceBudget
) -> Iterator[None]:
    if item.topic_id == ZERO_UUID:
        topics.append(_failed(context, "", error_codes.INVALID_REQUEST))
        return
    topic = context.broker.metadata.image.topics.get(item.topic_id)
    if topic is None or not context.is_allowed("DESCRIBE", "TOPIC", topic.name):
        topics.append(_failed(context, None, error_codes.UNKNOWN_TOPIC_ID, item.topic_id))
    else:
        yield from _found(context, request, topics, topic, states, budget)


def _failed(context: RequestContext, name: str | None, code: int, topic_id: bytes = ZERO_UUID) -> Message:
    return context.new(
        "MetadataResponseTopic", error_code=code, name=name, topic_id=topic_id, is_internal=name in INTERNAL_TOPICS
    )


def _found(
    context: RequestContext, request: Message, topics: list[Message], topic: Topic, states: ReplicaStates, budget: SliceBudget
) -> Iterator[None]:
    make = context.api.response.classes["MetadataResponsePartition"]
    registered = context.broker.metadata.image.brokers
    partitions: list[Message] = []
    for index in sorted(topic.partitions):
        if budget.is_spent(PARTITION_US):
            yield
        partition = topic.partitions[index]
        code, leader = _leader(context, partition, registered, states)
        partitions.append(
            make(
                error_code=code,
                partition_index=index,
                leader_id=leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=partition.replicas,
                isr_nodes=partition.isr,
                offline_replicas=states.offline(partition),
            )
        )
    answer = context.new(
        "MetadataResponseTopic",
        error_code=error_codes.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=partitions,
    )
    topics.append(_with_operations(context, request, answer))
    if budget.is_spent(TOPIC_US):
        yield


def _with_operations(context: RequestContext, request: Message, answer: Message) -> Message:
    """The answer for a topic, with what the client may do with it where it asked for that."""
    if request.include_topic_authorized_operations:
        answer.topic_authorized_operations = authorized_operations(context, "TOPIC", answer.name)
    return answer


def _leader(
    context: RequestContext,
    partition: Partition,
    registered: dict[int, BrokerRegistration],
    states: ReplicaStates,
) -> tuple[int, int]:
    """(error code, leader) of a partition, as the client can reach it."""
    leader = partition.leader
    if leader in states.reached:
        return error_codes.NONE, leader
    is_alive = leader in registered and not registered[leader].is_fenced
    if is_alive and context.version >= _LISTENER_NOT_FOUND_SINCE:
        return error_codes.LISTENER_NOT_FOUND, -1
    return error_codes.LEADER_NOT_AVAILABLE, -1
