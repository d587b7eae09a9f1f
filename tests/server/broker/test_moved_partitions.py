"""Protects a partition that is reassigned to other brokers: its old leader stops at once, and deletes its log.

Records that it still acknowledged would be lost: the new leader does not have them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, FIND_COORDINATOR, HEARTBEAT
from kcli.protocol.message import Message
from kcli.server.broker.metadata_publisher import MetadataPublisher
from kcli.server.raft.metadata_batches import MetadataBatch
from kcli.server.replication.partition import Partition
from kcli.state.image_records import new_record
from tests.server.whole_node import Pending, WholeNode, batch

HERE, ELSEWHERE = 1, 2
NO_DIRECTORY, OTHER_DIRECTORY, OTHER_ID = Uuid(bytes(16)), Uuid(bytes(15) + b"\1"), Uuid(bytes(15) + b"\2")
SETTINGS = ("node.id=1", "log.segment.delete.delay.ms=500", "offsets.topic.num.partitions=1")


@pytest.fixture
def node(tmp_path: Path) -> WholeNode:
    made = WholeNode(tmp_path / "data", *SETTINGS)
    made.create_topic("t", 2)
    return made


def committed(records: list[Message], offset: int) -> MetadataBatch:
    """A batch of the metadata log."""
    return MetadataBatch(offset, offset, 0, 0, records, [])


def placed(topic_id: Uuid, index: int, replica: int) -> Message:
    """The record that a partition has one replica, which leads."""
    return new_record(
        "PartitionChangeRecord",
        topic_id=topic_id,
        partition_id=index,
        replicas=[replica],
        isr=[replica],
        leader=replica,
        directories=[OTHER_DIRECTORY if replica == ELSEWHERE else NO_DIRECTORY],
    )


def move(node: WholeNode, topic: str, index: int, replica: int) -> None:
    """Commit that a partition has one replica, which leads."""
    record = placed(node.broker.image.topic_ids[topic], index, replica)
    node.publish([record])
    node.advance(10)


def only(pending: Pending) -> Message:
    """The one partition of an answer to Produce or Fetch."""
    (topic,) = pending.result().responses
    (part,) = getattr(topic, "partition_responses", None) or topic.partitions
    return part


def directories(node: WholeNode) -> list[str]:
    (log_dir,) = node.broker.log_manager.online_dirs()
    return sorted(path.name for path in Path(log_dir.path).iterdir() if path.is_dir() and path.name.startswith("t-"))


def test_requests_that_wait_and_new_ones_get_not_leader_or_follower(node: WholeNode) -> None:
    node.replicate("t")  # the produce waits for the other replica
    produce, fetch = node.produce("t", 0, batch(b"a")), node.fetch({("t", 0): 0}, max_wait_ms=5000)
    assert (produce.answer, fetch.answer) == (None, None)
    move(node, "t", 0, ELSEWHERE)
    assert only(produce).error_code == error_codes.NOT_LEADER_OR_FOLLOWER
    assert only(fetch).error_code == error_codes.NOT_LEADER_OR_FOLLOWER
    assert only(node.produce("t", 0, batch(b"late"))).error_code == error_codes.NOT_LEADER_OR_FOLLOWER
    assert only(node.fetch({("t", 0): 0})).error_code == error_codes.NOT_LEADER_OR_FOLLOWER
    assert only(node.produce("t", 1, batch(b"b"))).error_code == 0


def test_the_log_is_deleted_and_a_replica_that_comes_back_begins_empty(node: WholeNode) -> None:
    node.produce("t", 0, batch(b"a"))
    move(node, "t", 0, ELSEWHERE)
    renamed, kept = directories(node)
    assert renamed.startswith("t-0.") and renamed.endswith("-delete") and kept == "t-1"
    node.advance(1000)
    assert directories(node) == ["t-1"]
    move(node, "t", 0, HERE)
    assert directories(node) == ["t-0", "t-1"]
    assert only(node.produce("t", 0, batch(b"b"))).base_offset == 0


def test_the_groups_of_a_moved_partition_have_no_coordinator_here(node: WholeNode) -> None:
    find = API_KEYS[FIND_COORDINATOR].request.new(key="g", key_type=0)
    node.send(FIND_COORDINATOR, 3, find)
    node.until(lambda: bool(node.broker.groups.runtime.shards()))
    move(node, "__consumer_offsets", 0, ELSEWHERE)
    heartbeat = API_KEYS[HEARTBEAT].request.new(group_id="g", generation_id=1, member_id="m")
    assert node.send(HEARTBEAT, 4, heartbeat).result().error_code == error_codes.NOT_COORDINATOR
    assert not node.broker.groups.runtime.shards()


@pytest.mark.parametrize("change", ["moved", "deleted", "made again"])
@pytest.mark.parametrize("step", ["start", "_begin_work"])
def test_a_change_during_the_start_leaves_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, step: str
) -> None:
    """After the logs are loaded, or before they are published. A replica that came back served the records of then."""
    node = WholeNode(tmp_path / "data", *SETTINGS)
    topic_id = node.create_topic("t", 2)
    node.produce("t", 0, batch(b"old"))
    node.stop()
    records = [placed(topic_id, 0, ELSEWHERE)] if change == "moved" else [new_record("RemoveTopicRecord", topic_id=topic_id)]
    if change == "made again":
        replicas = {"replicas": [HERE], "isr": [HERE], "directories": [NO_DIRECTORY]}
        records.append(new_record("TopicRecord", name="t", topic_id=OTHER_ID))
        records.append(
            new_record("PartitionRecord", partition_id=0, topic_id=OTHER_ID, leader=HERE, leader_epoch=0, **replicas)
        )
    real, apply = getattr(MetadataPublisher, step), MetadataPublisher.apply

    def changed(publisher: MetadataPublisher, now_ms: int, *done: Callable[[int], None]) -> None:
        monkeypatch.setattr(MetadataPublisher, step, real)
        publisher.apply(committed(records, publisher._metadata.offset + 1), now_ms)
        monkeypatch.setattr(MetadataPublisher, "apply", without_partitions)
        real(publisher, now_ms, *done)

    def without_partitions(publisher: MetadataPublisher, batch: MetadataBatch, now_ms: int) -> None:
        """The controller of this node does not know of the change."""
        apply(publisher, committed([one for one in batch.records if not hasattr(one, "topic_id")], batch.last_offset), now_ms)

    monkeypatch.setattr(MetadataPublisher, step, changed)
    node = WholeNode(tmp_path / "data", *SETTINGS)
    monkeypatch.undo()
    node.advance(1000)
    assert directories(node) == {"moved": ["t-1"], "deleted": [], "made again": ["t-0"]}[change]
    if change == "moved":
        move(node, "t", 0, HERE)
    if change != "deleted":
        assert only(node.produce("t", 0, batch(b"new"))).base_offset == 0


def test_a_partition_that_changes_before_its_log_is_made_is_hosted_once(
    node: WholeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was hosted twice: a coordinator that had the first one would lead on when the second one has stopped."""
    manager = node.broker.replica_manager
    made: list[Partition] = []
    real = manager.create_partition

    def create(*args: Any, **named: Any) -> Partition:
        made.append(real(*args, **named))
        return made[-1]

    monkeypatch.setattr(manager, "create_partition", create)
    move(node, "t", 0, ELSEWHERE)
    topic_id, publisher = node.broker.image.topic_ids["t"], node.broker.publisher
    with monkeypatch.context() as patched:
        patched.setattr(publisher, "_begin_work", lambda now_ms: None)
        node.publish([placed(topic_id, 0, HERE)])
    move(node, "t", 0, HERE)
    assert [partition.key for partition in made] == [("t", 0)]


def test_a_produce_whose_flush_ends_after_the_move_is_not_acknowledged(tmp_path: Path) -> None:
    """With flush.messages the records wait for the device, and the partition moves away and back before that."""
    node = WholeNode(tmp_path / "data", *SETTINGS)
    node.create_topic("t", 2, **{"flush.messages": "1"})
    node.holds_flushes = True
    produce = node.produce("t", 0, batch(b"a"), acks=-1)
    assert produce.answer is None
    move(node, "t", 0, ELSEWHERE)
    move(node, "t", 0, HERE)
    node.holds_flushes = False
    node.release_flushes()
    assert only(produce).error_code == error_codes.NOT_LEADER_OR_FOLLOWER
