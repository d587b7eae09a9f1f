"""A raw client in virtual time: request frames on a link, responses by correlation id, timeouts; and the tasks that use it.

A task is a generator. It yields what it waits for:

    yielded    the task continues
    ---------  --------------------------------------------------------------------------------------------
    int        after that many ms
    Pending    with the response, or with None after a timeout, on a broken link, or if no node is listening
    Waiting    with None, when it is done: an operation of kcli's own client (kcli.simulator.core_client)

As a real client does, it closes its link after a timeout, and so loses all other requests in flight on the link.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from kcli.protocol.apis import API_KEYS, Api
from kcli.protocol.framing import encode_request, read_response_header
from kcli.protocol.message import Message
from kcli.simulator.machine import Machine
from kcli.simulator.network import FrameReader, Link, Network
from kcli.simulator.virtual_time import VirtualTime

REQUEST_TIMEOUT_MS = 2000


class Waiting:
    """What a task waits for."""

    __slots__ = ("is_done", "on_done", "response")

    def __init__(self) -> None:
        self.is_done = False
        self.response: Message | None = None
        self.on_done: Callable[[], None] = lambda: None

    def finish(self, response: Message | None) -> None:
        """Set the response, or None for a failure; only the first call has an effect."""
        if not self.is_done:
            self.is_done = True
            self.response = response
            self.on_done()


class Pending(Waiting):
    """A request in flight."""

    __slots__ = ("api", "correlation_id", "version")

    def __init__(self, api: Api, version: int, correlation_id: int) -> None:
        super().__init__()
        self.api = api
        self.version = version
        self.correlation_id = correlation_id


T = TypeVar("T")
# A task: `yield` gives it the response of a Pending, and None after a sleep; T is what it returns.
Task = Generator[int | Waiting, Message | None, T]


def run_task(virtual_time: VirtualTime, task: Task[None]) -> None:
    """Run a task in virtual time; its first step comes at the present time."""

    def resume(value: Message | None) -> None:
        try:
            wanted = task.send(value)
        except StopIteration:
            return
        if isinstance(wanted, int):
            virtual_time.after(wanted, lambda: resume(None))
        elif wanted.is_done:
            virtual_time.after(0, lambda: resume(wanted.response))
        else:
            wanted.on_done = lambda: resume(wanted.response)

    virtual_time.after(0, lambda: resume(None))


class SimulatedClient:
    """One client with one link, which is opened when it is needed."""

    def __init__(self, virtual_time: VirtualTime, network: Network, machine: Machine, name: str, port: int) -> None:
        self.name = name
        self._virtual_time = virtual_time
        self._network = network
        self._machine = machine
        self._port = port
        self._link: Link | None = None
        self._reader = FrameReader()
        self._pending: dict[int, Pending] = {}
        self._correlation_id = 0

    def send(
        self,
        api_key: int,
        version: int,
        message: Message,
        *,
        has_response: bool = True,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> Pending:
        """Send a request; return what to wait for. It is done at once if no node is listening or `has_response` is False."""
        api = API_KEYS[api_key]
        self._correlation_id += 1
        pending = Pending(api, version, self._correlation_id)
        if self._link is None:
            self._reader = FrameReader()
            self._link = self._machine.accept(lambda end: self._network.connect(self, end), self._port)
        if self._link is None:
            pending.finish(None)
            return pending
        self._link.send(0, bytes(encode_request(pending.correlation_id, api, version, self.name, message)))
        if not has_response:
            pending.finish(None)
            return pending
        self._pending[pending.correlation_id] = pending
        self._virtual_time.after(timeout_ms, lambda: self._timed_out(pending))
        return pending

    def _timed_out(self, pending: Pending) -> None:
        if not pending.is_done:
            self.disconnect()

    def disconnect(self) -> None:
        """Close the link; all requests in flight fail."""
        link, self._link = self._link, None
        if link is not None:
            link.close(0)
        pending, self._pending = self._pending, {}
        for one in pending.values():
            one.finish(None)

    def received(self, link: Link, data: bytes) -> None:
        """Take received bytes. Raises ValueError for a response to no request in flight."""
        if link is not self._link:
            return
        for frame in self._reader.feed(data):
            correlation_id = int.from_bytes(frame[:4], "big", signed=True)
            pending = self._pending.pop(correlation_id, None)
            if pending is None:
                raise ValueError(f"{self.name} got a response with correlation id {correlation_id}, but sent no such request")
            _, position = read_response_header(frame, pending.api, pending.version)
            pending.finish(pending.api.response.decode(frame, pending.version, position)[0])

    def closed(self, link: Link) -> None:
        """Handle a link that broke or was closed by the node."""
        if link is self._link:
            self.disconnect()
