"""Requests and answers of classic groups, without what differs between the versions of the APIs; errors are Kafka's codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

Protocols = tuple[tuple[str, bytes], ...]  # names and metadata, the preferred one first


class JoinRequest(NamedTuple):
    """A join. `requires_known_member_id` from version 4 on, `supports_skipping_assignment` from version 9 on."""

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    protocol_type: str
    protocols: Protocols
    session_timeout_ms: int
    rebalance_timeout_ms: int
    requires_known_member_id: bool
    supports_skipping_assignment: bool
    reason: str | None = None


class SyncRequest(NamedTuple):
    """A sync; the leader's has the assignment by member id. A protocol is None before version 5."""

    group_id: str
    generation_id: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignment: Mapping[str, bytes]


class LeavingMember(NamedTuple):
    """A member that leaves; an administrator names the instance id alone."""

    member_id: str
    instance_id: str | None
    reason: str | None = None


class LeaveResult(NamedTuple):
    """The answer for one member that leaves."""

    error_code: int
    member_id: str
    instance_id: str | None


class DescribedMember(NamedTuple):
    """A member as DescribeGroups shows it; `metadata` only of a stable group."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(NamedTuple):
    """A group as DescribeGroups shows it; `protocol_data` is the name of the protocol of a stable group."""

    group_id: str
    state: str
    protocol_type: str
    protocol_data: str
    members: tuple[DescribedMember, ...]


class ListedGroup(NamedTuple):
    """A group as ListGroups shows it."""

    group_id: str
    protocol_type: str
    state: str
    group_type: str = "classic"


class JoinedMember(NamedTuple):
    """A member in the answer to the leader's join."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    """The answer to a join; only the leader's has `members`."""

    error_code: int
    member_id: str
    generation_id: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncResult(NamedTuple):
    """The answer to a sync."""

    error_code: int
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


RespondJoin = Callable[[JoinResult], None]
RespondSync = Callable[[SyncResult], None]
