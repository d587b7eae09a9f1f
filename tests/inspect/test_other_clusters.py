"""Protects verify and describe from a mix-up of clusters: what one says of a topic is not said of the other's of that name."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.inspect.description.sources import DescriptionError
from tests.commands.test_compact_config import USERS_ID
from tests.inspect.described import described
from tests.inspect.verified import verify
from tests.two_clusters import OTHER_ID, PATH, A, B, log_dir


def findings_of(root: Path, *paths: Path) -> dict[str, str]:
    """What verify finds about the topic ids of a directory, by code."""
    found = {one.code: one.message for one in verify(*paths).findings if one.file.startswith(f"{root}/{PATH}")}
    return {code: message for code, message in found.items() if code.startswith("topic-")}


@pytest.mark.parametrize(("cluster_id", "node_id"), [(B, 1), (A, 2), (None, None)])
def test_verify_takes_topic_ids_from_the_nodes_own_metadata_log(
    tmp_path: Path, cluster_id: str | None, node_id: int | None
) -> None:
    """Another node's says nothing of what is on this one, in whatever order the directories are given."""
    ours = log_dir(tmp_path / "a", policy="compact")
    other = log_dir(tmp_path / "b", cluster_id, node_id, topic_id=OTHER_ID)
    assert findings_of(other, ours, other) == findings_of(other, other, ours) == {}


def test_verify_finds_a_topic_that_was_created_anew(tmp_path: Path) -> None:
    """On another disk of the same node; the sentence names both files and both ids."""
    ours, second = log_dir(tmp_path / "a", policy="compact"), log_dir(tmp_path / "b", topic_id=OTHER_ID)
    expected = (
        f"{second}/{PATH}/partition.metadata has topic id {OTHER_ID} for users, {ours}/__cluster_metadata-0 has {USERS_ID}"
    )
    assert findings_of(second, ours, second) == {"topic-id-mismatch": expected}


def test_verify_takes_each_clusters_own_metadata_log(tmp_path: Path) -> None:
    ours = log_dir(tmp_path / "a", policy="compact")
    other = log_dir(tmp_path / "b", B, topic_id=OTHER_ID, policy="delete", metadata_id=OTHER_ID)
    second = log_dir(tmp_path / "b2", B, topic_id=USERS_ID)
    assert findings_of(ours, ours, other, second) == findings_of(other, ours, other, second) == {}
    assert findings_of(second, ours, other, second).keys() == {"topic-id-mismatch"}


def test_verify_tells_nodes_apart(tmp_path: Path) -> None:
    """A note with both files and both ids; and no partition is twice on one broker then."""
    ours, other = log_dir(tmp_path / "a"), log_dir(tmp_path / "b", B)
    found = {one.code: one.message for one in verify(ours, other).findings}
    assert f"{other}/meta.properties states cluster.id {B} and node.id 1" in found["meta-properties-differ"]
    assert f"{ours}/meta.properties states cluster.id {A} and node.id 1" in found["meta-properties-differ"]
    assert "partition-duplicate" not in found
    copy = log_dir(tmp_path / "c", None, 1, version=0)
    assert "partition-duplicate" in {one.code for one in verify(ours, copy).findings}, "it may be the same broker"


def test_describe_refuses_two_clusters_by_name(tmp_path: Path) -> None:
    ours, other = log_dir(tmp_path / "a"), log_dir(tmp_path / "b", B)
    with pytest.raises(DescriptionError, match="several clusters") as raised:
        described(ours, other)
    assert f"{ours}/meta.properties states cluster.id {A}" in str(raised.value)
    assert f"{other}/meta.properties states cluster.id {B}" in str(raised.value)


@pytest.mark.parametrize("with_metadata", [True, False])
def test_describe_joins_no_partition_of_another_topic(tmp_path: Path, with_metadata: bool) -> None:
    """Copied to a place without meta.properties: it is shown with its own id, as a problem, and has nothing of the topic's."""
    ours = log_dir(tmp_path / "a", policy="compact" if with_metadata else None)
    copy = log_dir(tmp_path / "copy", None, None, topic_id=OTHER_ID)
    description = described(ours, copy)
    report = description.report
    (problem,) = [one for one in description.problems if one.path == f"{copy}/{PATH}"]
    known_in = ours / "__cluster_metadata-0" if with_metadata else ours / PATH / "partition.metadata"
    assert f"{copy}/{PATH}/partition.metadata has topic id {OTHER_ID} for users, {known_in} has {USERS_ID}" in problem.message
    topics = {row["id"]: row for row in report["topics"] if row["name"] == "users"}
    assert topics.keys() == {str(USERS_ID), str(OTHER_ID)}
    assert all((row["partitionsHere"], row["replicasHere"]) == (1, 1) for row in topics.values())
    assert topics[str(OTHER_ID)]["isInMetadata"] is (False if with_metadata else None)
    rows = {row["path"]: row for row in report["partitions"]}
    assert rows[f"{copy}/{PATH}"]["topicId"] == str(OTHER_ID)
    compaction = {row["path"]: row["cleanupPolicy"] for row in report["compaction"]}
    assert compaction == ({f"{ours}/{PATH}": ["compact"]} if with_metadata else {})


def test_describe_takes_a_copy_for_a_replica(tmp_path: Path) -> None:
    ours, copy = log_dir(tmp_path / "a", policy="compact"), log_dir(tmp_path / "copy", None, None)
    description = described(ours, copy)
    assert not [one for one in description.problems if PATH in one.path]
    (row,) = [row for row in description.report["topics"] if row["name"] == "users"]
    assert (row["partitionsHere"], row["replicasHere"]) == (1, 2)
