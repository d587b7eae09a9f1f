"""The timer of a node: a hierarchical timing wheel, as in Kafka's purgatories.

    level   a bucket spans        a wheel of 20 buckets reaches
    -----   -------------------   -------------------------------
    0       1 ms                  20 ms
    1       20 ms                 400 ms
    2       400 ms                8 s
    n       20^n ms               20^(n+1) ms

A task is put into the bucket of the lowest level that reaches its time. When a bucket above level 0 is due, its tasks are
moved to finer buckets, so each is moved a few times and runs at its millisecond; the cost of scheduling and cancelling does not
depend on the number of tasks. A heap has the buckets with tasks, which gives the next deadline without ticking.

Due tasks run in the order of their times, and those of one time in the order in which they were scheduled. A task that a
callback schedules for now, or for the past, runs at the next `advance`: no task can block the node by scheduling itself again.
An exception of a callback leaves `advance`; the tasks that were due after it run at the next one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from kcli.log.wall_time import WallTime

WHEEL_SIZE = 20

Callback = Callable[[int], None]


class TimerTask:
    """A callback that runs at `at_ms`, unless it is cancelled before."""

    __slots__ = ("_bucket", "at_ms", "callback", "sequence")

    def __init__(self, at_ms: int, callback: Callback, sequence: int) -> None:
        self.at_ms = at_ms
        self.callback: Callback | None = callback
        self.sequence = sequence
        self._bucket: dict[TimerTask, None] | None = None

    def cancel(self) -> None:
        """Cancel the callback; this may be called twice, and after it has run."""
        self.callback = None
        if self._bucket is not None:
            self._bucket.pop(self, None)
            self._bucket = None


class Timer:
    """Tasks by the node's time; `clock_ms` is the time of the last event, and `wall` the wall clock at that time."""

    def __init__(self, start_ms: int = 0, wall: WallTime | None = None) -> None:
        self.clock_ms = start_ms
        self.wall = wall or WallTime()
        self._levels: list[dict[int, dict[TimerTask, None]]] = []  # by level: bucket by the time at which it is due
        self._spans_ms: list[int] = []
        self._coming: list[tuple[int, int]] = []  # heap of (time, level) of the buckets that have, or had, tasks
        self._sequence = 0

    def schedule(self, at_ms: int, callback: Callback) -> TimerTask:
        """Have `callback(now_ms)` run at `at_ms`; return the task, which can be cancelled."""
        self._sequence += 1
        task = TimerTask(at_ms, callback, self._sequence)
        self._insert(task)
        return task

    def _insert(self, task: TimerTask) -> None:
        at_ms = task.at_ms if task.at_ms > self.clock_ms else self.clock_ms
        level, span_ms = 0, 1
        while at_ms // span_ms - self.clock_ms // span_ms >= WHEEL_SIZE:
            level, span_ms = level + 1, span_ms * WHEEL_SIZE
        while len(self._levels) <= level:
            self._levels.append({})
            self._spans_ms.append(WHEEL_SIZE ** len(self._spans_ms))
        due_ms = at_ms - at_ms % span_ms
        buckets = self._levels[level]
        bucket = buckets.get(due_ms)
        if bucket is None:
            bucket = buckets[due_ms] = {}
            heapq.heappush(self._coming, (due_ms, level))
        bucket[task] = None
        task._bucket = bucket

    def next_deadline_ms(self) -> int | None:
        """Return when `advance` must be called next, None without tasks. It may be before any task is due."""
        while self._coming:
            at_ms, level = self._coming[0]
            if self._levels[level][at_ms]:
                return at_ms
            heapq.heappop(self._coming)
            del self._levels[level][at_ms]
        return None

    def observe(self, now_ms: int) -> None:
        """Set the time without running tasks: what an event schedules counts from its own time."""
        if now_ms > self.clock_ms:
            self.clock_ms = now_ms

    def advance(self, now_ms: int) -> None:
        """Run the tasks that are due at `now_ms`; an earlier time than the last does nothing. Raises what a callback raises."""
        due: list[TimerTask] = []
        while self._coming and self._coming[0][0] <= now_ms:
            at_ms, level = heapq.heappop(self._coming)
            bucket = self._levels[level].pop(at_ms)
            self.clock_ms = max(self.clock_ms, at_ms)
            for task in bucket:
                task._bucket = None
                if task.at_ms <= now_ms:
                    due.append(task)
                else:
                    self._insert(task)
        self.clock_ms = max(self.clock_ms, now_ms)
        due.sort(key=lambda task: (task.at_ms, task.sequence), reverse=True)
        try:
            while due:
                task = due.pop()
                callback, task.callback = task.callback, None
                if callback is not None:
                    callback(now_ms)
        finally:
            # Tasks are left only if a callback raised.
            for task in due:
                if task.callback is not None:
                    self._insert(task)
