"""Groups that grow, shrink and change their subscriptions at random, rebalance by rebalance: input for the assignors."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kcli.client.consumer.assignors.assignor import ClusterMetadata
from kcli.client.consumer.assignors.sticky_user_data import encode_cooperative, encode_sticky
from kcli.client.consumer.consumer_protocol import (
    NO_GENERATION,
    Assignment,
    Subscription,
    TopicPartition,
    decode_subscription,
    encode_subscription,
)

RACKS = ("a", "b", "c")
# Of the last two, the order by UTF-16 code units is not that by code points.
CLIENT_IDS = ("consumer", "app-ä", "\uff5e", "\U0001f600")


class Rebalance(NamedTuple):
    """What a leader gets: subscriptions as bytes, in the order of JoinGroup's response, with the instance ids."""

    is_first: bool
    generation: int
    version: int
    replica_racks: dict[str, list[list[str | None]]]
    members: list[tuple[str, str | None, bytes]]

    @property
    def cluster(self) -> ClusterMetadata:
        topics = {
            topic: [frozenset(rack for rack in racks if rack is not None) for racks in partitions]
            for topic, partitions in self.replica_racks.items()
        }
        return ClusterMetadata(topics)

    @property
    def subscriptions(self) -> dict[str, Subscription]:
        return {member: decode_subscription(data, instance) for member, instance, data in self.members}


@dataclass
class DrawnMember:
    topics: list[str]
    rack: str | None
    instance_id: str | None
    version: int
    owned: list[TopicPartition] = field(default_factory=list)
    generation: int = NO_GENERATION


class DrawnGroup:
    """A group that is drawn: 1 to 12 members and 1 to 8 topics of 0 to 20 partitions, `scale` times as many."""

    def __init__(self, rng: random.Random, assignor: str, scale: int = 1) -> None:
        self._rng = rng
        self._scale = scale
        self._assignor = assignor
        self._has_racks = rng.random() < 0.5
        self._are_equal = rng.random() < 0.5
        self._is_tidy = rng.random() < 0.5
        # Members that change their subscriptions to few topics again and again: partitions move there and back.
        self._is_restless = rng.random() < 0.3
        count = scale * rng.randrange(1, 4 if self._is_restless else 9)
        self._names = [f"{rng.choice(['t', 'orders', 'Topic.'])}{rng.randrange(1000)}" for _ in range(count)]
        self._spread = rng.random() < 0.3
        self._racks: dict[str, list[list[str | None]]] = {name: [] for name in self._names}
        for name in self._names:
            self._grow(name, rng.choice([0, 1, 3, 4, rng.randrange(21)]))
        self._common = self._draw_topics()
        self._members: dict[str, DrawnMember] = {}
        self._generation = NO_GENERATION

    def rebalances(self, count: int) -> Iterator[Rebalance]:
        """Yield rebalances, before each of which the group changes; the caller calls `take` after each one."""
        for _ in range(count):
            is_first = self._generation == NO_GENERATION
            self._change()
            self._generation += 1 if self._rng.random() < 0.9 else 2
            members = [(name, member.instance_id, self._encode(member)) for name, member in self._members.items()]
            self._rng.shuffle(members)
            yield Rebalance(is_first, self._generation, self._rng.randrange(4), self._racks, members)

    def take(self, assignments: dict[str, Assignment]) -> None:
        """Let the members get their assignments; some miss this rebalance and stay with what they had."""
        for name, assignment in assignments.items():
            member = self._members[name]
            if self._is_tidy or self._rng.random() < 0.9:
                member.owned, member.generation = list(assignment.partitions), self._generation

    def _draw_topics(self) -> list[str]:
        rng = self._rng
        topics = rng.sample(sorted(set(self._names)), rng.randrange(1, len(set(self._names)) + 1))
        return [*topics, "missing"] if rng.random() < 0.1 else topics

    def _grow(self, topic: str, count: int) -> None:
        rng = self._rng
        for _ in range(count):
            racks: list[str | None] = list(RACKS) if self._spread else rng.sample(RACKS, rng.randrange(1, 4))
            if rng.random() < 0.05:
                racks = [*racks, None] if rng.random() < 0.5 else [None]
            self._racks[topic].append(racks)

    def _change(self) -> None:
        rng = self._rng
        for _ in range(self._scale * rng.randrange(3)):
            if len(self._members) > 1:
                del self._members[rng.choice(list(self._members))]
        joining = self._scale * (rng.randrange(1, 7) if not self._members else rng.randrange(4))
        for _ in range(min(joining, 12 * self._scale - len(self._members))):
            self._members[f"{rng.choice(CLIENT_IDS)}-{rng.getrandbits(64):x}"] = self._draw_member()
        if rng.random() < 0.2:
            self._grow(rng.choice(self._names), rng.randrange(3))
        if self._are_equal and rng.random() < 0.2:
            self._common = self._draw_topics()
            for member in self._members.values():
                member.topics = list(self._common)
        for member in self._members.values():
            if not self._are_equal and rng.random() < (0.5 if self._is_restless else 0.15):
                member.topics = self._draw_topics()
            if not self._is_tidy and rng.random() < 0.03:
                other = rng.choice(list(self._members.values()))
                member.owned = [*member.owned, *other.owned]

    def _draw_member(self) -> DrawnMember:
        rng = self._rng
        topics = list(self._common) if self._are_equal else self._draw_topics()
        if not self._is_tidy and rng.random() < 0.05:
            topics = [] if rng.random() < 0.5 else [*topics, topics[0]]
        rng.shuffle(topics)
        rack = rng.choice([*RACKS, *RACKS, "elsewhere", None]) if self._has_racks else None
        instance_id = f"i{rng.getrandbits(32):x}" if rng.random() < 0.3 else None
        return DrawnMember(topics, rack, instance_id, 3 if rng.random() < 0.6 else rng.randrange(3))

    def _encode(self, member: DrawnMember) -> bytes:
        user_data: bytes | None = None
        owned = member.owned
        if self._assignor == "sticky":
            user_data = encode_sticky(owned, member.generation) if owned or member.generation >= 0 else None
            if user_data and not self._is_tidy and self._rng.random() < 0.1:
                user_data = user_data[: -4 if self._rng.random() < 0.5 else 5]
            owned = [] if self._rng.random() < 0.9 else owned
        elif self._assignor == "cooperative-sticky":
            user_data = encode_cooperative(member.generation)
            if not self._is_tidy and self._rng.random() < 0.1:
                user_data = user_data[:2] if self._rng.random() < 0.5 else None
        subscription = Subscription(member.topics, user_data, owned, member.generation, member.rack)
        return encode_subscription(subscription, member.version)


def draw_stale_claims(rng: random.Random) -> Rebalance:
    """Draw a group of the sticky assignor in which everything is in motion.

    Some members missed a rebalance, the claims of the others do not fit their topics; so partitions move there and back.
    """
    counts = {f"t{at}": rng.randrange(1, 13) for at in range(rng.randrange(1, 4))}
    racks: dict[str, list[list[str | None]]] = {topic: [] for topic in counts}
    has_racks = rng.random() < 0.5
    for topic, count in counts.items():
        racks[topic] = [list(rng.sample(RACKS, rng.randrange(1, 3))) if has_racks else [] for _ in range(count)]
    names = [f"m{at}-{rng.getrandbits(20)}" for at in range(rng.randrange(2, 8))]
    partitions = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
    owners = {generation: {partition: rng.choice(names) for partition in partitions} for generation in (1, 2)}
    members: list[tuple[str, str | None, bytes]] = []
    for name in names:
        generation = 1 if rng.random() < 0.3 else 2
        claimed = [partition for partition in partitions if owners[generation][partition] == name]
        rng.shuffle(claimed)
        topics = rng.sample(list(counts), rng.randrange(1, len(counts) + 1))
        rack = rng.choice([*RACKS, None]) if has_racks else None
        subscription = Subscription(topics, encode_sticky(claimed, generation), (), generation, rack)
        members.append((name, None, encode_subscription(subscription)))
    return Rebalance(True, 3, 3, racks, members)
