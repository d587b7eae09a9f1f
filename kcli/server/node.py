"""One node: a broker, a controller, or both, as one machine that takes events and returns effects.

    core              takes                                                    gives
    ----------------  -------------------------------------------------------  ------------------------------------------
    KafkaRaftManager  answers of the quorum's other nodes                      the metadata log, once it is committed
                                                                               (`register`), to controller and broker
    ControllerServer  requests on the controller's listeners                   records for the metadata log, if it leads
    Broker            requests on the other listeners; the controller's        the answers to clients
                      answers
    Peers             answers of other nodes and of this one                   requests to them, for all cores
    Flushes           the ends of flushes                                      flushes, for all cores
    Computations      results                                                  computations, for the broker

Broker and controller exchange only requests and the metadata log, in one process as in two: the controller that a broker asks
is the leader of the quorum, in whichever process it is. All parts share one timer and one list of effects; the shell executes
the effects in the order of the list.

    start      the raft client opens the metadata log -> `is_controller_ready`: the shell opens the controller's listeners,
               without which the voters of a quorum could not elect a leader; a node that is only a controller is ready
               -> the broker has applied what the leader had committed -> its logs are loaded, a slice in each step -> it
               registers and is unfenced -> `is_ready`: the shell opens the other listeners
    stop       the controller approves the shutdown of the broker, which serves until then -> its listeners and logs are closed,
               a slice in each step -> another voter leads, if there are several, or 5 s have passed -> the metadata log is
               closed -> `is_stopped`. A controller that leads serves all brokers until another one does: one that could not
               connect would be fenced
    failure    an exception leaves `handle` or `start`: the node has ended, and its shell must not call it any more

    word                                   true when                                                    read by
    -------------------------------------  -----------------------------------------------------------  -----------------
    KafkaRaftClient.is_caught_up()         what the leader had committed at the start is delivered      BrokerStartup
    BrokerLifecycleManager                 the controller has unfenced the broker once; it stays true   Node, the waits of
      .has_been_unfenced                                                                                the start
    Node.is_controller_ready               the metadata log is open                                     Node
    Node.is_ready                          the node serves: has_been_unfenced; of a node that is only   the shell's ready
                                           a controller is_controller_ready                             line
    Node.is_open(listener)                 is_controller_ready for a controller's listener, is_ready    the shell: accepts
                                           for any other one, until the broker takes no more requests   connections
    Node.is_stopped                        the logs and the metadata log are closed                     the shell: ends
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from kcli.network.events import PeerClosed, ResponseReceived
from kcli.protocol.apis import ENVELOPE
from kcli.protocol.message_errors import MessageError
from kcli.server.authorizer import Authorizer
from kcli.server.broker.broker import Broker
from kcli.server.envelope import receive_envelope
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
    Respond,
    SendResponse,
)
from kcli.server.log_lines import fault_line
from kcli.server.node_parts import NodeParts
from kcli.server.raft.raft_manager import KafkaRaftManager
from kcli.state.metadata_image import MetadataImage


class ControllerPort(Protocol):
    """A node's controller (kcli.server.controller), as the node calls it."""

    @property
    def authorizer(self) -> Authorizer:
        """Decides who may forward requests."""
        ...

    def begin(self) -> None:
        """Begin to follow the metadata log."""
        ...

    def committed_image(self) -> MetadataImage:
        """Return a frozen copy of the committed metadata."""
        ...

    def receive(self, connection: Connection, frame: memoryview, respond: Respond, now_ms: int) -> None:
        """Take a request (header and message) of a client or node; `respond` is called once, now or later."""
        ...


class Node:
    """One node; its cores share `parts`. Requests on `controller_listeners` are for the controller."""

    def __init__(
        self,
        node_id: int,
        parts: NodeParts,
        quorum: KafkaRaftManager,
        controller: ControllerPort | None,
        controller_listeners: Iterable[str],
        broker: Broker | None,
    ) -> None:
        self.node_id = node_id
        self.quorum = quorum
        self.controller = controller
        self.broker = broker
        self.timer = parts.timer
        self.peers = parts.peers
        self.is_controller_ready = False
        self.is_stopped = False
        self._effects = parts.effects
        self._flushes = parts.flushes
        self._computations = parts.computations
        self._controller_listeners = frozenset(controller_listeners)

    @property
    def is_ready(self) -> bool:
        """True once the broker was unfenced; of a node that is only a controller, once its metadata log is open."""
        return self.is_controller_ready if self.broker is None else self.broker.lifecycle.has_been_unfenced

    def is_open(self, listener: str) -> bool:
        """Return whether the shell accepts connections to a listener now."""
        if listener in self._controller_listeners:
            return self.is_controller_ready
        return self.is_ready and (self.broker is None or self.broker.router.is_open)

    # ------------------------------------------------------------------------------------------------ events and effects

    def handle(self, event: Event, now_ms: int) -> list[Effect]:
        """Take an event and return the effects, in their order. Raises what ends the node."""
        self.timer.observe(now_ms)
        if isinstance(event, RequestReceived):
            self._request(event.connection, event.frame, now_ms)
        elif isinstance(event, DeadlineReached):
            self.timer.advance(now_ms)
        elif isinstance(event, ResponseReceived):
            self.peers.response_received(event, now_ms)
        elif isinstance(event, Flushed):
            self._flushes.flushed(event, now_ms)
        elif isinstance(event, Computed):
            self._computations.computed(event, now_ms)
        elif isinstance(event, PeerClosed):
            self.peers.peer_closed(event, now_ms)
        elif isinstance(event, ConnectionClosed) and self.broker is not None:
            self.broker.connection_closed(event.connection)
        return self._take()

    def next_deadline_ms(self) -> int | None:
        """Return when DeadlineReached is due, None for never."""
        return self.timer.next_deadline_ms()

    def start(self, now_ms: int) -> list[Effect]:
        """Start, and return the effects. Raises what ends the node."""
        if self.broker is not None:
            self.broker.begin(now_ms)
        if self.controller is not None:
            self.controller.begin()
        self.quorum.start(self._committed_image, now_ms)
        self.is_controller_ready = True
        return self._take()

    def _committed_image(self) -> MetadataImage:
        if self.controller is not None:
            return self.controller.committed_image()
        assert self.broker is not None, "a node has one role at least"
        return self.broker.image.frozen()

    def stop(self, now_ms: int, then: Callable[[int], None] | None = None) -> list[Effect]:
        """Begin to stop in order; `is_stopped` is set at the end.

        With `then`, it is called when the broker has stopped, and the node is in the quorum until `leave_quorum`.
        """
        then = then or self._leave_quorum
        if self.broker is not None:
            self.broker.stop(now_ms, then)
        else:
            then(now_ms)
        return self._take()

    def leave_quorum(self, now_ms: int) -> list[Effect]:
        """Stop what is left when the broker has stopped, and all controllers stop; `is_stopped` is set at the end."""
        self._leave_quorum(now_ms, hands_over=False)
        return self._take()

    def _leave_quorum(self, now_ms: int, *, hands_over: bool = True) -> None:
        def stopped(now_ms: int) -> None:
            self.is_stopped = True

        self.quorum.stop(now_ms, stopped, hands_over=hands_over)

    def _take(self) -> list[Effect]:
        effects = self._effects.copy()
        self._effects.clear()
        return effects

    def _request(self, connection: Connection, frame: memoryview, now_ms: int) -> None:
        controller = self.controller
        if controller is None or connection.listener not in self._controller_listeners:
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
                receive_envelope(frame, connection, controller.authorizer, controller.receive, respond, now_ms)
            else:
                controller.receive(connection, frame, respond, now_ms)
        except MessageError as error:
            self._effects.append(CloseConnection(connection, error.message))
        except Exception as error:
            # A client must not be able to end the node with a request.
            self._effects.append(CloseConnection(connection, fault_line("the controller", error)))
