"""Protects retention: segments go by time, bytes and log start offset, the oldest first, never what is not committed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kcli.log.log_config import LogConfig
from tests.log.live_logs import NOW_MS, LiveLog, new_batch, of_producer

HOUR_MS = 3_600_000


@pytest.fixture
def live(tmp_path: Path) -> LiveLog:
    """Five segments of two batches, an hour between one segment and the next; the last one is active."""
    live = LiveLog(tmp_path / "t-0", LogConfig(retention_ms=-1))
    for segment in range(5):
        if segment:
            live.log.roll(NOW_MS)
        now_ms = NOW_MS + segment * HOUR_MS
        live.append(*(new_batch([b"x" * 100], timestamps=[now_ms]) for _ in range(2)), now_ms=now_ms)
    return live


def delete(live: LiveLog, now_ms: int = NOW_MS, **settings: object) -> tuple[int, int]:
    """Apply retention -> the log start offset, how many segments are left."""
    live.log.config = LogConfig(retention_ms=-1)._replace(**settings)
    for path in live.log.delete_old_segments(now_ms):
        assert path.endswith(".deleted")
        Path(path).unlink()
    return live.log.log_start_offset, live.log.segment_count


def test_by_time(live: LiveLog) -> None:
    """A segment goes when its largest timestamp is older than retention.ms; with all of them gone a new one begins."""
    assert delete(live, NOW_MS + 2 * HOUR_MS, retention_ms=HOUR_MS) == (2, 4)
    assert delete(live, NOW_MS + 2 * HOUR_MS + 1, retention_ms=HOUR_MS) == (4, 3)
    assert delete(live, NOW_MS + 9 * HOUR_MS, retention_ms=-1) == (4, 3)
    assert delete(live, NOW_MS + 9 * HOUR_MS, retention_ms=HOUR_MS) == (10, 1)
    assert live.append(new_batch()) == 10
    live.stop()
    assert live.faults() == []


def test_by_time_of_the_file(tmp_path: Path) -> None:
    """Where records have no timestamps, when the file was last written counts."""
    live = LiveLog(tmp_path / "t-0")
    live.append(new_batch(timestamps=[-1]))
    live.log.roll(NOW_MS)
    live.append(new_batch(timestamps=[-1]))
    os.utime(live.directory / f"{0:020d}.log", ns=(0, NOW_MS * 1_000_000))
    os.utime(live.directory / f"{1:020d}.log", ns=(0, (NOW_MS + HOUR_MS) * 1_000_000))
    assert delete(live, NOW_MS + HOUR_MS + 1, retention_ms=HOUR_MS) == (1, 1)


def test_by_bytes(live: LiveLog) -> None:
    """A segment goes while what is left has at least retention.bytes."""
    segment_bytes = live.log.size_bytes // 5
    assert delete(live, retention_bytes=5 * segment_bytes) == (0, 5)
    assert delete(live, retention_bytes=4 * segment_bytes + 1) == (0, 5)
    assert delete(live, retention_bytes=4 * segment_bytes) == (2, 4)
    assert delete(live, retention_bytes=segment_bytes + 1) == (6, 2)
    assert delete(live, retention_bytes=0) == (10, 1)


def test_the_leader_epochs_begin_at_the_first_segment(live: LiveLog) -> None:
    """In the file, too: an epoch that begins before the first segment says that a segment is missing."""
    live.log.leader_epochs.assign(1, 0)
    live.log.maybe_increment_log_start_offset(5)
    path = live.directory / "leader-epoch-checkpoint"
    assert path.read_text() == "0\n1\n1 0\n"
    assert delete(live) == (5, 3)
    assert path.read_text() == "0\n1\n1 4\n"


def test_by_the_log_start_offset(live: LiveLog) -> None:
    """Whole segments before it go, under any policy; nothing else goes in a compacted topic."""
    live.log.maybe_increment_log_start_offset(5)
    compact = frozenset(("compact",))
    assert delete(live, NOW_MS * 2, cleanup_policy=compact, retention_ms=1, retention_bytes=0) == (5, 3)
    assert live.log.first_base_offset == 4


def test_only_what_is_committed_goes(live: LiveLog) -> None:
    """Segments that the high watermark has not passed stay, and those behind them."""
    live.log.update_high_watermark(5)
    assert delete(live, NOW_MS * 2, retention_ms=1) == (4, 3)


def test_an_empty_active_segment_stays(tmp_path: Path) -> None:
    """Retention of an empty log does nothing."""
    live = LiveLog(tmp_path / "t-0")
    assert delete(live, NOW_MS * 2, retention_ms=1, retention_bytes=0) == (0, 1)


def test_readers_and_snapshots_go_along(tmp_path: Path) -> None:
    """What was remembered of segments that go is forgotten; their snapshots are renamed with them."""
    live = LiveLog(tmp_path / "t-0")
    for at in range(4):
        live.append(of_producer(7, at))
        live.log.roll(NOW_MS)
    assert len(live.headers(max_bytes=1)) == 4
    live.log.maybe_increment_log_start_offset(2)
    renamed = [Path(path).name for path in live.log.delete_old_segments(NOW_MS)]
    assert sorted(name for name in renamed if "snapshot" in name) == [f"{1:020d}.snapshot.deleted"]
    assert [header.base_offset for header in live.headers(max_bytes=1)] == [2, 3]
    live.crash()
    assert (live.log.log_start_offset, live.log.log_end_offset) == (2, 4)
    assert not list(live.directory.glob("*.deleted"))
