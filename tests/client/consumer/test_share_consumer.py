"""Protects: records of a share group are delivered, acknowledged, released, rejected and renewed as KIP-932 and KIP-1222 say.

The consumers are on a whole node of kcli, in virtual time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcli.client.consumer import share_records
from kcli.client.consumer.completed_fetch import CompletedFetch
from kcli.client.consumer.consumer_record import ConsumerRecord
from kcli.client.consumer.share_config import ShareConsumerConfig
from kcli.client.consumer.share_consumer import ShareConsumerCore
from kcli.client.consumer.share_records import AcknowledgeType, Run, ShareRecord, runs_of
from kcli.client.errors import (
    ClientError,
    ConfigError,
    FetchedRecordError,
    IllegalStateError,
    KafkaError,
    RecordDeserializationError,
)
from kcli.format.primitives import TopicPartition
from kcli.protocol.apis import API_KEYS, INCREMENTAL_ALTER_CONFIGS
from tests.client.clients_of_node import Client, ClientsOfNode, client_of
from tests.server.whole_node import batch

LOCK_MS = 15_000
ACCEPT, RELEASE, REJECT, RENEW = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
    AcknowledgeType.RENEW,
)


# Of a node with share groups whose members are noticed soon.
SHARE_SETTINGS = (
    "offsets.topic.num.partitions=1",
    "share.coordinator.state.topic.num.partitions=1",
    "group.share.heartbeat.interval.ms=500",
    "group.share.min.heartbeat.interval.ms=500",
    "group.share.session.timeout.ms=5000",
    "group.share.min.session.timeout.ms=5000",
)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ClientsOfNode]:
    node = ClientsOfNode(
        tmp_path,
        *SHARE_SETTINGS,
        f"group.share.record.lock.duration.ms={LOCK_MS}",
    )
    node.create_topic("t", 1)
    read_from_the_start(node, "g")
    yield node
    node.clients.clear()
    node.stop()


def read_from_the_start(node: ClientsOfNode, group: str) -> None:
    """Have a share group begin with the first records of topics."""
    request = API_KEYS[INCREMENTAL_ALTER_CONFIGS].request
    value = request.classes["AlterableConfig"](name="share.auto.offset.reset", config_operation=0, value="earliest")
    resource = request.classes["AlterConfigsResource"](resource_type=32, resource_name=group, configs=[value])
    pending = node.send(INCREMENTAL_ALTER_CONFIGS, 1, request.new(resources=[resource], validate_only=False))
    node.until(lambda: pending.answer is not None)
    assert pending.result().responses[0].error_code == 0


class ShareApp:
    """One application; `settings` are those of all clients and of share consumers."""

    def __init__(
        self, node: ClientsOfNode, name: str, mode: str = "explicit", seed: int = 1, topic: str = "t", **settings: Any
    ) -> None:
        self.node = node
        self.client, own = client_of(node, name, {"allow_auto_create_topics": False, **settings}, seed)
        config = ShareConsumerConfig(group_id="g", share_acknowledgement_mode=mode)._replace(**own)
        self.core = ShareConsumerCore(self.client.network, config)
        self.core.keeps_results = True
        self.client.poll = self.core.poll
        self.core.subscribe([topic], node.now_ms)
        node.pump()

    def poll(self, within_ms: int = 10_000) -> list[ShareRecord]:
        """Poll as a shell does."""
        self.core.polled(self.node.now_ms)
        end_ms = self.node.now_ms + within_ms
        try:
            while True:
                found = self.core.collect(self.node.now_ms)
                if found or self.node.now_ms >= end_ms:
                    return found
                self.node.advance(min(100, end_ms - self.node.now_ms))
                self.core.waiting(self.node.now_ms)
        finally:
            self.core.poll_ended()

    def acknowledge(self, kind: AcknowledgeType, *records: ShareRecord) -> None:
        for record in records:
            self.core.acknowledge(record.topic, record.partition, record.offset, kind)

    def commit(self) -> dict[TopicPartition, ClientError | None]:
        answers: list[dict[TopicPartition, ClientError | None]] = []
        self.core.commit(lambda results, now_ms: answers.append(results), self.node.now_ms, 5000)
        self.node.until(lambda: bool(answers))
        return answers[0]

    def close(self) -> None:
        answers: list[object] = []
        self.core.close(lambda error, now_ms: answers.append(error), self.node.now_ms)
        self.node.until(lambda: bool(answers))
        self.node.remove(self.client)


def values(records: list[ShareRecord]) -> list[object]:
    return [record.value for record in records]


def send(node: ClientsOfNode, *found: bytes) -> None:
    pending = node.produce("t", 0, batch(*found))
    node.until(lambda: pending.answer is not None)


def test_accepted_records_are_not_delivered_again(node: ClientsOfNode) -> None:
    send(node, b"a", b"b")
    app = ShareApp(node, "one")
    found = app.poll()
    assert values(found) == [b"a", b"b"] and [one.delivery_count for one in found] == [1, 1]
    app.acknowledge(ACCEPT, *found)
    assert app.commit() == {("t", 0): None}
    assert app.core.results.popleft()[:2] == (("t", 0), frozenset({0, 1}))
    app.close()
    other = ShareApp(node, "other")
    send(node, b"c")
    assert values(other.poll()) == [b"c"]


def test_implicit_mode_accepts_with_the_next_call(node: ClientsOfNode) -> None:
    send(node, b"a")
    app = ShareApp(node, "one", "implicit")
    assert values(app.poll()) == [b"a"]
    with pytest.raises(IllegalStateError):
        app.core.acknowledge("t", 0, 0, ACCEPT)
    send(node, b"b")
    assert values(app.poll()) == [b"b"]
    app.commit()
    app.close()
    assert ShareApp(node, "other").poll(LOCK_MS * 2) == []


def test_released_and_rejected_records(node: ClientsOfNode) -> None:
    send(node, b"release", b"reject", b"accept")
    app = ShareApp(node, "one")
    first = app.poll()
    for kind, record in zip((RELEASE, REJECT, ACCEPT), first, strict=True):
        app.acknowledge(kind, record)
    again = app.poll()
    assert values(again) == [b"release"] and again[0].delivery_count == 2
    app.acknowledge(ACCEPT, *again)
    assert app.poll(2000) == []


def test_a_record_that_is_not_acknowledged_is_refused_by_the_next_poll(node: ClientsOfNode) -> None:
    send(node, b"a", b"b")
    app = ShareApp(node, "one")
    first, second = app.poll()
    app.acknowledge(RELEASE, first)
    app.acknowledge(ACCEPT, first)  # it may be changed until it is sent
    with pytest.raises(IllegalStateError):
        app.poll()
    app.acknowledge(ACCEPT, second)
    app.commit()
    with pytest.raises(IllegalStateError):
        app.acknowledge(ACCEPT, first)


def test_a_renewed_record_is_returned_again_and_kept(node: ClientsOfNode) -> None:
    send(node, b"a")
    app, other = ShareApp(node, "one"), ShareApp(node, "other", seed=2)
    (record,) = app.poll()
    for _ in range(3):
        other.poll(LOCK_MS * 2 // 3)
        app.acknowledge(RENEW, record)
        assert app.commit() == {("t", 0): None}
        assert app.poll() == [record]
    app.acknowledge(ACCEPT, record)
    assert app.commit() == {("t", 0): None}
    assert other.poll(LOCK_MS * 2) == []


def test_a_renewed_record_of_a_session_that_is_over_is_fetched_again(node: ClientsOfNode) -> None:
    """The broker has released it, and may have given it to another member: it comes with its next delivery count."""
    send(node, b"a", b"b")
    app = ShareApp(node, "one")
    first, second = app.poll()
    app.acknowledge(RENEW, first)
    assert app.commit() == {("t", 0): None}
    app.acknowledge(ACCEPT, second)
    app.client.is_cut = True
    answers: list[dict[TopicPartition, ClientError | None]] = []
    app.core.commit(lambda results, now_ms: answers.append(results), node.now_ms, 5000)
    node.pump()
    app.client.is_cut = False
    node.disconnect(app.client)
    assert isinstance(answers[0]["t", 0], ClientError)
    assert [(one.value, one.delivery_count) for one in app.poll()] == [(b"a", 2), (b"b", 2)]


def test_a_lock_that_is_over_refuses_the_acknowledgement(node: ClientsOfNode) -> None:
    send(node, b"a")
    app = ShareApp(node, "one")
    (record,) = app.poll()
    other = ShareApp(node, "other", seed=2)
    (again,) = other.poll(LOCK_MS * 2)
    assert again.delivery_count == 2
    app.acknowledge(ACCEPT, record)
    error = app.commit()["t", 0]
    assert isinstance(error, KafkaError) and error.name == "INVALID_RECORD_STATE"
    other.acknowledge(ACCEPT, again)
    assert other.commit() == {("t", 0): None}


def test_records_that_waited_too_long_are_not_returned(node: ClientsOfNode) -> None:
    send(node, *(b"%d" % number for number in range(4)))
    app = ShareApp(node, "one", max_poll_records=2)
    first = app.poll()
    app.acknowledge(ACCEPT, *first)
    app.commit()
    node.advance(LOCK_MS)
    second = app.poll()
    assert values(first + second) == [b"0", b"1", b"2", b"3"]
    app.acknowledge(ACCEPT, *second)
    assert app.commit() == {("t", 0): None}


def test_a_poll_that_returns_records_fetches_no_others(node: ClientsOfNode) -> None:
    """A fetch could get the same records again, when their lock ends: their acknowledgement would then be for the wrong one."""
    send(node, b"a")
    app = ShareApp(node, "one")
    app.core.polled(node.now_ms)
    node.until(lambda: bool(app.core.fetcher.buffer))
    node.advance(LOCK_MS - 100)
    found = app.core.collect(node.now_ms)
    app.core.poll(node.now_ms)  # as after each call of a shell
    app.core.poll_ended()
    node.advance(1000)
    app.acknowledge(ACCEPT, *found)
    error = app.commit()["t", 0]
    assert isinstance(error, KafkaError) and error.name == "INVALID_RECORD_STATE"
    assert [(one.value, one.delivery_count) for one in app.poll()] == [(b"a", 2)]


def test_close_releases_what_is_not_acknowledged(node: ClientsOfNode) -> None:
    send(node, b"a", b"b")
    app = ShareApp(node, "one")
    first, _ = app.poll()
    app.acknowledge(ACCEPT, first)
    app.close()
    other = ShareApp(node, "other")
    assert values(other.poll(2000)) == [b"b"]


def test_close_releases_what_was_to_be_accepted_implicitly(node: ClientsOfNode) -> None:
    """The application may have failed in the middle of its records."""
    send(node, b"a", b"b")
    app = ShareApp(node, "one", "implicit")
    assert values(app.poll()) == [b"a", b"b"]
    app.close()
    other = ShareApp(node, "other", "implicit")
    found = other.poll()
    assert values(found) == [b"a", b"b"] and [one.delivery_count for one in found] == [2, 2]
    other.commit()
    other.close()
    send(node, b"c")
    assert values(ShareApp(node, "last").poll()) == [b"c"]


def test_members_share_a_partition(node: ClientsOfNode) -> None:
    apps = [
        ShareApp(node, name, seed=seed, share_acquire_mode="record_limit", max_poll_records=3) for seed, name in enumerate("ab")
    ]
    send(node, *(b"%d" % number for number in range(30)))
    seen: list[object] = []
    for _ in range(7):
        for app in apps:
            found = app.poll(1000)
            assert len(found) <= 3
            seen += values(found)
            app.acknowledge(ACCEPT, *found)
    assert sorted(seen, key=str) == sorted((b"%d" % number for number in range(30)), key=str)


def test_a_lost_connection_gives_the_records_back(node: ClientsOfNode) -> None:
    send(node, b"a")
    app = ShareApp(node, "one")
    (record,) = app.poll()
    node.disconnect(app.client)
    app.acknowledge(ACCEPT, record)
    error = app.commit()["t", 0]
    assert error is not None
    (again,) = app.poll(LOCK_MS * 2)
    app.acknowledge(ACCEPT, again)
    assert app.commit() == {("t", 0): None}


def test_a_member_that_does_not_poll_leaves_and_comes_back(node: ClientsOfNode) -> None:
    app = ShareApp(node, "one", max_poll_interval_ms=4000)
    assert app.poll(2000) == []
    node.advance(6000)
    assert not app.core.membership.assigned_partitions
    send(node, b"a")
    assert values(app.poll()) == [b"a"]


def test_a_fenced_member_joins_again(node: ClientsOfNode) -> None:
    app = ShareApp(node, "one")
    app.poll(1000)
    app.client.is_cut = True
    node.advance(10_000)
    app.client.is_cut = False
    node.disconnect(app.client)
    send(node, b"a")
    assert values(app.poll(60_000)) == [b"a"]


def test_a_record_that_cannot_be_deserialized_is_released(node: ClientsOfNode) -> None:
    send(node, b"good", b"bad", b"fine")
    app = ShareApp(node, "one")

    def deserialize(data: bytes) -> object:
        if data == b"bad":
            raise ValueError("bad")
        return data.decode()

    app.core.polled(node.now_ms)
    node.until(lambda: bool(app.core.fetcher.buffer))
    app.core.poll_ended()
    (good,) = app.core.collect(node.now_ms, None, deserialize)
    with pytest.raises(RecordDeserializationError):
        app.core.collect(node.now_ms, None, deserialize)
    (fine,) = app.core.collect(node.now_ms, None, deserialize)
    app.acknowledge(ACCEPT, good, fine)
    assert app.commit() == {("t", 0): None}
    assert values(app.poll()) == [b"bad"]


def test_records_of_an_interrupted_poll_are_not_gaps(node: ClientsOfNode) -> None:
    """The broker would forget them: a gap is an offset without a record."""
    send(node, b"1", b"2")
    send(node, b"3", b"4")
    app = ShareApp(node, "one")
    count: list[bytes] = []

    def deserialize(data: bytes) -> object:
        count.append(data)
        if len(count) in (2, 6):
            raise KeyboardInterrupt
        return data

    app.core.polled(node.now_ms)
    node.until(lambda: bool(app.core.fetcher.buffer))
    app.core.poll_ended()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            app.core.collect(node.now_ms, None, deserialize)
    again = app.core.collect(node.now_ms, None, deserialize) or app.poll()
    assert values(again) == [b"1", b"2", b"3", b"4"]
    app.acknowledge(ACCEPT, *again)
    assert app.commit() == {("t", 0): None}


def test_records_before_an_interruption_are_released(node: ClientsOfNode) -> None:
    """Those of another answer were taken, and nobody has them."""
    node.create_topic("u", 1)
    send(node, b"1", b"2")
    pending = node.produce("u", 0, batch(b"3", b"4"))
    node.until(lambda: pending.answer is not None)
    app = ShareApp(node, "one")
    app.core.subscribe(["t", "u"], node.now_ms)
    node.advance(3000)
    app.core.polled(node.now_ms)
    node.until(lambda: bool(app.core.fetcher.buffer))
    if len(app.core.fetcher.buffer) == 1:
        first = app.core.fetcher.buffer.popleft()  # the other partition was not ready yet: it comes in an answer of its own
        node.until(lambda: bool(app.core.fetcher.buffer))
        app.core.fetcher.buffer.appendleft(first)
    app.core.poll_ended()
    count: list[bytes] = []

    def deserialize(data: bytes) -> object:
        count.append(data)
        if len(count) == 3:
            raise KeyboardInterrupt
        return data

    with pytest.raises(KeyboardInterrupt):
        app.core.collect(node.now_ms, None, deserialize)
    again = app.core.collect(node.now_ms)
    app.acknowledge(ACCEPT, *again)
    released = app.poll()
    assert {values(again)[0], values(released)[0]} == {b"1", b"3"} and [one.delivery_count for one in released] == [2, 2]


def test_an_unexpected_error_refuses_one_record(node: ClientsOfNode, monkeypatch: pytest.MonkeyPatch) -> None:
    send(node, b"1", b"2", b"3")
    app = ShareApp(node, "one")
    app.core.polled(node.now_ms)
    node.until(lambda: bool(app.core.fetcher.buffer))
    app.core.poll_ended()

    class Failing:
        """Fails at the second record, as no record should."""

        def __init__(self, *args: Any, **words: Any) -> None:
            self.fetch = CompletedFetch(*args, **words)

        @property
        def next_offset(self) -> int:
            return self.fetch.next_offset

        def take(self, out: list[ConsumerRecord], most: int, *deserializers: Any) -> int:
            if self.next_offset == 1:
                raise RuntimeError("unexpected")
            return self.fetch.take(out, 1 if self.next_offset == 0 else most, *deserializers)

    monkeypatch.setattr(share_records, "CompletedFetch", Failing)
    (fetched,) = app.core.fetcher.buffer
    fetched._fetch = fetched._fetch_from(0)
    assert values(app.core.collect(node.now_ms)) == [b"1"]
    with pytest.raises(FetchedRecordError, match="t-0@1: the record cannot be read: RuntimeError: unexpected"):
        app.core.collect(node.now_ms)
    assert values(app.core.collect(node.now_ms)) == [b"3"]


def test_acknowledgements_are_sent_as_runs() -> None:
    assert runs_of({5: 1, 6: 1, 7: 2, 9: 2}, [Run(1, 4, 0), Run(8, 8, 0)]) == [
        Run(1, 4, 0),
        Run(5, 6, 1),
        Run(7, 7, 2),
        Run(8, 8, 0),
        Run(9, 9, 2),
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {"group_id": ""},
        {"share_acknowledgement_mode": "maybe"},
        {"share_acquire_mode": "all"},
        {"max_poll_records": 0},
        {"fetch_min_bytes": -1},
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object]) -> None:
    client = Client("one", 0)
    config = ShareConsumerConfig(group_id="g")._replace(**settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        ShareConsumerCore(client.network, config)
