"""The member of a consumer or streams group that a request is from: by its member id, its instance id and its epoch.

The epoch of a member of the classic protocol is the generation of its requests: its errors are those of classic groups.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, TypeVar

from kcli.protocol import error_codes
from kcli.server.coordinator.group.classic_messages import LeavingMember
from kcli.server.coordinator.operation import CoordinatorError
from kcli.state.groups import (
    ConsumerGroup,
    ConsumerGroupMember,
    ModernGroupMember,
    Partitions,
    StreamsGroup,
    StreamsGroupMember,
)

_COMMIT_VERSION = 9  # of OffsetCommit: the first with member epochs
_AnyMember = TypeVar("_AnyMember", ConsumerGroupMember, StreamsGroupMember)


class _Group(Protocol[_AnyMember]):
    """What both kinds of groups have."""

    @property
    def group_id(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def members(self) -> dict[str, _AnyMember]: ...


def find_leaving(group: ConsumerGroup, leaving: LeavingMember) -> ConsumerGroupMember:
    """Return a member that is to be removed. Raises CoordinatorError."""
    if leaving.instance_id is not None:
        member = static_member(group, leaving.instance_id, leaving.member_id)
        if member is not None and not leaving.member_id:
            return member
        return check_static(member, leaving.instance_id, leaving.member_id)
    if leaving.member_id not in group.members:
        raise unknown_member(group.group_id, leaving.member_id)
    return group.members[leaving.member_id]


def static_member(group: _Group[_AnyMember], instance_id: str, member_id: str) -> _AnyMember | None:
    """Return the member with an instance id; it is looked for if it is not the one with this member id."""
    expected = group.members.get(member_id)
    if expected is not None and expected.instance_id == instance_id:
        return expected
    return next((member for member in group.members.values() if member.instance_id == instance_id), None)


def check_static(member: _AnyMember | None, instance_id: str, member_id: str) -> _AnyMember:
    """Return the member with an instance id if it has this member id. Raises CoordinatorError."""
    if member is None:
        raise CoordinatorError(error_codes.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        text = f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}."
        raise CoordinatorError(error_codes.FENCED_INSTANCE_ID, text)
    return member


def check_epoch(member: ConsumerGroupMember, epoch: int, owned: Partitions | None) -> None:
    """Check the epoch of a heartbeat: 0, the present one, or the one before with no other partitions than the member's.

    The answer to the last one may have been lost. Raises CoordinatorError.
    """
    if epoch in (0, member.member_epoch):
        return
    if epoch == member.previous_member_epoch and owned is not None and epoch < member.member_epoch:
        assigned = member.assigned_partitions
        if all(index in assigned.get(topic_id, ()) for topic_id, found in owned.items() for index in found):
            return
    raise fenced_epoch("consumer", member, epoch)


def fenced_epoch(kind: str, member: ModernGroupMember, epoch: int) -> CoordinatorError:
    """Return the error for a heartbeat with an epoch that the member of a group of this kind does not have."""
    size = "greater" if epoch > member.member_epoch else "smaller"
    text = (
        f"The {kind} group member has a {size} member epoch ({epoch}) than the one known by the group coordinator "
        f"({member.member_epoch}). The member must abandon all its partitions and rejoin."
    )
    return CoordinatorError(error_codes.FENCED_MEMBER_EPOCH, text)


def unknown_member(group_id: str, member_id: str) -> CoordinatorError:
    """Return the error for a member that a group does not have."""
    return CoordinatorError(error_codes.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}.")


def left_for_a_time(member: ConsumerGroupMember, epoch: int) -> ConsumerGroupMember:
    """Return a static member that has left and keeps its partitions, from epoch 0 on: its successor begins with that."""
    kept = {topic_id: dict.fromkeys(found, 0) for topic_id, found in member.assigned_partitions.items()}
    return replace(member, member_epoch=epoch, assigned_partitions=kept, partitions_pending_revocation={})


def check_classic(member: ConsumerGroupMember, generation_id: int) -> None:
    """Check that a member uses the classic protocol, and the generation of its request. Raises CoordinatorError."""
    if member.classic_protocols is None:
        text = f"Member {member.member_id} does not use the classic protocol."
        raise CoordinatorError(error_codes.UNKNOWN_MEMBER_ID, text)
    if generation_id != member.member_epoch:
        text = (
            f"The request generation id {generation_id} is not equal to the member epoch {member.member_epoch} of member "
            f"{member.member_id}."
        )
        raise CoordinatorError(error_codes.ILLEGAL_GENERATION, text)


def committing_member(
    group: _Group[_AnyMember], member_id: str, instance_id: str | None, epoch: int, version: int | None
) -> _AnyMember | None:
    """Return the member if it commits offsets in an epoch before the present one, None if it may commit any.

    `version` is that of OffsetCommit, None in a transaction. Raises CoordinatorError.
    """
    if epoch < 0 and not group.members:
        return None
    if version is None and epoch < 0 and not member_id and instance_id is None:
        return None
    member = find_member(group, member_id)
    if isinstance(member, ConsumerGroupMember) and member.classic_protocols is not None:
        _check_present_epoch(member, epoch)
        return None
    if version is not None and version < _COMMIT_VERSION:
        text = f"OffsetCommit version 9 or above must be used by members using the {group.kind} group protocol"
        raise CoordinatorError(error_codes.UNSUPPORTED_VERSION, text)
    if epoch > member.member_epoch:
        text = f"Received member epoch {epoch} is newer than current member epoch {member.member_epoch}."
        raise CoordinatorError(error_codes.STALE_MEMBER_EPOCH, text)
    return member if epoch < member.member_epoch else None


def validate_offset_fetch(group: ConsumerGroup | StreamsGroup, member_id: str | None, epoch: int) -> None:
    """Check the member that fetches offsets, if the request states one. Raises CoordinatorError."""
    if member_id is None and epoch < 0:
        return
    member = group.members.get(member_id or "")
    if member is None:
        raise unknown_member(group.group_id, member_id or "")
    _check_present_epoch(member, epoch)


def _check_present_epoch(member: ConsumerGroupMember | StreamsGroupMember, epoch: int) -> None:
    if epoch == member.member_epoch:
        return
    if isinstance(member, ConsumerGroupMember) and member.classic_protocols is not None:
        text = f"The received generation id {epoch} does not match the expected member epoch {member.member_epoch}."
        raise CoordinatorError(error_codes.ILLEGAL_GENERATION, text)
    text = f"The received member epoch {epoch} does not match the expected member epoch {member.member_epoch}."
    raise CoordinatorError(error_codes.STALE_MEMBER_EPOCH, text)


def find_member(group: _Group[_AnyMember], member_id: str) -> _AnyMember:
    """Return a member of a group. Raises CoordinatorError: UNKNOWN_MEMBER_ID."""
    member = group.members.get(member_id)
    if member is None:
        raise unknown_member(group.group_id, member_id)
    return member
