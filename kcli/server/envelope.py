"""The Envelope in which a broker forwards a client's request to the controller (KIP-590).

    part of the request   contains
    --------------------  --------------------------------------------------------------------------------------------
    RequestData           the client's request as it came: header and message, without the size
    RequestPrincipal      the client's principal, as the broker authenticated it: int16 version 0, then
                          DefaultPrincipalData in that version; tokenAuthenticated is written as false, since there are
                          no delegation tokens yet, and ignored when read
    ClientHostAddress     the client's address, 4 or 16 bytes

The broker's own principal, which the connection has, needs CLUSTER_ACTION on the cluster: a controller believes what an
Envelope says about the client.

The response contains the whole response to the client, header and message, or an error of the envelope itself, as in Kafka's
EnvelopeUtils:

    error                              reason
    ---------------------------------  -------------------------------------------------------------------------------
    CLUSTER_AUTHORIZATION_FAILED       the sender may not do CLUSTER_ACTION
    PRINCIPAL_DESERIALIZATION_FAILURE  there is no principal, or it cannot be decoded
    INVALID_REQUEST                    the client's address is not one, or the request is not FORWARDABLE
    UNSUPPORTED_VERSION                the request cannot be decoded, or the controller does not serve it

A response that says that the node is not the controller becomes the error NOT_CONTROLLER of the envelope, as in Kafka
(RequestChannel.shouldReturnNotController): the broker then sends the request to the next controller. The requests of the quorum
say so with NOT_LEADER_OR_FOLLOWER. Kafka's controllers put AddRaftVoter's and RemoveRaftVoter's into the response, which is
checked again by the broker.
IPv6 addresses need the standard library's ipaddress, which is imported only for them: it takes 10 ms of the start.
"""

from __future__ import annotations

from collections.abc import Callable

from kcli.format.primitives import Buffer
from kcli.protocol import apis, error_codes
from kcli.protocol.apis import ADD_RAFT_VOTER, API_KEYS, DESCRIBE_QUORUM, ENVELOPE, REMOVE_RAFT_VOTER
from kcli.protocol.framing import SIZE_BYTES, encode_response, read_request_header, read_response_header
from kcli.protocol.message import Message
from kcli.protocol.message_errors import DecodeError, MessageError
from kcli.protocol.message_types import message_type
from kcli.server.authorizer import CLUSTER_NAME, Authorizer
from kcli.server.events import Connection, Respond
from kcli.server.metrics.broker_metrics import ErrorCounts

IPV4_BYTES = 4
_PRINCIPAL_VERSION = 0
# Takes a request (header and message) of a connection, as ControllerApis.receive does.
Receive = Callable[[Connection, memoryview, Respond, int], None]


# Kafka's ApiKeys.forwardable: the requests that a broker may forward. No other request may come in an Envelope.
FORWARDABLE = frozenset(
    (
        apis.CREATE_TOPICS,
        apis.DELETE_TOPICS,
        apis.CREATE_ACLS,
        apis.DELETE_ACLS,
        apis.ALTER_CONFIGS,
        apis.CREATE_PARTITIONS,
        apis.CREATE_DELEGATION_TOKEN,
        apis.RENEW_DELEGATION_TOKEN,
        apis.EXPIRE_DELEGATION_TOKEN,
        apis.ELECT_LEADERS,
        apis.INCREMENTAL_ALTER_CONFIGS,
        apis.ALTER_PARTITION_REASSIGNMENTS,
        apis.LIST_PARTITION_REASSIGNMENTS,
        apis.ALTER_CLIENT_QUOTAS,
        apis.ALTER_USER_SCRAM_CREDENTIALS,
        apis.DESCRIBE_QUORUM,
        apis.UPDATE_FEATURES,
        apis.UNREGISTER_BROKER,
        apis.UNREGISTER_CONTROLLER,
        apis.ALLOCATE_PRODUCER_IDS,
        apis.ADD_RAFT_VOTER,
        apis.REMOVE_RAFT_VOTER,
    )
)


VOTER_CHANGES = frozenset((ADD_RAFT_VOTER, REMOVE_RAFT_VOTER))


class _EnvelopeError(MessageError):
    """An envelope that is not opened; `code` answers it."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def receive_envelope(
    frame: memoryview, carrier: Connection, authorizer: Authorizer, receive: Receive, respond: Respond, now_ms: int
) -> None:
    """Pass the request in an Envelope that came on `carrier` to `receive`; `respond` is called once, now or later.

    A request that is not forwardable or that `receive` refuses becomes an error of the envelope: `carrier` has the requests of
    other clients, too, and stays open. Raises MessageError if the Envelope itself cannot be decoded.
    """
    api = API_KEYS[ENVELOPE]
    _, version, correlation_id, _, position = read_request_header(frame)
    envelope, _ = api.request.decode(frame, version, position)

    def close(code: int, data: bytes | None = None) -> None:
        response = api.response.new(response_data=data, error_code=code)
        respond(bytes(encode_response(correlation_id, api, version, response)))

    def answer(response: bytes | None) -> None:
        if response is None:
            close(error_codes.INVALID_REQUEST)
        elif is_not_controller(envelope.request_data, response[SIZE_BYTES:]):
            close(error_codes.NOT_CONTROLLER)
        else:
            close(error_codes.NONE, response[SIZE_BYTES:])

    try:
        if not authorizer.is_allowed(carrier, "CLUSTER_ACTION", "CLUSTER", CLUSTER_NAME):
            code = error_codes.CLUSTER_AUTHORIZATION_FAILED
            raise _EnvelopeError(code, f"{carrier.principal} may not forward requests: it lacks CLUSTER_ACTION on the cluster")
        client = _open_envelope(envelope, carrier)
        receive(client, memoryview(bytearray(envelope.request_data)), answer, now_ms)
    except _EnvelopeError as error:
        close(error.code)
    except MessageError:
        close(error_codes.UNSUPPORTED_VERSION)


def _open_envelope(envelope: Message, carrier: Connection) -> Connection:
    """Check an envelope and return the client as a connection. Raises MessageError."""
    try:
        principal = decode_principal(envelope.request_principal or b"")
    except MessageError as error:
        raise _EnvelopeError(error_codes.PRINCIPAL_DESERIALIZATION_FAILURE, error.message) from error
    try:
        host = unpack_host(bytes(envelope.client_host_address))
    except ValueError as error:
        raise _EnvelopeError(error_codes.INVALID_REQUEST, f"the envelope's client address: {error}") from error
    key = read_request_header(envelope.request_data)[0]
    if key not in FORWARDABLE:
        raise _EnvelopeError(error_codes.INVALID_REQUEST, f"{API_KEYS[key].name} is not eligible for forwarding")
    return Connection(
        carrier.connection_id,
        carrier.listener,
        host,
        principal=principal,
        is_internal=carrier.is_internal,
        is_forwarded=True,
    )


def is_not_controller(request: Buffer, answer: Buffer) -> bool:
    """Return whether the answer to a client's request contains the error of a node that is not the active controller."""
    key, version, *_ = read_request_header(request)
    api = API_KEYS[key]
    code = error_codes.NOT_LEADER_OR_FOLLOWER if key == DESCRIBE_QUORUM or key in VOTER_CHANGES else error_codes.NOT_CONTROLLER
    # Almost every answer lacks even the bytes of the code and is not decoded. An answer to an unknown version has no such code.
    if code.to_bytes(2, "big") not in bytes(answer) or not api.lowest_version <= version <= api.highest_version:
        return False
    errors = ErrorCounts()
    try:
        _, position = read_response_header(answer, api, version)
        errors.count(key, api.response.decode(answer, version, position)[0])
    except MessageError:
        return False  # the client gets what the controller has sent
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
