"""Flushes under way: who asked for the disk to be waited for, and what is to be called when it is done.

All cores of a node (broker, raft client) ask here, so that the ids of Flush effects are the node's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kcli.server.events import Effect, Flush, Flushed
from kcli.server.waiting import Waiting

FlushCallback = Callable[[OSError | None, int], None]


class Flushes:
    """The flushes of one node."""

    def __init__(self, effects: list[Effect]) -> None:
        self._effects = effects
        self._waiting = Waiting[OSError | None]()

    def flush(self, paths: Sequence[str], callback: FlushCallback) -> None:
        """Have files and directories made durable, in this order; then `callback(error, now_ms)`."""
        self._effects.append(Flush(self._waiting.add(callback), tuple(paths)))

    def flushed(self, event: Flushed, now_ms: int) -> None:
        """A flush is done, or failed."""
        self._waiting.answered(event.flush_id, event.error, now_ms)
