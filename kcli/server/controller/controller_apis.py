"""The requests that come to a controller, as Kafka's ControllerApis handles them.

    request                              is answered by
    -----------------------------------  -----------------------------------------------------------------------------
    ApiVersions                          this module, at once, also if nothing can be committed; so the new level of a feature
                                         is shown some ms before it is committed
    DescribeCluster,                     this module, from the image, once what the answer shows is committed
    ListPartitionReassignments
    DescribeQuorum                       this module, from the raft client
    DescribeConfigs                      this module, from this node's configuration and the image, in time slices, once
                                         it is committed; if it is reverted, the connection is closed
    those of the quorum itself           the raft client, now or later (kcli.server.raft.wire)
    those of SASL and ACLs               kcli.server.apis.security, at once
    IncrementalAlterConfigs of loggers   kcli.server.config.logger_levels, at once
    all in DECIDED                       the quorum controller, once their records are committed
    any other                            not served: MessageError, which closes the connection or
                                         becomes an error of the envelope

ApiVersions and DescribeCluster on a controller's listener differ from a broker's: the finalized features have the offset of the
high watermark as their epoch, and the nodes are the registered controllers; brokers must be asked for brokers (KIP-919).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from kcli.protocol import error_codes
from kcli.protocol.apis import (
    API_KEYS,
    API_VERSIONS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_QUORUM,
    ENVELOPE,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_PARTITION_REASSIGNMENTS,
)
from kcli.protocol.framing import encode_response, read_request_header
from kcli.protocol.message import Message
from kcli.protocol.message_errors import MessageError
from kcli.server.api_versions import describe_api_versions, refusal
from kcli.server.apis.security import WITHOUT_SECURITY, answer_security
from kcli.server.config.logger_levels import alter_loggers, joined_response, names_loggers, without
from kcli.server.controller.control_managers import DECIDED
from kcli.server.controller.controller_result import ControllerRequestContext
from kcli.server.controller.controller_state import ControllerState
from kcli.server.controller.quorum_controller import QuorumController
from kcli.server.events import Connection, Respond
from kcli.server.features import CONTROLLER_REGISTRATION_SINCE, METADATA_VERSION
from kcli.server.log_lines import CONTROLLER, Loggers, fault_line
from kcli.server.metrics.broker_metrics import ErrorCounts
from kcli.server.raft.kafka_raft_client import KafkaRaftClient
from kcli.server.raft.wire import RAFT_APIS, Wire
from kcli.server.scheduler import Scheduler

_DESCRIBED = frozenset((API_VERSIONS, DESCRIBE_CLUSTER, DESCRIBE_CONFIGS, DESCRIBE_QUORUM, LIST_PARTITION_REASSIGNMENTS))
SERVED = _DESCRIBED | DECIDED | RAFT_APIS | frozenset(WITHOUT_SECURITY)
# What a node forwards for a client comes in an Envelope, which kcli.server.node opens.
_SHOWN = SERVED | {ENVELOPE}
# The number of configurations that are described in one time slice, about 3 ms of work.
SLICE_CONFIGS = 100
# Endpoint types of a DescribeCluster request.
_BROKER_ENDPOINTS = 1
_CONTROLLER_ENDPOINTS = 2
_ENDPOINT_TYPES_SINCE = 1
_NO_CONTROLLER = -1
_FEATURES_SINCE = 3
_FEATURES_FROM_ZERO_SINCE = 4


class ControllerApis:
    """Decodes requests, has them answered, and encodes the responses; `errors` counts the error codes in them."""

    def __init__(
        self,
        raft: KafkaRaftClient,
        state: ControllerState,
        controller: QuorumController,
        scheduler: Scheduler,
        loggers: Loggers,
    ) -> None:
        self._raft = raft
        self._state = state
        self._controller = controller
        self._scheduler = scheduler
        self._report = loggers[CONTROLLER]
        self._loggers = loggers
        self.errors = ErrorCounts()

    def receive(self, connection: Connection, frame: memoryview, respond: Respond, now_ms: int) -> None:
        """Handle a request (header and message); `respond` is called once, now or later, with None to close the connection.

        Raises MessageError for a frame that is not a request that is served.
        """
        key, version, correlation_id, _, position = read_request_header(frame)
        if key not in SERVED:
            raise MessageError(f"a request {API_KEYS[key].name}, which the controller does not serve")
        api = API_KEYS[key]

        def answer(response: Message) -> None:
            self.errors.count(key, response)
            known = version if api.lowest_version <= version <= api.highest_version else 0
            try:
                respond(bytes(encode_response(correlation_id, api, known, response)))
            except MessageError as error:
                self._fail(f"answering {api.name} of version {version}", error, respond)

        if key == API_VERSIONS and not api.lowest_version <= version <= api.highest_version:
            answer(self._api_versions(version))
            return
        request, _ = api.request.decode(frame, version, position)
        if key == API_VERSIONS:
            code = refusal(version, request)
            answer(api.response.new(error_code=code) if code else self._api_versions(version))
            return
        read = self._controller.read
        if key in WITHOUT_SECURITY:
            answer(answer_security(key, request))
        elif key in RAFT_APIS:
            wire = Wire(self._state.cluster_id, version, connection.listener)
            self._raft.receive(key, request, wire, answer, now_ms)
        elif key == DESCRIBE_QUORUM:
            from kcli.server.raft.describe_quorum import describe_quorum

            answer(describe_quorum(request, version, self._raft, now_ms))
        elif key == LIST_PARTITION_REASSIGNMENTS:
            from kcli.server.controller.partition_control_manager import list_partition_reassignments

            read(lambda: list_partition_reassignments(request, self._state.image), answer)
        elif key == DESCRIBE_CLUSTER:
            listener = connection.listener
            read(lambda: describe_cluster(request, version, self._state, self._raft.leader_id, listener), answer)
        elif key == DESCRIBE_CONFIGS:
            self._describe_configs(request, answer, respond, now_ms)
        else:
            context = ControllerRequestContext(version, connection.principal, now_ms, connection.is_forwarded)
            if key == INCREMENTAL_ALTER_CONFIGS and names_loggers(request):
                self._alter_with_loggers(request, context, answer)
            else:
                self._controller.submit(key, request, context, answer)

    def _alter_with_loggers(
        self, request: Message, context: ControllerRequestContext, answer: Callable[[Message], None]
    ) -> None:
        """Change the levels of this node's loggers, and have the controller decide the other resources."""
        api, of_loggers = API_KEYS[INCREMENTAL_ALTER_CONFIGS], alter_loggers(request, self._state.node_id, self._loggers)
        others = without(api, request, of_loggers)
        if not others.resources:
            answer(joined_response(api, of_loggers))
            return

        def decided(response: Message) -> None:
            answer(joined_response(api, of_loggers, response.responses))

        self._controller.submit(INCREMENTAL_ALTER_CONFIGS, others, context, decided)

    def _api_versions(self, version: int) -> Message:
        return describe_api_versions(version, _SHOWN, self._state.image, self._raft.high_watermark - 1)

    def _fail(self, what: str, error: Exception, respond: Respond) -> None:
        self._report(fault_line(what, error))
        respond(None)

    def _describe_configs(self, request: Message, answer: Callable[[Message], None], respond: Respond, now_ms: int) -> None:
        """Describe configurations in time slices; a fault closes the connection: half an answer looks complete."""
        from kcli.server.config.config_results import describe_results

        response = API_KEYS[DESCRIBE_CONFIGS].response.new()
        # Authorization is the broker's; requests on a controller's listener are served without.
        entries = describe_results(
            request, response.results, self._state.image, self._state.dynamic, self._loggers, lambda resource: None
        )

        def slices() -> Iterator[None]:
            while sum(1 for _ in islice(entries, SLICE_CONFIGS)) == SLICE_CONFIGS:
                yield

        self._scheduler.run(
            slices(),
            now_ms,
            lambda now_ms: self._controller.when_committed(lambda: answer(response), lambda: respond(None)),
            lambda error: self._fail("serving DescribeConfigs", error, respond),
        )


def describe_cluster(request: Message, version: int, state: ControllerState, leader_id: int, listener: str) -> Message:
    """Answer DescribeCluster with the registered controllers that have the listener of the request."""
    api = API_KEYS[DESCRIBE_CLUSTER]
    level = state.image.features.get(METADATA_VERSION, 0)  # a controller that starts knows none
    if level < CONTROLLER_REGISTRATION_SINCE:
        sentence = f"metadata.version is {level}; clients of controllers need {CONTROLLER_REGISTRATION_SINCE} (3.7-IV0)"
        return api.response.new(error_code=error_codes.UNSUPPORTED_VERSION, error_message=sentence)
    if request.endpoint_type != _CONTROLLER_ENDPOINTS:
        code = error_codes.UNSUPPORTED_ENDPOINT_TYPE
        sentence = f"endpoint type {request.endpoint_type} is unknown; controllers have type {_CONTROLLER_ENDPOINTS}"
        if request.endpoint_type == _BROKER_ENDPOINTS:
            code = error_codes.MISMATCHED_ENDPOINT_TYPE
            sentence = "this is a controller: it can be asked for controllers only (--bootstrap-controller)"
        code = code if version >= _ENDPOINT_TYPES_SINCE else error_codes.INVALID_REQUEST
        return api.response.new(error_code=code, error_message=sentence)
    struct = api.response.classes["DescribeClusterBroker"]
    reached = {
        one.controller_id: one.endpoints[listener] for one in state.image.controllers.values() if listener in one.endpoints
    }
    response = api.response.new(
        endpoint_type=_CONTROLLER_ENDPOINTS,
        cluster_id=state.cluster_id,
        controller_id=leader_id if leader_id in reached else _NO_CONTROLLER,
        brokers=[struct(broker_id=node_id, host=at.host, port=at.port) for node_id, at in reached.items()],
    )
    if request.include_cluster_authorized_operations:
        from kcli.server.apis.metadata import all_operations

        response.cluster_authorized_operations = all_operations("CLUSTER")
    return response
