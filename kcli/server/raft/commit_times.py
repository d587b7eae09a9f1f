"""How long the metadata quorum takes to commit: from the append of a batch to its commit being known, in ms."""

from __future__ import annotations


class CommitTimes:
    """Sum and maximum since they were last taken."""

    __slots__ = ("_batches", "_max_ms", "_sum_ms")

    def __init__(self) -> None:
        self._batches = self._sum_ms = self._max_ms = 0

    def add(self, ms: int) -> None:
        """A batch is committed, so long after it was appended."""
        self._batches += 1
        self._sum_ms += ms
        self._max_ms = max(self._max_ms, ms)

    def take(self) -> tuple[float, float] | None:
        """The average and the maximum, which begin anew; None where nothing was committed."""
        if not self._batches:
            return None
        found = self._sum_ms / self._batches, float(self._max_ms)
        self._batches = self._sum_ms = self._max_ms = 0
        return found
