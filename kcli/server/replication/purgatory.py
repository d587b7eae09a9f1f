"""Requests that wait for replicas or bytes, or for their timeout (Kafka: DelayedOperationPurgatory).

    step                     what happens
    -----------------------  -------------------------------------------------------------------------------------------
    try_complete_else_watch  the operation is tried; if it cannot be completed it is watched under its keys, with a timeout
    check                    a key has changed: every operation that is watched under it checks that key again
    subscribe                a Watcher gets each change of a key until it unsubscribes: a fetch session marks what has
                             changed (kcli.server.apis.fetch_session)
    mark                     a key has changed, and is checked later: the watchers get that, the operations are not checked yet
    timeout                  the operation is completed with what there is

An operation is completed once, and then leaves the lists of all its keys at once. The lists therefore need no purging (Kafka
purges by producer., fetch. and delete.records.purgatory.purge.interval.requests).

Operations are checked while the request of another client is handled. An exception of one of them must not end that request:
it is passed to the operation's `failed`, and the operation is over.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable

from kcli.network.timing_wheel import Timer, TimerTask


class Watcher(ABC):
    """What gets the changes of keys."""

    __slots__ = ()

    @abstractmethod
    def mark(self) -> None:
        """Note that a key has changed."""

    @abstractmethod
    def key_changed(self, key: Hashable, now_ms: int) -> bool:
        """Note that a key has changed, and act on it; return whether this is over."""


class DelayedOperation(Watcher):
    """A request that waits. A subclass defines when it can be completed and what then happens."""

    __slots__ = ("_keys", "_task", "is_completed")

    def __init__(self) -> None:
        self.is_completed = False
        self._task: TimerTask | None = None
        self._keys: tuple[Hashable, ...] = ()

    @abstractmethod
    def can_complete(self, now_ms: int) -> bool:
        """Return whether what the operation waits for has happened."""

    def mark(self) -> None:
        """Do nothing: the operation is checked later."""

    def key_changed(self, key: Hashable, now_ms: int) -> bool:
        """Return whether the operation can be completed after a change of `key`; a subclass may check that key alone."""
        return self.can_complete(now_ms)

    @abstractmethod
    def on_complete(self, now_ms: int) -> None:
        """Finish the operation; called once, when it can be completed or after its timeout."""

    @abstractmethod
    def failed(self, error: Exception) -> None:
        """Finish the operation after a method of it has raised `error`."""


class Purgatory:
    """Waiting operations of one kind, by key; timeouts run on the node's `timer`."""

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._watched: dict[Hashable, dict[Watcher, None]] = {}
        self.expired_count = 0
        self.size = 0

    def try_complete_else_watch(
        self, operation: DelayedOperation, keys: Iterable[Hashable], deadline_ms: int, now_ms: int
    ) -> bool:
        """Complete an operation now and return True, or watch it under `keys` until `deadline_ms` and return False."""
        if operation.can_complete(now_ms):
            operation.is_completed = True
            operation.on_complete(now_ms)
            return True
        self.watch(operation, keys, deadline_ms)
        return False

    @property
    def has_watchers(self) -> bool:
        """Whether there are operations or watchers."""
        return bool(self._watched)

    def subscribe(self, watcher: Watcher, key: Hashable) -> None:
        """Pass each change of a key to a watcher."""
        watchers = self._watched.get(key)
        if watchers is None:
            watchers = self._watched[key] = {}
        watchers[watcher] = None

    def unsubscribe(self, watcher: Watcher, key: Hashable) -> None:
        """Pass the changes of a key to a watcher no more."""
        watchers = self._watched.get(key)
        if watchers is not None:
            watchers.pop(watcher, None)
            if not watchers:
                del self._watched[key]

    def mark(self, key: Hashable) -> bool:
        """Mark a key, which is checked later, at its watchers; return whether there are any."""
        watchers = self._watched.get(key)
        if watchers is None:
            return False
        for watcher in list(watchers):
            watcher.mark()
        return True

    def watch(self, operation: DelayedOperation, keys: Iterable[Hashable], deadline_ms: int) -> None:
        """Watch an operation that was found to be incomplete."""
        operation._keys = tuple(keys)
        for key in operation._keys:
            self.subscribe(operation, key)
        operation._task = self._timer.schedule(deadline_ms, lambda now_ms: self._expire(operation, now_ms))
        self.size += 1

    def check(self, key: Hashable, now_ms: int) -> int:
        """Check the operations under a key that has changed; return how many of them were completed."""
        watchers = self._watched.get(key)
        if watchers is None:
            return 0
        completed = 0
        for watcher in list(watchers):
            if not isinstance(watcher, DelayedOperation):
                watcher.key_changed(key, now_ms)
                continue
            try:
                if watcher.is_completed or not watcher.key_changed(key, now_ms):
                    continue
                self._remove(watcher)
                completed += 1
                watcher.on_complete(now_ms)
            except Exception as error:
                self._failed(watcher, error)
        return completed

    def drop(self, operation: DelayedOperation) -> None:
        """Drop an operation whose client has disconnected, without completing it."""
        if not operation.is_completed:
            self._remove(operation)

    def _expire(self, operation: DelayedOperation, now_ms: int) -> None:
        if operation.is_completed:
            return
        self._remove(operation)
        self.expired_count += 1
        try:
            operation.on_complete(now_ms)
        except Exception as error:
            self._failed(operation, error)

    def _failed(self, operation: DelayedOperation, error: Exception) -> None:
        self.drop(operation)
        operation.failed(error)

    def _remove(self, operation: DelayedOperation) -> None:
        operation.is_completed = True
        self.size -= 1
        if operation._task is not None:
            operation._task.cancel()
        for key in operation._keys:
            self.unsubscribe(operation, key)
