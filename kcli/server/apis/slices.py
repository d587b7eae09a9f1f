"""What takes long, done a slice at a time: no request holds the node above some 10 ms.

The first slice is done at once; each later one comes by a deadline of "now", so that other events are let in between, and so
does what follows of them all, which often is as long: an answer is encoded. Of many requests under way one has its turn then.
The state may change between slices, as it may between the partitions of any answer that several brokers give.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.timing_wheel import Timer

# The work of a slice, by estimates: the slowest machines take thrice as long as these say.
SLICE_US = 2_500
# What an answer's part on a topic or a partition costs to make.
TOPIC_US = 10
PARTITION_US = 5
_DONE = object()


class Pace:
    """Adds up what work costs: `is_due(us)` tells when others have their turn."""

    __slots__ = ("_left_us",)

    def __init__(self) -> None:
        self._left_us = SLICE_US

    def is_due(self, us: int) -> bool:
        """Count work of some microseconds -> True where it is time for a new slice."""
        self._left_us -= us
        if self._left_us > 0:
            return False
        self._left_us = SLICE_US
        return True


class Turns:
    """Requests under way that have work left: a step of one of them each time that others were let in."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._waiting: deque[Callable[[int], None]] = deque()
        self._is_over = False

    def wait(self, step: Callable[[int], None], now_ms: int) -> None:
        """Have `step(now_ms)` called when those that wait already have had their turns."""
        if self._is_over:
            return
        if not self._waiting:
            self._timer.schedule(now_ms, self._next)
        self._waiting.append(step)

    def _next(self, now_ms: int) -> None:
        if self._is_over:
            return
        step = self._waiting.popleft()
        if self._waiting:
            self._timer.schedule(now_ms, self._next)
        step(now_ms)

    def end(self) -> None:
        """The node leaves and its logs close: what is not done by now is left undone, and not answered."""
        self._is_over = True
        self._waiting.clear()


def in_slices(context: RequestContext, work: Iterator[None], done: Callable[[int], None], now_ms: int) -> None:
    """Do `work`, a slice at each step, then `done(now_ms)`, which answers; at once where it is one slice.

    A fault in a later step is answered as one in a handler is; one in the first goes to who called.
    """
    if next(work, _DONE) is _DONE:
        done(now_ms)
        return
    broker = context.broker

    def step(now_ms: int) -> None:
        is_last = False
        try:
            is_last = next(work, _DONE) is _DONE
        except Exception as error:
            broker.router.failed(context, error)
            return
        broker.turns.wait(finish if is_last else step, now_ms)

    def finish(now_ms: int) -> None:
        try:
            done(now_ms)
        except Exception as error:
            broker.router.failed(context, error)

    broker.turns.wait(step, now_ms)


def answer_in_slices(context: RequestContext, work: Iterator[None], response: Message) -> None:
    """Do `work`, which fills in `response`, a slice at each step, then send that."""
    in_slices(context, work, lambda now_ms: context.respond(response), context.now_ms)
