"""From a frame to its handler and back: the header, the version, the message, the answer.

what comes                                          what is done
--------------------------------------------------  --------------------------------------------------------------
bytes that are no request, an unknown API or        the connection is closed, with one line in the log: without a
version, an API that is not served                  known version no answer can be formed
ApiVersions of an unknown version                   answered in version 0 with UNSUPPORTED_VERSION (KIP-511)
a message that does not decode                      the connection is closed, likewise
a fault of ours in a handler                        the request's answer with UNKNOWN_SERVER_ERROR where its form has
                                                    an error for the whole, else the connection is closed
anything, once the broker has left the cluster      the connection is closed: its logs are being closed
a produce with acks=0                               nothing, whenever it is done; an error closes the connection
"""

from __future__ import annotations

from typing import Any

from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, API_VERSIONS, FETCH, Api
from kcli.protocol.errors import MessageError
from kcli.protocol.framing import encode_response, encode_response_parts, read_request_header
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.apis.produce import first_error
from kcli.server.apis.registry import FORWARDED, SERVED, Handler, load_handler
from kcli.server.events import CloseConnection, Connection, Effect, FileRegion, NoResponse, SendFile, SendResponse
from kcli.server.foreign_clients import foreign_protocol_by_api


class RequestRouter:
    """Hands the requests of clients to their handlers; `effects` is where the node collects what is to be done."""

    def __init__(self, broker: Any, effects: list[Effect], unstable_versions: bool = False) -> None:
        self._broker = broker
        self._effects = effects
        self._unstable_versions = unstable_versions
        self._handlers: dict[int, Handler] = {}
        self.is_open = True

    def serve_with(self, key: int, handler: Handler) -> None:
        """Serve an API with a method of an object."""
        self._handlers[key] = handler

    def highest_version(self, key: int) -> int:
        """The highest version of an API that is served."""
        api = API_KEYS[key]
        return api.highest_version - (api.is_latest_unstable and not self._unstable_versions)

    def receive(self, connection: Connection, frame: memoryview, now_ms: int) -> None:
        """Take a request."""
        if not self.is_open:
            self._effects.append(CloseConnection(connection, "the broker stops"))
            return
        try:
            key, version, correlation_id, client_id, position = read_request_header(frame)
            if key not in SERVED:
                raise MessageError(foreign_protocol_by_api(key) or f"a request {API_KEYS[key].name}, which is not served")
            api = API_KEYS[key]
            if version > self.highest_version(key) and key != API_VERSIONS:
                raise MessageError(f"a request {api.name} of version {version}, which is not stable")
        except MessageError as error:
            self._effects.append(CloseConnection(connection, error.message))
            return
        try:
            if key == API_VERSIONS and not api.lowest_version <= version <= api.highest_version:
                request = api.request.new()
            else:
                request, _ = api.request.decode(frame, version, position)
        except MessageError as error:
            self._effects.append(CloseConnection(connection, f"its {api.name} of version {version}: {error.message}"))
            return
        except Exception as error:
            self._broker.fault(f"reading {api.name} of version {version}", error)
            self._effects.append(CloseConnection(connection, f"its {api.name} met a fault"))
            return
        self._broker.metrics.request(key, version)
        context = RequestContext(self._broker, connection, api, version, correlation_id, client_id, now_ms)
        if key in FORWARDED:
            # It goes on as it came; it was read so that what does not decode ends here, with its reason.
            self._broker.forward(context, frame)
        else:
            self._serve(context, request)

    def _serve(self, context: RequestContext, request: Message) -> None:
        key = context.api.key
        try:
            handler = self._handlers.get(key)
            if handler is None:
                handler = self._handlers[key] = load_handler(key)
            response = handler(context, request)
        except Exception as error:
            self.failed(context, error)
            return
        if response is not None:
            self.respond(context, response)

    def failed(self, context: RequestContext, error: Exception) -> None:
        """A request met a fault of this program: say so in the log, and to the client as far as the form of its answer can."""
        api = context.api
        self._broker.fault(f"serving {api.name} of version {context.version}", error)
        response = api.response.new()
        if not context.wants_answer or not _has_error_code(api, context.version):
            self._effects.append(CloseConnection(context.connection, f"its {api.name} met a fault"))
            return
        response.error_code = error_codes.UNKNOWN_SERVER_ERROR
        self.respond(context, response)

    def respond(self, context: RequestContext, response: Message) -> None:
        """Send an answer; to who wants none, only let the next request come, or end the connection where there is an error."""
        connection = context.connection
        if not context.wants_answer:
            error = first_error(response)
            if error:
                reason = f"a produce with acks=0 failed: {error_codes.NAMES.get(error, error)}"
                self._effects.append(CloseConnection(connection, reason))
            else:
                self._effects.append(NoResponse(connection))
            return
        api, version = context.api, _answered_version(context.api, context.version)
        self._broker.metrics.errors.count(api.key, response)
        try:
            if api.key == FETCH:
                parts = encode_response_parts(context.correlation_id, api, version, response)
                if len(parts) > 1 or isinstance(parts[0], FileRegion):
                    self._effects.append(SendFile(connection, parts))
                    return
                self._effects.append(SendResponse(connection, parts[0]))
                return
            self._effects.append(SendResponse(connection, encode_response(context.correlation_id, api, version, response)))
        except MessageError as error:
            self._broker.fault(f"answering {api.name} of version {version}", error)
            self._effects.append(CloseConnection(connection, f"its answer cannot be written: {error.message}"))


def _answered_version(api: Api, version: int) -> int:
    """The version of an answer: the request's, but 0 for ApiVersions of a version that is not known."""
    return 0 if api.key == API_VERSIONS and not api.lowest_version <= version <= api.highest_version else version


def _has_error_code(api: Api, version: int) -> bool:
    """Whether an answer has an error for the whole of it."""
    answered = _answered_version(api, version)
    return any(field.attribute == "error_code" and field.versions.has(answered) for field in api.response.schema.root.fields)
