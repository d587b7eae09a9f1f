"""How long the event loop waits for events; measured only if metrics are served."""

from __future__ import annotations

import asyncio
import selectors
from time import perf_counter_ns


class IdleTime(selectors.DefaultSelector):
    """The selector of a loop; `wait_ns` is the total time that it has waited."""

    def __init__(self) -> None:
        super().__init__()
        self.wait_ns = 0
        self._taken = 0, perf_counter_ns()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for events; a call that may not wait is not measured."""
        if timeout is not None and timeout <= 0:
            return super().select(timeout)
        begin = perf_counter_ns()
        try:
            return super().select(timeout)
        finally:
            self.wait_ns += perf_counter_ns() - begin

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return a loop that uses this selector."""
        return asyncio.SelectorEventLoop(self)

    def share(self) -> float:
        """Return the share of the time since the last call that was waited, 0 to 1."""
        (wait_ns, then), now = self._taken, perf_counter_ns()
        self._taken = self.wait_ns, now
        return min(1.0, (self.wait_ns - wait_ns) / max(1, now - then))
