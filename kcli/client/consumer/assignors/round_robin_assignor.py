"""The round robin assignor: the partitions of all topics, in their order, go to the members in turn.

A member that is not subscribed to the topic misses its turn. Members are in the order of their instance ids, then of their
member ids (KIP-345: the ids of static members outlive a restart).
"""

from __future__ import annotations

from itertools import cycle

from kcli.client.consumer.assignors.assignor import (
    PartitionAssignor,
    PartitionLists,
    Subscriptions,
    Topics,
    all_partitions,
    members_in_order,
)


class RoundRobinAssignor(PartitionAssignor):
    """Assigns partitions in turn."""

    name = "roundrobin"

    def assign_partitions(self, topics: Topics, subscriptions: Subscriptions) -> PartitionLists:
        """See PartitionAssignor."""
        assigned: PartitionLists = {member: [] for member in subscriptions}
        subscribed = {member: frozenset(subscription.topics) for member, subscription in subscriptions.items()}
        turns = cycle(members_in_order(subscriptions))
        for partition in all_partitions(topics, sorted(topics)):
            member = next(member for member in turns if partition.topic in subscribed[member])
            assigned[member].append(partition)
        return assigned
