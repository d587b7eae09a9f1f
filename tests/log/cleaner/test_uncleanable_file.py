"""Protects the file of a log directory that lists its uncleanable logs, and outlives the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.format.uncleanable_partitions import UncleanablePartition, decode_uncleanable_partitions
from kcli.log.unified_log import UnifiedLog
from tests.log.cleaner.test_log_cleaner import COMPACTED, Running
from tests.log.log_nodes import NOW_MS, Node, crash, flush

NAME = "kcli-uncleanable-partitions"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path / "a", tmp_path / "b")
    made.config = COMPACTED
    return made


def damaged_log(running: Running, partition: int) -> UnifiedLog:
    log = running.make(partition)
    path = Path(log.directory) / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    return log


def listed(directory: Path) -> list[UncleanablePartition]:
    return list(decode_uncleanable_partitions((directory / NAME).read_bytes()))


def home(log: UnifiedLog) -> Path:
    return Path(log.directory).parent


def test_each_directory_tells_of_its_own_logs_when_and_why(node: Node) -> None:
    running = Running(node)
    first, second = damaged_log(running, 0), damaged_log(running, 1)
    sound = running.make(2)
    assert home(first) != home(second)
    running.until(NOW_MS + 500)
    assert sound.cleaned_offset
    for log in (first, second):
        (entry,) = listed(home(log))
        assert (entry.topic, entry.partition, entry.dirty_offset) == ("t", log.partition, 0)
        assert NOW_MS < entry.time_ms <= NOW_MS + 500
        assert f"{log.directory}/{0:020}.log: the batch at byte 0 has a wrong CRC" in entry.reason


def test_a_broker_with_nothing_to_tell_has_no_such_file(node: Node) -> None:
    running = Running(node)
    running.make()
    running.until(NOW_MS + 500)
    for _ in running.manager.shutdown(0):
        pass
    assert not [path for path in node.dirs if (Path(path) / NAME).exists()]


def test_it_outlives_a_stop_and_a_crash_and_goes_with_the_next_start(node: Node) -> None:
    running = Running(node)
    log = damaged_log(running, 0)
    running.until(NOW_MS + 500)
    for _ in running.manager.shutdown(0):
        pass
    assert [entry.partition for entry in listed(home(log))] == [0]
    again = Running(node)
    assert not (home(log) / NAME).exists()
    again.until(NOW_MS + 500)  # the damage is still there
    crash(again.manager)
    assert [entry.partition for entry in listed(home(log))] == [0]


def test_what_was_on_its_way_at_a_clean_stop_is_written(node: Node) -> None:
    running = Running(node)
    log = damaged_log(running, 0)
    while not running.manager.cleaner.manager.uncleanable:
        deadline_ms = running.timer.next_deadline_ms()
        assert deadline_ms is not None
        running.timer.advance(max(deadline_ms, running.timer.clock_ms))
    running.manager.take_flushes()  # the device never gets to them
    for _ in running.manager.shutdown(0):
        pass
    assert [entry.partition for entry in listed(home(log))] == [0]


def test_a_log_that_is_deleted_leaves_it(node: Node) -> None:
    running = Running(node)
    logs = [damaged_log(running, 0), damaged_log(running, 2)]
    running.make(1)
    kept = [log for log in logs if home(log) == home(logs[0])][-1]
    running.until(NOW_MS + 500)
    running.manager.delete_logs([("t", 0)], NOW_MS + 500)
    flush(running.manager)
    assert [entry.partition for entry in listed(home(logs[0]))] == ([] if kept is logs[0] else [kept.partition])


def test_a_log_that_moves_leaves_it_and_is_tried_again(node: Node) -> None:
    running = Running(node)
    log = damaged_log(running, 0)
    before = home(log)
    running.until(NOW_MS + 500)
    (other,) = (path for path in node.dirs if path != str(before))
    # A copy is checked batch by batch: only what is sound can move.
    path = Path(log.directory) / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    running.manager.mover.move("t", 0, other, NOW_MS + 500)
    running.until(NOW_MS + 1000)
    assert node.caught_up == [("t", 0)]
    assert running.manager.mover.replace("t", 0, NOW_MS + 1000) is not None
    running.until(NOW_MS + 1500)
    moved = running.manager.get_log("t", 0)
    assert listed(before) == [] and not (Path(other) / NAME).exists()
    assert moved is not None and home(moved) == Path(other) and moved.cleaned_offset


def test_a_directory_that_goes_offline_takes_nobody_with_it(node: Node) -> None:
    running = Running(node)
    logs = [damaged_log(running, 0), damaged_log(running, 1)]
    running.until(NOW_MS + 500)
    running.manager.take_offline(logs[0].directory, OSError(5, "of a test"))
    running.until(NOW_MS + 1000)
    assert list(running.manager.cleaner.manager.uncleanable) == [logs[1]]
    assert [entry.partition for entry in listed(home(logs[1]))] == [1]
