"""Makes a node from a configuration and a disk: checks the log directories, creates all cores, and connects them.

the log directories are             then
----------------------------------  ----------------------------------------------------------------------------------
all empty                           they are formatted for a new cluster of this node alone, with a dynamic quorum; NodeError
                                    if controller.quorum.bootstrap.servers names other nodes, or if it is only a broker
formatted, all for one node         they are opened
some formatted, some empty          NodeError: the empty ones must be formatted or taken out of log.dirs
of two clusters or another node     NodeError: one sentence that names the directory and the setting
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from kcli.format.kafka_uuid import Uuid, random_uuid
from kcli.format.metadata_files import MetaProperties
from kcli.log.disk.port import LogDisk, parent_path
from kcli.log.errors import StorageError
from kcli.log.file_cache import FileCache
from kcli.log.log_manager import LogManager
from kcli.log.managing.log_registry import LogManagerSettings
from kcli.log.managing.replica_mover import CaughtUp
from kcli.log.rng import Random
from kcli.log.wall_time import WallTime
from kcli.network.events import NodeRole, PeerAddress, PeerNode
from kcli.network.peers import Peers, PeerSettings
from kcli.network.timing_wheel import Timer
from kcli.server.broker.broker import Broker
from kcli.server.broker.node_to_controller_channel import ChannelTimes, NodeToControllerChannelManager
from kcli.server.config.listeners import LOOPBACK_HOSTS, NOT_BOUND, UNROUTABLE_HOST, BoundAddresses
from kcli.server.config.server_config import ServerConfig, cleaner_settings
from kcli.server.controller.formatting import (
    METADATA_PARTITION,
    FormatPlan,
    FormattingError,
    format_directories,
    read_meta_properties,
)
from kcli.server.events import Effect
from kcli.server.features import initial_features
from kcli.server.log_lines import LOG, NETWORK, SERVER, Line, Loggers
from kcli.server.node import Node
from kcli.server.node_parts import NodeParts
from kcli.server.outstanding import Computations, Flushes
from kcli.server.raft.kafka_raft_client import KafkaRaftClient
from kcli.server.raft.raft_manager import KafkaRaftManager
from kcli.server.scheduler import Scheduler
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import Voter

Log = Callable[[str], None]
# Names that a directory may contain and still be formatted: files that a format writes before meta.properties, and lost+found.
_LEFT_BY_FORMATTING = frozenset(("bootstrap.checkpoint", METADATA_PARTITION, ".lock", "lost+found"))


class NodeError(Exception):
    """A node cannot be made; the message is one sentence."""


class Identity(NamedTuple):
    """The owner of the log directories: the cluster id, the directory ids by path, and the errors of unreadable directories."""

    cluster_id: str
    directory_ids: dict[str, Uuid | None]
    unreadable: dict[str, OSError]


def identify(
    config: ServerConfig, disk: LogDisk, rng: Random, now_ms: int, log: Log, bound: BoundAddresses = NOT_BOUND
) -> Identity:
    """Read which cluster and node own the log directories; format them if all are empty. Raises NodeError and OSError."""
    directories = list(dict.fromkeys([config.metadata_log_dir, *config.log_dirs]))
    metas: dict[str, MetaProperties | None] = {}
    unreadable: dict[str, OSError] = {}
    try:
        for path in directories:
            try:
                metas[path] = read_meta_properties(disk, path)
            except OSError as error:
                if path == config.metadata_log_dir:
                    raise
                # The log manager takes it offline and reports it, and serves the others.
                unreadable[path] = error
        empty = [path for path, meta in metas.items() if meta is None]
        if len(empty) == len(directories):
            for path in directories:
                _refuse_foreign_files(disk, path)
            _refuse_second_cluster(config, bound, directories)
            metas = _format_all(config, disk, rng, now_ms, directories, bound)
            paths = ", ".join(directories)
            log(Line(f"formatted {paths} for a new cluster", paths=paths))
        elif len(empty) == len(metas):
            unread = ", ".join(f"{path} ({error.strerror or error})" for path, error in unreadable.items())
            raise NodeError(f"{unread} cannot be read, and no other log directory is formatted")
        elif empty:
            raise NodeError(
                f"{', '.join(empty)} is not formatted, while other log directories are: format it with "
                f"`kcli format --ignore-formatted --cluster-id {_cluster_ids(metas)[0]}` or take it out of log.dirs"
            )
    except FormattingError as error:
        raise NodeError(str(error)) from error
    identity = _check(config, metas)
    return identity._replace(directory_ids=dict.fromkeys(directories) | identity.directory_ids, unreadable=unreadable)


def _refuse_foreign_files(disk: LogDisk, path: str) -> None:
    """Raise NodeError for a directory with other contents than an interrupted format leaves."""
    names = disk.list_directory(path) if disk.exists(path) else []
    foreign = [name for name in sorted(names) if name not in _LEFT_BY_FORMATTING and not name.endswith(".tmp")]
    if foreign:
        raise NodeError(
            f"{path} is not empty ({foreign[0]} is in it) and has no meta.properties, so it is not a node's: name another "
            "directory in log.dirs, or format it with `kcli format`"
        )


def _refuse_second_cluster(config: ServerConfig, bound: BoundAddresses, directories: list[str]) -> None:
    """Raise NodeError if the configuration names other controllers: formatting would begin a second cluster."""
    key = "controller.quorum.voters"
    voters = sorted(config.quorum_voters.keys() - {config.node_id})
    if voters:
        raise NodeError(
            f"{', '.join(directories)} is not formatted, and {key} names node {', '.join(map(str, voters))}, too"
            f"{config.where(key)}: format the directory with `kcli format --cluster-id` and the cluster id of all controllers"
        )
    if not config.is_controller:
        raise NodeError(
            f"{', '.join(directories)} is not formatted, and this node is a broker of a cluster: format the directory with "
            "`kcli format --cluster-id` and the cluster id of its controllers"
        )
    key = "controller.quorum.bootstrap.servers"
    others = [
        str(PeerAddress(host, port))
        for host, port in config.quorum_bootstrap_servers
        if not _is_own_controller(config, bound, host, port)
    ]
    if others:
        raise NodeError(
            f"{', '.join(directories)} is not formatted, and {key} names {', '.join(others)}, which is not this node"
            f"{config.where(key)}: remove the key to begin a new cluster, or format the directory with "
            "`kcli format --standalone`; to join as a controller (process.roles=controller), use "
            "`kcli format --no-initial-controllers --cluster-id`"
        )


def _is_own_controller(config: ServerConfig, bound: BoundAddresses, host: str, port: int) -> bool:
    """Return whether an address is one of this node's controller listeners, without a name server."""
    for listener in (*config.controller_listeners, *config.advertised_controller_listeners):
        own = bound.resolve(listener)
        is_on_loopback = listener.host in ("", UNROUTABLE_HOST, "::", *LOOPBACK_HOSTS)
        if port == own.port and (host.lower() == own.host.lower() or (is_on_loopback and host.lower() in LOOPBACK_HOSTS)):
            return True
    return False


def _format_all(
    config: ServerConfig, disk: LogDisk, rng: Random, now_ms: int, directories: list[str], bound: BoundAddresses
) -> dict[str, MetaProperties | None]:
    listeners = config.advertised_controller_listeners or config.advertised_listeners
    listener = bound.resolve(listeners[0])
    endpoints = {config.controller_listener_names[0]: (listener.host, listener.port)}
    plan = FormatPlan(
        cluster_id=None,
        node_id=config.node_id,
        directories=tuple(directories),
        metadata_directory=directories[0],
        features=initial_features({}, None, is_dynamic_quorum=True),
        voters=[Voter(config.node_id, random_uuid(rng.randbytes), endpoints)],
    )
    made = format_directories(disk, plan, rng.randbytes, now_ms)
    # The directories may be new entries of their parents.
    for parent in dict.fromkeys(parent_path(path) for path in directories):
        disk.flush_directory(parent)
    return {**made}


def _cluster_ids(metas: Mapping[str, MetaProperties | None]) -> list[str]:
    return list(dict.fromkeys(meta.cluster_id for meta in metas.values() if meta is not None and meta.cluster_id is not None))


def _check(config: ServerConfig, metas: Mapping[str, MetaProperties | None]) -> Identity:
    cluster_ids = _cluster_ids(metas)
    for path, meta in metas.items():
        if meta is not None and meta.cluster_id is None:
            raise NodeError(
                f"{path}/meta.properties states no cluster.id: put the file back as it was, or format another directory"
            )
        if meta is not None and meta.version == 0:
            raise NodeError(
                f"{path} belongs to a cluster with ZooKeeper (version=0 in meta.properties), which stored topics and their "
                "settings; Kafka removed ZooKeeper in 4.0: migrate the cluster to KRaft with Kafka 3.9 first, or name another "
                "directory in log.dirs; kcli dump-log and kcli describe read the directory as it is"
            )
    if len(cluster_ids) != 1:
        raise NodeError(f"the log directories belong to different clusters: {', '.join(cluster_ids)}; log.dirs mixes them up")
    for path, meta in metas.items():
        if meta is not None and meta.node_id is not None and meta.node_id != config.node_id:
            raise NodeError(
                f"{path} belongs to node {meta.node_id}, and node.id is {config.node_id}: set node.id={meta.node_id} "
                "or name another directory in log.dirs"
            )
    return Identity(cluster_ids[0], {path: None if meta is None else meta.directory_id for path, meta in metas.items()}, {})


def log_manager_settings(config: ServerConfig) -> LogManagerSettings:
    """Return the settings of the log manager."""
    return LogManagerSettings(
        retention_check_interval_ms=config.get_int("log.retention.check.interval.ms"),
        flush_scheduler_interval_ms=config.get_int("log.flush.scheduler.interval.ms"),
        flush_offset_checkpoint_interval_ms=config.get_int("log.flush.offset.checkpoint.interval.ms"),
        flush_start_offset_checkpoint_interval_ms=config.get_int("log.flush.start.offset.checkpoint.interval.ms"),
        high_watermark_checkpoint_interval_ms=config.get_int("replica.high.watermark.checkpoint.interval.ms"),
        file_delete_delay_ms=config.get_int("log.segment.delete.delay.ms"),
        initial_task_delay_ms=config.get_int("log.initial.task.delay.ms"),
        producer_id_expiration_ms=config.get_int("producer.id.expiration.ms"),
        producer_id_expiration_check_interval_ms=config.get_int("producer.id.expiration.check.interval.ms"),
        recovery_quarantine_dir=config.get_str("kcli.recovery.quarantine.dir"),
        cleaner_enable=config.get_bool("log.cleaner.enable"),
        **cleaner_settings(config),
    )


class ClusterAddresses:
    """The addresses of the cluster's nodes: the leader and voters from the quorum, all others from the committed metadata.

    `image()` returns the metadata as the broker of this node has applied it, or its controller if it is not a broker.
    """

    def __init__(self) -> None:
        self.quorum: KafkaRaftClient | None = None  # it is made after the connections, through which it sends
        self.image: Callable[[], MetadataImage] = MetadataImage

    def address_of(self, node: PeerNode, listener: str) -> PeerAddress | None:
        """Return the address of a node's listener, None if it is not known."""
        if self.quorum is None:
            return None
        image = self.image()
        if node.role is NodeRole.CONTROLLER:
            address = self.quorum.address_of(node.node_id, listener)
            if address is not None:
                return address
        registrations = image.controllers if node.role is NodeRole.CONTROLLER else image.brokers
        registration = registrations.get(node.node_id)
        endpoint = None if registration is None else registration.endpoints.get(listener)
        return None if endpoint is None else PeerAddress(endpoint.host, endpoint.port)


def build_node(
    config: ServerConfig,
    disk: LogDisk,
    rng: Random,
    now_ms: int,
    loggers: Loggers,
    max_open_files: int = 256,
    bound: BoundAddresses = NOT_BOUND,
    wall: WallTime | None = None,
    *,
    accepts_stray: bool = False,
) -> Node:
    """Make a node; nothing runs before its `start`. `wall` is the time of records, by default the time of the node's timer.

    With `accepts_stray` it starts even if its metadata log has none of the topics in its log directories.
    Raises NodeError, and OSError as the disk does.
    """
    identity = identify(config, disk, rng, now_ms, loggers[SERVER], bound)
    effects: list[Effect] = []
    timer, flushes, computations = Timer(now_ms, wall), Flushes(effects), Computations(effects)
    scheduler, files = Scheduler(timer, flushes.flush), FileCache(disk, max_open_files)

    def caught_up(topic: str, partition: int, now_ms: int) -> None:
        """Pass on that a future log has caught up; the broker is made after the log manager."""
        if broker is not None:
            broker.moves.caught_up(topic, partition, now_ms)

    log_manager = _make_log_manager(config, identity, disk, files, rng, timer, loggers[LOG], caught_up)

    def end(error: OSError, now_ms: int) -> None:
        """End the node at its next step: without its metadata log it cannot decide anything any more."""
        timer.schedule(now_ms, partial(_raise, error))

    client_id, addresses = f"broker-{config.node_id}", ClusterAddresses()
    peers = Peers(config.node_id, client_id, effects, timer, rng, addresses, _peer_settings(config), loggers[NETWORK])
    parts = NodeParts(disk, files, rng, timer, effects, flushes, computations, scheduler, peers, loggers)
    quorum = KafkaRaftManager(config, identity.cluster_id, identity.directory_ids, parts, end, bound)
    raft = addresses.quorum = quorum.client
    controller = None
    if config.is_controller:
        from kcli.server.controller.controller_server import ControllerServer

        controller = ControllerServer(config, identity.cluster_id, raft, parts, bound)
        state = controller.state
        addresses.image = lambda: state.image
    names = config.controller_listener_names  # also of a node that binds none of them: its broker sends requests to itself
    broker = None
    if config.is_broker:
        times = ChannelTimes(config.get_int("controller.socket.timeout.ms"), config.get_int("request.timeout.ms"))
        channel = NodeToControllerChannelManager(peers, effects, lambda: raft.leader_id, names[0], times)
        broker = Broker(config, identity.cluster_id, parts, log_manager, raft, channel, bound, accepts_stray=accepts_stray)
        metadata = broker.metadata
        addresses.image = lambda: metadata.image
    return Node(config.node_id, parts, quorum, controller, names, broker)


def _peer_settings(config: ServerConfig) -> PeerSettings:
    return PeerSettings(
        connection_setup_timeout_ms=config.get_int("socket.connection.setup.timeout.ms"),
        max_idle_ms=config.get_int("connections.max.idle.ms"),
    )


def _make_log_manager(
    config: ServerConfig,
    identity: Identity,
    disk: LogDisk,
    files: FileCache,
    rng: Random,
    timer: Timer,
    log: Log,
    caught_up: CaughtUp,
) -> LogManager:
    """Make the log manager, with the unreadable directories offline. Raises NodeError if no directory is left."""
    log_dirs = {path: identity.directory_ids[path] for path in config.log_dirs}
    try:
        settings = log_manager_settings(config)
        log_manager = LogManager(disk, files, log_dirs, rng, settings, log, timer.wall, caught_up)
        for path in identity.unreadable.keys() & log_dirs.keys():
            log_manager.take_offline(path, identity.unreadable[path])
    except StorageError as error:
        raise NodeError(str(error)) from error
    return log_manager


def _raise(error: OSError, now_ms: int) -> None:
    raise error
