"""Brokers come, live and go (KIP-631): BrokerRegistration, BrokerHeartbeat, UnregisterBroker, ControllerRegistration.

    a broker is            and becomes                     when
    ---------------------  ------------------------------  -----------------------------------------------------------
    not registered         fenced                          it registers
    fenced                 unfenced                        it wants to, and has applied the log up to its registration
    unfenced               fenced                          it wants to, or is silent for broker.session.timeout.ms
    unfenced               in controlled shutdown          it wants to stop and leads partitions, which move elsewhere
    in controlled shutdown may shut down (and is fenced)   it leads nothing any more and all active brokers know that
    fenced, unfenced       may shut down                   it wants to stop and leads nothing

Fencing takes a broker out of all ISRs that have others (with eligible leader replicas: of all), and gives its leaderships away;
unfencing elects leaders where none are. A broker that registers anew after an unclean stop is not eligible either any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from itertools import chain

from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import INT64_MAX
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, BROKER_HEARTBEAT, BROKER_REGISTRATION, CONTROLLER_REGISTRATION, UNREGISTER_BROKER
from kcli.protocol.catalog import message_type
from kcli.protocol.message import Message
from kcli.server.controller.controller_result import ApiError, ControllerRequestContext, ControllerResult
from kcli.server.controller.controller_state import ControllerState, Session
from kcli.server.controller.features import CONTROLLER_REGISTRATION_SINCE, METADATA_VERSION
from kcli.server.raft.metadata_batches import new_record
from kcli.state.image_records import CORDONED_LOG_DIRS_SINCE, DIRECTORIES_SINCE, register_broker_version
from kcli.state.metadata_values import NO_LEADER, BrokerRegistration, Partition

_NEVER_REGISTERED = -2  # no broker says that it had this epoch
_HIGHEST_RESERVED_DIRECTORY = 99
_FENCE, _UNFENCE = 1, -1
_IN_CONTROLLED_SHUTDOWN = 1


class BrokerStep(StrEnum):
    """What a broker is, or is let to be."""

    FENCED = "fenced"
    UNFENCED = "unfenced"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    SHUTDOWN_NOW = "shutdown now"


def register_broker(state: ControllerState, request: Message, info: ControllerRequestContext) -> ControllerResult:
    """Decide a BrokerRegistration. Raises ApiError."""
    if request.cluster_id != state.cluster_id:
        text = f"this is cluster {state.cluster_id}, and the broker belongs to {request.cluster_id}"
        raise ApiError(error_codes.INCONSISTENT_CLUSTER_ID, text)
    broker_id = request.broker_id
    existing = state.image.brokers.get(broker_id)
    is_new = existing is None or existing.incarnation_id != request.incarnation_id
    if existing is not None and is_new and state.has_session(broker_id, info.now_ms):
        text = f"broker id {broker_id} is in use; a broker that has restarted gets it when its old session has timed out"
        raise ApiError(error_codes.DUPLICATE_BROKER_REGISTRATION, text)
    if request.is_migrating_zk_broker:
        raise ApiError(error_codes.BROKER_ID_NOT_REGISTERED, "brokers that use ZooKeeper cannot be registered")
    metadata_version = state.metadata_version
    if metadata_version >= DIRECTORIES_SINCE:
        _check_directories(state, broker_id, request.log_dirs)
    _check_features(state, broker_id, request.features)
    records: Iterable[Message] = ()
    if is_new:
        previous_epoch = _NEVER_REGISTERED if existing is None else existing.broker_epoch
        is_clean = state.is_elr_enabled and previous_epoch == request.previous_broker_epoch
        records = shutdown_records(state, broker_id, is_clean=is_clean)
        state.sessions.pop(broker_id, None)
    broker_epoch = state.next_offset() if existing is None or is_new else existing.broker_epoch
    registration = _registration_record(request, metadata_version, broker_epoch, None if is_new else existing)
    state.sessions.setdefault(broker_id, Session(info.now_ms))
    response = API_KEYS[BROKER_REGISTRATION].response.new(broker_epoch=broker_epoch)
    return ControllerResult(chain(records, (registration,)), response)


def _registration_record(
    request: Message, metadata_version: int, broker_epoch: int, existing: BrokerRegistration | None
) -> Message:
    classes = message_type("metadata_records", "RegisterBrokerRecord").classes
    record = new_record(
        "RegisterBrokerRecord",
        schema_version=register_broker_version(metadata_version),
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        broker_epoch=broker_epoch,
        rack=request.rack,
        fenced=True if existing is None else existing.is_fenced,
        in_controlled_shutdown=existing is not None and existing.is_in_controlled_shutdown,
        end_points=[
            classes["BrokerEndpoint"](name=at.name, host=at.host, port=at.port, security_protocol=at.security_protocol)
            for at in request.listeners
        ],
        features=[
            classes["BrokerFeature"](
                name=feature.name,
                min_supported_version=feature.min_supported_version,
                max_supported_version=feature.max_supported_version,
            )
            for feature in request.features
        ],
    )
    if metadata_version >= DIRECTORIES_SINCE:
        record.log_dirs = request.log_dirs
    return record


def _check_directories(state: ControllerState, broker_id: int, directories: list[Uuid]) -> None:
    code = error_codes.INVALID_REGISTRATION
    if not directories:
        raise ApiError(code, f"broker {broker_id} names no log directory")
    if len(set(directories)) != len(directories):
        raise ApiError(code, f"broker {broker_id} names a log directory twice")
    if any(int.from_bytes(directory, "big") <= _HIGHEST_RESERVED_DIRECTORY for directory in directories):
        raise ApiError(code, f"broker {broker_id} names a directory id that is reserved")
    for other in state.image.brokers.values():
        shared = [] if other.broker_id == broker_id else [one for one in directories if one in other.log_dirs]
        if shared:
            raise ApiError(code, f"directory {shared[0]} is registered already, by broker {other.broker_id}")


def _check_features(state: ControllerState, broker_id: int, features: Iterable[Message]) -> None:
    """The broker must support each level that the cluster has."""
    supported = {feature.name: (feature.min_supported_version, feature.max_supported_version) for feature in features}
    if METADATA_VERSION not in supported:
        raise ApiError(
            error_codes.INVALID_REGISTRATION, f"broker {broker_id} does not say which {METADATA_VERSION} it supports"
        )
    for name, level in state.image.features.items():
        lowest, highest = supported.get(name, (0, 0))
        if not lowest <= level <= highest:
            raise ApiError(
                error_codes.UNSUPPORTED_VERSION,
                f"the cluster has {name}={level}, and broker {broker_id} supports the levels {lowest} to {highest}",
            )


# ----------------------------------------------------------------------------------------------------------- heartbeats


def heartbeat(state: ControllerState, request: Message, info: ControllerRequestContext) -> ControllerResult:
    """Decide a BrokerHeartbeat. Raises ApiError."""
    broker_id = request.broker_id
    broker = state.check_epoch(broker_id, request.broker_epoch)
    registration_offset = state.image.registration_offsets.get(broker_id, broker.broker_epoch)
    session = state.sessions.setdefault(broker_id, Session(info.now_ms))
    current = _step_of(broker)
    following = _next_step(state, broker, session, current, request, registration_offset)
    records: Iterable[Message] = ()
    if following is not current:
        if following in (BrokerStep.FENCED, BrokerStep.SHUTDOWN_NOW):
            records = fence_records(state, broker) if not broker.is_fenced else ()
        elif following is BrokerStep.UNFENCED:
            records = _unfence_records(state, broker)
        else:
            records = _noted(session, state.next_offset(), _controlled_shutdown_records(state, broker))
    session.last_heartbeat_ms = info.now_ms
    session.metadata_offset = request.current_metadata_offset
    directories = _directory_records(state, broker, request)
    response = API_KEYS[BROKER_HEARTBEAT].response.new(
        is_caught_up=request.current_metadata_offset >= registration_offset,
        is_fenced=following in (BrokerStep.FENCED, BrokerStep.SHUTDOWN_NOW),
        should_shut_down=following is BrokerStep.SHUTDOWN_NOW,
    )
    return ControllerResult(chain(records, directories), response)


def _step_of(broker: BrokerRegistration) -> BrokerStep:
    if broker.is_fenced:
        return BrokerStep.FENCED
    return BrokerStep.CONTROLLED_SHUTDOWN if broker.is_in_controlled_shutdown else BrokerStep.UNFENCED


def _next_step(
    state: ControllerState,
    broker: BrokerRegistration,
    session: Session,
    current: BrokerStep,
    request: Message,
    registration_offset: int,
) -> BrokerStep:
    """What a broker is let to be, by the table above."""
    if current is BrokerStep.FENCED:
        if request.want_shut_down:
            return BrokerStep.SHUTDOWN_NOW
        is_caught_up = request.current_metadata_offset >= registration_offset
        return BrokerStep.UNFENCED if is_caught_up and not request.want_fence else BrokerStep.FENCED
    if current is BrokerStep.UNFENCED:
        if request.want_fence:
            return BrokerStep.SHUTDOWN_NOW if request.want_shut_down else BrokerStep.FENCED
        if request.want_shut_down:
            return BrokerStep.CONTROLLED_SHUTDOWN if _leads(state, broker.broker_id) else BrokerStep.SHUTDOWN_NOW
        return BrokerStep.UNFENCED
    if _leads(state, broker.broker_id) or session.controlled_shutdown_offset > _lowest_active_offset(state):
        return BrokerStep.CONTROLLED_SHUTDOWN
    return BrokerStep.SHUTDOWN_NOW


def _leads(state: ControllerState, broker_id: int) -> bool:
    return any(partition.leader == broker_id for _, _, partition in state.partitions())


def _lowest_active_offset(state: ControllerState) -> int:
    """How far every broker that is active has applied the log; INT64_MAX where none is.

    Brokers that are leaving, the one that asks among them, do not count (BrokerHeartbeatManager.touch and lowestActiveOffset of
    Kafka 4.3): two that stop at once would else wait for each other.
    """
    offsets = [session.metadata_offset for broker_id, session in state.sessions.items() if state.is_active(broker_id)]
    return min(offsets, default=INT64_MAX)


def expired_brokers(state: ControllerState, now_ms: int) -> list[BrokerRegistration]:
    """Brokers that are not fenced and were not heard from for a session, nor since this controller took over."""
    deadline_ms = now_ms - state.session_timeout_ms
    expired = []
    for broker in state.image.brokers.values():
        session = state.sessions.get(broker.broker_id)
        heard_ms = state.activated_ms if session is None else session.last_heartbeat_ms
        if not broker.is_fenced and heard_ms <= deadline_ms:
            expired.append(broker)
    return expired


# -------------------------------------------------------------------------------------------------- what follows of it


def leader_and_isr_records(
    state: ControllerState,
    touched: Callable[[Partition], bool],
    *,
    removed: int = NO_LEADER,
    added: int = NO_LEADER,
    unclean: int = NO_LEADER,
) -> Iterator[Message]:
    """The changes of all partitions that `touched` picks: `removed` leaves, `added` may lead, `unclean` lost its data.

    Each is made when it is drawn, and costs some 20 us.
    """

    def may_lead(broker_id: int) -> bool:
        return broker_id not in (removed, unclean) and (broker_id == added or state.is_active(broker_id))

    for topic, index, partition in state.partitions():
        if touched(partition):
            change = state.change(topic, index, may_lead=may_lead)
            change.target_isr = [replica for replica in partition.isr if replica not in (removed, unclean)]
            change.unclean_replicas = () if unclean == NO_LEADER else (unclean,)
            record = change.record()
            if record is not None:
                yield record


def fence_records(state: ControllerState, broker: BrokerRegistration) -> Iterator[Message]:
    """Fence a broker and take it out of the ISRs."""
    yield from leader_and_isr_records(state, lambda partition: broker.broker_id in partition.isr, removed=broker.broker_id)
    yield _change_record(broker, 0, fenced=_FENCE)


def _unfence_records(state: ControllerState, broker: BrokerRegistration) -> Iterator[Message]:
    yield _change_record(broker, 0, fenced=_UNFENCE)
    yield from leader_and_isr_records(state, lambda partition: partition.leader == NO_LEADER, added=broker.broker_id)


def _controlled_shutdown_records(state: ControllerState, broker: BrokerRegistration) -> Iterator[Message]:
    if not broker.is_in_controlled_shutdown:
        yield _change_record(broker, 1, in_controlled_shutdown=_IN_CONTROLLED_SHUTDOWN)
    yield from leader_and_isr_records(state, lambda partition: broker.broker_id in partition.isr, removed=broker.broker_id)


def _noted(session: Session, base_offset: int, records: Iterable[Message]) -> Iterator[Message]:
    """The records of a controlled shutdown; with the last the session knows the offset up to which others must follow."""
    next_offset = base_offset
    for record in records:
        next_offset += 1
        yield record
    session.controlled_shutdown_offset = next_offset - 1


def shutdown_records(state: ControllerState, broker_id: int, *, is_clean: bool) -> Iterator[Message]:
    """What the stop of a broker's last incarnation means for its partitions."""
    if state.is_elr_enabled and not is_clean:
        return leader_and_isr_records(
            state,
            lambda partition: broker_id in partition.isr or broker_id in partition.eligible_leader_replicas,
            unclean=broker_id,
        )
    return leader_and_isr_records(state, lambda partition: broker_id in partition.isr, removed=broker_id)


def _directory_records(state: ControllerState, broker: BrokerRegistration, request: Message) -> list[Message]:
    """Directories that went offline or were cordoned since the last heartbeat."""
    records: list[Message] = []
    offline = [directory for directory in broker.log_dirs if directory in request.offline_log_dirs]
    if offline and state.metadata_version >= DIRECTORIES_SINCE:

        def lies_there(partition: Partition) -> bool:
            return dict(zip(partition.replicas, partition.directories)).get(broker.broker_id) in offline

        records += leader_and_isr_records(state, lies_there, removed=broker.broker_id)
        online = [directory for directory in broker.log_dirs if directory not in offline]
        records.append(_change_record(broker, 2, log_dirs=online))
    cordoned = request.cordoned_log_dirs
    is_told = cordoned is not None and state.metadata_version >= CORDONED_LOG_DIRS_SINCE
    if is_told and (broker.cordoned_log_dirs is None or set(cordoned) != set(broker.cordoned_log_dirs)):
        records.append(_change_record(broker, 3, cordoned_log_dirs=cordoned))
    return records


def _change_record(broker: BrokerRegistration, version: int, **changes: object) -> Message:
    return new_record(
        "BrokerRegistrationChangeRecord",
        schema_version=version,
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        **changes,
    )


# ------------------------------------------------------------------------------------------------------------ the rest


def unregister_broker(state: ControllerState, request: Message, info: ControllerRequestContext) -> ControllerResult:
    """Decide an UnregisterBroker. Raises ApiError."""
    broker = state.image.brokers.get(request.broker_id)
    if broker is None:
        raise ApiError(error_codes.BROKER_ID_NOT_REGISTERED, f"broker {request.broker_id} is not registered")
    broker_id = broker.broker_id
    changes = leader_and_isr_records(
        state,
        lambda partition: broker_id in partition.isr or broker_id in partition.eligible_leader_replicas,
        removed=broker_id,
    )
    last = new_record("UnregisterBrokerRecord", broker_id=broker_id, broker_epoch=broker.broker_epoch)
    return ControllerResult(chain(changes, (last,)), API_KEYS[UNREGISTER_BROKER].response.new())


def register_controller(state: ControllerState, request: Message, info: ControllerRequestContext) -> ControllerResult:
    """Decide a ControllerRegistration. Raises ApiError."""
    if state.metadata_version < CONTROLLER_REGISTRATION_SINCE:
        raise ApiError(error_codes.UNSUPPORTED_VERSION, "the cluster's metadata.version does not have controllers register")
    classes = message_type("metadata_records", "RegisterControllerRecord").classes
    record = new_record(
        "RegisterControllerRecord",
        controller_id=request.controller_id,
        incarnation_id=request.incarnation_id,
        zk_migration_ready=request.zk_migration_ready,
        end_points=[
            classes["ControllerEndpoint"](name=at.name, host=at.host, port=at.port, security_protocol=at.security_protocol)
            for at in request.listeners
        ],
        features=[
            classes["ControllerFeature"](
                name=feature.name,
                min_supported_version=feature.min_supported_version,
                max_supported_version=feature.max_supported_version,
            )
            for feature in request.features
        ],
    )
    return ControllerResult([record], API_KEYS[CONTROLLER_REGISTRATION].response.new())
