"""The metadata quorum as a part of one node, made out of its configuration (Kafka: KafkaRaftManager, SharedServer).

    part               does
    -----------------  -------------------------------------------------------------------------------------------
    KafkaRaftClient    keeps the metadata log, as a voter or as an observer, and delivers what is committed
    SnapshotGenerator  has snapshots written; every node writes its own, brokers too

A controller and a broker in one process are listeners of the same raft client. A node that is only a broker is an observer: it
fetches from the leader and has no vote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kcli.format.file_names import METADATA_TOPIC, partition_directory_name
from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.protocol.message import Message
from kcli.server.config.listeners import NOT_BOUND, BoundAddresses
from kcli.server.config.server_config import ServerConfig
from kcli.server.features import FeatureError, check_finalized
from kcli.server.log_lines import CONTROLLER
from kcli.server.node_parts import NodeParts
from kcli.server.raft.kafka_raft_client import KafkaRaftClient, RaftConfig
from kcli.server.raft.messages import Destination, ListenerEndpoint, ReplicaKey, SnapshotId
from kcli.server.raft.metadata_batches import MetadataBatch
from kcli.server.raft.metadata_log import MetadataLogConfig, MetadataLogError
from kcli.server.raft.replica import RaftCoreConfig
from kcli.server.raft.snapshot_generator import SnapshotGenerator, SnapshotTimes
from kcli.server.raft.snapshot_writer import SnapshotWriter
from kcli.server.raft.startable_quorum import refusal
from kcli.server.raft.voter_set import voter_node
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import Voter


class KafkaRaftManager:
    """The raft client of one node and its snapshots. `directory_ids` are those of all log directories, by path.

    `on_storage_failure(error, now_ms)` is called once if the metadata log cannot be written any more.
    """

    def __init__(
        self,
        config: ServerConfig,
        cluster_id: str,
        directory_ids: Mapping[str, Uuid | None],
        node: NodeParts,
        on_storage_failure: Callable[[OSError, int], None],
        bound: BoundAddresses = NOT_BOUND,
    ) -> None:
        self._config = config
        report, timer, scheduler = node.loggers[CONTROLLER], node.timer, node.scheduler
        self.client = KafkaRaftClient(
            raft_config(config, cluster_id, directory_ids, bound),
            node.disk,
            node.files,
            timer,
            node.flushes.flush,
            scheduler,
            node.peers,
            node.rng,
            report,
            on_storage_failure,
        )
        self.snapshot_writer = SnapshotWriter(self.client, timer, scheduler, report)

    def start(self, committed_image: Callable[[], MetadataImage], now_ms: int) -> None:
        """Open the metadata log and take part in the quorum, after all other listeners of the client are registered.

        `committed_image()` returns a frozen copy of what these listeners have. Raises as KafkaRaftClient.start does, and
        MetadataLogError if this node cannot serve its quorum.
        """
        times = SnapshotTimes(
            self._config.get_int("metadata.log.max.record.bytes.between.snapshots"),
            self._config.get_int("metadata.log.max.snapshot.interval.ms"),
        )
        if not self._config.is_controller:
            self.client.register(_FeatureCheck(self.client.config.directory))
        self.client.register(SnapshotGenerator(self.client, self.snapshot_writer, committed_image, times))
        self.client.start(now_ms)
        reason = refusal(self.client, is_controller=self._config.is_controller)
        if reason is not None:
            raise MetadataLogError(reason)

    def stop(self, now_ms: int, stopped: Callable[[int], None], *, hands_over: bool = True) -> None:
        """Hand over the leadership, unless all voters stop, close the metadata log, and call `stopped(now_ms)`."""
        self.client.stop(stopped, now_ms, hands_over=hands_over)


class _FeatureCheck:
    """Ends a broker whose cluster gets features that it does not support; a controller checks them itself."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def on_snapshot(self, snapshot: SnapshotId, now_ms: int) -> None:
        """Do nothing: the batches of the snapshot follow."""

    def on_commit(self, batch: MetadataBatch, now_ms: int) -> None:
        """Check the features that the batch sets. Raises MetadataLogError."""
        check_features(self._directory, batch.records)

    def on_leader_change(self, leader_id: int, epoch: int, now_ms: int) -> None:
        """Do nothing."""


def check_features(path: str, records: Iterable[Message]) -> None:
    """Check that this node supports the features that records of `path` set. Raises MetadataLogError."""
    for record in records:
        if record.STRUCT.name == "FeatureLevelRecord":
            try:
                check_finalized(record.name, record.feature_level)
            except FeatureError as error:
                raise MetadataLogError(f"{path}: {error}") from error


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
    return RaftConfig(f"{config.metadata_log_dir}/{partition_directory_name(METADATA_TOPIC, 0)}", core, log)
