"""Protects what a consumer and its membership do together: partitions of the application, automatic commits, lost positions.

The broker is a whole node of kcli in virtual time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kcli.client.consumer.subscription_state import NoOffsetForPartitionError
from kcli.client.errors import KafkaError
from kcli.protocol import error_codes
from kcli.protocol.apis import METADATA
from tests.client.clients_of_node import ClientsOfNode
from tests.client.consumer.consumer_app import ConsumerApp
from tests.client.refusing_node import Refusal, RefusingNode
from tests.server.whole_node import batch

BOTH = [("t", 0), ("t", 1)]
AUTOMATIC = {"group_id": "g", "enable_auto_commit": True, "auto_commit_interval_ms": 60_000, "max_poll_records": 2}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RefusingNode]:
    node = RefusingNode(tmp_path, "offsets.topic.num.partitions=1", "group.initial.rebalance.delay.ms=0")
    node.create_topic("t", 2)
    for index in range(2):
        pending = node.produce("t", index, batch(b"a", b"b", b"c"))
        node.until(lambda pending=pending: pending.answer is not None)
    yield node
    node.clients.clear()
    node.stop()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_other_partitions_commit_what_was_read_of_those_before(node: ClientsOfNode, protocol: str) -> None:
    """No later automatic commit would have them."""
    app = ConsumerApp(node, "c", group_protocol=protocol, **AUTOMATIC)
    app.do(app.core.assign, BOTH[:1])
    app.read(2)
    app.do(app.core.assign, BOTH[:1])
    assert app.committed(*BOTH) == {("t", 0): None, ("t", 1): None}, "the partitions were the same"
    app.do(app.core.assign, BOTH[1:])
    node.advance(100)
    assert app.committed(*BOTH) == {("t", 0): 2, ("t", 1): None}
    committed = app.core.take_auto_commit()
    assert committed is not None and committed["t", 0].offset == 2
    app.read(2)
    app.close()
    reader = ConsumerApp(node, "reader", group_id="g")
    assert reader.committed(*BOTH) == {("t", 0): 2, ("t", 1): 2}


def test_without_automatic_commits_other_partitions_commit_nothing(node: ClientsOfNode) -> None:
    app = ConsumerApp(node, "c", **{**AUTOMATIC, "enable_auto_commit": False})
    app.do(app.core.assign, BOTH[:1])
    app.read(2)
    app.do(app.core.assign, BOTH[1:])
    node.advance(100)
    assert app.committed(*BOTH) == {("t", 0): None, ("t", 1): None}


def test_a_poll_does_not_wait_if_only_the_application_can_choose_a_position(node: ClientsOfNode) -> None:
    """Without a committed offset and without auto.offset.reset there is nothing to wait for."""
    app = ConsumerApp(node, "c", group_id="g", auto_offset_reset="none")
    app.do(app.core.assign, BOTH[:1])
    began_ms = node.now_ms
    with pytest.raises(NoOffsetForPartitionError, match="t-0"):
        app.poll(60_000)
    assert node.now_ms - began_ms < 1000
    app.do(app.core.seek, ("t", 0), 1, -1)
    assert [record.value for record in app.read(2)] == [b"b", b"c"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_topic_that_was_refused_is_read_soon_after_it_is_allowed(node: RefusingNode, protocol: str) -> None:
    """Not after metadata.max.age.ms, which is 5 minutes. While it is refused each poll says so, and the broker is asked
    once in a while."""
    app = ConsumerApp(node, "c", group_id="g", group_protocol=protocol)
    refusal = Refusal(METADATA, "MetadataResponseTopic", error_codes.TOPIC_AUTHORIZATION_FAILED)
    errors = 0
    with node.refusing_at_random([refusal], 1.0, 1):
        app.subscribe("t")
        until_ms = node.now_ms + 20_000
        while node.now_ms < until_ms:
            try:
                assert app.poll(5000) == []
            except KafkaError as error:
                assert error.code == error_codes.TOPIC_AUTHORIZATION_FAILED
                errors += 1
        assert errors >= 15 and node.met <= 60
    began_ms = node.now_ms
    found = []
    while len(found) < 6:
        assert node.now_ms - began_ms < 15_000
        try:
            found += app.poll(1000)
        except KafkaError:
            errors += 1
    app.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_topic_that_was_made_again_is_read_from_its_start(node: RefusingNode, protocol: str) -> None:
    """Its log is longer than the old one was: all its records are read, also those at offsets that were committed before."""
    settings = {"group_protocol": protocol, "auto_commit_interval_ms": 1000, "allow_auto_create_topics": False}
    app = ConsumerApp(node, "c", **{**AUTOMATIC, **settings})
    app.subscribe("t")
    assert len(app.read(6)) == 6
    app.poll(1500)
    assert app.committed(*BOTH) == {("t", 0): 3, ("t", 1): 3}
    node.delete_topic("t")
    node.create_topic("t", 2)
    for index in range(2):
        pending = node.produce("t", index, batch(b"0", b"1", b"2", b"3", b"4"))
        node.until(lambda pending=pending: pending.answer is not None)
    found = app.read(10)
    assert {index: [one.value for one in found if one.partition == index] for index in range(2)} == {
        0: [b"0", b"1", b"2", b"3", b"4"],
        1: [b"0", b"1", b"2", b"3", b"4"],
    }
    app.close()
    assert ConsumerApp(node, "reader", group_id="g").committed(*BOTH) == {("t", 0): 5, ("t", 1): 5}
