"""Protects a node whose wall clock is set by an hour: what waits does not notice, records and their retention follow it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.protocol import apis
from kcli.protocol.apis import API_KEYS
from tests.server.whole_node import START_MS, WholeNode, batch

HOUR_MS = 3_600_000
STEPS = [-HOUR_MS, HOUR_MS]


@pytest.mark.parametrize("step_ms", STEPS)
def test_no_session_ends_and_no_timer_is_stuck(tmp_path: Path, step_ms: int) -> None:
    """The broker's heartbeats go on, the controller fences nobody, a fetch waits its time, and a stop is in order."""
    node = WholeNode(tmp_path / "data")
    node.create_topic("t", 1)
    waiting = node.fetch({("t", 0): 0}, max_wait_ms=300)
    node.wall.off_ms = step_ms
    node.advance(299)
    assert waiting.answer is None
    node.advance(1)
    assert waiting.answer is not None
    controller = node.node.controller.controller  # type: ignore[attr-defined]
    for _ in range(60):
        node.advance(1000)
        assert node.now_ms - controller.state.sessions[1].last_heartbeat_ms <= 3000
    assert controller.metrics.timed_out_heartbeats == 0
    assert not node.broker.image.brokers[1].is_fenced
    node.create_topic("u", 1)
    node.stop()


@pytest.mark.parametrize("step_ms", STEPS)
def test_records_have_the_time_on_the_wall(tmp_path: Path, step_ms: int) -> None:
    """LogAppendTime, the limit for clients that are ahead, and the batches of the metadata log."""
    node = WholeNode(tmp_path / "data")
    node.create_topic("t", 1, message_timestamp_type="LogAppendTime")
    node.create_topic("limited", 1, message_timestamp_after_max_ms="1000", message_timestamp_before_max_ms="1000")
    node.wall.off_ms = step_ms
    (topic,) = node.produce("t", 0, batch(b"a")).result().responses
    assert topic.partition_responses[0].log_append_time_ms == node.now_ms + step_ms
    for timestamp, code in ((node.now_ms, 32), (node.now_ms + step_ms, 0)):
        (topic,) = node.produce("limited", 0, batch(b"a", timestamp=timestamp)).result().responses
        assert topic.partition_responses[0].error_code == code
    node.create_topic("u", 1)
    assert node.node.controller.raft.metrics.delivered_timestamp_ms >= START_MS + step_ms  # type: ignore[attr-defined]
    assert abs(node.node.controller.raft.metrics.delivered_timestamp_ms - node.now_ms - step_ms) < 10_000  # type: ignore[attr-defined]


def test_retention_follows_the_wall_clock(tmp_path: Path) -> None:
    """By the time of records: an hour ahead they are too old at once, an hour back they stay."""
    settings = ("log.retention.ms=1800000", "log.retention.check.interval.ms=1000", "log.initial.task.delay.ms=0")
    node = WholeNode(tmp_path / "data", *settings)
    node.create_topic("t", 1)
    node.produce("t", 0, batch(b"a", timestamp=node.now_ms))
    log = node.broker.replica_manager.partition("t", 0).log  # type: ignore[union-attr]
    node.wall.off_ms = -HOUR_MS
    node.advance(HOUR_MS)
    assert log.log_start_offset == 0
    node.wall.off_ms = HOUR_MS
    node.advance(2000)
    assert log.log_start_offset == 1


@pytest.mark.parametrize("step_ms", STEPS)
def test_flush_ms_is_counted_by_the_nodes_time(tmp_path: Path, step_ms: int) -> None:
    """From the open of the log on, however the wall clock was off then."""
    node = WholeNode(tmp_path / "data", "log.flush.scheduler.interval.ms=100", "log.initial.task.delay.ms=0")
    node.wall.off_ms = step_ms
    node.create_topic("t", 1, flush_ms="5000")
    node.produce("t", 0, batch(b"a", timestamp=node.now_ms + step_ms))
    log = node.broker.replica_manager.partition("t", 0).log  # type: ignore[union-attr]
    node.advance(4000)
    assert log.recovery_point == 0
    node.advance(1500)
    assert log.recovery_point == 1


def test_a_quorum_is_described_by_the_wall_clock(tmp_path: Path) -> None:
    node = WholeNode(tmp_path / "data")
    node.wall.off_ms = HOUR_MS
    part = API_KEYS[apis.DESCRIBE_QUORUM].request.classes["PartitionData"](partition_index=0)
    topic = API_KEYS[apis.DESCRIBE_QUORUM].request.classes["TopicData"](topic_name="__cluster_metadata", partitions=[part])
    pending = node.send(apis.DESCRIBE_QUORUM, 2, API_KEYS[apis.DESCRIBE_QUORUM].request.new(topics=[topic]))
    node.until(lambda: pending.answer is not None)
    (voter,) = pending.result().topics[0].partitions[0].current_voters
    assert abs(voter.last_caught_up_timestamp - node.now_ms - HOUR_MS) <= 10
