"""DescribeConfigs, ListConfigResources and the loggers of IncrementalAlterConfigs: configurations and what can be configured.

    resource of DescribeConfigs       a client needs
    --------------------------------  -----------------------------------
    TOPIC                             DESCRIBE_CONFIGS on the topic
    GROUP                             DESCRIBE_CONFIGS on the group
    BROKER, BROKER_LOGGER,            DESCRIBE_CONFIGS on the cluster
    CLIENT_METRICS

    version of ListConfigResources    lists (KIP-1142)
    --------------------------------  --------------------------------------------------------------------------------------
    0                                 the subscriptions of client metrics; the API was called ListClientMetricsResources
    1                                 the types asked for, or all: TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP

The levels of loggers (BROKER_LOGGER) are changed here, with ALTER_CONFIGS on the cluster; all other resources of an
IncrementalAlterConfigs are forwarded to the controller. ListConfigResources needs DESCRIBE_CONFIGS on the cluster. An unknown
type is answered with UNSUPPORTED_VERSION for the whole.
The entries and their sources come from kcli.server.config.describe_configs.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kcli.protocol import error_codes
from kcli.protocol.framing import SIZE_BYTES, encode_request, read_response_header
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.config.config_results import ENTRY_US, describe_results
from kcli.server.config.describe_configs import list_config_resources
from kcli.server.config.logger_levels import alter_loggers, joined_response, without_loggers
from kcli.server.config.request_errors import ConfigRequestError
from kcli.server.scheduler import SliceBudget
from kcli.state.image_records import number_of
from kcli.state.metadata_values import CONFIG_RESOURCE_TYPES, ConfigResource

# The resource type that is authorized, and the error of a refusal, by the type of the resource.
_GUARDS = {
    "TOPIC": ("TOPIC", error_codes.TOPIC_AUTHORIZATION_FAILED),
    "GROUP": ("GROUP", error_codes.GROUP_AUTHORIZATION_FAILED),
}
_CLIENT_METRICS = 16


def handle_describe_configs(context: RequestContext, request: Message) -> None:
    """Answer a DescribeConfigsRequest, in slices if it asks for many resources."""
    response = context.new("DescribeConfigsResponse")
    broker = context.broker
    entries = describe_results(
        request, response.results, broker.metadata.image, broker.config, broker.loggers, partial(_check_access, context)
    )
    context.respond_after(_sliced(entries), response)


def _sliced(entries: Iterator[None]) -> Iterator[None]:
    budget = SliceBudget()
    return (entry for entry in entries if budget.is_spent(ENTRY_US))


def _check_access(context: RequestContext, resource: ConfigResource) -> None:
    guard, code = _GUARDS.get(resource.type, ("CLUSTER", error_codes.CLUSTER_AUTHORIZATION_FAILED))
    named = (resource.name,) if guard != "CLUSTER" else ()
    if not context.is_allowed("DESCRIBE_CONFIGS", guard, *named):
        raise ConfigRequestError(
            code, f"{context.connection.principal} may not see the configurations of {resource.type} {resource.name}"
        )


def handle_loggers_of_alter_configs(context: RequestContext, request: Message) -> None:
    """Answer an IncrementalAlterConfigsRequest that names loggers; its other resources are forwarded to the controller."""
    broker = context.broker
    is_allowed = context.is_allowed("ALTER_CONFIGS", "CLUSTER")
    of_loggers, others = alter_loggers(request, broker.node_id, broker.loggers, is_allowed=is_allowed), without_loggers(request)
    if not others.resources:
        context.respond(joined_response(of_loggers))
        return
    api, version = context.api, context.version

    def answered(data: bytes) -> None:
        _, position = read_response_header(data, api, version)
        response, _ = api.response.decode(data, version, position)
        context.respond(joined_response(of_loggers, response.responses, response.throttle_time_ms))

    frame = encode_request(context.correlation_id, api, version, context.client_id or "", others)
    broker.controller.forward(context, frame[SIZE_BYTES:], answered)


def handle_list_config_resources(context: RequestContext, request: Message) -> Message:
    """Answer a ListConfigResourcesRequest."""
    if not context.is_allowed("DESCRIBE_CONFIGS", "CLUSTER"):
        return context.new("ListConfigResourcesResponse", error_code=error_codes.CLUSTER_AUTHORIZATION_FAILED)
    types = [_CLIENT_METRICS] if context.version == 0 else request.resource_types
    try:
        found = list_config_resources(types, context.broker.metadata.image)
    except ConfigRequestError as error:
        return context.new("ListConfigResourcesResponse", error_code=error.code)
    resources = [
        context.new("ConfigResource", resource_name=name, resource_type=number_of(CONFIG_RESOURCE_TYPES, kind))
        for kind, name in found
    ]
    return context.new("ListConfigResourcesResponse", config_resources=resources)
