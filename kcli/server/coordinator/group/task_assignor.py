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
the number of tasks for each member with room, rounded up; it is computed again when a member has reached it. Of equally loaded
processes and members the one is taken that Kafka takes (`java_text`): tests/oracle/test_task_assignor.py asks Kafka.

Kafka 4.4.0 differs from 4.3.1. `assign_tasks` follows one of them:

    4.3.1                                          4.4.0
    ---------------------------------------------  ---------------------------------------------------------------------
    tasks before are those of the last target      tasks before are those that the member has now
    a standby task goes to the members before      also to members that report an offset of the task, the highest first:
                                                   they have its state on disk
    with a process that has the task already, the  the other members are still asked
    first member before rules out the others
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kcli.format.java_text import PriorityQueue, hash_map_order
from kcli.state.groups import TargetTasks, Tasks

Task = tuple[str, int]  # subtopology and partition


class StreamsMemberSpec(NamedTuple):
    """A member for the assignor with its tasks before, and the sums of the offsets that it reports of tasks."""

    member_id: str
    process_id: str
    before: TargetTasks
    offsets: Mapping[Task, int] = {}


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
    members: Iterable[StreamsMemberSpec], sources: Iterable[TaskSource], standby_replicas: int, is_4_4: bool
) -> dict[str, TargetTasks]:
    """Return the target of each member, by the rules of Kafka 4.4.0 or by those of 4.3.1."""
    assignment = _Assignment(list(members), list(sources), standby_replicas, is_4_4)
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
        self._queue: PriorityQueue[tuple[str, int]] | None = None

    @property
    def load(self) -> float:
        """The tasks for each member."""
        return self._total / len(self.counts)

    def add(self, member_id: str, task: Task) -> int:
        """Give a task to a member; return how many tasks it has now."""
        self._queue = None
        return self._add(member_id, task)

    def _add(self, member_id: str, task: Task) -> int:
        self.tasks.add(task)
        self._total += 1
        self.counts[member_id] += 1
        return self.counts[member_id]

    def add_to_least_loaded(self, task: Task) -> tuple[str, int]:
        """Give a task to the member with the fewest tasks; return the member and how many it has now."""
        if self._queue is None:
            counted = ((member_id, self.counts[member_id]) for member_id in hash_map_order(self.counts))
            self._queue = PriorityQueue(lambda entry: entry[1], counted)
        entry = self._queue.take()
        assert entry is not None
        entry = (entry[0], self._add(entry[0], task))
        self._queue.put(entry)
        return entry


class _Assignment:
    """One assignment that is being made."""

    def __init__(
        self, members: list[StreamsMemberSpec], sources: list[TaskSource], standby_replicas: int, is_4_4: bool
    ) -> None:
        self._sources = sources
        self._replicas = standby_replicas
        self._is_4_4 = is_4_4
        self._processes: dict[str, _Process] = {}
        self._process_ids: list[str] = []  # of the members, as Kafka inserts them into its map of processes
        self._process_of: dict[str, _Process] = {}
        self._active: dict[str, list[Task]] = {member.member_id: [] for member in members}
        self._standby: dict[str, list[Task]] = {member.member_id: [] for member in members}
        self._active_before: dict[Task, str] = {}
        self._standby_before: dict[Task, list[str]] = {}
        ranked: dict[Task, list[tuple[bool, int, str]]] = {}
        by_id = {member.member_id: member for member in members}
        for member in (by_id[member_id] for member_id in hash_map_order(by_id)):
            self._process_ids.append(member.process_id)
            process = self._processes.setdefault(member.process_id, _Process())
            process.counts[member.member_id] = 0
            self._process_of[member.member_id] = process
            self._active_before |= dict.fromkeys(_listed(member.before.active), member.member_id)
            standby = set(_listed(member.before.standby))
            for task in {*standby, *member.offsets}:
                ranked.setdefault(task, []).append((task not in standby, -member.offsets.get(task, 0), member.member_id))
        for task, candidates in ranked.items():
            self._standby_before[task] = [member_id for _, _, member_id in sorted(candidates, key=lambda one: one[:2])]
        active = sum(source.task_count for source in sources)
        replicas = standby_replicas * sum(source.task_count for source in sources if source.is_stateful)
        self._active_quota = _Quota(active, len(members))
        self._quota = _Quota(active + replicas, len(members))

    # ---------------------------------------------------------------------------------------------------------- active

    def assign_active(self) -> None:
        """Assign all active tasks."""
        left = sorted((task for source in self._sources for task in source.tasks), key=_by_partition)
        left = [task for task in left if not self._add_active(self._active_before.get(task), task)]
        left = [task for task in left if not self._add_active(self._least_loaded(task), task)]
        queue = self._queue()
        for task in sorted(left):
            process = queue.take()
            assert process is not None
            member_id, count = process.add_to_least_loaded(task)
            self._gave_active(member_id, task, count)
            queue.put(process)

    def _add_active(self, member_id: str | None, task: Task) -> bool:
        if member_id is None:
            return False
        process = self._process_of[member_id]
        if process.counts[member_id] >= self._active_quota.limit:
            return False
        self._gave_active(member_id, task, process.add(member_id, task))
        return True

    def _queue(self) -> PriorityQueue[_Process]:
        """Return the processes by their load."""
        names = hash_map_order(self._process_ids, len(self._active), is_computed=self._is_4_4)
        return PriorityQueue(lambda process: process.load, (self._processes[name] for name in names))

    def _gave_active(self, member_id: str, task: Task, count: int) -> None:
        self._active[member_id].append(task)
        self._active_quota.added(count)
        self._quota.added(count)

    def _least_loaded(self, task: Task, *, is_free: bool = False) -> str | None:
        """Return the member of the least load that had a standby task; with `is_free`, one whose process lacks the task."""
        members = self._standby_before.get(task, [])
        found: str | None = None
        for member_id in members:
            process = self._process_of[member_id]
            is_fit = not is_free or task not in process.tasks
            if found is None:
                found = member_id if is_fit or not self._is_4_4 else None
            elif is_fit:
                best = self._process_of[found]
                if process.load < best.load and process.counts[member_id] < best.counts[found]:
                    found = member_id
        if is_free and members and not self._is_4_4 and task in self._process_of[members[0]].tasks:
            return None  # Kafka 4.3 checks the first member's process, whichever member is found.
        return found

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
                self._gave_standby(member_id, task, self._process_of[member_id].add(member_id, task))
        queue = self._queue()
        for task, count in sorted(left, reverse=True):
            for _ in range(count):
                if not self._add_standby(queue, task):
                    break

    def _add_standby(self, queue: PriorityQueue[_Process], task: Task) -> bool:
        """Give a standby task to the least loaded process that does not have it; return whether there is one."""
        passed: list[_Process] = []
        process = queue.take()
        while process is not None and task in process.tasks:
            passed.append(process)
            process = queue.take()
        if process is not None:
            member_id, count = process.add_to_least_loaded(task)
            self._gave_standby(member_id, task, count)
            queue.put(process)
        for other in reversed(passed):
            queue.put(other)
        return process is not None

    def _standby_member(self, task: Task) -> str | None:
        """Return a member that has had the task and may have it as a standby task."""
        for member_id in (self._active_before.get(task), self._least_loaded(task, is_free=True)):
            if member_id is not None:
                process = self._process_of[member_id]
                if task not in process.tasks and process.counts[member_id] < self._quota.limit:
                    return member_id
        return None

    def _gave_standby(self, member_id: str, task: Task, count: int) -> None:
        self._standby[member_id].append(task)
        self._quota.added(count)

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
