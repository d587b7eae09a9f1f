"""DescribeConfigs: the configurations of topics, brokers, groups and client metrics, and where each comes from.

    resource                          what a client needs
    --------------------------------  -----------------------------------
    TOPIC                             DESCRIBE_CONFIGS on the topic
    GROUP                             DESCRIBE_CONFIGS on the group
    BROKER, BROKER_LOGGER,            DESCRIBE_CONFIGS on the cluster
    CLIENT_METRICS

What is shown is kcli.server.config.describe_configs' affair, and how it is answered that of config_results beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.apis.slices import SliceBudget, answer_in_slices
from kcli.server.config.config_results import ENTRY_US, describe_results
from kcli.server.config.request_errors import ConfigRequestError
from kcli.state.metadata_values import ConfigResource

# Who refuses it, and with which error: by the type of the resource.
_GUARDS = {
    "TOPIC": ("TOPIC", error_codes.TOPIC_AUTHORIZATION_FAILED),
    "GROUP": ("GROUP", error_codes.GROUP_AUTHORIZATION_FAILED),
}


def handle_describe_configs(context: RequestContext, request: Message) -> None:
    """Answer a DescribeConfigsRequest, after a while where it asks for many resources."""
    response = context.new("DescribeConfigsResponse")
    broker = context.broker
    entries = describe_results(request, response.results, broker.metadata.image, broker.config, partial(_check_access, context))
    answer_in_slices(context, _sliced(entries), response)


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
