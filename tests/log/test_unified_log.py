"""Protects a partition's life: rolled by each reason, stopped, crashed and cut anywhere; what is on the disk is Kafka's."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format.index_entries import OffsetIndex, TimeIndex
from kcli.format.primitives import INT32_MAX
from kcli.format.record_batch import CONTROL_FLAG, TRANSACTIONAL_FLAG
from kcli.log.disk.os_disk import OsDisk
from kcli.log.errors import (
    AppendError,
    InvalidRecordsError,
    InvalidTransactionStateError,
    OffsetOutOfRangeError,
    UnexpectedAppendOffsetError,
)
from kcli.log.files.indexes import IndexAppender
from kcli.log.log_config import DAY_MS, LogConfig
from tests.log.live_logs import NOW_MS, LiveLog, marker, new_batch, of_producer

INDEXED = LogConfig(segment_bytes=4000, index_interval_bytes=300, segment_index_bytes=1200)


def names(live: LiveLog) -> list[str]:
    return sorted(path.name for path in live.directory.iterdir())


# ------------------------------------------------------------------------------------------------------------ rolling


def test_segments_are_rolled_by_size(live: LiveLog) -> None:
    """Before a batch that would not fit; a segment is never larger than segment.bytes."""
    batch = new_batch([b"x" * 100])
    live.log.config = LogConfig(segment_bytes=2 * len(batch))
    live.append(*(new_batch([b"x" * 100]) for _ in range(5)))
    assert live.log.base_offsets == (0, 2, 4)
    assert max(live.sizes().values()) == 2 * len(batch)


def test_segments_are_rolled_by_time(live: LiveLog) -> None:
    """By the records' times, from the first batch's on; by the clock where records have none; an empty one never is."""
    live.log.config = LogConfig(segment_ms=1000)
    live.append(new_batch(timestamps=[NOW_MS]), new_batch(timestamps=[NOW_MS + 1000]), now_ms=NOW_MS + DAY_MS)
    assert live.log.base_offsets == (0,)
    live.append(new_batch(timestamps=[NOW_MS + 1001]), now_ms=NOW_MS)
    assert live.log.base_offsets == (0, 2)
    live.stop()
    live.log.config = LogConfig(segment_ms=1000)
    live.append(new_batch(timestamps=[NOW_MS + 2002]))
    assert live.log.base_offsets == (0, 2, 3)
    live.log.roll(NOW_MS)
    live.append(new_batch(timestamps=[-1]), new_batch(timestamps=[-1]), now_ms=NOW_MS + DAY_MS)
    assert live.log.base_offsets == (0, 2, 3, 4, 5)


def test_rolling_by_time_has_jitter(tmp_path: Path) -> None:
    """Each new segment is rolled earlier by a random time below segment.jitter.ms, so that not all roll at once."""

    class AtMost400:
        def randint(self, a: int, b: int) -> int:
            return min(b, 400)

    live = LiveLog(tmp_path / "t-0", LogConfig(segment_ms=1000, segment_jitter_ms=500))
    live.log._rng = AtMost400()
    live.append(new_batch(timestamps=[NOW_MS]))
    live.log.roll(NOW_MS)
    live.append(new_batch(timestamps=[NOW_MS]), new_batch(timestamps=[NOW_MS + 600]))
    assert live.log.segment_count == 2
    live.append(new_batch(timestamps=[NOW_MS + 601]))
    assert live.log.segment_count == 3


def test_segments_are_rolled_when_an_index_is_full(live: LiveLog) -> None:
    """Of segment.index.bytes; the time index keeps one entry for the roll."""
    live.log.config = LogConfig(index_interval_bytes=1, segment_index_bytes=36)
    live.log.roll(NOW_MS)
    live.append(*(new_batch(timestamps=[NOW_MS + at]) for at in range(20)))
    assert live.log.segment_count > 2
    live.stop()
    assert max(path.stat().st_size for path in live.directory.glob("*index")) <= 36
    assert live.faults() == []


def test_segments_are_rolled_when_offsets_outgrow_them(live: LiveLog) -> None:
    """Relative offsets have 31 bits: a follower's batch far above begins a segment of its own."""
    live.append(new_batch())
    far = INT32_MAX + 1
    live.log.append_as_follower(new_batch([b"a", b"b"], base_offset=far, leader_epoch=0), NOW_MS)
    assert live.log.base_offsets == (0, far)
    live.log.append_as_follower(new_batch(base_offset=far + INT32_MAX, leader_epoch=0), NOW_MS)
    assert live.log.base_offsets == (0, far)
    live.log.append_as_follower(new_batch(base_offset=far + INT32_MAX + 1, leader_epoch=0), NOW_MS)
    assert live.log.base_offsets == (0, far, far + INT32_MAX + 1)


def test_the_active_indexes_are_preallocated_and_trimmed(tmp_path: Path) -> None:
    """At their full size while the segment is active; a roll and a stop cut them to their entries."""
    live = LiveLog(tmp_path / "t-0", INDEXED)
    live.append(*(new_batch([b"x" * 200], timestamps=[NOW_MS + at]) for at in range(10)))
    active = [path.stat().st_size for path in (live.directory / f"{0:020d}.index", live.directory / f"{0:020d}.timeindex")]
    assert active == [1200, 1200]
    live.log.roll(NOW_MS)
    index = OffsetIndex.decode((live.directory / f"{0:020d}.index").read_bytes(), 0)
    times = TimeIndex.decode((live.directory / f"{0:020d}.timeindex").read_bytes(), 0)
    assert 0 < len(index) == index.used_entries < 10
    assert times.last_entry == (NOW_MS + 9, 9)
    live.stop()
    assert (live.directory / f"{10:020d}.index").stat().st_size == 0


@given(st.lists(st.tuples(st.integers(1, 400), st.integers(-3, 50)), min_size=1, max_size=60))
def test_entries_follow_the_one_rule(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int]]) -> None:
    """What an append leaves in the indexes is what kcli.log.files.indexes' rule says of the same batches."""
    live = LiveLog(tmp_path_factory.mktemp("live") / "t-0", LogConfig(index_interval_bytes=300))
    expected = IndexAppender(OffsetIndex.of(0), TimeIndex.of(0), 300)
    position = 0
    for size, delta in rows:
        batch = new_batch([b"x" * size], timestamps=[NOW_MS + delta])
        offset = live.append(batch)
        expected.add(position, len(batch), offset, NOW_MS + delta)
        position += len(batch)
    live.log.close()
    expected.close()
    assert (live.directory / f"{0:020d}.index").read_bytes() == expected.offset_index.encode()
    assert (live.directory / f"{0:020d}.timeindex").read_bytes() == expected.time_index.encode()


# ------------------------------------------------------------------------------------------------- stops and crashes


def test_a_new_log_has_kafkas_files(live: LiveLog) -> None:
    """Opened, it has an empty segment, its indexes and the leader epochs; again, nothing changes."""
    files = [f"{0:020d}.index", f"{0:020d}.log", f"{0:020d}.timeindex", "leader-epoch-checkpoint"]
    assert names(live) == files
    live.stop()
    assert names(live) == files
    assert live.faults() == []


def test_a_clean_stop_is_opened_with_a_few_reads(tmp_path: Path) -> None:
    """Nothing of older segments is read, nothing at all written; what was is there."""
    live = LiveLog(tmp_path / "t-0", INDEXED)
    for at in range(100):
        live.append(of_producer(1, at), epoch=at // 30)
    live.stop()
    expected = {path.name: path.read_bytes() for path in live.directory.iterdir()}
    opened: list[str] = []

    class Watched(OsDisk):
        def open_file(self, path: str):  # type: ignore[no-untyped-def]
            opened.append(Path(path).name)
            return super().open_file(path)

        def _no(self, *_: object, **__: object) -> NoReturn:
            raise AssertionError("nothing is to be written")

        append = write_file = truncate = remove = rename = write_at = _no

    live.disk = Watched()
    end = live.log.log_end_offset
    live.open(clean=True, recovery_point=end)
    assert live.log.log_end_offset == live.log.recovery_point == end == 100
    last = f"{live.log.base_offsets[-1]:020d}"
    assert {name for name in opened if name.endswith((".log", "index"))} <= {f"{last}.log", f"{last}.index"}
    assert {path.name: path.read_bytes() for path in live.directory.iterdir()} == expected


@pytest.mark.parametrize("kept", range(0, 130, 7))
def test_a_torn_append_is_cut(tmp_path: Path, kept: int) -> None:
    """A crash leaves any part of the last batch: the log ends before it, and goes on there."""
    live = LiveLog(tmp_path / "t-0", INDEXED)
    for at in range(30):
        live.append(of_producer(1, at))
    size = live.log.size_bytes
    torn = of_producer(1, 30)
    live.append(torn)
    path = live.directory / f"{live.log.base_offsets[-1]:020d}.log"
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - len(torn) + min(kept, len(torn) - 1)])
    live.crash()
    assert (live.log.log_end_offset, live.log.size_bytes) == (30, size)
    live.append(of_producer(1, 30))
    live.stop()
    assert live.faults() == []
    assert [header.base_offset for header in live.headers()] == list(range(31))


def test_a_recovery_reads_nothing_below_the_recovery_point(tmp_path: Path) -> None:
    """Segments before the one of the recovery point are not opened; damage there is not seen, as with Kafka."""
    live = LiveLog(tmp_path / "t-0", INDEXED)
    for at in range(100):
        live.append(of_producer(1, at))
    bases = live.log.base_offsets
    opened: list[str] = []

    class Watched(OsDisk):
        def open_file(self, path: str):  # type: ignore[no-untyped-def]
            opened.append(Path(path).name)
            return super().open_file(path)

    live.disk = Watched()
    live.crash(recovery_point=bases[-2] + 1)
    assert {name for name in opened if name.endswith(".log")} == {f"{base:020d}.log" for base in bases[-2:]}
    assert live.log.log_end_offset == 100
    assert live.log.recovery_point == bases[-2] + 1


def test_indexes_that_a_roll_finishes_after_the_flush_are_recovered(tmp_path: Path) -> None:
    """All records of a segment are flushed, then it is rolled, and a power failure takes the last entries of its indexes."""
    live = LiveLog(tmp_path / "t-0", INDEXED)
    while live.log.segment_count == 1:
        live.log.mark_flushed(live.log.log_end_offset)
        written = live.log.open_recovery_point
        live.append(of_producer(1, live.log.log_end_offset))
    assert live.log.recovery_point == live.log.base_offsets[1]
    index = live.directory / f"{0:020}.timeindex"
    index.write_bytes(bytes(index.stat().st_size))
    live.crash(recovery_point=written)
    live.stop()
    assert live.faults() == []


def test_a_full_disk_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    """An append that fails half way is cut off again; the next one stands where it would have stood."""
    live = LiveLog(tmp_path / "t-0")
    live.append(new_batch([b"first"]))
    file = live.files.get(str(live.directory / f"{0:020d}.log"))

    class Full:
        name = file.name

        def append(self, parts: list[bytes]) -> int:
            file.append([bytes(parts[0])[:40]])
            raise OSError(errno.ENOSPC, "No space left on device")

        truncate, size, read_at, close, fileno = file.truncate, file.size, file.read_at, file.close, file.fileno

    live.files._files[file.name] = Full()  # type: ignore[assignment]
    before = live.log.size_bytes
    with pytest.raises(OSError, match="No space"):
        live.append(of_producer(7, 0))
    live.files._files[file.name] = file
    assert (live.log.log_end_offset, live.log.size_bytes, file.size()) == (1, before, before)
    live.append(of_producer(7, 0))
    live.stop()
    assert live.faults() == []


# ------------------------------------------------------------------------------------------------------------ flushing


def test_a_log_tells_what_must_be_flushed(live: LiveLog) -> None:
    """Nothing when all is; the segments from the recovery point on, and indexes and snapshots of those that were closed."""
    live.log.mark_flushed(0)
    assert live.log.unflushed_paths() == []
    live.append(of_producer(7, 0))
    assert [Path(path).name for path in live.log.unflushed_paths()] == [f"{0:020d}.log"]
    live.log.mark_flushed(1)
    assert live.log.unflushed_paths() == []
    live.log.roll(NOW_MS)
    live.append(of_producer(7, 1))
    names = [Path(path).name for path in live.log.unflushed_paths()]
    assert (names[0], names[-1]) == (f"{0:020d}.log", f"{1:020d}.log"), "no segment's name before what lies below it"
    found = set(names)
    closed = {f"{0:020d}.log", f"{0:020d}.index", f"{0:020d}.timeindex"}
    assert found == {*closed, f"{1:020d}.log", f"{1:020d}.snapshot", "t-0"}
    live.log.mark_flushed(1)  # begun before the roll: it has not seen all of them
    assert {Path(path).name for path in live.log.unflushed_paths()} == found
    live.log.mark_flushed(2)
    assert (live.log.unflushed_paths(), live.log.recovery_point) == ([], 2)


def test_a_transaction_index_is_flushed(live: LiveLog) -> None:
    """With its name; and after a crash again, since its process may not have flushed it: no start rebuilds a lost one."""
    live.log.mark_flushed(0)
    live.append(of_producer(7, 0, transactional=True), marker(7, abort=True))
    names = [Path(path).name for path in live.log.unflushed_paths()]
    assert names == ["t-0", f"{0:020d}.txnindex", f"{0:020d}.log"]
    live.log.mark_flushed(2)
    live.append(of_producer(7, 1, transactional=True), marker(7, abort=True))
    assert [Path(path).name for path in live.log.unflushed_paths()] == [f"{0:020d}.txnindex", f"{0:020d}.log"]
    live.crash()
    assert f"{0:020d}.txnindex" in [Path(path).name for path in live.log.unflushed_paths()]


def test_topics_may_want_flushes(live: LiveLog) -> None:
    """After flush.messages records or flush.ms; never by default."""
    live.append(new_batch([b"a"] * 5))
    assert not live.log.needs_flush(NOW_MS + 10**12)
    live.log.config = LogConfig(flush_messages=6)
    assert not live.log.needs_flush(NOW_MS)
    live.append(new_batch())
    assert live.log.needs_flush(NOW_MS)
    live.log.mark_flushed(6)
    assert not live.log.needs_flush(NOW_MS)
    live.log.config = LogConfig(flush_ms=1000)
    assert not live.log.needs_flush(NOW_MS + 10**12)
    live.append(new_batch())
    assert not live.log.needs_flush(NOW_MS + 999)
    assert live.log.needs_flush(NOW_MS + 1000)
    assert not live.log.needs_flush(NOW_MS + 1999)
    assert live.log.needs_flush(NOW_MS + 2000)


# ----------------------------------------------------------------------------------------------------------- followers


@pytest.mark.parametrize("is_earlier", [False, True])
def test_a_refused_batch_of_a_leader_leaves_the_log_as_it_was(live: LiveLog, *, is_earlier: bool) -> None:
    """All batches are checked before the first one is written, also against the transactions that the others open and end."""

    def follower_append(*batches: memoryview) -> None:
        live.log.append_as_follower(memoryview(bytearray(b"".join(map(bytes, batches)))), NOW_MS)

    def at(offset: int, batch: memoryview) -> memoryview:
        batch[:8] = offset.to_bytes(8, "big")
        return batch

    def refused(error: type[AppendError], *batches: memoryview) -> None:
        before = live.log.log_end_offset, live.log.size_bytes, live.sizes(), live.log.leader_epochs.entries
        with pytest.raises(error):
            follower_append(*batches)
        assert (live.log.log_end_offset, live.log.size_bytes, live.sizes(), live.log.leader_epochs.entries) == before

    opening = at(0, of_producer(7, 0, transactional=True))
    broken = new_batch([b"v"], keys=[b"\0"], producer=(7, 0, -1), attributes=TRANSACTIONAL_FLAG | CONTROL_FLAG)
    if is_earlier:
        follower_append(opening)
        sent = []
    else:
        sent = [opening]
    refused(InvalidTransactionStateError, *sent, at(1, of_producer(7, 1)))
    refused(InvalidRecordsError, *sent, at(1, broken))
    follower_append(*sent, at(1, marker(7, abort=True)), at(2, of_producer(7, 1)), at(3, of_producer(8, 0)))
    refused(InvalidTransactionStateError, at(4, of_producer(7, 2, transactional=True)), at(5, of_producer(7, 3)))
    assert live.log.log_end_offset == 4
    live.log.update_high_watermark(4)
    assert live.stop().log_end_offset == 4
    assert live.faults() == []


def test_followers_keep_offsets_and_epochs(live: LiveLog) -> None:
    """Several batches at once, their epochs noted; what goes back is refused, gaps are taken."""
    batches = [
        new_batch([b"a", b"b"], base_offset=0, leader_epoch=2),
        new_batch(base_offset=2, leader_epoch=2),
        new_batch(base_offset=7, leader_epoch=4),
    ]
    info = live.log.append_as_follower(memoryview(bytearray(b"".join(map(bytes, batches)))), NOW_MS)
    assert (info.first_offset, info.last_offset, info.record_count, info.last_epoch) == (0, 7, 4, 4)
    assert [tuple(entry) for entry in live.log.leader_epochs.entries] == [(2, 0), (4, 7)]
    with pytest.raises(UnexpectedAppendOffsetError):
        live.log.append_as_follower(new_batch(base_offset=7), NOW_MS)
    assert live.log.append_as_follower(new_batch(base_offset=8, leader_epoch=4), NOW_MS).last_offset == 8
    live.log.update_high_watermark(9)
    assert live.stop().log_end_offset == 9
    assert live.faults() == []


# ---------------------------------------------------------------------------------------------------------- truncation


@given(st.integers(0, 60), st.integers(0, 2))
def test_a_log_is_cut_anywhere(tmp_path_factory: pytest.TempPathFactory, offset: int, then: int) -> None:
    """All batches that reach the offset go, producers and epochs with them; stopped or crashed, it opens the same."""
    live = LiveLog(tmp_path_factory.mktemp("live") / "t-0", INDEXED)
    for at in range(30):
        live.append(of_producer(7, 2 * at, 2), epoch=at // 10)
    live.log.truncate_to(offset, NOW_MS)
    end = live.log.log_end_offset
    assert end == offset
    kept = [header.base_offset for header in live.headers()]
    assert kept == list(range(0, offset - offset % 2, 2))
    assert all(entry.start_offset < offset or offset == 60 for entry in live.log.leader_epochs.entries)
    if offset % 2 == 0 and offset < 60:
        live.append(of_producer(7, offset, 2), epoch=9)
    if then == 1:
        live.log.close()
        live.open(clean=True, recovery_point=live.log.log_end_offset)
    elif then == 2:
        live.crash()
    if offset % 2 == 0:  # within a batch, as in Kafka, the log end stands behind its last record
        assert live.faults() == []
        end = live.log.log_end_offset
        assert live.append(of_producer(7, end, 2), epoch=9) == end


def test_a_log_without_index_entries_is_cut(tmp_path: Path) -> None:
    """Its preallocated indexes have zeros only, which are no entry of time 0: the entries that follow are the first ones."""
    live = LiveLog(tmp_path / "t-0", LogConfig(index_interval_bytes=4096))
    live.append(*(new_batch([b"x"], timestamps=[NOW_MS + at]) for at in range(4)))
    live.log.truncate_to(2, NOW_MS)
    live.append(new_batch([b"y"], timestamps=[NOW_MS + 9]))
    live.stop()
    times = TimeIndex.decode((live.directory / f"{0:020d}.timeindex").read_bytes(), 0)
    assert list(times.entries()) == [(NOW_MS + 9, 2)]
    assert live.faults() == []


def test_a_log_may_start_anew(live: LiveLog) -> None:
    """All goes, and the next record gets the offset asked for."""
    live.append(*(of_producer(7, at) for at in range(5)))
    renamed = live.log.truncate_fully_and_start_at(1000, NOW_MS)
    assert all(path.endswith(".deleted") for path in renamed)
    assert (live.log.log_start_offset, live.log.log_end_offset, live.log.size_bytes) == (1000, 1000, 0)
    assert live.append(of_producer(7, 77), epoch=3) == 1000
    assert [tuple(entry) for entry in live.log.leader_epochs.entries] == [(3, 1000)]
    for path in renamed:
        Path(path).unlink()
    live.stop()
    assert live.faults() == []


def test_the_log_start_offset_rises(live: LiveLog) -> None:
    """Up to the high watermark; epochs before it are merged, producers stay."""
    live.append(*(of_producer(7, at) for at in range(5)))
    live.append(of_producer(7, 5), epoch=2)
    live.log.update_high_watermark(4)
    with pytest.raises(OffsetOutOfRangeError):
        live.log.maybe_increment_log_start_offset(5)
    assert live.log.maybe_increment_log_start_offset(4)
    assert not live.log.maybe_increment_log_start_offset(4)
    assert [tuple(entry) for entry in live.log.leader_epochs.entries] == [(0, 4), (2, 5)]
    live.append(of_producer(7, 6), epoch=2)
    assert live.log.offset_lag(3) == 4


def test_a_moved_log_goes_on(live: LiveLog, tmp_path: Path) -> None:
    """After its directory was renamed: appends, epochs and snapshots go to the new one."""
    live.append(of_producer(7, 0))
    live.log.close_files()
    live.directory.rename(tmp_path / "u-0")
    live.log.move(str(tmp_path / "u-0"))
    live.directory = tmp_path / "u-0"
    live.append(of_producer(7, 1), epoch=1)
    live.stop()
    assert live.faults() == []
    assert not (tmp_path / "t-0").exists()
