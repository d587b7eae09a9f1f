"""A ClientLoop on a thread of its own, for callers that block (Kafka: the Sender's thread of KafkaProducer).

The core is used by the caller's thread and by this one, each under the lock. A call of the caller's thread runs at once; only
its effects, which belong to the event loop, wait for this thread, which is woken once for all calls until it runs.

The lock is reentrant: functions of the application that the core calls may call the client again.

A client does not work in a process that was forked after it was made: its thread is not there, its sockets are those of the
parent, and the lock may be held for ever. There each call raises IllegalStateError, and close does nothing.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, TypeVar

from kcli.client.errors import IllegalStateError
from kcli.client.shell.client_loop import FORKED, ClientCore, ClientLoop
from kcli.client.shell.open_operations import Done, OpenOperations
from kcli.network.shell.clock import Clock

_Result = TypeVar("_Result")
LET_IN_S, LET_IN_TRIES = 0.0001, 100
_THREADS: weakref.WeakSet[ClientThread] = weakref.WeakSet()


def _forked() -> None:
    """Take the begin of a child process, in which only the thread that called fork goes on."""
    for one in list(_THREADS):
        one.lock._at_fork_reinit()  # type: ignore[attr-defined]  # one that another thread held would be held for ever
        one.is_forked = True
        one.when_forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class _OwnLock:
    """The lock as the own thread acquires it; `is_waiting` says that it has not got it yet."""

    def __init__(self, lock: threading.RLock) -> None:
        self.is_waiting = False
        self._lock = lock

    def __enter__(self) -> None:
        self.is_waiting = True
        self._lock.acquire()
        self.is_waiting = False

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._lock.release()


class ClientThread:
    """Runs one core; `name` is the thread's, as it appears in debuggers. `when_forked` is called in a child process."""

    def __init__(self, core: ClientCore, clock: Clock, name: str, when_forked: Callable[[], None] = lambda: None) -> None:
        self.is_forked = False
        self.when_forked = when_forked
        self.core = core
        self.clock = clock
        self.lock = threading.RLock()
        self._own_lock = _OwnLock(self.lock)
        self._loop = asyncio.new_event_loop()
        self._is_woken = False
        self._is_closed = False
        self._operations = OpenOperations(_claim)
        self._client: ClientLoop | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        _THREADS.add(self)

    def call(self, function: Callable[[int], _Result]) -> _Result:
        """Call a function of the core with the time, on the caller's thread."""
        with self.lock:
            self._check_open()
            now_ms = self.clock.now_ms()
            self.core.network.timer.observe(now_ms)
            result = function(now_ms)
            self.wake()
        return result

    def call_lightly(self, function: Callable[[int], _Result]) -> _Result:
        """Call a function that seldom has effects, as `call`: the own thread is woken only if it has something to do."""
        with self.lock:
            self._check_open()
            network = self.core.network
            now_ms = self.clock.now_ms()
            network.timer.observe(now_ms)
            deadline_ms = network.next_deadline_ms()
            try:
                return function(now_ms)
            finally:
                if network.effects or network.next_deadline_ms() != deadline_ms:
                    self.wake()

    def start(self, function: Callable[[Done[_Result], int], None]) -> Future[_Result]:
        """Start an operation, `function(done, now_ms)`; its result or error becomes that of the future."""
        future: Future[_Result] = Future()
        self._operations.start(future, function, self.call)
        return future

    def future(self) -> Future[Any]:
        """Return a future that an exception of the own thread ends: nothing else may end it then."""
        future: Future[Any] = Future()
        self._operations.add(future)
        return future

    def wake(self) -> None:
        """Have the effects executed; the caller holds the lock."""
        if not self._is_woken and not self._is_closed:
            self._is_woken = True
            self._loop.call_soon_threadsafe(self._execute)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function on the own thread, without the lock, after what it does now."""
        if self.is_current():
            self._loop.call_soon(function)
        else:
            self._loop.call_soon_threadsafe(function)

    def let_in(self) -> None:
        """Let the own thread have the lock if it waits for it.

        A lock is not fair: a caller that acquires it again at once would have it before a thread that waits.
        """
        for _ in range(LET_IN_TRIES):  # a function of the application that the core calls may be the caller, with the lock
            if not self._own_lock.is_waiting:
                return
            time.sleep(LET_IN_S)

    def is_current(self) -> bool:
        """Return whether the caller runs on this thread, as callbacks do."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Close the connections and end the thread; operations without a result fail with IllegalStateError."""
        with self.lock:
            if self._is_closed or self.is_forked:
                return
            self._is_closed = True
        self._loop.call_soon_threadsafe(self._stop)
        if not self.is_current():
            self._thread.join()

    def check_process(self) -> None:
        """Raise IllegalStateError in a child of the process that made the client."""
        if self.is_forked:
            raise IllegalStateError(FORKED)

    def _check_open(self) -> None:
        self.check_process()
        if self._is_closed:
            raise IllegalStateError("the client is closed")

    # -------------------------------------------------------------------------------------------------- on the own thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:  # of a callback; no caller may wait for this thread any more
            self._end_calls(IllegalStateError(f"a callback has ended the thread of the client: {error!r}"))
        if self._client is not None:
            self._loop.run_until_complete(self._client.drained())
        # A connection that was being made has tasks of its own, which a closed loop would report as destroyed.
        unended = asyncio.all_tasks(self._loop)
        for task in unended:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*unended, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _execute(self) -> None:
        with self._own_lock:
            self._is_woken = False
            if self._client is None:
                self._client = ClientLoop(self.core, self.clock, self._own_lock, self._failed)
            self._client.execute()

    def _failed(self, error: Exception) -> None:
        with self.lock:
            self._operations.fail(error)

    def _stop(self) -> None:
        self._end_calls(IllegalStateError("the client was closed before the call ended"))
        self._loop.stop()

    def _end_calls(self, error: IllegalStateError) -> None:
        with self.lock:
            self._is_closed = True
            if self._client is not None:
                self._client.close()
            self._operations.fail(error)


def _claim(future: Future[Any]) -> bool:
    return not future.done() and not future.running() and future.set_running_or_notify_cancel()
