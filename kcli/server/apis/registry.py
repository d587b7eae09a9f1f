"""Which APIs this broker serves, and by whom; what stands here is what ApiVersions offers.

served by     how
------------  ----------------------------------------------------------------------------------------------------
a handler     a function (context, request) -> response, or None where it answers later; its module is loaded when
              the first such request comes
an object     the same as a method, for APIs with a state of their own: Produce and Fetch (kcli.server.broker.broker)
controller    the request goes on to the active controller in an Envelope, and its answer comes back as it is
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from kcli.protocol import apis
from kcli.protocol.apis import API_KEYS
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext

Handler = Callable[[RequestContext, Message], Message | None]

# API key -> module in this package, and function in it.
HANDLERS: dict[int, tuple[str, str]] = {
    apis.API_VERSIONS: ("api_versions", "handle_api_versions"),
    apis.METADATA: ("metadata", "handle_metadata"),
    apis.LIST_OFFSETS: ("list_offsets", "handle_list_offsets"),
    apis.OFFSET_FOR_LEADER_EPOCH: ("offset_for_leader_epoch", "handle_offset_for_leader_epoch"),
    apis.INIT_PRODUCER_ID: ("init_producer_id", "handle_init_producer_id"),
    apis.DELETE_RECORDS: ("delete_records", "handle_delete_records"),
    apis.DESCRIBE_CONFIGS: ("describe_configs", "handle_describe_configs"),
    apis.LIST_CONFIG_RESOURCES: ("list_config_resources", "handle_list_config_resources"),
    apis.DESCRIBE_CLUSTER: ("describe_cluster", "handle_describe_cluster"),
    apis.DESCRIBE_TOPIC_PARTITIONS: ("describe_topic_partitions", "handle_describe_topic_partitions"),
    apis.DESCRIBE_LOG_DIRS: ("describe_log_dirs", "handle_describe_log_dirs"),
    apis.ALTER_REPLICA_LOG_DIRS: ("alter_replica_log_dirs", "handle_alter_replica_log_dirs"),
    apis.DESCRIBE_PRODUCERS: ("describe_producers", "handle_describe_producers"),
    apis.GET_TELEMETRY_SUBSCRIPTIONS: ("telemetry", "handle_get_telemetry_subscriptions"),
    apis.PUSH_TELEMETRY: ("telemetry", "handle_push_telemetry"),
}
# Served by objects that the broker holds.
BROKER_OBJECTS = frozenset((apis.PRODUCE, apis.FETCH))
# Sent on to the controller. AlterConfigs of a broker's loggers would be the broker's own affair; it has none.
FORWARDED = frozenset(
    (
        apis.CREATE_TOPICS,
        apis.DELETE_TOPICS,
        apis.CREATE_PARTITIONS,
        apis.ALTER_CONFIGS,
        apis.INCREMENTAL_ALTER_CONFIGS,
        apis.ELECT_LEADERS,
        apis.UPDATE_FEATURES,
        apis.DESCRIBE_QUORUM,
        apis.ALTER_PARTITION_REASSIGNMENTS,
        apis.LIST_PARTITION_REASSIGNMENTS,
        apis.UNREGISTER_BROKER,
    )
)
SERVED = frozenset(HANDLERS) | BROKER_OBJECTS | FORWARDED


def highest_version(key: int, with_unstable: bool) -> int:
    """Return the highest version of an API that is served (unstable.api.versions.enable)."""
    api = API_KEYS[key]
    return api.highest_version - (api.is_latest_unstable and not with_unstable)


def load_handler(key: int) -> Handler:
    """The handler of an API. Raises KeyError for one that has none."""
    module, function = HANDLERS[key]
    handler: Handler = getattr(importlib.import_module(f"kcli.server.apis.{module}"), function)
    return handler
