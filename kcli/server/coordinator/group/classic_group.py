"""A group of the classic protocol in the memory of its coordinator (Kafka: ClassicGroup, ClassicGroupMember).

    state                reached from                       a join waits until      a sync waits until
    -------------------  ---------------------------------  ----------------------  ------------------------------
    Empty                PreparingRebalance
    PreparingRebalance   Empty, CompletingRebalance,        all members have        (REBALANCE_IN_PROGRESS)
                         Stable                             joined, or the timeout
    CompletingRebalance  PreparingRebalance                                         the leader's sync is committed
    Stable               CompletingRebalance
    Dead                 every state

The record of the group (kcli.state.groups.ClassicGroup) is written when the leader has assigned the partitions and when the
group becomes empty: between these, the group is ahead of its record. A pending member has got a member id and has not joined
with it yet. The group does not decide anything; kcli.server.coordinator.group.classic_rebalances does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from kcli.network.timing_wheel import TimerTask
from kcli.protocol import error_codes
from kcli.protocol.internal_records import CONSUMER_PROTOCOL_TYPE
from kcli.protocol.message import Message
from kcli.protocol.message_errors import DecodeError
from kcli.protocol.message_types import message_type
from kcli.server.coordinator.coordinator_record import CoordinatorRecord
from kcli.server.coordinator.group.classic_messages import (
    JoinedMember,
    JoinResult,
    Protocols,
    RespondJoin,
    RespondSync,
    SyncResult,
)
from kcli.server.coordinator.operation import CoordinatorError
from kcli.state.groups import StoredClassicGroup

UNKNOWN_MEMBER_ID = ""  # the member id of a client that has none yet
_RECORD_VERSION = 3
_VERSION_BYTES = 2  # before the subscription of a consumer


class ClassicGroupState(StrEnum):
    """The state of a group, as DescribeGroups names it."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


PREVIOUS_STATES = {
    ClassicGroupState.EMPTY: {ClassicGroupState.PREPARING_REBALANCE},
    ClassicGroupState.PREPARING_REBALANCE: {
        ClassicGroupState.STABLE,
        ClassicGroupState.COMPLETING_REBALANCE,
        ClassicGroupState.EMPTY,
    },
    ClassicGroupState.COMPLETING_REBALANCE: {ClassicGroupState.PREPARING_REBALANCE},
    ClassicGroupState.STABLE: {ClassicGroupState.COMPLETING_REBALANCE},
    ClassicGroupState.DEAD: set(ClassicGroupState),
}


@dataclass(slots=True, eq=False)
class ClassicGroupMember:
    """A member; `is_new` until its first rebalance is complete. It expires at `deadline_ms`, unless it waits for an answer."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    is_new: bool = False
    deadline_ms: int = 0
    session_task: TimerTask | None = None

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return the metadata of a protocol that the member supports."""
        return next(metadata for name, metadata in self.protocols if name == protocol_name)


class ClassicGroup:
    """A group. Member ids are the keys of its dictionaries; `awaiting_join` and `awaiting_sync` have functions that respond."""

    def __init__(self, group_id: str, state_timestamp_ms: int) -> None:
        self.group_id = group_id
        self.state = ClassicGroupState.EMPTY
        self.previous_state = ClassicGroupState.DEAD
        self.state_timestamp_ms = state_timestamp_ms
        self.generation_id = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, ClassicGroupMember] = {}
        self.static_members: dict[str, str] = {}  # member ids by instance id
        self.awaiting_join: dict[str, RespondJoin] = {}
        self.awaiting_sync: dict[str, RespondSync] = {}
        self.pending_join: dict[str, TimerTask] = {}
        self.pending_sync: set[str] = set()
        self.new_member_added = False  # the initial rebalance waits longer
        self.join_task: TimerTask | None = None
        self.sync_task: TimerTask | None = None
        # The topics that the consumers of the group read; None if that is not known.
        self.subscribed_topics: frozenset[str] | None = None
        self._protocol_counts: Counter[str] = Counter()  # how many members support a protocol

    @classmethod
    def from_record(cls, record: StoredClassicGroup) -> ClassicGroup:
        """Make a group as its last record describes it: Stable if it has members, else Empty."""
        group = cls(record.group_id, record.state_timestamp_ms)
        group.generation_id = record.generation
        group.protocol_type = record.protocol_type or None
        group.protocol_name = record.protocol
        group.leader = record.leader
        for one in record.members.values():
            group._put_member(
                ClassicGroupMember(
                    one.member_id,
                    one.instance_id,
                    one.client_id,
                    one.client_host,
                    one.rebalance_timeout_ms,
                    one.session_timeout_ms,
                    ((record.protocol or "", one.subscription),),
                    one.assignment,
                )
            )
        if record.members:
            group.state = ClassicGroupState.STABLE
        group.subscribed_topics = group._find_subscribed_topics()
        return group

    @classmethod
    def from_members(
        cls, group_id: str, generation_id: int, members: Iterable[ClassicGroupMember], wall_ms: int
    ) -> ClassicGroup:
        """Make a stable group of consumers; the first member leads it."""
        group = cls(group_id, wall_ms)
        group.generation_id, group.protocol_type, group.state = generation_id, CONSUMER_PROTOCOL_TYPE, ClassicGroupState.STABLE
        for member in members:
            group._put_member(member)
        group.protocol_name = group.select_protocol()
        group.subscribed_topics = group._find_subscribed_topics()
        return group

    # --------------------------------------------------------------------------------------------------------- members

    def _put_member(self, member: ClassicGroupMember) -> None:
        if self.leader is None:
            self.leader = member.member_id
        if member.instance_id is not None:
            self.static_members[member.instance_id] = member.member_id
        self.members[member.member_id] = member
        self._count_protocols(member, 1)

    def add(self, member: ClassicGroupMember, protocol_type: str, respond: RespondJoin) -> None:
        """Add a member whose join waits; the protocols must be supported."""
        if not self.members:
            self.protocol_type = protocol_type
        self._put_member(member)
        self.awaiting_join[member.member_id] = respond
        pending = self.pending_join.pop(member.member_id, None)
        if pending is not None:
            pending.cancel()

    def update(
        self, member: ClassicGroupMember, protocols: Protocols, rebalance_timeout_ms: int, session_timeout_ms: int
    ) -> None:
        """Set what a member states when it joins again."""
        self._count_protocols(member, -1)
        member.protocols = protocols
        self._count_protocols(member, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def _count_protocols(self, member: ClassicGroupMember, by: int) -> None:
        for name in {name for name, _ in member.protocols}:
            self._protocol_counts[name] += by
            if not self._protocol_counts[name]:
                del self._protocol_counts[name]

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending member, cancel its timer, and answer what it waits for with UNKNOWN_MEMBER_ID."""
        pending = self.pending_join.pop(member_id, None)
        if pending is not None:
            pending.cancel()
        member = self.members.pop(member_id, None)
        if member is None:
            return
        self._count_protocols(member, -1)
        if member.session_task is not None:
            member.session_task.cancel()
        if member.instance_id is not None:
            del self.static_members[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.pending_sync.discard(member_id)
        self.respond_join(member_id, JoinResult(error_codes.UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER_ID))
        self.respond_sync(member_id, SyncResult(error_codes.UNKNOWN_MEMBER_ID))

    def replace_static_member(self, instance_id: str, new_id: str) -> ClassicGroupMember:
        """Give the static member a new id, and fence a client that waits with the old one; its session timer is not started."""
        old_id = self.static_members[instance_id]
        member = self.members.pop(old_id)
        if member.session_task is not None:
            member.session_task.cancel()
            member.session_task = None
        member.member_id, member.is_new = new_id, False
        self.members[new_id] = member
        self.static_members[instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id
        if old_id in self.pending_sync:
            self.pending_sync.remove(old_id)
            self.pending_sync.add(new_id)
        self.respond_join(old_id, JoinResult(error_codes.FENCED_INSTANCE_ID, old_id))
        self.respond_sync(old_id, SyncResult(error_codes.FENCED_INSTANCE_ID))
        return member

    def find_member(self, member_id: str, instance_id: str | None) -> ClassicGroupMember:
        """Return the member that sent a request. Raises CoordinatorError: UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
        if instance_id is not None:
            known_id = self.static_members.get(instance_id)
            if known_id is not None and known_id != member_id:
                text = f"another member of group {self.group_id} has the instance id {instance_id}"
                raise CoordinatorError(error_codes.FENCED_INSTANCE_ID, text)
            if known_id is None:
                text = f"group {self.group_id} has no member with the instance id {instance_id}"
                raise CoordinatorError(error_codes.UNKNOWN_MEMBER_ID, text)
        member = self.members.get(member_id)
        if member is None:
            raise CoordinatorError(error_codes.UNKNOWN_MEMBER_ID, f"group {self.group_id} has no member {member_id}")
        return member

    def respond_join(self, member_id: str, result: JoinResult) -> None:
        """Answer the join of a member, if one waits."""
        respond = self.awaiting_join.pop(member_id, None)
        if respond is not None:
            respond(result)

    def respond_sync(self, member_id: str, result: SyncResult) -> None:
        """Answer the sync of a member, if one waits."""
        respond = self.awaiting_sync.pop(member_id, None)
        if respond is not None:
            respond(result)

    # ------------------------------------------------------------------------------------------------------- protocols

    def supports_protocols(self, protocol_type: str, protocols: Protocols) -> bool:
        """Return whether a client with these protocols may join: every member must support one of them."""
        if self.state is ClassicGroupState.EMPTY:
            return bool(protocol_type and protocols)
        size = len(self.members)
        return self.protocol_type == protocol_type and any(self._protocol_counts[name] == size for name, _ in protocols)

    def select_protocol(self) -> str:
        """Return the protocol with the most votes; a member votes for the first of its protocols that all members support."""
        size = len(self.members)
        candidates = {name for name, count in self._protocol_counts.items() if count == size}
        votes = Counter(next(name for name, _ in member.protocols if name in candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    @property
    def is_consumers_group(self) -> bool:
        """True if the members are consumers; other clients (Kafka Connect) use groups, too."""
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def _find_subscribed_topics(self) -> frozenset[str] | None:
        """Read the topics from the metadata of the members; version 0 of a subscription is a prefix of every version."""
        if not self.is_consumers_group:
            return None
        subscription = message_type("control_records", "ConsumerProtocolSubscription")
        topics: set[str] = set()
        try:
            for member in self.members.values():
                topics.update(subscription.decode(member.metadata(self.protocol_name or ""), 0, _VERSION_BYTES)[0].topics)
        except DecodeError:
            return None
        return frozenset(topics)

    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether members read a topic; if that is not known, they do if they are consumers."""
        if self.subscribed_topics is None:
            return self.is_consumers_group
        return topic in self.subscribed_topics

    def offset_expiry_base_ms(self, commit_timestamp_ms: int) -> int | None:
        """Return the time at which the retention of an offset begins; None: it does not expire now.

        Topics that the group reads do not expire, whatever this returns.
        """
        if self.protocol_type is None:
            return commit_timestamp_ms
        if self.state is ClassicGroupState.EMPTY:
            # Records before version 2 have no time of the state.
            return commit_timestamp_ms if self.state_timestamp_ms < 0 else self.state_timestamp_ms
        is_known = self.is_consumers_group and self.subscribed_topics is not None
        return commit_timestamp_ms if is_known and self.state is ClassicGroupState.STABLE else None

    # ----------------------------------------------------------------------------------------------------- generations

    def transition_to(self, state: ClassicGroupState, wall_ms: int) -> None:
        """Change the state; the table of states must allow it."""
        assert self.state in PREVIOUS_STATES[state], f"group {self.group_id}: {self.state} -> {state}"
        self.previous_state, self.state, self.state_timestamp_ms = self.state, state, wall_ms

    @property
    def can_rebalance(self) -> bool:
        """True if the group may begin to prepare a rebalance."""
        return self.state in PREVIOUS_STATES[ClassicGroupState.PREPARING_REBALANCE]

    @property
    def has_all_members_joined(self) -> bool:
        """True if the joins of all members wait and no member is pending."""
        return len(self.members) == len(self.awaiting_join) and not self.pending_join

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of a member."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def elect_leader(self) -> bool:
        """Make a member that has joined the leader, if the leader has not; return whether there is a leader that has joined."""
        if self.leader is None:
            return False
        if self.leader not in self.awaiting_join:
            self.leader = next((member_id for member_id in self.members if member_id in self.awaiting_join), self.leader)
        return self.leader in self.awaiting_join

    def next_generation(self, wall_ms: int) -> None:
        """Begin a generation with the members that have joined: CompletingRebalance, or Empty without any."""
        self.generation_id += 1
        self.protocol_name = self.select_protocol() if self.members else None
        self.subscribed_topics = self._find_subscribed_topics()
        state = ClassicGroupState.COMPLETING_REBALANCE if self.members else ClassicGroupState.EMPTY
        self.transition_to(state, wall_ms)

    def join_result(self, member_id: str) -> JoinResult:
        """Return the answer to a join in the present generation."""
        assert self.leader is not None
        members: tuple[JoinedMember, ...] = ()
        if self.leader == member_id:
            members = tuple(
                JoinedMember(member.member_id, member.instance_id, member.metadata(self.protocol_name))
                for member in self.members.values()
            )
        return JoinResult(
            error_codes.NONE,
            member_id,
            self.generation_id,
            self.protocol_type,
            self.protocol_name,
            self.leader,
            members=members,
        )

    def sync_result(self, member: ClassicGroupMember) -> SyncResult:
        """Return the answer to a sync in the present generation."""
        return SyncResult(error_codes.NONE, self.protocol_type, self.protocol_name, member.assignment)

    # --------------------------------------------------------------------------------------------------------- records

    def record(self, assignment: Mapping[str, bytes]) -> CoordinatorRecord:
        """Make the record of the group; `assignment` has the bytes of every member."""
        value = message_type("group_records", "GroupMetadataValue")
        member_class = value.classes["MemberMetadata"]
        members = [
            member_class(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(self.protocol_name),
                assignment=assignment[member.member_id],
            )
            for member in self.members.values()
        ]
        return CoordinatorRecord(
            _record_key(self.group_id),
            value.new(
                schema_version=_RECORD_VERSION,
                protocol_type=self.protocol_type or "",
                generation=self.generation_id,
                protocol=self.protocol_name,
                leader=self.leader,
                current_state_timestamp=self.state_timestamp_ms,
                members=members,
            ),
        )


def tombstone(group_id: str) -> CoordinatorRecord:
    """Make the record that removes a group."""
    return CoordinatorRecord(_record_key(group_id), None)


def _record_key(group_id: str) -> Message:
    return message_type("group_records", "GroupMetadataKey").new(group=group_id)
