"""The assignment of the sticky assignors for members with different subscriptions.

    step           what happens
    -------------  ----------------------------------------------------------------------------------------------------------
    1 kept         each member keeps what it has of the topics that it is subscribed to, if its rack has a replica
    2 racks match  each other partition goes to the member with the fewest that is subscribed and in a rack with a replica;
                   only if racks matter
    3 the rest     goes to the member with the fewest that is subscribed
    4 balance      partitions move while their member has at least two more than another subscriber: back to the member that
                   had them before the latest generation, else to the subscriber with the fewest. First those of steps 2 and
                   3 alone, unless step 1 took one from a member; then all, until none can move. If members had partitions
                   before and the moves do not balance better, they are undone.

Partitions are in the order of their topics' number of subscribers, then of topic and number. Of members with as many partitions
the first by member id is taken. Topics with one subscriber, and members that have all they can have and share no topic of it,
take no part in step 4. As in Kafka, the member that had a partition before may get it back although it is not subscribed to
the topic any more. If that member takes no part, it does not get it; Kafka's assignor fails then.

The loads of members change with each move, so the state keeps what a move needs: the members in the order of their loads,
and for each topic how many partitions of it each member has.

The moves of partitions within one assignment: a topic has no moves in both directions between two members (KIP-54).

If a partition is to move from A to B, and one of the same topic has moved from B to A, that one moves back instead. Of several,
it is the first of Kafka's HashSet.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kcli.client.consumer.assignors.assignor import PartitionLists, Subscriptions, Topics, all_partitions
from kcli.client.consumer.assignors.racks import RackInfo
from kcli.client.consumer.consumer_protocol import TopicPartition
from kcli.format.java_text import HashSet, java_hash, text_order

Assigned = dict[str, dict[TopicPartition, None]]


class PreviousOwner(NamedTuple):
    """The member that had a partition in an earlier generation."""

    member: str
    generation: int


class _Loads:
    """The members of a group in the order of their numbers of partitions, then of their ids."""

    def __init__(self, members: Iterable[str]) -> None:
        self._ids = sorted(members, key=text_order)
        self._ranks = {member: rank for rank, member in enumerate(self._ids)}
        self.of = dict.fromkeys(self._ids, 0)
        self._order = [(0, rank) for rank in range(len(self._ids))]

    def __iter__(self) -> Iterator[str]:
        return (self._ids[rank] for _, rank in self._order)

    @property
    def least(self) -> int:
        return self._order[0][0]

    @property
    def most(self) -> int:
        return self._order[-1][0]

    def add(self, member: str, partitions: int) -> None:
        """Add to the load of a member."""
        rank, load = self._ranks[member], self.of[member]
        del self._order[bisect_left(self._order, (load, rank))]
        self.of[member] = load + partitions
        insort(self._order, (load + partitions, rank))

    def leave_out(self, member: str) -> None:
        """Take a member out of the order."""
        del self._order[bisect_left(self._order, (self.of.pop(member), self._ranks[member]))]


class GeneralAssignment:
    """An assignment that is being made."""

    def __init__(
        self,
        topics: Topics,
        racks: RackInfo,
        owned: Mapping[str, Iterable[TopicPartition]],
        previous: Mapping[TopicPartition, PreviousOwner],
        subscriptions: Subscriptions,
    ) -> None:
        self._racks = racks
        self._owned = owned
        self._previous = previous
        listed = {member: [one for one in subscriptions[member].topics if one in topics] for member in owned}
        self._subscribed = {member: frozenset(topics_of) for member, topics_of in listed.items()}
        self._subscribers: dict[str, list[str]] = {topic: [] for topic in topics}
        for member, topics_of in listed.items():
            for topic in topics_of:
                self._subscribers[topic].append(member)
        total = sum(map(len, topics.values()))
        # How many partitions a member can have.
        self._capacity = {
            member: total if len(topics_of) == len(topics) else sum(len(topics[topic]) for topic in topics_of)
            for member, topics_of in listed.items()
        }
        ordered = sorted(topics, key=lambda topic: (len(self._subscribers[topic]), topic))
        self._partitions = all_partitions(topics, ordered)
        self._assigned: Assigned = {member: {} for member in owned}
        self._owner: dict[TopicPartition, str] = {}
        self._loads = _Loads(owned)
        self._holders: dict[str, dict[str, int]] = {topic: {} for topic in topics}
        self._movements = PartitionMovements()
        self._is_balanced: bool | None = None

    def build(self) -> PartitionLists:
        """Return the partitions of each member."""
        is_any_revoked = self._keep_owned()
        had_none = self._loads.most == 0
        unassigned = [partition for partition in self._partitions if partition not in self._owner]
        self._assign(unassigned)
        self._balance([] if is_any_revoked else unassigned, may_undo=not had_none)
        return {member: list(partitions) for member, partitions in self._assigned.items()}

    def _keep_owned(self) -> bool:
        """Carry out step 1; return whether a member must revoke a partition."""
        is_any_revoked = False
        for member, partitions in self._owned.items():
            for partition in partitions:
                if partition.topic in self._subscribed[member] and not self._racks.mismatch(member, partition):
                    self._give(partition, member)
                else:
                    is_any_revoked = True
        return is_any_revoked

    def _assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Carry out steps 2 and 3."""
        left = partitions
        if self._racks.member_racks:
            left = [partition for partition in partitions if not self._give_lightest(partition, match_racks=True)]
        for partition in left:
            self._give_lightest(partition, match_racks=False)

    def _give_lightest(self, partition: TopicPartition, *, match_racks: bool) -> bool:
        topic = partition.topic
        for member in self._loads:
            if topic in self._subscribed[member] and not (match_racks and self._racks.mismatch(member, partition)):
                self._give(partition, member)
                return True
        return False

    # ---------------------------------------------------------------------------------------------------------------- balance

    def _balance(self, unassigned: Sequence[TopicPartition], *, may_undo: bool) -> None:
        """Carry out step 4."""
        for member in self._subscribed:
            if not self._can_take_part(member):
                self._loads.leave_out(member)
        before = {member: dict(self._assigned[member]) for member in self._loads}
        score_before = _balance_score(self._loads.of.values())
        self._move_all([partition for partition in unassigned if self._is_shared(partition.topic)])
        is_any_moved = self._move_all([partition for partition in self._partitions if self._is_shared(partition.topic)])
        if may_undo and is_any_moved and _balance_score(self._loads.of.values()) >= score_before:
            self._assigned |= before

    def _is_shared(self, topic: str) -> bool:
        return len(self._subscribers[topic]) > 1

    def _can_take_part(self, member: str) -> bool:
        """Return whether the member can get another partition, or another member one of its partitions."""
        if self._loads.of[member] < self._capacity[member]:
            return True
        return any(self._is_shared(partition.topic) for partition in self._assigned[member])

    def _move_all(self, partitions: Sequence[TopicPartition]) -> bool:
        """Move partitions until the assignment is balanced, or none can be moved; return whether any was."""
        is_any_moved = is_moved = False
        while True:
            for partition in partitions:
                if self._check_balanced():
                    return is_any_moved
                is_moved |= self._move_if_better(partition)
            if not is_moved:
                return is_any_moved
            is_any_moved, is_moved = True, False

    def _move_if_better(self, partition: TopicPartition) -> bool:
        member = self._owner[partition]
        load = self._loads.of[member]
        previous = self._previous.get(partition)
        if previous is not None and load > self._loads.of.get(previous.member, load) + 1:
            self._move(partition, member, previous.member)
            return True
        lightest = next(one for one in self._loads if partition.topic in self._subscribed[one])
        if load > self._loads.of[lightest] + 1:
            self._move(partition, member, lightest)
            return True
        return False

    def _move(self, partition: TopicPartition, source: str, destination: str) -> None:
        moved = self._movements.find_partition(partition, source, destination)
        owner = self._owner[moved]
        self._movements.move(moved, owner, destination)
        self._take(moved, owner)
        self._give(moved, destination)

    def _give(self, partition: TopicPartition, member: str) -> None:
        self._assigned[member][partition] = None
        self._owner[partition] = member
        self._loads.add(member, 1)
        holders = self._holders[partition.topic]
        holders[member] = holders.get(member, 0) + 1
        self._is_balanced = None

    def _take(self, partition: TopicPartition, member: str) -> None:
        del self._assigned[member][partition]
        self._loads.add(member, -1)
        holders = self._holders[partition.topic]
        holders[member] -= 1
        if not holders[member]:
            del holders[member]

    def _check_balanced(self) -> bool:
        """Return whether no partition could move to a subscriber that has at least two less than its member."""
        if self._is_balanced is None:
            self._is_balanced = self._loads.least >= self._loads.most - 1 or self._find_balanced()
        return self._is_balanced

    def _find_balanced(self) -> bool:
        loads = self._loads.of
        most: dict[str, int] = {}
        for member in self._loads:
            load = loads[member]
            if load == self._capacity[member]:
                continue
            for topic in self._subscribed[member]:
                if topic not in most:
                    most[topic] = max(loads[holder] for holder in self._holders[topic])
                    if load + 1 < most[topic]:
                        return False
        return True


def _balance_score(loads: Iterable[int]) -> int:
    """Return the sum of the differences of all pairs of loads, 0 for the best balance."""
    ordered = sorted(loads)
    return sum(load * (2 * index - len(ordered) + 1) for index, load in enumerate(ordered))


class MemberPair(NamedTuple):
    """From which member to which one a partition moved."""

    source: str
    destination: str


class PartitionMovements:
    """The moves so far."""

    def __init__(self) -> None:
        self._pairs: dict[TopicPartition, MemberPair] = {}
        self._moved: dict[tuple[str, MemberPair], HashSet[TopicPartition]] = {}
        self._topic_hashes: dict[str, int] = {}

    def find_partition(self, partition: TopicPartition, source: str, destination: str) -> TopicPartition:
        """Return the partition that moves to `destination` if `partition` is to move there."""
        pair = self._pairs.get(partition)
        first_source = source if pair is None else pair.source
        opposite = self._moved.get((partition.topic, MemberPair(destination, first_source)))
        return partition if opposite is None else opposite.first()

    def move(self, partition: TopicPartition, source: str, destination: str) -> None:
        """Note a move. The moves of a partition count as one, and as none if it is back."""
        pair = self._pairs.pop(partition, None)
        if pair is None:
            self._add(partition, MemberPair(source, destination))
            return
        moved = self._moved[partition.topic, pair]
        moved.remove(partition)
        if not moved:
            del self._moved[partition.topic, pair]
        if pair.source != destination:
            self._add(partition, MemberPair(pair.source, destination))

    def _add(self, partition: TopicPartition, pair: MemberPair) -> None:
        self._pairs[partition] = pair
        key = partition.topic, pair
        moved = self._moved.get(key)
        if moved is None:
            moved = self._moved[key] = HashSet(self._hash_code)
        moved.add(partition)

    def _hash_code(self, partition: TopicPartition) -> int:
        """Return TopicPartition.hashCode()."""
        topic = partition.topic
        topic_hash = self._topic_hashes.get(topic)
        if topic_hash is None:
            topic_hash = self._topic_hashes[topic] = java_hash(topic)
        return 31 * (31 + partition.partition) + topic_hash
