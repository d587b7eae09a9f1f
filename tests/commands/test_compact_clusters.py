"""Protects partitions from another cluster's settings: `kcli compact` takes a topic's from its own metadata log, or from none.

Two clusters may have topics of one name, of which one is compacted and the other is not.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.commands.test_compact import active_base, last_of_each_key, reported, rows_in, run
from tests.commands.test_compact_config import USERS_ID, properties
from tests.commands.test_repair_output import tree
from tests.two_clusters import OTHER_ID, PATH, A, B, log_dir

COMPACT, DELETE = "compact", "delete"


def cleans(*words: str | Path, of: Path) -> tuple[int, bool]:
    """One run -> its exit code, and whether it has cleaned `users-0` of a directory; if not, no byte of it has changed."""
    before, files = rows_in(of / PATH), tree(of / PATH)
    code = run(*words)
    is_cleaned = rows_in(of / PATH) == last_of_each_key(before, active_base(of / PATH)) != before
    assert is_cleaned or tree(of / PATH) == files
    return code, is_cleaned


@pytest.mark.parametrize(("cluster_id", "node_id"), [(B, 1), (A, 2)], ids=["another cluster", "another node"])
def test_the_metadata_log_of_another_node_serves_nobody_else(
    tmp_path: Path, cluster_id: str, node_id: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each node has a copy of its own, and each cluster topics of its own. The sentence names both files and both ids."""
    ours = log_dir(tmp_path / "a", policy=COMPACT)
    other = log_dir(tmp_path / "b", cluster_id, node_id, topic_id=USERS_ID if cluster_id == A else OTHER_ID)
    assert run(other) == 2, "alone, nobody knows its policy"
    capfd.readouterr()
    assert cleans("--dry-run", ours, other, of=other) == (1, False)
    err = capfd.readouterr().err
    assert f"{ours}/meta.properties states cluster.id {A} and node.id 1" in err
    assert f"{other}/meta.properties states cluster.id {cluster_id} and node.id {node_id}" in err
    assert f"name the log directory of cluster {cluster_id}, node {node_id}, that has __cluster_metadata-0, too" in err
    assert cleans(other, ours, of=ours) == (1, True)
    capfd.readouterr()
    assert cleans("--output", "json", ours, other, of=other) == (1, False)
    rows = reported(capfd)
    assert [row["path"] for row in rows["problem"]] == [str(other)]
    assert {(row["path"], row["reason"]) for row in rows["skipped"]} >= {(f"{other}/{PATH}", "policy-unknown")}


def test_each_cluster_has_its_own_settings(tmp_path: Path) -> None:
    """Whichever is named first."""
    ours = log_dir(tmp_path / "a", policy=DELETE)
    other = log_dir(tmp_path / "b", B, topic_id=OTHER_ID, policy=COMPACT, metadata_id=OTHER_ID)
    assert cleans(ours, other, of=ours) == (0, False)
    assert cleans(other, ours, of=ours) == (0, False)
    shutil.rmtree(other)
    other = log_dir(tmp_path / "b", B, topic_id=OTHER_ID, policy=COMPACT, metadata_id=OTHER_ID)
    assert cleans(ours, other, of=other) == (0, True)


def test_the_disks_of_a_node_share_its_metadata_log(tmp_path: Path) -> None:
    first, second = log_dir(tmp_path / "1", policy=COMPACT), log_dir(tmp_path / "2")
    assert cleans(second, first, of=second) == (0, True)


def test_a_directory_of_the_time_of_zookeeper(tmp_path: Path) -> None:
    """broker.id and cluster.id tell as much; without a cluster.id the topic ids decide."""
    ours = log_dir(tmp_path / "a", policy=COMPACT)
    assert cleans(ours, log_dir(tmp_path / "same", version=0), of=tmp_path / "same") == (0, True)
    assert cleans(ours, log_dir(tmp_path / "b", B, version=0), of=tmp_path / "b") == (1, False)
    assert cleans(ours, log_dir(tmp_path / "old", None, version=0), of=tmp_path / "old") == (0, True)
    assert cleans(ours, log_dir(tmp_path / "ids", None, version=0, topic_id=OTHER_ID), of=tmp_path / "ids") == (1, False)


@pytest.mark.parametrize(("topic_id", "expected"), [(USERS_ID, (0, True)), (OTHER_ID, (1, False)), (None, (1, False))])
def test_a_copied_partition_is_known_by_its_topic_id(tmp_path: Path, topic_id: Any, expected: tuple[int, bool]) -> None:
    """Without meta.properties: a name proves nothing."""
    ours = log_dir(tmp_path / "a", policy=COMPACT)
    copy = log_dir(tmp_path / "copy", None, None, topic_id=topic_id)
    assert cleans(ours, copy, of=copy) == expected


@pytest.mark.parametrize("words", [(), ("--dry-run",), ("--any-policy",), ("--compression", "zstd")])
def test_a_topic_that_was_created_anew_is_another_topic(
    tmp_path: Path, words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    """The directory's own metadata log has the topic under another id; the other partitions are done."""
    logs = log_dir(tmp_path / "logs", policy=COMPACT)
    shutil.copytree(logs / PATH, logs / "users-1")
    (logs / "users-1" / "partition.metadata").write_text(f"version: 0\ntopic_id: {OTHER_ID}")
    before, first = tree(logs / "users-1"), tree(logs / PATH)
    (logs / "replication-offset-checkpoint").write_text("0\n2\nusers 0 180\nusers 1 180\n")
    assert run(*words, logs / PATH, logs / "users-1") == 1
    assert tree(logs / "users-1") == before and (tree(logs / PATH) != first) is (words != ("--dry-run",))
    err = capfd.readouterr().err
    assert f"{logs}/users-1/partition.metadata has topic id {OTHER_ID} for users" in err
    assert f"{logs}/__cluster_metadata-0 has {USERS_ID}" in err and "copy it elsewhere" in err
    assert run("--dry-run", "--output", "json", logs) == 1
    assert [(row["reason"], row["refused"]) for row in reported(capfd)["skipped"] if row["topic"] == "users"] == [
        ("other-topic", True)
    ]


def test_a_topic_id_that_cannot_be_read_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logs = log_dir(tmp_path / "logs", policy=COMPACT)
    (logs / PATH / "partition.metadata").write_text("version: 0\n")
    before = tree(logs / PATH)
    assert run(logs) == 2
    assert f"{logs / PATH}/partition.metadata: line 2 is missing; the partition was not changed" in capfd.readouterr().err
    assert tree(logs / PATH) == before


def test_two_metadata_logs_of_one_node(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One is a copy, and may be an old one."""
    first, copy = log_dir(tmp_path / "1", policy=COMPACT), log_dir(tmp_path / "copy", policy=DELETE)
    assert run(first, copy) == 0
    assert run(first, copy, log_dir(tmp_path / "2")) == 2
    assert "are metadata logs of the same node, so one of them is a copy" in capfd.readouterr().err


def test_a_configuration_is_of_one_node(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """--config with directories of two nodes, though the file does not say which of them it is of."""
    ours, other = log_dir(tmp_path / "a"), log_dir(tmp_path / "b", B)
    config = properties(ours, "node.id=1", "log.cleanup.policy=compact")
    before = tree(tmp_path)
    assert run("--config", config, "--any-policy", ours / PATH, other / PATH) == 2
    err = capfd.readouterr().err
    assert "--config is the configuration of one node" in err and A in err and B in err
    assert tree(tmp_path) == before
