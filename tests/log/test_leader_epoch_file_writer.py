"""Protects the leader epoch files that follow behind appends: no recovery point rises before its epoch is in the file."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from kcli.log.disk.flush_request import FlushRequest, begin_flushes
from kcli.log.managing.log_registry import LeaderEpochFileWriter
from kcli.log.unified_log import UnifiedLog
from tests.server.whole_node import WholeNode, batch


@pytest.fixture
def node(tmp_path: Path) -> WholeNode:
    made = WholeNode(tmp_path / "data")
    made.create_topic("t", 3)
    return made


def log_of(node: WholeNode, index: int = 0) -> UnifiedLog:
    log = node.broker.log_manager.get_log("t", index)
    assert isinstance(log, UnifiedLog)
    return log


def file_of(node: WholeNode, index: int = 0) -> Path:
    return Path(log_of(node, index).directory) / "leader-epoch-checkpoint"


def held(node: WholeNode) -> Iterator[list[str]]:
    """Release what is held, a flush at a time -> the names of what each was of."""
    while node.held:
        effect = node.held.pop(0)
        node.held, rest = [effect], node.held
        names = [Path(path).name for path in effect.paths]
        node.release_flushes()
        node.held = rest + node.held
        node.advance(1)
        yield names


def test_an_append_waits_for_no_device_and_its_file_follows(node: WholeNode) -> None:
    node.holds_flushes = True
    for index in range(3):
        assert node.produce("t", index, batch(b"x")).result() is not None
        assert file_of(node, index).read_bytes() == b""
        assert log_of(node, index).leader_epochs.is_unwritten
    node.advance(1)
    assert list(held(node)) == [["leader-epoch-checkpoint.tmp"] * 3, ["t-0", "t-1", "t-2"]]
    for index in range(3):
        assert file_of(node, index).read_text() == "0\n1\n0 0\n"
        assert not log_of(node, index).leader_epochs.is_unwritten


def test_a_flush_has_the_file_follow_before_the_recovery_point_rises(node: WholeNode) -> None:
    log = log_of(node)
    node.holds_flushes = True
    node.produce("t", 0, batch(b"x"))
    done: list[OSError | None] = []
    node.broker.replica_manager.flush_log(log, lambda error, now_ms: done.append(error), node.now_ms)
    node.advance(1)
    seen = []
    for names in held(node):
        seen += names
        assert log.recovery_point == (0 if log.leader_epochs.is_unwritten else 1)
        assert (
            not log.leader_epochs.is_unwritten or file_of(node).read_bytes() == b"" or names == ["leader-epoch-checkpoint.tmp"]
        )
    assert done == [None] and log.recovery_point == 1
    assert file_of(node).read_text() == "0\n1\n0 0\n"
    assert seen.index("00000000000000000000.log") < seen.index("leader-epoch-checkpoint.tmp")


def test_a_flush_is_well_though_its_epoch_file_was_put_in_place_by_another_write(node: WholeNode) -> None:
    """Both write the same temporary file; the first that is through renames it, and the other finds it no more."""
    log = log_of(node)
    node.holds_flushes = True
    node.produce("t", 0, batch(b"x"))
    done: list[OSError | None] = []
    node.broker.replica_manager.flush_log(log, lambda error, now_ms: done.append(error), node.now_ms)
    node.advance(1)
    data, by_writer = node.held
    assert by_writer.paths[0].endswith(".tmp") and data.paths[-1].endswith(".log")
    node.held = [data]
    node.release_flushes()
    (by_flush,) = node.held
    assert by_flush.paths == by_writer.paths
    # The writer's own comes first, and is not what counts any more; one more change, and neither is the other.
    log.leader_epochs.assign(3, 1)
    node.release_flushes(FileNotFoundError(errno.ENOENT, "No such file or directory"))
    assert done == [None]
    node.held = [by_writer]
    node.holds_flushes = False
    node.release_flushes()
    node.advance(1)
    assert file_of(node).read_text() == "0\n2\n0 0\n3 1\n"
    assert node.broker.log_manager.is_live(log)


def test_a_clean_stop_writes_what_is_unwritten(node: WholeNode) -> None:
    node.holds_flushes = True
    node.produce("t", 0, batch(b"x"))
    path = file_of(node)
    node.holds_flushes = False
    node.release_flushes()
    node.stop()
    assert path.read_text() == "0\n1\n0 0\n"


def test_a_topic_that_is_deleted_meanwhile_ends_nothing(node: WholeNode) -> None:
    node.holds_flushes = True
    node.produce("t", 0, batch(b"x"))
    node.advance(1)
    node.holds_flushes = False
    (effect,) = [effect for effect in node.held if effect.paths[0].endswith("leader-epoch-checkpoint.tmp")]
    node.held.remove(effect)
    node.release_flushes()
    node.delete_topic("t")
    node.held = [effect]
    node.release_flushes(FileNotFoundError(errno.ENOENT, "No such file or directory"))
    assert node.broker.log_manager.online_dirs()
    node.create_topic("u")
    node.produce("u", 0, batch(b"x"))
    node.advance(10)
    assert not node.broker.log_manager.get_log("u", 0).leader_epochs.is_unwritten


def test_a_log_that_was_deleted_writes_nothing_into_its_successor(node: WholeNode) -> None:
    """Its directory may be that of a topic of the same name by the time its turn comes."""
    node.holds_flushes = True
    for index in range(3):
        node.produce("t", index, batch(b"x"))
    node.advance(1)
    waiting = log_of(node, 2).leader_epochs
    waiting.assign(7, 1)
    node.holds_flushes = False
    first = [effect for effect in node.held if effect.paths[0].endswith("leader-epoch-checkpoint.tmp")]
    node.held = [effect for effect in node.held if effect not in first]
    node.release_flushes()
    node.delete_topic("t")
    node.create_topic("t", 3)
    node.held = first
    node.release_flushes(FileNotFoundError(errno.ENOENT, "No such file or directory"))
    node.advance(10)
    assert waiting.is_unwritten
    assert file_of(node, 2).read_bytes() == b""
    node.produce("t", 2, batch(b"x"))
    node.advance(10)
    assert file_of(node, 2).read_text() == "0\n1\n0 0\n"


def test_what_was_truncated_meanwhile_is_not_written_over(node: WholeNode) -> None:
    log = log_of(node)
    node.holds_flushes = True
    node.produce("t", 0, batch(b"x"))
    node.advance(1)
    log.truncate_to(0, node.now_ms)
    assert file_of(node).read_bytes() == b"0\n0\n"
    node.holds_flushes = False
    node.release_flushes()
    node.advance(10)
    assert file_of(node).read_bytes() == b"0\n0\n"


def test_a_disk_that_refuses_the_file_ends_its_directory(node: WholeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[tuple[UnifiedLog, OSError | None]] = []
    queued: list[FlushRequest | None] = []
    log = log_of(node)
    writer = LeaderEpochFileWriter(
        node.broker.log_manager.disk,
        lambda directory, flushes: queued.append(begin_flushes(flushes)),
        lambda log, error: failed.append((log, error)),
        lambda log: True,
    )
    writer.defer_writes(log)
    writer.on_work(lambda due_ms: None)
    log.leader_epochs.assign(1, 0)
    assert log.leader_epochs.is_unwritten
    writer.run(0)
    (request,) = queued
    assert request is not None
    error = OSError(errno.EIO, "Input/output error")
    assert request.done(error) is None
    assert failed == [(log, error)] and log.leader_epochs.is_unwritten
    monkeypatch.setattr(node.broker.log_manager.disk, "append", lambda path, data: (_ for _ in ()).throw(error))
    assert begin_flushes(writer.write(log)) is None
    assert failed == [(log, error)] * 2


def test_what_comes_too_late_may_fail(node: WholeNode) -> None:
    """Its directory has another name by then: that is no fault of the disk."""
    failed: list[UnifiedLog] = []
    log = log_of(node)
    writer = LeaderEpochFileWriter(
        node.broker.log_manager.disk, lambda directory, flushes: None, lambda log, error: failed.append(log), lambda log: True
    )
    writer.defer_writes(log)
    writer.on_work(lambda due_ms: None)
    log.leader_epochs.assign(1, 0)
    request = begin_flushes(writer.write(log))
    assert request is not None
    directory = request.done(None)
    assert directory is not None and directory.paths == (log.directory,)
    log.leader_epochs.catch_up()
    assert directory.done(FileNotFoundError(errno.ENOENT, "No such file or directory")) is None
    assert not failed and not log.leader_epochs.is_unwritten
