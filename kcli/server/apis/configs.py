"""DescribeConfigs, ListConfigResources, and a broker's part of AlterConfigs: configurations and what can be configured.

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

    resource of (Incremental)         the broker (Kafka: ConfigAdminManager)
    AlterConfigs
    --------------------------------  --------------------------------------------------------------------------------------
    BROKER_LOGGER                     changes the levels itself, with ALTER_CONFIGS on the cluster; only IncrementalAlterConfigs
    BROKER, this id or ""             checks that it can run with the change, and forwards it to the controller
    BROKER, another id                refuses it with INVALID_REQUEST: only that broker can check the change
    any other                         checks what holds for all resources, and forwards it
    one that is refused, or is        answers it; the controller does not get it
    listed twice

ListConfigResources needs DESCRIBE_CONFIGS on the cluster. An unknown type is answered with UNSUPPORTED_VERSION for the whole.
The entries and their sources come from kcli.server.config.describe_configs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from kcli.protocol import error_codes
from kcli.protocol.framing import SIZE_BYTES, encode_request, read_response_header
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.config.alter_configs import Operation, preprocess, preprocess_replacement, resource_of
from kcli.server.config.config_results import ENTRY_US, describe_results
from kcli.server.config.describe_configs import list_config_resources
from kcli.server.config.logger_levels import alter_loggers, alter_response, joined_response, without
from kcli.server.config.request_errors import ConfigRequestError, invalid_request
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


def handle_incremental_alter_configs(context: RequestContext, request: Message) -> None:
    """Answer an IncrementalAlterConfigsRequest; what this broker neither does nor refuses is forwarded to the controller."""
    broker = context.broker
    is_allowed = context.is_allowed("ALTER_CONFIGS", "CLUSTER")
    answered = alter_loggers(request, broker.node_id, broker.loggers, is_allowed=is_allowed)

    def check(resource: ConfigResource, configs: list[Message]) -> None:
        operations = [Operation(config.name, config.config_operation, config.value) for config in configs]
        preprocess(resource, operations, broker.metadata.image, broker.config)

    _forward_checked(context, request, answered, check)


def handle_alter_configs(context: RequestContext, request: Message) -> None:
    """Answer an AlterConfigsRequest; what this broker does not refuse is forwarded to the controller."""

    def check(resource: ConfigResource, configs: list[Message]) -> None:
        if resource.type == "BROKER_LOGGER":
            raise invalid_request("levels of loggers are changed with IncrementalAlterConfigs")
        preprocess_replacement(resource, {config.name: config.value for config in configs}, context.broker.config)

    _forward_checked(context, request, {}, check)


def _forward_checked(
    context: RequestContext,
    request: Message,
    answered: dict[int, Message],
    check: Callable[[ConfigResource, list[Message]], None],
) -> None:
    """Forward the resources that are not answered yet and that `check` does not refuse with ConfigRequestError."""
    api, version = context.api, context.version
    counts = Counter((one.resource_type, one.resource_name) for one in request.resources)
    for place, one in enumerate(request.resources):
        if place in answered:
            continue
        try:
            if counts[one.resource_type, one.resource_name] > 1:
                raise invalid_request("the request names this resource twice")
            check(resource_of(one.resource_type, one.resource_name), one.configs)
        except ConfigRequestError as error:
            answered[place] = alter_response(api, one, error.code, str(error))
    others = without(api, request, answered)
    if not others.resources:
        context.respond(joined_response(api, answered))
        return

    def joined(data: bytes) -> None:
        _, position = read_response_header(data, api, version)
        response, _ = api.response.decode(data, version, position)
        context.respond(joined_response(api, answered, response.responses, response.throttle_time_ms))

    frame = encode_request(context.correlation_id, api, version, context.client_id or "", others)
    context.broker.controller.forward(context, frame[SIZE_BYTES:], joined)


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
