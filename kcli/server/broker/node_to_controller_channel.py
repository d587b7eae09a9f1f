"""A broker's requests to the active controller: its own, and those of clients that it forwards (KIP-590, KIP-631).

    request                      contains                                        its answer
    ---------------------------  ----------------------------------------------  ---------------------------------------
    the broker's own             the message                                     decoded, for a callback; None if there is
                                 (registration, heartbeats, producer ids ...)    none. The callers retry
    a client's, in an Envelope   the client's frame unchanged, its principal     the controller's frame, sent to the client
                                 and address                                     unchanged

An Envelope is sent again, after a backoff, while no controller is known, the connection fails, or the node that is asked is not
the controller (any more), also if only the answer in it says so; at once if another controller is known by then. After
request.timeout.ms, or if this node's own controller closes it, the client's connection is closed, and the client retries. All
requests go through kcli.network.peers, also those to a controller in this process.

When another node becomes the controller, the connection to the earlier one is closed, which may be paused or cut off; what it
has not answered goes to the new one. (Kafka's broker waits controller.socket.timeout.ms for the answer, 30 s.) As after every
connection that ends, in Kafka too, a request may have been executed by then: its topic is TOPIC_ALREADY_EXISTS.

A manager has one connection, on which the controller answers in order. As in Kafka, registration and heartbeats have a manager
of their own (HEARTBEAT): a heartbeat behind a forwarded request that takes longer than broker.session.timeout.ms would come too
late, and the broker would be fenced. Their timeout is broker.heartbeat.interval.ms, as in Kafka: a heartbeat that is lost
without the end of the connection must not cost a session.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kcli.format.primitives import Buffer
from kcli.network.events import NodeRole, PeerNode
from kcli.network.exponential_backoff import ExponentialBackoff
from kcli.network.peer_request import Answer, PeerFailure
from kcli.network.peers import Peers
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, ENVELOPE
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.envelope import VOTER_CHANGES, encode_principal, is_not_controller, pack_host
from kcli.server.events import CloseConnection, Effect, SendResponse

Callback = Callable[[Message | None, int], None]
# The channel of the second manager; that of the first one has no name.
HEARTBEAT = "heartbeat"


class ChannelTimes(NamedTuple):
    """Times in ms; the defaults are those of Kafka's keys."""

    socket_timeout_ms: int = 30_000  # controller.socket.timeout.ms
    request_timeout_ms: int = 30_000  # request.timeout.ms
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1000


class NodeToControllerChannelManager:
    """The requests to the controller. `controller_id` returns its node id, -1 if it is not known."""

    def __init__(
        self,
        peers: Peers,
        effects: list[Effect],
        controller_id: Callable[[], int],
        listener: str,
        times: ChannelTimes,
        channel: str = "",
    ) -> None:
        self._peers = peers
        self._effects = effects
        self._controller_id = controller_id
        self._listener = listener
        self._times = times
        self._channel = channel
        self._backoff = ExponentialBackoff(times.retry_backoff_ms, times.retry_backoff_max_ms)
        self._known: PeerNode | None = None  # the last controller that was known

    def separate(self, channel: str, timeout_ms: int | None = None) -> NodeToControllerChannelManager:
        """Return a manager with a connection of its own to the controller, and perhaps a shorter timeout of its requests."""
        times = self._times
        if timeout_ms is not None:
            times = times._replace(socket_timeout_ms=min(times.socket_timeout_ms, timeout_ms))
        parts = self._peers, self._effects, self._controller_id, self._listener, times
        return NodeToControllerChannelManager(*parts, channel)

    def follow_leader(self) -> PeerNode:
        """Return the controller; if it has changed, what the earlier one has not answered fails, and is sent again."""
        controller, known = PeerNode(self._controller_id(), NodeRole.CONTROLLER, self._channel), self._known
        if controller.node_id >= 0 and controller != known:
            self._known = controller
            if known is not None:
                self._peers.close(known, self._listener)
        return controller

    def send(self, api_key: int, message: Message, callback: Callback) -> None:
        """Send a request of the broker's own; `callback(response, now_ms)` gets None if there is no answer."""

        def answered(answer: Answer, now_ms: int) -> None:
            callback(None if isinstance(answer, PeerFailure) else answer, now_ms)

        deadline_ms = self._peers.timer.clock_ms + self._times.socket_timeout_ms
        self._peers.send(self.follow_leader(), self._listener, api_key, message, answered, deadline_ms)

    def forward(self, context: RequestContext, frame: Buffer, answered: Callable[[bytes], None] | None = None) -> None:
        """Send a client's request in an Envelope, and the answer to the client, or to `answered` in its place."""
        connection = context.connection
        envelope = API_KEYS[ENVELOPE].request.new(
            request_data=bytes(frame),
            request_principal=encode_principal(connection.principal),
            client_host_address=pack_host(connection.client_host or "127.0.0.1"),
        )

        def to_client(data: bytes) -> None:
            self._effects.append(SendResponse(connection, len(data).to_bytes(4, "big") + data))

        self._forward(context, envelope, answered or to_client, 0, context.now_ms + self._times.request_timeout_ms)

    def _forward(
        self, context: RequestContext, envelope: Message, done: Callable[[bytes], None], failures: int, deadline_ms: int
    ) -> None:
        controller = self.follow_leader()

        def answered(answer: Answer, now_ms: int) -> None:
            refusal = "no controller answered"
            if isinstance(answer, PeerFailure):
                # A request that this node's own controller closes would be closed again.
                may_retry = not self._peers.is_self(controller)
            elif answer.error_code != error_codes.NONE or answer.response_data is None:
                may_retry = answer.error_code == error_codes.NOT_CONTROLLER
                if not may_retry:
                    refusal = f"the controller refused, with {error_codes.NAMES.get(answer.error_code, answer.error_code)},"
            elif context.api.key in VOTER_CHANGES and is_not_controller(envelope.request_data, answer.response_data):
                may_retry = True
            else:
                done(answer.response_data)
                return
            is_moved = self._controller_id() not in (-1, controller.node_id)
            delay_ms = 0 if is_moved else self._backoff.delay_ms(failures, self._peers.rng)
            retry_at_ms = now_ms + delay_ms if may_retry else deadline_ms
            if retry_at_ms < deadline_ms and not context.connection.is_closed:
                self._peers.timer.schedule(
                    retry_at_ms, lambda now_ms: self._forward(context, envelope, done, failures + 1, deadline_ms)
                )
                return
            self._effects.append(CloseConnection(context.connection, f"{refusal} its {context.api.name}"))

        self._peers.send(controller, self._listener, ENVELOPE, envelope, answered, deadline_ms)
