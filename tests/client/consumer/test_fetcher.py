"""Protects what a consumer asks brokers for and makes of their answers: sessions, errors, leaders, truncation, memory."""

from __future__ import annotations

from typing import Any

import pytest

from kcli.client.consumer.subscription_state import EARLIEST, EARLIEST_TIMESTAMP, FetchState, NoOffsetForPartitionError
from kcli.client.errors import (
    FetchedRecordError,
    IllegalStateError,
    KafkaError,
    LogTruncationError,
    OffsetOutOfRangeError,
    TopicRecreatedError,
    UnsupportedVersionError,
    WakeupError,
)
from kcli.format.records import Record
from kcli.log.report_line import is_info
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, API_VERSIONS, FETCH, LIST_OFFSETS, OFFSET_FOR_LEADER_EPOCH
from tests.client.consumer import fake_cluster
from tests.client.consumer.fake_cluster import TOPIC_ID, FakeCluster, fetch_answer
from tests.client.consumer.test_completed_fetch import batch

T0, T1 = ("t", 0), ("t", 1)


def records(base: int, count: int = 3) -> bytes:
    return batch(base, [Record(index, 0, None, b"%d" % (base + index)) for index in range(count)])


def listed(offsets: dict[int, int]) -> Any:
    """A handler of ListOffsets that answers by partition."""
    kind = API_KEYS[LIST_OFFSETS].response

    def handle(node_id: int, message: Any, version: int) -> Any:
        topics = []
        for topic in message.topics:
            found = [
                kind.classes["ListOffsetsPartitionResponse"](
                    partition_index=one.partition_index, offset=offsets[one.partition_index]
                )
                for one in topic.partitions
            ]
            topics.append(kind.classes["ListOffsetsTopicResponse"](name=topic.name, partitions=found))
        return kind.new(topics=topics)

    return handle


def reading(partitions: int = 1, offset: int = 0, **settings: Any) -> FakeCluster:
    """A consumer that has asked for records from `offset` on; its Fetch requests wait for answers."""
    cluster = FakeCluster(partitions, **settings)
    assigned = [("t", index) for index in range(partitions)]

    def start(now_ms: int) -> None:
        cluster.core.assign(assigned, now_ms)
        for partition in assigned:
            cluster.core.seek(partition, offset, -1, now_ms)

    cluster.call(start)
    cluster.advance(1000 if not cluster.held else 0)
    assert [one.api_key for one in cluster.held] == [FETCH]
    return cluster


def asked(cluster: FakeCluster) -> dict[int, int]:
    """The offsets in the newest Fetch, by partition."""
    message = cluster.requests(FETCH)[-1].message
    return {one.partition: one.fetch_offset for topic in message.topics for one in topic.partitions}


def offsets(found: list[Any]) -> list[int]:
    return [one.offset for one in found]


def test_offsets_of_a_partition_without_a_leader_are_not_found_for_that_reason() -> None:
    cluster = FakeCluster(2)
    cluster.leaders = {0: (-1, 3), 1: (1, 3)}
    cluster.handlers[LIST_OFFSETS] = listed({0: 4, 1: 5})
    found: list[Any] = []
    wanted = {T0: EARLIEST_TIMESTAMP, T1: EARLIEST_TIMESTAMP}
    cluster.call(lambda now_ms: cluster.core.assign([T0, T1], now_ms))
    cluster.call(lambda now_ms: cluster.core.list_offsets(wanted, lambda result, _: found.append(result), now_ms, 3_000))
    cluster.advance(4_000)
    assert [str(one) for one in found] == ["the offsets of t-0 were not found in time (there is no leader of t-0)"]


def test_a_new_leader_is_read_while_the_old_one_accepts_connections_and_never_answers() -> None:
    """A broker that is stopped (SIGSTOP) before the consumer connects: its partitions are read from the next leader."""
    cluster = FakeCluster()
    cluster.leaders[0] = (2, 0)
    cluster.silent.add(2)
    cluster.handlers[LIST_OFFSETS] = listed({0: 4})
    cluster.call(lambda now_ms: cluster.core.assign([T0], now_ms))
    cluster.advance(3_000)
    assert sorted(one.node_id for one in cluster.requests(API_VERSIONS)) == [1, 1, 2]
    cluster.leaders[0] = (1, 1)
    cluster.advance(12_000)
    assert [(one.node_id, one.api_key) for one in cluster.held] == [(1, FETCH)] and asked(cluster) == {0: 4}


def test_a_session_sends_only_what_changed() -> None:
    """Full first, then incremental; a partition that is paused or has its answers is forgotten, and comes back."""
    cluster = reading(2)
    first = cluster.held[0].message
    assert (first.session_id, first.session_epoch, asked(cluster)) == (0, 0, {0: 0, 1: 0})
    assert first.topics[0].topic_id == TOPIC_ID
    cluster.answer(fetch_answer(7, p0={"records": records(0)}, p1={}))
    second = cluster.held[0].message
    assert (second.session_id, second.session_epoch, asked(cluster)) == (7, 1, {0: 3})
    cluster.answer(fetch_answer(7, p0={"records": records(3)}))
    third = cluster.held[0].message
    assert (third.session_epoch, asked(cluster)) == (2, {})
    assert [(one.topic_id, one.partitions) for one in third.forgotten_topics_data] == [(TOPIC_ID, [0])]
    assert offsets(cluster.poll()) == [0, 1, 2, 3, 4, 5]
    cluster.answer(fetch_answer(7))
    assert asked(cluster) == {0: 6} and cluster.held[0].message.session_epoch == 3


@pytest.mark.parametrize("code", [error_codes.FETCH_SESSION_ID_NOT_FOUND, error_codes.INVALID_FETCH_SESSION_EPOCH])
def test_a_session_that_the_broker_dropped_is_made_again(code: int) -> None:
    """Each restart of a broker leads to it: the line is of level INFO, as the Java client's."""
    cluster = reading()
    cluster.answer(fetch_answer(7, p0={}))
    cluster.answer(fetch_answer(0, error_code=code))
    cluster.advance(200)
    again = cluster.held[0].message
    assert (again.session_epoch, asked(cluster)) == (0, {0: 0})
    assert again.session_id == (0 if code == error_codes.FETCH_SESSION_ID_NOT_FOUND else 7)
    (line,) = cluster.lines
    assert is_info(line) and error_codes.NAMES[code] in line


@pytest.mark.parametrize(
    "answer",
    [
        lambda: fetch_answer(7, p0={"records": records(0)}, p5={}),
        lambda: fetch_answer(7),
        lambda: fetch_answer(7, p0={"records": records(0)}, p1={}, p00={}),
    ],
    ids=["not asked for", "missing", "twice"],
)
def test_an_answer_that_does_not_fit_its_request_is_not_used(answer: Any) -> None:
    cluster = reading(2)
    cluster.answer(answer())
    assert cluster.poll() == []
    (line,) = cluster.lines
    assert not is_info(line), "a fault of the broker, or of this client"
    cluster.advance(200)
    assert cluster.held[0].message.session_epoch == 0
    cluster.answer(fetch_answer(7, p0={"records": records(0)}, p1={}))
    assert offsets(cluster.poll()) == [0, 1, 2]


def test_a_connection_that_ends_costs_nothing_but_time() -> None:
    cluster = reading()
    cluster.answer(fetch_answer(7, p0={"records": records(0)}))
    cluster.disconnect()
    assert offsets(cluster.poll()) == [0, 1, 2]
    cluster.advance(2000)
    assert (cluster.held[0].message.session_epoch, asked(cluster)) == (0, {0: 3})


def test_an_answer_to_an_earlier_position_is_dropped() -> None:
    """One that came before the seek, and one that comes after it."""
    cluster = reading()
    cluster.answer(fetch_answer(7, p0={"records": records(0)}))
    cluster.call(lambda now_ms: cluster.core.seek(T0, 50, -1, now_ms))
    cluster.answer(fetch_answer(7, p0={"records": records(3)}))
    assert cluster.poll() == []
    assert asked(cluster) == {0: 50}
    cluster.answer(fetch_answer(7, p0={"records": records(50)}))
    assert offsets(cluster.poll()) == [50, 51, 52]


def test_a_paused_partition_keeps_its_records() -> None:
    cluster = reading(2)
    cluster.answer(fetch_answer(7, p0={"records": records(0)}, p1={"records": records(10)}))
    cluster.call(lambda now_ms: cluster.core.subscriptions.pause([T0]))
    cluster.call(lambda now_ms: cluster.core.seek(T1, 0, -1, now_ms))
    assert cluster.poll() == []
    cluster.call(lambda now_ms: cluster.core.resume([T0], now_ms))
    assert offsets(cluster.poll()) == [0, 1, 2]


def test_an_offset_out_of_range_is_reset_or_raised() -> None:
    cluster = reading(offset=70)
    cluster.handlers[LIST_OFFSETS] = listed({0: 20})
    cluster.answer(fetch_answer(7, p0={"error_code": error_codes.OFFSET_OUT_OF_RANGE}))
    cluster.advance(200)
    assert asked(cluster) == {0: 20}
    cluster = reading(offset=70, auto_offset_reset="none")
    cluster.answer(fetch_answer(7, p0={"error_code": error_codes.OFFSET_OUT_OF_RANGE}))
    with pytest.raises(OffsetOutOfRangeError, match="t-0@70"):
        cluster.poll()
    cluster.call(lambda now_ms: cluster.core.seek(T0, 5, -1, now_ms))
    cluster.advance(200)
    assert asked(cluster) == {0: 5}


def test_the_leader_that_an_answer_names_is_asked_next() -> None:
    """KIP-951: without waiting for metadata."""
    cluster = reading()
    cluster.leaders[0] = (2, 4)
    cluster.answer(fetch_answer(7, p0={"error_code": error_codes.NOT_LEADER_OR_FOLLOWER, "leader": (2, 4)}))
    cluster.advance(150)
    assert cluster.held[-1].node_id == 2 and asked(cluster) == {0: 0}
    assert cluster.requests(FETCH)[-1].message.topics[0].partitions[0].current_leader_epoch == 4


def test_the_preferred_replica_is_asked_until_it_fails() -> None:
    """KIP-392: an offset that a follower does not have is asked of the leader."""
    cluster = reading(client_rack="r")
    assert cluster.held[0].message.rack_id == "r"
    cluster.answer(fetch_answer(7, p0={"preferred_read_replica": 2}))
    assert cluster.held[0].node_id == 2
    cluster.answer(fetch_answer(8, p0={"error_code": error_codes.OFFSET_OUT_OF_RANGE}))
    cluster.advance(200)
    assert cluster.held[0].node_id == 1 and cluster.core.subscriptions.state_of(T0).state is FetchState.FETCHING


@pytest.mark.parametrize("strategy", ["earliest", "none"])
def test_a_truncated_log_is_found_when_the_leader_changes(strategy: str) -> None:
    """KIP-320: the position goes back to the end of the common log; without a strategy the application decides."""
    cluster = reading(auto_offset_reset=strategy)
    cluster.answer(fetch_answer(7, p0={"records": records(0, 10)}))
    assert len(cluster.poll()) == 10
    kind = API_KEYS[OFFSET_FOR_LEADER_EPOCH].response

    def epochs(node_id: int, message: Any, version: int) -> Any:
        one = message.topics[0].partitions[0]
        assert (node_id, one.leader_epoch, one.current_leader_epoch) == (2, 0, 1)
        found = kind.classes["EpochEndOffset"](partition=0, leader_epoch=0, end_offset=6)
        return kind.new(topics=[kind.classes["OffsetForLeaderTopicResult"](topic="t", partitions=[found])])

    cluster.handlers[OFFSET_FOR_LEADER_EPOCH] = epochs
    cluster.leaders[0] = (2, 1)
    cluster.answer(fetch_answer(7, p0={"error_code": error_codes.FENCED_LEADER_EPOCH}))
    cluster.advance(300)
    if strategy == "none":
        with pytest.raises(LogTruncationError) as caught:
            cluster.poll()
        assert caught.value.diverging_offsets == {T0: 6}
    else:
        assert cluster.held[-1].node_id == 2 and asked(cluster) == {0: 6}


def test_a_leader_without_an_offset_is_asked_again_after_the_backoff() -> None:
    """An answer without an error and without an offset; it was asked again at once, and again."""
    cluster = FakeCluster(auto_offset_reset="latest")
    answers = 0

    def handle(node_id: int, message: Any, version: int) -> Any:
        nonlocal answers
        answers += 1
        return listed({0: -1 if answers < 3 else 7})(node_id, message, version)

    cluster.handlers[LIST_OFFSETS] = handle
    cluster.call(lambda now_ms: cluster.core.assign([T0], now_ms))
    cluster.advance(120)  # with the metadata
    assert answers == 1
    cluster.advance(1000)
    assert answers == 3 and asked(cluster) == {0: 7}


def test_a_topic_that_was_made_again_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its leader epochs begin again: with the epoch of the old topic the broker would answer UNKNOWN_LEADER_EPOCH for ever."""
    cluster = reading()
    cluster.handlers[LIST_OFFSETS] = listed({0: 0})

    def refused(code: int, times: int) -> tuple[bool, int]:
        """Refuse what is asked for until new metadata are there; return whether the next Fetch has the id of the topic,
        and its leader epoch."""
        topic_id = fake_cluster.TOPIC_ID
        for _ in range(times):
            answer = fetch_answer(7, p0={"error_code": code})
            answer.responses[0].topic_id = TOPIC_ID
            cluster.answer(answer)
            cluster.advance(300)
        assert cluster.poll() == []
        (topic,) = cluster.requests(FETCH)[-1].message.topics
        return topic.topic_id == topic_id, topic.partitions[0].current_leader_epoch

    cluster.leaders[0] = (1, 5)
    assert refused(error_codes.FENCED_LEADER_EPOCH, 2) == (True, 5)
    cluster.leaders[0] = (1, 0)
    monkeypatch.setattr(fake_cluster, "TOPIC_ID", bytes(15) + b"\x02")
    assert refused(error_codes.UNKNOWN_TOPIC_ID, 1) == (True, 0)


def made_again(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Have the metadata name another topic `t`; what is fetched of the one before it is refused."""
    old_id, new_id = fake_cluster.TOPIC_ID, bytes(15) + bytes([number])
    monkeypatch.setattr(fake_cluster, "TOPIC_ID", new_id)
    while cluster.held and new_id not in {one.topic_id for one in cluster.requests(FETCH)[-1].message.topics}:
        answer = fetch_answer(7, p0={"error_code": error_codes.UNKNOWN_TOPIC_ID})
        answer.responses[0].topic_id = old_id
        cluster.answer(answer)
        cluster.advance(300)


def test_a_topic_that_was_made_again_is_not_read_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The offset in the old topic is one in the new topic by chance alone: what is before it would be skipped."""
    cluster = reading(offset=50)
    cluster.handlers[LIST_OFFSETS] = listed({0: 2})
    cluster.answer(fetch_answer(7, p0={"records": records(50)}))
    assert offsets(cluster.poll()) == [50, 51, 52]
    made_again(cluster, monkeypatch, 2)
    assert asked(cluster) == {0: 2} and cluster.poll() == []
    assert [line for line in cluster.lines if "deleted and created again: offset 53 of t-0" in line]
    answer = fetch_answer(7, p0={"records": records(2)})
    answer.responses[0].topic_id = fake_cluster.TOPIC_ID
    cluster.answer(answer)
    assert offsets(cluster.poll()) == [2, 3, 4]
    made_again(cluster, monkeypatch, 1)  # of a broker that is behind
    assert asked(cluster) == {0: 5}


def test_without_a_reset_strategy_a_topic_that_was_made_again_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = reading(offset=50, auto_offset_reset="none")
    made_again(cluster, monkeypatch, 2)
    with pytest.raises(TopicRecreatedError, match=r"the topic of t-0@50 was deleted and created again") as caught:
        cluster.poll()
    assert caught.value.offsets == {T0: 50}
    with pytest.raises(NoOffsetForPartitionError):
        cluster.poll()
    assert not cluster.held
    cluster.call(lambda now_ms: cluster.core.seek(T0, 1, -1, now_ms))
    assert asked(cluster) == {0: 1}


def test_errors_that_pass_are_tried_again_and_others_raised() -> None:
    cluster = reading()
    for code in (error_codes.UNKNOWN_LEADER_EPOCH, error_codes.UNKNOWN_TOPIC_ID, error_codes.KAFKA_STORAGE_ERROR):
        before = len(cluster.requests(FETCH))
        cluster.answer(fetch_answer(7, p0={"error_code": code}))
        assert cluster.poll() == []
        assert cluster.held == []
        cluster.advance(300)
        assert len(cluster.requests(FETCH)) == before + 1 and asked(cluster) == {}  # the session has it, at the same offset
    cluster.answer(fetch_answer(7, p0={"error_code": error_codes.TOPIC_AUTHORIZATION_FAILED}))
    with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED"):
        cluster.poll()


def test_memory_is_bounded_by_fetch_max_bytes() -> None:
    """A consumer that does not poll asks for two answers a partition at most, and for less bytes the more wait."""
    cluster = reading(fetch_max_bytes=1000, max_partition_fetch_bytes=500)
    assert cluster.held[0].message.max_bytes == 1000
    cluster.answer(fetch_answer(7, p0={"records": batch(0, [Record(0, 0, None, b"x" * 300)])}))
    assert asked(cluster) == {0: 1}
    cluster.answer(fetch_answer(7, p0={"records": batch(1, [Record(0, 0, None, b"x" * 900)])}))
    cluster.advance(2000)
    assert cluster.held == [] and cluster.core.fetcher.buffer.size_bytes < 2000
    assert offsets(cluster.poll()) == [0, 1]
    assert asked(cluster) == {0: 2}


def test_bytes_without_a_whole_batch_are_an_error() -> None:
    """Else they would be asked for again and again."""
    cluster = reading()
    cluster.answer(fetch_answer(7, p0={"records": records(0)[:-1]}))
    with pytest.raises(FetchedRecordError, match=r"t-0@0: the broker sent .* no whole batch"):
        cluster.poll()


def test_positions_that_are_not_there() -> None:
    """Without subscription, without offsets; and `position` waits for what is looked up."""
    cluster = FakeCluster(auto_offset_reset="none")
    with pytest.raises(IllegalStateError, match="subscribe or assign"):
        cluster.poll()
    cluster.call(lambda now_ms: cluster.core.assign([T0], now_ms))
    with pytest.raises(NoOffsetForPartitionError, match="t-0"):
        cluster.poll()
    cluster = FakeCluster()
    cluster.handlers[LIST_OFFSETS] = listed({0: 4})
    cluster.call(lambda now_ms: cluster.core.assign([T0], now_ms))
    found: list[Any] = []
    cluster.call(lambda now_ms: cluster.core.position(T0, lambda result, now_ms: found.append(result), now_ms, 5000))
    cluster.advance(1000)
    assert found == [4]


def test_a_wakeup_ends_a_wait_and_is_raised_once() -> None:
    cluster = reading()
    ends: list[Any] = []
    cluster.call(lambda now_ms: cluster.core.await_work(lambda result, now_ms: ends.append(result), now_ms, 5000))
    assert ends == []
    cluster.call(cluster.core.wakeup)
    assert ends == [None]
    with pytest.raises(WakeupError):
        cluster.poll()
    assert cluster.poll() == []


def test_metrics_have_kafkas_names() -> None:
    cluster = reading()
    cluster.advance(20)
    cluster.answer(fetch_answer(7, p0={"records": records(0), "high_watermark": 10}))
    cluster.poll()
    values = cluster.core.fetcher.metrics.values(cluster.now_ms)
    assert (values["records-consumed-total"], values["fetch-latency-max"], values["records-lag-max"]) == (3, 20, 7)


def test_close_ends_the_sessions() -> None:
    cluster = reading()
    cluster.answer(fetch_answer(7, p0={}))
    done: list[Any] = []
    cluster.held.clear()
    cluster.call(lambda now_ms: cluster.core.close(lambda error, now_ms: done.append(error), now_ms))
    last = cluster.requests(FETCH)[-1].message
    assert done == [None] and (last.session_id, last.session_epoch) == (7, -1)


def test_an_answer_to_an_earlier_reset_is_not_the_answer_to_a_later_one() -> None:
    """Else seek_to_beginning, called while the end is looked up, would continue at the end: all records would be lost."""
    cluster = FakeCluster(auto_offset_reset="latest")
    cluster.call(lambda now_ms: cluster.core.assign([T0], now_ms))
    cluster.advance(100)
    assert [(one.api_key, one.message.topics[0].partitions[0].timestamp) for one in cluster.held] == [(LIST_OFFSETS, -1)]
    cluster.call(lambda now_ms: cluster.core.reset([T0], EARLIEST, now_ms))
    cluster.answer(listed({0: 90})(1, cluster.held[0].message, 1))
    assert [(one.api_key, one.message.topics[0].partitions[0].timestamp) for one in cluster.held] == [(LIST_OFFSETS, -2)]
    cluster.answer(listed({0: 5})(1, cluster.held[0].message, 1))
    assert asked(cluster) == {0: 5}


def test_records_of_one_partition_are_not_lost_by_an_error_of_another() -> None:
    """The next poll raises it."""
    cluster = reading(2)
    cluster.answer(fetch_answer(7, p0={"records": records(0)}, p1={"records": records(0)[:-1]}))
    assert offsets(cluster.poll()) == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(FetchedRecordError, match=r"t-1@0: the broker sent .* no whole batch"):
            cluster.poll()


class Broken:
    """A deserializer that is interrupted at the fourth record."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.count = 0

    def __call__(self, data: bytes) -> bytes:
        self.count += 1
        if self.count == 4:
            raise self.error
        return data


def test_records_that_were_taken_before_an_interruption_are_returned_later() -> None:
    cluster = reading(2)
    cluster.answer(fetch_answer(7, p0={"records": records(0)}, p1={"records": records(10)}))
    with pytest.raises(KeyboardInterrupt):
        cluster.call(lambda now_ms: cluster.core.collect(now_ms, None, Broken(KeyboardInterrupt())))
    assert [cluster.core.subscriptions.state_of(one).position.offset for one in (T0, T1)] == [0, 0]  # type: ignore[union-attr]
    cluster.answer(fetch_answer(7))
    assert asked(cluster) == {0: 0, 1: 0}


def test_an_unexpected_error_of_one_answer_is_raised_by_the_next_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = reading(2)
    cluster.answer(fetch_answer(7, p0={"records": records(0)}, p1={"records": records(0)}))
    buffer = cluster.core.fetcher.buffer

    class Unreadable:
        """An answer as it is when its codec raises what it should not."""

        error: Any = None
        next_offset, last_epoch, is_drained, size_bytes = 0, -1, False, 10

        def take(self, *words: Any) -> int:
            raise self.error or ValueError("a fault")

        def discard(self) -> None:
            pass

    monkeypatch.setattr(buffer._chains[T1][0], "fetch", Unreadable())
    assert offsets(cluster.poll()) == [0, 1, 2]
    with pytest.raises(FetchedRecordError, match="t-1@0: the record cannot be read: ValueError: a fault"):
        cluster.poll()


def test_errors_of_an_earlier_position_are_not_raised() -> None:
    """An application that does not poll gets one error for each partition and kind, and none after it has sought."""
    cluster = reading(2, offset=70, auto_offset_reset="none")
    lost = error_codes.OFFSET_OUT_OF_RANGE
    for _ in range(5):
        cluster.answer(fetch_answer(7, p0={"error_code": lost}, p1={"error_code": lost}))
        cluster.advance(200)
    assert len(cluster.core.errors) == 2
    cluster.call(lambda now_ms: cluster.core.seek(T0, 5, -1, now_ms))
    with pytest.raises(OffsetOutOfRangeError, match="t-1@70"):
        cluster.poll()
    assert cluster.poll() == []
    cluster.answer(fetch_answer(7, p0={}, p1={"error_code": lost}))
    assert len(cluster.core.errors) == 1
    cluster.call(lambda now_ms: cluster.core.assign([T0], now_ms))
    assert cluster.poll() == []


def test_a_caller_of_position_does_not_wait_for_what_only_it_can_set() -> None:
    cluster = FakeCluster(auto_offset_reset="none")
    cluster.call(lambda now_ms: cluster.core.assign([T0], now_ms))
    found: list[Any] = []
    cluster.call(lambda now_ms: cluster.core.position(T0, lambda result, now_ms: found.append(result), now_ms, 60_000))
    assert [type(one) for one in found] == [NoOffsetForPartitionError]


def test_fetching_ahead_of_an_offset_out_of_range_backs_off() -> None:
    """While the records before it are buffered, the broker is not asked again at once."""
    cluster = reading()

    def reset(*words: Any) -> Any:
        del cluster.handlers[FETCH]
        return listed({0: 50})(*words)

    cluster.handlers[LIST_OFFSETS] = reset
    cluster.answer(fetch_answer(7, p0={"records": records(0)}))
    cluster.handlers[FETCH] = lambda *words: fetch_answer(7, p0={"error_code": error_codes.OFFSET_OUT_OF_RANGE})
    before = len(cluster.requests(FETCH))
    cluster.answer(fetch_answer(7, p0={"error_code": error_codes.OFFSET_OUT_OF_RANGE}))
    cluster.advance(1000)
    assert len(cluster.requests(FETCH)) - before <= 10
    assert offsets(cluster.poll()) == [0, 1, 2]
    cluster.advance(500)
    assert asked(cluster) == {0: 50}


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda core, now_ms: core.seek(T0, 2**63, -1, now_ms),
            "an offset must be a whole number from 0 to 9223372036854775807",
        ),
        (lambda core, now_ms: core.seek(T0, -1, -1, now_ms), "an offset must be .*, not -1"),
        (lambda core, now_ms: core.seek(T0, 0, 2**31, now_ms), "a leader epoch must be"),
        (lambda core, now_ms: core.assign([("t", 2**31)], now_ms), "the number of a partition of t must be"),
        (lambda core, now_ms: core.assign("orders", now_ms), r"not a text: \[\('orders', 0\)\]"),
        (lambda core, now_ms: core.assign(("t", 0), now_ms), r"a partition is a pair \(topic, number\), not 't'"),
        (lambda core, now_ms: core.list_offsets({T0: 2**63}, None, now_ms, 1000), "a timestamp must be"),
    ],
)
def test_values_that_cannot_be_encoded_are_refused(call: Any, sentence: str) -> None:
    """Else no request with them is sent, and all partitions of the broker stop."""
    cluster = reading()
    with pytest.raises((TypeError, ValueError), match=sentence):
        cluster.call(lambda now_ms: call(cluster.core, now_ms))
    cluster.answer(fetch_answer(7, p0={"records": records(0)}))
    assert offsets(cluster.poll()) == [0, 1, 2]


def test_a_broker_without_a_usable_version_of_fetch_is_an_error() -> None:
    cluster = FakeCluster()
    cluster.versions[FETCH] = (0, 1)
    cluster.call(lambda now_ms: cluster.core.assign([T0], now_ms))
    cluster.call(lambda now_ms: cluster.core.seek(T0, 0, -1, now_ms))
    cluster.advance(1000)
    assert cluster.held == []
    with pytest.raises(UnsupportedVersionError, match="Fetch"):
        cluster.poll()
    assert cluster.poll() == []


def test_records_that_an_iterator_holds_are_fetched_again_for_columns() -> None:
    """poll_arrow cannot return records that were decoded already: the position goes back to the first one."""
    cluster = reading()
    cluster.answer(fetch_answer(7, p0={"records": records(0)}))
    cluster.call(lambda now_ms: cluster.core.hold(cluster.core.collect(now_ms)))
    held = cluster.core.subscriptions.held
    first = held.take()
    assert first is not None and first.offset == 0 and len(held) == 2
    assert cluster.call(lambda now_ms: cluster.core.collect_columns(now_ms, 10)) == []
    cluster.answer(fetch_answer(7))
    assert asked(cluster) == {0: 1} and len(held) == 0
    cluster.answer(fetch_answer(7, p0={"records": records(0)}))
    (columns,) = cluster.call(lambda now_ms: cluster.core.collect_columns(now_ms, 10))
    assert columns.rows == 2
