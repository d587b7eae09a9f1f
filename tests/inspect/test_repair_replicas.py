"""Protects where a repaired replica ends: its broker fetches from the leader from there on, and never what is before it.

With one replica, or none else in sync, the log ends where it once did, so that no offset is given out twice.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.commands.app import main
from kcli.format.kafka_uuid import Uuid
from kcli.inspect.repairing.repair import NO_LONGER_CLEAN, LogDirectoryRepair, RootPlan
from kcli.inspect.repairing.repair_plan import PartitionPlan
from kcli.log.disk.os_disk import OsDisk
from kcli.log.files.log_directory import read_partition
from kcli.log.files.quarantine import Quarantine
from kcli.server.raft.metadata_batches import encode_data_batch, encode_metadata_record, new_record
from tests.inspect.verified import TOPIC_ID, batch, codes, partition, root_files, verify

END = 30
NODE_ID = 1  # that of root_files


def metadata_log(root: Path, replicas: list[int], isr: list[int], elr: list[int] | None = None, *, topic: str = "t") -> None:
    """Write one that knows the topic `t`, or another one, with one partition."""
    topic_id = Uuid.parse(TOPIC_ID)
    placement = {"replicas": replicas, "isr": isr, "leader": isr[0], "eligible_leader_replicas": elr or []}
    records = [
        new_record("TopicRecord", name=topic, topic_id=topic_id),
        new_record("PartitionRecord", partition_id=0, topic_id=topic_id, **placement),
    ]
    directory = root / "__cluster_metadata-0"
    directory.mkdir()
    data = encode_data_batch([encode_metadata_record(record) for record in records], 0, 1, 0)
    (directory / f"{0:020}.log").write_bytes(data)


def torn(root: Path, *, log_start: int = 0) -> Path:
    """A partition whose last batch, of offsets 20 to 29, is torn; the checkpoints say that the log reached 30."""
    path = partition(root, "t-0", [batch(0, 10), batch(10, 10), batch(20, 10)])
    log = path / f"{0:020}.log"
    log.write_bytes(log.read_bytes()[:-5])
    starts = {"t-0": log_start} if log_start else {}
    root_files(root, recovery_point={"t-0": END}, replication={"t-0": END}, log_start=starts)
    return path


def repair(root: Path) -> tuple[PartitionPlan, RootPlan]:
    disk = OsDisk()
    session = LogDirectoryRepair(disk, str(root))
    quarantine = Quarantine(disk, str(root) + ".quarantine", str(root))
    plan = session.apply(read_partition(disk, str(root / "t-0")), quarantine)
    return plan, session.apply_root(quarantine)


@pytest.mark.parametrize(("isr", "elr"), [([1, 2, 3], []), ([2], []), ([1], [3])])
def test_a_replica_ends_at_its_last_batch(tmp_path: Path, isr: list[int], elr: list[int]) -> None:
    """An empty segment at the old end would hide the lost offsets from its fetcher for ever."""
    path = torn(tmp_path)
    metadata_log(tmp_path, [1, 2, 3], isr, elr)
    plan, root = repair(tmp_path)
    assert (plan.log_end_offset, plan.loses_records) == (20, True)
    assert [(finding.code, finding.offset) for finding in plan.left] == [("offset-hole", 20)]  # until they are fetched
    assert [(hole.first_offset, hole.end_offset) for hole in plan.holes] == [(20, END)]
    assert plan.remarks[-1].message == (
        "the log ends at offset 20, and the broker fetches offsets 20 to 29 from the leader; the partition has 3 replicas"
    )
    assert sorted(file.name for file in path.glob("*.log")) == [f"{0:020}.log"]
    assert root.shutdown == NO_LONGER_CLEAN
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\nt 0 20\n"
    assert (tmp_path / "replication-offset-checkpoint").read_text() == "0\n1\nt 0 20\n"
    again, _ = repair(tmp_path)
    assert (again.changes, again.remarks) == ([], [])
    assert codes(verify(tmp_path)) & {"records-missing", "segment-gap", "offset-hole"} == {"offset-hole"}


@pytest.mark.parametrize(
    ("replicas", "isr", "said"),
    [
        ([1], [1], "; the partition has 1 replica"),
        ([1, 2, 3], [1], "; the partition has 3 replicas, and no other one is in sync"),
        (None, None, ""),
    ],
)
def test_without_another_replica_no_offset_is_given_out_twice(
    tmp_path: Path, replicas: list[int] | None, isr: list[int] | None, said: str
) -> None:
    """Nobody has the lost records: new ones get other offsets."""
    path = torn(tmp_path)
    if replicas is not None and isr is not None:
        metadata_log(tmp_path, replicas, isr)
    plan, _ = repair(tmp_path)
    assert plan.log_end_offset == END
    assert (path / f"{END:020}.log").read_bytes() == b""
    (change,) = [change for change in plan.changes if change.path.endswith(f"{END:020}.log")]
    assert change.why.startswith("an empty segment starts at 30, because the log once reached it (the high watermark is 30")
    assert change.why.endswith(said or "is 30)")


def test_an_empty_segment_behind_lost_records_goes(tmp_path: Path) -> None:
    """The active segment had just been rolled: its broker would fetch from there, and the lost offsets be missing."""
    path = torn(tmp_path)
    for suffix in (".log", ".index", ".timeindex"):
        (path / f"{END:020}{suffix}").touch()
    metadata_log(tmp_path, [1, 2], [1, 2])
    plan, _ = repair(tmp_path)
    assert plan.log_end_offset == 20
    assert [(hole.first_offset, hole.end_offset) for hole in plan.holes] == [(20, END)]
    assert sorted(file.name for file in path.glob("*.log")) == [f"{0:020}.log"]


def test_deleted_records_are_not_fetched(tmp_path: Path) -> None:
    """The log starts behind its last batch: Kafka would empty it there, and the leader has nothing before it either."""
    path = torn(tmp_path, log_start=25)
    metadata_log(tmp_path, [1, 2], [1, 2])
    plan, _ = repair(tmp_path)
    assert (plan.log_start_offset, plan.log_end_offset) == (25, 25)
    assert (path / f"{25:020}.log").read_bytes() == b""
    assert repair(tmp_path)[0].changes == []


@pytest.mark.parametrize("has_metadata", [True, False])
@pytest.mark.parametrize(("name", "replicas"), [("t-7", [1]), ("t-0", [2, 3])])
def test_a_partition_that_is_not_placed_here_is_found(
    tmp_path: Path, name: str, replicas: list[int], has_metadata: bool
) -> None:
    """A broker sets it aside as stray: LogManager.isStrayReplica asks for the partition and for the node's replica."""
    path = partition(tmp_path, name, [batch(0)])
    root_files(tmp_path)
    metadata_log(tmp_path, replicas, replicas[:1])
    if not has_metadata:
        (path / "partition.metadata").unlink()
    report = verify(tmp_path)
    assert "topic-unknown" in codes(report)
    message = next(finding.message for finding in report.findings if finding.code == "topic-unknown")
    assert (
        message
        == {
            "t-7": "the metadata log has no t-7, only 1 other partition of t",
            "t-0": "the metadata log does not place t-0 on node 1: its replicas are on 2, 3",
        }[name]
    )
    plan = LogDirectoryRepair(OsDisk(), str(tmp_path)).plan(read_partition(OsDisk(), str(path)))
    assert [finding.code for finding in plan.left] == ["topic-unknown"]


def test_a_placed_partition_is_sound(tmp_path: Path) -> None:
    """Kafka does not ask in which directory of the node it is."""
    partition(tmp_path, "t-0", [batch(0)])
    root_files(tmp_path, directory_id="AAAAAAAAAAAAAAAAAAAABA")
    metadata_log(tmp_path, [1, 2], [1])
    assert "topic-unknown" not in codes(verify(tmp_path))


@pytest.mark.parametrize("name", ["t-0", "A-0"])  # behind and before __cluster_metadata-0
def test_what_a_cut_metadata_log_no_longer_has_is_left(tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The repair reports the topics that `kcli verify` then finds unknown, and ends with its exit code."""
    partition(tmp_path / "logs", name, [batch(0)])
    root_files(tmp_path / "logs")
    metadata_log(tmp_path / "logs", [1], [1], topic=name[:-2])
    log = tmp_path / "logs" / "__cluster_metadata-0" / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    first = int.from_bytes(data[8:12], "big") + 12
    data = data + data  # a sound batch behind a copy with a flipped bit: read, and cut by the repair
    data[first - 3] ^= 0x10
    data[first : first + 8] = (2).to_bytes(8, "big")
    log.write_bytes(data)
    assert main(["verify", "--repair", str(tmp_path / "logs")]) == 1
    assert "are topic-unknown after the repair" in capfd.readouterr().out
    assert main(["verify", "--repair", "--apply", str(tmp_path / "logs")]) == 1
    printed = capfd.readouterr().out
    assert "left for you" in printed
    assert "topic-unknown" in printed
    assert main(["verify", str(tmp_path / "logs")]) == 1
    assert "topic-unknown" in capfd.readouterr().out
