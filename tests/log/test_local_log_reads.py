"""Protects reads of an open log: any reader, any bounds, across segments, gives whole batches in order and never too few."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format.record_batch import RecordBatch, read_header
from kcli.log.errors import OffsetOutOfRangeError
from kcli.log.local_log import READ_HINTS
from kcli.log.log_config import LogConfig
from tests.log.live_logs import LiveLog, new_batch

SMALL = LogConfig(segment_bytes=3000, index_interval_bytes=200, segment_index_bytes=800)


def filled(live: LiveLog, sizes: list[int]) -> list[tuple[int, int, int]]:
    """Append a batch for each number of records; return (first offset, last offset, bytes) of each."""
    found = []
    for at, count in enumerate(sizes):
        batch = new_batch([b"v" * (7 * at % 90)] * count)
        first = live.append(batch)
        found.append((first, first + count - 1, len(batch)))
    return found


def whole_batches(data: bytes) -> list[RecordBatch]:
    position, found = 0, []
    while position + 61 <= len(data):
        header = read_header(data, position)
        position += header.size_bytes
        if position <= len(data):
            found.append(header)
    return found


@given(st.data())
def test_any_reads_give_what_a_model_gives(data: st.DataObject) -> None:
    """Readers at random offsets with random bounds, in any order, appends and restarts between: the right batches come."""
    with tempfile.TemporaryDirectory() as directory:
        live = LiveLog(Path(directory, "t-0"), SMALL, max_open=2)
        rows: list[tuple[int, int, int]] = []
        readers = [0, 0, 0]
        for _ in range(data.draw(st.integers(1, 12))):
            action = data.draw(st.sampled_from(["append", "append", "read", "read", "read", "stop", "seek"]))
            reader = data.draw(st.integers(0, 2))
            if action == "append":
                rows += filled(live, data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=20)))
            elif action == "stop":
                live.stop()
            elif action == "seek":
                readers[reader] = data.draw(st.integers(0, live.log.log_end_offset))
            else:
                limit = data.draw(st.one_of(st.just(live.log.log_end_offset), st.sampled_from([row[0] for row in rows] or [0])))
                readers[reader] = read_and_check(live, rows, readers[reader], data.draw(st.integers(1, 2500)), limit)


def read_and_check(live: LiveLog, rows: list[tuple[int, int, int]], offset: int, max_bytes: int, limit: int) -> int:
    """Read as a consumer -> where it goes on."""
    read = live.read(offset, max_bytes, limit_offset=limit)
    wanted = [row for row in rows if row[1] >= offset and row[0] < limit]
    if not wanted or offset >= limit:
        assert not read
        return offset
    batches = whole_batches(read)
    assert batches, "at least one batch comes whole"
    assert [(header.base_offset, header.last_offset, header.size_bytes) for header in batches] == wanted[: len(batches)]
    assert len(read) <= max(max_bytes, wanted[0][2])
    # The end offset is behind the last record, and not above what the reader may see.
    end_offset = live.log.read(offset, max_bytes, limit_offset=limit).end_offset
    assert batches[-1].last_offset < end_offset <= max(limit, batches[-1].next_offset)
    return batches[-1].next_offset


def test_a_consumer_reads_all_once(tmp_path: Path) -> None:
    """From the start to the end through many segments, by bytes fewer and more than a segment, each batch comes once."""
    live = LiveLog(tmp_path / "t-0", SMALL)
    rows = filled(live, [3] * 200)
    assert live.log.segment_count > 5
    for max_bytes in (1, 150, 1000, 5000, 1 << 20):
        headers = live.headers(max_bytes=max_bytes)
        assert [(header.base_offset, header.last_offset, header.size_bytes) for header in headers] == rows


def test_a_sequential_reader_looks_nothing_up(tmp_path: Path) -> None:
    """The end of a read is kept: from the second read on there is no search, in this segment and the next."""
    live = LiveLog(tmp_path / "t-0", SMALL)
    filled(live, [3] * 100)
    local = live.log.local_log()
    searched: list[int] = []
    type(local).locate, plain = lambda self, offset: (searched.append(offset), plain(self, offset))[1], type(local).locate
    try:
        offset = 0
        while offset < live.log.log_end_offset:
            offset = whole_batches(live.read(offset, 700))[-1].next_offset
        assert searched == [0]
        # Up to the end, then what comes after it.
        filled(live, [1])
        assert live.read(offset)
        assert searched == [0]
        limit = live.log.log_end_offset - 1
        for _ in range(3):
            live.read(0, 700, limit_offset=limit)
        assert searched.count(limit) == 1
    finally:
        type(local).locate = plain
    for start in range(READ_HINTS + 5):
        live.read(start, 1)
    assert len(local._hints or ()) <= READ_HINTS


def test_the_end_offset_of_a_read_is_near_its_last_record(tmp_path: Path) -> None:
    """The end offset of a read limits the aborted transactions that a consumer gets: not those of the rest of the log.

    Also of a read that ends inside of a batch, behind as many headers as are read; by the offset index there.
    """
    live = LiveLog(tmp_path / "t-0", LogConfig(index_interval_bytes=8000))
    filled(live, [1] * 2000)
    for start, max_bytes in ((0, 1), (0, 500), (0, 6000), (700, 7000), (1500, 500)):
        found = live.log.read(start, max_bytes, limit_offset=2000)
        behind = whole_batches(live.read(start, max_bytes, limit_offset=2000))[-1].next_offset
        assert behind <= found.end_offset <= behind + 2 * 8000 // 70, (start, max_bytes)
    assert live.log.read(0, 1 << 20, limit_offset=1500).end_offset == 1500
    assert live.log.read(0, 1 << 20, limit_offset=2000).end_offset == 2000


def test_bounds_of_a_read(tmp_path: Path) -> None:
    """Outside of the log is an error, at its end and at the limit nothing; a first batch too large comes only when asked."""
    live = LiveLog(tmp_path / "t-0")
    filled(live, [2, 2, 2])
    for offset in (-1, 7):
        with pytest.raises(OffsetOutOfRangeError):
            live.log.read(offset, 100, limit_offset=6)
    assert live.read(6) == live.read(4, limit_offset=4) == live.read(5, limit_offset=4) == b""
    assert live.log.read(0, 5, limit_offset=6, min_one_message=False).size == 0
    assert live.log.read(0, 5, limit_offset=6).size > 5
    live.log.maybe_increment_log_start_offset(3)
    with pytest.raises(OffsetOutOfRangeError):
        live.read(2)
    assert whole_batches(live.read(3))[0].base_offset == 2


def test_indexes_need_not_be_there_to_read(tmp_path: Path) -> None:
    """Of closed segments: a reader goes by headers where an index is lost while the broker runs."""
    live = LiveLog(tmp_path / "t-0", SMALL)
    rows = filled(live, [3] * 60)
    for path in sorted(live.directory.glob("*.index"))[:-1]:
        path.unlink()
    assert len(live.headers(max_bytes=1000)) == len(rows)
