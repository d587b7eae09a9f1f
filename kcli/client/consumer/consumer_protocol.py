"""What the members of a classic group and its leader send each other through the coordinator, as values and as bytes.

    value         sent by                             Kafka's class
    ------------  ----------------------------------  -------------------------------------
    Subscription  each member, in JoinGroup           ConsumerPartitionAssignor.Subscription
    Assignment    the leader for a member, SyncGroup  ConsumerPartitionAssignor.Assignment

`kcli.protocol.consumer_protocol` lists the versions. What a version does not have is left out. As in Kafka, the topics and the
partitions of a subscription are sorted, and an assignment lists its topics in the order of their first partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kcli.protocol.compiler import MessageType
from kcli.protocol.consumer_protocol import (
    LATEST_VERSION,
    assignment_type,
    decode_assignment_message,
    decode_subscription_message,
    encode_message,
    subscription_type,
)
from kcli.protocol.message import Message

NO_GENERATION = -1


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member wants and has; `generation` is NO_GENERATION if it is not known, `rack` None if the member has none.

    `instance_id` is not one of the bytes: JoinGroup's response contains it.
    """

    topics: Sequence[str]
    user_data: bytes | None = None
    owned_partitions: Sequence[TopicPartition] = ()
    generation: int = NO_GENERATION
    rack: str | None = None
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a member gets."""

    partitions: Sequence[TopicPartition]
    user_data: bytes | None = None


def encode_subscription(subscription: Subscription, version: int = LATEST_VERSION) -> bytes:
    """Encode a subscription. Raises EncodeError."""
    kind = subscription_type()
    message = kind.new(
        topics=sorted(subscription.topics),
        user_data=subscription.user_data,
        owned_partitions=_by_topic(kind, sorted(subscription.owned_partitions)),
        generation_id=max(subscription.generation, NO_GENERATION),
        rack_id=subscription.rack,
    )
    return encode_message(kind, message, version)


def decode_subscription(data: bytes, instance_id: str | None = None) -> Subscription:
    """Decode the subscription of a member. Raises DecodeError."""
    message = decode_subscription_message(data)
    return Subscription(
        message.topics,
        message.user_data,
        _partitions(message.owned_partitions),
        max(message.generation_id, NO_GENERATION),
        message.rack_id or None,
        instance_id,
    )


def encode_assignment(assignment: Assignment, version: int = LATEST_VERSION) -> bytes:
    """Encode an assignment. Raises EncodeError."""
    kind = assignment_type()
    assigned = _by_topic(kind, assignment.partitions)
    return encode_message(kind, kind.new(assigned_partitions=assigned, user_data=assignment.user_data), version)


def decode_assignment(data: bytes) -> Assignment:
    """Decode the assignment of a member. Raises DecodeError."""
    message = decode_assignment_message(data)
    return Assignment(_partitions(message.assigned_partitions), message.user_data)


def group_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the numbers of the partitions by topic, in the order of the first partition of each."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


def _by_topic(kind: MessageType, partitions: Iterable[TopicPartition]) -> list[Message]:
    struct = kind.classes["TopicPartition"]
    return [struct(topic=topic, partitions=numbers) for topic, numbers in group_by_topic(partitions).items()]


def _partitions(topics: Iterable[Message]) -> list[TopicPartition]:
    return [TopicPartition(one.topic, partition) for one in topics for partition in one.partitions]
