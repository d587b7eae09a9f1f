"""What a member of a classic group sends in JoinGroup, and what its leader makes of it (Kafka: ConsumerCoordinator).

    partition.assignment.strategy   names, or Kafka's class names; JoinGroup has them in this order
    rebalance protocol              the highest that all of them support: cooperative or eager
    the leader assigns by           the assignor that the coordinator chose, the subscriptions of all members, and for each
                                    topic the partitions and the racks of their replicas

The leader remembers the partitions and racks by which it assigned: other metadata make another rebalance due.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from kcli.client.cluster import NO_LEADER
from kcli.client.consumer.assignors.assignor import Assignor, ClusterMetadata, Racks, RebalanceProtocol
from kcli.client.consumer.assignors.built_in import ASSIGNORS
from kcli.client.consumer.consumer_protocol import (
    Subscription,
    TopicPartition,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kcli.client.consumer.subscription_state import SubscriptionState, SubscriptionType
from kcli.client.errors import ConfigError
from kcli.client.metadata import Metadata
from kcli.protocol.apis import API_KEYS, JOIN_GROUP, SYNC_GROUP
from kcli.protocol.message import Message

_JAVA_PACKAGE = "org.apache.kafka.clients.consumer."
_JAVA_NAMES = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
}

# By topic: for each partition, the racks of its replicas.
Snapshot = Mapping[str, Sequence[Racks]]


class ClassicAssignors:
    """The assignors of one member."""

    def __init__(self, names: Iterable[str]) -> None:
        """Raises ConfigError."""
        self._by_name: dict[str, Assignor] = {}
        for text in names:
            name = _JAVA_NAMES.get(text.removeprefix(_JAVA_PACKAGE), text)
            if name not in ASSIGNORS:
                raise ConfigError(
                    f"there is no assignor {text!r} for partition.assignment.strategy: it may have {', '.join(ASSIGNORS)}"
                )
            if name in self._by_name:
                raise ConfigError(f"partition.assignment.strategy has the assignor {name} twice")
            self._by_name[name] = ASSIGNORS[name]()
        if not self._by_name:
            raise ConfigError(f"partition.assignment.strategy is empty: it may have {', '.join(ASSIGNORS)}")
        supported = frozenset(RebalanceProtocol).intersection(*(one.protocols for one in self._by_name.values()))
        if not supported:
            raise ConfigError("the assignors of partition.assignment.strategy have no rebalance protocol in common")
        self.protocol = max(supported)

    def join_protocols(
        self, topics: frozenset[str], owned: Iterable[tuple[str, int]], generation: int, rack: str | None
    ) -> list[Message]:
        """Return the subscription of this member, encoded for each assignor, as JoinGroup lists them."""
        struct = API_KEYS[JOIN_GROUP].request.classes["JoinGroupRequestProtocol"]
        partitions = [TopicPartition(*one) for one in sorted(owned)]
        listed = []
        for name, assignor in self._by_name.items():
            user_data = assignor.subscription_user_data(topics)
            subscription = Subscription(sorted(topics), user_data, partitions, generation, rack)
            listed.append(struct(name=name, metadata=encode_subscription(subscription)))
        return listed

    def find(self, name: str | None) -> Assignor | None:
        """Return the assignor that the coordinator chose, None if this member does not have it."""
        return None if name is None else self._by_name.get(name)


def subscribe_to_matching(subscription: SubscriptionState, topics: Iterable[str], left_out: Collection[str]) -> None:
    """Subscribe to those of the topics that match the pattern."""
    pattern = re.compile(subscription.pattern or "")
    subscription.subscribe_from_pattern(topic for topic in topics if topic not in left_out and pattern.fullmatch(topic))


def fits_subscription(subscription: SubscriptionState, assigned: Iterable[tuple[str, int]]) -> bool:
    """Return whether the topics of assigned partitions are subscribed; those of a pattern may be newer than the metadata."""
    topics = {topic for topic, _ in assigned}
    if subscription.type is SubscriptionType.AUTO_PATTERN:
        pattern = re.compile(subscription.pattern or "")
        return all(pattern.fullmatch(topic) for topic in topics)
    return topics <= subscription.subscription


def subscriptions_of(members: Iterable[Message]) -> dict[str, Subscription]:
    """Return the subscriptions of the members that JoinGroup's answer lists for the leader. Raises DecodeError."""
    return {one.member_id: decode_subscription(one.metadata, one.group_instance_id) for one in members}


def snapshot_of(metadata: Metadata, topics: Iterable[str]) -> Snapshot:
    """Return the partitions of topics with the racks of their replicas; topics that are not known are left out."""
    racks = {node.node_id: node.rack for node in metadata.nodes.values()}
    snapshot: dict[str, Sequence[Racks]] = {}
    for topic in sorted(topics):
        partitions = metadata.cluster.partitions_for_topic(topic)
        if partitions:
            snapshot[topic] = [_racks(one.replicas, racks) for one in partitions]
    return snapshot


def _racks(replicas: Iterable[int], racks: Mapping[int, str | None]) -> Racks:
    found = (racks.get(replica) for replica in replicas if replica != NO_LEADER)
    return frozenset(rack for rack in found if rack)


def assign(assignor: Assignor, snapshot: Snapshot, subscriptions: Mapping[str, Subscription]) -> list[Message]:
    """Return the assignments of all members, encoded, as SyncGroup lists them."""
    struct = API_KEYS[SYNC_GROUP].request.classes["SyncGroupRequestAssignment"]
    assignments = assignor.assign(ClusterMetadata(snapshot), subscriptions)
    return [struct(member_id=member, assignment=encode_assignment(one)) for member, one in assignments.items()]
