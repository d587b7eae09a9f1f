"""Long work on bytes that is done beside the loop: who asked for it, and what is to be called with what it gives.

What a core computes itself holds all its clients. Work on bytes that one client sent, which may be long because they inflate to
a hundred times their size, is handed out as a Compute effect; the node's state stays the core's alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kcli.server.events import Compute, Computed, Effect
from kcli.server.waiting import Waiting


class Computations:
    """The computations of one node that are under way."""

    def __init__(self, effects: list[Effect]) -> None:
        self._effects = effects
        self._waiting = Waiting[Any]()

    def compute(self, work: Callable[[], object], callback: Callable[[Any, int], None]) -> None:
        """Have `work` called beside the loop, where it may not raise; then `callback(result, now_ms)`."""
        self._effects.append(Compute(self._waiting.add(callback), work))

    def computed(self, event: Computed, now_ms: int) -> None:
        """Hand a result on, unless it is forgotten."""
        self._waiting.answered(event.compute_id, event.result, now_ms)

    def forget(self) -> None:
        """The node leaves and its logs close: what comes back now changes nothing any more."""
        self._waiting.forget()
