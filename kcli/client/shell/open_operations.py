"""The operations of a client that have no result yet, as futures of asyncio or of concurrent.futures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from kcli.client.errors import ClientError

_Result = TypeVar("_Result")
# Gets the result of an operation, or its error, once, and the time.
Done = Callable[[_Result | ClientError, int], None]


class SettableFuture(Protocol):
    """Either kind of future."""

    def done(self) -> bool:
        """Return whether it has a result or was cancelled."""
        ...

    def set_result(self, result: Any, /) -> None:
        """Give it a result."""
        ...

    def set_exception(self, error: Any, /) -> None:
        """Give it an error."""
        ...

    def exception(self) -> BaseException | None:
        """Return its error."""
        ...

    def add_done_callback(self, function: Callable[[Any], object], /) -> None:
        """Call a function when it is done."""
        ...


def settle(future: SettableFuture, result: object) -> None:
    """Give a future its result; a ClientError is its error."""
    if isinstance(result, ClientError):
        future.set_exception(result)
    else:
        future.set_result(result)


class OpenOperations:
    """The futures; `claim(future)` returns whether one may be settled now: its caller may wait no longer."""

    def __init__(self, claim: Callable[[Any], bool]) -> None:
        self._claim = claim
        self._open: set[SettableFuture] = set()

    def add(self, future: SettableFuture) -> None:
        """Keep a future until it is done."""
        self._open.add(future)
        future.add_done_callback(self._open.discard)

    def start(
        self,
        future: SettableFuture,
        function: Callable[[Done[Any], int], None],
        call: Callable[[Callable[[int], None]], None],
    ) -> None:
        """Start an operation, `function(done, now_ms)`, by `call`; its result or error becomes that of the future."""
        self.add(future)

        def done(result: object, now_ms: int) -> None:
            if self._claim(future):
                settle(future, result)

        def begin(now_ms: int) -> None:
            try:
                function(done, now_ms)
            except BaseException:
                self._open.discard(future)
                raise

        call(begin)

    def fail(self, error: Exception) -> list[SettableFuture]:
        """End all operations with an error; return those that it ended."""
        ended = [future for future in list(self._open) if self._claim(future)]
        for future in ended:
            future.set_exception(error)
        return ended
