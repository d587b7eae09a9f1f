"""The assignor of streams groups: which member is to have which task (Kafka: StickyTaskAssignor of the group coordinator).

    step                          tasks, in this order                   go to
    ----------------------------  -------------------------------------  -----------------------------------------------
    active, to the member before  by partition and subtopology           the member that has had it, within its quota
    active, to a standby          the others                             the member of the least load that has had it as a
                                                                         standby task, within its quota
    active, the rest              the others, by subtopology and         the least loaded process, its member with the
                                  partition                              fewest tasks
    standby                       of subtopologies with a state, the     the member that has had it active or standby,
                                  last partition first                   within its quota; otherwise the least loaded
                                                                         process

A process has no task twice, in whichever role. The load of a process is its number of tasks for each of its members. A quota is
the number of tasks for each member with room, rounded up; it is computed again when a member has reached it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from kcli.state.groups import TargetTasks, Tasks

Task = tuple[str, int]  # subtopology and partition


class StreamsMemberSpec(NamedTuple):
    """A member for the assignor, with its present target."""

    member_id: str
    process_id: str
    target: TargetTasks


class TaskSource(NamedTuple):
    """A subtopology for the assignor; one that is stateful gets standby tasks."""

    subtopology_id: str
    task_count: int
    is_stateful: bool

    @property
    def tasks(self) -> list[Task]:
        """The tasks of the subtopology."""
        return [(self.subtopology_id, index) for index in range(self.task_count)]


def assign_tasks(
    members: Iterable[StreamsMemberSpec], sources: Iterable[TaskSource], standby_replicas: int
) -> dict[str, TargetTasks]:
    """Return the target of each member."""
    assignment = _Assignment(list(members), list(sources), standby_replicas)
    assignment.assign_active()
    if standby_replicas > 0:
        assignment.assign_standby()
    return assignment.targets()


class _Quota:
    """How many tasks a member may get: those that are left, for each member that has not reached the quota yet."""

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks = tasks
        self._members = members
        self.limit = 0
        self._compute()

    def _compute(self) -> None:
        self.limit = -(-self._tasks // self._members) if self._members else 0

    def added(self, count: int) -> None:
        """Take note that a member has `count` tasks now."""
        if count == self.limit:
            self._members -= 1
            self._tasks -= count
            self._compute()


class _Process:
    """The members of a process with their tasks."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.tasks: set[Task] = set()
        self._total = 0

    @property
    def load(self) -> float:
        """The tasks for each member."""
        return self._total / len(self.counts)

    def add(self, member_id: str, task: Task) -> int:
        """Give a task to a member; return how many tasks it has now."""
        self.tasks.add(task)
        self._total += 1
        self.counts[member_id] += 1
        return self.counts[member_id]

    def least_loaded(self) -> str:
        """Return the member with the fewest tasks."""
        return min(self.counts, key=self.counts.__getitem__)


class _Queue:
    """Processes, of which the least loaded comes first, and of those with the same load the one that has waited longest."""

    def __init__(self, processes: Iterable[_Process]) -> None:
        self._added = 0
        self._heap: list[tuple[float, int, _Process]] = []
        for process in processes:
            self.put(process)

    def put(self, process: _Process) -> None:
        """Add a process."""
        self._added += 1
        heapq.heappush(self._heap, (process.load, self._added, process))

    def take(self, without: Task | None = None) -> _Process | None:
        """Remove and return the least loaded process, one that does not have the task `without`; None if there is none."""
        passed: list[_Process] = []
        found = None
        while self._heap and found is None:
            process = heapq.heappop(self._heap)[-1]
            if without is None or without not in process.tasks:
                found = process
            else:
                passed.append(process)
        for process in passed:
            self.put(process)
        return found


class _Assignment:
    """One assignment that is being made."""

    def __init__(self, members: list[StreamsMemberSpec], sources: list[TaskSource], standby_replicas: int) -> None:
        self._sources = sources
        self._replicas = standby_replicas
        self._processes: dict[str, _Process] = {}
        self._process_of: dict[str, _Process] = {}
        self._active: dict[str, list[Task]] = {member.member_id: [] for member in members}
        self._standby: dict[str, list[Task]] = {member.member_id: [] for member in members}
        self._active_before: dict[Task, str] = {}
        self._standby_before: dict[Task, list[str]] = {}
        for member in members:
            process = self._processes.setdefault(member.process_id, _Process())
            process.counts[member.member_id] = 0
            self._process_of[member.member_id] = process
            self._active_before |= dict.fromkeys(_listed(member.target.active), member.member_id)
            for task in _listed(member.target.standby):
                self._standby_before.setdefault(task, []).append(member.member_id)
        active = sum(source.task_count for source in sources)
        standby = standby_replicas * sum(source.task_count for source in sources if source.is_stateful)
        self._active_quota = _Quota(active, len(members))
        self._quota = _Quota(active + standby, len(members))

    # ---------------------------------------------------------------------------------------------------------- active

    def assign_active(self) -> None:
        """Assign all active tasks."""
        left = sorted((task for source in self._sources for task in source.tasks), key=_by_partition)
        left = [task for task in left if not self._add_active(self._active_before.get(task), task)]
        left = [task for task in left if not self._add_active(self._least_loaded(task), task)]
        queue = _Queue(self._processes.values())
        for task in sorted(left):
            process = queue.take()
            assert process is not None
            self._give_active(process, process.least_loaded(), task)
            queue.put(process)

    def _add_active(self, member_id: str | None, task: Task) -> bool:
        if member_id is None:
            return False
        process = self._process_of[member_id]
        if process.counts[member_id] >= self._active_quota.limit:
            return False
        self._give_active(process, member_id, task)
        return True

    def _give_active(self, process: _Process, member_id: str, task: Task) -> None:
        self._active[member_id].append(task)
        count = process.add(member_id, task)
        self._active_quota.added(count)
        self._quota.added(count)

    def _least_loaded(self, task: Task, *, is_free: bool = False) -> str | None:
        """Return the member of the least load that had a standby task; with `is_free`, one whose process lacks the task."""
        members = self._standby_before.get(task)
        if not members:
            return None
        found = members[0]
        for member_id in members[1:]:
            process, best = self._process_of[member_id], self._process_of[found]
            is_less = process.load < best.load and process.counts[member_id] < best.counts[found]
            if is_less and not (is_free and task in process.tasks):
                found = member_id
        return None if is_free and task in self._process_of[found].tasks else found

    # --------------------------------------------------------------------------------------------------------- standby

    def assign_standby(self) -> None:
        """Assign the standby tasks; without enough processes there are fewer."""
        left: list[tuple[Task, int]] = []
        stateful = (task for source in self._sources if source.is_stateful for task in source.tasks)
        for task in sorted(stateful, key=_by_partition, reverse=True):
            for replica in range(self._replicas):
                member_id = self._standby_member(task)
                if member_id is None:
                    left.append((task, self._replicas - replica))
                    break
                self._give_standby(self._process_of[member_id], member_id, task)
        queue = _Queue(self._processes.values())
        for task, count in sorted(left, reverse=True):
            for _ in range(count):
                process = queue.take(without=task)
                if process is None:
                    break
                self._give_standby(process, process.least_loaded(), task)
                queue.put(process)

    def _standby_member(self, task: Task) -> str | None:
        """Return a member that has had the task and may have it as a standby task."""
        for member_id in (self._active_before.get(task), self._least_loaded(task, is_free=True)):
            if member_id is not None:
                process = self._process_of[member_id]
                if task not in process.tasks and process.counts[member_id] < self._quota.limit:
                    return member_id
        return None

    def _give_standby(self, process: _Process, member_id: str, task: Task) -> None:
        self._standby[member_id].append(task)
        self._quota.added(process.add(member_id, task))

    def targets(self) -> dict[str, TargetTasks]:
        """Return what is assigned."""
        return {key: TargetTasks(_grouped(self._active[key]), _grouped(self._standby[key])) for key in self._active}


def _by_partition(task: Task) -> tuple[int, str]:
    return task[1], task[0]


def _listed(tasks: Tasks) -> list[Task]:
    return [(subtopology_id, index) for subtopology_id, indexes in tasks.items() for index in indexes]


def _grouped(tasks: Iterable[Task]) -> Tasks:
    grouped: Tasks = {}
    for subtopology_id, index in sorted(tasks):
        grouped.setdefault(subtopology_id, []).append(index)
    return grouped
