"""Protects fetch sessions (KIP-227): what a client need not say again, what it is not told again, and whose turn it is."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import INT32_MAX
from kcli.network.timing_wheel import Timer
from kcli.protocol import error_codes
from kcli.protocol.apis import API_KEYS, FETCH
from kcli.protocol.message import Message
from kcli.server.apis.fetch_session import (
    EVICTION_MS,
    FetchPlan,
    FetchSessionCache,
    FetchTarget,
    SessionError,
    SessionReader,
)
from kcli.server.replication.purgatory import Purgatory
from tests.server.whole_node import WholeNode, batch, fetch_request, partitions_of

ONE = batch(b"x" * 100)
NOW_MS = 1_750_000_000_000


READER = SessionReader(-1, 0, 12, "User:ANONYMOUS", "")


def planned(
    sessions: FetchSessionCache, request: Message, version: int, now_ms: int, reader: SessionReader = READER
) -> FetchPlan:
    return sessions.plan(request, version, now_ms, reader)


def cache(max_sessions: int = 10) -> FetchSessionCache:
    return FetchSessionCache(max_sessions, random.Random(1))


def begin(sessions: FetchSessionCache, offsets: dict[tuple[Any, int], int], now_ms: int = NOW_MS, version: int = 12) -> int:
    plan = planned(sessions, fetch_request(offsets, version, session_epoch=0), version, now_ms)
    assert plan.begins_session and plan.session is None
    return sessions.begin(plan.targets, version >= 13, now_ms, READER, Purgatory(Timer()))


def wanted(targets: list[FetchTarget]) -> dict[tuple[Any, int], int]:
    return {(target.topic, target.partition.partition): target.partition.fetch_offset for target in targets}


def refused(sessions: FetchSessionCache, version: int = 12, **options: Any) -> int:
    with pytest.raises(SessionError) as caught:
        planned(sessions, fetch_request({}, version, **options), version, NOW_MS)
    return caught.value.code


# --------------------------------------------------------------------------------------------------------- requests


@pytest.mark.parametrize("epoch", [-1, 0])
def test_a_full_fetch_names_all_and_ends_the_session_of_its_id(epoch: int) -> None:
    sessions = cache()
    session_id = begin(sessions, {("t", 0): 5})
    plan = planned(sessions, fetch_request({("u", 1): 7}, session_id=session_id, session_epoch=epoch), 12, NOW_MS)
    assert wanted(plan.targets) == {("u", 1): 7}
    assert plan.begins_session == (epoch == 0) and not plan.is_incremental
    assert len(sessions) == 0
    assert refused(sessions, session_id=session_id, session_epoch=1) == error_codes.FETCH_SESSION_ID_NOT_FOUND


def test_an_incremental_fetch_adds_changes_and_forgets() -> None:
    sessions = cache()
    session_id = begin(sessions, {("t", 0): 5, ("t", 1): 6})
    request = fetch_request(
        {("t", 1): 60, ("u", 0): 1}, session_id=session_id, session_epoch=1, forgotten=(("t", 0), ("never", 9))
    )
    plan = planned(sessions, request, 12, NOW_MS)
    assert plan.is_incremental and not plan.begins_session
    assert wanted(plan.targets) == {("t", 1): 60, ("u", 0): 1}
    again = planned(sessions, fetch_request({}, session_id=session_id, session_epoch=2), 12, NOW_MS)
    assert wanted(again.targets) == wanted(plan.targets)
    assert sessions.partition_count == 2


def test_a_session_that_has_forgotten_all_ends() -> None:
    sessions = cache()
    session_id = begin(sessions, {("t", 0): 5})
    plan = planned(sessions, fetch_request({}, session_id=session_id, session_epoch=1, forgotten=(("t", 0),)), 12, NOW_MS)
    assert (plan.targets, plan.session, plan.is_incremental) == ([], None, False)
    assert len(sessions) == 0


@pytest.mark.parametrize("epoch", [2, 3, INT32_MAX, -2])
def test_only_the_next_epoch_goes_on(epoch: int) -> None:
    sessions = cache()
    session_id = begin(sessions, {("t", 0): 5})
    assert refused(sessions, session_id=session_id, session_epoch=epoch) == error_codes.INVALID_FETCH_SESSION_EPOCH
    assert planned(sessions, fetch_request({}, session_id=session_id, session_epoch=1), 12, NOW_MS).epoch == 2
    assert refused(sessions, session_id=session_id, session_epoch=1) == error_codes.INVALID_FETCH_SESSION_EPOCH


def test_epochs_begin_again_behind_the_largest() -> None:
    sessions = cache()
    session_id = begin(sessions, {("t", 0): 5})
    sessions._sessions[session_id].epoch = INT32_MAX
    assert planned(sessions, fetch_request({}, session_id=session_id, session_epoch=INT32_MAX), 12, NOW_MS).epoch == 1


@pytest.mark.parametrize(("first", "then"), [(12, 13), (13, 12)])
def test_a_session_has_names_or_ids(first: int, then: int) -> None:
    sessions = cache()
    session_id = begin(sessions, {(Uuid(b"\1" * 16) if first >= 13 else "t", 0): 5}, version=first)
    code = refused(sessions, then, session_id=session_id, session_epoch=1)
    assert code == error_codes.FETCH_SESSION_TOPIC_ID_ERROR


def test_a_full_cache_gives_up_what_was_not_used_for_long() -> None:
    sessions = cache(2)
    first, second = begin(sessions, {("t", 0): 0}), begin(sessions, {("t", 1): 0}, NOW_MS + 1)
    assert begin(sessions, {("t", 2): 0}, NOW_MS + EVICTION_MS) == 0
    planned(sessions, fetch_request({}, session_id=first, session_epoch=1), 12, NOW_MS + EVICTION_MS)
    third = begin(sessions, {("t", 2): 0}, NOW_MS + EVICTION_MS + 2)
    assert third not in (0, first, second)
    assert refused(sessions, session_id=second, session_epoch=1) == error_codes.FETCH_SESSION_ID_NOT_FOUND
    assert planned(sessions, fetch_request({}, session_id=first, session_epoch=2), 12, NOW_MS).is_incremental


def test_without_slots_there_are_no_sessions() -> None:
    plan = planned(cache(0), fetch_request({("t", 0): 0}, session_epoch=0), 12, NOW_MS)
    assert not plan.begins_session


def test_who_had_records_goes_to_the_end() -> None:
    sessions = cache()
    session_id = begin(sessions, {("t", index): 0 for index in range(3)})
    plan = planned(sessions, fetch_request({}, session_id=session_id, session_epoch=1), 12, NOW_MS)
    assert plan.session is not None
    plan.session.move_to_end(plan.targets[0])
    again = planned(sessions, fetch_request({}, session_id=session_id, session_epoch=2), 12, NOW_MS)
    assert [target.partition.partition for target in again.targets] == [1, 2, 0]


def test_only_what_has_changed_is_read_again() -> None:
    """A partition that was read and is unmarked comes back when it changes or is named, and for another reader."""
    sessions = cache()
    session_id = begin(sessions, {("t", index): 0 for index in range(4)})
    plan = planned(sessions, fetch_request({}, session_id=session_id, session_epoch=1), 12, NOW_MS)
    assert plan.session is not None
    for target in plan.targets:
        target.has_changed = False
    changed = plan.targets[2]
    changed.mark()
    for target in plan.targets:
        plan.session.unmark(target)
    again = planned(sessions, fetch_request({("t", 1): 0}, session_id=session_id, session_epoch=2), 12, NOW_MS)
    assert [target.partition.partition for target in again.targets] == [1, 2], "what changed after its read stays marked"
    another = READER._replace(isolation_level=1)
    last = planned(sessions, fetch_request({}, session_id=session_id, session_epoch=3), 12, NOW_MS, another)
    assert [target.partition.partition for target in last.targets] == [0, 1, 2, 3]


@pytest.mark.parametrize(("replica_id", "are_sent_again"), [(-1, False), (2, True)])
def test_a_follower_gets_its_offsets_again_in_another_epoch(replica_id: int, are_sent_again: bool) -> None:
    """It drops an answer that comes after its metadata have a new epoch of the leader; a consumer gets what Kafka's does."""
    sessions, reader = cache(), READER._replace(replica_id=replica_id)
    request = fetch_request({("t", 0): 0}, session_epoch=0)
    plan = planned(sessions, request, 12, NOW_MS, reader)
    session_id = sessions.begin(plan.targets, False, NOW_MS, reader, Purgatory(Timer()))
    plan.targets[0].has_news(answer())
    request = fetch_request({("t", 0): 0}, session_id=session_id, session_epoch=1)
    request.topics[0].partitions[0].current_leader_epoch = 7
    (target,) = planned(sessions, request, 12, NOW_MS, reader).targets
    assert target.has_news(answer()) is are_sent_again


# ------------------------------------------------------------------------------------------------------------ answers


def answer(**fields: Any) -> Message:
    return API_KEYS[FETCH].response.classes["PartitionData"](
        **{"partition_index": 0, "error_code": 0, "high_watermark": 5, "log_start_offset": 0, "records": b"", **fields}
    )


@pytest.mark.parametrize(
    ("fields", "is_news"),
    [
        ({}, False),
        ({"records": b"x"}, True),
        ({"records": None}, False),
        ({"high_watermark": 6}, True),
        ({"log_start_offset": 1}, True),
        ({"error_code": 1}, True),
        ({"preferred_read_replica": 0}, True),
        ({"last_stable_offset": 3}, False),
    ],
)
def test_what_counts_as_new(fields: dict[str, Any], is_news: bool) -> None:
    request = fetch_request({("t", 0): 0})
    target = FetchTarget("t", request.topics[0].partitions[0])
    assert target.has_news(answer()), "nothing was told before"
    assert not target.has_news(answer())
    assert target.has_news(answer(**fields)) == is_news


def test_after_an_error_all_is_new() -> None:
    request = fetch_request({("t", 0): 0})
    target = FetchTarget("t", request.topics[0].partitions[0])
    target.has_news(answer())
    assert target.has_news(answer(error_code=3))
    assert target.has_news(answer())


# ------------------------------------------------------------------------------------------------- on a whole node


@pytest.fixture
def node(tmp_path: Path) -> WholeNode:
    made = WholeNode(tmp_path / "data")
    made.create_topic("t", 3)
    return made


def test_a_session_is_told_only_what_is_new(node: WholeNode) -> None:
    first = node.fetch({("t", index): 0 for index in range(3)}, session_epoch=0).result()
    assert first.session_id > 0 and len(partitions_of(first)) == 3
    node.produce("t", 1, ONE)
    second = node.fetch({}, session_id=first.session_id, session_epoch=1).result()
    assert list(partitions_of(second)) == [("t", 1)] and second.session_id == first.session_id
    third = node.fetch({("t", 1): 1}, session_id=first.session_id, session_epoch=2).result()
    assert partitions_of(third) == {}


def test_a_session_keeps_the_names_of_deleted_topics(node: WholeNode) -> None:
    """Its reader learns that the topic is gone, or that another one has its name; to a full fetch the id is unknown."""
    topic_id = node.create_topic("gone")
    session_id = node.fetch({(topic_id, 0): 0}, version=13, session_epoch=0).result().session_id

    def codes(epoch: int, offsets: dict[tuple[Any, int], int]) -> list[int]:
        answer = node.fetch(offsets, version=13, session_id=session_id if epoch else 0, session_epoch=epoch or -1).result()
        return [part.error_code for part in partitions_of(answer, "topic_id").values()]

    assert codes(1, {}) == []
    node.delete_topic("gone")
    node.until(lambda: node.broker.replica_manager.partition("gone", 0) is None)
    assert codes(2, {}) == [error_codes.UNKNOWN_TOPIC_OR_PARTITION]
    node.create_topic("gone")
    assert codes(3, {}) == [error_codes.INCONSISTENT_TOPIC_ID]
    assert codes(0, {(topic_id, 0): 0}) == [error_codes.UNKNOWN_TOPIC_ID]


def test_a_full_fetch_of_nothing_begins_a_session(node: WholeNode) -> None:
    """To which partitions are added; while there are none, the next request ends it."""
    first = node.fetch({}, session_epoch=0).result()
    assert first.session_id
    second = node.fetch({("t", 0): 0}, session_id=first.session_id, session_epoch=1).result()
    assert second.session_id == first.session_id and len(partitions_of(second)) == 1
    empty = node.fetch({}, session_epoch=0).result()
    assert node.fetch({}, session_id=empty.session_id, session_epoch=1).result().session_id == 0
    ended = node.fetch({}, session_id=empty.session_id, session_epoch=2).result()
    assert ended.error_code == error_codes.FETCH_SESSION_ID_NOT_FOUND


def test_a_session_waits_as_any_fetch_does(node: WholeNode) -> None:
    session_id = node.fetch({("t", index): 0 for index in range(3)}, session_epoch=0).result().session_id
    waiting = node.fetch({}, session_id=session_id, session_epoch=1, max_wait_ms=500)
    assert waiting.answer is None
    node.produce("t", 2, ONE)
    assert list(partitions_of(waiting.result())) == [("t", 2)]
    idle = node.fetch({("t", 2): 1}, session_id=session_id, session_epoch=2, max_wait_ms=500)
    node.advance(500)
    assert partitions_of(idle.result()) == {}


def test_an_error_of_the_session_has_no_partitions(node: WholeNode) -> None:
    lost = node.fetch({}, session_id=12345, session_epoch=1, max_wait_ms=500).result()
    assert (lost.error_code, lost.session_id, lost.responses) == (error_codes.FETCH_SESSION_ID_NOT_FOUND, 0, [])


def test_a_session_that_went_on_meanwhile_does_not_answer_twice(node: WholeNode) -> None:
    """A client that gave up waiting and asked again on another connection: the first answer must not count as told."""
    session_id = node.fetch({("t", 0): 0}, session_epoch=0).result().session_id
    stale = node.fetch({}, session_id=session_id, session_epoch=1, max_wait_ms=500)
    node.fetch({}, session_id=session_id, session_epoch=2, max_wait_ms=400)
    node.produce("t", 0, ONE)
    assert stale.result().error_code == error_codes.INVALID_FETCH_SESSION_EPOCH
    again = node.fetch({}, session_id=session_id, session_epoch=3)
    assert len(partitions_of(again.result())["t", 0].records) == len(ONE)


class Reader:
    """A client's part of KIP-227: it keeps what it was told, and asks for what it wants."""

    def __init__(self, node: WholeNode) -> None:
        self.node = node
        self.session_id, self.epoch = 0, 0
        self.wanted: dict[tuple[str, int], int] = {}
        self.known: dict[tuple[str, int], int] = {}  # high watermarks

    def ask(self, changed: dict[tuple[str, int], int], forgotten: tuple[tuple[str, int], ...]) -> dict[tuple[str, int], int]:
        """Fetch -> the bytes that came, by partition."""
        for key in forgotten:
            self.wanted.pop(key, None)
            self.known.pop(key, None)
        self.wanted |= changed
        full = self.epoch == 0
        answer = self.node.fetch(
            self.wanted if full else changed,
            session_id=self.session_id,
            session_epoch=self.epoch,
            forgotten=() if full else forgotten,
        ).result()
        assert answer.error_code == 0
        if full:
            self.session_id = answer.session_id
        self.epoch = self.epoch + 1 if self.session_id else 0
        if not full and not self.wanted:
            self.session_id = self.epoch = 0
        told = partitions_of(answer)
        self.known |= {key: part.high_watermark for key, part in told.items()}
        return {key: len(part.records) for key, part in told.items() if len(part.records)}


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> WholeNode:
    return WholeNode(tmp_path_factory.mktemp("node"))


@settings(max_examples=40)
@given(st.data())
def test_a_session_knows_what_a_full_fetch_would(shared_node: WholeNode, data: st.DataObject) -> None:
    """However a client adds, changes and forgets partitions: what it knows is what is so."""
    node, topic = shared_node, f"t{len(shared_node.broker.image.topic_ids)}"
    node.create_topic(topic, 4)
    reader = Reader(node)
    ends = dict.fromkeys(range(4), 0)
    for _ in range(data.draw(st.integers(1, 12))):
        for index in data.draw(st.sets(st.integers(0, 3))):
            node.produce(topic, index, ONE)
            ends[index] += 1
        changed = {(topic, index): data.draw(st.integers(0, ends[index])) for index in data.draw(st.sets(st.integers(0, 3)))}
        gone = tuple((topic, index) for index in data.draw(st.sets(st.integers(0, 3))) if (topic, index) not in changed)
        came = reader.ask(changed, gone)
        assert came == {
            (topic, index): (ends[index] - offset) * len(ONE)
            for (_, index), offset in reader.wanted.items()
            if offset < ends[index]
        }
        assert reader.known == {(topic, index): ends[index] for _, index in reader.wanted}


def test_a_follower_takes_the_place_of_the_consumer_with_the_fewest_partitions() -> None:
    """As Kafka's privileged sessions do: else consumers that come and go would make followers send all their partitions."""
    sessions = cache(3)
    wide, narrow = begin(sessions, {("t", index): 0 for index in range(3)}), begin(sessions, {("t", 0): 0})
    broker = READER._replace(replica_id=2)
    follower = sessions.begin([], True, NOW_MS, broker, Purgatory(Timer()))
    assert follower and not begin(sessions, {("t", 0): 0}), "a consumer evicts none"
    assert all(sessions.begin([], True, NOW_MS, READER._replace(replica_id=2), Purgatory(Timer())) for _ in range(2))
    assert not sessions.begin([], True, NOW_MS, READER._replace(replica_id=2), Purgatory(Timer())), (
        "nor does a follower another"
    )
    assert (len(sessions), sessions.evicted_count) == (3, 2)
    codes = {refused(sessions, session_id=session_id, session_epoch=1) for session_id in (wide, narrow)}
    assert codes == {error_codes.FETCH_SESSION_ID_NOT_FOUND}
    assert refused(sessions, session_id=follower, session_epoch=9) == error_codes.INVALID_FETCH_SESSION_EPOCH
