"""Requests to other nodes and to the node itself: connections, versions, deadlines (Kafka: NetworkClient).

All cores of a node, or of a client, send through one `Peers`. A connection belongs to a destination and a listener. Its
requests are answered in their order; those that must not wait for others are sent to a PeerNode with another channel.

    destination                  its address                                    versions of its APIs
    ---------------------------  ---------------------------------------------  ----------------------------------------
    PeerNode, another node       from the metadata (`PeerAddresses`)            ApiVersions, asked on each connection
    PeerNode, the node itself    none: looped back, without a deadline          the highest
    PeerAddress                  stated, as a bootstrap server                  ApiVersions

Each connection has the states of kcli.network.peer_connection.

The backoff is Kafka's: reconnect_backoff_ms, twice as long after each failure in a row up to reconnect_backoff_max_ms, with a
jitter of 20 %. Requests are not sent again here: a vote that comes late is worthless, and a fetch must be made anew.
Times are those of the node's timer, which does not follow steps of the wall clock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from kcli.log.rng import Random
from kcli.network.events import (
    ObtainToken,
    Peer,
    PeerAddress,
    PeerClosed,
    PeerEffects,
    PeerNode,
    ResponseReceived,
    SendRequest,
    TokenObtained,
)
from kcli.network.outstanding import Outstanding
from kcli.network.peer_connection import PeerConnection
from kcli.network.peer_request import AnswerCallback, AuthenticationFailure, PeerFailure, PeerRequest, Request
from kcli.network.security import SaslSettings
from kcli.network.timing_wheel import Timer
from kcli.protocol.apis import API_KEYS


class PeerAddresses(Protocol):
    """The part of the metadata that knows where nodes listen."""

    def address_of(self, node: PeerNode, listener: str) -> PeerAddress | None:
        """Return the address of a node's listener, None if it is not known (any more)."""
        ...


class PeerSettings(NamedTuple):
    """Times in ms; `max_idle_ms` of 0 or less keeps idle connections."""

    reconnect_backoff_ms: int = 50
    reconnect_backoff_max_ms: int = 1000
    connection_setup_timeout_ms: int = 10_000  # until ApiVersions is answered
    max_idle_ms: int = 600_000


class Peers:
    """The connections of a node, or of a client without a `node_id`, to nodes; `client_id` is in the header of each request."""

    def __init__(
        self,
        node_id: int | None,
        client_id: str,
        effects: PeerEffects,
        timer: Timer,
        rng: Random,
        addresses: PeerAddresses,
        settings: PeerSettings,
        log: Callable[[str], None],
        sasl: SaslSettings | None = None,
        obtain_token: Callable[[ObtainToken], object] = lambda effect: None,
        on_refusal: Callable[[AuthenticationFailure, int], None] | None = None,
    ) -> None:
        self.node_id = node_id
        self.client_id = client_id
        self.effects = effects
        self.timer = timer
        self.rng = rng
        self.settings = settings
        self.log = log
        self.sasl = sasl
        self.obtain_token = obtain_token
        self.on_refusal = on_refusal
        self.has_worked = False  # a request of a caller has had an answer
        # Called when a connection is not set up within HURRIED_SETUP_MS, again after each such time, and when one is closed.
        # The end that PeerClosed reports is not among them.
        self.on_unready: Callable[[Peer], None] | None = None
        # The listener whose connections are aborted early if they are not set up, since there are other addresses.
        self.hurried_listener: str | None = None
        self.outstanding = Outstanding[bytes | bytearray | PeerFailure]()
        self.tokens = Outstanding[TokenObtained]()
        # The finalized features of the cluster by the newest answer to ApiVersions (KIP-584), and its epoch.
        self.finalized_features: dict[str, int] = {}
        self.finalized_features_epoch = -1
        self._addresses = addresses
        self._connections: dict[tuple[PeerNode | PeerAddress, str], PeerConnection] = {}

    def send(
        self,
        destination: PeerNode | PeerAddress,
        listener: str,
        api_key: int,
        message: Request,
        callback: AnswerCallback,
        deadline_ms: int,
        has_answer: bool = True,
        max_version: int | None = None,
        is_for_any: bool = False,
    ) -> None:
        """Send a request; `callback(answer, now_ms)` is called once, later, at the latest at `deadline_ms` (the timer's time).

        `max_version` is for values that later versions do not have, such as a topic's name. A Produce with acks=0 has no
        answer: its callback gets an empty response as soon as the operating system has it. One that another peer could answer
        as well (`is_for_any`) is answered TIMED_OUT if the connection is not set up within HURRIED_SETUP_MS.
        Raises MessageError for a request to the node itself that cannot be encoded.
        """
        request = PeerRequest(API_KEYS[api_key], message, callback, has_answer, max_version, is_for_any)
        if self.is_self(destination):
            self._send_to_itself(Peer(destination, listener, None), request)
            return
        if isinstance(destination, PeerNode):
            address = self._addresses.address_of(destination, listener)
        else:
            address = destination
        if address is None:
            self.timer.schedule(self.timer.clock_ms, partial(callback, PeerFailure.UNKNOWN_ADDRESS))
            return
        self._connection(Peer(destination, listener, address)).send(request, deadline_ms)

    def make_ready(self, destination: PeerNode | PeerAddress, listener: str) -> bool:
        """Return whether a request to another node would be sent at once; if it would not, begin to connect.

        There is no event for the end of that: the caller asks again after each event.
        """
        connection = self._connections.get((destination, listener))
        if isinstance(destination, PeerNode):
            address = self._addresses.address_of(destination, listener)
        else:
            address = destination
        if address is None:
            return False
        if connection is None or connection.peer.address != address:
            connection = self._connection(Peer(destination, listener, address))
        return connection.make_ready()

    def take_features(self, epoch: int, features: dict[str, int]) -> None:
        """Take the finalized features of an answer to ApiVersions; an older epoch is ignored."""
        if epoch > self.finalized_features_epoch:
            self.finalized_features_epoch, self.finalized_features = epoch, features

    def is_self(self, destination: PeerNode | PeerAddress) -> bool:
        """Return whether requests to a destination are looped back."""
        return isinstance(destination, PeerNode) and destination.node_id == self.node_id

    def version_for(self, destination: PeerNode | PeerAddress, listener: str, api_key: int) -> int | None:
        """Return the version of an API for a destination: -1 if it has none of ours, None before its versions are known."""
        connection = self._connections.get((destination, listener))
        return None if connection is None else connection.version_for(API_KEYS[api_key])

    def in_flight_count(self, destination: PeerNode | PeerAddress, listener: str) -> int:
        """Return how many requests to a destination have no answer yet."""
        connection = self._connections.get((destination, listener))
        return 0 if connection is None else connection.in_flight_count

    def is_backing_off(self, destination: PeerNode | PeerAddress, listener: str) -> bool:
        """Return whether the last connection to a destination failed, and the next one waits for the backoff."""
        connection = self._connections.get((destination, listener))
        return connection is not None and connection.is_backing_off

    def failure_count(self, destination: PeerNode | PeerAddress, listener: str) -> int:
        """Return how many connections to a destination have failed since one was ready."""
        connection = self._connections.get((destination, listener))
        return 0 if connection is None else connection.failure_count

    def unready_reason(self, destination: PeerNode | PeerAddress, listener: str) -> str | None:
        """Return the reason why a connection that is needed to a destination is missing; None if there is one."""
        connection = self._connections.get((destination, listener))
        return None if connection is None else connection.unready_reason

    def failure_reason(self, destination: PeerNode | PeerAddress, listener: str) -> str | None:
        """Return why the last connection to a destination ended, or what this one waits for; None if it is ready."""
        connection = self._connections.get((destination, listener))
        return None if connection is None else connection.failure_reason

    def _send_to_itself(self, peer: Peer, request: PeerRequest) -> None:
        request.version = request.api.highest_version

        def answered(answer: bytes | bytearray | PeerFailure, now_ms: int) -> None:
            request.callback(answer if isinstance(answer, PeerFailure) else request.decode_answer(answer), now_ms)

        request.request_id = self.outstanding.add(answered)
        self.effects.append(SendRequest(request.request_id, peer, request.encode(self.client_id)))

    def _connection(self, peer: Peer) -> PeerConnection:
        key = (peer.destination, peer.listener)
        connection = self._connections.get(key)
        if connection is not None and connection.peer != peer:
            # What fails with it may send another request, which makes the new connection.
            del self._connections[key]
            connection.abandon(self.timer.clock_ms)
            connection = self._connections.get(key)
        if connection is None:
            connection = self._connections[key] = PeerConnection(self, peer)
        return connection

    def close(self, destination: PeerNode | PeerAddress, listener: str) -> None:
        """Close the connection to a destination, if there is one; requests without an answer are answered DISCONNECTED."""
        connection = self._connections.pop((destination, listener), None)
        if connection is not None:
            connection.abandon(self.timer.clock_ms)

    def response_received(self, event: ResponseReceived, now_ms: int) -> None:
        """Take an answer; one that is not awaited any more is ignored."""
        self.outstanding.answered(event.request_id, PeerFailure.DISCONNECTED if event.frame is None else event.frame, now_ms)

    def token_obtained(self, event: TokenObtained, now_ms: int) -> None:
        """Take a token for a connection."""
        self.tokens.answered(event.request_id, event, now_ms)

    def peer_closed(self, event: PeerClosed, now_ms: int) -> None:
        """Take the end of a connection."""
        connection = self._connections.get((event.peer.destination, event.peer.listener))
        if connection is not None and connection.peer == event.peer:
            connection.disconnected(event.reason, now_ms, event.closing)
