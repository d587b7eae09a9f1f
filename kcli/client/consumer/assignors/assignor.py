"""The assignors of a client: the leader of a classic group decides with one which member gets which partition.

    assignor            module                protocols           what it does
    ------------------  --------------------  ------------------  ----------------------------------------------------------
    range               range_assignor        eager               each topic in ranges; racks (KIP-881)
    roundrobin          round_robin_assignor  eager               all partitions in turn
    sticky              sticky_assignor       eager               balanced, few moves (KIP-54, KIP-341); racks
    cooperative-sticky  sticky_assignor       cooperative, eager  the same; a partition moves in two rebalances (KIP-429)

For the same members and topics, each one returns what the class of Kafka 4.3.1's Java consumer returns: the partitions and the
order in which they are listed. So the members of a group may be clients of both kinds, whichever leads it. Kafka keeps members
and topics in HashMaps; where the result shows their order, it is the same here (`kcli.format.java_text`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from kcli.client.consumer.consumer_protocol import Assignment, Subscription, TopicPartition
from kcli.format.java_text import hash_map_order, text_order

Racks = frozenset[str]
Topics = Mapping[str, Sequence[Racks]]
Subscriptions = Mapping[str, Subscription]
PartitionLists = dict[str, list[TopicPartition]]


class RebalanceProtocol(IntEnum):
    """What a member does before it joins: revoke all its partitions, or keep them (KIP-429)."""

    EAGER = 0
    COOPERATIVE = 1


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """What an assignor knows of the cluster: for each partition of a topic, by its number, the racks of its replicas."""

    topics: Topics


class Assignor(Protocol):
    """An assignor of a consumer; it lives as long as the consumer (Kafka: ConsumerPartitionAssignor)."""

    @property
    def name(self) -> str:
        """The name of the protocol in JoinGroup."""

    @property
    def protocols(self) -> Sequence[RebalanceProtocol]:
        """The rebalance protocols that the assignor supports; a consumer uses the highest that all its assignors support."""

    def subscription_user_data(self, topics: Collection[str]) -> bytes | None:
        """Return the user data for the subscription of this member."""

    def assign(self, cluster: ClusterMetadata, subscriptions: Subscriptions) -> dict[str, Assignment]:
        """Return an assignment for each member; `subscriptions` has them in the order of JoinGroup's response."""

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        """Take note of the assignment that this member got from the leader."""


class PartitionAssignor(ABC):
    """The base of the assignors here; without user data (Kafka: AbstractPartitionAssignor)."""

    name: str
    protocols: Sequence[RebalanceProtocol] = (RebalanceProtocol.EAGER,)

    def subscription_user_data(self, topics: Collection[str]) -> bytes | None:
        """See Assignor."""
        return None

    def assign(self, cluster: ClusterMetadata, subscriptions: Subscriptions) -> dict[str, Assignment]:
        """See Assignor."""
        members = {member: subscriptions[member] for member in hash_map_order(subscriptions)}
        subscribed = hash_map_order(topic for subscription in members.values() for topic in subscription.topics)
        known = hash_map_order(topic for topic in subscribed if cluster.topics.get(topic))
        topics = {topic: cluster.topics[topic] for topic in known}
        return {member: Assignment(partitions) for member, partitions in self.assign_partitions(topics, members).items()}

    @abstractmethod
    def assign_partitions(self, topics: Topics, subscriptions: Subscriptions) -> PartitionLists:
        """Return the partitions of each member, for the topics that have a subscriber and partitions."""

    # Only the sticky assignors have a state.
    def on_assignment(self, assignment: Assignment, generation: int) -> None:  # noqa: B027
        """See Assignor."""


def members_in_order(subscriptions: Subscriptions) -> list[str]:
    """Return the members in the order of their instance ids; those without one follow, in the order of their member ids."""

    def order(member: str) -> tuple[bool, bytes]:
        instance_id = subscriptions[member].instance_id
        return instance_id is None, text_order(member if instance_id is None else instance_id)

    return sorted(subscriptions, key=order)


def all_partitions(topics: Topics, ordered: Sequence[str]) -> list[TopicPartition]:
    """Return the partitions of the topics `ordered`."""
    return [TopicPartition(topic, partition) for topic in ordered for partition in range(len(topics[topic]))]
