"""The records of streams groups, as Kafka 4.3 writes them (Kafka: StreamsCoordinatorRecordHelpers).

Subtopologies and partitions in records are sorted; of tasks only active ones have the epoch in which their member got them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kcli.protocol.message import Message
from kcli.protocol.message_types import message_type
from kcli.server.coordinator.coordinator_record import CoordinatorRecord
from kcli.server.coordinator.group.group_record_maker import GroupRecordMaker
from kcli.state.groups import STREAMS_MEMBER_STATES, AssignedTasks, StreamsGroup, StreamsGroupMember, TargetTasks, Tasks

_STATE_NUMBERS = {name: number for number, name in STREAMS_MEMBER_STATES.items()}

_MAKER = GroupRecordMaker("StreamsGroup")
_record = _MAKER.record
_struct = _MAKER.struct
target_epoch_record = _MAKER.target_epoch


def group_record(
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
            _struct("Metadata", "LastAssignmentConfig", key=key, value=configs[key]) for key in sorted(configs)
        ],
    }
    return _record("Metadata", {"group_id": group.group_id}, value)


def member_record(group_id: str, member: StreamsGroupMember) -> CoordinatorRecord:
    """Make the record of a member."""
    endpoint = None
    if member.user_endpoint is not None:
        endpoint = _struct("MemberMetadata", "Endpoint", host=member.user_endpoint[0], port=member.user_endpoint[1])
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
            _struct("MemberMetadata", "KeyValue", key=key, value=member.client_tags[key]) for key in sorted(member.client_tags)
        ],
    }
    return _record("MemberMetadata", {"group_id": group_id, "member_id": member.member_id}, value)


def topology_value(topology: Message) -> Message:
    """Make the value of a topology's record from the topology in a heartbeat."""

    def topics(given: list[Message]) -> list[Message]:
        return [
            _struct(
                "Topology",
                "TopicInfo",
                name=topic.name,
                partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                topic_configs=[_struct("Topology", "TopicConfig", key=one.key, value=one.value) for one in topic.topic_configs],
            )
            for topic in given
        ]

    subtopologies = [
        _struct(
            "Topology",
            "Subtopology",
            subtopology_id=part.subtopology_id,
            source_topics=part.source_topics,
            source_topic_regex=part.source_topic_regex,
            repartition_sink_topics=part.repartition_sink_topics,
            repartition_source_topics=topics(part.repartition_source_topics),
            state_changelog_topics=topics(part.state_changelog_topics),
            copartition_groups=[
                _struct(
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


def target_record(group_id: str, member_id: str, target: TargetTasks) -> CoordinatorRecord:
    """Make the record of a member's target."""
    kind = "TargetAssignmentMember"
    value = {
        "active_tasks": _tasks(kind, target.active),
        "standby_tasks": _tasks(kind, target.standby),
        "warmup_tasks": _tasks(kind, target.warmup),
    }
    return _record(kind, {"group_id": group_id, "member_id": member_id}, value)


def current_record(group_id: str, member: StreamsGroupMember) -> CoordinatorRecord:
    """Make the record of a member's epoch, state and tasks."""
    kind, tasks, revoked = "CurrentMemberAssignment", member.assigned_tasks, member.tasks_pending_revocation
    value = {
        "member_epoch": member.member_epoch,
        "previous_member_epoch": member.previous_member_epoch,
        "state": _STATE_NUMBERS[member.state],
        "active_tasks": _tasks_with_epochs(tasks.active),
        "standby_tasks": _tasks(kind, tasks.standby),
        "warmup_tasks": _tasks(kind, tasks.warmup),
        "active_tasks_pending_revocation": _tasks_with_epochs(revoked.active),
        "standby_tasks_pending_revocation": _tasks(kind, revoked.standby),
        "warmup_tasks_pending_revocation": _tasks(kind, revoked.warmup),
    }
    return _record(kind, {"group_id": group_id, "member_id": member.member_id}, value)


def _tasks(kind: str, tasks: Tasks) -> list[Message]:
    return [_struct(kind, "TaskIds", subtopology_id=key, partitions=sorted(tasks[key])) for key in sorted(tasks)]


def _tasks_with_epochs(tasks: AssignedTasks) -> list[Message]:
    made = []
    for key in sorted(tasks):
        partitions = sorted(tasks[key])
        epochs = [tasks[key][index] for index in partitions]
        fields = {"subtopology_id": key, "partitions": partitions, "assignment_epochs": epochs}
        made.append(_struct("CurrentMemberAssignment", "TaskIds", **fields))
    return made


def member_tombstones(group_id: str, member_id: str) -> Iterator[CoordinatorRecord]:
    """Yield the records that remove a member; the order matters to Kafka, which checks it when it loads them."""
    key = {"group_id": group_id, "member_id": member_id}
    for kind in ("CurrentMemberAssignment", "TargetAssignmentMember", "MemberMetadata"):
        yield _record(kind, key, None)


def group_tombstones(group: StreamsGroup) -> Iterator[CoordinatorRecord]:
    """Yield the records that remove a group without members."""
    for kind in ("TargetAssignmentMetadata", "Metadata", "Topology"):
        yield _record(kind, {"group_id": group.group_id}, None)
