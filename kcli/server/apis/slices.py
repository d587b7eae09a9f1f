"""Handlers of long requests, done in time slices: no request occupies the event loop for longer than about 10 ms.

The first slice runs at once; each later one is scheduled for "now", so that other events are handled first. So is the step
after the last slice, which often takes as long: the answer is encoded. Requests with slices left alternate.
The state may change between slices, as it may between the answers of several brokers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.timing_wheel import Timer

# The estimated work of a slice; the slowest machines take three times as long.
SLICE_US = 2_500
# What the part of an answer for a topic or a partition costs.
TOPIC_US = 10
PARTITION_US = 5
_DONE = object()


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


class SliceScheduler:
    """Requests with slices left. One slice of one of them runs each time that other events were handled."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._waiting: deque[Callable[[int], None]] = deque()
        self._is_closed = False

    def schedule(self, step: Callable[[int], None], now_ms: int) -> None:
        """Have `step(now_ms)` called after the steps that already wait."""
        if self._is_closed:
            return
        if not self._waiting:
            self._timer.schedule(now_ms, self._next)
        self._waiting.append(step)

    def _next(self, now_ms: int) -> None:
        if self._is_closed:
            return
        step = self._waiting.popleft()
        if self._waiting:
            self._timer.schedule(now_ms, self._next)
        step(now_ms)

    def close(self) -> None:
        """Drop the steps that are left, and do not answer their requests: the node stops and its logs close."""
        self._is_closed = True
        self._waiting.clear()


def in_slices(context: RequestContext, work: Iterator[None], done: Callable[[int], None], now_ms: int) -> None:
    """Run `work` one slice at a time, then `done(now_ms)`, which answers; at once if the work is one slice.

    An exception in the first slice goes to the caller, one in a later slice to `context.failed`.
    """
    if next(work, _DONE) is _DONE:
        done(now_ms)
        return
    slices = context.broker.slices

    def step(now_ms: int) -> None:
        is_last = False
        try:
            is_last = next(work, _DONE) is _DONE
        except Exception as error:
            context.failed(error)
            return
        slices.schedule(finish if is_last else step, now_ms)

    def finish(now_ms: int) -> None:
        try:
            done(now_ms)
        except Exception as error:
            context.failed(error)

    slices.schedule(step, now_ms)


def answer_in_slices(context: RequestContext, work: Iterator[None], response: Message) -> None:
    """Run `work`, which fills in `response`, one slice at a time, then send the response."""
    in_slices(context, work, lambda now_ms: context.respond(response), context.now_ms)
