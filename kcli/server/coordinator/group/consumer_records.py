"""The records of consumer groups, as Kafka 4.3 writes them (Kafka: GroupCoordinatorRecordHelpers).

Partitions in records are sorted. A group without topics has no metadata hash: 0 is the default of that field.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kcli.format.kafka_uuid import Uuid
from kcli.protocol.message import Message
from kcli.server.coordinator.coordinator_record import CoordinatorRecord
from kcli.server.coordinator.group.group_record_maker import GroupRecordMaker
from kcli.state.groups import CONSUMER_MEMBER_STATES, AssignedPartitions, ConsumerGroup, ConsumerGroupMember

_STATE_NUMBERS = {name: number for number, name in CONSUMER_MEMBER_STATES.items()}

_MAKER = GroupRecordMaker("ConsumerGroup")
_record = _MAKER.record
_struct = _MAKER.struct
target_epoch_record = _MAKER.target_epoch
target_record = _MAKER.target


def group_record(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    """Make the record of a group's epoch."""
    return _record("Metadata", {"group_id": group_id}, {"epoch": epoch, "metadata_hash": metadata_hash})


def member_record(group_id: str, member: ConsumerGroupMember) -> CoordinatorRecord:
    """Make the record of a member and its subscription."""
    classic = None
    if member.classic_protocols is not None:
        protocols = [
            _struct("MemberMetadata", "ClassicProtocol", name=name, metadata=metadata)
            for name, metadata in member.classic_protocols.items()
        ]
        timeout_ms = member.session_timeout_ms
        classic = _struct(
            "MemberMetadata", "ClassicMemberMetadata", session_timeout_ms=timeout_ms, supported_protocols=protocols
        )
    value = {
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.subscribed_topic_names,
        "subscribed_topic_regex": member.subscribed_topic_regex,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "server_assignor": member.server_assignor,
        "classic_member_metadata": classic,
    }
    return _record("MemberMetadata", {"group_id": group_id, "member_id": member.member_id}, value)


def current_record(group_id: str, member: ConsumerGroupMember) -> CoordinatorRecord:
    """Make the record of a member's epoch, state and current assignment."""
    value = {
        "member_epoch": member.member_epoch,
        "previous_member_epoch": member.previous_member_epoch,
        "state": _STATE_NUMBERS[member.state],
        "assigned_partitions": _assigned(member.assigned_partitions),
        "partitions_pending_revocation": _assigned(member.partitions_pending_revocation),
    }
    return _record("CurrentMemberAssignment", {"group_id": group_id, "member_id": member.member_id}, value)


def _assigned(assigned: AssignedPartitions) -> list[Message]:
    return [_assigned_topic(topic_id, found) for topic_id, found in assigned.items()]


def _assigned_topic(topic_id: Uuid, found: dict[int, int]) -> Message:
    partitions = sorted(found)
    epochs = [found[index] for index in partitions]
    return _struct(
        "CurrentMemberAssignment", "TopicPartitions", topic_id=topic_id, partitions=partitions, assignment_epochs=epochs
    )


def regex_record(group_id: str, regex: str, topics: list[str], version: int, now_ms: int) -> CoordinatorRecord:
    """Make the record of the topics that match a pattern; `version` is the offset of the metadata that they are from."""
    value = {"topics": topics, "version": version, "timestamp": now_ms}
    return _record("RegularExpression", {"group_id": group_id, "regular_expression": regex}, value)


def regex_tombstone(group_id: str, regex: str) -> CoordinatorRecord:
    """Make the record that removes a pattern to which no member is subscribed any longer."""
    return _record("RegularExpression", {"group_id": group_id, "regular_expression": regex}, None)


def member_tombstones(group_id: str, member_id: str) -> Iterator[CoordinatorRecord]:
    """Yield the records that remove a member; the order matters to Kafka, which checks it when it loads them."""
    key = {"group_id": group_id, "member_id": member_id}
    for kind in ("CurrentMemberAssignment", "TargetAssignmentMember", "MemberMetadata"):
        yield _record(kind, key, None)


def partition_metadata_tombstone(group_id: str) -> CoordinatorRecord:
    """Make the record that removes what Kafka before 4.1 wrote in place of the metadata hash."""
    return _record("PartitionMetadata", {"group_id": group_id}, None)


def group_tombstones(group: ConsumerGroup, replaced: Mapping[str, str]) -> Iterator[CoordinatorRecord]:
    """Yield the records that remove a group; like Kafka's, of all members the current assignments first.

    `replaced` has the new ids of members that earlier records of the same operation have replaced.
    """
    group_id = group.group_id
    member_ids = [replaced.get(member_id, member_id) for member_id in group.members]
    for kind in ("CurrentMemberAssignment", "TargetAssignmentMember"):
        for member_id in member_ids:
            yield _record(kind, {"group_id": group_id, "member_id": member_id}, None)
    yield _record("TargetAssignmentMetadata", {"group_id": group_id}, None)
    for member_id in member_ids:
        yield _record("MemberMetadata", {"group_id": group_id, "member_id": member_id}, None)
    for regex in group.resolved_regexes:
        yield regex_tombstone(group_id, regex)
    yield partition_metadata_tombstone(group_id)
    yield _record("Metadata", {"group_id": group_id}, None)
