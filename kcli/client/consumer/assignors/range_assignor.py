"""The range assignor: each topic is divided on its own, in ranges of neighbouring partitions, the larger ones first.

    step                          for which topics
    ----------------------------  -------------------------------------------------------------------------------------------
    partition n of all of them    topics with as many partitions and the same members, if one of them has racks that matter:
    to the first member that has  they stay co-partitioned (KIP-881)
    the rack of each of them
    ranges within racks           other topics whose racks matter
    ranges                        all, for what is left

Members are in the order of their instance ids, then of their member ids. Without racks, a member's topics are listed in the
order of Kafka's HashMap; with racks, its partitions are sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from kcli.client.consumer.assignors.assignor import (
    PartitionAssignor,
    PartitionLists,
    Racks,
    Subscriptions,
    Topics,
    members_in_order,
)
from kcli.client.consumer.assignors.racks import racks_matter
from kcli.client.consumer.consumer_protocol import TopicPartition

# The members with their racks, and the number of partitions.
_CoPartitioned = tuple[tuple[tuple[str, str | None], ...], int]


class RangeAssignor(PartitionAssignor):
    """Assigns the partitions of each topic in ranges."""

    name = "range"

    def assign_partitions(self, topics: Topics, subscriptions: Subscriptions) -> PartitionLists:
        """See PartitionAssignor."""
        assigned: PartitionLists = {member: [] for member in subscriptions}
        member_racks: dict[str, dict[str, str | None]] = {topic: {} for topic in topics}
        for member in members_in_order(subscriptions):
            for topic in subscriptions[member].topics:
                if topic in member_racks:
                    member_racks[topic][member] = subscriptions[member].rack
        states = [_TopicState(topic, partitions, member_racks[topic], assigned) for topic, partitions in topics.items()]
        use_racks = any(state.needs_racks for state in states)
        if use_racks:
            _match_racks(states)
        for state in states:
            state.assign_ranges(match_racks=False)
        if use_racks:
            for listed in assigned.values():
                listed.sort()
        return assigned


class _TopicState:
    """A topic of which partitions are being assigned."""

    def __init__(
        self, topic: str, partitions: Sequence[Racks], member_racks: dict[str, str | None], assigned: PartitionLists
    ) -> None:
        self._topic = topic
        self._partitions = partitions
        self._member_racks = member_racks
        self._assigned = assigned
        self._unassigned = dict.fromkeys(range(len(partitions)))
        self._counts = dict.fromkeys(member_racks, 0)
        self._quota, self._extra = divmod(len(partitions), len(member_racks))
        racks = {rack for rack in member_racks.values() if rack}
        self.needs_racks = racks_matter(racks, partitions)
        self.co_partitioned: _CoPartitioned | None = (tuple(member_racks.items()), len(partitions)) if racks else None

    def assign_ranges(self, *, match_racks: bool) -> None:
        """Assign to each member as many partitions as it may have, of those that are left."""
        for member in self._member_racks:
            if not self._unassigned:
                break
            found = (one for one in self._unassigned if not match_racks or self.racks_match(member, one))
            self.give(member, list(islice(found, self.most(member))))

    def racks_match(self, member: str, partition: int) -> bool:
        """Return whether the member has no rack, or one in which the partition has a replica."""
        rack = self._member_racks[member]
        return not rack or rack in self._partitions[partition]

    def most(self, member: str) -> int:
        """Return how many more partitions the member may have."""
        return max(0, self._quota + (self._extra > 0) - self._counts[member])

    def give(self, member: str, partitions: Sequence[int]) -> None:
        """Assign partitions."""
        if not partitions:
            return
        self._assigned[member] += [TopicPartition(self._topic, partition) for partition in partitions]
        self._counts[member] += len(partitions)
        if self._counts[member] > self._quota:
            self._extra -= 1
        for partition in partitions:
            del self._unassigned[partition]


def _match_racks(states: Sequence[_TopicState]) -> None:
    groups: dict[_CoPartitioned, list[_TopicState]] = {}
    for state in states:
        if state.co_partitioned is not None:
            groups.setdefault(state.co_partitioned, []).append(state)
    for (members, partition_count), group in groups.items():
        if len(group) > 1:
            _match_co_partitioned([member for member, _ in members], partition_count, group)
        elif group[0].needs_racks:
            group[0].assign_ranges(match_racks=True)


def _match_co_partitioned(members: list[str], partition_count: int, states: Sequence[_TopicState]) -> None:
    for partition in range(partition_count):
        for member in members:
            if all(state.racks_match(member, partition) and state.most(member) for state in states):
                for state in states:
                    state.give(member, [partition])
                if not any(state.most(member) for state in states):
                    members.remove(member)
                break
