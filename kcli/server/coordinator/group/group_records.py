"""The records of consumer, share and streams groups, as Kafka 4.3 writes them (Kafka: GroupCoordinatorRecordHelpers).

record (key, value)                     has                                        of
--------------------------------------  -----------------------------------------  -------------------------
<kind>Metadata                          the epoch of the group                     all
<kind>MemberMetadata                    a member and its subscription              all
<kind>TargetAssignmentMetadata          the epoch of the target, and its time      all
<kind>TargetAssignmentMember            what a member is to have                   all
<kind>CurrentMemberAssignment           a member's epoch, and what it has          all
ConsumerGroupRegularExpression          the topics that match a pattern            consumer groups
ShareGroupStatePartitionMetadata        the topics whose states are or were made   share groups
StreamsGroupTopology                    the topology                               streams groups

Partitions and subtopologies in records are sorted. A group without topics has no metadata hash: 0 is the default of that field.
Of the tasks of a streams group only active ones have the epoch in which their member got them.

part of the record of a share group's topics   a topic there
---------------------------------------------  -----------------------------------------------------------------
initializing                                   has partitions whose states the persister is beginning
initialized                                    has partitions that may be assigned
deleting                                       has states that the persister is deleting
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kcli.format.kafka_uuid import Uuid
from kcli.protocol.message import Message
from kcli.protocol.message_types import message_type
from kcli.server.coordinator.coordinator_record import CoordinatorRecord
from kcli.state.groups import (
    CONSUMER_MEMBER_STATES,
    STREAMS_MEMBER_STATES,
    AssignedPartitions,
    AssignedTasks,
    ConsumerGroup,
    ConsumerGroupMember,
    Partitions,
    ShareGroup,
    ShareGroupMember,
    StreamsGroup,
    StreamsGroupMember,
    TargetTasks,
    Tasks,
)

_CONSUMER_STATES = {name: number for number, name in CONSUMER_MEMBER_STATES.items()}
_STREAMS_STATES = {name: number for number, name in STREAMS_MEMBER_STATES.items()}
_STABLE_STATE = 0  # of the members of share groups

ShareIndexes = dict[Uuid, set[int]]


class GroupRecordMaker:
    """Makes records whose names begin with `kind`: ConsumerGroup, ShareGroup or StreamsGroup."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def record(self, name: str, key: Mapping[str, str], value: Mapping[str, Any] | None) -> CoordinatorRecord:
        """Make a record, a tombstone if `value` is None."""
        made = None if value is None else message_type("group_records", f"{self._kind}{name}Value").new(**value)
        return CoordinatorRecord(message_type("group_records", f"{self._kind}{name}Key").new(**key), made)

    def struct(self, name: str, struct: str, /, **fields: Any) -> Message:
        """Make a struct of a value."""
        return message_type("group_records", f"{self._kind}{name}Value").classes[struct](**fields)

    def group(self, group_id: str, epoch: int, metadata_hash: int) -> CoordinatorRecord:
        """Make the record of a group's epoch."""
        return self.record("Metadata", {"group_id": group_id}, {"epoch": epoch, "metadata_hash": metadata_hash})

    def target_epoch(self, group_id: str, epoch: int, now_ms: int) -> CoordinatorRecord:
        """Make the record of the epoch of the target assignment, which was made at `now_ms` on the wall clock."""
        value = {"assignment_epoch": epoch, "assignment_timestamp": now_ms}
        return self.record("TargetAssignmentMetadata", {"group_id": group_id}, value)

    def target(self, group_id: str, member_id: str, target: Partitions) -> CoordinatorRecord:
        """Make the record of a member's target."""
        topics = [
            self.struct("TargetAssignmentMember", "TopicPartition", topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in target.items()
        ]
        key = {"group_id": group_id, "member_id": member_id}
        return self.record("TargetAssignmentMember", key, {"topic_partitions": topics})

    def member_tombstones(self, group_id: str, member_id: str) -> Iterator[CoordinatorRecord]:
        """Yield the records that remove a member; the order matters to Kafka, which checks it when it loads them."""
        key = {"group_id": group_id, "member_id": member_id}
        for name in ("CurrentMemberAssignment", "TargetAssignmentMember", "MemberMetadata"):
            yield self.record(name, key, None)


# --------------------------------------------------------------------------------------------------------- consumer groups

_CONSUMER = GroupRecordMaker("ConsumerGroup")
consumer_group_record = _CONSUMER.group
consumer_member_tombstones = _CONSUMER.member_tombstones
consumer_target_epoch_record = _CONSUMER.target_epoch
consumer_target_record = _CONSUMER.target


def consumer_member_record(group_id: str, member: ConsumerGroupMember) -> CoordinatorRecord:
    """Make the record of a member and its subscription."""
    classic = None
    if member.classic_protocols is not None:
        protocols = [
            _CONSUMER.struct("MemberMetadata", "ClassicProtocol", name=name, metadata=metadata)
            for name, metadata in member.classic_protocols.items()
        ]
        timeout_ms = member.session_timeout_ms
        classic = _CONSUMER.struct(
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
    return _CONSUMER.record("MemberMetadata", {"group_id": group_id, "member_id": member.member_id}, value)


def consumer_current_record(group_id: str, member: ConsumerGroupMember) -> CoordinatorRecord:
    """Make the record of a member's epoch, state and current assignment."""
    value = {
        "member_epoch": member.member_epoch,
        "previous_member_epoch": member.previous_member_epoch,
        "state": _CONSUMER_STATES[member.state],
        "assigned_partitions": _assigned(member.assigned_partitions),
        "partitions_pending_revocation": _assigned(member.partitions_pending_revocation),
    }
    return _CONSUMER.record("CurrentMemberAssignment", {"group_id": group_id, "member_id": member.member_id}, value)


def _assigned(assigned: AssignedPartitions) -> list[Message]:
    return [_assigned_topic(topic_id, found) for topic_id, found in assigned.items()]


def _assigned_topic(topic_id: Uuid, found: dict[int, int]) -> Message:
    partitions = sorted(found)
    epochs = [found[index] for index in partitions]
    return _CONSUMER.struct(
        "CurrentMemberAssignment", "TopicPartitions", topic_id=topic_id, partitions=partitions, assignment_epochs=epochs
    )


def regex_record(group_id: str, regex: str, topics: list[str], version: int, now_ms: int) -> CoordinatorRecord:
    """Make the record of the topics that match a pattern; `version` is the offset of the metadata that they are from."""
    value = {"topics": topics, "version": version, "timestamp": now_ms}
    return _CONSUMER.record("RegularExpression", {"group_id": group_id, "regular_expression": regex}, value)


def regex_tombstone(group_id: str, regex: str) -> CoordinatorRecord:
    """Make the record that removes a pattern to which no member is subscribed any longer."""
    return _CONSUMER.record("RegularExpression", {"group_id": group_id, "regular_expression": regex}, None)


def partition_metadata_tombstone(group_id: str) -> CoordinatorRecord:
    """Make the record that removes what Kafka before 4.1 wrote in place of the metadata hash."""
    return _CONSUMER.record("PartitionMetadata", {"group_id": group_id}, None)


def consumer_group_tombstones(group: ConsumerGroup, replaced: Mapping[str, str]) -> Iterator[CoordinatorRecord]:
    """Yield the records that remove a group; like Kafka's, of all members the current assignments first.

    `replaced` has the new ids of members that earlier records of the same operation have replaced.
    """
    group_id = group.group_id
    member_ids = [replaced.get(member_id, member_id) for member_id in group.members]
    for kind in ("CurrentMemberAssignment", "TargetAssignmentMember"):
        for member_id in member_ids:
            yield _CONSUMER.record(kind, {"group_id": group_id, "member_id": member_id}, None)
    yield _CONSUMER.record("TargetAssignmentMetadata", {"group_id": group_id}, None)
    for member_id in member_ids:
        yield _CONSUMER.record("MemberMetadata", {"group_id": group_id, "member_id": member_id}, None)
    for regex in group.resolved_regexes:
        yield regex_tombstone(group_id, regex)
    yield partition_metadata_tombstone(group_id)
    yield _CONSUMER.record("Metadata", {"group_id": group_id}, None)


# ------------------------------------------------------------------------------------------------------------ share groups

_SHARE = GroupRecordMaker("ShareGroup")
share_group_record = _SHARE.group
share_member_tombstones = _SHARE.member_tombstones
share_target_epoch_record = _SHARE.target_epoch
share_target_record = _SHARE.target


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


def share_member_record(group_id: str, member: ShareGroupMember) -> CoordinatorRecord:
    """Make the record of a member and its subscription."""
    value = {
        "rack_id": member.rack_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.subscribed_topic_names,
    }
    return _SHARE.record("MemberMetadata", {"group_id": group_id, "member_id": member.member_id}, value)


def share_current_record(group_id: str, member: ShareGroupMember) -> CoordinatorRecord:
    """Make the record of a member's epoch and current assignment."""
    topics = [
        _SHARE.struct("CurrentMemberAssignment", "TopicPartitions", topic_id=topic_id, partitions=sorted(partitions))
        for topic_id, partitions in member.assigned_partitions.items()
    ]
    value = {
        "member_epoch": member.member_epoch,
        "previous_member_epoch": member.previous_member_epoch,
        "state": _STABLE_STATE,
        "assigned_partitions": topics,
    }
    return _SHARE.record("CurrentMemberAssignment", {"group_id": group_id, "member_id": member.member_id}, value)


def share_topics_record(group_id: str, topics: ShareTopics) -> CoordinatorRecord:
    """Make the record of the topics whose states are or were made."""

    def infos(found: ShareIndexes) -> list[Message]:
        return [
            _SHARE.struct(
                "StatePartitionMetadata",
                "TopicPartitionsInfo",
                topic_id=topic_id,
                topic_name=topics.names[topic_id],
                partitions=sorted(indexes),
            )
            for topic_id, indexes in found.items()
        ]

    deleting = [
        _SHARE.struct("StatePartitionMetadata", "TopicInfo", topic_id=topic_id, topic_name=topics.names[topic_id])
        for topic_id in sorted(topics.deleting)
    ]
    value = {
        "initializing_topics": infos(topics.initializing),
        "initialized_topics": infos(topics.initialized),
        "deleting_topics": deleting,
    }
    return _SHARE.record("StatePartitionMetadata", {"group_id": group_id}, value)


def share_group_tombstones(group: ShareGroup) -> Iterator[CoordinatorRecord]:
    """Yield the records that remove a group, in Kafka's order."""
    group_id = group.group_id
    for kind in ("CurrentMemberAssignment", "TargetAssignmentMember"):
        for member_id in group.members:
            yield _SHARE.record(kind, {"group_id": group_id, "member_id": member_id}, None)
    yield _SHARE.record("TargetAssignmentMetadata", {"group_id": group_id}, None)
    for member_id in group.members:
        yield _SHARE.record("MemberMetadata", {"group_id": group_id, "member_id": member_id}, None)
    for kind in ("StatePartitionMetadata", "Metadata"):
        yield _SHARE.record(kind, {"group_id": group_id}, None)


# ---------------------------------------------------------------------------------------------------------- streams groups

_STREAMS = GroupRecordMaker("StreamsGroup")
streams_member_tombstones = _STREAMS.member_tombstones
streams_target_epoch_record = _STREAMS.target_epoch


def streams_group_record(
    group: StreamsGroup, epoch: int, metadata_hash: int, validated_topology_epoch: int, configs: Mapping[str, str]
) -> CoordinatorRecord:
    """Make the record of a group's epoch; `configs` are those of the assignor.

    The epochs of the topologies that Kafka's plugin has described are those that the group had.
    """
    value = {
        "epoch": epoch,
        "metadata_hash": metadata_hash,
        "validated_topology_epoch": validated_topology_epoch,
        "stored_description_topology_epoch": group.stored_description_epoch,
        "failed_description_topology_epoch": group.failed_description_epoch,
        "last_assignment_configs": [
            _STREAMS.struct("Metadata", "LastAssignmentConfig", key=key, value=configs[key]) for key in sorted(configs)
        ],
    }
    return _STREAMS.record("Metadata", {"group_id": group.group_id}, value)


def streams_member_record(group_id: str, member: StreamsGroupMember) -> CoordinatorRecord:
    """Make the record of a member."""
    endpoint = None
    if member.user_endpoint is not None:
        endpoint = _STREAMS.struct("MemberMetadata", "Endpoint", host=member.user_endpoint[0], port=member.user_endpoint[1])
    value = {
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "rebalance_timeout_ms": member.rebalance_timeout_ms,
        "topology_epoch": member.topology_epoch,
        "process_id": member.process_id,
        "user_endpoint": endpoint,
        "client_tags": [
            _STREAMS.struct("MemberMetadata", "KeyValue", key=key, value=member.client_tags[key])
            for key in sorted(member.client_tags)
        ],
    }
    return _STREAMS.record("MemberMetadata", {"group_id": group_id, "member_id": member.member_id}, value)


def topology_value(topology: Message) -> Message:
    """Make the value of a topology's record from the topology in a heartbeat."""

    def topics(given: list[Message]) -> list[Message]:
        return [
            _STREAMS.struct(
                "Topology",
                "TopicInfo",
                name=topic.name,
                partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                topic_configs=[
                    _STREAMS.struct("Topology", "TopicConfig", key=one.key, value=one.value) for one in topic.topic_configs
                ],
            )
            for topic in given
        ]

    subtopologies = [
        _STREAMS.struct(
            "Topology",
            "Subtopology",
            subtopology_id=part.subtopology_id,
            source_topics=part.source_topics,
            source_topic_regex=part.source_topic_regex,
            repartition_sink_topics=part.repartition_sink_topics,
            repartition_source_topics=topics(part.repartition_source_topics),
            state_changelog_topics=topics(part.state_changelog_topics),
            copartition_groups=[
                _STREAMS.struct(
                    "Topology",
                    "CopartitionGroup",
                    source_topics=group.source_topics,
                    source_topic_regex=group.source_topic_regex,
                    repartition_source_topics=group.repartition_source_topics,
                )
                for group in part.copartition_groups
            ],
        )
        for part in topology.subtopologies
    ]
    return message_type("group_records", "StreamsGroupTopologyValue").new(epoch=topology.epoch, subtopologies=subtopologies)


def topology_record(group_id: str, value: Message) -> CoordinatorRecord:
    """Make the record of a topology."""
    return CoordinatorRecord(message_type("group_records", "StreamsGroupTopologyKey").new(group_id=group_id), value)


def streams_target_record(group_id: str, member_id: str, target: TargetTasks) -> CoordinatorRecord:
    """Make the record of a member's target."""
    kind = "TargetAssignmentMember"
    value = {
        "active_tasks": _tasks(kind, target.active),
        "standby_tasks": _tasks(kind, target.standby),
        "warmup_tasks": _tasks(kind, target.warmup),
    }
    return _STREAMS.record(kind, {"group_id": group_id, "member_id": member_id}, value)


def streams_current_record(group_id: str, member: StreamsGroupMember) -> CoordinatorRecord:
    """Make the record of a member's epoch, state and tasks."""
    kind, tasks, revoked = "CurrentMemberAssignment", member.assigned_tasks, member.tasks_pending_revocation
    value = {
        "member_epoch": member.member_epoch,
        "previous_member_epoch": member.previous_member_epoch,
        "state": _STREAMS_STATES[member.state],
        "active_tasks": _tasks_with_epochs(tasks.active),
        "standby_tasks": _tasks(kind, tasks.standby),
        "warmup_tasks": _tasks(kind, tasks.warmup),
        "active_tasks_pending_revocation": _tasks_with_epochs(revoked.active),
        "standby_tasks_pending_revocation": _tasks(kind, revoked.standby),
        "warmup_tasks_pending_revocation": _tasks(kind, revoked.warmup),
    }
    return _STREAMS.record(kind, {"group_id": group_id, "member_id": member.member_id}, value)


def _tasks(kind: str, tasks: Tasks) -> list[Message]:
    return [_STREAMS.struct(kind, "TaskIds", subtopology_id=key, partitions=sorted(tasks[key])) for key in sorted(tasks)]


def _tasks_with_epochs(tasks: AssignedTasks) -> list[Message]:
    made = []
    for key in sorted(tasks):
        partitions = sorted(tasks[key])
        epochs = [tasks[key][index] for index in partitions]
        fields = {"subtopology_id": key, "partitions": partitions, "assignment_epochs": epochs}
        made.append(_STREAMS.struct("CurrentMemberAssignment", "TaskIds", **fields))
    return made


def streams_group_tombstones(group: StreamsGroup) -> Iterator[CoordinatorRecord]:
    """Yield the records that remove a group without members."""
    for kind in ("TargetAssignmentMetadata", "Metadata", "Topology"):
        yield _STREAMS.record(kind, {"group_id": group.group_id}, None)
