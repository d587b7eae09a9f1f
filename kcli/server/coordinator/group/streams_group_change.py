"""A change of a streams group by one operation: what it decides, as records, in Kafka's order.

    step            records
    --------------  ------------------------------------------------------------------------------------------------------
    put_member      the member
    put_topology    the topology of a group that has none
    remove_member   tombstones; the epoch of the target of a group that is now empty
    replace_member  tombstones, and the member, its target and its tasks under the new id
    begin_epoch     the next group epoch
    assign          the target of each member that has another one, and the epoch of the target
    reconcile       the next tasks of the member

The group itself does not change: the records are applied when the operation is decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy

from kcli.protocol.message import Message
from kcli.server.coordinator.coordinator_record import CoordinatorRecord
from kcli.server.coordinator.group.consumer_group_change import FIRST_GROUP_EPOCH, is_assignment_early
from kcli.server.coordinator.group.current_tasks import OwnedTasks, next_tasks
from kcli.server.coordinator.group.group_records import (
    streams_current_record,
    streams_group_record,
    streams_member_record,
    streams_member_tombstones,
    streams_target_epoch_record,
    streams_target_record,
    topology_record,
)
from kcli.server.coordinator.group.streams_topology import ConfiguredTopology
from kcli.server.coordinator.group.task_assignor import StreamsMemberSpec, TaskSource, assign_tasks
from kcli.state.groups import StreamsGroup, StreamsGroupMember, TargetTasks

# The settings of the assignor, as records have them.
STANDBY_CONFIG, RACK_TAGS_CONFIG = "num.standby.replicas", "rack.aware.assignment.tags"
# Of the tasks of members, by member id: subtopology, partition and offset.
Offsets = Mapping[str, Iterable[tuple[str, int, int]]]
# Of a group without a target: its members reach this epoch with no tasks.
FIRST_TARGET_EPOCH = 1


class StreamsGroupChange:
    """A change of `group` at `now_ms` on the wall clock; `records`, `members` and both epochs are those after it."""

    def __init__(self, group: StreamsGroup, now_ms: int) -> None:
        self.group = group
        self.records: list[CoordinatorRecord] = []
        self.epoch = max(group.group_epoch, FIRST_GROUP_EPOCH)
        self.target_epoch = max(group.assignment_epoch, FIRST_TARGET_EPOCH)
        self.members = group.members
        self._targets = group.target_assignment
        self._now_ms = now_ms

    def put_member(self, member: StreamsGroupMember) -> None:
        """Add a member, or change it."""
        self.members = self.members | {member.member_id: member}
        self.records.append(streams_member_record(self.group.group_id, member))

    def put_topology(self, value: Message) -> None:
        """Let the group have a topology."""
        self.records.append(topology_record(self.group.group_id, value))

    def replace_member(self, replaced: StreamsGroupMember, member_id: str) -> StreamsGroupMember:
        """Let a static member with a new id take the place of the one with the same instance id; return the new member."""
        group_id, old_id = self.group.group_id, replaced.member_id
        member = copy(replaced)
        member.member_id, member.member_epoch, member.previous_member_epoch = member_id, 0, 0
        target = self._targets.get(old_id, TargetTasks())
        self.members = {key: found for key, found in self.members.items() if key != old_id} | {member_id: member}
        self._targets = {key: found for key, found in self._targets.items() if key != old_id} | {member_id: target}
        self.records += (
            *streams_member_tombstones(group_id, old_id),
            streams_member_record(group_id, member),
            streams_target_record(group_id, member_id, target),
            streams_current_record(group_id, member),
        )
        return member

    def remove_member(self, member_id: str) -> None:
        """Remove a member, and begin a group epoch with all else as before."""
        group = self.group
        self.members = {key: member for key, member in self.members.items() if key != member_id}
        self.records += streams_member_tombstones(group.group_id, member_id)
        self.begin_epoch(group.metadata_hash, group.validated_topology_epoch, group.assignment_configs)
        if not self.members:
            self.target_epoch = self.epoch
            self.records.append(streams_target_epoch_record(group.group_id, self.epoch, 0))  # the next assignment does not wait

    def begin_epoch(self, metadata_hash: int, validated_topology_epoch: int, configs: Mapping[str, str]) -> None:
        """Begin the next group epoch."""
        self.epoch += 1
        record = streams_group_record(self.group, self.epoch, metadata_hash, validated_topology_epoch, configs)
        self.records.append(record)

    def is_assignment_early(self, interval_ms: int) -> bool:
        """Return whether the last assignment is not `interval_ms` ago yet."""
        return is_assignment_early(self.group.assignment_timestamp_ms, interval_ms, self._now_ms)

    def assign(self, topology: ConfiguredTopology, configs: Mapping[str, str], offsets: Offsets | None) -> None:
        """Make the targets of the group's epoch; they are empty as long as the topology is not ready.

        `offsets` are those of tasks that the members report; None assigns as Kafka 4.3 does.
        """
        targets = {member_id: TargetTasks() for member_id in self.members}
        if topology.is_ready and topology.subtopologies is not None:
            members = [self._specification(member, offsets) for member in self.members.values()]
            sources = [
                TaskSource(key, part.task_count, bool(part.state_changelog_topics))
                for key, part in topology.subtopologies.items()
            ]
            targets = assign_tasks(members, sources, int(configs.get(STANDBY_CONFIG, "0")), offsets is not None)
        for member_id, target in targets.items():
            if self._targets.get(member_id) != target:
                self.records.append(streams_target_record(self.group.group_id, member_id, target))
        self._targets, self.target_epoch = targets, self.epoch
        self.records.append(streams_target_epoch_record(self.group.group_id, self.epoch, self._now_ms))

    def _specification(self, member: StreamsGroupMember, offsets: Offsets | None) -> StreamsMemberSpec:
        if offsets is None:
            before = self._targets.get(member.member_id, TargetTasks())
            return StreamsMemberSpec(member.member_id, member.process_id, before)
        tasks = member.assigned_tasks
        before = TargetTasks({key: list(found) for key, found in tasks.active.items()}, tasks.standby)
        reached = {(key, index): offset for key, index, offset in offsets.get(member.member_id, ())}
        return StreamsMemberSpec(member.member_id, member.process_id, before, reached)

    def reconcile(self, member: StreamsGroupMember, owned: OwnedTasks | None, *, has_target: bool) -> StreamsGroupMember:
        """Return the member with its next tasks; the change has its record if they are others.

        Without a target the member has no tasks in the target's epoch.
        """
        target = self._targets.get(member.member_id, TargetTasks()) if has_target else TargetTasks()
        moved = next_tasks(member, self.target_epoch, target, self.group.task_processes, owned)
        if moved == member:
            return member
        self.records.append(streams_current_record(self.group.group_id, moved))
        return moved
