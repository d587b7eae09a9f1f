"""The Envelope in which a broker forwards a client's request to the controller (KIP-590).

    part of the request   contains
    --------------------  --------------------------------------------------------------------------------------------
    RequestData           the client's request as it came: header and message, without the size
    RequestPrincipal      the client's principal, as the broker authenticated it: int16 version 0, then
                          DefaultPrincipalData in that version; tokenAuthenticated is written as false, since there are
                          no delegation tokens yet, and ignored when read
    ClientHostAddress     the client's address, 4 or 16 bytes

The response contains the whole response to the client, header and message, or an error of the envelope itself. A response
that says that the node is not the controller becomes the error NOT_CONTROLLER of the envelope, as in Kafka
(RequestChannel.shouldReturnNotController): the broker then sends the request to the next controller.
IPv6 addresses need the standard library's ipaddress, which is imported only for them: it takes 10 ms of the start.
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.format.primitives import Buffer
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, DESCRIBE_QUORUM, ENVELOPE
from kcli.protocol.framing import SIZE_BYTES, encode_response, read_request_header, read_response_header
from kcli.protocol.message_errors import DecodeError
from kcli.protocol.message_types import message_type
from kcli.server.events import Connection
from kcli.server.metrics.broker_metrics import ErrorCounts

IPV4_BYTES = 4
_PRINCIPAL_VERSION = 0


class OpenedEnvelope(NamedTuple):
    """The client's frame in an envelope, the client as a connection, and the envelope's own correlation id."""

    frame: memoryview
    connection: Connection
    correlation_id: int
    version: int


def open_envelope(frame: memoryview, carrier: Connection) -> OpenedEnvelope:
    """Decode an Envelope request that came on `carrier`. Raises MessageError if it is malformed."""
    _, version, correlation_id, _, position = read_request_header(frame)
    message, _ = API_KEYS[ENVELOPE].request.decode(frame, version, position)
    try:
        host = unpack_host(bytes(message.client_host_address))
    except ValueError as error:
        raise DecodeError(f"the envelope's client address: {error}") from error
    principal = carrier.principal
    if message.request_principal is not None:
        principal = decode_principal(message.request_principal)
    client = Connection(carrier.connection_id, carrier.listener, host, principal=principal, is_internal=carrier.is_internal)
    return OpenedEnvelope(memoryview(bytearray(message.request_data)), client, correlation_id, version)


def close_envelope(envelope: OpenedEnvelope, answer: bytes | None) -> bytes:
    """Return the frame that answers an envelope with a client's whole response frame, or with INVALID_REQUEST for None."""
    api = API_KEYS[ENVELOPE]
    data = None if answer is None else answer[SIZE_BYTES:]
    code = error_codes.INVALID_REQUEST if data is None else error_codes.NONE
    if data is not None and _is_not_controller(envelope.frame, data):
        data, code = None, error_codes.NOT_CONTROLLER
    response = api.response.new(response_data=data, error_code=code)
    return bytes(encode_response(envelope.correlation_id, api, envelope.version, response))


def _is_not_controller(request: Buffer, answer: bytes) -> bool:
    """Return whether the answer to a client's request contains the error of a node that is not the active controller."""
    key, version, *_ = read_request_header(request)
    api = API_KEYS[key]
    code = error_codes.NOT_LEADER_OR_FOLLOWER if key == DESCRIBE_QUORUM else error_codes.NOT_CONTROLLER
    # Almost every answer lacks even the bytes of the code and is not decoded. An answer to an unknown version has no such code.
    if code.to_bytes(2, "big") not in answer or not api.lowest_version <= version <= api.highest_version:
        return False
    errors = ErrorCounts()
    _, position = read_response_header(answer, api, version)
    errors.count(key, api.response.decode(answer, version, position)[0])
    return (key, code) in errors.counts


def encode_principal(principal: str) -> bytes:
    """Encode a principal, such as "User:name"."""
    kind, _, name = principal.partition(":")
    type_ = message_type("control_records", "DefaultPrincipalData")
    return _PRINCIPAL_VERSION.to_bytes(2, "big") + type_.encode(type_.new(type=kind, name=name), _PRINCIPAL_VERSION)


def decode_principal(data: Buffer) -> str:
    """Decode a principal. Raises DecodeError."""
    if len(data) < 2 or int.from_bytes(data[:2], "big") != _PRINCIPAL_VERSION:
        raise DecodeError("a principal of an unknown version", 0)
    message, _ = message_type("control_records", "DefaultPrincipalData").decode(data, _PRINCIPAL_VERSION, 2)
    return f"{message.type}:{message.name}"


def pack_host(host: str) -> bytes:
    """Encode an IP address; the scope of an IPv6 address is omitted. Raises ValueError if it is not an address."""
    parts = host.split(".")
    if len(parts) == IPV4_BYTES and all(
        part.isascii() and part.isdigit() and len(part) <= 3 and int(part) < 256 for part in parts
    ):
        return bytes(map(int, parts))
    import ipaddress

    return ipaddress.ip_address(host).packed


def unpack_host(address: bytes) -> str:
    """Decode an IP address. Raises ValueError if it has neither 4 nor 16 bytes."""
    if len(address) == IPV4_BYTES:
        return ".".join(map(str, address))
    import ipaddress

    return str(ipaddress.ip_address(address))
