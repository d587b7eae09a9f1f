"""Conversion of the value messages of __consumer_offsets to the values of kcli.state.groups."""

from __future__ import annotations

from collections.abc import Iterable

from kcli.protocol.message import Message
from kcli.state.groups import (
    CONSUMER_MEMBER_STATES,
    LEFT_GROUP_EPOCH,
    STREAMS_MEMBER_STATES,
    AssignedPartitions,
    AssignedTasks,
    ConsumerGroupMember,
    CopartitionGroup,
    CurrentTasks,
    InternalTopic,
    ModernGroupMember,
    Partitions,
    ShareGroupMember,
    ShareTopic,
    StoredClassicGroup,
    StoredClassicMember,
    StreamsGroupMember,
    Subtopology,
    TargetTasks,
    Tasks,
)


def classic_group(group_id: str, value: Message) -> StoredClassicGroup:
    """Return the group of a GroupMetadataValue; old records without a rebalance timeout use the session timeout."""
    members = [
        StoredClassicMember(
            member_id=member.member_id,
            instance_id=member.group_instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout_ms=member.session_timeout if member.rebalance_timeout < 0 else member.rebalance_timeout,
            session_timeout_ms=member.session_timeout,
            subscription=member.subscription,
            assignment=member.assignment,
        )
        for member in value.members
    ]
    return StoredClassicGroup(
        group_id=group_id,
        protocol_type=value.protocol_type,
        generation=value.generation,
        protocol=value.protocol,
        leader=value.leader,
        state_timestamp_ms=value.current_state_timestamp,
        members={member.member_id: member for member in members},
    )


def apply_member_metadata(member: ModernGroupMember, value: Message) -> None:
    """Set the fields of a member from the ...GroupMemberMetadataValue of its kind."""
    member.rack_id = value.rack_id
    member.client_id = value.client_id
    member.client_host = value.client_host
    if isinstance(member, ConsumerGroupMember | ShareGroupMember):
        member.subscribed_topic_names = value.subscribed_topic_names
    if isinstance(member, ConsumerGroupMember | StreamsGroupMember):
        member.instance_id = value.instance_id
        member.rebalance_timeout_ms = value.rebalance_timeout_ms
    if isinstance(member, ConsumerGroupMember):
        member.subscribed_topic_regex = value.subscribed_topic_regex
        member.server_assignor = value.server_assignor
        classic = value.classic_member_metadata
        member.session_timeout_ms = None if classic is None else classic.session_timeout_ms
        protocols = None if classic is None else {part.name: part.metadata for part in classic.supported_protocols}
        member.classic_protocols = protocols
    if isinstance(member, StreamsGroupMember):
        member.topology_epoch = value.topology_epoch
        member.process_id = value.process_id
        endpoint = value.user_endpoint
        member.user_endpoint = None if endpoint is None else (endpoint.host, endpoint.port)
        member.client_tags = {tag.key: tag.value for tag in value.client_tags}


def apply_current_consumer(member: ConsumerGroupMember, value: Message | None) -> None:
    """Set the assignment of a member from a ConsumerGroupCurrentMemberAssignmentValue; None: the member has left."""
    _apply_epochs(member, value, CONSUMER_MEMBER_STATES)
    if value is None:
        member.assigned_partitions, member.partitions_pending_revocation = {}, {}
    else:
        member.assigned_partitions = _assigned_partitions(value.assigned_partitions, value.member_epoch)
        member.partitions_pending_revocation = _assigned_partitions(value.partitions_pending_revocation, value.member_epoch)


def apply_current_share(member: ShareGroupMember, value: Message | None) -> None:
    """Set the assignment of a member from a ShareGroupCurrentMemberAssignmentValue; None: the member has left."""
    _apply_epochs(member, value, CONSUMER_MEMBER_STATES)
    member.assigned_partitions = {} if value is None else _partitions(value.assigned_partitions)


def apply_current_streams(member: StreamsGroupMember, value: Message | None) -> None:
    """Set the tasks of a member from a StreamsGroupCurrentMemberAssignmentValue; None: the member has left."""
    _apply_epochs(member, value, STREAMS_MEMBER_STATES)
    if value is None:
        member.assigned_tasks, member.tasks_pending_revocation = CurrentTasks(), CurrentTasks()
        return
    member.assigned_tasks = CurrentTasks(
        _assigned_tasks(value.active_tasks, value.member_epoch),
        _tasks(value.standby_tasks),
        _tasks(value.warmup_tasks),
    )
    member.tasks_pending_revocation = CurrentTasks(
        _assigned_tasks(value.active_tasks_pending_revocation, value.member_epoch),
        _tasks(value.standby_tasks_pending_revocation),
        _tasks(value.warmup_tasks_pending_revocation),
    )


def _apply_epochs(member: ModernGroupMember, value: Message | None, states: dict[int, str]) -> None:
    if value is None:
        member.member_epoch, member.previous_member_epoch = LEFT_GROUP_EPOCH, LEFT_GROUP_EPOCH
    else:
        member.member_epoch, member.previous_member_epoch = value.member_epoch, value.previous_member_epoch
        member.state = states.get(value.state, f"UNKNOWN({value.state})")


def target_partitions(value: Message) -> Partitions:
    """Return the target assignment in a ConsumerGroup- or ShareGroupTargetAssignmentMemberValue."""
    return _partitions(value.topic_partitions)


def target_tasks(value: Message) -> TargetTasks:
    """Return the target assignment in a StreamsGroupTargetAssignmentMemberValue."""
    return TargetTasks(_tasks(value.active_tasks), _tasks(value.standby_tasks), _tasks(value.warmup_tasks))


def share_topics(value: Message) -> list[ShareTopic]:
    """Return the topics in a ShareGroupStatePartitionMetadataValue."""
    out = [
        ShareTopic(topic.topic_id, topic.topic_name, status, topic.partitions)
        for status, topics in (("initializing", value.initializing_topics), ("initialized", value.initialized_topics))
        for topic in topics
    ]
    return out + [ShareTopic(topic.topic_id, topic.topic_name, "deleting", []) for topic in value.deleting_topics]


def subtopologies(value: Message) -> dict[str, Subtopology]:
    """Return the subtopologies in a StreamsGroupTopologyValue, by id."""
    return {
        part.subtopology_id: Subtopology(
            subtopology_id=part.subtopology_id,
            source_topics=part.source_topics,
            source_topic_regexes=part.source_topic_regex,
            repartition_source_topics=[_internal_topic(topic) for topic in part.repartition_source_topics],
            repartition_sink_topics=part.repartition_sink_topics,
            state_changelog_topics=[_internal_topic(topic) for topic in part.state_changelog_topics],
            copartition_groups=[
                CopartitionGroup(
                    tuple(group.source_topics), tuple(group.source_topic_regex), tuple(group.repartition_source_topics)
                )
                for group in part.copartition_groups
            ],
        )
        for part in value.subtopologies
    }


def _internal_topic(topic: Message) -> InternalTopic:
    configs = tuple((config.key, config.value) for config in topic.topic_configs)
    return InternalTopic(topic.name, topic.partitions, topic.replication_factor, configs)


def _partitions(topics: Iterable[Message]) -> Partitions:
    return {topic.topic_id: topic.partitions for topic in topics}


def _tasks(tasks: Iterable[Message]) -> Tasks:
    return {task.subtopology_id: task.partitions for task in tasks}


def _assigned_partitions(topics: Iterable[Message], member_epoch: int) -> AssignedPartitions:
    # A static member that has left temporarily has a negative epoch.
    return {topic.topic_id: _with_epochs(topic, max(member_epoch, 0)) for topic in topics}


def _assigned_tasks(tasks: Iterable[Message], member_epoch: int) -> AssignedTasks:
    return {task.subtopology_id: _with_epochs(task, member_epoch) for task in tasks}


def _with_epochs(part: Message, otherwise: int) -> dict[int, int]:
    """Return the assignment epoch of each partition, `otherwise` if the record does not have one for each partition."""
    epochs = part.assignment_epochs
    if epochs is None or len(epochs) != len(part.partitions):
        epochs = [otherwise] * len(part.partitions)
    return dict(zip(part.partitions, epochs))
