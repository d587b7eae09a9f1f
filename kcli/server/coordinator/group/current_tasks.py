"""The steps of a member of a streams group from its tasks to its target (Kafka: streams' CurrentAssignmentBuilder, KIP-1071).

    state             the member                                        leaves the state
    ----------------  ------------------------------------------------  ----------------------------------------------------
    STABLE            has its target of its epoch                       when there is a target of another epoch
    UNREVOKED_TASKS   must revoke tasks, in its old epoch               when a heartbeat no longer lists them as owned
    UNRELEASED_TASKS  is in the target's epoch, and waits for tasks     when other members have revoked them

A member waits for a task while another process has it as its active task, and while a member of its own process has it: a
process has a task in one role only, because its members share the directory with the state. An active task keeps the epoch in
which its member got it: offsets are accepted from that epoch on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy
from typing import NamedTuple

from kcli.protocol import error_codes
from kcli.server.coordinator.operation import CoordinatorError
from kcli.state.groups import TASK_ROLES, AssignedTasks, CurrentTasks, StreamsGroupMember, TargetTasks, TaskKey, Tasks

STABLE, UNREVOKED, UNRELEASED = "STABLE", "UNREVOKED_TASKS", "UNRELEASED_TASKS"
_ACTIVE = TASK_ROLES[0]


class OwnedTasks(NamedTuple):
    """The tasks that a member says it has."""

    active: Tasks
    standby: Tasks
    warmup: Tasks


def is_reconciled(member: StreamsGroupMember, epoch: int) -> bool:
    """Return whether a member has its target of this epoch."""
    return member.state == STABLE and member.member_epoch == epoch


def next_tasks(
    member: StreamsGroupMember,
    epoch: int,
    target: TargetTasks,
    processes: Mapping[TaskKey, frozenset[str]],
    owned: OwnedTasks | None,
) -> StreamsGroupMember:
    """Return the member with its next tasks, the same member if nothing changes.

    `processes` are those that have a task; `owned` are the tasks that the member says it has, if it does. Raises
    CoordinatorError for a state of a later Kafka.
    """
    if is_reconciled(member, epoch):
        return member
    base_epoch = member.member_epoch
    if member.state == UNREVOKED:
        if owned is None or _has_any(owned, member.tasks_pending_revocation):
            return member
        base_epoch += 1
    elif member.state not in (STABLE, UNRELEASED):
        if owned is None or any(owned):
            text = "The streams group member is in a unknown state. The member must abandon all its tasks and rejoin."
            raise CoordinatorError(error_codes.FENCED_MEMBER_EPOCH, text)
        base_epoch = epoch
    step = _Step(member.process_id, epoch, processes)
    tasks = member.assigned_tasks
    for role, current, wanted in zip(TASK_ROLES, _by_role(tasks), (target.active, target.standby, target.warmup)):
        step.compare(role, current, wanted)
    revoked = step.tasks(step.revoked)
    if any(step.revoked.values()) and (owned is None or _has_any(owned, revoked)):
        return _moved(member, UNREVOKED, base_epoch, step.tasks(step.kept), revoked)
    state = UNRELEASED if step.is_waiting else STABLE
    return _moved(member, state, epoch, step.tasks(step.kept, step.added), CurrentTasks())


def contains(tasks: Mapping[str, Collection[int]], owned: Tasks | None) -> bool:
    """Return whether these tasks include all those that a member says it has; False if it does not say."""
    if owned is None:
        return False
    return all(index in tasks.get(key, ()) for key, found in owned.items() for index in found)


class _Step:
    """What changes for a member, by role: tasks that it keeps, must revoke and gets."""

    def __init__(self, process_id: str, epoch: int, processes: Mapping[TaskKey, frozenset[str]]) -> None:
        self.kept: dict[str, AssignedTasks] = {}
        self.revoked: dict[str, AssignedTasks] = {}
        self.added: dict[str, AssignedTasks] = {}
        self.is_waiting = False
        self._process_id = process_id
        self._epoch = epoch
        self._processes = processes

    def compare(self, role: str, current: AssignedTasks, target: Tasks) -> None:
        """Compare the present tasks of a role with the target."""
        kept, revoked, added = (part.setdefault(role, {}) for part in (self.kept, self.revoked, self.added))
        for key in sorted({*current, *target}):
            have, wanted = current.get(key, {}), target.get(key, ())
            missing = [index for index in wanted if index not in have]
            free = [index for index in missing if not self._is_unreleased(role, key, index)]
            self.is_waiting = self.is_waiting or len(free) < len(missing)
            for part, found in (
                (kept, {index: since for index, since in have.items() if index in wanted}),
                (revoked, {index: since for index, since in have.items() if index not in wanted}),
                (added, dict.fromkeys(free, self._epoch)),
            ):
                if found:
                    part[key] = found

    def _is_unreleased(self, role: str, subtopology_id: str, index: int) -> bool:
        active, *others = (self._processes.get((one, subtopology_id, index), frozenset[str]()) for one in TASK_ROLES)
        if role == _ACTIVE and active:
            return True
        return any(self._process_id in found for found in (active, *others))

    def tasks(self, *parts: dict[str, AssignedTasks]) -> CurrentTasks:
        """Return these tasks as those of a member."""
        active, standby, warmup = (_merged([part[role] for part in parts]) for role in TASK_ROLES)
        return CurrentTasks(active, _without_epochs(standby), _without_epochs(warmup))


def _merged(parts: list[AssignedTasks]) -> AssignedTasks:
    merged: AssignedTasks = {}
    for part in parts:
        for key, found in part.items():
            merged[key] = merged.get(key, {}) | found
    return merged


def _without_epochs(tasks: AssignedTasks) -> Tasks:
    return {key: sorted(found) for key, found in tasks.items()}


def _by_role(tasks: CurrentTasks) -> tuple[AssignedTasks, AssignedTasks, AssignedTasks]:
    """Return the tasks of each role; those other than active ones have no epochs."""
    standby, warmup = ({key: dict.fromkeys(found, 0) for key, found in part.items()} for part in (tasks.standby, tasks.warmup))
    return tasks.active, standby, warmup


def _has_any(owned: OwnedTasks, tasks: CurrentTasks) -> bool:
    """Return whether the member still has one of these tasks."""
    return any(
        index in found.get(key, ())
        for part, (_, found) in zip(owned, tasks.by_role())
        for key, indexes in part.items()
        for index in indexes
    )


def _moved(
    member: StreamsGroupMember, state: str, epoch: int, assigned: CurrentTasks, revoked: CurrentTasks
) -> StreamsGroupMember:
    moved = copy(member)
    moved.state = state
    moved.previous_member_epoch, moved.member_epoch = member.member_epoch, epoch
    moved.assigned_tasks, moved.tasks_pending_revocation = assigned, revoked
    return moved
