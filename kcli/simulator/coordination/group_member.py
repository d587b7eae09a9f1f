"""What raw members of all kinds of groups have in common: they fetch committed offsets, read, and commit or transform.

    kind of member                                          module
    ------------------------------------------------------  --------------------
    of both protocols, on the core of kcli's own consumer   core_member; it is not a GroupMember
    of the classic protocol                                 ClassicMember, here
    of the consumer protocol (KIP-848)                      consumer_member
    of the streams protocol (KIP-1071)                      consumer_member
    of a share group (KIP-932), which commits no offsets    share_member; it is not a GroupMember

    work                  what is done with the records of a poll
    --------------------  ------------------------------------------------------------------------------------------------
    CommitWork            the position is committed with OffsetCommit, sometimes only later
    Transform             an output of each record and the position are written in one transaction

A member also pauses for longer than its session, and then commits as a zombie; it dies, perhaps for good, and begins anew as
another member; and it leaves.

A ClassicMember is of the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup; the leader assigns.

answer                                       what the member does
-------------------------------------------  -----------------------------------------------------------------------
MEMBER_ID_REQUIRED                           joins again with the member id
REBALANCE_IN_PROGRESS                        commits, and joins again
UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID        joins again as a new member
ILLEGAL_GENERATION                           joins again
none                                         the same request again, or joins again

A static member states its instance id. When it has died, it joins again with that and gets another member id, and the process
that had the earlier one may still commit: as a fenced member, which must be refused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from random import Random
from typing import Protocol

from kcli.format.primitives import TopicPartition
from kcli.protocol import error_codes
from kcli.protocol.apis import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, OFFSET_COMMIT, OFFSET_FETCH, SYNC_GROUP
from kcli.protocol.message import Message
from kcli.protocol.message_types import message_type
from kcli.simulator.client import Task
from kcli.simulator.coordination.fetching import READ_COMMITTED, READ_UNCOMMITTED, Fetched, Fetcher
from kcli.simulator.coordination.history import NO_GENERATION, OffsetCommit, OffsetRead, Ownership, Poll, is_by_id
from kcli.simulator.coordination.stage import GROUP_KEY, RETRIABLE, Caller, Stage
from kcli.simulator.world import PAUSE_MS

SESSION_MS = (1500, 3000)
HEARTBEAT_MS = 300
PAUSED_SHARE = 0.01
DIED_SHARE = 0.01
LEFT_SHARE = 0.01
ENDED_SHARE = 0.4  # of the members that may die for good, and of their deaths
MAX_PAUSE_MS = 200
_COMMIT_TOPIC_IDS, _FETCH_TOPIC_IDS = 10, 10
_COMMIT_INSTANCE_IDS = 7
_COMMIT_MEMBER_EPOCHS, _FETCH_GROUPS, _FETCH_MEMBER_EPOCHS, _FETCH_STABLE = 9, 8, 9, 7
# The member is not in the group any more, or not in this generation: it must join again.
STALE = frozenset(
    (
        error_codes.ILLEGAL_GENERATION,
        error_codes.UNKNOWN_MEMBER_ID,
        error_codes.REBALANCE_IN_PROGRESS,
        error_codes.STALE_MEMBER_EPOCH,
        error_codes.FENCED_MEMBER_EPOCH,
        error_codes.FENCED_INSTANCE_ID,
    )
)


class Offsets:
    """Commits and fetches offsets of a group, and records both in the history."""

    def __init__(self, stage: Stage, caller: Caller, group: str) -> None:
        self.group = group
        self._stage = stage
        self._caller = caller

    def commit(
        self,
        offsets: Mapping[TopicPartition, int],
        member_id: str = "",
        generation: int = NO_GENERATION,
        *,
        is_consumer: bool = False,
        may_repeat: bool = True,
        instance_id: str | None = None,
    ) -> Task[int | None]:
        """Commit offsets; return the error code, or None without a response. Raises SimulationFailure."""
        stage, caller = self._stage, self._caller
        commits = [
            OffsetCommit(self.group, partition, offset, stage.now_ms, member_id, generation)
            for partition, offset in offsets.items()
        ]
        stage.history.commits += commits
        lowest = _COMMIT_MEMBER_EPOCHS if is_consumer else 0
        if any(is_by_id(name) for name, _ in offsets):
            lowest = _COMMIT_TOPIC_IDS
        elif instance_id is not None:
            lowest = max(lowest, _COMMIT_INSTANCE_IDS)
        version = caller.version(OFFSET_COMMIT, lowest)
        request = self._commit_request(version, offsets, member_id, generation, instance_id)
        response = yield from caller.call(OFFSET_COMMIT, version, request, may_repeat=may_repeat)
        for commit in commits:
            commit.is_stray = caller.was_stray
        if response is None:
            return None
        code = max((part.error_code for topic in response.topics for part in topic.partitions), key=abs)
        caller.check(code, "OffsetCommit", RETRIABLE | STALE)
        for commit in commits:
            if not code:
                commit.answered_ms = stage.now_ms
            elif code in STALE:
                commit.is_refused = not commit.is_stray
            else:
                commit.is_stray = True  # the error of a write that may still be committed
        return int(code)

    def _commit_request(
        self,
        version: int,
        offsets: Mapping[TopicPartition, int],
        member_id: str,
        generation: int,
        instance_id: str | None,
    ) -> Message:
        world, by_topic = self._stage.world, dict[str, list[Message]]()
        for (name, index), offset in offsets.items():
            part = world.struct(
                OFFSET_COMMIT,
                "OffsetCommitRequestPartition",
                partition_index=index,
                committed_offset=offset,
                committed_metadata="",
            )
            by_topic.setdefault(name, []).append(part)
        topics = [
            world.struct(
                OFFSET_COMMIT,
                "OffsetCommitRequestTopic",
                name="" if version >= _COMMIT_TOPIC_IDS else name,
                topic_id=self._stage.topics[name].topic_id,
                partitions=parts,
            )
            for name, parts in by_topic.items()
        ]
        return world.request(
            OFFSET_COMMIT,
            group_id=self.group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            topics=topics,
        )

    def fetch(
        self, partitions: Iterable[TopicPartition], member_id: str = "", epoch: int = NO_GENERATION
    ) -> Task[dict[TopicPartition, int] | int]:
        """Return the committed offsets (-1: none), or an error code of `STALE`; NONE means any other error."""
        stage, caller, world = self._stage, self._caller, self._stage.world
        lowest = _FETCH_STABLE if epoch == NO_GENERATION else _FETCH_MEMBER_EPOCHS
        by_topic: dict[str, list[int]] = {}
        for name, index in partitions:
            by_topic.setdefault(name, []).append(index)
        if any(map(is_by_id, by_topic)):
            lowest = _FETCH_TOPIC_IDS
        version, sent_ms = caller.version(OFFSET_FETCH, lowest), stage.now_ms
        has_groups, by_id = version >= _FETCH_GROUPS, version >= _FETCH_TOPIC_IDS
        struct = "OffsetFetchRequestTopics" if has_groups else "OffsetFetchRequestTopic"
        topics = []
        for name, indexes in by_topic.items():
            named = {"name": "" if by_id else name}
            ids = {"topic_id": stage.topics[name].topic_id} if has_groups else {}
            topics.append(world.struct(OFFSET_FETCH, struct, partition_indexes=indexes, **named, **ids))
        if has_groups:
            member = {"member_id": member_id, "member_epoch": epoch} if epoch != NO_GENERATION else {}
            group = world.struct(OFFSET_FETCH, "OffsetFetchRequestGroup", group_id=self.group, topics=topics, **member)
            request = world.request(OFFSET_FETCH, groups=[group], require_stable=True)
        else:
            request = world.request(OFFSET_FETCH, group_id=self.group, topics=topics, require_stable=True)
        response = yield from caller.call(OFFSET_FETCH, version, request, may_repeat=False)
        if response is None:
            return error_codes.NONE
        answer = response.groups[0] if has_groups else response
        if answer.error_code:
            caller.check(answer.error_code, "OffsetFetch", RETRIABLE | STALE)
            return int(answer.error_code) if answer.error_code in STALE else error_codes.NONE
        found: dict[TopicPartition, int] = {}
        for topic in answer.topics:
            name = stage.topic_name(topic.topic_id) if by_id else topic.name
            for part in topic.partitions:
                caller.check(part.error_code, "OffsetFetch", RETRIABLE | {error_codes.UNSTABLE_OFFSET_COMMIT})
                if part.error_code:
                    return error_codes.NONE
                found[name, part.partition_index] = part.committed_offset
        for partition, offset in found.items():
            stage.history.offset_reads.append(OffsetRead(self.group, partition, offset, sent_ms, stage.now_ms))
        return found


class WorkingMember(Protocol):
    """What the work needs of a member, raw or on a core of kcli's own client."""

    group: str
    name: str
    instance_id: str | None
    committed: dict[TopicPartition, int]  # what is known to be committed

    @property
    def member_id(self) -> str:
        """The member's id."""
        ...

    @property
    def generation(self) -> int:
        """The member's generation or epoch."""
        ...

    def commit(self, offsets: Mapping[TopicPartition, int]) -> Task[None]:
        """Commit offsets as this member."""
        ...


class Work(Protocol):
    """What a member does with the records that it reads."""

    isolation: int

    def process(self, member: WorkingMember, fetched: dict[TopicPartition, Fetched]) -> Task[bool]:
        """Process records and commit; return False if the positions have to be fetched again."""
        ...


class GroupMember(ABC):
    """A member; `owned` are its partitions, `positions` those whose committed offset it knows."""

    is_consumer = False
    instance_id: str | None = None  # of a static member, which joins again with it

    def __init__(
        self, stage: Stage, group: str, name: str, rng: Random, topic: str, work: Work, *, may_end: bool = False
    ) -> None:
        self.group = group
        self.name = name
        self.member_id = ""
        self.generation = NO_GENERATION
        self.is_stale = True  # it has to join again
        self.positions: dict[TopicPartition, int] = {}
        self.committed: dict[TopicPartition, int] = {}
        self.owned: list[TopicPartition] = []
        self.offsets: Offsets
        self._stage = stage
        self._rng = rng
        self._topic = topic
        self._work = work
        self._caller = Caller(stage, name, rng)
        self._fetcher = Fetcher(stage, self._caller, rng)
        self._may_end = may_end  # it may die for good, since the group has another member
        self._ends_at_draining = may_end and rng.random() < ENDED_SHARE
        self._has_ended = False
        self._session_ms = rng.choice(SESSION_MS)
        self._view = 0
        self.offsets = Offsets(stage, self._caller, group)
        self.record_count = 0

    def run(self) -> Task[None]:
        """Read until the workload is over. Raises SimulationFailure."""
        yield from self._caller.find_coordinator(GROUP_KEY, self.group)
        while not self._stage.is_over:
            yield from self._join_or_beat()
            if self.is_stale:
                self.positions.clear()
                yield self._rng.randrange(1, PAUSE_MS)
                continue
            yield from self._work_once()
            yield from self._misbehave()
            if self._has_ended or (self._ends_at_draining and self._stage.is_draining):
                self._stage.world.trace.add(self.name, "has ended without a word")
                return
            yield self._rng.randrange(1, MAX_PAUSE_MS)
        yield from self._leave()

    # --------------------------------------------------------------------------------------------- to be done by the subclasses

    @abstractmethod
    def _join_or_beat(self) -> Task[None]:
        """Join the group if the member is stale, otherwise send a heartbeat if it is time."""
        ...

    @abstractmethod
    def _leave(self) -> Task[None]:
        """Leave the group; the member is stale then."""
        ...

    # ---------------------------------------------------------------------------------------------------------------- reading

    def note_ownership(self, sent_ms: int) -> None:
        """Record which partitions the member has in its generation."""
        stage = self._stage
        for partition in self.owned:
            ownership = Ownership(self.group, self.generation, self.member_id, partition, sent_ms, stage.now_ms)
            stage.history.ownerships.append(ownership)
        names = ",".join(f"{name}-{index}" for name, index in self.owned)
        stage.world.trace.add(self.name, f"{self.member_id} has {names or 'nothing'} in generation {self.generation}")

    def forget_positions(self) -> None:
        """Read the committed offsets again before the next poll."""
        self.positions.clear()

    def _work_once(self) -> Task[None]:
        """Fetch the missing positions, poll, and process what was read."""
        missing = [partition for partition in self.owned if partition not in self.positions]
        if missing:
            epoch = self.generation if self.is_consumer and self._rng.random() < 0.5 else NO_GENERATION
            found = yield from self.offsets.fetch(missing, self.member_id, epoch)
            if isinstance(found, int):
                return
            for partition, offset in found.items():
                self.committed[partition] = offset
                self.positions[partition] = max(0, offset)
            self._view = self._stage.history.new_view()
        if not self.positions:
            return
        fetched = yield from self._fetcher.fetch(self.positions, self._work.isolation)
        self._note_polls(fetched)
        is_good = yield from self._work.process(self, fetched)
        if is_good:
            for partition, one in fetched.items():
                if partition in self.positions:
                    self.positions[partition] = one.position
        else:
            self.forget_positions()

    def _note_polls(self, fetched: dict[TopicPartition, Fetched]) -> None:
        history, is_committed_only = self._stage.history, self._work.isolation == READ_COMMITTED
        for partition, (records, end) in fetched.items():
            start, self.record_count = self.positions[partition], self.record_count + len(records)
            if end > start or records:
                poll = Poll(
                    self.name, self.group, self._view, partition, start, end, records, is_committed_only, self._stage.now_ms
                )
                history.polls.append(poll)

    def commit(self, offsets: Mapping[TopicPartition, int]) -> Task[None]:
        """Commit offsets as this member; it is stale if the broker says so."""
        generation = self.generation
        code = yield from self.offsets.commit(
            offsets, self.member_id, generation, is_consumer=self.is_consumer, instance_id=self.instance_id
        )
        if code == error_codes.NONE:
            self.committed.update(offsets)
        elif code in STALE and code != error_codes.REBALANCE_IN_PROGRESS and generation == self.generation:
            self._refused(code)

    def _refused(self, code: int | None) -> None:
        """Handle a commit that was refused because of the member's generation."""
        self.is_stale = True

    def uncommitted(self) -> dict[TopicPartition, int]:
        """Return the positions that are not committed."""
        return {where: at for where, at in self.positions.items() if at > max(0, self.committed.get(where, 0))}

    # ----------------------------------------------------------------------------------------------------------------- faults

    def _misbehave(self) -> Task[None]:
        """Pause for longer than the session, and commit then; die; or leave."""
        rng = self._rng
        if self._stage.is_draining:
            return
        choice = rng.random()
        if choice < PAUSED_SHARE:
            self._stage.world.trace.add(self.name, "pauses")
            yield rng.randrange(3 * self._session_ms)
            offsets = self.uncommitted() or self.positions
            if offsets and isinstance(self._work, CommitWork):
                yield from self.commit(offsets)
        elif choice < PAUSED_SHARE + DIED_SHARE:
            self._stage.world.trace.add(self.name, f"{self.member_id} dies")
            self._die()
            self._has_ended = self._may_end and rng.random() < ENDED_SHARE
            # A static member is to be back before its session has ended.
            yield rng.randrange(2 * self._session_ms if self.instance_id is None else self._session_ms // 2)
        elif choice < PAUSED_SHARE + DIED_SHARE + LEFT_SHARE:
            yield from self._leave()
            yield rng.randrange(PAUSE_MS)

    def _die(self) -> None:
        """Begin anew as another member; the group has to notice that the old one is gone."""
        self.member_id, self.generation, self.is_stale = "", NO_GENERATION, True
        self.owned = []
        self.positions.clear()
        self.committed.clear()


class CommitWork:
    """Commits positions with OffsetCommit, after some of the polls."""

    def __init__(self, rng: Random, stage: Stage, isolation: int = READ_UNCOMMITTED) -> None:
        self.isolation = isolation
        self._rng = rng
        self._stage = stage

    def process(self, member: WorkingMember, fetched: dict[TopicPartition, Fetched]) -> Task[bool]:
        """Commit the positions after the records, or leave it to a later poll."""
        if self._stage.is_draining or self._rng.random() < 0.4:
            offsets = {
                partition: one.position
                for partition, one in fetched.items()
                if one.position > max(0, member.committed.get(partition, 0))
            }
            if offsets:
                yield from member.commit(offsets)
        return True


REBALANCE_MS = 2500
MAX_ZOMBIE_MS, ZOMBIE_COMMITS = 2000, 3
_JOIN_INSTANCE_IDS, _INSTANCE_IDS = 5, 3  # the first versions of JoinGroup, and of the others, with instance ids
_UNKNOWN = frozenset((error_codes.UNKNOWN_MEMBER_ID, error_codes.FENCED_INSTANCE_ID))
PROTOCOL_TYPE, PROTOCOL = "consumer", "range"
_MEMBERS_VERSION = 3  # of LeaveGroup: from here on it has several members
_VERSION = b"\0\0"  # of the embedded subscription and assignment


class ClassicMember(GroupMember):
    """See the head of this module."""

    _next_beat_ms = 0

    def __init__(
        self, stage: Stage, group: str, name: str, rng: Random, topic: str, work: Work, *, may_end: bool = False
    ) -> None:
        super().__init__(stage, group, name, rng, topic, work, may_end=may_end)
        self._earlier_ids: set[str] = set()
        self._zombie = Caller(stage, f"{name} zombie", rng)

    def _instance_version(self, lowest: int) -> int:
        return lowest if self.instance_id is None else _INSTANCE_IDS

    def _note_fenced(self) -> None:
        """Note that the static member's earlier ids are fenced."""
        for member_id in self._earlier_ids - {self.member_id}:
            self._stage.history.fenced_ms.setdefault(member_id, self._stage.now_ms)
        if self.instance_id is not None:
            self._earlier_ids.add(self.member_id)

    def _die(self) -> None:
        """Let the process of a static member commit a few times more."""
        if self.instance_id is not None and self.member_id and self.positions and isinstance(self._work, CommitWork):
            commit = self._commit_as_zombie(dict(self.positions), self.member_id, self.generation)
            self._stage.world.run(commit)
        super()._die()

    def _commit_as_zombie(self, offsets: dict[TopicPartition, int], member_id: str, generation: int) -> Task[None]:
        stage, instance_id = self._stage, self.instance_id
        for _ in range(ZOMBIE_COMMITS):
            yield self._rng.randrange(MAX_ZOMBIE_MS)
            if not stage.is_draining:
                yield from Offsets(stage, self._zombie, self.group).commit(
                    offsets, member_id, generation, may_repeat=False, instance_id=instance_id
                )

    def _join_or_beat(self) -> Task[None]:
        if self.is_stale:
            yield from self._join()
        elif self._stage.now_ms >= self._next_beat_ms:
            yield from self._beat()

    # ------------------------------------------------------------------------------------------------------------------- join

    def _join(self) -> Task[None]:
        world, caller = self._stage.world, self._caller
        subscription = message_type("control_records", "ConsumerProtocolSubscription")
        metadata = _VERSION + bytes(subscription.encode(subscription.new(topics=[self._topic]), 0))
        protocol = world.struct(JOIN_GROUP, "JoinGroupRequestProtocol", name=PROTOCOL, metadata=metadata)
        request = world.request(
            JOIN_GROUP,
            group_id=self.group,
            session_timeout_ms=self._session_ms,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=[protocol],
            group_instance_id=self.instance_id,
        )
        version = caller.version(JOIN_GROUP, 2 if self.instance_id is None else _JOIN_INSTANCE_IDS)
        response = yield from caller.call(JOIN_GROUP, version, request, wait_ms=REBALANCE_MS, may_repeat=False)
        if response is None:
            return
        code = response.error_code
        if code == error_codes.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
        elif code in _UNKNOWN:
            self.member_id = ""
        elif code:
            caller.check(code, "JoinGroup", RETRIABLE | {error_codes.REBALANCE_IN_PROGRESS})
        else:
            self.member_id = response.member_id
            self._note_fenced()
            yield from self._sync(response)

    def _sync(self, joined: Message) -> Task[None]:
        """Get the assignment of a new generation; the leader sends it."""
        stage, world, caller = self._stage, self._stage.world, self._caller
        is_leader = joined.leader == joined.member_id and not joined.skip_assignment
        assignments = self._assign(joined) if is_leader else []
        request = world.request(
            SYNC_GROUP,
            group_id=self.group,
            generation_id=joined.generation_id,
            member_id=self.member_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=PROTOCOL,
            assignments=assignments,
            group_instance_id=self.instance_id,
        )
        sent_ms = stage.now_ms
        response = yield from caller.call(
            SYNC_GROUP, caller.version(SYNC_GROUP, self._instance_version(1)), request, wait_ms=REBALANCE_MS, may_repeat=False
        )
        if response is None:
            return
        if response.error_code:
            caller.check(response.error_code, "SyncGroup", RETRIABLE | STALE)
            if response.error_code in _UNKNOWN:
                self.member_id = ""
            return
        self.generation = joined.generation_id
        self.owned = self._decode(bytes(response.assignment))
        self.is_stale = False
        self.positions.clear()
        self.committed.clear()
        self._next_beat_ms = stage.now_ms + HEARTBEAT_MS
        self.note_ownership(sent_ms)

    def _assign(self, joined: Message) -> list[Message]:
        """Return an assignment for each member: the partitions in turn."""
        world, kind = self._stage.world, message_type("control_records", "ConsumerProtocolAssignment")
        members = sorted(one.member_id for one in joined.members)
        shares: dict[str, list[int]] = {member: [] for member in members}
        for index in range(self._stage.topics[self._topic].partition_count):
            shares[members[index % len(members)]].append(index)
        assignments = []
        for member, indexes in shares.items():
            part = kind.classes["TopicPartition"](topic=self._topic, partitions=indexes)
            data = _VERSION + bytes(kind.encode(kind.new(assigned_partitions=[part] if indexes else []), 0))
            assignments.append(world.struct(SYNC_GROUP, "SyncGroupRequestAssignment", member_id=member, assignment=data))
        return assignments

    @staticmethod
    def _decode(data: bytes) -> list[tuple[str, int]]:
        if not data:
            return []
        message, _ = message_type("control_records", "ConsumerProtocolAssignment").decode(data, 0, len(_VERSION))
        return [(topic.topic, index) for topic in message.assigned_partitions for index in topic.partitions]

    # -------------------------------------------------------------------------------------------------------- heartbeat, leave

    def _beat(self) -> Task[None]:
        caller = self._caller
        request = self._stage.world.request(
            HEARTBEAT,
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        response = yield from caller.call(HEARTBEAT, caller.version(HEARTBEAT, self._instance_version(0)), request)
        self._next_beat_ms = self._stage.now_ms + HEARTBEAT_MS
        code = 0 if response is None else response.error_code
        caller.check(code, "Heartbeat", RETRIABLE | STALE)
        if code in STALE:
            if code == error_codes.REBALANCE_IN_PROGRESS and self._rng.random() < 0.7 and isinstance(self._work, CommitWork):
                offsets = self.uncommitted()
                if offsets:
                    yield from self.commit(offsets)
            self._refused(code)

    def _refused(self, code: int | None) -> None:
        self.is_stale = True
        if code in _UNKNOWN:
            self.member_id = ""

    def _leave(self) -> Task[None]:
        world, caller = self._stage.world, self._caller
        if self.member_id:
            version = caller.version(LEAVE_GROUP, self._instance_version(0))
            if version >= _MEMBERS_VERSION:
                member = world.struct(
                    LEAVE_GROUP, "MemberIdentity", member_id=self.member_id, group_instance_id=self.instance_id
                )
                request = world.request(LEAVE_GROUP, group_id=self.group, members=[member])
            else:
                request = world.request(LEAVE_GROUP, group_id=self.group, member_id=self.member_id)
            response = yield from caller.call(LEAVE_GROUP, version, request)
            if response is not None:
                caller.check(response.error_code, "LeaveGroup", RETRIABLE | STALE)
        super()._die()
