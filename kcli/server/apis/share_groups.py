"""The share group protocol (KIP-932): membership.

API                  needs                                    answered
-------------------  ---------------------------------------  --------------------------------------------------------------
ShareGroupHeartbeat  READ on the group, DESCRIBE on the       when the records of the change are committed
                     topics that it names
ShareGroupDescribe   DESCRIBE on the group and on its topics  share groups; GROUP_ID_NOT_FOUND for any other

Without share.version 1 both are refused with UNSUPPORTED_VERSION.

heartbeat                                                                        refused with
-------------------------------------------------------------------------------  ---------------------------------------
no member id or one above 36 characters; an empty group or rack id; an epoch     INVALID_REQUEST
below -1; epoch 0 without topics
"""

from __future__ import annotations

from functools import partial

from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.apis.modern_groups import describe_groups, described_assignment, heartbeat_answer
from kcli.server.coordinator.group.consumer_group_change import FIRST_GROUP_EPOCH
from kcli.server.coordinator.group.group_coordinator import GroupShard
from kcli.server.coordinator.group.share_group_manager import (
    FIRST_TARGET_EPOCH,
    LEAVE_EPOCH,
    ShareHeartbeat,
    ShareHeartbeatResult,
)
from kcli.server.coordinator.operation import CoordinatorError, Decision
from kcli.server.features import SHARE_VERSION

_MAX_MEMBER_ID = 36
_ASSIGNOR = "simple"
_HIDDEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."


def is_enabled(context: RequestContext) -> bool:
    """Return whether share groups are served."""
    return context.broker.metadata.image.features.get(SHARE_VERSION, 0) >= 1


def handle_share_group_heartbeat(context: RequestContext, request: Message) -> Message | None:
    """Answer a ShareGroupHeartbeatRequest."""
    refused = _refusal(context, request)
    if refused is not None:
        return refused
    names = request.subscribed_topic_names
    heartbeat = ShareHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        rack_id=request.rack_id,
        client_id=context.client_id or "",
        client_host=f"/{context.connection.client_host}",
        topic_names=None if names is None else sorted(set(names)),
    )

    def decide(shard: GroupShard) -> Decision[ShareHeartbeatResult]:
        return shard.shares.heartbeat(heartbeat)

    def respond(result: ShareHeartbeatResult | CoordinatorError, now_ms: int) -> None:
        if isinstance(result, CoordinatorError):
            context.respond(_refused(context, result.code, result.message))
            return
        context.respond(heartbeat_answer(context, result))
        if result.initialization is not None:
            context.broker.groups.share_states.initialize(result.initialization)

    context.broker.groups.write(request.group_id, decide, respond)
    return None


def _refused(context: RequestContext, code: int, message: str | None = None) -> Message:
    return context.new("ShareGroupHeartbeatResponse", error_code=code, error_message=message)


def _refusal(context: RequestContext, request: Message) -> Message | None:
    """Return the answer that refuses a heartbeat for what does not depend on the group, None for no reason to."""
    if not is_enabled(context):
        return _refused(context, error_codes.UNSUPPORTED_VERSION)
    if not context.is_allowed("READ", "GROUP", request.group_id):
        return _refused(context, error_codes.GROUP_AUTHORIZATION_FAILED)
    if not 0 < len(request.member_id) <= _MAX_MEMBER_ID:
        return _refused(context, error_codes.INVALID_REQUEST)
    names, epoch = request.subscribed_topic_names, request.member_epoch
    if not all(context.is_allowed("DESCRIBE", "TOPIC", name) for name in names or ()):
        return _refused(context, error_codes.TOPIC_AUTHORIZATION_FAILED)
    for is_wrong, text in (
        (not request.member_id.strip(), "MemberId can't be empty."),
        (not request.group_id.strip(), "GroupId can't be empty."),
        (request.rack_id is not None and not request.rack_id.strip(), "RackId can't be empty."),
        (epoch == 0 and not names, "SubscribedTopicNames must be set in first request."),
        (epoch < LEAVE_EPOCH, "MemberEpoch is invalid."),
    ):
        if is_wrong:
            return _refused(context, error_codes.INVALID_REQUEST, text)
    return None


# ---------------------------------------------------------------------------------------------------------------- describe


def handle_share_group_describe(context: RequestContext, request: Message) -> None:
    """Answer a ShareGroupDescribeRequest."""
    describe_groups(context, request, partial(_describe, context), is_enabled=is_enabled(context))


def _describe(context: RequestContext, answer: Message, shard: GroupShard) -> Decision[None]:
    group = shard.shares.find(answer.group_id)
    members = [
        context.new(
            "Member",
            member_id=member.member_id,
            rack_id=member.rack_id,
            member_epoch=member.member_epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=member.subscribed_topic_names,
            assignment=described_assignment(context, member.assigned_partitions),
        )
        for member in group.members.values()
    ]
    used = {topic.topic_name for member in members for topic in member.assignment.topic_partitions}
    if not all(context.is_allowed("DESCRIBE", "TOPIC", name) for name in used):
        raise CoordinatorError(error_codes.TOPIC_AUTHORIZATION_FAILED, _HIDDEN_TOPICS)
    answer.group_state, answer.members, answer.assignor_name = group.state, members, _ASSIGNOR
    answer.group_epoch = max(group.group_epoch, FIRST_GROUP_EPOCH)
    answer.assignment_epoch = max(group.assignment_epoch, FIRST_TARGET_EPOCH)
    return Decision(None)
