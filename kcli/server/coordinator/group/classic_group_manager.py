"""The operations of classic groups of one shard (Kafka: the classic part of GroupMetadataManager).

    operation                records                               answered
    -----------------------  ------------------------------------  ---------------------------------------------------------
    join, of a new group     the empty group                       by `respond`, at once or when the joins end
    join, of another one     none                                  by `respond`, at once or when the joins end
    join, of a static        the group, if its member joins again  by `respond`, when the record is committed
      member                 and nothing else changes
    sync, of the leader      the group with the assignment         by `respond`, when the record is committed
    sync, of a follower      none                                  by `respond`, at once or with the leader's
    leave                    the empty group, after the last one   by the response of the operation
    heartbeat and the rest   none                                  at once; errors are raised as CoordinatorError

A join and a sync are decided as `Decision[Completion | None]`: the completion must be called once, when their records are
committed (code 0) or when they could not be (the code of the error). `write_classic` does that for operations that a runtime
executes. `respond` is called at most once: the answer to a request that the same member repeats on another connection goes to
the later one.

`groups` has a group from its first join here, or from the load if it has members. What it knows beyond its record is lost with
the coordinator. A group of another kind is unknown here.

A commit from outside of a group makes the group before the offsets are checked. If none of them is accepted, the group has no
record, but it is there for deletions and commits (as in Kafka, whose other requests see it from the next record on) until the
next expiry of offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar
from uuid import UUID

from kcli.protocol import error_codes
from kcli.server.coordinator.coordinator_record import CoordinatorRecord
from kcli.server.coordinator.group.classic_group import (
    UNKNOWN_MEMBER_ID,
    ClassicGroup,
    ClassicGroupMember,
    ClassicGroupState,
    tombstone,
)
from kcli.server.coordinator.group.classic_messages import (
    DescribedGroup,
    DescribedMember,
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    ListedGroup,
    RespondJoin,
    RespondSync,
    SyncRequest,
    SyncResult,
)
from kcli.server.coordinator.group.classic_rebalances import ClassicRebalances, Records
from kcli.server.coordinator.group.group_manager import ShardParts
from kcli.server.coordinator.operation import CoordinatorError, Decision, Respond
from kcli.state.groups import ConsumerGroup, StoredClassicGroup, StreamsGroup

_UUID_BYTES = 16
_MAX_REASON = 255  # of a client's reason in the log; Kafka's clients send no more
_MOST_UNWRITTEN = 1000  # groups without a record; the oldest is forgotten

Completion = Callable[[int], None]
_Shard = TypeVar("_Shard")


def write_classic(
    write: Callable[[Callable[[_Shard], Decision[None]], Respond[None]], None],
    operation: Callable[[_Shard], Decision[Completion | None]],
    refuse: Callable[[CoordinatorError], None],
) -> None:
    """Execute a join or a sync by `write`, a runtime's for one partition; `refuse` answers if it is not executed."""
    decided: list[Completion | None] = []

    def decide(shard: _Shard) -> Decision[None]:
        decision = operation(shard)
        decided.append(decision.response)
        return Decision(None, decision.records, decision.settled)

    def respond(result: CoordinatorError | None, now_ms: int) -> None:
        if not decided and result is not None:
            refuse(result)
        elif decided and decided[0] is not None:
            decided[0](error_codes.NONE if result is None else result.code)

    write(decide, respond)


class ClassicGroupManager:
    """The classic groups of one shard."""

    def __init__(self, parts: ShardParts) -> None:
        self.groups: dict[str, ClassicGroup] = {}
        self._unwritten: dict[str, None] = {}
        self._state = parts.state
        self._config = parts.config
        self._rng = parts.rng
        self._check_new = parts.check_new
        self._rebalances = ClassicRebalances(parts.config, parts.timer, parts.write, parts.metrics, parts.report)

    def loaded(self, now_ms: int) -> None:
        """Begin to coordinate the groups with members; one that is larger than group.max.size rebalances."""
        max_size = self._max_size()
        for group_id, record in self._state.groups.items():
            if not isinstance(record, StoredClassicGroup) or not record.members:
                continue
            group = self._restore(record)
            if len(group.members) > max_size:
                size = len(group.members)
                self._rebalances.prepare(group, f"group {group_id} has {size} members, more than group.max.size={max_size}")

    def unloaded(self) -> None:
        """Cancel all timers, and answer waiting requests with NOT_COORDINATOR."""
        for group in self.groups.values():
            self._rebalances.end(group, error_codes.NOT_COORDINATOR)
        self.groups.clear()

    def _max_size(self) -> int:
        return self._config.get_int("group.max.size")

    def _restore(self, record: StoredClassicGroup) -> ClassicGroup:
        """Coordinate a group as its record describes it."""
        group = self.groups[record.group_id] = ClassicGroup.from_record(record)
        for member in group.members.values():
            self._rebalances.extend_session(group, member)
        return group

    def find(self, group_id: str) -> ClassicGroup:
        """Return a group, which the caller must not change. Raises CoordinatorError: GROUP_ID_NOT_FOUND."""
        group = self.groups.get(group_id)
        if group is not None:
            return group
        record = self._state.groups.get(group_id)
        if record is None:
            raise CoordinatorError(error_codes.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
        if not isinstance(record, StoredClassicGroup):
            raise CoordinatorError(error_codes.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a classic group.")
        return ClassicGroup.from_record(record)

    def add_unwritten(self, group_id: str) -> None:
        """Add the group of a commit that has no record."""
        self._unwritten[group_id] = None
        if len(self._unwritten) > _MOST_UNWRITTEN:
            del self._unwritten[next(iter(self._unwritten))]

    def discard_unwritten(self, group_id: str | None = None) -> None:
        """Forget a group without a record, or all of them."""
        if group_id is None:
            self._unwritten.clear()
        else:
            self._unwritten.pop(group_id, None)

    def _find_latest(self, group_id: str) -> ClassicGroup:
        """Return a group as `find` does, or one without a record. Raises CoordinatorError: GROUP_ID_NOT_FOUND."""
        if group_id in self._unwritten and group_id not in self._state.groups and group_id not in self.groups:
            return ClassicGroup(group_id, self._rebalances.wall_ms())
        return self.find(group_id)

    # ------------------------------------------------------------------------------------------------------------ join

    def join(self, request: JoinRequest, respond: RespondJoin) -> Decision[Completion | None]:
        """Let a client join a group, which is made if the client has no member id yet.

        An empty consumer or streams group is treated as missing: the caller removes it.
        """
        group_id = request.group_id
        code = self.check_join(request)
        if code:
            respond(JoinResult(code, request.member_id))
            return Decision(None)
        record = self._state.groups.get(group_id)
        if isinstance(record, ConsumerGroup | StreamsGroup) and not record.members:
            record = None
        if record is not None and not isinstance(record, StoredClassicGroup):
            respond(JoinResult(error_codes.INCONSISTENT_GROUP_PROTOCOL, UNKNOWN_MEMBER_ID))
            return Decision(None)
        group = self.groups.get(group_id)
        if group is None and record is not None:
            group = self._restore(record)
        if group is not None:
            return self._join_group(group, request, respond)
        if request.member_id != UNKNOWN_MEMBER_ID:
            respond(JoinResult(error_codes.UNKNOWN_MEMBER_ID, request.member_id))
            return Decision(None)
        self._check_new(group_id)
        group = self.groups[group_id] = ClassicGroup(group_id, self._rebalances.wall_ms())
        empty = group.record({})
        self._join_group(group, request, respond)
        return Decision(partial(self._created, group), (empty,))

    def check_join(self, request: JoinRequest) -> int:
        """Return 0, or the error of a join that is wrong for every group."""
        if not request.group_id:
            return error_codes.INVALID_GROUP_ID
        lowest = self._config.get_int("group.min.session.timeout.ms")
        highest = self._config.get_int("group.max.session.timeout.ms")
        return error_codes.NONE if lowest <= request.session_timeout_ms <= highest else error_codes.INVALID_SESSION_TIMEOUT

    def _created(self, group: ClassicGroup, code: int) -> None:
        """End a new group whose record could not be written and is reverted."""
        is_written = isinstance(self._state.groups.get(group.group_id), StoredClassicGroup)
        if code and not is_written and self.groups.get(group.group_id) is group:
            del self.groups[group.group_id]
            self._rebalances.end(group, code)

    def _join_group(self, group: ClassicGroup, request: JoinRequest, respond: RespondJoin) -> Decision[Completion | None]:
        member_id = request.member_id
        if not self._accepts(group, member_id):
            group.remove(member_id)
            respond(JoinResult(error_codes.GROUP_MAX_SIZE_REACHED, UNKNOWN_MEMBER_ID))
        elif not group.supports_protocols(request.protocol_type, request.protocols):
            respond(JoinResult(error_codes.INCONSISTENT_GROUP_PROTOCOL, member_id))
        elif member_id == UNKNOWN_MEMBER_ID:
            return self._join_new_member(group, request, respond)
        elif member_id not in group.pending_join:
            return Decision(None, self._join_again(group, request, respond))
        elif request.instance_id is not None:
            # Kafka fails here, too: only members without an instance id are pending.
            respond(JoinResult(error_codes.UNKNOWN_SERVER_ERROR, UNKNOWN_MEMBER_ID))
        else:
            return Decision(None, self._add_member(group, member_id, request, respond))
        return Decision(None)

    def _accepts(self, group: ClassicGroup, member_id: str) -> bool:
        """Return whether the group has room for the member.

        While members join, only those that have joined count: a group that has become too large loses the last ones.
        """
        match group.state:
            case ClassicGroupState.PREPARING_REBALANCE:
                return member_id in group.awaiting_join or len(group.awaiting_join) < self._max_size()
            case ClassicGroupState.COMPLETING_REBALANCE | ClassicGroupState.STABLE:
                return member_id in group.members or len(group.members) < self._max_size()
        return True

    def _join_new_member(self, group: ClassicGroup, request: JoinRequest, respond: RespondJoin) -> Decision[Completion | None]:
        uuid = UUID(bytes=self._rng.randbytes(_UUID_BYTES), version=4)
        member_id = f"{request.client_id if request.instance_id is None else request.instance_id}-{uuid}"
        if request.instance_id in group.static_members:
            return self._replace_static_member(group, request, member_id, respond)
        if request.instance_id is None and request.requires_known_member_id:
            self._rebalances.add_pending_member(group, member_id, request.session_timeout_ms)
            respond(JoinResult(error_codes.MEMBER_ID_REQUIRED, member_id))
            return Decision(None)
        return Decision(None, self._add_member(group, member_id, request, respond))

    def _add_member(self, group: ClassicGroup, member_id: str, request: JoinRequest, respond: RespondJoin) -> Records:
        member = ClassicGroupMember(
            member_id,
            request.instance_id,
            request.client_id,
            request.client_host,
            request.rebalance_timeout_ms,
            request.session_timeout_ms,
            request.protocols,
        )
        reason = _with_reason(f"new member {member_id}", request.reason)
        return self._rebalances.add_member(group, member, request.protocol_type, respond, reason)

    def _join_again(self, group: ClassicGroup, request: JoinRequest, respond: RespondJoin) -> Records:
        """Let a member join again: the group rebalances, unless the member repeats what the group knows already."""
        member_id = request.member_id
        try:
            member = group.find_member(member_id, request.instance_id)
        except CoordinatorError as error:
            respond(JoinResult(error.code, member_id))
            return ()
        is_stable = group.state is ClassicGroupState.STABLE
        is_joined = is_stable or group.state is ClassicGroupState.COMPLETING_REBALANCE
        # A leader of a stable group joins to have the partitions assigned again, for new topics for example.
        if is_joined and member.protocols == request.protocols and not (is_stable and group.leader == member_id):
            respond(group.join_result(member_id))
            return ()
        group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
        group.awaiting_join[member_id] = respond
        return self._rebalances.rebalance(group, _with_reason(f"member {member_id} joins again", request.reason))

    def _replace_static_member(
        self, group: ClassicGroup, request: JoinRequest, member_id: str, respond: RespondJoin
    ) -> Decision[Completion | None]:
        """Let a static member that has been started again take its place; the group rebalances only if it has to."""
        assert request.instance_id is not None
        leader = group.leader
        old_id = group.static_members[request.instance_id]
        member = group.replace_static_member(request.instance_id, member_id)
        before = member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms
        self._rebalances.extend_session(group, member)
        group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
        group.awaiting_join[member_id] = respond
        is_stable = group.state is ClassicGroupState.STABLE
        if not is_stable or group.select_protocol() != group.protocol_name:
            # The leader of a group that is to be assigned knows the member by its old id only.
            reason = _with_reason(f"static member {request.instance_id} joins again as {member_id}", request.reason)
            return Decision(None, self._rebalances.rebalance(group, reason))

        def complete(code: int) -> None:
            if group.members.get(member_id) is not member or member_id not in group.awaiting_join:
                return  # a rebalance, or another client with the instance id, has ended this join
            if code:
                group.update(member, *before)
                del group.awaiting_join[member_id]
                group.replace_static_member(member.instance_id or "", old_id)
                self._rebalances.extend_session(group, member)
                result = JoinResult(
                    code, UNKNOWN_MEMBER_ID, group.generation_id, group.protocol_type, group.protocol_name, leader or ""
                )
                respond(result)
            elif group.state is ClassicGroupState.STABLE:
                result = group.join_result(member_id)
                if request.supports_skipping_assignment:
                    result = result._replace(skip_assignment=group.leader == member_id)
                else:
                    # The old leader's id: so the client does not assign partitions that the stable group would not take.
                    result = result._replace(leader=leader or "", members=())
                group.respond_join(member_id, result)

        assignment = {one.member_id: one.assignment for one in group.members.values()}
        return Decision(complete, (group.record(assignment),))

    # ------------------------------------------------------------------------------------------------------------ sync

    def sync(self, request: SyncRequest, respond: RespondSync) -> Decision[Completion | None]:
        """Give a member its assignment when the group has it; the leader brings it."""
        if not request.group_id:
            respond(SyncResult(error_codes.INVALID_GROUP_ID))
            return Decision(None)
        group = self.groups.get(request.group_id)
        if group is None:
            respond(SyncResult(error_codes.UNKNOWN_MEMBER_ID))
            return Decision(None)
        try:
            member = group.find_member(request.member_id, request.instance_id)
        except CoordinatorError as error:
            respond(SyncResult(error.code))
            return Decision(None)
        code = _check_sync(group, request)
        if code:
            respond(SyncResult(code))
            return Decision(None)
        group.pending_sync.discard(member.member_id)
        if not group.pending_sync and group.sync_task is not None:
            group.sync_task.cancel()
        if group.state is ClassicGroupState.STABLE:
            respond(group.sync_result(member))
            return Decision(None)
        group.awaiting_sync[member.member_id] = respond
        if group.leader != member.member_id:
            return Decision(None)
        assignment = {member_id: request.assignment.get(member_id, b"") for member_id in group.members}
        complete = partial(self._assigned, group, request.generation_id, assignment)
        return Decision(complete, (group.record(assignment),))

    def _assigned(self, group: ClassicGroup, generation_id: int, assignment: Mapping[str, bytes], code: int) -> None:
        """Complete the leader's sync, unless the group has begun another rebalance."""
        if group.state is not ClassicGroupState.COMPLETING_REBALANCE or group.generation_id != generation_id:
            return
        if code:
            self._rebalances.prepare(group, f"the assignment could not be written (error {code})", code)
        else:
            self._rebalances.stabilize(group, assignment)

    # ------------------------------------------------------------------------------------------------ heartbeat, leave

    def heartbeat(self, group_id: str, member_id: str, instance_id: str | None, generation_id: int) -> int:
        """Return 0, or REBALANCE_IN_PROGRESS if the member has to join. Raises CoordinatorError."""
        group = self.groups.get(group_id)
        if group is None:
            code = error_codes.UNKNOWN_MEMBER_ID if group_id else error_codes.INVALID_GROUP_ID
            raise CoordinatorError(code, f"Group {group_id} not found.")
        member = group.find_member(member_id, instance_id)
        _check_generation(group, generation_id)
        self._rebalances.extend_session(group, member)
        is_preparing = group.state is ClassicGroupState.PREPARING_REBALANCE
        return error_codes.REBALANCE_IN_PROGRESS if is_preparing else error_codes.NONE

    def leave(self, group_id: str, leaving: Sequence[LeavingMember]) -> Decision[list[LeaveResult]]:
        """Remove members; each one has its own error. Raises CoordinatorError: INVALID_GROUP_ID."""
        if not group_id:
            raise CoordinatorError(error_codes.INVALID_GROUP_ID, "the group id is empty")
        group = self.groups.get(group_id)
        if group is None:
            return Decision([LeaveResult(error_codes.UNKNOWN_MEMBER_ID, one.member_id, one.instance_id) for one in leaving])
        results = [LeaveResult(_remove_leaving(group, one), one.member_id, one.instance_id) for one in leaving]
        left = [one for one, result in zip(leaving, results, strict=True) if not result.error_code]
        if not left or group.state is ClassicGroupState.EMPTY:
            return Decision(results)
        names = ", ".join(_with_reason(one.member_id or one.instance_id or "", one.reason) for one in left)
        return Decision(results, self._rebalances.rebalance(group, f"members have left: {names}"))

    # ---------------------------------------------------------------------------------------------------------- offsets

    def validate_offset_commit(
        self, group_id: str, member_id: str, instance_id: str | None, generation_id: int, is_transactional: bool
    ) -> None:
        """Check that offsets may be committed; a commit outside of transactions also extends the session of its member.

        A group that does not exist is made by the offset if the generation is negative. Raises CoordinatorError. If it is
        GROUP_ID_NOT_FOUND, OffsetCommit before version 9 and TxnOffsetCommit respond with ILLEGAL_GENERATION.
        """
        group = self.groups.get(group_id)
        if group is None:
            record = self._state.groups.get(group_id)
            if generation_id < 0 and (record is None or (isinstance(record, StoredClassicGroup) and not record.members)):
                return
            group = self._find_latest(group_id)
        if generation_id < 0 and group.state is ClassicGroupState.EMPTY:
            return
        if generation_id >= 0 or member_id or instance_id is not None:
            member = group.find_member(member_id, instance_id)
            _check_generation(group, generation_id)
        elif is_transactional:
            return
        else:
            text = f"group {group_id} has members; an offset needs the id and the generation of one"
            raise CoordinatorError(error_codes.UNKNOWN_MEMBER_ID, text)
        if is_transactional:
            return
        if group.state is ClassicGroupState.COMPLETING_REBALANCE:
            raise CoordinatorError(error_codes.REBALANCE_IN_PROGRESS, f"group {group_id} is rebalancing")
        self._rebalances.extend_session(group, member)

    def validate_offset_fetch(self, group_id: str) -> None:
        """Check that the group exists. Raises CoordinatorError: GROUP_ID_NOT_FOUND."""
        self.find(group_id)

    def validate_offset_delete(self, group_id: str) -> Callable[[str], bool]:
        """Return a function: whether a topic's offsets must be kept (GROUP_SUBSCRIBED_TO_TOPIC). Raises CoordinatorError."""
        group = self._find_latest(group_id)
        if group.state is not ClassicGroupState.EMPTY and not group.is_consumers_group:
            raise _non_empty(group_id)
        return group.is_subscribed_to

    # ------------------------------------------------------------------------------------------------- describe, delete

    def describe(self, group_id: str) -> DescribedGroup:
        """Describe a group. Raises CoordinatorError: GROUP_ID_NOT_FOUND."""
        group = self.find(group_id)
        is_stable = group.state is ClassicGroupState.STABLE
        members = tuple(
            DescribedMember(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.metadata(group.protocol_name) if is_stable else b"",
                member.assignment,
            )
            for member in group.members.values()
        )
        protocol_data = group.protocol_name or "" if is_stable else ""
        return DescribedGroup(group_id, group.state, group.protocol_type or "", protocol_data, members)

    def list(self) -> Iterator[ListedGroup]:
        """Yield all groups."""
        for group_id, record in self._state.groups.items():
            group = self.groups.get(group_id)
            if group is not None:
                yield ListedGroup(group_id, group.protocol_type or "", group.state)
            elif isinstance(record, StoredClassicGroup):
                yield ListedGroup(group_id, record.protocol_type, record.state)

    def delete_check(self, group_id: str) -> None:
        """Check that the group may be deleted. Raises CoordinatorError: GROUP_ID_NOT_FOUND or NON_EMPTY_GROUP."""
        if self._find_latest(group_id).state is not ClassicGroupState.EMPTY:
            raise _non_empty(group_id)

    def delete(self, group_id: str) -> CoordinatorRecord:
        """Return the record that deletes a group, which must be empty; pending members are forgotten."""
        self.end(group_id, error_codes.NONE)
        return tombstone(group_id)

    # --------------------------------------------------------------------------------------------------------- migration

    def adopt(self, group: ClassicGroup, reason: str | None) -> None:
        """Coordinate a group that was a consumer group; it rebalances if there is a reason to."""
        self.groups[group.group_id] = group
        for member in group.members.values():
            self._rebalances.extend_session(group, member)
        if reason is not None:
            self._rebalances.prepare(group, reason)

    def end(self, group_id: str, code: int) -> None:
        """Stop to coordinate a group; what waits is answered with the error `code`."""
        group = self.groups.pop(group_id, None)
        if group is not None:
            self._rebalances.end(group, code)

    def restore(self, group_id: str) -> None:
        """Coordinate a group as its record describes it, if it is not coordinated: it has not become a consumer group."""
        record = self._state.groups.get(group_id)
        if isinstance(record, StoredClassicGroup) and record.members and group_id not in self.groups:
            self._restore(record)


def _with_reason(text: str, reason: str | None) -> str:
    """Return a text for the log, with the reason that a client has stated."""
    return f"{text} ({reason[:_MAX_REASON]})" if reason else text


def _remove_leaving(group: ClassicGroup, leaving: LeavingMember) -> int:
    """Remove a member that leaves; return 0 or the error."""
    member_id: str | None = leaving.member_id
    if member_id == UNKNOWN_MEMBER_ID:
        member_id = group.static_members.get(leaving.instance_id or "")
        if leaving.instance_id is None or member_id is None:
            return error_codes.UNKNOWN_MEMBER_ID
    elif member_id not in group.pending_join:
        try:
            group.find_member(leaving.member_id, leaving.instance_id)
        except CoordinatorError as error:
            return error.code
    assert member_id is not None
    group.remove(member_id)
    return error_codes.NONE


def _check_sync(group: ClassicGroup, request: SyncRequest) -> int:
    """Return 0, or the error of a sync whose member is known."""
    if request.generation_id != group.generation_id:
        return error_codes.ILLEGAL_GENERATION
    pairs = ((request.protocol_type, group.protocol_type), (request.protocol_name, group.protocol_name))
    if any(stated is not None and known is not None and stated != known for stated, known in pairs):
        return error_codes.INCONSISTENT_GROUP_PROTOCOL
    is_preparing = group.state is ClassicGroupState.PREPARING_REBALANCE
    return error_codes.REBALANCE_IN_PROGRESS if is_preparing else error_codes.NONE


def _check_generation(group: ClassicGroup, generation_id: int) -> None:
    """Check the generation of a request. Raises CoordinatorError: ILLEGAL_GENERATION."""
    if generation_id != group.generation_id:
        text = f"group {group.group_id} is in generation {group.generation_id}, not {generation_id}"
        raise CoordinatorError(error_codes.ILLEGAL_GENERATION, text)


def _non_empty(group_id: str) -> CoordinatorError:
    """Return the error for a group that has members."""
    return CoordinatorError(error_codes.NON_EMPTY_GROUP, f"group {group_id} is not empty")
