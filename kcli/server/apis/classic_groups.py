"""The classic group protocol, and listing, describing and deleting groups.

API             needs                                     answered
--------------  ----------------------------------------  ---------------------------------------------------------------
JoinGroup       READ on the group                         when the members of a generation have joined
SyncGroup       READ on the group                         when the leader has sent the assignments
Heartbeat       READ on the group                         at once; while the group is loaded with NONE, as by Kafka
LeaveGroup      READ on the group                         at once, with an error code for each member
DescribeGroups  DESCRIBE on the group                     classic groups; Dead, or GROUP_ID_NOT_FOUND from version 6 on, if
                                                          there is no such group
ListGroups      DESCRIBE on the cluster, or on the group  the groups of all partitions that this broker leads
DeleteGroups    DELETE on the group                       when the tombstones of the group and its offsets are committed

Session timeouts outside of group.min.session.timeout.ms and group.max.session.timeout.ms: INVALID_SESSION_TIMEOUT. An empty
group id is refused with INVALID_GROUP_ID by all but DescribeGroups and DeleteGroups.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.apis.metadata import authorized_operations
from kcli.server.coordinator.group.classic_group_manager import Completion, write_classic
from kcli.server.coordinator.group.classic_messages import (
    JoinRequest,
    JoinResult,
    LeaveResult,
    LeavingMember,
    SyncRequest,
    SyncResult,
)
from kcli.server.coordinator.group.group_coordinator import GroupShard
from kcli.server.coordinator.operation import CoordinatorError, Decision
from kcli.server.outstanding import Gather

_KNOWN_MEMBER_VERSION = 4  # of JoinGroup: a member gets its id first, and joins with it
_SKIP_ASSIGNMENT_VERSION = 9  # of JoinGroup: a static leader that joins again may keep the assignment
_PROTOCOL_NULL_VERSION = 7  # of JoinGroup: the protocol's name may be null
_PROTOCOL_VERSION = 5  # of SyncGroup: it states the protocol
_BATCHED_LEAVE_VERSION = 3
_NOT_FOUND_VERSION = 6  # of DescribeGroups
_OPERATIONS_VERSION = 3  # of DescribeGroups


# ----------------------------------------------------------------------------------------------------------- membership


def handle_join_group(context: RequestContext, request: Message) -> None:
    """Answer a JoinGroupRequest when the rebalance is done, or with an error."""

    def respond(result: JoinResult) -> None:
        name = result.protocol_name
        context.respond(
            context.new(
                "JoinGroupResponse",
                error_code=result.error_code,
                generation_id=result.generation_id,
                protocol_type=result.protocol_type,
                protocol_name="" if name is None and context.version < _PROTOCOL_NULL_VERSION else name,
                leader=result.leader,
                skip_assignment=result.skip_assignment,
                member_id=result.member_id,
                members=[
                    context.new(
                        "JoinGroupResponseMember",
                        member_id=member.member_id,
                        group_instance_id=member.instance_id,
                        metadata=member.metadata,
                    )
                    for member in result.members
                ],
            )
        )

    def refuse(code: int) -> None:
        respond(JoinResult(code, request.member_id))

    if not _is_allowed(context, request.group_id, refuse):
        return
    rebalance_timeout_ms = request.rebalance_timeout_ms
    join = JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=context.client_id or "",
        client_host=f"/{context.connection.client_host}",
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
        requires_known_member_id=context.version >= _KNOWN_MEMBER_VERSION,
        supports_skipping_assignment=context.version >= _SKIP_ASSIGNMENT_VERSION,
        reason=request.reason,
    )
    _execute(context, request.group_id, lambda shard: shard.join(join, respond), refuse)


def handle_sync_group(context: RequestContext, request: Message) -> None:
    """Answer a SyncGroupRequest when the leader has sent the assignments, or with an error."""

    def respond(result: SyncResult) -> None:
        context.respond(
            context.new(
                "SyncGroupResponse",
                error_code=result.error_code,
                protocol_type=result.protocol_type,
                protocol_name=result.protocol_name,
                assignment=result.assignment,
            )
        )

    def refuse(code: int) -> None:
        respond(SyncResult(code))

    if context.version >= _PROTOCOL_VERSION and (request.protocol_type is None or request.protocol_name is None):
        refuse(error_codes.INCONSISTENT_GROUP_PROTOCOL)
        return
    if not _is_allowed(context, request.group_id, refuse):
        return
    sync = SyncRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        generation_id=request.generation_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment={one.member_id: bytes(one.assignment) for one in request.assignments},
    )
    _execute(context, request.group_id, lambda shard: shard.sync(sync, respond), refuse)


def handle_heartbeat(context: RequestContext, request: Message) -> None:
    """Answer a HeartbeatRequest."""

    def respond(code: int) -> None:
        is_loading = code == error_codes.COORDINATOR_LOAD_IN_PROGRESS
        context.respond(context.new("HeartbeatResponse", error_code=error_codes.NONE if is_loading else code))

    if not _is_allowed(context, request.group_id, respond):
        return

    def decide(shard: GroupShard) -> Decision[int]:
        code = shard.heartbeat(request.group_id, request.member_id, request.group_instance_id, request.generation_id)
        return Decision(code)

    def decided(code: int | CoordinatorError, now_ms: int) -> None:
        respond(code.code if isinstance(code, CoordinatorError) else code)

    context.broker.groups.write(request.group_id, decide, decided)


def handle_leave_group(context: RequestContext, request: Message) -> None:
    """Answer a LeaveGroupRequest."""
    is_batched = context.version >= _BATCHED_LEAVE_VERSION
    members = [LeavingMember(request.member_id, None, None)]
    if is_batched:
        members = [LeavingMember(one.member_id, one.group_instance_id, one.reason) for one in request.members]

    def refuse(code: int) -> None:
        context.respond(context.new("LeaveGroupResponse", error_code=code))

    if not _is_allowed(context, request.group_id, refuse):
        return

    def left(results: list[LeaveResult] | CoordinatorError, now_ms: int) -> None:
        if isinstance(results, CoordinatorError):
            refuse(results.code)
        elif not is_batched:
            refuse(results[0].error_code)
        else:
            answers = [
                context.new("MemberResponse", member_id=member_id, group_instance_id=instance_id, error_code=code)
                for code, member_id, instance_id in results
            ]
            context.respond(context.new("LeaveGroupResponse", members=answers))

    context.broker.groups.write(request.group_id, lambda shard: shard.leave(request.group_id, members), left)


def _is_allowed(context: RequestContext, group_id: str, refuse: Callable[[int], None]) -> bool:
    """Return whether the client may read the group; if not, it is answered."""
    if not context.is_allowed("READ", "GROUP", group_id):
        refuse(error_codes.GROUP_AUTHORIZATION_FAILED)
        return False
    if not group_id:
        refuse(error_codes.INVALID_GROUP_ID)
        return False
    return True


# ------------------------------------------------------------------------------------------------------- administration


def handle_describe_groups(context: RequestContext, request: Message) -> None:
    """Answer a DescribeGroupsRequest."""
    answers = [context.new("DescribedGroup", group_id=group_id) for group_id in request.groups]
    response = context.new("DescribeGroupsResponse", groups=answers)
    gather = Gather(len(answers), partial(context.respond, response))
    for answer in answers:
        if not context.is_allowed("DESCRIBE", "GROUP", answer.group_id):
            answer.error_code = error_codes.GROUP_AUTHORIZATION_FAILED
            gather.done()
            continue
        described = partial(_described, context, request, answer, gather)
        context.broker.groups.write(answer.group_id, partial(_describe, context, answer), described)


def _describe(context: RequestContext, answer: Message, shard: GroupShard) -> Decision[None]:
    found = shard.classic.describe(answer.group_id)
    answer.group_state, answer.protocol_type, answer.protocol_data = found.state, found.protocol_type, found.protocol_data
    answer.members = [
        context.new(
            "DescribedGroupMember",
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            member_metadata=member.metadata,
            member_assignment=member.assignment,
        )
        for member in found.members
    ]
    return Decision(None)


def _described(
    context: RequestContext,
    request: Message,
    answer: Message,
    gather: Gather,
    result: CoordinatorError | None,
    now_ms: int,
) -> None:
    if result is None:
        if request.include_authorized_operations and context.version >= _OPERATIONS_VERSION:
            answer.authorized_operations = authorized_operations(context, "GROUP", answer.group_id)
    elif result.code == error_codes.GROUP_ID_NOT_FOUND:
        answer.group_state = "Dead"
        if context.version >= _NOT_FOUND_VERSION:
            answer.error_code, answer.error_message = result.code, result.message
    else:
        answer.error_code = result.code
    gather.done()


def handle_list_groups(context: RequestContext, request: Message) -> Message:
    """Answer a ListGroupsRequest."""
    runtime = context.broker.groups.runtime
    if runtime.loading_count():
        return context.new("ListGroupsResponse", error_code=error_codes.COORDINATOR_LOAD_IN_PROGRESS)
    sees_all = context.is_allowed("DESCRIBE", "CLUSTER")
    states, types = ({text.lower() for text in wanted} for wanted in (request.states_filter, request.types_filter))
    groups = [
        context.new(
            "ListedGroup",
            group_id=group.group_id,
            protocol_type=group.protocol_type,
            group_state=group.state,
            group_type=group.group_type,
        )
        for shard in runtime.shards()
        for group in shard.list_groups()
        if (not states or group.state.lower() in states)
        and (not types or group.group_type in types)
        and (sees_all or context.is_allowed("DESCRIBE", "GROUP", group.group_id))
    ]
    return context.new("ListGroupsResponse", groups=groups)


def handle_delete_groups(context: RequestContext, request: Message) -> None:
    """Answer a DeleteGroupsRequest when the groups are deleted."""
    answers = [context.new("DeletableGroupResult", group_id=group_id) for group_id in dict.fromkeys(request.groups_names)]
    response = context.new("DeleteGroupsResponse", results=answers)
    gather = Gather(len(answers), partial(context.respond, response))

    def deleted(answer: Message, code: int) -> None:
        answer.error_code = code
        gather.done()

    for answer in answers:
        if context.is_allowed("DELETE", "GROUP", answer.group_id):
            context.broker.groups.delete_group(answer.group_id, partial(deleted, answer))
        else:
            answer.error_code = error_codes.GROUP_AUTHORIZATION_FAILED
            gather.done()


def _execute(
    context: RequestContext,
    group_id: str,
    operation: Callable[[GroupShard], Decision[Completion | None]],
    refuse: Callable[[int], None],
) -> None:
    """Execute a join or a sync, which answer their requests; `refuse` answers if this broker is not the coordinator."""
    write_classic(partial(context.broker.groups.write, group_id), operation, lambda error: refuse(error.code))
