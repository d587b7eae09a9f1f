"""Protects moves of replicas between log directories: copy, replacement, restart, errors, and DescribeLogDirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.log.errors import DuplicateLogError, InvalidTopicError, KafkaStorageError, LogDirNotFoundError, NotHostedError
from kcli.log.log_config import LogConfig
from kcli.log.log_manager import LogManager
from kcli.log.managing import replica_mover
from kcli.log.unified_log import UnifiedLog
from tests.log.log_nodes import NOW_MS, TOPIC_ID, Node, batch, crash, flush, stop

CONFIG = LogConfig(segment_bytes=400)


def made(manager: LogManager, batches: int = 12, topic: str = "t") -> UnifiedLog:
    log = manager.get_or_create_log(topic, 0, TOPIC_ID, CONFIG, now_ms=NOW_MS, is_new=True)
    for number in range(batches):
        log.append_as_leader(batch(producer=7, sequence=3 * number), 2, NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    return log


def other_dir(node: Node, log: UnifiedLog) -> str:
    return next(path for path in node.dirs if not log.directory.startswith(path))


def moving(node: Node, **settings: int) -> tuple[LogManager, UnifiedLog, str]:
    """A manager that is asked to move a log of 36 records, nothing of which is copied yet; the log; where it is to go."""
    manager = node.started(**settings)
    log = made(manager)
    target = other_dir(node, log)
    manager.mover.move("t", 0, target, NOW_MS)
    return manager, log, target


def copy_all(node: Node, manager: LogManager) -> list[tuple[str, int]]:
    """Run the mover until everything is copied; return the partitions that have caught up."""
    before = len(node.caught_up)
    for _ in range(200):
        if manager.mover.run(NOW_MS) > NOW_MS:
            return node.caught_up[before:]
    raise AssertionError("the mover never rests")


def bytes_of(directory: Path | str) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(Path(directory).glob("*.log")))


def test_a_replica_moves_while_it_serves(node: Node, tmp_path: Path) -> None:
    manager, log, target = moving(node)
    future = manager.get_log("t", 0, future=True)
    assert future is not None and future.directory.startswith(target) and future.directory.endswith("-future")
    assert copy_all(node, manager) == [("t", 0)]
    log.append_as_leader(batch(producer=7, sequence=36), 2, NOW_MS)
    assert manager.mover.replace("t", 0, NOW_MS) is None  # a record came meanwhile
    assert copy_all(node, manager) == [("t", 0)]
    before = bytes_of(log.directory)
    moved = manager.mover.replace("t", 0, NOW_MS)
    assert moved is not None and moved is manager.get_log("t", 0)
    assert moved.directory == f"{target}/t-0" and bytes_of(moved.directory) == before
    assert (moved.log_end_offset, moved.high_watermark, moved.topic_id) == (39, 36, TOPIC_ID)
    assert moved.leader_epochs.entries == log.leader_epochs.entries
    assert not manager.future_logs
    moved.append_as_leader(batch(producer=7, sequence=39), 3, NOW_MS)
    assert "3 39" in Path(moved.directory, "leader-epoch-checkpoint").read_text()
    while manager.deletions.run(NOW_MS + 60_000) == NOW_MS + 60_000:
        pass
    assert sorted(path.name for directory in node.dirs for path in Path(directory).glob("t-*")) == ["t-0"]
    flush(manager)
    stop(manager)
    again = node.started().get_log("t", 0)
    assert again is not None and again.log_end_offset == 42 and not node.reports


def test_a_move_goes_on_after_a_crash(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_mover, "COPY_BYTES", 200)
    manager, log, _ = moving(node)
    for _ in range(3):
        manager.mover.run(NOW_MS)
    future = manager.get_log("t", 0, future=True)
    assert future is not None and 0 < future.log_end_offset < log.log_end_offset
    crash(manager)
    again = node.started()
    found = again.get_log("t", 0, future=True)
    assert found is not None and found.log_end_offset == future.log_end_offset
    assert copy_all(node, again) == [("t", 0)]
    assert again.mover.replace("t", 0, NOW_MS) is not None


def test_a_future_log_follows_cuts_and_deletions(node: Node) -> None:
    manager, log, _ = moving(node)
    copy_all(node, manager)
    future = manager.future_logs["t", 0]
    log.truncate_to(10, NOW_MS)
    copy_all(node, manager)
    assert future.log_end_offset == log.log_end_offset <= 10
    log.truncate_fully_and_start_at(100, NOW_MS)
    copy_all(node, manager)
    assert (future.log_start_offset, future.log_end_offset) == (100, 100)
    log.append_as_leader(batch(), 2, NOW_MS)
    copy_all(node, manager)
    assert manager.mover.replace("t", 0, NOW_MS) is not None


def test_the_copy_of_a_compacted_log_that_was_cut_begins_again(node: Node) -> None:
    """The copy lacks what was compacted away because of records that are cut off: its bytes are not those of the log."""
    manager, log, _ = moving(node)
    copy_all(node, manager)
    future = manager.future_logs["t", 0]
    future.truncate_fully_and_start_at(20, NOW_MS)  # as if all records below were compacted away
    for one in (log, future):
        one.config = one.config._replace(cleanup_policy=frozenset({"compact"}))
    log.truncate_to(9, NOW_MS)
    copy_all(node, manager)
    assert (future.log_start_offset, future.log_end_offset) == (0, log.log_end_offset)
    read = [one.read(0, 1 << 20, limit_offset=one.log_end_offset) for one in (log, future)]
    assert read[0].size == read[1].size > 0


def test_a_log_without_records_before_its_end_moves(node: Node) -> None:
    """The cleaner took the last ones, and a power failure those of the last segment: its name alone has the end."""
    manager, log, _ = moving(node)
    log.skip_to(50, NOW_MS)
    assert copy_all(node, manager) == [("t", 0)]
    assert manager.future_logs["t", 0].log_end_offset == 50
    moved = manager.mover.replace("t", 0, NOW_MS)
    assert moved is not None and moved.log_end_offset == 50
    moved.append_as_leader(batch(producer=7, sequence=36), 2, NOW_MS)
    crash(manager)
    again = node.started().get_log("t", 0)
    assert again is not None and again.log_end_offset == 53


def test_a_replica_that_the_metadata_has_moved_takes_its_place_at_the_start(node: Node) -> None:
    """The crash came between the controller's record and the renaming."""
    manager, _, target = moving(node)
    copy_all(node, manager)
    crash(manager)
    again = node.started()
    assert again.mover.recover_abandoned(lambda log: None, NOW_MS) == []
    (found,) = again.mover.recover_abandoned(lambda log: node.dirs[target], NOW_MS)
    assert found is again.get_log("t", 0) and found.directory == f"{target}/t-0" and found.log_end_offset == 36


def test_one_that_a_crash_has_left_shorter_goes_on_copying(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata has the replica there; taking the place at once would lose what the log has more."""
    monkeypatch.setattr(replica_mover, "COPY_BYTES", 200)
    manager, _, target = moving(node)
    manager.mover.run(NOW_MS)
    crash(manager)
    again = node.started()
    assert again.mover.recover_abandoned(lambda log: node.dirs[target], NOW_MS) == []
    assert again.get_log("t", 0) is not None and again.logs["t", 0].log_end_offset == 36
    assert copy_all(node, again) == [("t", 0)]
    assert again.mover.recover_abandoned(lambda log: node.dirs[target], NOW_MS) == [again.logs["t", 0]]


def test_what_takes_the_place_is_on_the_device(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a flush of the old log has promised a power loss must not take; so the new one is flushed before the renaming."""
    manager = node.started()
    log = made(manager)
    manager.flush_log(log)
    flush(manager)
    assert log.recovery_point == 36
    manager.mover.move("t", 0, other_dir(node, log), NOW_MS)
    copy_all(node, manager)
    future = manager.future_logs["t", 0]
    files = {str(path) for path in Path(future.directory).glob("*.log")}
    flushed: list[str] = []
    at_renaming: list[set[str]] = []
    disk, rename = type(manager.disk), type(manager.disk).rename

    def renamed(self: object, old: str, new: str) -> None:
        at_renaming.append(set(flushed))
        rename(self, old, new)  # type: ignore[arg-type]

    monkeypatch.setattr(disk, "flush", lambda self, path: flushed.append(path))
    monkeypatch.setattr(disk, "rename", renamed)
    assert manager.mover.replace("t", 0, NOW_MS) is future and future.recovery_point == 36
    assert files and files <= at_renaming[0]


def test_names_that_no_flush_has_seen_move_along(node: Node) -> None:
    """A log that took its place must have its partition.metadata flushed under the new name, or a power loss makes it stray."""
    manager = node.started()
    log = made(manager, batches=1)
    old = log.directory
    log.add_unflushed((f"{old}/partition.metadata",))
    log.move("/elsewhere/t-0")
    paths = log.unflushed_paths()
    assert "/elsewhere/t-0/partition.metadata" in paths
    assert not any(path.startswith(f"{old}/") for path in paths)


def test_batches_move_that_would_not_be_taken_any_more(node: Node) -> None:
    """max.message.bytes is for who sends them; it may have been lowered since these were taken."""
    manager, log, _ = moving(node)
    log.config = log.config._replace(max_message_bytes=20)
    future = manager.get_log("t", 0, future=True)
    assert future is not None
    future.config = log.config
    assert copy_all(node, manager) == [("t", 0)]
    assert bytes_of(future.directory) == bytes_of(log.directory) != b""


def test_a_log_that_starts_within_a_batch_moves(node: Node) -> None:
    """DeleteRecords may leave the start in the midst of a batch, which is copied whole."""
    manager = node.started()
    log = made(manager)
    log.maybe_increment_log_start_offset(31)
    manager.mover.move("t", 0, other_dir(node, log), NOW_MS)
    assert copy_all(node, manager) == [("t", 0)]
    moved = manager.mover.replace("t", 0, NOW_MS)
    assert moved is not None and (moved.log_start_offset, moved.log_end_offset) == (31, 36)
    assert not node.reports


@pytest.mark.parametrize("offset", [10, 100])
def test_no_flush_looks_for_what_a_cut_has_removed(node: Node, offset: int) -> None:
    """After a crash all is flushed once more; a snapshot that is gone by then would take the log directory offline."""
    manager = node.started()
    made(manager).producers.take_snapshot()
    crash(manager)
    again = node.started()
    log = again.logs["t", 0]
    assert [path for path in log.unflushed_paths() if path.endswith(".snapshot")]
    log.truncate_to(offset, NOW_MS) if offset < 36 else log.truncate_fully_and_start_at(offset, NOW_MS)
    assert all(Path(path).exists() for path in log.unflushed_paths())


def test_of_two_the_metadata_knows_the_right_one(node: Node) -> None:
    """The crash came between the renaming of the new log and that of the old one; without metadata the start is refused."""
    manager, log, target = moving(node)
    copy_all(node, manager)
    old, future = Path(log.directory), Path(manager.future_logs["t", 0].directory)
    crash(manager)
    future.rename(future.parent / "t-0")
    refused = node.manager()
    with pytest.raises(DuplicateLogError):
        for _ in refused.start(lambda topic: CONFIG, lambda topic_id, partition: True, NOW_MS):
            pass
    crash(refused)
    again = node.started(directory_of=lambda topic_id, partition: node.dirs[target])
    moved = again.get_log("t", 0)
    assert moved is not None and (moved.directory, moved.log_end_offset) == (f"{target}/t-0", 36)
    assert not old.exists() and [path for path in old.parent.iterdir() if path.name.endswith("-stray")]


def test_asking_again_stays_turns_or_stops(tmp_path: Path) -> None:
    node = Node(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    manager = node.started()
    log = made(manager)
    home = str(Path(log.directory).parent)
    first, second = (path for path in node.dirs if path != home)
    manager.mover.move("t", 0, home, NOW_MS)
    assert not manager.future_logs
    manager.mover.move("t", 0, first, NOW_MS)
    future = manager.future_logs["t", 0]
    manager.mover.move("t", 0, first, NOW_MS)
    assert manager.future_logs["t", 0] is future
    manager.mover.move("t", 0, second, NOW_MS)
    assert manager.future_logs["t", 0].directory.startswith(second)
    assert len(list(Path(first).glob("t-0.*-delete"))) == 1
    manager.mover.move("t", 0, home, NOW_MS)
    assert not manager.future_logs


def test_what_cannot_be_moved_is_refused_with_kafkas_codes(node: Node, tmp_path: Path) -> None:
    manager = node.started()
    log = made(manager)
    refusals: dict[type[Exception], int] = {}
    for asked, expected in (
        (("t", 0, str(tmp_path / "elsewhere")), LogDirNotFoundError),
        (("x" * 249, 0, str(tmp_path / "a")), InvalidTopicError),
        (("unknown", 0, str(tmp_path / "b")), NotHostedError),
    ):
        with pytest.raises(expected) as refused:
            manager.mover.move(*asked, NOW_MS)
        refusals[expected] = refused.value.code
    assert refusals == {LogDirNotFoundError: 57, InvalidTopicError: 17, NotHostedError: 6}
    later = manager.get_or_create_log("unknown", 0, TOPIC_ID, CONFIG, now_ms=NOW_MS, is_new=True)
    assert later.directory == str(tmp_path / "b" / "unknown-0")
    target = other_dir(node, log)
    manager.take_offline(target, OSError(5, "Input/output error"))
    with pytest.raises(KafkaStorageError, match="offline"):
        manager.mover.move("t", 0, target, NOW_MS)


def test_the_copy_keeps_to_its_speed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_mover, "COPY_BYTES", 200)
    manager, log, _ = moving(node, alter_log_dirs_max_bytes_per_second=1_000)
    now_ms, limit_ms = NOW_MS, NOW_MS + 60_000
    while manager.future_logs["t", 0].log_end_offset < log.log_end_offset:
        now_ms = manager.mover.run(now_ms)
        assert now_ms < limit_ms
    size = len(bytes_of(log.directory))
    assert 0.8 * size <= now_ms - NOW_MS <= 1.2 * size


def test_an_error_while_copying_takes_the_right_directory_offline(node: Node) -> None:
    manager, log, target = moving(node)
    open_log_file = manager.disk.open_log_file

    def failing(path: str, *, create: bool) -> object:
        if path.startswith(target):
            raise OSError(28, "No space left on device", path)
        return open_log_file(path, create=create)

    manager.files.close_all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager.disk, "open_log_file", failing)
        manager.mover.run(NOW_MS)
    assert [log_dir.path for log_dir in manager.online_dirs()] == [str(Path(log.directory).parent)]
    assert manager.get_log("t", 0) is log and not manager.future_logs


def test_what_is_told_of_log_directories(node: Node) -> None:
    manager, log, target = moving(node)
    by_path = {facts.path: facts for facts in manager.describe_log_dirs()}
    home = by_path[str(Path(log.directory).parent)]
    assert [(found.topic, found.partition, found.size_bytes, found.offset_lag, found.is_future) for found in home.replicas] == [
        ("t", 0, len(bytes_of(log.directory)), 0, False)
    ]
    assert [(found.offset_lag, found.is_future, found.size_bytes) for found in by_path[target].replicas] == [(36, True, 0)]
    assert all(0 < facts.usable_bytes < facts.total_bytes for facts in by_path.values())
    manager.take_offline(target, OSError(5, "Input/output error"))
    offline = next(facts for facts in manager.describe_log_dirs() if facts.path == target)
    assert offline.offline_reason and offline.replicas == [] and offline.total_bytes == offline.usable_bytes == -1
