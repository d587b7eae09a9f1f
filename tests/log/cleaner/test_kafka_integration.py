"""Protects the cleaner as a whole, in a manager of logs: Kafka's LogCleanerIntegrationTest and its kin, each test by its name.

tests/log/cleaner/kafka_names.txt says which of Kafka's tests is where.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kcli.log.log_config import LogConfig
from kcli.log.unified_log import UnifiedLog
from tests.log.cleaner.logs import CompactedLog, as_bytes, read_batches
from tests.log.cleaner.test_log_cleaner import Running, cleaned_offsets
from tests.log.live_logs import NOW_MS, new_batch
from tests.log.log_nodes import Node, stop
from tests.message_sets import NewLegacyRecord, encode_message_set

HOUR_MS = 3_600_000
BACKOFF_MS = 60_000  # where hours pass
SMALL = LogConfig(cleanup_policy=frozenset(("compact",)), segment_bytes=2048, min_cleanable_dirty_ratio=0.0, retention_ms=-1)
CODECS = range(5)
LEGACY_CODECS = range(4)  # zstd came with format 2

Value = tuple[int, bytes | None]  # offset, value


@pytest.fixture
def running(tmp_path: Path) -> Running:
    return Running(Node(tmp_path / "a"))


def write(log: UnifiedLog, keys: range, times: int, codec: int = 0, now_ms: int = NOW_MS) -> dict[int, Value]:
    """Put each key several times, one after the other -> the last offset and value of each."""
    last: dict[int, Value] = {}
    for _ in range(times):
        for key in keys:
            value = b"%d" % log.log_end_offset
            batch = new_batch([value], keys=[as_bytes(key)], codec=codec, timestamps=[now_ms])
            last[key] = (log.append_as_leader(batch, 0, now_ms).first_offset, value)
    log.update_high_watermark(log.log_end_offset)
    return last


def last_of(log: UnifiedLog) -> dict[int, Value]:
    """The last offset and value of each key, as a reader of the whole log finds them."""
    return {int(key or b""): (offset, value) for _, rows in read_batches(Path(log.directory)) for offset, _, key, value in rows}


@pytest.mark.parametrize("codec", CODECS)
def test_cleaner(codec: int, running: Running) -> None:
    """Kafka: cleanerTest. Cleaned, appended to and cleaned again, with a large record between; deleted, it has no line."""
    log = running.make(0, SMALL._replace(segment_bytes=1 << 15), records=0)
    expected = write(log, range(100), 30, codec)
    size = log.size_bytes
    running.until(NOW_MS + 500)
    assert log.cleaned_offset == log.active_base_offset > 0
    assert last_of(log) == expected and log.size_bytes < size
    large = new_batch([bytes(1 << 14)], keys=[b"20"], codec=codec)
    expected[20] = (log.append_as_leader(large, 0, NOW_MS).first_offset, bytes(1 << 14))
    expected |= write(log, range(21, 121), 30, codec)
    running.until(NOW_MS + 1000)
    assert log.cleaned_offset == log.active_base_offset
    assert last_of(log) == expected and log.size_bytes < size
    running.manager.delete_logs([("t", 0)], NOW_MS + 1000)
    running.until(NOW_MS + 1100)
    assert cleaned_offsets(running.make(1, records=0)) == {}


@pytest.mark.parametrize("codec", CODECS)
def test_cleans_combined_compact_and_delete_topic(codec: int, tmp_path: Path) -> None:
    """It is compacted; what is old goes whole; and after a start it is compacted again."""
    running = Running(Node(tmp_path / "a"))
    policy = frozenset(("compact", "delete"))
    log = running.make(0, SMALL._replace(cleanup_policy=policy, retention_ms=100_000), records=0)
    expected = write(log, range(100), 3, codec)
    size = log.size_bytes
    running.until(NOW_MS + 500)
    assert log.cleaned_offset == log.active_base_offset
    assert last_of(log) == expected and log.size_bytes < size
    end = log.log_end_offset
    for path in Path(log.directory).glob("*.log"):  # the age of a segment that has become empty
        os.utime(path, (NOW_MS / 1000, NOW_MS / 1000))
    running.until(NOW_MS + HOUR_MS // 10)
    assert (log.log_start_offset, log.segment_count, log.log_end_offset) == (end, 1, end)
    stop(running.manager)
    node = Node(tmp_path / "a")
    node.config = log.config
    again = Running(node)
    found = again.manager.get_log("t", 0)
    assert found is not None
    expected = write(found, range(20), 10, codec)
    size = found.size_bytes
    again.until(NOW_MS + 500)
    assert found.cleaned_offset == found.active_base_offset > end
    assert last_of(found) == expected and found.size_bytes < size


def legacy_log(tmp_path: Path, sets: list[bytes]) -> CompactedLog:
    """A log whose first segment has these message sets."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    (directory / f"{0:020}.log").write_bytes(b"".join(sets))
    return CompactedLog(directory)


def legacy_sets(
    first_offset: int, keys: range, times: int, magic: int, codec: int, per_set: int, last: dict[int, Value]
) -> tuple[list[bytes], int]:
    """Put each key several times, several messages a set -> the sets, the next offset; `last` is updated."""
    records, offset = [], first_offset
    for _ in range(times):
        for key in keys:
            records.append(NewLegacyRecord(offset, NOW_MS, as_bytes(key), b"%d" % offset))
            last[key] = (offset, b"%d" % offset)
            offset += 1
    starts = range(0, len(records), per_set)
    return [encode_message_set(records[at : at + per_set], magic=magic, codec=codec) for at in starts], offset


@pytest.mark.parametrize("codec", LEGACY_CODECS)
def test_cleaner_with_message_format_v0_v1_v2(codec: int, tmp_path: Path) -> None:
    """Formats 0, 1 and 2 in one log, a large message among them: the last value of each key stays, in format 2."""
    last: dict[int, Value] = {}
    first, offset = legacy_sets(0, range(100), 3, 0, codec, 1, last)
    second, offset = legacy_sets(offset, range(40), 3, 0, codec, 1, last)
    large = encode_message_set([NewLegacyRecord(offset, NOW_MS, b"20", bytes(1 << 16))], magic=0, codec=codec)
    last[20] = (offset, bytes(1 << 16))
    third, offset = legacy_sets(offset + 1, range(30, 70), 3, 1, codec, 1, last)
    log = legacy_log(tmp_path, [*first, *second, large, *third])
    last |= write(log.log, range(15, 20), 3, codec)
    log.roll()
    size = log.log.size_bytes
    log.clean()
    assert last_of(log.log) == last
    assert {header.magic for header, _ in log.batches()} == {2}
    assert log.log.size_bytes < size
    log.live.crash()
    assert last_of(log.log) == last and log.live.faults(is_compacted=True) == []


@pytest.mark.parametrize("codec", LEGACY_CODECS)
def test_cleaning_nested_messages_with_v0_v1(codec: int, tmp_path: Path) -> None:
    """Sets that hold a key several times, and keys that later sets have too: each is cleaned within and without."""
    last: dict[int, Value] = {}
    sets: list[bytes] = []
    offset = 0
    for magic, keys, times in (
        (0, range(2), 3),
        (0, range(3, 5), 2),
        (1, range(4, 6), 2),
        (1, range(4, 6), 2),
        (1, range(6, 8), 2),
    ):
        more, offset = legacy_sets(offset, keys, times, magic, codec, 100, last)
        sets += more
    log = legacy_log(tmp_path, sets)
    log.roll()
    log.clean()
    assert last_of(log.log) == last
    assert log.offsets() == sorted(offset for offset, _ in last.values())
    assert {(header.magic, header.codec) for header, _ in log.batches()} == {(2, codec)}


def test_max_log_compaction_lag(tmp_path: Path) -> None:
    """A log below its ratio is cleaned once a dirty segment has waited for so long, and only what is old enough then."""
    running = Running(Node(tmp_path / "a"), cleaner_backoff_ms=BACKOFF_MS)
    log = running.make(
        0,
        SMALL._replace(
            segment_bytes=512,
            min_cleanable_dirty_ratio=1.0,
            min_compaction_lag_ms=HOUR_MS,
            max_compaction_lag_ms=6 * HOUR_MS,
        ),
        records=0,
    )
    write(log, range(100), 3)
    size, end = log.size_bytes, log.log_end_offset
    running.until(NOW_MS + 3 * HOUR_MS)
    assert (log.size_bytes, log.cleaned_offset) == (size, None)
    later_ms = NOW_MS + 6 * HOUR_MS + 1
    expected = write(log, range(100), 1, now_ms=later_ms)
    bound = max(base for base in log.base_offsets if base <= end)
    log.roll(later_ms)
    running.until(later_ms + 2 * BACKOFF_MS)
    assert log.cleaned_offset == bound
    assert len(list(read_batches(Path(log.directory)))) > 100
    running.until(later_ms + 6 * HOUR_MS + 2 * BACKOFF_MS)
    assert log.cleaned_offset == log.active_base_offset
    assert last_of(log) == expected
    assert len(list(read_batches(Path(log.directory)))) == 100


def test_marks_partitions_as_offline_and_populates_uncleanable_metrics(running: Running) -> None:
    """Two damaged logs become uncleanable, the third is cleaned; one that is deleted is removed from them."""
    logs = [running.make(partition, SMALL, records=300) for partition in range(3)]
    for log in logs[:2]:
        (Path(log.directory) / f"{log.base_offsets[1]:020}.log").write_bytes(b"no log")
    running.until(NOW_MS + 500)
    assert set(running.manager.cleaner.manager.uncleanable) == set(logs[:2])
    assert [log.cleaned_offset is None for log in logs] == [True, True, False]
    running.manager.delete_logs([("t", 0)], NOW_MS + 500)
    running.until(NOW_MS + 1000)
    assert set(running.manager.cleaner.manager.uncleanable) == {logs[1]}


@pytest.mark.parametrize("codec", CODECS)
def test_cleaner_with_min_compaction_lag(codec: int, tmp_path: Path) -> None:
    """Kafka: LogCleanerLagIntegrationTest.cleanerTest. Nothing young is cleaned; what is old is, up to where youth begins."""
    running = Running(Node(tmp_path / "a"), cleaner_backoff_ms=BACKOFF_MS)
    log = running.make(0, SMALL._replace(segment_bytes=512, min_compaction_lag_ms=HOUR_MS), records=0)
    write(log, range(100), 3, codec)
    size, end = log.size_bytes, log.log_end_offset
    running.until(NOW_MS + HOUR_MS // 2)
    assert (log.size_bytes, log.cleaned_offset) == (size, None)
    later_ms = NOW_MS + HOUR_MS + 1
    expected = write(log, range(100), 3, codec, later_ms)
    bound = max(base for base in log.base_offsets if base <= end)
    running.until(later_ms + 2 * BACKOFF_MS)
    assert log.cleaned_offset == bound
    assert last_of(log) == expected
    below = [header for header, _ in read_batches(Path(log.directory)) if header.base_offset < bound]
    assert len(below) <= 101
