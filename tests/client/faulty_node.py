"""A node of kcli in virtual time, whose connections to its clients fail at the request that a test names.

A test runs its application again and again, and lets request 1, 2, 3 ... of a run meet a fault, until a run has fewer requests:

    for run in node.runs(fault):
        app = App(node, f"topic-{run}")
        ...

The requests of all clients are counted, with ApiVersions of each new connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

import pytest

from kcli.network.events import Peer, PeerClosed, SendRequest
from kcli.protocol.apis import API_KEYS
from kcli.protocol.framing import read_request_header
from kcli.server.events import Connection, ConnectionClosed, RequestReceived
from tests.client.clients_of_node import SIZE_BYTES, Client, ClientsOfNode, _Link

# Settings of clients: what is lost is noticed soon.
REQUEST_TIMEOUT_MS = 2000
SHORT_TIMEOUTS = {"request_timeout_ms": REQUEST_TIMEOUT_MS, "socket_connection_setup_timeout_ms": REQUEST_TIMEOUT_MS}
DELAY_MS = 800
LATE_MS = REQUEST_TIMEOUT_MS + 300
MOST_REQUESTS = 200


class Fault(Enum):
    """What happens to a request, its answer and its connection."""

    CUT_BEFORE = "the connection ends before the broker has the request"
    CUT_AFTER = "the broker has the request, and the connection ends before its answer"
    LOST_REQUEST = "nothing more comes to the broker on the connection, which remains open"
    LOST_ANSWER = "the broker gets what is sent on the connection, and nothing comes from it"
    DELAYED_ANSWER = "the answer comes late, but in time"
    LATE_REQUEST = "the broker gets what is sent on the connection after the client has waited for request.timeout.ms"


_FAST = (Fault.CUT_BEFORE, Fault.CUT_AFTER)
FAULTS = pytest.mark.parametrize(
    "fault",
    [pytest.param(one, id=one.name.lower().replace("_", " "), marks=[] if one in _FAST else pytest.mark.ci) for one in Fault],
)


class FaultyNode(ClientsOfNode):
    """A node; `requests` are the names of the APIs of this run in their order."""

    def __init__(self, directory: Path, *overrides: str) -> None:
        self.requests: list[str] = []
        self._fault_at = 0
        self._fault: Fault | None = None
        self._faulty: SendRequest | None = None  # under way
        self._broken: dict[tuple[Client, Peer], Fault] = {}  # connections on which something is lost from now on
        self._held: dict[tuple[Client, Peer], list[SendRequest]] = {}
        self._later: list[tuple[int, Callable[[], None]]] = []
        super().__init__(directory, *overrides)

    def runs(self, fault: Fault | None) -> Iterator[int]:
        """Yield 1, 2, 3 ...; request number n of run n meets the fault. The last run is one without it."""
        for run in range(1, MOST_REQUESTS):
            self.requests, self._fault_at, self._fault = [], run, fault
            yield run
            if fault is None or len(self.requests) < run:
                return
        raise AssertionError("the runs did not come to their end")

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Count no requests, and let none meet a fault."""
        requests, fault_at = self.requests, self._fault_at
        self.requests, self._fault_at = [], 0
        yield
        self.requests, self._fault_at = requests, fault_at

    @property
    def faulty_request(self) -> str:
        """The API of the request that met the fault in this run, '' before."""
        return self.requests[self._fault_at - 1] if len(self.requests) >= self._fault_at else ""

    # ---------------------------------------------------------------------------------------------------------- the fault

    def _send_for(self, client: Client, effect: SendRequest) -> None:
        if effect.has_answer and effect.request_id not in client.network.peers.outstanding:
            return  # its connection has ended since
        self.requests.append(API_KEYS[read_request_header(effect.frame[SIZE_BYTES:])[0]].name)
        if len(self.requests) == self._fault_at:
            self._begin(client, effect)
            if self._fault is Fault.CUT_BEFORE:
                return
        fault = self._broken.get((client, effect.peer))
        if fault is Fault.LATE_REQUEST:
            self._held[client, effect.peer].append(effect)
        elif fault is not Fault.LOST_REQUEST:
            super()._send_for(client, effect)

    def _begin(self, client: Client, effect: SendRequest) -> None:
        link = self._link(client, effect.peer)
        if link is None:
            link = _Link(client, effect.peer, self.connection())
            self._links[link.connection.connection_id] = link
        if self._fault is Fault.CUT_BEFORE:
            self._cut(link)
        elif self._fault is Fault.LOST_REQUEST:
            self._broken[client, effect.peer] = self._fault
        elif self._fault is Fault.LATE_REQUEST:
            self._broken[client, effect.peer] = self._fault
            held = self._held[client, effect.peer] = []
            self._in(LATE_MS, lambda: self._send_held(link, held))
        elif self._fault is not None:
            self._faulty = effect

    def _cut(self, link: _Link) -> None:
        del self._links[link.connection.connection_id]
        self.handle(ConnectionClosed(link.connection))
        link.client.network.handle(PeerClosed(link.peer, "the test ended it"), self.now_ms)

    def _send_held(self, link: _Link, held: list[SendRequest]) -> None:
        is_open = link.connection.connection_id in self._links
        if is_open:
            self._broken.pop((link.client, link.peer), None)
        for effect in held:
            if is_open:
                super()._send_for(link.client, effect)
            else:
                self.handle(RequestReceived(self.connection(), memoryview(bytearray(effect.frame))[SIZE_BYTES:]))

    def _answered(self, connection: Connection, frame: bytes) -> None:
        link = self._links.get(connection.connection_id)
        if link is None or link.under_way is None:
            super()._answered(connection, frame)
            return
        if link.under_way is self._faulty:
            self._faulty = None
            if self._fault is Fault.CUT_AFTER:
                self._cut(link)
                return
            if self._fault is Fault.DELAYED_ANSWER:
                self._in(DELAY_MS, lambda: self._answer_if_open(connection, frame))
                return
            self._broken[link.client, link.peer] = Fault.LOST_ANSWER
        if self._broken.get((link.client, link.peer)) is Fault.LOST_ANSWER:
            link.under_way = None
            self._send_next(link)
            return
        super()._answered(connection, frame)

    def _answer_if_open(self, connection: Connection, frame: bytes) -> None:
        if connection.connection_id in self._links:
            super()._answered(connection, frame)

    def _close_for(self, client: Client, peer: Peer) -> None:
        self._broken.pop((client, peer), None)
        super()._close_for(client, peer)

    # -------------------------------------------------------------------------------------------------------------- time

    def _in(self, ms: int, function: Callable[[], None]) -> None:
        self._later.append((self.now_ms + ms, function))

    def advance(self, ms: int) -> None:
        """Let time go by, with what is delayed on the way."""
        until_ms = self.now_ms + ms
        while self._later and (at_ms := min(one[0] for one in self._later)) <= until_ms:
            super().advance(max(at_ms - self.now_ms, 0))
            due = [one for one in self._later if one[0] <= self.now_ms]
            self._later = [one for one in self._later if one[0] > self.now_ms]
            for _, function in due:
                function()
            self.pump()
        super().advance(until_ms - self.now_ms)

    def until(self, is_so: Callable[[], bool], within_ms: int = 10_000) -> None:
        """Let time go by until something is so, from deadline to deadline: nothing happens between them."""
        end_ms = self.now_ms + within_ms
        self.pump()
        while not is_so():
            assert self.now_ms < end_ms, "it did not come to be so"
            deadlines = [self.node.next_deadline_ms(), *(one.network.next_deadline_ms() for one in self.clients)]
            due = [at_ms for at_ms in (*deadlines, *(one[0] for one in self._later), end_ms) if at_ms is not None]
            self.advance(max(min(due) - self.now_ms, 0))
