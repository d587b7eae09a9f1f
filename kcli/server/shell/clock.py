"""The two times that a node lives by: a steady one for what waits, and the wall clock's for timestamps (kcli.log.wall_time).

time        begins as            then
----------  -------------------  ----------------------------------------------------------------------------------
the node's  the wall clock's     goes on with a monotonic clock: fetches, heartbeats and sessions wait neither an hour
                                 longer nor an hour less because somebody sets the clock
wall        the wall clock's     is read each time, as Kafka does; it may go back
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kcli.log.wall_time import WallTime


class Clock:
    """A clock in ms; `wall` and `steady` give seconds and can be replaced in tests. `wall_time` is set with each reading."""

    __slots__ = ("_ahead_s", "_steady", "_wall", "wall_time")

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._steady = wall, steady
        self._ahead_s = wall() - steady()
        self.wall_time = WallTime()

    def now_ms(self) -> int:
        """The node's time, in ms; it never goes back."""
        now_ms = int((self._steady() + self._ahead_s) * 1000)
        self.wall_time.off_ms = int(self._wall() * 1000) - now_ms
        return now_ms
