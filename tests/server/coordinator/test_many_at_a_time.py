"""Protects the event loop, and max.message.bytes, from what concerns many offsets or share partitions at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kcli.protocol import apis
from kcli.server.coordinator.operation import Decision
from tests.server.apis.asking import ask, struct
from tests.server.coordinator.test_transactions import find
from tests.server.whole_node import WholeNode

PARTITIONS = 170
MOST = 50  # records of one operation


@pytest.fixture
def node(tmp_path: Path) -> WholeNode:
    made = WholeNode(tmp_path / "data", "offsets.topic.num.partitions=1", "offsets.retention.minutes=1")
    made.create_topic("t", PARTITIONS)
    find(made, 0, "g")
    return made


def commit_all(node: WholeNode) -> list[int]:
    key = apis.OFFSET_COMMIT
    parts = [struct(key, "OffsetCommitRequestPartition", partition_index=at, committed_offset=at) for at in range(PARTITIONS)]
    topics = [struct(key, "OffsetCommitRequestTopic", name="t", partitions=parts)]
    answer = ask(node, key, 8, group_id="g", topics=topics)
    return [part.error_code for part in answer.topics[0].partitions]


def record_counts(node: WholeNode, patch: pytest.MonkeyPatch) -> list[int]:
    """How many records each operation of the group coordinator has from now on."""
    runtime, counts = node.broker.groups.runtime, list[int]()
    write = runtime.write

    def counting(index: int, operation: Any, *arguments: Any) -> None:
        def count(shard: Any) -> Decision[Any]:
            decision: Decision[Any] = operation(shard)
            counts.append(len(decision.records))
            return decision

        write(index, count, *arguments)

    patch.setattr(runtime, "write", counting)
    return counts


def test_the_offsets_of_a_deleted_topic_are_deleted_in_parts(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(commit_all(node)) == {0}
    counts = record_counts(node, monkeypatch)
    node.delete_topic("t")
    node.advance(100)
    assert not node.broker.groups.runtime.shard(0).state.offsets_by_group
    assert sum(counts) == PARTITIONS and max(counts) <= MOST
    assert sum(f"{PARTITIONS} committed offsets of deleted topic t are deleted" in line for line in node.lines) == 1


def test_offsets_of_a_new_topic_with_the_name_of_a_deleted_one_stay(node: WholeNode) -> None:
    """The deletion of the old ones is still going on when they are committed."""
    assert set(commit_all(node)) == {0}
    shard = node.broker.groups.runtime.shard(0)
    found = list(shard.offsets.of_topic("t", None).items())
    assert len(found) == PARTITIONS and set(commit_all(node)) == {0}
    assert shard.offsets.delete_unchanged(found) == []


def test_expired_offsets_are_deleted_in_parts(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(commit_all(node)) == {0}
    counts = record_counts(node, monkeypatch)
    runtime = node.broker.groups.runtime
    node.advance(12 * 60_000)
    assert not runtime.shard(0).state.offsets_by_group
    assert sum(counts) >= PARTITIONS and max(counts) <= MOST + 1, "the last one has the group's tombstone, too"
