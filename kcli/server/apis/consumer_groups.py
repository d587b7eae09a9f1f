"""The consumer group protocol (KIP-848).

API                     needs                                    answered
----------------------  ---------------------------------------  -----------------------------------------------------------
ConsumerGroupHeartbeat  READ on the group, DESCRIBE on the       when the records of the change are committed
                        topics that it names
ConsumerGroupDescribe   DESCRIBE on the group and on its topics  consumer groups; GROUP_ID_NOT_FOUND for any other

Without group.version 1, or without `consumer` in group.coordinator.rebalance.protocols, both are refused with
UNSUPPORTED_VERSION. A member that does not bring an id (version 0) gets one.

heartbeat                                                                        refused with
-------------------------------------------------------------------------------  ---------------------------------------
an empty group, instance or rack id; no member id (from version 1 on, and in     INVALID_REQUEST
version 0 but for a first heartbeat); an epoch below -2; -2 without instance id
epoch 0 without a rebalance timeout or a subscription, or with partitions        INVALID_REQUEST
an assignor that is not in group.consumer.assignors                              UNSUPPORTED_ASSIGNOR
"""

from __future__ import annotations

from functools import partial

from kcli.format.kafka_uuid import Uuid
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.apis.modern_groups import (
    HIDDEN_TOPICS,
    describe_groups,
    described_assignment,
    heartbeat_answer,
    is_blank,
)
from kcli.server.coordinator.group.consumer_group_change import FIRST_GROUP_EPOCH
from kcli.server.coordinator.group.consumer_group_manager import (
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerHeartbeat,
    HeartbeatResult,
)
from kcli.server.coordinator.group.group_coordinator import GroupShard
from kcli.server.coordinator.operation import CoordinatorError, Decision
from kcli.state.groups import ConsumerGroup, ConsumerGroupMember

_GROUP_FEATURE = "group.version"
_MEMBER_ID_VERSION = 1  # of ConsumerGroupHeartbeat: the client makes the member's id
_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1


def is_enabled(context: RequestContext) -> bool:
    """Return whether the consumer protocol is served."""
    level = context.broker.metadata.image.features.get(_GROUP_FEATURE, 0)
    return level >= 1 and "consumer" in context.broker.config.get_list("group.coordinator.rebalance.protocols")


def handle_consumer_group_heartbeat(context: RequestContext, request: Message) -> Message | None:
    """Answer a ConsumerGroupHeartbeatRequest."""
    try:
        _check_heartbeat(context, request)
    except CoordinatorError as error:
        return _refused(context, error)
    owned, names = request.topic_partitions, request.subscribed_topic_names
    heartbeat = ConsumerHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=None if request.rebalance_timeout_ms < 0 else request.rebalance_timeout_ms,
        client_id=context.client_id or "",
        client_host=f"/{context.connection.client_host}",
        topic_names=None if names is None else sorted(set(names)),
        topic_regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None if owned is None else {topic.topic_id: topic.partitions for topic in owned},
        may_describe=partial(context.is_allowed, "DESCRIBE", "TOPIC"),
    )

    def decide(shard: GroupShard) -> Decision[HeartbeatResult]:
        return shard.consumer.heartbeat(heartbeat)

    def respond(result: HeartbeatResult | CoordinatorError, now_ms: int) -> None:
        context.respond(
            _refused(context, result) if isinstance(result, CoordinatorError) else heartbeat_answer(context, result)
        )

    context.broker.groups.write(request.group_id, decide, respond)
    return None


def _refused(context: RequestContext, error: CoordinatorError) -> Message:
    return context.new("ConsumerGroupHeartbeatResponse", error_code=error.code, error_message=error.message)


def _check_heartbeat(context: RequestContext, request: Message) -> None:
    """Check what does not depend on the group. Raises CoordinatorError."""
    if not is_enabled(context):
        raise CoordinatorError(error_codes.UNSUPPORTED_VERSION, "The consumer group protocol is not enabled.")
    if not context.is_allowed("READ", "GROUP", request.group_id):
        raise CoordinatorError(error_codes.GROUP_AUTHORIZATION_FAILED, "Group authorization failed.")
    for name in request.subscribed_topic_names or ():
        if not context.is_allowed("DESCRIBE", "TOPIC", name):
            raise CoordinatorError(error_codes.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
    epoch = request.member_epoch
    needs_member_id = context.version >= _MEMBER_ID_VERSION or epoch > 0 or epoch == LEAVE_EPOCH
    has_subscription = request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None
    for is_wrong, text in (
        (needs_member_id and is_blank(request.member_id), "MemberId can't be empty."),
        (is_blank(request.group_id), "GroupId can't be empty."),
        (is_blank(request.instance_id), "InstanceId can't be empty."),
        (is_blank(request.rack_id), "RackId can't be empty."),
        (epoch == 0 and request.rebalance_timeout_ms == -1, "RebalanceTimeoutMs must be provided in first request."),
        (epoch == 0 and request.topic_partitions != [], "TopicPartitions must be empty when (re-)joining."),
        (
            epoch == 0 and not has_subscription,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        (epoch == LEAVE_STATIC_EPOCH and request.instance_id is None, "InstanceId can't be null."),
        (epoch < LEAVE_STATIC_EPOCH, "MemberEpoch is invalid."),
    ):
        if is_wrong:
            raise CoordinatorError(error_codes.INVALID_REQUEST, text)
    assignors = context.broker.config.get_list("group.consumer.assignors")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        text = f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {', '.join(assignors)}."
        raise CoordinatorError(error_codes.UNSUPPORTED_ASSIGNOR, text)


# ---------------------------------------------------------------------------------------------------------------- describe


def handle_consumer_group_describe(context: RequestContext, request: Message) -> None:
    """Answer a ConsumerGroupDescribeRequest."""
    describe_groups(context, request, partial(_describe, context), is_enabled=is_enabled(context))


def _describe(context: RequestContext, answer: Message, shard: GroupShard) -> Decision[None]:
    group = shard.consumer.find(answer.group_id)
    members = [_member(context, group, member) for member in group.members.values()]
    used = {
        topic.topic_name
        for member in members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    }
    if not all(context.is_allowed("DESCRIBE", "TOPIC", name) for name in used):
        raise CoordinatorError(error_codes.TOPIC_AUTHORIZATION_FAILED, HIDDEN_TOPICS)
    answer.group_state, answer.members = group.state, members
    answer.group_epoch, answer.assignment_epoch = max(group.group_epoch, FIRST_GROUP_EPOCH), max(group.assignment_epoch, 0)
    answer.assignor_name = shard.consumer.assignor_name(group)
    return Decision(None)


def _member(context: RequestContext, group: ConsumerGroup, member: ConsumerGroupMember) -> Message:
    return context.new(
        "Member",
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=member.subscribed_topic_names,
        subscribed_topic_regex=member.subscribed_topic_regex,
        assignment=described_assignment(context, _kept(member)),
        target_assignment=described_assignment(context, group.target_assignment.get(member.member_id, {})),
        member_type=_CONSUMER_MEMBER if member.classic_protocols is None else _CLASSIC_MEMBER,
    )


def _kept(member: ConsumerGroupMember) -> dict[Uuid, list[int]]:
    """Return the partitions that a member has, those that it has not revoked yet among them."""
    kept: dict[Uuid, list[int]] = {}
    for part in (member.assigned_partitions, member.partitions_pending_revocation):
        for topic_id, indexes in part.items():
            kept[topic_id] = [*kept.get(topic_id, ()), *indexes]
    return kept
