"""Protects the cleaner as a part of a whole node: its settings change while it runs, and so do the policies of topics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kcli.format.checkpoint import decode_offset_checkpoint
from kcli.format.record_batch import HEADER_BYTES, read_header
from kcli.format.records import read_records
from kcli.log.cleaner.log_cleaner import LastRound, LogCleaner
from kcli.log.cleaner.offset_map import SLOT_BYTES
from kcli.log.unified_log import UnifiedLog
from kcli.protocol.apis import INCREMENTAL_ALTER_CONFIGS
from kcli.server.config.definitions import BROKER_KEYS
from tests.damage.layout import flip
from tests.log.live_logs import new_batch
from tests.server.apis.asking import ask, struct
from tests.server.whole_node import WholeNode, partitions_of

TOPIC, BROKER = 2, 4
SET = 0
HOUR_MS = 3_600_000
MIB = 1 << 20
SMALL_SEGMENTS = {"internal_segment_bytes": "2000", "file_delete_delay_ms": "100"}
COMPACT = {"cleanup_policy": "compact", **SMALL_SEGMENTS}


def started(directory: Path, *overrides: str) -> WholeNode:
    return WholeNode(
        directory,
        *("log.cleaner.backoff.ms=500", "log.initial.task.delay.ms=500", "log.retention.check.interval.ms=500"),
        *overrides,
    )


def alter(node: WholeNode, resource_type: int, name: str, **configs: str) -> None:
    """Set configurations, dots in their names written as _."""
    make = [
        struct(INCREMENTAL_ALTER_CONFIGS, "AlterableConfig", name=key.replace("_", "."), config_operation=SET, value=value)
        for key, value in configs.items()
    ]
    resource = struct(
        INCREMENTAL_ALTER_CONFIGS, "AlterConfigsResource", resource_type=resource_type, resource_name=name, configs=make
    )
    (answer,) = ask(node, INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource]).responses
    assert answer.error_code == 0, answer.error_message
    node.advance(10)  # the broker follows the metadata log


def grow(node: WholeNode, topic: str = "t", batches: int = 100, keys: int = 5, value: bytes | None = b"v" * 50) -> None:
    for number in range(batches):
        produced(node, topic, new_batch([value], keys=[b"k%d" % (number % keys)], timestamps=[node.now_ms]))


def produced(node: WholeNode, topic: str, records: memoryview) -> None:
    """Produce, which has its answer at once, whatever the cleaner does."""
    answer = node.produce(topic, 0, bytes(records)).result()
    assert answer.responses[0].partition_responses[0].error_code == 0


def log_of(node: WholeNode, topic: str = "t") -> UnifiedLog:
    found = node.broker.log_manager.get_log(topic, 0)
    assert found is not None
    return found


def cleaner(node: WholeNode) -> LogCleaner:
    return node.broker.log_manager.cleaner


def last_round(node: WholeNode) -> LastRound:
    (thread,) = cleaner(node).thread_stats()
    return thread.last_round


def is_clean(node: WholeNode, topic: str = "t") -> bool:
    """Whether a round has come as far as it could."""
    log = log_of(node, topic)
    return log.cleaned_offset == log.active_base_offset


def is_waiting(node: WholeNode) -> bool:
    """Whether some seconds pass and nothing is cleaned."""
    before = cleaner(node).totals.rounds, log_of(node).size_bytes, log_of(node).cleaned_offset
    node.advance(5_000)
    return before == (cleaner(node).totals.rounds, log_of(node).size_bytes, log_of(node).cleaned_offset)


def checkpoint(node: WholeNode, topic: str = "t") -> int | None:
    path = Path(log_of(node, topic).directory).parent / "cleaner-offset-checkpoint"
    return decode_offset_checkpoint(path.read_bytes()).offsets().get((topic, 0)) if path.exists() else None


# ---------------------------------------------------------------------------------------------- log.cleaner.* at run time

# Key -> what keeps it from cleaning at the start, and what lets it go on, each with other settings that it takes.
STANDS_STILL: dict[str, tuple[tuple[str, ...], str]] = {
    "log.cleaner.backoff.ms": ((f"log.cleaner.backoff.ms={HOUR_MS}",), "100"),
    "log.cleaner.io.max.bytes.per.second": (("log.cleaner.io.max.bytes.per.second=0.001",), "1e9"),
    "log.cleaner.min.cleanable.ratio": (("log.cleaner.min.cleanable.ratio=1",), "0.1"),
    "log.cleaner.min.compaction.lag.ms": ((f"log.cleaner.min.compaction.lag.ms={HOUR_MS}",), "0"),
    "log.cleaner.max.compaction.lag.ms": (("log.cleaner.min.cleanable.ratio=1",), "1000"),
}
HAS_ITS_OWN_TEST = {
    *("log.cleaner.dedupe.buffer.size", "log.cleaner.io.buffer.load.factor", "log.cleaner.delete.retention.ms"),
    *("log.cleaner.threads", "log.cleaner.io.buffer.size"),
}


def test_no_setting_is_left_out() -> None:
    dynamic = {name for name in BROKER_KEYS if name.startswith("log.cleaner.") and BROKER_KEYS[name].update_mode == "cluster"}
    assert dynamic == STANDS_STILL.keys() | HAS_ITS_OWN_TEST
    assert BROKER_KEYS["log.cleaner.enable"].update_mode == "fixed"


@pytest.mark.parametrize("broker", ["", "1"], ids=["all", "own"])
@pytest.mark.parametrize("key", STANDS_STILL)
def test_a_changed_setting_counts_without_a_restart(key: str, broker: str, tmp_path: Path) -> None:
    """At once, and not when an old backoff, or an old wait for the rate, is over."""
    at_start, value = STANDS_STILL[key]
    node = started(tmp_path / "a", *at_start)
    node.create_topic("t", **COMPACT)
    grow(node)
    assert is_waiting(node)
    alter(node, BROKER, broker, **{key.replace(".", "_"): value})
    node.until(lambda: is_clean(node), within_ms=1_000)
    assert any(f"dynamic configuration: {key} changed" in line for line in node.lines)
    node.stop()


def test_the_memory_for_keys_changes_with_the_next_round(tmp_path: Path) -> None:
    node = started(tmp_path / "a")
    node.create_topic("t", **COMPACT)
    for megabytes in (128, 2):
        alter(node, BROKER, "", log_cleaner_dedupe_buffer_size=str(megabytes * MIB))
        grow(node, keys=40)
        rounds = cleaner(node).totals.rounds
        node.until(lambda before=rounds: cleaner(node).totals.rounds > before)  # type: ignore[misc]
        assert last_round(node).map_used == 40 / (megabytes * MIB / SLOT_BYTES)


def test_a_lower_load_factor_takes_more_rounds(tmp_path: Path) -> None:
    node = started(tmp_path / "a", f"log.cleaner.dedupe.buffer.size={2 * MIB}")
    node.create_topic("t", **COMPACT, min_cleanable_dirty_ratio="0")
    alter(node, BROKER, "", log_cleaner_io_buffer_load_factor=str(20 / (2 * MIB / SLOT_BYTES)))
    grow(node, keys=90)
    node.until(lambda: is_clean(node))
    assert cleaner(node).totals.rounds > 3


def tombstones(node: WholeNode) -> int:
    """Grow by tombstones and have them cleaned in two rounds -> the bytes that stay."""
    grow(node, batches=60, keys=60, value=None)
    for _ in range(2):
        grow(node, batches=40, keys=1)
        node.until(lambda: is_clean(node))
        node.advance(1_000)
    return log_of(node).size_bytes


def test_tombstones_go_by_the_present_time_for_them(tmp_path: Path) -> None:
    sizes = []
    for name, retention in (("a", None), ("b", "0")):
        node = started(tmp_path / name)
        node.create_topic("t", **COMPACT, min_cleanable_dirty_ratio="0")
        if retention is not None:
            alter(node, BROKER, "", log_cleaner_delete_retention_ms=retention)
        sizes.append(tombstones(node))
    kept, dropped = sizes
    assert dropped < kept / 2


def test_more_threads_clean_more_logs_at_once(tmp_path: Path) -> None:
    node = started(tmp_path / "a", "log.cleaner.io.max.bytes.per.second=5000")
    for topic in ("t", "u"):
        node.create_topic(topic, **COMPACT)
        grow(node, topic)

    def rounds() -> int:
        return sum(any(Path(log_of(node, topic).directory).glob("*.cleaned")) for topic in ("t", "u"))

    node.until(lambda: rounds() == 1)
    alter(node, BROKER, "", log_cleaner_threads="2")
    node.until(lambda: rounds() == 2)
    alter(node, BROKER, "", log_cleaner_io_max_bytes_per_second="1e9")
    node.until(lambda: is_clean(node, "t") and is_clean(node, "u"))


# --------------------------------------------------------------------------------------------------------- the throttle


def test_rounds_are_held_to_the_rate_and_nobody_else_is(tmp_path: Path) -> None:
    """Reads for the keys, reads to clean and what is written; segments far smaller than a slice count as well."""
    rate = 2_000
    node = started(tmp_path / "a")
    alter(node, BROKER, "", log_cleaner_io_max_bytes_per_second=str(rate))
    node.create_topic("t", **COMPACT)
    grow(node, batches=400, keys=100)
    log = log_of(node)
    dirty = sum(segment.size_bytes for segment in log.local_log().segments[:-1])
    end = log.active_base_offset
    rounds = cleaner(node).totals.rounds
    assert rounds == 0

    def serves() -> bool:
        produced(node, "t", new_batch([b"v"], keys=[b"k"], timestamps=[node.now_ms]))
        part = partitions_of(node.fetch({("t", 0): 0}).result())["t", 0]
        assert part.error_code == 0 and part.records
        node.advance(500)
        return cleaner(node).totals.rounds > 0

    for _ in range(1000):
        if serves():
            break
    done = last_round(node)
    assert (log.cleaned_offset or 0) >= end and done.bytes_read >= dirty
    expected_ms = (2 * done.bytes_read + done.bytes_kept) * 1000 / rate  # all of it was dirty
    assert expected_ms > 20_000
    assert 0.9 * expected_ms < done.took_ms < 1.1 * expected_ms


def test_a_rate_of_nothing_stands_still_and_less_than_that_is_none(tmp_path: Path) -> None:
    """Apache Kafka sleeps for good at 0, until it is reconfigured; a negative rate never has it sleep."""
    node = started(tmp_path / "a", "log.cleaner.io.max.bytes.per.second=0")
    node.create_topic("t", **COMPACT)
    grow(node)
    node.advance(HOUR_MS)
    assert cleaner(node).totals.rounds == 0
    alter(node, BROKER, "", log_cleaner_io_max_bytes_per_second="-1")
    node.until(lambda: is_clean(node), within_ms=1_000)


# ----------------------------------------------------------------------------------------------- log.cleaner.enable=false


def test_without_the_cleaner_compacted_topics_grow_and_the_start_says_so(tmp_path: Path) -> None:
    """As Apache Kafka 4.3.1: not even retention reaches a topic of compact,delete."""
    node = started(tmp_path / "a", "log.cleaner.enable=false")
    (warning,) = [line for line in node.lines if "log.cleaner.enable=false" in line]
    assert "grow" in warning
    for name, policy in (("c", "compact"), ("cd", "compact,delete"), ("d", "delete")):
        node.create_topic(name, cleanup_policy=policy, retention_bytes="0", **SMALL_SEGMENTS)
        grow(node, name)
    sizes = {name: log_of(node, name).size_bytes for name in ("c", "cd", "d")}
    node.advance(60_000)
    assert {name: log_of(node, name).size_bytes for name in sizes} == {**sizes, "d": 0}
    assert checkpoint(node, "c") is None
    node.stop()
    again = started(tmp_path / "a")
    again.until(lambda: is_clean(again, "c"))
    again.until(lambda: log_of(again, "cd").size_bytes == 0)
    assert not [line for line in again.lines if "log.cleaner.enable" in line]


# ------------------------------------------------------------------------------------------------------ policies of topics


def files(node: WholeNode, *suffixes: str) -> list[str]:
    return [path.name for path in Path(log_of(node).directory).iterdir() if path.name.endswith(suffixes)]


def under_way(node: WholeNode) -> bool:
    return bool(files(node, ".cleaned"))


def test_a_topics_policy_changes_from_one_to_the_other_and_back(tmp_path: Path) -> None:
    """What Apache Kafka 4.3.1 does: a round is given up, retention begins and ends, the checkpoint's line stays meanwhile."""
    node = started(tmp_path / "a")
    node.create_topic("t", **COMPACT, retention_bytes="0")
    grow(node)
    node.until(lambda: is_clean(node))
    cleaned = checkpoint(node)
    node.advance(10_000)
    log = log_of(node)
    assert cleaned and log.log_start_offset == 0 and log.log_end_offset == 100

    alter(node, TOPIC, "t", cleanup_policy="delete")
    node.until(lambda: log.log_start_offset == 100)
    assert checkpoint(node) == cleaned
    grow(node, keys=2)
    rounds = cleaner(node).totals.rounds
    node.advance(2_000)
    assert cleaner(node).totals.rounds == rounds

    alter(node, TOPIC, "t", cleanup_policy="compact,delete")
    node.until(lambda: is_clean(node))
    assert checkpoint(node) == log.active_base_offset > 100
    node.until(lambda: log.log_start_offset == 200)

    grow(node, keys=2)
    alter(node, TOPIC, "t", cleanup_policy="compact")
    node.advance(20_000)
    assert log.log_start_offset == 200 and is_clean(node)
    assert not files(node, ".cleaned", ".swap", ".deleted")
    node.stop()
    assert log_dir_lines(tmp_path / "a") == {("t", 0): log.active_base_offset}


def log_dir_lines(directory: Path) -> dict[tuple[str, int], int]:
    return decode_offset_checkpoint((directory / "cleaner-offset-checkpoint").read_bytes()).offsets()


@pytest.mark.parametrize("change", ["policy", "broker", "topic"])
def test_a_round_is_aborted_when_its_log_is_not_compacted_any_more(change: str, tmp_path: Path) -> None:
    node = started(tmp_path / "a", "log.cleaner.io.max.bytes.per.second=5000", "log.cleanup.policy=compact")
    own = {"cleanup_policy": "compact"} if change == "policy" else {}
    node.create_topic("t", **own, **SMALL_SEGMENTS)
    grow(node, keys=100)
    before = log_of(node).size_bytes
    node.until(lambda: under_way(node), within_ms=60_000)
    changes: dict[str, Callable[[], Any]] = {
        "policy": lambda: alter(node, TOPIC, "t", cleanup_policy="delete"),
        "broker": lambda: alter(node, BROKER, "", log_cleanup_policy="delete"),
        "topic": lambda: node.delete_topic("t"),
    }
    directory = Path(log_of(node).directory)
    changes[change]()
    node.advance(60_000)
    assert cleaner(node).totals.rounds == 0 and not cleaner(node).manager.uncleanable
    if change == "topic":
        assert not directory.exists()
        return
    assert not files(node, ".cleaned", ".swap") and log_of(node).size_bytes == before
    assert log_of(node).cleaned_offset is None
    alter(node, TOPIC, "t", cleanup_policy="compact")
    node.until(lambda: is_clean(node), within_ms=200_000)
    assert [line for line in node.lines if "not cleaned any more" in line] == []


def test_what_is_produced_while_the_policy_changes_is_all_there(tmp_path: Path) -> None:
    """Of each key the last record, whatever rounds were aborted on the way."""
    node = started(tmp_path / "a", "log.cleaner.io.max.bytes.per.second=20000")
    node.create_topic("t", **COMPACT, min_cleanable_dirty_ratio="0")
    for policy in ("delete", "compact", "compact,delete", "compact") * 3:
        grow(node, batches=60, keys=30)
        node.advance(1_300)
        alter(node, TOPIC, "t", cleanup_policy=policy)
    end = log_of(node).log_end_offset
    assert end == 12 * 60
    node.until(lambda: is_clean(node), within_ms=100_000)
    assert last_offsets(node) == {b"k%d" % number: end - 30 + number for number in range(30)}
    assert cleaner(node).totals.bytes_kept < cleaner(node).totals.bytes_read


def last_offsets(node: WholeNode) -> dict[bytes | None, int]:
    """Of each key the offset of its last record, as a consumer from the log's start finds them."""
    found: dict[bytes | None, int] = {}
    log = log_of(node)
    at = log.log_start_offset
    while at < log.log_end_offset:
        records = bytes(partitions_of(node.fetch({("t", 0): at}).result())["t", 0].records)
        while records:
            header = read_header(records)
            if header.record_count:  # one a batch
                (record,) = read_records(records[HEADER_BYTES : header.size_bytes], header.record_count)
                found[record.key] = header.base_offset
            at, records = header.last_offset + 1, records[header.size_bytes :]
    return found


# ------------------------------------------------------------------------------------------------------------ uncleanable


def test_an_uncleanable_log_is_cleaned_by_the_next_start(tmp_path: Path) -> None:
    """It is uncleanable in memory only, as in Kafka: a stop leaves no file about it, and the repaired log is cleaned again."""
    node = started(tmp_path / "a")
    node.create_topic("t", **COMPACT)
    node.create_topic("other", **COMPACT)
    grow(node)
    grow(node, "other")
    damaged = Path(log_of(node).directory) / f"{0:020}.log"
    flip(damaged, 70)
    node.until(lambda: is_clean(node, "other") and bool(cleaner(node).manager.uncleanable))
    node.stop()
    assert not list((tmp_path / "a").glob("kcli-*"))
    flip(damaged, 70)
    again = started(tmp_path / "a")
    again.until(lambda: is_clean(again))
    again.stop()
