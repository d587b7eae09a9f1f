"""One connection of kcli.network.peers: its states.

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
    ApiVersions answered         NEGOTIATING  waiting requests are sent -> READY; with SASL -> AUTHENTICATING; an answer that
                                              refuses the version of ApiVersions itself (KIP-511): it is asked again in a
                                              version that it names
    authenticated                AUTHENTICA-  waiting requests are sent -> READY (kcli.network.sasl_login)
                                 TING
    send, make_ready late in     READY        -> AUTHENTICATING, on the same connection: the request waits (KIP-368). Answers
    the session                               to requests before it still come
    a request answered           READY        its callback gets the response
    PeerClosed, or an answer     NEGOTIATING, requests that were sent or wait are answered DISCONNECTED -> BACKING_OFF
    that does not decode         AUTHENTICA-
                                 TING
                                 READY        requests that were sent are answered DISCONNECTED -> BACKING_OFF
    the same, and the next       any          the same requests are answered AuthenticationFailure, and so is `on_refusal`
    attempt would fail as well                -> BACKING_OFF
    deadline of a request        any          the answer is TIMED_OUT; if it was sent, the connection is closed, since later
                                              answers would wait too -> BACKING_OFF
    HURRIED_SETUP_MS are over,   NEGOTIATING, requests that any peer can answer (`is_for_any`) are answered TIMED_OUT, and
    and again after such a time  AUTHENTICA-  `on_unready` is called: a client asks for metadata, since a broker that does not
                                 TING         answer loses its partitions. It is called for each connection that is closed here
    the backoff is over          BACKING_OFF  -> IDLE, and on as after a send if requests wait
    max_idle_ms without answers  READY        nothing is under way: the connection is closed -> IDLE
    another address in metadata  any          the old connection is closed as by PeerClosed; a new one is made at once

Only a client (`on_refusal`) distinguishes ends after which the next attempt would fail as well: TLS or SASL refused it. Some
listeners only close the connection, without a reason: one without TLS in the TLS handshake, and one with SASL after the first
request of a client without SASL. For a client that has had no answer yet, CLOSES_OF_A_REFUSAL such ends in a row are a refusal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from kcli import __version__
from kcli.format.primitives import FormatError
from kcli.log.report_line import Line, WarningLine
from kcli.network.events import ClosePeer, Closing, ObtainToken, Peer, PeerNode, SendRequest, TokenObtained
from kcli.network.exponential_backoff import ExponentialBackoff
from kcli.network.peer_request import Answer, AnswerCallback, AuthenticationFailure, InvalidRequest, PeerFailure, PeerRequest
from kcli.network.security import SaslSettings
from kcli.network.timing_wheel import TimerTask
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE, Api
from kcli.protocol.message import Message
from kcli.protocol.message_errors import MessageError, NotInVersionError, UnsupportedVersionError

if TYPE_CHECKING:
    from kcli.network.peers import Peers
    from kcli.network.sasl_login import SaslLogin

CLIENT_SOFTWARE_NAME = "kcli"
CLOSES_OF_A_REFUSAL = 3
# The time to set up a connection for which there is another address, at first; it doubles with each failure. A server that
# accepts connections and does not answer would otherwise take all the time of a caller, whose timeout may be as long.
# A client does not wait longer for a broker, either, before it asks another one, also about the leaders of partitions.
HURRIED_SETUP_MS = 1000
_SETUP_APIS = (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE)
# The part of a session's lifetime after which a client authenticates again: at random from 85 to 95 %, as Kafka's.
REAUTHENTICATION_FACTOR, REAUTHENTICATION_JITTER = 0.85, 0.10
# Kafka's broker takes another SaslHandshake within a second for an error (KafkaChannel.maybeBeginServerReauthentication).
REAUTHENTICATION_INTERVAL_MS = 1100


class _State(Enum):
    IDLE = 0
    NEGOTIATING = 1
    AUTHENTICATING = 2
    READY = 3
    BACKING_OFF = 4


_WAITS = {
    _State.NEGOTIATING: "the connection is not set up yet (TCP, TLS, ApiVersions)",
    _State.AUTHENTICATING: "the authentication is not complete yet",
}


class PeerConnection:
    """The connection to one peer; its states are at the head of this module."""

    def __init__(self, peers: Peers, peer: Peer) -> None:
        self.peer = peer
        self._peers = peers
        channel = peer.destination.channel if isinstance(peer.destination, PeerNode) else ""
        self._client_id = f"{peers.client_id}-{channel}" if channel else peers.client_id
        settings = peers.settings
        self._backoff = ExponentialBackoff(settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms)
        self._state = _State.IDLE
        self._failures = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self._waiting: deque[PeerRequest] = deque()
        self._sent: dict[int, PeerRequest] = {}
        self._last_answer_ms = 0
        self._idle_task: TimerTask | None = None
        self._unready_task: TimerTask | None = None
        self._login: SaslLogin | None = None
        self._reauthenticate_ms: int | None = None  # when the next request waits for another authentication
        self._reauthentication_began_ms: int | None = None  # on this connection
        self._has_answered = False  # a request of a caller on this connection
        self._has_worked = False  # any connection to this peer
        self._early_closes = 0  # in a row
        self._end_reason: str | None = None  # of the last connection, until one is made

    @property
    def failure_reason(self) -> str | None:
        """Why the last connection ended, or what this one waits for; None if it is ready, or none was needed."""
        return self._end_reason or _WAITS.get(self._state)

    @property
    def in_flight_count(self) -> int:
        """How many requests wait or were sent, and have no answer yet."""
        return len(self._waiting) + len(self._sent)

    @property
    def unready_reason(self) -> str | None:
        """The reason why a connection that is or was needed is missing; None if it is ready, idle or was never made."""
        if self._state in _WAITS:
            return self._end_reason or _WAITS[self._state]
        return self._end_reason if self._failures else None

    @property
    def failure_count(self) -> int:
        """How many connections in a row have failed."""
        return self._failures

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
        self._authenticate_if_due()
        return self._state is _State.READY

    def _connect(self) -> None:
        self._state = _State.NEGOTIATING
        self._has_answered = False
        self._ask_versions(API_KEYS[API_VERSIONS].highest_version)
        if self._peers.on_unready is not None:
            self._unready_task = self._peers.timer.schedule(self._peers.timer.clock_ms + HURRIED_SETUP_MS, self._still_unready)

    def _still_unready(self, now_ms: int) -> None:
        self._unready_task = self._peers.timer.schedule(now_ms + HURRIED_SETUP_MS, self._still_unready)
        failed = [one for one in self._waiting if one.is_for_any]
        self._waiting = deque(one for one in self._waiting if not one.is_for_any)
        self._fail(failed, now_ms, PeerFailure.TIMED_OUT)
        self._report_unready()

    def _report_unready(self) -> None:
        if self._peers.on_unready is not None:
            self._peers.on_unready(self.peer)

    def _register(self, request: PeerRequest, deadline_ms: int) -> None:
        request.request_id = self._peers.outstanding.add(partial(self._answered, request))
        request.deadline = self._peers.timer.schedule(deadline_ms, partial(self._timed_out, request))

    def _advance(self) -> None:
        """Do what the state allows for the requests that wait."""
        if self._state is _State.IDLE and self._waiting:
            self._connect()
        self._authenticate_if_due()
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
            frame = request.encode(self._client_id)
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
        self._set_up(api, message, partial(self._negotiated, version), version)

    def _setup_timeout_ms(self) -> int:
        """Return how long the peer may take: socket.connection.setup.timeout.ms, less where another peer can be asked."""
        most_ms = self._peers.settings.connection_setup_timeout_ms
        is_hurried = self.peer.listener == self._peers.hurried_listener
        return min(most_ms, HURRIED_SETUP_MS << min(self._failures, 10)) if is_hurried else most_ms

    def _set_up(self, api: Api, message: Message, callback: AnswerCallback, version: int) -> None:
        """Send a request that sets up the connection, before those that wait.

        The deadline is not before those of requests under way. A peer answers in order, so that another authentication may have
        to wait for the answer to a request that takes long, such as a JoinGroup.
        """
        request = PeerRequest(api, message, callback)
        request.version = version
        deadline_ms = self._peers.timer.clock_ms + self._setup_timeout_ms()
        before = [one.deadline.at_ms for one in self._sent.values() if one.deadline is not None]
        self._register(request, max([deadline_ms, *before]))
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
        self._reauthentication_began_ms = None
        if self._peers.sasl is None:
            self._set_ready(now_ms)
        else:
            self._authenticate(self._peers.sasl, now_ms)

    def _set_ready(self, now_ms: int) -> None:
        self._state = _State.READY
        if self._failures:
            self._peers.log(Line(f"connected to {self._name()} again", peer=self._name()))
        self._failures = 0
        self._end_reason = None
        if self._unready_task is not None:
            self._unready_task.cancel()
        self._begin_idle_check(now_ms)
        self._advance()

    # ---------------------------------------------------------------------------------------------------- authentication

    def _authenticate_if_due(self) -> None:
        """Authenticate again if the session is about to end."""
        if self._reauthenticate_ms is None:
            return
        sasl, now_ms = self._peers.sasl, self._peers.timer.clock_ms
        if self._state is _State.READY and sasl is not None and now_ms >= self._reauthenticate_ms:
            self._reauthentication_began_ms = now_ms
            self._authenticate(sasl, now_ms)

    def _authenticate(self, sasl: SaslSettings, now_ms: int) -> None:
        from kcli.network.sasl_login import SaslLogin

        self._state = _State.AUTHENTICATING
        if self._idle_task is not None:
            self._idle_task.cancel()
        self._login = SaslLogin(sasl, self._peers.rng, self._ask, self._obtain_token, self._authenticated, self._refused)
        self._login.begin(now_ms)

    def _ask(self, api_key: int, message: Message, callback: AnswerCallback) -> bool:
        """Send a request of the authentication; return False if the peer does not have the API."""
        api = API_KEYS[api_key]
        version = self._common_version(api)
        if version >= 0:
            self._set_up(api, message, callback, version)
        return version >= 0

    def _obtain_token(self, obtained: Callable[[TokenObtained, int], None]) -> None:
        """Have a token obtained in the time that the setup of a connection may take."""
        timer = self._peers.timer

        def answered(event: TokenObtained, now_ms: int) -> None:
            deadline.cancel()
            obtained(event, now_ms)

        def expired(now_ms: int) -> None:
            timeout_ms = self._peers.settings.connection_setup_timeout_ms
            self._peers.token_obtained(TokenObtained(request_id, None, f"it took more than {timeout_ms} ms"), now_ms)

        request_id = self._peers.tokens.add(answered)
        deadline = timer.schedule(timer.clock_ms + self._peers.settings.connection_setup_timeout_ms, expired)
        self._peers.obtain_token(ObtainToken(request_id, self.peer))

    def _authenticated(self, lifetime_ms: int, now_ms: int) -> None:
        self._login = None
        self._reauthenticate_ms = None
        if lifetime_ms > 0:
            factor = REAUTHENTICATION_FACTOR + REAUTHENTICATION_JITTER * self._peers.rng.random()
            # Also in a session that ends at once, what waits is sent before another authentication.
            at_ms = now_ms + max(int(lifetime_ms * factor), 1)
            began_ms = self._reauthentication_began_ms
            self._reauthenticate_ms = at_ms if began_ms is None else max(at_ms, began_ms + REAUTHENTICATION_INTERVAL_MS)
        self._set_ready(now_ms)

    def _refused(self, reason: str, now_ms: int) -> None:
        self._close(reason, now_ms, Closing.REFUSED)

    def _refusal(self, reason: str, closing: Closing) -> AuthenticationFailure | None:
        """Return the failure if the next attempt would end in the same way."""
        peers = self._peers
        if peers.on_refusal is None or closing is Closing.ENDED:
            return None
        if closing is Closing.REFUSED:
            return self._failure(reason)
        if closing is Closing.EXPECTS_TLS:
            protocol = "SSL" if peers.sasl is None else "SASL_SSL"
            return self._failure(f"{reason}: set security.protocol={protocol}, or use another port")
        if closing is Closing.CLOSED_IN_HANDSHAKE:
            advice = ", as a listener without TLS does: check security.protocol and the port"
        elif self._state is _State.AUTHENTICATING:
            advice = " while it authenticated the client: check sasl.mechanism and the log of the broker"
        elif self._state is _State.READY and peers.sasl is None and self._sent and not self._has_answered:
            advice = " after the first request, as a listener with SASL does: check security.protocol and sasl.mechanism"
        else:
            return None
        self._early_closes += 1
        if peers.has_worked or self._early_closes < CLOSES_OF_A_REFUSAL:
            return None
        return self._failure(f"{reason}{advice}")

    def _failure(self, reason: str) -> AuthenticationFailure:
        return AuthenticationFailure(f"{self._name()}: {reason}", self.peer, not self._has_worked)

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
        if request.api.key not in _SETUP_APIS:
            self._has_answered = self._has_worked = self._peers.has_worked = True
            self._early_closes = 0
        request.callback(response, now_ms)

    def _timed_out(self, request: PeerRequest, now_ms: int) -> None:
        was_sent = request.request_id in self._sent
        if not was_sent and request in self._waiting:
            self._waiting.remove(request)
        self._peers.outstanding.answered(request.request_id, PeerFailure.TIMED_OUT, now_ms)
        if was_sent:
            what = "answered" if request.has_answer else "taken"
            self._close(f"it has not {what} {request.api.name} in time", now_ms)

    def _close(self, reason: str, now_ms: int, closing: Closing = Closing.ENDED) -> None:
        """Close the connection because the peer does not do what it should."""
        self._peers.effects.append(ClosePeer(self.peer))
        self.disconnected(reason, now_ms, closing)
        self._report_unready()

    def disconnected(self, reason: str, now_ms: int, closing: Closing = Closing.ENDED) -> None:
        """Take the end of the connection: answer what was sent, and connect again after the backoff."""
        if self._state in (_State.IDLE, _State.BACKING_OFF):
            return
        self._end_reason = reason
        refusal = self._refusal(reason, closing)
        failed = list(self._sent.values())
        if self._state in (_State.NEGOTIATING, _State.AUTHENTICATING):
            failed += self._waiting
            self._waiting.clear()
        # A login may fail with no request under way, for a caller of `make_ready`.
        is_failure = bool(failed) or self._state is _State.AUTHENTICATING
        delay_ms = self._backoff.delay_ms(self._failures, self._peers.rng)
        if not self._failures and is_failure:
            what = f"the connection to {self._name()} ended: {reason}; connecting again"
            self._peers.log(WarningLine(what, peer=self._name(), error=reason))
        self._failures += is_failure
        self._forget()
        self._state = _State.BACKING_OFF
        self._peers.timer.schedule(now_ms + delay_ms, self._backed_off)
        if refusal is not None and self._peers.on_refusal is not None:
            self._peers.on_refusal(refusal, now_ms)
        # What was sent before another authentication may have been executed.
        lost = [one for one in failed if one.version >= 0 and self._reauthentication_began_ms is not None]
        self._fail(lost, now_ms)
        self._fail(failed, now_ms, refusal or PeerFailure.DISCONNECTED)

    def abandon(self, now_ms: int) -> None:
        """Close the connection for good: the peer has another address now, or is not needed any more."""
        self._peers.effects.append(ClosePeer(self.peer))
        failed = [*self._sent.values(), *self._waiting]
        self._waiting.clear()
        self._forget()
        self._fail(failed, now_ms)

    def _forget(self) -> None:
        self._sent.clear()
        self._reauthenticate_ms = None
        if self._login is not None:
            self._login.abandon()
            self._login = None
        for task in (self._idle_task, self._unready_task):
            if task is not None:
                task.cancel()

    def _fail(self, requests: list[PeerRequest], now_ms: int, failure: PeerFailure = PeerFailure.DISCONNECTED) -> None:
        for request in requests:
            self._peers.outstanding.answered(request.request_id, failure, now_ms)

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
        where = "" if address is None else str(address)
        if isinstance(destination, PeerNode):
            channel = f" ({destination.channel})" if destination.channel else ""
            return f"the {destination.role.value} of node {destination.node_id} at {where}{channel}"
        return where
