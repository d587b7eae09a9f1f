"""Protects a broker that gets a snapshot of the metadata while it runs: as if it had applied the records."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.protocol import error_codes
from kcli.protocol.control_records import SNAPSHOT_FOOTER, ControlRecord
from kcli.protocol.message import Message
from kcli.server.raft.metadata_batches import MetadataBatch
from kcli.state.image_records import image_records, new_record
from tests.server.broker.test_moved_partitions import ELSEWHERE, HERE, only
from tests.server.whole_node import WholeNode, batch

TOPIC, BROKER = 2, 4  # types of resources in ConfigRecord
FOOTER = ControlRecord(SNAPSHOT_FOOTER, "", None)


@pytest.fixture
def node(tmp_path: Path) -> WholeNode:
    """A node with topics of two partitions, of which the second is the same everywhere."""
    made = WholeNode(tmp_path / "data", "node.id=1", "log.segment.delete.delay.ms=500")
    for name in ("kept", "gone", "moved", "again"):
        made.create_topic(name, 2)
    return made


def load(node: WholeNode, records: Iterable[Message], *, is_complete: bool = True) -> None:
    """Deliver a snapshot of the present image after these records."""
    image, publisher, offset = node.broker.image.frozen(), node.broker.publisher, node.broker.metadata_offset + 100
    for record in records:
        image.apply(record)
    publisher.begin_snapshot()
    for record in image_records(image):
        publisher.apply(MetadataBatch(offset, offset, 1, node.now_ms, [record], []), node.now_ms)
    if is_complete:
        publisher.apply(MetadataBatch(offset, offset, 1, node.now_ms, [], [FOOTER]), node.now_ms)
        assert node.broker.metadata_offset == offset
    node.advance(10)


def partition_of(topic_id: Uuid, index: int, replica: int) -> Message:
    return new_record(
        "PartitionRecord",
        topic_id=topic_id,
        partition_id=index,
        replicas=[replica],
        isr=[replica],
        leader=replica,
        directories=[Uuid(bytes(15) + b"\1")],
    )


def error_of(node: WholeNode, topic: str, index: int = 0) -> int:
    """The error of a produce."""
    code = only(node.produce(topic, index, batch(b"x"))).error_code
    assert isinstance(code, int)
    return code


def changes(node: WholeNode) -> list[Message]:
    """A topic is deleted, one is deleted and created anew, one is created, one partition moves, two configs are set."""
    ids, fresh, again = node.broker.image.topic_ids, Uuid(b"a fresh topic 16"), Uuid(b"the topic again.")
    return [
        new_record("RemoveTopicRecord", topic_id=ids["gone"]),
        new_record("RemoveTopicRecord", topic_id=ids["again"]),
        new_record("TopicRecord", name="fresh", topic_id=fresh),
        partition_of(fresh, 0, HERE),
        partition_of(fresh, 1, ELSEWHERE),
        new_record("TopicRecord", name="again", topic_id=again),
        partition_of(again, 0, HERE),
        new_record(
            "PartitionChangeRecord",
            topic_id=ids["moved"],
            partition_id=0,
            replicas=[ELSEWHERE],
            isr=[ELSEWHERE],
            leader=ELSEWHERE,
            directories=[Uuid(bytes(15) + b"\1")],
        ),
        new_record("ConfigRecord", resource_type=TOPIC, resource_name="kept", name="retention.ms", value="12345"),
        new_record("ConfigRecord", resource_type=BROKER, resource_name="", name="log.retention.ms", value="54321"),
    ]


def test_what_differs_from_the_snapshot_is_done(node: WholeNode) -> None:
    """Topics come and go, a partition moves away, settings apply; what is the same goes on with its records."""
    for topic in ("kept", "gone", "moved", "again"):
        assert error_of(node, topic) == error_codes.NONE
    load(node, changes(node))
    assert sorted(node.broker.image.topic_ids) == ["again", "fresh", "kept", "moved"]
    assert sorted(node.broker.replica_manager.partitions) == [
        *(("again", 0), ("fresh", 0), ("kept", 0), ("kept", 1)),
        ("moved", 1),
    ]
    assert only(node.produce("kept", 0, batch(b"y"))).base_offset == 1
    assert only(node.produce("again", 0, batch(b"y"))).base_offset == 0
    assert error_of(node, "fresh") == error_codes.NONE
    assert error_of(node, "moved") == error_codes.NOT_LEADER_OR_FOLLOWER
    assert error_of(node, "gone") == error_codes.UNKNOWN_TOPIC_OR_PARTITION
    logs = node.broker.log_manager.logs
    assert [logs[name, 0].config.retention_ms for name in ("kept", "fresh")] == [12345, 54321]


def test_the_old_image_is_used_until_the_snapshot_is_complete(node: WholeNode) -> None:
    """Clients must not see a cluster that has lost half of its topics; another snapshot may replace one that is incomplete."""
    before = sorted(node.broker.image.topic_ids)
    load(node, changes(node), is_complete=False)
    assert sorted(node.broker.image.topic_ids) == before
    assert error_of(node, "gone") == error_codes.NONE
    load(node, [])
    assert sorted(node.broker.image.topic_ids) == before
    assert error_of(node, "gone") == error_codes.NONE
    node.stop()
