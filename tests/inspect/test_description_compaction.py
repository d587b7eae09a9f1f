"""Protects what describe tells of compacted partitions: the cleaner's own figures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcli.format.checkpoint import PartitionOffset, encode_offset_checkpoint
from kcli.log.cleaner.log_cleaner_manager import log_to_clean
from kcli.log.unified_log import UnifiedLog
from tests.conftest import FIXTURES, log_sets
from tests.damage.layout import flip
from tests.inspect.described import by_partition, described
from tests.log.cleaner.test_log_cleaner import COMPACTED, Running
from tests.log.log_nodes import NOW_MS, Node

SHOW = frozenset(("compaction",))


def rows(root: Path, **options: Any) -> dict[str, dict[str, Any]]:
    return by_partition(described(root, **{"show": SHOW, **options}).report["compaction"])


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[tuple[Path, dict[str, UnifiedLog]]]:
    """What a broker left: t-0 was cleaned and grew again, t-1 is damaged, t-2 was never cleaned."""
    node = Node(tmp_path / "a")
    running = Running(node)
    cleaned, damaged = running.make(0), running.make(1)
    path = Path(damaged.directory) / f"{0:020}.log"
    flip(path, 70)
    running.until(NOW_MS + 500)
    running.append(cleaned, 30)
    never = running.make(2, COMPACTED._replace(cleanup_policy=frozenset(("delete",))))
    logs = {"t-0": cleaned, "t-1": damaged, "t-2": never}
    yield tmp_path / "a", logs
    running.manager.files.close_all()


def stop(logs: dict[str, UnifiedLog], root: Path) -> None:
    """The checkpoint that a stop writes; the logs themselves stay open to be asked."""
    lines = [PartitionOffset("t", log.partition, log.high_watermark) for log in logs.values()]
    (root / "replication-offset-checkpoint").write_bytes(encode_offset_checkpoint(lines))


def test_dirty_bytes_and_ratio_are_those_of_the_cleaner(stopped: tuple[Path, dict[str, UnifiedLog]]) -> None:
    root, logs = stopped
    stop(logs, root)
    found = rows(root)
    assert set(found) == {"t-0"}  # nothing on the disk says that t-1 and t-2 are compacted
    for name, row in found.items():
        expected = log_to_clean(logs[name], logs[name].cleaned_offset, NOW_MS)
        assert (row["firstDirtyOffset"], row["firstUncleanableOffset"]) == expected[:2], name
        assert (row["cleanBytes"], row["dirtyBytes"]) == expected[2:4], name
        assert row["dirtyRatio"] == round(expected.dirty_ratio, 4) > 0
        assert row["cleanedOffset"] == logs[name].cleaned_offset
        assert row["cleanBytes"] > 0


def test_young_segments_do_not_count_as_dirty(stopped: tuple[Path, dict[str, UnifiedLog]], monkeypatch: Any) -> None:
    """min.compaction.lag.ms, which needs to be told what time it is."""
    root, logs = stopped
    stop(logs, root)
    young = COMPACTED._replace(min_compaction_lag_ms=10_000)
    logs["t-0"].config = young
    monkeypatch.setattr("kcli.inspect.description.topic_sections._settings_of", lambda topic, image, defaults: young)
    for now_ms in (NOW_MS + 5_000, NOW_MS + 20_000):
        expected = log_to_clean(logs["t-0"], logs["t-0"].cleaned_offset, now_ms)
        assert rows(root, now_ms=now_ms)["t-0"]["dirtyBytes"] == expected.cleanable_bytes
        assert (expected.cleanable_bytes > 0) is (now_ms > NOW_MS + 10_000)
    unknown = rows(root)["t-0"]
    assert (unknown["dirtyBytes"], unknown["dirtyRatio"]) == (None, None)


def test_topics_of_kafka_s_own_directory() -> None:
    """The given directory: Kafka's cleaner was to its compacted topics, and all that its metadata has compacted has a row."""
    data = log_sets(FIXTURES)[0].data
    description = described(data, show=SHOW)
    found = {row["topic"]: row for row in description.report["compaction"]}
    assert {"compacted", "compacted-txn", "__consumer_offsets", "__transaction_state"} <= set(found)
    assert "orders" not in found and description.problems == []
    assert found["compacted"]["cleanupPolicy"] == ["compact"]
    for row in found.values():
        assert 0 <= row["dirtyRatio"] <= 1
