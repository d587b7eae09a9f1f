"""Protects transactions where requests overlap: guards, changes that are not committed, many transactions, downgrades."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kcli.format.record_batch import Producer
from kcli.network.peer_request import PeerFailure
from kcli.protocol import apis, error_codes
from kcli.protocol.message import Message
from kcli.server.apis.txn_markers import _WriteMarkers
from kcli.server.coordinator.transaction import marker_channel
from kcli.server.coordinator.transaction.transaction_shard import PendingChange
from kcli.server.events import DeadlineReached
from kcli.server.replication.partition import Partition, PartitionError
from tests.server.apis.asking import ask, struct
from tests.server.coordinator.test_transactions import (
    NAMES,
    SETTINGS,
    Client,
    fetched,
    find,
    node,
    partition,
    state_partition,
)
from tests.server.whole_node import Pending, WholeNode

__all__ = ["node"]


def code_of(produced: Pending) -> str:
    return NAMES[produced.result().responses[0].partition_responses[0].error_code]


def hold_verifications(node: WholeNode, patch: pytest.MonkeyPatch) -> list[Callable[[Any], None]]:
    """Keep the answers of the coordinator back; each of the list gives the broker its answer, or another one."""
    manager, held = node.broker.parts.txn_verification, list[Callable[[Any], None]]()
    answered = manager._answered

    def hold(sent: Any, answer: Any, now_ms: int) -> None:
        held.append(lambda other: give(sent, other or answer))

    def give(sent: Any, answer: Any) -> None:
        node.broker.parts.timer.schedule(node.now_ms, lambda now_ms: answered(sent, answer, now_ms))
        node.advance(1)

    patch.setattr(manager, "_answered", hold)
    return held


def refuse_markers(patch: pytest.MonkeyPatch, target: Partition) -> None:
    """Let a partition refuse markers, as one does whose log directory is offline."""
    append = Partition.append

    def refuse(self: Partition, *arguments: Any) -> Any:
        if self is target and arguments[1:] and arguments[3].name == "COORDINATOR":
            raise PartitionError(error_codes.KAFKA_STORAGE_ERROR, "offline")
        return append(self, *arguments)

    patch.setattr(Partition, "append", refuse)


def test_a_zombie_that_is_refused_does_not_disturb_the_new_producer(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its verification fails while that of the new one is under way, with the same guard."""
    zombie, client = Client(node), Client(node)
    assert zombie.init() == client.init() == "NONE"
    with monkeypatch.context() as patch:
        held = hold_verifications(node, patch)
        pending = client.begin_send(b"a", version=12)
        node.advance(5)
        late = zombie.begin_send(b"z", version=12)
        node.advance(5)
        assert len(held) == 2
        held[1](None)
        held[0](None)
    assert code_of(late) == "INVALID_PRODUCER_EPOCH" and code_of(pending) == "NONE"


def test_the_lowest_sequence_outlives_a_verification_that_failed(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-890 for clients without epoch bumps: the second batch must not become the first one."""
    client = Client(node, bumps=False)
    client.init()
    client.add(0)
    with monkeypatch.context() as patch:
        held = hold_verifications(node, patch)
        first = client.begin_send(b"a", version=11)
        node.advance(5)
        held[0](PeerFailure.DISCONNECTED)
    assert code_of(first) == "NOT_ENOUGH_REPLICAS"
    client.sequences[0] = 1
    assert client.send(b"b", version=11) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
    client.sequences[0] = 0
    assert client.send(b"a", version=11) == client.send(b"b", version=11) == "NONE"


def test_a_batch_that_is_sent_again_on_another_connection_is_verified_with_its_guard(
    node: WholeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(node)
    client.init()
    with monkeypatch.context() as patch:
        held = hold_verifications(node, patch)
        first = client.begin_send(b"a", version=12)
        node.advance(5)
        second = client.begin_send(b"a", version=12)
        node.advance(5)
        held[0](PeerFailure.DISCONNECTED)
        held[1](None)
    assert code_of(first) == "NOT_ENOUGH_REPLICAS" and code_of(second) == "NONE"


def test_what_waits_for_an_end_is_forgotten_when_it_is_answered(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(node)
    client.init()
    assert client.send(b"a") == "NONE"
    refuse_markers(monkeypatch, partition(node))
    assert client.end() == "NONE"
    for _ in range(5):
        assert client.send(b"b") == "CONCURRENT_TRANSACTIONS"
    assert not node.broker.transactions._when_ended


def test_a_refusal_does_not_tell_what_may_be_reverted(node: WholeNode) -> None:
    """The fence of a new instance is not durable yet: the old one is verified by what is committed."""
    client = Client(node, bumps=False)
    client.init()
    client.add(0)
    flush = "flush.messages"
    alter = struct(apis.INCREMENTAL_ALTER_CONFIGS, "AlterableConfig", name=flush, config_operation=0, value="1")
    resource = struct(
        apis.INCREMENTAL_ALTER_CONFIGS,
        "AlterConfigsResource",
        resource_type=2,
        resource_name="__transaction_state",
        configs=[alter],
    )
    ask(node, apis.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource])
    node.advance(10)
    node.holds_flushes = True
    fields = {"transactional_id": "x", "transaction_timeout_ms": 60_000}
    fence = node.send(apis.INIT_PRODUCER_ID, 4, apis.API_KEYS[apis.INIT_PRODUCER_ID].request.new(**fields))
    node.advance(5)
    assert fence.answer is None and client.entry().state == "Ongoing"
    late = client.begin_send(b"a", version=11)
    node.advance(5)
    assert late.answer is None or code_of(late) == "NONE"


def test_a_fenced_producer_is_told_so_while_a_change_is_not_committed(node: WholeNode) -> None:
    zombie, client = Client(node, bumps=False), Client(node, bumps=False)
    assert zombie.init() == client.init() == "NONE"
    shard = node.broker.transactions.runtime.shard(state_partition(node).index)
    entry = shard.state.transactions["x"]
    shard.changing["x"] = PendingChange(entry, entry)
    assert zombie.end() == "PRODUCER_FENCED" == zombie.add(0)[0]
    assert client.end() == "CONCURRENT_TRANSACTIONS" == client.add(0)[0]


def test_a_transaction_ends_after_a_downgrade(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of transaction.version 0 have no place for the client's version."""
    client = Client(node)
    client.init()
    assert client.send(b"a") == "NONE"
    with monkeypatch.context() as patch:
        refuse_markers(patch, partition(node))
        assert client.end() == "NONE"
        update = struct(
            apis.UPDATE_FEATURES, "FeatureUpdateKey", feature="transaction.version", max_version_level=0, upgrade_type=3
        )
        assert ask(node, apis.UPDATE_FEATURES, 2, feature_updates=[update]).error_code == 0
        node.advance(200)
        assert node.broker.transactions.transaction_version == 0
    node.advance(200)
    assert client.entry().state == "CompleteCommit" and fetched(node) == (2, [])


def test_an_ending_transaction_shows_the_partitions_that_wait(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(node)
    client.init()
    assert client.send(b"a") == client.send(b"b", 1) == "NONE"
    with monkeypatch.context() as patch:
        refuse_markers(patch, partition(node, 1))
        assert client.end() == "NONE"
        node.advance(50)
        answer = ask(node, apis.DESCRIBE_TRANSACTIONS, 0, transactional_ids=["x"]).transaction_states[0]
        assert (answer.transaction_state, answer.topics[0].partitions) == ("PrepareCommit", [1])
    node.advance(200)
    assert client.entry().state == "CompleteCommit"


def test_an_error_of_a_producers_batch_is_not_that_of_a_reader(tmp_path: Any) -> None:
    """A zombie commits offsets without verification, and another client reads those of its group in the same turn."""
    node = WholeNode(
        tmp_path / "data", *SETTINGS, "transaction.partition.verification.enable=false", "offsets.topic.num.partitions=1"
    )
    node.create_topic("t", 1)
    find(node, 1, "x")
    find(node, 0, "g")
    client = Client(node, bumps=False)
    client.init()
    assert client.commit_offset(1, version=3) == "NONE"
    old, client.producer = client.producer, Producer(client.producer.producer_id, client.producer.producer_epoch + 1)
    assert client.commit_offset(2, version=3) == "NONE"
    client.producer = old
    late = client.begin_commit_offset(3, version=3)
    group = struct(apis.OFFSET_FETCH, "OffsetFetchRequestGroup", group_id="innocent", topics=None)
    read = node.send(apis.OFFSET_FETCH, 8, apis.API_KEYS[apis.OFFSET_FETCH].request.new(groups=[group]))
    node.until(lambda: late.answer is not None and read.answer is not None)
    assert NAMES[late.result().topics[0].partitions[0].error_code] == "INVALID_PRODUCER_EPOCH"
    assert NAMES[read.result().groups[0].error_code] in ("NONE", "COORDINATOR_NOT_AVAILABLE")


# ------------------------------------------------------------------------------------------- many transactions at a time


def test_markers_of_many_partitions_are_sent_and_written_in_parts(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one request nor one turn has them all; the clients of the broker do not wait for them."""
    node = WholeNode(tmp_path / "data", *SETTINGS)
    node.create_topic("t", 250)
    find(node, 1, "x")
    client = Client(node)
    client.init()
    client.bumps = False
    client.add(*range(250))
    sizes, in_turn = list[int](), list[int]()
    run, write = _WriteMarkers.write, _WriteMarkers._write

    def count(self: _WriteMarkers, request: Message) -> Any:
        sizes.append(sum(len(topic.partition_indexes) for marker in request.markers for topic in marker.topics))
        return run(self, request)

    def count_one(self: _WriteMarkers, *arguments: Any) -> None:
        in_turn[-1] += 1
        write(self, *arguments)

    handle = node.node.handle

    def handled(event: Any, now_ms: int) -> Any:
        if isinstance(event, DeadlineReached):
            in_turn.append(0)
        return handle(event, now_ms)

    monkeypatch.setattr(_WriteMarkers, "write", count)
    monkeypatch.setattr(_WriteMarkers, "_write", count_one)
    monkeypatch.setattr(node.node, "handle", handled)
    in_turn.append(0)
    assert client.end() == "NONE"
    node.advance(50)
    assert client.entry().state == "CompleteCommit"
    assert sum(sizes) == 250 and max(sizes) == marker_channel._MOST_PARTITIONS
    assert max(in_turn) <= 2 * 2_500 // 150 + 2


def test_many_transactions_time_out_in_slices(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcli.server.scheduler.SLICE_US", 500)
    node = WholeNode(tmp_path / "data", *SETTINGS)
    node.create_topic("t", 1)
    find(node, 1, "x")
    clients = [Client(node, f"many-{number}", timeout_ms=5_000) for number in range(40)]
    for one in clients:
        find(node, 1, one.name)
        assert one.init() == one.send(b"a") == "NONE"
    changes, coordinator = list[int](), node.broker.transactions
    change = coordinator._change

    def counted(*arguments: Any, **fields: Any) -> None:
        changes.append(node.turns)
        change(*arguments, **fields)

    monkeypatch.setattr(coordinator, "_change", counted)
    node.advance(20_000)
    assert {one.entry().state for one in clients} == {"CompleteAbort"}
    assert max(changes.count(turn) for turn in set(changes)) < 40
    assert len(ask(node, apis.LIST_TRANSACTIONS, 1, state_filters=["CompleteAbort"]).transaction_states) == 40
