"""The queue of files to remove later: whole partition directories, and segments' files that were renamed to `.deleted`.

A file that is deleted may still be read, so it is renamed first and removed file.delete.delay.ms later (Kafka:
LogManager.deleteLogs, LocalLog.deleteSegmentFiles). A file that is already missing then is not an error; one that cannot be
removed takes its log directory offline. After a restart the remaining files are found by their names.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from kcli.log.disk.port import Disk, join_path

# Unlinking takes microseconds for small files and milliseconds for large ones.
REMOVALS_PER_STEP = 8
NEVER_MS = (1 << 63) - 1


class DeletionQueue:
    """Paths ordered by the time of their removal; `on_error` is called with a path that cannot be removed, and the error."""

    def __init__(self, disk: Disk, on_error: Callable[[str, OSError], None]) -> None:
        self._disk = disk
        self._on_error = on_error
        self._waiting: list[tuple[int, int, str]] = []
        self._count = 0
        self._wake: Callable[[int], None] = lambda due_ms: None

    def on_added(self, wake: Callable[[int], None]) -> None:
        """Have `wake(due_ms)` called for every path that is added, and for the first one in the queue."""
        self._wake = wake
        if self._waiting:
            wake(self._waiting[0][0])

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, paths: Iterable[str], due_ms: int) -> None:
        """Remove these files or directories at `due_ms`; paths with the same time in the order of addition."""
        for path in paths:
            self._count += 1
            heapq.heappush(self._waiting, (due_ms, self._count, path))
            self._wake(due_ms)

    def forget(self, directory: str) -> None:
        """Drop the paths in `directory`, which is offline."""
        inside = join_path(directory, "")
        self._waiting = [entry for entry in self._waiting if not entry[2].startswith(inside)]
        heapq.heapify(self._waiting)

    def run(self, now_ms: int) -> int:
        """Remove some of the paths that are due; return when to call again: `now_ms` if more are due, NEVER_MS if empty."""
        budget = REMOVALS_PER_STEP
        while self._waiting and self._waiting[0][0] <= now_ms and budget > 0:
            path = self._waiting[0][2]
            try:
                removed, is_gone = self._remove(path, budget)
            except FileNotFoundError:
                removed, is_gone = 1, True
            except OSError as error:
                heapq.heappop(self._waiting)
                self._on_error(path, error)
                continue
            budget -= removed
            if is_gone:
                heapq.heappop(self._waiting)
        if not self._waiting:
            return NEVER_MS
        return max(now_ms, self._waiting[0][0])

    def _remove(self, path: str, budget: int) -> tuple[int, bool]:
        """Remove at most `budget` files of a path; return their number and whether the path is removed."""
        if not self._disk.is_directory(path):
            self._disk.remove(path)
            return 1, True
        names = self._disk.list_directory(path)
        for name in names[:budget]:
            inside = join_path(path, name)
            if not self._disk.is_directory(inside):
                self._disk.remove(inside)
            elif not self._remove(inside, budget)[1]:
                return budget, False
        if len(names) > budget:
            return budget, False
        self._disk.remove_directory(path)
        return len(names) + 1, True
