"""What the controller decides on: the image of all that it has written, and what it knows of the brokers that are alive.

The image runs ahead of the commits, as Kafka's controller does: a record counts for the next decision as soon as it is
appended, while the response waits for its commit. Sessions are not in the log: a controller that takes over gives every
broker that is not fenced a whole session to be heard from.

    known of a broker        from
    -----------------------  ---------------------------------------------------------------------
    last heartbeat           its heartbeats; after broker.session.timeout.ms without it is fenced
    metadata offset          the same: how far it has applied the log
    registration's offset    its RegisterBrokerRecord: a broker is unfenced when it has applied that
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kcli.format.kafka_uuid import Uuid
from kcli.protocol import error_codes
from kcli.protocol.message import Message
from kcli.server.config.dynamic_config import DynamicConfig
from kcli.server.config.values import format_value
from kcli.server.controller.api_error import ApiError
from kcli.server.controller.features import ELIGIBLE_LEADER_REPLICAS_VERSION, METADATA_VERSION
from kcli.server.controller.partition_change import Election, PartitionChange
from kcli.server.rng import Rng
from kcli.state.image_records import LEADER_ELR_SINCE
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import (
    DIRECTORY_LOST,
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    BrokerRegistration,
    ConfigResource,
    Partition,
    Topic,
)

_BROKER_RESOURCE = 4


class Session:
    """What is known of a broker that was heard from."""

    __slots__ = ("controlled_shutdown_offset", "last_heartbeat_ms", "metadata_offset")

    def __init__(self, now_ms: int) -> None:
        self.last_heartbeat_ms = now_ms
        self.metadata_offset = -1
        self.controlled_shutdown_offset = -1


class _ElectionSettings(NamedTuple):
    """What the elections of a topic's partitions go by; `min_isr` is at most the replication factor."""

    metadata_version: int
    is_elr_enabled: bool
    min_isr: int
    is_unclean_allowed: bool


class ControllerState:
    """The image and the sessions; `dynamic` is this node's configuration, which follows the image.

    `next_offset()` is the offset that the next record will get.
    """

    def __init__(self, cluster_id: str, rng: Rng, dynamic: DynamicConfig, next_offset: Callable[[], int]) -> None:
        self.cluster_id = cluster_id
        self.node_id = dynamic.node_id
        self.session_timeout_ms = dynamic.get_int("broker.session.timeout.ms")
        self.activated_ms = 0
        self.rng = rng
        self.dynamic = dynamic
        self.next_offset = next_offset
        self.image = MetadataImage()
        self.sessions: dict[int, Session] = {}
        self.registration_offsets: dict[int, int] = {}
        self._settings_key: tuple[Uuid, int] | None = None
        self._settings = _ElectionSettings(0, False, 1, False)

    # ------------------------------------------------------------------------------------------------------- features

    @property
    def metadata_version(self) -> int:
        """The level of metadata.version. Raises ApiError while there is none: the first records are not there yet."""
        level = self.image.features.get(METADATA_VERSION)
        if level is None:
            raise ApiError(error_codes.UNSUPPORTED_VERSION, "the cluster has no metadata.version yet; try again")
        return level

    @property
    def is_elr_enabled(self) -> bool:
        """True where eligible leader replicas are kept."""
        return self.image.features.get(ELIGIBLE_LEADER_REPLICAS_VERSION, 0) > 0 and self.metadata_version >= LEADER_ELR_SINCE

    # -------------------------------------------------------------------------------------------------------- brokers

    def check_epoch(self, broker_id: int, broker_epoch: int) -> BrokerRegistration:
        """The broker's registration. Raises ApiError where it has none or another epoch."""
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            raise ApiError(error_codes.STALE_BROKER_EPOCH, f"broker {broker_id} is not registered")
        if broker.broker_epoch != broker_epoch:
            raise ApiError(
                error_codes.STALE_BROKER_EPOCH,
                f"broker {broker_id} has epoch {broker.broker_epoch}, and the request says {broker_epoch}",
            )
        return broker

    def has_session(self, broker_id: int, now_ms: int) -> bool:
        """True for a broker that may be alive: heard from within its session's timeout, or this controller is as young.

        What this controller's own node was before is gone for certain: it has the lock of the log directories.
        """
        session = self.sessions.get(broker_id)
        if session is not None:
            return now_ms - session.last_heartbeat_ms < self.session_timeout_ms
        broker = self.image.brokers.get(broker_id)
        is_elsewhere = broker is not None and not broker.is_fenced and broker_id != self.node_id
        return is_elsewhere and now_ms - self.activated_ms < self.session_timeout_ms

    def is_active(self, broker_id: int) -> bool:
        """True for a broker that is registered, not fenced and not shutting down: it may lead."""
        broker = self.image.brokers.get(broker_id)
        return broker is not None and not broker.is_fenced and not broker.is_in_controlled_shutdown

    def default_directory(self, broker_id: int) -> Uuid:
        """Where a broker puts a new replica, as far as the controller can tell."""
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            return DIRECTORY_UNASSIGNED
        if not broker.log_dirs:
            return DIRECTORY_MIGRATING
        return broker.log_dirs[0] if len(broker.log_dirs) == 1 else DIRECTORY_UNASSIGNED

    def has_online_directory(self, partition: Partition, broker_id: int) -> bool:
        """True where the broker's replica lies in a directory that works."""
        directory = dict(zip(partition.replicas, partition.directories)).get(broker_id, DIRECTORY_UNASSIGNED)
        if directory in (DIRECTORY_UNASSIGNED, DIRECTORY_MIGRATING):
            return True
        if directory == DIRECTORY_LOST:
            return False
        broker = self.image.brokers.get(broker_id)
        return broker is None or not broker.log_dirs or directory in broker.log_dirs

    # --------------------------------------------------------------------------------------------------------- topics

    def setting(self, key: str) -> str:
        """A broker key's value on this node now, as text."""
        return format_value(self.dynamic[key]) or ""

    def topic_setting(self, topic: str, key: str) -> str:
        """A topic's effective setting, for a key that brokers have by the same name."""
        own = self.image.configs.get(ConfigResource("TOPIC", topic), {}).get(key)
        return self.setting(key) if own is None else own

    def _election_settings(self, topic: Topic) -> _ElectionSettings:
        """What elections of a topic go by; kept until a record is written, since many partitions may change at once."""
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
        """True where the topic's unclean.leader.election.enable is."""
        return self._election_settings(topic).is_unclean_allowed

    def partitions(self) -> Iterator[tuple[Topic, int, Partition]]:
        """Every partition with its topic and number."""
        for topic in self.image.topics.values():
            for index, partition in topic.partitions.items():
                yield topic, index, partition

    def change(
        self,
        topic: Topic,
        index: int,
        *,
        may_lead: Callable[[int], bool] | None = None,
        election: Election | None = None,
    ) -> PartitionChange:
        """A change of one partition, to be filled in; without more said, active brokers may lead, as the topic allows."""
        partition = topic.partitions[index]
        accepted = self.is_active if may_lead is None else may_lead
        settings = self._election_settings(topic)
        if election is None:
            election = Election.UNCLEAN if settings.is_unclean_allowed else Election.ONLINE
        return PartitionChange(
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

    # ------------------------------------------------------------------------------------------------------ following

    def apply(self, record: Message, offset: int, now_ms: int) -> None:
        """Apply one record at an offset. Raises StateError for one that does not fit."""
        self.image.apply(record)
        name = record.STRUCT.name
        if name == "RegisterBrokerRecord":
            self.registration_offsets[record.broker_id] = offset
        elif name == "UnregisterBrokerRecord":
            self.registration_offsets.pop(record.broker_id, None)
            self.sessions.pop(record.broker_id, None)
        elif name == "EndTransactionRecord" or (name == "ConfigRecord" and record.resource_type == _BROKER_RESOURCE):
            # Records of a metadata transaction count when it ends.
            self.dynamic.follow(self.image)
