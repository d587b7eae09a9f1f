"""Protects the controller's image when it loses its leadership: what it appended and nobody committed is gone from it, what the
next leader writes is applied to the committed image, and a snapshot never has a record that is not committed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.protocol.apis import API_KEYS, CREATE_TOPICS, INCREMENTAL_ALTER_CONFIGS
from kcli.protocol.control_records import SNAPSHOT_FOOTER, ControlRecord
from kcli.protocol.message import Message
from kcli.server.events import Flush, Flushed
from kcli.server.raft.messages import SnapshotId
from kcli.server.raft.metadata_batches import MetadataBatch, new_record
from kcli.state.image_records import image_records
from kcli.state.metadata_image import MetadataImage
from kcli.state.state_error import StateError
from tests.server.controller.controllers import ControllerNode
from tests.server.controller.test_snapshots import state_of
from tests.server.raft.nodes import formatted

TOPIC = Uuid(b"another leader's")


def create_topics(*names: str) -> Message:
    request = API_KEYS[CREATE_TOPICS].request
    return request.new(
        topics=[request.classes["CreatableTopic"](name=name, num_partitions=2, replication_factor=1) for name in names]
    )


def broker_default(key: str, value: str) -> Message:
    request = API_KEYS[INCREMENTAL_ALTER_CONFIGS].request
    config = request.classes["AlterableConfig"](name=key, config_operation=0, value=value)
    resource = request.classes["AlterConfigsResource"](resource_type=4, resource_name="", configs=[config])
    return request.new(resources=[resource])


def resign(node: ControllerNode) -> None:
    node.core.raft.storage_failed(OSError(5, "Input/output error"), node.now_ms)
    assert not node.core.controller.is_active


def committed(offset: int, *records: Message) -> MetadataBatch:
    return MetadataBatch(offset, offset + len(records) - 1, 99, 0, list(records), [])


def test_a_topic_that_is_not_committed_is_gone_after_a_resignation(node: ControllerNode) -> None:
    """So are its partitions and configurations; the next leader's topic of the same name takes its place."""
    assert node.create_topic("kept", 3).error_code == 0
    before = state_of(node.core.state.image)
    retention_ms = node.core.state.setting("log.retention.ms")
    end_offset = node.core.raft.next_offset
    answers = node.send(CREATE_TOPICS, create_topics("lost"))
    node.send(INCREMENTAL_ALTER_CONFIGS, broker_default("log.retention.ms", "1234"))
    assert node.core.state.image.topic("lost") is not None, "the next decision is based on it"
    assert node.core.state.setting("log.retention.ms") == "1234"
    assert not answers
    resign(node)
    assert state_of(node.core.state.image) == before == state_of(node.broker.image)
    assert node.core.state.setting("log.retention.ms") == retention_ms
    assert len(answers) == 1, "NOT_CONTROLLER"
    partition = {"topic_id": TOPIC, "partition_id": 0, "replicas": [1], "isr": [1], "leader": 1}
    records = new_record("TopicRecord", name="lost", topic_id=TOPIC), new_record("PartitionRecord", **partition)
    node.core.controller.on_commit(committed(end_offset, *records), node.now_ms)
    topic = node.core.state.image.topic("lost")
    assert topic is not None and (topic.topic_id, list(topic.partitions)) == (TOPIC, [0])
    assert len(node.core.state.image.topics) == 2


def test_a_broker_that_is_not_registered_yet_has_no_registration_offset(node: ControllerNode) -> None:
    """A registration that is reverted leaves the offset of the one before it."""
    offsets = dict(node.core.state.image.registration_offsets)
    flush, node.run = node.run, lambda for_ms=0: None  # type: ignore[method-assign, misc]
    for broker_id in (1, 2):
        with pytest.raises(AssertionError):  # there is no answer yet
            node.register(broker_id, 1)
    assert node.core.state.image.registration_offsets.keys() == {1, 2}
    assert node.core.state.image.registration_offsets[1] > offsets[1]
    resign(node)
    assert node.core.state.image.registration_offsets == offsets
    node.run = flush  # type: ignore[method-assign]


def test_a_topic_is_made_once(node: ControllerNode) -> None:
    """A second record of a topic's name or id does not fit (Kafka: testDuplicateTopicIdReplay)."""
    assert node.create_topic("orders").error_code == 0
    image = node.core.state.image
    made = image.topic_ids["orders"]
    for name, topic_id in (("orders", TOPIC), ("another", made)):
        with pytest.raises(StateError, match="exists already"):
            image.apply_at(new_record("TopicRecord", name=name, topic_id=topic_id), 99)
    assert list(image.topics[made].partitions) == [0]


def test_a_snapshot_has_only_what_is_committed(tmp_path: Path) -> None:
    """It begins at a commit although the controller has appended and applied more by then."""
    node = ControllerNode(formatted(tmp_path / "data"), "metadata.log.max.record.bytes.between.snapshots=4000")
    node.start_with_broker()
    log, seen = node.core.raft.log, len(node.core.raft.log.snapshots)
    for index in range(100):
        node.send(CREATE_TOPICS, create_topics(f"topic-{index}"))
        if index % 2:
            complete_one_flush(node)
        if node.core.raft.log.snapshots[seen:]:
            break
    assert log.end_offset > node.core.raft.high_watermark, "something is always uncommitted"
    snapshot = log.snapshots[-1]
    assert snapshot.end_offset <= node.core.raft.high_watermark
    image, expected = MetadataImage(), MetadataImage()
    for batch in log.snapshot_batches(snapshot):
        for record in batch.records:
            image.apply(record)
    for batch in log.batches(0, snapshot.end_offset):
        for record in batch.records:
            expected.apply(record)
    assert contents(image) == contents(expected)
    node.run()
    node.stop()


def contents(image: MetadataImage) -> dict[str, Any]:
    return {name: getattr(image, name) for name in ("topics", "topic_ids", "brokers", "configs", "features")}


def complete_one_flush(node: ControllerNode) -> None:
    """Let the oldest flush be done, and time slices run, while another topic is asked for."""
    waiting, node.effects[:] = node.effects[1:], node.effects[:1]
    node.send(CREATE_TOPICS, create_topics(f"behind-{node.core.raft.next_offset}"))
    effect, *others = node.effects
    node.effects[:] = waiting + others
    assert isinstance(effect, Flush)
    for path in effect.paths:
        node.disk.flush(path)

    node.flushes.flushed(Flushed(effect.flush_id), node.now_ms)
    for _ in range(10):
        node.timer.advance(node.now_ms)


def test_a_running_controller_loads_a_snapshot(node: ControllerNode) -> None:
    """As a follower that lags behind the leader's log does: nothing of its own image is left, and what follows is applied."""
    node.create_topic("old")
    other = MetadataImage()
    other.apply(new_record("TopicRecord", name="new", topic_id=TOPIC))
    resign(node)
    listener, snapshot = node.core.controller, SnapshotId(500, 99)
    listener.on_snapshot(snapshot, node.now_ms)
    for record in image_records(other):
        listener.on_commit(MetadataBatch(499, 499, 99, 0, [record], []), node.now_ms)
    footer = ControlRecord(SNAPSHOT_FOOTER, "", None)
    listener.on_commit(MetadataBatch(499, 499, 99, 0, [], [footer]), node.now_ms)
    assert list(node.core.state.image.topic_ids) == ["new"]
    assert node.core.state.image.brokers == {}
    listener.on_commit(committed(500, new_record("RemoveTopicRecord", topic_id=TOPIC)), node.now_ms)
    assert node.core.state.image.topics == {}
