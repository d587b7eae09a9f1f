"""The assignors of consumer groups: which member is to have which partition (Kafka: RangeAssignor, UniformAssignor).

    assignor  subscriptions of the members  target
    --------  ----------------------------  ----------------------------------------------------------------------------
    range     any                           each topic in ranges, in the order of the instance ids, then of the member ids
    uniform   all the same                  sizes differ by one at most; a member keeps what fits into its quota
    uniform   different                     partitions that no member has go to the subscriber with the fewest; then they
                                            move from the subscribers with the most to those with the fewest

Like Kafka's since 4.0, they take no notice of racks. A topic is in the assignments of its subscribers only, and every
partition of a topic with a subscriber has exactly one member.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import NamedTuple

from kcli.format.kafka_uuid import Uuid
from kcli.state.groups import Partitions

# Each round of moves about halves the imbalance; groups whose members share their topics need one.
_MAX_ROUNDS = 16


class MemberSpec(NamedTuple):
    """A member for an assignor: the topics that it is subscribed to and that exist, and its present target."""

    member_id: str
    instance_id: str | None
    topics: frozenset[Uuid]
    target: Partitions


PartitionCounts = Mapping[Uuid, int]
Targets = dict[str, Partitions]
Assignor = Callable[[list[MemberSpec], PartitionCounts], Targets]


def assign_ranges(members: list[MemberSpec], counts: PartitionCounts) -> Targets:
    """Return the targets of the range assignor: partition n of all topics tends to be with the same member."""
    ordered = sorted(members, key=lambda member: (member.instance_id is None, member.instance_id or member.member_id))
    targets: Targets = {member.member_id: {} for member in members}
    for topic_id in _topics(members):
        subscribers = [member.member_id for member in ordered if topic_id in member.topics]
        quota, extra = divmod(counts[topic_id], len(subscribers))
        start = 0
        for at, member_id in enumerate(subscribers):
            end = start + quota + (at < extra)
            if start < end:
                targets[member_id][topic_id] = list(range(start, end))
            start = end
    return targets


def assign_uniformly(members: list[MemberSpec], counts: PartitionCounts) -> Targets:
    """Return the targets of the uniform assignor: balanced, and close to the present targets."""
    topics = _topics(members)
    if all(len(member.topics) == len(topics) for member in members):
        return _assign_same_topics(members, topics, counts)
    return _HeterogeneousAssignment(members, topics, counts).build()


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}


def _topics(members: list[MemberSpec]) -> list[Uuid]:
    return sorted({topic_id for member in members for topic_id in member.topics})


def _assign_same_topics(members: list[MemberSpec], topics: list[Uuid], counts: PartitionCounts) -> Targets:
    left = {(topic_id, index): None for topic_id in topics for index in range(counts[topic_id])}
    quota, extra = divmod(len(left), max(len(members), 1))
    targets: Targets = {}
    unfilled: list[tuple[str, int]] = []
    for at, member in enumerate(members):
        room = quota + (at < extra)
        target: Partitions = {}
        for topic_id, partitions in member.target.items():
            kept = [index for index in partitions if (topic_id, index) in left][:room]
            if kept:
                target[topic_id] = kept
                room -= len(kept)
                for index in kept:
                    del left[topic_id, index]
        targets[member.member_id] = target
        if room:
            unfilled.append((member.member_id, room))
    unassigned = iter(left)
    for member_id, room in unfilled:
        for _, (topic_id, index) in zip(range(room), unassigned):
            targets[member_id].setdefault(topic_id, []).append(index)
    return targets


class _HeterogeneousAssignment:
    """An assignment that is being made for members with different subscriptions; members are numbers."""

    def __init__(self, members: list[MemberSpec], topics: list[Uuid], counts: PartitionCounts) -> None:
        self._members = members
        self._subscribers: dict[Uuid, list[int]] = {topic_id: [] for topic_id in topics}
        self._owners: dict[Uuid, list[int | None]] = {topic_id: [None] * counts[topic_id] for topic_id in topics}
        self._sizes = [0] * len(members)
        for number, member in enumerate(members):
            for topic_id in member.topics:
                self._subscribers[topic_id].append(number)
                for index in member.target.get(topic_id, ()):
                    if index < counts[topic_id] and self._owners[topic_id][index] is None:
                        self._give(topic_id, index, number)
        # Topics with many partitions for each subscriber come first: the others even out what they leave.
        subscribed = {topic_id: len(numbers) for topic_id, numbers in self._subscribers.items()}
        self._ordered = sorted(topics, key=lambda topic_id: (-counts[topic_id] / subscribed[topic_id], subscribed[topic_id]))

    def build(self) -> Targets:
        """Assign what no member has, balance, and return the targets."""
        for topic_id in self._ordered:
            self._assign_rest(topic_id)
        for _ in range(_MAX_ROUNDS):
            if not sum(self._balance(topic_id) for topic_id in self._ordered):
                break
        targets: Targets = {member.member_id: {} for member in self._members}
        for topic_id, owners in self._owners.items():
            for index, owner in enumerate(owners):
                if owner is not None:
                    targets[self._members[owner].member_id].setdefault(topic_id, []).append(index)
        return targets

    def _give(self, topic_id: Uuid, index: int, number: int) -> None:
        self._owners[topic_id][index] = number
        self._sizes[number] += 1

    def _assign_rest(self, topic_id: Uuid) -> None:
        smallest = [(self._sizes[number], number) for number in self._subscribers[topic_id]]
        heapq.heapify(smallest)
        for index, owner in enumerate(self._owners[topic_id]):
            if owner is None:
                size, number = smallest[0]
                self._give(topic_id, index, number)
                heapq.heapreplace(smallest, (size + 1, number))

    def _balance(self, topic_id: Uuid) -> int:
        """Move partitions of a topic until the sizes of its subscribers differ by one at most; return how many moved."""
        owned: dict[int, list[int]] = {}
        for index, owner in enumerate(self._owners[topic_id]):
            if owner is not None:
                owned.setdefault(owner, []).append(index)
        smallest = [(self._sizes[number], number) for number in self._subscribers[topic_id]]
        largest = [(-self._sizes[number], number) for number in owned]
        heapq.heapify(smallest)
        heapq.heapify(largest)
        moved = 0
        while largest and -largest[0][0] - smallest[0][0] > 1:
            size, number = -largest[0][0], largest[0][1]
            index = owned[number].pop()
            self._sizes[number] -= 1
            if owned[number]:
                heapq.heapreplace(largest, (1 - size, number))
            else:
                heapq.heappop(largest)
            least, receiver = smallest[0]
            self._give(topic_id, index, receiver)
            heapq.heapreplace(smallest, (least + 1, receiver))
            moved += 1
        return moved
