"""Protects __consumer_offsets from growing: commits of the same groups leave a log of bounded size, and the last offsets.

The log is cleaned while commits go on. The bound is two segments of commits that no round has cleaned, the active segment, and
what a round writes next to the segments that it replaces.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.protocol import apis
from tests.server.apis.asking import ask, struct
from tests.server.coordinator.test_transactions import find
from tests.server.whole_node import WholeNode

PARTITIONS, SEGMENT_BYTES = 100, 1 << 20
SETTINGS = (
    "offsets.topic.num.partitions=1",
    f"offsets.topic.segment.bytes={SEGMENT_BYTES}",
    "log.cleaner.backoff.ms=500",
    "log.initial.task.delay.ms=500",
)


def commit(node: WholeNode, group: str, offset: int) -> None:
    """Commit the same offset of all partitions of topic t."""
    key = apis.OFFSET_COMMIT
    parts = [
        struct(key, "OffsetCommitRequestPartition", partition_index=index, committed_offset=offset, committed_metadata="")
        for index in range(PARTITIONS)
    ]
    answer = ask(node, key, 8, group_id=group, topics=[struct(key, "OffsetCommitRequestTopic", name="t", partitions=parts)])
    assert {part.error_code for part in answer.topics[0].partitions} == {0}


@pytest.mark.parametrize(
    "commits", [pytest.param(100_000, marks=pytest.mark.ci), pytest.param(1_000_000, marks=pytest.mark.slow)]
)
def test_commits_leave_a_log_of_bounded_size(tmp_path: Path, commits: int) -> None:
    node = WholeNode(tmp_path / "data", *SETTINGS)
    node.create_topic("t", PARTITIONS)
    find(node, 0, "g")
    partition = node.broker.replica_manager.partition("__consumer_offsets", 0)
    assert partition is not None and partition.log is not None
    log, largest_bytes = partition.log, 0
    for number in range(commits // PARTITIONS):
        commit(node, f"g{number % 5}", number)
        node.advance(50)
        largest_bytes = max(largest_bytes, log.size_bytes)
    node.advance(120_000)
    last = {f"g{number % 5}": number for number in range(commits // PARTITIONS - 5, commits // PARTITIONS)}
    assert log.log_end_offset == commits and node.broker.log_manager.cleaner.totals.rounds > 1
    assert largest_bytes < 4 * SEGMENT_BYTES
    runtime = node.broker.groups.runtime
    runtime.resign(0)
    runtime.leadership_changed(partition, node.now_ms)
    node.until(lambda: not runtime.loading_count())
    state = runtime.shard(0).state
    for group, offset in last.items():
        found = [state.committed_offset(group, "t", index) for index in range(PARTITIONS)]
        assert [None if one is None else one.offset for one in found] == [offset] * PARTITIONS
