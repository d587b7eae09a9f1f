"""Cooperative tasks: long work in time slices, so that nothing occupies the event loop for longer than about 10 ms.

A task is a generator. Its first slice runs at once, in `Scheduler.run`; what it yields decides when it continues:

    it yields  it continues
    ---------  -------------------------------------------------------------------------------------------------------
    None       in its next slice: after other events, and after the tasks that wait already (first in, first out)
    paths      when these files and directories are flushed, in this order; the OSError of a failed flush is raised at
               the yield, as in kcli.log.disk.flush_request

At its end `done(now_ms)` is called: at once if the task never waited, else in a slice of its own, because to encode the answer
of a long request often takes as long as a slice. The node's state may change between slices.

There is one rule for faults: an exception of the task or of `done` goes to `failed` of its owner, which for a request answers
and logs `fault_line`. A task without `failed` is the node's own work: the exception leaves `run`, or the timer, and ends the
node (kcli.server.node).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import partial

from kcli.network.timing_wheel import Timer
from kcli.server.outstanding import FlushCallback

# The estimated work of a slice; the slowest machines take three times as long.
SLICE_US = 2_500
_DONE = ("",)  # not a path that a task yields

Work = Iterator[tuple[str, ...] | None]
Done = Callable[[int], None]
Failed = Callable[[Exception], None]


class SliceBudget:
    """The work that is left in the current slice, in microseconds by estimates."""

    __slots__ = ("_left_us",)

    def __init__(self) -> None:
        self._left_us = SLICE_US

    def is_spent(self, us: int) -> bool:
        """Count work of `us` microseconds; return True, and begin a new budget, if the slice should end here."""
        self._left_us -= us
        if self._left_us > 0:
            return False
        self._left_us = SLICE_US
        return True


class _Task:
    """A task that waits; `work` is None if only `done` is left."""

    __slots__ = ("done", "failed", "work")

    def __init__(self, work: Work, done: Done, failed: Failed | None) -> None:
        self.work: Work | None = work
        self.done = done
        self.failed = failed


class Scheduler:
    """The tasks of one owner. One slice of one of them runs each time that other events were handled."""

    def __init__(self, timer: Timer, flush: Callable[[tuple[str, ...], FlushCallback], object]) -> None:
        self.now_ms = timer.clock_ms  # the time of the current slice, for its task
        self._timer = timer
        self._flush = flush
        self._waiting: deque[_Task] = deque()
        self._is_closed = False

    def run(self, work: Work, now_ms: int, done: Done = lambda now_ms: None, failed: Failed | None = None) -> None:
        """Run the first slice of a task; the others follow."""
        self.now_ms = now_ms
        try:
            paths = next(work, _DONE)
            if paths is _DONE:
                done(now_ms)
                return
        except Exception as error:
            if failed is None:
                raise
            failed(error)
            return
        self._wait(_Task(work, done, failed), paths, now_ms)

    def close(self) -> None:
        """Drop the tasks that wait, and those that begin later wait forever: the node stops, and its logs close."""
        self._is_closed = True
        self._waiting.clear()

    def _wait(self, task: _Task, paths: tuple[str, ...] | None, now_ms: int) -> None:
        if self._is_closed:
            return
        if paths:
            self._flush(paths, partial(self._step, task))
            return
        if not self._waiting:
            self._timer.schedule(now_ms, self._next)
        self._waiting.append(task)

    def _next(self, now_ms: int) -> None:
        if self._is_closed:
            return
        task = self._waiting.popleft()
        if self._waiting:
            self._timer.schedule(now_ms, self._next)
        self._step(task, None, now_ms)

    def _step(self, task: _Task, error: OSError | None, now_ms: int) -> None:
        """Run the next slice of a task; `error` is that of the flush that it waited for."""
        self.now_ms = now_ms
        try:
            if task.work is None:
                task.done(now_ms)
                return
            paths = next(task.work, _DONE) if error is None else _throw(task.work, error)
        except Exception as fault:
            if task.failed is None:
                raise
            task.failed(fault)
            return
        if paths is _DONE:
            task.work = paths = None
        self._wait(task, paths, now_ms)


def _throw(work: Work, error: OSError) -> tuple[str, ...] | None:
    """Raise the error of a flush at the yield of a task."""
    assert isinstance(work, Generator), "only a generator yields paths"
    try:
        paths: tuple[str, ...] | None = work.throw(error)
    except StopIteration:
        return _DONE
    return paths
