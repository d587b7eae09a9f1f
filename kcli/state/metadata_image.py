"""The metadata image: the state of a cluster from the records of __cluster_metadata, applied in order.

    records                                                   change
    --------------------------------------------------------  ----------------------------------------------------------
    RegisterBroker, UnregisterBroker, FenceBroker,             brokers
      UnfenceBroker, BrokerRegistrationChange
    RegisterController, UnregisterController                   controllers
    Topic, Partition, PartitionChange, RemoveTopic, ClearElr   topics (RemoveTopic: the topic's configs, too)
    Config                                                     configs (a null value removes one)
    FeatureLevel                                               features (level 0 removes one)
    ClientQuota                                                client_quotas
    ProducerIds                                                next_producer_id
    AccessControlEntry, RemoveAccessControlEntry               acls
    UserScramCredential, RemoveUserScramCredential             scram_credentials
    DelegationToken, RemoveDelegationToken                     delegation_tokens
    ZkMigrationState                                           zk_migration_state (left from the time before 4.0)
    BeginTransaction, EndTransaction, AbortTransaction         the records between them take effect together (KIP-868)
    NoOp                                                       nothing: it keeps the high watermark moving

A snapshot contains such records, too: applying a snapshot and then the log behind it gives the image. KRaft's own control
records (leader, voters) are applied by `apply_control`.

Values in the maps (partitions, registrations, configurations of a resource) are replaced, never changed. This makes two
operations cheap: `frozen` returns a copy that shares its topics with the original (whichever of the two changes a topic first
copies it), and `revert` restores the values that records replaced while `undo` was a list (kcli.state.speculative_state).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

from kcli.format.kafka_uuid import Uuid
from kcli.protocol.control_records import KRAFT_VERSION, KRAFT_VOTERS, LEADER_CHANGE, SNAPSHOT_HEADER, ControlRecord
from kcli.protocol.message import Message
from kcli.state.metadata_values import (
    ACL_OPERATIONS,
    ACL_PATTERN_TYPES,
    ACL_PERMISSION_TYPES,
    ACL_RESOURCE_TYPES,
    CONFIG_RESOURCE_TYPES,
    DIRECTORY_MIGRATING,
    LEADER_RECOVERY_STATES,
    NO_LEADER_CHANGE,
    SCRAM_MECHANISMS,
    Acl,
    BrokerRegistration,
    ConfigResource,
    ControllerRegistration,
    DelegationToken,
    PartitionRegistration,
    QuotaEntity,
    ScramCredential,
    Topic,
    Voter,
    endpoints_of,
    features_of,
    name_of,
    voters_of,
)
from kcli.state.state_error import StateError

_KRAFT_VERSION_FEATURE = "kraft.version"
_NO_CHANGE = -1  # of a leader recovery state
# The values of the one-byte fields of BrokerRegistrationChangeRecord; None: no change.
_FENCING_CHANGES = {1: True, 0: None, -1: False}
_CONTROLLED_SHUTDOWN_CHANGES = {1: True, 0: None}
# An undo entry: the name of the map (or one of the three below), key, index of the partition, old value (_ABSENT if the map did
# not have the key). They are items of one list, not tuples: of thousands of records in flight the garbage collector would visit
# each tuple again and again, which cost 30 % of fencing a broker with 29,000 partitions.
_UNDO_ITEMS = 4
_ABSENT = object()
_ATTRIBUTE, _PARTITIONS, _PENDING_RECORD = "", "partitions", "pending record"


class MetadataImage:
    """The state of a cluster. `apply` and `revert` change it; `apply` raises StateError and then changes nothing.

    Topics are in `topics` by id and in `topic_ids` by name; the keys of all other maps are named in their types.
    """

    # The attributes that are maps, which a frozen copy gets copies of.
    _maps: ClassVar[tuple[str, ...]] = (
        *("topics", "topic_ids", "brokers", "controllers", "configs", "features", "client_quotas"),
        *("acls", "scram_credentials", "delegation_tokens"),
    )

    def __init__(self) -> None:
        self.topics: dict[Uuid, Topic] = {}
        self.topic_ids: dict[str, Uuid] = {}
        self.brokers: dict[int, BrokerRegistration] = {}
        self.controllers: dict[int, ControllerRegistration] = {}
        self.configs: dict[ConfigResource, dict[str, str]] = {}
        self.features: dict[str, int] = {}
        self.client_quotas: dict[QuotaEntity, dict[str, float]] = {}
        self.next_producer_id = -1
        self.acls: dict[Uuid, Acl] = {}
        self.scram_credentials: dict[tuple[str, str], ScramCredential] = {}  # by user and mechanism
        self.delegation_tokens: dict[str, DelegationToken] = {}
        self.zk_migration_state: int | None = None
        self.leader_id: int | None = None
        self.kraft_version = 0
        self.voters: dict[int, Voter] = {}
        self.snapshot_timestamp_ms: int | None = None
        # The records of an open metadata transaction, or None.
        self.pending_records: list[Message] | None = None
        self.pending_name: str | None = None
        # If it is a list, `apply` adds the _UNDO_ITEMS of each value that it replaces.
        self.undo: list[Any] | None = None
        # The topics that no frozen copy shares: their maps of partitions may be changed in place.
        self._own_topics: dict[Uuid, Topic] = {}

    @classmethod
    def map_names(cls) -> tuple[str, ...]:
        """Return the names of the attributes that are maps."""
        return cls._maps

    def frozen(self) -> Self:
        """Return a copy that later changes of this image do not affect."""
        copy = type(self)()
        copy.__dict__.update(self.__dict__)
        for name in self._maps:
            setattr(copy, name, dict(getattr(self, name)))
        if self.pending_records is not None:
            copy.pending_records = list(self.pending_records)
        copy.undo = None
        self._own_topics, copy._own_topics = {}, {}
        return copy

    def revert(self, undo: Sequence[Any]) -> None:
        """Restore the values of these undo entries, the last first: those of this image, or of the one that it is a copy of."""
        for at in range(len(undo) - _UNDO_ITEMS, -1, -_UNDO_ITEMS):
            name, key, index, old = undo[at : at + _UNDO_ITEMS]
            if name == _ATTRIBUTE:
                setattr(self, key, old)
                continue
            if name == _PENDING_RECORD:
                assert self.pending_records is not None
                self.pending_records = self.pending_records[:-1]  # a frozen copy may share the list
                continue
            if name == _PARTITIONS:
                partitions = self._writable(self.topics[key]).partitions
                self._partition_changed(key, index, partitions[index], None if old is _ABSENT else old)
                mapping, key = partitions, index
            else:
                mapping = getattr(self, name)
            if name == "topics":
                self._topic_changed(self.topics.get(key), None if old is _ABSENT else old)
            if old is _ABSENT:
                del mapping[key]
            else:
                mapping[key] = old

    def _put(self, name: str, key: object, value: object) -> None:
        """Set an entry of a map; the value _ABSENT removes it."""
        mapping = getattr(self, name)
        if self.undo is not None:
            self.undo += (name, key, None, mapping.get(key, _ABSENT))
        if value is not _ABSENT:
            mapping[key] = value
        else:
            mapping.pop(key, None)

    def _remove(self, name: str, key: object) -> None:
        if key in getattr(self, name):
            self._put(name, key, _ABSENT)

    def _set(self, attribute: str, value: object) -> None:
        if self.undo is not None:
            self.undo += (_ATTRIBUTE, attribute, None, getattr(self, attribute))
        setattr(self, attribute, value)

    def _put_partition(self, topic: Topic, index: int, partition: PartitionRegistration) -> None:
        topic = self._writable(topic)
        old = topic.partitions.get(index)
        if self.undo is not None:
            self.undo += (_PARTITIONS, topic.topic_id, index, _ABSENT if old is None else old)
        self._partition_changed(topic.topic_id, index, old, partition)
        topic.partitions[index] = partition

    def _partition_changed(
        self, topic_id: Uuid, index: int, old: PartitionRegistration | None, new: PartitionRegistration | None
    ) -> None:
        """Follow a partition that is about to be another one, in a subclass; None is a partition that does not exist."""

    def _topic_changed(self, old: Topic | None, new: Topic | None) -> None:
        """Follow the partitions of a topic that is about to be another one; None is a topic that does not exist."""
        if old is not None:
            for index, partition in old.partitions.items():
                self._partition_changed(old.topic_id, index, partition, None)
        if new is not None:
            for index, partition in new.partitions.items():
                self._partition_changed(new.topic_id, index, None, partition)

    @property
    def metadata_version(self) -> int:
        """The level of metadata.version, 0 before the first records of a cluster."""
        return self.features.get("metadata.version", 0)

    def topic(self, name: str) -> Topic | None:
        """Return the topic with that name, or None."""
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def configs_of(self, resource_type: str) -> dict[str, dict[str, str]]:
        """Return the configurations of all resources of a type (`TOPIC`, `BROKER`), by name."""
        return {resource.name: values for resource, values in self.configs.items() if resource.type == resource_type}

    def apply(self, record: Message) -> None:
        """Apply one metadata record. Raises StateError if it does not fit the image."""
        name = record.STRUCT.name
        if name == "BeginTransactionRecord":
            self._begin(record)
        elif name == "EndTransactionRecord":
            for pending in self._end(name):
                self._apply_one(pending)
        elif name == "AbortTransactionRecord":
            self._end(name)
        elif self.pending_records is not None:
            _handler(name)
            self.pending_records.append(record)
            if self.undo is not None:
                self.undo += (_PENDING_RECORD, None, None, None)
        else:
            self._apply_one(record)

    def apply_control(self, record: ControlRecord) -> None:
        """Apply a control record of the metadata log or of a snapshot; other control records are ignored."""
        message = record.message
        if message is None:
            return
        if record.type_id == LEADER_CHANGE:
            self._set("leader_id", message.leader_id)
            new = (voter.voter_id for voter in message.voters if voter.voter_id not in self.voters)
            self._set("voters", self.voters | {voter_id: Voter(voter_id) for voter_id in new})
        elif record.type_id == SNAPSHOT_HEADER:
            self._set("snapshot_timestamp_ms", message.last_contained_log_timestamp)
        elif record.type_id == KRAFT_VERSION:
            self._set("kraft_version", message.kraft_version)
        elif record.type_id == KRAFT_VOTERS:
            self._set("voters", voters_of(message))

    def _begin(self, record: Message) -> None:
        if self.pending_records is not None:
            raise StateError("BeginTransactionRecord: another metadata transaction is open")
        self._set("pending_records", [])
        self._set("pending_name", record.name)

    def _end(self, name: str) -> list[Message]:
        if self.pending_records is None:
            raise StateError(f"{name}: no metadata transaction is open")
        pending = self.pending_records
        self._set("pending_records", None)
        self._set("pending_name", None)
        return pending

    def _apply_one(self, record: Message) -> None:
        _handler(record.STRUCT.name)(self, record)

    def _register_broker(self, record: Message) -> None:
        broker = BrokerRegistration(
            broker_id=record.broker_id,
            broker_epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            endpoints=endpoints_of(record.end_points),
            features=features_of(record.features),
            rack=record.rack,
            is_fenced=record.fenced,
            is_in_controlled_shutdown=record.in_controlled_shutdown,
            is_migrating_zk_broker=record.is_migrating_zk_broker,
            log_dirs=record.log_dirs,
            cordoned_log_dirs=record.cordoned_log_dirs,
        )
        self._put("brokers", record.broker_id, broker)

    def _registered(self, broker_id: int, broker_epoch: int) -> BrokerRegistration:
        """Return a broker's registration, which the record changes. Raises StateError for a wrong epoch."""
        broker = self.brokers.get(broker_id)
        if broker is None:
            raise StateError(f"change of broker {broker_id}, which is not registered")
        if broker.broker_epoch != broker_epoch:
            raise StateError(f"change of broker {broker_id} in epoch {broker_epoch}, but its epoch is {broker.broker_epoch}")
        return broker

    def _set_fenced(self, record: Message, is_fenced: bool) -> None:
        self._put("brokers", record.id, self._registered(record.id, record.epoch)._replace(is_fenced=is_fenced))

    def _change_broker(self, record: Message) -> None:
        broker = self._registered(record.broker_id, record.broker_epoch)
        if record.fenced not in _FENCING_CHANGES or record.in_controlled_shutdown not in _CONTROLLED_SHUTDOWN_CHANGES:
            raise StateError(
                f"change of broker {record.broker_id} with unknown values: fenced {record.fenced}, "
                f"inControlledShutdown {record.in_controlled_shutdown}"
            )
        is_fenced = _FENCING_CHANGES[record.fenced]
        is_in_controlled_shutdown = _CONTROLLED_SHUTDOWN_CHANGES[record.in_controlled_shutdown]
        changed = broker._replace(
            is_fenced=broker.is_fenced if is_fenced is None else is_fenced,
            is_in_controlled_shutdown=is_in_controlled_shutdown or broker.is_in_controlled_shutdown,
            log_dirs=record.log_dirs or broker.log_dirs,
            cordoned_log_dirs=broker.cordoned_log_dirs if record.cordoned_log_dirs is None else record.cordoned_log_dirs,
        )
        self._put("brokers", record.broker_id, changed)

    def _register_controller(self, record: Message) -> None:
        controller = ControllerRegistration(
            controller_id=record.controller_id,
            incarnation_id=record.incarnation_id,
            is_zk_migration_ready=record.zk_migration_ready,
            endpoints=endpoints_of(record.end_points),
            features=features_of(record.features),
        )
        self._put("controllers", record.controller_id, controller)

    def _topic(self, record: Message) -> None:
        topic = self._own_topics[record.topic_id] = Topic(record.name, record.topic_id, {})
        self._topic_changed(self.topics.get(record.topic_id), None)
        self._put("topics", record.topic_id, topic)
        self._put("topic_ids", record.name, record.topic_id)

    def _topic_of(self, record: Message) -> Topic:
        topic = self.topics.get(record.topic_id)
        if topic is None:
            raise StateError(f"{record.STRUCT.name} for topic id {record.topic_id}, which does not exist")
        return topic

    def _writable(self, topic: Topic) -> Topic:
        """Return the topic, or a copy in its place if a frozen copy of the image shares it."""
        if self._own_topics.get(topic.topic_id) is topic:
            return topic
        own = Topic(topic.name, topic.topic_id, dict(topic.partitions))
        self.topics[topic.topic_id] = self._own_topics[topic.topic_id] = own
        return own

    def _partition(self, record: Message) -> None:
        topic = self._topic_of(record)
        partition = PartitionRegistration(
            replicas=record.replicas,
            isr=record.isr,
            removing_replicas=record.removing_replicas,
            adding_replicas=record.adding_replicas,
            leader=record.leader,
            leader_recovery_state=name_of(LEADER_RECOVERY_STATES, record.leader_recovery_state),
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            directories=_directories(record.directories, record.replicas, topic.name, record.partition_id),
            eligible_leader_replicas=record.eligible_leader_replicas or [],
            last_known_elr=record.last_known_elr or [],
        )
        self._put_partition(topic, record.partition_id, partition)

    def _change_partition(self, record: Message) -> None:
        topic = self._topic_of(record)
        old = topic.partitions.get(record.partition_id)
        if old is None:
            raise StateError(f"change of partition {topic.name}-{record.partition_id}, which does not exist")
        replicas = old.replicas if record.replicas is None else record.replicas
        directories = old.directories if record.directories is None else record.directories
        has_leader, recovery_state = record.leader != NO_LEADER_CHANGE, record.leader_recovery_state
        elr, last_known_elr = record.eligible_leader_replicas, record.last_known_elr
        partition = PartitionRegistration(
            replicas,
            old.isr if record.isr is None else record.isr,
            old.removing_replicas if record.removing_replicas is None else record.removing_replicas,
            old.adding_replicas if record.adding_replicas is None else record.adding_replicas,
            record.leader if has_leader else old.leader,
            old.leader_recovery_state if recovery_state == _NO_CHANGE else name_of(LEADER_RECOVERY_STATES, recovery_state),
            old.leader_epoch + has_leader,
            old.partition_epoch + 1,
            _directories(directories, replicas, topic.name, record.partition_id),
            old.eligible_leader_replicas if elr is None else elr,
            old.last_known_elr if last_known_elr is None else last_known_elr,
        )
        self._put_partition(topic, record.partition_id, partition)

    def _remove_topic(self, record: Message) -> None:
        topic = self._topic_of(record)
        self._topic_changed(topic, None)
        self._put("topics", topic.topic_id, _ABSENT)
        self._own_topics.pop(topic.topic_id, None)
        # The name may belong to a new topic.
        if self.topic_ids.get(topic.name) == topic.topic_id:
            self._put("topic_ids", topic.name, _ABSENT)
        self._remove("configs", ConfigResource("TOPIC", topic.name))

    def _clear_elr(self, record: Message) -> None:
        topics = list(self.topics.values())
        if record.topic_name:
            topic = self.topic(record.topic_name)
            if topic is None:
                raise StateError(f"ClearElrRecord for topic {record.topic_name}, which does not exist")
            topics = [topic]
        for topic in topics:
            for index, old in list(topic.partitions.items()):
                if old.eligible_leader_replicas or old.last_known_elr:
                    partition = old.copy()
                    partition.eligible_leader_replicas, partition.last_known_elr = [], []
                    partition.partition_epoch += 1
                    self._put_partition(self.topics[topic.topic_id], index, partition)

    def _config(self, record: Message) -> None:
        resource = ConfigResource(name_of(CONFIG_RESOURCE_TYPES, record.resource_type), record.resource_name)
        self._put_value("configs", resource, record.name, record.value)

    def _put_value(self, name: str, key: object, inner_key: str, value: object) -> None:
        """Set or, with None, remove a value in a map of maps; a map that becomes empty is removed."""
        values = dict(getattr(self, name).get(key, ()))
        if value is not None:
            values[inner_key] = value
        else:
            values.pop(inner_key, None)
        if values:
            self._put(name, key, values)
        else:
            self._remove(name, key)

    def _feature_level(self, record: Message) -> None:
        # As in Kafka, kraft.version is skipped: it belongs in control records, and was once written to both (KAFKA-18979).
        if record.name == _KRAFT_VERSION_FEATURE:
            return
        if record.feature_level == 0:
            self._remove("features", record.name)
        else:
            self._put("features", record.name, record.feature_level)

    def _client_quota(self, record: Message) -> None:
        names = {part.entity_type: part.entity_name for part in record.entity}
        entity = tuple(sorted(names.items(), key=lambda part: part[0]))
        self._put_value("client_quotas", entity, record.key, None if record.remove else record.value)

    def _acl(self, record: Message) -> None:
        acl = Acl(
            resource_type=name_of(ACL_RESOURCE_TYPES, record.resource_type),
            resource_name=record.resource_name,
            pattern_type=name_of(ACL_PATTERN_TYPES, record.pattern_type),
            principal=record.principal,
            host=record.host,
            operation=name_of(ACL_OPERATIONS, record.operation),
            permission_type=name_of(ACL_PERMISSION_TYPES, record.permission_type),
        )
        self._put("acls", record.id, acl)

    def _remove_acl(self, record: Message) -> None:
        if record.id not in self.acls:
            raise StateError(f"removal of ACL {record.id}, which does not exist")
        self._put("acls", record.id, _ABSENT)

    def _scram_credential(self, record: Message) -> None:
        credential = ScramCredential(record.salt, record.stored_key, record.server_key, record.iterations)
        self._put("scram_credentials", (record.name, name_of(SCRAM_MECHANISMS, record.mechanism)), credential)

    def _remove_scram_credential(self, record: Message) -> None:
        self._remove("scram_credentials", (record.name, name_of(SCRAM_MECHANISMS, record.mechanism)))

    def _delegation_token(self, record: Message) -> None:
        token = DelegationToken(
            token_id=record.token_id,
            owner=record.owner,
            requester=record.requester,
            renewers=record.renewers,
            issue_timestamp_ms=record.issue_timestamp,
            max_timestamp_ms=record.max_timestamp,
            expiration_timestamp_ms=record.expiration_timestamp,
        )
        self._put("delegation_tokens", record.token_id, token)


_HANDLERS: dict[str, Callable[[MetadataImage, Message], None]] = {
    "RegisterBrokerRecord": MetadataImage._register_broker,
    "UnregisterBrokerRecord": lambda image, record: image._remove("brokers", record.broker_id),
    "TopicRecord": MetadataImage._topic,
    "PartitionRecord": MetadataImage._partition,
    "ConfigRecord": MetadataImage._config,
    "PartitionChangeRecord": MetadataImage._change_partition,
    "FenceBrokerRecord": lambda image, record: image._set_fenced(record, True),
    "UnfenceBrokerRecord": lambda image, record: image._set_fenced(record, False),
    "RemoveTopicRecord": MetadataImage._remove_topic,
    "DelegationTokenRecord": MetadataImage._delegation_token,
    "UserScramCredentialRecord": MetadataImage._scram_credential,
    "FeatureLevelRecord": MetadataImage._feature_level,
    "ClientQuotaRecord": MetadataImage._client_quota,
    "ProducerIdsRecord": lambda image, record: image._set("next_producer_id", record.next_producer_id),
    "BrokerRegistrationChangeRecord": MetadataImage._change_broker,
    "AccessControlEntryRecord": MetadataImage._acl,
    "RemoveAccessControlEntryRecord": MetadataImage._remove_acl,
    "NoOpRecord": lambda image, record: None,
    "ZkMigrationStateRecord": lambda image, record: image._set("zk_migration_state", record.zk_migration_state),
    "RemoveUserScramCredentialRecord": MetadataImage._remove_scram_credential,
    "RemoveDelegationTokenRecord": lambda image, record: image._remove("delegation_tokens", record.token_id),
    "RegisterControllerRecord": MetadataImage._register_controller,
    "UnregisterControllerRecord": lambda image, record: image._remove("controllers", record.controller_id),
    "ClearElrRecord": MetadataImage._clear_elr,
}


def _handler(name: str) -> Callable[[MetadataImage, Message], None]:
    if name not in _HANDLERS:
        raise StateError(f"{name} is not a record of the metadata log")
    return _HANDLERS[name]


def _directories(directories: list[Uuid], replicas: list[int], topic: str, partition: int) -> list[Uuid]:
    """Return the directory of each replica; records from before KIP-858 have none."""
    if not directories:
        return [DIRECTORY_MIGRATING] * len(replicas)
    if len(directories) != len(replicas):
        raise StateError(f"partition {topic}-{partition} has {len(replicas)} replicas but {len(directories)} directories")
    return directories
