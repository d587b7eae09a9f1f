"""Protects rows from a mix of two topics of one name: `kafka-log` and to-parquet read one cluster's topic, or two apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.spark.log_partitions import PlanError
from tests.commands.test_compact_config import USERS_ID
from tests.spark.source import rows_of
from tests.two_clusters import END, OTHER_ID, PATH, A, B, log_dir


def both(ours: Path, other: Path) -> str:
    (other / PATH).rename(other / "users-1")  # another partition: no duplicate that would be refused anyway
    return f"{ours},{other}"


def test_two_clusters_topics_of_one_name_are_refused(tmp_path: Path) -> None:
    """The sentence names both files and both ids; with any value of duplicatePartitions."""
    paths = both(log_dir(tmp_path / "a"), log_dir(tmp_path / "b", B, topic_id=None))
    for duplicates in ("fail", "all", "longest"):
        with pytest.raises(PlanError, match="these are two topics named users") as raised:
            rows_of(paths, duplicatePartitions=duplicates)
        assert f"{tmp_path}/a/meta.properties states cluster.id {A}" in str(raised.value)
        assert f"{tmp_path}/b/meta.properties states cluster.id {B}" in str(raised.value)


@pytest.mark.parametrize("owner", [(A, 1), (A, 2), (None, None)])
def test_a_topic_that_was_recreated_is_refused(tmp_path: Path, owner: tuple[str | None, int | None]) -> None:
    paths = both(log_dir(tmp_path / "a"), log_dir(tmp_path / "b", *owner, topic_id=OTHER_ID))
    with pytest.raises(PlanError, match="these are two topics named users") as raised:
        rows_of(paths)
    first, second = (f"{tmp_path}/{part}/partition.metadata" for part in ("a/users-0", "b/users-1"))
    assert f"{first} has topic id {USERS_ID} for users, {second} has {OTHER_ID}" in str(raised.value)


@pytest.mark.parametrize("owner", [(A, 1), (A, 2), (None, None)])
def test_one_topic_in_several_directories_is_read(tmp_path: Path, owner: tuple[str | None, int | None]) -> None:
    paths = both(log_dir(tmp_path / "a"), log_dir(tmp_path / "b", *owner))
    assert len(rows_of(paths)) == 2 * END


def test_topics_of_other_names_are_told_apart_by_name(tmp_path: Path) -> None:
    """Two clusters in one read, of each another topic; or one of them chosen."""
    ours, other = log_dir(tmp_path / "a"), log_dir(tmp_path / "b", B, topic_id=OTHER_ID)
    (other / PATH).rename(other / "orders-0")
    assert {row["topic"] for row in rows_of(f"{ours},{other}")} == {"users", "orders"}
    assert {row["topic"] for row in rows_of(f"{ours},{other}", subscribe="users")} == {"users"}


def test_a_damaged_meta_properties_is_named_where_nothing_else_tells(tmp_path: Path) -> None:
    """Equal topic ids are sufficient."""
    paths = both(log_dir(tmp_path / "a"), log_dir(tmp_path / "b"))
    (tmp_path / "b" / "meta.properties").write_text("version=1\ncluster.id=x\n")
    assert len(rows_of(paths)) == 2 * END
    for path in tmp_path.glob("*/users-*/partition.metadata"):
        path.unlink()
    with pytest.raises(PlanError, match=r"b/meta.properties: node.id is missing; so it is not known"):
        rows_of(paths)


def test_without_a_high_watermark_no_record_is_below_it(tmp_path: Path) -> None:
    """stopAtHighWatermark: a missing checkpoint does not mean that all records are committed."""
    logs = log_dir(tmp_path / "a")
    assert len(rows_of(logs, stopAtHighWatermark="true")) == END
    (logs / "replication-offset-checkpoint").unlink()
    assert rows_of(logs, stopAtHighWatermark="true") == [] and len(rows_of(logs)) == END
