"""The broker: makes its parts and connects them. It never waits and never reads a clock: see kcli.server.events.

part                            does
------------------------------  ------------------------------------------------------------------------------------
RequestRouter                   decodes clients' requests, calls their handlers, encodes the answers
ReplicaManager                  hosts partitions; keeps the requests that wait for them
ReplicaFetcherManager           copies the records of partitions that other brokers lead
LogManager                      the logs in the log directories
NodeToControllerChannelManager  sends requests to the controller: the broker's own, and those of clients that are forwarded
BrokerLifecycleManager          registers, sends heartbeats, is unfenced, and leaves the cluster
BrokerStartup                   the steps of start and stop
MetadataPublisher               applies committed metadata to partitions, configurations and topics
AlterPartitionManager           proposes the ISRs of led partitions to the controller
AssignmentsManager              reports the log directories of replicas; ReplicaMoves moves replicas between directories
ProducerIdManager               ids for idempotent producers
GroupCoordinator                consumer groups and their committed offsets
TransactionCoordinator          transactional ids and their transactions
AddPartitionsToTxnManager       verifies transactions before their first batch in a partition
ShareCoordinator                the states of share partitions; DefaultStatePersister reads and writes them for this broker
SharePartitionManager           what share groups read from the partitions that this broker leads
AutoTopicCreationManager        topics that clients name and that do not exist
"""

from __future__ import annotations

from collections.abc import Callable

from kcli.format.kafka_uuid import Uuid
from kcli.log.disk.port import LogDisk
from kcli.log.log_manager import LogManager
from kcli.network.peers import Peers
from kcli.protocol.apis import API_KEYS, BROKER_REGISTRATION, FETCH, PRODUCE
from kcli.protocol.message import Message
from kcli.server.apis.context import BrokerParts
from kcli.server.apis.fetch import FetchHandler
from kcli.server.apis.produce import ProduceHandler
from kcli.server.authorizer import AllowAll
from kcli.server.broker.alter_partition_manager import AlterPartitionManager
from kcli.server.broker.assignments_manager import AssignmentsManager
from kcli.server.broker.broker_lifecycle import BrokerLifecycleManager
from kcli.server.broker.metadata_publisher import Coordinators, MetadataPublisher, Replicas
from kcli.server.broker.node_to_controller_channel import NodeToControllerChannelManager
from kcli.server.broker.producer_ids import ProducerIdManager
from kcli.server.broker.replica_moves import ReplicaMoves
from kcli.server.broker.request_router import RequestRouter
from kcli.server.broker.startup import BrokerStartup, MetadataSource
from kcli.server.broker.topic_creation import AutoTopicCreationManager
from kcli.server.config.dynamic_config import DynamicConfig
from kcli.server.config.listeners import BoundAddresses
from kcli.server.config.server_config import ServerConfig
from kcli.server.config.topic_config import TopicConfigs
from kcli.server.coordinator.group.group_coordinator import GroupCoordinator
from kcli.server.coordinator.share.share_coordinator import SHARE_STATE_TOPIC, ShareCoordinator
from kcli.server.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kcli.server.events import Connection
from kcli.server.features import supported_features
from kcli.server.log_lines import BROKER, GROUPS, REPLICATION, SHARE, TRANSACTIONS
from kcli.server.metadata_cache import MetadataCache
from kcli.server.metrics.broker_metrics import BrokerMetrics
from kcli.server.metrics.client_metrics import ClientMetricsManager
from kcli.server.node_parts import NodeParts
from kcli.server.outstanding import Flushes
from kcli.server.replication.replica_fetcher import ReplicaFetcherManager
from kcli.server.replication.replica_manager import ReplicaManager
from kcli.server.replication.replication_quota import FOLLOWER, ReplicationQuota
from kcli.server.replication.share.dead_letters import ShareGroupDLQManager
from kcli.server.replication.share.share_partition_manager import SharePartitionManager
from kcli.server.replication.share_persister import DefaultStatePersister, ShareKey
from kcli.server.replication.transaction_verification import AddPartitionsToTxnManager
from kcli.server.scheduler import Scheduler
from kcli.state.image_records import CORDONED_LOG_DIRS_SINCE, number_of
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import SECURITY_PROTOCOLS


class Broker:
    """One broker; `bound` has the addresses of its listeners. `accepts_stray`: see BrokerStartup."""

    def __init__(
        self,
        config: ServerConfig,
        cluster_id: str,
        node: NodeParts,
        log_manager: LogManager,
        metadata_log: MetadataSource,
        controller: NodeToControllerChannelManager,
        bound: BoundAddresses,
        *,
        accepts_stray: bool = False,
    ) -> None:
        disk, _, rng, timer, effects, flushes, computations, scheduler, peers, loggers = node
        self.config = DynamicConfig(config, loggers[BROKER])
        self.node_id = config.node_id
        self.cluster_id = cluster_id
        self.timer = timer
        self.rng = rng
        self.log_manager = log_manager
        self.report = loggers[BROKER]
        self._loggers = loggers
        self.metadata = MetadataCache()
        self.metrics = BrokerMetrics()
        self.client_metrics = ClientMetricsManager(rng)
        self.computations = computations
        self.scheduler = scheduler
        log_manager.cordoned_dirs = lambda: self.cordoned_log_dirs
        self.topic_configs = TopicConfigs(self.config, self.metadata)
        self.replica_manager = self._make_replica_manager(flushes)
        self.controller = controller
        self.topic_creation = AutoTopicCreationManager(self.config, self.controller, timer, self.report)
        self.share_coordinator = ShareCoordinator(
            self.config, self.metadata, self.replica_manager, timer, scheduler, loggers[SHARE]
        )
        self.share_persister = DefaultStatePersister(
            self.config, self._share_coordinator_of, peers, config.inter_broker_listener_name, timer
        )
        self.groups = self._make_groups(peers)
        self.lifecycle = BrokerLifecycleManager(self, Uuid(rng.randbytes(16)))
        self.alter_partition = AlterPartitionManager(self.node_id, self.lifecycle, self.controller, timer)
        self.replica_manager.propose_isr = self.alter_partition.propose
        self.producer_ids = ProducerIdManager(self.node_id, self.lifecycle, self.controller, timer)
        self.transactions = self._make_transactions(peers)
        self.share_partitions = self._make_share_partitions(peers, disk)
        self._bound = bound
        self.assignments = AssignmentsManager(self.node_id, self.lifecycle, self.controller, timer)
        self.moves = ReplicaMoves(self.replica_manager, self.metadata, self.assignments, self.report)
        self.fetchers = self._make_fetchers(peers)
        self.publisher = self._make_publisher()
        self._startup = BrokerStartup(self, metadata_log, accepts_stray=accepts_stray)
        self.parts = self._make_parts(disk, peers, flushes)
        self.fetch = FetchHandler(self.parts, rng)
        self.produce = ProduceHandler(self.parts, self.topic_configs, timer, effects)
        handlers = {PRODUCE: self.produce.handle, FETCH: self.fetch.handle}
        self.router = RequestRouter(self.parts, handlers, effects, loggers)

    def _make_replica_manager(self, flushes: Flushes) -> ReplicaManager:
        return ReplicaManager(
            self.node_id,
            self.metadata,
            self.log_manager,
            self.timer,
            flushes,
            self._loggers[REPLICATION],
            self.config.get_int("replica.lag.time.max.ms"),
        )

    def _share_coordinator_of(self, key: ShareKey) -> int | None:
        """Return the broker that coordinates a share partition; if the topic of the states does not exist, it is requested."""
        if self.image.topic(SHARE_STATE_TOPIC) is None:
            self.topic_creation.create([SHARE_STATE_TOPIC])
            return None
        return self.share_coordinator.node_for(key)

    def _make_share_partitions(self, peers: Peers, disk: LogDisk) -> SharePartitionManager:
        self.dead_letters = ShareGroupDLQManager(
            self.config,
            self.metadata,
            self.topic_configs,
            self.replica_manager,
            self.topic_creation,
            peers,
            self.config.static.inter_broker_listener_name,
            self.timer,
            self.rng,
            self.computations,
            disk,
            self._loggers[REPLICATION],
        )
        return SharePartitionManager(
            self.config,
            self.metadata,
            self.replica_manager,
            self.share_persister,
            self.timer,
            self.computations,
            disk,
            self.dead_letters,
        )

    def _make_groups(self, peers: Peers) -> GroupCoordinator:
        return GroupCoordinator(
            self.config,
            self.metadata,
            self.replica_manager,
            self.timer,
            self.scheduler,
            self.rng,
            self.share_persister,
            peers,
            self.config.static.inter_broker_listener_name,
            self._loggers[GROUPS],
        )

    def _make_transactions(self, peers: Peers) -> TransactionCoordinator:
        return TransactionCoordinator(
            self.config,
            self.metadata,
            self.replica_manager,
            self.producer_ids,
            peers,
            self.config.static.inter_broker_listener_name,
            self.timer,
            self.scheduler,
            self._loggers[TRANSACTIONS],
        )

    def _make_fetchers(self, peers: Peers) -> ReplicaFetcherManager:
        return ReplicaFetcherManager(
            self.config,
            self.replica_manager,
            peers,
            self.config.static.inter_broker_listener_name,
            self.scheduler,
            self.metrics,
            lambda: self.lifecycle.broker_epoch,
            ReplicationQuota(FOLLOWER, self.node_id, self.config, self.metadata),
        )

    def _make_publisher(self) -> MetadataPublisher:
        return MetadataPublisher(
            self.config,
            self.metadata,
            self.topic_configs,
            Replicas(self.replica_manager, self.fetchers, self.moves, self.assignments),
            Coordinators(self.groups, self.transactions, self.share_coordinator),
            self.metrics,
            self.scheduler,
            self.lifecycle.incarnation_id,
            self.report,
        )

    def _make_parts(self, disk: LogDisk, peers: Peers, flushes: Flushes) -> BrokerParts:
        return BrokerParts(
            node_id=self.node_id,
            cluster_id=self.cluster_id,
            config=self.config,
            metadata=self.metadata,
            replica_manager=self.replica_manager,
            groups=self.groups,
            transactions=self.transactions,
            share_partitions=self.share_partitions,
            txn_verification=AddPartitionsToTxnManager(
                self.config, self.transactions, peers, self.config.static.inter_broker_listener_name, self.timer
            ),
            share_coordinator=self.share_coordinator,
            share_persister=self.share_persister,
            authorizer=AllowAll(),
            metrics=self.metrics,
            client_metrics=self.client_metrics,
            producer_ids=self.producer_ids,
            topic_creation=self.topic_creation,
            computations=self.computations,
            scheduler=Scheduler(self.timer, flushes.flush),  # of requests alone: it closes before the broker's own work ends
            timer=self.timer,
            disk=disk,
            loggers=self._loggers,
            controller=self.controller,
        )

    @property
    def image(self) -> MetadataImage:
        """The metadata as the broker knows it."""
        return self.metadata.image

    @property
    def metadata_offset(self) -> int:
        """The offset of the last metadata record that was applied, -1 for none."""
        return self.metadata.offset

    @property
    def cordoned_log_dirs(self) -> list[str]:
        """The log directories that get no new replicas, none if the metadata.version does not have them (KIP-1066)."""
        is_served = self.image.metadata_version >= CORDONED_LOG_DIRS_SINCE
        return self.config.current.cordoned_log_dirs if is_served else []

    def begin(self, now_ms: int) -> None:
        """Begin to follow the metadata; the rest of the start follows from what is committed (kcli.server.broker.startup)."""
        self._startup.begin(now_ms)

    def stop(self, now_ms: int, on_stopped: Callable[[int], None]) -> None:
        """Begin to leave the cluster; `on_stopped(now_ms)` is called when the logs are closed."""
        self._startup.stop(now_ms, on_stopped)

    def describe_registration(self, request: Message) -> None:
        """Fill in the broker's addresses, features and log directories in a BrokerRegistration request."""
        listener, feature = (API_KEYS[BROKER_REGISTRATION].request.classes[name] for name in ("Listener", "Feature"))
        for found in map(self._bound.resolve, self.config.static.advertised_listeners):
            protocol = number_of(SECURITY_PROTOCOLS, found.security_protocol)
            request.listeners.append(listener(name=found.name, host=found.host, port=found.port, security_protocol=protocol))
        for name, versions in supported_features().items():
            request.features.append(
                feature(name=name, min_supported_version=versions.lowest, max_supported_version=versions.highest)
            )
        request.rack = self.config["broker.rack"]
        request.log_dirs = [log_dir.directory_id for log_dir in self.log_manager.online_dirs() if log_dir.directory_id]
        request.previous_broker_epoch = self.log_manager.clean_broker_epoch()

    def connection_closed(self, connection: Connection) -> None:
        """Drop the fetches that wait for a connection that has ended, and end its share session."""
        connection.is_closed = True
        self.fetch.connection_closed(connection)
        self.share_partitions.connection_closed(connection)
