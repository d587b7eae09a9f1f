"""Chooses what the members of a group run on, by the seed: the core of kcli's own consumer, or raw requests.

group                           its members
------------------------------  ------------------------------------------------------------------------------------
classic, consumer               mostly all on the core, with one of its assignors; sometimes raw ones next to them,
                                which share the assignor range; sometimes raw ones only
streams; of a topic that is     raw ones: the client has no streams protocol, and names topics
created again and again
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from kcli.client.consumer.consumer_config import CLASSIC, CONSUMER
from kcli.simulator.coordination.classic_member import ClassicMember
from kcli.simulator.coordination.consumer_member import ConsumerMember
from kcli.simulator.coordination.core_member import CoreMember
from kcli.simulator.coordination.group_member import GroupMember, Work
from kcli.simulator.coordination.stage import Stage
from kcli.simulator.coordination.streams_member import RepartitioningMember, StreamsMember

Member = GroupMember | CoreMember
CLASSIC_KIND, CONSUMER_KIND = CLASSIC, CONSUMER
STREAMS_KIND, REPARTITIONING_KIND = "streams", "repartitioning"
KINDS = (CLASSIC_KIND, CONSUMER_KIND, STREAMS_KIND)
EPOCH_KINDS = frozenset((CONSUMER_KIND, STREAMS_KIND, REPARTITIONING_KIND))  # their members have epochs
_RAW: Mapping[str, type[GroupMember]] = {
    CLASSIC_KIND: ClassicMember,
    CONSUMER_KIND: ConsumerMember,
    STREAMS_KIND: StreamsMember,
    REPARTITIONING_KIND: RepartitioningMember,
}
STATIC_SHARE = 0.5  # of the classic groups, and of the consumer groups on the core
CORE_SHARES = (1.0, 1.0, 1.0, 0.5, 0.0)  # of the members of a group
_STRATEGIES = (
    ("range",),
    ("roundrobin",),
    ("sticky",),
    ("cooperative-sticky",),
    ("range", "cooperative-sticky"),
)


class GroupMembers:
    """Makes the members of one group."""

    def __init__(self, stage: Stage, group: str, kind: str, topic: str, rng: Random, *, may_be_core: bool = True) -> None:
        self._stage = stage
        self._group = group
        self._kind = kind
        self._topic = topic
        is_core = may_be_core and kind in (CLASSIC_KIND, CONSUMER_KIND)
        self._core_share = rng.choice(CORE_SHARES) if is_core else 0.0
        self._strategies = rng.choice(_STRATEGIES) if self._core_share == 1.0 else ("range",)
        self._is_static = rng.random() < STATIC_SHARE

    def make(self, name: str, rng: Random, work: Work, *, may_end: bool = False) -> Member:
        """Make a member with its work."""
        stage, group = self._stage, self._group
        if rng.random() >= self._core_share:
            member = _RAW[self._kind](stage, group, name, rng, self._topic, work, may_end=may_end)
            if self._kind == CLASSIC_KIND and self._is_static:
                member.instance_id = name
            return member
        return CoreMember(
            stage,
            group,
            name,
            rng,
            self._topic,
            work,
            protocol=self._kind,
            strategies=self._strategies,
            instance_id=name if self._is_static else None,
            may_end=may_end,
        )
