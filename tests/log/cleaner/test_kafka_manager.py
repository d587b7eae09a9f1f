"""Protects what may be cleaned, from where on, and which log is next: Kafka's LogCleanerManagerTest, each test by its name.

tests/log/cleaner/kafka_names.txt says which of Kafka's tests is where.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.format.checkpoint import decode_offset_checkpoint
from kcli.log.cleaner.cleaner import CleaningAbortedError
from kcli.log.cleaner.log_cleaner_manager import first_dirty_offset, log_to_clean
from kcli.log.unified_log import UnifiedLog
from tests.log.cleaner.logs import COMPACTED, CompactedLog, PretendedMap
from tests.log.cleaner.test_log_cleaner import Running, cleaned_offsets
from tests.log.live_logs import NOW_MS, marker, new_batch
from tests.log.log_nodes import Node, crash, flush

HOUR_MS = 3_600_000
FILTHY = COMPACTED._replace(segment_bytes=2048, min_cleanable_dirty_ratio=0.05)


@pytest.fixture
def log(tmp_path: Path) -> CompactedLog:
    return CompactedLog(tmp_path / "t-0")


@pytest.fixture
def running(tmp_path: Path) -> Running:
    return Running(Node(tmp_path / "a"))


def filthy(running: Running, partition: int, batches: int, cleaned_offset: int | None, **settings: object) -> UnifiedLog:
    """A log of batches, five a segment, each of a record with its own key."""
    log = running.make(partition, FILTHY._replace(**settings), records=0)
    for number in range(batches):
        log.append_as_leader(new_batch([b"value"], keys=[b"key-%d" % number]), 1, NOW_MS)
        if number % 5 == 0:
            log.roll(NOW_MS)
    log.roll(NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    log.cleaned_offset = cleaned_offset
    return log


def cleaned(running: Running) -> list[int]:
    """The partitions in the order in which their rounds end, from now on."""
    order: list[int] = []
    write = running.manager.cleaner.manager.on_cleaned

    def on_cleaned(log: UnifiedLog) -> None:
        order.append(log.partition)
        write(log)

    running.manager.cleaner.manager.on_cleaned = on_cleaned
    return order


def test_grab_filthiest_compacted_log_returns_log_with_dirtiest_ratio(running: Running) -> None:
    """Of three logs that are clean up to 20, the one with the most behind that is first; one with nothing is let be."""
    for partition, batches in enumerate((20, 25, 30)):
        filthy(running, partition, batches, 20)
    order = cleaned(running)
    running.until(NOW_MS + 150)
    assert order == [2, 1]


def test_grab_filthiest_compacted_log_ignores_uncleanable_partitions(running: Running) -> None:
    """An uncleanable log is not checked, however filthy it is."""
    logs = [filthy(running, partition, batches, 20) for partition, batches in enumerate((20, 25, 30))]
    running.manager.cleaner.manager.uncleanable[logs[2]] = "damaged"
    order = cleaned(running)
    running.until(NOW_MS + 500)
    assert order == [1]


def order_during_a_round(running: Running, *uncleanable: int) -> list[int]:
    """The order in which three logs are cleaned by a second thread while the first one's round of the filthiest goes on."""
    running.manager.change_settings(cleaner_threads=2, cleaner_max_bytes_per_second=1000.0)
    busy = filthy(running, 2, 300, None)
    while not any(path.suffix == ".cleaned" for path in Path(busy.directory).iterdir()):
        running.step()
    logs = {0: filthy(running, 0, 26, 20), 1: filthy(running, 1, 30, 20)}
    for partition in uncleanable:
        running.manager.cleaner.manager.uncleanable[logs[partition]] = "damaged"
    order = cleaned(running)
    while 2 not in order:
        running.step()
    return order


def test_grab_filthiest_compacted_log_ignores_in_progress_partitions(running: Running) -> None:
    """The filthiest log is in its round: the second thread takes the next one."""
    assert order_during_a_round(running) == [1, 0, 2]


def test_grab_filthiest_compacted_log_ignores_both_in_progress_partitions_and_uncleanable_partitions(running: Running) -> None:
    """Nor does it take an uncleanable one."""
    assert order_during_a_round(running, 1) == [0, 2]


def test_grab_filthiest_compacted_log_throws_exception(running: Running) -> None:
    """A log whose first timestamps cannot be read becomes uncleanable; the others are cleaned."""
    log, other = filthy(running, 0, 30, None, max_compaction_lag_ms=HOUR_MS), filthy(running, 1, 30, None)
    with (Path(log.directory) / f"{0:020}.log").open("r+b") as file:
        file.write(bytes(61))
    running.until(NOW_MS + 500)
    assert list(running.manager.cleaner.manager.uncleanable) == [log]
    assert (log.cleaned_offset, other.cleaned_offset) == (None, 30)
    assert running.manager.get_log("t", 0) is log


def test_a_first_timestamp_of_zero_does_not_make_a_log_overdue(running: Running) -> None:
    """max.compaction.lag.ms counts from the first batch of a segment whose timestamp is above 0 (maxCompactionDelay)."""
    log = running.make(0, FILTHY._replace(max_compaction_lag_ms=HOUR_MS), records=0)
    for timestamp in (0, NOW_MS - 2 * HOUR_MS):
        log.append_as_leader(new_batch([b"value"], keys=[b"key"], timestamps=[timestamp]), 1, NOW_MS)
        log.roll(NOW_MS)
        log.update_high_watermark(log.log_end_offset)
        expected_ms = HOUR_MS if timestamp else 0
        assert log_to_clean(log, None, NOW_MS).delay_ms == expected_ms


def test_dirty_offset_reset_if_larger_than_end_offset(running: Running) -> None:
    """A checkpoint behind the log's end says nothing: the log is dirty from its start."""
    log = filthy(running, 0, 20, 200)
    assert log_to_clean(log, log.cleaned_offset, NOW_MS).first_dirty_offset == 0


def test_dirty_offset_reset_if_smaller_than_start_offset(running: Running) -> None:
    """Nothing is dirty before the log's start."""
    log = filthy(running, 0, 20, 0)
    log.maybe_increment_log_start_offset(10)
    assert log_to_clean(log, log.cleaned_offset, NOW_MS).first_dirty_offset == 10


def test_log_start_offset_larger_than_active_segment_base_offset(running: Running) -> None:
    """The log begins amid its active segment: nothing may be cleaned."""
    log = running.make(0, FILTHY, records=9)
    assert log.segment_count == 1
    log.maybe_increment_log_start_offset(2)
    log.cleaned_offset = 0
    assert log_to_clean(log, 0, NOW_MS).cleanable_bytes == 0
    running.until(NOW_MS + 500)
    assert running.manager.cleaner.totals.rounds == 0


def test_dirty_offset_larger_than_active_segment_base_offset(running: Running) -> None:
    """The checkpoint is inside the active segment, as after an unclean election: nothing may be cleaned."""
    log = running.make(0, FILTHY, records=6)
    assert (log.segment_count, log.active_base_offset) == (1, 0)
    log.cleaned_offset = 3
    assert log_to_clean(log, 3, NOW_MS).cleanable_bytes == 0
    running.until(NOW_MS + 500)
    assert running.manager.cleaner.totals.rounds == 0


@pytest.mark.parametrize(
    ("policy", "start", "left"),
    [
        pytest.param("delete", 30, (30,), id="should_not_consider_cleanup_policy_delete_logs"),
        pytest.param("compact,delete", 30, (30,), id="should_consider_cleanup_policy_compact_delete_logs"),
        pytest.param("compact", 12, (11, 16, 21, 26, 30), id="should_consider_cleanup_policy_compact_logs"),
    ],
)
def test_logs_with_segments_to_delete(policy: str, start: int, left: tuple[int, ...], running: Running) -> None:
    """With delete, alone or together with compact, retention deletes segments; with compact only those below the log start."""
    log = filthy(running, 0, 30, 30, cleanup_policy=frozenset(policy.split(",")), retention_ms=1)
    log.maybe_increment_log_start_offset(12)
    assert log.base_offsets == (0, 1, 6, 11, 16, 21, 26, 30)
    running.until(NOW_MS + running.manager.settings.initial_task_delay_ms + 1000)
    assert running.manager.cleaner.totals.rounds == 0
    assert (log.log_start_offset, log.base_offsets) == (start, left)


def test_update_checkpoints_should_add_offset_to_partition(running: Running) -> None:
    """A round's end is in the file, and the line of another log stays."""
    logs = [filthy(running, partition, 30, None) for partition in range(2)]
    running.until(NOW_MS + 500)
    assert cleaned_offsets(logs[0]) == {("t", 0): 30, ("t", 1): 30}


def test_update_checkpoints_should_remove_partition_data(running: Running) -> None:
    """A log that is deleted has no line any more."""
    logs = [filthy(running, partition, 30, None) for partition in range(2)]
    running.until(NOW_MS + 500)
    running.manager.delete_logs([("t", 0)], NOW_MS + 500)
    flush(running.manager)
    assert cleaned_offsets(logs[1]) == {("t", 1): 30}


def test_handle_log_dir_failure_should_remove_dir_and_data(tmp_path: Path) -> None:
    """A log directory fails: its logs are not checked any more, those of the other one are cleaned and checkpointed."""
    running = Running(Node(tmp_path / "a", tmp_path / "b"))
    logs = [filthy(running, partition, 30, None) for partition in range(2)]
    assert len({Path(log.directory).parent for log in logs}) == 2
    running.manager.take_offline(logs[0].directory, OSError("gone"))
    running.until(NOW_MS + 500)
    assert [log.cleaned_offset for log in logs] == [None, 30]
    assert cleaned_offsets(logs[1]) == {("t", 1): 30}
    assert not (Path(logs[0].directory).parent / "cleaner-offset-checkpoint").exists()


@pytest.mark.parametrize(("cut_at", "left"), [(25, 20), (20, 20), (7, 7), (0, 0)])
def test_maybe_truncate_checkpoint_should_truncate_data(cut_at: int, left: int, running: Running) -> None:
    """A log that is cut below its checkpoint is clean up to there only, whatever is appended then; above it nothing changes."""
    log = filthy(running, 0, 30, 20)
    log.truncate_to(cut_at, NOW_MS)
    running.append(log, 60)
    assert log.cleaned_offset == left


@pytest.mark.parametrize("group", (1, 2))
def test_concurrent_log_cleanup_and_log_truncation(group: int, log: CompactedLog) -> None:
    """A log is truncated inside a segment that is or will be cleaned, and grows: the round is aborted, nothing comes back."""
    log.fill(segments=4)
    size = log.sizes()[group - 1]
    steps = log.round(offsets=PretendedMap((1,))).run()
    while not list(log.directory.glob("*.cleaned")):
        next(steps)
    cut_at = log.log.base_offsets[group - 1] + 5
    log.log.truncate_to(cut_at, NOW_MS)
    while log.sizes()[group - 1] < size:
        log.put(log.log.log_end_offset, b"new")
    log.roll()
    values = [row[3] for _, rows in log.batches() for row in rows]
    with pytest.raises(CleaningAbortedError):
        for _ in steps:
            pass
    left = [row[3] for _, rows in log.batches() for row in rows]
    assert left == (values if group == 1 else [value for value in values if value != b"1"])
    assert log.live.faults(is_compacted=True) == []


def test_segments_of_a_later_group_go_amid_a_round(log: CompactedLog) -> None:
    """Retention deletes them between two groups: the round is aborted."""
    log.fill(segments=4)
    steps = log.round(offsets=PretendedMap((1,))).run()
    while not list(log.directory.glob("*.deleted")):
        next(steps)
    log.log.maybe_increment_log_start_offset(log.active)
    log.log.delete_old_segments(NOW_MS)
    with pytest.raises(CleaningAbortedError):
        for _ in steps:
            pass
    assert log.log.segment_count == 1


def test_logs_with_segments_to_delete_without_uncleanable_partitions(running: Running) -> None:
    """An uncleanable log stays complete: neither retention nor a new log start takes segments of it."""
    policy = frozenset(("compact", "delete"))
    logs = [filthy(running, partition, 30, 30, cleanup_policy=policy, retention_ms=1) for partition in (0, 1)]
    running.manager.cleaner.manager.uncleanable[logs[1]] = "damaged"
    logs[1].maybe_increment_log_start_offset(12)
    running.until(NOW_MS + running.manager.settings.initial_task_delay_ms + 1000)
    assert [log.base_offsets for log in logs] == [(30,), (0, 1, 6, 11, 16, 21, 26, 30)]


def reported_resets(running: Running) -> list[str]:
    return [line for line in running.reports if "cleaner-offset-checkpoint says" in line]


@pytest.mark.parametrize(("policy", "is_reported"), [("compact", True), ("compact,delete", False)])
def test_a_checkpoint_below_the_start_is_reported_where_no_retention_moves_it(
    policy: str, is_reported: bool, running: Running
) -> None:
    """As in Kafka, which warns of it unless the policy is compact,delete; once, since the file is put right."""
    log = filthy(running, 0, 20, 15, cleanup_policy=frozenset(policy.split(",")))
    log.maybe_increment_log_start_offset(20)
    running.until(NOW_MS + 1000)
    text = "cleaner-offset-checkpoint says that it is cleaned up to 15, but the log has [20, 20): it is cleaned from 20 on"
    assert reported_resets(running) == [f"{log.directory}: {text}"] * is_reported


def test_a_checkpoint_behind_the_end_is_reported_whatever_the_policy_is(running: Running) -> None:
    log = filthy(running, 0, 20, 200, cleanup_policy=frozenset(("compact", "delete")))
    running.until(NOW_MS + 1000)
    (line,) = reported_resets(running)
    assert "cleaned up to 200, but the log has [0, 20): it is cleaned from 0 on" in line
    assert log.cleaned_offset == 20


def test_cleanable_offsets_for_none(log: CompactedLog) -> None:
    """Without a lag what is committed and decided bounds it: the segment that holds the last stable offset is let be."""
    log.fill(segments=8)
    log.log.update_high_watermark(50)
    found = log_to_clean(log.log, 0, NOW_MS)
    assert log.log.last_stable_offset == 50
    assert found.first_dirty_offset == 0
    assert found.first_uncleanable_offset == max(base for base in log.log.base_offsets if base <= 50)


def test_cleanable_offsets_active_segment(log: CompactedLog) -> None:
    """The active segment is never cleaned."""
    log.fill(segments=8)
    found = log_to_clean(log.log, 0, NOW_MS)
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (0, log.active)


def test_cleanable_offsets_for_time(log: CompactedLog) -> None:
    """min.compaction.lag.ms: the first segment with a record that is younger, and all behind it, are let be."""
    log.set(min_compaction_lag_ms=HOUR_MS)
    log.fill(segments=4)
    bound, later_ms = log.active, NOW_MS + HOUR_MS + 1
    log.fill(segments=8, now_ms=later_ms)
    found = log_to_clean(log.log, 0, later_ms)
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (0, bound)


def test_cleanable_offsets_for_short_time(log: CompactedLog) -> None:
    """Every record is older than the lag: only the active segment is let be."""
    log.set(min_compaction_lag_ms=HOUR_MS)
    log.fill(segments=8)
    found = log_to_clean(log.log, 0, NOW_MS + HOUR_MS + 1)
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (0, log.active)


def test_cleanable_offsets_needs_checkpoint_reset(log: CompactedLog) -> None:
    """A checkpoint within the log counts, one outside of it does not."""
    log.fill(segments=3)
    end = log.log.log_end_offset
    log.log.maybe_increment_log_start_offset(10)
    assert first_dirty_offset(log.log, 15) == 15
    log.log.maybe_increment_log_start_offset(20)
    assert first_dirty_offset(log.log, 15) == 20
    assert first_dirty_offset(log.log, end) == end
    assert first_dirty_offset(log.log, end + 1) == 20
    assert first_dirty_offset(log.log, None) == 20


def test_undecided_transactional_data_not_cleanable(log: CompactedLog) -> None:
    """A transaction that is open bounds it, however old it is; its marker bounds it for the lag."""
    log.set(min_compaction_lag_ms=HOUR_MS)
    one = log.producer(15, transactional=True)
    one.put(1, 2)
    one.put(3)
    log.roll()
    now_ms = NOW_MS + HOUR_MS + 1
    assert log_to_clean(log.log, 0, now_ms)[:2] == (0, 0)
    log.live.append(marker(15, abort=True, timestamp=now_ms), now_ms=now_ms)
    log.roll()
    assert log_to_clean(log.log, 0, now_ms)[:2] == (0, 3)
    assert log_to_clean(log.log, 0, now_ms + HOUR_MS + 1)[:2] == (0, 4)


def test_checkpoint_updated_for_invalid_offset_no_cleaning(running: Running) -> None:
    """A checkpoint below the log's start is put right though the log needs no cleaning."""
    log = filthy(running, 0, 20, 15)
    log.maybe_increment_log_start_offset(20)
    running.until(NOW_MS + 500)
    assert running.manager.cleaner.totals.rounds == 0
    assert log.cleaned_offset == 20 and cleaned_offsets(log) == {("t", 0): 20}


def test_checkpoint_updated_for_invalid_offset_not_selected(running: Running) -> None:
    """So it is though another log is cleaned first."""
    log = filthy(running, 0, 20, 10)
    log.maybe_increment_log_start_offset(15)
    other = filthy(running, 1, 25, 5)
    while other.cleaned_offset == 5:
        running.step()
    assert cleaned_offsets(log)["t", 0] == 15
    running.until(NOW_MS + 500)
    assert (log.cleaned_offset, other.cleaned_offset) == (20, 25)


def test_done_cleaning(tmp_path: Path) -> None:
    """A round's end is what the next start goes on from, after a kill too."""
    running = Running(Node(tmp_path / "a"))
    log = filthy(running, 0, 30, None)
    running.until(NOW_MS + 500)
    path = Path(log.directory).parent / "cleaner-offset-checkpoint"
    assert decode_offset_checkpoint(path.read_bytes()).offsets() == {("t", 0): 30}
    crash(running.manager)
    found = Running(Node(tmp_path / "a")).manager.get_log("t", 0)
    assert found is not None and found.cleaned_offset == 30
