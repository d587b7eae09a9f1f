"""The records of share groups, as Kafka 4.3 writes them, and the topics of a share group as its record has them.

part of the record   a topic there
-------------------  ---------------------------------------------------------------------------------------------
initializing         has partitions whose states the persister is beginning
initialized          has partitions that may be assigned
deleting             has states that the persister is deleting
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kcli.format.kafka_uuid import Uuid
from kcli.protocol.message import Message
from kcli.server.coordinator.coordinator_record import CoordinatorRecord
from kcli.server.coordinator.group.group_record_maker import GroupRecordMaker
from kcli.state.groups import ShareGroup, ShareGroupMember

_STABLE_STATE = 0

ShareIndexes = dict[Uuid, set[int]]


@dataclass(slots=True)
class ShareTopics:
    """The topics of a share group by their state; `names` has those of all of them."""

    initializing: ShareIndexes = field(default_factory=dict)
    initialized: ShareIndexes = field(default_factory=dict)
    deleting: set[Uuid] = field(default_factory=set)
    names: dict[Uuid, str] = field(default_factory=dict)

    @classmethod
    def of(cls, group: ShareGroup | None) -> ShareTopics:
        """Return the topics of a group, which later changes do not affect."""
        made = cls()
        for topic in () if group is None else group.topics:
            made.names[topic.topic_id] = topic.name
            if topic.status == "deleting":
                made.deleting.add(topic.topic_id)
            else:
                found = made.initialized if topic.status == "initialized" else made.initializing
                found[topic.topic_id] = set(topic.partitions)
        return made

    def begin(self, added: ShareIndexes) -> None:
        """Take partitions whose states are being initialized; their topics are not being deleted any more."""
        merge(self.initializing, added)
        self.deleting -= self.initializing.keys()

    def complete(self, done: ShareIndexes) -> None:
        """Take partitions whose states are initialized."""
        merge(self.initialized, done)
        self.abandon(done)

    def abandon(self, failed: ShareIndexes) -> None:
        """Take partitions whose states are not being initialized any more."""
        for topic_id, indexes in failed.items():
            left = self.initializing.get(topic_id, set()) - indexes
            self.initializing.pop(topic_id, None)
            if left:
                self.initializing[topic_id] = left

    def forget(self, topic_ids: Iterable[Uuid]) -> None:
        """Take topics that are deleted."""
        for topic_id in topic_ids:
            self.initializing.pop(topic_id, None)
            self.initialized.pop(topic_id, None)
            self.deleting.discard(topic_id)


def merge(into: ShareIndexes, added: ShareIndexes) -> None:
    """Add partitions to a map."""
    for topic_id, indexes in added.items():
        into[topic_id] = into.get(topic_id, set()) | indexes


_MAKER = GroupRecordMaker("ShareGroup")
_record = _MAKER.record
_struct = _MAKER.struct
target_epoch_record = _MAKER.target_epoch
target_record = _MAKER.target


def group_record(group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
    """Make the record of a group's epoch."""
    return _record("Metadata", {"group_id": group_id}, {"epoch": epoch, "metadata_hash": metadata_hash})


def member_record(group_id: str, member: ShareGroupMember) -> CoordinatorRecord:
    """Make the record of a member and its subscription."""
    value = {
        "rack_id": member.rack_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.subscribed_topic_names,
    }
    return _record("MemberMetadata", {"group_id": group_id, "member_id": member.member_id}, value)


def current_record(group_id: str, member: ShareGroupMember) -> CoordinatorRecord:
    """Make the record of a member's epoch and current assignment."""
    topics = [
        _struct("CurrentMemberAssignment", "TopicPartitions", topic_id=topic_id, partitions=sorted(partitions))
        for topic_id, partitions in member.assigned_partitions.items()
    ]
    value = {
        "member_epoch": member.member_epoch,
        "previous_member_epoch": member.previous_member_epoch,
        "state": _STABLE_STATE,
        "assigned_partitions": topics,
    }
    return _record("CurrentMemberAssignment", {"group_id": group_id, "member_id": member.member_id}, value)


def topics_record(group_id: str, topics: ShareTopics) -> CoordinatorRecord:
    """Make the record of the topics whose states are or were made."""

    def infos(found: ShareIndexes) -> list[Message]:
        return [
            _struct(
                "StatePartitionMetadata",
                "TopicPartitionsInfo",
                topic_id=topic_id,
                topic_name=topics.names[topic_id],
                partitions=sorted(indexes),
            )
            for topic_id, indexes in found.items()
        ]

    deleting = [
        _struct("StatePartitionMetadata", "TopicInfo", topic_id=topic_id, topic_name=topics.names[topic_id])
        for topic_id in sorted(topics.deleting)
    ]
    value = {
        "initializing_topics": infos(topics.initializing),
        "initialized_topics": infos(topics.initialized),
        "deleting_topics": deleting,
    }
    return _record("StatePartitionMetadata", {"group_id": group_id}, value)


def member_tombstones(group_id: str, member_id: str) -> Iterator[CoordinatorRecord]:
    """Yield the records that remove a member; the order matters to Kafka, which checks it when it loads them."""
    key = {"group_id": group_id, "member_id": member_id}
    for kind in ("CurrentMemberAssignment", "TargetAssignmentMember", "MemberMetadata"):
        yield _record(kind, key, None)


def group_tombstones(group: ShareGroup) -> Iterator[CoordinatorRecord]:
    """Yield the records that remove a group, in Kafka's order."""
    group_id = group.group_id
    for kind in ("CurrentMemberAssignment", "TargetAssignmentMember"):
        for member_id in group.members:
            yield _record(kind, {"group_id": group_id, "member_id": member_id}, None)
    yield _record("TargetAssignmentMetadata", {"group_id": group_id}, None)
    for member_id in group.members:
        yield _record("MemberMetadata", {"group_id": group_id, "member_id": member_id}, None)
    for kind in ("StatePartitionMetadata", "Metadata"):
        yield _record(kind, {"group_id": group_id}, None)
