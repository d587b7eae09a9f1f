"""Protects the envelope: a client's request, its principal and its address come out as they went in (KIP-590)."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, CREATE_TOPICS, DESCRIBE_QUORUM, ENVELOPE, UPDATE_FEATURES
from kcli.protocol.framing import encode_request, encode_response, read_response_header
from kcli.protocol.message_errors import DecodeError, MessageError
from kcli.server.envelope import close_envelope, decode_principal, encode_principal, open_envelope, pack_host, unpack_host
from kcli.server.events import Connection

CARRIER = Connection(1, "CONTROLLER", "10.0.0.1", principal="User:broker", is_internal=True)


def envelope(data: bytes, principal: bytes | None, host: bytes) -> memoryview:
    request = API_KEYS[ENVELOPE].request.new(request_data=data, request_principal=principal, client_host_address=host)
    return memoryview(encode_request(42, API_KEYS[ENVELOPE], 0, "b", request))[4:]


@given(st.binary(max_size=50), st.text(max_size=20), st.ip_addresses())
def test_what_goes_in_comes_out(data: bytes, name: str, host: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    opened = open_envelope(envelope(data, encode_principal(f"User:{name}"), pack_host(str(host))), CARRIER)
    assert bytes(opened.frame) == data
    assert opened.connection.principal == f"User:{name}"
    assert ipaddress.ip_address(opened.connection.client_host) == host
    assert opened.connection.is_internal
    opened.frame[:1] = opened.frame[:1]  # a handler may patch it in place


def test_without_a_principal_it_is_the_carriers() -> None:
    assert open_envelope(envelope(b"", None, b"\x7f\0\0\1"), CARRIER).connection.principal == "User:broker"


@pytest.mark.parametrize("host", [b"", b"\1\2\3", b"\0" * 17])
def test_an_address_is_4_or_16_bytes(host: bytes) -> None:
    with pytest.raises(DecodeError, match="client address"):
        open_envelope(envelope(b"", None, host), CARRIER)


@pytest.mark.parametrize("principal", [b"", b"\0", b"\0\1xxx", b"\0\0"])
def test_a_principal_that_is_none_is_refused(principal: bytes) -> None:
    with pytest.raises(MessageError):
        open_envelope(envelope(b"", principal, b"\x7f\0\0\1"), CARRIER)


def closed(key: int, answer: bytes | None) -> tuple[int, bytes | None]:
    """Return error code and data of the envelope that answers a request of the API's highest version."""
    api = API_KEYS[key]
    request = encode_request(7, api, api.highest_version, "c", api.request.new())[4:]
    opened = open_envelope(envelope(request, None, b"\x7f\0\0\1"), CARRIER)
    frame = close_envelope(opened, answer)[4:]
    correlation_id, position = read_response_header(frame, API_KEYS[ENVELOPE], 0)
    message, _ = API_KEYS[ENVELOPE].response.decode(frame, 0, position)
    assert correlation_id == 42
    return message.error_code, message.response_data


@pytest.mark.parametrize(("answer", "code"), [(b"\0\0\0\3abc", 0), (None, error_codes.INVALID_REQUEST)])
def test_the_answer_is_the_clients_whole(answer: bytes | None, code: int) -> None:
    assert closed(CREATE_TOPICS, answer) == (code, None if answer is None else b"abc")


@pytest.mark.parametrize("code", [error_codes.NONE, error_codes.NOT_CONTROLLER, error_codes.NOT_LEADER_OR_FOLLOWER])
@pytest.mark.parametrize("key", [CREATE_TOPICS, DESCRIBE_QUORUM, UPDATE_FEATURES])
def test_an_answer_of_a_node_that_is_not_the_controller_is_an_error_of_the_envelope(key: int, code: int) -> None:
    """The rule is that of Kafka's RequestChannel.shouldReturnNotController; other errors are the client's to see."""
    api = API_KEYS[key]
    text = "\0)"  # the bytes of NOT_CONTROLLER in another place
    if key == CREATE_TOPICS:
        topic = api.response.classes["CreatableTopicResult"]
        response = api.response.new(topics=[topic(name="a"), topic(name=text, error_code=code)])
    else:
        response = api.response.new(error_code=code, error_message=text)
    answer = bytes(encode_response(7, api, api.highest_version, response))
    is_moved = code == (error_codes.NOT_LEADER_OR_FOLLOWER if key == DESCRIBE_QUORUM else error_codes.NOT_CONTROLLER)
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
