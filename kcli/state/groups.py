"""Groups, their members and their committed offsets, as values; kcli.state.group_state creates them from records.

    kind       since     partitions of the members                              records of __consumer_offsets
    ---------  --------  -----------------------------------------------------  ------------------------------
    classic    0.9       assigned by the member that leads; one record has the  type 2
                         whole group
    consumer   KIP-848   assigned by the coordinator: a target assignment that  types 3 to 8 and 16
                         each member reaches in steps (current assignment)
    share      KIP-932   the same, but members may share a partition            types 10 to 15
    streams    KIP-1071  tasks of a topology instead of partitions              types 17 and 19 to 23

Every group may have committed offsets. A group may have nothing else: a consumer that assigns partitions to itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from kcli.format.kafka_uuid import TopicIdPartition, Uuid

NO_EPOCH = -1
LEFT_GROUP_EPOCH = -1  # of a member that has left
CONSUMER_MEMBER_STATES = {0: "STABLE", 1: "UNREVOKED_PARTITIONS", 2: "UNRELEASED_PARTITIONS"}
STREAMS_MEMBER_STATES = {1: "STABLE", 2: "UNREVOKED_TASKS", 3: "UNRELEASED_TASKS"}

Partitions = dict[Uuid, list[int]]  # partition numbers by topic id
AssignedPartitions = dict[Uuid, dict[int, int]]  # by topic id: partition number -> the epoch in which the member got it
Tasks = dict[str, list[int]]  # partition numbers by subtopology
AssignedTasks = dict[str, dict[int, int]]  # by subtopology: partition number -> the epoch in which the member got it
TASK_ROLES = ("active", "standby", "warmup")
TaskKey = tuple[str, str, int]  # the role of a task, its subtopology and its partition number


@dataclass(slots=True)
class CommittedOffset:
    """A committed offset; times are in ms; times and `leader_epoch` are -1 if there is none.

    `record_offset` is the offset of its record in __consumer_offsets: the later of two commits is effective.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int
    topic_id: Uuid
    record_offset: int


@dataclass(slots=True)
class StoredClassicMember:
    """A member in the record of a classic group; `subscription` and `assignment` are bytes of the group's protocol."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(slots=True)
class StoredClassicGroup:
    """A classic group as its record has it; without a protocol type and members it only has committed offsets."""

    group_id: str
    protocol_type: str = ""
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    state_timestamp_ms: int = -1
    members: dict[str, StoredClassicMember] = field(default_factory=dict)
    kind: ClassVar[str] = "classic"

    @property
    def is_simple(self) -> bool:
        """True if the group has nothing but committed offsets."""
        return not self.protocol_type and not self.members

    @property
    def state(self) -> str:
        """The state of the group after a coordinator has loaded it."""
        return "Stable" if self.members else "Empty"


@dataclass(slots=True)
class ModernGroupMember:
    """The fields of the members of all modern groups; epochs are -1 for a member that has left."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    member_epoch: int = NO_EPOCH
    previous_member_epoch: int = NO_EPOCH
    state: str = "STABLE"


@dataclass(slots=True)
class ConsumerGroupMember(ModernGroupMember):
    """A member of a consumer group; `classic_protocols` is set for a member that uses the classic protocol."""

    subscribed_topic_names: list[str] = field(default_factory=list)
    subscribed_topic_regex: str | None = None
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    session_timeout_ms: int | None = None
    classic_protocols: dict[str, bytes] | None = None
    assigned_partitions: AssignedPartitions = field(default_factory=dict)
    partitions_pending_revocation: AssignedPartitions = field(default_factory=dict)


@dataclass(slots=True)
class ShareGroupMember(ModernGroupMember):
    """A member of a share group."""

    subscribed_topic_names: list[str] = field(default_factory=list)
    assigned_partitions: Partitions = field(default_factory=dict)


@dataclass(slots=True)
class TargetTasks:
    """The target tasks of a member of a streams group."""

    active: Tasks = field(default_factory=dict)
    standby: Tasks = field(default_factory=dict)
    warmup: Tasks = field(default_factory=dict)


@dataclass(slots=True)
class CurrentTasks:
    """The tasks that a member of a streams group has, or must revoke."""

    active: AssignedTasks = field(default_factory=dict)
    standby: Tasks = field(default_factory=dict)
    warmup: Tasks = field(default_factory=dict)

    def by_role(self) -> list[tuple[str, Mapping[str, Collection[int]]]]:
        """Return the partition numbers of the tasks by role and subtopology."""
        return [("active", self.active), ("standby", self.standby), ("warmup", self.warmup)]


@dataclass(slots=True)
class StreamsGroupMember(ModernGroupMember):
    """A member of a streams group; `user_endpoint` is its (host, port) for queries."""

    rebalance_timeout_ms: int = -1
    topology_epoch: int = NO_EPOCH
    process_id: str = ""
    user_endpoint: tuple[str, int] | None = None
    client_tags: dict[str, str] = field(default_factory=dict)
    assigned_tasks: CurrentTasks = field(default_factory=CurrentTasks)
    tasks_pending_revocation: CurrentTasks = field(default_factory=CurrentTasks)


@dataclass(slots=True)
class ModernGroup:
    """The fields of all groups whose assignment the coordinator computes.

    `group_epoch` grows with changes of the members and their subscriptions; `assignment_epoch` is the epoch of the target
    assignment.
    """

    group_id: str
    group_epoch: int = 0
    metadata_hash: int = 0
    assignment_epoch: int = NO_EPOCH
    assignment_timestamp_ms: int = 0

    def _reconciliation(self, members: Iterable[ModernGroupMember]) -> str:
        """Return the state of a group with members: Assigning, Reconciling or Stable."""
        if self.group_epoch > self.assignment_epoch:
            return "Assigning"
        is_stable = all(member.state == "STABLE" and member.member_epoch == self.assignment_epoch for member in members)
        return "Stable" if is_stable else "Reconciling"


@dataclass(slots=True)
class ConsumerGroup(ModernGroup):
    """A group of the consumer protocol. `resolved_regexes` has the topics that matched each subscribed pattern.

    `owners` has the id of the member of each partition that one has or has not revoked yet.
    """

    members: dict[str, ConsumerGroupMember] = field(default_factory=dict)
    target_assignment: dict[str, Partitions] = field(default_factory=dict)
    resolved_regexes: dict[str, list[str]] = field(default_factory=dict)
    has_partition_metadata: bool = False
    owners: dict[TopicIdPartition, str] = field(default_factory=dict, repr=False, compare=False)
    kind: ClassVar[str] = "consumer"

    def new_member(self, member_id: str) -> ConsumerGroupMember:
        """Return a member of this kind of group, which is not in the group yet."""
        return ConsumerGroupMember(member_id)

    @property
    def state(self) -> str:
        """Empty, Assigning, Reconciling or Stable."""
        return self._reconciliation(self.members.values()) if self.members else "Empty"


@dataclass(slots=True)
class ShareTopic:
    """A topic of a share group; `status` is initializing, initialized or deleting, `partitions` are numbers."""

    topic_id: Uuid
    name: str
    status: str
    partitions: list[int]


@dataclass(slots=True)
class ShareGroup(ModernGroup):
    """A share group; its offsets are in kcli.state.share_group_state."""

    members: dict[str, ShareGroupMember] = field(default_factory=dict)
    target_assignment: dict[str, Partitions] = field(default_factory=dict)
    topics: list[ShareTopic] = field(default_factory=list)
    kind: ClassVar[str] = "share"

    def new_member(self, member_id: str) -> ShareGroupMember:
        """Return a member of this kind of group, which is not in the group yet."""
        return ShareGroupMember(member_id)

    @property
    def state(self) -> str:
        """Empty or Stable."""
        return "Stable" if self.members else "Empty"


class InternalTopic(NamedTuple):
    """A repartition or changelog topic that the broker creates; 0 partitions or replicas: the client leaves it open."""

    name: str
    partitions: int = 0
    replication_factor: int = 0
    configs: tuple[tuple[str, str], ...] = ()


class CopartitionGroup(NamedTuple):
    """Topics that must have the same number of partitions, each as its position in a list of the subtopology."""

    source_topics: tuple[int, ...]
    source_topic_regexes: tuple[int, ...]
    repartition_source_topics: tuple[int, ...]


@dataclass(slots=True)
class Subtopology:
    """A subtopology, which runs as one kind of task; topics by name, patterns as text."""

    subtopology_id: str
    source_topics: list[str]
    source_topic_regexes: list[str]
    repartition_source_topics: list[InternalTopic]
    repartition_sink_topics: list[str]
    state_changelog_topics: list[InternalTopic]
    copartition_groups: list[CopartitionGroup]

    @property
    def input_topics(self) -> list[str]:
        """The names of the topics that its tasks read."""
        return [*self.source_topics, *(topic.name for topic in self.repartition_source_topics)]


@dataclass(slots=True)
class StreamsGroup(ModernGroup):
    """A streams group; `topology_epoch` is -1 as long as it has no topology.

    `task_processes` has the processes of the members that have a task or have not revoked it yet; of an active task it is one.
    """

    validated_topology_epoch: int = NO_EPOCH
    # The epochs of the topologies whose description was stored, or could not be stored (KIP-1331).
    stored_description_epoch: int = NO_EPOCH
    failed_description_epoch: int = NO_EPOCH
    assignment_configs: dict[str, str] = field(default_factory=dict)
    topology_epoch: int = NO_EPOCH
    subtopologies: dict[str, Subtopology] = field(default_factory=dict)
    members: dict[str, StreamsGroupMember] = field(default_factory=dict)
    target_assignment: dict[str, TargetTasks] = field(default_factory=dict)
    task_processes: dict[TaskKey, frozenset[str]] = field(default_factory=dict, repr=False, compare=False)
    kind: ClassVar[str] = "streams"

    def new_member(self, member_id: str) -> StreamsGroupMember:
        """Return a member of this kind of group, which is not in the group yet."""
        return StreamsGroupMember(member_id)

    @property
    def state(self) -> str:
        """Empty, NotReady (the topology is missing or not validated), Assigning, Reconciling or Stable."""
        if not self.members:
            return "Empty"
        if self.topology_epoch == NO_EPOCH or self.validated_topology_epoch != self.topology_epoch:
            return "NotReady"
        return self._reconciliation(self.members.values())


Group = StoredClassicGroup | ConsumerGroup | ShareGroup | StreamsGroup
