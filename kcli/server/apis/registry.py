"""The APIs that a broker serves, which ApiVersions offers, and their handlers.

served by     how
------------  ----------------------------------------------------------------------------------------------------
a handler     a function (context, request) -> response, or None if it answers later; its module is loaded when the
              first such request comes. It may forward parts of the request, as for AlterConfigs
an object     a method of an object with a state of its own: Produce and Fetch (kcli.server.broker.broker)
controller    the request is forwarded to the active controller in an Envelope, and its answer is returned unchanged
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from kcli.protocol import apis
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext

Handler = Callable[[RequestContext, Message], Message | None]

# API key -> module in this package, and function in it.
HANDLERS: dict[int, tuple[str, str]] = {
    apis.API_VERSIONS: ("versions", "handle_api_versions"),
    apis.METADATA: ("metadata", "handle_metadata"),
    apis.LIST_OFFSETS: ("offsets", "handle_list_offsets"),
    apis.OFFSET_FOR_LEADER_EPOCH: ("offsets", "handle_offset_for_leader_epoch"),
    apis.FIND_COORDINATOR: ("find_coordinator", "handle_find_coordinator"),
    apis.JOIN_GROUP: ("classic_groups", "handle_join_group"),
    apis.SYNC_GROUP: ("classic_groups", "handle_sync_group"),
    apis.HEARTBEAT: ("classic_groups", "handle_heartbeat"),
    apis.LEAVE_GROUP: ("classic_groups", "handle_leave_group"),
    apis.DESCRIBE_GROUPS: ("classic_groups", "handle_describe_groups"),
    apis.LIST_GROUPS: ("classic_groups", "handle_list_groups"),
    apis.DELETE_GROUPS: ("classic_groups", "handle_delete_groups"),
    apis.CONSUMER_GROUP_HEARTBEAT: ("consumer_groups", "handle_consumer_group_heartbeat"),
    apis.CONSUMER_GROUP_DESCRIBE: ("consumer_groups", "handle_consumer_group_describe"),
    apis.SHARE_FETCH: ("share_fetch", "handle_share_fetch"),
    apis.SHARE_ACKNOWLEDGE: ("share_fetch", "handle_share_acknowledge"),
    apis.STREAMS_GROUP_HEARTBEAT: ("streams_groups", "handle_streams_group_heartbeat"),
    apis.STREAMS_GROUP_DESCRIBE: ("streams_groups", "handle_streams_group_describe"),
    apis.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE: ("streams_groups", "handle_topology_description_update"),
    apis.OFFSET_COMMIT: ("group_offsets", "handle_offset_commit"),
    apis.OFFSET_FETCH: ("group_offsets", "handle_offset_fetch"),
    apis.OFFSET_DELETE: ("group_offsets", "handle_offset_delete"),
    apis.INIT_PRODUCER_ID: ("producers", "handle_init_producer_id"),
    apis.ADD_PARTITIONS_TO_TXN: ("transactions", "handle_add_partitions_to_txn"),
    apis.ADD_OFFSETS_TO_TXN: ("transactions", "handle_add_offsets_to_txn"),
    apis.END_TXN: ("transactions", "handle_end_txn"),
    apis.WRITE_TXN_MARKERS: ("txn_markers", "handle_write_txn_markers"),
    apis.TXN_OFFSET_COMMIT: ("group_offsets", "handle_txn_offset_commit"),
    apis.DESCRIBE_TRANSACTIONS: ("transactions", "handle_describe_transactions"),
    apis.LIST_TRANSACTIONS: ("transactions", "handle_list_transactions"),
    apis.DELETE_RECORDS: ("offsets", "handle_delete_records"),
    apis.DESCRIBE_CONFIGS: ("configs", "handle_describe_configs"),
    apis.LIST_CONFIG_RESOURCES: ("configs", "handle_list_config_resources"),
    apis.INCREMENTAL_ALTER_CONFIGS: ("configs", "handle_incremental_alter_configs"),
    apis.ALTER_CONFIGS: ("configs", "handle_alter_configs"),
    apis.DESCRIBE_CLUSTER: ("metadata", "handle_describe_cluster"),
    apis.DESCRIBE_TOPIC_PARTITIONS: ("metadata", "handle_describe_topic_partitions"),
    apis.DESCRIBE_LOG_DIRS: ("log_dirs", "handle_describe_log_dirs"),
    apis.ALTER_REPLICA_LOG_DIRS: ("log_dirs", "handle_alter_replica_log_dirs"),
    apis.DESCRIBE_PRODUCERS: ("producers", "handle_describe_producers"),
    apis.SHARE_GROUP_HEARTBEAT: ("share_groups", "handle_share_group_heartbeat"),
    apis.SHARE_GROUP_DESCRIBE: ("share_groups", "handle_share_group_describe"),
    apis.DESCRIBE_SHARE_GROUP_OFFSETS: ("share_group_offsets", "handle_describe_share_group_offsets"),
    apis.ALTER_SHARE_GROUP_OFFSETS: ("share_group_offsets", "handle_alter_share_group_offsets"),
    apis.DELETE_SHARE_GROUP_OFFSETS: ("share_group_offsets", "handle_delete_share_group_offsets"),
    apis.INITIALIZE_SHARE_GROUP_STATE: ("share_state", "handle_initialize_share_group_state"),
    apis.READ_SHARE_GROUP_STATE: ("share_state", "handle_read_share_group_state"),
    apis.WRITE_SHARE_GROUP_STATE: ("share_state", "handle_write_share_group_state"),
    apis.DELETE_SHARE_GROUP_STATE: ("share_state", "handle_delete_share_group_state"),
    apis.READ_SHARE_GROUP_STATE_SUMMARY: ("share_state", "handle_read_share_group_state_summary"),
    apis.GET_TELEMETRY_SUBSCRIPTIONS: ("telemetry", "handle_get_telemetry_subscriptions"),
    apis.PUSH_TELEMETRY: ("telemetry", "handle_push_telemetry"),
    apis.SASL_HANDSHAKE: ("security", "handle_security"),
    apis.SASL_AUTHENTICATE: ("security", "handle_security"),
    apis.DESCRIBE_ACLS: ("security", "handle_security"),
    apis.CREATE_ACLS: ("security", "handle_security"),
    apis.DELETE_ACLS: ("security", "handle_security"),
}
# Served by objects of the broker.
BROKER_OBJECTS = frozenset((apis.PRODUCE, apis.FETCH))
# Forwarded to the controller as they came.
FORWARDED = frozenset(
    (
        apis.CREATE_TOPICS,
        apis.DELETE_TOPICS,
        apis.CREATE_PARTITIONS,
        apis.ELECT_LEADERS,
        apis.UPDATE_FEATURES,
        apis.DESCRIBE_QUORUM,
        apis.ALTER_PARTITION_REASSIGNMENTS,
        apis.LIST_PARTITION_REASSIGNMENTS,
        apis.UNREGISTER_BROKER,
        apis.UNREGISTER_CONTROLLER,
        apis.ADD_RAFT_VOTER,
        apis.REMOVE_RAFT_VOTER,
    )
)
SERVED = frozenset(HANDLERS) | BROKER_OBJECTS | FORWARDED


def load_handler(key: int) -> Handler:
    """Return the handler of an API. Raises KeyError for an API without one."""
    module, function = HANDLERS[key]
    handler: Handler = getattr(importlib.import_module(f"kcli.server.apis.{module}"), function)
    return handler
