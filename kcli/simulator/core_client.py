"""Runs a core of kcli's own client (kcli.client) in virtual time, as kcli.client.shell.client_loop does on an event loop.

    what happens                              then
    ----------------------------------------  ------------------------------------------------------------------------------
    `call`, `start` of an application         the function with the time, `core.poll`, effects, the timer is armed
    a whole frame comes, or a link ends       NetworkClient.handle; the same follows once, a little later
    the next deadline, sometimes a bit late   NetworkClient.advance, and the same
    SendRequest, ClosePeer                    kcli.simulator.peer_links: links with delays, cuts, and silence
    `kill`                                    the process is dead: its links are cut, or stay open and silent
    an exception of the core                  ends the run

The clock of a client is steady: clients are not on the machine whose wall clock jumps.

A network may deliver a request a second time, much later. So some of the requests for which `may_repeat` returns True are sent
once more on a connection of their own, up to REPEATED_AFTER_MS later; the client gets one answer.

The application sees results only. What the checks of a history need in addition, such as the requests that may be executed
later, comes from the frames: `observers` (by API key) get each request that the core sends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random
from typing import Generic, TypeVar

from kcli.client.client_config import ClientConfig
from kcli.client.errors import ClientError
from kcli.client.network_client import NetworkClient
from kcli.network.events import ClosePeer, Peer, PeerAddress, PeerClosed, PeerEvent, ResponseReceived, SendRequest
from kcli.protocol.apis import API_KEYS
from kcli.protocol.framing import SIZE_BYTES, read_request_header, read_response_header
from kcli.protocol.message import Message
from kcli.simulator.client import Task, Waiting
from kcli.simulator.machine import Machine
from kcli.simulator.network import End, Link, Network
from kcli.simulator.peer_links import PeerLinks
from kcli.simulator.trace import Trace
from kcli.simulator.virtual_time import Action, VirtualTime

# The address that a node advertises without a setting of its own.
BROKER_ADDRESS = PeerAddress("127.0.0.1", 9092)
REPEATED_SHARE = 0.04
REPEATED_AFTER_MS = 3000
# The largest delay of a deadline, and how often there is one.
LATE_MS, LATE_SHARE = 20, 0.03

_Result = TypeVar("_Result")
Done = Callable[[_Result | ClientError, int], None]


class ClientListener:
    """The listener of a machine that clients connect to; the only machine has it at BROKER_ADDRESS of the network."""

    def __init__(self, network: Network, machine: Machine) -> None:
        self.machine_id = machine.machine_id
        self._network = network
        self._machine = machine

    def accept_peer(self, end: End, peer: Peer, from_machine_id: int) -> Link | None:
        """Accept a connection of a client, None if the node does not serve clients now."""
        return self._machine.accept(lambda own: self._network.connect(end, own), from_machine_id)


class WireRequest:
    """A request that a core has sent to `address`; `on_end` is called once with the answer, with None if it was lost."""

    __slots__ = ("address", "api_key", "frame", "is_repeated", "on_end", "sent_ms", "version")

    def __init__(self, frame: bytes, sent_ms: int, address: PeerAddress | None) -> None:
        self.address = address
        self.frame = frame
        self.sent_ms = sent_ms
        self.api_key = int.from_bytes(frame[:2], "big")
        self.version = int.from_bytes(frame[2:4], "big")
        self.is_repeated = False
        self.on_end: Callable[[Message | None], None] | None = None

    def decode(self) -> Message:
        """Return the message."""
        position = read_request_header(self.frame)[-1]
        return API_KEYS[self.api_key].request.decode(self.frame, self.version, position)[0]

    def end(self, frame: bytes | bytearray | None) -> None:
        """Take the frame of the answer, None for a request without one."""
        on_end, self.on_end = self.on_end, None
        if on_end is None:
            return
        if frame is None:
            on_end(None)
            return
        api = API_KEYS[self.api_key]
        _, position = read_response_header(frame, api, self.version)
        on_end(api.response.decode(frame, self.version, position)[0])


class Operation(Waiting, Generic[_Result]):
    """A call of a core that ends later; `result` is its result or error then."""

    __slots__ = ("result",)

    result: _Result | ClientError

    def end(self, result: _Result | ClientError, now_ms: int = 0) -> None:
        """Take the result."""
        self.result = result
        self.finish(None)


class CoreClient:
    """One process with one core, which `run` gets; `port` is its own on all machines."""

    def __init__(
        self,
        virtual_time: VirtualTime,
        network: Network,
        trace: Trace,
        name: str,
        port: int,
        rng: Random,
        config: ClientConfig,
        may_repeat: Callable[[WireRequest], bool] = lambda request: False,
    ) -> None:
        self.name = name
        self.is_dead = False
        self.observers: dict[int, Callable[[WireRequest], None]] = {}
        self.sent_counts: Counter[int] = Counter()  # by API key
        self.stray_counts: Counter[int] = Counter()  # of requests that may be executed later, or once more
        self._virtual_time = virtual_time
        self._trace = trace
        self._rng = rng
        self._may_repeat = may_repeat
        self.network = NetworkClient(config, rng, self.log, virtual_time.now_ms)
        self._poll: Callable[[int], object] = lambda now_ms: None
        self._links = PeerLinks(network, port, self._in_this_life, self._handle, name)
        self._echoes = PeerLinks(network, port, self._in_this_life, lambda event: None, f"{name}-again")
        self._under_way: dict[int, tuple[Peer, WireRequest]] = {}
        self._timer: Action | None = None
        self._armed_ms: int | None = None
        self._is_execution_due = False

    def run(self, poll: Callable[[int], object]) -> None:
        """Call the `poll` of a core after each event."""
        self._poll = poll
        self._execute()

    def log(self, line: str) -> None:
        """Add a line of the client's log to the trace."""
        self._trace.add(self.name, line)

    @property
    def now_ms(self) -> int:
        """The client's time."""
        return self._virtual_time.now_ms

    # ------------------------------------------------------------------------------------------------- the application

    def call(self, function: Callable[[int], _Result]) -> _Result:
        """Call a function of the core with the time, and execute the effects."""
        assert not self.is_dead, "a dead process calls nothing"
        self.network.timer.observe(self.now_ms)
        result = function(self.now_ms)
        self._execute()
        return result

    def start(self, function: Callable[[Done[_Result], int], object]) -> Operation[_Result]:
        """Start an operation, `function(done, now_ms)`; what it raises is its result."""
        operation = Operation[_Result]()
        try:
            self.call(lambda now_ms: function(operation.end, now_ms))
        except ClientError as error:
            operation.end(error)
        return operation

    def ask(self, function: Callable[[Done[_Result], int], object]) -> Task[_Result | ClientError]:
        """Start an operation, wait for its end, and return its result or error."""
        operation = self.start(function)
        yield operation
        return operation.result

    def kill(self, *, is_silent: bool = False) -> None:
        """End the process; the broker hears of it, or not. The links of a silent death stay open."""
        self.is_dead = True
        if self._timer is not None:
            self._timer.cancel()
        self._lose(self._under_way.copy())
        if not is_silent:
            self.disconnect()

    def disconnect(self) -> None:
        """Cut the links of a dead process."""
        self._links.forget()
        self._echoes.forget()

    def close(self) -> None:
        """End the process in order: its connections are closed."""
        self.is_dead = True
        self.network.close()
        if self._timer is not None:
            self._timer.cancel()
        self._lose(self._under_way.copy())
        self._links.close_all()

    # ------------------------------------------------------------------------------------------------ events and effects

    def _in_this_life(self, delay_ms: int, run: Callable[[], None]) -> None:
        def if_alive() -> None:
            if not self.is_dead:
                run()

        self._virtual_time.after(delay_ms, if_alive)

    def _handle(self, event: PeerEvent) -> None:
        if self.is_dead:
            return
        if isinstance(event, PeerClosed):
            self._lose({key: found for key, found in self._under_way.items() if found[0] == event.peer})
        else:
            self._answered(event)
        self.network.handle(event, self.now_ms)
        if not self._is_execution_due:
            self._is_execution_due = True
            self._in_this_life(0, self._execute_if_due)

    def _execute_if_due(self) -> None:
        if self._is_execution_due:
            self._execute()

    def _execute(self) -> None:
        """Let the core do what is due, execute its effects, and arm the timer."""
        if self.is_dead:
            return
        self._is_execution_due = False
        self._poll(self.now_ms)
        for effect in self.network.take_effects():
            if isinstance(effect, SendRequest):
                self._send(effect)
            else:
                assert isinstance(effect, ClosePeer)
                self._lose({key: found for key, found in self._under_way.items() if found[0] == effect.peer})
                self._links.close(effect.peer)
        self._arm()

    def _arm(self) -> None:
        at_ms = self.network.next_deadline_ms()
        if at_ms == self._armed_ms and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._armed_ms, self._timer = at_ms, None
        if at_ms is not None:
            late_ms = self._rng.randrange(LATE_MS) if self._rng.random() < LATE_SHARE else 0
            self._timer = self._virtual_time.at(at_ms + late_ms, self._due)

    def _due(self) -> None:
        self._armed_ms = self._timer = None
        if not self.is_dead:
            self.network.advance(self.now_ms)
            self._execute()

    # ---------------------------------------------------------------------------------------------------------- requests

    def _send(self, effect: SendRequest) -> None:
        request = WireRequest(bytes(effect.frame[SIZE_BYTES:]), self.now_ms, effect.peer.address)
        key = request.api_key
        self.sent_counts[key] += 1
        if effect.has_answer:
            self._under_way[effect.request_id] = effect.peer, request
        if self._may_repeat(request) and self._rng.random() < REPEATED_SHARE:
            request.is_repeated = True
            self.stray_counts[key] += 1
            self._virtual_time.after(self._rng.randrange(REPEATED_AFTER_MS), lambda: self._repeat(effect))
        observer = self.observers.get(key)
        if observer is not None:
            observer(request)
        self._links.send(effect)

    def _repeat(self, effect: SendRequest) -> None:
        if not self.is_dead:
            self._echoes.send(effect)

    def _answered(self, event: ResponseReceived) -> None:
        found = self._under_way.pop(event.request_id, None)
        if found is not None:
            found[1].end(event.frame)

    def _lose(self, requests: Mapping[int, tuple[Peer, WireRequest]]) -> None:
        """Take the end of the connection of requests: the broker may execute them."""
        for request_id, (_, request) in requests.items():
            del self._under_way[request_id]
            self.stray_counts[request.api_key] += 1
            request.end(None)
