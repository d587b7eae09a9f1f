"""Protects: an idempotent producer writes each record once, in order, whichever request or answer is lost or late.

The broker is a whole node of kcli in virtual time. In each run another request meets a fault: its connection ends before or
after the broker has it, it or its answer is lost or late.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kcli.client.consumer.membership import GroupMetadata
from kcli.client.errors import (
    ClientError,
    KafkaTimeoutError,
    ProducerClosedError,
    ProducerFencedError,
    TransactionAbortableError,
)
from kcli.client.value_checks import OffsetAndMetadata
from tests.client.faulty_node import FAULTS, SHORT_TIMEOUTS, Fault, FaultyNode
from tests.client.producer.producer_app import ProducerApp, committed_offset, values_in_log

INTERNAL = "offsets.topic.num.partitions=1", "transaction.state.log.num.partitions=1", "group.initial.rebalance.delay.ms=0"
RECORDS = 24
QUIET_MS = 5000  # until late requests have come


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FaultyNode]:
    node = FaultyNode(tmp_path, *INTERNAL)
    yield node
    node.clients.clear()
    node.stop()


@FAULTS
def test_no_record_is_lost_or_written_twice(node: FaultyNode, fault: Fault) -> None:
    for run in node.runs(fault):
        topic = f"t{run}"
        node.create_topic(topic, 2)
        app = ProducerApp(node, "p", batch_size=150, linger_ms=0, **SHORT_TIMEOUTS)
        values = [[b"%d-%d" % (partition, number) * 9 for number in range(RECORDS)] for partition in range(2)]
        for number in range(RECORDS):
            for partition in range(2):
                app.send(topic, values[partition][number], partition)
        app.flush()
        node.advance(QUIET_MS)
        for partition in range(2):
            assert values_in_log(node, topic, partition) == values[partition], (run, node.faulty_request)
            assert [app.results[value] for value in values[partition]] == list(range(RECORDS))
        assert app.call(app.core.close, 1000) is None
        app.kill()
    assert set(node.requests) == {"ApiVersions", "Metadata", "InitProducerId", "Produce"}


@FAULTS
@pytest.mark.parametrize("version", [1, 2])
def test_transactions_are_committed_or_aborted_whole(node: FaultyNode, fault: Fault, version: int) -> None:
    """With version 1 the client is told that the cluster is older, and the broker serves it as one of these days."""
    if version == 1 and fault is Fault.LATE_REQUEST:
        pytest.skip("a late EndTxn ends the next transaction of version 1: KIP-890 made version 2 for that")
    for run in node.runs(fault):
        topic = f"t{run}"
        node.create_topic(topic)
        app = ProducerApp(node, "p", batch_size=150, linger_ms=0, transactional_id=topic, **SHORT_TIMEOUTS)
        app.client.network.feature_level = lambda name: version  # type: ignore[method-assign]
        expected, group = transactions(app, topic)
        node.advance(QUIET_MS)
        assert values_in_log(node, topic, committed_only=True) == expected, (run, node.faulty_request)
        assert committed_offset(node, group, topic) == 2, (run, node.faulty_request)
        app.kill()
    added = {"AddPartitionsToTxn", "AddOffsetsToTxn"} if version == 1 else set()
    common = {"ApiVersions", "Metadata", "FindCoordinator", "InitProducerId", "Produce", "TxnOffsetCommit", "EndTxn"}
    assert set(node.requests) == common | added


def transactions(app: ProducerApp, topic: str) -> tuple[list[bytes], str]:
    """Three transactions, of which the second is aborted; return the values of the others, and the group of the offsets."""
    group = f"group of {topic}"
    assert app.call(app.core.init_transactions) is None
    expected: list[bytes] = []
    for number in range(3):
        app.core.begin_transaction()
        values = [b"%d-%d" % (number, index) * 9 for index in range(4)]
        for value in values:
            app.send(topic, value, waits=True)
        offsets = {(topic, 0): OffsetAndMetadata(number)}
        assert app.call(app.core.send_offsets_to_transaction, offsets, GroupMetadata(group)) is None
        end = app.core.abort_transaction if number == 1 else app.core.commit_transaction
        assert app.call(end) is None, (topic, app.node.faulty_request)
        expected += values if number != 1 else []
    return expected, group


def test_a_second_producer_fences_the_first(node: FaultyNode) -> None:
    node.create_topic("t")
    first = ProducerApp(node, "a", transactional_id="x", linger_ms=0)
    assert first.call(first.core.init_transactions) is None
    first.core.begin_transaction()
    first.send("t", b"old", waits=True)
    second = ProducerApp(node, "b", transactional_id="x", linger_ms=0)
    assert second.call(second.core.init_transactions) is None
    assert isinstance(first.call(first.core.commit_transaction), TransactionAbortableError)
    assert isinstance(first.call(first.core.abort_transaction), ProducerFencedError)
    with pytest.raises(ProducerFencedError):
        first.core.begin_transaction()
    second.core.begin_transaction()
    second.send("t", b"new", waits=True)
    assert second.call(second.core.commit_transaction) is None
    assert values_in_log(node, "t", committed_only=True) == [b"new"]


def test_a_transaction_with_an_expired_record_can_only_be_aborted(node: FaultyNode) -> None:
    node.create_topic("t")
    app = ProducerApp(node, "a", transactional_id="x", linger_ms=0, delivery_timeout_ms=5000, max_block_ms=10_000)
    assert app.call(app.core.init_transactions) is None
    app.core.begin_transaction()
    assert not isinstance(app.call(app.core.partitions_for, "t"), ClientError)
    app.client.is_cut = True
    app.send("t", b"lost")
    error = app.call(app.core.commit_transaction)
    assert isinstance(error, TransactionAbortableError)
    assert isinstance(app.results[b"lost"], KafkaTimeoutError)
    app.client.is_cut = False
    node.disconnect(app.client)
    assert app.call(app.core.abort_transaction) is None
    app.core.begin_transaction()
    app.send("t", b"kept", waits=True)
    assert app.call(app.core.commit_transaction) is None
    assert values_in_log(node, "t", committed_only=True) == [b"kept"]


def test_records_after_expired_ones_are_written(node: FaultyNode) -> None:
    """The sequences of what expired are missing; a new epoch begins at 0."""
    node.create_topic("t")
    app = ProducerApp(node, "a", linger_ms=0, delivery_timeout_ms=5000, batch_size=150)
    app.send("t", b"first" * 20)
    app.flush()
    app.client.is_cut = True
    for number in range(4):
        app.send("t", b"lost%d" % number * 20)
    node.advance(6000)
    app.client.is_cut = False
    node.disconnect(app.client)
    node.advance(1000)
    app.send("t", b"last" * 20)
    app.flush()
    assert values_in_log(node, "t") == [b"first" * 20, b"last" * 20]
    assert sum(isinstance(one, KafkaTimeoutError) for one in app.results.values()) == 4


def test_all_calls_end_without_a_broker(node: FaultyNode) -> None:
    app = ProducerApp(node, "a", transactional_id="x", max_block_ms=3000, delivery_timeout_ms=4000)
    app.client.is_cut = True
    assert isinstance(app.call(app.core.init_transactions), KafkaTimeoutError)
    assert isinstance(app.call(app.core.partitions_for, "t"), KafkaTimeoutError)
    plain = ProducerApp(node, "b", max_block_ms=3000)
    plain.client.is_cut = True
    plain.send("t", b"a")
    node.advance(3000)
    assert isinstance(plain.results[b"a"], KafkaTimeoutError)
    assert plain.call(plain.core.flush) is None
    assert plain.call(plain.core.close, 1000) is None
    plain.send("t", b"b")
    assert isinstance(plain.results[b"b"], ProducerClosedError)


def test_close_ends_after_its_timeout(node: FaultyNode) -> None:
    node.create_topic("t")
    app = ProducerApp(node, "a", linger_ms=0)
    app.call(app.core.partitions_for, "t")
    app.client.is_cut = True
    app.send("t", b"a")
    began_ms = node.now_ms
    assert app.call(app.core.close, 1000) is None
    assert node.now_ms - began_ms == 1000
    assert isinstance(app.results[b"a"], ProducerClosedError)


def test_records_wait_for_memory_in_their_order(node: FaultyNode) -> None:
    node.create_topic("t")
    app = ProducerApp(node, "a", linger_ms=1000, buffer_memory=4000, batch_size=2000)
    values = [b"%04d" % number * 100 for number in range(40)]
    for value in values:
        app.send("t", value)
    app.flush()
    node.advance(2000)
    assert values_in_log(node, "t") == values
