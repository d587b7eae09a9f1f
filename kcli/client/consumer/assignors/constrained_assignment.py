"""The assignment of the sticky assignors for members that are all subscribed to the same topics.

Each member gets the lower quota (partitions / members, rounded down), some one partition more: the upper quota.

    step                 which members                                  which partitions
    -------------------  ---------------------------------------------  ---------------------------------------------------
    1 kept               all, in the order of Kafka's HashMap           those that it has, up to a quota: the upper one while
                                                                        members may have it. Not those of other racks.
    2 racks match        in turn, then those with the lower quota       the others, in the order of how many members could
    3 the rest           in turn, then those with the lower quota       match, then of topic and number
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kcli.client.consumer.assignors.assignor import PartitionLists, Topics, all_partitions
from kcli.client.consumer.assignors.racks import RackInfo
from kcli.client.consumer.consumer_protocol import TopicPartition
from kcli.format.java_text import text_order


class ConstrainedAssignment:
    """An assignment that is being made; `moving`: the partitions that another member may still have, by their new members."""

    def __init__(
        self,
        topics: Topics,
        racks: RackInfo,
        owned: Mapping[str, Iterable[TopicPartition]],
        disputed: set[TopicPartition],
    ) -> None:
        self.moving: dict[TopicPartition, str] = {}
        self._topics = topics
        self._racks = racks
        self._owned = owned
        self._disputed = disputed
        self._revoked: dict[TopicPartition, str] = {}
        self._assigned: PartitionLists = {member: [] for member in owned}
        self._quota, self._extra = divmod(sum(map(len, topics.values())), len(owned))
        self._upper_quota = self._quota + (self._extra > 0)
        # Members that may still get partitions: below the lower quota, and at it while members may exceed it.
        self._below: list[str] = []
        self._at_quota: list[str] = []

    def build(self) -> PartitionLists:
        """Return the partitions of each member."""
        for member in self._owned:
            self._keep_owned(member)
        self._below.sort(key=text_order)
        self._at_quota.sort(key=text_order)
        kept = {partition for partitions in self._assigned.values() for partition in partitions}
        left = [one for one in all_partitions(self._topics, sorted(self._topics)) if one not in kept]
        if self._racks.member_racks:
            left = self._match_racks(self._racks.in_order(left))
        self._assign_rest(left)
        return self._assigned

    def _keep_owned(self, member: str) -> None:
        owned = []
        for partition in sorted(self._owned[member], key=lambda one: (one.partition, one.topic)):
            if self._racks.mismatch(member, partition):
                self._revoked[partition] = member
            elif partition not in self._disputed:
                owned.append(partition)
        if len(owned) < self._quota:
            self._assigned[member] = owned
            self._below.append(member)
            return
        kept = self._quota
        if self._extra > 0 and len(owned) > self._quota:
            kept = self._upper_quota
            self._count_extra()
        elif self._extra > 0:
            self._at_quota.append(member)
        self._assigned[member] = owned[:kept]
        self._revoked |= dict.fromkeys(owned[kept:], member)

    def _count_extra(self) -> None:
        """Note that a member has the upper quota."""
        self._extra -= 1
        if not self._extra:
            self._at_quota.clear()

    def _match_racks(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Assign partitions to members in racks of their replicas; return those that are left."""
        left = []
        turn = 0
        for partition in partitions:
            index = self._racks.next_match(partition, self._below, turn)
            if index is not None:
                turn = self._give_below(partition, index)
                continue
            index = self._racks.next_match(partition, self._at_quota, 0)
            if index is None:
                left.append(partition)
            else:
                self._give(partition, self._at_quota.pop(index))
                self._count_extra()
        return left

    def _give_below(self, partition: TopicPartition, index: int) -> int:
        """Assign a partition to a member below the lower quota; return the index of the next member."""
        member = self._below[index]
        if self._give(partition, member) < self._quota:
            index += 1
        else:
            del self._below[index]
            if self._extra > 0:
                self._at_quota.append(member)
        return index % len(self._below) if self._below else 0

    def _assign_rest(self, partitions: list[TopicPartition]) -> None:
        index = 0
        for partition in partitions:
            if self._below:
                index = self._give_below(partition, index)
            else:
                self._give(partition, self._at_quota.pop(0))

    def _give(self, partition: TopicPartition, member: str) -> int:
        """Assign a partition; return how many the member has."""
        if self._revoked.get(partition, member) != member or partition in self._disputed:
            self.moving[partition] = member
        assigned = self._assigned[member]
        assigned.append(partition)
        return len(assigned)
