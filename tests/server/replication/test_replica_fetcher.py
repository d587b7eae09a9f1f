"""Protects the copies of a leader's records: what a follower asks for, appends, cuts off, and when it waits.

The broker is whole; the connections to its leader are the test's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kcli.format.file_names import FileKind
from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import INT64_MAX, TopicPartition
from kcli.log.append_paths import LogAppendInfo
from kcli.log.unified_log import UnifiedLog
from kcli.network.events import NodeRole, PeerNode
from kcli.network.peer_request import Answer, PeerFailure
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, FETCH, LIST_OFFSETS, PRODUCE
from kcli.protocol.message import Message
from kcli.server.events import DeadlineReached
from kcli.server.replication.replica_fetcher import FIRST_DELAY_MS, ReplicaFetcherManager
from kcli.server.shell.metrics_collector import RawSamples, named, sample
from kcli.state.image_records import new_record
from tests.server.test_produce import only
from tests.server.whole_node import WholeNode, batch, produce_request

HERE, LEADER, OTHER = 1, 2, 3
VERSIONS = {FETCH: 17, LIST_OFFSETS: 10}
BACKOFF_MS = 1000


class Asked(NamedTuple):
    """A request to a leader, without an answer yet."""

    api_key: int
    node: PeerNode
    message: Message
    answered: Callable[[Answer, int], None]

    def partitions(self) -> dict[TopicPartition, Message]:
        """What it says of each partition; topics with ids are named "t" and "u"."""
        names = {topic.topic_id: name for topic in self.message.topics for name in ("t", "u") if topic.topic_id == id_of(name)}
        return {(names[topic.topic_id], one.partition): one for topic in self.message.topics for one in topic.partitions}


def id_of(topic: str) -> Uuid:
    return Uuid(topic.encode() * 16)


class Leaders:
    """The connections of a fetcher, in place of Peers: the last request to each leader waits for the test's answer."""

    def __init__(self, node: WholeNode) -> None:
        peers = node.broker.fetchers.peers
        self.timer, self.rng = peers.timer, peers.rng
        self.node = node
        self.waiting: list[Asked] = []
        self.closed: list[PeerNode] = []

    def send(self, node: PeerNode, listener: str, api_key: int, request: Any, answered: Any, deadline_ms: int) -> None:
        message = request if isinstance(request, Message) else request(VERSIONS[api_key])
        API_KEYS[api_key].request.encode(message, VERSIONS[api_key])
        self.waiting.append(Asked(api_key, node, message, answered))

    def close(self, node: PeerNode, listener: str) -> None:
        self.closed.append(node)
        self.waiting = [asked for asked in self.waiting if asked.node != node]

    def next(self, api_key: int = FETCH) -> Asked:
        """The one request that waits."""
        self.node.advance(0)
        assert [asked.api_key for asked in self.waiting] == [api_key]
        return self.waiting.pop()

    def answer(self, asked: Asked, answer: Answer) -> None:
        """Answer a request, and do what follows at once."""
        asked.answered(answer, self.node.now_ms)
        self.node.advance(0)


def fetched(parts: dict[TopicPartition, Message], session_id: int = 9, error_code: int = 0) -> Message:
    """A FetchResponse."""
    response = API_KEYS[FETCH].response
    made = response.classes["FetchableTopicResponse"]
    topics = [made(topic=topic, topic_id=id_of(topic), partitions=[part]) for (topic, _), part in parts.items()]
    return response.new(session_id=session_id, error_code=error_code, responses=topics)


def part(index: int = 0, records: bytes = b"", high_watermark: int = 0, **fields: Any) -> Message:
    """A partition of it."""
    made = API_KEYS[FETCH].response.classes["PartitionData"]
    start = fields.pop("log_start_offset", 0)
    return made(partition_index=index, records=records, high_watermark=high_watermark, log_start_offset=start, **fields)


def diverging(epoch: int, end_offset: int, high_watermark: int = 0) -> Message:
    end = API_KEYS[FETCH].response.classes["EpochEndOffset"](epoch=epoch, end_offset=end_offset)
    return part(diverging_epoch=end, high_watermark=high_watermark)


def of_leader(offset: int, epoch: int, *values: bytes) -> bytes:
    """A batch as a leader has it."""
    return batch(*values, base_offset=offset, partition_leader_epoch=epoch)


def place(node: WholeNode, topic: str = "t", index: int = 0, leader: int = LEADER, epoch: int = 0, isr: Any = None) -> None:
    """Commit the state of a partition of this broker and two others."""
    records = []
    if topic not in node.broker.image.topic_ids:
        records.append(new_record("TopicRecord", name=topic, topic_id=id_of(topic)))
    replicas = [LEADER, HERE, OTHER]
    state = {"replicas": replicas, "isr": isr or replicas, "leader": leader, "leader_epoch": epoch, "partition_epoch": epoch}
    ids = {"topic_id": id_of(topic), "partition_id": index}
    node.publish([*records, new_record("PartitionRecord", **ids, **state, directories=[Uuid(bytes(16))] * 3)])
    node.until(lambda: node.broker.replica_manager.partition(topic, index) is not None)


@pytest.fixture
def node(tmp_path: Path) -> WholeNode:
    return WholeNode(tmp_path / "data", "node.id=1", "log.segment.delete.delay.ms=500", "num.replica.fetchers=1")


@pytest.fixture
def leaders(node: WholeNode) -> Leaders:
    made = Leaders(node)
    node.broker.fetchers.peers = made  # type: ignore[assignment]
    return made


def log_of(node: WholeNode, topic: str = "t", index: int = 0) -> UnifiedLog:
    partition = node.broker.replica_manager.partition(topic, index)
    assert partition is not None and partition.log is not None
    return partition.log


def bytes_of(log: UnifiedLog) -> bytes:
    return b"".join(Path(segment.log_path).read_bytes() for segment in log.local_log().segments)


def fetchers(node: WholeNode) -> ReplicaFetcherManager:
    return node.broker.fetchers


def copy(leaders: Leaders, *records: bytes, high_watermark: int = 0) -> Asked:
    """Let the leader of t-0 answer with records one after the other; return the request that follows them."""
    for one in records:
        leaders.answer(leaders.next(), fetched({("t", 0): part(0, one, high_watermark)}))
    return leaders.next()


# ----------------------------------------------------------------------------------------------------------- fetching


def test_a_follower_asks_and_appends_the_bytes_as_they_are(node: WholeNode, leaders: Leaders) -> None:
    """Who it is, from where on, in which epochs; then only what has changed."""
    place(node, epoch=5)
    asked = leaders.next()
    assert asked.node == PeerNode(LEADER, NodeRole.BROKER, "fetcher-0")
    message, one = asked.message, asked.partitions()["t", 0]
    assert (message.replica_state.replica_id, message.replica_state.replica_epoch) == (1, node.broker.lifecycle.broker_epoch)
    assert (message.session_id, message.session_epoch, message.max_wait_ms, message.min_bytes) == (0, 0, 500, 1)
    assert (message.max_bytes, one.partition_max_bytes) == (10 << 20, 1 << 20)
    assert (one.fetch_offset, one.current_leader_epoch, one.last_fetched_epoch, one.log_start_offset) == (0, 5, -1, 0)
    first, second = of_leader(0, 4, b"a", b"b"), of_leader(2, 5, b"c")
    leaders.answer(asked, fetched({("t", 0): part(0, first + second, 2)}))
    log = log_of(node)
    assert bytes_of(log) == first + second
    assert (log.log_end_offset, log.high_watermark) == (3, 2)
    assert [tuple(entry) for entry in log.leader_epochs.entries] == [(4, 0), (5, 2)]
    asked = leaders.next()
    one = asked.partitions()["t", 0]
    assert (asked.message.session_id, asked.message.session_epoch) == (9, 1)
    assert (one.fetch_offset, one.last_fetched_epoch) == (3, 5)
    assert node.broker.metrics.replication_bytes_in == len(first + second)


def test_only_partitions_with_news_are_in_the_next_request(node: WholeNode, leaders: Leaders) -> None:
    """The 10,000 quiet partitions of a follower cost nothing; one that comes is added, one that goes is forgotten."""
    for index in range(3):
        place(node, index=index)
    place(node, "u")
    asked = leaders.next()
    assert set(asked.partitions()) == {("t", 0), ("t", 1), ("t", 2), ("u", 0)}
    parts = {("t", index): part(index) for index in range(3)} | {("u", 0): part(0, of_leader(0, 0, b"a"))}
    leaders.answer(asked, fetched(parts))
    asked = leaders.next()
    assert set(asked.partitions()) == {("u", 0)}
    leaders.answer(asked, fetched({}))
    asked = leaders.next()
    assert asked.partitions() == {}
    place(node, index=3)
    place(node, index=1, leader=OTHER, epoch=1)
    node.advance(0)
    elsewhere = leaders.waiting.pop()
    assert (elsewhere.node.node_id, list(elsewhere.partitions())) == (OTHER, [("t", 1)])
    leaders.answer(asked, fetched({("t", 1): part(1, of_leader(0, 0, b"late"))}))
    assert log_of(node, "t", 1).log_end_offset == 0, "an answer of an earlier leader is not used"
    asked = leaders.next()
    assert set(asked.partitions()) == {("t", 3)}
    assert [(topic.topic_id, topic.partitions) for topic in asked.message.forgotten_topics_data] == [(id_of("t"), [1])]


def test_the_fetcher_of_a_partition_is_chosen_by_kafkas_hash(node: WholeNode, leaders: Leaders) -> None:
    """31 x Java's hash of the topic + partition, modulo num.replica.fetchers, which may change while partitions are fetched."""
    for index in range(3):
        place(node, index=index)
    assert set(fetchers(node).fetchers) == {(LEADER, 0)}
    node.broker.config.update({"num.replica.fetchers": "3"}, {})
    node.advance(0)
    assert {number: list(one.followers) for (_, number), one in fetchers(node).fetchers.items()} == {
        (31 * ord("t") + index) % 3: [("t", index)] for index in range(3)
    }


def test_the_high_watermark_is_the_leaders_within_the_log(node: WholeNode, leaders: Leaders) -> None:
    """It may fall, is never above the log end, and the log start follows the leader's up to it; fetches that wait are woken."""
    place(node)
    asked = copy(leaders, *(of_leader(offset, 0, b"v") for offset in range(4)), high_watermark=100)
    log = log_of(node)
    assert (log.high_watermark, log.log_start_offset) == (4, 0)
    leaders.answer(asked, fetched({("t", 0): part(0, b"", 3, log_start_offset=9)}))
    assert (log.high_watermark, log.log_start_offset) == (3, 3)
    assert leaders.next().partitions()["t", 0].log_start_offset == 3


def test_the_next_fetch_waits_for_the_flush_of_its_records(node: WholeNode, leaders: Leaders) -> None:
    """With flush.messages: the fetch offset acknowledges them."""
    place(node)
    log_of(node).config = log_of(node).config._replace(flush_messages=1)
    node.holds_flushes = True
    leaders.answer(leaders.next(), fetched({("t", 0): part(0, of_leader(0, 0, b"a"))}))
    assert log_of(node).log_end_offset == 1
    assert leaders.waiting == []
    while node.held:
        node.release_flushes()
    assert leaders.next().partitions()["t", 0].fetch_offset == 1


@pytest.mark.parametrize("event", ["leader epoch", "fetchers"])
def test_records_that_are_being_flushed_are_not_acknowledged_by_a_new_fetch(
    node: WholeNode, leaders: Leaders, event: str
) -> None:
    """With flush.messages: a new leader epoch or number of fetchers starts at the log end, which is not durable yet."""
    place(node)
    log_of(node).config = log_of(node).config._replace(flush_messages=1)
    node.holds_flushes = True
    leaders.answer(leaders.next(), fetched({("t", 0): part(0, of_leader(0, 0, b"a"))}))
    if event == "leader epoch":
        node.publish([new_record("PartitionChangeRecord", topic_id=id_of("t"), partition_id=0, leader=LEADER)])
    else:
        node.broker.config.update({"num.replica.fetchers": "2"}, {})
    node.advance(0)
    assert (log_of(node).log_end_offset, log_of(node).recovery_point) == (1, 0)
    assert leaders.waiting == []
    while node.held:
        node.release_flushes()
    assert log_of(node).recovery_point == 1
    assert leaders.next().partitions()["t", 0].fetch_offset == 1


def test_a_replica_that_moves_during_a_flush_is_copied_on(tmp_path: Path) -> None:
    """With flush.messages: the fetches go on from the end of the log in the other directory, when that is durable."""
    first, second = (str(tmp_path / name) for name in "ab")
    overrides = f"log.dirs={first},{second}", "node.id=1", "num.replica.fetchers=1", "log.flush.interval.messages=1"
    node = WholeNode(tmp_path / "a", *overrides)
    leaders = Leaders(node)
    node.broker.fetchers.peers = leaders  # type: ignore[assignment]
    place(node)
    manager = node.broker.log_manager
    manager.mover.move("t", 0, second if log_of(node).directory.startswith(first) else first, node.now_ms)
    node.holds_flushes = True
    leaders.answer(leaders.next(), fetched({("t", 0): part(0, of_leader(0, 0, b"a"))}))
    future = manager.get_log("t", 0, future=True)
    assert future is not None and leaders.waiting == []
    node.until(lambda: future.log_end_offset == 1)
    directories = [Uuid(bytes(16)), manager.directory_id_of(future), Uuid(bytes(16))]
    node.publish([new_record("PartitionChangeRecord", topic_id=id_of("t"), partition_id=0, directories=directories)])
    node.until(lambda: log_of(node) is future)
    assert leaders.waiting == []
    while node.held:
        node.release_flushes()
        node.advance(0)
    assert leaders.next().partitions()["t", 0].fetch_offset == 1


# --------------------------------------------------------------------------------------------------------- truncation


def test_a_log_is_cut_where_it_diverges(node: WholeNode, leaders: Leaders) -> None:
    """The leader knows of epoch 0 up to offset 2 only: what follows is cut off, and the epoch of the end is asked with."""
    place(node, epoch=1)
    asked = copy(leaders, of_leader(0, 0, b"a", b"b"), of_leader(2, 0, b"c"), of_leader(3, 1, b"d"))
    log = log_of(node)
    leaders.answer(asked, fetched({("t", 0): diverging(0, 2, high_watermark=1)}))
    assert (log.log_end_offset, [tuple(entry) for entry in log.leader_epochs.entries]) == (2, [(0, 0)])
    assert log.high_watermark == 1, "the leader does not send it again before it moves"
    one = leaders.next().partitions()["t", 0]
    assert (one.fetch_offset, one.last_fetched_epoch) == (2, 0)
    assert any("t-0 is truncated from offset 4 to 2" in line for line in node.lines)


def test_an_epoch_that_is_unknown_here_is_asked_about_again(node: WholeNode, leaders: Leaders) -> None:
    """KIP-279: cut to the end of the epoch before; the next answer says whether that is enough."""
    place(node, epoch=4)
    asked = copy(leaders, of_leader(0, 1, b"a"), of_leader(1, 1, b"b"), of_leader(2, 3, b"c"))
    leaders.answer(asked, fetched({("t", 0): diverging(2, 5)}))
    assert log_of(node).log_end_offset == 2
    asked = leaders.next()
    assert asked.partitions()["t", 0].last_fetched_epoch == 1
    leaders.answer(asked, fetched({("t", 0): diverging(1, 1)}))
    assert log_of(node).log_end_offset == 1


def test_a_log_without_leader_epochs_begins_at_its_high_watermark(node: WholeNode, leaders: Leaders) -> None:
    """As Kafka does: nothing says whether the leader has what is behind it."""
    place(node)
    copy(leaders, *(of_leader(offset, 0, b"v") for offset in range(3)), high_watermark=1)
    log_of(node).leader_epochs.clear()
    place(node, leader=OTHER, epoch=1)
    one = leaders.next().partitions()["t", 0]
    assert (one.fetch_offset, one.last_fetched_epoch, log_of(node).log_end_offset) == (1, -1, 1)


@pytest.mark.parametrize(("leader_start", "leader_end", "end"), [(0, 1, 1), (7, 9, 7), (1, 5, 3)])
def test_a_log_outside_of_the_leaders_log(
    node: WholeNode, leaders: Leaders, leader_start: int, leader_end: int, end: int
) -> None:
    """Longer: cut to the leader's end. Before its start: begun again there. Inside by now: it goes on."""
    place(node)
    asked = copy(leaders, *(of_leader(offset, 0, b"v") for offset in range(3)))
    leaders.answer(asked, fetched({("t", 0): part(0, error_code=error_codes.OFFSET_OUT_OF_RANGE, high_watermark=-1)}))
    for timestamp, offset in ((-1, leader_end), (-2, leader_start)):
        asked = leaders.next(LIST_OFFSETS)
        (topic,) = asked.message.topics
        (one,) = topic.partitions
        assert (asked.message.replica_id, one.timestamp, one.current_leader_epoch) == (HERE, timestamp, 0)
        response = API_KEYS[LIST_OFFSETS].response
        answer = response.classes["ListOffsetsPartitionResponse"](partition_index=0, offset=offset)
        found = response.classes["ListOffsetsTopicResponse"](name="t", partitions=[answer])
        leaders.answer(asked, response.new(topics=[found]))
        if leader_end < 3:
            break
    assert log_of(node).log_end_offset == end
    leaders.next()
    assert fetchers(node).fetchers[LEADER, 0].followers["t", 0].offset == end


def test_flushed_records_that_are_cut_off_do_not_count_as_flushed(node: WholeNode, leaders: Leaders) -> None:
    """Not in the checkpoint, and not by a flush that began before: recovery would not check what follows."""
    place(node, epoch=1)
    asked = copy(leaders, *(of_leader(offset, 0, b"v") for offset in range(4)))
    log, manager = log_of(node), node.broker.replica_manager
    manager.flush_log(log, lambda error, now_ms: None, node.now_ms)
    node.handle(DeadlineReached())
    checkpoint = Path(log.directory).parent / "recovery-point-offset-checkpoint"
    manager.log_manager.checkpoints.write_all(manager.log_manager.log_dir_of(log), FileKind.RECOVERY_POINT_CHECKPOINT)
    manager.take_log_flushes(node.now_ms)
    node.handle(DeadlineReached())
    assert (log.recovery_point, "t 0 3" in checkpoint.read_text().splitlines()) == (4, True)
    leaders.answer(asked, fetched({("t", 0): diverging(0, 1)}))
    node.handle(DeadlineReached())
    assert (log.recovery_point, "t 0 0" in checkpoint.read_text().splitlines()) == (1, True)
    node.holds_flushes = True
    copy(leaders, *(of_leader(offset, 0, b"v") for offset in range(1, 4)))
    manager.flush_log(log, lambda error, now_ms: None, node.now_ms)
    place(node, leader=OTHER, epoch=2)
    node.advance(0)
    leaders.answer(leaders.waiting.pop(), fetched({("t", 0): diverging(0, 1)}))
    leaders.answer(leaders.waiting.pop(), fetched({("t", 0): part(0, of_leader(1, 2, b"w", b"x", b"y"))}))
    assert log.log_end_offset == 4
    while node.held:
        node.release_flushes()
    assert log.recovery_point == 1


# ------------------------------------------------------------------------------------------------------------- errors


def test_a_corrupt_batch_is_fetched_again_and_never_appended(node: WholeNode, leaders: Leaders) -> None:
    """One line, a moment's patience, then the leader's good copy; the partitions next to it go on."""
    place(node)
    place(node, "u")
    bad = bytearray(of_leader(0, 0, b"value"))
    bad[-1] ^= 1
    good = of_leader(0, 0, b"other")
    leaders.answer(leaders.next(), fetched({("t", 0): part(0, bytes(bad)), ("u", 0): part(0, good)}))
    assert (bytes_of(log_of(node)), bytes_of(log_of(node, "u"))) == (b"", good)
    (line,) = [line for line in node.lines if "CRC" in line]
    assert "t-0 from offset 0" in line and "broker 2" in line
    asked = leaders.next()
    assert set(asked.partitions()) == {("u", 0)}
    leaders.answer(asked, fetched({}))
    node.advance(FIRST_DELAY_MS)
    leaders.answer(leaders.next(), fetched({}))
    asked = leaders.next()
    assert asked.partitions()["t", 0].fetch_offset == 0
    leaders.answer(asked, fetched({("t", 0): part(0, of_leader(0, 0, b"value"))}))
    assert log_of(node).log_end_offset == 1


@pytest.mark.parametrize("offset", [-5, INT64_MAX])
def test_a_batch_with_impossible_offsets_is_not_appended(node: WholeNode, leaders: Leaders, offset: int) -> None:
    """The CRC does not cover the base offset; the next fetch cannot even ask from behind 2^63 - 1."""
    place(node)
    place(node, "u")
    good = of_leader(0, 0, b"good")
    leaders.answer(leaders.next(), fetched({("t", 0): part(0, of_leader(offset, 0, b"a")), ("u", 0): part(0, good)}))
    assert (bytes_of(log_of(node)), log_of(node).log_end_offset, bytes_of(log_of(node, "u"))) == (b"", 0, good)
    (line,) = [line for line in node.lines if "fetched again" in line]
    assert "t-0 from offset 0" in line and f"{offset} to {offset}" in line
    leaders.answer(leaders.next(), fetched({}))
    node.advance(FIRST_DELAY_MS)
    leaders.answer(leaders.next(), fetched({}))
    assert leaders.next().partitions()["t", 0].fetch_offset == 0


def test_an_unexpected_error_ends_the_fetches_of_its_partition_only(
    node: WholeNode, leaders: Leaders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in Kafka, until its next leader epoch; the node's log has the error."""
    place(node)
    place(node, "u")
    bad, append = log_of(node), UnifiedLog.append_as_follower

    def fails(log: UnifiedLog, *args: Any) -> LogAppendInfo:
        if log is bad:
            raise ValueError("unexpected")
        return append(log, *args)

    monkeypatch.setattr(UnifiedLog, "append_as_follower", fails)
    records = of_leader(0, 0, b"a")
    leaders.answer(leaders.next(), fetched({("t", 0): part(0, records), ("u", 0): part(0, records)}))
    assert (log_of(node, "u").log_end_offset, list(fetchers(node).failed)) == (1, [("t", 0)])
    (line,) = [line for line in node.lines if "a fault of kcli" in line]
    assert "copying t-0 from broker 2" in line and "ValueError('unexpected')" in line
    assert set(leaders.next().partitions()) == {("u", 0)}


def test_records_of_a_later_leader_are_not_appended(node: WholeNode, leaders: Leaders) -> None:
    """KAFKA-18723: the leader changed since it was asked, and may cut off what this answer has."""
    place(node, epoch=1)
    leaders.answer(leaders.next(), fetched({("t", 0): part(0, of_leader(0, 1, b"a") + of_leader(1, 2, b"b"))}))
    assert log_of(node).log_end_offset == 1
    leaders.answer(leaders.next(), fetched({("t", 0): part(0, of_leader(1, 2, b"b"))}))
    assert log_of(node).log_end_offset == 1


@pytest.mark.parametrize(
    "code",
    [
        error_codes.UNKNOWN_LEADER_EPOCH,
        error_codes.NOT_LEADER_OR_FOLLOWER,
        error_codes.UNKNOWN_TOPIC_ID,
        error_codes.INCONSISTENT_TOPIC_ID,
        error_codes.KAFKA_STORAGE_ERROR,
    ],
)
def test_errors_of_a_partition_delay_it(node: WholeNode, leaders: Leaders, code: int) -> None:
    """Longer each time, up to replica.fetch.backoff.ms; an answer without an error ends that."""
    place(node)
    for delay_ms in (FIRST_DELAY_MS, 2 * FIRST_DELAY_MS):
        leaders.answer(leaders.next(), fetched({("t", 0): part(0, error_code=code, high_watermark=-1)}))
        node.advance(delay_ms - 1)
        assert leaders.waiting == []
        node.advance(1)
    for _ in range(8):
        leaders.answer(leaders.next(), fetched({("t", 0): part(0, error_code=code, high_watermark=-1)}))
        node.advance(BACKOFF_MS)
    leaders.answer(leaders.next(), fetched({("t", 0): part(0)}))
    leaders.answer(leaders.next(), fetched({("t", 0): part(0, error_code=code, high_watermark=-1)}))
    node.advance(FIRST_DELAY_MS)
    leaders.next()


def test_a_fenced_epoch_waits_for_the_next_one(node: WholeNode, leaders: Leaders) -> None:
    """The leader has newer metadata than this broker, which counts the partition as failed until it has it, too. Nothing is
    logged at INFO: there was a line for each partition at each election."""
    place(node)
    lines = list(node.lines)
    code = error_codes.FENCED_LEADER_EPOCH
    leaders.answer(leaders.next(), fetched({("t", 0): part(0, error_code=code, high_watermark=-1)}))
    node.advance(10 * BACKOFF_MS)
    assert leaders.waiting == []
    assert list(fetchers(node).failed) == [("t", 0)]
    assert node.lines == lines
    place(node, epoch=1)
    assert leaders.next().partitions()["t", 0].current_leader_epoch == 1
    assert not fetchers(node).failed


def test_a_connection_that_ends_is_made_again_with_a_new_session(node: WholeNode, leaders: Leaders) -> None:
    place(node)
    asked = copy(leaders, of_leader(0, 0, b"a"))
    leaders.answer(asked, PeerFailure.DISCONNECTED)
    node.advance(BACKOFF_MS - 1)
    assert leaders.waiting == []
    node.advance(1)
    asked = leaders.next()
    assert (asked.message.session_id, asked.message.session_epoch) == (9, 0)
    assert asked.partitions()["t", 0].fetch_offset == 1


def test_a_session_that_the_leader_has_dropped_is_made_again_at_once(node: WholeNode, leaders: Leaders) -> None:
    place(node)
    asked = copy(leaders, of_leader(0, 0, b"a"))
    leaders.answer(asked, fetched({}, error_code=error_codes.FETCH_SESSION_ID_NOT_FOUND))
    asked = leaders.next()
    assert (asked.message.session_id, asked.message.session_epoch, asked.partitions()["t", 0].fetch_offset) == (0, 0, 1)


# ----------------------------------------------------------------------------------------------------------- metadata


def test_what_comes_after_a_partition_was_taken_over_is_not_appended(node: WholeNode, leaders: Leaders) -> None:
    """The fetcher goes before this broker leads; the connection without partitions is closed."""
    place(node)
    asked = leaders.next()
    place(node, leader=HERE, epoch=1, isr=[HERE])
    asked.answered(fetched({("t", 0): part(0, of_leader(0, 0, b"a"))}), node.now_ms)
    node.advance(0)
    assert log_of(node).log_end_offset == 0
    assert leaders.closed == [PeerNode(LEADER, NodeRole.BROKER, "fetcher-0")]
    assert not fetchers(node).fetchers


def test_the_same_leader_epoch_leaves_the_fetcher_alone(node: WholeNode, leaders: Leaders) -> None:
    """A change of the ISR costs no session."""
    place(node)
    asked = leaders.next()
    change = new_record("PartitionChangeRecord", topic_id=id_of("t"), partition_id=0, isr=[LEADER, HERE])
    node.publish([change])
    leaders.answer(asked, fetched({("t", 0): part(0, of_leader(0, 0, b"a"))}))
    assert log_of(node).log_end_offset == 1


def test_a_partition_without_a_leader_is_not_fetched(node: WholeNode, leaders: Leaders) -> None:
    place(node)
    leaders.next()
    place(node, leader=-1, epoch=1)
    node.advance(BACKOFF_MS)
    assert leaders.waiting == [] and not fetchers(node).fetchers


def test_a_topic_that_is_deleted_is_not_fetched(node: WholeNode, leaders: Leaders) -> None:
    place(node)
    asked = leaders.next()
    node.publish([new_record("RemoveTopicRecord", topic_id=id_of("t"))])
    asked.answered(fetched({("t", 0): part(0, of_leader(0, 0, b"a"))}), node.now_ms)
    node.advance(BACKOFF_MS)
    assert leaders.waiting == [] and not fetchers(node).fetchers and not fetchers(node).failed
    place(node)
    assert leaders.next().partitions()["t", 0].fetch_offset == 0


def test_a_log_directory_that_fails_ends_the_fetches_of_its_partitions(node: WholeNode, leaders: Leaders) -> None:
    place(node)
    asked = leaders.next()
    partition = node.broker.replica_manager.partition("t", 0)
    assert partition is not None
    partition.log = None
    leaders.answer(asked, fetched({("t", 0): part(0, of_leader(0, 0, b"a"))}))
    assert list(fetchers(node).failed) == [("t", 0)]
    assert any("log directory is offline" in line for line in node.lines)


def test_metrics_say_how_far_behind_the_copies_are(node: WholeNode, leaders: Leaders) -> None:
    """Kafka's MaxLag, FailedPartitionsCount, ConsumerLag and ReplicationBytesInPerSec."""
    place(node)
    place(node, "u")
    records = of_leader(0, 0, b"a")
    code = error_codes.FENCED_LEADER_EPOCH
    leaders.answer(leaders.next(), fetched({("t", 0): part(0, records, 8), ("u", 0): part(0, error_code=code)}))
    raw = RawSamples()
    for _ in sample(raw, node.broker, None, node.node.quorum.client, node.now_ms):
        pass
    found = named(raw)
    assert found["kafka_server_replicafetchermanager_maxlag"] == [(("Replica",), 7)]
    assert found["kafka_server_replicafetchermanager_failedpartitionscount"] == [(("Replica",), 1)]
    assert found["kafka_server_fetcherlagmetrics_consumerlag"] == [(("broker-1-fetcher-0", "t", "0"), 7)]
    assert found["kafka_server_brokertopicmetrics_replicationbytesin_total"] == [((), len(records))]


def test_a_follower_refuses_a_batch_of_a_transaction_as_any_other(node: WholeNode, leaders: Leaders) -> None:
    """A client whose metadata is old asks the earlier leader. It got INVALID_TXN_STATE, which ends a transaction."""
    place(node)
    request = produce_request({("t", 0): batch(b"a", attributes=16, producer_id=1, producer_epoch=0, base_sequence=0)}, -1)
    request.transactional_id = "x"
    pending = node.send(PRODUCE, 12, request)
    assert only(pending).error_code == error_codes.NOT_LEADER_OR_FOLLOWER


def test_a_throttled_partition_waits_while_the_rate_is_exceeded(node: WholeNode, leaders: Leaders) -> None:
    """Only one that is behind, and that the topic's list names for this broker; the others go on."""
    place(node)
    place(node, "u")
    node.broker.config.update({"follower.replication.throttled.rate": "50"}, {})
    ids = {"resource_type": 2, "resource_name": "t", "name": "follower.replication.throttled.replicas"}
    node.publish([new_record("ConfigRecord", **ids, value="0:2,0:1,1:3")])
    records = of_leader(0, 0, b"v" * 430)  # 500 bytes
    assert len(records) == 500
    leaders.answer(leaders.next(), fetched({("t", 0): part(0, records, 9), ("u", 0): part(0, records, 9)}))
    asked = leaders.next()
    assert set(asked.partitions()) == {("u", 0)}
    assert [(topic.topic_id, topic.partitions) for topic in asked.message.forgotten_topics_data] == [(id_of("t"), [0])]
    leaders.answer(asked, fetched({}))
    for _ in range(9):
        node.advance(1000)
        asked = leaders.next()
        assert ("t", 0) not in asked.partitions(), "500 bytes are 50 a second after 10 s"
        leaders.answer(asked, fetched({}))
    node.advance(1100)
    leaders.answer(leaders.next(), fetched({}))
    assert leaders.next().partitions()["t", 0].fetch_offset == 1
    node.publish([new_record("ConfigRecord", **ids, value="0:2")])
    assert not fetchers(node).quota.is_throttled(("t", 0))
    node.publish([new_record("ConfigRecord", **ids, value="*")])
    assert fetchers(node).quota.is_throttled(("t", 0))
