"""The start offsets of share groups: describe, alter and delete them (KIP-932).

API                        needs                                        answered
-------------------------  -------------------------------------------  ------------------------------------------------------
DescribeShareGroupOffsets  DESCRIBE on the group and on the topics      for the partitions that it names, without topics for
                                                                        those that are initialized
AlterShareGroupOffsets     READ on the group and on the topics          when the states are initialized again; the group must
                                                                        be empty, and is made if it does not exist
DeleteShareGroupOffsets    DELETE on the group, READ on the topics      when the states are deleted; the group must be empty

Without share.version 1 all are refused with UNSUPPORTED_VERSION. A topic that does not exist is UNKNOWN_TOPIC_OR_PARTITION;
Describe answers it without an error, with a start offset of -1.
"""

from __future__ import annotations

from functools import partial

from kcli.format.kafka_uuid import ZERO_UUID, TopicIdPartition, Uuid
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.apis.share_groups import is_enabled
from kcli.server.coordinator.group.group_records import ShareIndexes
from kcli.server.coordinator.group.share_states import Codes, ShareOffset
from kcli.server.coordinator.operation import CoordinatorError
from kcli.server.outstanding import Gather
from kcli.state.metadata_values import Topic

_UNKNOWN_TOPIC = "This server does not host this topic-partition."
_NO_OFFSETS = "There is no offset information to delete."
_FORBIDDEN_TOPIC = "Topic authorization failed."
_NO_START = -1
_SENTENCES = {
    error_codes.UNSUPPORTED_VERSION: "The version of API is not supported.",
    error_codes.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    error_codes.INVALID_GROUP_ID: "The group id is invalid.",
}


# ---------------------------------------------------------------------------------------------------------------- describe


def handle_describe_share_group_offsets(context: RequestContext, request: Message) -> None:
    """Answer a DescribeShareGroupOffsetsRequest."""
    answers = [context.new("DescribeShareGroupOffsetsResponseGroup", group_id=group.group_id) for group in request.groups]
    response = context.new("DescribeShareGroupOffsetsResponse", groups=answers)
    gather = Gather(len(answers), partial(context.respond, response))
    states = context.broker.groups.share_states
    for group, answer in zip(request.groups, answers):
        if not is_enabled(context):
            answer.error_code = error_codes.UNSUPPORTED_VERSION
        elif not context.is_allowed("DESCRIBE", "GROUP", group.group_id):
            answer.error_code = error_codes.GROUP_AUTHORIZATION_FAILED
        elif group.topics is None:
            states.initialized(group.group_id, partial(_describe_all, context, answer, gather))
            continue
        else:
            _describe(context, answer, gather, _asked(context, group, answer))
            continue
        gather.done()


def _asked(context: RequestContext, group: Message, answer: Message) -> list[TopicIdPartition]:
    """Return the partitions that a request names; topics that are hidden or do not exist are answered."""
    keys: list[TopicIdPartition] = []
    for asked in group.topics:
        topic = context.broker.metadata.image.topic(asked.topic_name)
        is_allowed = context.is_allowed("DESCRIBE", "TOPIC", asked.topic_name)
        if is_allowed and topic is not None:
            keys += ((topic.topic_id, index) for index in asked.partitions)
            continue
        refusal = {} if is_allowed else _topic_refusal(error_codes.TOPIC_AUTHORIZATION_FAILED, _FORBIDDEN_TOPIC)
        parts = [
            context.new(
                "DescribeShareGroupOffsetsResponsePartition",
                partition_index=index,
                start_offset=_NO_START if is_allowed else 0,
                **refusal,
            )
            for index in asked.partitions
        ]
        answer.topics.append(_described_topic(context, asked.topic_name, ZERO_UUID, parts))
    return keys


def _topic_refusal(code: int, message: str) -> dict[str, object]:
    return {"error_code": code, "error_message": message}


def _described_topic(context: RequestContext, name: str, topic_id: Uuid, parts: list[Message]) -> Message:
    return context.new("DescribeShareGroupOffsetsResponseTopic", topic_name=name, topic_id=topic_id, partitions=parts)


def _describe_all(context: RequestContext, answer: Message, gather: Gather, found: ShareIndexes | CoordinatorError) -> None:
    if isinstance(found, CoordinatorError):
        answer.error_code, answer.error_message = found.code, found.message
        gather.done()
        return
    names = {topic_id: context.broker.metadata.topic_name(topic_id) for topic_id in found}
    keys = [
        (topic_id, index)
        for topic_id, name in names.items()
        if name is not None and context.is_allowed("DESCRIBE", "TOPIC", name)
        for index in found[topic_id]
    ]
    _describe(context, answer, gather, keys)


def _describe(context: RequestContext, answer: Message, gather: Gather, keys: list[TopicIdPartition]) -> None:
    refused = list(answer.topics)

    def described(found: dict[TopicIdPartition, ShareOffset]) -> None:
        topics: dict[Uuid, Message] = {}
        for key in keys:
            topic_id, index = key
            if topic_id not in topics:
                name = context.broker.metadata.topic_name(topic_id) or ""
                topics[topic_id] = _described_topic(context, name, topic_id, [])
            part = context.new("DescribeShareGroupOffsetsResponsePartition", partition_index=index, **found[key]._asdict())
            if found[key].error_code:
                part.error_message = error_codes.NAMES.get(found[key].error_code)
            topics[topic_id].partitions.append(part)
        answer.topics = [*topics.values(), *refused]
        gather.done()

    context.broker.groups.share_states.describe(answer.group_id, keys, described)


# ------------------------------------------------------------------------------------------------------------------- alter


def handle_alter_share_group_offsets(context: RequestContext, request: Message) -> Message | None:
    """Answer an AlterShareGroupOffsetsRequest."""
    code = _group_refusal(context, request, "READ")
    if code:
        return context.new("AlterShareGroupOffsetsResponse", error_code=code, error_message=_SENTENCES[code])
    refused: list[Message] = []
    altered: list[tuple[Topic, Message]] = []
    for asked in request.topics:
        topic = context.broker.metadata.image.topic(asked.topic_name)
        if not context.is_allowed("READ", "TOPIC", asked.topic_name):
            refusal = _topic_refusal(error_codes.TOPIC_AUTHORIZATION_FAILED, _FORBIDDEN_TOPIC)
        elif topic is None:
            refusal = _topic_refusal(error_codes.UNKNOWN_TOPIC_OR_PARTITION, _UNKNOWN_TOPIC)
        else:
            altered.append((topic, asked))
            continue
        parts = [
            context.new("AlterShareGroupOffsetsResponsePartition", partition_index=part.partition_index, **refusal)
            for part in asked.partitions
        ]
        refused.append(context.new("AlterShareGroupOffsetsResponseTopic", topic_name=asked.topic_name, partitions=parts))
    starts = {
        (topic.topic_id, part.partition_index): part.start_offset
        for topic, asked in altered
        for part in asked.partitions
        if part.partition_index in topic.partitions
    }

    def respond(result: Codes | CoordinatorError) -> None:
        if isinstance(result, CoordinatorError):
            code, message = result.code, result.message
            context.respond(context.new("AlterShareGroupOffsetsResponse", error_code=code, error_message=message))
            return
        answers = [_altered(context, topic, asked, result) for topic, asked in altered]
        context.respond(context.new("AlterShareGroupOffsetsResponse", responses=[*refused, *answers]))

    context.broker.groups.share_states.alter(request.group_id, starts, respond)
    return None


def _altered(context: RequestContext, topic: Topic, asked: Message, codes: Codes) -> Message:
    parts = []
    for part in asked.partitions:
        answer = context.new("AlterShareGroupOffsetsResponsePartition", partition_index=part.partition_index)
        code = codes.get((topic.topic_id, part.partition_index), error_codes.UNKNOWN_TOPIC_OR_PARTITION)
        if code:
            is_unknown = code == error_codes.UNKNOWN_TOPIC_OR_PARTITION
            answer.error_code = code
            answer.error_message = _UNKNOWN_TOPIC if is_unknown else error_codes.NAMES.get(code)
        parts.append(answer)
    return context.new("AlterShareGroupOffsetsResponseTopic", topic_name=topic.name, topic_id=topic.topic_id, partitions=parts)


def _group_refusal(context: RequestContext, request: Message, operation: str) -> int:
    if not is_enabled(context):
        return error_codes.UNSUPPORTED_VERSION
    if not context.is_allowed(operation, "GROUP", request.group_id):
        return error_codes.GROUP_AUTHORIZATION_FAILED
    return error_codes.NONE if request.group_id else error_codes.INVALID_GROUP_ID


# ------------------------------------------------------------------------------------------------------------------ delete


def handle_delete_share_group_offsets(context: RequestContext, request: Message) -> Message | None:
    """Answer a DeleteShareGroupOffsetsRequest."""
    code = _group_refusal(context, request, "DELETE")
    if code:
        return context.new("DeleteShareGroupOffsetsResponse", error_code=code, error_message=_SENTENCES[code])
    forbidden: list[Message] = []
    unknown: list[Message] = []
    topics: list[Topic] = []
    for asked in request.topics:
        topic = context.broker.metadata.image.topic(asked.topic_name)
        if not context.is_allowed("READ", "TOPIC", asked.topic_name):
            refusal = _topic_refusal(error_codes.TOPIC_AUTHORIZATION_FAILED, _FORBIDDEN_TOPIC)
            forbidden.append(_deleted(context, asked.topic_name, **refusal))
        elif topic is None:
            refusal = _topic_refusal(error_codes.UNKNOWN_TOPIC_OR_PARTITION, _UNKNOWN_TOPIC)
            unknown.append(_deleted(context, asked.topic_name, **refusal))
        else:
            topics.append(topic)

    def respond(result: dict[Uuid, int] | CoordinatorError) -> None:
        if isinstance(result, CoordinatorError):
            code, message = result.code, result.message
            context.respond(context.new("DeleteShareGroupOffsetsResponse", error_code=code, error_message=message))
            return
        without = _topic_refusal(error_codes.UNKNOWN_TOPIC_OR_PARTITION, _NO_OFFSETS)
        answers = [_deleted(context, topic.name, **without) for topic in topics if topic.topic_id not in result]
        for topic in topics:
            failure = result.get(topic.topic_id)
            if failure is not None:
                refusal = _topic_refusal(failure, error_codes.NAMES[failure]) if failure else {}
                answers.append(_deleted(context, topic.name, topic_id=topic.topic_id, **refusal))
        responses = [*forbidden, *unknown, *answers]
        context.respond(context.new("DeleteShareGroupOffsetsResponse", responses=responses))

    topic_ids = [topic.topic_id for topic in topics]
    context.broker.groups.share_states.delete_offsets(request.group_id, topic_ids, respond)
    return None


def _deleted(context: RequestContext, name: str, **fields: object) -> Message:
    return context.new("DeleteShareGroupOffsetsResponseTopic", topic_name=name, **fields)
