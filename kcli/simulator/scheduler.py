"""Virtual time: what is to happen when, in an order that the seed decides and nothing else.

    two actions of           run in the order
    -----------------------  -------------------------------------------------------
    different milliseconds   of their times
    one millisecond          of a die that was cast when they came, so that a seed tries
                             orders that another does not

Nothing waits: time jumps to the next action. What an action raises comes out of `run_next`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random


class Action:
    """Something that is to happen; `cancel` takes it back and may come late or twice."""

    __slots__ = ("run",)

    def __init__(self, run: Callable[[], None]) -> None:
        self.run: Callable[[], None] | None = run

    def cancel(self) -> None:
        """It will not happen."""
        self.run = None


class Scheduler:
    """The clock and the agenda of a simulation."""

    def __init__(self, rng: Random, start_ms: int) -> None:
        self.now_ms = start_ms
        self._rng = rng
        self._agenda: list[tuple[int, float, int, Action]] = []
        self._count = 0

    def at(self, at_ms: int, run: Callable[[], None]) -> Action:
        """Let something happen at a time, or now where that is past."""
        action = Action(run)
        self._count += 1
        heapq.heappush(self._agenda, (max(at_ms, self.now_ms), self._rng.random(), self._count, action))
        return action

    def after(self, delay_ms: int, run: Callable[[], None]) -> Action:
        """Let something happen in so many ms."""
        return self.at(self.now_ms + delay_ms, run)

    def run_next(self) -> bool:
        """Go to the next action and do it; False where there is none."""
        while self._agenda:
            at_ms, _, _, action = heapq.heappop(self._agenda)
            if action.run is not None:
                self.now_ms = at_ms
                action.run()
                return True
        return False
