"""Protects the metadata image: every record type has its effect, a snapshot and the log before it say the same, metadata
transactions count whole or not at all, and secrets are not shown."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.protocol.control_records import KRAFT_VERSION, KRAFT_VOTERS, LEADER_CHANGE, ControlRecord
from kcli.protocol.message import Message
from kcli.protocol.message_types import message_type, message_types
from kcli.state.metadata_image import _HANDLERS, MetadataImage
from kcli.state.metadata_values import (
    DIRECTORY_LOST,
    DIRECTORY_MIGRATING,
    DIRECTORY_UNASSIGNED,
    ConfigResource,
    Endpoint,
    VersionRange,
    Voter,
    is_sensitive_config,
    name_of,
)
from kcli.state.state_error import StateError
from tests.protocol.given_logs import dump_lines
from tests.state.given_topics import HAS_GIVEN, applied, directories, files

TYPES = message_types("metadata_records")
METADATA = "__cluster_metadata"
ID = Uuid(b"topic".ljust(16))
given_directories = pytest.mark.parametrize("given", directories(), ids=lambda given: given.parent.name)
needs_given = pytest.mark.skipif(not HAS_GIVEN, reason="neither fixtures/ nor ../shared holds a given log directory")


def new(record: str, /, **fields: Any) -> Message:
    return TYPES[f"{record}Record"].new(**fields)


def image_of(*records: Message) -> MetadataImage:
    image = MetadataImage()
    for record in records:
        image.apply(record)
    return image


def contents(image: MetadataImage) -> dict[str, Any]:
    """All that a snapshot carries of an image."""
    names = "topics topic_ids brokers controllers configs features client_quotas next_producer_id acls delegation_tokens"
    out = {name: getattr(image, name) for name in names.split()}
    secrets = {
        who: (credential.salt, credential.stored_key, credential.server_key, credential.iterations)
        for who, credential in image.scram_credentials.items()
    }
    return out | {"scram_credentials": secrets}


def read(file: Path, dump: Path, before_offset: int | None = None) -> MetadataImage:
    image = MetadataImage()
    for record in applied(file, dump, METADATA):
        if before_offset is not None and record.offset >= before_offset:
            break
        if record.control is not None:
            image.apply_control(record.control)
        elif record.value is not None:
            image.apply(record.value)
    return image


@needs_given
@given_directories
def test_a_snapshot_and_the_log_before_its_offset_say_the_same(given: Path) -> None:
    ((log, log_dump),) = files(given, METADATA)
    snapshots = files(given, METADATA, ".checkpoint")
    assert snapshots
    for snapshot, dump in snapshots:
        end_offset = int(snapshot.name.split("-")[0])
        assert contents(read(snapshot, dump)) == contents(read(log, log_dump, end_offset))


def payloads(dump: Path) -> list[tuple[str, dict[str, Any]]]:
    """(type, data) of each metadata record, as Kafka's dump shows it."""
    found = [re.search(r" payload: (\{.*\})$", line) for line in dump_lines(dump)]
    shown = [json.loads(match[1]) for match in found if match]
    return [(record["type"], record["data"]) for record in shown]


@needs_given
@given_directories
def test_partitions_are_as_the_records_that_kafka_shows_leave_them(given: Path) -> None:
    ((log, dump),) = files(given, METADATA)
    image = read(log, dump)
    partitions: dict[tuple[str, int], dict[str, Any]] = {}
    names: dict[str, str] = {}
    for kind, data in payloads(dump):
        if kind == "TOPIC_RECORD":
            names[data["topicId"]] = data["name"]
        elif kind == "REMOVE_TOPIC_RECORD":
            partitions = {key: part for key, part in partitions.items() if key[0] != data["topicId"]}
            del names[data["topicId"]]
        elif kind == "PARTITION_RECORD":
            partitions[data["topicId"], data["partitionId"]] = dict(data)
        elif kind == "PARTITION_CHANGE_RECORD":
            part = partitions[data["topicId"], data["partitionId"]]
            part["leaderEpoch"] += "leader" in data
            part["partitionEpoch"] += 1
            part |= {name: value for name, value in data.items() if value is not None}
    assert len(names) > 15 and {str(topic_id): topic.name for topic_id, topic in image.topics.items()} == names
    shown = {
        (str(topic_id), number): part for topic_id, topic in image.topics.items() for number, part in topic.partitions.items()
    }
    assert set(shown) == set(partitions)
    for key, data in partitions.items():
        made = shown[key]
        assert (made.leader, made.leader_epoch, made.partition_epoch, made.isr, made.replicas) == (
            data["leader"],
            data["leaderEpoch"],
            data["partitionEpoch"],
            data["isr"],
            data["replicas"],
        )
        assert [str(directory) for directory in made.directories] == data["directories"]
        assert made.eligible_leader_replicas == data.get("eligibleLeaderReplicas", [])


@needs_given
@given_directories
def test_everything_else_is_as_the_records_that_kafka_shows_leave_it(given: Path) -> None:
    ((log, dump),) = files(given, METADATA)
    image = read(log, dump)
    configs: dict[tuple[int, str, str], str | None] = {}
    features: dict[str, int] = {}
    removed: list[str] = []
    records = payloads(dump)
    names = {data["topicId"]: data["name"] for kind, data in records if kind == "TOPIC_RECORD"}
    for kind, data in records:
        if kind == "CONFIG_RECORD":
            configs[data["resourceType"], data["resourceName"], data["name"]] = data["value"]
        elif kind == "REMOVE_TOPIC_RECORD":
            configs = {key: value for key, value in configs.items() if key[:2] != (2, names[data["topicId"]])}
        elif kind == "FEATURE_LEVEL_RECORD":
            features[data["name"]] = data["featureLevel"]
        elif kind == "REMOVE_ACCESS_CONTROL_ENTRY_RECORD":
            removed.append(data["id"])
    types = {"TOPIC": 2, "BROKER": 4, "GROUP": 32}
    assert {
        (types[resource.type], resource.name, name): value
        for resource, values in image.configs.items()
        for name, value in values.items()
    } == {key: value for key, value in configs.items() if value is not None}
    assert image.features == features and image.features["metadata.version"] == 30
    acls = {data["id"]: data for kind, data in records if kind == "ACCESS_CONTROL_ENTRY_RECORD"}
    assert removed and {str(acl_id) for acl_id in image.acls} == set(acls) - set(removed)
    for acl_id, acl in image.acls.items():
        data = acls[str(acl_id)]
        assert (acl.resource_name, acl.principal, acl.host) == (data["resourceName"], data["principal"], data["host"])
    last = dict(records)
    assert image.next_producer_id == last["PRODUCER_IDS_RECORD"]["nextProducerId"]
    quota = last["CLIENT_QUOTA_RECORD"]
    assert image.client_quotas == {(("user", quota["entity"][0]["entityName"]),): {quota["key"]: quota["value"]}}
    scram = last["USER_SCRAM_CREDENTIAL_RECORD"]
    assert list(image.scram_credentials) == [(scram["name"], {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}[scram["mechanism"]])]
    broker = last["REGISTER_BROKER_RECORD"]
    assert (list(image.brokers), image.brokers[1].broker_epoch) == ([1], broker["brokerEpoch"])
    assert image.brokers[1].endpoints["PLAINTEXT"] == Endpoint("127.0.0.1", broker["endPoints"][0]["port"], "PLAINTEXT")
    assert str(image.controllers[1].incarnation_id) == last["REGISTER_CONTROLLER_RECORD"]["incarnationId"]
    assert (image.leader_id, list(image.voters), image.pending_records) == (1, [1], None)


def test_every_record_type_has_a_home() -> None:
    transactions = {f"{name}TransactionRecord" for name in ("Begin", "End", "Abort")}
    assert {*_HANDLERS, *transactions} == set(TYPES)
    with pytest.raises(StateError, match="is not a record of the metadata log"):
        MetadataImage().apply(message_type("control_records", "EndTxnMarker").new())


def registered(**fields: Any) -> Message:
    return new("RegisterBroker", broker_id=1, broker_epoch=5, **fields)


def test_a_broker_registers_changes_and_leaves() -> None:
    broker_type = TYPES["RegisterBrokerRecord"].classes
    image = image_of(
        registered(
            end_points=[broker_type["BrokerEndpoint"](name="A", host="h", port=9, security_protocol=3)],
            features=[broker_type["BrokerFeature"](name="f", min_supported_version=1, max_supported_version=2)],
            rack="r",
            log_dirs=[ID],
        )
    )
    broker = image.brokers[1]
    assert (broker.endpoints, broker.features) == ({"A": ("h", 9, "SASL_SSL")}, {"f": VersionRange(1, 2)})
    assert (broker.is_fenced, broker.rack, broker.log_dirs) == (True, "r", [ID])
    image.apply(new("UnfenceBroker", id=1, epoch=5))
    assert not image.brokers[1].is_fenced
    image.apply(new("BrokerRegistrationChange", broker_id=1, broker_epoch=5, fenced=1, in_controlled_shutdown=1))
    broker = image.brokers[1]
    assert (broker.is_fenced, broker.is_in_controlled_shutdown, broker.log_dirs) == (True, True, [ID])
    change = {"fenced": -1, "log_dirs": [DIRECTORY_LOST], "cordoned_log_dirs": [ID]}
    image.apply(new("BrokerRegistrationChange", broker_id=1, broker_epoch=5, **change))
    broker = image.brokers[1]
    assert (broker.is_fenced, broker.is_in_controlled_shutdown) == (False, True)
    assert (broker.log_dirs, broker.cordoned_log_dirs) == ([DIRECTORY_LOST], [ID])
    image.apply(new("FenceBroker", id=1, epoch=5))
    assert image.brokers[1].is_fenced
    image.apply(new("UnregisterBroker", broker_id=1))
    assert image.brokers == {}


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (new("FenceBroker", id=2, epoch=5), "change of broker 2, which is not registered"),
        (new("UnfenceBroker", id=1, epoch=4), "in epoch 4, but its epoch is 5"),
        (new("BrokerRegistrationChange", broker_id=1, broker_epoch=5, fenced=7), "fenced 7"),
        (new("Partition", topic_id=DIRECTORY_LOST), f"topic id {DIRECTORY_LOST}, which does not exist"),
        (new("PartitionChange", topic_id=ID, partition_id=9), "change of partition t-9, which does not exist"),
        (new("PartitionChange", topic_id=ID, partition_id=0, directories=[ID]), "2 replicas but 1 directories"),
        (new("Partition", topic_id=ID, partition_id=0, directories=[ID]), "0 replicas but 1 directories"),
        (new("RemoveTopic", topic_id=DIRECTORY_LOST), f"topic id {DIRECTORY_LOST}, which does not exist"),
        (new("ClearElr", topic_name="none"), "topic none, which does not exist"),
        (new("RemoveAccessControlEntry", id=ID), f"removal of ACL {ID}, which does not exist"),
        (new("EndTransaction"), "EndTransactionRecord: no metadata transaction is open"),
        (new("AbortTransaction"), "AbortTransactionRecord: no metadata transaction is open"),
    ],
)
def test_records_that_do_not_fit_are_refused_and_change_nothing(record: Message, text: str) -> None:
    def fresh() -> MetadataImage:
        topic = new("Topic", name="t", topic_id=ID)
        return image_of(registered(), topic, new("Partition", topic_id=ID, partition_id=0, replicas=[1, 2], isr=[1]))

    image = fresh()
    with pytest.raises(StateError, match=re.escape(text)):
        image.apply(record)
    assert contents(image) == contents(fresh())


def test_a_partition_is_made_and_changes() -> None:
    topic, made = new("Topic", name="t", topic_id=ID), {"topic_id": ID, "partition_id": 0}
    image = image_of(topic, new("Partition", **made, replicas=[1, 2], isr=[1], leader=1, leader_epoch=3, partition_epoch=4))
    found = image.topic("t")
    assert found is not None and image.topic("other") is None
    part = found.partitions[0]
    assert (part.directories, part.leader_recovery_state) == ([DIRECTORY_MIGRATING] * 2, "RECOVERED")
    image.apply(new("PartitionChange", **made, isr=[1, 2], eligible_leader_replicas=[2], last_known_elr=[1]))
    part = found.partitions[0]
    assert (part.leader, part.leader_epoch, part.partition_epoch, part.isr) == (1, 3, 5, [1, 2])
    image.apply(new("PartitionChange", **made, leader=-1, leader_recovery_state=1, adding_replicas=[3]))
    part = found.partitions[0]
    assert (part.leader, part.leader_epoch, part.leader_recovery_state) == (-1, 4, "RECOVERING")
    directories = [ID, DIRECTORY_UNASSIGNED, DIRECTORY_LOST]
    image.apply(new("PartitionChange", **made, replicas=[1, 2, 3], directories=directories))
    part = found.partitions[0]
    assert (part.replicas, part.directories, part.adding_replicas) == ([1, 2, 3], directories, [3])
    image.apply(new("ClearElr", topic_name="t"))
    part = found.partitions[0]
    assert (part.eligible_leader_replicas, part.last_known_elr, part.partition_epoch) == ([], [], 8)
    image.apply(new("ClearElr", topic_name=""))
    part = found.partitions[0]
    assert part.partition_epoch == 8


def test_a_topic_goes_with_its_configs_and_its_name_may_be_anothers_by_then() -> None:
    other = Uuid(b"other".ljust(16))
    image = image_of(
        new("Topic", name="t", topic_id=ID),
        new("Config", resource_type=2, resource_name="t", name="a", value="1"),
        new("Topic", name="t", topic_id=other),
        new("RemoveTopic", topic_id=ID),
    )
    assert (list(image.topics), image.topic_ids, image.configs) == ([other], {"t": other}, {})


def test_configs_features_and_quotas_are_set_and_removed() -> None:
    entity = TYPES["ClientQuotaRecord"].classes["EntityData"]
    part = [entity(entity_type="user", entity_name=None), entity(entity_type="client-id", entity_name="c")]
    image = image_of(
        new("Config", resource_type=4, resource_name="", name="a", value="1"),
        new("Config", resource_type=4, resource_name="", name="b", value="2"),
        new("FeatureLevel", name="f", feature_level=2),
        new("FeatureLevel", name="kraft.version", feature_level=1),
        new("ClientQuota", entity=part, key="k", value=1.5),
        new("ClientQuota", entity=part, key="l", value=2.5),
    )
    assert image.configs == {ConfigResource("BROKER", ""): {"a": "1", "b": "2"}}
    assert image.features == {"f": 2}
    assert image.client_quotas == {(("client-id", "c"), ("user", None)): {"k": 1.5, "l": 2.5}}
    for name in ("a", "b", "c"):
        image.apply(new("Config", resource_type=4, resource_name="", name=name, value=None))
    image.apply(new("FeatureLevel", name="f", feature_level=0))
    for key in ("k", "l", "m"):
        image.apply(new("ClientQuota", entity=part, key=key, remove=True))
    assert (image.configs, image.features, image.client_quotas) == ({}, {}, {})


def test_acls_credentials_tokens_and_the_rest() -> None:
    acl = {"resource_type": 2, "resource_name": "t", "pattern_type": 4, "principal": "User:a", "host": "*"}
    image = image_of(
        new("AccessControlEntry", id=ID, operation=15, permission_type=3, **acl),
        new("UserScramCredential", name="u", mechanism=2, salt=b"s" * 9, stored_key=b"k", server_key=b"v", iterations=8192),
        new("DelegationToken", token_id="i", owner="User:a", expiration_timestamp=9),
        new("ProducerIds", next_producer_id=2000),
        new("ZkMigrationState", zk_migration_state=3),
        new("RegisterController", controller_id=7),
        new("NoOp"),
    )
    assert image.acls[ID] == ("TOPIC", "t", "PREFIXED", "User:a", "*", "TWO_PHASE_COMMIT", "ALLOW")
    assert image.scram_credentials["u", "SCRAM-SHA-512"].salt == b"s" * 9
    assert (image.delegation_tokens["i"].expiration_timestamp_ms, image.next_producer_id) == (9, 2000)
    assert (image.zk_migration_state, list(image.controllers)) == (3, [7])
    image.apply(new("RemoveAccessControlEntry", id=ID))
    image.apply(new("RemoveUserScramCredential", name="u", mechanism=2))
    image.apply(new("RemoveDelegationToken", token_id="i"))
    assert (image.acls, image.scram_credentials, image.delegation_tokens) == ({}, {}, {})


def test_secrets_are_not_shown() -> None:
    secret = {"salt": b"salt", "stored_key": b"stored", "server_key": b"server"}
    image = image_of(new("UserScramCredential", name="u", mechanism=1, iterations=4096, **secret))
    shown = repr(image.scram_credentials)
    assert "4096" in shown and not any(word in shown for word in ("salt", "stored", "server"))
    for name in ("ssl.keystore.password", "listener.name.a.sasl.jaas.config", "ssl.keystore.key", "my.client.secret"):
        assert is_sensitive_config(name)
    for name in ("retention.ms", "ssl.keystore.location", "password.encoder.iterations"):
        assert not is_sensitive_config(name)


def test_a_metadata_transaction_counts_as_a_whole_at_its_end() -> None:
    topic = new("Topic", name="t", topic_id=ID)
    image = image_of(new("BeginTransaction", name="make t"), topic)
    assert (image.topics, image.pending_name, image.pending_records) == ({}, "make t", [topic])
    with pytest.raises(StateError, match="another metadata transaction is open"):
        image.apply(new("BeginTransaction"))
    image.apply(new("EndTransaction"))
    assert (list(image.topics), image.pending_records, image.pending_name) == ([ID], None, None)


def test_an_aborted_metadata_transaction_does_not_count() -> None:
    image = image_of(new("BeginTransaction"), new("Topic", name="t", topic_id=ID), new("AbortTransaction", reason="no"))
    assert (image.topics, image.pending_records) == ({}, None)


def test_control_records_tell_of_the_quorum() -> None:
    image, leader = MetadataImage(), message_type("control_records", "LeaderChangeMessage")
    static = [leader.classes["Voter"](voter_id=node) for node in (1, 2)]
    image.apply_control(ControlRecord(LEADER_CHANGE, "LEADER_CHANGE", leader.new(leader_id=2, voters=static)))
    assert (image.leader_id, image.voters) == (2, {1: Voter(1), 2: Voter(2)})
    version = message_type("control_records", "KRaftVersionRecord").new(kraft_version=1)
    image.apply_control(ControlRecord(KRAFT_VERSION, "KRAFT_VERSION", version))
    voters = message_type("control_records", "VotersRecord")
    endpoint = voters.classes["Endpoint"](name="C", host="h", port=9)
    voter = voters.classes["Voter"](voter_id=3, voter_directory_id=ID, endpoints=[endpoint])
    image.apply_control(ControlRecord(KRAFT_VOTERS, "KRAFT_VOTERS", voters.new(voters=[voter])))
    image.apply_control(ControlRecord(99, "UNKNOWN", None))
    assert (image.kraft_version, image.voters) == (1, {3: Voter(3, ID, {"C": ("h", 9)})})


def test_numbers_that_are_newer_than_the_tables_stay_numbers() -> None:
    assert name_of({1: "A"}, 1) == "A"
    assert name_of({1: "A"}, 9) == "UNKNOWN(9)"
