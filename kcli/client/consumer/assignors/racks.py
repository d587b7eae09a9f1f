"""Racks of members and of replicas (KIP-881): a member should read from a replica in its own rack.

Racks matter if some members have one, replicas are in some of these racks, and the replicas of different partitions are in
different racks. Balance comes first: what cannot be matched within a member's share is assigned without regard to racks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import chain

from kcli.client.consumer.assignors.assignor import Racks, Subscriptions, Topics
from kcli.client.consumer.consumer_protocol import TopicPartition


def racks_matter(member_racks: Collection[str], partitions: Iterable[Racks]) -> bool:
    """Return whether racks matter, for the racks of the members and those of each partition."""
    different = set(partitions)
    all_racks: Racks = frozenset().union(*different)
    return not all_racks.isdisjoint(member_racks) and different != {all_racks}


class RackInfo:
    """The racks of a group for the sticky assignors; no member has one if racks do not matter."""

    def __init__(self, topics: Topics, subscriptions: Subscriptions) -> None:
        racks = {member: subscription.rack for member, subscription in subscriptions.items() if subscription.rack}
        self._topics = topics
        self._members_of_rack = Counter(racks.values())
        matters = racks_matter(self._members_of_rack, (found for partitions in topics.values() for found in partitions))
        self.member_racks = racks if matters else {}

    def mismatch(self, member: str, partition: TopicPartition) -> bool:
        """Return whether the member has a rack in which the partition has no replica."""
        rack = self.member_racks.get(member)
        return rack is not None and rack not in self._topics[partition.topic][partition.partition]

    def in_order(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions in the order of how many members have racks with a replica."""
        counts, topics = self._members_of_rack, self._topics
        return sorted(partitions, key=lambda one: sum(counts[rack] for rack in topics[one.topic][one.partition]))

    def next_match(self, partition: TopicPartition, members: Sequence[str], start: int) -> int | None:
        """Return the index of the next member, from `start` on and around, in a rack with a replica of the partition."""
        racks = self._topics[partition.topic][partition.partition]
        if not racks:
            return None
        for index in chain(range(start, len(members)), range(start)):
            if self.member_racks.get(members[index]) in racks:
                return index
        return None
