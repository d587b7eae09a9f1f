"""The sticky assignors: first balance, then as few moves as possible (KIP-54, KIP-341, KIP-429), and racks (KIP-881).

Each member says what it has (`sticky_user_data`). If two members claim the same partition, the one with the later generation
has it; with the same generation, neither has it. The subscriptions then decide on one of two algorithms:

    all the same  `constrained_assignment`
    different     `general_assignment`

The cooperative assignor leaves out of the assignment what another member still has: that member revokes it first, and the
rebalance that follows assigns it.

Three particulars of Kafka's are kept, so that a group gets the same assignment from any leader:
- If the first member in the order of the HashMap has no topics, it counts as subscribed to the topics of the next one.
- Whether the claim of the other member is older is decided by the generation of its subscription, not of its user data.
- An assignor remembers the latest generation that it has seen for its later assignments.

One is not kept: partitions that do not exist, of a topic that was created again with fewer of them, are skipped here. Kafka's
assignors assign them, assign other partitions twice, or fail.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection

from kcli.client.consumer.assignors.assignor import (
    PartitionAssignor,
    PartitionLists,
    RebalanceProtocol,
    Subscriptions,
    Topics,
)
from kcli.client.consumer.assignors.constrained_assignment import ConstrainedAssignment
from kcli.client.consumer.assignors.general_assignment import GeneralAssignment, PreviousOwner
from kcli.client.consumer.assignors.racks import RackInfo
from kcli.client.consumer.assignors.sticky_user_data import (
    MemberData,
    encode_cooperative,
    encode_sticky,
    read_cooperative,
    read_sticky,
)
from kcli.client.consumer.consumer_protocol import NO_GENERATION, Assignment, Subscription, TopicPartition

Owned = dict[str, dict[TopicPartition, None]]


class AbstractStickyAssignor(PartitionAssignor):
    """What the two assignors have in common."""

    def __init__(self) -> None:
        self._generation = NO_GENERATION
        self._latest_generation = NO_GENERATION
        # Partitions that move, by their new members; None if the assignment does not say.
        self._moving: dict[TopicPartition, str] | None = None

    def assign_partitions(self, topics: Topics, subscriptions: Subscriptions) -> PartitionLists:
        """See PartitionAssignor."""
        data = {member: self.member_data(subscription) for member, subscription in subscriptions.items()}
        generations = [one.generation for one in data.values() if one.generation is not None]
        self._latest_generation = max(self._latest_generation, *generations, NO_GENERATION)
        owned, disputed = _find_owners(topics, subscriptions, data)
        racks = RackInfo(topics, subscriptions)
        if _are_equal(subscriptions):
            constrained = ConstrainedAssignment(topics, racks, owned, disputed)
            assigned = constrained.build()
            self._moving = constrained.moving
            return assigned
        self._moving = None
        previous = _previous_owners(data, self._latest_generation)
        return GeneralAssignment(topics, racks, owned, previous, subscriptions).build()

    @abstractmethod
    def member_data(self, subscription: Subscription) -> MemberData:
        """Return what a member has."""


class StickyAssignor(AbstractStickyAssignor):
    """The assignor for members that revoke all their partitions before they join."""

    name = "sticky"

    def __init__(self) -> None:
        super().__init__()
        self._assignment: Assignment | None = None

    def subscription_user_data(self, topics: Collection[str]) -> bytes | None:
        """See Assignor."""
        return None if self._assignment is None else encode_sticky(self._assignment.partitions, self._generation)

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        """See Assignor."""
        self._assignment, self._generation = assignment, generation

    def member_data(self, subscription: Subscription) -> MemberData:
        """See AbstractStickyAssignor."""
        return read_sticky(subscription)


class CooperativeStickyAssignor(AbstractStickyAssignor):
    """The assignor for members that keep their partitions while they join."""

    name = "cooperative-sticky"
    protocols = (RebalanceProtocol.COOPERATIVE, RebalanceProtocol.EAGER)

    def subscription_user_data(self, topics: Collection[str]) -> bytes | None:
        """See Assignor."""
        return encode_cooperative(self._generation)

    def on_assignment(self, assignment: Assignment, generation: int) -> None:
        """See Assignor."""
        self._generation = generation

    def member_data(self, subscription: Subscription) -> MemberData:
        """See AbstractStickyAssignor."""
        return read_cooperative(subscription)

    def assign_partitions(self, topics: Topics, subscriptions: Subscriptions) -> PartitionLists:
        """See PartitionAssignor."""
        assigned = super().assign_partitions(topics, subscriptions)
        moving = _find_moving(subscriptions, assigned) if self._moving is None else self._moving
        for partition, member in moving.items():
            assigned[member].remove(partition)
        return assigned


def _are_equal(subscriptions: Subscriptions) -> bool:
    """Return whether all members are subscribed to the same topics, as Kafka finds it (see the head of this module)."""
    expected: set[str] = set()
    for subscription in subscriptions.values():
        if not expected:
            expected.update(subscription.topics)
        elif len(subscription.topics) != len(expected) or not expected.issuperset(subscription.topics):
            return False
    return True


def _find_owners(
    topics: Topics, subscriptions: Subscriptions, data: dict[str, MemberData]
) -> tuple[Owned, set[TopicPartition]]:
    """Return the partitions that each member has, and those that two members of the same generation claim."""
    owned: Owned = {member: {} for member in subscriptions}
    owners: dict[TopicPartition, str] = {}
    disputed: set[TopicPartition] = set()
    for member, (partitions, generation) in data.items():
        own_generation = NO_GENERATION if generation is None else generation
        for partition in partitions:
            if not 0 <= partition.partition < len(topics.get(partition.topic, ())):
                continue
            other = owners.get(partition)
            is_won = True
            if other is not None:
                other_generation = subscriptions[other].generation
                if own_generation < other_generation:
                    continue
                was_owned = partition in owned[other]
                owned[other].pop(partition, None)
                if own_generation == other_generation:
                    disputed.add(partition)
                # A member that lists a partition twice does not get it by that.
                is_won = own_generation > other_generation and (other != member or was_owned)
            owners[partition] = member
            if is_won:
                owned[member][partition] = None
    return owned, disputed


def _previous_owners(data: dict[str, MemberData], latest: int) -> dict[TopicPartition, PreviousOwner]:
    """Return the members that had partitions before the latest generation, for each partition the last one."""
    previous: dict[TopicPartition, PreviousOwner] = {}
    for member, (partitions, said) in data.items():
        generation = NO_GENERATION if said is None else said
        if generation >= latest:
            continue
        for partition in partitions:
            known = previous.get(partition)
            if known is None or generation > known.generation:
                previous[partition] = PreviousOwner(member, generation)
    return previous


def _find_moving(subscriptions: Subscriptions, assigned: PartitionLists) -> dict[TopicPartition, str]:
    """Return the partitions that a member gets and another member gives back."""
    added: dict[TopicPartition, str] = {}
    revoked: set[TopicPartition] = set()
    for member, partitions in assigned.items():
        owned = set(subscriptions[member].owned_partitions)
        added |= dict.fromkeys((one for one in partitions if one not in owned), member)
        revoked |= owned.difference(partitions)
    return {partition: member for partition, member in added.items() if partition in revoked}
