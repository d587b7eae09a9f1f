"""Protects a partition that is reassigned to other brokers: its old leader stops at once, and deletes its log.

Records that it still acknowledged would be lost: the new leader does not have them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, FIND_COORDINATOR, HEARTBEAT
from kcli.protocol.message import Message
from kcli.state.image_records import new_record
from tests.server.whole_node import Pending, WholeNode, batch

HERE, ELSEWHERE = 1, 2


@pytest.fixture
def node(tmp_path: Path) -> WholeNode:
    made = WholeNode(tmp_path / "data", "node.id=1", "log.segment.delete.delay.ms=500", "offsets.topic.num.partitions=1")
    made.create_topic("t", 2)
    return made


def move(node: WholeNode, topic: str, index: int, replica: int) -> None:
    """Commit that a partition has one replica, which leads."""
    topic_id = node.broker.image.topic_ids[topic]
    record = new_record(
        "PartitionChangeRecord",
        topic_id=topic_id,
        partition_id=index,
        replicas=[replica],
        isr=[replica],
        leader=replica,
        directories=[Uuid(bytes(15) + b"\1") if replica == ELSEWHERE else Uuid(bytes(16))],
    )
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
    partition = node.broker.replica_manager.partition("t", 0)
    assert partition is not None
    partition.isr = [HERE, ELSEWHERE]  # the produce waits for the other replica
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
