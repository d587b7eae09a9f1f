"""Committed offsets of groups: list, alter, delete (Kafka: ListConsumerGroupOffsetsSpec, OffsetAndMetadata).

    operation                       API                       groups                    asked about
    ------------------------------  ------------------------  ------------------------  ---------------------------
    list_consumer_group_offsets     OffsetFetch               classic, consumer,        several groups at a time
    alter_consumer_group_offsets    OffsetCommit              streams                   one group
    delete_consumer_group_offsets   OffsetDelete                                        one group
    list_share_group_offsets        DescribeShareGroupOffsets share                     several groups at a time
    alter_share_group_offsets       AlterShareGroupOffsets                              one group
    delete_share_group_offsets      DeleteShareGroupOffsets                             one group, whole topics

The coordinator of a group answers. OffsetFetch and OffsetCommit are sent in version 9 at most: later ones have ids of topics
instead of names, which an administrator would have to look up first, and topics that were deleted have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kcli.client.admin.driver import refused
from kcli.client.admin.error_sentences import kafka_error, outcome_error
from kcli.client.admin.operation import TRIED_AGAIN, Call, Operation, Outcomes, RequestContext, Route, run
from kcli.client.admin.partitions import by_topic
from kcli.client.errors import ClientError
from kcli.client.value_checks import OffsetAndMetadata, check_offsets
from kcli.format.primitives import TopicPartition
from kcli.protocol import error_codes
from kcli.protocol.apis import (
    ALTER_SHARE_GROUP_OFFSETS,
    API_KEYS,
    DELETE_SHARE_GROUP_OFFSETS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
)
from kcli.protocol.message import Message

_WITH_TOPIC_NAMES = 9  # the last version of OffsetFetch and OffsetCommit
_GROUPS_SINCE = 8
_STABLE_SINCE = 7
_ALTER_RETRIED = TRIED_AGAIN | {error_codes.REBALANCE_IN_PROGRESS}


class SharePartitionOffset(NamedTuple):
    """The first offset that a share group may still deliver, and its lag, -1 if it is not known."""

    start_offset: int
    leader_epoch: int
    lag: int


# By partition: None if nothing is committed for one that was asked for.
GroupOffsets = dict[TopicPartition, OffsetAndMetadata | ClientError | None]
ShareGroupOffsets = dict[TopicPartition, SharePartitionOffset | ClientError | None]


# ---------------------------------------------------------------------------------------------- classic, consumer, streams


def list_consumer_group_offsets(
    groups: Mapping[str, Iterable[TopicPartition] | None], *, require_stable: bool = False
) -> Operation[Outcomes[str, GroupOffsets]]:
    """Return the committed offsets of groups for some partitions, or for all that have one (None).

    With `require_stable`, offsets that a transaction may still change have UNSTABLE_OFFSET_COMMIT as their outcome; brokers
    before Kafka 2.5 do not know this option and return the offsets.
    """
    wanted = {group: None if found is None else by_topic(found) for group, found in groups.items()}

    def request(keys: Sequence[str], context: RequestContext) -> Message:
        kind = API_KEYS[OFFSET_FETCH].request
        stable = {"require_stable": require_stable} if context.version >= _STABLE_SINCE else {}
        if context.version < _GROUPS_SINCE and len(keys) == 1:
            one = kind.classes["OffsetFetchRequestTopic"]
            return kind.new(group_id=keys[0], topics=_topics(one, wanted[keys[0]]), **stable)
        group, one = kind.classes["OffsetFetchRequestGroup"], kind.classes["OffsetFetchRequestTopics"]
        return kind.new(groups=[group(group_id=key, topics=_topics(one, wanted[key])) for key in keys], **stable)

    call = Call(OFFSET_FETCH, Route.GROUP, request, _read_fetched, max_version=_WITH_TOPIC_NAMES)
    return (yield from run(call, wanted))


def _topics(kind: type[Message], topics: Mapping[str, list[int]] | None) -> list[Message] | None:
    if topics is None:
        return None
    return [kind(name=name, partition_indexes=found) for name, found in topics.items()]


def _read_fetched(keys: Sequence[str], answer: Message) -> Iterator[tuple[str, GroupOffsets | ClientError]]:
    groups = answer.groups if answer.schema_version >= _GROUPS_SINCE else [answer]
    for group in groups:
        key = group.group_id if answer.schema_version >= _GROUPS_SINCE else keys[0]
        if group.error_code:
            yield key, kafka_error(group.error_code)
            continue
        offsets: GroupOffsets = {}
        for topic in group.topics:
            for one in topic.partitions:
                committed = None
                if one.committed_offset >= 0:
                    committed = OffsetAndMetadata(one.committed_offset, one.committed_leader_epoch, one.metadata or "")
                offsets[topic.name, one.partition_index] = outcome_error(one.error_code) or committed
        yield key, offsets


def alter_consumer_group_offsets(
    group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> Operation[Outcomes[TopicPartition, None]]:
    """Commit offsets for a group without members; a group that does not exist is created.

    Raises TypeError, ValueError and KafkaError for offsets that cannot be.
    """
    check_offsets(offsets)

    def request(keys: Sequence[TopicPartition], _context: RequestContext) -> Message:
        kind = API_KEYS[OFFSET_COMMIT].request
        topic, partition = kind.classes["OffsetCommitRequestTopic"], kind.classes["OffsetCommitRequestPartition"]
        topics = []
        for name, indexes in by_topic(keys).items():
            parts = []
            for index in indexes:
                one = offsets[name, index]
                parts.append(
                    partition(
                        partition_index=index,
                        committed_offset=one.offset,
                        committed_leader_epoch=one.leader_epoch,
                        committed_metadata=one.metadata,
                    )
                )
            topics.append(topic(name=name, partitions=parts))
        return kind.new(group_id=group_id, topics=topics)

    def read(_keys: Sequence[TopicPartition], answer: Message) -> Iterator[tuple[TopicPartition, ClientError | None]]:
        for topic in answer.topics:
            for one in topic.partitions:
                yield (topic.name, one.partition_index), outcome_error(one.error_code)

    call = Call(
        OFFSET_COMMIT,
        Route.GROUP,
        request,
        read,
        lambda _key: group_id,
        retried=_ALTER_RETRIED,
        max_version=_WITH_TOPIC_NAMES,
    )
    return (yield from run(call, offsets))


def delete_consumer_group_offsets(
    group_id: str, partitions: Iterable[TopicPartition]
) -> Operation[Outcomes[TopicPartition, None]]:
    """Delete committed offsets of a group, of topics to which no member is subscribed."""

    def request(keys: Sequence[TopicPartition], _context: RequestContext) -> Message:
        kind = API_KEYS[OFFSET_DELETE].request
        topic, partition = kind.classes["OffsetDeleteRequestTopic"], kind.classes["OffsetDeleteRequestPartition"]
        topics = [
            topic(name=name, partitions=[partition(partition_index=index) for index in indexes])
            for name, indexes in by_topic(keys).items()
        ]
        return kind.new(group_id=group_id, topics=topics)

    def read(keys: Sequence[TopicPartition], answer: Message) -> Iterator[tuple[TopicPartition, ClientError | None]]:
        if answer.error_code:
            yield from refused(keys, answer.error_code)
        for topic in answer.topics:
            for one in topic.partitions:
                yield (topic.name, one.partition_index), outcome_error(one.error_code)

    return (yield from run(Call(OFFSET_DELETE, Route.GROUP, request, read, lambda _key: group_id), partitions))


# -------------------------------------------------------------------------------------------------------------------- share


def list_share_group_offsets(
    groups: Mapping[str, Iterable[TopicPartition] | None],
) -> Operation[Outcomes[str, ShareGroupOffsets]]:
    """Return the start offsets of share groups for some partitions, or for all that have one (None)."""
    wanted = {group: None if found is None else by_topic(found) for group, found in groups.items()}

    def request(keys: Sequence[str], _context: RequestContext) -> Message:
        kind = API_KEYS[DESCRIBE_SHARE_GROUP_OFFSETS].request
        group = kind.classes["DescribeShareGroupOffsetsRequestGroup"]
        topic = kind.classes["DescribeShareGroupOffsetsRequestTopic"]
        asked = []
        for key in keys:
            topics = wanted[key]
            named = None if topics is None else [topic(topic_name=name, partitions=at) for name, at in topics.items()]
            asked.append(group(group_id=key, topics=named))
        return kind.new(groups=asked)

    return (yield from run(Call(DESCRIBE_SHARE_GROUP_OFFSETS, Route.GROUP, request, _read_share_offsets), wanted))


def _read_share_offsets(_keys: Sequence[str], answer: Message) -> Iterator[tuple[str, ShareGroupOffsets | ClientError]]:
    for group in answer.groups:
        if group.error_code:
            yield group.group_id, kafka_error(group.error_code, group.error_message)
            continue
        offsets: ShareGroupOffsets = {}
        for topic in group.topics:
            for one in topic.partitions:
                start = None
                if one.start_offset >= 0:
                    start = SharePartitionOffset(one.start_offset, one.leader_epoch, one.lag)
                error = outcome_error(one.error_code, one.error_message)
                offsets[topic.topic_name, one.partition_index] = error or start
        yield group.group_id, offsets


def alter_share_group_offsets(
    group_id: str, offsets: Mapping[TopicPartition, int]
) -> Operation[Outcomes[TopicPartition, None]]:
    """Set the start offsets of a share group without members."""

    def request(keys: Sequence[TopicPartition], _context: RequestContext) -> Message:
        kind = API_KEYS[ALTER_SHARE_GROUP_OFFSETS].request
        topic = kind.classes["AlterShareGroupOffsetsRequestTopic"]
        partition = kind.classes["AlterShareGroupOffsetsRequestPartition"]
        topics = []
        for name, indexes in by_topic(keys).items():
            parts = [partition(partition_index=index, start_offset=offsets[name, index]) for index in indexes]
            topics.append(topic(topic_name=name, partitions=parts))
        return kind.new(group_id=group_id, topics=topics)

    def read(keys: Sequence[TopicPartition], answer: Message) -> Iterator[tuple[TopicPartition, ClientError | None]]:
        if answer.error_code:
            yield from refused(keys, answer.error_code, answer.error_message)
        for topic in answer.responses:
            for one in topic.partitions:
                yield (topic.topic_name, one.partition_index), outcome_error(one.error_code, one.error_message)

    return (yield from run(Call(ALTER_SHARE_GROUP_OFFSETS, Route.GROUP, request, read, lambda _key: group_id), offsets))


def delete_share_group_offsets(group_id: str, topics: Iterable[str]) -> Operation[Outcomes[str, None]]:
    """Delete the offsets of a share group without members for whole topics."""

    def request(keys: Sequence[str], _context: RequestContext) -> Message:
        kind = API_KEYS[DELETE_SHARE_GROUP_OFFSETS].request
        topic = kind.classes["DeleteShareGroupOffsetsRequestTopic"]
        return kind.new(group_id=group_id, topics=[topic(topic_name=name) for name in keys])

    def read(keys: Sequence[str], answer: Message) -> Iterator[tuple[str, ClientError | None]]:
        if answer.error_code:
            yield from refused(keys, answer.error_code, answer.error_message)
        for topic in answer.responses:
            yield topic.topic_name, outcome_error(topic.error_code, topic.error_message)

    return (yield from run(Call(DELETE_SHARE_GROUP_OFFSETS, Route.GROUP, request, read, lambda _key: group_id), topics))
