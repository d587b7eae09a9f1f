"""The metadata image: the state of a cluster from the records of __cluster_metadata, applied in order.

    records                                                   change
    --------------------------------------------------------  ----------------------------------------------------------
    RegisterBroker, UnregisterBroker, FenceBroker,             brokers
      UnfenceBroker, BrokerRegistrationChange
    RegisterController                                         controllers
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

A snapshot contains such records too, so an image is built from the records of a snapshot and those of the log after it.
`apply_control` applies KRaft's control records (the leader, the voters).

`frozen` returns a copy of the image at low cost: both share their topics, and each copies a topic before it changes it. So a
snapshot can be written in steps while records are applied.
"""

from __future__ import annotations

from collections.abc import Callable

from kcli.format.kafka_uuid import Uuid
from kcli.protocol.control_records import KRAFT_VERSION, KRAFT_VOTERS, LEADER_CHANGE, SNAPSHOT_HEADER, ControlRecord
from kcli.protocol.message import Message
from kcli.state.errors import StateError
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
    SECURITY_PROTOCOLS,
    Acl,
    BrokerRegistration,
    ConfigResource,
    ControllerRegistration,
    DelegationToken,
    Endpoint,
    Partition,
    QuotaEntity,
    ScramCredential,
    Topic,
    VersionRange,
    Voter,
    name_of,
)

_KRAFT_VERSION_FEATURE = "kraft.version"
_NO_CHANGE = -1  # of a leader recovery state
# The values of the one-byte fields of BrokerRegistrationChangeRecord; None: no change.
_FENCING_CHANGES = {1: True, 0: None, -1: False}
_CONTROLLED_SHUTDOWN_CHANGES = {1: True, 0: None}


class MetadataImage:
    """The state of a cluster. Only `apply` and `apply_control` change it; after a StateError it is unchanged."""

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
        # The topics that this image created or copied since it was last frozen: no other image shares them.
        self._own_topics: set[Uuid] = set()

    def frozen(self) -> MetadataImage:
        """Return a copy of the image that later records do not change."""
        copy = MetadataImage()
        copy.__dict__.update(self.__dict__)
        copy.topics, copy.topic_ids = dict(self.topics), dict(self.topic_ids)
        copy.brokers = {broker_id: broker.copy() for broker_id, broker in self.brokers.items()}
        copy.controllers = dict(self.controllers)
        copy.configs = {resource: dict(values) for resource, values in self.configs.items()}
        copy.features = dict(self.features)
        copy.client_quotas = {entity: dict(quotas) for entity, quotas in self.client_quotas.items()}
        copy.acls, copy.scram_credentials = dict(self.acls), dict(self.scram_credentials)
        copy.delegation_tokens, copy.voters = dict(self.delegation_tokens), dict(self.voters)
        if self.pending_records is not None:
            copy.pending_records = list(self.pending_records)
        self._own_topics, copy._own_topics = set(), set()
        return copy

    def topic(self, name: str) -> Topic | None:
        """Return the topic with that name, or None."""
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def configs_of(self, resource_type: str) -> dict[str, dict[str, str]]:
        """Return the configurations of all resources of a type (`TOPIC`, `BROKER`), by name."""
        return {resource.name: values for resource, values in self.configs.items() if resource.type == resource_type}

    def apply(self, record: Message) -> None:
        """Apply one metadata record. Raises StateError when it does not fit the image."""
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
        else:
            self._apply_one(record)

    def apply_control(self, record: ControlRecord) -> None:
        """Apply a control record of the metadata log or of a snapshot; other control records are ignored."""
        message = record.message
        if message is None:
            return
        if record.type_id == LEADER_CHANGE:
            self.leader_id = message.leader_id
            for voter in message.voters:
                self.voters.setdefault(voter.voter_id, Voter(voter.voter_id))
        elif record.type_id == SNAPSHOT_HEADER:
            self.snapshot_timestamp_ms = message.last_contained_log_timestamp
        elif record.type_id == KRAFT_VERSION:
            self.kraft_version = message.kraft_version
        elif record.type_id == KRAFT_VOTERS:
            self.voters = {voter.voter_id: _voter(voter) for voter in message.voters}

    def _begin(self, record: Message) -> None:
        if self.pending_records is not None:
            raise StateError("BeginTransactionRecord: another metadata transaction is open")
        self.pending_records, self.pending_name = [], record.name

    def _end(self, name: str) -> list[Message]:
        if self.pending_records is None:
            raise StateError(f"{name}: no metadata transaction is open")
        pending, self.pending_records, self.pending_name = self.pending_records, None, None
        return pending

    def _apply_one(self, record: Message) -> None:
        _handler(record.STRUCT.name)(self, record)

    def _register_broker(self, record: Message) -> None:
        self.brokers[record.broker_id] = BrokerRegistration(
            broker_id=record.broker_id,
            broker_epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            endpoints=_endpoints(record),
            features=_features(record),
            rack=record.rack,
            is_fenced=record.fenced,
            is_in_controlled_shutdown=record.in_controlled_shutdown,
            is_migrating_zk_broker=record.is_migrating_zk_broker,
            log_dirs=record.log_dirs,
            cordoned_log_dirs=record.cordoned_log_dirs,
        )

    def _unregister_broker(self, record: Message) -> None:
        self.brokers.pop(record.broker_id, None)

    def _registered(self, broker_id: int, broker_epoch: int) -> BrokerRegistration:
        broker = self.brokers.get(broker_id)
        if broker is None:
            raise StateError(f"change of broker {broker_id}, which is not registered")
        if broker.broker_epoch != broker_epoch:
            raise StateError(f"change of broker {broker_id} in epoch {broker_epoch}, but its epoch is {broker.broker_epoch}")
        return broker

    def _fence_broker(self, record: Message) -> None:
        self._registered(record.id, record.epoch).is_fenced = True

    def _unfence_broker(self, record: Message) -> None:
        self._registered(record.id, record.epoch).is_fenced = False

    def _change_broker(self, record: Message) -> None:
        broker = self._registered(record.broker_id, record.broker_epoch)
        if record.fenced not in _FENCING_CHANGES or record.in_controlled_shutdown not in _CONTROLLED_SHUTDOWN_CHANGES:
            raise StateError(
                f"change of broker {record.broker_id} with unknown values: fenced {record.fenced}, "
                f"inControlledShutdown {record.in_controlled_shutdown}"
            )
        is_fenced = _FENCING_CHANGES[record.fenced]
        is_in_controlled_shutdown = _CONTROLLED_SHUTDOWN_CHANGES[record.in_controlled_shutdown]
        if is_fenced is not None:
            broker.is_fenced = is_fenced
        if is_in_controlled_shutdown is not None:
            broker.is_in_controlled_shutdown = is_in_controlled_shutdown
        if record.log_dirs:
            broker.log_dirs = record.log_dirs
        if record.cordoned_log_dirs is not None:
            broker.cordoned_log_dirs = record.cordoned_log_dirs

    def _register_controller(self, record: Message) -> None:
        self.controllers[record.controller_id] = ControllerRegistration(
            controller_id=record.controller_id,
            incarnation_id=record.incarnation_id,
            is_zk_migration_ready=record.zk_migration_ready,
            endpoints=_endpoints(record),
            features=_features(record),
        )

    def _topic(self, record: Message) -> None:
        self.topics[record.topic_id] = Topic(record.name, record.topic_id)
        self._own_topics.add(record.topic_id)
        self.topic_ids[record.name] = record.topic_id

    def _topic_of(self, record: Message) -> Topic:
        topic = self.topics.get(record.topic_id)
        if topic is None:
            raise StateError(f"{record.STRUCT.name} for topic id {record.topic_id}, which does not exist")
        return topic

    def _writable(self, topic: Topic) -> Topic:
        """Return the topic as one that this image may change; a shared topic is copied first."""
        if topic.topic_id in self._own_topics:
            return topic
        own = Topic(topic.name, topic.topic_id, {index: partition.copy() for index, partition in topic.partitions.items()})
        self.topics[topic.topic_id] = own
        self._own_topics.add(topic.topic_id)
        return own

    def _partition(self, record: Message) -> None:
        topic = self._writable(self._topic_of(record))
        topic.partitions[record.partition_id] = Partition(
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

    def _change_partition(self, record: Message) -> None:
        topic = self._topic_of(record)
        partition = topic.partitions.get(record.partition_id)
        if partition is None:
            raise StateError(f"change of partition {topic.name}-{record.partition_id}, which does not exist")
        replicas = partition.replicas if record.replicas is None else record.replicas
        directories = partition.directories if record.directories is None else record.directories
        directories = _directories(directories, replicas, topic.name, record.partition_id)
        partition = self._writable(topic).partitions[record.partition_id]
        partition.directories = directories
        for name in ("replicas", "isr", "removing_replicas", "adding_replicas", "eligible_leader_replicas", "last_known_elr"):
            changed = getattr(record, name)
            if changed is not None:
                setattr(partition, name, changed)
        if record.leader != NO_LEADER_CHANGE:
            partition.leader = record.leader
            partition.leader_epoch += 1
        if record.leader_recovery_state != _NO_CHANGE:
            partition.leader_recovery_state = name_of(LEADER_RECOVERY_STATES, record.leader_recovery_state)
        partition.partition_epoch += 1

    def _remove_topic(self, record: Message) -> None:
        topic = self._topic_of(record)
        del self.topics[topic.topic_id]
        self._own_topics.discard(topic.topic_id)
        # The name may belong to a new topic.
        if self.topic_ids.get(topic.name) == topic.topic_id:
            del self.topic_ids[topic.name]
        self.configs.pop(ConfigResource("TOPIC", topic.name), None)

    def _clear_elr(self, record: Message) -> None:
        topics = list(self.topics.values())
        if record.topic_name:
            topic = self.topic(record.topic_name)
            if topic is None:
                raise StateError(f"ClearElrRecord for topic {record.topic_name}, which does not exist")
            topics = [topic]
        for topic in topics:
            for partition in self._writable(topic).partitions.values():
                if partition.eligible_leader_replicas or partition.last_known_elr:
                    partition.eligible_leader_replicas = []
                    partition.last_known_elr = []
                    partition.partition_epoch += 1

    def _config(self, record: Message) -> None:
        resource = ConfigResource(name_of(CONFIG_RESOURCE_TYPES, record.resource_type), record.resource_name)
        if record.value is not None:
            self.configs.setdefault(resource, {})[record.name] = record.value
        elif resource in self.configs:
            self.configs[resource].pop(record.name, None)
            if not self.configs[resource]:
                del self.configs[resource]

    def _feature_level(self, record: Message) -> None:
        # As in Kafka, kraft.version is skipped: it belongs in control records, and was once written to both (KAFKA-18979).
        if record.name == _KRAFT_VERSION_FEATURE:
            return
        if record.feature_level == 0:
            self.features.pop(record.name, None)
        else:
            self.features[record.name] = record.feature_level

    def _client_quota(self, record: Message) -> None:
        names = {part.entity_type: part.entity_name for part in record.entity}
        entity = tuple(sorted(names.items(), key=lambda part: part[0]))
        if not record.remove:
            self.client_quotas.setdefault(entity, {})[record.key] = record.value
        elif entity in self.client_quotas:
            self.client_quotas[entity].pop(record.key, None)
            if not self.client_quotas[entity]:
                del self.client_quotas[entity]

    def _producer_ids(self, record: Message) -> None:
        self.next_producer_id = record.next_producer_id

    def _acl(self, record: Message) -> None:
        self.acls[record.id] = Acl(
            resource_type=name_of(ACL_RESOURCE_TYPES, record.resource_type),
            resource_name=record.resource_name,
            pattern_type=name_of(ACL_PATTERN_TYPES, record.pattern_type),
            principal=record.principal,
            host=record.host,
            operation=name_of(ACL_OPERATIONS, record.operation),
            permission_type=name_of(ACL_PERMISSION_TYPES, record.permission_type),
        )

    def _remove_acl(self, record: Message) -> None:
        if record.id not in self.acls:
            raise StateError(f"removal of ACL {record.id}, which does not exist")
        del self.acls[record.id]

    def _scram_credential(self, record: Message) -> None:
        credential = ScramCredential(record.salt, record.stored_key, record.server_key, record.iterations)
        self.scram_credentials[record.name, name_of(SCRAM_MECHANISMS, record.mechanism)] = credential

    def _remove_scram_credential(self, record: Message) -> None:
        self.scram_credentials.pop((record.name, name_of(SCRAM_MECHANISMS, record.mechanism)), None)

    def _delegation_token(self, record: Message) -> None:
        self.delegation_tokens[record.token_id] = DelegationToken(
            token_id=record.token_id,
            owner=record.owner,
            requester=record.requester,
            renewers=record.renewers,
            issue_timestamp_ms=record.issue_timestamp,
            max_timestamp_ms=record.max_timestamp,
            expiration_timestamp_ms=record.expiration_timestamp,
        )

    def _remove_delegation_token(self, record: Message) -> None:
        self.delegation_tokens.pop(record.token_id, None)

    def _zk_migration_state(self, record: Message) -> None:
        self.zk_migration_state = record.zk_migration_state

    def _no_op(self, record: Message) -> None:
        """Change nothing."""


_HANDLERS: dict[str, Callable[[MetadataImage, Message], None]] = {
    "RegisterBrokerRecord": MetadataImage._register_broker,
    "UnregisterBrokerRecord": MetadataImage._unregister_broker,
    "TopicRecord": MetadataImage._topic,
    "PartitionRecord": MetadataImage._partition,
    "ConfigRecord": MetadataImage._config,
    "PartitionChangeRecord": MetadataImage._change_partition,
    "FenceBrokerRecord": MetadataImage._fence_broker,
    "UnfenceBrokerRecord": MetadataImage._unfence_broker,
    "RemoveTopicRecord": MetadataImage._remove_topic,
    "DelegationTokenRecord": MetadataImage._delegation_token,
    "UserScramCredentialRecord": MetadataImage._scram_credential,
    "FeatureLevelRecord": MetadataImage._feature_level,
    "ClientQuotaRecord": MetadataImage._client_quota,
    "ProducerIdsRecord": MetadataImage._producer_ids,
    "BrokerRegistrationChangeRecord": MetadataImage._change_broker,
    "AccessControlEntryRecord": MetadataImage._acl,
    "RemoveAccessControlEntryRecord": MetadataImage._remove_acl,
    "NoOpRecord": MetadataImage._no_op,
    "ZkMigrationStateRecord": MetadataImage._zk_migration_state,
    "RemoveUserScramCredentialRecord": MetadataImage._remove_scram_credential,
    "RemoveDelegationTokenRecord": MetadataImage._remove_delegation_token,
    "RegisterControllerRecord": MetadataImage._register_controller,
    "ClearElrRecord": MetadataImage._clear_elr,
}


def _handler(name: str) -> Callable[[MetadataImage, Message], None]:
    if name not in _HANDLERS:
        raise StateError(f"{name} is not a record of the metadata log")
    return _HANDLERS[name]


def _endpoints(record: Message) -> dict[str, Endpoint]:
    return {
        end_point.name: Endpoint(end_point.host, end_point.port, name_of(SECURITY_PROTOCOLS, end_point.security_protocol))
        for end_point in record.end_points
    }


def _features(record: Message) -> dict[str, VersionRange]:
    return {
        feature.name: VersionRange(feature.min_supported_version, feature.max_supported_version) for feature in record.features
    }


def _voter(voter: Message) -> Voter:
    endpoints = {endpoint.name: (endpoint.host, endpoint.port) for endpoint in voter.endpoints}
    return Voter(voter.voter_id, voter.voter_directory_id, endpoints)


def _directories(directories: list[Uuid], replicas: list[int], topic: str, partition: int) -> list[Uuid]:
    """Return the directory of each replica; records from before KIP-858 have none."""
    if not directories:
        return [DIRECTORY_MIGRATING] * len(replicas)
    if len(directories) != len(replicas):
        raise StateError(f"partition {topic}-{partition} has {len(replicas)} replicas but {len(directories)} directories")
    return directories
