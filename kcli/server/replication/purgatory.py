"""Where requests wait for something to happen, or for their time to run out: produces for the disk, fetches for bytes.

    step                     what happens
    -----------------------  -------------------------------------------------------------------------------------------
    try_complete_else_watch  the operation is tried; if it cannot be completed it is watched under its keys, and timed
    check                    something happened to a key: every operation under it looks at that key again
    the time runs out        the operation is completed as it stands, however little that is

An operation is completed once. What is completed leaves the lists of all its keys at once, so a list holds what waits and
nothing else, and needs no purging (Kafka purges by producer., fetch. and delete.records.purgatory.purge.interval.requests).

Operations are tried while somebody else's request is served. What one of them raises must not end that request, so it is
handed to `on_fault`, and the operation is over.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable

from kcli.server.timing_wheel import Timer, TimerTask


class DelayedOperation:
    """Something that waits. A subclass says when it can be completed and what then happens."""

    __slots__ = ("_keys", "_task", "is_completed")

    def __init__(self) -> None:
        self.is_completed = False
        self._task: TimerTask | None = None
        self._keys: tuple[Hashable, ...] = ()

    def can_complete(self, now_ms: int) -> bool:
        """True when what it waits for has come."""
        raise NotImplementedError

    def key_changed(self, key: Hashable, now_ms: int) -> bool:
        """Something happened to one of its keys -> `can_complete`, which a subclass may find out from that key alone."""
        return self.can_complete(now_ms)

    def on_complete(self, now_ms: int) -> None:
        """Called once: when it can be completed, or when its time has run out."""
        raise NotImplementedError


OnFault = Callable[[DelayedOperation, Exception], None]


class Purgatory:
    """Waiting operations of one kind, by key; all times run on the node's `timer`."""

    def __init__(self, timer: Timer, on_fault: OnFault) -> None:
        self._timer = timer
        self._on_fault = on_fault
        self._watched: dict[Hashable, dict[DelayedOperation, None]] = {}
        self.expired_count = 0
        self.size = 0

    def try_complete_else_watch(
        self, operation: DelayedOperation, keys: Iterable[Hashable], deadline_ms: int, now_ms: int
    ) -> bool:
        """Complete an operation now -> True, or have it wait under `keys` until `deadline_ms` -> False."""
        if operation.can_complete(now_ms):
            operation.is_completed = True
            operation.on_complete(now_ms)
            return True
        self.watch(operation, keys, deadline_ms)
        return False

    def watch(self, operation: DelayedOperation, keys: Iterable[Hashable], deadline_ms: int) -> None:
        """Have an operation wait that was seen to be not yet complete."""
        operation._keys = tuple(keys)
        for key in operation._keys:
            watchers = self._watched.get(key)
            if watchers is None:
                watchers = self._watched[key] = {}
            watchers[operation] = None
        operation._task = self._timer.schedule(deadline_ms, lambda now_ms: self._expire(operation, now_ms))
        self.size += 1

    def check(self, key: Hashable, now_ms: int) -> int:
        """Something happened to `key` -> how many operations it completed."""
        watchers = self._watched.get(key)
        if watchers is None:
            return 0
        completed = 0
        for operation in list(watchers):
            try:
                if operation.is_completed or not operation.key_changed(key, now_ms):
                    continue
                self._leave(operation)
                completed += 1
                operation.on_complete(now_ms)
            except Exception as error:
                self._failed(operation, error)
        return completed

    def drop(self, operation: DelayedOperation) -> None:
        """Forget an operation that nobody waits for any more; neither of its ends is called."""
        if not operation.is_completed:
            self._leave(operation)

    def _expire(self, operation: DelayedOperation, now_ms: int) -> None:
        if operation.is_completed:
            return
        self._leave(operation)
        self.expired_count += 1
        try:
            operation.on_complete(now_ms)
        except Exception as error:
            self._failed(operation, error)

    def _failed(self, operation: DelayedOperation, error: Exception) -> None:
        self.drop(operation)
        self._on_fault(operation, error)

    def _leave(self, operation: DelayedOperation) -> None:
        operation.is_completed = True
        self.size -= 1
        if operation._task is not None:
            operation._task.cancel()
        for key in operation._keys:
            watchers = self._watched.get(key)
            if watchers is not None:
                watchers.pop(operation, None)
                if not watchers:
                    del self._watched[key]
