"""The managers that decide requests, each for its part of the metadata, and which request goes to which.

    manager                      requests
    ---------------------------  ---------------------------------------------------------------------------------------
    ClusterControlManager        BrokerRegistration, BrokerHeartbeat, UnregisterBroker, ControllerRegistration
    ReplicationControlManager    CreateTopics, CreatePartitions, DeleteTopics
    PartitionControlManager      AlterPartition, ElectLeaders, AssignReplicasToDirs, AlterPartitionReassignments
    ConfigurationControlManager  AlterConfigs, IncrementalAlterConfigs
    FeatureControlManager        UpdateFeatures
    ProducerIdControlManager     AllocateProducerIds

A manager's module is imported with the first request for it: importing all takes 18 ms, a tenth of a node's start.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from kcli.protocol.apis import (
    ALLOCATE_PRODUCER_IDS,
    ALTER_CONFIGS,
    ALTER_PARTITION,
    ALTER_PARTITION_REASSIGNMENTS,
    ASSIGN_REPLICAS_TO_DIRS,
    BROKER_HEARTBEAT,
    BROKER_REGISTRATION,
    CONTROLLER_REGISTRATION,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    ELECT_LEADERS,
    INCREMENTAL_ALTER_CONFIGS,
    UNREGISTER_BROKER,
    UPDATE_FEATURES,
)
from kcli.protocol.message import Message
from kcli.server.controller.cluster_control_manager import ClusterControlManager
from kcli.server.controller.controller_result import ControllerRequestContext, ControllerResult
from kcli.server.controller.controller_state import ControllerState

if TYPE_CHECKING:
    from kcli.server.controller.configuration_control_manager import ConfigurationControlManager
    from kcli.server.controller.feature_control_manager import FeatureControlManager
    from kcli.server.controller.partition_control_manager import PartitionControlManager
    from kcli.server.controller.producer_id_control_manager import ProducerIdControlManager
    from kcli.server.controller.replication_control_manager import ReplicationControlManager

Handler = Callable[[Message, ControllerRequestContext], ControllerResult]


class ControlManagers:
    """The managers of one controller, over one state."""

    def __init__(self, state: ControllerState) -> None:
        self._state = state
        self.cluster = ClusterControlManager(state)

    @cached_property
    def replication(self) -> ReplicationControlManager:
        """The manager of topics."""
        from kcli.server.controller.replication_control_manager import ReplicationControlManager

        return ReplicationControlManager(self._state)

    @cached_property
    def partitions(self) -> PartitionControlManager:
        """The manager of existing partitions."""
        from kcli.server.controller.partition_control_manager import PartitionControlManager

        return PartitionControlManager(self._state)

    @cached_property
    def configurations(self) -> ConfigurationControlManager:
        """The manager of configurations."""
        from kcli.server.controller.configuration_control_manager import ConfigurationControlManager

        return ConfigurationControlManager(self._state)

    @cached_property
    def features(self) -> FeatureControlManager:
        """The manager of features."""
        from kcli.server.controller.feature_control_manager import FeatureControlManager

        return FeatureControlManager(self._state)

    @cached_property
    def producer_ids(self) -> ProducerIdControlManager:
        """The manager of producer ids."""
        from kcli.server.controller.producer_id_control_manager import ProducerIdControlManager

        return ProducerIdControlManager(self._state)

    def handler_of(self, api_key: int) -> Handler:
        """Return the method that decides requests of an API. Raises KeyError for one that is not in DECIDED."""
        return _HANDLERS[api_key](self)


_HANDLERS: dict[int, Callable[[ControlManagers], Handler]] = {
    BROKER_REGISTRATION: lambda managers: managers.cluster.register_broker,
    BROKER_HEARTBEAT: lambda managers: managers.cluster.heartbeat,
    UNREGISTER_BROKER: lambda managers: managers.cluster.unregister_broker,
    CONTROLLER_REGISTRATION: lambda managers: managers.cluster.register_controller,
    CREATE_TOPICS: lambda managers: managers.replication.create_topics,
    CREATE_PARTITIONS: lambda managers: managers.replication.create_partitions,
    DELETE_TOPICS: lambda managers: managers.replication.delete_topics,
    ALLOCATE_PRODUCER_IDS: lambda managers: managers.producer_ids.allocate_producer_ids,
    ALTER_PARTITION: lambda managers: managers.partitions.alter_partition,
    ELECT_LEADERS: lambda managers: managers.partitions.elect_leaders,
    ASSIGN_REPLICAS_TO_DIRS: lambda managers: managers.partitions.assign_replicas_to_dirs,
    ALTER_PARTITION_REASSIGNMENTS: lambda managers: managers.partitions.alter_partition_reassignments,
    UPDATE_FEATURES: lambda managers: managers.features.update_features,
    ALTER_CONFIGS: lambda managers: managers.configurations.alter_configs,
    INCREMENTAL_ALTER_CONFIGS: lambda managers: managers.configurations.incremental_alter_configs,
}
# The APIs whose requests the quorum controller decides.
DECIDED = frozenset(_HANDLERS)
