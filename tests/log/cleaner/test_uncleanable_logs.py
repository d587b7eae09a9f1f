"""Protects which logs are uncleanable, until when, and that no file says so: Kafka has none, and nothing reads one."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.log.unified_log import UnifiedLog
from tests.damage.layout import flip
from tests.log.cleaner.test_log_cleaner import COMPACTED, Running
from tests.log.log_nodes import NOW_MS, Node

NAME = "kcli-uncleanable-partitions"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    made = Node(tmp_path / "a", tmp_path / "b")
    made.config = COMPACTED
    return made


def damaged_log(running: Running, partition: int) -> UnifiedLog:
    log = running.make(partition)
    path = Path(log.directory) / f"{0:020}.log"
    flip(path, 70)
    return log


def home(log: UnifiedLog) -> Path:
    return Path(log.directory).parent


def uncleanable(running: Running) -> list[UnifiedLog]:
    return list(running.manager.cleaner.manager.uncleanable)


def test_no_file_lists_them(node: Node) -> None:
    running = Running(node)
    log = damaged_log(running, 0)
    running.until(NOW_MS + 500)
    for _ in running.manager.shutdown(0):
        pass
    assert uncleanable(running) == [log] and not (home(log) / NAME).exists()


def test_a_start_removes_the_file_of_an_earlier_version(node: Node) -> None:
    """It would state for ever what an earlier broker found; it may be torn, and is not read."""
    running = Running(node)
    log = running.make()
    for _ in running.manager.shutdown(0):
        pass
    (home(log) / NAME).write_bytes(b"torn")
    again = Running(node)
    assert not (home(log) / NAME).exists() and again.manager.online_dirs() and node.reports == []


def test_a_log_that_moves_is_tried_again(node: Node) -> None:
    running = Running(node)
    log = damaged_log(running, 0)
    before = home(log)
    running.until(NOW_MS + 500)
    (other,) = (path for path in node.dirs if path != str(before))
    # A copy is checked batch by batch: only what is sound can move.
    path = Path(log.directory) / f"{0:020}.log"
    flip(path, 70)
    running.manager.mover.move("t", 0, other, NOW_MS + 500)
    running.until(NOW_MS + 1000)
    assert node.caught_up == [("t", 0)]
    assert running.manager.mover.replace("t", 0, NOW_MS + 1000) is not None
    running.until(NOW_MS + 1500)
    moved = running.manager.get_log("t", 0)
    assert uncleanable(running) == []
    assert moved is not None and home(moved) == Path(other) and moved.cleaned_offset


def test_a_directory_that_goes_offline_takes_nobody_with_it(node: Node) -> None:
    running = Running(node)
    logs = [damaged_log(running, 0), damaged_log(running, 1)]
    running.until(NOW_MS + 500)
    running.manager.take_offline(logs[0].directory, OSError(5, "of a test"))
    running.until(NOW_MS + 1000)
    assert uncleanable(running) == [logs[1]]
