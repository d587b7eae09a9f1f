"""The requests of a member of a classic group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

version              has
-------------------  --------------------------------------------------------------------------------------------------
5 / 3 / 3 / 3        group.instance.id (KIP-345); in older versions it cannot be sent: a static member cannot join
8 of JoinGroup       why the member joins (KIP-800), as 5 of LeaveGroup why it leaves
3 of LeaveGroup      several members; here always one
"""

from __future__ import annotations

from collections.abc import Sequence

from kcli.client.consumer.consumer_config import ConsumerConfig
from kcli.client.consumer.membership import GroupMetadata
from kcli.protocol.apis import API_KEYS, HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, SYNC_GROUP
from kcli.protocol.message import Message

PROTOCOL_TYPE = "consumer"
MAX_REASON = 255
FIRST_LEAVE_WITH_MEMBERS = 3


def join_request(member: GroupMetadata, config: ConsumerConfig, protocols: list[Message], reason: str) -> Message:
    """Return a JoinGroup; max.poll.interval.ms is the time for the rebalance."""
    return API_KEYS[JOIN_GROUP].request.new(
        group_id=member.group_id,
        session_timeout_ms=config.session_timeout_ms,
        rebalance_timeout_ms=config.max_poll_interval_ms,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocols=protocols,
        reason=reason[:MAX_REASON] or None,
    )


def sync_request(member: GroupMetadata, protocol_name: str | None, assignments: Sequence[Message]) -> Message:
    """Return a SyncGroup; only the leader has assignments."""
    return API_KEYS[SYNC_GROUP].request.new(
        group_id=member.group_id,
        generation_id=member.generation_id,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=protocol_name,
        assignments=list(assignments),
    )


def heartbeat_request(member: GroupMetadata) -> Message:
    """Return a Heartbeat."""
    return API_KEYS[HEARTBEAT].request.new(
        group_id=member.group_id,
        generation_id=member.generation_id,
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
    )


def leave_request(member: GroupMetadata, reason: str, version: int) -> Message:
    """Return a LeaveGroup in a version."""
    kind = API_KEYS[LEAVE_GROUP].request
    if version < FIRST_LEAVE_WITH_MEMBERS:
        return kind.new(group_id=member.group_id, member_id=member.member_id)
    identity = kind.classes["MemberIdentity"](
        member_id=member.member_id, group_instance_id=member.group_instance_id, reason=reason
    )
    return kind.new(group_id=member.group_id, members=[identity])
