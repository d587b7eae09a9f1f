"""Protects: offsets in a transaction are those of the member that got the records, and refused if another member has them.

A member that has left its group since has no generation. Offsets without one would be accepted: each coordinator takes them for
those of a client that is in no group. (The simulator found records that were processed twice.)
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kcli.client.consumer.membership import GroupMetadata
from kcli.client.errors import TransactionAbortableError
from kcli.client.value_checks import OffsetAndMetadata
from tests.client.clients_of_node import ClientsOfNode
from tests.client.consumer.group_app import GroupApp
from tests.client.producer.producer_app import ProducerApp

T0 = ("t", 0)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ClientsOfNode]:
    node = ClientsOfNode(
        tmp_path,
        "offsets.topic.num.partitions=1",
        "transaction.state.log.num.partitions=1",
        "group.initial.rebalance.delay.ms=0",
        "group.consumer.heartbeat.interval.ms=500",
        "group.consumer.min.heartbeat.interval.ms=500",
    )
    node.create_topic("t", 1)
    node.create_topic("out", 1)
    yield node
    node.clients.clear()
    node.stop()


def joined(node: ClientsOfNode, name: str, protocol: str, *, has_listener: bool = True) -> GroupApp:
    app = GroupApp(node, name, len(name), group_protocol=protocol, max_poll_interval_ms=5000)
    if not has_listener:
        app.listener = None  # type: ignore[assignment]
    app.subscribe("t")
    node.until(lambda: app.assigned == {T0} and app.member.is_ready_to_fetch)
    return app


def commit_in_transaction(node: ClientsOfNode, member: GroupMetadata) -> object:
    """Commit offset 5 with a record, as a member -> the error of send_offsets_to_transaction."""
    producer = ProducerApp(node, "p", transactional_id="x", linger_ms=0)
    assert producer.call(producer.core.init_transactions) is None
    producer.core.begin_transaction()
    producer.send("out", b"v")
    error = producer.call(producer.core.send_offsets_to_transaction, {T0: OffsetAndMetadata(5)}, member)
    producer.call(producer.core.abort_transaction if error else producer.core.commit_transaction)
    return error


@pytest.mark.parametrize("has_listener", [True, False])
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_that_did_not_poll_commits_nothing(node: ClientsOfNode, protocol: str, has_listener: bool) -> None:
    """Also if it is in the group again without a poll: the records in its hands are of the partitions that it had."""
    app = joined(node, "a", protocol, has_listener=has_listener)
    before = app.member.last_group_metadata()
    assert before.generation_id > 0 and before == app.member.group_metadata()
    app.polls = False  # it works on the records of its last poll
    node.advance(6000)
    other = joined(node, "bb", protocol)
    assert app.member.last_group_metadata() == before
    assert isinstance(commit_in_transaction(node, app.member.last_group_metadata()), TransactionAbortableError)
    assert commit_in_transaction(node, other.member.last_group_metadata()) is None
    assert other.committed(T0) == {T0: 5}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_that_polls_again_is_another_one(node: ClientsOfNode, protocol: str) -> None:
    app = joined(node, "a", protocol)
    before = app.member.last_group_metadata()
    app.polls = False
    node.advance(6000)
    app.polls = True
    node.until(lambda: app.member.group_metadata().generation_id > 0 and app.assigned == {T0})
    after = app.member.last_group_metadata()
    assert after == app.member.group_metadata() != before and app.assigned == {T0}
    assert commit_in_transaction(node, after) is None


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_without_a_subscription_there_is_no_member(node: ClientsOfNode, protocol: str) -> None:
    app = joined(node, "a", protocol)
    app.unsubscribe()
    assert app.member.last_group_metadata() == GroupMetadata("g")
