"""Protects the repair of a log directory as a whole: sound ones need none, and its own files follow what becomes of its logs.

What becomes of each kind of damage in a partition is judged in tests/oracle/test_repair.py.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from kcli.inspect.repairing.quarantine import Quarantine
from kcli.inspect.repairing.repair import CLEAN, NO_LONGER_CLEAN, UNCLEAN, LogDirectoryRepair, RootPlan, repair_targets
from kcli.inspect.repairing.repair_plan import PartitionPlan, RepairError
from kcli.log.disk import OsDisk
from kcli.log.log_directory import read_log_directory, read_partition, resolve_paths
from tests.conftest import LogSet, every_log_set
from tests.damage import DAMAGES

SETS = [pytest.param(found, id=found.data.parent.name) for found in every_log_set()]
MARK = b'{"version":0,"brokerEpoch":7}'


@pytest.mark.parametrize("log_set", SETS)
def test_a_sound_directory_needs_no_repair(log_set: LogSet) -> None:
    """No change, no remark: what Kafka wrote is as it should be."""
    disk = OsDisk()
    session = LogDirectoryRepair(disk, str(log_set.data))
    for partition in read_log_directory(disk, str(log_set.data)).partitions:
        plan = session.plan(partition)
        assert (plan.changes, plan.remarks, plan.holes) == ([], [], []), partition.name
    assert session.plan_root() == RootPlan(str(log_set.data), [], [], UNCLEAN if not mark_of(log_set.data) else CLEAN)


def mark_of(directory: Path) -> bool:
    return (directory / ".kafka_cleanshutdown").exists()


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A log directory of a few partitions, cleanly shut down."""
    data = next((found.data for found in every_log_set() if (found.data / "__cluster_metadata-0").is_dir()), None)
    if data is None:
        pytest.skip("neither ../shared nor fixtures/ holds a log directory of a KRaft cluster")
    copy = tmp_path / "logs"
    copy.mkdir()
    for name in ("transactions-0", "codec-zstd-0", "orders-0", "__cluster_metadata-0"):
        shutil.copytree(data / name, copy / name)
    for path in data.iterdir():
        if path.is_file():
            shutil.copy(path, copy)
    for path in copy.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (copy / ".kafka_cleanshutdown").write_bytes(MARK)
    return copy


def repair(logs: Path, *names: str, like_kafka: bool = False) -> tuple[dict[str, PartitionPlan], RootPlan]:
    disk = OsDisk()
    session = LogDirectoryRepair(disk, str(logs), like_kafka=like_kafka)
    quarantine = Quarantine(disk, str(logs) + ".quarantine", str(logs))
    plans = {name: session.apply(read_partition(disk, str(logs / name)), quarantine) for name in names}
    return plans, session.apply_root(quarantine)


def damage(logs: Path, name: str, kind: str) -> None:
    DAMAGES[kind](logs / name, random.Random(4))


def test_the_mark_of_a_clean_shutdown_comes_back_where_no_record_was_lost(logs: Path) -> None:
    """Rebuilt indexes and mended headers lose nothing: the broker may start without recovery."""
    damage(logs, "transactions-0", "index_garbage_last")
    damage(logs, "transactions-0", "flip_magic")
    plans, root = repair(logs, "transactions-0", "orders-0")
    assert plans["transactions-0"].changes
    assert not plans["transactions-0"].loses_records
    assert root.shutdown == CLEAN
    assert (logs / ".kafka_cleanshutdown").read_bytes() == MARK


def test_the_mark_stays_away_where_records_were_lost(logs: Path) -> None:
    """Its broker epoch would tell the controller that this replica has all its records; it is kept for people."""
    damage(logs, "transactions-0", "flip_record")
    _, root = repair(logs, "transactions-0")
    assert root.shutdown == NO_LONGER_CLEAN
    assert not mark_of(logs)
    assert (logs.parent / "logs.quarantine/1/.kafka_cleanshutdown").read_bytes() == MARK
    assert repair(logs, "transactions-0")[1].shutdown == UNCLEAN


def test_zeros_behind_the_last_batch_are_no_loss(logs: Path) -> None:
    """A preallocated segment."""
    damage(logs, "codec-zstd-0", "zero_tail")
    plans, root = repair(logs, "codec-zstd-0")
    assert [change.kind for change in plans["codec-zstd-0"].changes] == ["truncate"]
    assert root.shutdown == CLEAN


def offsets(path: Path) -> dict[str, str]:
    return {line.rsplit(" ", 1)[0]: line.rsplit(" ", 1)[1] for line in path.read_text().splitlines()[2:]}


def test_checkpoints_do_not_lie_behind_a_logs_end(logs: Path) -> None:
    """Of the repaired partition; others keep theirs."""
    before = offsets(logs / "recovery-point-offset-checkpoint")
    damage(logs, "codec-zstd-0", "torn_tail_in_records")
    plans, _ = repair(logs, "codec-zstd-0")
    end = str(plans["codec-zstd-0"].log_end_offset)
    assert int(end) < int(before["codec-zstd 0"])
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        assert offsets(logs / name)["codec-zstd 0"] == end
    assert offsets(logs / "recovery-point-offset-checkpoint") == {**before, "codec-zstd 0": end}


def test_what_a_broker_gave_up_cleaning_stays_told(logs: Path) -> None:
    """Whether the repaired partition can be cleaned now is for the next start of a broker to see."""
    told = b"0\n1\norders 0 5 7 a wrong CRC\n"
    (logs / "kcli-uncleanable-partitions").write_bytes(told)
    assert repair(logs, "orders-0")[1].changes == []
    assert (logs / "kcli-uncleanable-partitions").read_bytes() == told


def test_a_checkpoint_that_cannot_be_read_is_taken_away(logs: Path) -> None:
    """A broker would take the directory offline over it; without it it begins anew."""
    (logs / "replication-offset-checkpoint").write_bytes(b"0\nmany\n")
    (logs / "log-start-offset-checkpoint").write_bytes(b"7\n0\n")
    (logs / "kcli-uncleanable-partitions").write_bytes(b"0\n2\n")
    _, root = repair(logs, "orders-0")
    assert [Path(change.path).name for change in root.changes] == [
        "kcli-uncleanable-partitions",
        "log-start-offset-checkpoint",
        "replication-offset-checkpoint",
    ]
    assert "can be read again" in root.remarks[0].message
    assert not (logs / "replication-offset-checkpoint").exists()


@pytest.mark.parametrize("kind", ["lost_partition_metadata", "partition_metadata_empty", "partition_metadata_of_zero_id"])
@pytest.mark.parametrize("like_kafka", [False, True])
def test_a_lost_topic_id_comes_from_the_metadata_log(logs: Path, kind: str, like_kafka: bool) -> None:
    """The very bytes that Kafka had written."""
    wanted = (logs / "orders-0/partition.metadata").read_bytes()
    damage(logs, "orders-0", kind)
    repair(logs, "orders-0", like_kafka=like_kafka)
    assert (logs / "orders-0/partition.metadata").read_bytes() == wanted


def test_another_topics_id_is_told_and_left(logs: Path) -> None:
    """It may be of a topic since deleted: with the new id old records would come to life."""
    damage(logs, "orders-0", "partition_metadata_of_other_topic")
    plans, _ = repair(logs, "orders-0")
    assert plans["orders-0"].changes == []
    assert "left as it is" in plans["orders-0"].remarks[0].message


def test_without_a_metadata_log_a_bad_topic_id_goes(logs: Path) -> None:
    """A broker would not start over it, and sets the partition aside without it; nobody here knows the id."""
    shutil.rmtree(logs / "__cluster_metadata-0")
    damage(logs, "orders-0", "partition_metadata_garbage")
    plans, _ = repair(logs, "orders-0")
    assert not (logs / "orders-0/partition.metadata").exists()
    assert any("no metadata log" in remark.message for remark in plans["orders-0"].remarks)


def test_the_metadata_log_is_never_left_with_a_hole(logs: Path) -> None:
    """It is cut, and gets the rest from the other controllers; its sound files stay all the same."""
    damage(logs, "__cluster_metadata-0", "flip_record")
    plans, _ = repair(logs, "__cluster_metadata-0")
    plan = plans["__cluster_metadata-0"]
    assert plan.log_end_offset < 221
    assert "with a hole" in plan.remarks[-1].message
    assert (logs / "__cluster_metadata-0/00000000000000000088-0000000001.checkpoint").exists()


def test_topics_keep_their_own_index_interval(logs: Path) -> None:
    """Rebuilt indexes are as dense as the topic's settings in the metadata log want them."""
    topics = LogDirectoryRepair(OsDisk(), str(logs)).topics
    assert topics is not None
    assert topics.index_settings("many-segments").interval_bytes == 1024
    assert topics.index_settings("orders").interval_bytes == 4096


def test_a_full_disk_is_seen_before_anything_is_touched(logs: Path) -> None:
    """A rewritten segment needs its size once more."""

    class FullDisk(OsDisk):
        def free_bytes(self, path: str) -> int:
            return 1000

    damage(logs, "codec-zstd-0", "flip_compressed_payload")
    before = {path: path.read_bytes() for path in logs.rglob("*") if path.is_file()}
    session = LogDirectoryRepair(FullDisk(), str(logs))
    with pytest.raises(RepairError, match="1000 are free"):
        session.apply(read_partition(OsDisk(), str(logs / "codec-zstd-0")), Quarantine(FullDisk(), str(logs) + ".q", str(logs)))
    assert {path: path.read_bytes() for path in logs.rglob("*") if path.is_file()} == before
    assert not Path(str(logs) + ".q").exists()


def test_what_paths_stand_for(logs: Path) -> None:
    """A file stands for its partition, a directory for itself; those about to be deleted are left alone."""
    (logs / "old-0.00000000000000000000000000000000-delete").mkdir()
    disk = OsDisk()

    def names(*paths: str) -> list[list[str]]:
        targets, _ = resolve_paths(disk, [str(logs / path) for path in paths])
        return [[found.name for found in partitions] for _, partitions in repair_targets(disk, targets)]

    assert names("orders-0/00000000000000000000.index", "codec-zstd-0") == [["orders-0", "codec-zstd-0"]]
    assert names("") == [["__cluster_metadata-0", "codec-zstd-0", "orders-0", "transactions-0"]]
    assert names("meta.properties") == []
