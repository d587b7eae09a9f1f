"""Protects Fetch: what a reader gets, when it gets it, and what becomes of one that waits."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.format.record_batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, NewRecordBatch
from kcli.format.records import Record, encode_records
from kcli.log.log_validator import AppendOrigin
from kcli.log.unified_log import UnifiedLog
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, FETCH
from kcli.protocol.framing import encode_request
from kcli.protocol.message import Message
from kcli.server.apis.fetch import ANY_REPLICA_VERSION
from kcli.server.events import DeadlineReached, FileRegion, RequestReceived, SendFile
from kcli.server.replication.partition import Partition
from tests.server.whole_node import Closed, Pending, WholeNode, batch, fetch_request, partitions_of

ONE = batch(b"x" * 100)


@pytest.fixture
def node(tmp_path: Path) -> WholeNode:
    made = WholeNode(tmp_path / "data")
    made.create_topic("t", 3)
    return made


def partition_of(node: WholeNode, topic: str = "t", index: int = 0) -> Partition:
    found = node.broker.replica_manager.partition(topic, index)
    assert found is not None
    return found


def log_of(node: WholeNode, topic: str = "t", index: int = 0) -> UnifiedLog:
    log = partition_of(node, topic, index).log
    assert log is not None
    return log


def only(pending: Pending) -> Message:
    """The one partition of an answer."""
    (answer,) = [part for topic in pending.result().responses for part in topic.partitions]
    return answer


@pytest.mark.parametrize("version", range(4, 19))
def test_what_was_produced_comes_back_as_it_lies_on_the_disk(node: WholeNode, version: int) -> None:
    sent = batch(b"a", b"b")
    node.produce("t", 0, sent)
    topic = node.broker.image.topic_ids["t"] if version >= 13 else "t"
    answer = only(node.fetch({(topic, 0): 0}, version=version))
    assert answer.error_code == 0
    assert (answer.high_watermark, answer.last_stable_offset) == (2, 2)
    assert bytes(answer.records)[12:] == b"\0\0\0\0" + sent[16:]  # but for base offset and leader epoch
    assert only(node.fetch({(topic, 0): 2}, version=version)).records == b""


@pytest.mark.parametrize("version", range(4, 19))
def test_errors_are_told_in_every_version(node: WholeNode, version: int) -> None:
    """An answer that says who leads instead can be written in all versions, those before KIP-951 too."""
    ids = node.broker.image.topic_ids
    topic = ids["t"] if version >= 13 else "t"
    partition_of(node, "t", 1).is_leader = False
    pending = node.fetch({(topic, 0): 7, (topic, 1): 0, (topic, 9): 0}, version=version)
    codes = {index: part.error_code for (_, index), part in partitions_of(pending.result()).items()}
    assert codes == {
        0: error_codes.OFFSET_OUT_OF_RANGE,
        1: error_codes.NOT_LEADER_OR_FOLLOWER if version < ANY_REPLICA_VERSION else 0,
        9: error_codes.UNKNOWN_TOPIC_OR_PARTITION,
    }
    if version >= 9:
        wrong = node.fetch({(topic, 0): 0}, version=version, current_leader_epoch=5)
        assert only(wrong).error_code == error_codes.UNKNOWN_LEADER_EPOCH


def test_an_old_leader_epoch_is_fenced_and_told_the_new_one(node: WholeNode) -> None:
    partition_of(node).leader_epoch = 3
    answer = only(node.fetch({(node.broker.image.topic_ids["t"], 0): 0}, version=16, current_leader_epoch=2))
    assert answer.error_code == error_codes.FENCED_LEADER_EPOCH
    assert (answer.current_leader.leader_id, answer.current_leader.leader_epoch) == (1, 3)


def test_a_reader_whose_log_parted_is_told_where(node: WholeNode) -> None:
    log, partition = log_of(node), partition_of(node)
    node.produce("t", 0, ONE)
    partition.leader_epoch = 2
    node.produce("t", 0, ONE)
    node.produce("t", 0, ONE)
    assert log.log_end_offset == 3
    answer = only(node.fetch({("t", 0): 2}, last_fetched_epoch=0, max_wait_ms=500))
    assert (answer.diverging_epoch.epoch, answer.diverging_epoch.end_offset) == (0, 1)
    assert answer.records == b""
    assert only(node.fetch({("t", 0): 2}, last_fetched_epoch=2)).records
    assert only(node.fetch({("t", 0): 1}, last_fetched_epoch=0)).records


def test_no_partition_is_answered_at_once(node: WholeNode) -> None:
    assert node.fetch({}, max_wait_ms=500).result().responses == []


def test_min_bytes_are_waited_for_over_all_partitions(node: WholeNode) -> None:
    waiting = node.fetch({("t", index): 0 for index in range(3)}, min_bytes=3 * len(ONE), max_wait_ms=1000)
    node.produce("t", 0, ONE)
    node.produce("t", 0, ONE)
    assert waiting.answer is None
    node.produce("t", 2, ONE)
    sizes = {index: len(part.records) for (_, index), part in partitions_of(waiting.result()).items()}
    assert sizes == {0: 2 * len(ONE), 1: 0, 2: len(ONE)}


@pytest.mark.parametrize("isolation_level", [0, 1])
def test_the_end_of_an_older_segment_is_not_waited_for(node: WholeNode, isolation_level: int) -> None:
    """More follows, in the next segment, which the next fetch reads; nothing that is appended can make this answer larger."""
    node.create_topic("small", segment_bytes="1048576")
    large = batch(b"x" * 500_000)
    for _ in range(4):
        node.produce("small", 0, large)
    options = {"min_bytes": 900_000, "max_wait_ms": 1000, "isolation_level": isolation_level}
    sizes = {offset: len(only(node.fetch({("small", 0): offset}, **options)).records) for offset in (0, 1)}
    assert sizes == {0: 2 * len(large), 1: len(large)}
    waiting = node.fetch({("small", 0): 3}, **options)
    assert waiting.answer is None, "the last segment grows"
    node.produce("small", 0, large)
    assert waiting.answer is not None


@pytest.mark.parametrize("version", [11, 14, 15, 17])
def test_a_broker_that_is_no_replica_cannot_follow(node: WholeNode, version: int) -> None:
    """Nor can the leader itself; a consumer is -1."""
    classes = API_KEYS[FETCH].request.classes
    topic_id = node.broker.image.topic_ids["t"]

    def code_for(replica_id: int) -> int:
        named = {"topic_id": topic_id} if version >= 13 else {"topic": "t"}
        topic = classes["FetchTopic"](**named, partitions=[classes["FetchPartition"](partition=0, partition_max_bytes=1)])
        state = (
            {"replica_state": classes["ReplicaState"](replica_id=replica_id)} if version >= 15 else {"replica_id": replica_id}
        )
        request = API_KEYS[FETCH].request.new(topics=[topic], session_epoch=-1, **state)
        return int(only(node.send(FETCH, version, request)).error_code)

    assert [code_for(replica_id) for replica_id in (-1, node.broker.node_id, 5)] == [
        error_codes.NONE,
        error_codes.NOT_LEADER_OR_FOLLOWER,
        error_codes.NOT_LEADER_OR_FOLLOWER,
    ]


def test_time_runs_out_with_what_there_is(node: WholeNode) -> None:
    waiting = node.fetch({("t", 0): 0}, min_bytes=10_000, max_wait_ms=300)
    node.produce("t", 0, ONE)
    node.advance(299)
    assert waiting.answer is None
    node.advance(1)
    assert len(only(waiting).records) == len(ONE)
    assert node.broker.replica_manager.fetch_purgatory.size == 0


def test_no_more_is_waited_for_than_may_be_sent(node: WholeNode) -> None:
    """Kafka: min_bytes count as fetch.max.bytes where they are more."""
    node.produce("t", 0, ONE)
    assert node.fetch({("t", 0): 0}, min_bytes=1 << 30, max_bytes=len(ONE), max_wait_ms=500).answer is not None


def test_an_append_reads_nothing_for_a_fetch_at_the_log_end(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    read = UnifiedLog.read

    def counted(self: UnifiedLog, *args: int, **options: int) -> object:
        reads.append(self.partition)
        return read(self, *args, **options)  # type: ignore[arg-type]

    node.create_topic("wide", 50)
    waiting = node.fetch({("wide", index): 0 for index in range(50)}, min_bytes=20 * len(ONE), max_wait_ms=1000)
    monkeypatch.setattr(UnifiedLog, "read", counted)
    for _ in range(19):
        node.produce("wide", 7, ONE)
    assert waiting.answer is None
    assert reads == []
    node.produce("wide", 7, ONE)
    assert len(partitions_of(waiting.result())["wide", 7].records) == 20 * len(ONE)


def test_what_is_sent_late_is_read_late(tmp_path: Path) -> None:
    """What a fetch found before it waited may be closed by the time it is answered: with one open file, it is."""
    node = WholeNode(tmp_path / "data", max_open_files=1)
    node.create_topic("t", 2)
    node.produce("t", 0, ONE)
    waiting = node.fetch({("t", 0): 0}, min_bytes=10_000, max_wait_ms=100)
    node.produce("t", 1, ONE)
    node.advance(100)
    assert bytes(only(waiting).records)[16:] == ONE[16:]


def test_an_answer_needs_no_more_files_than_may_be_open(tmp_path: Path) -> None:
    node = WholeNode(tmp_path / "data", max_open_files=4)
    node.create_topic("wide", 6)
    for index in range(6):
        node.produce("wide", index, ONE)
    offsets = {("wide", index): 0 for index in range(6)}
    first = node.fetch(offsets, session_epoch=0).result()
    assert [len(part.records) for part in partitions_of(first).values()] == [len(ONE)] * 2 + [0] * 4
    read = set()
    for epoch in (1, 2, 3):  # the session gives each its turn
        answer = node.fetch({}, session_id=first.session_id, session_epoch=epoch).result()
        read |= {index for (_, index), part in partitions_of(answer).items() if len(part.records)}
    assert read == set(range(6))


def test_the_first_batch_comes_whole_and_the_others_only_where_they_fit(node: WholeNode) -> None:
    for index in range(3):
        node.produce("t", index, ONE)
        node.produce("t", index, ONE)
    offsets = {("t", index): 0 for index in range(3)}

    def sizes(**options: int) -> list[int]:
        answer = node.fetch(offsets, **options).result()
        return [len(part.records) for part in partitions_of(answer).values()]

    assert sizes(max_bytes=1, partition_max_bytes=1) == [len(ONE), 0, 0]
    assert sizes(max_bytes=0) == [len(ONE), 0, 0]
    assert sizes(partition_max_bytes=1) == [len(ONE), 0, 0]
    assert sizes(max_bytes=3 * len(ONE)) == [2 * len(ONE), len(ONE), 0]
    assert sizes(partition_max_bytes=len(ONE)) == [len(ONE)] * 3
    node.broker.fetch.max_bytes = len(ONE)
    assert sizes() == [len(ONE), 0, 0]


def test_read_committed_sees_what_is_decided(node: WholeNode) -> None:
    log = log_of(node)
    data = batch(b"t", attributes=TRANSACTIONAL_FLAG, producer_id=9, producer_epoch=0, base_sequence=0)
    node.produce("t", 0, ONE)
    log.append_as_leader(memoryview(bytearray(data)), 0, node.now_ms, origin=AppendOrigin.REPLICATION)
    log.update_high_watermark(2)
    assert (log.high_watermark, log.last_stable_offset) == (2, 1)
    uncommitted, committed = (only(node.fetch({("t", 0): 0}, isolation_level=level)) for level in (0, 1))
    assert len(uncommitted.records) == len(ONE) + len(data) and uncommitted.aborted_transactions is None
    assert len(committed.records) == len(ONE) and committed.aborted_transactions == []
    waiting = node.fetch({("t", 0): 1}, isolation_level=1, max_wait_ms=1000)
    node.produce("t", 0, ONE)
    assert waiting.answer is None, "the transaction is not decided"
    marker = encode_records([Record(0, 0, b"\0\0\0\0", b"\0\0\0\0\0\0")])
    attributes = TRANSACTIONAL_FLAG | CONTROL_FLAG
    abort = NewRecordBatch(0, 0, node.now_ms, node.now_ms, 1, marker, attributes, producer_id=9, producer_epoch=0).encode()
    log.append_as_leader(memoryview(bytearray(abort)), 0, node.now_ms, origin=AppendOrigin.COORDINATOR)
    log.update_high_watermark(log.log_end_offset)
    node.broker.replica_manager.fetch_purgatory.check(("t", 0), node.now_ms)
    node.handle(DeadlineReached())
    answer = only(waiting)
    assert len(answer.records) == len(data) + len(ONE) + len(abort)
    assert [(txn.producer_id, txn.first_offset) for txn in answer.aborted_transactions] == [(9, 1)]


def test_read_committed_lists_the_aborted_transactions_of_its_records_alone(node: WholeNode) -> None:
    """A reader far behind gets one batch at a time, and is told of what was aborted there, not of all up to its limit."""
    log = log_of(node)
    attributes = TRANSACTIONAL_FLAG | CONTROL_FLAG
    key = encode_records([Record(0, 0, b"\0\0\0\0", b"\0\0\0\0\0\0")])
    abort = NewRecordBatch(0, 0, node.now_ms, node.now_ms, 1, key, attributes, producer_id=9, producer_epoch=0).encode()
    for at in range(50):
        data = batch(b"t", attributes=TRANSACTIONAL_FLAG, producer_id=9, producer_epoch=0, base_sequence=at)
        for sent, origin in ((data, AppendOrigin.REPLICATION), (abort, AppendOrigin.COORDINATOR)):
            log.append_as_leader(memoryview(bytearray(sent)), 0, node.now_ms, origin=origin)
    log.update_high_watermark(log.log_end_offset)
    for offset in range(0, 100, 2):
        answer = only(node.fetch({("t", 0): offset}, isolation_level=1, partition_max_bytes=len(data) + len(abort)))
        assert len(answer.records) == len(data) + len(abort)
        assert [(txn.producer_id, txn.first_offset) for txn in answer.aborted_transactions] == [(9, offset)]
    whole = only(node.fetch({("t", 0): 0}, isolation_level=1))
    assert [txn.first_offset for txn in whole.aborted_transactions] == list(range(0, 100, 2))


def test_an_error_ends_the_wait_of_all(node: WholeNode) -> None:
    codes = partitions_of(node.fetch({("t", 0): 0, ("t", 1): 5}, max_wait_ms=500).result())
    assert codes["t", 1].error_code == error_codes.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("version", [12, 13])
def test_a_topic_that_nobody_knows_does_not_end_the_wait_of_the_others(node: WholeNode, version: int) -> None:
    """Else who still asks for a deleted topic would ask without a pause."""
    ids = node.broker.image.topic_ids
    known, unknown = (ids["t"], type(ids["t"])(b"\5" * 16)) if version >= 13 else ("t", "nobody")
    waiting = node.fetch({(known, 0): 0, (unknown, 0): 0}, max_wait_ms=500, version=version)
    assert waiting.answer is None
    node.produce("t", 0, ONE)
    parts = list(partitions_of(waiting.result(), "topic_id" if version >= 13 else "topic").values())
    unknown_code = error_codes.UNKNOWN_TOPIC_ID if version >= 13 else error_codes.UNKNOWN_TOPIC_OR_PARTITION
    assert [part.error_code for part in parts] == [0, unknown_code]
    alone = node.fetch({(unknown, 0): 0}, max_wait_ms=500, version=version)
    assert only(alone).error_code == unknown_code
    assert "nobody" not in node.broker.metrics.topics


def test_a_topic_that_is_deleted_ends_the_wait(node: WholeNode) -> None:
    node.create_topic("gone", 2)
    waiting = node.fetch({("gone", 1): 0, ("t", 0): 0}, max_wait_ms=5000)
    node.delete_topic("gone")
    assert partitions_of(waiting.result())["gone", 1].error_code == error_codes.UNKNOWN_TOPIC_OR_PARTITION
    assert node.broker.replica_manager.fetch_purgatory.size == 0


def test_who_is_gone_is_not_answered_and_not_remembered(node: WholeNode) -> None:
    connection = node.connection()
    waiting = node.fetch({("t", 0): 0}, max_wait_ms=500, connection=connection)
    node.close(connection)
    node.produce("t", 0, ONE)
    node.advance(1000)
    assert waiting.answer is None
    assert (node.broker.replica_manager.fetch_purgatory.size, node.broker.fetch.waiting) == (0, {})


def test_a_directory_that_fails_is_told_to_who_waits(tmp_path: Path) -> None:
    node = WholeNode(tmp_path / "a", f"log.dirs={tmp_path / 'a'},{tmp_path / 'b'}", f"metadata.log.dir={tmp_path / 'm'}")
    node.create_topic("t", 2)
    waiting = node.fetch({("t", 0): 0, ("t", 1): 0}, max_wait_ms=500)
    node.broker.replica_manager.handle_log_dir_failure(partition_of(node), OSError(5, "Input/output error"))
    node.advance(1)
    codes = [part.error_code for part in partitions_of(waiting.result()).values()]
    assert codes == [error_codes.KAFKA_STORAGE_ERROR, 0]


def test_a_fault_in_one_that_waits_is_its_own(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who produces is served whatever becomes of who waits."""
    waiting = node.fetch({("t", 0): 0}, max_wait_ms=500)
    other = node.fetch({("t", 0): 0}, max_wait_ms=500)

    def broken(*args: object, **options: object) -> object:
        monkeypatch.undo()
        raise RuntimeError("a fault")

    monkeypatch.setattr(UnifiedLog, "read", broken)
    produced = node.produce("t", 0, ONE)
    assert produced.result().responses[0].partition_responses[0].error_code == 0
    assert waiting.result().error_code == error_codes.UNKNOWN_SERVER_ERROR
    assert len(only(other).records) == len(ONE)
    assert any("a fault of kcli" in line for line in node.lines)


def test_a_partition_named_twice_is_read_once(node: WholeNode) -> None:
    node.produce("t", 0, ONE)
    request = API_KEYS[FETCH].request
    make = request.classes["FetchPartition"]
    parts = [make(partition=0, fetch_offset=offset, partition_max_bytes=1000) for offset in (9, 0)]
    topic = request.classes["FetchTopic"](topic="t", partitions=parts)
    pending = node.send(FETCH, 12, request.new(max_wait_ms=0, min_bytes=1, topics=[topic], session_epoch=-1))
    assert len(only(pending).records) == len(ONE)


def test_records_never_pass_through_python(node: WholeNode) -> None:
    """They leave as regions of the file."""
    node.produce("t", 0, ONE)
    connection = node.connection()
    frame = encode_request(1, API_KEYS[FETCH], 12, "test", fetch_request({("t", 0): 0}))
    (effect,) = node.node.handle(RequestReceived(connection, memoryview(frame)[4:]), node.now_ms)
    assert isinstance(effect, SendFile)
    (region,) = [part for part in effect.parts if isinstance(part, FileRegion)]
    assert (region.position, region.size) == (0, len(ONE))
    assert region.file.name.endswith("t-0/00000000000000000000.log")


def test_a_broker_that_has_left_serves_nobody(node: WholeNode) -> None:
    node.stop()
    with pytest.raises(Closed, match="the broker is stopping"):
        node.fetch({("t", 0): 0}).result()
    with pytest.raises(Closed, match="the broker is stopping"):
        node.produce("t", 0, ONE).result()
