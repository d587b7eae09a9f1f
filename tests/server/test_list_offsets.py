"""Protects lookups by time as clients ask for them: they do not hold the loop, and their answers are true at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.format.codec_streams import ZSTD
from kcli.format.compression import deflate
from kcli.format.records import Record, encode_records
from kcli.log.log_segment import LogSegment
from kcli.log.reading.segment_reader import SegmentReader
from kcli.protocol import apis, error_codes
from kcli.protocol.apis import API_KEYS
from kcli.server.apis import offsets
from tests.server.apis.asking import struct
from tests.server.whole_node import START_MS, Pending, WholeNode, batch

LARGEST = -3


@pytest.fixture
def node(tmp_path: Path) -> WholeNode:
    made = WholeNode(tmp_path / "data")
    made.create_topic("t", 2)
    return made


def compressed(size: int, timestamp: int = START_MS) -> bytes:
    """A small batch whose one record has so many bytes."""
    records = deflate(ZSTD, encode_records([Record(0, 0, None, bytes(size))]))
    return batch(b"x", attributes=ZSTD, records=records, timestamp=timestamp)


def list_offsets_of(node: WholeNode, *timestamps: int, index: int = 0, isolation_level: int = 0) -> Pending:
    """Ask for times, of one partition after the other."""
    wanted = [
        struct(apis.LIST_OFFSETS, "ListOffsetsPartition", partition_index=at, timestamp=timestamp)
        for at, timestamp in enumerate(timestamps, index)
    ]
    topic = struct(apis.LIST_OFFSETS, "ListOffsetsTopic", name="t", partitions=wanted)
    request = API_KEYS[apis.LIST_OFFSETS].request.new(replica_id=-1, isolation_level=isolation_level, topics=[topic])
    return node.send(apis.LIST_OFFSETS, 11, request)


def offsets_of(pending: Pending) -> list[tuple[int, int, int]]:
    (topic,) = pending.result().topics
    return [(answer.error_code, answer.timestamp, answer.offset) for answer in topic.partitions]


@pytest.mark.parametrize("timestamp", [START_MS, LARGEST])
def test_a_batch_is_not_inflated_on_the_loop(node: WholeNode, timestamp: int) -> None:
    """It is searched beside the loop, others are served meanwhile, and the request's partitions keep their order."""
    for index in (0, 1):
        node.produce("t", index, compressed(1_500_000))
    node.holds_flushes = True
    pending = list_offsets_of(node, timestamp, timestamp)
    assert pending.answer is None and len(node.computing) == 1, "one at a time"
    assert offsets_of(list_offsets_of(node, -1)) == [(0, -1, 1)]
    node.release_computations()
    assert offsets_of(pending) == [(0, START_MS, 0)] * 2


def test_a_small_batch_is_read_at_once(node: WholeNode) -> None:
    node.produce("t", 0, batch(b"a", b"b"))
    node.holds_flushes = True
    assert offsets_of(list_offsets_of(node, START_MS)) == [(0, START_MS, 0)]
    assert offsets_of(list_offsets_of(node, START_MS + 1)) == [(0, -1, -1)]


def test_the_preallocated_time_index_is_not_read_whole(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """10 MB of the active segment's, nearly all of it zeros, took 10 ms for each partition."""
    node.produce("t", 0, batch(b"a"))
    list_offsets_of(node, START_MS)
    monkeypatch.setattr(LogSegment, "read_time_index", lambda *arguments: pytest.fail("the index was read whole"))
    node.produce("t", 0, batch(bytes(5000), timestamp=START_MS + 7))
    assert offsets_of(list_offsets_of(node, START_MS + 1)) == [(0, START_MS + 7, 1)]
    assert offsets_of(list_offsets_of(node, START_MS)) == [(0, START_MS, 0)]


def test_a_long_row_of_batches_is_not_searched_on_the_loop(node: WholeNode) -> None:
    """Where timestamps fall, the time index leads to the segment's first batch, and all behind it may have to be read."""
    node.produce("t", 0, batch(b"x", timestamp=START_MS))
    for _ in range(20):
        node.produce("t", 0, batch(bytes(5000), timestamp=START_MS - 1000))
    node.produce("t", 0, batch(b"x", timestamp=START_MS + 2))
    node.holds_flushes = True
    pending = list_offsets_of(node, START_MS + 1)
    assert pending.answer is None
    node.release_computations()
    assert offsets_of(pending) == [(0, START_MS + 2, 21)]


def test_a_segment_may_go_while_it_is_searched(node: WholeNode) -> None:
    """What was deleted meanwhile is not found and is no fault of the disk: the search begins anew."""
    node.create_topic("u", 1)
    node.produce("t", 0, compressed(1_500_000))
    log = node.broker.replica_manager.partition("t", 0).log  # type: ignore[union-attr]
    log.roll(node.now_ms)
    node.produce("t", 0, compressed(1_500_000, START_MS + 5))
    node.holds_flushes = True
    pending = list_offsets_of(node, START_MS)
    log.maybe_increment_log_start_offset(1)
    log.delete_old_segments(node.now_ms)
    assert log.segment_count == 1
    node.release_computations()
    assert offsets_of(pending) == [(0, START_MS + 5, 1)]
    assert node.broker.log_manager.is_live(log)


def test_segments_below_the_log_start_hide_nothing(node: WholeNode) -> None:
    """DeleteRecords leaves their files to retention; they have later timestamps than what may be read."""
    node.produce("t", 0, batch(b"a", timestamp=START_MS + 9))
    log = node.broker.replica_manager.partition("t", 0).log  # type: ignore[union-attr]
    log.roll(node.now_ms)
    node.produce("t", 0, batch(b"b", timestamp=START_MS + 5))
    log.maybe_increment_log_start_offset(1)
    assert offsets_of(list_offsets_of(node, START_MS)) == [(0, START_MS + 5, 1)]


def test_the_log_start_may_rise_above_what_was_found(node: WholeNode) -> None:
    for _ in range(2):
        node.produce("t", 0, compressed(1_500_000))
    node.holds_flushes = True
    pending = list_offsets_of(node, START_MS)
    node.broker.replica_manager.partition("t", 0).log.maybe_increment_log_start_offset(1)  # type: ignore[union-attr]
    node.release_computations()
    assert offsets_of(pending) == [(0, START_MS, 1)]


def test_a_topic_may_go_while_it_is_searched(node: WholeNode) -> None:
    node.produce("t", 0, compressed(1_500_000))
    node.holds_flushes = True
    pending = list_offsets_of(node, START_MS)
    del node.broker.replica_manager.partitions["t", 0]
    node.release_computations()
    assert offsets_of(pending)[0][0] == error_codes.NOT_LEADER_OR_FOLLOWER


def test_a_fault_in_a_search_ends_the_request_only(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.produce("t", 0, compressed(1_500_000))
    node.holds_flushes = True
    pending = list_offsets_of(node, START_MS)
    monkeypatch.setattr(SegmentReader, "batches", lambda *arguments, **options: 1 / 0)
    node.release_computations()
    with pytest.raises(Exception, match="caused a fault"):
        pending.result()
    assert any("a fault of kcli" in line for line in node.lines)


def test_a_disk_that_fails_takes_the_directory_offline(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.produce("t", 0, compressed(1_500_000))
    node.holds_flushes = True
    pending = list_offsets_of(node, START_MS)
    monkeypatch.setattr(offsets.SegmentScan, "run", lambda *arguments: (_ for _ in ()).throw(OSError(5, "broken")))
    failed: list[OSError] = []
    monkeypatch.setattr(node.broker.replica_manager, "handle_log_dir_failure", lambda partition, error: failed.append(error))
    node.release_computations()
    assert offsets_of(pending)[0][0] == error_codes.KAFKA_STORAGE_ERROR
    assert [error.strerror for error in failed] == ["broken"]
