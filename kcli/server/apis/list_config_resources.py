"""ListConfigResources: the names of what may be configured, by type (KIP-1142).

    version    lists
    ---------  -----------------------------------------------------------------------------------------------
    0          the subscriptions of client metrics; it was called ListClientMetricsResources then
    1          the types asked for, none: all. TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP

An unknown type: UNSUPPORTED_VERSION for the whole. It needs DESCRIBE_CONFIGS on the cluster.
"""

from __future__ import annotations

from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.config.describe_configs import list_config_resources
from kcli.server.config.request_errors import ConfigRequestError
from kcli.state.metadata_values import CONFIG_RESOURCE_TYPES

_CLIENT_METRICS = 16
_NUMBERS = {name: number for number, name in CONFIG_RESOURCE_TYPES.items()}


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
        context.new("ConfigResource", resource_name=resource.name, resource_type=_NUMBERS[resource.type]) for resource in found
    ]
    return context.new("ListConfigResourcesResponse", config_resources=resources)
