"""The heartbeat of a member of a streams group, its answer, and the member that it is from.

    heartbeat                                  member
    -----------------------------------------  -----------------------------------------------------------------------------
    epoch 0                                    the one with the member id, or a new one
    epoch 0, instance id of a member that has  the one with the instance id, under the new member id
    left for a time
    epoch above 0                              the one with the member id; with an instance id it must have both
    epoch -2                                   leaves for a time: it keeps its tasks until its session ends

A member may send the epoch before the present one again with no other tasks than its own: the answer may have been lost.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from copy import copy
from typing import NamedTuple

from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.coordinator.group.consumer_members import check_static, fenced_epoch, find_member, static_member
from kcli.server.coordinator.group.current_tasks import OwnedTasks, contains
from kcli.server.coordinator.group.streams_endpoints import EndpointPartitions
from kcli.server.coordinator.group.streams_group_change import StreamsGroupChange
from kcli.server.coordinator.group.streams_topology import ConfiguredTopology, Status
from kcli.server.coordinator.operation import CoordinatorError
from kcli.state.groups import CurrentTasks, InternalTopic, StreamsGroup, StreamsGroupMember

LEAVE_FOR_A_TIME = -2  # the epoch of a static member that will come back


class TaskOffset(NamedTuple):
    """An offset that a member has reached in the changelog topics of a task, or their end."""

    subtopology_id: str
    partition: int
    offset: int


class TaskOffsets(NamedTuple):
    """The offsets of a member's tasks."""

    reached: tuple[TaskOffset, ...] = ()
    ends: tuple[TaskOffset, ...] = ()


class StreamsHeartbeat(NamedTuple):
    """A heartbeat; None is a field that has not changed. `topology` is the value of the topology's record.

    `of_kafka_4_4`: the client is of Kafka 4.4 or later. It can describe its topology, and knows the status of missing tags.
    """

    group_id: str
    member_id: str
    member_epoch: int
    endpoint_epoch: int
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout_ms: int | None
    client_id: str
    client_host: str
    topology: Message | None
    owned: OwnedTasks | None
    process_id: str | None
    user_endpoint: tuple[str, int] | None
    client_tags: dict[str, str] | None
    task_offsets: tuple[TaskOffset, ...] | None
    task_end_offsets: tuple[TaskOffset, ...] | None
    shuts_down: bool
    of_kafka_4_4: bool


class StreamsHeartbeatResult(NamedTuple):
    """The answer to a heartbeat; `tasks` and `endpoints` are None if they are as before.

    `missing_topics` are the internal topics that the broker must create.
    """

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int = 0
    task_offset_interval_ms: int = 0
    acceptable_recovery_lag: int = -1
    statuses: tuple[Status, ...] = ()
    tasks: CurrentTasks | None = None
    endpoint_epoch: int = 0
    endpoints: list[EndpointPartitions] | None = None
    missing_topics: tuple[InternalTopic, ...] = ()
    requires_description: bool = False


def sending_member(change: StreamsGroupChange, request: StreamsHeartbeat) -> StreamsGroupMember:
    """Return the member that sends a heartbeat, a new one if it joins. Raises CoordinatorError."""
    group, member_id, instance_id = change.group, request.member_id, request.instance_id
    if request.member_epoch == 0:
        static = None if instance_id is None else static_member(group, instance_id, member_id)
        if static is None:
            return group.members.get(member_id) or StreamsGroupMember(member_id, member_epoch=0, previous_member_epoch=0)
        if static.member_epoch != LEAVE_FOR_A_TIME:
            text = (
                f"Static member {member_id} with instance id {instance_id} cannot join the group because the instance id is "
                f"owned by {static.member_id} member."
            )
            raise CoordinatorError(error_codes.UNRELEASED_INSTANCE_ID, text)
        return change.replace_member(static, member_id)
    member = known_member(group, request)
    _check_epoch(member, request.member_epoch, request.owned)
    return member


def known_member(group: StreamsGroup, request: StreamsHeartbeat) -> StreamsGroupMember:
    """Return the member of a group with the ids of a heartbeat. Raises CoordinatorError."""
    if request.instance_id is None:
        return find_member(group, request.member_id)
    found = static_member(group, request.instance_id, request.member_id)
    return check_static(found, request.instance_id, request.member_id)


def _check_epoch(member: StreamsGroupMember, epoch: int, owned: OwnedTasks | None) -> None:
    if epoch == member.member_epoch:
        return
    tasks = member.assigned_tasks
    if epoch != member.previous_member_epoch or epoch > member.member_epoch or owned is None:
        raise fenced_epoch("streams", member, epoch)
    standby, warmup = ({key: set(found) for key, found in part.items()} for part in (tasks.standby, tasks.warmup))
    if not (contains(tasks.active, owned.active) and contains(standby, owned.standby) and contains(warmup, owned.warmup)):
        raise fenced_epoch("streams", member, epoch)


def left_for_a_time(member: StreamsGroupMember) -> StreamsGroupMember:
    """Return a static member that has left and keeps its tasks, from epoch 0 on: its successor begins with that."""
    left, tasks = copy(member), member.assigned_tasks
    left.member_epoch = LEAVE_FOR_A_TIME
    active = {key: dict.fromkeys(found, 0) for key, found in tasks.active.items()}
    left.assigned_tasks, left.tasks_pending_revocation = CurrentTasks(active, tasks.standby, tasks.warmup), CurrentTasks()
    return left


def kept_offsets(
    offsets: Mapping[str, TaskOffsets], members: Container[str], request: StreamsHeartbeat
) -> dict[str, TaskOffsets]:
    """Return the offsets by member with those that a member states, and without those of members that the group does not have.

    Raises CoordinatorError: INVALID_REQUEST.
    """
    given, ends = request.task_offsets, request.task_end_offsets
    _check_repeated(given or ())
    _check_repeated(ends or ())
    known = offsets.get(request.member_id, TaskOffsets())
    kept = {member_id: found for member_id, found in offsets.items() if member_id in members}
    kept[request.member_id] = TaskOffsets(known.reached if given is None else given, known.ends if ends is None else ends)
    return kept


def _check_repeated(offsets: Iterable[TaskOffset]) -> None:
    tasks: set[tuple[str, int]] = set()
    for key, index, _ in offsets:
        if (key, index) in tasks:
            text = f"Task offsets contain a duplicate entry for subtopology {key} and partition {index}."
            raise CoordinatorError(error_codes.INVALID_REQUEST, text)
        tasks.add((key, index))


def misses_tasks(member: StreamsGroupMember, owned: OwnedTasks | None) -> bool:
    """Return whether a member does not know all of its tasks: the answer that had them was lost.

    Kafka 4.3 does not return them again, so the member does not begin with them until the group changes.
    """
    if owned is None:
        return False
    tasks = member.assigned_tasks
    active = {key: list(found) for key, found in tasks.active.items()}
    return not all(contains(known, part) for part, known in zip((active, tasks.standby, tasks.warmup), owned))


def check_tasks(configured: ConfiguredTopology, owned: OwnedTasks | None) -> None:
    """Check that the topology has the tasks of a member. Raises CoordinatorError: INVALID_REQUEST."""
    parts = configured.subtopologies or {}
    for tasks in owned or ():
        for key, indexes in tasks.items():
            if key not in parts:
                text = f"Subtopology {key} does not exist in the topology."
                raise CoordinatorError(error_codes.INVALID_REQUEST, text)
            count = parts[key].task_count
            wrong = [index for index in indexes if not 0 <= index < count]
            if wrong:
                text = f"Task {wrong[0]} for subtopology {key} is invalid. Number of tasks for this subtopology: {count}"
                raise CoordinatorError(error_codes.INVALID_REQUEST, text)
