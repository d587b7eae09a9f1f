"""Makes the records of an image, which a snapshot contains: applying them to an empty image gives an equal image.

Features come first, because metadata.version determines the versions of the other records; then brokers, controllers, topics
each with its partitions, configs, quotas, producer ids, ACLs, SCRAM credentials, delegation tokens and the migration state:
every kind of record that kcli.state.metadata_image applies. Voters and kraft.version are control records in the first batch of
a snapshot.

    record             version under metadata.version
    -----------------  ---------------------------------------------------------
    RegisterBroker     4 from 4.3-IV0 on, 3 from 3.7-IV2, 2 from 3.4-IV0, else 1
    Partition, ...     2 from 4.0-IV1 on, 1 from 3.7-IV2, else 0
    all others         0
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from kcli.protocol.message import Message
from kcli.protocol.message_types import message_type
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import (
    ACL_OPERATIONS,
    ACL_PATTERN_TYPES,
    ACL_PERMISSION_TYPES,
    ACL_RESOURCE_TYPES,
    CONFIG_RESOURCE_TYPES,
    LEADER_RECOVERY_STATES,
    SCRAM_MECHANISMS,
    SECURITY_PROTOCOLS,
    BrokerRegistration,
    ControllerRegistration,
    Endpoint,
    PartitionRegistration,
    Topic,
    VersionRange,
)

METADATA_VERSION = "metadata.version"
# Levels of metadata.version that added fields to records; below each, the fields are left out.
LEADER_ELR_SINCE = 23
DIRECTORIES_SINCE = 17
CORDONED_LOG_DIRS_SINCE = 30
_MIGRATING_BROKERS_SINCE = 8
_LOWEST_METADATA_VERSION = 7
_UNKNOWN = re.compile(r"UNKNOWN\((-?\d+)\)")


def _register_broker_version(metadata_version: int) -> int:
    """Return the version of RegisterBrokerRecord for a level of metadata.version."""
    steps = ((CORDONED_LOG_DIRS_SINCE, 4), (DIRECTORIES_SINCE, 3), (_MIGRATING_BROKERS_SINCE, 2))
    return next((version for since, version in steps if metadata_version >= since), 1)


def partition_version(metadata_version: int) -> int:
    """Return the version of PartitionRecord and PartitionChangeRecord for a level of metadata.version."""
    return next((version for since, version in ((LEADER_ELR_SINCE, 2), (DIRECTORIES_SINCE, 1)) if metadata_version >= since), 0)


def number_of(names: Mapping[int, str], name: str) -> int:
    """Return the number of a name in Kafka's records, the inverse of name_of. Raises KeyError for an unknown name."""
    unknown = _UNKNOWN.fullmatch(name)
    if unknown is not None:
        return int(unknown[1])
    for number, known in names.items():
        if known == name:
            return number
    raise KeyError(name)


def image_records(image: MetadataImage) -> Iterator[Message]:
    """Yield the records of an image in their order; an open metadata transaction is left out.

    The image must not change in between: pass a `frozen` one.
    """
    metadata_version = image.features.get(METADATA_VERSION, _LOWEST_METADATA_VERSION)
    for name in sorted(image.features, key=lambda name: (name != METADATA_VERSION, name)):
        yield new_record("FeatureLevelRecord", name=name, feature_level=image.features[name])
    for broker in image.brokers.values():
        yield broker_record(broker, metadata_version)
    for controller in image.controllers.values():
        yield controller_record(controller)
    for topic in image.topics.values():
        yield new_record("TopicRecord", name=topic.name, topic_id=topic.topic_id)
        for index, partition in topic.partitions.items():
            yield partition_record(topic, index, partition, metadata_version)
    for resource, values in image.configs.items():
        number = number_of(CONFIG_RESOURCE_TYPES, resource.type)
        for key, value in values.items():
            yield new_record("ConfigRecord", resource_type=number, resource_name=resource.name, name=key, value=value)
    yield from _quota_records(image)
    if image.next_producer_id >= 0:
        yield new_record("ProducerIdsRecord", broker_id=-1, broker_epoch=-1, next_producer_id=image.next_producer_id)
    yield from _security_records(image)
    if image.zk_migration_state is not None:
        yield new_record("ZkMigrationStateRecord", zk_migration_state=image.zk_migration_state)


def new_record(name: str, /, **fields: object) -> Message:
    """Make a metadata record ("TopicRecord") in its newest version. Raises KeyError for an unknown name."""
    return message_type("metadata_records", name).new(**fields)


def _endpoint_structs(record: str, struct: str, endpoints: Mapping[str, Endpoint]) -> list[Message]:
    made = message_type("metadata_records", record).classes[struct]
    return [
        made(name=name, host=at.host, port=at.port, security_protocol=number_of(SECURITY_PROTOCOLS, at.security_protocol))
        for name, at in endpoints.items()
    ]


def _feature_structs(record: str, struct: str, features: Mapping[str, VersionRange]) -> list[Message]:
    made = message_type("metadata_records", record).classes[struct]
    return [
        made(name=name, min_supported_version=supported.lowest, max_supported_version=supported.highest)
        for name, supported in features.items()
    ]


def broker_record(broker: BrokerRegistration, metadata_version: int) -> Message:
    """Return the RegisterBrokerRecord of a broker, without the fields that the metadata.version does not have."""
    version = _register_broker_version(metadata_version)
    record = new_record(
        "RegisterBrokerRecord",
        schema_version=version,
        broker_id=broker.broker_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.broker_epoch,
        end_points=_endpoint_structs("RegisterBrokerRecord", "BrokerEndpoint", broker.endpoints),
        features=_feature_structs("RegisterBrokerRecord", "BrokerFeature", broker.features),
        rack=broker.rack,
        fenced=broker.is_fenced,
        in_controlled_shutdown=broker.is_in_controlled_shutdown,
    )
    if metadata_version >= _MIGRATING_BROKERS_SINCE:
        record.is_migrating_zk_broker = broker.is_migrating_zk_broker
    if metadata_version >= DIRECTORIES_SINCE:
        record.log_dirs = broker.log_dirs
    if metadata_version >= CORDONED_LOG_DIRS_SINCE:
        record.cordoned_log_dirs = broker.cordoned_log_dirs
    return record


def controller_record(controller: ControllerRegistration) -> Message:
    """Return the RegisterControllerRecord of a controller."""
    return new_record(
        "RegisterControllerRecord",
        controller_id=controller.controller_id,
        incarnation_id=controller.incarnation_id,
        zk_migration_ready=controller.is_zk_migration_ready,
        end_points=_endpoint_structs("RegisterControllerRecord", "ControllerEndpoint", controller.endpoints),
        features=_feature_structs("RegisterControllerRecord", "ControllerFeature", controller.features),
    )


def partition_record(topic: Topic, index: int, partition: PartitionRegistration, metadata_version: int) -> Message:
    """Return the PartitionRecord of a partition, without the fields that the metadata.version does not have."""
    record = new_record(
        "PartitionRecord",
        schema_version=partition_version(metadata_version),
        partition_id=index,
        topic_id=topic.topic_id,
        replicas=partition.replicas,
        isr=partition.isr,
        removing_replicas=partition.removing_replicas,
        adding_replicas=partition.adding_replicas,
        leader=partition.leader,
        leader_recovery_state=number_of(LEADER_RECOVERY_STATES, partition.leader_recovery_state),
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
    )
    if metadata_version >= DIRECTORIES_SINCE:
        record.directories = partition.directories
    if metadata_version >= LEADER_ELR_SINCE:
        record.eligible_leader_replicas = partition.eligible_leader_replicas or None
        record.last_known_elr = partition.last_known_elr or None
    return record


def _quota_records(image: MetadataImage) -> Iterator[Message]:
    made = message_type("metadata_records", "ClientQuotaRecord").classes["EntityData"]
    for entity, quotas in image.client_quotas.items():
        for key, value in quotas.items():
            parts = [made(entity_type=kind, entity_name=name) for kind, name in entity]
            yield new_record("ClientQuotaRecord", entity=parts, key=key, value=value, remove=False)


def _security_records(image: MetadataImage) -> Iterator[Message]:
    for acl_id, acl in image.acls.items():
        yield new_record(
            "AccessControlEntryRecord",
            id=acl_id,
            resource_type=number_of(ACL_RESOURCE_TYPES, acl.resource_type),
            resource_name=acl.resource_name,
            pattern_type=number_of(ACL_PATTERN_TYPES, acl.pattern_type),
            principal=acl.principal,
            host=acl.host,
            operation=number_of(ACL_OPERATIONS, acl.operation),
            permission_type=number_of(ACL_PERMISSION_TYPES, acl.permission_type),
        )
    for (user, mechanism), credential in image.scram_credentials.items():
        yield new_record(
            "UserScramCredentialRecord",
            name=user,
            mechanism=number_of(SCRAM_MECHANISMS, mechanism),
            salt=credential.salt,
            stored_key=credential.stored_key,
            server_key=credential.server_key,
            iterations=credential.iterations,
        )
    for token in image.delegation_tokens.values():
        yield new_record(
            "DelegationTokenRecord",
            owner=token.owner,
            requester=token.requester,
            renewers=token.renewers,
            issue_timestamp=token.issue_timestamp_ms,
            max_timestamp=token.max_timestamp_ms,
            expiration_timestamp=token.expiration_timestamp_ms,
            token_id=token.token_id,
        )
