"""Protects what is told of the log cleaner: Kafka's figures, of the last round and the last look, none invented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kcli.log.cleaner.offset_map import SLOT_BYTES
from kcli.server.metrics.catalog import METRICS
from kcli.server.shell.metrics_collector import RawSamples, sample_cleaner
from tests.damage.layout import flip
from tests.log.cleaner.test_log_cleaner import COMPACTED, Running
from tests.log.log_nodes import NOW_MS, Node

SLOTS = 1000
MAP_BYTES = SLOT_BYTES * SLOTS


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "a", tmp_path / "b")


def told(running: Running, now_ms: int) -> dict[str, dict[tuple[str, ...], float]]:
    """Without the beginning of the names that all share."""
    raw = RawSamples()
    sample_cleaner(running.manager, raw, now_ms)
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for name, labels, value in raw.values:
        found.setdefault(name.removeprefix("kafka_log_logcleaner"), {})[labels] = value
    return found


def test_before_the_first_round_there_is_nothing_to_tell_but_time(node: Node) -> None:
    found = told(Running(node), NOW_MS + 70)
    assert found["manager_time_since_last_run_ms"] == {(): 70}
    none: dict[str, Any] = {name: set(of.values()) for name, of in found.items() if name != "manager_time_since_last_run_ms"}
    assert all(values == {0} for values in none.values())
    told_of = {metric.name for metric in METRICS if metric.name.startswith("kafka_log_logcleaner")}
    assert {f"kafka_log_logcleaner{name}" for name in found} == told_of and len(told_of) == 9


def test_a_round_and_the_look_before_it(node: Node) -> None:
    """200 keys in a map of 1000, some of the bytes kept, a log that was overdue for 5 s."""
    running = Running(node, cleaner_dedupe_buffer_bytes=MAP_BYTES, cleaner_backoff_ms=7000)
    log = running.make(0, COMPACTED._replace(max_compaction_lag_ms=2000), records=400, keys=200)
    running.until(NOW_MS + 7000)
    cleaner = running.manager.cleaner
    assert cleaner.totals.rounds == 1
    found = told(running, NOW_MS + 7500)
    totals = cleaner.totals
    assert found["_cleaner_recopy_percent"] == {(): int(100 * totals.bytes_kept / totals.bytes_read)}
    assert 30 < found["_cleaner_recopy_percent"][()] < 70
    keys = len({number % 200 for number in range(log.active_base_offset)})
    assert found["_max_buffer_utilization_percent"] == {(): 100 * keys // SLOTS}
    assert found["_max_compaction_delay_secs"] == {(): 5}
    # It was looked once more behind the round: nothing is dirty.
    assert found["manager_max_dirty_percent"] == {(): 0}
    assert found["manager_time_since_last_run_ms"] == {(): 500}


def test_the_time_of_a_round_has_its_waits(node: Node) -> None:
    running = Running(node, cleaner_max_bytes_per_second=100_000.0)
    running.make(0, COMPACTED._replace(segment_bytes=100_000), records=4000)
    running.until(NOW_MS + 60_000)
    (thread,) = running.manager.cleaner.thread_stats()
    took = thread.last_round.took_ms
    assert took > 3000 and told(running, NOW_MS)["_max_clean_time_secs"] == {(): took // 1000}


def two_rounds_at_once(node: Node) -> Running:
    """Two threads have each had one round, one longer, over more keys, that keeps more; the later one's log was overdue."""
    running = Running(node, cleaner_threads=2, cleaner_max_bytes_per_second=20_000.0, cleaner_dedupe_buffer_bytes=2 * MAP_BYTES)
    running.make(0, records=400, keys=200)
    running.until(NOW_MS + 2500)
    assert running.manager.cleaner.totals.rounds == 0
    running.make(1, COMPACTED._replace(max_compaction_lag_ms=1), records=60, keys=5)
    while running.manager.cleaner.totals.rounds < 2:
        running.step()
    return running


def test_of_several_threads_the_greatest_is_told_and_what_they_kept_together(node: Node) -> None:
    running = two_rounds_at_once(node)
    first, second = (thread.last_round for thread in running.manager.cleaner.thread_stats())
    assert first.took_ms > second.took_ms + 1000 > 1000 and first.map_used > 10 * second.map_used > 0
    assert first.bytes_kept / first.bytes_read > 2 * second.bytes_kept / second.bytes_read
    found = told(running, NOW_MS)
    kept, read = first.bytes_kept + second.bytes_kept, first.bytes_read + second.bytes_read
    assert found["_cleaner_recopy_percent"] == {(): int(100 * kept / read)}
    assert found["_max_clean_time_secs"] == {(): first.took_ms // 1000}
    assert found["_max_buffer_utilization_percent"] == {(): int(100 * first.map_used)}
    assert found["_max_compaction_delay_secs"] == {(): 2}


def test_a_thread_that_is_taken_away_is_told_of_no_more(node: Node) -> None:
    running = two_rounds_at_once(node)
    first, _ = running.manager.cleaner.thread_stats()
    running.manager.change_settings(cleaner_threads=1)
    assert running.manager.cleaner.thread_stats() == [first]


def test_the_dirtiest_log_counts_though_it_is_not_cleaned(node: Node) -> None:
    running = Running(node)
    running.make(0, COMPACTED._replace(min_cleanable_dirty_ratio=1.0))
    running.until(NOW_MS + 200)
    assert told(running, NOW_MS + 200)["manager_max_dirty_percent"] == {(): 100}


def test_uncleanable_logs_count_by_log_directory(node: Node) -> None:
    """With their dirty bytes, which grow on; until they are deleted."""
    running = Running(node)
    log = running.make()
    path = Path(log.directory) / f"{0:020}.log"
    flip(path, 70)
    running.until(NOW_MS + 300)
    place, others = str(Path(log.directory).parent), set(running.manager.dirs)
    others.discard(place)
    (other,) = others
    for _ in range(2):
        dirty = sum(one.size_bytes for one in log.local_log().segments[:-1])
        found = told(running, NOW_MS + 300)
        assert found["manager_uncleanable_partitions_count"] == {(place,): 1, (other,): 0}
        assert found["manager_uncleanable_bytes"] == {(place,): dirty, (other,): 0}
        running.append(log)
    running.manager.delete_logs([("t", 0)], NOW_MS + 400)
    found = told(running, NOW_MS + 400)
    assert set(found["manager_uncleanable_partitions_count"].values()) == {0}


def test_without_a_cleaner_nothing_is_told_of_it(node: Node) -> None:
    assert told(Running(node, cleaner_enable=False), NOW_MS) == {}
