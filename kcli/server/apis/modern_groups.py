"""What the APIs of consumer, share and streams groups have in common (Kafka: ModernGroup)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.apis.metadata import authorized_operations
from kcli.server.coordinator.group.consumer_group_manager import HeartbeatResult
from kcli.server.coordinator.group.group_coordinator import GroupShard
from kcli.server.coordinator.group.share_group_manager import ShareHeartbeatResult
from kcli.server.coordinator.operation import CoordinatorError, Decision
from kcli.server.outstanding import Gather
from kcli.state.groups import Partitions

HIDDEN_TOPICS = "The described group uses topics that the client is not authorized to describe."


def is_blank(text: str | None) -> bool:
    """Return whether a field of a request is there and has nothing but blanks."""
    return text is not None and not text.strip()


def heartbeat_answer(context: RequestContext, result: HeartbeatResult | ShareHeartbeatResult) -> Message:
    """Return the answer to a heartbeat of a member that is assigned partitions."""
    assignment = None
    if result.assignment is not None:
        topics = [
            context.new("TopicPartitions", topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in result.assignment.items()
        ]
        assignment = context.new("Assignment", topic_partitions=topics)
    return context.new(
        f"{context.api.name}Response",
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
        assignment=assignment,
    )


# ---------------------------------------------------------------------------------------------------------------- describe


def describe_groups(
    context: RequestContext,
    request: Message,
    describe: Callable[[Message, GroupShard], Decision[None]],
    *,
    is_enabled: bool,
) -> None:
    """Answer a request that describes groups of one protocol; `describe` fills in the answer for one of them."""
    answers = [context.new("DescribedGroup", group_id=group_id) for group_id in request.group_ids]
    response = context.new(f"{context.api.name}Response", groups=answers)
    gather = Gather(len(answers), partial(context.respond, response))
    for answer in answers:
        if not is_enabled:
            answer.error_code = error_codes.UNSUPPORTED_VERSION
        elif not context.is_allowed("DESCRIBE", "GROUP", answer.group_id):
            answer.error_code = error_codes.GROUP_AUTHORIZATION_FAILED
        elif not answer.group_id:
            answer.error_code = error_codes.INVALID_GROUP_ID
        else:
            described = partial(_described, context, request, answer, gather)
            context.broker.groups.write(answer.group_id, partial(describe, answer), described)
            continue
        gather.done()


def _described(
    context: RequestContext, request: Message, answer: Message, gather: Gather, result: CoordinatorError | None, now_ms: int
) -> None:
    if result is not None:
        answer.error_code, answer.error_message = result.code, result.message
    elif request.include_authorized_operations:
        answer.authorized_operations = authorized_operations(context, "GROUP", answer.group_id)
    gather.done()


def described_assignment(context: RequestContext, found: Partitions) -> Message:
    """Return an assignment with the names of its topics, without topics that are deleted."""
    names = {topic_id: context.broker.metadata.topic_name(topic_id) for topic_id in found}
    topics = [
        context.new("TopicPartitions", topic_id=topic_id, topic_name=name, partitions=sorted(found[topic_id]))
        for topic_id, name in names.items()
        if name is not None
    ]
    return context.new("Assignment", topic_partitions=topics)
