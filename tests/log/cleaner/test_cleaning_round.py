"""Protects a round of the cleaner as a whole: it retains the last record of each key, where Kafka would write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.format.record_batch import TRANSACTIONAL_FLAG
from kcli.format.records import read_records
from kcli.log.log_config import LogConfig
from tests.log.cleaner.logs import LATER_MS, CompactedLog
from tests.log.cleaner.random_logs import clean
from tests.log.live_logs import NOW_MS, LiveLog, marker, new_batch

CONFIG = LogConfig(cleanup_policy=frozenset(("compact",)), segment_bytes=400, index_interval_bytes=100)
MEMORY_BYTES = 1 << 16


def contents(live: LiveLog) -> list[tuple[int, bytes | None, bytes | None]]:
    """Offset, key and value of every record."""
    found = []
    for header in live.headers():
        data = live.read(header.base_offset)
        for record in read_records(data[61 : header.size_bytes], header.record_count):
            found.append((header.base_offset + record.offset_delta, record.key, record.value))
    return found


def keyed(*pairs: tuple[bytes, bytes | None]) -> memoryview:
    return new_batch([value for _, value in pairs], keys=[key for key, _ in pairs])


@pytest.fixture
def live(tmp_path: Path) -> LiveLog:
    return LiveLog(tmp_path / "t-0", CONFIG)


def test_the_last_value_of_each_key_stays(live: LiveLog) -> None:
    for number in range(40):
        live.append(keyed((b"a%d" % (number % 5), b"%d" % number), (b"b", b"%d" % number)))
    live.log.roll(NOW_MS)
    before = contents(live)
    last = {key: offset for offset, key, _ in before}
    done = clean(live, None, NOW_MS, MEMORY_BYTES)
    assert done.end_offset == live.log.log_end_offset == 80
    assert contents(live) == [row for row in before if last[row[1]] == row[0]]
    assert live.faults() == []
    live.stop()
    assert contents(live) == [row for row in before if last[row[1]] == row[0]]
    assert live.faults() == []


def test_what_a_producer_commits_behind_its_abort_counts_where_a_round_begins_amid_a_segment(tmp_path: Path) -> None:
    """The transaction index names an abort from before the dirty part: a tombstone behind it deletes all the same."""
    log = CompactedLog(tmp_path / "t-0", segment_bytes=1 << 20)
    one = log.producer(1, transactional=True)
    log.put(1, 1)
    one.put(2)
    one.abort()
    dirty = log.log.log_end_offset
    log.append(new_batch([None], keys=[b"1"], producer=(1, 0, 1), attributes=TRANSACTIONAL_FLAG))
    log.live.append(marker(1, abort=False))
    log.roll()
    log.clean(dirty)
    assert log.keys() == []
    log.put(3, 3)
    log.roll()
    log.clean(dirty + 2, now_ms=LATER_MS)
    assert log.keys() == [3]


def test_a_snapshot_that_knows_a_batch_which_is_gone_with_its_segment_is_sound(tmp_path: Path) -> None:
    """The first two segments become empty; only the snapshot between them names the first."""
    log = CompactedLog(tmp_path / "t-0", segment_bytes=400)
    one = log.producer(1)
    one.put(0)
    log.roll()
    for number in range(5):
        log.put(0, number)
    one.put(0)
    log.roll()
    log.clean()
    assert log.sizes()[:2] == [0, 0] and log.last_offsets() == [6]
    assert log.live.faults(is_compacted=True) == []
