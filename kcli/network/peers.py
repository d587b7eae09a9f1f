"""Requests to other nodes and to the node itself: connections, versions, deadlines (Kafka: NetworkClient).

All cores of a node, or of a client, send through one `Peers`. A connection belongs to a destination and a listener:

    destination                  its address                                    versions of its APIs
    ---------------------------  ---------------------------------------------  ----------------------------------------
    PeerNode, another node       from the metadata (`PeerAddresses`)            ApiVersions, asked on each connection
    PeerNode, the node itself    none: looped back, without a deadline          the highest
    PeerAddress                  stated, as a bootstrap server                  ApiVersions

    event                        state        what happens
    ---------------------------  -----------  --------------------------------------------------------------------------
    send, address not known      any          the answer is UNKNOWN_ADDRESS
    make_ready                   IDLE         ApiVersions is sent, which connects -> NEGOTIATING
    send                         IDLE         ApiVersions is sent, which connects -> NEGOTIATING; the request waits
    send                         NEGOTIATING  the request waits
    send                         BACKING_OFF  the request waits
    send                         READY        it is sent in the highest version that both sides have; UNSUPPORTED_VERSION if
                                              there is none, or if it does not have these values; InvalidRequest if no
                                              version has them. Several may be under way; the peer answers in their order
    ApiVersions answered         NEGOTIATING  waiting requests are sent -> READY; an answer that refuses the version of
                                              ApiVersions itself (KIP-511): it is asked again in a version that it names
    a request answered           READY        its callback gets the response
    PeerClosed, or an answer     NEGOTIATING  requests that were sent or wait are answered DISCONNECTED -> BACKING_OFF
    that does not decode         READY        requests that were sent are answered DISCONNECTED -> BACKING_OFF
    deadline of a request        any          the answer is TIMED_OUT; if it was sent, the connection is closed, since later
                                              answers would wait too -> BACKING_OFF
    the backoff is over          BACKING_OFF  -> IDLE, and on as after a send if requests wait
    max_idle_ms without answers  READY        nothing is under way: the connection is closed -> IDLE
    another address in metadata  any          the old connection is closed as by PeerClosed; a new one is made at once

The backoff is Kafka's: reconnect_backoff_ms, twice as long after each failure in a row up to reconnect_backoff_max_ms, with a
jitter of 20 %. Requests are not sent again here: a vote that comes late is worthless, and a fetch must be made anew.
Times are those of the node's timer, which does not follow steps of the wall clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import NamedTuple, Protocol

from kcli import __version__
from kcli.format.primitives import FormatError
from kcli.log.report_line import Line, WarningLine
from kcli.log.rng import Random
from kcli.network.events import (
    ClosePeer,
    Peer,
    PeerAddress,
    PeerClosed,
    PeerEffects,
    PeerNode,
    ResponseReceived,
    SendRequest,
)
from kcli.network.exponential_backoff import ExponentialBackoff
from kcli.network.outstanding import Outstanding
from kcli.network.peer_request import Answer, AnswerCallback, InvalidRequest, PeerFailure, PeerRequest, Request
from kcli.network.timing_wheel import Timer, TimerTask
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, API_VERSIONS, Api
from kcli.protocol.message_errors import MessageError, NotInVersionError, UnsupportedVersionError

CLIENT_SOFTWARE_NAME = "kcli"


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


class _State(Enum):
    IDLE = 0
    NEGOTIATING = 1
    READY = 2
    BACKING_OFF = 3


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
    ) -> None:
        self.node_id = node_id
        self.client_id = client_id
        self.effects = effects
        self.timer = timer
        self.rng = rng
        self.settings = settings
        self.log = log
        self.outstanding = Outstanding[bytes | bytearray | PeerFailure]()
        # The finalized features of the cluster by the newest answer to ApiVersions (KIP-584), and its epoch.
        self.finalized_features: dict[str, int] = {}
        self.finalized_features_epoch = -1
        self._addresses = addresses
        self._connections: dict[tuple[PeerNode | PeerAddress, str], _PeerConnection] = {}

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
    ) -> None:
        """Send a request; `callback(answer, now_ms)` is called once, later, at the latest at `deadline_ms` (the timer's time).

        `max_version` is for values that later versions do not have, such as a topic's name. A Produce with acks=0 has no
        answer: its callback gets an empty response as soon as the operating system has it.
        Raises MessageError for a request to the node itself that cannot be encoded.
        """
        request = PeerRequest(API_KEYS[api_key], message, callback, has_answer, max_version)
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

    def failure_reason(self, destination: PeerNode | PeerAddress, listener: str) -> str | None:
        """Return why the last connection to a destination ended, None if there was none or one was made since."""
        connection = self._connections.get((destination, listener))
        return None if connection is None else connection.failure_reason

    def _send_to_itself(self, peer: Peer, request: PeerRequest) -> None:
        request.version = request.api.highest_version

        def answered(answer: bytes | bytearray | PeerFailure, now_ms: int) -> None:
            request.callback(answer if isinstance(answer, PeerFailure) else request.decode_answer(answer), now_ms)

        request.request_id = self.outstanding.add(answered)
        self.effects.append(SendRequest(request.request_id, peer, request.encode(self.client_id)))

    def _connection(self, peer: Peer) -> _PeerConnection:
        key = (peer.destination, peer.listener)
        connection = self._connections.get(key)
        if connection is not None and connection.peer != peer:
            connection.abandon(self.timer.clock_ms)
            connection = None
        if connection is None:
            connection = self._connections[key] = _PeerConnection(self, peer)
        return connection

    def response_received(self, event: ResponseReceived, now_ms: int) -> None:
        """Take an answer; one that is not awaited any more is ignored."""
        self.outstanding.answered(event.request_id, PeerFailure.DISCONNECTED if event.frame is None else event.frame, now_ms)

    def peer_closed(self, event: PeerClosed, now_ms: int) -> None:
        """Take the end of a connection."""
        connection = self._connections.get((event.peer.destination, event.peer.listener))
        if connection is not None and connection.peer == event.peer:
            connection.disconnected(event.reason, now_ms)


class _PeerConnection:
    """The connection to one peer; its states are at the head of this module."""

    def __init__(self, peers: Peers, peer: Peer) -> None:
        self.peer = peer
        self._peers = peers
        settings = peers.settings
        self._backoff = ExponentialBackoff(settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms)
        self._state = _State.IDLE
        self._failures = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self._waiting: deque[PeerRequest] = deque()
        self._sent: dict[int, PeerRequest] = {}
        self._last_answer_ms = 0
        self._idle_task: TimerTask | None = None
        self.failure_reason: str | None = None

    @property
    def in_flight_count(self) -> int:
        """How many requests wait or were sent, and have no answer yet."""
        return len(self._waiting) + len(self._sent)

    @property
    def is_backing_off(self) -> bool:
        """Whether the connection ended and is not made again yet."""
        return self._state is _State.BACKING_OFF

    def version_for(self, api: Api) -> int | None:
        """Return the common version of an API, -1 if there is none, None before the peer's versions are known."""
        return self._common_version(api) if self._versions else None

    def send(self, request: PeerRequest, deadline_ms: int) -> None:
        """Send a request now or as soon as the connection is ready."""
        self._register(request, deadline_ms)
        self._waiting.append(request)
        self._advance()

    def make_ready(self) -> bool:
        """Return whether a request would be sent at once; connect if nothing has begun to."""
        if self._state is _State.IDLE:
            self._connect()
        return self._state is _State.READY

    def _connect(self) -> None:
        self._state = _State.NEGOTIATING
        self._ask_versions(API_KEYS[API_VERSIONS].highest_version)

    def _register(self, request: PeerRequest, deadline_ms: int) -> None:
        request.request_id = self._peers.outstanding.add(partial(self._answered, request))
        request.deadline = self._peers.timer.schedule(deadline_ms, partial(self._timed_out, request))

    def _advance(self) -> None:
        """Do what the state allows for the requests that wait."""
        if self._state is _State.IDLE and self._waiting:
            self._connect()
        while self._state is _State.READY and self._waiting:
            request = self._waiting.popleft()
            request.version = self._common_version(request.api, request.max_version)
            failure = PeerFailure.UNSUPPORTED_VERSION if request.version < 0 else self._write(request)
            if failure is not None:
                answered = partial(self._peers.outstanding.answered, request.request_id, failure)
                self._peers.timer.schedule(self._peers.timer.clock_ms, answered)

    def _common_version(self, api: Api, max_version: int | None = None) -> int:
        """Return the highest version that both sides have and that is stable here, -1 if there is none."""
        lowest, highest = self._versions.get(api.key, (0, -1))
        version = min(highest, api.highest_version - api.is_latest_unstable)
        if max_version is not None:
            version = min(version, max_version)
        return version if version >= max(lowest, api.lowest_version) else -1

    def _write(self, request: PeerRequest) -> PeerFailure | None:
        """Send a request in its version; return the failure of one that cannot be encoded."""
        try:
            frame = request.encode(self._peers.client_id)
        except (NotInVersionError, UnsupportedVersionError):
            return PeerFailure.UNSUPPORTED_VERSION
        except MessageError as error:
            return InvalidRequest(str(error))
        self._peers.effects.append(SendRequest(request.request_id, self.peer, frame, request.has_answer))
        self._sent[request.request_id] = request
        return None

    # ---------------------------------------------------------------------------------------------------------- versions

    def _ask_versions(self, version: int) -> None:
        api = API_KEYS[API_VERSIONS]
        message = api.request.new(client_software_name=CLIENT_SOFTWARE_NAME, client_software_version=__version__)
        request = PeerRequest(api, message, partial(self._negotiated, version))
        request.version = version
        timer = self._peers.timer
        self._register(request, timer.clock_ms + self._peers.settings.connection_setup_timeout_ms)
        self._write(request)

    def _negotiated(self, asked_version: int, answer: Answer, now_ms: int) -> None:
        if isinstance(answer, PeerFailure):
            return  # the connection is closed
        versions = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
        if answer.error_code == error_codes.UNSUPPORTED_VERSION:
            self._versions = {API_VERSIONS: versions.get(API_VERSIONS, (0, 0))}
            version = self._common_version(API_KEYS[API_VERSIONS])
            if 0 <= version < asked_version:
                self._ask_versions(version)
                return
        if answer.error_code:
            error = error_codes.NAMES.get(answer.error_code, answer.error_code)
            self._close(f"ApiVersions was answered with {error}", now_ms)
            return
        self._versions = versions
        features = {feature.name: feature.max_version_level for feature in answer.finalized_features}
        self._peers.take_features(answer.finalized_features_epoch, features)
        self._state = _State.READY
        if self._failures:
            self._peers.log(Line(f"connected to {self._name()} again", peer=self._name()))
        self._failures = 0
        self.failure_reason = None
        self._begin_idle_check(now_ms)
        self._advance()

    # ----------------------------------------------------------------------------------------------- answers and endings

    def _answered(self, request: PeerRequest, answer: bytes | bytearray | PeerFailure, now_ms: int) -> None:
        self._sent.pop(request.request_id, None)
        if request.deadline is not None:
            request.deadline.cancel()
        self._last_answer_ms = now_ms
        if isinstance(answer, PeerFailure):
            request.callback(answer, now_ms)
            return
        if not request.has_answer:
            request.callback(request.api.response.new(), now_ms)
            return
        try:
            response = request.decode_answer(answer)
        except FormatError as error:
            request.callback(PeerFailure.DISCONNECTED, now_ms)
            self._close(f"its answer to {request.api.name} cannot be read: {error}", now_ms)
            return
        request.callback(response, now_ms)

    def _timed_out(self, request: PeerRequest, now_ms: int) -> None:
        was_sent = request.request_id in self._sent
        if not was_sent and request in self._waiting:
            self._waiting.remove(request)
        self._peers.outstanding.answered(request.request_id, PeerFailure.TIMED_OUT, now_ms)
        if was_sent:
            what = "answered" if request.has_answer else "taken"
            self._close(f"it has not {what} {request.api.name} in time", now_ms)

    def _close(self, reason: str, now_ms: int) -> None:
        """Close the connection because the peer does not do what it should."""
        self._peers.effects.append(ClosePeer(self.peer))
        self.disconnected(reason, now_ms)

    def disconnected(self, reason: str, now_ms: int) -> None:
        """Take the end of the connection: answer what was sent, and connect again after the backoff."""
        if self._state in (_State.IDLE, _State.BACKING_OFF):
            return
        self.failure_reason = reason
        failed = list(self._sent.values())
        if self._state is _State.NEGOTIATING:
            failed += self._waiting
            self._waiting.clear()
        delay_ms = self._backoff.delay_ms(self._failures, self._peers.rng)
        if not self._failures and failed:
            what = f"the connection to {self._name()} ended: {reason}; connecting again"
            self._peers.log(WarningLine(what, peer=self._name(), error=reason))
        self._failures += bool(failed)
        self._forget()
        self._state = _State.BACKING_OFF
        self._peers.timer.schedule(now_ms + delay_ms, self._backed_off)
        self._fail(failed, now_ms)

    def abandon(self, now_ms: int) -> None:
        """Close the connection for good: the peer has another address now."""
        self._peers.effects.append(ClosePeer(self.peer))
        failed = [*self._sent.values(), *self._waiting]
        self._waiting.clear()
        self._forget()
        self._fail(failed, now_ms)

    def _forget(self) -> None:
        self._sent.clear()
        if self._idle_task is not None:
            self._idle_task.cancel()

    def _fail(self, requests: list[PeerRequest], now_ms: int) -> None:
        for request in requests:
            self._peers.outstanding.answered(request.request_id, PeerFailure.DISCONNECTED, now_ms)

    def _backed_off(self, now_ms: int) -> None:
        self._state = _State.IDLE
        self._advance()

    def _begin_idle_check(self, now_ms: int) -> None:
        max_idle_ms = self._peers.settings.max_idle_ms
        if max_idle_ms > 0:
            self._last_answer_ms = now_ms
            self._idle_task = self._peers.timer.schedule(now_ms + max_idle_ms, self._check_idle)

    def _check_idle(self, now_ms: int) -> None:
        idle_from_ms = self._last_answer_ms + self._peers.settings.max_idle_ms
        if self._sent or now_ms < idle_from_ms:
            at_ms = max(idle_from_ms, now_ms + 1)
            self._idle_task = self._peers.timer.schedule(at_ms, self._check_idle)
            return
        self._peers.effects.append(ClosePeer(self.peer))
        self._forget()
        self._state = _State.IDLE

    def _name(self) -> str:
        """Name the peer for a log line."""
        address, destination = self.peer.address, self.peer.destination
        where = "" if address is None else f"{address.host}:{address.port}"
        if isinstance(destination, PeerNode):
            return f"the {destination.role.value} of node {destination.node_id} at {where}"
        return where
