"""Protects the frame of every message: sizes, headers by API and version, and errors for invalid headers."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.protocol.apis import API_KEYS, API_VERSIONS, FETCH, METADATA, PRODUCE, Api
from kcli.protocol.compiler import MessageType
from kcli.protocol.framing import encode_request, encode_response, read_request_header, read_response_header
from kcli.protocol.message_errors import DecodeError, MessageError, UnsupportedVersionError
from kcli.protocol.schema import parse_schemas
from tests.conftest import ROOT

APIS = list(API_KEYS.values())
DECLARED = parse_schemas((ROOT / "kcli" / "protocol" / "messages" / "apis.txt").read_text())
HEADERS = {schema.name: MessageType(schema) for schema in DECLARED if schema.kind == "header"}
VERSIONS = [(api, version) for api in APIS for version in range(api.lowest_version, api.highest_version + 1)]


def header_bytes(key: int, version: int, client: bytes | None = b"c", correlation: int = 7) -> bytes:
    length = -1 if client is None else len(client)
    return struct.pack(">hhih", key, version, correlation, length) + (client or b"")


def test_headers_of_every_api_and_version_come_back() -> None:
    for api, version in VERSIONS:
        request, response = api.request.new(), api.response.new()
        body = api.request.encode(request, version)
        frame = encode_request(41, api, version, "a client", request)
        assert struct.unpack_from(">i", frame)[0] == len(frame) - 4
        key, found, correlation_id, client_id, at = read_request_header(memoryview(frame)[4:])
        assert (key, found, correlation_id, client_id) == (api.key, version, 41, "a client")
        assert bytes(frame[4 + at :]) == body
        reply = encode_response(-2, api, version, response)
        assert struct.unpack_from(">i", reply)[0] == len(reply) - 4
        correlation_id, at = read_response_header(reply[4:], api, version)
        assert correlation_id == -2
        assert bytes(reply[4 + at :]) == api.response.encode(response, version)


def test_headers_are_those_that_the_schema_declares() -> None:
    for api, version in VERSIONS:
        assert api.request.schema.flexible == api.response.schema.flexible, api
        header = HEADERS["RequestHeader"].new(
            request_api_key=api.key, request_api_version=version, correlation_id=5, client_id="id"
        )
        flexible = version >= api.flexible_from
        frame = encode_request(5, api, version, "id", api.request.new())
        assert frame[4:].startswith(HEADERS["RequestHeader"].encode(header, 2 if flexible else 1))
        answer = HEADERS["ResponseHeader"].encode(HEADERS["ResponseHeader"].new(correlation_id=5), int(flexible))
        reply = encode_response(5, api, version, api.response.new())
        plain = answer[:4] if api.key == API_VERSIONS else answer
        assert bytes(reply[4:]) == plain + api.response.encode(api.response.new(), version)


@pytest.mark.parametrize(
    ("client", "expected"), [(None, ""), (b"", ""), ("é".encode(), "é"), (b"\xff", "�"), (b"x" * 32767, "x" * 32767)]
)
def test_client_ids(client: bytes | None, expected: str) -> None:
    frame = header_bytes(PRODUCE, 8, client)
    assert read_request_header(frame) == (PRODUCE, 8, 7, expected, len(frame))
    assert read_request_header(bytearray(frame))[3] == expected
    assert read_request_header(memoryview(frame))[3] == expected


def test_tagged_fields_of_a_header_are_skipped() -> None:
    tagged = b"\x02\x00\x01x\x05\x02yz"
    assert read_request_header(header_bytes(FETCH, 12) + tagged + b"body")[4] == 11 + len(tagged)
    assert read_response_header(b"\0\0\0\7" + tagged, API_KEYS[FETCH], 12) == (7, 4 + len(tagged))


def test_api_versions_stands_apart() -> None:
    api = API_KEYS[API_VERSIONS]
    # A version of the future has the newest header.
    assert read_request_header(header_bytes(API_VERSIONS, 99) + b"\0body") == (API_VERSIONS, 99, 7, "c", 12)
    for version in range(6):
        assert read_response_header(b"\0\0\0\7\x55", api, version) == (7, 4)


def test_what_is_no_header_is_refused_with_a_sentence() -> None:
    for key in (-1, 4, 5, 6, 7, 95, 32767):
        with pytest.raises(DecodeError, match=f"API key {key}, which Kafka"):
            read_request_header(header_bytes(key, 0))
    for version in (-1, 2, 14):
        with pytest.raises(UnsupportedVersionError, match=f"Produce of version {version}, which has 3 to 13"):
            read_request_header(header_bytes(PRODUCE, version) + b"\0")
    with pytest.raises(DecodeError, match="client id of 9 bytes"):
        read_request_header(struct.pack(">hhih", METADATA, 8, 1, 9) + b"short")
    with pytest.raises(DecodeError, match="client id of -2 bytes"):
        read_request_header(struct.pack(">hhih", METADATA, 8, 1, -2))
    with pytest.raises(DecodeError, match="tagged field of 9 bytes"):
        read_request_header(header_bytes(METADATA, 9) + b"\1\0\x09")
    whole = header_bytes(METADATA, 9) + b"\1\0\1x"
    for size in range(len(whole)):
        with pytest.raises(DecodeError):
            read_request_header(whole[:size])


@given(st.binary(max_size=40))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    try:
        head = read_request_header(data)
    except MessageError:
        return
    assert head[0] in API_KEYS
    assert head[4] <= len(data)


@given(st.sampled_from(APIS), st.integers(-3, 20), st.binary(max_size=30))
def test_the_body_begins_within_the_frame(api: Api, version: int, rest: bytes) -> None:
    try:
        assert read_request_header(struct.pack(">hhi", api.key, version, 1) + rest)[4] <= 8 + len(rest)
    except MessageError:
        return
