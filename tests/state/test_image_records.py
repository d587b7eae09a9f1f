"""Protects snapshots: the records of an image make the same image again, for what Kafka wrote and for every kind of record;
and a frozen image stays as it was whatever is applied to the one that it was taken of.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.protocol.internal_records import encode_framed
from kcli.protocol.message import Message
from kcli.protocol.message_types import message_type, record_types
from kcli.state.image_records import image_records
from kcli.state.metadata_image import MetadataImage
from kcli.state.metadata_values import ScramCredential

TOPIC_ID = Uuid(b"\5" * 16)
# Not of a snapshot: what the log alone has, and what is not kept.
WITHOUT_STATE = {"NoOpRecord", "BeginTransactionRecord", "EndTransactionRecord", "AbortTransactionRecord"}


def new(name: str, /, **fields: Any) -> Message:
    return message_type("metadata_records", name).new(**fields)


def struct(record: str, name: str, /, **fields: Any) -> Message:
    return message_type("metadata_records", record).classes[name](**fields)


def every_kind() -> list[Message]:
    """Records of every kind, in an order that fits."""
    endpoint = {"name": "PLAINTEXT", "host": "a", "port": 9092, "security_protocol": 1}
    feature = {"name": "group.version", "min_supported_version": 0, "max_supported_version": 1}
    entity = [struct("ClientQuotaRecord", "EntityData", entity_type="user", entity_name=None)]
    return [
        new("FeatureLevelRecord", name="metadata.version", feature_level=30),
        new("FeatureLevelRecord", name="group.version", feature_level=1),
        new(
            "RegisterBrokerRecord",
            broker_id=1,
            incarnation_id=TOPIC_ID,
            broker_epoch=7,
            end_points=[struct("RegisterBrokerRecord", "BrokerEndpoint", **endpoint)],
            features=[struct("RegisterBrokerRecord", "BrokerFeature", **feature)],
            rack="r",
            log_dirs=[Uuid(b"\6" * 16)],
            cordoned_log_dirs=[],
        ),
        new("UnfenceBrokerRecord", id=1, epoch=7),
        new("FenceBrokerRecord", id=1, epoch=7),
        new("BrokerRegistrationChangeRecord", broker_id=1, broker_epoch=7, fenced=-1, in_controlled_shutdown=1),
        new("RegisterBrokerRecord", broker_id=2, incarnation_id=TOPIC_ID, broker_epoch=8),
        new("UnregisterBrokerRecord", broker_id=2, broker_epoch=8),
        new("RegisterControllerRecord", controller_id=2, incarnation_id=TOPIC_ID),
        new("UnregisterControllerRecord", controller_id=2),
        new(
            "RegisterControllerRecord",
            controller_id=1,
            incarnation_id=TOPIC_ID,
            end_points=[struct("RegisterControllerRecord", "ControllerEndpoint", **endpoint)],
            features=[struct("RegisterControllerRecord", "ControllerFeature", **feature)],
        ),
        new("TopicRecord", name="orders", topic_id=TOPIC_ID),
        new("TopicRecord", name="gone", topic_id=Uuid(b"\7" * 16)),
        new("RemoveTopicRecord", topic_id=Uuid(b"\7" * 16)),
        new(
            "PartitionRecord",
            partition_id=0,
            topic_id=TOPIC_ID,
            replicas=[1, 2],
            isr=[1],
            leader=1,
            directories=[Uuid(b"\6" * 16), Uuid(b"\1" * 16)],
            eligible_leader_replicas=[2],
            last_known_elr=[3],
        ),
        new(
            "PartitionRecord", partition_id=1, topic_id=TOPIC_ID, replicas=[1], isr=[1], leader=1, eligible_leader_replicas=[1]
        ),
        new("PartitionChangeRecord", partition_id=0, topic_id=TOPIC_ID, leader=2, leader_recovery_state=1, adding_replicas=[2]),
        new("ConfigRecord", resource_type=2, resource_name="orders", name="retention.ms", value="1"),
        new("ConfigRecord", resource_type=77, resource_name="x", name="y", value="z"),
        new("ClientQuotaRecord", entity=entity, key="producer_byte_rate", value=1.5, remove=False),
        new("ProducerIdsRecord", broker_id=1, broker_epoch=7, next_producer_id=3000),
        new("AccessControlEntryRecord", id=TOPIC_ID, resource_type=2, resource_name="orders", pattern_type=3, operation=99),
        new("AccessControlEntryRecord", id=Uuid(b"\7" * 16), resource_type=2, resource_name="x", pattern_type=3),
        new("RemoveAccessControlEntryRecord", id=Uuid(b"\7" * 16)),
        new(
            "UserScramCredentialRecord", name="alice", mechanism=1, salt=b"s", stored_key=b"k", server_key=b"v", iterations=4096
        ),
        new("UserScramCredentialRecord", name="bob", mechanism=2, salt=b"s", stored_key=b"k", server_key=b"v", iterations=1),
        new("RemoveUserScramCredentialRecord", name="bob", mechanism=2),
        new("DelegationTokenRecord", owner="User:a", requester="User:a", renewers=["User:b"], token_id="t", max_timestamp=5),
        new("DelegationTokenRecord", owner="User:a", requester="User:a", token_id="u"),
        new("RemoveDelegationTokenRecord", token_id="u"),
        new("ZkMigrationStateRecord", zk_migration_state=4),
        new("ClearElrRecord", topic_name=""),
        new("PartitionChangeRecord", partition_id=0, topic_id=TOPIC_ID, eligible_leader_replicas=[2], last_known_elr=[3]),
        new("NoOpRecord"),
        new("BeginTransactionRecord", name="a"),
        new("EndTransactionRecord"),
        new("BeginTransactionRecord", name="b"),
        new("AbortTransactionRecord"),
    ]


def state_of(image: MetadataImage) -> dict[str, Any]:
    """All that an image knows but what control records tell, in a form that can be compared."""
    state = {name: value for name, value in vars(image).items() if name != "_own_topics"}
    state["scram_credentials"] = {key: scram_fields(value) for key, value in image.scram_credentials.items()}
    return state


def scram_fields(credential: ScramCredential) -> tuple[bytes, bytes, bytes, int]:
    return credential.salt, credential.stored_key, credential.server_key, credential.iterations


def applied(records: list[Message]) -> MetadataImage:
    image = MetadataImage()
    for record in records:
        image.apply(record)
    return image


def test_every_kind_of_record_is_among_them() -> None:
    """A kind that the schema file gains must be thought of here and in image_records."""
    named = {record.STRUCT.name for record in every_kind()}
    assert named == {found.name for found in record_types("metadata_records", "metadata").values()}


def test_an_image_comes_back_whole() -> None:
    """After every record: the image's records make an equal image, and each can be encoded in the version that it has."""
    image = MetadataImage()
    for record in every_kind():
        image.apply(record)
        if image.pending_records is not None:
            continue
        records = list(image_records(image.frozen()))
        assert state_of(applied(records)) == state_of(image)
        for written in records:
            if image.features:
                assert encode_framed(message_type("metadata_records", written.STRUCT.name), written)


def test_older_metadata_versions_leave_out_what_they_do_not_know() -> None:
    """Under each level of metadata.version all records can be written; directories and eligible replicas go where they must."""
    records = every_kind()
    for level in range(7, 31):
        records[0].feature_level = level
        again = list(image_records(applied(records).frozen()))
        for record in again:
            assert encode_framed(message_type("metadata_records", record.STRUCT.name), record)
        partition = next(record for record in again if record.STRUCT.name == "PartitionRecord")
        assert bool(partition.directories) == (level >= 17)
        assert bool(partition.eligible_leader_replicas) == (level >= 23)
    records[0].feature_level = 30


@pytest.mark.parametrize("first", range(1, 36))
def test_a_frozen_image_does_not_change(first: int) -> None:
    """Whatever comes later, on either side."""
    records = every_kind()
    image = applied(records[:first])
    frozen = image.frozen()
    before = copy.deepcopy(state_of(frozen))
    for record in records[first:]:
        image.apply(record)
    assert state_of(frozen) == before
    for record in records[first:]:
        frozen.apply(record)
    assert state_of(frozen) == state_of(image)
