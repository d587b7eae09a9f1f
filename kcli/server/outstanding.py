"""Effects whose answer comes back later as an event: which callback gets the answer.

    class         effect -> event                  who uses it
    ------------  -------------------------------  -------------------------------------------------------------------
    Outstanding   any, by the effect's id          the two below, and kcli.network.peers for SendRequest
    Flushes       Flush -> Flushed                 the raft client, the snapshot writer, the broker's logs
    Computations  Compute -> Computed              the broker: decompression of what one client sent, searches by time
    Gather        -                                a response whose parts come one by one

All cores of a node share one object of each class but Gather, so that ids are unique in the node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from kcli.network.outstanding import Outstanding
from kcli.server.events import Compute, Computed, Effect, Flush, Flushed

_Result = TypeVar("_Result")

FlushCallback = Callable[[OSError | None, int], None]


class Flushes:
    """The flushes of one node that are under way."""

    def __init__(self, effects: list[Effect]) -> None:
        self._effects = effects
        self._outstanding = Outstanding[OSError | None]()

    def flush(self, paths: Sequence[str], callback: FlushCallback) -> None:
        """Have files and directories made durable, in this order; then `callback(error, now_ms)`."""
        self._effects.append(Flush(self._outstanding.add(callback), tuple(paths)))

    def flushed(self, event: Flushed, now_ms: int) -> None:
        """Take the end of a flush."""
        self._outstanding.answered(event.flush_id, event.error, now_ms)


class Computations:
    """The computations of one node that are under way.

    A computation in the core delays all clients. Work on bytes that one client sent, which may take long because they inflate
    to a hundred times their size, runs outside as a Compute effect; only the core changes the node's state.
    """

    def __init__(self, effects: list[Effect]) -> None:
        self._effects = effects
        # The results of different calls have different types: `compute` binds each to its callback.
        self._outstanding = Outstanding[Any]()

    def compute(self, work: Callable[[], _Result], callback: Callable[[_Result, int], None]) -> None:
        """Have `work` called outside the core, where it must not raise; then `callback(result, now_ms)`."""
        self._effects.append(Compute(self._outstanding.add(callback), work))

    def computed(self, event: Computed, now_ms: int) -> None:
        """Take the result of a computation."""
        self._outstanding.answered(event.compute_id, event.result, now_ms)

    def forget(self) -> None:
        """Drop all results that are still to come: the node stops, and its logs close."""
        self._outstanding.forget()


class Gather:
    """Calls `done` when each of `count` parts is there, at once if there are none."""

    def __init__(self, count: int, done: Callable[[], None]) -> None:
        self._left = count
        self._done = done
        if not count:
            done()

    def done(self) -> None:
        """Count a part as there."""
        self._left -= 1
        if not self._left:
            self._done()
