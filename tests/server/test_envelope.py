"""Protects the envelope: a client's request, its principal and its address come out as they went in (KIP-590)."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.protocol import error_codes
from kcli.protocol.apis import (
    ADD_RAFT_VOTER,
    ALLOCATE_PRODUCER_IDS,
    ALTER_CLIENT_QUOTAS,
    ALTER_USER_SCRAM_CREDENTIALS,
    API_KEYS,
    CREATE_DELEGATION_TOKEN,
    CREATE_TOPICS,
    DESCRIBE_QUORUM,
    ENVELOPE,
    EXPIRE_DELEGATION_TOKEN,
    REMOVE_RAFT_VOTER,
    RENEW_DELEGATION_TOKEN,
    UPDATE_FEATURES,
)
from kcli.protocol.framing import encode_request, encode_response, read_response_header
from kcli.protocol.message_errors import MessageError
from kcli.server.apis.registry import FORWARDED, SERVED
from kcli.server.authorizer import AllowAll, Authorizer
from kcli.server.envelope import (
    FORWARDABLE,
    Receive,
    decode_principal,
    encode_principal,
    pack_host,
    receive_envelope,
    unpack_host,
)
from kcli.server.events import Connection, Respond

CARRIER = Connection(1, "CONTROLLER", "10.0.0.1", principal="User:broker", is_internal=True)
HOST = b"\x7f\0\0\1"
CLIENT = encode_principal("User:client")


def envelope(data: bytes, principal: bytes | None, host: bytes) -> memoryview:
    request = API_KEYS[ENVELOPE].request.new(request_data=data, request_principal=principal, client_host_address=host)
    return memoryview(encode_request(42, API_KEYS[ENVELOPE], 0, "b", request))[4:]


class Opened(NamedTuple):
    """A request as it was taken out of its envelope."""

    client: Connection
    frame: memoryview
    respond: Respond


class Controller:
    """Takes requests out of envelopes; `answers` are the error codes and data of the answered envelopes."""

    def __init__(self) -> None:
        self.opened: list[Opened] = []
        self.answers: list[tuple[int, bytes | None]] = []

    def receive(self, client: Connection, frame: memoryview, respond: Respond, now_ms: int) -> None:
        self.opened.append(Opened(client, frame, respond))

    def respond(self, frame: bytes | None) -> None:
        assert frame is not None
        correlation_id, position = read_response_header(frame[4:], API_KEYS[ENVELOPE], 0)
        message, _ = API_KEYS[ENVELOPE].response.decode(frame[4:], 0, position)
        assert correlation_id == 42
        self.answers.append((message.error_code, message.response_data))

    def take(self, data: bytes, principal: bytes = CLIENT, host: bytes = HOST) -> Opened:
        receive_envelope(envelope(data, principal, host), CARRIER, AllowAll(), self.receive, self.respond, 0)
        return self.opened[-1]


def refused(
    data: bytes,
    principal: bytes | None = CLIENT,
    host: bytes = HOST,
    receive: Receive | None = None,
    authorizer: Authorizer | None = None,
) -> int:
    """Return the error code of an envelope that is answered at once and without data."""
    controller, frame = Controller(), envelope(data, principal, host)
    receive_envelope(frame, CARRIER, authorizer or AllowAll(), receive or controller.receive, controller.respond, 0)
    ((code, response),) = controller.answers
    assert response is None
    assert controller.opened == []
    return code


def request_of(key: int) -> bytes:
    """Return a request of the API's highest version."""
    api = API_KEYS[key]
    return bytes(encode_request(7, api, api.highest_version, "c", api.request.new())[4:])


@given(st.binary(max_size=50), st.text(max_size=20), st.ip_addresses())
def test_what_goes_in_comes_out(data: bytes, name: str, host: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    data = request_of(CREATE_TOPICS) + data
    opened = Controller().take(data, encode_principal(f"User:{name}"), pack_host(str(host)))
    assert bytes(opened.frame) == data
    assert opened.client.principal == f"User:{name}"
    assert ipaddress.ip_address(opened.client.client_host) == host
    assert opened.client.is_internal
    opened.frame[:1] = opened.frame[:1]  # a handler may patch it in place


class NoBrokers(AllowAll):
    """Lets no node forward requests, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str, str]] = []

    def is_allowed(self, connection: Connection, operation: str, resource_type: str, resource_name: str) -> bool:
        self.asked.append((connection.principal, operation, resource_type, resource_name))
        return False


def test_a_node_that_may_not_act_for_the_cluster_may_not_forward() -> None:
    """Else each client of the controller's listener could choose its principal (Kafka: ControllerApis)."""
    authorizer = NoBrokers()
    assert refused(request_of(CREATE_TOPICS), authorizer=authorizer) == error_codes.CLUSTER_AUTHORIZATION_FAILED
    assert authorizer.asked == [("User:broker", "CLUSTER_ACTION", "CLUSTER", "kafka-cluster")]


@pytest.mark.parametrize("host", [b"", b"\1\2\3", b"\0" * 17])
def test_an_address_is_4_or_16_bytes(host: bytes) -> None:
    assert refused(request_of(CREATE_TOPICS), host=host) == error_codes.INVALID_REQUEST


@pytest.mark.parametrize("principal", [None, b"", b"\0", b"\0\1xxx", b"\0\0"])
def test_a_principal_that_is_none_is_refused(principal: bytes | None) -> None:
    """Without one the client does not get the broker's, as in Kafka."""
    assert refused(request_of(CREATE_TOPICS), principal) == error_codes.PRINCIPAL_DESERIALIZATION_FAILURE


@pytest.mark.parametrize("key", sorted(API_KEYS.keys() - FORWARDABLE))
def test_a_request_that_is_not_forwardable_is_an_error_of_the_envelope(key: int) -> None:
    """A heartbeat of a broker must not come from a client (Kafka: EnvelopeUtils)."""
    assert refused(request_of(key)) == error_codes.INVALID_REQUEST


def test_what_a_broker_forwards_is_forwardable() -> None:
    assert FORWARDED <= FORWARDABLE


def test_a_broker_serves_what_clients_may_have_forwarded() -> None:
    """But for what brokers ask for themselves, and for what belongs to security and is not served yet."""
    security = {
        CREATE_DELEGATION_TOKEN,
        RENEW_DELEGATION_TOKEN,
        EXPIRE_DELEGATION_TOKEN,
        ALTER_CLIENT_QUOTAS,
        ALTER_USER_SCRAM_CREDENTIALS,
    }
    assert {ALLOCATE_PRODUCER_IDS} | security == FORWARDABLE - SERVED


def test_a_request_without_a_header_is_an_error_of_the_envelope() -> None:
    assert refused(b"") == error_codes.UNSUPPORTED_VERSION
    assert refused(request_of(CREATE_TOPICS)[:5]) == error_codes.UNSUPPORTED_VERSION


def test_a_request_that_the_controller_cannot_decode_is_an_error_of_the_envelope() -> None:
    """The connection also has the requests of other clients."""

    def receive(client: Connection, frame: memoryview, respond: Respond, now_ms: int) -> None:
        raise MessageError("invalid")

    assert refused(request_of(CREATE_TOPICS), receive=receive) == error_codes.UNSUPPORTED_VERSION


def test_a_malformed_envelope_is_not_answered() -> None:
    controller = Controller()
    with pytest.raises(MessageError):
        receive_envelope(envelope(b"", None, HOST)[:12], CARRIER, AllowAll(), controller.receive, controller.respond, 0)
    assert controller.answers == []


def closed(key: int, answer: bytes | None) -> tuple[int, bytes | None]:
    """Return error code and data of the envelope that answers a request of the API's highest version."""
    controller = Controller()
    controller.take(request_of(key)).respond(answer)
    (closed,) = controller.answers
    return closed


@pytest.mark.parametrize(("answer", "code"), [(b"\0\0\0\3abc", 0), (None, error_codes.INVALID_REQUEST)])
def test_the_answer_is_the_clients_whole(answer: bytes | None, code: int) -> None:
    assert closed(CREATE_TOPICS, answer) == (code, None if answer is None else b"abc")


@pytest.mark.parametrize("code", [error_codes.NONE, error_codes.NOT_CONTROLLER, error_codes.NOT_LEADER_OR_FOLLOWER])
@pytest.mark.parametrize("key", [CREATE_TOPICS, DESCRIBE_QUORUM, UPDATE_FEATURES, ADD_RAFT_VOTER, REMOVE_RAFT_VOTER])
def test_an_answer_of_a_node_that_is_not_the_controller_is_an_error_of_the_envelope(key: int, code: int) -> None:
    """Kafka's RequestChannel.shouldReturnNotController, and changes of the voters; other errors are the client's to see."""
    api = API_KEYS[key]
    text = "\0)"  # the bytes of NOT_CONTROLLER in another place
    if key == CREATE_TOPICS:
        topic = api.response.classes["CreatableTopicResult"]
        response = api.response.new(topics=[topic(name="a"), topic(name=text, error_code=code)])
    else:
        response = api.response.new(error_code=code, error_message=text)
    answer = bytes(encode_response(7, api, api.highest_version, response))
    is_of_quorum = key in (DESCRIBE_QUORUM, ADD_RAFT_VOTER, REMOVE_RAFT_VOTER)
    is_moved = code == (error_codes.NOT_LEADER_OR_FOLLOWER if is_of_quorum else error_codes.NOT_CONTROLLER)
    assert closed(key, answer) == ((error_codes.NOT_CONTROLLER, None) if is_moved else (error_codes.NONE, answer[4:]))


@given(st.text(max_size=10), st.text(max_size=10))
def test_principals_round_trip(kind: str, name: str) -> None:
    principal = f"{kind.replace(':', '')}:{name}"
    assert decode_principal(encode_principal(principal)) == principal


@given(st.ip_addresses())
def test_addresses_are_those_of_the_standard_library(host: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    assert pack_host(str(host)) == host.packed
    assert ipaddress.ip_address(unpack_host(host.packed)) == host


@pytest.mark.parametrize(
    "text", ["", "1.2.3", "1.2.3.256", "1.2.3.4.5", "a.b.c.d", "1.2.3.-4", "localhost", "1.2.3.\u0664", "::g"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        pack_host(text)
