"""What the calls of an application of a consumer or a share consumer wait for, and `wakeup`, which ends them.

    call                                wait             ends
    ----------------------------------  ---------------  ----------------------------------------------------------
    poll                                `await_work`     with records, an error or a listener call; by `wakeup`
    close, unsubscribe                  `await_work`     with a listener call, or the end of the operation
    commit, committed, position, ...    `start`          with its result; by `wakeup`, with WakeupError

A `wakeup` without a call that it could end ends the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kcli.client.errors import ClientError, WakeupError
from kcli.network.timing_wheel import Timer, TimerTask

_Result = TypeVar("_Result")
Done = Callable[[ClientError | None, int], None]


def _woken() -> WakeupError:
    return WakeupError("the call was ended by wakeup()")


class ApplicationWaits:
    """The calls of one consumer that have no result yet."""

    def __init__(self, timer: Timer) -> None:
        self.is_woken = False
        self._timer = timer
        self._waiter: tuple[Callable[[int], bool], Done, TimerTask] | None = None
        self._calls: list[tuple[object, Callable[[ClientError, int], None]]] = []

    def await_work(self, has_work: Callable[[int], bool], done: Done, now_ms: int, timeout_ms: int) -> None:
        """Call `done` as soon as `has_work(now_ms)`, at the latest after `timeout_ms`; one call at a time."""
        self.end_wait(now_ms)
        if timeout_ms <= 0 or has_work(now_ms):
            done(None, now_ms)
            return
        self._waiter = (has_work, done, self._timer.schedule(now_ms + timeout_ms, self.end_wait))

    def check(self, now_ms: int) -> None:
        """End the wait if there is work now."""
        if self._waiter is not None and self._waiter[0](now_ms):
            self.end_wait(now_ms)

    def end_wait(self, now_ms: int) -> None:
        """End the wait for work."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            _, done, timer = waiter
            timer.cancel()
            done(None, now_ms)

    def start(
        self,
        operation: Callable[[Callable[[_Result | ClientError, int], None], int], None],
        done: Callable[[_Result | ClientError, int], None],
        now_ms: int,
    ) -> None:
        """Start `operation(done, now_ms)`, which `wakeup` can end."""
        if self.is_woken:
            self.is_woken = False
            done(_woken(), now_ms)
            return

        def ended(result: _Result | ClientError, now_ms: int) -> None:
            if call in self._calls:
                self._calls.remove(call)
                done(result, now_ms)

        call = (operation, ended)
        self._calls.append(call)
        try:
            operation(ended, now_ms)
        except BaseException:
            self.abandon(operation)
            raise

    def abandon(self, operation: object) -> None:
        """Take note that the caller of an operation waits no longer: its result is dropped, and no `wakeup` is for it."""
        self._calls = [call for call in self._calls if call[0] is not operation]

    def wakeup(self, now_ms: int) -> None:
        """End the calls under way, or the next one."""
        calls = self._calls.copy()
        self.is_woken = self._waiter is not None or not calls
        for _, ended in calls:
            ended(_woken(), now_ms)
        self.end_wait(now_ms)

    def fail(self, error: ClientError, now_ms: int) -> None:
        """End the calls of `start` under way with an error."""
        for _, ended in self._calls.copy():
            ended(error, now_ms)

    def raise_if_woken(self) -> None:
        """Raise WakeupError after `wakeup`, once."""
        if self.is_woken:
            self.is_woken = False
            raise _woken()
