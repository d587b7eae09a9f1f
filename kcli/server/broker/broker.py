"""The broker: partitions that it hosts, clients that it serves, and what it does by itself as time goes by.

    part               does
    -----------------  -----------------------------------------------------------------------------------------------
    RequestRouter      takes clients' requests apart and answers them
    ControllerChannel  the way to the controller: registration, heartbeats, producer ids, clients' requests handed on
    BrokerLifecycle    registers, sends heartbeats, is unfenced, and leaves in order
    MetadataPublisher  follows the metadata log: makes the partitions, configs and topics be what it says
    LogManager         the logs in the log directories
    Purgatory          produces that wait for the disk, fetches that wait for records

It never waits and never asks the time: see kcli.server.events.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Any

from kcli.format.kafka_uuid import Uuid
from kcli.log.disk import LogDisk
from kcli.log.flush_request import FlushRequest
from kcli.log.log_config import LogConfig
from kcli.log.storage_errors import AllLogDirsOfflineError
from kcli.log.unified_log import UnifiedLog
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, BROKER_REGISTRATION, FETCH, PRODUCE
from kcli.protocol.message import Message
from kcli.server.apis.context import RequestContext
from kcli.server.apis.fetch import DelayedFetch, FetchHandler
from kcli.server.apis.fetch_session import FetchSessionCache
from kcli.server.apis.produce import DelayedProduce, ProduceHandler
from kcli.server.apis.slices import Turns
from kcli.server.authorizer import AllowAll, Authorizer
from kcli.server.broker.controller_channel import ControllerChannel
from kcli.server.broker.directory_assignments import DirectoryAssignments
from kcli.server.broker.lifecycle import BrokerLifecycle
from kcli.server.broker.metadata_publisher import MetadataPublisher
from kcli.server.broker.producer_ids import ProducerIds
from kcli.server.broker.replica_moves import ReplicaMoves
from kcli.server.broker.request_router import RequestRouter
from kcli.server.broker.topic_creation import TopicCreation
from kcli.server.computations import Computations
from kcli.server.config.cleaner_config import cleaner_settings
from kcli.server.config.dynamic_config import DynamicConfig
from kcli.server.config.listeners import BoundAddresses
from kcli.server.config.server_config import ServerConfig
from kcli.server.controller.features import supported_features
from kcli.server.dice import Dice
from kcli.server.events import Connection, Effect
from kcli.server.flushes import FlushCallback, Flushes
from kcli.server.log_lines import LimitedLines, Line, fault_line
from kcli.server.metrics.broker_metrics import BrokerMetrics
from kcli.server.replication.partition import Partition
from kcli.server.replication.purgatory import DelayedOperation, Purgatory
from kcli.server.timing_wheel import Timer
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import SECURITY_PROTOCOLS, ConfigResource

# A fetch is answered from so many partitions at most, each by system calls of its own: the others are next, by the turns of a
# session or the order in which the client asks.
MAX_FILES_PER_FETCH = 200
# The process has too many files open: that is no fault of the disk.
DESCRIPTORS_EXHAUSTED = (errno.EMFILE, errno.ENFILE)
SECURITY_PROTOCOL_IDS = {name: number for number, name in SECURITY_PROTOCOLS.items()}


class Broker:
    """One broker; `effects` is the node's list of what is to be done, `tell` writes a line of its log."""

    def __init__(
        self,
        config: ServerConfig,
        cluster_id: str,
        disk: LogDisk,
        rng: Dice,
        timer: Timer,
        effects: list[Effect],
        flushes: Flushes,
        log_manager: Any,
        controller_id: Callable[[], int],
        tell: Callable[[str], None],
    ) -> None:
        self.config = DynamicConfig(config, tell)
        self.node_id: int = config["node.id"]
        self.cluster_id = cluster_id
        self.image = MetadataImage()
        self.metadata_offset = -1
        self.disk = disk
        self.rng = rng
        self.timer = timer
        self.effects = effects
        self.flushes = flushes
        self.computations = Computations(effects)
        self.turns = Turns(timer)
        self.log_manager = log_manager
        self.tell = tell
        self.authorizer: Authorizer = AllowAll()
        self.metrics = BrokerMetrics()
        self.partitions: dict[tuple[str, int], Partition] = {}
        self.produce_purgatory = Purgatory(timer, self._waiting_failed)
        self.fetch_purgatory = Purgatory(timer, self._waiting_failed)
        self.fetch_sessions = FetchSessionCache(config["max.incremental.fetch.session.cache.slots"], rng)
        self.fetch_max_bytes: int = config["fetch.max.bytes"]
        self.max_files_per_fetch = max(1, min(MAX_FILES_PER_FETCH, log_manager.files.max_open // 2))
        self.controller = ControllerChannel(self.node_id, effects, controller_id)
        self.router = RequestRouter(self, effects, config["unstable.api.versions.enable"])
        self.router.serve_with(PRODUCE, ProduceHandler(self).handle)
        self.router.serve_with(FETCH, FetchHandler(self).handle)
        self.transactional_lines = LimitedLines(tell)
        self.held_produce_bytes = 0  # of requests that are appended in slices
        self._waiting_fetches: dict[Connection, DelayedFetch] = {}
        self._default_topic_config: LogConfig | None = None
        self.bound = BoundAddresses()
        self.producer_ids = ProducerIds(self)
        self.client_metrics: Any = None
        self.assignments = DirectoryAssignments(self)
        self.moves = ReplicaMoves(self)
        self._topic_creation = TopicCreation(self)
        self.lifecycle: BrokerLifecycle
        self.publisher: MetadataPublisher

    # ---------------------------------------------------------------------------------------------- coming and going

    def begin(self, node: Any, now_ms: int) -> None:
        """Begin to follow the metadata; the rest of the start follows from what is committed (kcli.server.broker.startup)."""
        from kcli.server.broker.startup import BrokerStartup

        BrokerStartup(self, node).begin(now_ms)

    def describe_registration(self, request: Message) -> None:
        """Fill in what a registration says of this broker: where it is reached, what it can, which log directories it has."""
        listener, feature = (API_KEYS[BROKER_REGISTRATION].request.classes[name] for name in ("Listener", "Feature"))
        for found in map(self.bound.resolve, self.config.static.advertised_listeners):
            protocol = SECURITY_PROTOCOL_IDS[found.security_protocol]
            request.listeners.append(listener(name=found.name, host=found.host, port=found.port, security_protocol=protocol))
        for name, versions in supported_features().items():
            request.features.append(
                feature(name=name, min_supported_version=versions.lowest, max_supported_version=versions.highest)
            )
        request.rack = self.config["broker.rack"]
        request.log_dirs = [log_dir.directory_id for log_dir in self.log_manager.online_dirs() if log_dir.directory_id]
        request.previous_broker_epoch = self.log_manager.clean_broker_epoch()

    def log_tasks_begin(self, now_ms: int) -> None:
        """Begin what is done to logs as time goes by: retention, checkpoints, deletions (kcli.log.log_tasks)."""
        self.log_manager.begin_tasks(now_ms, self.timer.schedule, self.take_log_flushes)

    def take_log_flushes(self, now_ms: int) -> None:
        """Hand on what the log manager wants flushed."""
        for request in self.log_manager.take_flushes():
            self._flush_request(request)

    def _flush_request(self, request: FlushRequest, callback: FlushCallback | None = None) -> None:
        def flushed(error: OSError | None, now_ms: int) -> None:
            following = request.done(error)
            if error is not None:
                self._forget_offline()
            if following is not None:
                self._flush_request(following, callback)
            elif callback is not None:
                callback(error, now_ms)
            self.take_log_flushes(now_ms)

        self.flushes.flush(request.paths, flushed)

    # ------------------------------------------------------------------------------------------------------ look-ups

    def topic_name(self, topic_id: Uuid) -> str | None:
        """The name of the topic with that id, or None."""
        topic = self.image.topics.get(topic_id)
        return None if topic is None else topic.name

    def topic_config(self, topic: str) -> LogConfig:
        """The settings of a topic's logs: its own, over the broker's."""
        from kcli.server.config.topic_config import effective_topic_config

        overrides = self.image.configs.get(ConfigResource("TOPIC", topic)) or {}
        if not overrides:
            if self._default_topic_config is None:
                self._default_topic_config = LogConfig.of(effective_topic_config(self.config, {}))
            return self._default_topic_config
        return LogConfig.of(effective_topic_config(self.config, overrides))

    def reconfigure_topic(self, topic: str) -> None:
        """Let the logs of a topic go by its present settings."""
        found = self.image.topic(topic)
        if found is not None:
            self.log_manager.update_topic_config(topic, found.partitions, self.topic_config(topic))

    def reconfigure(self) -> bool:
        """Let everything but the logs follow the broker's present settings -> whether these have changed."""
        changed = self.config.follow(self.image)
        if not changed:
            return False
        self._default_topic_config = None
        self.fetch_max_bytes = self.config["fetch.max.bytes"]
        self.fetch_sessions.max_sessions = self.config["max.incremental.fetch.session.cache.slots"]
        self.log_manager.change_settings(
            file_delete_delay_ms=self.config["log.segment.delete.delay.ms"],
            producer_id_expiration_ms=self.config["producer.id.expiration.ms"],
            **cleaner_settings(self.config),
        )
        keys = ", ".join(changed)
        self.tell(Line(f"dynamic configuration: {keys} changed", keys=keys))
        return True

    def partition(self, topic: str, index: int) -> Partition | None:
        """The partition that this broker hosts, or None."""
        return self.partitions.get((topic, index))

    def missing_partition_code(self, topic: str, index: int) -> int:
        """What a client is told of a partition that this broker does not host."""
        found = self.image.topic(topic)
        is_elsewhere = found is not None and index in found.partitions
        return error_codes.NOT_LEADER_OR_FOLLOWER if is_elsewhere else error_codes.UNKNOWN_TOPIC_OR_PARTITION

    # ------------------------------------------------------------------------------------------------------ requests

    def respond(self, context: RequestContext, response: Message) -> None:
        """Answer a request, once."""
        self._waiting_fetches.pop(context.connection, None)
        self.router.respond(context, response)

    def _waiting_failed(self, operation: DelayedOperation, error: Exception) -> None:
        """A request that waits met a fault of this program."""
        assert isinstance(operation, DelayedFetch | DelayedProduce)
        self._waiting_fetches.pop(operation.context.connection, None)
        self.router.failed(operation.context, error)

    def forward(self, context: RequestContext, frame: memoryview) -> None:
        """Hand a client's request on to the controller."""
        self.controller.forward(context, frame)

    def auto_create_topics(self, names: list[str]) -> None:
        """Ask the controller for topics that clients name."""
        self._topic_creation.create(names)

    def watch_fetch(self, connection: Connection, fetch: DelayedFetch, keys: Iterable[Hashable], deadline_ms: int) -> None:
        """Have a fetch wait; it is forgotten when its connection ends, at once where that ended while it was read."""
        if connection.is_closed:
            return
        self._waiting_fetches[connection] = fetch
        self.fetch_purgatory.watch(fetch, keys, deadline_ms)

    def connection_closed(self, connection: Connection) -> None:
        """Forget what waits for a connection that is gone."""
        connection.is_closed = True
        fetch = self._waiting_fetches.pop(connection, None)
        if fetch is not None:
            self.fetch_purgatory.drop(fetch)

    def fault(self, what: str, error: Exception) -> None:
        """Say in the log that this program has a fault; whoever runs it goes on being served."""
        self.tell(fault_line(what, error))

    # ----------------------------------------------------------------------------------------------------- the disk

    def flush_log(self, log: UnifiedLog, callback: FlushCallback, now_ms: int) -> None:
        """Have a log made durable up to its present end; appends that come meanwhile wait for the next flush."""
        end_offset = log.log_end_offset
        request = self.log_manager.flush_request(log)
        if request is None:
            callback(None, now_ms)
            return

        def flushed(error: OSError | None, now_ms: int) -> None:
            # What matters takes the log out of service. A file that was renamed or deleted meanwhile is no matter where another
            # flush has done the work, nor is one that another write of the same file has put in place.
            is_well = self.log_manager.is_live(log) or log.recovery_point >= end_offset
            callback(None if is_well else error, now_ms)

        self._flush_request(request, flushed)

    def storage_failed(self, partition: Partition | None, error: OSError) -> None:
        """The disk refused a partition's bytes: its log directory goes offline. The last one ends the node."""
        if partition is None or partition.log is None or error.errno in DESCRIPTORS_EXHAUSTED:
            return
        try:
            self.log_manager.take_offline(partition.log.directory, error)
        except AllLogDirsOfflineError as all_offline:
            self.timer.schedule(self.timer.clock_ms, partial(_end, all_offline))
        self._forget_offline()

    def _forget_offline(self) -> None:
        """Let go of the logs in directories that are offline; who waits for them is told as soon as what runs now is done."""
        gone = [key for key in self.log_manager.offline_partitions if key in self.partitions]
        for key in gone:
            self.partitions[key].log = None
        if gone:
            self.timer.schedule(self.timer.clock_ms, partial(self._check_all, gone))

    def _check_all(self, keys: Iterable[Hashable], now_ms: int) -> None:
        for key in keys:
            self.produce_purgatory.check(key, now_ms)
            self.fetch_purgatory.check(key, now_ms)


def _end(error: Exception, now_ms: int) -> None:
    raise error
