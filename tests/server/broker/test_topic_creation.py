"""Protects the topics that come into being because a client names them: their numbers must be those that others count on."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.protocol import apis, error_codes
from kcli.protocol.message import Message
from kcli.state.metadata_values import ConfigResource
from kcli.state.topic_names import INTERNAL_TOPICS
from tests.server.apis.asking import ask, struct
from tests.server.whole_node import WholeNode

SETTINGS = (
    *("num.partitions=2", "offsets.topic.num.partitions=3", "offsets.topic.segment.bytes=2000000"),
    *(
        "transaction.state.log.num.partitions=5",
        "transaction.state.log.min.isr=1",
        "transaction.state.log.segment.bytes=3000000",
    ),
    *("share.coordinator.state.topic.num.partitions=4", "share.coordinator.state.topic.segment.bytes=4000000"),
    *(f"{keys}.replication.factor=1" for keys in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")),
    "share.coordinator.state.topic.min.isr=1",
)
# What Apache Kafka makes of these settings.
CONFIGS = {
    "ordinary": {},
    "__consumer_offsets": {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "2000000"},
    "__transaction_state": {
        "cleanup.policy": "compact",
        "compression.type": "uncompressed",
        "min.insync.replicas": "1",
        "segment.bytes": "3000000",
        "unclean.leader.election.enable": "false",
    },
    "__share_group_state": {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "min.insync.replicas": "1",
        "retention.ms": "-1",
        "segment.bytes": "4000000",
    },
}
PARTITIONS = {"ordinary": 2, "__consumer_offsets": 3, "__transaction_state": 5, "__share_group_state": 4}


def name_them(node: WholeNode, names: list[str], *, may_create: bool) -> dict[str, Message]:
    """What Metadata says of topics."""
    topics = [struct(apis.METADATA, "MetadataRequestTopic", name=name) for name in names]
    found = ask(node, apis.METADATA, 12, topics=topics, allow_auto_topic_creation=may_create)
    return {topic.name: topic for topic in found.topics}


@pytest.mark.parametrize("name", PARTITIONS)
def test_a_named_topic_comes_with_the_numbers_of_its_keys(tmp_path: Path, name: str) -> None:
    node = WholeNode(tmp_path / "data", *SETTINGS)
    assert name_them(node, [name], may_create=True)[name].error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION
    node.until(lambda: node.broker.image.topic(name) is not None)
    found = name_them(node, [name], may_create=False)[name]
    assert (found.error_code, len(found.partitions)) == (0, PARTITIONS[name])
    assert found.is_internal == (name in INTERNAL_TOPICS)
    assert node.broker.image.configs.get(ConfigResource("TOPIC", name), {}) == CONFIGS[name]


def test_without_leave_none_comes(tmp_path: Path) -> None:
    """The request says no, or the broker does."""
    for place, setting, may_create in (("a", "true", False), ("b", "false", True)):
        node = WholeNode(tmp_path / place, f"auto.create.topics.enable={setting}")
        name_them(node, ["ordinary"], may_create=may_create)
        node.advance(1000)
        assert node.broker.image.topic("ordinary") is None


@pytest.mark.parametrize(("key_type", "key"), [(0, "offsets.topic"), (1, "transaction.state.log")])
def test_an_internal_topic_that_cannot_be_made_names_its_key(tmp_path: Path, key_type: int, key: str) -> None:
    """Kafka's default of three replicas does not fit one node; the line named auto.create.topics.enable."""
    node = WholeNode(tmp_path / "data", f"{key}.replication.factor=3")
    ask(node, apis.FIND_COORDINATOR, 6, key_type=key_type, coordinator_keys=["x"])
    node.advance(500)
    (line,) = [line for line in node.lines if "cannot be created automatically" in line]
    assert f"({key}.replication.factor=3): INVALID_REPLICATION_FACTOR" in line


def test_a_refused_creation_is_logged_once_and_not_repeated_with_each_request(tmp_path: Path) -> None:
    """The client asks ten times a second: the controller must not be asked each time, and the operator learns why."""
    node = WholeNode(tmp_path / "data", "default.replication.factor=3")
    send, sent = node.broker.controller.send, []

    def counting(api_key: int, *rest: object) -> None:
        if api_key == apis.CREATE_TOPICS:
            sent.append(node.now_ms)
        send(api_key, *rest)  # type: ignore[arg-type]

    node.broker.controller.send = counting  # type: ignore[method-assign, assignment]
    for _ in range(250):
        answer = name_them(node, ["wide"], may_create=True)["wide"]
        assert answer.error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION
        node.advance(100)
    assert len(sent) == 3
    (line,) = [line for line in node.lines if "cannot be created automatically" in line]
    assert line.startswith("topic wide cannot") and "INVALID_REPLICATION_FACTOR" in line
    name_them(node, [f"wide{index}" for index in range(1_200)], may_create=True)
    node.advance(5_000)
    assert len(node.broker.parts.topic_creation._refused) == 1_000
    (line,) = [line for line in node.lines if "cannot be created automatically" in line][1:]
    assert line.startswith("topic wide0, wide1, wide2, wide3, wide4 and 1195 others cannot")


def test_an_election_is_not_a_refusal(tmp_path: Path) -> None:
    """The topic that a client names in the midst of it is created as soon as there is a controller, and no line is logged."""
    node = WholeNode(tmp_path / "data")
    controller = node.node.controller.controller  # type: ignore[union-attr]
    controller.is_active = False
    name_them(node, ["ordinary"], may_create=True)
    node.advance(10)
    controller.is_active = True
    name_them(node, ["ordinary"], may_create=True)
    node.until(lambda: node.broker.image.topic("ordinary") is not None)
    assert not [line for line in node.lines if "cannot be created automatically" in line]
