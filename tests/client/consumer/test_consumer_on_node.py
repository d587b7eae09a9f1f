"""Protects what a consumer and its membership do together: partitions of the application, automatic commits, lost positions.

The broker is a whole node of kcli in virtual time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kcli.client.consumer.subscription_state import NoOffsetForPartitionError
from tests.client.clients_of_node import ClientsOfNode
from tests.client.consumer.consumer_app import ConsumerApp
from tests.server.whole_node import batch

BOTH = [("t", 0), ("t", 1)]
AUTOMATIC = {"group_id": "g", "enable_auto_commit": True, "auto_commit_interval_ms": 60_000, "max_poll_records": 2}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ClientsOfNode]:
    node = ClientsOfNode(tmp_path, "offsets.topic.num.partitions=1", "group.initial.rebalance.delay.ms=0")
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
