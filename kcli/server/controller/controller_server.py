"""The controller of a node, made out of its configuration: quorum controller, its registration, and request handling.

    part                  does
    --------------------  --------------------------------------------------------------------------------
    QuorumController      decides requests; when it becomes the leader, it writes the records that a leader begins with
    ControllerRegistra-   registers this controller with the leader, if it does not lead
    tionManager
    ControllerApis        decodes requests and encodes responses

kcli.server.node drives it (ControllerPort). The metadata log is that of the node's raft client (kcli.server.raft.raft_manager).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from kcli.format.kafka_uuid import random_uuid
from kcli.log.disk.port import LogDisk
from kcli.log.rng import Random
from kcli.network.timing_wheel import Timer
from kcli.protocol.message import Message
from kcli.server.authorizer import AllowAll
from kcli.server.config.dynamic_config import DynamicConfig
from kcli.server.config.listeners import NOT_BOUND, BoundAddresses
from kcli.server.config.server_config import ServerConfig
from kcli.server.controller.activation import activation_records
from kcli.server.controller.control_managers import ControlManagers
from kcli.server.controller.controller_apis import ControllerApis
from kcli.server.controller.controller_registration_manager import ControllerRegistrationManager
from kcli.server.controller.controller_state import ControllerState
from kcli.server.controller.quorum_controller import ControllerTimes, QuorumController
from kcli.server.events import Connection, Respond
from kcli.server.features import CONTROLLER_REGISTRATION_SINCE, supported_features
from kcli.server.log_lines import CONTROLLER, Loggers
from kcli.server.metrics.broker_metrics import ErrorCounts
from kcli.server.raft.kafka_raft_client import KafkaRaftClient, Network
from kcli.server.scheduler import Scheduler
from kcli.state.image_records import controller_record
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import ControllerRegistration, Endpoint


class ControllerServer:
    """The controller of one node, a user of its raft client."""

    def __init__(
        self,
        config: ServerConfig,
        cluster_id: str,
        raft: KafkaRaftClient,
        disk: LogDisk,
        rng: Random,
        timer: Timer,
        scheduler: Scheduler,
        network: Network,
        loggers: Loggers,
        bound: BoundAddresses = NOT_BOUND,
    ) -> None:
        self._config = config
        self._bound = bound
        self._disk = disk
        self._rng = rng
        self.raft = raft
        self.authorizer = AllowAll()
        report = loggers[CONTROLLER]
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
        self._registrations = ControllerRegistrationManager(
            self.raft, self.state, network, timer, lambda: self._registration, report
        )
        self._apis = ControllerApis(self.raft, self.state, self.controller, scheduler, loggers)

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
