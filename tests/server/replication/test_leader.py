"""Protects a leader and its followers as one node serves them: acks=all, fetches of followers, and what they are refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from kcli.format.kafka_uuid import Uuid
from kcli.log.unified_log import UnifiedLog
from kcli.protocol import apis, error_codes
from kcli.protocol.apis import API_KEYS
from kcli.protocol.message import Message
from kcli.server.events import DeadlineReached
from kcli.server.replication.partition import Partition
from kcli.server.replication.replica import IsrAnswer, IsrChange
from kcli.server.shell.metrics_collector import RawSamples, named, sample
from kcli.state.image_records import new_record
from tests.server.apis.asking import struct
from tests.server.whole_node import Pending, WholeNode, batch

ONE = batch(b"x" * 100)
KEY = ("t", 0)
LAG_MS = 30_000
ELSEWHERE = Uuid(bytes(15) + b"\1")


class Node(WholeNode):
    """A node that leads a topic `t` with followers 2 and 3; `changes` are the ISRs that it proposes, which nobody answers."""

    def __init__(self, directory: Path, isr: Sequence[int] = (1, 2, 3), *overrides: str, **configs: str) -> None:
        super().__init__(directory, "node.id=1", *overrides)
        self.changes: list[IsrChange] = []
        self.broker.replica_manager.propose_isr = self._proposed
        self.create_topic("t", 2, **configs)
        for index in range(2):
            self.replicate("t", isr, index)

    def _proposed(self, partition: Partition, change: IsrChange) -> None:
        if partition.key == KEY:
            self.changes.append(change)

    @property
    def partition(self) -> Partition:
        """The partition that the tests use."""
        found = self.broker.replica_manager.partition(*KEY)
        assert found is not None
        return found

    @property
    def log(self) -> UnifiedLog:
        """Its log."""
        assert self.partition.log is not None
        return self.partition.log

    def replicated(self, offset: int, *followers: int) -> None:
        """Let followers fetch from an offset."""
        for broker_id in followers or (2, 3):
            assert only(self.follow({KEY: offset}, broker_id)).error_code == 0


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "data")


def only(pending: Pending) -> Message:
    """The one partition of an answer to Produce or Fetch."""
    (topic,) = pending.result().responses
    (part,) = getattr(topic, "partition_responses", None) or topic.partitions
    return part


def test_acks_all_is_answered_when_the_followers_have_fetched_from_behind_the_records(node: Node) -> None:
    produced = node.produce("t", 0, ONE)
    assert only(node.produce("t", 0, ONE, acks=1)).error_code == 0
    for broker_id in (2, 3):
        answer = only(node.follow({KEY: 0}, broker_id))
        assert len(answer.records) == 2 * len(ONE) and answer.high_watermark == 0
    assert only(node.fetch({KEY: 0})).records == b"", "no consumer sees what is not committed"
    node.replicated(1, 2)
    assert produced.answer is None
    node.replicated(1, 3)
    assert (only(produced).error_code, only(produced).base_offset, node.log.high_watermark) == (0, 0, 1)
    assert only(node.follow({KEY: 2}, 2)).high_watermark == 1


def test_a_consumer_that_waits_gets_records_when_they_are_committed(node: Node) -> None:
    waiting = node.fetch({KEY: 0}, max_wait_ms=60_000)
    node.produce("t", 0, ONE, acks=1)
    node.advance(10)
    assert waiting.answer is None
    node.replicated(1)
    assert only(waiting).records


def test_a_fetch_that_waits_is_answered_once_for_all_appends_at_hand(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append costs a look at no log; the answer has the records of all appends that came with it."""
    waiting = {broker_id: node.follow({KEY: 0, ("t", 1): 0}, broker_id, max_wait_ms=500) for broker_id in (2, 3)}
    reads: list[int] = []
    read = UnifiedLog.read
    monkeypatch.setattr(UnifiedLog, "read", lambda log, *args, **more: (reads.append(1), read(log, *args, **more))[1])
    for _ in range(20):
        node.produce("t", 0, ONE, acks=1)
    assert reads == [] and all(pending.answer is None for pending in waiting.values())
    node.advance(1)
    for pending in waiting.values():
        (first, _) = [part for topic in pending.result().responses for part in topic.partitions]
        assert len(first.records) == 20 * len(ONE)
    assert len(reads) == 4, "one for each partition of each answer"


def test_a_fetch_waits_for_its_bytes_and_not_for_the_high_watermark(node: Node) -> None:
    waiting = node.follow({KEY: 0}, 2, max_wait_ms=500, min_bytes=3 * len(ONE))
    for _ in range(2):
        node.produce("t", 0, ONE, acks=1)
        node.advance(1)
    node.replicated(2, 3)
    later = node.follow({KEY: 2}, 2, max_wait_ms=500)
    assert node.log.high_watermark == 2
    node.advance(1)
    assert waiting.answer is None and later.answer is None
    node.produce("t", 0, ONE, acks=1)
    node.advance(1)
    assert len(only(waiting).records) == 3 * len(ONE) and only(later).high_watermark == 2
    gone = node.follow({KEY: 3}, 2, max_wait_ms=500)
    node.advance(500)
    assert only(gone).records == b""
    assert node.broker.replica_manager.follower_fetch_purgatory.size == 0


def test_a_session_gets_the_high_watermark_that_another_follower_moves(node: Node) -> None:
    """The follower that has all records is sent the high watermark later; it kept the old one until the next record."""
    node.produce("t", 0, ONE, acks=1)
    began = node.follow({KEY: 1}, 2, session_epoch=0)
    assert only(began).high_watermark == 0
    session_id = began.result().session_id
    assert node.follow({}, 2, session_id=session_id, session_epoch=1).result().responses == []
    waiting = node.follow({}, 2, session_id=session_id, session_epoch=2, max_wait_ms=500)
    node.replicated(1, 3)
    assert waiting.answer is None
    node.advance(500)
    assert only(waiting).high_watermark == 1
    assert node.follow({}, 2, session_id=session_id, session_epoch=3).result().responses == []


def test_a_follower_reads_on_in_an_older_segment(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", segment_bytes="1048576")
    large = batch(b"x" * 500_000)
    for _ in range(3):
        node.produce("t", 0, large, acks=1)
    assert len(node.log.base_offsets) == 2
    answer = only(node.follow({KEY: 0}, 2, max_wait_ms=500, min_bytes=900_000))
    assert len(answer.records) == 2 * len(large)


def test_too_few_replicas_refuse_before_the_append(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", isr=(1,), min_insync_replicas="2")
    assert only(node.produce("t", 0, ONE)).error_code == error_codes.NOT_ENOUGH_REPLICAS
    assert only(node.produce("t", 0, ONE, acks=1)).error_code == 0 and node.log.log_end_offset == 1
    node.replicated(1)
    assert node.log.high_watermark == 0


def test_replicas_that_leave_after_the_append_are_reported(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", isr=(1, 2), min_insync_replicas="2")
    produced = node.produce("t", 0, ONE, timeout_ms=5 * LAG_MS)
    node.follow({KEY: 0}, 2, max_wait_ms=0)
    node.advance(2 * LAG_MS)
    (change,) = node.changes
    assert [member for member, _ in change.isr] == [1] and produced.answer is None
    node.replicated(1, 2)
    assert only(produced).error_code == 0, "the shrink may not have happened: the maximal ISR has both"
    late = node.produce("t", 0, ONE, timeout_ms=5 * LAG_MS)
    assert late.answer is None
    node.partition.isr_answered(change, IsrAnswer(node.partition.leader_epoch, node.partition.partition_epoch + 1, [1]))
    node.changes.clear()
    assert late.answer is None and node.log.high_watermark == 1, "below min.insync.replicas nothing is committed"
    node.log.update_high_watermark(2)  # as an unclean change would
    node.broker.replica_manager.high_watermark_moved(node.partition)
    node.handle(DeadlineReached())
    assert only(late).error_code == error_codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND


def test_what_waits_ends_with_the_leadership(node: Node) -> None:
    produced, fetched = node.produce("t", 0, ONE), node.follow({KEY: 1}, 2, max_wait_ms=500)
    node.replicate("t", leader=2)
    assert only(produced).error_code == error_codes.NOT_LEADER_OR_FOLLOWER
    answer = only(fetched)
    assert answer.error_code == error_codes.NOT_LEADER_OR_FOLLOWER and answer.current_leader.leader_id == 2
    assert only(node.follow({KEY: 1}, 2)).error_code == error_codes.NOT_LEADER_OR_FOLLOWER


def lead(node: Node, leader: int) -> None:
    """Let the broker apply another leader of the partition; its replicas and ISR stay."""
    topic_id = node.broker.image.topic_ids["t"]
    node.publish([new_record("PartitionChangeRecord", topic_id=topic_id, partition_id=0, leader=leader)])
    node.advance(1)


@pytest.mark.parametrize("acks", [-1, 1])
def test_records_that_another_leader_removed_during_their_flush_are_not_acknowledged(tmp_path: Path, acks: int) -> None:
    """Even if this broker leads again, and the record of another producer is committed at their offset."""
    node = Node(tmp_path / "data", isr=(1, 2), flush_messages="1")
    node.replicated(0)
    node.holds_flushes = True
    lost = node.produce("t", 0, ONE, acks=acks, timeout_ms=60_000)
    lead(node, 2)
    node.broker.fetchers.truncate(node.partition, node.log, 0, "the leader does not have it", node.now_ms)
    node.broker.fetchers.end_truncations(node.now_ms)
    lead(node, 1)
    kept = node.produce("t", 0, batch(b"y"), timeout_ms=60_000)
    node.holds_flushes = False
    node.release_flushes()
    node.replicated(1)
    assert (only(kept).error_code, only(kept).base_offset, node.log.high_watermark) == (0, 0, 1)
    assert only(lost).error_code == error_codes.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("leaders", [(1,), (2, 1)])
def test_records_that_survive_changes_of_the_leader_during_their_flush_are_acknowledged(
    tmp_path: Path, leaders: Sequence[int]
) -> None:
    """As in Kafka if the same broker is elected again."""
    node = Node(tmp_path / "data", isr=(1, 2), flush_messages="1")
    node.replicated(0)
    node.holds_flushes = True
    produced = node.produce("t", 0, ONE, timeout_ms=60_000)
    epoch = node.partition.leader_epoch
    for leader in leaders:
        lead(node, leader)
    assert node.partition.leader_epoch == epoch + len(leaders)
    node.holds_flushes = False
    node.release_flushes()
    node.replicated(1)
    assert (only(produced).error_code, only(produced).base_offset, node.log.high_watermark) == (0, 0, 1)


def test_errors_come_in_kafkas_order(node: Node) -> None:
    """The epoch, then the leader, then the replica, then the broker epoch and the offset."""
    node.produce("t", 0, ONE, acks=1)
    epoch = node.partition.leader_epoch
    node.partition.leader_epoch = epoch + 2
    node.produce("t", 0, ONE, acks=1)
    epoch = node.partition.leader_epoch

    def code_for(broker_id: int, offset: int, **options: int) -> int:
        return int(only(node.follow({KEY: offset}, broker_id, **options)).error_code)

    assert code_for(4, 9, current_leader_epoch=epoch - 1) == error_codes.FENCED_LEADER_EPOCH
    assert code_for(4, 9, current_leader_epoch=epoch + 1) == error_codes.UNKNOWN_LEADER_EPOCH
    assert code_for(4, 9, current_leader_epoch=epoch) == error_codes.UNKNOWN_LEADER_EPOCH
    assert code_for(4, 9) == error_codes.NOT_LEADER_OR_FOLLOWER
    assert code_for(2, 9, replica_epoch=19) == error_codes.OFFSET_OUT_OF_RANGE
    assert code_for(2, 1, replica_epoch=19) == error_codes.NOT_LEADER_OR_FOLLOWER
    assert code_for(2, 2, last_fetched_epoch=epoch + 1) == error_codes.OFFSET_OUT_OF_RANGE
    diverging = only(node.follow({KEY: 2}, 2, last_fetched_epoch=epoch - 1, max_wait_ms=500)).diverging_epoch
    assert (diverging.epoch, diverging.end_offset) == (epoch - 2, 1)
    assert node.partition.followers[2].log_end_offset == -1, "none of them says where the follower is"
    assert code_for(2, 2, current_leader_epoch=epoch, last_fetched_epoch=epoch) == 0
    assert node.partition.followers[2].log_end_offset == 2


def test_offsets_below_the_log_start_are_out_of_range_even_if_the_logs_diverge(node: Node) -> None:
    for epoch in (0, 1):
        node.partition.leader_epoch = epoch
        node.produce("t", 0, ONE, acks=1)
    node.log.update_high_watermark(2)
    node.log.maybe_increment_log_start_offset(2)
    assert only(node.follow({KEY: 1}, 2, last_fetched_epoch=0)).error_code == error_codes.OFFSET_OUT_OF_RANGE


def test_a_follower_that_lags_is_looked_for_each_half_of_the_lag_time(node: Node) -> None:
    node.produce("t", 0, ONE, acks=1)
    node.replicated(1, 3)
    node.advance(LAG_MS)
    node.replicated(1, 3)
    node.advance(LAG_MS // 2 + 10)
    assert [[member for member, _ in change.isr] for change in node.changes] == [[1, 3]]


def test_a_broker_without_followers_looks_for_none(tmp_path: Path) -> None:
    node = WholeNode(tmp_path / "data", "node.id=1")
    node.create_topic("t")
    scheduled: list[int] = []
    node.broker.replica_manager._check_isr = scheduled.append  # type: ignore[method-assign]
    node.advance(LAG_MS)
    assert scheduled == []


def test_consumers_read_from_followers_up_to_their_high_watermark(node: Node) -> None:
    node.produce("t", 0, ONE, acks=1)
    node.produce("t", 0, ONE, acks=1)
    node.replicated(1)
    node.replicate("t", leader=2)
    answer = only(node.fetch({KEY: 0}))
    assert (answer.error_code, answer.high_watermark, len(answer.records)) == (0, 1, len(ONE))
    assert only(node.fetch({KEY: 0}, version=10)).error_code == error_codes.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("version", [15, 16, 18])
def test_a_fetch_from_a_wrong_leader_is_told_the_right_one_and_its_address(node: Node, version: int) -> None:
    topic_id = node.broker.image.topic_ids["t"]
    node.replicate("t", leader=2)
    wrong = node.follow({KEY: 0}, 2, version=version).result()
    old = node.fetch({(topic_id, 0): 0}, version=version, current_leader_epoch=node.partition.leader_epoch - 1).result()
    for response, code in ((wrong, error_codes.NOT_LEADER_OR_FOLLOWER), (old, error_codes.FENCED_LEADER_EPOCH)):
        ((answer,),) = [topic.partitions for topic in response.responses]
        hint = (answer.current_leader.leader_id, answer.current_leader.leader_epoch)
        assert answer.error_code == code
        assert hint == ((2, node.partition.leader_epoch) if version >= 16 else (-1, -1))
    assert wrong.node_endpoints == [], "brokers know each other"
    assert [(one.node_id, one.host, one.port) for one in old.node_endpoints] == [(2, "host-2", 9092)] * (version >= 16)


@pytest.mark.parametrize("version", [9, 10, 12, 13])
def test_a_produce_to_a_wrong_leader_is_told_the_right_one_and_its_address(node: Node, version: int) -> None:
    waiting = node.produce("t", 0, ONE, version=version)
    node.replicate("t", leader=2)
    node.replicate("t", index=1, replicas=[2, 3], isr=[2, 3], leader=3, directories=[ELSEWHERE] * 2)
    late = [node.produce("t", index, ONE, version=version) for index in (0, 1)]
    for pending, leader in zip((waiting, *late), (2, 2, 3)):
        answer, response = only(pending), pending.result()
        assert answer.error_code == error_codes.NOT_LEADER_OR_FOLLOWER
        assert answer.current_leader.leader_id == (leader if version >= 10 else -1)
        found = [(one.node_id, one.host) for one in response.node_endpoints]
        assert found == [(leader, f"host-{leader}")] * (version >= 10)


def deleted(node: Node, offset: int, timeout_ms: int = 1000) -> Pending:
    """Delete the records below an offset."""
    part = struct(apis.DELETE_RECORDS, "DeleteRecordsPartition", partition_index=0, offset=offset)
    topic = struct(apis.DELETE_RECORDS, "DeleteRecordsTopic", name="t", partitions=[part])
    return node.send(apis.DELETE_RECORDS, 2, API_KEYS[apis.DELETE_RECORDS].request.new(topics=[topic], timeout_ms=timeout_ms))


def result(pending: Pending) -> tuple[int, int]:
    """The error code and the low watermark of a DeleteRecords."""
    answer = pending.result().topics[0].partitions[0]
    return answer.error_code, answer.low_watermark


def test_records_are_deleted_when_all_live_followers_have_deleted_them(node: Node) -> None:
    """KIP-107: an answer means that no replica returns them any more, whoever leads next."""
    for _ in range(3):
        node.produce("t", 0, ONE, acks=1)
    node.replicated(3)
    waiting, brief = deleted(node, 2, timeout_ms=10_000), deleted(node, -1, timeout_ms=100)
    assert node.log.log_start_offset == 3
    node.follow({KEY: 3}, 2, log_start_offset=3)
    assert waiting.answer is None
    node.advance(100)
    assert result(brief) == (error_codes.REQUEST_TIMED_OUT, -1)
    node.follow({KEY: 3}, 3, log_start_offset=2)
    assert result(waiting) == (0, 2)
    node.add_broker(3, is_fenced=True)
    assert result(deleted(node, 3)) == (0, 3), "a fenced broker is not waited for"
    moved = deleted(node, 3, timeout_ms=10_000)
    assert moved.answer is not None
    node.add_broker(3)
    lost = deleted(node, 3, timeout_ms=10_000)
    node.replicate("t", leader=2)
    assert result(lost) == (error_codes.NOT_LEADER_OR_FOLLOWER, -1)


def test_followers_ask_for_the_log_end_and_consumers_for_what_is_committed(node: Node) -> None:
    def latest(replica_id: int) -> int:
        part = struct(apis.LIST_OFFSETS, "ListOffsetsPartition", partition_index=0, timestamp=-1)
        topic = struct(apis.LIST_OFFSETS, "ListOffsetsTopic", name="t", partitions=[part])
        request = API_KEYS[apis.LIST_OFFSETS].request.new(replica_id=replica_id, topics=[topic])
        return int(node.send(apis.LIST_OFFSETS, 9, request).result().topics[0].partitions[0].offset)

    node.produce("t", 0, ONE, acks=1)
    assert (latest(-1), latest(2)) == (0, 1)


RACKS = "replica.selector.class=org.apache.kafka.common.replica.RackAwareReplicaSelector"


def test_a_consumer_is_sent_to_the_most_current_replica_in_its_rack(tmp_path: Path) -> None:
    """As Kafka's RackAwareReplicaSelector chooses: of the ISR, with the records, alive, and not if the leader is there."""
    node = Node(tmp_path / "data", (1, 2, 3), RACKS, "broker.rack=a")
    for broker_id in (2, 3):
        node.add_broker(broker_id, rack="b")
    for _ in range(3):
        node.produce("t", 0, ONE, acks=1)

    def preferred(rack: str, offset: int = 0, **options: int) -> tuple[int, bool]:
        answer = only(node.fetch({KEY: offset}, rack_id=rack, max_wait_ms=60_000, **options))
        return answer.preferred_read_replica, bool(answer.records)

    node.follow({KEY: 2}, 2, log_start_offset=0)
    node.follow({KEY: 1}, 3, log_start_offset=0)
    assert (node.log.high_watermark, preferred("b"), preferred("b", 1)) == (1, (2, False), (2, False))
    assert [preferred(rack) for rack in ("a", "c", "")] == [(-1, True)] * 3
    node.follow({KEY: 3}, 3, log_start_offset=1)
    assert (preferred("b"), preferred("b", 1)) == ((2, False), (3, False))
    node.add_broker(3, is_fenced=True)
    assert preferred("b", 1) == (2, False)
    node.replicate("t", isr=(1, 3))
    assert preferred("b", 1) == (-1, True)
    assert only(node.follow({KEY: 0}, 2, rack_id="b")).records, "a follower replicates from the leader"


def test_without_the_selector_racks_mean_nothing(node: Node) -> None:
    node.add_broker(2, rack="b")
    node.produce("t", 0, ONE, acks=1)
    node.replicated(1)
    assert only(node.fetch({KEY: 0}, rack_id="b")).preferred_read_replica == -1


def test_metrics_of_a_leader_have_kafkas_names(node: Node) -> None:
    node.produce("t", 0, ONE, acks=1)
    node.replicated(0)
    waiting = node.follow({KEY: 1}, 2, max_wait_ms=5)
    node.advance(5)
    assert waiting.answer is not None
    later = node.follow({KEY: 1}, 2, max_wait_ms=500)
    node.advance(2 * LAG_MS)
    node.partition.isr_answered(node.changes[0], error_codes.INELIGIBLE_REPLICA)
    node.partition.maybe_shrink_isr()
    node.partition.isr_answered(node.changes[1], IsrAnswer(0, node.partition.partition_epoch + 1, [1, 2]))
    node.replicate("t", isr=(1,), adding_replicas=[3])
    assert later.answer is not None
    raw = RawSamples()
    for _ in sample(raw, node.broker, None, node.node.quorum.client, node.now_ms):
        pass
    found = named(raw)

    def value(name: str, *labels: str) -> float:
        (one,) = [value for at, value in found[name] if at == labels]
        return one

    assert value("kafka_server_brokertopicmetrics_replicationbytesout_total") == 2 * len(ONE)
    assert value("kafka_server_brokertopicmetrics_bytesout_total", "t") == 0
    assert value("kafka_server_delayedfetchmetrics_expires_total", "follower") == 2
    assert value("kafka_server_replicamanager_failedisrupdates_total") == 1
    assert (value("kafka_server_replicamanager_isrshrinks_total"), value("kafka_server_replicamanager_isrexpands_total")) == (
        1,
        0,
    )
    assert value("kafka_cluster_partition_replicascount", "t", "0") == 2, "one that is being added is not missed"
    assert value("kafka_cluster_partition_insyncreplicascount", "t", "0") == 1
    assert value("kafka_server_replicamanager_underreplicatedpartitions") == 1
