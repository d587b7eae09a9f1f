"""Metadata, DescribeCluster and DescribeTopicPartitions: the brokers, and topics with their partitions and leaders.

    Metadata asks for (each once)     and is answered with
    --------------------------------  ----------------------------------------------------------------------------------
    null (version 0: an empty list)   all topics that the client may describe
    a name                            the topic; a missing one is created, if the request and auto.create.topics.enable
                                      allow it: UNKNOWN_TOPIC_OR_PARTITION until it exists
    an id (from version 12 on)        the topic, or UNKNOWN_TOPIC_ID; its name is ignored
    an id or no name (10 and 11)      INVALID_REQUEST for each topic of the request
    neither an id nor a name          INVALID_REQUEST

A leader that cannot be reached on the client's listener: LEADER_NOT_AVAILABLE, from version 6 on LISTENER_NOT_FOUND.

    endpoint type of DescribeCluster  is answered with (KIP-700, KIP-919)
    --------------------------------  ----------------------------------------------------------------------------------
    1 (version 0 too)                 the brokers that can be reached on the client's listener; from version 2 on fenced
                                      ones, too, if the client asks for them
    2                                 MISMATCHED_ENDPOINT_TYPE: brokers do not describe controllers
    any other                         UNSUPPORTED_ENDPOINT_TYPE

    DescribeTopicPartitions           (KIP-966)
    --------------------------------  ----------------------------------------------------------------------------------
    no topics named                   all that the client may describe
    the order                         by name; a topic that is named twice comes once
    the page                          as many partitions as the client wants, at least 1, at most
                                      max.request.partition.size.limit; a topic that does not exist does not count
    a full page                       next_cursor: the topic and partition where the next page begins
    the cursor                        where this page begins; it must be one of the named topics, its partition not negative:
                                      else each named topic is answered with INVALID_REQUEST
    a topic that the client may not   last, if it was named; never, if none was
    describe

An answer about all topics is kept, encoded, until the metadata changes: with 10,000 partitions it takes 100 ms to make. With an
authorizer it depends on the client, and is not kept.

A replica is offline if its broker is not registered, is fenced, cannot be reached on the client's listener, or has lost the
directory of the replica (KIP-858). If a broker registered no directories, its replicas count as online.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.protocol import error_codes
from kcli.protocol.framing import encode_response
from kcli.protocol.message import Message
from kcli.server.apis.context import PARTITION_US, TOPIC_US, RequestContext
from kcli.server.authorizer import CLUSTER_NAME, AllowAll
from kcli.server.metadata_cache import MAX_ANSWERS, EncodedAnswer
from kcli.server.metrics.broker_metrics import error_codes_in
from kcli.server.scheduler import SliceBudget
from kcli.state.metadata_values import (
    ACL_OPERATIONS,
    DIRECTORY_LOST,
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    NO_LEADER,
    BrokerRegistration,
    PartitionRegistration,
    Topic,
)
from kcli.state.topic_names import INTERNAL_TOPICS, topic_name_fault

_TOPIC_IDS_SINCE = 12
_LISTENER_NOT_FOUND_SINCE = 6
# Endpoint types of DescribeCluster.
_BROKERS = 1
_CONTROLLERS = 2
_NO_OPERATIONS = 0
_TOPIC = "DescribeTopicPartitionsResponseTopic"
# Kafka's operations on each resource type.
_OPERATIONS = {
    "TOPIC": ("READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
    "CLUSTER": (
        *("CREATE", "ALTER", "DESCRIBE", "CLUSTER_ACTION"),
        *("DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE"),
    ),
    "GROUP": ("READ", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"),
}
_CODES = {name: code for code, name in ACL_OPERATIONS.items()}


def authorized_operations(context: RequestContext, resource_type: str, name: str = CLUSTER_NAME) -> int:
    """Return the operations that the client may do on a resource: bit n for the operation of code n (KIP-430)."""
    bits = 0
    for operation in _OPERATIONS[resource_type]:
        if context.is_allowed(operation, resource_type, name):
            bits |= 1 << _CODES[operation]
    return bits


def all_operations(resource_type: str) -> int:
    """Return the operations on a resource that a client may do without an authorizer."""
    return sum(1 << _CODES[operation] for operation in _OPERATIONS[resource_type])


class ReplicaStates:
    """The brokers as clients of one listener see them, cached for one answer."""

    def __init__(self, brokers: Mapping[int, BrokerRegistration], listener: str) -> None:
        self.reached = {
            node_id: broker for node_id, broker in brokers.items() if not broker.is_fenced and listener in broker.endpoints
        }
        self._is_online: dict[tuple[int, Uuid], bool] = {}

    def offline(self, partition: PartitionRegistration) -> list[int]:
        """Return the node ids of the offline replicas."""
        offline, known = [], self._is_online
        for replica in zip(partition.replicas, partition.directories):
            is_online = known.get(replica)
            if is_online is None:
                is_online = known[replica] = self._find(*replica)
            if not is_online:
                offline.append(replica[0])
        return offline

    def _find(self, node_id: int, directory: Uuid) -> bool:
        broker = self.reached.get(node_id)
        if broker is None or directory == DIRECTORY_LOST:
            return False
        return not broker.log_dirs or directory in (DIRECTORY_MIGRATING, DIRECTORY_UNASSIGNED, *broker.log_dirs)


def handle_metadata(context: RequestContext, request: Message) -> Message | None:
    """Answer a MetadataRequest, in slices if it asks for many partitions."""
    broker = context.broker
    if context.version < _TOPIC_IDS_SINCE and any(
        item.name is None or item.topic_id != ZERO_UUID for item in request.topics or ()
    ):
        refused = [_failed(context, item.name or "", error_codes.INVALID_REQUEST, item.topic_id) for item in request.topics]
        return context.new("MetadataResponse", topics=refused)
    listener, is_all = context.connection.listener, _asks_for_all(context, request)
    key = (
        context.version,
        listener,
        request.include_cluster_authorized_operations,
        request.include_topic_authorized_operations,
    )
    answers = broker.metadata.all_topics
    if is_all and key in answers:
        context.respond_encoded(answers[key])
        return None
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

    filling = _fill(context, request, response.topics, states)
    codes: dict[int, int] = {}

    def fill_and_count() -> Iterator[None]:
        yield from filling
        codes.update(error_codes_in(context.api.key, response))

    def respond_and_keep(now_ms: int) -> None:
        answer = EncodedAnswer(encode_response(context.correlation_id, context.api, context.version, response), codes)
        if len(answers) < MAX_ANSWERS:
            answers[key] = answer
        context.respond_encoded(answer)

    if is_all and isinstance(broker.authorizer, AllowAll):
        context.run(fill_and_count(), respond_and_keep, context.now_ms)
    else:
        context.respond_after(filling, response)
    return None


def _asks_for_all(context: RequestContext, request: Message) -> bool:
    return request.topics is None or (not request.topics and context.version == 0)


def _fill(context: RequestContext, request: Message, topics: list[Message], states: ReplicaStates) -> Iterator[None]:
    """Answer one topic after the other."""
    image, budget = context.broker.metadata.image, SliceBudget()
    asked = request.topics
    if _asks_for_all(context, request):
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
    """Add the client's operations to the answer of a topic, if it asked for them."""
    if request.include_topic_authorized_operations:
        answer.topic_authorized_operations = authorized_operations(context, "TOPIC", answer.name)
    return answer


def _leader(
    context: RequestContext,
    partition: PartitionRegistration,
    registered: dict[int, BrokerRegistration],
    states: ReplicaStates,
) -> tuple[int, int]:
    """Return the error code and the leader of a partition, as the client can reach it."""
    leader = partition.leader
    if leader in states.reached:
        return error_codes.NONE, leader
    is_alive = leader in registered and not registered[leader].is_fenced
    if is_alive and context.version >= _LISTENER_NOT_FOUND_SINCE:
        return error_codes.LISTENER_NOT_FOUND, -1
    return error_codes.LEADER_NOT_AVAILABLE, -1


def handle_describe_cluster(context: RequestContext, request: Message) -> Message:
    """Answer a DescribeClusterRequest."""
    if request.endpoint_type != _BROKERS:
        return _refuse_endpoint(context, request.endpoint_type)
    broker, listener = context.broker, context.connection.listener
    reached = {
        node_id: registration
        for node_id, registration in broker.metadata.image.brokers.items()
        if listener in registration.endpoints and (request.include_fenced_brokers or not registration.is_fenced)
    }
    alive = [node_id for node_id, registration in reached.items() if not registration.is_fenced]
    response = context.new(
        "DescribeClusterResponse",
        cluster_id=broker.cluster_id,
        controller_id=broker.node_id if broker.node_id in alive else next(iter(alive), -1),
        brokers=[
            context.new(
                "DescribeClusterBroker",
                broker_id=node_id,
                host=registration.endpoints[listener].host,
                port=registration.endpoints[listener].port,
                rack=registration.rack,
                is_fenced=registration.is_fenced,
            )
            for node_id, registration in reached.items()
        ],
    )
    if request.include_cluster_authorized_operations:
        may_describe = context.is_allowed("DESCRIBE", "CLUSTER")
        response.cluster_authorized_operations = authorized_operations(context, "CLUSTER") if may_describe else _NO_OPERATIONS
    return response


def _refuse_endpoint(context: RequestContext, endpoint_type: int) -> Message:
    code, sentence = error_codes.UNSUPPORTED_ENDPOINT_TYPE, f"endpoint type {endpoint_type} is unknown; brokers have type 1"
    if endpoint_type == _CONTROLLERS:
        code = error_codes.MISMATCHED_ENDPOINT_TYPE
        sentence = "this is a broker's listener; send the request to a listener of controller.listener.names"
    return context.new("DescribeClusterResponse", error_code=code, error_message=sentence)


def handle_describe_topic_partitions(context: RequestContext, request: Message) -> Message | None:
    """Answer a DescribeTopicPartitionsRequest, in slices if it asks for many partitions."""
    image, cursor = context.broker.metadata.image, request.cursor
    is_all = not request.topics
    names = list(image.topic_ids) if is_all else [topic.name for topic in request.topics]
    if cursor is not None:
        if cursor.partition_index < 0 or (not is_all and cursor.topic_name not in names):
            return _refuse_cursor(context, request)
        names = [name for name in names if name >= cursor.topic_name]
    allowed: list[str] = []
    refused: list[str] = []
    for name in sorted(set(names)):
        (allowed if context.is_allowed("DESCRIBE", "TOPIC", name) else refused).append(name)
    response = context.new("DescribeTopicPartitionsResponse")
    context.respond_after(_fill_pages(context, request, response, allowed, [] if is_all else refused), response)
    return None


def _refuse_cursor(context: RequestContext, request: Message) -> Message:
    topics = [context.new(_TOPIC, name=topic.name, error_code=error_codes.INVALID_REQUEST) for topic in request.topics]
    return context.new("DescribeTopicPartitionsResponse", topics=topics)


def _fill_pages(
    context: RequestContext, request: Message, response: Message, allowed: list[str], refused: list[str]
) -> Iterator[None]:
    yield from _fill_page(context, request, response, allowed)
    response.topics += [_failed_topic(context, name, error_codes.TOPIC_AUTHORIZATION_FAILED) for name in refused]


def _fill_page(context: RequestContext, request: Message, response: Message, names: list[str]) -> Iterator[None]:
    image, cursor, budget = context.broker.metadata.image, request.cursor, SliceBudget()
    states = ReplicaStates(image.brokers, context.connection.listener)
    limit = max(1, min(request.response_partition_limit, context.broker.config["max.request.partition.size.limit"]))
    for name in names:
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        if limit <= 0:
            response.next_cursor = context.new("Cursor", topic_name=name, partition_index=0)
            return
        topic = image.topic(name)
        if topic is None:
            is_bad = topic_name_fault(name) is not None
            code = error_codes.INVALID_TOPIC_EXCEPTION if is_bad else error_codes.UNKNOWN_TOPIC_OR_PARTITION
            response.topics.append(_failed_topic(context, name, code))
            continue
        indexes = [index for index in sorted(topic.partitions) if index >= first]
        yield from _found_topic(context, states, topic, indexes[:limit], response.topics, budget)
        if len(indexes) > limit:
            response.next_cursor = context.new("Cursor", topic_name=name, partition_index=indexes[limit])
            return
        limit -= len(indexes)


def _failed_topic(context: RequestContext, name: str, code: int) -> Message:
    operations = authorized_operations(context, "TOPIC", name)
    return context.new(
        _TOPIC, name=name, error_code=code, is_internal=name in INTERNAL_TOPICS, topic_authorized_operations=operations
    )


def _found_topic(
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
