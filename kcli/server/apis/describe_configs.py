"""DescribeConfigs: the configurations of topics, brokers, groups and client metrics, and where each comes from.

    resource                          what a client needs
    --------------------------------  -----------------------------------
    TOPIC                             DESCRIBE_CONFIGS on the topic
    GROUP                             DESCRIBE_CONFIGS on the group
    BROKER, BROKER_LOGGER,            DESCRIBE_CONFIGS on the cluster
    CLIENT_METRICS

What is shown is kcli.server.config.describe_configs' affair. A request that names a resource of an unknown type is refused
as a whole, as in Kafka. Documentation, where it is asked for, is what kcli says of a key; null of keys without effect here.
"""

from __future__ import annotations

from collections.abc import Iterator

from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.apis.slices import Pace, answer_in_slices
from kcli.server.config.describe_configs import ConfigEntry, describe
from kcli.server.config.dynamic_config import DynamicConfig
from kcli.server.config.request_errors import ConfigRequestError
from kcli.state.metadata_values import CONFIG_RESOURCE_TYPES, ConfigResource

# Who refuses it, and with which error: by the type of the resource.
_GUARDS = {
    "TOPIC": ("TOPIC", error_codes.TOPIC_AUTHORIZATION_FAILED),
    "GROUP": ("GROUP", error_codes.GROUP_AUTHORIZATION_FAILED),
}
_ENTRY_US = 25


def handle_describe_configs(context: RequestContext, request: Message) -> None:
    """Answer a DescribeConfigsRequest, after a while where it asks for many resources."""
    response = context.new("DescribeConfigsResponse")
    answer_in_slices(context, _describe_all(context, request, response.results), response)


def _describe_all(context: RequestContext, request: Message, results: list[Message]) -> Iterator[None]:
    unknown = [item.resource_type for item in request.resources if item.resource_type not in CONFIG_RESOURCE_TYPES]
    dynamic, pace = context.broker.config, Pace()
    for item in request.resources:
        result = context.new(
            "DescribeConfigsResult", error_message="", resource_type=item.resource_type, resource_name=item.resource_name
        )
        results.append(result)
        if unknown:
            result.error_code = error_codes.INVALID_REQUEST
            result.error_message = f"{unknown[0]} is no type of resource that has configurations"
        else:
            yield from _answer(context, request, item, dynamic, result, pace)


def _answer(
    context: RequestContext, request: Message, item: Message, dynamic: DynamicConfig, result: Message, pace: Pace
) -> Iterator[None]:
    resource = ConfigResource(CONFIG_RESOURCE_TYPES[item.resource_type], item.resource_name)
    guard, code = _GUARDS.get(resource.type, ("CLUSTER", error_codes.CLUSTER_AUTHORIZATION_FAILED))
    named = (resource.name,) if guard != "CLUSTER" else ()
    if not context.is_allowed("DESCRIBE_CONFIGS", guard, *named):
        result.error_code = code
        result.error_message = (
            f"{context.connection.principal} may not see the configurations of {resource.type} {resource.name}"
        )
        return
    try:
        # An empty list of names is taken for none at all, as in Kafka.
        for entry in describe(resource, item.configuration_keys or None, context.broker.image, dynamic):
            result.configs.append(_entry(context, entry, request.include_synonyms))
            if pace.is_due(_ENTRY_US):
                yield
    except ConfigRequestError as error:
        result.error_code, result.error_message = error.code, str(error)
        return
    if request.include_documentation:
        _document(resource.type, result.configs)


def _document(resource_type: str, configs: list[Message]) -> None:
    from kcli.server.config.key_documentation import documentation_of  # texts that few ask for

    for config in configs:
        config.documentation = documentation_of(resource_type, config.name)


def _entry(context: RequestContext, entry: ConfigEntry, include_synonyms: bool) -> Message:
    synonyms = []
    if include_synonyms:
        for synonym in entry.synonyms:
            synonyms.append(
                context.new("DescribeConfigsSynonym", name=synonym.name, value=synonym.value, source=synonym.source)
            )
    return context.new(
        "DescribeConfigsResourceResult",
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        synonyms=synonyms,
        config_type=entry.type,
        documentation=None,
    )
