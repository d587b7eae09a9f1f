"""The descriptions of the topologies of streams groups (KIP-1331): how clients send them, and how they are shown.

refused                                                            with
-----------------------------------------------------------------  ---------------------------------------------
no plugin class for descriptions                                   UNSUPPORTED_VERSION
no group id, no member id                                          INVALID_REQUEST
no streams group, an unknown member                                GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID
another topology epoch than the group's, impossible nodes          INVALID_REQUEST
a description that is too large                                    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED
"""

from __future__ import annotations

from typing import Any

from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.apis.modern_groups import is_blank
from kcli.server.coordinator.group.group_coordinator import GroupShard
from kcli.server.coordinator.group.topology_descriptions import PROCESSOR, SINK, SOURCE, has_plugin
from kcli.server.coordinator.operation import CoordinatorError, Decision


def update_topology_description(context: RequestContext, request: Message, *, is_enabled: bool) -> Message | None:
    """Answer a StreamsGroupTopologyDescriptionUpdateRequest; `is_enabled`: the streams protocol is served."""

    def answer(error: CoordinatorError | None) -> Message:
        if error is None:
            return context.new("StreamsGroupTopologyDescriptionUpdateResponse")
        message = error.message or None
        return context.new("StreamsGroupTopologyDescriptionUpdateResponse", error_code=error.code, error_message=message)

    def decide(shard: GroupShard) -> Decision[None]:
        return shard.streams.describe_topology(request)

    def respond(result: CoordinatorError | None, now_ms: int) -> None:
        context.respond(answer(result))

    try:
        _check(context, request, is_enabled=is_enabled)
    except CoordinatorError as error:
        return answer(error)
    context.broker.groups.write(request.group_id, decide, respond)
    return None


def _check(context: RequestContext, request: Message, *, is_enabled: bool) -> None:
    """Check what does not depend on the group. Raises CoordinatorError."""
    if not is_enabled:
        raise CoordinatorError(error_codes.UNSUPPORTED_VERSION, "")
    if not context.is_allowed("READ", "GROUP", request.group_id):
        raise CoordinatorError(error_codes.GROUP_AUTHORIZATION_FAILED, "")
    if not has_plugin(context.broker.config):
        text = "The broker has no streams group topology description plugin configured."
        raise CoordinatorError(error_codes.UNSUPPORTED_VERSION, text)
    for text, name in (("MemberId", request.member_id), ("GroupId", request.group_id)):
        if is_blank(name):
            raise CoordinatorError(error_codes.INVALID_REQUEST, f"{text} can't be empty.")


def described_topology(context: RequestContext, description: Message) -> Message:
    """Return a description as StreamsGroupDescribe has it: every node has only what its type has, and that once."""
    return context.new(
        "TopologyDescription",
        subtopologies=[
            context.new(
                "TopologyDescriptionSubtopology",
                subtopology_id=part.subtopology_id,
                nodes=[_node(context, node) for node in part.nodes],
            )
            for part in description.subtopologies
        ],
        global_stores=[
            context.new(
                "TopologyDescriptionGlobalStore",
                source=_node(context, store.source),
                processor=_node(context, store.processor),
            )
            for store in description.global_stores
        ],
    )


def _node(context: RequestContext, node: Message) -> Message:
    own: dict[str, Any] = {
        SOURCE: {"source_topics": list(dict.fromkeys(node.source_topics))},
        PROCESSOR: {"stores": list(dict.fromkeys(node.stores))},
        SINK: {"sink_topic": node.sink_topic},
    }[node.node_type]
    successors = list(dict.fromkeys(node.successors))
    return context.new("TopologyDescriptionNode", name=node.name, node_type=node.node_type, successors=successors, **own)
