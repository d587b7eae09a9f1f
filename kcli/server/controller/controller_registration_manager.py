"""Registers a controller that does not lead with the one that does (Kafka: ControllerRegistrationManager; KIP-919).

    when                                                 then
    ---------------------------------------------------  -------------------------------------------------------------------
    a leader is known, and the metadata lack this        ControllerRegistration is sent to the leader, on the listener of
    process (its incarnation id)                         the voters
    the answer is an error, or there is none             again after RETRY_MS
    the registration is committed                        nothing more, until a snapshot or another incarnation replaces it;
                                                         the latter is logged once: another process has this node.id

The request has a connection of its own, as in Kafka. Its answer waits for a commit, and that waits for the next Fetch of this
node: behind it on one connection, that Fetch would not be read, and the leader would lose its followers.

A leader writes its own registration (kcli.server.controller.controller_server). The registrations decide which levels of
features the cluster may have, and are what DescribeCluster of a controller shows.
"""

from __future__ import annotations

from collections.abc import Callable

from kcli.network.events import NodeRole, PeerNode
from kcli.network.peer_request import Answer, PeerFailure
from kcli.network.timing_wheel import Timer
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, CONTROLLER_REGISTRATION
from kcli.protocol.message import Message
from kcli.server.controller.controller_state import ControllerState
from kcli.server.features import CONTROLLER_REGISTRATION_SINCE, METADATA_VERSION
from kcli.server.log_lines import WarningLine
from kcli.server.raft.kafka_raft_client import KafkaRaftClient, Network
from kcli.server.raft.messages import NO_NODE, SnapshotId
from kcli.server.raft.metadata_batches import MetadataBatch
from kcli.state.image_records import controller_record
from kcli.state.metadata_values import ControllerRegistration

RETRY_MS = 1000
TIMEOUT_MS = 5000


class ControllerRegistrationManager:
    """A RaftListener behind the one that keeps the image. `registration()` is that of this process."""

    def __init__(
        self,
        raft: KafkaRaftClient,
        state: ControllerState,
        network: Network,
        timer: Timer,
        registration: Callable[[], ControllerRegistration],
        report: Callable[[str], None],
    ) -> None:
        self._raft = raft
        self._state = state
        self._network = network
        self._timer = timer
        self._registration = registration
        self._report = report
        self._is_waiting = False  # for an answer, or for the next attempt
        self._was_registered = self._has_warned = False

    def on_snapshot(self, snapshot: SnapshotId, now_ms: int) -> None:
        """Do nothing: the batches of the snapshot follow."""

    def on_commit(self, batch: MetadataBatch, now_ms: int) -> None:
        """Register, if the metadata lack this process."""
        self._check_incarnation()
        self._register(now_ms)

    def on_leader_change(self, leader_id: int, epoch: int, now_ms: int) -> None:
        """Register with the new leader, if no leader has done so before."""
        self._register(now_ms)

    def _check_incarnation(self) -> None:
        own = self._registration()
        known = self._state.image.controllers.get(own.controller_id)
        if known is None or self._has_warned:
            return
        if known.incarnation_id == own.incarnation_id:
            self._was_registered = True
        elif self._was_registered:
            self._has_warned = True
            text = (
                f"another controller has registered with node.id {own.controller_id}, which this one has: two processes with "
                "one node.id damage the metadata quorum; stop one of them"
            )
            self._report(WarningLine(text, controller=own.controller_id))

    def _register(self, now_ms: int) -> None:
        raft, level = self._raft, self._state.image.features.get(METADATA_VERSION, 0)
        if self._is_waiting or raft.is_leader or level < CONTROLLER_REGISTRATION_SINCE:
            return
        own = self._registration()
        known = self._state.image.controllers.get(own.controller_id)
        if raft.leader_id == NO_NODE or (known is not None and known.incarnation_id == own.incarnation_id):
            return
        self._is_waiting = True
        leader, listener = PeerNode(raft.leader_id, NodeRole.CONTROLLER), raft.config.core.listener
        self._network.send(leader, listener, CONTROLLER_REGISTRATION, _request(own), self._answered, now_ms + TIMEOUT_MS)

    def _answered(self, answer: Answer, now_ms: int) -> None:
        if not isinstance(answer, PeerFailure) and answer.error_code not in (error_codes.NONE, error_codes.NOT_CONTROLLER):
            reason = answer.error_message or error_codes.NAMES.get(answer.error_code, answer.error_code)
            text = f"the active controller does not register this one: {reason}; it will be tried again"
            self._report(WarningLine(text, error=reason))
        # Also after a success: the record may still be lost with the leader's epoch.
        self._timer.schedule(now_ms + RETRY_MS, self._retry)

    def _retry(self, now_ms: int) -> None:
        self._is_waiting = False
        self._register(now_ms)


def _request(own: ControllerRegistration) -> Message:
    record, request = controller_record(own), API_KEYS[CONTROLLER_REGISTRATION].request
    listener, feature = request.classes["Listener"], request.classes["Feature"]
    return request.new(
        controller_id=own.controller_id,
        incarnation_id=own.incarnation_id,
        listeners=[
            listener(name=at.name, host=at.host, port=at.port, security_protocol=at.security_protocol)
            for at in record.end_points
        ],
        features=[
            feature(
                name=one.name,
                min_supported_version=one.min_supported_version,
                max_supported_version=one.max_supported_version,
            )
            for one in record.features
        ],
    )
