"""Effects whose answer comes back later as an event: which callback gets the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

_Answer = TypeVar("_Answer")


class Outstanding(Generic[_Answer]):
    """Callbacks by the ids of their effects; each is called once, with the answer and the time in ms."""

    def __init__(self) -> None:
        self._callbacks: dict[int, Callable[[_Answer, int], None]] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._callbacks)

    def __contains__(self, effect_id: int) -> bool:
        return effect_id in self._callbacks

    def add(self, callback: Callable[[_Answer, int], None]) -> int:
        """Keep a callback and return the id for its effect."""
        self._last_id += 1
        self._callbacks[self._last_id] = callback
        return self._last_id

    def answered(self, effect_id: int, answer: _Answer, now_ms: int) -> None:
        """Call the callback of an id; an answer whose callback was called or dropped before is ignored."""
        callback = self._callbacks.pop(effect_id, None)
        if callback is not None:
            callback(answer, now_ms)

    def forget(self) -> None:
        """Drop all callbacks."""
        self._callbacks.clear()
