"""A member of a group of the classic protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup; the leader assigns.

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

from random import Random

from kcli.protocol import error_codes
from kcli.protocol.apis import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP
from kcli.protocol.message import Message
from kcli.protocol.message_types import message_type
from kcli.simulator.client import Task
from kcli.simulator.coordination.group_member import HEARTBEAT_MS, STALE, CommitWork, GroupMember, Offsets, Work
from kcli.simulator.coordination.history import TopicPartition
from kcli.simulator.coordination.stage import RETRIABLE, Caller, Stage

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
