"""Checks of the requests to classic groups: the errors that do not change the group, and the members that leave."""

from __future__ import annotations

from kcli.protocol import error_codes
from kcli.server.coordinator.group.classic_group import UNKNOWN_MEMBER_ID, ClassicGroup, ClassicGroupState
from kcli.server.coordinator.group.classic_messages import LeavingMember, SyncRequest
from kcli.server.coordinator.operation import CoordinatorError

_MAX_REASON = 255  # of a client's reason in the log; Kafka's clients send no more


def with_reason(text: str, reason: str | None) -> str:
    """Return a text for the log, with the reason that a client has stated."""
    return f"{text} ({reason[:_MAX_REASON]})" if reason else text


def remove_leaving(group: ClassicGroup, leaving: LeavingMember) -> int:
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


def check_sync(group: ClassicGroup, request: SyncRequest) -> int:
    """Return 0, or the error of a sync whose member is known."""
    if request.generation_id != group.generation_id:
        return error_codes.ILLEGAL_GENERATION
    pairs = ((request.protocol_type, group.protocol_type), (request.protocol_name, group.protocol_name))
    if any(stated is not None and known is not None and stated != known for stated, known in pairs):
        return error_codes.INCONSISTENT_GROUP_PROTOCOL
    is_preparing = group.state is ClassicGroupState.PREPARING_REBALANCE
    return error_codes.REBALANCE_IN_PROGRESS if is_preparing else error_codes.NONE


def check_generation(group: ClassicGroup, generation_id: int) -> None:
    """Check the generation of a request. Raises CoordinatorError: ILLEGAL_GENERATION."""
    if generation_id != group.generation_id:
        text = f"group {group.group_id} is in generation {group.generation_id}, not {generation_id}"
        raise CoordinatorError(error_codes.ILLEGAL_GENERATION, text)


def non_empty(group_id: str) -> CoordinatorError:
    """Return the error for a group that has members."""
    return CoordinatorError(error_codes.NON_EMPTY_GROUP, f"group {group_id} is not empty")
