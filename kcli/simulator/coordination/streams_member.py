"""A member of a streams group (KIP-1071): heartbeats that state its tasks, and the reconciliation of a consumer group.

The topology of a StreamsMember has one subtopology. It reads one topic and has a store with a changelog, so that the broker
creates an internal topic. The task with index n reads partition n of the topic, so the active tasks are the partitions.

That of a RepartitioningMember has two. The first one reads the topic and writes a repartition topic, the second one reads that
and has the store. The broker creates both internal topics, the repartition topic with as many partitions as the first
subtopology has inputs. So a member reads partitions of two topics, and what it commits for them is in one group.

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
from kcli.simulator.client import Task
from kcli.simulator.coordination.consumer_member import REBALANCE_MS, ConsumerMember
from kcli.simulator.coordination.history import TopicPartition
from kcli.simulator.partition_ledger import SimulationFailure
from kcli.simulator.world import PAUSE_MS

FIRST, SECOND = "0", "1"  # subtopologies
CHANGELOG, REPARTITION = "-store-changelog", "-repartition"  # at the end of the names of internal topics
_Task = tuple[str, int]  # a subtopology and a partition
PROCESS_COUNT = 2  # of a group: members of one process share its directory


class StreamsMember(ConsumerMember):
    """See the head of this module."""

    _api = STREAMS_GROUP_HEARTBEAT
    _first_own_ids_version = 0
    _standby: tuple[_Task, ...] = ()
    _process = 0

    def _request(self) -> tuple[Message, bool]:
        world, is_joining = self._stage.world, self.generation == 0
        is_full = self._is_full or is_joining
        has_owned = is_full or self._has_changed
        if is_joining:
            self._standby = ()
            self._process = self._rng.randrange(PROCESS_COUNT)
        active = [(self._subtopology_of(name), index) for name, index in self.owned]
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
        make = self._stage.world.struct
        return make(STREAMS_GROUP_HEARTBEAT, "Topology", epoch=1, subtopologies=self._subtopologies())

    def _subtopologies(self) -> list[Message]:
        return [self._subtopology(FIRST, source_topics=[self._topic], state_changelog_topics=[self._internal(CHANGELOG)])]

    def _subtopology(self, subtopology_id: str, **fields: object) -> Message:
        make = self._stage.world.struct
        return make(STREAMS_GROUP_HEARTBEAT, "Subtopology", subtopology_id=subtopology_id, **fields)

    def _internal(self, suffix: str) -> Message:
        """Return an internal topic whose number of partitions the broker finds."""
        make = self._stage.world.struct
        return make(STREAMS_GROUP_HEARTBEAT, "TopicInfo", name=self.group + suffix, partitions=0, replication_factor=1)

    def _topic_of(self, subtopology_id: str) -> str:
        """Return the topic that a subtopology reads."""
        return self._topic

    def _subtopology_of(self, topic: str) -> str:
        return FIRST

    def _tasks(self, tasks: Iterable[_Task]) -> list[Message]:
        by_subtopology: dict[str, list[int]] = {}
        for subtopology_id, index in sorted(tasks):
            by_subtopology.setdefault(subtopology_id, []).append(index)
        make = self._stage.world.struct
        return [
            make(STREAMS_GROUP_HEARTBEAT, "TaskIds", subtopology_id=subtopology_id, partitions=indexes)
            for subtopology_id, indexes in by_subtopology.items()
        ]

    def _assigned(self, response: Message) -> set[TopicPartition] | None:
        if response.active_tasks is None:
            return None
        active, standby = (
            {(tasks.subtopology_id, index) for tasks in given for index in tasks.partitions}
            for given in (response.active_tasks, response.standby_tasks)
        )
        if active & standby:
            raise SimulationFailure(f"{self.name}: a response has {sorted(active & standby)} as active and as standby tasks")
        self._has_changed = self._standby != tuple(sorted(standby))
        self._standby = tuple(sorted(standby))
        return {(self._topic_of(subtopology_id), index) for subtopology_id, index in active}


class RepartitioningMember(StreamsMember):
    """See the head of this module."""

    @property
    def repartition_topic(self) -> str:
        """The topic that the second subtopology reads."""
        return self.group + REPARTITION

    def _subtopologies(self) -> list[Message]:
        return [
            self._subtopology(FIRST, source_topics=[self._topic], repartition_sink_topics=[self.repartition_topic]),
            self._subtopology(
                SECOND,
                repartition_source_topics=[self._internal(REPARTITION)],
                state_changelog_topics=[self._internal(CHANGELOG)],
            ),
        ]

    def _topic_of(self, subtopology_id: str) -> str:
        return self._topic if subtopology_id == FIRST else self.repartition_topic

    def _subtopology_of(self, topic: str) -> str:
        return FIRST if topic == self._topic else SECOND

    def _take(self, response: Message, sent_ms: int) -> Task[None]:
        """Take tasks when the repartition topic is known: they are assigned when the broker has created it."""
        while response.active_tasks and self.repartition_topic not in self._stage.topics and not self._stage.is_over:
            yield from self._stage.look_up(self._caller, {self.repartition_topic: None})
            yield PAUSE_MS
        yield from super()._take(response, sent_ms)
