"""Flushes under way: who asked for the disk to be waited for, and what is to be called when it is done.

All cores of a node (broker, raft client) ask here, so that the ids of Flush effects are the node's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kcli.server.events import Effect, Flush, Flushed

FlushCallback = Callable[[OSError | None, int], None]


class Flushes:
    """The flushes of one node."""

    def __init__(self, effects: list[Effect]) -> None:
        self._effects = effects
        self._callbacks: dict[int, FlushCallback] = {}
        self._next_id = 0

    def flush(self, paths: Sequence[str], callback: FlushCallback) -> None:
        """Have files and directories made durable, in this order; then `callback(error, now_ms)`."""
        self._next_id += 1
        self._callbacks[self._next_id] = callback
        self._effects.append(Flush(self._next_id, tuple(paths)))

    def flushed(self, event: Flushed, now_ms: int) -> None:
        """A flush is done, or failed."""
        callback = self._callbacks.pop(event.flush_id, None)
        if callback is not None:
            callback(event.error, now_ms)
