"""The clocks of a simulated machine: a steady one, and one on the wall that somebody sets, forward and back.

    clock    what it shows
    -------  ------------------------------------------------------------------------------------
    steady   the scheduler's time; no jump is seen on it
    wall     the same, and how far it was set off: what files are stamped with

A node sees both through kcli.server.shell.clock, the clock of the real shell: it waits by the first and stamps by the second.

Clients run on other machines, whose clocks are right.
"""

from __future__ import annotations

from kcli.server.shell.clock import Clock
from kcli.simulator.scheduler import Scheduler

SECOND_MS = 1000
# Reading falls into a millisecond's midst, so that seconds as floats are the milliseconds that they were.
MIDST_MS = 0.5


class WallClock:
    """The clocks of one machine; `off_ms` is how far the wall clock is off, `most_behind_ms` and `most_ahead_ms` ever was."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.off_ms = 0
        self.most_behind_ms = 0
        self.most_ahead_ms = 0
        self._scheduler = scheduler

    def set_off(self, off_ms: int) -> None:
        """Set the wall clock so far off the right time."""
        self.off_ms = off_ms
        self.most_behind_ms = max(self.most_behind_ms, -off_ms)
        self.most_ahead_ms = max(self.most_ahead_ms, off_ms)

    def wall_ms(self) -> int:
        """What the wall clock shows."""
        return self._scheduler.now_ms + self.off_ms

    def process_clock(self) -> Clock:
        """The clock of a process that begins now."""
        return Clock(
            lambda: (self.wall_ms() + MIDST_MS) / SECOND_MS,
            lambda: (self._scheduler.now_ms + MIDST_MS) / SECOND_MS,
        )
