"""A member of a group of the consumer protocol (KIP-848): heartbeats that state what it has, and reconciliation.

answer                                 what the member does
-------------------------------------  --------------------------------------------------------------------------------
an assignment                          commits and drops the partitions that are not in it, states in the next heartbeat
                                       what is left, and begins with the new ones at their committed offsets
UNKNOWN_MEMBER_ID, FENCED_MEMBER_EPOCH  drops all partitions and joins again with epoch 0
none                                   states everything in the next heartbeat

A thread of the application may still commit in the epoch before, after the member has got the next one: offsets of partitions
that the member has dropped must be refused then.

A member of a streams group (KIP-1071) sends heartbeats that state its tasks, and reconciles as one of a consumer group.

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
from random import Random

from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import TopicPartition
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, CONSUMER_GROUP_HEARTBEAT, STREAMS_GROUP_HEARTBEAT
from kcli.protocol.message import Message
from kcli.simulator.client import Task
from kcli.simulator.coordination.group_member import HEARTBEAT_MS, CommitWork, GroupMember, Offsets, Work
from kcli.simulator.coordination.stage import RETRIABLE, Caller, Stage
from kcli.simulator.partition_ledger import SimulationFailure
from kcli.simulator.world import PAUSE_MS

REBALANCE_MS = 3000
LEAVE_EPOCH = -1
MAX_LATE_MS = 1000
_FENCED = frozenset((error_codes.UNKNOWN_MEMBER_ID, error_codes.FENCED_MEMBER_EPOCH))
_ASSIGNORS = (None, "uniform", "range")


class ConsumerMember(GroupMember):
    """See the head of this module."""

    is_consumer = True
    _api = CONSUMER_GROUP_HEARTBEAT
    _first_own_ids_version = 1  # from here on the member makes its id
    _next_beat_ms = 0
    _is_full = True  # the next heartbeat states everything
    _has_changed = False  # the partitions have changed since the last heartbeat with a response

    def __init__(
        self, stage: Stage, group: str, name: str, rng: Random, topic: str, work: Work, *, may_end: bool = False
    ) -> None:
        super().__init__(stage, group, name, rng, topic, work, may_end=may_end)
        self._dropped: dict[TopicPartition, int] = {}  # since the last epoch, with the member's positions
        self._late = Caller(stage, f"{name} late", rng)

    def _join_or_beat(self) -> Task[None]:
        if self.is_stale:
            self.generation, self.owned, self._is_full = 0, [], True
            self._dropped = {}
            self.positions.clear()
            yield from self._beat()
        elif self._has_changed or self._stage.now_ms >= self._next_beat_ms:
            yield from self._beat()

    def _beat(self) -> Task[None]:
        stage, caller = self._stage, self._caller
        version = caller.version(self._api)
        if not self.member_id and version >= self._first_own_ids_version:
            self.member_id = str(Uuid(self._rng.randbytes(16)))
        elif self.member_id and self.generation == 0:
            version = max(version, self._first_own_ids_version) if self._rng.random() < 0.5 else version
        sent_ms, (request, has_owned) = stage.now_ms, self._request()
        # A late heartbeat that states partitions could give them away for the member.
        response = yield from caller.call(self._api, version, request, may_repeat=not has_owned)
        self._next_beat_ms = stage.now_ms + HEARTBEAT_MS
        if response is None:
            self._is_full = True
            return
        if response.error_code in _FENCED:
            self._refused(response.error_code)
            return
        caller.check(response.error_code, API_KEYS[self._api].name)
        if response.error_code:
            self._is_full = True
            return
        self._is_full = self._rng.random() < 0.1
        self._has_changed = False
        yield from self._take(response, sent_ms)

    def _request(self) -> tuple[Message, bool]:
        """Return a heartbeat, and whether it states partitions."""
        world, is_full = self._stage.world, self._is_full or self.generation == 0
        by_topic: dict[str, list[int]] = {}
        for name, index in self.owned:
            by_topic.setdefault(name, []).append(index)
        owned = [
            world.struct(
                CONSUMER_GROUP_HEARTBEAT,
                "TopicPartitions",
                topic_id=self._stage.topics[name].topic_id,
                partitions=sorted(indexes),
            )
            for name, indexes in sorted(by_topic.items())
        ]
        has_owned = is_full or self._has_changed
        request = world.request(
            CONSUMER_GROUP_HEARTBEAT,
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.generation,
            rebalance_timeout_ms=REBALANCE_MS if is_full else -1,
            subscribed_topic_names=[self._topic] if is_full else None,
            server_assignor=self._rng.choice(_ASSIGNORS) if is_full else None,
            topic_partitions=owned if has_owned else None,
        )
        return request, has_owned

    def _assigned(self, response: Message) -> set[TopicPartition] | None:
        """Return the partitions that a response assigns, None if they are as before."""
        if response.assignment is None:
            return None
        return {
            (self._stage.topic_name(topic.topic_id), index)
            for topic in response.assignment.topic_partitions
            for index in topic.partitions
        }

    def _take(self, response: Message, sent_ms: int) -> Task[None]:
        """Take over the epoch and the assignment of a response."""
        is_new_epoch = response.member_epoch != self.generation
        self.member_id, self.is_stale = response.member_id or self.member_id, False
        before, after = self.generation, response.member_epoch
        target = self._assigned(response)
        if target is not None:
            revoked = [partition for partition in self.owned if partition not in target]
            self._dropped.update({where: self.positions[where] for where in revoked if where in self.positions})
            self.generation = after
            yield from self._revoke(revoked)
            if self.is_stale:
                return
            added = sorted(target.difference(self.owned))
            self._has_changed = self._has_changed or bool(revoked or added)
            self.owned = [partition for partition in self.owned if partition in target] + added
        self.generation = after
        if is_new_epoch or target is not None:
            self.note_ownership(sent_ms)
        if after > before:
            if before > 0 and self._dropped and isinstance(self._work, CommitWork):
                self._stage.world.run(self._commit_late(self._dropped, before))
            self._dropped = {}
        if after < before:
            self._caller.check(error_codes.UNKNOWN_SERVER_ERROR, f"a heartbeat with epoch {before} got epoch {after}; it")

    def _commit_late(self, offsets: dict[TopicPartition, int], epoch: int) -> Task[None]:
        """Commit offsets of dropped partitions in an earlier epoch, from another thread."""
        stage, member_id = self._stage, self.member_id
        yield self._rng.randrange(MAX_LATE_MS)
        if not stage.is_draining:
            late = Offsets(stage, self._late, self.group)
            yield from late.commit(offsets, member_id, epoch, is_consumer=True, may_repeat=False)

    def _revoke(self, revoked: list[TopicPartition]) -> Task[None]:
        """Commit the positions of partitions and drop them."""
        offsets = {where: at for where, at in self.uncommitted().items() if where in revoked}
        if offsets and isinstance(self._work, CommitWork) and self._rng.random() < 0.7:
            yield from self.commit(offsets)
        for partition in revoked:
            self.positions.pop(partition, None)
            self.committed.pop(partition, None)

    def _refused(self, code: int | None) -> None:
        if code == error_codes.STALE_MEMBER_EPOCH:
            self._next_beat_ms = 0  # the next heartbeat returns the present epoch
        elif code in RETRIABLE:
            return
        else:
            self.is_stale = True

    def _leave(self) -> Task[None]:
        caller = self._caller
        if self.member_id and self.generation > 0:
            request = self._stage.world.request(
                self._api, group_id=self.group, member_id=self.member_id, member_epoch=LEAVE_EPOCH
            )
            response = yield from caller.call(self._api, caller.version(self._api), request, may_repeat=False)
            if response is not None:
                caller.check(response.error_code, API_KEYS[self._api].name, RETRIABLE | _FENCED)
        self._die()


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
