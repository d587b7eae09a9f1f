"""Protects what is decided of topics: every refusal with Kafka's code, the records in Kafka's order, each topic by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from tests.server.controller.controllers import ControllerNode
from tests.server.raft.nodes import formatted

CREATE = API_KEYS[CREATE_TOPICS].request
DELETE = API_KEYS[DELETE_TOPICS].request
GROW = API_KEYS[CREATE_PARTITIONS].request


def topic(name: str, partitions: int = 1, replication_factor: int = 1, **fields: Any) -> Any:
    assignments = [
        CREATE.classes["CreatableReplicaAssignment"](partition_index=index, broker_ids=broker_ids)
        for index, broker_ids in fields.pop("assignments", ())
    ]
    configs = [CREATE.classes["CreatableTopicConfig"](name=key, value=value) for key, value in fields.pop("configs", ())]
    return CREATE.classes["CreatableTopic"](
        name=name, num_partitions=partitions, replication_factor=replication_factor, assignments=assignments, configs=configs
    )


def create(node: ControllerNode, *topics: Any, version: int | None = None, **fields: Any) -> list[Any]:
    return list(node.ask(CREATE_TOPICS, CREATE.new(topics=list(topics), **fields), version).topics)


def test_a_topic_is_made_of_records_in_order(node: ControllerNode) -> None:
    """Topic, then its configs, then its partitions; the broker's image has them when the answer leaves."""
    node.broker.seen.clear()
    (made,) = create(node, topic("orders", 2, configs=[("retention.ms", "1000")]))
    assert (made.error_code, made.error_message, made.num_partitions, made.replication_factor) == (0, None, 2, 1)
    assert [record.STRUCT.name for record in node.broker.seen] == [
        "TopicRecord",
        "ConfigRecord",
        "PartitionRecord",
        "PartitionRecord",
    ]
    found = node.broker.image.topic("orders")
    assert found is not None
    assert found.topic_id == made.topic_id
    assert [partition.leader for partition in found.partitions.values()] == [1, 1]
    assert found.partitions[0].directories == [node.meta.directory_id]
    configs = {config.name: config for config in made.configs}
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("1000", 1)
    assert configs["cleanup.policy"].config_source == 5


def test_the_answer_waits_for_the_disk(node: ControllerNode) -> None:
    """A topic is known to the next decision at once, but nobody is told before the flush; a second one of that name fails."""
    first = node.send(CREATE_TOPICS, CREATE.new(topics=[topic("orders")]))
    second = node.send(CREATE_TOPICS, CREATE.new(topics=[topic("orders")]))
    assert (first, second) == ([], []), "a refusal waits too: it tells of a topic that is not committed"
    assert node.broker.image.topic("orders") is None
    node.run()
    assert len(first) == len(second) == 1
    assert node.broker.image.topic("orders") is not None


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (topic(""), error_codes.INVALID_TOPIC_EXCEPTION),
        (topic("a" * 250), error_codes.INVALID_TOPIC_EXCEPTION),
        (topic("a b"), error_codes.INVALID_TOPIC_EXCEPTION),
        (topic(".."), error_codes.INVALID_TOPIC_EXCEPTION),
        (topic("there"), error_codes.TOPIC_ALREADY_EXISTS),
        (topic("the_re"), error_codes.INVALID_TOPIC_EXCEPTION),
        (topic("__cluster_metadata"), error_codes.INVALID_REQUEST),
        (topic("x", 0), error_codes.INVALID_PARTITIONS),
        (topic("x", -2), error_codes.INVALID_PARTITIONS),
        (topic("x", 1, 0), error_codes.INVALID_REPLICATION_FACTOR),
        (topic("x", 1, -2), error_codes.INVALID_REPLICATION_FACTOR),
        (topic("x", 1, 2), error_codes.INVALID_REPLICATION_FACTOR),
        (topic("x", 1, 1, configs=[("retention.ms", "soon")]), error_codes.INVALID_CONFIG),
        (topic("x", 1, 1, configs=[("no.such.key", "1")]), error_codes.INVALID_CONFIG),
        (topic("x", 1, 1, configs=[("retention.ms", None)]), error_codes.INVALID_CONFIG),
        (topic("x", 1, -1, assignments=[(0, [1])]), error_codes.INVALID_REQUEST),
        (topic("x", -1, 1, assignments=[(0, [1])]), error_codes.INVALID_REQUEST),
        (topic("x", -1, -1, assignments=[(1, [1])]), error_codes.INVALID_REPLICA_ASSIGNMENT),
        (topic("x", -1, -1, assignments=[(0, [])]), error_codes.INVALID_REPLICA_ASSIGNMENT),
        (topic("x", -1, -1, assignments=[(0, [7])]), error_codes.INVALID_REPLICA_ASSIGNMENT),
        (topic("x", -1, -1, assignments=[(0, [1, 1])]), error_codes.INVALID_REPLICA_ASSIGNMENT),
        (topic("x", -1, -1, assignments=[(0, [1]), (0, [1])]), error_codes.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_refusals(node: ControllerNode, asked: Any, code: int) -> None:
    """Each fault has its code and a sentence, writes nothing, and leaves the other topic of the request alone."""
    create(node, topic("there"), topic("the.re"))
    before = node.core.raft.next_offset
    refused, made = create(node, asked, topic("fine"))
    assert (refused.error_code, made.error_code) == (code, 0)
    assert refused.error_message
    assert node.core.raft.next_offset == before + 2
    (again,) = create(node, asked, validate_only=True)
    assert again.error_code == code


def test_a_topic_named_twice_is_refused_once(node: ControllerNode) -> None:
    """A name that comes twice gets one refusal."""
    results = create(node, topic("a"), topic("a"), topic("b"))
    assert sorted((result.name, result.error_code) for result in results) == [("a", error_codes.INVALID_REQUEST), ("b", 0)]


def test_validate_only_writes_nothing(node: ControllerNode) -> None:
    """The answer is as if, and the log does not grow."""
    before = node.core.raft.next_offset
    (result,) = create(node, topic("orders", 3), validate_only=True)
    assert (result.error_code, result.num_partitions, node.core.raft.next_offset) == (0, 3, before)


def test_defaults_and_their_dynamic_change(tmp_path: Path) -> None:
    """-1 is num.partitions and default.replication.factor of the configuration."""
    node = ControllerNode(formatted(tmp_path / "data"), "num.partitions=4").start_with_broker()
    (made,) = create(node, topic("orders", -1, -1))
    assert (made.num_partitions, made.replication_factor) == (4, 1)


def test_too_many_partitions_at_once(node: ControllerNode) -> None:
    """A request beyond the records of one append is refused whole, each topic of it."""
    results = create(node, topic("a", 9_999), topic("b", 2))
    assert [result.error_code for result in results] == [error_codes.POLICY_VIOLATION] * 2


@pytest.mark.parametrize("version", range(2, 8))
def test_all_versions(node: ControllerNode, version: int) -> None:
    """Every version of the request makes the topic."""
    (made,) = create(node, topic("orders"), version=version)
    assert made.error_code == 0
    assert node.broker.image.topic("orders") is not None


def test_no_topic_while_the_broker_is_fenced(tmp_path: Path) -> None:
    """Nobody could lead it: INVALID_REPLICATION_FACTOR, or INVALID_REPLICA_ASSIGNMENT where it was assigned."""
    node = ControllerNode(formatted(tmp_path / "data")).start()
    node.register()
    results = create(node, topic("a"), topic("b", -1, -1, assignments=[(0, [1])]))
    assert [result.error_code for result in results] == [
        error_codes.INVALID_REPLICATION_FACTOR,
        error_codes.INVALID_REPLICA_ASSIGNMENT,
    ]


# --------------------------------------------------------------------------------------------------------- the others


def grow(node: ControllerNode, name: str, count: int, assignments: list[list[int]] | None = None, **fields: Any) -> Any:
    made = GROW.classes["CreatePartitionsAssignment"]
    asked = GROW.classes["CreatePartitionsTopic"](
        name=name,
        count=count,
        assignments=None if assignments is None else [made(broker_ids=broker_ids) for broker_ids in assignments],
    )
    return node.ask(CREATE_PARTITIONS, GROW.new(topics=[asked], **fields)).results[0]


def test_partitions_are_added(node: ControllerNode) -> None:
    """Only more than there are; by assignment as well; nothing with validate_only."""
    create(node, topic("orders", 2))
    assert grow(node, "orders", 4, validate_only=True).error_code == 0
    assert grow(node, "orders", 3, [[1]]).error_code == 0
    found = node.broker.image.topic("orders")
    assert found is not None
    assert list(found.partitions) == [0, 1, 2]
    for count, assignments, code in (
        (3, None, error_codes.INVALID_PARTITIONS),
        (1, None, error_codes.INVALID_PARTITIONS),
        (5, [[1]], error_codes.INVALID_REPLICA_ASSIGNMENT),
        (4, [[7]], error_codes.INVALID_REPLICA_ASSIGNMENT),
        (4, [[1, 2]], error_codes.INVALID_REPLICA_ASSIGNMENT),
        (20_000, None, error_codes.POLICY_VIOLATION),
    ):
        assert grow(node, "orders", count, assignments).error_code == code
    assert grow(node, "absent", 2).error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION


def delete(node: ControllerNode, *wanted: tuple[str | None, Uuid]) -> list[tuple[str | None, int]]:
    made = DELETE.classes["DeleteTopicState"]
    request = DELETE.new(topics=[made(name=name, topic_id=topic_id) for name, topic_id in wanted])
    return [(result.name, result.error_code) for result in node.ask(DELETE_TOPICS, request).responses]


def test_topics_are_deleted_by_name_and_by_id(node: ControllerNode) -> None:
    """With their configurations; the same topic is not named in two ways; what is not there has its own code."""
    made = create(node, topic("a", configs=[("retention.ms", "1")]), topic("b"), topic("c"))
    ids = {result.name: result.topic_id for result in made}
    assert delete(node, ("a", ZERO_UUID), (None, ids["b"])) == [("a", 0), ("b", 0)]
    assert list(node.broker.image.topic_ids) == ["c"]
    assert not [resource for resource in node.broker.image.configs if resource.type == "TOPIC"]
    unknown = Uuid(b"\7" * 16)
    assert delete(node, ("a", ZERO_UUID), (None, unknown)) == [
        ("a", error_codes.UNKNOWN_TOPIC_OR_PARTITION),
        (None, error_codes.UNKNOWN_TOPIC_ID),
    ]
    assert delete(node, ("c", ids["c"])) == [("c", error_codes.INVALID_REQUEST)]
    assert delete(node, (None, ZERO_UUID)) == [(None, error_codes.INVALID_REQUEST)]
    assert delete(node, ("c", ZERO_UUID), ("c", ZERO_UUID)) == [("c", error_codes.INVALID_REQUEST)]
    assert delete(node, ("c", ZERO_UUID), (None, ids["c"])) == [("c", error_codes.INVALID_REQUEST), ("c", 0)]


def test_deleting_by_older_versions_and_where_it_is_disabled(tmp_path: Path) -> None:
    """Names alone below version 6; delete.topic.enable=false has a code of its own from version 3 on."""
    node = ControllerNode(formatted(tmp_path / "data")).start_with_broker()
    create(node, topic("a"))
    assert node.ask(DELETE_TOPICS, DELETE.new(topic_names=["a"]), 1).responses[0].error_code == 0
    node.stop()
    node = ControllerNode(tmp_path / "data", "delete.topic.enable=false").start()
    for version, code in ((1, error_codes.INVALID_REQUEST), (5, error_codes.TOPIC_DELETION_DISABLED)):
        response = node.ask(DELETE_TOPICS, DELETE.new(topic_names=["a"]), version)
        assert response.responses[0].error_code == code


def test_too_many_records_at_once(node: ControllerNode) -> None:
    """Topics with their configurations beyond the records of one batch are refused whole, and nothing of them is written."""
    before = node.core.raft.next_offset
    configs = [("retention.ms", "1"), ("segment.ms", "1000")]
    results = create(node, *(topic(f"topic-{index}", 2, configs=configs) for index in range(2_100)), version=4)
    assert {result.error_code for result in results} == {error_codes.POLICY_VIOLATION}
    assert (len(results), node.core.raft.next_offset) == (2_100, before)
