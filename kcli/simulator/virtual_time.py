"""Virtual time: a queue of actions, run in an order that depends only on the seed.

    two actions of           run in the order of
    -----------------------  -------------------------------------------------------
    different milliseconds   their times
    one millisecond          random numbers that were drawn when they were added, so
                             that different seeds try different orders

Nothing waits: time jumps to the next action. `run_next` raises what an action raises.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random


class Action:
    """A scheduled action; `cancel` may also be called after it has run."""

    __slots__ = ("run",)

    def __init__(self, run: Callable[[], None]) -> None:
        self.run: Callable[[], None] | None = run

    def cancel(self) -> None:
        """Do not run the action."""
        self.run = None


class VirtualTime:
    """The clock and the action queue of a simulation."""

    def __init__(self, rng: Random, start_ms: int) -> None:
        self.now_ms = start_ms
        self._rng = rng
        self._queue: list[tuple[int, float, int, Action]] = []
        self._count = 0

    def at(self, at_ms: int, run: Callable[[], None]) -> Action:
        """Run `run` at a time, or at once if that time has passed."""
        action = Action(run)
        self._count += 1
        heapq.heappush(self._queue, (max(at_ms, self.now_ms), self._rng.random(), self._count, action))
        return action

    def after(self, delay_ms: int, run: Callable[[], None]) -> Action:
        """Run `run` after a delay."""
        return self.at(self.now_ms + delay_ms, run)

    def run_next(self) -> bool:
        """Advance to the next action and run it; return False if there is none."""
        while self._queue:
            at_ms, _, _, action = heapq.heappop(self._queue)
            if action.run is not None:
                self.now_ms = at_ms
                action.run()
                return True
        return False
