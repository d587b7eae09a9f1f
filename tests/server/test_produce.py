"""Protects Produce: what counts as done for each acks, what waits for the disk, and that each partition has its own error."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from kcli.format.codec_streams import LZ4, ZSTD
from kcli.format.compression import deflate
from kcli.format.record_batch import TRANSACTIONAL_FLAG
from kcli.format.records import Record, encode_records
from kcli.log.unified_log import UnifiedLog
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, PRODUCE
from kcli.protocol.framing import encode_request
from kcli.protocol.message import Message
from kcli.server.apis import produce
from kcli.server.events import Computed
from tests.server.whole_node import NOTHING, START_MS, Closed, Pending, WholeNode, batch, partitions_of, produce_request


@pytest.fixture
def node(tmp_path: Path) -> WholeNode:
    made = WholeNode(tmp_path / "data")
    made.create_topic("t", 2)
    return made


def only(pending: Pending) -> Message:
    """The one partition of an answer."""
    (topic,) = pending.result().responses
    (answer,) = topic.partition_responses
    return answer


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", range(3, 14))
def test_records_are_appended_and_told(node: WholeNode, version: int, acks: int) -> None:
    first = only(node.produce("t", 0, batch(b"a", b"b"), version=version, acks=acks))
    second = only(node.produce("t", 0, batch(b"c"), version=version, acks=acks))
    assert (first.error_code, first.base_offset, second.base_offset) == (0, 0, 2)
    assert first.log_append_time_ms == -1
    assert second.log_start_offset == (0 if version >= 5 else -1)
    partition = node.broker.replica_manager.partition("t", 0)
    assert partition is not None and partition.log is not None
    assert partition.log.high_watermark == partition.log.log_end_offset == 3


def test_acks_0_gets_no_answer_and_lets_the_next_request_in(node: WholeNode) -> None:
    assert node.produce("t", 0, batch(b"a"), acks=0).answer is NOTHING
    assert only(node.produce("t", 0, batch(b"b"))).base_offset == 1


def test_acks_0_learns_of_an_error_by_the_end_of_its_connection(node: WholeNode) -> None:
    with pytest.raises(Closed, match="UNKNOWN_TOPIC_OR_PARTITION"):
        node.produce("nobody", 0, batch(b"a"), acks=0).result()


@pytest.mark.parametrize("acks", [2, -2, 100])
def test_other_acks_are_refused_and_nothing_is_written(node: WholeNode, acks: int) -> None:
    assert only(node.produce("t", 0, batch(b"a"), acks=acks)).error_code == error_codes.INVALID_REQUIRED_ACKS
    assert only(node.produce("t", 0, batch(b"a"))).base_offset == 0


def test_each_partition_has_its_own_error(node: WholeNode) -> None:
    damaged = bytearray(batch(b"a"))
    damaged[-1] ^= 1
    node.create_topic("small", 1, max_message_bytes="100")
    pending = node.produce_all(
        {
            ("t", 0): batch(b"good"),
            ("t", 1): bytes(damaged),
            ("t", 2): batch(b"x"),
            ("nobody", 0): batch(b"x"),
            ("small", 0): batch(b"x" * 200),
        }
    )
    codes = {
        (topic.name, answer.index): answer.error_code
        for topic in pending.result().responses
        for answer in topic.partition_responses
    }
    assert codes == {
        ("t", 0): 0,
        ("t", 1): error_codes.CORRUPT_MESSAGE,
        ("t", 2): error_codes.UNKNOWN_TOPIC_OR_PARTITION,
        ("nobody", 0): error_codes.UNKNOWN_TOPIC_OR_PARTITION,
        ("small", 0): error_codes.MESSAGE_TOO_LARGE,
    }
    assert "nobody" not in node.broker.metrics.topics


@pytest.mark.parametrize("records", [None, b"", b"\0" * 10, batch(b"a") + batch(b"b"), batch(b"a")[:-1]])
def test_what_is_not_one_whole_batch_is_refused(node: WholeNode, records: bytes | None) -> None:
    assert only(node.produce("t", 0, records)).error_code in (error_codes.INVALID_RECORD, error_codes.CORRUPT_MESSAGE)
    assert only(node.produce("t", 0, batch(b"a"))).base_offset == 0


def test_the_log_start_of_a_refused_batch_is_known_where_kafka_has_looked_for_the_log(node: WholeNode) -> None:
    """What is not one batch of magic 2 is refused before that: -1."""
    for records in (b"", batch(b"a") + batch(b"b"), batch(b"a")[:-1], batch(b"a")[:16] + b"\1" + batch(b"a")[17:]):
        answer = only(node.produce("t", 0, records))
        assert (answer.error_code, answer.log_start_offset) == (error_codes.INVALID_RECORD, -1)
    answer = only(node.produce("t", 0, batch(b"a", producer_id=7, producer_epoch=0, base_sequence=-1)))
    assert (answer.error_code, answer.log_start_offset) == (error_codes.INVALID_RECORD, 0)


def test_records_that_lie_name_themselves(node: WholeNode) -> None:
    """KIP-467: which record of the batch is wrong, and how."""
    node.create_topic("compacted", 1, cleanup_policy="compact")
    answer = only(node.produce("compacted", 0, batch(b"no", b"key")))
    assert answer.error_code == error_codes.INVALID_RECORD
    assert [error.batch_index for error in answer.record_errors] == [0, 1]
    assert all(error.batch_index_error_message for error in answer.record_errors)


def test_an_unknown_topic_id_is_told(node: WholeNode) -> None:
    assert only(node.produce("nobody", 0, batch(b"a"), version=13)).error_code == error_codes.UNKNOWN_TOPIC_ID


def test_zstd_is_refused_to_who_cannot_know_it(node: WholeNode) -> None:
    refused = only(node.produce("t", 0, batch(b"a", attributes=ZSTD), version=6))
    assert refused.error_code == error_codes.UNSUPPORTED_COMPRESSION_TYPE


def test_log_append_time_is_told(node: WholeNode) -> None:
    node.create_topic("stamped", 1, message_timestamp_type="LogAppendTime")
    node.advance(5000)
    assert only(node.produce("stamped", 0, batch(b"a", timestamp=START_MS))).log_append_time_ms == node.now_ms


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_an_answer_waits_for_the_disk_where_the_topic_wants_it(node: WholeNode, acks: int) -> None:
    """Whatever the request's timeout is: an answer says that the disk has it."""
    node.create_topic("flushed", 1, flush_messages="1")
    node.holds_flushes = True
    pending = node.produce("flushed", 0, batch(b"a"), acks=acks, timeout_ms=10)
    node.advance(60_000)
    assert pending.answer is None
    node.holds_flushes = False
    node.release_flushes()
    if acks:
        assert only(pending).error_code == 0
    else:
        assert pending.answer is NOTHING


def test_a_repeated_batch_waits_for_the_flush_of_the_first(node: WholeNode) -> None:
    node.create_topic("flushed", 1, flush_messages="1")
    node.holds_flushes = True
    sent = batch(b"a", producer_id=5, producer_epoch=0, base_sequence=0)
    first, again = node.produce("flushed", 0, sent), node.produce("flushed", 0, sent)
    assert first.answer is None and again.answer is None
    node.holds_flushes = False
    node.release_flushes()
    assert (only(first).base_offset, only(again).base_offset, only(again).error_code) == (0, 0, 0)


def test_a_disk_that_cannot_flush_is_told_and_ends_its_directory(tmp_path: Path) -> None:
    node = WholeNode(tmp_path / "a", f"log.dirs={tmp_path / 'a'},{tmp_path / 'b'}", f"metadata.log.dir={tmp_path / 'm'}")
    node.create_topic("flushed", 2, flush_messages="1")
    homes = {}
    for index in (0, 1):
        partition = node.broker.replica_manager.partition("flushed", index)
        assert partition is not None and partition.log is not None
        homes[index] = Path(partition.log.directory).parent.name
    assert set(homes.values()) == {"a", "b"}
    node.holds_flushes = True
    pending = node.produce("flushed", 0, batch(b"a"))
    node.release_flushes(OSError(errno.EIO, "Input/output error"))
    node.holds_flushes = False
    assert only(pending).error_code == error_codes.KAFKA_STORAGE_ERROR
    assert only(node.produce("flushed", 0, batch(b"a"))).error_code == error_codes.KAFKA_STORAGE_ERROR
    assert only(node.produce("flushed", 1, batch(b"a"))).error_code == 0
    assert any("offline" in line and f"/{homes[0]}" in line for line in node.lines)


@pytest.mark.parametrize("acks", [1, -1])
def test_a_disk_that_fails_for_a_fetch_within_the_append_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, acks: int
) -> None:
    """The append wakes a fetch whose read takes the directory offline; the other directory's partitions go on."""
    node = WholeNode(tmp_path / "a", f"log.dirs={tmp_path / 'a'},{tmp_path / 'b'}", f"metadata.log.dir={tmp_path / 'm'}")
    node.create_topic("t", 2)
    partition = node.broker.replica_manager.partition("t", 0)
    assert partition is not None and partition.log is not None
    waiting, bad, read = node.fetch({("t", 0): 0}, max_wait_ms=60_000), partition.log, UnifiedLog.read

    def fails(log: UnifiedLog, *args: Any, **kwargs: Any) -> Any:
        if log is bad:
            raise OSError(errno.EIO, "Input/output error")
        return read(log, *args, **kwargs)

    monkeypatch.setattr(UnifiedLog, "read", fails)
    assert only(node.produce("t", 0, batch(b"a"), acks=acks)).error_code == error_codes.KAFKA_STORAGE_ERROR
    assert partition.log is None
    assert partitions_of(waiting.result())["t", 0].error_code == error_codes.KAFKA_STORAGE_ERROR
    assert only(node.produce("t", 1, batch(b"a"), acks=acks)).error_code == 0


def test_a_fetch_learns_what_was_produced(node: WholeNode) -> None:
    waiting = node.fetch({("t", 0): 0, ("t", 1): 0}, max_wait_ms=500)
    assert waiting.answer is None
    node.produce("t", 1, batch(b"a"), acks=1)
    assert partitions_of(waiting.result())["t", 1].high_watermark == 1


def test_who_is_not_the_leader_says_so(node: WholeNode) -> None:
    partition = node.broker.replica_manager.partition("t", 0)
    assert partition is not None
    partition.is_leader = False
    assert only(node.produce("t", 0, batch(b"a"))).error_code == error_codes.NOT_LEADER_OR_FOLLOWER


def test_too_few_in_sync_replicas_refuse_acks_all_only(node: WholeNode) -> None:
    node.create_topic("careful", 1, min_insync_replicas="2")
    partition = node.broker.replica_manager.partition("careful", 0)
    assert partition is not None
    partition.replicas = [1, 2]
    assert only(node.produce("careful", 0, batch(b"a"))).error_code == error_codes.NOT_ENOUGH_REPLICAS
    assert only(node.produce("careful", 0, batch(b"a"), acks=1)).error_code == 0


def test_no_more_replicas_are_asked_for_than_there_are(node: WholeNode) -> None:
    """As in Kafka, where min.insync.replicas of all brokers must not close the topics that have one replica."""
    node.create_topic("single", 1, min_insync_replicas="2")
    assert only(node.produce("single", 0, batch(b"a"))).error_code == 0


def test_kafkas_own_topics_take_nothing_from_clients(node: WholeNode) -> None:
    """They are told so, whatever the acks; Kafka's admin tools may write."""
    node.create_topic("__consumer_offsets")
    for acks in (1, -1):
        refused = only(node.produce("__consumer_offsets", 0, batch(b"a"), acks=acks))
        assert (refused.error_code, refused.base_offset) == (error_codes.INVALID_TOPIC_EXCEPTION, -1)
    request = produce_request({("__consumer_offsets", 0): batch(b"a")}, -1)
    frame = encode_request(77, API_KEYS[PRODUCE], 12, produce.ADMIN_CLIENT_ID, request)
    assert only(node.send_frame(frame[4:], PRODUCE, 12)).base_offset == 0


def test_replicas_that_do_not_come_time_out(node: WholeNode) -> None:
    """With a second replica in sync the answer waits for the high watermark."""
    partition = node.broker.replica_manager.partition("t", 0)
    assert partition is not None and partition.log is not None
    node.replicate("t")
    late, done = node.produce("t", 0, batch(b"a"), timeout_ms=100), node.produce("t", 0, batch(b"b"), timeout_ms=300)
    node.advance(99)
    assert late.answer is None
    node.advance(1)
    assert only(late).error_code == error_codes.REQUEST_TIMED_OUT
    node.follow({("t", 0): 2}, 2)
    assert only(done).error_code == 0
    assert node.broker.replica_manager.produce_purgatory.size == 0


# ------------------------------------------------------------------------------------------- batches whose check takes long


def inflating(size: int, codec: int = ZSTD, **fields: object) -> bytes:
    """A small batch whose one record has so many bytes."""
    return batch(b"x", attributes=codec, records=deflate(codec, encode_records([Record(0, 0, None, bytes(size))])), **fields)


def test_a_batch_that_inflates_to_much_does_not_hold_the_others(node: WholeNode) -> None:
    """It is checked beside the loop; meanwhile others append, and its own request's other partitions have their records."""
    node.holds_flushes = True
    pending = node.produce_all({("t", 0): inflating(5_000_000), ("t", 1): batch(b"b")})
    assert pending.answer is None and len(node.computing) == 1
    assert only(node.produce("t", 0, batch(b"first"))).base_offset == 0
    node.release_computations()
    (topic,) = pending.result().responses
    assert [(answer.index, answer.error_code, answer.base_offset) for answer in topic.partition_responses] == [
        (0, 0, 1),
        (1, 0, 0),
    ]
    assert node.broker.metrics.topic("t").total_produce_requests == 3


def test_what_is_found_beside_the_loop_is_answered(node: WholeNode) -> None:
    """Bombs, lying counts, each partition its own error, one check after the other; acks=0 learns it by its connection."""
    node.holds_flushes = True
    lying = inflating(5_000_000, record_count=2, last_offset_delta=1)
    pending = node.produce_all({("t", 0): inflating(140_000_000), ("t", 1): lying})
    assert len(node.computing) == 1, "one at a time"
    node.release_computations()
    (topic,) = pending.result().responses
    assert [answer.error_code for answer in topic.partition_responses] == [
        error_codes.MESSAGE_TOO_LARGE,
        error_codes.INVALID_RECORD,
    ]
    silent = node.produce("t", 1, lying, acks=0)
    node.release_computations()
    with pytest.raises(Closed, match="INVALID_RECORD"):
        silent.result()


def test_batches_that_wait_for_a_check_count_as_memory_of_requests(node: WholeNode) -> None:
    """From the copy on until each is appended or refused, whichever way the check ends; also of those whose turn is later."""
    node.holds_flushes = True
    first, second = inflating(5_000_000), inflating(140_000_000)
    assert node.held_bytes == 0
    pending = node.produce_all({("t", 0): first, ("t", 1): second})
    assert node.held_bytes == len(first) + len(second)
    other = node.produce("t", 0, first)
    assert node.held_bytes == 2 * len(first) + len(second)
    while node.computing:
        effect = node.computing.pop(0)
        node.handle(Computed(effect.compute_id, effect.work()))
    assert pending.answer is not None and only(other).base_offset == 1
    assert node.held_bytes == 0


def test_a_partition_may_go_while_its_batch_is_checked(node: WholeNode) -> None:
    node.holds_flushes = True
    pending = node.produce("t", 1, inflating(5_000_000))
    partition = node.broker.replica_manager.partition("t", 1)
    assert partition is not None
    partition.is_leader = False
    node.release_computations()
    assert only(pending).error_code == error_codes.NOT_LEADER_OR_FOLLOWER


def test_a_check_that_ends_when_the_node_leaves_appends_nothing(tmp_path: Path) -> None:
    """The log is closed by then, and its directory says that it was closed in order; who leaves at once leads to the end."""
    node = WholeNode(tmp_path / "leaving", "controlled.shutdown.enable=false")
    node.create_topic("t", 2)
    node.holds_flushes = True
    node.produce("t", 1, inflating(5_000_000))
    log = node.broker.replica_manager.partition("t", 1).log  # type: ignore[union-attr]
    node.holds_flushes = False
    node.stop()
    node.release_computations()
    assert log.log_end_offset == 0 and (Path(log.directory) / f"{0:020}.log").stat().st_size == 0


def test_a_fault_in_a_check_is_told_and_ends_the_connection(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*arguments: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(produce, "check_carefully", check)
    with pytest.raises(Closed, match="caused a fault"):
        node.produce_all({("t", index): inflating(5_000_000) for index in (0, 1)}).result()
    assert node.held_bytes == 0
    assert any("a fault of kcli in serving Produce" in line for line in node.lines)
    assert only(node.produce("t", 0, batch(b"a"))).error_code == 0


@pytest.mark.parametrize("call", ["append_checked", "append_as_leader"])
def test_a_fault_in_an_append_ends_the_connection_and_frees_what_waits_for_a_check(
    node: WholeNode, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Be it in the first slice, with a batch that waits for its check, or after a check; the node goes on."""

    def fails(*arguments: object, **named: object) -> None:
        raise RuntimeError("a fault")

    batches: dict[tuple[str, int], bytes | None] = {("t", 0): inflating(5_000_000), ("t", 1): batch(b"b")}
    with monkeypatch.context() as patch:
        if call == "append_checked":
            patch.setattr("kcli.server.replication.partition.append_checked", fails)
        else:
            real = UnifiedLog.append_as_leader

            def fails_for_one(log: UnifiedLog, *arguments: Any, **named: Any) -> Any:
                return fails() if log.partition == 1 else real(log, *arguments, **named)

            patch.setattr(UnifiedLog, "append_as_leader", fails_for_one)
        with pytest.raises(Closed, match="caused a fault"):
            node.produce_all(batches).result()
    assert node.held_bytes == 0
    assert only(node.produce("t", 0, batch(b"a"))).error_code == 0


def test_records_in_several_lz4_frames_are_refused(node: WholeNode) -> None:
    """Kafka's Lz4BlockInputStream ends with the first frame: its consumers could not read the others."""
    records = [encode_records([Record(index, 0, None, b"v")]) for index in range(2)]
    two = batch(b"v", b"v", attributes=LZ4, records=deflate(LZ4, records[0]) + deflate(LZ4, records[1]))
    one = batch(b"v", b"v", attributes=LZ4, records=deflate(LZ4, records[0] + records[1]))
    assert only(node.produce("t", 0, two)).error_code == error_codes.INVALID_RECORD
    assert only(node.produce("t", 0, one)).error_code == 0


@pytest.mark.parametrize("version", range(3, 14))
def test_a_transactional_batch_without_a_transactional_id_is_refused(node: WholeNode, version: int) -> None:
    """Nothing could end its transaction: one such batch would hold the last stable offset forever."""
    flags = {"producer_id": 9, "producer_epoch": 0, "base_sequence": 0, "attributes": TRANSACTIONAL_FLAG}
    refused, taken = batch(b"t", **flags), batch(b"a")
    pending = node.produce_all({("t", 0): refused, ("t", 1): taken}, version=version)
    answers = {answer.index: answer for topic in pending.result().responses for answer in topic.partition_responses}
    code = error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert {index: answer.error_code for index, answer in answers.items()} == {0: code, 1: 0}
    partition = node.broker.replica_manager.partition("t", 0)
    assert partition is not None and partition.log is not None
    assert partition.log.log_end_offset == partition.log.last_stable_offset == 0
    with pytest.raises(Closed, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
        node.produce("t", 0, refused, acks=0).result()
