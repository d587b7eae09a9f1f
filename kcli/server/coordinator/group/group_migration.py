"""The migration of groups between the classic and the consumer protocol, with members (KIP-848; Kafka: GroupMetadataManager).

    conversion          when                                              the members afterwards
    ------------------  ------------------------------------------------  --------------------------------------------------
    classic, empty      the first member of the consumer protocol joins   none: the group is removed, its offsets stay
    classic, consumers  the same, if group.consumer.migration.policy has  members of the classic protocol in a consumer
                        upgrades, and the group fits                      group; what they wait for is answered with
                                                                          REBALANCE_IN_PROGRESS
    consumer, classic   the last member of the consumer protocol leaves,  the members of a stable classic group, which
                        is removed, or is replaced by a static member of  rebalances if the members or subscriptions have
                        the classic protocol, if the policy has           changed
                        downgrades, and the group fits

A group that is to be upgraded must have the assignments of an assignor that keeps no data of its own in them. The generation
of a classic group and the epoch of a consumer group continue each other.

Classic members name topics, records have topic ids. An assignment is encoded in the version of its member's subscription
(kcli.protocol.consumer_protocol has the bytes).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kcli.format.kafka_uuid import Uuid
from kcli.protocol import error_codes
from kcli.protocol.consumer_protocol import (
    assignment_type,
    decode_assignment_message,
    decode_subscription_message,
    encode_message,
    read_version,
)
from kcli.protocol.message import Message
from kcli.protocol.message_errors import DecodeError
from kcli.server.coordinator.coordinator_record import CoordinatorRecord
from kcli.server.coordinator.group.classic_group import ClassicGroup, ClassicGroupMember, ClassicGroupState, tombstone
from kcli.server.coordinator.group.classic_group_manager import ClassicGroupManager
from kcli.server.coordinator.group.group_manager import ShardParts
from kcli.server.coordinator.group.group_records import (
    consumer_current_record,
    consumer_group_record,
    consumer_group_tombstones,
    consumer_member_record,
    consumer_target_epoch_record,
    consumer_target_record,
)
from kcli.server.coordinator.operation import CoordinatorError
from kcli.server.metadata_cache import MetadataCache
from kcli.state.group_state import GroupState
from kcli.state.groups import ConsumerGroup, ConsumerGroupMember, Partitions, StoredClassicGroup

_UPGRADES = ("upgrade", "bidirectional")
_DOWNGRADES = ("downgrade", "bidirectional")


class GroupMigration:
    """The conversions of the groups of one shard; `classic` coordinates its classic groups."""

    def __init__(self, parts: ShardParts, classic: ClassicGroupManager) -> None:
        self._state = parts.state
        self._config = parts.config
        self._metadata = parts.metadata
        self._hashes = parts.hashes
        self.classic = classic

    def _policy(self) -> str:
        return self._config.get_str("group.consumer.migration.policy").lower()

    # --------------------------------------------------------------------------------------------------------- upgrade

    def upgrade(self, group_id: str) -> list[CoordinatorRecord]:
        """Return the records that make a group a consumer group. Raises CoordinatorError.

        The caller ends the classic group when it has decided the operation.
        """
        record = self._state.groups.get(group_id)
        if record is None:
            return []
        if not isinstance(record, StoredClassicGroup):
            raise CoordinatorError(error_codes.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a consumer group.")
        group = self.classic.find(group_id)
        if group.state is ClassicGroupState.EMPTY:
            return [tombstone(group_id)]
        if self._policy() not in _UPGRADES:
            raise _not_upgraded(group_id, "online upgrade is disabled")
        if not group.is_consumers_group:
            raise _not_upgraded(group_id, "the group does not use the consumer embedded protocol")
        if len(group.members) > self._config.get_int("group.consumer.max.size"):
            raise _not_upgraded(group_id, "the group size exceeds the consumer group maximum size")
        try:
            members = [self._upgraded_member(group, member) for member in group.members.values()]
        except DecodeError as error:
            raise _not_upgraded(group_id, "the embedded consumer protocol is malformed") from error
        return [tombstone(group_id), *self._upgrade_records(group, members)]

    def _upgraded_member(self, group: ClassicGroup, member: ClassicGroupMember) -> ConsumerGroupMember:
        """Return a member that has its last assignment. Raises DecodeError, CoordinatorError."""
        if group.protocol_name is None:
            # Kafka fails here, too: the first rebalance of the group has not selected a protocol yet.
            raise CoordinatorError(error_codes.UNKNOWN_SERVER_ERROR, f"group {group.group_id} has no protocol yet")
        assigned: Partitions = {}
        if member.assignment:
            assignment = decode_assignment_message(member.assignment)
            if assignment.user_data:
                text = (
                    "an unsupported custom assignor is in use. Please refer to the documentation or switch to a default "
                    "assignor before re-attempting the upgrade"
                )
                raise _not_upgraded(group.group_id, text)
            assigned = partitions_by_id(assignment.assigned_partitions, self._metadata)
        subscription = decode_subscription_message(member.metadata(group.protocol_name))
        return ConsumerGroupMember(
            member.member_id,
            member.instance_id,
            subscription.rack_id,
            member.client_id,
            member.client_host,
            member_epoch=group.generation_id,
            previous_member_epoch=group.generation_id,
            subscribed_topic_names=sorted(set(subscription.topics)),
            subscribed_topic_regex="",
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            session_timeout_ms=member.session_timeout_ms,
            classic_protocols=dict(member.protocols),
            assigned_partitions={
                topic_id: dict.fromkeys(indexes, group.generation_id) for topic_id, indexes in assigned.items()
            },
        )

    def _upgrade_records(self, group: ClassicGroup, members: list[ConsumerGroupMember]) -> list[CoordinatorRecord]:
        group_id, epoch = group.group_id, group.generation_id
        names = {name for member in members for name in member.subscribed_topic_names}
        return [
            *(consumer_member_record(group_id, member) for member in members),
            consumer_group_record(group_id, epoch, self._hashes.group_hash(names)),
            *(consumer_target_record(group_id, member.member_id, _partitions(member)) for member in members),
            consumer_target_epoch_record(group_id, epoch, 0),
            *(consumer_current_record(group_id, member) for member in members),
        ]

    # ------------------------------------------------------------------------------------------------------- downgrade

    def can_downgrade(self, group: ConsumerGroup, removed: Collection[str], *, is_replaced: bool) -> bool:
        """Return whether the group, without the members `removed`, becomes a classic group.

        `is_replaced` says that a member of the classic protocol takes the place of the removed one.
        """
        left = [member for member_id, member in group.members.items() if member_id not in removed]
        if not (left or is_replaced) or any(member.classic_protocols is None for member in left):
            return False
        if is_replaced and any(group.members[member_id].classic_protocols is not None for member_id in removed):
            return False
        size = len(left) + is_replaced
        return self._policy() in _DOWNGRADES and size <= self._config.get_int("group.max.size")

    def downgrade(
        self, group: ConsumerGroup, removed: Collection[str], successor: ConsumerGroupMember | None, wall_ms: int
    ) -> tuple[ClassicGroup, list[CoordinatorRecord]]:
        """Return a group as a classic group, without the members that are removed, and the records of that.

        A successor takes the place of the one removed member. Raises CoordinatorError.
        """
        targets = {member_id: group.target_assignment.get(member_id, {}) for member_id in group.members}
        members = [_classic_member(member) for member_id, member in group.members.items() if member_id not in removed]
        tombstones = list(consumer_group_tombstones(group, {}))
        if successor is not None:
            (replaced,) = removed
            members.append(_classic_member(successor))
            targets[successor.member_id] = targets[replaced]
            tombstones = list(consumer_group_tombstones(group, {replaced: successor.member_id}))
        made = ClassicGroup.from_members(group.group_id, group.group_epoch, members, wall_ms)
        try:
            for member in members:
                subscription = member.metadata(made.protocol_name)
                member.assignment = encode_assignment(targets[member.member_id], subscription, self._metadata)
        except DecodeError as error:
            text = f"Cannot downgrade the classic group {group.group_id}: {error}."
            raise CoordinatorError(error_codes.GROUP_ID_NOT_FOUND, text) from error
        record = made.record({member.member_id: member.assignment for member in members})
        return made, [*tombstones, record]


def group_of(group_id: str, records: list[CoordinatorRecord]) -> ConsumerGroup:
    """Return the consumer group that the records of an upgrade make, one without members if there are none."""
    state = GroupState()
    for offset, record in enumerate(records):
        state.apply(record.key, record.value, offset)
    found = state.groups.get(group_id)
    return found if isinstance(found, ConsumerGroup) else ConsumerGroup(group_id)


def _partitions(member: ConsumerGroupMember) -> dict[Uuid, list[int]]:
    return {topic_id: list(found) for topic_id, found in member.assigned_partitions.items()}


def _classic_member(member: ConsumerGroupMember) -> ClassicGroupMember:
    assert member.classic_protocols is not None and member.session_timeout_ms is not None
    return ClassicGroupMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        member.session_timeout_ms,
        tuple(member.classic_protocols.items()),
    )


def _not_upgraded(group_id: str, reason: str) -> CoordinatorError:
    text = f"Cannot upgrade classic group {group_id} to consumer group because {reason}."
    return CoordinatorError(error_codes.GROUP_ID_NOT_FOUND, text)


def encode_assignment(assigned: Mapping[Uuid, Iterable[int]], subscription: bytes, metadata: MetadataCache) -> bytes:
    """Encode an assignment for the member with this subscription, without topics that are deleted. Raises DecodeError."""
    kind = assignment_type()
    names = {topic_id: metadata.topic_name(topic_id) for topic_id in assigned}
    topics = [
        kind.classes["TopicPartition"](topic=name, partitions=sorted(assigned[topic_id]))
        for topic_id, name in names.items()
        if name is not None
    ]
    return encode_message(kind, kind.new(assigned_partitions=topics), read_version(subscription))


def partitions_by_id(topics: Iterable[Message], metadata: MetadataCache) -> Partitions:
    """Return the partitions of a subscription or an assignment, without topics that do not exist."""
    ids = metadata.image.topic_ids
    return {ids[topic.topic]: topic.partitions for topic in topics if topic.topic in ids}
