"""Protects what the commands build on: which files of a directory are what, and sentences for paths that are nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kcli.format.file_names import DirectoryState, FileKind, FileState
from kcli.log.disk.os_disk import OsDisk
from kcli.log.files.log_directory import (
    ResolvedPath,
    expand_pattern,
    is_live,
    read_checkpoints,
    read_log_directory,
    read_partition,
    read_topic_id,
    resolve_paths,
)
from tests.conftest import every_log_set

DISK = OsDisk()


def make_partition(path: Path, names: list[str]) -> Path:
    path.mkdir(parents=True)
    for name in names:
        (path / name).write_bytes(b"")
    return path


def test_files_are_sorted_into_segments_snapshots_and_others(tmp_path: Path) -> None:
    """A segment has only the files of its own base offset; leftovers, orphans and odd names are others, never segments."""
    zero, ten = f"{0:020d}", f"{10:020d}"
    names = [f"{zero}.log", f"{zero}.index", f"{ten}.log", f"{ten}.snapshot", f"{ten}.txnindex", "7.log", f"{zero}.log.swap"]
    names += [f"{5:020d}.index", "leader-epoch-checkpoint", "notes.txt", f"{99:020d}.snapshot", "sub"]
    path = make_partition(tmp_path / "a-topic-3", names[:-1])
    (path / "sub").mkdir()
    partition = read_partition(DISK, str(path))
    assert (partition.topic, partition.partition, partition.state) == ("a-topic", 3, DirectoryState.CURRENT)
    first, second = partition.segments
    assert (first.base_offset, first.offset_index, first.snapshot) == (0, f"{path}/{zero}.index", None)
    assert (second.base_offset, second.offset_index, second.snapshot) == (10, None, f"{path}/{ten}.snapshot")
    assert second.transaction_index == f"{path}/{ten}.txnindex"
    assert [file.base_offset for file in partition.snapshots] == [10, 99]
    assert {file.name for file in partition.others} == {
        "7.log",
        f"{zero}.log.swap",
        f"{5:020d}.index",
        "leader-epoch-checkpoint",
        "notes.txt",
    }
    assert partition.directories == ["sub"]
    assert partition.file(FileKind.LEADER_EPOCH_CHECKPOINT) == f"{path}/leader-epoch-checkpoint"
    assert partition.file(FileKind.QUORUM_STATE) is None
    swap = next(file for file in partition.others if file.state is FileState.SWAP)
    assert not swap.is_current and swap.kind is FileKind.LOG


def test_the_given_directories_are_understood_whole() -> None:
    """No directory or file that a broker wrote is unknown, and the checkpoints name partitions that are there."""
    sets = every_log_set()
    assert sets
    for log_set in sets:
        found = read_log_directory(DISK, str(log_set.data))
        assert found.partitions and not found.other_directories and not found.unreadable
        assert all(file.kind is not FileKind.UNKNOWN for file in found.files)
        checkpoints = read_checkpoints(DISK, found.path)
        assert not checkpoints.problems
        names = {(partition.topic, partition.partition) for partition in found.partitions}
        assert names.issuperset(checkpoints.recovery_points) and checkpoints.recovery_points
        for partition in found.partitions:
            assert partition.is_named and partition.segments
            if partition.file(FileKind.PARTITION_METADATA):
                assert read_topic_id(DISK, partition)
        assert not is_live(DISK, found.path)


def test_paths_become_what_they_are(tmp_path: Path) -> None:
    """Files, partitions, log directories and patterns are told apart; each path counts once."""
    log_dir = tmp_path / "kafka-logs-0"  # the name of a partition, the content of a log directory
    partition = make_partition(log_dir / "t-0", [f"{0:020d}.log"])
    make_partition(log_dir / "t-1", ["partition.metadata"])
    make_partition(log_dir / "t-2", [])
    targets, problems = resolve_paths(
        DISK, [str(log_dir), str(partition), f"{log_dir}/t-[12]", f"{log_dir}/*/*.log", str(partition)]
    )
    assert problems == []
    assert [(target.path, kind(target)) for target in targets] == [
        (str(log_dir), "log directory"),
        (f"{log_dir}/t-0", "partition"),
        (f"{log_dir}/t-1", "partition"),
        (f"{log_dir}/t-2", "partition"),
        (f"{log_dir}/t-0/{0:020d}.log", "file"),
    ]


def test_the_directory_of_a_cluster_is_its_log_directories(tmp_path: Path) -> None:
    """Nodes have names as partitions of a topic have: taken for these, a check would find nothing and call it sound."""
    cluster = tmp_path / "kcli-cluster"
    for node in ("node-1", "node-2"):
        make_partition(cluster / node / "t-0", [f"{0:020d}.log"])
        (cluster / node / "meta.properties").write_text("version=1\n")
    (cluster / "cluster.properties").write_text("")
    (cluster / "node-1.properties").write_text("")
    targets, problems = resolve_paths(DISK, [str(cluster), str(cluster / "node-2")])
    assert problems == []
    assert [(target.path, kind(target)) for target in targets] == [
        (f"{cluster}/node-1", "log directory"),
        (f"{cluster}/node-2", "log directory"),
    ]


STRAY = [f"{0:020d}.log", "server.log", "kafka-gc.log", "leader-epoch-checkpoint", "quorum-state", "partition.metadata"]


@pytest.mark.parametrize("stray", STRAY)
@pytest.mark.parametrize("sign", ["meta.properties", "recovery-point-offset-checkpoint", ".lock", ".kafka_cleanshutdown", None])
@pytest.mark.parametrize("name", ["data", "kafka-logs-0"])
def test_a_stray_file_makes_no_partition_of_a_log_directory(tmp_path: Path, name: str, sign: str | None, stray: str) -> None:
    """A broker ignores files in the root of a log directory; a repair of it "as a partition" would write segments there."""
    log_dir = tmp_path / name
    partition = make_partition(log_dir / "t-0", [f"{0:020d}.log"])
    (log_dir / stray).write_bytes(b"")
    if sign is not None:
        (log_dir / sign).write_bytes(b"")
    targets, problems = resolve_paths(DISK, [str(log_dir), str(partition)])
    assert problems == []
    assert [kind(target) for target in targets] == ["log directory", "partition"]


@pytest.mark.parametrize("stray", [".lock", ".kafka_cleanshutdown", "backup-1/00000000000000000000.log"])
def test_a_partition_with_a_stray_file_stays_a_partition(tmp_path: Path, stray: str) -> None:
    """Whatever is in a directory that is named as a partition and is inside of a log directory."""
    partition = make_partition(tmp_path / "t-0", [f"{0:020d}.log"])
    (partition / stray).parent.mkdir(exist_ok=True)
    (partition / stray).write_bytes(b"")
    (tmp_path / "meta.properties").write_bytes(b"")
    targets, _ = resolve_paths(DISK, [str(partition)])
    assert [kind(target) for target in targets] == ["partition"]


def kind(target: ResolvedPath) -> str:
    return "log directory" if target.log_directory else "partition" if target.partition else "file"


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda path: None, "no such file"),
        (lambda path: path.mkdir(), "an empty directory"),
        (lambda path: make_partition(path, ["holiday.jpg"]), "no file of Kafka's"),
        (lambda path: os.mkfifo(path), "neither a plain file nor a directory"),
        (lambda path: path.symlink_to("nowhere"), "neither a plain file nor a directory"),
    ],
)
def test_a_path_that_is_nothing_gets_a_sentence(tmp_path: Path, make, expected: str) -> None:  # type: ignore[no-untyped-def]
    """The sentence names the path and what it is instead of an error that a person must decode."""
    path = tmp_path / "x"
    make(path)
    targets, problems = resolve_paths(DISK, [str(path)])
    assert targets == []
    assert problems[0].path == str(path)
    assert problems[0].message.startswith(f"{path}: ") and expected in problems[0].message


def test_patterns_match_within_one_part_of_a_path(tmp_path: Path) -> None:
    """A pattern never crosses a slash, leaves dot files alone, and is taken literally where such a file exists."""
    for name in ("a/x.log", "a/.hidden.log", "b/x.log", "a/[1].log", "a/1.log"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert expand_pattern(DISK, f"{tmp_path}/*/x.log") == [f"{tmp_path}/a/x.log", f"{tmp_path}/b/x.log"]
    assert expand_pattern(DISK, f"{tmp_path}/a/*.log") == [f"{tmp_path}/a/{name}.log" for name in ("1", "[1]", "x")]
    assert expand_pattern(DISK, f"{tmp_path}/a/[1].log") == [f"{tmp_path}/a/[1].log"]
    assert expand_pattern(DISK, f"{tmp_path}/c/*.log") == [f"{tmp_path}/c/*.log"]


def test_checkpoints_that_cannot_be_read_are_problems(tmp_path: Path) -> None:
    """One bad checkpoint hides neither the others nor itself."""
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n2\na 0 5\n")
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\na 0 4\n")
    checkpoints = read_checkpoints(DISK, str(tmp_path))
    assert checkpoints.recovery_points == {} and checkpoints.high_watermarks == {("a", 0): 4}
    assert checkpoints.problems == [(f"{tmp_path}/recovery-point-offset-checkpoint", "line 2 states 2 entries and 1 follow")]


def test_a_directory_that_has_only_the_name_of_a_partition_is_not_kafkas(tmp_path: Path) -> None:
    """/etc/java-17 makes neither itself nor /etc a place to repair; an empty t-0 may be a partition that lost its files."""
    (tmp_path / "java-17").mkdir()
    (tmp_path / "java-17" / "java.conf").write_bytes(b"a")
    (tmp_path / "apt").mkdir()
    targets, problems = resolve_paths(OsDisk(), [str(tmp_path), str(tmp_path / "java-17")])
    assert targets == [] and all("no file of Kafka's" in problem.message for problem in problems)
    (tmp_path / "t-0").mkdir()
    targets, problems = resolve_paths(OsDisk(), [str(tmp_path)])
    assert targets[0].log_directory is not None and problems == []
