"""The Envelope in which a broker hands a client's request on to the controller, opened and closed (KIP-590).

    part of the request   holds
    --------------------  --------------------------------------------------------------------------------------------
    RequestData           the client's request as it came: header and message, without the size
    RequestPrincipal      who the broker found the client to be (kcli.server.principal)
    ClientHostAddress     the client's address, 4 or 16 bytes

The answer holds the whole answer to the client, header and message, or an error of the envelope itself.
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, ENVELOPE
from kcli.protocol.errors import DecodeError
from kcli.protocol.framing import SIZE_BYTES, encode_response, read_request_header
from kcli.server.events import Connection
from kcli.server.host_address import unpack_host
from kcli.server.principal import decode_principal


class OpenedEnvelope(NamedTuple):
    """What was in an envelope: the client's frame, the client as a connection, and the envelope's own correlation id."""

    frame: memoryview
    connection: Connection
    correlation_id: int
    version: int


def open_envelope(frame: memoryview, carrier: Connection) -> OpenedEnvelope:
    """Take an Envelope request that came on `carrier` apart. Raises MessageError where it is none."""
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
    """The frame that answers an envelope with a client's whole answer frame, or with INVALID_REQUEST where there is none."""
    api = API_KEYS[ENVELOPE]
    if answer is None:
        response = api.response.new(response_data=None, error_code=error_codes.INVALID_REQUEST)
    else:
        response = api.response.new(response_data=bytes(answer[SIZE_BYTES:]), error_code=0)
    return bytes(encode_response(envelope.correlation_id, api, envelope.version, response))
