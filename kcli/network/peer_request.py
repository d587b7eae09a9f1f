"""One request to a peer, and what its sender gets: the response, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from kcli.network.events import Peer
from kcli.network.timing_wheel import TimerTask
from kcli.protocol import error_codes
from kcli.protocol.apis import API_VERSIONS, Api
from kcli.protocol.framing import encode_request, read_response_header
from kcli.protocol.message import Message
from kcli.protocol.message_errors import DecodeError

MAX_CORRELATION_ID = 0x7FFFFFFF


class PeerFailure:
    """The reason why a request has no response: a constant, InvalidRequest or AuthenticationFailure.

    `is_lasting` says that the same request would fail again.
    """

    DISCONNECTED: ClassVar[PeerFailure]
    TIMED_OUT: ClassVar[PeerFailure]
    UNKNOWN_ADDRESS: ClassVar[PeerFailure]
    UNSUPPORTED_VERSION: ClassVar[PeerFailure]

    def __init__(self, name: str, reason: str, is_lasting: bool = False) -> None:
        self.name = name
        self.reason = reason
        self.is_lasting = is_lasting

    def __repr__(self) -> str:
        return f"<{self.name}: {self.reason}>"


class InvalidRequest(PeerFailure):
    """A request with a value that the protocol cannot represent; `reason` names the field."""

    def __init__(self, reason: str) -> None:
        super().__init__("INVALID_REQUEST", reason, is_lasting=True)


class AuthenticationFailure(PeerFailure):
    """A peer that TLS or SASL does not let the client use: another attempt would fail as well; `reason` names the peer.

    `is_first`: no connection to the peer has worked before.
    """

    def __init__(self, reason: str, peer: Peer, is_first: bool) -> None:
        self.peer = peer
        self.is_first = is_first
        super().__init__("AUTHENTICATION_FAILED", reason, is_lasting=True)


PeerFailure.DISCONNECTED = PeerFailure("DISCONNECTED", "the connection ended before the answer")
PeerFailure.TIMED_OUT = PeerFailure("TIMED_OUT", "no answer came in time")
PeerFailure.UNKNOWN_ADDRESS = PeerFailure("UNKNOWN_ADDRESS", "the address of the node is not known")
PeerFailure.UNSUPPORTED_VERSION = PeerFailure(
    "UNSUPPORTED_VERSION", "the node does not support the API in a version of this one", is_lasting=True
)

Answer = Message | PeerFailure
AnswerCallback = Callable[[Answer, int], None]
# A request, or a function that makes it for the version in which it is sent.
Request = Message | Callable[[int], Message]


class PeerRequest:
    """One request on a connection: waiting, or sent in `version`."""

    __slots__ = ("api", "callback", "deadline", "has_answer", "is_for_any", "max_version", "message", "request_id", "version")

    def __init__(
        self,
        api: Api,
        message: Request,
        callback: AnswerCallback,
        has_answer: bool = True,
        max_version: int | None = None,
        is_for_any: bool = False,
    ) -> None:
        self.api = api
        self.message = message
        self.callback = callback
        self.has_answer = has_answer
        self.max_version = max_version
        self.is_for_any = is_for_any
        self.request_id = 0
        self.version = -1
        self.deadline: TimerTask | None = None

    def encode(self, client_id: str) -> bytearray:
        """Return the frame of the request in its version. Raises MessageError for values that the version does not have."""
        made = self.message
        message = made if isinstance(made, Message) else made(self.version)
        return encode_request(self.request_id & MAX_CORRELATION_ID, self.api, self.version, client_id, message)

    def decode_answer(self, frame: bytes | bytearray) -> Message:
        """Decode the answer. Raises FormatError for bytes that are not an answer to this request."""
        version = self.version
        correlation_id, position = read_response_header(frame, self.api, version)
        if correlation_id != self.request_id & MAX_CORRELATION_ID:
            raise DecodeError(f"correlation id {correlation_id} instead of {self.request_id & MAX_CORRELATION_ID}", 0)
        if self.api.key == API_VERSIONS and frame[4:6] == error_codes.UNSUPPORTED_VERSION.to_bytes(2, "big"):
            version = 0  # KIP-511: so that a client that is newer than the node can read it
        response, _ = self.api.response.decode(frame, version, position)
        return response
