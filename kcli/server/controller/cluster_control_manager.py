"""The life cycle of brokers (KIP-631) and the registrations of controllers (KIP-919, KIP-1312).

    a broker is            and becomes                     when
    ---------------------  ------------------------------  -----------------------------------------------------------
    not registered         fenced                          it registers
    fenced                 unfenced                        it wants to, and has applied the log up to its registration
    unfenced               fenced                          it wants to, or sends no heartbeat for broker.session.timeout.ms
    unfenced               in controlled shutdown          it wants to stop and leads partitions, which get other leaders
    in controlled shutdown may shut down (and is fenced)   it leads no partition, and all active brokers know the new leaders
    fenced, unfenced       may shut down                   it wants to stop and leads no partition

Fencing removes a broker from every ISR that has other members (with eligible leader replicas: from every ISR) and elects other
leaders; unfencing elects leaders for partitions without one. A broker that registers again after an unclean stop is also
removed from the eligible leader replicas.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import StrEnum
from itertools import chain

from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import INT64_MAX
from kcli.protocol import error_codes
from kcli.protocol.apis import (
    API_KEYS,
    BROKER_HEARTBEAT,
    BROKER_REGISTRATION,
    CONTROLLER_REGISTRATION,
    UNREGISTER_BROKER,
    UNREGISTER_CONTROLLER,
)
from kcli.protocol.message import Message
from kcli.server.controller.controller_result import ApiError, ControllerRequestContext, ControllerResult
from kcli.server.controller.controller_state import ControllerState, PartitionKey, Session
from kcli.server.features import CONTROLLER_REGISTRATION_SINCE, CONTROLLER_UNREGISTRATION_SINCE, KRAFT_VERSION, METADATA_VERSION
from kcli.server.raft.metadata_batches import new_record
from kcli.state.image_records import CORDONED_LOG_DIRS_SINCE, DIRECTORIES_SINCE, broker_record, controller_record
from kcli.state.metadata_values import (
    BrokerRegistration,
    ControllerRegistration,
    endpoints_of,
    features_of,
)

_NEVER_REGISTERED = -2  # an epoch that no broker has as its previous one
_HIGHEST_RESERVED_DIRECTORY = 99
_FENCE, _UNFENCE = 1, -1
_IN_CONTROLLED_SHUTDOWN = 1


class BrokerControlState(StrEnum):
    """The state of a broker."""

    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "shutdown now"


class ClusterControlManager:
    """Registrations, heartbeats and the states of brokers."""

    def __init__(self, state: ControllerState) -> None:
        self._state = state

    def register_broker(self, request: Message, info: ControllerRequestContext) -> ControllerResult:
        """Decide a BrokerRegistration. Raises ApiError."""
        if request.cluster_id != self._state.cluster_id:
            text = f"the cluster id is {self._state.cluster_id}, but the broker belongs to cluster {request.cluster_id}"
            raise ApiError(error_codes.INCONSISTENT_CLUSTER_ID, text)
        broker_id = request.broker_id
        existing = self._state.image.brokers.get(broker_id)
        is_new = existing is None or existing.incarnation_id != request.incarnation_id
        if existing is not None and is_new and self._state.has_session(broker_id, info.now_ms):
            text = f"broker id {broker_id} is in use; a restarted broker can register when its old session has timed out"
            raise ApiError(error_codes.DUPLICATE_BROKER_REGISTRATION, text)
        if request.is_migrating_zk_broker:
            raise ApiError(error_codes.BROKER_ID_NOT_REGISTERED, "brokers that use ZooKeeper cannot be registered")
        metadata_version = self._state.metadata_version
        if metadata_version >= DIRECTORIES_SINCE:
            self._check_directories(broker_id, request.log_dirs)
        self._check_features(broker_id, request.features)
        records: Iterable[Message | None] = ()
        if is_new:
            previous_epoch = _NEVER_REGISTERED if existing is None else existing.broker_epoch
            is_clean = self._state.is_elr_enabled and previous_epoch == request.previous_broker_epoch
            records = self.shutdown_records(broker_id, is_clean=is_clean)
            self._state.sessions.pop(broker_id, None)
        broker_epoch = self._state.next_offset() if existing is None or is_new else existing.broker_epoch
        registered = BrokerRegistration(
            broker_id=broker_id,
            broker_epoch=broker_epoch,
            incarnation_id=request.incarnation_id,
            endpoints=endpoints_of(request.listeners),
            features=features_of(request.features),
            rack=request.rack,
            is_fenced=existing is None or is_new or existing.is_fenced,
            is_in_controlled_shutdown=existing is not None and not is_new and existing.is_in_controlled_shutdown,
            is_migrating_zk_broker=False,
            log_dirs=request.log_dirs,
            cordoned_log_dirs=None,
        )
        self._state.sessions.setdefault(broker_id, Session(info.now_ms))
        response = API_KEYS[BROKER_REGISTRATION].response.new(broker_epoch=broker_epoch)
        return ControllerResult(chain(records, (broker_record(registered, metadata_version),)), response)

    def _check_directories(self, broker_id: int, directories: list[Uuid]) -> None:
        code = error_codes.INVALID_REGISTRATION
        if not directories:
            raise ApiError(code, f"broker {broker_id} has no log directory")
        if len(set(directories)) != len(directories):
            raise ApiError(code, f"broker {broker_id} lists a log directory twice")
        if any(int.from_bytes(directory, "big") <= _HIGHEST_RESERVED_DIRECTORY for directory in directories):
            raise ApiError(code, f"broker {broker_id} lists a reserved directory id")
        for other in self._state.image.brokers.values():
            shared = [] if other.broker_id == broker_id else [one for one in directories if one in other.log_dirs]
            if shared:
                raise ApiError(code, f"directory {shared[0]} is already registered by broker {other.broker_id}")

    def _check_features(self, broker_id: int, features: Iterable[Message]) -> None:
        """Check that the broker supports the level of each feature: of those it lists, then of all others. Raises ApiError."""
        supported = {feature.name: (feature.min_supported_version, feature.max_supported_version) for feature in features}
        levels = {**self._state.image.features, KRAFT_VERSION: self._state.image.kraft_version}
        for name in [*supported, *levels]:
            if name not in supported and METADATA_VERSION not in supported:
                raise ApiError(
                    error_codes.INVALID_REGISTRATION,
                    f"broker {broker_id} does not state which levels of {METADATA_VERSION} it supports",
                )
            level, (lowest, highest) = levels.get(name, 0), supported.get(name, (0, 0))
            if not lowest <= level <= highest:
                raise ApiError(
                    error_codes.UNSUPPORTED_VERSION,
                    f"the cluster has {name}={level}, but broker {broker_id} supports the levels {lowest} to {highest}",
                )

    # ----------------------------------------------------------------------------------------------------------- heartbeats

    def heartbeat(self, request: Message, info: ControllerRequestContext) -> ControllerResult:
        """Decide a BrokerHeartbeat. Raises ApiError."""
        broker_id = request.broker_id
        broker = self._state.check_epoch(broker_id, request.broker_epoch)
        registration_offset = self._state.image.registration_offsets.get(broker_id, broker.broker_epoch)
        session = self._state.sessions.setdefault(broker_id, Session(info.now_ms))
        current = self._state_of(broker)
        following = self._next_state(broker, session, current, request, registration_offset)
        records: Iterable[Message | None] = ()
        if following is not current:
            if following in (BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW):
                records = self.fence_records(broker) if not broker.is_fenced else ()
            elif following is BrokerControlState.UNFENCED:
                records = self._unfence_records(broker)
            else:
                records = _with_shutdown_offset(session, self._state.next_offset(), self._controlled_shutdown_records(broker))
        # A broker that may stop has no session any more, so that its next process registers at once; Kafka's waits until the
        # session has timed out.
        has_ended = following is BrokerControlState.SHUTDOWN_NOW
        session.last_heartbeat_ms = info.now_ms - (self._state.session_timeout_ms if has_ended else 0)
        session.metadata_offset = request.current_metadata_offset
        is_fenced = following in (BrokerControlState.FENCED, BrokerControlState.SHUTDOWN_NOW)
        if is_fenced:
            session.controlled_shutdown_offset = -1
        directories = self._directory_records(broker, request)
        response = API_KEYS[BROKER_HEARTBEAT].response.new(
            is_caught_up=request.current_metadata_offset >= registration_offset,
            is_fenced=is_fenced,
            should_shut_down=has_ended,
        )
        return ControllerResult(chain(records, directories), response)

    def _state_of(self, broker: BrokerRegistration) -> BrokerControlState:
        if self._state.is_stopping(broker.broker_id):
            return BrokerControlState.CONTROLLED_SHUTDOWN
        return BrokerControlState.FENCED if broker.is_fenced else BrokerControlState.UNFENCED

    def _next_state(
        self,
        broker: BrokerRegistration,
        session: Session,
        current: BrokerControlState,
        request: Message,
        registration_offset: int,
    ) -> BrokerControlState:
        """Return the state after this heartbeat, by the table above."""
        if current is BrokerControlState.FENCED:
            if request.want_shut_down:
                return BrokerControlState.SHUTDOWN_NOW
            is_caught_up = request.current_metadata_offset >= registration_offset
            return BrokerControlState.UNFENCED if is_caught_up and not request.want_fence else BrokerControlState.FENCED
        if current is BrokerControlState.UNFENCED:
            if request.want_fence:
                return BrokerControlState.SHUTDOWN_NOW if request.want_shut_down else BrokerControlState.FENCED
            if request.want_shut_down:
                return (
                    BrokerControlState.CONTROLLED_SHUTDOWN if self._leads(broker.broker_id) else BrokerControlState.SHUTDOWN_NOW
                )
            return BrokerControlState.UNFENCED
        if self._leads(broker.broker_id) or session.controlled_shutdown_offset > self._lowest_active_offset():
            return BrokerControlState.CONTROLLED_SHUTDOWN
        return BrokerControlState.SHUTDOWN_NOW

    def _leads(self, broker_id: int) -> bool:
        return self._state.image.index.leads(broker_id)

    def _lowest_active_offset(self) -> int:
        """Return the offset up to which every active broker has applied the log, INT64_MAX if no broker is active.

        Brokers in controlled shutdown do not count (as in BrokerHeartbeatManager.touch and lowestActiveOffset of Kafka 4.3):
        two brokers that stop at the same time would wait for each other.
        """
        offsets = [
            session.metadata_offset for broker_id, session in self._state.sessions.items() if self._state.is_active(broker_id)
        ]
        return min(offsets, default=INT64_MAX)

    def stale_broker(self, now_ms: int) -> BrokerRegistration | None:
        """Return the broker that is not fenced and whose session expired first, or None."""
        deadline_ms = now_ms - self._state.session_timeout_ms
        stale = [
            (session.last_heartbeat_ms, broker_id)
            for broker_id, session in self._state.sessions.items()
            if session.last_heartbeat_ms <= deadline_ms and not self._state.image.brokers[broker_id].is_fenced
        ]
        return self._state.image.brokers[min(stale)[1]] if stale else None

    # -------------------------------------------------------------------------------------------------- consequences

    def fence_records(self, broker: BrokerRegistration) -> Iterator[Message | None]:
        """Yield the records that fence a broker and remove it from the ISRs."""
        in_sync = self._state.image.index.in_sync_on(broker.broker_id)
        yield from self._state.leader_and_isr_records(in_sync, removed=broker.broker_id)
        yield _change_record(broker, 0, fenced=_FENCE)

    def _unfence_records(self, broker: BrokerRegistration) -> Iterator[Message | None]:
        yield _change_record(broker, 0, fenced=_UNFENCE)
        yield from self._state.leader_and_isr_records(self._state.image.index.without_leader, added=broker.broker_id)

    def _controlled_shutdown_records(self, broker: BrokerRegistration) -> Iterator[Message | None]:
        if not broker.is_in_controlled_shutdown:
            yield _change_record(broker, 1, in_controlled_shutdown=_IN_CONTROLLED_SHUTDOWN)
        in_sync = self._state.image.index.in_sync_on(broker.broker_id)
        yield from self._state.leader_and_isr_records(in_sync, removed=broker.broker_id)

    def shutdown_records(self, broker_id: int, *, is_clean: bool) -> Iterator[Message | None]:
        """Return the changes of partitions that follow from the stop of a broker's last incarnation."""
        index = self._state.image.index
        if self._state.is_elr_enabled and not is_clean:
            return self._state.leader_and_isr_records(index.in_sync_or_eligible_on(broker_id), unclean=broker_id)
        return self._state.leader_and_isr_records(index.in_sync_on(broker_id), removed=broker_id)

    def _directory_records(self, broker: BrokerRegistration, request: Message) -> list[Message | None]:
        """Return the records for directories that went offline or were cordoned since the last heartbeat."""
        records: list[Message | None] = []
        offline = [directory for directory in broker.log_dirs if directory in request.offline_log_dirs]
        if offline and self._state.metadata_version >= DIRECTORIES_SINCE:
            records += self._state.leader_and_isr_records(
                self._in_directories(broker.broker_id, offline), removed=broker.broker_id
            )
            online = [directory for directory in broker.log_dirs if directory not in offline]
            records.append(_change_record(broker, 2, log_dirs=online))
        cordoned = request.cordoned_log_dirs
        is_stated = cordoned is not None and self._state.metadata_version >= CORDONED_LOG_DIRS_SINCE
        if is_stated and (broker.cordoned_log_dirs is None or set(cordoned) != set(broker.cordoned_log_dirs)):
            records.append(_change_record(broker, 3, cordoned_log_dirs=cordoned))
        return records

    def _in_directories(self, broker_id: int, directories: Collection[Uuid]) -> Iterator[PartitionKey]:
        """Yield the partitions that change if these directories of the broker go offline.

        Of the partitions that the broker is not in sync with, only those without a leader can change: by an election.
        """
        index = self._state.image.index
        for topic, number in self._state.existing(dict.fromkeys([*index.in_sync_on(broker_id), *index.without_leader])):
            partition = topic.partitions[number]
            if dict(zip(partition.replicas, partition.directories)).get(broker_id) in directories:
                yield topic.topic_id, number

    # ------------------------------------------------------------------------------------------------------------ the rest

    def unregister_broker(self, request: Message, info: ControllerRequestContext) -> ControllerResult:
        """Decide an UnregisterBroker. Raises ApiError."""
        broker = self._state.image.brokers.get(request.broker_id)
        if broker is None:
            raise ApiError(error_codes.BROKER_ID_NOT_REGISTERED, f"broker {request.broker_id} is not registered")
        broker_id = broker.broker_id
        touched = self._state.image.index.in_sync_or_eligible_on(broker_id)
        changes = self._state.leader_and_isr_records(touched, removed=broker_id)
        last = new_record("UnregisterBrokerRecord", broker_id=broker_id, broker_epoch=broker.broker_epoch)
        return ControllerResult(chain(changes, (last,)), API_KEYS[UNREGISTER_BROKER].response.new())

    def register_controller(self, request: Message, info: ControllerRequestContext) -> ControllerResult:
        """Decide a ControllerRegistration. Raises ApiError."""
        if self._state.metadata_version < CONTROLLER_REGISTRATION_SINCE:
            raise ApiError(
                error_codes.UNSUPPORTED_VERSION, "the cluster's metadata.version does not support controller registrations"
            )
        registered = ControllerRegistration(
            controller_id=request.controller_id,
            incarnation_id=request.incarnation_id,
            is_zk_migration_ready=request.zk_migration_ready,
            endpoints=endpoints_of(request.listeners),
            features=features_of(request.features),
        )
        record = controller_record(registered)
        return ControllerResult([record], API_KEYS[CONTROLLER_REGISTRATION].response.new())

    def unregister_controller(self, request: Message, info: ControllerRequestContext) -> ControllerResult:
        """Decide an UnregisterController. A controller that still runs registers again. Raises ApiError."""
        controller_id = request.controller_id
        if controller_id == self._state.node_id:
            raise ApiError(error_codes.INVALID_REQUEST, "Controller cannot unregister itself while it is active.")
        if self._state.metadata_version < CONTROLLER_UNREGISTRATION_SINCE:
            raise ApiError(
                error_codes.UNSUPPORTED_VERSION,
                "the cluster's metadata.version does not support to unregister controllers",
            )
        if controller_id not in self._state.image.controllers:
            raise ApiError(error_codes.CONTROLLER_ID_NOT_REGISTERED, f"controller {controller_id} is not registered")
        record = new_record("UnregisterControllerRecord", controller_id=controller_id)
        return ControllerResult([record], API_KEYS[UNREGISTER_CONTROLLER].response.new(error_message=""))


def _with_shutdown_offset(session: Session, base_offset: int, records: Iterable[Message | None]) -> Iterator[Message | None]:
    """Yield the records of a controlled shutdown; then store in the session the offset that other brokers must reach."""
    next_offset = base_offset
    for record in records:
        next_offset += record is not None
        yield record
    session.controlled_shutdown_offset = next_offset - 1


def _change_record(broker: BrokerRegistration, version: int, **changes: object) -> Message:
    return new_record(
        "BrokerRegistrationChangeRecord",
        schema_version=version,
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        **changes,
    )
