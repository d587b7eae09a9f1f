"""The controller of a node, made out of its configuration: quorum controller, its registration, and request handling.

    part                  does
    --------------------  --------------------------------------------------------------------------------
    QuorumController      decides requests; when it becomes the leader, it writes the records that a leader begins with
    ControllerRegistra-   registers this controller with the leader, if it does not lead
    tionManager
    ControllerApis        decodes requests and encodes responses

kcli.server.node drives it (ControllerPort). The metadata log is that of the node's raft client (kcli.server.raft.raft_manager).

A new leader begins with the first records of a cluster, or with the end of an open metadata transaction:

    the log has      records
    ---------------  ----------------------------------------------------------------------------------------------
    no               those that the format of the storage left (without any: the features of a new cluster); with eligible
    metadata.version leader replicas also a min.insync.replicas of all brokers; from 3.6-IV1 on in a metadata transaction
    an open metadata AbortTransaction
    transaction

The format of Kafka 4.4 leaves them in the snapshot at offset 0 of the metadata log (KAFKA-19648), earlier ones in
bootstrap.checkpoint. These files are read only in the first case. Without its footer a file is incomplete and refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from kcli.format.file_names import METADATA_TOPIC, FileKind, metadata_snapshot_name, partition_directory_name
from kcli.format.kafka_uuid import random_uuid
from kcli.log.disk.port import LogDisk
from kcli.protocol.control_records import SNAPSHOT_FOOTER
from kcli.protocol.message import Message
from kcli.server.authorizer import AllowAll
from kcli.server.config.dynamic_config import DynamicConfig
from kcli.server.config.listeners import NOT_BOUND, BoundAddresses
from kcli.server.config.server_config import ServerConfig
from kcli.server.controller.control_managers import ControlManagers
from kcli.server.controller.controller_apis import ControllerApis
from kcli.server.controller.controller_registration_manager import ControllerRegistrationManager
from kcli.server.controller.controller_state import ControllerState
from kcli.server.controller.quorum_controller import ControllerTimes, QuorumController
from kcli.server.events import Connection, Respond
from kcli.server.features import (
    CONTROLLER_REGISTRATION_SINCE,
    ELIGIBLE_LEADER_REPLICAS_VERSION,
    METADATA_VERSION,
    initial_features,
    supported_features,
)
from kcli.server.log_lines import CONTROLLER
from kcli.server.metrics.broker_metrics import ErrorCounts
from kcli.server.node_parts import NodeParts
from kcli.server.raft.kafka_raft_client import KafkaRaftClient
from kcli.server.raft.metadata_batches import bootstrap_records, new_record
from kcli.server.raft.metadata_log import MetadataLogError, read_snapshot_file
from kcli.server.raft.raft_manager import check_features
from kcli.state.image_records import controller_record
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import ControllerRegistration, Endpoint

_TRANSACTIONS_SINCE = 13
_BROKER_RESOURCE = 4


def read_bootstrap(disk: LogDisk, directory: str) -> list[Message]:
    """Return the first records of a cluster. Raises MetadataLogError for a damaged file, and OSError."""
    first_snapshot = f"{directory}/{partition_directory_name(METADATA_TOPIC, 0)}/{metadata_snapshot_name(0, 0)}"
    if disk.exists(first_snapshot) and any(batch.records for batch in read_snapshot_file(disk, first_snapshot)):
        return _read_file(disk, first_snapshot)
    path = f"{directory}/{FileKind.BOOTSTRAP_CHECKPOINT}"
    if not disk.exists(path):
        return bootstrap_records(initial_features({}, None, is_dynamic_quorum=False))
    return _read_file(disk, path)


def _read_file(disk: LogDisk, path: str) -> list[Message]:
    """Return the records of a file that the format left. Raises MetadataLogError and OSError."""
    records: list[Message] = []
    has_footer = False
    for batch in read_snapshot_file(disk, path):
        records += batch.records
        has_footer = any(record.type_id == SNAPSHOT_FOOTER for record in batch.control_records)
    if not has_footer or not any(_level_of(record, METADATA_VERSION) for record in records):
        raise MetadataLogError(
            f"{path} is incomplete; format the directory again (kcli format), or remove the file: then the cluster begins "
            "with the features of a new one"
        )
    check_features(path, records)
    return records


def _level_of(record: Message, feature: str) -> int:
    return record.feature_level if record.STRUCT.name == "FeatureLevelRecord" and record.name == feature else 0


def activation_records(image: MetadataImage, disk: LogDisk, directory: str, min_isr: str) -> list[Message]:
    """Return the records that a new leader begins with. Raises MetadataLogError and OSError for those of the format."""
    first = [] if METADATA_VERSION in image.features else read_bootstrap(disk, directory)
    level = image.metadata_version or max(_level_of(record, METADATA_VERSION) for record in first)
    records: list[Message] = []
    if image.pending_records is not None:
        if level < _TRANSACTIONS_SINCE:
            raise MetadataLogError(
                f"the metadata log in {directory} has an open transaction, which its metadata.version {level} does not have; "
                "restore the metadata log from another controller or a backup"
            )
        records.append(new_record("AbortTransactionRecord", reason="another controller leads"))
    if not first:
        return records
    if any(_level_of(record, ELIGIBLE_LEADER_REPLICAS_VERSION) for record in first):
        first.append(
            new_record(
                "ConfigRecord", resource_type=_BROKER_RESOURCE, resource_name="", name="min.insync.replicas", value=min_isr
            )
        )
    if level < _TRANSACTIONS_SINCE:
        return first
    begin = new_record("BeginTransactionRecord", name="Bootstrap records")
    return [*records, begin, *first, new_record("EndTransactionRecord")]


class ControllerServer:
    """The controller of one node, a user of its raft client."""

    def __init__(
        self,
        config: ServerConfig,
        cluster_id: str,
        raft: KafkaRaftClient,
        node: NodeParts,
        bound: BoundAddresses = NOT_BOUND,
    ) -> None:
        self._config = config
        self._bound = bound
        self._disk = node.disk
        self._rng = node.rng
        self.raft = raft
        self.authorizer = AllowAll()
        report, timer, scheduler = node.loggers[CONTROLLER], node.timer, node.scheduler
        self.state = ControllerState(cluster_id, node.rng, DynamicConfig(config, report), lambda: self.raft.next_offset)
        balances = config.get_bool("auto.leader.rebalance.enable")
        times = ControllerTimes(
            config.get_int("metadata.max.idle.interval.ms"),
            config.get_int("leader.imbalance.check.interval.seconds") * 1000 if balances else 0,
            config.get_int("unclean.leader.election.interval.ms"),
        )
        self.controller = QuorumController(
            self.raft, self.state, ControlManagers(self.state), timer, scheduler, times, self._first_records, report
        )
        self._registrations = ControllerRegistrationManager(
            self.raft, self.state, node.peers, timer, lambda: self._registration, report
        )
        self._apis = ControllerApis(self.raft, self.state, self.controller, scheduler, node.loggers)

    @property
    def errors(self) -> ErrorCounts:
        """The number of error codes in the responses."""
        return self._apis.errors

    def committed_image(self) -> MetadataImage:
        """Return a frozen copy of the committed metadata."""
        return self.state.committed_image()

    def receive(self, connection: Connection, frame: memoryview, respond: Respond, now_ms: int) -> None:
        """Handle a request, as ControllerApis.receive does, which raises MessageError."""
        self._apis.receive(connection, frame, respond, now_ms)

    def begin(self) -> None:
        """Begin to follow the metadata log; earlier listeners get a batch before its requests are answered."""
        self.raft.register(self.controller)
        self.raft.register(self._registrations)

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
