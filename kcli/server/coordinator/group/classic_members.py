"""The members of consumer groups that use the classic protocol (KIP-848; Kafka: classicGroup...ToConsumerGroup).

    request    does
    ---------  ---------------------------------------------------------------------------------------------------------
    join       the same as a heartbeat of the consumer protocol: the subscription, a new target, the next assignment; it
               does not wait for other members, and no member leads
    sync       returns the assignment that the last join has decided
    heartbeat  extends the session; REBALANCE_IN_PROGRESS if the member has to join again: for a later target of the group, to
               revoke partitions, or to get those that other members have revoked since
    leave      (ConsumerGroupManager.remove_members)

The generation of such a member is its epoch. After REBALANCE_IN_PROGRESS it must join, and after the join sync, within its
rebalance timeout. What it owns is in its subscription from version 1 on; before that it revokes everything before a join.
"""

from __future__ import annotations

from dataclasses import replace

from kcli.format.kafka_uuid import Uuid
from kcli.log.rng import Random
from kcli.protocol import error_codes
from kcli.protocol.consumer_protocol import decode_subscription_message
from kcli.protocol.internal_records import CONSUMER_PROTOCOL_TYPE
from kcli.protocol.message_errors import DecodeError
from kcli.server.coordinator.group.classic_group import UNKNOWN_MEMBER_ID
from kcli.server.coordinator.group.classic_group_manager import Completion
from kcli.server.coordinator.group.classic_messages import (
    JoinRequest,
    JoinResult,
    RespondJoin,
    RespondSync,
    SyncRequest,
    SyncResult,
)
from kcli.server.coordinator.group.consumer_group_change import ConsumerGroupChange, changed_subscription
from kcli.server.coordinator.group.consumer_group_manager import ConsumerGroupManager
from kcli.server.coordinator.group.consumer_members import check_classic, check_static, static_member, unknown_member
from kcli.server.coordinator.group.current_assignment import UNRELEASED, UNREVOKED
from kcli.server.coordinator.group.group_migration import GroupMigration, encode_assignment, partitions_by_id
from kcli.server.coordinator.operation import CoordinatorError, Decision
from kcli.server.metadata_cache import MetadataCache
from kcli.state.groups import ConsumerGroup, ConsumerGroupMember

_UUID_BYTES = 16


class ClassicMembers:
    """The requests of the classic protocol to the consumer groups of one shard."""

    def __init__(self, groups: ConsumerGroupManager, migration: GroupMigration, metadata: MetadataCache, rng: Random) -> None:
        self._groups = groups
        self._sessions = groups.sessions
        self._migration = migration
        self._metadata = metadata
        self._rng = rng

    # ------------------------------------------------------------------------------------------------------------ join

    def join(self, group: ConsumerGroup, request: JoinRequest, respond: RespondJoin) -> Decision[Completion | None]:
        """Let a client join a group that has members."""
        try:
            return self._join(group, request, respond)
        except CoordinatorError as error:
            respond(JoinResult(error.code, UNKNOWN_MEMBER_ID))
        except DecodeError:
            # Kafka fails here, too: the metadata of the protocols is not that of a consumer.
            respond(JoinResult(error_codes.UNKNOWN_SERVER_ERROR, UNKNOWN_MEMBER_ID))
        return Decision(None)

    def _join(self, group: ConsumerGroup, request: JoinRequest, respond: RespondJoin) -> Decision[Completion | None]:
        """Decide a join. Raises CoordinatorError, DecodeError."""
        member_id = request.member_id or str(Uuid(self._rng.randbytes(_UUID_BYTES)))
        self._groups.check_size(group, member_id)
        if not _supports_protocols(group, request):
            text = f"Member {member_id}'s protocols are not supported."
            raise CoordinatorError(error_codes.INCONSISTENT_GROUP_PROTOCOL, text)
        if request.requires_known_member_id and not request.member_id and request.instance_id is None:
            respond(JoinResult(error_codes.MEMBER_ID_REQUIRED, member_id))
            return Decision(None)
        change = self._groups.begin_change(group)
        replaced = None if request.instance_id is None else static_member(group, request.instance_id, member_id)
        member = self._find_member(change, request, member_id, replaced)
        subscription = decode_subscription_message(request.protocols[0][1])
        updated = _with_subscription(member, request, sorted(set(subscription.topics)), subscription.rack_id)
        if updated != member or member_id not in change.members:
            change.put_member(updated)
        has_new_regex = (updated.subscribed_topic_regex or "") != (member.subscribed_topic_regex or "")
        if has_new_regex:
            change.drop_unused_regexes()
        is_changed = has_new_regex or updated.subscribed_topic_names != member.subscribed_topic_names
        self._groups.update_epoch(change, is_changed)
        owned = partitions_by_id(subscription.owned_partitions, self._metadata)
        settled = None
        if replaced is not None and self._migration.can_downgrade(group, (replaced.member_id,), is_replaced=True):
            # The classic group rebalances if the subscription is another one: there is no need for a target.
            moved = updated if is_changed else change.reconcile(updated, owned, is_changed)
            reason = "a static member has another subscription" if is_changed else None
            settled = self._groups.downgrade(change, (replaced.member_id,), moved, reason)
        else:
            self._groups.update_target(change)
            moved = change.reconcile(updated, owned, is_changed)
        if member_id not in group.members:
            self._groups.report_joined(group, moved)
        result = JoinResult(
            error_codes.NONE, member_id, moved.member_epoch, CONSUMER_PROTOCOL_TYPE, request.protocols[0][0], UNKNOWN_MEMBER_ID
        )

        def complete(code: int) -> None:
            if code:
                respond(JoinResult(code, UNKNOWN_MEMBER_ID))
                return
            if settled is None:
                self._sessions.extend(group.group_id, member_id, request.session_timeout_ms)
                self._sessions.begin_sync(group.group_id, member_id, request.rebalance_timeout_ms)
            respond(result)

        return Decision(complete, change.records, settled)

    def _find_member(
        self, change: ConsumerGroupChange, request: JoinRequest, member_id: str, replaced: ConsumerGroupMember | None
    ) -> ConsumerGroupMember:
        """Return the member that joins; `replaced` is the one with its instance id. Raises CoordinatorError."""
        if request.instance_id is not None:
            if request.member_id:
                return check_static(replaced, request.instance_id, member_id)
            if replaced is not None:
                return change.replace_member(replaced, member_id)
        found = change.members.get(member_id)
        return ConsumerGroupMember(member_id, member_epoch=0, subscribed_topic_regex="") if found is None else found

    # ------------------------------------------------------------------------------------------------- sync, heartbeat

    def sync(self, group: ConsumerGroup, request: SyncRequest, respond: RespondSync) -> Decision[Completion | None]:
        """Give a member its assignment."""
        group_id = group.group_id
        try:
            member = _find(group, request.member_id, request.instance_id)
            check_classic(member, request.generation_id)
            first_protocol = _check_protocol(member, request)
            if group.assignment_epoch > member.member_epoch and member.state != UNREVOKED:
                self._sessions.begin_join(group_id, member.member_id, member.rebalance_timeout_ms)
                text = f"group {group_id} has a later target than member {member.member_id}, which has to join again"
                raise CoordinatorError(error_codes.REBALANCE_IN_PROGRESS, text)
        except CoordinatorError as error:
            respond(SyncResult(error.code))
            return Decision(None)

        def complete(code: int) -> None:
            if code:
                respond(SyncResult(code))
                return
            self._sessions.end_sync(group_id, member.member_id)
            self._sessions.extend(group_id, member.member_id, member.session_timeout_ms or 0)
            assignment = encode_assignment(member.assigned_partitions, first_protocol, self._metadata)
            respond(SyncResult(error_codes.NONE, request.protocol_type, request.protocol_name, assignment))

        return Decision(complete)

    def heartbeat(self, group: ConsumerGroup, member_id: str, instance_id: str | None, generation_id: int) -> int:
        """Return 0, or REBALANCE_IN_PROGRESS if the member has to join. Raises CoordinatorError."""
        member = _find(group, member_id, instance_id)
        check_classic(member, generation_id)
        self._sessions.extend(group.group_id, member_id, member.session_timeout_ms or 0)
        is_free = member.state == UNRELEASED and not _waits_for_partitions(group, member)
        if member.member_epoch < group.assignment_epoch or member.state == UNREVOKED or is_free:
            self._sessions.begin_join(group.group_id, member.member_id, member.rebalance_timeout_ms)
            return error_codes.REBALANCE_IN_PROGRESS
        return error_codes.NONE


def _supports_protocols(group: ConsumerGroup, request: JoinRequest) -> bool:
    """Return whether all members of the classic protocol support one of a client's protocols."""
    known = [member.classic_protocols for member in group.members.values() if member.classic_protocols is not None]
    names = (name for name, _ in request.protocols)
    return request.protocol_type == CONSUMER_PROTOCOL_TYPE and any(
        all(name in protocols for protocols in known) for name in names
    )


def _with_subscription(
    member: ConsumerGroupMember, request: JoinRequest, topics: list[str], rack_id: str | None
) -> ConsumerGroupMember:
    updated = changed_subscription(
        member,
        instance_id=request.instance_id,
        rack_id=rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        subscribed_topic_names=topics,
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_ms=request.session_timeout_ms,
        classic_protocols=dict(request.protocols),
    )
    return replace(updated, subscribed_topic_regex="") if updated.subscribed_topic_regex else updated


def _find(group: ConsumerGroup, member_id: str, instance_id: str | None) -> ConsumerGroupMember:
    """Return the member that sends a request. Raises CoordinatorError."""
    if instance_id is not None:
        return check_static(static_member(group, instance_id, member_id), instance_id, member_id)
    found = group.members.get(member_id)
    if found is None:
        raise unknown_member(group.group_id, member_id)
    return found


def _check_protocol(member: ConsumerGroupMember, request: SyncRequest) -> bytes:
    """Return the metadata of a member's first protocol, which is the one of its join. Raises CoordinatorError."""
    assert member.classic_protocols is not None
    name, metadata = next(iter(member.classic_protocols.items()))
    for stated, known in ((request.protocol_type, CONSUMER_PROTOCOL_TYPE), (request.protocol_name, name)):
        if stated is not None and stated != known:
            text = f"The protocol {stated} of member {member.member_id} is not {known}, which its join was answered with."
            raise CoordinatorError(error_codes.INCONSISTENT_GROUP_PROTOCOL, text)
    return metadata


def _waits_for_partitions(group: ConsumerGroup, member: ConsumerGroupMember) -> bool:
    """Return whether another member has a partition that the member is to get."""
    return any(
        index not in member.assigned_partitions.get(topic_id, ()) and (topic_id, index) in group.owners
        for topic_id, indexes in group.target_assignment.get(member.member_id, {}).items()
        for index in indexes
    )
