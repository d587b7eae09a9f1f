"""The clocks of a simulated machine: a monotonic clock, and a wall clock that is set forward and back.

    clock      shows
    ---------  ------------------------------------------------------------------------------------
    monotonic  virtual time; it does not jump
    wall       the same plus an error; the modification times of files use this clock

A node reads both through kcli.network.shell.clock, the clock of the real shell: timers use the monotonic clock, and
timestamps the wall clock.

Clients run on other machines, whose clocks are right.
"""

from __future__ import annotations

from kcli.network.shell.clock import Clock
from kcli.simulator.virtual_time import VirtualTime

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
