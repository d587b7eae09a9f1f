"""Protects the limits on groups and open transactions: what is new is refused, what exists goes on, also after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kcli.protocol import apis, error_codes
from kcli.server.replication.partition import Partition, PartitionError
from tests.server.apis.asking import ask, struct
from tests.server.coordinator.test_streams_apis import topology
from tests.server.coordinator.test_transactions import Client, find
from tests.server.test_cleaning import BROKER, alter
from tests.server.whole_node import WholeNode

SETTINGS = (
    "offsets.topic.num.partitions=4",
    "transaction.state.log.num.partitions=4",
    "group.initial.rebalance.delay.ms=0",
)
NAMES = error_codes.NAMES
REFUSED = "POLICY_VIOLATION"


def started(directory: Path, *overrides: str) -> WholeNode:
    """A node with topic t whose coordinators are loaded."""
    is_new = not directory.exists()
    node = WholeNode(directory, *SETTINGS, *overrides)
    if is_new:
        node.create_topic("t", 3)
    find(node, 0, "g")
    find(node, 1, "x")
    node.until(lambda: len(node.broker.groups.runtime.shards()) == len(node.broker.transactions.runtime.shards()) == 4)
    return node


def refusals(node: WholeNode) -> list[str]:
    return [line for line in node.lines if "has reached its limit" in line]


# -------------------------------------------------------------------------------------------------------------- groups


def join(node: WholeNode, group_id: str) -> str:
    """JoinGroup of a member without an id."""
    protocol = struct(apis.JOIN_GROUP, "JoinGroupRequestProtocol", name="range", metadata=b"\0\0\0\0\0\0\xff\xff\xff\xff")
    fields: dict[str, Any] = {"session_timeout_ms": 10_000, "protocol_type": "consumer", "protocols": [protocol]}
    return NAMES[ask(node, apis.JOIN_GROUP, 9, group_id=group_id, **fields).error_code]


def beat(node: WholeNode, group_id: str, epoch: int = 0) -> Any:
    """ConsumerGroupHeartbeat of member m, which joins in epoch 0."""
    fields: dict[str, Any] = {"group_id": group_id, "member_id": "m", "member_epoch": epoch}
    if epoch == 0:
        fields |= {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["t"], "topic_partitions": []}
    return ask(node, apis.CONSUMER_GROUP_HEARTBEAT, 1, **fields)


def beat_share(node: WholeNode, group_id: str) -> Any:
    fields: dict[str, Any] = {"group_id": group_id, "member_id": "m", "member_epoch": 0, "subscribed_topic_names": ["t"]}
    return ask(node, apis.SHARE_GROUP_HEARTBEAT, 1, **fields)


def beat_streams(node: WholeNode, group_id: str) -> Any:
    fields: dict[str, Any] = {"group_id": group_id, "member_id": "m", "member_epoch": 0, "process_id": "p"}
    fields |= {"topology": topology(), "active_tasks": [], "standby_tasks": [], "warmup_tasks": []}
    return ask(node, apis.STREAMS_GROUP_HEARTBEAT, 0, rebalance_timeout_ms=60_000, **fields)


def alter_share(node: WholeNode, group_id: str) -> Any:
    key = apis.ALTER_SHARE_GROUP_OFFSETS
    parts = [struct(key, "AlterShareGroupOffsetsRequestPartition", partition_index=0, start_offset=0)]
    topics = [struct(key, "AlterShareGroupOffsetsRequestTopic", topic_name="t", partitions=parts)]
    return ask(node, key, 0, group_id=group_id, topics=topics)


def commit(node: WholeNode, group_id: str, offset: int = 0) -> str:
    """OffsetCommit of a consumer that assigns partitions to itself."""
    key = apis.OFFSET_COMMIT
    parts = [struct(key, "OffsetCommitRequestPartition", partition_index=0, committed_offset=offset)]
    topics = [struct(key, "OffsetCommitRequestTopic", name="t", partitions=parts)]
    return NAMES[ask(node, key, 8, group_id=group_id, topics=topics).topics[0].partitions[0].error_code]


def delete(node: WholeNode, group_id: str) -> str:
    return NAMES[ask(node, apis.DELETE_GROUPS, 2, groups_names=[group_id]).results[0].error_code]


def test_new_groups_of_all_kinds_are_refused(tmp_path: Path) -> None:
    """A group that only has offsets counts; it, and one with members, go on. There is one line in the log."""
    node = started(tmp_path / "data", "kcli.max.groups=2")
    epoch = beat(node, "consumers").member_epoch
    assert (commit(node, "simple"), epoch > 0) == ("NONE", True)
    assert commit(node, "other") == join(node, "other") == REFUSED
    for answer in (beat(node, "other"), beat_share(node, "other"), beat_streams(node, "other"), alter_share(node, "other")):
        assert NAMES[answer.error_code] == REFUSED
        assert answer.error_message == ("the new group other is refused: the broker has reached its limit kcli.max.groups=2")
    client = Client(node)
    assert (client.init(), client.send(b"a"), client.commit_offset(1, "other")) == ("NONE", "NONE", REFUSED)
    assert client.commit_offset(1, "simple") == client.end() == "NONE"
    assert (commit(node, "simple", 5), beat(node, "consumers", epoch).error_code) == ("NONE", 0)
    assert len(refusals(node)) == 1
    assert (delete(node, "simple"), join(node, "other"), commit(node, "more")) == ("NONE", "MEMBER_ID_REQUIRED", REFUSED)
    node.advance(60_000)
    assert commit(node, "more") == REFUSED
    assert "7 others were refused since" in refusals(node)[1]
    node.stop()


def test_a_limit_is_raised_while_the_broker_runs(tmp_path: Path) -> None:
    node = started(tmp_path / "data", "kcli.max.groups=1")
    assert (commit(node, "simple"), commit(node, "other")) == ("NONE", REFUSED)
    alter(node, BROKER, "", kcli_max_groups="2")
    assert (commit(node, "other"), commit(node, "more")) == ("NONE", REFUSED)
    node.stop()


def test_a_load_keeps_all_groups(tmp_path: Path) -> None:
    """A broker that starts with a lower limit, or takes over partitions, refuses new groups only."""
    node = started(tmp_path / "data")
    epoch = beat(node, "consumers").member_epoch
    assert commit(node, "simple") == commit(node, "more") == "NONE"
    node.stop()
    node = started(tmp_path / "data", "kcli.max.groups=2")
    assert not refusals(node)
    assert (commit(node, "simple", 3), commit(node, "more", 3), commit(node, "other")) == ("NONE", "NONE", REFUSED)
    assert beat(node, "consumers", epoch).error_code == 0
    assert (delete(node, "simple"), commit(node, "other")) == ("NONE", REFUSED)
    assert (delete(node, "more"), commit(node, "other")) == ("NONE", "NONE")
    node.stop()


# -------------------------------------------------------------------------------------------------------- transactions


@pytest.mark.parametrize("bumps", [True, False], ids=["version 2", "version 1"])
def test_a_new_transaction_waits_until_another_one_ends(tmp_path: Path, bumps: bool) -> None:
    """Also after a restart; more partitions are added to the transaction that is open."""
    node = started(tmp_path / "data", "kcli.max.open.transactions=1")
    first, second = Client(node, "first", bumps=bumps), Client(node, "second", bumps=bumps)
    assert first.init() == second.init() == first.send(b"a") == "NONE"
    assert second.add(0) == ["CONCURRENT_TRANSACTIONS"]
    assert first.send(b"b", 1) == "NONE"
    assert len(refusals(node)) == 1
    if bumps:
        assert second.send(b"x") == "CONCURRENT_TRANSACTIONS"
    node.stop()
    first.node = second.node = node = started(tmp_path / "data", "kcli.max.open.transactions=1")
    assert second.add(0) == ["CONCURRENT_TRANSACTIONS"] and len(refusals(node)) == 1
    assert first.send(b"c") == first.end() == "NONE"
    node.advance(100)
    assert second.send(b"d") == second.end() == "NONE"
    node.stop()


def test_a_load_keeps_all_transactions(tmp_path: Path) -> None:
    """They end as their producers want, or by their timeouts."""
    node = started(tmp_path / "data")
    clients = [Client(node, f"producer-{number}", timeout_ms=20_000) for number in range(3)]
    for client in clients:
        assert client.init() == client.send(b"a") == "NONE"
    node.stop()
    node = started(tmp_path / "data", "kcli.max.open.transactions=1")
    assert node.broker.transactions.open_count() == 3
    for client in clients:
        client.node = node
        assert client.send(b"b", 1) == "NONE"
    assert clients[0].end() == "NONE"
    late = Client(node, "late")
    assert (late.init(), late.add(0)) == ("NONE", ["CONCURRENT_TRANSACTIONS"])
    node.advance(40_000)
    assert node.broker.transactions.open_count() == 0
    assert late.send(b"c") == "NONE"
    node.stop()


def test_what_could_not_be_written_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of a new group and of a new transaction are reverted when the append fails."""
    node = started(tmp_path / "data", "kcli.max.groups=1", "kcli.max.open.transactions=1")
    first, second = Client(node, "first"), Client(node, "second")
    assert first.init() == second.init() == "NONE"
    with monkeypatch.context() as patch:
        patch.setattr(Partition, "append", _refuse)
        assert (first.add(0), commit(node, "g")) == (["COORDINATOR_NOT_AVAILABLE"], "COORDINATOR_NOT_AVAILABLE")
    assert (node.broker.transactions.open_count(), node.broker.groups.group_count()) == (0, 0)
    assert (second.add(0), commit(node, "other")) == (["NONE"], "NONE")
    node.stop()


def _refuse(self: Partition, *arguments: Any) -> None:
    raise PartitionError(error_codes.NOT_ENOUGH_REPLICAS, "too few replicas")
