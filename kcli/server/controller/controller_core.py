"""A node's controller, whole: the raft client, the quorum controller above it, and the requests that come to both.

    request                              goes to
    -----------------------------------  -----------------------------------------------------------------------------
    ApiVersions, DescribeCluster,        answered at once
    DescribeQuorum, ListPartition-
    Reassignments
    DescribeConfigs                      answered of this node's configuration and the image, in slices
    all of HANDLERS                      the quorum controller: decided, appended, answered when committed
    any other                            nobody: the connection is closed; it is not in the answer to ApiVersions

It is made out of a node's configuration, and driven by kcli.server.node (its ControllerPort).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Protocol

from kcli.format.kafka_uuid import ZERO_UUID, Uuid, random_uuid
from kcli.log.disk import LogDisk
from kcli.log.file_cache import FileCache
from kcli.protocol.apis import (
    ALLOCATE_PRODUCER_IDS,
    ALTER_CONFIGS,
    ALTER_PARTITION,
    ALTER_PARTITION_REASSIGNMENTS,
    API_KEYS,
    API_VERSIONS,
    ASSIGN_REPLICAS_TO_DIRS,
    BROKER_HEARTBEAT,
    BROKER_REGISTRATION,
    CONTROLLER_REGISTRATION,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_QUORUM,
    ELECT_LEADERS,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_PARTITION_REASSIGNMENTS,
    UNREGISTER_BROKER,
    UPDATE_FEATURES,
)
from kcli.protocol.control_records import ControlRecord
from kcli.protocol.errors import MessageError
from kcli.protocol.framing import encode_response, read_request_header
from kcli.protocol.message import Message
from kcli.server.config.dynamic_config import DynamicConfig
from kcli.server.config.listeners import NOT_BOUND, BoundAddresses
from kcli.server.config.server_config import ServerConfig
from kcli.server.controller.activation import activation_records
from kcli.server.controller.api_error import RequestInfo
from kcli.server.controller.controller_state import ControllerState
from kcli.server.controller.features import CONTROLLER_REGISTRATION_SINCE, supported_features
from kcli.server.controller.formatting import METADATA_PARTITION
from kcli.server.controller.metadata_batches import MetadataBatch
from kcli.server.controller.metadata_log import MetadataLogConfig, MetadataLogError, SnapshotId
from kcli.server.controller.quorum_controller import ControllerTimes, Handler, QuorumController
from kcli.server.controller.raft_client import RaftClient, RaftConfig
from kcli.server.controller.snapshot_emitter import SnapshotEmitter, SnapshotTimes
from kcli.server.controller.startable_quorum import refusal
from kcli.server.events import Connection
from kcli.server.flushes import Flushes
from kcli.server.foreign_clients import foreign_protocol_by_api
from kcli.server.log_lines import FailureLine
from kcli.server.metrics.broker_metrics import ErrorCounts
from kcli.server.rng import Rng
from kcli.server.timing_wheel import Timer
from kcli.state.image_records import controller_record
from kcli.state.metadata_values import ControllerRegistration, Endpoint, Voter

Respond = Callable[[bytes | None], None]

# API -> (module of this room, function); loaded when first asked for.
HANDLERS = {
    BROKER_REGISTRATION: ("broker_registrations", "register_broker"),
    BROKER_HEARTBEAT: ("broker_registrations", "heartbeat"),
    UNREGISTER_BROKER: ("broker_registrations", "unregister_broker"),
    CONTROLLER_REGISTRATION: ("broker_registrations", "register_controller"),
    CREATE_TOPICS: ("topics", "create_topics"),
    CREATE_PARTITIONS: ("topics", "create_partitions"),
    DELETE_TOPICS: ("topics", "delete_topics"),
    ALLOCATE_PRODUCER_IDS: ("producer_ids", "allocate_producer_ids"),
    ALTER_PARTITION: ("partition_control", "alter_partition"),
    ELECT_LEADERS: ("partition_control", "elect_leaders"),
    ASSIGN_REPLICAS_TO_DIRS: ("partition_control", "assign_replicas_to_dirs"),
    ALTER_PARTITION_REASSIGNMENTS: ("reassignments", "alter_partition_reassignments"),
    UPDATE_FEATURES: ("feature_updates", "update_features"),
    ALTER_CONFIGS: ("config_control", "alter_configs"),
    INCREMENTAL_ALTER_CONFIGS: ("config_control", "incremental_alter_configs"),
}


@cache
def load_handler(key: int) -> Handler:
    """The handler of an API. Raises KeyError for one that has none."""
    module, function = HANDLERS[key]
    handler: Handler = getattr(importlib.import_module(f"kcli.server.controller.{module}"), function)
    return handler


SERVED = frozenset((API_VERSIONS, DESCRIBE_CLUSTER, DESCRIBE_CONFIGS, DESCRIBE_QUORUM, LIST_PARTITION_REASSIGNMENTS, *HANDLERS))
# How many configurations are described in one go, some 3 ms of work.
SLICE_CONFIGS = 100


class MetadataListener(Protocol):
    """Who learns what is committed to the metadata log."""

    def handle_commit(self, records: Sequence[Message], last_offset: int, now_ms: int) -> None:
        """Records up to `last_offset` are committed; those of a snapshot come so as well, before the log's."""
        ...

    def handle_control(self, records: Sequence[ControlRecord]) -> None:
        """Control records are committed: who leads, who votes. `handle_commit` follows with their offset."""
        ...


class _Follower:
    """A MetadataListener as a listener of the raft client."""

    def __init__(self, listener: MetadataListener) -> None:
        self._listener = listener

    def on_snapshot(self, snapshot: SnapshotId, now_ms: int) -> None:
        """A node loads a snapshot only when it starts: its listeners are empty then."""

    def on_commit(self, batch: MetadataBatch, now_ms: int) -> None:
        """Hand it on."""
        if batch.control_records:
            self._listener.handle_control(batch.control_records)
        self._listener.handle_commit(batch.records, batch.last_offset, now_ms)

    def on_leader_change(self, leader_id: int, epoch: int, now_ms: int) -> None:
        """The node asks `leader_id` when it needs it."""


class ControllerCore:
    """The controller of one node. `directory_ids` are those of all log directories, by path."""

    def __init__(
        self,
        config: ServerConfig,
        cluster_id: str,
        directory_ids: Mapping[str, Uuid | None],
        disk: LogDisk,
        files: FileCache,
        rng: Rng,
        timer: Timer,
        flushes: Flushes,
        tell: Callable[[str], None],
        bound: BoundAddresses = NOT_BOUND,
    ) -> None:
        self._config = config
        self._bound = bound
        self._disk = disk
        self._rng = rng
        self._timer = timer
        self._tell = tell
        self.cluster_id = cluster_id
        self.errors = ErrorCounts()
        self.raft = RaftClient(raft_config(config, directory_ids, bound), disk, files, timer, flushes.flush, tell)
        self.state = ControllerState(cluster_id, rng, DynamicConfig(config, tell), lambda: self.raft.next_offset)
        times = ControllerTimes(config.get_int("metadata.max.idle.interval.ms"))
        self.controller = QuorumController(self.raft, self.state, load_handler, timer, times, self._activate, tell)
        self.snapshots = SnapshotEmitter(
            self.raft,
            lambda: self.state.image,
            SnapshotTimes(
                config.get_int("metadata.log.max.record.bytes.between.snapshots"),
                config.get_int("metadata.log.max.snapshot.interval.ms"),
            ),
            timer,
            flushes.flush,
            tell,
        )
        self.raft.listeners += [self.controller, self.snapshots]

    @property
    def leader_id(self) -> int:
        """The node that leads the quorum as far as this one knows, -1 for none."""
        return self.raft.leader_id

    def add_listener(self, listener: MetadataListener) -> None:
        """Have what is committed, from the start on, told to a listener; before the controller answers for it."""
        self.raft.listeners.insert(0, _Follower(listener))

    def start(self, now_ms: int) -> None:
        """Open the metadata log and lead the quorum. Raises as RaftClient.start does, and MetadataLogError if it cannot."""
        self.raft.start(now_ms)
        reason = refusal(self.raft)
        if reason is not None:
            raise MetadataLogError(reason)

    def is_caught_up(self) -> bool:
        """True when all that was committed when it started has been told to the listeners."""
        return self.controller.is_active

    def stop(self, now_ms: int) -> None:
        """Close the metadata log."""
        self.raft.close()

    # ---------------------------------------------------------------------------------------------------------- requests

    def receive(self, connection: Connection, frame: memoryview, respond: Respond, now_ms: int) -> None:
        """Take a request (header and message); `respond` is called once, now or later. Raises MessageError for no request."""
        key, version, correlation_id, _, position = read_request_header(frame)
        if key not in SERVED:
            unserved = f"a request {API_KEYS[key].name}, which the controller does not serve"
            raise MessageError(foreign_protocol_by_api(key) or unserved)
        api = API_KEYS[key]

        def answer(response: Message) -> None:
            self.errors.count(key, response)
            known = version if api.lowest_version <= version <= api.highest_version else 0
            try:
                respond(bytes(encode_response(correlation_id, api, known, response)))
            except MessageError as error:
                what = f"answering {api.name} of version {version}"
                text = f"a fault of kcli in {what}: {error.message}; please report it"
                self._tell(FailureLine(text, error=error.message, what=what))
                respond(None)

        if key == API_VERSIONS:
            from kcli.server.api_versions import describe_api_versions

            answer(describe_api_versions(version, SERVED, self.state.image, self.raft.high_watermark - 1))
            return
        request, _ = api.request.decode(frame, version, position)
        if key in (DESCRIBE_QUORUM, LIST_PARTITION_REASSIGNMENTS, DESCRIBE_CLUSTER):
            answer(self._describe(key, request, connection, now_ms))
        elif key == DESCRIBE_CONFIGS:
            self._describe_configs(request, answer, respond, now_ms)
        else:
            self.controller.submit(key, request, RequestInfo(version, connection.principal, now_ms), answer)

    def _describe(self, key: int, request: Message, connection: Connection, now_ms: int) -> Message:
        """What can be answered from what is known, without a record."""
        from kcli.server.controller.quorum_apis import describe_cluster, describe_quorum
        from kcli.server.controller.reassignments import list_partition_reassignments

        if key == DESCRIBE_QUORUM:
            return describe_quorum(request, self.raft, now_ms)
        if key == LIST_PARTITION_REASSIGNMENTS:
            return list_partition_reassignments(request, self.state.image)
        return describe_cluster(request, self.state.image, self.cluster_id, self.leader_id, connection.listener)

    def _describe_configs(self, request: Message, answer: Callable[[Message], None], respond: Respond, now_ms: int) -> None:
        """Describe configurations a slice at a time; a fault ends the connection: half an answer would pass for a whole one."""
        from kcli.server.config.config_results import describe_results

        response = API_KEYS[DESCRIBE_CONFIGS].response.new()
        # The authorizer is the broker's; what comes to a controller's listener is served to everybody.
        entries = describe_results(request, response.results, self.state.image, self.state.dynamic, lambda resource: None)

        def go_on(at_ms: int) -> None:
            try:
                is_done = sum(1 for _ in islice(entries, SLICE_CONFIGS)) < SLICE_CONFIGS
            except Exception as error:
                what = "serving DescribeConfigs"
                self._tell(FailureLine(f"a fault of kcli in {what}: {error!r}; please report it", error=error, what=what))
                respond(None)
                return
            if is_done:
                answer(response)
            else:
                self._timer.schedule(at_ms, go_on)

        go_on(now_ms)

    # -------------------------------------------------------------------------------------------------------- activation

    def _activate(self, now_ms: int) -> None:
        """Write what a leader begins with, and register this controller. Raises MetadataLogError, which ends the node."""
        directory = self._config.metadata_log_dir
        min_isr = self.state.setting("min.insync.replicas")
        records = activation_records(self.state.image, self._disk, directory, min_isr)
        if records:
            self.controller.write(records, now_ms)
        if self.state.metadata_version >= CONTROLLER_REGISTRATION_SINCE:
            self.controller.write([controller_record(self._own_registration())], now_ms)

    def _own_registration(self) -> ControllerRegistration:
        """What a ControllerRegistration of this node would say; it need not ask itself."""
        endpoints = {
            at.name: Endpoint(at.host, at.port, at.security_protocol)
            for at in map(self._bound.resolve, self._config.advertised_controller_listeners)
        }
        incarnation_id = random_uuid(self._rng.randbytes)
        return ControllerRegistration(self._config.node_id, incarnation_id, False, endpoints, supported_features())


def raft_config(
    config: ServerConfig, directory_ids: Mapping[str, Uuid | None], bound: BoundAddresses = NOT_BOUND
) -> RaftConfig:
    """What the raft client goes by, out of a node's configuration."""
    names = config.controller_listener_names
    listener = names[0] if names else "CONTROLLER"
    static = [Voter(node_id, ZERO_UUID, {listener: address}) for node_id, address in sorted(config.quorum_voters.items())]
    return RaftConfig(
        node_id=config.node_id,
        directory_id=directory_ids.get(config.metadata_log_dir) or ZERO_UUID,
        directory=f"{config.metadata_log_dir}/{METADATA_PARTITION}",
        endpoints={at.name: (at.host, at.port) for at in map(bound.resolve, config.advertised_controller_listeners)},
        static_voters=static,
        log=MetadataLogConfig(
            segment_bytes=config.get_int("metadata.log.segment.bytes"),
            segment_ms=config.get_int("metadata.log.segment.ms"),
            retention_bytes=config.get_int("metadata.max.retention.bytes"),
            retention_ms=config.get_int("metadata.max.retention.ms"),
            recovery_quarantine_dir=config.get_str("kcli.recovery.quarantine.dir"),
        ),
    )
