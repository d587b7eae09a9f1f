"""Refuses calls of a client that two threads, or two tasks, make at the same time.

They would call the application's listener twice, and end each other's waits. A call inside a call of the same thread or task,
such as one of a callback, is allowed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kcli.client.errors import IllegalStateError


class SingleThread:
    """The thread that uses a client now, if any."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Be the user. Raises IllegalStateError if another thread is."""
        if not self._lock.acquire(blocking=False):
            raise IllegalStateError("another thread is using the consumer; only wakeup may be called at the same time")
        try:
            yield
        finally:
            self._lock.release()


class SingleTask:
    """The task that uses a client now, if any; `calls` are those that only one task makes at a time, for the error."""

    def __init__(self, calls: str) -> None:
        self._calls = calls
        self._user: asyncio.Task[object] | None = None

    @contextmanager
    def used(self) -> Iterator[None]:
        """Be the user. Raises IllegalStateError if another task is."""
        task, user = asyncio.current_task(), self._user
        if user not in (None, task):
            raise IllegalStateError(f"another task {self._calls} the consumer; call wakeup and wait for it")
        self._user = task
        try:
            yield
        finally:
            self._user = user
