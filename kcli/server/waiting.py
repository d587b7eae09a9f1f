"""Who waits for the answer to an effect, by its id: a flush, a computation, a request to another node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

_Answer = TypeVar("_Answer")


class Waiting(Generic[_Answer]):
    """Callbacks by the ids of the effects that they wait for; each is called once, with the answer and the time (ms)."""

    def __init__(self) -> None:
        self._callbacks: dict[int, Callable[[_Answer, int], None]] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._callbacks)

    def __contains__(self, effect_id: int) -> bool:
        return effect_id in self._callbacks

    def add(self, callback: Callable[[_Answer, int], None]) -> int:
        """Remember a callback -> the id for the effect."""
        self._last_id += 1
        self._callbacks[self._last_id] = callback
        return self._last_id

    def answered(self, effect_id: int, answer: _Answer, now_ms: int) -> None:
        """Hand an answer on; one that nobody waits for (any more) is dropped."""
        callback = self._callbacks.pop(effect_id, None)
        if callback is not None:
            callback(answer, now_ms)

    def forget(self) -> None:
        """Drop all answers that are still to come."""
        self._callbacks.clear()
