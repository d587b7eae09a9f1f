"""The state of the group coordinator: the records of __consumer_offsets, applied in order.

    records (key)                                          change
    -----------------------------------------------------  -----------------------------------------------------------
    OffsetCommit, LegacyOffsetCommit                       committed_offsets, or pending_offsets inside a transaction
    GroupMetadata                                          a whole classic group
    {Consumer,Share,Streams}GroupMetadata                  a group and its epoch
    ...GroupMemberMetadata                                 a member and its subscription
    ...GroupTargetAssignmentMetadata, -Member              the target assignment
    ...GroupCurrentMemberAssignment                        the current assignment of a member
    ConsumerGroupPartitionMetadata                         (before 4.1: the partitions of the target assignment)
    ConsumerGroupRegularExpression                         the topics that match a pattern
    ShareGroupStatePartitionMetadata                       the topics of a share group
    StreamsGroupTopology                                   the topology of a streams group

A tombstone (a record without a value) removes what its key names; it is ignored if that does not exist, because the cleaner
may have removed the earlier records. The kind of a group changes only after its tombstone, or from a classic group that has
only committed offsets.

Offsets that a producer commits in a transaction become effective with the COMMIT marker, unless a later record has committed
the same partition by then; the ABORT marker drops them.

The value messages of __consumer_offsets are converted to the values of kcli.state.groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from copy import copy
from typing import NamedTuple, TypeVar

from kcli.format.kafka_uuid import ZERO_UUID, TopicIdPartition
from kcli.format.primitives import TopicPartition
from kcli.format.record_batch import NO_PRODUCER_ID
from kcli.protocol.message import Message
from kcli.state.groups import (
    CONSUMER_MEMBER_STATES,
    LEFT_GROUP_EPOCH,
    NO_EPOCH,
    STREAMS_MEMBER_STATES,
    AssignedPartitions,
    AssignedTasks,
    CommittedOffset,
    ConsumerGroup,
    ConsumerGroupMember,
    CopartitionGroup,
    CurrentTasks,
    Group,
    InternalTopic,
    ModernGroup,
    ModernGroupMember,
    Partitions,
    ShareGroup,
    ShareGroupMember,
    ShareTopic,
    StoredClassicGroup,
    StoredClassicMember,
    StreamsGroup,
    StreamsGroupMember,
    Subtopology,
    TargetTasks,
    TaskKey,
    Tasks,
)
from kcli.state.speculative_state import MapsState
from kcli.state.state_error import StateError

AnyGroup = TypeVar("AnyGroup", ConsumerGroup, ShareGroup, StreamsGroup)


class OffsetKey(NamedTuple):
    """The key of a committed offset."""

    group_id: str
    topic: str
    partition: int


class GroupState(MapsState):
    """All groups by their ids, and their committed offsets.

    `offsets_by_group` has the committed offsets of each group that has any, by topic and partition; `pending_offsets` those of
    open transactions, by producer id. `pending_producers` is the index of the latter: the ids of the producers, by group, and
    by topic and partition; it has no empty maps. Only `apply` and `apply_marker` change the state; after a StateError it is
    unchanged.
    """

    def __init__(self) -> None:
        super().__init__()
        self.groups: dict[str, Group] = {}
        self.offsets_by_group: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self.pending_offsets: dict[int, dict[OffsetKey, CommittedOffset]] = {}
        self.pending_producers: dict[str, dict[TopicPartition, dict[int, None]]] = {}

    def apply(self, key: Message, value: Message | None, record_offset: int, producer_id: int = NO_PRODUCER_ID) -> None:
        """Apply one record that kcli.protocol.internal_records has decoded.

        `record_offset` is its offset in __consumer_offsets; `producer_id` is that of a transactional batch. Raises StateError
        for a record of another topic, or if the group is of another kind.
        """
        handler = _HANDLERS.get(key.STRUCT.name)
        if handler is not None:
            handler(self, key, value)
        elif key.STRUCT.name in ("OffsetCommitKey", "LegacyOffsetCommitKey"):
            self._commit(OffsetKey(key.group, key.topic, key.partition), value, record_offset, producer_id)
        else:
            raise StateError(f"{key.STRUCT.name} is not a key of __consumer_offsets")

    @property
    def committed_offsets(self) -> dict[OffsetKey, CommittedOffset]:
        """All committed offsets in one map, which is made by each call."""
        return {
            OffsetKey(group_id, *where): offset
            for group_id, offsets in self.offsets_by_group.items()
            for where, offset in offsets.items()
        }

    def committed_offset(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """Return the committed offset of a partition, None if there is none."""
        offsets = self.offsets_by_group.get(group_id)
        return None if offsets is None else offsets.get((topic, partition))

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Return whether an open transaction has committed an offset of the partition."""
        return (topic, partition) in self.pending_producers.get(group_id, ())

    def has_open_transaction(self, group_id: str) -> bool:
        """Return whether an open transaction has committed an offset of the group."""
        return group_id in self.pending_producers

    def apply_marker(self, producer_id: int, commit: bool) -> None:
        """End the transaction of a producer: its pending offsets become effective, or are dropped."""
        pending = self.pending_offsets.get(producer_id, {})
        self._remove(self.pending_offsets, producer_id)
        for key, offset in pending.items():
            self._forget_pending(key, producer_id)
            before = self.committed_offset(*key)
            if commit and (before is None or offset.record_offset > before.record_offset):
                self._put_offset(key, offset)

    def _commit(self, key: OffsetKey, value: Message | None, record_offset: int, producer_id: int) -> None:
        if value is None:
            self._remove_offset(key)
            for pending_id in list(self.pending_producers.get(key.group_id, {}).get((key.topic, key.partition), ())):
                self._remove(self.pending_offsets[pending_id], key)
                self._forget_pending(key, pending_id)
            return
        if key.group_id not in self.groups:
            self._put(self.groups, key.group_id, StoredClassicGroup(key.group_id))
        offset = _committed_offset(value, record_offset)
        if producer_id == NO_PRODUCER_ID:
            self._put_offset(key, offset)
            return
        if producer_id not in self.pending_offsets:
            self._put(self.pending_offsets, producer_id, {})
        if key not in self.pending_offsets[producer_id]:
            self._index_pending(key, producer_id)
        self._put(self.pending_offsets[producer_id], key, offset)

    def _index_pending(self, key: OffsetKey, producer_id: int) -> None:
        """Add a producer to the index of pending offsets."""
        where = (key.topic, key.partition)
        if key.group_id not in self.pending_producers:
            self._put(self.pending_producers, key.group_id, {})
        found = self.pending_producers[key.group_id]
        if where not in found:
            self._put(found, where, {})
        self._put(found[where], producer_id, None)

    def _forget_pending(self, key: OffsetKey, producer_id: int) -> None:
        """Remove a producer from the index of pending offsets."""
        where = (key.topic, key.partition)
        found = self.pending_producers[key.group_id]
        self._remove(found[where], producer_id)
        if not found[where]:
            self._remove(found, where)
            if not found:
                self._remove(self.pending_producers, key.group_id)

    def _put_offset(self, key: OffsetKey, offset: CommittedOffset) -> None:
        offsets = self.offsets_by_group.get(key.group_id)
        if offsets is None:
            offsets = {}
            self._put(self.offsets_by_group, key.group_id, offsets)
        self._put(offsets, (key.topic, key.partition), offset)

    def _remove_offset(self, key: OffsetKey) -> None:
        offsets = self.offsets_by_group.get(key.group_id)
        if offsets is not None:
            self._remove(offsets, (key.topic, key.partition))
            if not offsets:
                self._remove(self.offsets_by_group, key.group_id)

    def _group(self, group_id: str, kind: type[AnyGroup]) -> AnyGroup:
        """Return the group with that id and kind, which is created if there is none or a group with only offsets."""
        found = self.groups.get(group_id)
        if isinstance(found, kind):
            return found
        if found is not None and not (isinstance(found, StoredClassicGroup) and found.is_simple):
            raise StateError(f"group {group_id} is a {found.kind} group but has records of a {kind.kind} group")
        made = kind(group_id)
        self._put(self.groups, group_id, made)
        return made

    def _known(self, group_id: str, kind: type[AnyGroup]) -> AnyGroup | None:
        """Return the group with that id and kind for a tombstone, or None."""
        found = self.groups.get(group_id)
        return found if isinstance(found, kind) else None

    def _classic(self, key: Message, value: Message | None) -> None:
        if value is None:
            self._remove(self.groups, key.group)
        else:
            self._put(self.groups, key.group, classic_group(key.group, value))

    def _metadata(self, kind: type[AnyGroup], key: Message, value: Message | None) -> AnyGroup | None:
        if value is None:
            if self._known(key.group_id, kind) is not None:
                self._remove(self.groups, key.group_id)
            return None
        group = self._group(key.group_id, kind)
        self._assign(group, "group_epoch", value.epoch)
        self._assign(group, "metadata_hash", value.metadata_hash)
        return group

    def _streams_metadata(self, key: Message, value: Message | None) -> None:
        group = self._metadata(StreamsGroup, key, value)
        if group is not None and value is not None:
            self._assign(group, "validated_topology_epoch", value.validated_topology_epoch)
            self._assign(group, "stored_description_epoch", value.stored_description_topology_epoch)
            self._assign(group, "failed_description_epoch", value.failed_description_topology_epoch)
            configs = {config.key: config.value for config in value.last_assignment_configs or []}
            self._assign(group, "assignment_configs", configs)

    def _member(self, kind: type[AnyGroup], key: Message, value: Message | None) -> None:
        if value is None:
            known = self._known(key.group_id, kind)
            if known is not None and key.member_id in known.members:
                self._release_tasks(known, known.members[key.member_id])
                self._remove(known.members, key.member_id)
            return
        group = self._group(key.group_id, kind)
        member = self._changed_member(group, key.member_id)
        self._release_tasks(group, member)
        apply_member_metadata(member, value)
        self._claim_tasks(group, member)

    def _changed_member(self, group: AnyGroup, member_id: str) -> ConsumerGroupMember | ShareGroupMember | StreamsGroupMember:
        """Return a member that may be changed: a new one, or a copy that takes the place of the one that the group has."""
        found = group.members.get(member_id)
        member = group.new_member(member_id) if found is None else copy(found)
        self._put(group.members, member_id, member)
        return member

    def _target_metadata(self, kind: type[AnyGroup], key: Message, value: Message | None) -> None:
        group: ModernGroup | None = self._known(key.group_id, kind) if value is None else self._group(key.group_id, kind)
        if group is not None:
            self._assign(group, "assignment_epoch", NO_EPOCH if value is None else value.assignment_epoch)
            self._assign(group, "assignment_timestamp_ms", 0 if value is None else value.assignment_timestamp)

    def _target_member(self, kind: type[AnyGroup], key: Message, value: Message | None) -> None:
        if value is None:
            group = self._known(key.group_id, kind)
            if group is not None:
                self._remove(group.target_assignment, key.member_id)
            return
        made = self._group(key.group_id, kind)
        target = target_tasks(value) if isinstance(made, StreamsGroup) else target_partitions(value)
        self._put(made.target_assignment, key.member_id, target)

    def _current(self, kind: type[AnyGroup], key: Message, value: Message | None) -> None:
        group = self._known(key.group_id, kind) if value is None else self._group(key.group_id, kind)
        if group is None or (value is None and key.member_id not in group.members):
            return
        member = self._changed_member(group, key.member_id)
        if isinstance(member, ConsumerGroupMember) and isinstance(group, ConsumerGroup):
            self._apply_current_consumer(group, member, value)
        elif isinstance(member, ShareGroupMember):
            apply_current_share(member, value)
        elif isinstance(member, StreamsGroupMember):
            self._release_tasks(group, member)
            apply_current_streams(member, value)
            self._claim_tasks(group, member)

    def _release_tasks(self, group: ModernGroup, member: ModernGroupMember) -> None:
        """Remove the process of a member of a streams group from its tasks."""
        if isinstance(group, StreamsGroup) and isinstance(member, StreamsGroupMember):
            for key in _tasks_of(member):
                known = group.task_processes.get(key, frozenset())
                if known == {member.process_id}:
                    self._remove(group.task_processes, key)
                elif member.process_id in known:
                    self._put(group.task_processes, key, known - {member.process_id})

    def _claim_tasks(self, group: ModernGroup, member: ModernGroupMember) -> None:
        """Add the process of a member of a streams group to its tasks; an active task has one process, the last one."""
        if isinstance(group, StreamsGroup) and isinstance(member, StreamsGroupMember):
            for key in _tasks_of(member):
                others = frozenset[str]() if key[0] == "active" else group.task_processes.get(key, frozenset())
                self._put(group.task_processes, key, others | {member.process_id})

    def _apply_current_consumer(self, group: ConsumerGroup, member: ConsumerGroupMember, value: Message | None) -> None:
        for key in _partitions_of(member):
            if group.owners.get(key) == member.member_id:
                self._remove(group.owners, key)
        apply_current_consumer(member, value)
        for key in _partitions_of(member):
            self._put(group.owners, key, member.member_id)

    def _partition_metadata(self, key: Message, value: Message | None) -> None:
        group = self._known(key.group_id, ConsumerGroup) if value is None else self._group(key.group_id, ConsumerGroup)
        if group is not None:
            self._assign(group, "has_partition_metadata", value is not None)

    def _regular_expression(self, key: Message, value: Message | None) -> None:
        if value is not None:
            group = self._group(key.group_id, ConsumerGroup)
            self._put(group.resolved_regexes, key.regular_expression, value.topics)
            return
        known = self._known(key.group_id, ConsumerGroup)
        if known is not None:
            self._remove(known.resolved_regexes, key.regular_expression)

    def _share_topics(self, key: Message, value: Message | None) -> None:
        group = self._known(key.group_id, ShareGroup) if value is None else self._group(key.group_id, ShareGroup)
        if group is not None:
            self._assign(group, "topics", [] if value is None else share_topics(value))

    def _topology(self, key: Message, value: Message | None) -> None:
        group = self._known(key.group_id, StreamsGroup) if value is None else self._group(key.group_id, StreamsGroup)
        if group is not None:
            self._assign(group, "topology_epoch", NO_EPOCH if value is None else value.epoch)
            self._assign(group, "subtopologies", {} if value is None else subtopologies(value))


def _partitions_of(member: ConsumerGroupMember) -> Iterator[TopicIdPartition]:
    for found in (member.assigned_partitions, member.partitions_pending_revocation):
        for topic_id, indexes in found.items():
            for index in indexes:
                yield topic_id, index


def _tasks_of(member: StreamsGroupMember) -> Iterator[TaskKey]:
    for tasks in (member.assigned_tasks, member.tasks_pending_revocation):
        for role, found in tasks.by_role():
            for subtopology_id, indexes in found.items():
                for index in indexes:
                    yield role, subtopology_id, index


def _committed_offset(value: Message, record_offset: int) -> CommittedOffset:
    is_legacy = value.STRUCT.name == "LegacyOffsetCommitValue"
    return CommittedOffset(
        offset=value.offset,
        leader_epoch=-1 if is_legacy else value.leader_epoch,
        metadata=value.metadata,
        commit_timestamp_ms=value.commit_timestamp,
        expire_timestamp_ms=-1 if is_legacy else value.expire_timestamp,
        topic_id=ZERO_UUID if is_legacy else value.topic_id,
        record_offset=record_offset,
    )


_HANDLERS: dict[str, Callable[[GroupState, Message, Message | None], object]] = {
    "GroupMetadataKey": GroupState._classic,
    "ConsumerGroupMetadataKey": lambda state, key, value: state._metadata(ConsumerGroup, key, value),
    "ConsumerGroupPartitionMetadataKey": GroupState._partition_metadata,
    "ConsumerGroupMemberMetadataKey": lambda state, key, value: state._member(ConsumerGroup, key, value),
    "ConsumerGroupTargetAssignmentMetadataKey": lambda state, key, value: state._target_metadata(ConsumerGroup, key, value),
    "ConsumerGroupTargetAssignmentMemberKey": lambda state, key, value: state._target_member(ConsumerGroup, key, value),
    "ConsumerGroupCurrentMemberAssignmentKey": lambda state, key, value: state._current(ConsumerGroup, key, value),
    "ConsumerGroupRegularExpressionKey": GroupState._regular_expression,
    "ShareGroupMetadataKey": lambda state, key, value: state._metadata(ShareGroup, key, value),
    "ShareGroupMemberMetadataKey": lambda state, key, value: state._member(ShareGroup, key, value),
    "ShareGroupTargetAssignmentMetadataKey": lambda state, key, value: state._target_metadata(ShareGroup, key, value),
    "ShareGroupTargetAssignmentMemberKey": lambda state, key, value: state._target_member(ShareGroup, key, value),
    "ShareGroupCurrentMemberAssignmentKey": lambda state, key, value: state._current(ShareGroup, key, value),
    "ShareGroupStatePartitionMetadataKey": GroupState._share_topics,
    "StreamsGroupMetadataKey": GroupState._streams_metadata,
    "StreamsGroupMemberMetadataKey": lambda state, key, value: state._member(StreamsGroup, key, value),
    "StreamsGroupTargetAssignmentMetadataKey": lambda state, key, value: state._target_metadata(StreamsGroup, key, value),
    "StreamsGroupTargetAssignmentMemberKey": lambda state, key, value: state._target_member(StreamsGroup, key, value),
    "StreamsGroupCurrentMemberAssignmentKey": lambda state, key, value: state._current(StreamsGroup, key, value),
    "StreamsGroupTopologyKey": GroupState._topology,
}


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
