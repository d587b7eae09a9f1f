"""The time that a node lives in: milliseconds since 1970 that never go back and never stand still.

The system's clock may jump. What waits for its time (fetches, heartbeats, sessions) must not wait an hour longer because of
it, and timestamps that a broker gives must not fall behind those that it gave. So:

    the system's clock is      the node's time
    -------------------------  -----------------------------------------------------------------
    ahead of the node's        follows it at once
    behind the node's          goes on at half the speed of a steady clock, until the two agree
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Clock:
    """A clock in ms; `wall` and `steady` give seconds and can be replaced in tests."""

    __slots__ = ("_now_s", "_steady", "_steady_s", "_wall")

    def __init__(self, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._steady = wall, steady
        self._now_s, self._steady_s = wall(), steady()

    def now_ms(self) -> int:
        """The time, in ms since 1970."""
        steady_s = self._steady()
        least_s = self._now_s + (steady_s - self._steady_s) / 2
        wall_s = self._wall()
        self._now_s = now_s = wall_s if wall_s > least_s else least_s
        self._steady_s = steady_s
        return int(now_s * 1000)
