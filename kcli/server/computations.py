"""Long work on bytes that is done beside the loop: who asked for it, and what is to be called with what it gives.

What a core computes itself holds all its clients. Work on bytes that one client sent, which may be long because they inflate to
a hundred times their size, is handed out as a Compute effect; the node's state stays the core's alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kcli.server.events import Compute, Computed, Effect


class Computations:
    """The computations of one node that are under way."""

    def __init__(self, effects: list[Effect]) -> None:
        self._effects = effects
        self._callbacks: dict[int, Callable[[Any, int], None]] = {}
        self._next_id = 0

    def compute(self, work: Callable[[], object], callback: Callable[[Any, int], None]) -> None:
        """Have `work` called beside the loop, where it may not raise; then `callback(result, now_ms)`."""
        self._next_id += 1
        self._callbacks[self._next_id] = callback
        self._effects.append(Compute(self._next_id, work))

    def computed(self, event: Computed, now_ms: int) -> None:
        """Hand a result on, unless it is forgotten."""
        callback = self._callbacks.pop(event.compute_id, None)
        if callback is not None:
            callback(event.result, now_ms)

    def forget(self) -> None:
        """The node leaves and its logs close: what comes back now changes nothing any more."""
        self._callbacks.clear()
