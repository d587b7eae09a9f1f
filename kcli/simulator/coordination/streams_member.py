"""A member of a streams group (KIP-1071): heartbeats that state its tasks, and the reconciliation of a consumer group.

The topology has one subtopology. It reads one topic and has a store with a changelog, so that the broker creates an internal
topic. The task with index n reads partition n of the topic, so the member's active tasks are its partitions.

answer                                    what the member does
----------------------------------------  ------------------------------------------------------------------------------
active tasks                              what a member of a consumer group does with an assignment
standby tasks                             states them in the next heartbeat
a task in two roles                       the run fails
errors                                    the same as a member of a consumer group
"""

from __future__ import annotations

from collections.abc import Iterable

from kcli.protocol.apis import STREAMS_GROUP_HEARTBEAT
from kcli.protocol.message import Message
from kcli.simulator.coordination.consumer_member import REBALANCE_MS, ConsumerMember
from kcli.simulator.coordination.history import TopicPartition
from kcli.simulator.partition_ledger import SimulationFailure

SUBTOPOLOGY = "0"
PROCESS_COUNT = 2  # of a group: members of one process share its directory


class StreamsMember(ConsumerMember):
    """See the head of this module."""

    _api = STREAMS_GROUP_HEARTBEAT
    _first_own_ids_version = 0
    _standby: tuple[int, ...] = ()
    _process = 0

    def _request(self) -> tuple[Message, bool]:
        world, is_joining = self._stage.world, self.generation == 0
        is_full = self._is_full or is_joining
        has_owned = is_full or self._has_changed
        if is_joining:
            self._standby = ()
            self._process = self._rng.randrange(PROCESS_COUNT)
        active = sorted(index for _, index in self.owned)
        request = world.request(
            STREAMS_GROUP_HEARTBEAT,
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.generation,
            rebalance_timeout_ms=REBALANCE_MS if is_full else -1,
            topology=self._topology() if is_joining else None,
            active_tasks=self._tasks(active) if has_owned else None,
            standby_tasks=self._tasks(self._standby) if has_owned else None,
            warmup_tasks=[] if has_owned else None,
            process_id=f"{self.group}-process-{self._process}" if is_full else None,
            client_tags=[] if is_full else None,
        )
        return request, has_owned

    def _topology(self) -> Message:
        world = self._stage.world
        changelog = world.struct(
            STREAMS_GROUP_HEARTBEAT, "TopicInfo", name=f"{self.group}-store-changelog", partitions=0, replication_factor=1
        )
        subtopology = world.struct(
            STREAMS_GROUP_HEARTBEAT,
            "Subtopology",
            subtopology_id=SUBTOPOLOGY,
            source_topics=[self._topic],
            state_changelog_topics=[changelog],
        )
        return world.struct(STREAMS_GROUP_HEARTBEAT, "Topology", epoch=1, subtopologies=[subtopology])

    def _tasks(self, indexes: Iterable[int]) -> list[Message]:
        partitions = list(indexes)
        make = self._stage.world.struct
        return [make(STREAMS_GROUP_HEARTBEAT, "TaskIds", subtopology_id=SUBTOPOLOGY, partitions=partitions)] * bool(partitions)

    def _assigned(self, response: Message) -> set[TopicPartition] | None:
        if response.active_tasks is None:
            return None
        active, standby = (
            {index for tasks in given for index in tasks.partitions}
            for given in (response.active_tasks, response.standby_tasks)
        )
        if active & standby:
            raise SimulationFailure(f"{self.name}: a response has {sorted(active & standby)} as active and as standby tasks")
        self._has_changed = self._standby != tuple(sorted(standby))
        self._standby = tuple(sorted(standby))
        return {(self._topic, index) for index in active}
