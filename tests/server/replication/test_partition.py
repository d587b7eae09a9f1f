"""Protects the high watermark of a partition whose topic wants flushes: no client sees what a power loss can remove."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.log.unified_log import UnifiedLog
from kcli.protocol import apis, error_codes
from kcli.protocol.apis import API_KEYS
from kcli.server.replication.partition import Partition
from tests.server.apis.asking import struct
from tests.server.test_produce import only
from tests.server.whole_node import WholeNode, batch, partitions_of


@pytest.fixture
def node(tmp_path: Path) -> WholeNode:
    made = WholeNode(tmp_path / "data")
    made.create_topic("flushed", 1, flush_messages="1")
    made.create_topic("third", 1, flush_messages="3")
    return made


def hosted(node: WholeNode, topic: str) -> tuple[Partition, UnifiedLog]:
    partition = node.broker.replica_manager.partition(topic, 0)
    assert partition is not None and partition.log is not None
    return partition, partition.log


def listed(node: WholeNode, timestamp: int, version: int = 11) -> int:
    """The offset that a client gets for a time, or the code of the error, of which none is below 2."""
    wanted = struct(apis.LIST_OFFSETS, "ListOffsetsPartition", partition_index=0, timestamp=timestamp)
    topic = struct(apis.LIST_OFFSETS, "ListOffsetsTopic", name="flushed", partitions=[wanted])
    request = API_KEYS[apis.LIST_OFFSETS].request.new(replica_id=-1, topics=[topic])
    answer = node.send(apis.LIST_OFFSETS, version, request).result().topics[0].partitions[0]
    return answer.error_code or answer.offset  # type: ignore[no-any-return]


def end_one_flush(node: WholeNode, log: UnifiedLog) -> None:
    """End the flush of a log that runs; those that it leads to are held."""
    flushed = log.recovery_point
    while log.recovery_point == flushed:
        assert node.held
        node.release_flushes()


def test_records_are_not_seen_before_they_are_durable(node: WholeNode) -> None:
    node.holds_flushes = True
    pending = node.produce("flushed", 0, batch(b"a"))
    waiting = node.fetch({("flushed", 0): 0}, max_wait_ms=60_000)
    node.advance(100)
    assert pending.answer is None and waiting.answer is None
    assert hosted(node, "flushed")[1].high_watermark == 0
    node.holds_flushes = False
    node.release_flushes()
    assert only(pending).error_code == 0
    answer = partitions_of(waiting.result())["flushed", 0]
    assert answer.high_watermark == 1 and answer.records


def test_one_flush_serves_all_records_that_wait_for_it(node: WholeNode) -> None:
    node.holds_flushes = True
    first = node.produce("flushed", 0, batch(b"a"))
    later = [node.produce("flushed", 0, batch(b"b"), acks=acks) for acks in (1, -1)]
    log = hosted(node, "flushed")[1]
    assert len(node.held) == 1
    end_one_flush(node, log)
    assert only(first).error_code == 0 and [pending.answer for pending in later] == [None, None]
    assert log.high_watermark == 1
    assert len(node.held) == 1, "what was appended while the flush ran is flushed next"
    end_one_flush(node, log)
    assert [only(pending).base_offset for pending in later] == [1, 2]
    assert not node.held and log.high_watermark == 3


def test_every_third_record_is_flushed(node: WholeNode) -> None:
    """As Kafka counts flush.messages: the records before the third are committed without a flush."""
    node.holds_flushes = True
    log = hosted(node, "third")[1]
    answers = [node.produce("third", 0, batch(b"a"), acks=1) for _ in range(2)]
    assert [only(pending).base_offset for pending in answers] == [0, 1]
    assert not node.held and log.high_watermark == 2
    third = node.produce("third", 0, batch(b"a"), acks=1)
    assert third.answer is None and log.high_watermark == 2
    end_one_flush(node, log)
    assert only(third).base_offset == 2 and log.high_watermark == 3


def test_records_that_a_crash_left_unflushed_are_flushed_at_the_start(node: WholeNode, tmp_path: Path) -> None:
    """They may be lost with the power until then, so that they are not shown until then."""
    node.holds_flushes = True
    node.produce("flushed", 0, batch(b"a"), acks=1)
    again = WholeNode(tmp_path / "data", is_awaited=False)
    again.holds_flushes = True
    seen = []
    for _ in range(1_000):
        partition = again.broker.replica_manager.partition("flushed", 0)
        if partition is not None and partition.is_leader and partition.log is not None:
            seen.append(partition.log.high_watermark)
            break
        again.release_flushes()
        again.advance(10)
    assert seen == [0]
    # The end for clients is not known, since they may have seen more (KIP-207); the begin is.
    unknown = error_codes.OFFSET_NOT_AVAILABLE
    assert [listed(again, timestamp) for timestamp in (-1, -2, -3, 0)] == [unknown, 0, unknown, unknown]
    assert listed(again, -1, version=4) == error_codes.LEADER_NOT_AVAILABLE
    again.holds_flushes = False
    again.release_flushes()
    assert hosted(again, "flushed")[1].high_watermark == 1
    assert [listed(again, timestamp) for timestamp in (-1, -2, -3, 0)] == [1, 0, 0, 0]
    assert listed(again, 2**60) == -1


def test_a_log_that_goes_during_its_flush_fails_what_waits(node: WholeNode) -> None:
    node.holds_flushes = True
    pending = node.produce("flushed", 0, batch(b"a"), acks=1)
    partition, _ = hosted(node, "flushed")
    node.holds_flushes = False
    node.delete_topic("flushed")  # the metadata is flushed, the log is still not
    assert partition.log is None
    node.release_flushes(FileNotFoundError(2, "No such file or directory"))
    # The client has to ask for the metadata anew, in which the topic is gone; the disk is not at fault.
    assert only(pending).error_code == error_codes.NOT_LEADER_OR_FOLLOWER
    seen: list[OSError | None] = []
    partition.when_flushed(2, lambda error, now_ms: seen.append(error), node.now_ms)
    assert isinstance(seen[0], FileNotFoundError)
