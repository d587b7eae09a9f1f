"""From a frame to its handler and back: the header, the version, the message, the answer (Kafka: KafkaApis).

what comes                                          what is done
--------------------------------------------------  --------------------------------------------------------------
bytes that are not a request, an unknown API or     the connection is closed, with one line in the log: without a
version, an API that is not served                  known version no answer can be formed
ApiVersions of an unknown version                   answered in version 0 with UNSUPPORTED_VERSION (KIP-511)
a message that cannot be decoded                    the connection is closed, with one line in the log
an exception in a handler                           answered with UNKNOWN_SERVER_ERROR if the response has an error
                                                    code of its own, else the connection is closed
any request after the broker has left the cluster   the connection is closed: the logs are being closed
a produce with acks=0                               no answer; an error closes the connection
"""

from __future__ import annotations

from collections.abc import Mapping

from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, API_VERSIONS, FETCH, SHARE_FETCH, Api
from kcli.protocol.framing import encode_response, encode_response_parts, read_request_header, with_correlation_id
from kcli.protocol.message import Message
from kcli.protocol.message_errors import MessageError
from kcli.server.api_versions import highest_version
from kcli.server.apis.context import BrokerParts, RequestContext
from kcli.server.apis.produce import first_error
from kcli.server.apis.registry import FORWARDED, SERVED, Handler, load_handler
from kcli.server.events import (
    CloseConnection,
    Connection,
    Effect,
    FileRegion,
    NoResponse,
    SendFile,
    SendResponse,
)
from kcli.server.log_lines import BROKER, REQUESTS, DebugLine, Loggers, fault_line
from kcli.server.metadata_cache import EncodedAnswer

# Their answers have regions of files.
_WITH_RECORDS = frozenset((FETCH, SHARE_FETCH))


class RequestRouter:
    """Passes clients' requests to their handlers.

    `handlers` has those that are objects with a state; the others are loaded when their first request comes. `effects` is the
    node's list of effects, `loggers` write its log.
    """

    def __init__(
        self,
        parts: BrokerParts,
        handlers: Mapping[int, Handler],
        effects: list[Effect],
        loggers: Loggers,
    ) -> None:
        self._parts = parts
        self._metrics = parts.metrics
        self._handlers = dict(handlers)
        self._effects = effects
        self._report = loggers[BROKER]
        self._requests = loggers[REQUESTS]
        self._has_unstable_versions = parts.config.get_bool("unstable.api.versions.enable")
        self.is_open = True

    def receive(self, connection: Connection, frame: memoryview, now_ms: int) -> None:
        """Handle one request, without the 4 bytes of its size."""
        if not self.is_open:
            self._effects.append(CloseConnection(connection, "the broker is stopping"))
            return
        try:
            key, version, correlation_id, client_id, position = read_request_header(frame)
            if key not in SERVED:
                raise MessageError(f"a request {API_KEYS[key].name}, which is not served")
            api = API_KEYS[key]
            if version > highest_version(key, self._has_unstable_versions) and key != API_VERSIONS:
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
            self._report(fault_line(f"reading {api.name} of version {version}", error))
            self._effects.append(CloseConnection(connection, f"its {api.name} caused a fault"))
            return
        self._metrics.request(key, version)
        if self._requests.is_debug:
            self._log_request(api, version, correlation_id, client_id, connection)
        context = RequestContext(self._parts, self, connection, api, version, correlation_id, client_id, now_ms)
        if key in FORWARDED:
            # It is forwarded as it came. It was decoded so that a malformed request is refused here, with a reason.
            self._parts.controller.forward(context, frame)
        else:
            self._serve(context, request)

    def _log_request(self, api: Api, version: int, correlation_id: int, client_id: str | None, connection: Connection) -> None:
        host, listener = connection.client_host, connection.listener
        text = f"{api.name} v{version} from {host} on {listener}, client id {client_id}, correlation id {correlation_id}"
        self._requests(DebugLine(text, api=api.name, version=version, host=host, listener=listener, client_id=client_id))

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
        """Log a fault of this program, and answer the request with UNKNOWN_SERVER_ERROR or close its connection."""
        api = context.api
        self._report(fault_line(f"serving {api.name} of version {context.version}", error))
        response = api.response.new()
        if not context.wants_answer or not _has_error_code(api, context.version):
            self._effects.append(CloseConnection(context.connection, f"its {api.name} caused a fault"))
            return
        response.error_code = error_codes.UNKNOWN_SERVER_ERROR
        self.respond(context, response)

    def respond(self, context: RequestContext, response: Message) -> None:
        """Send an answer. A client that wants none gets its next request handled, or its connection closed after an error."""
        connection = context.connection
        if not context.wants_answer:
            error = first_error(response)
            if error:
                reason = f"a produce with acks=0 failed: {error_codes.NAMES.get(error, error)}"
                self._effects.append(CloseConnection(connection, reason))
            else:
                self._effects.append(NoResponse(connection))
            return
        api, version = context.api, _response_version(context.api, context.version)
        self._metrics.errors.count(api.key, response)
        try:
            if api.key in _WITH_RECORDS:
                parts = encode_response_parts(context.correlation_id, api, version, response)
                if len(parts) > 1 or isinstance(parts[0], FileRegion):
                    self._effects.append(SendFile(connection, parts))
                    return
                self._effects.append(SendResponse(connection, parts[0]))
                return
            self._effects.append(SendResponse(connection, encode_response(context.correlation_id, api, version, response)))
        except MessageError as error:
            self._report(fault_line(f"answering {api.name} of version {version}", error))
            self._effects.append(CloseConnection(connection, f"its answer cannot be encoded: {error.message}"))

    def respond_encoded(self, context: RequestContext, answer: EncodedAnswer) -> None:
        """Send a copy of an encoded answer."""
        self._metrics.errors.add(context.api.key, answer.error_codes)
        self._effects.append(SendResponse(context.connection, with_correlation_id(answer.frame, context.correlation_id)))


def _response_version(api: Api, version: int) -> int:
    """Return the version of a response: the request's, but 0 for ApiVersions of an unknown version."""
    return 0 if api.key == API_VERSIONS and not api.lowest_version <= version <= api.highest_version else version


def _has_error_code(api: Api, version: int) -> bool:
    """Return whether a response has an error code for the whole of it."""
    answered = _response_version(api, version)
    return any(field.attribute == "error_code" and field.versions.has(answered) for field in api.response.schema.root.fields)
