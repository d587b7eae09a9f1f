"""The managers that decide requests, each for its part of the metadata, and which request goes to which.

A manager's module is imported with the first request for it: importing all takes 18 ms, a tenth of a node's start.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from kcli.protocol import apis
from kcli.protocol.message import Message
from kcli.server.controller.cluster_control_manager import ClusterControlManager
from kcli.server.controller.controller_result import ControllerRequestContext, ControllerResult
from kcli.server.controller.controller_state import ControllerState

Handler = Callable[[Message, ControllerRequestContext], ControllerResult]

# The module and class of each manager, and its method for each API.
_MANAGERS: dict[tuple[str, str], dict[int, str]] = {
    ("cluster_control_manager", "ClusterControlManager"): {
        apis.BROKER_REGISTRATION: "register_broker",
        apis.BROKER_HEARTBEAT: "heartbeat",
        apis.UNREGISTER_BROKER: "unregister_broker",
        apis.CONTROLLER_REGISTRATION: "register_controller",
        apis.UNREGISTER_CONTROLLER: "unregister_controller",
    },
    ("replication_control_manager", "ReplicationControlManager"): {
        apis.CREATE_TOPICS: "create_topics",
        apis.CREATE_PARTITIONS: "create_partitions",
        apis.DELETE_TOPICS: "delete_topics",
    },
    ("partition_control_manager", "PartitionControlManager"): {
        apis.ALTER_PARTITION: "alter_partition",
        apis.ELECT_LEADERS: "elect_leaders",
        apis.ASSIGN_REPLICAS_TO_DIRS: "assign_replicas_to_dirs",
        apis.ALTER_PARTITION_REASSIGNMENTS: "alter_partition_reassignments",
    },
    ("configuration_control_manager", "ConfigurationControlManager"): {
        apis.ALTER_CONFIGS: "alter_configs",
        apis.INCREMENTAL_ALTER_CONFIGS: "incremental_alter_configs",
    },
    ("feature_control_manager", "FeatureControlManager"): {apis.UPDATE_FEATURES: "update_features"},
    ("producer_id_control_manager", "ProducerIdControlManager"): {apis.ALLOCATE_PRODUCER_IDS: "allocate_producer_ids"},
}
# The APIs whose requests the quorum controller decides.
DECIDED = frozenset(key for methods in _MANAGERS.values() for key in methods)


class ControlManagers:
    """The managers of one controller, over one state."""

    def __init__(self, state: ControllerState) -> None:
        self._state = state
        self.cluster = ClusterControlManager(state)
        self._handlers: dict[int, Handler] = {}

    def handler_of(self, api_key: int) -> Handler:
        """Return the method that decides requests of an API in DECIDED."""
        if api_key not in self._handlers:
            (module, name), methods = next((of, methods) for of, methods in _MANAGERS.items() if api_key in methods)
            made = getattr(import_module(f"kcli.server.controller.{module}"), name)
            manager = self.cluster if made is ClusterControlManager else made(self._state)
            self._handlers |= {key: getattr(manager, method) for key, method in methods.items()}
        return self._handlers[api_key]
