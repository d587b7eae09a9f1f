"""Several requests one after the other, written as a generator that yields what it waits for.

    yielded                 what comes back
    ----------------------  --------------------------------------------------------------
    Call(...)               the answer, or the PeerFailure instead of it
    Pause(ms)               None, after that time

A `StepRunner` runs any number of generators at once over one NetworkClient; `ask` sends a request again until it is answered or
the time for it (default.api.timeout.ms) is over. Any exception ends its steps, and `done` gets it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple, TypeVar

from kcli.client.errors import ClientError, KafkaTimeoutError
from kcli.client.network_client import DATA, NetworkClient, failure_error
from kcli.network.peer_request import Answer, PeerFailure, Request
from kcli.protocol.apis import API_KEYS
from kcli.protocol.message import Message

_Result = TypeVar("_Result")


class ReplayError(ClientError):
    """A replay that cannot go on; the message is one sentence."""


def as_client_error(error: Exception) -> ClientError:
    """Return an error as one that the caller of an operation gets: a fault of the program must end it, too."""
    if isinstance(error, ClientError):
        return error
    unexpected = ReplayError(f"an error that was not expected, {type(error).__name__}: {error}")
    unexpected.__cause__ = error
    return unexpected


class Call(NamedTuple):
    """A request; without a `node_id` any broker gets it."""

    api_key: int
    request: Request
    node_id: int | None = None
    connection: str = DATA


class Pause(NamedTuple):
    """A time to wait."""

    ms: int


Steps = Generator[Call | Pause, Any, _Result]
# Gets the result of steps, or their error, once, and the time.
Done = Callable[[_Result | ClientError, int], None]


class StepRunner:
    """Runs generators of steps."""

    def __init__(self, network: NetworkClient) -> None:
        self.network = network

    def start(self, steps: Steps[_Result], done: Done[_Result]) -> None:
        """Run a generator; `done` gets its result, or the ClientError that it raised."""
        self._advance(steps, done, None, self.network.timer.clock_ms)

    def _advance(
        self,
        steps: Steps[_Result],
        done: Done[_Result],
        answer: Answer | None,
        now_ms: int,
    ) -> None:
        try:
            wanted = steps.send(answer)
        except StopIteration as end:
            done(end.value, now_ms)
            return
        except Exception as error:
            done(as_client_error(error), now_ms)
            return
        go_on = partial(self._advance, steps, done)
        if isinstance(wanted, Pause):
            self.network.timer.schedule(now_ms + max(wanted.ms, 1), lambda now_ms: go_on(None, now_ms))
        elif wanted.node_id is None:
            self.network.send_to_any(wanted.api_key, wanted.request, go_on)
        else:
            self.network.send(wanted.node_id, wanted.api_key, wanted.request, go_on, connection=wanted.connection)


def ask(
    network: NetworkClient,
    api_key: int,
    request: Request,
    node_id: int | None = None,
    connection: str = DATA,
    limit_ms: int | None = None,
) -> Steps[Message]:
    """Send a request until it is answered. Raises KafkaTimeoutError, UnsupportedVersionError, RequestEncodingError.

    Without `limit_ms` the time is default.api.timeout.ms.
    """
    config = network.config
    deadline_ms = network.timer.clock_ms + (config.default_api_timeout_ms if limit_ms is None else limit_ms)
    while True:
        answer: Answer = yield Call(api_key, request, node_id, connection)
        if not isinstance(answer, PeerFailure):
            return answer
        if answer.is_lasting:
            raise failure_error(answer, api_key)
        if network.timer.clock_ms >= deadline_ms:
            raise KafkaTimeoutError(f"{API_KEYS[api_key].name} was not answered in time: {network.failure_reason()}")
        yield Pause(config.retry_backoff_ms)
