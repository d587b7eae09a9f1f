"""The two times of a node: a monotonic one for timeouts, and the wall clock for timestamps (kcli.log.wall_time).

time        begins with          then
----------  -------------------  ----------------------------------------------------------------------------------
the node's  the wall clock       continues with a monotonic clock, so that setting the wall clock changes no timeout of
                                 fetches, heartbeats and sessions
wall        the wall clock       is read each time, as Kafka does; it may go back
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kcli.log.wall_time import WallTime


class Clock:
    """A clock in ms; `wall` and `steady` return seconds and can be replaced in tests. Each reading updates `wall_time`."""

    __slots__ = ("_steady", "_wall", "ahead_s", "wall_time")

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._steady = wall, steady
        self.ahead_s = wall() - steady()  # what the node's time is ahead of the monotonic clock
        self.wall_time = WallTime()

    def now_ms(self) -> int:
        """Return the node's time in ms; it never goes back."""
        now_ms = int((self._steady() + self.ahead_s) * 1000)
        self.wall_time.off_ms = int(self._wall() * 1000) - now_ms
        return now_ms
