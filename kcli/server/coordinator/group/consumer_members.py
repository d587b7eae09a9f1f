"""The member of a consumer group that a request is from: by its member id, its instance id and its epoch."""

from __future__ import annotations

from kcli.protocol import error_codes
from kcli.server.coordinator.group.classic_messages import LeavingMember
from kcli.server.coordinator.runtime import CoordinatorError
from kcli.state.groups import ConsumerGroup, ConsumerMember, Partitions


def find_leaving(group: ConsumerGroup, leaving: LeavingMember) -> ConsumerMember:
    """Return a member that is to be removed. Raises CoordinatorError."""
    if leaving.instance_id is not None:
        member = static_member(group, leaving.instance_id, leaving.member_id)
        if member is not None and not leaving.member_id:
            return member
        return check_static(member, leaving.instance_id, leaving.member_id)
    if leaving.member_id not in group.members:
        raise unknown_member(group.group_id, leaving.member_id)
    return group.members[leaving.member_id]


def static_member(group: ConsumerGroup, instance_id: str, member_id: str) -> ConsumerMember | None:
    """Return the member with an instance id; it is looked for if it is not the one with this member id."""
    expected = group.members.get(member_id)
    if expected is not None and expected.instance_id == instance_id:
        return expected
    return next((member for member in group.members.values() if member.instance_id == instance_id), None)


def check_static(member: ConsumerMember | None, instance_id: str, member_id: str) -> ConsumerMember:
    """Return the member with an instance id if it has this member id. Raises CoordinatorError."""
    if member is None:
        raise CoordinatorError(error_codes.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if member.member_id != member_id:
        text = f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}."
        raise CoordinatorError(error_codes.FENCED_INSTANCE_ID, text)
    return member


def check_epoch(member: ConsumerMember, epoch: int, owned: Partitions | None) -> None:
    """Check the epoch of a heartbeat: 0, the present one, or the one before with no other partitions than the member's.

    The answer to the last one may have been lost. Raises CoordinatorError.
    """
    if epoch in (0, member.member_epoch):
        return
    if epoch == member.previous_member_epoch and owned is not None and epoch < member.member_epoch:
        assigned = member.assigned_partitions
        if all(index in assigned.get(topic_id, ()) for topic_id, found in owned.items() for index in found):
            return
    size = "greater" if epoch > member.member_epoch else "smaller"
    text = (
        f"The consumer group member has a {size} member epoch ({epoch}) than the one known by the group coordinator "
        f"({member.member_epoch}). The member must abandon all its partitions and rejoin."
    )
    raise CoordinatorError(error_codes.FENCED_MEMBER_EPOCH, text)


def unknown_member(group_id: str, member_id: str) -> CoordinatorError:
    """Return the error for a member that a group does not have."""
    return CoordinatorError(error_codes.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}.")
