"""Protects that every handler asks the authorizer, and that who is refused learns no more than Kafka tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kcli.protocol import apis, error_codes
from kcli.protocol.message import Message
from kcli.server.authorizer import CLUSTER_NAME
from tests.server.apis.asking import Refusing, ask, struct
from tests.server.whole_node import WholeNode

TOPIC_REFUSED = error_codes.TOPIC_AUTHORIZATION_FAILED
CLUSTER_REFUSED = error_codes.CLUSTER_AUTHORIZATION_FAILED


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> WholeNode:
    made = WholeNode(tmp_path_factory.mktemp("authorization") / "data")
    made.create_topic("seen")
    made.create_topic("hidden")
    return made


def refuse(node: WholeNode, *refused: tuple[str, str, str]) -> Refusing:
    authorizer, allow_all = Refusing(*refused), node.broker.parts.authorizer
    for method in ("is_allowed", "is_allowed_by_type"):
        setattr(allow_all, method, getattr(authorizer, method))
    return authorizer


def error_of(answer: Message) -> int:
    code: int = answer.error_code
    return code


def metadata(node: WholeNode, names: list[str] | None) -> dict[str, int]:
    topics = None if names is None else [struct(apis.METADATA, "MetadataRequestTopic", name=name) for name in names]
    return {topic.name: topic.error_code for topic in ask(node, apis.METADATA, 12, topics=topics).topics}


def test_metadata_hides_topics(node: WholeNode) -> None:
    refuse(node, ("DESCRIBE", "TOPIC", "hidden"), ("DESCRIBE", "TOPIC", "none"))
    assert metadata(node, None) == {"seen": 0}
    # Whether a topic is there is not told.
    assert metadata(node, ["hidden", "none", "seen"]) == {"hidden": TOPIC_REFUSED, "none": TOPIC_REFUSED, "seen": 0}
    hidden = node.broker.image.topic_ids["hidden"]
    topic = struct(apis.METADATA, "MetadataRequestTopic", topic_id=hidden, name=None)
    (answer,) = ask(node, apis.METADATA, 12, topics=[topic]).topics
    assert (answer.error_code, answer.name) == (error_codes.UNKNOWN_TOPIC_ID, None)
    assert "none" not in node.broker.image.topic_ids


def test_describe_topic_partitions_hides_topics(node: WholeNode) -> None:
    refuse(node, ("DESCRIBE", "TOPIC", "hidden"))
    key = apis.DESCRIBE_TOPIC_PARTITIONS
    assert [topic.name for topic in ask(node, key, 0).topics] == ["seen"]
    named = [struct(key, "TopicRequest", name=name) for name in ("hidden", "seen")]
    answer = ask(node, key, 0, topics=named)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [("seen", 0), ("hidden", TOPIC_REFUSED)]
    assert bytes(answer.topics[1].topic_id) == bytes(16)


def list_offsets(topic: str) -> dict[str, Any]:
    partition = struct(apis.LIST_OFFSETS, "ListOffsetsPartition", partition_index=0, timestamp=-1)
    return {"replica_id": -1, "topics": [struct(apis.LIST_OFFSETS, "ListOffsetsTopic", name=topic, partitions=[partition])]}


def leader_epoch(topic: str) -> dict[str, Any]:
    partition = struct(apis.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderPartition", partition=0, leader_epoch=0)
    wanted = struct(apis.OFFSET_FOR_LEADER_EPOCH, "OffsetForLeaderTopic", topic=topic, partitions=[partition])
    return {"replica_id": 1, "topics": [wanted]}


def delete_records(topic: str) -> dict[str, Any]:
    partition = struct(apis.DELETE_RECORDS, "DeleteRecordsPartition", partition_index=0, offset=-1)
    return {"topics": [struct(apis.DELETE_RECORDS, "DeleteRecordsTopic", name=topic, partitions=[partition])]}


def producers(topic: str) -> dict[str, Any]:
    return {"topics": [struct(apis.DESCRIBE_PRODUCERS, "TopicRequest", name=topic, partition_indexes=[0])]}


@pytest.mark.parametrize(
    ("key", "version", "operation", "fields"),
    [
        (apis.LIST_OFFSETS, 11, "DESCRIBE", list_offsets),
        (apis.DELETE_RECORDS, 2, "DELETE", delete_records),
        (apis.DESCRIBE_PRODUCERS, 0, "READ", producers),
    ],
)
def test_topics_are_refused_one_by_one(
    node: WholeNode, key: int, version: int, operation: str, fields: Callable[[str], dict[str, Any]]
) -> None:
    refuse(node, (operation, "TOPIC", "hidden"), (operation, "TOPIC", "none"))
    for topic, code in (("hidden", TOPIC_REFUSED), ("none", TOPIC_REFUSED), ("seen", 0)):
        assert ask(node, key, version, **fields(topic)).topics[0].partitions[0].error_code == code


def test_a_follower_may_ask_for_epochs_as_part_of_the_cluster(node: WholeNode) -> None:
    def code() -> int:
        return error_of(ask(node, apis.OFFSET_FOR_LEADER_EPOCH, 4, **leader_epoch("hidden")).topics[0].partitions[0])

    refuse(node, ("DESCRIBE", "TOPIC", "hidden"))
    assert code() == 0
    refuse(node, ("DESCRIBE", "TOPIC", "hidden"), ("CLUSTER_ACTION", "CLUSTER", CLUSTER_NAME))
    assert code() == TOPIC_REFUSED
    refuse(node, ("CLUSTER_ACTION", "CLUSTER", CLUSTER_NAME))
    assert code() == 0


def test_what_belongs_to_the_cluster(node: WholeNode) -> None:
    refuse(node, ("DESCRIBE", "CLUSTER", CLUSTER_NAME), ("ALTER", "CLUSTER", CLUSTER_NAME))
    answer = ask(node, apis.DESCRIBE_LOG_DIRS, 4, topics=None)
    assert (answer.error_code, answer.results) == (CLUSTER_REFUSED, [])
    answer = ask(node, apis.DESCRIBE_CLUSTER, 2, include_cluster_authorized_operations=True)
    assert (answer.error_code, answer.cluster_authorized_operations, len(answer.brokers)) == (0, 0, 1)
    topic = struct(apis.ALTER_REPLICA_LOG_DIRS, "AlterReplicaLogDirTopic", name="seen", partitions=[0])
    directory = struct(apis.ALTER_REPLICA_LOG_DIRS, "AlterReplicaLogDir", path="/x", topics=[topic])
    (result,) = ask(node, apis.ALTER_REPLICA_LOG_DIRS, 2, dirs=[directory]).results
    assert result.partitions[0].error_code == CLUSTER_REFUSED


@pytest.mark.parametrize(
    ("refused", "code"),
    [
        ([("IDEMPOTENT_WRITE", "CLUSTER", CLUSTER_NAME), ("WRITE", "TOPIC", "?")], CLUSTER_REFUSED),
        ([("IDEMPOTENT_WRITE", "CLUSTER", CLUSTER_NAME)], 0),
        ([("WRITE", "TOPIC", "?")], 0),
    ],
)
def test_who_writes_to_some_topic_may_be_idempotent(node: WholeNode, refused: list[tuple[str, str, str]], code: int) -> None:
    """KIP-679: IDEMPOTENT_WRITE on the cluster is not needed any more (KafkaApis.handleInitProducerIdRequest)."""
    refuse(node, *refused)
    assert ask(node, apis.INIT_PRODUCER_ID, 5, transactional_id=None, transaction_timeout_ms=1000).error_code == code


@pytest.mark.parametrize(
    ("kind", "name", "guard", "code"),
    [
        (2, "seen", ("DESCRIBE_CONFIGS", "TOPIC", "seen"), TOPIC_REFUSED),
        (4, "1", ("DESCRIBE_CONFIGS", "CLUSTER", CLUSTER_NAME), CLUSTER_REFUSED),
        (16, "metrics", ("DESCRIBE_CONFIGS", "CLUSTER", CLUSTER_NAME), CLUSTER_REFUSED),
        (32, "group", ("DESCRIBE_CONFIGS", "GROUP", "group"), error_codes.GROUP_AUTHORIZATION_FAILED),
    ],
)
def test_configurations_are_guarded_by_type(
    node: WholeNode, kind: int, name: str, guard: tuple[str, str, str], code: int
) -> None:
    key = apis.DESCRIBE_CONFIGS
    resources = [struct(key, "DescribeConfigsResource", resource_type=kind, resource_name=name, configuration_keys=None)]
    authorizer = refuse(node, guard)
    (result,) = ask(node, key, 4, resources=resources).results
    assert (result.error_code, result.configs) == (code, [])
    assert authorizer.asked == {guard}
    refuse(node)
    (result,) = ask(node, key, 4, resources=resources).results
    assert result.error_code == 0
    assert result.configs


def test_listing_configurations_is_guarded(node: WholeNode) -> None:
    refuse(node, ("DESCRIBE_CONFIGS", "CLUSTER", CLUSTER_NAME))
    answer = ask(node, apis.LIST_CONFIG_RESOURCES, 1)
    assert (answer.error_code, answer.config_resources) == (CLUSTER_REFUSED, [])


def test_operations_that_are_told_are_those_that_are_allowed(node: WholeNode) -> None:
    refuse(node, ("WRITE", "TOPIC", "seen"), ("ALTER", "CLUSTER", CLUSTER_NAME))
    topics = [struct(apis.METADATA, "MetadataRequestTopic", name="seen")]
    answer = ask(
        node,
        apis.METADATA,
        10,
        topics=topics,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    assert answer.topics[0].topic_authorized_operations == 3576 - (1 << 4)
    assert answer.cluster_authorized_operations == 8096 - (1 << 7)
