"""The controller of a node, made out of its configuration: raft client, quorum controller, snapshots and request handling.

    part                  does
    --------------------  --------------------------------------------------------------------------------
    KafkaRaftClient       keeps the metadata log and delivers what is committed
    QuorumController      decides requests; when it becomes the leader, it writes the records that a leader begins with
    SnapshotGenerator     has snapshots written
    ControllerRegistra-   registers this controller with the leader, if it does not lead
    tionManager
    ControllerApis        decodes requests and encodes responses

kcli.server.node drives it (ControllerPort).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

from kcli.format.kafka_uuid import ZERO_UUID, Uuid, random_uuid
from kcli.log.disk.port import LogDisk
from kcli.log.file_cache import FileCache
from kcli.log.rng import Random
from kcli.network.timing_wheel import Timer
from kcli.protocol.message import Message
from kcli.server.config.dynamic_config import DynamicConfig
from kcli.server.config.listeners import NOT_BOUND, BoundAddresses
from kcli.server.config.server_config import ServerConfig
from kcli.server.controller.activation import activation_records
from kcli.server.controller.control_managers import ControlManagers
from kcli.server.controller.controller_apis import ControllerApis
from kcli.server.controller.controller_registration_manager import ControllerRegistrationManager
from kcli.server.controller.controller_state import ControllerState
from kcli.server.controller.formatting import METADATA_PARTITION
from kcli.server.controller.quorum_controller import ControllerTimes, QuorumController
from kcli.server.controller.snapshot_generator import SnapshotGenerator, SnapshotTimes
from kcli.server.events import Connection, Respond
from kcli.server.features import CONTROLLER_REGISTRATION_SINCE, supported_features
from kcli.server.log_lines import CONTROLLER, Loggers
from kcli.server.outstanding import Flushes
from kcli.server.raft.kafka_raft_client import KafkaRaftClient, Network, RaftConfig, RaftListener
from kcli.server.raft.messages import Destination, ListenerEndpoint, ReplicaKey
from kcli.server.raft.metadata_log import MetadataLogConfig, MetadataLogError
from kcli.server.raft.replica import RaftCoreConfig
from kcli.server.raft.snapshot_writer import SnapshotWriter
from kcli.server.raft.startable_quorum import refusal
from kcli.server.raft.voter_set import voter_node
from kcli.server.scheduler import Scheduler
from kcli.state.image_records import controller_record
from kcli.state.metadata_values import ControllerRegistration, Endpoint, Voter


class ControllerServer:
    """The controller of one node. `directory_ids` are those of all log directories, by path.

    `on_storage_failure(error, now_ms)` is called once if the metadata log cannot be written any more.
    """

    def __init__(
        self,
        config: ServerConfig,
        cluster_id: str,
        directory_ids: Mapping[str, Uuid | None],
        disk: LogDisk,
        files: FileCache,
        rng: Random,
        timer: Timer,
        flushes: Flushes,
        scheduler: Scheduler,
        network: Network,
        loggers: Loggers,
        on_storage_failure: Callable[[OSError, int], None],
        bound: BoundAddresses = NOT_BOUND,
    ) -> None:
        self._config = config
        self._bound = bound
        self._disk = disk
        self._rng = rng
        report = loggers[CONTROLLER]
        raft_settings = raft_config(config, cluster_id, directory_ids, bound)
        self.raft = KafkaRaftClient(
            raft_settings, disk, files, timer, flushes.flush, scheduler, network, rng, report, on_storage_failure
        )
        self.state = ControllerState(cluster_id, rng, DynamicConfig(config, report), lambda: self.raft.next_offset)
        balances = config.get_bool("auto.leader.rebalance.enable")
        times = ControllerTimes(
            config.get_int("metadata.max.idle.interval.ms"),
            config.get_int("leader.imbalance.check.interval.seconds") * 1000 if balances else 0,
            config.get_int("unclean.leader.election.interval.ms"),
        )
        self.controller = QuorumController(
            self.raft, self.state, ControlManagers(self.state), timer, scheduler, times, self._first_records, report
        )
        snapshot_times = SnapshotTimes(
            config.get_int("metadata.log.max.record.bytes.between.snapshots"),
            config.get_int("metadata.log.max.snapshot.interval.ms"),
        )
        self.snapshot_writer = SnapshotWriter(self.raft, timer, scheduler, report)
        self._snapshots = SnapshotGenerator(self.raft, self.snapshot_writer, self.state.committed_image, snapshot_times)
        self._registrations = ControllerRegistrationManager(
            self.raft, self.state, network, timer, lambda: self._registration, report
        )
        self._apis = ControllerApis(self.raft, self.state, self.controller, scheduler, loggers)
        self.errors = self._apis.errors

    @property
    def leader_id(self) -> int:
        """The leader of the quorum as far as this node knows, -1 for none."""
        return self.raft.leader_id

    def register(self, listener: RaftListener) -> None:
        """Add a listener before the start. It gets each batch before the controller answers the batch's requests."""
        self.raft.register(listener)

    def receive(self, connection: Connection, frame: memoryview, respond: Respond, now_ms: int) -> None:
        """Handle a request, as ControllerApis.receive does, which raises MessageError."""
        self._apis.receive(connection, frame, respond, now_ms)

    def start(self, now_ms: int) -> None:
        """Open the metadata log and take part in the quorum. Raises as KafkaRaftClient.start does, and MetadataLogError."""
        self.raft.register(self.controller)
        self.raft.register(self._snapshots)
        self.raft.register(self._registrations)
        self.raft.start(now_ms)
        reason = refusal(self.raft, is_broker=self._config.is_broker)
        if reason is not None:
            raise MetadataLogError(reason)

    def is_caught_up(self) -> bool:
        """Return whether the listeners have everything that was committed at the start."""
        return self.controller.is_active

    def stop(self, now_ms: int, stopped: Callable[[int], None]) -> None:
        """Hand over the leadership, close the metadata log, and call `stopped(now_ms)`."""
        self.raft.stop(stopped, now_ms)

    def _first_records(self) -> Iterator[list[Message]]:
        """Yield the batches that a leader begins with; the last one registers this controller. Raises MetadataLogError."""
        min_isr = self.state.setting("min.insync.replicas")
        records = activation_records(self.state.image, self._disk, self._config.metadata_log_dir, min_isr)
        if records:
            yield records
        if self.state.metadata_version >= CONTROLLER_REGISTRATION_SINCE:
            yield [controller_record(self._registration)]

    @cached_property
    def _registration(self) -> ControllerRegistration:
        """The registration of this process; the leader writes its own, the others send it."""
        endpoints = {
            at.name: Endpoint(at.host, at.port, at.security_protocol)
            for at in map(self._bound.resolve, self._config.advertised_controller_listeners)
        }
        incarnation_id = random_uuid(self._rng.randbytes)
        return ControllerRegistration(self._config.node_id, incarnation_id, False, endpoints, supported_features())


def raft_config(
    config: ServerConfig, cluster_id: str, directory_ids: Mapping[str, Uuid | None], bound: BoundAddresses = NOT_BOUND
) -> RaftConfig:
    """Return the settings of the raft client in a node's configuration."""
    names = config.controller_listener_names
    listener = names[0] if names else "CONTROLLER"
    static = [Voter(node_id, ZERO_UUID, {listener: address}) for node_id, address in sorted(config.quorum_voters.items())]
    own = map(bound.resolve, config.advertised_controller_listeners)
    core = RaftCoreConfig(
        local=ReplicaKey(config.node_id, directory_ids.get(config.metadata_log_dir) or ZERO_UUID),
        cluster_id=cluster_id,
        listener=listener,
        endpoints=tuple(ListenerEndpoint(at.name.upper(), at.host, at.port) for at in own),
        static_voters=tuple(map(voter_node, static)),
        # The ids that Kafka gives to nodes whose ids it does not know.
        bootstrap_servers=tuple(Destination(-2 - n, *address) for n, address in enumerate(config.quorum_bootstrap_servers)),
        is_controller=config.is_controller,
        elects_at_once=config.get_bool("kcli.quorum.elect.at.once"),
        joins_automatically=config.get_bool("controller.quorum.auto.join.enable"),
        election_timeout_ms=config.get_int("controller.quorum.election.timeout.ms"),
        election_backoff_max_ms=config.get_int("controller.quorum.election.backoff.max.ms"),
        fetch_timeout_ms=config.get_int("controller.quorum.fetch.timeout.ms"),
        request_timeout_ms=config.get_int("controller.quorum.request.timeout.ms"),
        retry_backoff_ms=config.get_int("controller.quorum.retry.backoff.ms"),
        fetch_max_bytes=config.get_int("controller.quorum.fetch.max.bytes"),
        fetch_snapshot_max_bytes=config.get_int("controller.quorum.fetch.snapshot.max.bytes"),
    )
    log = MetadataLogConfig(
        segment_bytes=config.get_int("metadata.log.segment.bytes"),
        segment_ms=config.get_int("metadata.log.segment.ms"),
        retention_bytes=config.get_int("metadata.max.retention.bytes"),
        retention_ms=config.get_int("metadata.max.retention.ms"),
        recovery_quarantine_dir=config.get_str("kcli.recovery.quarantine.dir"),
    )
    return RaftConfig(f"{config.metadata_log_dir}/{METADATA_PARTITION}", core, log)
