"""Virtual time: a queue of actions, run in an order that depends only on the seed.

    two actions of           run in the order of
    -----------------------  -------------------------------------------------------
    different milliseconds   their times
    one millisecond          random numbers that were drawn when they were added, so
                             that different seeds try different orders

Nothing waits: time jumps to the next action. `run_next` raises what an action raises.

WallClock has the clocks of a simulated machine, a monotonic one and a wall clock that is set forward and back:

    clock      shows
    ---------  ------------------------------------------------------------------------------------
    monotonic  virtual time; it does not jump
    wall       the same plus an error; the modification times of files use this clock

A node reads both through kcli.network.shell.clock, the clock of the real shell: timers use the monotonic clock, and
timestamps the wall clock.

Clients run on other machines, whose clocks are right.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

from kcli.network.shell.clock import Clock


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


SECOND_MS = 1000
# Half a millisecond is added, so that the conversion to seconds (float) and back does not lose a millisecond.
HALF_MS = 0.5


class WallClock:
    """The clocks of one machine.

    `error_ms` is the present error of the wall clock; `max_behind_ms` and `max_ahead_ms` are the largest errors so far.
    """

    def __init__(self, virtual_time: VirtualTime) -> None:
        self.error_ms = 0
        self.max_behind_ms = 0
        self.max_ahead_ms = 0
        self._virtual_time = virtual_time

    def set_error(self, error_ms: int) -> None:
        """Set the wall clock to the right time plus `error_ms`."""
        self.error_ms = error_ms
        self.max_behind_ms = max(self.max_behind_ms, -error_ms)
        self.max_ahead_ms = max(self.max_ahead_ms, error_ms)

    def wall_ms(self) -> int:
        """Return the time of the wall clock."""
        return self._virtual_time.now_ms + self.error_ms

    def process_clock(self) -> Clock:
        """Return the clock of a process that starts now."""
        return Clock(
            lambda: (self.wall_ms() + HALF_MS) / SECOND_MS,
            lambda: (self._virtual_time.now_ms + HALF_MS) / SECOND_MS,
        )
