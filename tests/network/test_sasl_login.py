"""Protects the authentication of connections: its requests, what follows from refusals, and sessions that end (KIP-368)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kcli.network.events import (
    ClosePeer,
    Closing,
    ObtainToken,
    Peer,
    PeerAddress,
    PeerClosed,
    ResponseReceived,
    SendRequest,
    TokenObtained,
)
from kcli.network.peer_connection import CLOSES_OF_A_REFUSAL
from kcli.network.peer_request import Answer, AuthenticationFailure, PeerFailure
from kcli.network.peers import Peers, PeerSettings
from kcli.network.security import SaslSettings
from kcli.network.timing_wheel import Timer
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, API_VERSIONS, FETCH, METADATA, SASL_AUTHENTICATE, SASL_HANDSHAKE
from kcli.protocol.framing import encode_response, read_request_header

ADDRESS = PeerAddress("broker", 9093)
PEER = Peer(ADDRESS, "data", ADDRESS)
START_MS = 1_000_000
PLAIN = SaslSettings("PLAIN", "alice", "secret")
TOKEN = SaslSettings("OAUTHBEARER", source="the token file")
APIS = {METADATA: (0, 13), FETCH: (4, 16), SASL_HANDSHAKE: (0, 1), SASL_AUTHENTICATE: (0, 2)}


class ClientUnderTest:
    """A Peers of a client; its effects and what it says of refusals."""

    def __init__(self, sasl: SaslSettings | None = PLAIN) -> None:
        self.timer = Timer(START_MS)
        self.now_ms = START_MS
        self.effects: list[Any] = []
        self.lines: list[str] = []
        self.answers: list[Answer] = []
        self.refusals: list[AuthenticationFailure] = []
        self.peers = Peers(
            *(None, "client", self.effects, self.timer, random.Random(1), NoAddresses(), PeerSettings(), self.lines.append),
            sasl=sasl,
            obtain_token=self.effects.append,
            on_refusal=lambda failure, now_ms: self.refusals.append(failure),
        )

    def ask(self, key: int = METADATA, timeout_ms: int = 5000) -> None:
        request, deadline_ms = API_KEYS[key].request.new(), self.now_ms + timeout_ms
        self.peers.send(ADDRESS, "data", key, request, lambda answer, now_ms: self.answers.append(answer), deadline_ms)

    def sent(self) -> list[tuple[int, Any, SendRequest, int]]:
        """Take the requests that were sent: (key, message, effect, version)."""
        found = []
        for effect in self.effects:
            if isinstance(effect, SendRequest):
                key, version, _, _, position = read_request_header(effect.frame[4:])
                message, _ = API_KEYS[key].request.decode(effect.frame[4:], version, position)
                found.append((key, message, effect, version))
        self.effects[:] = [effect for effect in self.effects if not isinstance(effect, SendRequest)]
        return found

    def answer(self, expected: int, **fields: Any) -> Any:
        """Answer the one request that was sent -> that request."""
        ((key, message, effect, version),) = self.sent()
        assert key == expected
        self.reply(effect, key, version, **fields)
        return message

    def reply(self, effect: SendRequest, key: int, version: int, **fields: Any) -> None:
        response = API_KEYS[key].response.new(**fields)
        frame = bytes(encode_response(effect.request_id, API_KEYS[key], version, response))[4:]
        self.peers.response_received(ResponseReceived(effect.request_id, frame), self.now_ms)

    def answer_versions(self, apis: dict[int, tuple[int, int]] | None = None) -> None:
        of_api = API_KEYS[API_VERSIONS].response.classes["ApiVersion"]
        keys = [of_api(api_key=key, min_version=low, max_version=high) for key, (low, high) in (apis or APIS).items()]
        self.answer(API_VERSIONS, api_keys=keys)

    def authenticate(self, lifetime_ms: int = 0) -> None:
        self.answer(SASL_HANDSHAKE, mechanisms=["PLAIN"])
        self.answer(SASL_AUTHENTICATE, session_lifetime_ms=lifetime_ms)

    def advance(self, ms: int) -> None:
        self.now_ms += ms
        self.timer.advance(self.now_ms)

    def closed(self) -> int:
        """Take the number of times that the core has closed the connection."""
        count = sum(isinstance(effect, ClosePeer) for effect in self.effects)
        self.effects.clear()
        return count

    def end(self, closing: Closing, reason: str = "it closed the connection") -> None:
        self.effects.clear()
        self.peers.peer_closed(PeerClosed(PEER, reason, closing), self.now_ms)


class NoAddresses:
    def address_of(self, node: object, listener: str) -> None:
        return None


def refusal(client: ClientUnderTest) -> str:
    """The only refusal, which the request has as its answer, too."""
    (failure,) = client.refusals
    client.advance(1)
    assert client.answers == [failure] and failure.is_lasting and "secret" not in f"{failure!r} {client.lines}"
    return failure.reason


def test_a_connection_authenticates_before_its_first_request() -> None:
    client = ClientUnderTest()
    client.ask()
    client.ask()
    client.answer_versions()
    assert client.answer(SASL_HANDSHAKE, mechanisms=["PLAIN"]).mechanism == "PLAIN"
    assert client.answer(SASL_AUTHENTICATE).auth_bytes == b"\0alice\0secret"
    assert [key for key, *_ in client.sent()] == [METADATA, METADATA]


def test_what_a_connection_waits_for_is_a_reason_as_well() -> None:
    """For the message of a call that ends at its timeout, since the server says nothing."""
    client = ClientUnderTest()
    client.ask()
    reasons = [client.peers.failure_reason(ADDRESS, "data")]
    client.answer_versions()
    reasons.append(client.peers.failure_reason(ADDRESS, "data"))
    client.authenticate()
    reasons.append(client.peers.failure_reason(ADDRESS, "data"))
    assert reasons == [
        "the connection is not set up yet (TCP, TLS, ApiVersions)",
        "the authentication is not complete yet",
        None,
    ]
    client.end(Closing.ENDED, "it was reset")
    client.advance(2000)
    client.ask()
    assert client.peers.failure_reason(ADDRESS, "data") == "it was reset", "that of the last connection says more"


def test_make_ready_authenticates_too() -> None:
    client = ClientUnderTest()
    assert not client.peers.make_ready(ADDRESS, "data")
    client.answer_versions()
    assert not client.peers.make_ready(ADDRESS, "data")
    client.authenticate()
    assert client.peers.make_ready(ADDRESS, "data") and client.sent() == []


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"error_code": error_codes.UNSUPPORTED_SASL_MECHANISM, "mechanisms": ["SCRAM-SHA-256", "GSSAPI"]},
            "the listener does not offer the SASL mechanism PLAIN; it offers SCRAM-SHA-256, GSSAPI: set sasl.mechanism",
        ),
        ({"error_code": error_codes.ILLEGAL_SASL_STATE}, "the listener does not use SASL: set security.protocol=PLAINTEXT"),
        ({"error_code": error_codes.REQUEST_TIMED_OUT}, "it answered SaslHandshake with REQUEST_TIMED_OUT"),
        ({"error_code": 9999}, "it answered SaslHandshake with 9999"),
    ],
)
def test_a_handshake_that_is_refused(fields: dict[str, Any], sentence: str) -> None:
    client = ClientUnderTest()
    client.ask()
    client.answer_versions()
    client.answer(SASL_HANDSHAKE, **fields)
    assert refusal(client).startswith(f"broker:9093: {sentence}") and client.closed() == 1


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"error_code": error_codes.SASL_AUTHENTICATION_FAILED, "error_message": "Wrong\npassword"},
            "it refused the authentication of the user 'alice' with PLAIN: Wrong password; check sasl.username and",
        ),
        ({"error_code": error_codes.SASL_AUTHENTICATION_FAILED, "error_message": None}, ": SASL_AUTHENTICATION_FAILED; check"),
    ],
)
def test_an_authentication_that_is_refused(fields: dict[str, Any], sentence: str) -> None:
    client = ClientUnderTest()
    client.ask()
    client.answer_versions()
    client.answer(SASL_HANDSHAKE, mechanisms=["PLAIN"])
    client.answer(SASL_AUTHENTICATE, **fields)
    assert sentence in refusal(client) and client.closed() == 1
    client.advance(1000)  # it connects again for the next request only
    assert client.sent() == []
    client.ask()
    client.answer_versions()
    client.authenticate()
    assert [key for key, *_ in client.sent()] == [METADATA]


def test_a_login_that_fails_without_a_request_is_a_failure() -> None:
    """It is logged once, and the delay before the next attempt grows."""
    client = ClientUnderTest()
    delays_ms = []
    for _ in range(4):
        client.peers.make_ready(ADDRESS, "data")
        client.answer_versions()
        client.answer(SASL_HANDSHAKE, mechanisms=["PLAIN"])
        client.answer(SASL_AUTHENTICATE, error_code=error_codes.SASL_AUTHENTICATION_FAILED)
        begin_ms = client.now_ms
        while client.peers.is_backing_off(ADDRESS, "data"):
            client.advance(1)
        delays_ms.append(client.now_ms - begin_ms)
    assert delays_ms[3] > 3 * delays_ms[0] and len(client.refusals) == 4
    (line,) = client.lines
    assert "it refused the authentication of the user 'alice'" in line


@pytest.mark.parametrize(
    ("apis", "sentence"),
    [
        ({METADATA: (0, 13)}, "the listener does not use SASL"),
        ({METADATA: (0, 13), SASL_HANDSHAKE: (0, 1)}, "brokers before Kafka 1.0"),
    ],
)
def test_a_broker_without_the_requests(apis: dict[int, tuple[int, int]], sentence: str) -> None:
    client = ClientUnderTest()
    client.ask()
    client.answer_versions(apis)
    if SASL_HANDSHAKE in apis:
        client.answer(SASL_HANDSHAKE, mechanisms=["PLAIN"])
    assert sentence in refusal(client)


def test_scram_ends_without_the_signature_of_the_server() -> None:
    """An answer without an error is not enough."""
    client = ClientUnderTest(SaslSettings("SCRAM-SHA-256", "alice", "secret"))
    client.ask()
    client.answer_versions()
    client.answer(SASL_HANDSHAKE, mechanisms=["SCRAM-SHA-256"])
    client.answer(SASL_AUTHENTICATE, auth_bytes=b"")
    assert "0 bytes that are not a message of SCRAM-SHA-256" in refusal(client) and client.closed() == 1


def test_an_answer_that_cannot_be_read_is_the_end_of_a_connection() -> None:
    """Of SaslHandshake and SaslAuthenticate as of others: another attempt follows, with the next request."""
    client = ClientUnderTest()
    client.ask()
    client.answer_versions()
    ((_, _, effect, _),) = client.sent()
    client.peers.response_received(ResponseReceived(effect.request_id, b"\0\0"), client.now_ms)
    assert client.closed() == 1 and client.refusals == [] and client.answers == [PeerFailure.DISCONNECTED]


# --------------------------------------------------------------------------------------------------------------- tokens


def test_a_token_is_obtained_for_each_authentication() -> None:
    client = ClientUnderTest(TOKEN)
    client.ask()
    client.answer_versions()
    (effect,) = client.effects
    assert isinstance(effect, ObtainToken) and effect.peer == PEER
    client.effects.clear()
    client.peers.token_obtained(TokenObtained(effect.request_id, "a.token"), client.now_ms)
    client.answer(SASL_HANDSHAKE, mechanisms=["OAUTHBEARER"])
    assert client.answer(SASL_AUTHENTICATE).auth_bytes == b"n,,\x01auth=Bearer a.token\x01\x01"
    assert [key for key, *_ in client.sent()] == [METADATA]
    assert "a.token" not in repr(TokenObtained(1, "a.token"))


@pytest.mark.parametrize("is_late", [False, True])
def test_a_token_that_is_not_obtained(is_late: bool) -> None:
    client = ClientUnderTest(TOKEN)
    client.ask()
    client.answer_versions()
    (effect,) = client.effects
    if is_late:
        client.advance(PeerSettings().connection_setup_timeout_ms)
        client.answers.remove(PeerFailure.TIMED_OUT)
        assert "(the token file): it took more than 10000 ms" in client.refusals[0].reason
    else:
        client.peers.token_obtained(TokenObtained(effect.request_id, None, "no such file"), client.now_ms)
        assert "no token for OAUTHBEARER was obtained (the token file): no such file" in refusal(client)
    client.peers.token_obtained(TokenObtained(effect.request_id, "late"), client.now_ms)
    assert len(client.refusals) == 1


def test_a_token_after_the_end_of_its_connection_is_ignored() -> None:
    client = ClientUnderTest(TOKEN)
    client.ask()
    client.answer_versions()
    (effect,) = client.effects
    client.end(Closing.ENDED)
    client.peers.token_obtained(TokenObtained(effect.request_id, "late"), client.now_ms)
    assert client.sent() == [] and client.answers == [PeerFailure.DISCONNECTED]


def test_the_reason_for_a_refused_token_is_reported() -> None:
    client = ClientUnderTest(TOKEN)
    client.ask()
    client.answer_versions()
    client.peers.token_obtained(TokenObtained(client.effects.pop().request_id, "a.token"), client.now_ms)
    client.answer(SASL_HANDSHAKE, mechanisms=["OAUTHBEARER"])
    client.answer(SASL_AUTHENTICATE, auth_bytes=b'{"status":"expired"}')
    asked = client.answer(SASL_AUTHENTICATE, error_code=error_codes.SASL_AUTHENTICATION_FAILED, error_message="refused")
    assert asked.auth_bytes == b"\x01"
    assert 'OAUTHBEARER: refused ({"status":"expired"}); check the token file' in refusal(client)


# ------------------------------------------------------------------------------------------------------------- sessions


def ready(lifetime_ms: int) -> ClientUnderTest:
    client = ClientUnderTest()
    client.ask()
    client.answer_versions()
    client.authenticate(lifetime_ms)
    client.answer(METADATA)
    client.answers.clear()
    return client


def test_a_client_authenticates_again_before_its_session_ends() -> None:
    """With the next request after 85 to 95 % of it, on the same connection; answers to earlier requests still come."""
    client = ready(10_000)
    client.advance(8400)
    client.ask(FETCH)
    ((_, _, fetch, version),) = client.sent()
    client.advance(1100)
    client.ask()
    assert not client.peers.make_ready(ADDRESS, "data"), "what would be sent now would come after the handshake"
    ((key, _, handshake, handshake_version),) = client.sent()
    assert key == SASL_HANDSHAKE
    client.reply(fetch, FETCH, version)
    assert len(client.answers) == 1
    client.reply(handshake, SASL_HANDSHAKE, handshake_version, mechanisms=["PLAIN"])
    client.answer(SASL_AUTHENTICATE, session_lifetime_ms=10_000)
    client.answer(METADATA)
    assert len(client.answers) == 2 and client.closed() == 0
    client.advance(8400)
    client.ask()
    client.answer(METADATA)


def test_another_authentication_waits_for_requests_before_it() -> None:
    """As long as they may take: a JoinGroup waits at the coordinator for the other members."""
    client = ready(10_000)
    client.ask(FETCH, 300_000)
    ((_, _, fetch, version),) = client.sent()
    client.advance(9500)
    client.ask(METADATA, 300_000)
    ((_, _, handshake, handshake_version),) = client.sent()
    client.advance(200_000)
    assert client.closed() == 0
    client.reply(fetch, FETCH, version)
    client.reply(handshake, SASL_HANDSHAKE, handshake_version, mechanisms=["PLAIN"])
    client.answer(SASL_AUTHENTICATE)
    client.answer(METADATA)
    assert len(client.answers) == 2 and client.closed() == 0


def test_a_session_without_an_end() -> None:
    client = ready(0)
    client.advance(10**8)
    client.peers.settings = PeerSettings(max_idle_ms=0)
    client.effects.clear()
    client.ask()
    assert SASL_HANDSHAKE not in [key for key, *_ in client.sent()]


def test_requests_are_sent_in_a_session_that_ends_at_once() -> None:
    """Otherwise they would wait for one authentication after the other."""
    client = ClientUnderTest()
    client.ask()
    client.answer_versions()
    for _ in range(3):
        client.authenticate(lifetime_ms=1)
        assert client.peers.make_ready(ADDRESS, "data")
        client.answer(METADATA)
        client.advance(2000)
        client.ask()
    assert len(client.answers) == 3


def test_a_client_authenticates_again_at_most_once_in_a_second() -> None:
    """A broker of Kafka answers the second SaslHandshake of a second with ILLEGAL_SASL_STATE."""
    client = ready(400)
    client.advance(400)  # the first one has no such limit
    client.ask()
    client.authenticate(lifetime_ms=400)
    client.answer(METADATA)
    client.advance(1000)
    client.ask()
    client.answer(METADATA)
    client.advance(100)
    client.ask()
    client.authenticate(lifetime_ms=400)
    client.answer(METADATA)


def test_a_session_may_be_as_long_as_a_number_can_be() -> None:
    client = ready(2**63 - 1)
    client.ask()
    client.answer(METADATA)


def test_another_authentication_that_is_refused() -> None:
    """What was sent before may have been executed: its answer is DISCONNECTED, that of what waits the refusal."""
    client = ready(10_000)
    client.advance(8000)
    client.ask(FETCH)
    client.sent()
    client.advance(1900)
    client.ask()
    client.answer(SASL_HANDSHAKE, mechanisms=["PLAIN"])
    client.answer(SASL_AUTHENTICATE, error_code=error_codes.SASL_AUTHENTICATION_FAILED)
    (failure,) = client.refusals
    assert client.answers == [PeerFailure.DISCONNECTED, failure] and not failure.is_first


# --------------------------------------------------------------------------------------- peers that close the connection


@pytest.mark.parametrize(
    ("sasl", "stage", "closing", "sentence"),
    [
        (None, "connecting", Closing.CLOSED_IN_HANDSHAKE, "as a listener without TLS does"),
        (PLAIN, "connecting", Closing.CLOSED_IN_HANDSHAKE, "as a listener without TLS does"),
        (PLAIN, "authenticating", Closing.CLOSED, "while it authenticated the client"),
        (None, "asked", Closing.CLOSED, "after the first request, as a listener with SASL does"),
    ],
)
def test_a_peer_that_only_closes_the_connection(sasl: SaslSettings | None, stage: str, closing: Closing, sentence: str) -> None:
    """Several times in a row, before it has answered anything: then another attempt would not help."""
    client = ClientUnderTest(sasl)
    for attempt in range(CLOSES_OF_A_REFUSAL):
        assert client.refusals == []
        client.ask()
        if stage != "connecting":
            client.answer_versions()
        client.end(closing)
        if attempt < CLOSES_OF_A_REFUSAL - 1:
            assert client.answers == [PeerFailure.DISCONNECTED]
            client.answers.clear()
            client.advance(2000)
    assert sentence in refusal(client)


def test_a_peer_that_has_worked_may_close_the_connection() -> None:
    """As brokers do that are started again: a client that had an answer goes on to connect."""
    client = ClientUnderTest(None)
    client.ask()
    client.answer_versions()
    client.answer(METADATA)
    for _ in range(3 * CLOSES_OF_A_REFUSAL):
        client.ask()
        if client.peers.version_for(ADDRESS, "data", METADATA) is None:
            client.answer_versions()
        client.end(Closing.CLOSED_IN_HANDSHAKE)
        client.advance(2000)
    assert client.refusals == []


@pytest.mark.parametrize(
    ("closing", "reason", "sentence"),
    [
        (Closing.REFUSED, "its certificate has expired", "broker:9093: its certificate has expired"),
        (Closing.EXPECTS_TLS, "it expects TLS", "broker:9093: it expects TLS: set security.protocol=SASL_SSL"),
    ],
)
def test_ends_that_are_refusals(closing: Closing, reason: str, sentence: str) -> None:
    client = ClientUnderTest()
    client.ask()
    client.end(closing, reason)
    assert refusal(client).startswith(sentence)


def test_nodes_of_a_cluster_only_lose_the_connection() -> None:
    """A broker goes on to connect to the controller, whatever it is answered."""
    client = ClientUnderTest(None)
    client.peers.on_refusal = None
    for _ in range(2 * CLOSES_OF_A_REFUSAL):
        client.ask()
        client.end(Closing.EXPECTS_TLS, "it expects TLS")
        client.advance(2000)
    assert set(client.answers) == {PeerFailure.DISCONNECTED}
