"""A broker's requests to the active controller: its own, and those of clients that it hands on (KIP-590, KIP-631).

    request                      carries                                         its answer
    ---------------------------  ----------------------------------------------  ---------------------------------------
    the broker's own             the message, in its highest version             decoded, for a callback
    a client's, in an Envelope   the client's frame as it came, its principal,   the controller's frame, handed to the
                                 its address                                     client as it is

Both are SendRequest effects to the controller's node, even where that is this one: the shell loops them back. An answer that
does not come (the connection failed) is None to a callback, and NOT_CONTROLLER in effect to a client, who is cut off and
tries again.
"""

from __future__ import annotations

from collections.abc import Callable

from kcli.format.primitives import FormatError
from kcli.protocol.apis import API_KEYS, ENVELOPE
from kcli.protocol.framing import encode_request, read_response_header
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.envelope import encode_principal, pack_host
from kcli.server.events import CloseConnection, Effect, ResponseReceived, SendRequest, SendResponse
from kcli.server.waiting import Waiting

Callback = Callable[[Message | None, int], None]


class ControllerChannel:
    """The way to the controller. `controller_id` says which node that is now."""

    def __init__(self, node_id: int, effects: list[Effect], controller_id: Callable[[], int]) -> None:
        self._client_id = f"broker-{node_id}"
        self._effects = effects
        self._controller_id = controller_id
        self._waiting = Waiting[bytes | None]()

    def send(self, api_key: int, message: Message, callback: Callback) -> None:
        """Send a request of the broker's own; `callback(response, now_ms)` gets None where no answer comes."""
        api = API_KEYS[api_key]
        version = api.highest_version

        def answered(frame: bytes | None, now_ms: int) -> None:
            response = None
            if frame is not None:
                _, position = read_response_header(frame, api, version)
                response, _ = api.response.decode(frame, version, position)
            callback(response, now_ms)

        self._send(lambda request_id: bytes(encode_request(request_id, api, version, self._client_id, message)), answered)

    def forward(self, context: RequestContext, frame: memoryview) -> None:
        """Hand a client's request on, and its answer back."""
        api = API_KEYS[ENVELOPE]
        connection = context.connection
        envelope = api.request.new(
            request_data=bytes(frame),
            request_principal=encode_principal(connection.principal),
            client_host_address=pack_host(connection.client_host or "127.0.0.1"),
        )

        def answered(answer: bytes | None, now_ms: int) -> None:
            inner = None
            try:
                if answer is not None:
                    _, position = read_response_header(answer, api, 0)
                    response, _ = api.response.decode(answer, 0, position)
                    inner = response.response_data if response.error_code == 0 else None
            except FormatError:
                inner = None
            if inner is None:
                self._effects.append(CloseConnection(connection, f"no controller answered its {context.api.name}"))
            else:
                self._effects.append(SendResponse(connection, len(inner).to_bytes(4, "big") + inner))

        self._send(lambda request_id: bytes(encode_request(request_id, api, 0, self._client_id, envelope)), answered)

    def _send(self, encode: Callable[[int], bytes], answered: Callable[[bytes | None, int], None]) -> None:
        request_id = self._waiting.add(answered)
        self._effects.append(SendRequest(request_id, self._controller_id(), encode(request_id)))

    def receive(self, event: ResponseReceived, now_ms: int) -> None:
        """Take an answer; one that nobody waits for is dropped."""
        self._waiting.answered(event.request_id, event.frame, now_ms)
