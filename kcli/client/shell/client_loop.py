"""The asyncio shell around the core of a client: sockets and the timer. It moves bytes and decides nothing.

    what happens                         then
    -----------------------------------  ------------------------------------------------------------------------------------
    `call(function)` of the application  function(now_ms), `core.poll`, effects, the timer is armed
    an answer, the end of a connection   NetworkClient.handle; the same follows once for all events that the event loop has now
    the next deadline                    NetworkClient.advance, and the same
    an exception of any of these but     all operations of `start` end with it: they might wait for ever
    the first

In a process that was forked after the client was made, calls raise IllegalStateError: the sockets are those of the parent.

kcli.client.shell.client_thread puts a ClientLoop on a thread of its own, for callers that block.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from kcli.client.errors import IllegalStateError
from kcli.client.network_client import NetworkClient
from kcli.client.shell.open_operations import Done, OpenOperations
from kcli.network.events import ClientEvent, ObtainToken, SendRequest
from kcli.network.shell.clock import Clock
from kcli.network.shell.peer_connections import PeerConnections

if TYPE_CHECKING:
    from kcli.client.shell.tokens import TokenObtainer

_Result = TypeVar("_Result")
FORKED = "this process was forked after the client was made, and cannot use it; make the client in this process"


class ClientCore(Protocol):
    """A producer, consumer or admin client, as the shells call it."""

    network: NetworkClient

    def poll(self, now_ms: int) -> None:
        """Do what is due after calls and events, such as sending what is ready."""
        ...


class _Operation(asyncio.Future[_Result]):
    """The future of an operation that can be taken back: at once, since after `cancel` it must have no effect."""

    def __init__(self, cancelled: Callable[[], None] | None, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._cancelled_hook = cancelled

    def cancel(self, msg: Any = None) -> bool:
        """Cancel it, and take the operation back."""
        is_cancelled = super().cancel(msg)
        if is_cancelled and self._cancelled_hook is not None:
            self._cancelled_hook()
        return is_cancelled


def _is_awaited(future: asyncio.Future[Any]) -> bool:
    return not future.done()


class ClientLoop:
    """Runs one core on the running event loop; `lock` is held while it is called, if threads share it."""

    def __init__(
        self,
        core: ClientCore,
        clock: Clock,
        lock: AbstractContextManager[object] | None = None,
        failed: Callable[[Exception], None] | None = None,
    ) -> None:
        """Begin to run a core; `failed` gets exceptions that no caller would see, instead of the operations of `start`."""
        self._core = core
        self._clock = clock
        self._lock = nullcontext() if lock is None else lock
        self._failed = failed or self._fail_operations
        self._loop = asyncio.get_running_loop()
        security = core.network.security
        self._connections = PeerConnections(self._loop, self._dispatch, security.tls)
        self._tokens: TokenObtainer | None = None
        if security.tokens is not None:
            from kcli.client.shell.tokens import TokenObtainer

            self._tokens = TokenObtainer(self._loop, security.tokens, self._dispatch)
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ms: int | None = None
        self._is_execution_due = False
        self._is_closed = False
        self._process_id = os.getpid()
        self._operations = OpenOperations(_is_awaited)

    def call(self, function: Callable[[int], _Result]) -> _Result:
        """Call a function of the core with the time, and execute the effects. Raises IllegalStateError after a fork."""
        self.check_process()
        with self._lock:
            now_ms = self._clock.now_ms()
            self._core.network.timer.observe(now_ms)
            result = function(now_ms)
            self._execute(now_ms)
        return result

    @property
    def is_forked(self) -> bool:
        """Whether the process is a child of the one that made the client."""
        return os.getpid() != self._process_id

    def check_process(self) -> None:
        """Raise IllegalStateError in a child of the process that made the client."""
        if self.is_forked:
            raise IllegalStateError(FORKED)

    def start(
        self, function: Callable[[Done[_Result], int], None], cancelled: Callable[[], None] | None = None
    ) -> asyncio.Future[_Result]:
        """Start an operation, `function(done, now_ms)`; its result or error becomes that of the future.

        `cancelled` is called as soon as the future is cancelled.
        """
        future: asyncio.Future[_Result] = _Operation(cancelled, loop=self._loop)
        self._operations.start(future, function, self.call)
        return future

    def execute(self) -> None:
        """Execute the effects of calls that other threads made."""
        self._call_guarded(lambda now_ms: None)

    def _call_guarded(self, function: Callable[[int], object]) -> None:
        """Call a function whose exception no caller would see: it ends all operations, which might wait for ever."""
        try:
            self.call(function)
        except Exception as error:
            self._failed(error)
            raise

    def _fail_operations(self, error: Exception) -> None:
        self._operations.fail(error)

    def _execute(self, now_ms: int) -> None:
        """Let the core do what is due, execute its effects, and arm the timer."""
        if self._is_closed:
            return
        self._is_execution_due = False
        self._core.poll(now_ms)
        for peer, effects in groupby(self._core.network.take_effects(), lambda effect: effect.peer):
            requests: list[SendRequest] = []
            for effect in effects:
                if isinstance(effect, SendRequest):
                    requests.append(effect)
                    continue
                if isinstance(effect, ObtainToken):
                    assert self._tokens is not None
                    self._tokens.obtain(effect)
                    continue
                if requests:
                    self._connections.send(*requests)
                    requests.clear()
                self._connections.close(peer)
            if requests:
                self._connections.send(*requests)
        self._arm(now_ms)

    def close(self) -> None:
        """Close the connections; nothing is called any more. Operations without a result fail with IllegalStateError."""
        self._is_closed = True
        self._core.network.close()
        self._connections.close_all()
        if self._tokens is not None:
            self._tokens.close()
        if self._timer is not None:
            self._timer.cancel()
        for future in self._operations.fail(IllegalStateError("the client was closed before the call ended")):
            future.exception()  # no warning if no task waits for it

    async def drained(self) -> None:
        """Wait, after `close`, until what was sent has left, for a bounded time."""
        await self._connections.drained()

    def _dispatch(self, event: ClientEvent) -> None:
        if self._is_closed or self.is_forked:
            return
        try:
            with self._lock:
                self._core.network.handle(event, self._clock.now_ms())
        except Exception as error:
            self._failed(error)
            raise
        if not self._is_execution_due:
            self._is_execution_due = True
            self._loop.call_soon(self._execute_if_due)

    def _execute_if_due(self) -> None:
        if self._is_execution_due and not self.is_forked:
            self.execute()

    def _arm(self, now_ms: int) -> None:
        at_ms = self._core.network.next_deadline_ms()
        if at_ms == self._armed_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_ms, self._timer = at_ms, None
        if at_ms is not None:
            self._timer = self._loop.call_later(max(at_ms - now_ms, 0) / 1000, self._due)

    def _due(self) -> None:
        self._armed_ms = self._timer = None
        if not self._is_closed and not self.is_forked:
            self._call_guarded(self._core.network.advance)
