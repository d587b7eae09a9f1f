"""Protects the log tasks: what each does, when it comes again, in slices; disk errors stay in their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.log import log_manager
from kcli.log.disk.deletion_queue import NEVER_MS, REMOVALS_PER_STEP
from kcli.log.log_config import LogConfig
from kcli.log.log_manager import LogManager
from kcli.log.unified_log import UnifiedLog
from kcli.network.timing_wheel import Timer
from tests.log.live_logs import new_batch
from tests.log.log_nodes import NOW_MS, TOPIC_ID, Node, batch, crash, flush

SMALL_SEGMENTS = LogConfig(segment_bytes=200, retention_ms=10_000, file_delete_delay_ms=700)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "a")


class Running:
    """A manager whose tasks run on a timer; what they want flushed is flushed at once."""

    def __init__(self, node: Node, **settings: int) -> None:
        self.manager: LogManager = node.started(**settings)
        self.timer = Timer(NOW_MS)
        self.flushed: list[tuple[str, ...]] = []
        self.manager.begin_tasks(NOW_MS, self.timer.schedule, self._flush)

    def _flush(self, now_ms: int) -> None:
        self.flushed += flush(self.manager)

    def until(self, now_ms: int) -> int:
        """Let time pass up to `now_ms` -> how often something ran."""
        runs = 0
        while (deadline_ms := self.timer.next_deadline_ms()) is not None and deadline_ms <= now_ms:
            self.timer.advance(max(deadline_ms, self.timer.clock_ms))
            runs += 1
            assert runs < 10_000
        self.timer.advance(now_ms)
        return runs

    def make(self, partition: int = 0, config: LogConfig = SMALL_SEGMENTS, batches: int = 0) -> UnifiedLog:
        log = self.manager.get_or_create_log("t", partition, TOPIC_ID, config, now_ms=NOW_MS, is_new=True)
        for _ in range(batches):
            log.append_as_leader(batch(), 0, NOW_MS)
        log.update_high_watermark(log.log_end_offset)
        return log


def names(log: UnifiedLog) -> list[str]:
    return sorted(path.name for path in Path(log.directory).iterdir())


def test_retention_takes_segments_out_and_removes_their_files_later(node: Node) -> None:
    running = Running(node, retention_check_interval_ms=5_000, initial_task_delay_ms=1_000)
    log = running.make(batches=6)
    assert log.segment_count > 2
    running.until(NOW_MS + 10_999)
    assert log.log_start_offset == 0
    running.until(NOW_MS + 11_000)  # 1 s, 6 s, 11 s: now the records are more than 10 s old
    assert log.log_start_offset == log.log_end_offset
    assert log.segment_count == 1
    assert [name for name in names(log) if name.endswith(".deleted")]
    running.until(NOW_MS + 11_699)
    assert [name for name in names(log) if name.endswith(".deleted")]
    running.until(NOW_MS + 11_700)
    assert not [name for name in names(log) if name.endswith(".deleted")]


def test_a_timestamp_in_the_future_that_stops_retention_is_reported(node: Node) -> None:
    """At each check of retention, as by Kafka (KAFKA-18929): the log grows, and nothing else says why."""
    running = Running(node, retention_check_interval_ms=5_000, initial_task_delay_ms=1_000)
    log = running.make(config=SMALL_SEGMENTS._replace(message_timestamp_after_max_ms=2**63 - 1))
    later_ms = NOW_MS + 100_000
    for _ in range(6):
        log.append_as_leader(new_batch([b"x" * 50], timestamps=[later_ms]), 0, NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    running.until(NOW_MS + 11_000)
    assert log.log_start_offset == 0 and len(node.reports) == 3
    assert all(f"timestamp {later_ms} ms, which is in the future" in line for line in node.reports)
    running.until(later_ms + 16_000)
    assert log.log_start_offset == log.log_end_offset


def test_no_task_touches_logs_that_are_being_closed(node: Node) -> None:
    """Retention renames segments: one of a log that is closed and not yet flushed would cost the mark of a stop in order."""
    running = Running(node, retention_check_interval_ms=5_000, initial_task_delay_ms=1_000)
    log = running.make(batches=6)
    running.make(1)
    closing = running.manager.shutdown(0)
    next(closing)
    closed = names(log)
    running.until(NOW_MS + 60_000)
    assert names(log) == closed
    list(closing)
    assert (Path(log.directory).parent / ".kafka_cleanshutdown").exists()


def test_retention_of_many_segments_comes_in_slices(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running(node, retention_check_interval_ms=100_000, initial_task_delay_ms=20_000)
    log = running.make(batches=60)
    count = log.segment_count
    assert count > 3 * log_manager.SEGMENTS_PER_VISIT
    taken: list[int] = []
    delete = UnifiedLog.delete_old_segments

    def counted(self: UnifiedLog, now_ms: int, most: int | None = None) -> list[str]:
        before = self.segment_count
        renamed = delete(self, now_ms, most)
        taken.append(before - self.segment_count)
        return renamed

    monkeypatch.setattr(UnifiedLog, "delete_old_segments", counted)
    running.until(NOW_MS + 20_000)
    assert log.log_start_offset == log.log_end_offset and log.segment_count == 1
    assert len(taken) > 3 and max(taken) <= log_manager.SEGMENTS_PER_VISIT


def test_checkpoints_are_written_in_their_time(node: Node, tmp_path: Path) -> None:
    running = Running(
        node,
        high_watermark_checkpoint_interval_ms=2_000,
        flush_offset_checkpoint_interval_ms=3_000,
        flush_start_offset_checkpoint_interval_ms=4_000,
        initial_task_delay_ms=1_000,
    )
    log = running.make(config=LogConfig(), batches=2)
    running.until(NOW_MS + 999)
    assert not list((tmp_path / "a").glob("*-checkpoint"))
    running.until(NOW_MS + 1_000)
    assert (tmp_path / "a" / "recovery-point-offset-checkpoint").read_text() == "0\n1\nt 0 0\n"
    running.until(NOW_MS + 2_000)
    assert (tmp_path / "a" / "replication-offset-checkpoint").read_text() == "0\n1\nt 0 6\n"
    log.maybe_increment_log_start_offset(4)
    running.manager.flush_log(log)
    flush(running.manager)
    running.until(NOW_MS + 5_000)
    assert (tmp_path / "a" / "recovery-point-offset-checkpoint").read_text() == "0\n1\nt 0 5\n"
    assert (tmp_path / "a" / "log-start-offset-checkpoint").read_text() == "0\n1\nt 0 4\n"


def test_what_did_not_change_is_not_written(node: Node) -> None:
    running = Running(node, high_watermark_checkpoint_interval_ms=1_000)
    running.make(batches=1, config=LogConfig())
    running.until(NOW_MS + 5_000)
    written = [paths for paths in running.flushed if any("replication" in path for path in paths)]
    assert len(written) == 1


def test_a_log_is_flushed_by_time(node: Node) -> None:
    running = Running(node, flush_scheduler_interval_ms=500, initial_task_delay_ms=0)
    lazy, eager = running.make(0, LogConfig(), 1), running.make(1, LogConfig(flush_ms=2_000), 1)
    running.until(NOW_MS + 1_999)
    assert (lazy.recovery_point, eager.recovery_point) == (0, 0)
    running.until(NOW_MS + 2_500)
    assert (lazy.recovery_point, eager.recovery_point) == (0, 3)


def test_a_log_that_rolled_is_flushed(node: Node) -> None:
    """So that a crash has only the last segment read again."""
    running = Running(node, high_watermark_checkpoint_interval_ms=1_000)
    rolled, single = running.make(0, batches=5), running.make(1, LogConfig(), 1)
    assert rolled.segment_count > 1 and rolled.recovery_point == 0
    running.until(NOW_MS + 1_000)
    assert rolled.recovery_point == rolled.log_end_offset
    assert single.recovery_point == 0


def test_idle_producers_are_forgotten(node: Node) -> None:
    running = Running(node, producer_id_expiration_ms=4_000, producer_id_expiration_check_interval_ms=1_000)
    log = running.make(config=LogConfig())
    log.append_as_leader(batch(producer=7), 0, NOW_MS)
    running.until(NOW_MS + 3_999)
    assert 7 in log.producers.producers
    running.until(NOW_MS + 4_000)
    assert not log.producers.producers


def test_a_sweep_over_many_logs_comes_in_slices(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_manager, "LOGS_PER_STEP", 3)
    manager = node.started()
    for partition in range(8):
        manager.get_or_create_log("t", partition, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True)
    visited: list[int] = []
    finished: list[int] = []
    sweep = log_manager.Sweep(
        "sweep", manager, lambda log, now_ms: visited.append(log.partition), 1_000, 3, lambda: finished.append(len(visited))
    )
    assert sweep.run(NOW_MS) == NOW_MS and len(visited) == 3
    manager.delete_logs([("t", 4)], NOW_MS)
    assert sweep.run(NOW_MS) == NOW_MS
    assert sweep.run(NOW_MS) == NOW_MS + 1_000
    assert visited == [0, 1, 2, 3, 5, 6, 7] and finished == [7]
    forever = log_manager.Sweep("sweep", manager, lambda log, now_ms: None, NEVER_MS, 100)
    assert forever.run(NOW_MS) == NEVER_MS


def test_removals_come_in_slices(node: Node, tmp_path: Path) -> None:
    manager = node.started()
    many = tmp_path / "a" / "many"
    (many / "inner").mkdir(parents=True)
    for at in range(3 * REMOVALS_PER_STEP):
        (many / f"{at}").touch()
        (many / "inner" / f"{at}").touch()
    manager.deletions.add([str(many), str(tmp_path / "a" / "gone")], NOW_MS)
    steps = 1
    while manager.deletions.run(NOW_MS) == NOW_MS:
        steps += 1
    assert steps >= 6 and not many.exists() and manager.deletions.run(NOW_MS) == NEVER_MS


@pytest.mark.parametrize("task", ["retention", "checkpoint", "removal"])
def test_an_error_of_the_disk_takes_one_directory_offline(tmp_path: Path, task: str) -> None:
    """The tasks go on with the others."""
    node = Node(tmp_path / "a", tmp_path / "b")
    running = Running(
        node, initial_task_delay_ms=0, retention_check_interval_ms=1_000, high_watermark_checkpoint_interval_ms=1_000
    )
    logs = [running.make(partition, batches=4) for partition in range(2)]
    bad, good = (tmp_path / Path(log.directory).parent.name for log in logs)
    disk = running.manager.disk
    rename, append, remove = disk.rename, disk.append, disk.remove

    def failing(path: str) -> None:
        if path.startswith(str(bad)):
            raise OSError(5, "Input/output error", path)

    def rename_or_fail(source: str, target: str) -> None:
        if task == "retention":
            failing(source)
        rename(source, target)

    def append_or_fail(path: str, data: bytes | memoryview) -> None:
        if task == "checkpoint" and path.endswith(".tmp"):
            failing(path)
        append(path, data)

    def remove_or_fail(path: str) -> None:
        if task == "removal":
            failing(path)
        remove(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "rename", rename_or_fail)
        patch.setattr(disk, "append", append_or_fail)
        patch.setattr(disk, "remove", remove_or_fail)
        running.until(NOW_MS + 30_000)
    assert [log_dir.path for log_dir in running.manager.online_dirs()] == [str(good)]
    assert logs[1].log_start_offset == logs[1].log_end_offset
    assert not [name for name in names(logs[1]) if name.endswith(".deleted")]
    assert (good / "replication-offset-checkpoint").exists()
    crash(running.manager)


def test_a_fault_at_one_log_leaves_the_others_their_task(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka logs what a scheduled task raises and goes on; it used to end the process."""
    running = Running(node, retention_check_interval_ms=5_000, initial_task_delay_ms=1_000)
    odd, sound = (running.make(partition, batches=9) for partition in (0, 1))
    delete_old_segments = UnifiedLog.delete_old_segments

    def fail_once(log: UnifiedLog, now_ms: int, most: int) -> list[str]:
        if log is odd and not lines:
            raise ZeroDivisionError("odd")
        return delete_old_segments(log, now_ms, most)  # type: ignore[return-value]

    lines: list[str] = []
    monkeypatch.setattr(running.manager, "report", lines.append)
    monkeypatch.setattr(UnifiedLog, "delete_old_segments", fail_once)
    far_ms = NOW_MS + 20_000
    starts = odd.log_start_offset, sound.log_start_offset
    running.until(far_ms)
    assert odd.log_start_offset > starts[0] and sound.log_start_offset > starts[1]
    (line,) = lines
    assert "a fault of kcli in the task kafka-log-retention at t-0" in line and "ZeroDivisionError('odd')" in line


def test_a_sweep_with_a_fault_writes_no_checkpoint_and_the_next_one_does(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the offsets would say that the other partitions have none."""
    running = Running(node, high_watermark_checkpoint_interval_ms=5_000)
    running.make(0, batches=1)
    path = Path(running.manager.online_dirs()[0].path) / "replication-offset-checkpoint"
    before = path.read_text() if path.exists() else None
    offset_of, lines = running.manager.checkpoints.offset_of, []

    def fail(log: UnifiedLog, kind: object) -> int | None:
        raise ZeroDivisionError("odd")

    monkeypatch.setattr(running.manager, "report", lines.append)
    monkeypatch.setattr(running.manager.checkpoints, "offset_of", fail)
    running.until(NOW_MS + 5_500)
    assert (path.read_text() if path.exists() else None) == before and any("highwatermark-checkpoint" in line for line in lines)
    monkeypatch.setattr(running.manager.checkpoints, "offset_of", offset_of)
    running.until(NOW_MS + 10_500)
    assert "t 0 3" in path.read_text()


def test_any_other_task_with_a_fault_runs_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """After FAULT_PAUSE_MS, with a line in the log."""
    running = Running(node)
    lines: list[str] = []
    calls: list[int] = []

    def fail(now_ms: int) -> int:
        calls.append(now_ms)
        raise ZeroDivisionError("odd")

    log_manager.Task("kafka-delete-logs", fail, running.timer.schedule, lambda now_ms: None, lines.append).wake(NOW_MS + 5)
    running.until(NOW_MS + 2 * log_manager.FAULT_PAUSE_MS)
    assert calls == [NOW_MS + 5, NOW_MS + 5 + log_manager.FAULT_PAUSE_MS]
    assert len(lines) == 2 and "a fault of kcli in the task kafka-delete-logs" in lines[0]
