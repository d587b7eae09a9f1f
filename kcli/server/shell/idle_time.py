"""How long the event loop waits for something to do; measured only where metrics are asked for."""

from __future__ import annotations

import asyncio
import selectors
from time import perf_counter_ns

NS_PER_S = 1_000_000_000


class IdleTime(selectors.DefaultSelector):
    """The selector of a loop; `wait_ns` is how long it waited, in all."""

    def __init__(self) -> None:
        super().__init__()
        self.wait_ns = 0
        self._taken = 0, perf_counter_ns()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """As the selector does; where it may not wait, nothing is measured."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        begin = perf_counter_ns()
        try:
            return super().select(timeout)
        finally:
            self.wait_ns += perf_counter_ns() - begin

    def loop(self) -> asyncio.AbstractEventLoop:
        """A loop that waits here."""
        return asyncio.SelectorEventLoop(self)

    def share(self) -> float:
        """The share of the time that was waited, 0 to 1, since the last call."""
        (wait_ns, then), now = self._taken, perf_counter_ns()
        self._taken = self.wait_ns, now
        return min(1.0, (self.wait_ns - wait_ns) / max(1, now - then))
