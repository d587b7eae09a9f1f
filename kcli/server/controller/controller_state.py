"""The state that the controller decides on: the metadata image, and the sessions of the brokers.

As in Kafka, a record counts for the next decision as soon as it is appended, while the response waits for its commit. If this
controller loses the leadership, the records that are not committed are reverted (kcli.state.speculative_state). Sessions are
not in the log: a new leader gives every broker that is not fenced a whole session to send its first heartbeat.

    known of a broker        from
    -----------------------  ---------------------------------------------------------------------
    last heartbeat           its heartbeats; it is fenced after broker.session.timeout.ms without one
    metadata offset          its heartbeats: the offset up to which it has applied the metadata log
    end of its shutdown      the offset that all active brokers must reach; -1 for a broker that is fenced or does not stop
    offset of registration   its RegisterBrokerRecord: a broker is unfenced when it has applied that

PartitionIndex finds the partitions that a decision concerns, so that no decision scans all of them (Kafka: BrokersToIsrs,
BrokersToElrs, imbalancedPartitions and reassigningTopics). It follows each partition that is applied or reverted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Self

from kcli.format.kafka_uuid import Uuid
from kcli.log.rng import Random
from kcli.protocol import error_codes
from kcli.protocol.control_records import ControlRecord
from kcli.protocol.message import Message
from kcli.server.config.dynamic_config import DynamicConfig
from kcli.server.config.values import format_value
from kcli.server.controller.controller_result import ApiError
from kcli.server.controller.partition_change_builder import Election, PartitionChangeBuilder
from kcli.server.features import ELIGIBLE_LEADER_REPLICAS_VERSION, METADATA_VERSION
from kcli.state.image_records import LEADER_ELR_SINCE
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import (
    DIRECTORY_LOST,
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    NO_LEADER,
    BrokerRegistration,
    ConfigResource,
    PartitionRegistration,
    Topic,
)
from kcli.state.speculative_state import SnapshottedState
from kcli.state.state_error import StateError

_BROKER_RESOURCE = 4


# A partition of the index: topic id and number.
PartitionKey = tuple[Uuid, int]
_Keys = dict[PartitionKey, None]  # a set that keeps its order, which must not depend on the hashes of a process
_NO_KEYS: _Keys = {}


class PartitionIndex:
    """The partitions by what concerns their brokers, as lists of the moment that the caller may use while partitions change.

    property       the partitions
    -------------  ---------------------------------------------------------------------------------------------------
    in_sync_on     with the broker in their ISR
    eligible_on    with the broker among their eligible leader replicas
    without_leader without a leader
    imbalanced     whose leader is not the preferred one, which is the first replica; also those without a leader
    moving         whose reassignment is in progress

    `follow` keeps it up to date.
    """

    def __init__(self) -> None:
        self._in_sync: dict[int, _Keys] = {}
        self._eligible: dict[int, _Keys] = {}
        self._led: dict[int, int] = {}  # the number of partitions that a broker leads, -1: without a leader
        self._without_leader: _Keys = {}
        self._imbalanced: _Keys = {}
        self._moving: _Keys = {}

    def follow(self, key: PartitionKey, old: PartitionRegistration | None, new: PartitionRegistration | None) -> None:
        """Take over a partition that becomes another; None is a partition that does not exist. About 1 us."""
        isr = () if old is None else old.isr
        new_isr = () if new is None else new.isr
        if isr != new_isr:
            _move(self._in_sync, key, isr, new_isr)
        elr = () if old is None else old.eligible_leader_replicas
        new_elr = () if new is None else new.eligible_leader_replicas
        if elr or new_elr:
            _move(self._eligible, key, elr, new_elr)
        if old is not None and (new is None or new.leader != old.leader):
            self._led[old.leader] -= 1
            if not self._led[old.leader]:
                del self._led[old.leader]
        if new is not None and (old is None or new.leader != old.leader):
            self._led[new.leader] = self._led.get(new.leader, 0) + 1
        _set(self._without_leader, key, new is not None and new.leader == NO_LEADER)
        _set(self._imbalanced, key, new is not None and [new.leader] != new.replicas[:1])
        _set(self._moving, key, new is not None and bool(new.adding_replicas or new.removing_replicas))

    def leads(self, broker_id: int) -> bool:
        """Return whether the broker leads a partition."""
        return broker_id in self._led

    def in_sync_on(self, broker_id: int) -> list[PartitionKey]:
        """Return the partitions with the broker in their ISR."""
        return list(self._in_sync.get(broker_id, ()))

    def in_sync_or_eligible_on(self, broker_id: int) -> list[PartitionKey]:
        """Return the partitions with the broker in their ISR or among their eligible leader replicas."""
        return list(self._in_sync.get(broker_id, _NO_KEYS) | self._eligible.get(broker_id, _NO_KEYS))

    @property
    def without_leader(self) -> list[PartitionKey]:
        """Return the partitions without a leader."""
        return list(self._without_leader)

    @property
    def counts(self) -> tuple[int, int]:
        """Return the number of partitions without a leader, and that of imbalanced ones."""
        return len(self._without_leader), len(self._imbalanced)

    @property
    def imbalanced(self) -> list[PartitionKey]:
        """Return the partitions that the preferred leader does not lead."""
        return list(self._imbalanced)

    @property
    def moving(self) -> list[PartitionKey]:
        """Return the partitions with a reassignment in progress."""
        return list(self._moving)


def _set(keys: _Keys, key: PartitionKey, is_in: bool) -> None:
    if is_in:
        keys[key] = None
    elif key in keys:
        del keys[key]


def _move(by_broker: dict[int, _Keys], key: PartitionKey, old: Sequence[int], new: Sequence[int]) -> None:
    for broker_id in old:
        if broker_id not in new and broker_id in by_broker:
            by_broker[broker_id].pop(key, None)
            if not by_broker[broker_id]:
                del by_broker[broker_id]
    for broker_id in new:
        if broker_id not in old:
            by_broker.setdefault(broker_id, {})[key] = None


class _EmptyIndex(PartitionIndex):
    """The index of a frozen image, which stays empty."""

    def follow(self, key: PartitionKey, old: PartitionRegistration | None, new: PartitionRegistration | None) -> None:
        """Do nothing."""


class ControllerImage(MetadataImage):
    """The metadata image with the offset of each broker's last RegisterBrokerRecord, as in Kafka's ClusterControlManager."""

    _maps = (*MetadataImage._maps, "registration_offsets")

    def __init__(self) -> None:
        super().__init__()
        self.registration_offsets: dict[int, int] = {}
        self.index = PartitionIndex()

    def frozen(self) -> Self:
        """Return a copy that later changes of this image do not affect. It has no index: nothing is decided on it."""
        copy = super().frozen()
        copy.index = _EmptyIndex()
        return copy

    def _partition_changed(
        self, topic_id: Uuid, index: int, old: PartitionRegistration | None, new: PartitionRegistration | None
    ) -> None:
        self.index.follow((topic_id, index), old, new)

    def apply_at(self, record: Message | ControlRecord, offset: int) -> None:
        """Apply a record of either kind that is at an offset of the log. Raises StateError if it does not fit."""
        if isinstance(record, ControlRecord):
            self.apply_control(record)
            return
        name = record.STRUCT.name
        if name == "TopicRecord" and (record.topic_id in self.topics or record.name in self.topic_ids):
            raise StateError(f"TopicRecord of topic {record.name} with id {record.topic_id}: one of the two exists already")
        self.apply(record)
        if name == "RegisterBrokerRecord":
            self._put("registration_offsets", record.broker_id, offset)
        elif name == "UnregisterBrokerRecord":
            self._remove("registration_offsets", record.broker_id)


class Session:
    """The state of a broker that is not in the log (Kafka: BrokerHeartbeatManager)."""

    __slots__ = ("controlled_shutdown_offset", "last_heartbeat_ms", "metadata_offset")

    def __init__(self, now_ms: int) -> None:
        self.last_heartbeat_ms = now_ms
        self.metadata_offset = -1
        self.controlled_shutdown_offset = -1


class _ElectionSettings(NamedTuple):
    """The settings for elections of a topic's partitions; `min_isr` is at most the replication factor."""

    metadata_version: int
    is_elr_enabled: bool
    min_isr: int
    is_unclean_allowed: bool


class ControllerState:
    """The image and the sessions; `dynamic` is this node's configuration, which is updated by the image's records.

    `next_offset()` is the offset that the next record will get.
    """

    def __init__(self, cluster_id: str, rng: Random, dynamic: DynamicConfig, next_offset: Callable[[], int]) -> None:
        self.cluster_id = cluster_id
        self.node_id = dynamic.node_id
        self.session_timeout_ms = dynamic.get_int("broker.session.timeout.ms")
        # The end of the log when this process first knew a leader: its own broker registers behind it.
        self.joined_offset: int | None = None
        self.rng = rng
        self.dynamic = dynamic
        self.next_offset = next_offset
        self.sessions: dict[int, Session] = {}
        self._settings_key: tuple[Uuid, int] | None = None
        self._settings = _ElectionSettings(0, False, 1, False)
        self._loading: ControllerImage | None = None
        self._use(ControllerImage())

    # -------------------------------------------------------------------------------------------------------- records

    def begin_snapshot(self) -> None:
        """Begin a new image, to which `replay` applies the records of a snapshot; the present image is used until its end."""
        self._loading = ControllerImage()

    def end_snapshot(self) -> None:
        """Use the image that a snapshot has made, and its configurations: those that it lacks are removed."""
        if self._loading is not None:
            self._use(self._loading)
            self._loading = None
            self.sessions = {broker_id: one for broker_id, one in self.sessions.items() if broker_id in self.image.brokers}
            self.dynamic.follow(self.image)

    def _use(self, image: ControllerImage) -> None:
        self.image = image
        self._speculative = SnapshottedState[ControllerImage, Message | ControlRecord](image, image.apply_at)
        self._settings_key = None

    def append(self, record: Message | ControlRecord, offset: int) -> None:
        """Apply a record that this controller appended. Raises StateError if it does not fit."""
        self._speculative.append(record, offset)
        self._follow(record)

    def prepare(self, record: Message, offset: int) -> None:
        """Apply a record that this controller is about to append. Raises StateError if it does not fit."""
        self._speculative.prepare(record, offset)
        self._follow(record)

    def confirm(self, last_offset: int) -> None:
        """Note that the records that are prepared are appended."""
        self._speculative.confirm(last_offset)

    def replay(self, record: Message | ControlRecord, offset: int) -> None:
        """Apply a committed record of another leader or of a snapshot. Raises StateError if it does not fit."""
        if self._loading is not None:
            self._loading.apply_at(record, offset)
            return
        self.image.apply_at(record, offset)
        self._follow(record)

    def commit(self, last_offset: int) -> None:
        """Take the records up to this offset as committed."""
        self._speculative.commit(last_offset)

    def roll_back(self, from_offset: int = 0) -> None:
        """Revert the records that are prepared, and those that are not committed from an offset on."""
        self._speculative.roll_back(from_offset)
        self._settings_key = None
        self.dynamic.follow(self.image)

    def committed_image(self) -> MetadataImage:
        """Return a copy of the image as the committed records alone make it; it costs some time for each topic."""
        return self._speculative.committed()

    def _follow(self, record: Message | ControlRecord) -> None:
        if isinstance(record, ControlRecord):
            return
        name = record.STRUCT.name
        if name == "UnregisterBrokerRecord":
            self.sessions.pop(record.broker_id, None)
        elif name == "EndTransactionRecord" or (name == "ConfigRecord" and record.resource_type == _BROKER_RESOURCE):
            # Records of a metadata transaction count when it ends.
            self.dynamic.follow(self.image)

    # ------------------------------------------------------------------------------------------------------- features

    @property
    def metadata_version(self) -> int:
        """Return the level of metadata.version. Raises ApiError before the first records of the cluster are applied."""
        level = self.image.features.get(METADATA_VERSION)
        if level is None:
            raise ApiError(error_codes.UNSUPPORTED_VERSION, "the cluster has no metadata.version yet; try again")
        return level

    @property
    def is_elr_enabled(self) -> bool:
        """Return whether eligible leader replicas (KIP-966) are enabled."""
        return self.image.features.get(ELIGIBLE_LEADER_REPLICAS_VERSION, 0) > 0 and self.metadata_version >= LEADER_ELR_SINCE

    # -------------------------------------------------------------------------------------------------------- brokers

    def check_epoch(self, broker_id: int, broker_epoch: int) -> BrokerRegistration:
        """Return the broker's registration. Raises ApiError if it has none or another epoch."""
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            raise ApiError(error_codes.STALE_BROKER_EPOCH, f"broker {broker_id} is not registered")
        if broker.broker_epoch != broker_epoch:
            raise ApiError(
                error_codes.STALE_BROKER_EPOCH,
                f"broker {broker_id} has epoch {broker.broker_epoch}, and the request has epoch {broker_epoch}",
            )
        return broker

    def begin_sessions(self, now_ms: int) -> None:
        """Begin a session of each broker that is not fenced, as a new leader does."""
        self.sessions = {broker_id: Session(now_ms) for broker_id, broker in self.image.brokers.items() if not broker.is_fenced}

    def has_session(self, broker_id: int, now_ms: int) -> bool:
        """Return whether a broker may be running: its session has not expired.

        An earlier process of this controller's own node cannot be running: this one has the lock of the log directories.
        """
        session = self.sessions.get(broker_id)
        if session is None or now_ms - session.last_heartbeat_ms >= self.session_timeout_ms:
            return False
        registered = self.image.registration_offsets.get(broker_id, -1)
        return broker_id != self.node_id or self.joined_offset is None or registered >= self.joined_offset

    def is_stopping(self, broker_id: int) -> bool:
        """Return whether a broker is in controlled shutdown. It is not any more when it is fenced, and may get replicas."""
        session = self.sessions.get(broker_id)
        return session is not None and session.controlled_shutdown_offset >= 0

    def is_active(self, broker_id: int) -> bool:
        """Return whether a broker is registered, not fenced and not shutting down: it may lead partitions."""
        broker = self.image.brokers.get(broker_id)
        return broker is not None and not broker.is_fenced and not broker.is_in_controlled_shutdown

    def default_directory(self, broker_id: int) -> Uuid:
        """Return the directory of a new replica on a broker: UNASSIGNED if the broker has several to choose from."""
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            return DIRECTORY_UNASSIGNED
        if not broker.log_dirs:
            return DIRECTORY_MIGRATING
        return broker.log_dirs[0] if len(broker.log_dirs) == 1 else DIRECTORY_UNASSIGNED

    def has_online_directory(self, partition: PartitionRegistration, broker_id: int) -> bool:
        """Return whether the broker's replica is in a directory that is online."""
        directory = dict(zip(partition.replicas, partition.directories)).get(broker_id, DIRECTORY_UNASSIGNED)
        if directory in (DIRECTORY_UNASSIGNED, DIRECTORY_MIGRATING):
            return True
        if directory == DIRECTORY_LOST:
            return False
        broker = self.image.brokers.get(broker_id)
        return broker is None or not broker.log_dirs or directory in broker.log_dirs

    # --------------------------------------------------------------------------------------------------------- topics

    def setting(self, key: str) -> str:
        """Return the value of a broker key on this node now, as text."""
        return format_value(self.dynamic[key]) or ""

    def topic_setting(self, topic: str, key: str) -> str:
        """Return the effective value of a topic's key that brokers have by the same name."""
        own = self.image.configs.get(ConfigResource("TOPIC", topic), {}).get(key)
        return self.setting(key) if own is None else own

    def _election_settings(self, topic: Topic) -> _ElectionSettings:
        """Return the settings for elections of a topic, cached until the next record: many partitions may change at once."""
        key = (topic.topic_id, self.next_offset())
        if self._settings_key != key:
            first = topic.partitions.get(0)
            min_isr = int(self.topic_setting(topic.name, "min.insync.replicas"))
            is_unclean = self.topic_setting(topic.name, "unclean.leader.election.enable").lower() == "true"
            self._settings_key = key
            self._settings = _ElectionSettings(
                self.metadata_version,
                self.is_elr_enabled,
                min(min_isr, len(first.replicas) if first is not None else 1),
                is_unclean,
            )
        return self._settings

    def is_unclean_allowed(self, topic: Topic) -> bool:
        """Return whether unclean.leader.election.enable is true for the topic."""
        return self._election_settings(topic).is_unclean_allowed

    def existing(self, keys: Iterable[PartitionKey]) -> Iterator[tuple[Topic, int]]:
        """Yield the topic and number of each of these partitions that still exists when it is reached."""
        for topic_id, index in keys:
            topic = self.image.topics.get(topic_id)
            if topic is not None and index in topic.partitions:
                yield topic, index

    def change(
        self,
        topic: Topic,
        index: int,
        *,
        may_lead: Callable[[int], bool] | None = None,
        election: Election | None = None,
    ) -> PartitionChangeBuilder:
        """Return the builder of one partition's change; by default active brokers may lead.

        By default the election is unclean if the topic allows that. A change that only adds or moves replicas must state
        ONLINE: it would elect an added replica, which is empty, and lose the records of those that are offline.
        """
        partition = topic.partitions[index]
        accepted = self.is_active if may_lead is None else may_lead
        settings = self._election_settings(topic)
        if election is None:
            election = Election.UNCLEAN if settings.is_unclean_allowed else Election.ONLINE
        return PartitionChangeBuilder(
            topic.topic_id,
            index,
            partition,
            lambda broker_id: accepted(broker_id) and self.has_online_directory(partition, broker_id),
            metadata_version=settings.metadata_version,
            min_isr=settings.min_isr,
            is_elr_enabled=settings.is_elr_enabled,
            default_directory=self.default_directory,
            election=election,
        )

    def leader_and_isr_records(
        self,
        keys: Iterable[PartitionKey],
        *,
        removed: int = NO_LEADER,
        added: int = NO_LEADER,
        unclean: int = NO_LEADER,
    ) -> Iterator[Message | None]:
        """Yield the changes of these partitions, about 20 us each, and None for a partition that does not change.

        Partitions that do not exist any more are left out.
        Broker `removed` leaves the ISR, `added` may lead although it is not active yet, `unclean` has lost unflushed records.
        """

        def may_lead(broker_id: int) -> bool:
            return broker_id not in (removed, unclean) and (broker_id == added or self.is_active(broker_id))

        for topic, index in self.existing(keys):
            change = self.change(topic, index, may_lead=may_lead)
            change.target_isr = [replica for replica in topic.partitions[index].isr if replica not in (removed, unclean)]
            change.unclean_replicas = () if unclean == NO_LEADER else (unclean,)
            yield change.build()

    def preferred_elections(self) -> Iterator[Message | None]:
        """Yield the elections of preferred leaders, and None for a partition that keeps its leader."""
        for topic, index in self.existing(self.image.index.imbalanced):
            yield self.change(topic, index, election=Election.PREFERRED).build()

    def unclean_elections(self) -> Iterator[Message | None]:
        """Yield unclean elections of partitions without a leader whose topic allows them, and None for others."""
        for topic, index in self.existing(self.image.index.without_leader):
            is_allowed = self.is_unclean_allowed(topic)
            yield self.change(topic, index, election=Election.UNCLEAN).build() if is_allowed else None

    def check_assignment(self, index: int, replicas: Sequence[int], expected: int | None, *, is_new: bool = True) -> None:
        """Check the replicas assigned to a partition; `expected` is their number in other partitions. Raises ApiError.

        A new partition needs an active broker as its leader. A reassignment to brokers that are all fenced is accepted and
        carried out when they are back, as in Kafka (ReplicationControlManager.changePartitionReassignment).
        """
        fault = None
        unknown = [broker_id for broker_id in replicas if broker_id not in self.image.brokers]
        if not replicas:
            fault = "has no replicas"
        elif len(set(replicas)) != len(replicas):
            fault = "is assigned to a broker twice"
        elif unknown:
            fault = f"is assigned to broker {unknown[0]}, which is not registered"
        elif expected is not None and len(replicas) != expected:
            fault = f"has {len(replicas)} replica(s), but other partitions of the topic have {expected}"
        elif is_new and not any(map(self.is_active, replicas)):
            fault = "is assigned only to brokers that are fenced or shutting down"
        if fault is not None:
            raise ApiError(error_codes.INVALID_REPLICA_ASSIGNMENT, f"partition {index} {fault}")
