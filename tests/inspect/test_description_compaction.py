"""Protects what describe tells of compacted partitions: the cleaner's own figures, and what a broker gave up and why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kcli.commands.app import main
from kcli.format.checkpoint import PartitionOffset, encode_offset_checkpoint
from kcli.inspect.description.describe_options import OVERVIEW_SECTIONS
from kcli.inspect.renderers.description_text import description_lines
from kcli.log.cleaner.log_cleaner_manager import log_to_clean
from kcli.log.unified_log import UnifiedLog
from tests.conftest import FIXTURES, log_sets
from tests.inspect.described import by_partition, described
from tests.log.cleaner.test_log_cleaner import COMPACTED, Running
from tests.log.log_nodes import NOW_MS, Node
from tests.log_builder import PartitionBuilder

SHOW = frozenset(("compaction",))
NAME = "kcli-uncleanable-partitions"


def rows(root: Path, **options: Any) -> dict[str, dict[str, Any]]:
    return by_partition(described(root, **{"show": SHOW, **options}).report["compaction"])


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[tuple[Path, dict[str, UnifiedLog]]]:
    """What a broker left: t-0 was cleaned and grew again, t-1 is damaged, t-2 was never cleaned."""
    node = Node(tmp_path / "a")
    running = Running(node)
    cleaned, damaged = running.make(0), running.make(1)
    path = Path(damaged.directory) / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
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
    assert set(found) == {"t-0", "t-1"}  # nothing says that t-2 is compacted
    for name, row in found.items():
        expected = log_to_clean(logs[name], logs[name].cleaned_offset, NOW_MS)
        assert (row["firstDirtyOffset"], row["firstUncleanableOffset"]) == expected[:2], name
        assert (row["cleanBytes"], row["dirtyBytes"]) == expected[2:4], name
        assert row["dirtyRatio"] == round(expected.dirty_ratio, 4) > 0
        assert row["cleanedOffset"] == logs[name].cleaned_offset
    assert found["t-0"]["cleanBytes"] > 0 and found["t-1"]["cleanBytes"] == 0


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


def test_what_the_broker_gave_up_is_a_problem_and_in_the_overview(
    stopped: tuple[Path, dict[str, UnifiedLog]], capfd: pytest.CaptureFixture[str]
) -> None:
    root, _ = stopped
    description = described(root, show=OVERVIEW_SECTIONS)
    problem, damage = description.problems
    assert damage == (f"{root}/t-1/{0:020d}.log", "1 damaged batch left out, at byte 0; kcli verify has the details")
    assert problem.path == f"{root}/t-1" and "not cleaned since 2023-11-14T22:13:20" in problem.message
    assert "the batch at byte 0 has a wrong CRC" in problem.message
    text = list(description_lines(description.report, overview=True))
    (line,) = text[text.index("not cleaned any more") + 2 :][:1]
    assert line.split()[:1] == ["t-1"] and "2023-11-14T22:13:20Z" in line
    assert main(["describe", str(root)]) == 1
    out, err = capfd.readouterr()
    assert "\nnot cleaned any more\n" in out and "wrong CRC" in err
    assert main(["describe", str(root), "--show", "compaction"]) == 1
    out, _ = capfd.readouterr()
    assert out.startswith("compaction\n") and "t-0" in out and "t-1" in out
    PartitionBuilder(root / "other-0")
    assert main(["describe", str(root), "--topic", "other"]) == 0


def test_what_was_cleaned_since_is_no_problem_any_more(stopped: tuple[Path, dict[str, UnifiedLog]]) -> None:
    """Another broker, one of Kafka's, leaves the file as it is and its checkpoint behind."""
    root, logs = stopped
    offsets = [PartitionOffset("t", 0, 5), PartitionOffset("t", 1, logs["t-1"].active_base_offset)]
    (root / "cleaner-offset-checkpoint").write_bytes(encode_offset_checkpoint(offsets))
    description = described(root, show=SHOW)
    assert description.problems == []
    assert not any(row["isUncleanable"] for row in description.report["compaction"])


def test_without_anything_given_up_the_overview_says_nothing_of_it(stopped: tuple[Path, dict[str, UnifiedLog]]) -> None:
    root, _ = stopped
    (root / NAME).unlink()
    text = "\n".join(description_lines(described(root, show=OVERVIEW_SECTIONS).report, overview=True))
    assert "not cleaned any more" not in text and "compaction" not in text


def test_a_torn_file_is_a_problem_and_all_else_is_told(stopped: tuple[Path, dict[str, UnifiedLog]]) -> None:
    root, _ = stopped
    data = (root / NAME).read_bytes()
    for spoilt in (data[:1] + data[2:], b"0\n2\n" + data[4:], b"\xff" * 50):
        (root / NAME).write_bytes(spoilt)
        description = described(root, show=SHOW)
        assert [problem.path for problem in description.problems] == [f"{root}/{NAME}"]
        assert len(description.report["compaction"]) == 1  # t-0, by its checkpoint


def test_topics_of_kafka_s_own_directory() -> None:
    """The given directory: Kafka's cleaner was to its compacted topics, and all that its metadata has compacted has a row."""
    data = log_sets(FIXTURES)[0].data
    description = described(data, show=SHOW)
    found = {row["topic"]: row for row in description.report["compaction"]}
    assert {"compacted", "compacted-txn", "__consumer_offsets", "__transaction_state"} <= set(found)
    assert "orders" not in found and description.problems == []
    assert found["compacted"]["cleanupPolicy"] == ["compact"]
    for row in found.values():
        assert 0 <= row["dirtyRatio"] <= 1 and not row["isUncleanable"]
