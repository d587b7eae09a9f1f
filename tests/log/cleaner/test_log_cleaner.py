"""Protects the cleaner of a broker: the filthiest log first, in slices, while logs are appended to, deleted and retained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kcli.format.checkpoint import decode_offset_checkpoint
from kcli.log.cleaner.cleaner import CleanedLog, Cleaner
from kcli.log.disk.flush_request import FlushSequence
from kcli.log.disk.os_disk import OsFile
from kcli.log.log_config import LogConfig
from kcli.log.log_manager import LogManager
from kcli.log.unified_log import UnifiedLog
from kcli.network.timing_wheel import Timer
from tests.damage.layout import flip
from tests.log.live_logs import new_batch
from tests.log.log_nodes import NOW_MS, TOPIC_ID, Node, crash, flush

COMPACTED = LogConfig(
    cleanup_policy=frozenset(("compact",)), segment_bytes=600, file_delete_delay_ms=1000, min_cleanable_dirty_ratio=0.3
)


class Running:
    """A manager whose tasks run on a timer; what they want flushed is flushed at once."""

    def __init__(self, node: Node, **settings: Any) -> None:
        self.manager: LogManager = node.started(**{"cleaner_backoff_ms": 100, **settings})
        self.reports = node.reports
        self.timer = Timer(NOW_MS)
        self.manager.begin_tasks(NOW_MS, self.timer.schedule, lambda now_ms: flush(self.manager) and None)

    def step(self) -> None:
        """Let time pass up to what is due next."""
        deadline_ms = self.timer.next_deadline_ms()
        assert deadline_ms is not None
        self.timer.advance(max(deadline_ms, self.timer.clock_ms))

    def until(self, now_ms: int) -> None:
        """Let time pass up to `now_ms`."""
        while (deadline_ms := self.timer.next_deadline_ms()) is not None and deadline_ms <= now_ms:
            self.step()
        self.timer.advance(now_ms)

    def make(self, partition: int = 0, config: LogConfig = COMPACTED, records: int = 60, keys: int = 5) -> UnifiedLog:
        log = self.manager.get_or_create_log("t", partition, TOPIC_ID, config, now_ms=NOW_MS, is_new=True)
        self.append(log, records, keys)
        return log

    @staticmethod
    def append(log: UnifiedLog, records: int = 60, keys: int = 5) -> None:
        for number in range(records):
            log.append_as_leader(new_batch([b"%d" % number * 5], keys=[b"k%d" % (number % keys)]), 0, NOW_MS)
        log.update_high_watermark(log.log_end_offset)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "a")


def names(log: UnifiedLog) -> list[str]:
    return sorted(path.name for path in Path(log.directory).iterdir())


def cleaned_offsets(log: UnifiedLog) -> dict[tuple[str, int], int]:
    path = Path(log.directory).parent / "cleaner-offset-checkpoint"
    return decode_offset_checkpoint(path.read_bytes()).offsets()


def test_dirty_logs_are_cleaned_and_what_was_replaced_goes_later(node: Node) -> None:
    running = Running(node)
    log, other = running.make(0), running.make(1)
    kept = running.make(2, COMPACTED._replace(cleanup_policy=frozenset(("delete",))))
    sizes = [one.size_bytes for one in (log, other, kept)]
    running.until(NOW_MS + 200)
    assert log.size_bytes < sizes[0] / 2 and other.size_bytes < sizes[1] / 2 and kept.size_bytes == sizes[2]
    assert log.cleaned_offset == log.active_base_offset
    assert cleaned_offsets(log) == {("t", 0): log.cleaned_offset, ("t", 1): other.cleaned_offset}
    assert [name for name in names(log) if name.endswith(".deleted")]
    running.until(NOW_MS + 1300)
    assert not [name for name in names(log) if name.endswith((".deleted", ".swap", ".cleaned"))]
    totals = running.manager.cleaner.totals
    assert totals.rounds == 2 and totals.bytes_read > totals.bytes_kept > 0


def test_the_filthiest_is_cleaned_first(node: Node) -> None:
    running = Running(node)
    logs = [running.make(0, records=20), running.make(1, records=60)]
    running.until(NOW_MS + 300)
    first = [log.cleaned_offset for log in logs]
    order: list[int] = []
    running.manager.cleaner.manager.on_cleaned = lambda log: order.append(log.partition)
    running.append(logs[0], records=20)
    running.append(logs[1], records=200)
    running.until(NOW_MS + 600)
    assert order == [1, 0]
    assert all(log.cleaned_offset > before for log, before in zip(logs, first, strict=True) if before and log.cleaned_offset)


def test_below_the_ratio_nothing_is_cleaned(node: Node) -> None:
    running = Running(node)
    log = running.make(0, COMPACTED._replace(min_cleanable_dirty_ratio=1.0))
    before = log.size_bytes
    running.until(NOW_MS + 1000)
    assert log.size_bytes == before and log.cleaned_offset is None


def test_a_start_goes_on_where_the_cleaner_was(node: Node) -> None:
    running = Running(node)
    log = running.make()
    running.until(NOW_MS + 300)
    cleaned = log.cleaned_offset
    for _ in running.manager.shutdown(0):
        pass
    again = Running(node)
    found = again.manager.get_log("t", 0)
    assert found is not None and found.cleaned_offset == cleaned


def test_a_log_that_is_deleted_in_its_round_is_let_be(node: Node) -> None:
    running = Running(node)
    log, other = running.make(0, records=300), running.make(1)
    while not any(name.endswith(".cleaned") for name in names(log)):
        running.step()
    running.manager.delete_logs([("t", 0)], NOW_MS + 100)
    made_anew = running.make(0, records=3)
    running.until(NOW_MS + 400)
    assert running.manager.online_dirs() and running.manager.cleaner.manager.uncleanable == {}
    assert other.cleaned_offset is not None and made_anew.log_end_offset == 3
    assert not [name for name in names(made_anew) if name.endswith((".swap", ".cleaned"))]
    assert log.log_end_offset == 300


def test_a_damaged_batch_makes_a_log_uncleanable_and_is_reported_once(node: Node) -> None:
    running = Running(node)
    log, other = running.make(0), running.make(1)
    path = Path(log.directory) / f"{0:020}.log"
    data = flip(path, 70)
    running.until(NOW_MS + 1000)
    (reason,) = running.manager.cleaner.manager.uncleanable.values()
    assert f"{path}: the batch at byte 0 has a wrong CRC" in reason
    assert [line for line in node.reports if "not cleaned any more" in line] == node.reports
    assert len(node.reports) == 1
    assert other.cleaned_offset is not None and log.cleaned_offset is None
    assert path.read_bytes() == data


def test_a_crash_after_a_round_finds_every_key(node: Node) -> None:
    running = Running(node)
    log = running.make()
    running.until(NOW_MS + 150)
    end = log.log_end_offset
    crash(running.manager)
    again = Running(node)
    found = again.manager.get_log("t", 0)
    assert found is not None and found.log_end_offset == end
    assert found.size_bytes == log.size_bytes


def test_its_bytes_are_held_to_a_rate(node: Node) -> None:
    running = Running(node, cleaner_max_bytes_per_second=1e6)
    running.make(0, COMPACTED._replace(segment_bytes=100_000), records=10_000)
    running.until(NOW_MS + 200)
    assert running.manager.cleaner.totals.rounds == 0
    running.until(NOW_MS + 3000)
    assert running.manager.cleaner.totals.rounds == 1


def test_segments_that_retention_takes_while_others_are_flushed_end_the_round(node: Node) -> None:
    """A group of segments is checked again before it is cleaned; the log is cleaned in a later round."""
    running = Running(node)
    config = COMPACTED._replace(cleanup_policy=frozenset(("compact", "delete")), segment_bytes=200)
    log = running.make(0, config, records=300, keys=200)
    while not any(name.endswith(".deleted") for name in names(log)):
        running.step()
    log.maybe_increment_log_start_offset(log.log_end_offset - 1)
    assert len(log.delete_old_segments(NOW_MS + 100, 1000)) > 100
    running.until(NOW_MS + 2000)
    assert running.manager.online_dirs() and running.manager.cleaner.manager.uncleanable == {} and node.reports == []
    running.append(log, 300, 5)
    before = log.size_bytes
    running.until(NOW_MS + 4000)
    assert log.size_bytes < before and running.manager.cleaner.totals.rounds > 0


def test_without_a_backoff_requests_are_served_between_two_looks(node: Node) -> None:
    """The loop of a broker is not for the cleaner alone: time goes on though nothing needs cleaning."""
    running = Running(node, cleaner_backoff_ms=0)
    log = running.make()
    for _ in range(100):
        running.step()
    assert log.cleaned_offset is not None
    assert running.timer.clock_ms > NOW_MS + 100


def test_a_fault_of_kcli_costs_one_log_its_cleaning_and_no_more(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an error of Kafka's cleaner does: requests are served on, other logs cleaned, and the log says what to report."""
    running = Running(node)
    log, other = running.make(0), running.make(1)
    real = Cleaner.run

    def run(self: Cleaner) -> FlushSequence[CleanedLog]:
        if self._log is log:
            raise ZeroDivisionError("of a test")
        return (yield from real(self))

    monkeypatch.setattr(Cleaner, "run", run)
    before = log.size_bytes
    running.until(NOW_MS + 500)
    (line,) = node.reports
    assert "it is not cleaned any more: a fault of kcli at test_log_cleaner.py" in line and "of a test" in line
    assert list(running.manager.cleaner.manager.uncleanable) == [log]
    assert log.size_bytes == before and other.cleaned_offset is not None


def test_a_stop_in_order_gives_the_round_up_and_leaves_nothing_of_it(node: Node) -> None:
    """Its files would exist until the next start, as large as the log may be."""
    running = Running(node)
    log = running.make()
    while not [name for name in names(log) if name.endswith(".cleaned")]:
        running.step()
    for _ in running.manager.shutdown(1):
        pass
    assert not [name for name in names(log) if name.endswith((".swap", ".cleaned"))]


def rounds_at_once(running: Running, logs: list[UnifiedLog]) -> int:
    """How many of the logs were written anew at one time, at most, until all are clean."""
    most = 0
    while any(log.cleaned_offset != log.active_base_offset for log in logs):
        running.step()
        most = max(most, sum(any(name.endswith(".cleaned") for name in names(log)) for log in logs))
    return most


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_as_many_logs_are_cleaned_at_once_as_there_are_threads(node: Node, threads: int) -> None:
    """A large one, or a slow rate, does not keep all others waiting; and each has its part of the memory."""
    running = Running(
        node, cleaner_threads=threads, cleaner_max_bytes_per_second=20_000.0, cleaner_dedupe_buffer_bytes=24 * 600
    )
    logs = [running.make(partition, records=100 + partition) for partition in range(4)]
    assert rounds_at_once(running, logs) == threads
    assert running.manager.cleaner.totals.rounds == len(logs)
    stats = running.manager.cleaner.thread_stats()
    assert [one.last_round.map_used for one in stats] == [pytest.approx(5 / (600 / threads))] * threads


def test_without_a_thread_nothing_is_cleaned_until_there_is_one(node: Node) -> None:
    running = Running(node, cleaner_threads=0)
    log = running.make()
    running.until(NOW_MS + 5_000)
    assert log.cleaned_offset is None
    running.manager.change_settings(cleaner_threads=1)
    running.until(NOW_MS + 5_500)
    assert log.cleaned_offset == log.active_base_offset


def test_a_thread_that_is_taken_away_ends_its_round_first(node: Node) -> None:
    running = Running(node, cleaner_threads=2, cleaner_max_bytes_per_second=20_000.0)
    logs = [running.make(partition) for partition in range(3)]
    while sum(any(name.endswith(".cleaned") for name in names(log)) for log in logs) < 2:
        running.step()
    running.manager.change_settings(cleaner_threads=1)
    assert rounds_at_once(running, logs) == 2 and running.manager.cleaner.totals.rounds == 3


@pytest.mark.parametrize(
    ("io_buffer_bytes", "threads", "read_bytes"), [(1 << 19, 1, 1 << 18), (1 << 17, 1, 1 << 16), (1 << 19, 4, 1 << 16)]
)
def test_so_much_is_read_at_once_as_the_buffer_of_a_thread_takes(
    node: Node, io_buffer_bytes: int, threads: int, read_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the buffer is for reading, as in Kafka."""
    running = Running(node, cleaner_io_buffer_bytes=io_buffer_bytes, cleaner_threads=threads)
    log = running.make(0, COMPACTED._replace(segment_bytes=1 << 20), records=0)
    for number in range(2000):
        log.append_as_leader(new_batch([b"v" * 1000], keys=[b"k%d" % (number % 5)]), 0, NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    sizes, real = [], OsFile.read_into

    def read_into(self: OsFile, position: int, buffer: memoryview) -> int:
        sizes.append(len(buffer))
        return real(self, position, buffer)

    monkeypatch.setattr(OsFile, "read_into", read_into)
    running.until(NOW_MS + 300)
    assert log.cleaned_offset == log.active_base_offset
    assert max(sizes) == read_bytes
