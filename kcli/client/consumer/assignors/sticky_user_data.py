"""The user data of the sticky assignors: what the leader learns of a member in addition to its subscription.

    assignor            user data                                     since
    ------------------  --------------------------------------------  ----------------------------------------------------------
    sticky              the partitions that the member had            KIP-54; a member revokes them before it joins
    sticky              the same, and their generation                KIP-341: a member may have missed a rebalance
    cooperative-sticky  the generation of the partitions that the     KIP-429; from version 2 on, the subscription itself
                        subscription contains                         contains the generation, which is preferred

The bytes have no version. Bytes that end before the generation are read without it, and invalid bytes are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kcli.client.consumer.consumer_protocol import NO_GENERATION, Subscription, TopicPartition, group_by_topic
from kcli.format.java_text import hash_map_order
from kcli.protocol.compiler import MessageType
from kcli.protocol.message_errors import DecodeError
from kcli.protocol.message_types import message_type


class MemberData(NamedTuple):
    """The partitions that a member had, and in which generation it got them; None if it does not say."""

    partitions: Sequence[TopicPartition]
    generation: int | None


def encode_sticky(partitions: Sequence[TopicPartition], generation: int) -> bytes:
    """Encode the user data of a member of the sticky assignor."""
    kind = _sticky_type()
    topics = group_by_topic(partitions)
    struct = kind.classes["TopicAssignment"]
    listed = [struct(topic=topic, partitions=topics[topic]) for topic in hash_map_order(topics, is_computed=True)]
    return kind.encode(kind.new(previous_assignment=listed, generation=generation))


def read_sticky(subscription: Subscription) -> MemberData:
    """Read what a member of the sticky assignor had."""
    if not subscription.user_data:
        return MemberData((), None)
    for version in (1, 0):
        try:
            found, _ = _sticky_type().decode(subscription.user_data, version)
        except DecodeError:
            continue
        partitions = [TopicPartition(one.topic, number) for one in found.previous_assignment for number in one.partitions]
        return MemberData(partitions, found.generation if version else None)
    return MemberData((), NO_GENERATION)


def encode_cooperative(generation: int) -> bytes:
    """Encode the user data of a member of the cooperative sticky assignor."""
    kind = _cooperative_type()
    return kind.encode(kind.new(generation=generation))


def read_cooperative(subscription: Subscription) -> MemberData:
    """Read what a member of the cooperative sticky assignor has."""
    generation: int | None = None
    if subscription.generation != NO_GENERATION:
        generation = subscription.generation
    elif subscription.user_data is not None:
        try:
            generation = _cooperative_type().decode(subscription.user_data, 0)[0].generation
        except DecodeError:
            generation = NO_GENERATION
    return MemberData(subscription.owned_partitions, generation)


def _sticky_type() -> MessageType:
    return message_type("control_records", "StickyAssignorUserData")


def _cooperative_type() -> MessageType:
    return message_type("control_records", "CooperativeStickyAssignorUserData")
