"""A client in virtual time: real request frames on a link, answers by correlation id, timeouts; and the tasks that use it.

A task is a generator. It yields a number of ms to sleep, or something to wait for, and goes on with what came of it:

    yielded    the task goes on
    ---------  --------------------------------------------------------------------------------------------
    int        in so many ms
    Pending    with the response, or None where none came in time, the link broke, or nobody listened

As real clients do, one that waits in vain drops its link, with all else that was under way on it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from kcli.protocol.apis import API_KEYS, Api
from kcli.protocol.framing import encode_request, read_response_header
from kcli.protocol.message import Message
from kcli.simulator.machine import Machine
from kcli.simulator.network import FrameReader, Link, Network
from kcli.simulator.scheduler import Scheduler

REQUEST_TIMEOUT_MS = 2000


class Pending:
    """A request under way."""

    __slots__ = ("api", "correlation_id", "is_done", "on_done", "response", "version")

    def __init__(self, api: Api, version: int, correlation_id: int) -> None:
        self.api = api
        self.version = version
        self.correlation_id = correlation_id
        self.is_done = False
        self.response: Message | None = None
        self.on_done: Callable[[], None] = lambda: None

    def finish(self, response: Message | None) -> None:
        """The answer, or None; only the first call counts."""
        if not self.is_done:
            self.is_done = True
            self.response = response
            self.on_done()


T = TypeVar("T")
# A task: `yield` gives it the response of a Pending, and None after a sleep; T is what it returns.
Task = Generator[int | Pending, Message | None, T]


def run_task(scheduler: Scheduler, task: Task[None]) -> None:
    """Run a task in virtual time; its first step comes at the present time."""

    def go_on(value: Message | None) -> None:
        try:
            wanted = task.send(value)
        except StopIteration:
            return
        if isinstance(wanted, int):
            scheduler.after(wanted, lambda: go_on(None))
        elif wanted.is_done:
            scheduler.after(0, lambda: go_on(wanted.response))
        else:
            wanted.on_done = lambda: go_on(wanted.response)

    scheduler.after(0, lambda: go_on(None))


class SimulatedClient:
    """One client: a link at a time, made when it is needed."""

    def __init__(self, scheduler: Scheduler, network: Network, machine: Machine, name: str, port: int) -> None:
        self.name = name
        self._scheduler = scheduler
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
        has_answer: bool = True,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> Pending:
        """Send a request -> what to wait for; done at once where nobody listens, or no answer is to come."""
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
        if not has_answer:
            pending.finish(None)
            return pending
        self._pending[pending.correlation_id] = pending
        self._scheduler.after(timeout_ms, lambda: self._timed_out(pending))
        return pending

    def _timed_out(self, pending: Pending) -> None:
        if not pending.is_done:
            self.disconnect()

    def disconnect(self) -> None:
        """Drop the link, and with it all that is under way."""
        link, self._link = self._link, None
        if link is not None:
            link.close(0)
        pending, self._pending = self._pending, {}
        for one in pending.values():
            one.finish(None)

    def received(self, link: Link, data: bytes) -> None:
        """Bytes came. Raises ValueError for a response to nothing that was asked."""
        if link is not self._link:
            return
        for frame in self._reader.feed(data):
            correlation_id = int.from_bytes(frame[:4], "big", signed=True)
            pending = self._pending.pop(correlation_id, None)
            if pending is None:
                raise ValueError(f"{self.name} got a response {correlation_id} to nothing that it asked")
            _, position = read_response_header(frame, pending.api, pending.version)
            pending.finish(pending.api.response.decode(frame, pending.version, position)[0])

    def closed(self, link: Link) -> None:
        """The link broke, or the node closed it."""
        if link is self._link:
            self.disconnect()
