"""Protects lookups by time: as Kafka's, for rising and falling timestamps, across segments, in what is not yet written out."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.log.log_config import LOG_APPEND_TIME, LogConfig
from tests.log.live_logs import NOW_MS, LiveLog, new_batch

SMALL = LogConfig(segment_bytes=1500, index_interval_bytes=150, segment_index_bytes=1200)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=50), st.integers(0, 110), st.booleans(), st.integers(0, 3))
def test_the_first_record_of_a_time(
    tmp_path_factory: pytest.TempPathFactory, stamps: list[int], wanted: int, stop: bool, start: int
) -> None:
    """In the first segment that reaches the time, the first record at or behind the log start with that time or a later."""
    live = LiveLog(tmp_path_factory.mktemp("live") / "t-0", SMALL)
    rows: list[tuple[int, int]] = []
    for at in range(0, len(stamps), 3):
        times = [NOW_MS + stamp for stamp in stamps[at : at + 3]]
        live.append(new_batch([b"x" * 20] * len(times), timestamps=times), epoch=2)
        rows += zip(times, range(len(rows), len(rows) + len(times)))
    if stop:
        live.stop()
    start = min(start, len(rows))
    live.log.maybe_increment_log_start_offset(start)
    bases = [*live.log.base_offsets, len(rows)]
    expected = None
    for first, end in pairwise(bases):
        of_segment = [row for row in rows if first <= row[1] < end]
        if max((time for time, _ in of_segment), default=-1) >= NOW_MS + wanted:
            expected = next((row for row in of_segment if row[0] >= NOW_MS + wanted and row[1] >= start), None)
            break
    found = live.by_time(NOW_MS + wanted)
    assert (None if found is None else (found.timestamp, found.offset)) == expected
    assert found is None or found.leader_epoch == 2
    largest = live.largest()
    assert largest is not None
    time = max(rows)[0]
    assert (largest.timestamp, largest.offset) == (time, next(offset for stamp, offset in rows if stamp == time))


def test_records_without_timestamps(tmp_path: Path) -> None:
    """Nothing is found by time, and none is the latest."""
    live = LiveLog(tmp_path / "t-0")
    assert live.largest() is None
    live.append(new_batch(timestamps=[-1]))
    assert live.largest() is None
    assert live.by_time(NOW_MS) is None


def test_log_append_time_counts(tmp_path: Path) -> None:
    """Under LogAppendTime a record's time is its batch's, also in compressed ones."""
    live = LiveLog(tmp_path / "t-0", LogConfig(message_timestamp_type=LOG_APPEND_TIME))
    live.append(new_batch([b"a", b"b"], timestamps=[5, 6], codec=4), now_ms=NOW_MS)
    live.append(new_batch([b"a", b"b"], timestamps=[5, 6], codec=4), now_ms=NOW_MS + 10)
    assert live.by_time(NOW_MS + 1) == (NOW_MS + 10, 2, 0)
    assert live.largest() == (NOW_MS + 10, 2, 0)
