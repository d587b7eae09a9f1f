"""One node: a broker, a controller, or both, as one machine that takes events and gives effects.

    core              takes                                                    gives
    ----------------  -------------------------------------------------------  ------------------------------------------
    ControllerServer    requests on the controller's listeners and on the        the metadata log, once it is committed
                      node's own connections; Flushed                          (`register`)
    Broker            clients' requests; the answers of the controller         what clients see

Broker and controller know each other only by requests and by the metadata log, in one process as in two. Both live on one
timer and one list of effects; the order in which things are asked for is the order in which the shell does them.

    start      the controller opens the metadata log and is elected -> the broker has replayed it -> its logs are loaded, a
               slice a step -> it registers and is unfenced -> `is_ready`: the shell opens the listeners
    stop       the controller lets the broker go -> its logs are closed, a slice a step -> the metadata log -> `is_stopped`
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from kcli.protocol.apis import ENVELOPE
from kcli.protocol.errors import MessageError
from kcli.server.broker.broker import Broker
from kcli.server.envelope import close_envelope, open_envelope
from kcli.server.events import (
    CloseConnection,
    Computed,
    Connection,
    ConnectionClosed,
    DeadlineReached,
    Effect,
    Event,
    Flushed,
    RequestReceived,
    ResponseReceived,
    SendResponse,
)
from kcli.server.flushes import Flushes
from kcli.server.raft.kafka_raft_client import RaftListener
from kcli.server.timing_wheel import Timer

# How a controller answers a request: with a whole frame, its size included; None closes the connection.
Respond = Callable[[bytes | None], None]


class ControllerPort(Protocol):
    """A node's controller and its raft client (kcli.server.controller), as the node drives them."""

    @property
    def leader_id(self) -> int:
        """The node that leads the quorum as far as this one knows, -1 for none."""
        ...

    def start(self, now_ms: int) -> None:
        """Open the metadata log and begin to take part in the quorum."""
        ...

    def register(self, listener: RaftListener) -> None:
        """Have a listener follow the metadata log from the start on."""
        ...

    def receive(self, connection: Connection, frame: memoryview, respond: Respond, now_ms: int) -> None:
        """Take a request (header and message) of a client or node; `respond` is called once, now or later."""
        ...

    def is_caught_up(self) -> bool:
        """True when all that was committed when it started has been told to the listeners."""
        ...

    def stop(self, now_ms: int) -> None:
        """Close the metadata log."""
        ...


class Node:
    """One node; `effects`, `timer` and `flushes` are those that its cores were made with."""

    def __init__(
        self,
        node_id: int,
        effects: list[Effect],
        timer: Timer,
        flushes: Flushes,
        controller: ControllerPort,
        broker: Broker | None,
    ) -> None:
        self.node_id = node_id
        self.controller = controller
        self.broker = broker
        self.timer = timer
        self.is_ready = False
        self.is_stopped = False
        self._effects = effects
        self._flushes = flushes
        self._controller_listeners: frozenset[str] = frozenset(("internal",))

    def serve_controller_on(self, listeners: Sequence[str]) -> None:
        """Requests on these listeners are the controller's."""
        self._controller_listeners = frozenset(("internal", *listeners))

    # ------------------------------------------------------------------------------------------------------- the seam

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Take an event -> what is to be done, in this order."""
        kind = type(event)
        if kind is RequestReceived:
            assert isinstance(event, RequestReceived)
            self._request(event.connection, event.frame, now_ms)
        elif kind is DeadlineReached:
            self.timer.advance(now_ms)
        elif isinstance(event, ResponseReceived):
            if self.broker is not None:
                self.broker.controller.receive(event, now_ms)
        elif isinstance(event, Flushed):
            self._flushes.flushed(event, now_ms)
        elif isinstance(event, Computed):
            if self.broker is not None:
                self.broker.computations.computed(event, now_ms)
        elif isinstance(event, ConnectionClosed) and self.broker is not None:
            self.broker.connection_closed(event.connection)
        return self._take()

    def next_deadline_ms(self) -> int | None:
        """When DeadlineReached is to be handed in."""
        return self.timer.next_deadline_ms()

    def start(self, now_ms: int) -> list[Effect]:
        """Begin -> what is to be done."""
        if self.broker is not None:
            self.broker.begin(self, now_ms)
        self.controller.start(now_ms)
        return self._take()

    def stop(self, now_ms: int) -> list[Effect]:
        """Begin to leave in order; `is_stopped` tells when that is done."""
        if self.broker is not None:
            self.broker.lifecycle.stop(now_ms)
        else:
            self._stop_controller(now_ms)
        return self._take()

    def _take(self) -> list[Effect]:
        effects = self._effects.copy()
        self._effects.clear()
        return effects

    def _request(self, connection: Connection, frame: memoryview, now_ms: int) -> None:
        if connection.listener not in self._controller_listeners:
            if self.broker is not None:
                self.broker.router.receive(connection, frame, now_ms)
            return

        def respond(answer: bytes | None) -> None:
            if answer is None:
                self._effects.append(CloseConnection(connection, "the controller cannot answer its request"))
            else:
                self._effects.append(SendResponse(connection, answer))

        try:
            if len(frame) >= 2 and int.from_bytes(frame[:2], "big") == ENVELOPE:
                envelope = open_envelope(frame, connection)
                self.controller.receive(
                    envelope.connection, envelope.frame, lambda answer: respond(close_envelope(envelope, answer)), now_ms
                )
                return
            self.controller.receive(connection, frame, respond, now_ms)
        except MessageError as error:
            self._effects.append(CloseConnection(connection, error.message))
        except Exception as error:
            # Whoever can send a request must not be able to end the node with it.
            self._effects.append(CloseConnection(connection, f"a fault of kcli in the controller: {error!r}; please report it"))

    # ------------------------------------------------------------------------------------------------------ long work

    def run_slices(self, work: Iterator[None], done: Callable[[int], None], now_ms: int) -> None:
        """Do work a slice at a time, letting other events in between; then `done(now_ms)`."""

        def step(now_ms: int) -> None:
            try:
                next(work)
            except StopIteration:
                done(now_ms)
                return
            self.timer.schedule(now_ms, step)

        step(now_ms)

    def ready(self, now_ms: int) -> None:
        """The broker is unfenced."""
        self.is_ready = True

    def released(self, now_ms: int) -> None:
        """The broker is done: the controller may stop too."""
        self._stop_controller(now_ms)

    def _stop_controller(self, now_ms: int) -> None:
        self.controller.stop(now_ms)
        self.is_stopped = True
