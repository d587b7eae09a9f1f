"""Topics: create, delete, list, describe, add partitions (Kafka: NewTopic, TopicDescription, NewPartitions).

    operation          API                      node
    -----------------  -----------------------  --------------
    create_topics      CreateTopics             the controller
    delete_topics      DeleteTopics             the controller
    create_partitions  CreatePartitions         the controller
    list_topics        Metadata of all topics   any broker
    describe_topics    DescribeTopicPartitions  any broker; Metadata if the broker does not have that API (before 3.8)

DescribeTopicPartitions answers a part of the partitions at a time, with a cursor for the next request. Replicas that are not
in sync and may still be elected (KIP-966) come from it alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from kcli.client.admin.configs import ConfigEntry, source_of
from kcli.client.admin.driver import answer_or_error
from kcli.client.admin.error_sentences import kafka_error, outcome_error
from kcli.client.admin.operation import (
    METADATA_RETRIED,
    NOT_EXECUTED,
    Call,
    Operation,
    Outcomes,
    RequestContext,
    Route,
    run,
    run_one,
    value_of,
)
from kcli.client.cluster import NO_EPOCH, NO_LEADER
from kcli.client.errors import ClientError, KafkaError, UnsupportedVersionError
from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.protocol import error_codes
from kcli.protocol.apis import (
    API_KEYS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_TOPIC_PARTITIONS,
    METADATA,
)
from kcli.protocol.message import Message

BROKER_DEFAULT = -1  # partitions, replication factor: what the broker is configured for
_DELETED_BY_ID_SINCE = 6
_NONE_IS_ALL_SINCE = 1
_NO_CREATION_SINCE = 4


class NewTopic(NamedTuple):
    """A topic to create; `assignments`, brokers by partition, replaces the two numbers."""

    name: str
    num_partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    assignments: Mapping[int, Sequence[int]] = {}
    configs: Mapping[str, str | None] = {}


class NewPartitions(NamedTuple):
    """The number of partitions that a topic shall have, with the brokers of each new one if they are to be chosen."""

    total_count: int
    assignments: Sequence[Sequence[int]] | None = None


class CreatedTopic(NamedTuple):
    """What was created; the numbers are -1 and the configs None if the client may not describe the topic."""

    topic_id: Uuid
    num_partitions: int
    replication_factor: int
    configs: tuple[ConfigEntry, ...] | None


class TopicListing(NamedTuple):
    """A topic in a list."""

    name: str
    topic_id: Uuid
    is_internal: bool


class TopicPartitionInfo(NamedTuple):
    """A partition; `leader` is NO_LEADER if there is none. The last two are None if the broker does not report them."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...]
    eligible_leader_replicas: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None


class TopicDescription(NamedTuple):
    """A topic with its partitions, in their order."""

    name: str
    topic_id: Uuid
    is_internal: bool
    partitions: tuple[TopicPartitionInfo, ...]


# ----------------------------------------------------------------------------------------------------------- create, delete


def create_topics(new_topics: Iterable[NewTopic], *, validate_only: bool = False) -> Operation[Outcomes[str, CreatedTopic]]:
    """Create topics; `validate_only` checks and creates nothing."""
    by_name = {topic.name: topic for topic in new_topics}

    def request(names: Sequence[str], context: RequestContext) -> Message:
        topics = [_creatable(by_name[name]) for name in names]
        kind = API_KEYS[CREATE_TOPICS].request
        return kind.new(topics=topics, timeout_ms=context.timeout_ms, validate_only=validate_only)

    return (yield from run(Call(CREATE_TOPICS, Route.CONTROLLER, request, _read_created, retried=NOT_EXECUTED), by_name))


def _creatable(topic: NewTopic) -> Message:
    classes = API_KEYS[CREATE_TOPICS].request.classes
    assignment, config = classes["CreatableReplicaAssignment"], classes["CreatableTopicConfig"]
    return classes["CreatableTopic"](
        name=topic.name,
        num_partitions=BROKER_DEFAULT if topic.assignments else topic.num_partitions,
        replication_factor=BROKER_DEFAULT if topic.assignments else topic.replication_factor,
        assignments=[
            assignment(partition_index=partition, broker_ids=list(brokers)) for partition, brokers in topic.assignments.items()
        ],
        configs=[config(name=name, value=value) for name, value in topic.configs.items()],
    )


def _read_created(_names: Sequence[str], answer: Message) -> Iterator[tuple[str, CreatedTopic | ClientError]]:
    for one in answer.topics:
        if one.error_code:
            yield one.name, kafka_error(one.error_code, one.error_message)
            continue
        configs = None
        if one.configs is not None and not one.topic_config_error_code:
            configs = tuple(
                ConfigEntry(each.name, each.value, source_of(each.config_source), each.is_sensitive, each.read_only)
                for each in one.configs
            )
        yield one.name, CreatedTopic(Uuid(one.topic_id), one.num_partitions, one.replication_factor, configs)


def delete_topics(topics: Iterable[str | Uuid]) -> Operation[Outcomes[str | Uuid, None]]:
    """Delete topics by their names or ids."""

    def request(keys: Sequence[str | Uuid], context: RequestContext) -> Message:
        kind = API_KEYS[DELETE_TOPICS].request
        names = [key for key in keys if isinstance(key, str)]
        if context.version < _DELETED_BY_ID_SINCE and len(names) == len(keys):
            return kind.new(topic_names=names, timeout_ms=context.timeout_ms)
        state = kind.classes["DeleteTopicState"]
        states = [state(name=key) if isinstance(key, str) else state(topic_id=key) for key in keys]
        return kind.new(topics=states, timeout_ms=context.timeout_ms)

    return (yield from run(Call(DELETE_TOPICS, Route.CONTROLLER, request, _read_deleted, retried=NOT_EXECUTED), topics))


def _read_deleted(keys: Sequence[str | Uuid], answer: Message) -> Iterator[tuple[str | Uuid, ClientError | None]]:
    asked = set(keys)
    for one in answer.responses:
        # A topic that was deleted by its id is answered with its name, too.
        key = Uuid(one.topic_id) if one.topic_id in asked else one.name
        yield key, outcome_error(one.error_code, one.error_message)


def create_partitions(wanted: Mapping[str, NewPartitions], *, validate_only: bool = False) -> Operation[Outcomes[str, None]]:
    """Add partitions to topics; `validate_only` checks and changes nothing."""

    def request(names: Sequence[str], context: RequestContext) -> Message:
        kind = API_KEYS[CREATE_PARTITIONS].request
        topic, assignment = kind.classes["CreatePartitionsTopic"], kind.classes["CreatePartitionsAssignment"]
        topics = []
        for name in names:
            count, chosen = wanted[name]
            assignments = None if chosen is None else [assignment(broker_ids=list(brokers)) for brokers in chosen]
            topics.append(topic(name=name, count=count, assignments=assignments))
        return kind.new(topics=topics, timeout_ms=context.timeout_ms, validate_only=validate_only)

    def read(_names: Sequence[str], answer: Message) -> Iterator[tuple[str, ClientError | None]]:
        for one in answer.results:
            yield one.name, outcome_error(one.error_code, one.error_message)

    return (yield from run(Call(CREATE_PARTITIONS, Route.CONTROLLER, request, read, retried=NOT_EXECUTED), wanted))


# ----------------------------------------------------------------------------------------------------------- list, describe


def list_topics(*, include_internal: bool = False) -> Operation[dict[str, TopicListing]]:
    """Return the topics of the cluster, sorted by name."""

    def request(_keys: Sequence[str], context: RequestContext) -> Message:
        is_none_all = context.version >= _NONE_IS_ALL_SINCE
        return API_KEYS[METADATA].request.new(topics=None if is_none_all else [])

    answer = yield from run_one(Call(METADATA, Route.ANY, request, answer_or_error, retried=METADATA_RETRIED), "topics")
    found = [TopicListing(one.name, Uuid(one.topic_id), one.is_internal) for one in answer.topics if one.name is not None]
    return {one.name: one for one in sorted(found) if include_internal or not one.is_internal}


def _whole_answer(keys: Sequence[str], answer: Message) -> Iterator[tuple[str, Message | ClientError]]:
    yield keys[0], answer


def describe_topics(names: Iterable[str]) -> Operation[Outcomes[str, TopicDescription]]:
    """Return the partitions of topics."""
    wanted = list(dict.fromkeys(names))
    if not wanted:
        return {}
    try:
        return (yield from _describe_by_partitions(wanted))
    except UnsupportedVersionError:
        return (yield from _describe_by_metadata(wanted))


def describe_topic(name: str) -> Operation[TopicDescription]:
    """Return the partitions of one topic. Raises KafkaError, whose sentence names the topic."""
    outcome = (yield from describe_topics([name]))[name]
    if isinstance(outcome, KafkaError) and outcome.code == error_codes.UNKNOWN_TOPIC_OR_PARTITION:
        raise kafka_error(outcome.code, f"the cluster has no topic {name}")
    return value_of(outcome)


def _describe_by_partitions(wanted: list[str]) -> Operation[Outcomes[str, TopicDescription]]:
    kind = API_KEYS[DESCRIBE_TOPIC_PARTITIONS].request
    of_topic, of_cursor = kind.classes["TopicRequest"], kind.classes["Cursor"]
    topics: dict[str, Message] = {}
    partitions: dict[str, list[TopicPartitionInfo]] = {}
    cursor: Message | None = None
    left = sorted(wanted)
    while True:
        first = None if cursor is None else of_cursor(topic_name=cursor.topic_name, partition_index=cursor.partition_index)
        message = kind.new(topics=[of_topic(name=name) for name in left], cursor=first)
        call = Call(DESCRIBE_TOPIC_PARTITIONS, Route.ANY, partial(_asked, message), _whole_answer)
        answer = yield from run_one(call, "topics")
        for topic in answer.topics:
            topics[topic.name] = topic
            partitions.setdefault(topic.name, []).extend(map(_partition_with_elr, topic.partitions))
        cursor = answer.next_cursor
        if cursor is None:
            break
        left = [name for name in left if name >= cursor.topic_name]
    return {name: _description(name, topics.get(name), partitions.get(name, [])) for name in wanted}


def _asked(message: Message, _keys: Sequence[str], _context: RequestContext) -> Message:
    return message


def _describe_by_metadata(wanted: list[str]) -> Operation[Outcomes[str, TopicDescription]]:
    kind = API_KEYS[METADATA].request
    of_topic = kind.classes["MetadataRequestTopic"]

    def request(_keys: Sequence[str], context: RequestContext) -> Message:
        may_create = context.version < _NO_CREATION_SINCE
        return kind.new(topics=[of_topic(name=name) for name in wanted], allow_auto_topic_creation=may_create)

    answer = yield from run_one(Call(METADATA, Route.ANY, request, answer_or_error, retried=METADATA_RETRIED), "topics")
    topics = {topic.name: topic for topic in answer.topics}
    return {
        name: _description(name, topic, [] if topic is None else list(map(_partition, topic.partitions)))
        for name, topic in ((name, topics.get(name)) for name in wanted)
    }


def _description(name: str, topic: Message | None, partitions: list[TopicPartitionInfo]) -> TopicDescription | ClientError:
    if topic is None:
        return kafka_error(-1, f"the answer of the broker does not contain topic {name}")
    if topic.error_code:
        return kafka_error(topic.error_code)
    topic_id = Uuid(topic.topic_id) if topic.topic_id else ZERO_UUID
    return TopicDescription(name, topic_id, topic.is_internal, tuple(sorted(partitions)))


def _partition(one: Message) -> TopicPartitionInfo:
    return TopicPartitionInfo(
        one.partition_index,
        one.leader_id if one.leader_id >= 0 else NO_LEADER,
        max(one.leader_epoch, NO_EPOCH),
        tuple(one.replica_nodes),
        tuple(one.isr_nodes),
        tuple(one.offline_replicas),
    )


def _partition_with_elr(one: Message) -> TopicPartitionInfo:
    eligible, last_known = one.eligible_leader_replicas, one.last_known_elr
    return _partition(one)._replace(
        eligible_leader_replicas=None if eligible is None else tuple(eligible),
        last_known_elr=None if last_known is None else tuple(last_known),
    )
