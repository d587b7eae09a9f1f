"""Protects LogManager: what it makes of log directories at a start, where new partitions go, what is left after a stop."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from kcli.format.file_names import FileKind
from kcli.format.kafka_uuid import Uuid
from kcli.log.disk.os_disk import OsDisk
from kcli.log.errors import (
    AllLogDirsOfflineError,
    DuplicateLogError,
    InconsistentTopicIdError,
    KafkaStorageError,
    LogDirLockedError,
)
from kcli.log.log_config import LogConfig
from kcli.simulator.disk import SimulatedDisk
from tests.log.log_nodes import NOW_MS, OTHER_ID, TOPIC_ID, Node, batch, crash, flush, stop


def test_partitions_go_where_the_fewest_are(node: Node) -> None:
    manager = node.started()
    for partition in range(6):
        manager.get_or_create_log("t", partition, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True)
    counts = [sum(manager.log_dir_of(log).path == path for log in manager.logs.values()) for path in node.dirs]
    assert counts == [3, 3]


def test_a_partition_goes_to_the_directory_asked_for(node: Node) -> None:
    manager = node.started()
    wanted = list(node.dirs.values())[1]
    for partition in range(4):
        log = manager.get_or_create_log("t", partition, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True, directory_id=wanted)
        assert manager.directory_id_of(log) == wanted


def test_a_reserved_directory_id_leaves_the_choice(node: Node) -> None:
    manager = node.started()
    manager.get_or_create_log("t", 0, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True)
    log = manager.get_or_create_log("t", 1, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True, directory_id=Uuid(bytes(16)))
    assert manager.directory_id_of(log) == list(node.dirs.values())[1]


def test_the_topic_id_is_written_and_must_agree(node: Node) -> None:
    manager = node.started()
    log = manager.get_or_create_log("t", 0, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True)
    assert Path(log.directory, "partition.metadata").read_text() == f"version: 0\ntopic_id: {TOPIC_ID}"
    flushed = {path for paths in flush(manager) for path in paths}
    assert {log.directory, log.directory + "/partition.metadata", str(Path(log.directory).parent)} <= flushed
    assert manager.get_or_create_log("t", 0, TOPIC_ID, LogConfig(), now_ms=NOW_MS) is log
    with pytest.raises(InconsistentTopicIdError, match=str(OTHER_ID)):
        manager.get_or_create_log("t", 0, OTHER_ID, LogConfig(), now_ms=NOW_MS)


def test_a_new_log_asks_the_system_for_what_it_needs_only(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 10,000 partitions each further call takes a tenth of a second; partition.metadata was read and written again."""
    manager, calls = node.started(), list[str]()
    names = "append exists is_directory list_directory make_directory open_file open_log_file read_file size truncate write_at"
    for name in names.split():
        call = getattr(OsDisk, name)

        def counted(*args: object, name: str = name, call: Callable[..., object] = call, **named: object) -> object:
            calls.append(name)
            return call(*args, **named)

        monkeypatch.setattr(OsDisk, name, counted)
    log = manager.get_or_create_log("t", 0, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True)
    assert sorted(calls) == ["append"] * 2 + ["list_directory", "make_directory"] + ["open_log_file"] * 3
    new = [f"{0:020}.index", f"{0:020}.log", f"{0:020}.timeindex", "leader-epoch-checkpoint", "partition.metadata"]
    assert sorted(path.name for path in Path(log.directory).iterdir()) == new
    flushed = [path for paths in flush(manager) for path in paths]
    assert {str(Path(log.directory, name)) for name in new if name != "leader-epoch-checkpoint"} <= {*flushed}


def test_the_directory_that_a_crash_has_left_gets_a_whole_topic_id(node: Node) -> None:
    """A flush may have failed: then the file has bytes in the page cache only, and a later flush does not write them."""
    manager, path = node.started(), next(iter(node.dirs))
    left = Path(path, "t-0", "partition.metadata")
    left.parent.mkdir()
    left.write_text(f"version: 0\ntopic_id: {TOPIC_ID}")
    before = left.stat().st_mtime_ns
    log = manager.get_or_create_log("t", 0, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True)
    assert log.directory == str(left.parent)
    assert left.stat().st_mtime_ns > before and left.read_text() == f"version: 0\ntopic_id: {TOPIC_ID}"


def test_a_clean_stop_and_start_keeps_all(node: Node) -> None:
    manager = node.started()
    for partition in range(5):
        log = manager.get_or_create_log("t", partition, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True)
        for _ in range(partition):
            log.append_as_leader(batch(), 0, NOW_MS)
        log.update_high_watermark(log.log_end_offset)
    stop(manager, 42)
    again = node.manager()
    assert again.clean_broker_epoch() == 42
    for _ in again.start(lambda topic: node.config, lambda topic_id, partition: True, NOW_MS):
        pass
    assert all(not Path(path, ".kafka_cleanshutdown").exists() for path in node.dirs)
    for partition in range(5):
        found = again.get_log("t", partition)
        assert found is not None
        assert found.topic_id == TOPIC_ID
        assert found.log_end_offset == found.high_watermark == found.recovery_point == 3 * partition


def test_without_a_clean_stop_nothing_is_believed_above_the_recovery_point(node: Node) -> None:
    manager = node.started()
    log = manager.get_or_create_log("t", 0, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True)
    log.append_as_leader(batch(), 0, NOW_MS)
    log.append_as_leader(batch(), 0, NOW_MS)
    path = Path(log.path("0".zfill(20) + ".log"))
    crash(manager)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    again = node.started()
    assert again.clean_broker_epoch() == -1
    found = again.get_log("t", 0)
    assert found is not None
    assert (found.log_end_offset, path.stat().st_size) == (3, len(data) // 2)


def test_a_directory_is_used_by_one(node: Node, tmp_path: Path) -> None:
    """POSIX locks know processes, so the other one is a process."""
    import subprocess
    import sys

    (tmp_path / "a").mkdir()
    held = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from kcli.log.disk.os_disk import OsDisk; lock = OsDisk().lock(sys.argv[1])\n"
            "print(1, flush=True); input()",
            str(tmp_path / "a" / ".lock"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert held.stdout is not None and held.stdin is not None
        held.stdout.readline()
        with pytest.raises(LogDirLockedError, match="another process uses this log directory"):
            node.manager()
    finally:
        held.communicate(b"\n")
    node.manager()


def test_what_the_metadata_does_not_know_becomes_stray(node: Node) -> None:
    manager = node.started()
    for partition, topic_id in enumerate((TOPIC_ID, OTHER_ID)):
        manager.get_or_create_log("t", partition, topic_id, LogConfig(), now_ms=NOW_MS, is_new=True)
    lost = manager.get_or_create_log("t", 2, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True)
    Path(lost.directory, "partition.metadata").unlink()
    stop(manager)
    again = node.started(lambda topic_id, partition: topic_id == TOPIC_ID)
    assert set(again.logs) == {("t", 0)}
    names = sorted(path.name for directory in node.dirs for path in Path(directory).glob("t-*"))
    assert names[0] == "t-0"
    assert [name.endswith("-stray") for name in names] == [False, True, True]
    assert len([report for report in node.reports if "renamed to" in report]) == 2
    crash(again)
    third = node.started(lambda topic_id, partition: topic_id == TOPIC_ID)
    assert len(third.stray_directories) == 2
    assert set(third.logs) == {("t", 0)}


def test_what_is_no_partition_is_left_alone(node: Node, tmp_path: Path) -> None:
    for name in ("lost+found", "remote-log-index-cache", "__cluster_metadata-0"):
        (tmp_path / "a" / name).mkdir(parents=True)
    (tmp_path / "a" / "a-file-0").write_text("")
    manager = node.started()
    assert not manager.logs and not manager.stray_directories
    assert [report for report in node.reports if "lost+found" in report]
    assert len(node.reports) == 1


def test_one_partition_in_two_places_is_refused(node: Node, tmp_path: Path) -> None:
    """Unless one of the two is empty, as a directory is that failed while the log was made in it: that one is set aside."""
    import shutil

    manager = node.started()
    log = manager.get_or_create_log("t", 0, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True)
    home, second = Path(log.directory), tmp_path / ("a" if "/b/" in log.directory else "b") / "t-0"
    stop(manager)
    shutil.copytree(home, tmp_path / "empty")
    manager = node.started()
    manager.logs["t", 0].append_as_leader(batch(), 0, NOW_MS)
    stop(manager)
    shutil.copytree(home, second)
    with pytest.raises(DuplicateLogError, match="t-0 has two logs"):
        node.started()
    shutil.copytree(home, tmp_path / "full")
    for empty, full in ((home, second), (second, home)):
        for directory, source in ((empty, "empty"), (full, "full")):
            shutil.rmtree(directory, ignore_errors=True)
            shutil.copytree(tmp_path / source, directory)
        manager = node.started()
        assert manager.logs["t", 0].directory == str(full) and manager.logs["t", 0].log_end_offset > 0
        assert [Path(path).parent for path in manager.stray_directories] == [empty.parent]
        stop(manager)
        shutil.rmtree(manager.stray_directories[0])


def test_deleting_renames_at_once_and_removes_later(node: Node) -> None:
    manager = node.started(file_delete_delay_ms=500)
    log = manager.get_or_create_log("t", 0, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True)
    manager.get_or_create_log("t", 1, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True)
    manager.delete_logs([("t", 0), ("absent", 0)], NOW_MS)
    assert manager.get_log("t", 0) is None
    home = Path(log.directory).parent
    (renamed,) = home.glob("t-0.*")
    assert renamed.name.endswith("-delete") and len(renamed.name) == len("t-0.") + 32 + len("-delete")
    assert manager.deletions.run(NOW_MS + 499) == NOW_MS + 500
    assert renamed.exists()
    now_ms = NOW_MS + 500
    while (again_ms := manager.deletions.run(now_ms)) == now_ms:
        pass
    assert not renamed.exists() and not len(manager.deletions) and again_ms > now_ms
    flush(manager)  # also what the deleted log had asked for
    assert not node.reports
    checkpoints = (home / "recovery-point-offset-checkpoint").read_text()
    assert "t 0" not in checkpoints


def test_checkpoints_follow_a_deletion_in_parts_whose_last_part_has_no_logs(node: Node) -> None:
    """As of partitions in a directory that is offline; a log made anew must not be believed by the old one's offsets."""
    manager = node.started()
    log = manager.get_or_create_log("t", 0, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True)
    checkpoint = Path(log.directory).parent / "recovery-point-offset-checkpoint"
    manager.checkpoints.write_all(manager.log_dir_of(log), FileKind.RECOVERY_POINT_CHECKPOINT)
    flush(manager)
    assert "t 0" in checkpoint.read_text()
    manager.delete_logs([("t", 0)], NOW_MS, with_checkpoints=False)
    manager.delete_logs([("t", 1)], NOW_MS)
    flush(manager)
    assert "t 0" not in checkpoint.read_text()


def test_a_deletion_that_was_interrupted_goes_on(node: Node) -> None:
    manager = node.started()
    manager.get_or_create_log("t", 0, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True)
    manager.delete_logs([("t", 0)], NOW_MS)
    crash(manager)
    again = node.started(file_delete_delay_ms=0)
    assert len(again.deletions) == 1 and not again.logs
    while again.deletions.run(NOW_MS) == NOW_MS:
        pass
    assert not [path for directory in node.dirs for path in Path(directory).glob("t-*")]


def test_checkpoints_hold_what_the_logs_say(node: Node, tmp_path: Path) -> None:
    manager = Node(tmp_path / "a").started()
    log = manager.get_or_create_log("t", 0, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True)
    log.append_as_leader(batch(), 0, NOW_MS)
    log.update_high_watermark(2)
    manager.flush_log(log)
    flush(manager)
    assert log.recovery_point == 3
    for kind in manager.dirs[str(tmp_path / "a")].checkpoints:
        manager.checkpoints.write_all(manager.dirs[str(tmp_path / "a")], kind)
    flush(manager)
    read = {path.name: path.read_text() for path in (tmp_path / "a").glob("*-checkpoint")}
    assert read["recovery-point-offset-checkpoint"] == "0\n1\nt 0 2\n"  # one lower while the log is open
    assert read["replication-offset-checkpoint"] == "0\n1\nt 0 2\n"
    assert read["log-start-offset-checkpoint"] == "0\n0\n"


@pytest.mark.parametrize("where", ["flush", "report"])
def test_a_directory_that_fails_goes_alone(node: Node, where: str) -> None:
    manager = node.started()
    logs = [
        manager.get_or_create_log("t", partition, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True) for partition in range(4)
    ]
    flush(manager)
    bad = Path(logs[0].directory).parent
    if where == "flush":
        logs[0].append_as_leader(batch(), 0, NOW_MS)
        manager.flush_log(logs[0])
        flush(manager, OSError(5, "Input/output error"))
        assert logs[0].recovery_point == 0
    else:
        assert set(manager.take_offline(logs[0].directory, OSError(5, "Input/output error"))) == {("t", 0), ("t", 2)}
    with pytest.raises(KafkaStorageError) as refused:
        manager.get_log("t", 0)
    assert refused.value.code == 56
    with pytest.raises(KafkaStorageError):
        manager.get_or_create_log("u", 0, TOPIC_ID, LogConfig(), now_ms=NOW_MS)
    made = manager.get_or_create_log("u", 0, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True)
    assert Path(made.directory).parent != bad
    assert manager.get_log("t", 1) is logs[1]
    assert any("Input/output error" in report and str(bad) in report for report in node.reports)
    with pytest.raises(AllLogDirsOfflineError, match="all log directories are offline"):
        manager.take_offline(made.directory, OSError(5, "Input/output error"))


def test_a_directory_that_cannot_be_opened_goes_alone(node: Node, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a file")
    manager = node.started()
    assert [log_dir.path for log_dir in manager.online_dirs()] == [str(tmp_path / "b")]
    (tmp_path / "b").rename(tmp_path / "c")
    crash(manager)
    (tmp_path / "b").write_text("a file")
    with pytest.raises(AllLogDirsOfflineError):
        node.manager()


def test_settings_reach_open_logs(node: Node) -> None:
    manager = node.started()
    log = manager.get_or_create_log("t", 0, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True)
    manager.update_topic_config("other", [0], LogConfig(segment_bytes=4096))
    assert log.config.segment_bytes != 4096
    manager.update_topic_config("t", [0], LogConfig(segment_bytes=4096))
    assert log.config.segment_bytes == 4096


@pytest.mark.parametrize("text", ["0\n7\nt 0 1\n", "1\n0\n", "words\n", "0\n1\nt 0\n"])
@pytest.mark.parametrize("kind", ["recovery-point", "log-start", "replication"])
def test_malformed_checkpoints_are_told_and_passed_over(node: Node, tmp_path: Path, kind: str, text: str) -> None:
    manager = node.started()
    log = manager.get_or_create_log("t", 0, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True)
    log.append_as_leader(batch(), 0, NOW_MS)
    stop(manager)
    (tmp_path / "a" / f"{kind}-offset-checkpoint").write_text(text)
    again = node.started()
    found = again.get_log("t", 0)
    assert found is not None and found.log_end_offset == 3
    assert any(f"{kind}-offset-checkpoint" in report for report in node.reports)


def test_checkpoints_forget_what_is_gone(node: Node, tmp_path: Path) -> None:
    """Before anybody is served: a log made anew under the name would else be cut at its next start, or not recovered."""
    manager = node.started()
    manager.get_or_create_log("t", 0, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True)
    stop(manager)
    paths = [
        Path(directory) / f"{kind}-checkpoint"
        for directory in node.dirs
        for kind in ("recovery-point-offset", "log-start-offset")
    ]
    for path in paths:
        path.write_text("0\n2\ngone 0 7\nt 0 0\n")
    node.started()
    assert not any("gone" in path.read_text() for path in paths)


def test_a_start_examines_some_directories_in_a_slice(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of 10,000 partitions took 60 ms, in which no other event of the node was handled."""
    home = Path(next(iter(node.dirs)))
    home.mkdir(exist_ok=True)
    for number in range(250):
        (home / f"t-{number}.{number:032x}-stray").mkdir()
    manager, in_slice, most = node.manager(), 0, 0
    is_directory = manager.disk.is_directory

    def counted(path: str) -> bool:
        nonlocal in_slice
        in_slice += 1
        return is_directory(path)

    monkeypatch.setattr(manager.disk, "is_directory", counted)
    for _ in manager.start(lambda topic: node.config, lambda topic_id, partition: True, NOW_MS):
        most, in_slice = max(most, in_slice), 0
    assert len(manager.stray_directories) == 250 and most == 100


def test_a_stop_flushes_what_is_dirty_before_it_says_that_it_was_clean(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = node.started()
    logs = [manager.get_or_create_log("t", at, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True) for at in range(30)]
    for log in logs:
        log.append_as_leader(batch(), 0, NOW_MS)
    done: list[str] = []
    rename, flush_path = manager.disk.rename, manager.disk.flush

    def note_rename(source: str, target: str) -> None:
        done.append(f"named {target}")
        rename(source, target)

    def note(path: str) -> None:
        done.append(path)
        flush_path(path)

    monkeypatch.setattr(manager.disk, "rename", note_rename)
    monkeypatch.setattr(manager.disk, "flush", note)
    stop(manager)
    for log in logs:
        home = str(Path(log.directory).parent)
        named = done.index(f"named {home}/recovery-point-offset-checkpoint")
        for name in (f"{0:020}.log", f"{0:020}.index", f"{0:020}.timeindex", f"{3:020}.snapshot", "", "partition.metadata"):
            assert f"{log.directory}/{name}".rstrip("/") in done[:named]
        assert f"{home}/recovery-point-offset-checkpoint.tmp" in done[:named] and home in done[:named]
        marked = done.index(f"named {home}/.kafka_cleanshutdown")
        assert home in done[named:marked] and f"{home}/.kafka_cleanshutdown.tmp" in done[:marked]
        assert home in done[marked:]
    assert (Path(logs[0].directory).parent / "recovery-point-offset-checkpoint").read_text().count(" 3\n") == 15


@pytest.mark.parametrize("clean", [True, False])
def test_an_index_made_anew_is_flushed(node: Node, tmp_path: Path, clean: bool) -> None:
    """Of a segment below the recovery point: no later start would make it once more, should a crash of the machine take it."""
    manager = node.started()
    log = manager.get_or_create_log("t", 0, TOPIC_ID, LogConfig(segment_bytes=200), now_ms=NOW_MS, is_new=True)
    for _ in range(6):
        log.append_as_leader(batch(), 0, NOW_MS)
    assert log.segment_count > 2
    stop(manager)
    index = Path(log.directory, f"{0:020}.index")
    index.unlink()
    if not clean:
        Path(index.parents[1], ".kafka_cleanshutdown").unlink()
    again = node.started()
    found = again.get_log("t", 0)
    assert found is not None and index.exists()
    if not clean:
        again.flush_log(found)
    assert str(index) in {path for paths in flush(again) for path in paths}
    assert found.unflushed_paths() == []


def test_a_snapshot_that_retention_takes_need_not_be_flushed(node: Node) -> None:
    manager = node.started()
    log = manager.get_or_create_log("t", 0, TOPIC_ID, LogConfig(segment_bytes=200), now_ms=NOW_MS, is_new=True)
    for sequence in range(0, 18, 3):
        log.append_as_leader(batch(producer=7, sequence=sequence), 0, NOW_MS)
    log.update_high_watermark(log.log_end_offset)
    log.maybe_increment_log_start_offset(log.log_end_offset)
    manager.flush_log(log)
    assert log.delete_old_segments(NOW_MS)
    flush(manager)
    assert log.recovery_point == log.log_end_offset and not node.reports


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("is_clean", [False, True])
@pytest.mark.parametrize("is_whole", [False, True])
def test_what_a_killed_process_made_is_durable_with_the_records(seed: int, is_clean: bool, is_whole: bool) -> None:
    """It died before a flush saw a new partition's files, or while it made them; the next one flushes what it appends, and
    then the power goes.
    """
    disk = SimulatedDisk(random.Random(seed))
    disk.make_directory("/data")
    disk.flush("/")
    node = Node(Path("/data"), disk=disk)
    manager = node.started()
    manager.get_or_create_log("t", 0, TOPIC_ID, LogConfig(), now_ms=NOW_MS, is_new=True)
    if not is_whole:
        for name in set(disk.list_directory("/data/t-0")) - {"partition.metadata"}:
            disk.remove(f"/data/t-0/{name}")
    disk.kill()
    manager = node.started()
    log = manager.logs["t", 0]
    log.append_as_leader(batch(), 0, NOW_MS)
    manager.flush_log(log)
    flush(manager)
    if is_clean:
        stop(manager)
    disk.lose_power(random.Random(seed))
    (found,) = node.started().logs.values()
    assert (found.topic_id, found.log_end_offset) == (TOPIC_ID, 3)
