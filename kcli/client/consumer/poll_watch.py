"""The time of max.poll.interval.ms: an application that does not poll for longer is taken out of its group."""

from __future__ import annotations

from collections.abc import Callable

from kcli.client.network_client import NetworkClient
from kcli.network.timing_wheel import TimerTask


class PollWatch:
    """Calls `expired(now_ms)` when no poll came in `interval_ms`, once until the next poll."""

    def __init__(self, network: NetworkClient, interval_ms: int, expired: Callable[[int], None]) -> None:
        self.last_ms = network.timer.clock_ms
        self._network = network
        self._interval_ms = interval_ms
        self._expired = expired
        self._check: TimerTask | None = None

    def polled(self, now_ms: int) -> None:
        """Begin the time again."""
        self.last_ms = now_ms
        if self._check is None:
            self._check = self._network.timer.schedule(now_ms + self._interval_ms, self._due)

    def next_ms(self) -> int:
        """Return when a caller that is blocked inside a poll must call `polled`, to show that it is alive."""
        return self.last_ms + max(self._interval_ms // 2, 1)

    def stop(self) -> None:
        """Watch no longer."""
        if self._check is not None:
            self._check.cancel()
            self._check = None

    def _due(self, now_ms: int) -> None:
        self._check = None
        due_ms = self.last_ms + self._interval_ms
        if now_ms < due_ms:
            self._check = self._network.timer.schedule(due_ms, self._due)
        else:
            self._expired(now_ms)
