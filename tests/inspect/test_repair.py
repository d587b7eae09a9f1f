"""Protects the repair of a log directory as a whole: sound ones need none, and its own files follow what becomes of its logs.

What becomes of each kind of damage in a partition is judged in tests/oracle/test_repair.py.
"""

from __future__ import annotations

import errno
import random
import shutil
from pathlib import Path

import pytest

from kcli.inspect.repairing.planned_partition import RepairError
from kcli.inspect.repairing.repair import CLEAN, NO_LONGER_CLEAN, UNCLEAN, LogDirectoryRepair, RootPlan, repair_targets
from kcli.inspect.repairing.repair_plan import PartitionPlan
from kcli.log.disk.os_disk import OsDisk, OsFile
from kcli.log.files.log_directory import read_log_directory, read_partition, resolve_paths
from kcli.log.files.quarantine import Quarantine
from kcli.log.reading.segment_reader import LogBatch, SegmentReader
from tests.conftest import LogSet, every_log_set
from tests.damage import DAMAGES
from tests.damage.layout import cut, flip
from tests.inspect.verified import codes, verify

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
    assert session.plan_root() == RootPlan(str(log_set.data), [], [], UNCLEAN if not mark_of(log_set.data) else CLEAN, [])


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
    names = ("transactions-0", "codec-zstd-0", "orders-0", "__cluster_metadata-0")
    for name in names:
        shutil.copytree(data / name, copy / name)
    for path in data.iterdir():
        if path.is_file():
            shutil.copy(path, copy)
    for path in copy.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for path in copy.glob("*-offset-checkpoint"):
        lines = path.read_text().splitlines()[2:]
        kept = [line for line in lines if "-".join(line.split()[:2]) in names]
        path.write_text("\n".join(["0", str(len(kept)), *kept, ""]))
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
    """Rebuilt indexes and corrected headers lose nothing: the broker may start without recovery."""
    damage(logs, "transactions-0", "index_garbage_last")
    damage(logs, "transactions-0", "flip_magic")
    plans, root = repair(logs, "transactions-0", "orders-0")
    assert plans["transactions-0"].changes
    assert not plans["transactions-0"].loses_records
    assert root.shutdown == CLEAN
    assert (logs / ".kafka_cleanshutdown").read_bytes() == MARK


class LockedDisk(OsDisk):
    """A disk whose user may not read the segments of one partition."""

    def open_file(self, path: str) -> OsFile:
        if "/codec-zstd-0/" in path and path.endswith(".log"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return super().open_file(path)


@pytest.mark.parametrize("is_damaged", [False, True], ids=["all else is sound", "another partition is repaired"])
def test_a_partition_that_cannot_be_read_loses_nothing(logs: Path, is_damaged: bool) -> None:
    """It is as it was before, and so is what the directory says of its last stop."""
    if is_damaged:
        damage(logs, "transactions-0", "index_garbage_last")
    disk = LockedDisk()
    session = LogDirectoryRepair(disk, str(logs))
    quarantine = Quarantine(disk, str(logs) + ".quarantine", str(logs))
    session.apply(read_partition(disk, str(logs / "transactions-0")), quarantine)
    with pytest.raises(PermissionError):
        session.apply(read_partition(disk, str(logs / "codec-zstd-0")), quarantine)
    session.note_failure()
    assert session.apply_root(quarantine).shutdown == CLEAN
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


def test_offsets_that_were_given_out_are_not_given_out_again(logs: Path) -> None:
    """A torn tail: its offsets are named as lost, the log ends where the checkpoints say that it did, the mark goes."""
    before = (logs / "recovery-point-offset-checkpoint").read_bytes()
    end = int(offsets(logs / "recovery-point-offset-checkpoint")["codec-zstd 0"])
    damage(logs, "codec-zstd-0", "torn_tail_in_records")
    plans, root = repair(logs, "codec-zstd-0")
    plan = plans["codec-zstd-0"]
    assert plan.log_end_offset == end
    assert [hole.end_offset for hole in plan.holes] == [end]
    assert (logs / f"codec-zstd-0/{end:020d}.log").read_bytes() == b""
    assert (logs / "recovery-point-offset-checkpoint").read_bytes() == before
    assert root.shutdown == NO_LONGER_CLEAN


def test_a_deleted_segment_is_a_loss(logs: Path) -> None:
    """Nothing of it is left but what the checkpoints, the snapshot and the epochs know."""
    end = int(offsets(logs / "recovery-point-offset-checkpoint")["codec-zstd 0"])
    for path in (logs / "codec-zstd-0").glob("00000000000000000000.*"):
        path.unlink()
    plans, root = repair(logs, "codec-zstd-0")
    plan = plans["codec-zstd-0"]
    assert [(hole.first_offset, hole.end_offset) for hole in plan.holes] == [(0, end)]
    assert (plan.log_start_offset, plan.log_end_offset, plan.loses_records) == (end, end, True)
    assert root.shutdown == NO_LONGER_CLEAN
    again, _ = repair(logs, "codec-zstd-0")
    assert again["codec-zstd-0"].changes == []


@pytest.mark.parametrize("like_kafka", [False, True])
def test_a_checkpoint_that_nothing_confirms_is_put_right(logs: Path, like_kafka: bool) -> None:
    """After a clean stop one checkpoint ahead of the log is wrong; the change names the partition and what it means."""
    before = offsets(logs / "recovery-point-offset-checkpoint")
    end = before["codec-zstd 0"]
    for name in ("recovery-point-offset-checkpoint", "cleaner-offset-checkpoint"):
        path = logs / name
        path.write_text(f"0\n1\ncodec-zstd 0 {9999}\n")
    damage(logs, "codec-zstd-0", "index_garbage_last")
    plans, root = repair(logs, "codec-zstd-0", like_kafka=like_kafka)
    assert plans["codec-zstd-0"].log_end_offset == int(end)
    assert offsets(logs / "recovery-point-offset-checkpoint") == {"codec-zstd 0": end}
    assert offsets(logs / "cleaner-offset-checkpoint") == {}
    whys = {Path(change.path).name: change.why for change in root.changes}
    assert f"codec-zstd-0: 9999 is beyond the log end {end}" in whys["recovery-point-offset-checkpoint"]
    assert "the cleaner starts again from the beginning" in whys["cleaner-offset-checkpoint"]


@pytest.mark.parametrize("like_kafka", [False, True])
def test_a_high_watermark_that_nothing_confirms_commits_no_record(logs: Path, like_kafka: bool) -> None:
    """Lowered to the end it would make every record a committed one, which a later compaction trusts; Kafka lowers it so."""
    end = offsets(logs / "recovery-point-offset-checkpoint")["codec-zstd 0"]
    (logs / "replication-offset-checkpoint").write_text(f"0\n1\ncodec-zstd 0 {9999}\n")
    _, root = repair(logs, "codec-zstd-0", like_kafka=like_kafka)
    assert offsets(logs / "replication-offset-checkpoint") == {"codec-zstd 0": end if like_kafka else "0"}
    (why,) = [change.why for change in root.changes if change.path.endswith("replication-offset-checkpoint")]
    assert why is not None and f"codec-zstd-0: 9999 is beyond the log end {end}" in why


def test_like_kafka_names_what_kafka_drops(logs: Path) -> None:
    """All behind the first bad batch, which Kafka drops without a word."""
    end = int(offsets(logs / "recovery-point-offset-checkpoint")["codec-zstd 0"])
    damage(logs, "codec-zstd-0", "flip_compressed_payload")
    plans, _ = repair(logs, "codec-zstd-0", like_kafka=True)
    plan = plans["codec-zstd-0"]
    assert plan.log_end_offset < end
    assert [(hole.first_offset, hole.end_offset) for hole in plan.holes] == [(plan.log_end_offset, end)]


def test_one_partition_changes_nothing_of_the_others(logs: Path) -> None:
    """A checkpoint that cannot be read is everybody's: it goes only where the whole log directory is repaired."""
    (logs / "replication-offset-checkpoint").write_bytes(b"0\nmany\n")
    damage(logs, "codec-zstd-0", "index_garbage_last")
    disk = OsDisk()
    session = LogDirectoryRepair(disk, str(logs), is_whole=False)
    session.apply(read_partition(disk, str(logs / "codec-zstd-0")), Quarantine(disk, str(logs) + ".q", str(logs)))
    assert session.plan_root().changes == []
    assert (logs / "replication-offset-checkpoint").exists()


def test_what_a_broker_does_not_start_with_is_left_and_told(logs: Path) -> None:
    """Nothing that a repair may decide: the same checks as those of `kcli verify` say so."""
    (logs / "lost+found").mkdir()
    (logs / "meta.properties").unlink()
    _, root = repair(logs, "orders-0")
    assert {finding.code for finding in root.left} >= {"directory-name", "meta-properties-missing"}


def test_a_file_of_an_earlier_version_stays(logs: Path) -> None:
    """Nothing reads it, so that nothing is wrong with it; the next start of a broker removes it."""
    (logs / "kcli-uncleanable-partitions").write_bytes(b"torn")
    assert repair(logs, "orders-0")[1].changes == []
    assert (logs / "kcli-uncleanable-partitions").read_bytes() == b"torn"


def test_a_checkpoint_that_cannot_be_read_is_taken_away(logs: Path) -> None:
    """A broker would take the directory offline over it; without it it begins anew."""
    (logs / "replication-offset-checkpoint").write_bytes(b"0\nmany\n")
    (logs / "log-start-offset-checkpoint").write_bytes(b"7\n0\n")
    _, root = repair(logs, "orders-0")
    assert [Path(change.path).name for change in root.changes] == [
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
    assert "it is left" in plans["orders-0"].remarks[0].message


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
    assert any("with a hole" in remark.message for remark in plan.remarks)
    assert (logs / "__cluster_metadata-0/00000000000000000088-0000000001.checkpoint").exists()


def test_topics_keep_their_own_index_interval(logs: Path) -> None:
    """Rebuilt indexes are as dense as the topic's settings in the metadata log want them."""
    topics = LogDirectoryRepair(OsDisk(), str(logs)).root.topics
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


def copy_of(logs: Path, name: str, base_offset: int, to_offset: int) -> Path:
    """A copy of a segment's .log under another base offset."""
    target = logs / name / f"{to_offset:020d}.log"
    shutil.copyfile(logs / name / f"{base_offset:020d}.log", target)
    return target


@pytest.mark.parametrize("to_offset", [500, 200])
def test_a_stray_copy_of_a_segment_moves_no_end(logs: Path, to_offset: int) -> None:
    """Its batches are in the segment that it was copied from: it goes to the quarantine, and nothing is lost.

    Behind the log's end its name would be the new end; in the middle of the log it would hide half of the segment.
    """
    end = int(offsets(logs / "recovery-point-offset-checkpoint")["codec-zstd 0"])
    before = (logs / "codec-zstd-0/00000000000000000000.log").read_bytes()
    copy = copy_of(logs, "codec-zstd-0", 0, to_offset)
    plans, root = repair(logs, "codec-zstd-0")
    plan = plans["codec-zstd-0"]
    assert (plan.log_start_offset, plan.log_end_offset, plan.holes, plan.left) == (0, end, [], [])
    assert not copy.exists()
    assert (logs.parent / f"logs.quarantine/1/codec-zstd-0/{copy.name}").read_bytes() == before
    assert (logs / "codec-zstd-0/00000000000000000000.log").read_bytes() == before
    assert root.shutdown == CLEAN


@pytest.mark.parametrize("name", ["00000000000000000300.log", "backup.log", "300.log"])
def test_a_renamed_segment_gets_its_name_back(logs: Path, name: str) -> None:
    """No other segment has its batches: nothing is lost, and nothing moves but the name."""
    directory = logs / "codec-zstd-0"
    end = int(offsets(logs / "recovery-point-offset-checkpoint")["codec-zstd 0"])
    before = (directory / "00000000000000000000.log").read_bytes()
    (directory / "00000000000000000000.log").rename(directory / name)
    plans, root = repair(logs, "codec-zstd-0")
    plan = plans["codec-zstd-0"]
    assert (plan.log_start_offset, plan.log_end_offset, plan.holes) == (0, end, [])
    assert (directory / "00000000000000000000.log").read_bytes() == before
    assert root.shutdown == CLEAN


def test_exchanged_segments_get_their_names_back(logs: Path) -> None:
    """Each is the only one with its batches."""
    directory = logs / "transactions-0"
    first, second = sorted(directory.glob("*.log"))[:2]
    before = (first.read_bytes(), second.read_bytes())
    first.write_bytes(before[1])
    second.write_bytes(before[0])
    plans, _ = repair(logs, "transactions-0")
    assert (first.read_bytes(), second.read_bytes()) == before
    assert plans["transactions-0"].holes == []


def test_a_copy_from_before_the_damage_takes_the_place_of_its_original(logs: Path) -> None:
    """It has every batch of the damaged segment, and the one that this has lost."""
    directory = logs / "codec-zstd-0"
    before = (directory / "00000000000000000000.log").read_bytes()
    copy_of(logs, "codec-zstd-0", 0, 500)
    damage(logs, "codec-zstd-0", "flip_compressed_payload")
    plans, _ = repair(logs, "codec-zstd-0")
    assert (directory / "00000000000000000000.log").read_bytes() == before
    assert plans["codec-zstd-0"].holes == []


@pytest.mark.parametrize("high_watermark", [None, 99_999])
def test_a_log_start_offset_that_cannot_be_is_dropped(logs: Path, high_watermark: int | None) -> None:
    """Kafka empties a log that ends before its start. One wrong number in a text file is no reason to lose the records.

    Nor are two: a high watermark that cannot be either does not make the start an end that the log once reached.
    """
    (logs / "log-start-offset-checkpoint").write_text("0\n1\ncodec-zstd 0 9999\n")
    if high_watermark is not None:
        (logs / "replication-offset-checkpoint").write_text(f"0\n1\ncodec-zstd 0 {high_watermark}\n")
    before = (logs / "codec-zstd-0/00000000000000000000.log").read_bytes()
    plans, root = repair(logs, "codec-zstd-0")
    assert plans["codec-zstd-0"].holes == []
    assert (logs / "codec-zstd-0/00000000000000000000.log").read_bytes() == before
    assert offsets(logs / "log-start-offset-checkpoint") == {}
    assert root.shutdown == CLEAN


def test_the_segment_with_an_index_is_the_original(logs: Path) -> None:
    """A segment that the cleaner thinned out begins later than its name says, so that the name of a copy may suit it, too."""
    data = next(found.data for found in every_log_set() if (found.data / "compacted-0").is_dir())
    directory = logs / "compacted-0"
    shutil.copytree(data / "compacted-0", directory)
    for path in (directory, *directory.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    original = sorted(directory.glob("*.log"))[-2]
    with SegmentReader(OsDisk(), str(original)) as reader:
        first = next(one.header.base_offset for one in reader.batches() if isinstance(one, LogBatch))
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    if first <= int(original.stem):
        pytest.skip("the given segment begins where its name says")
    shutil.copyfile(original, directory / f"{first:020d}.log")
    plans, _ = repair(logs, "compacted-0")
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    assert plans["compacted-0"].holes == []


def test_an_index_without_its_log_is_the_trace_of_a_segment(logs: Path) -> None:
    """Of a compacted topic as well: the cleaner and retention remove the index with the log."""
    directory = logs / "transactions-0"
    second, third = sorted(directory.glob("*.log"))[1:3]
    second.unlink()
    plans, root = repair(logs, "transactions-0")
    holes = [(hole.first_offset, hole.end_offset) for hole in plans["transactions-0"].holes]
    assert holes == [(int(second.stem), int(third.stem))]
    assert root.shutdown == NO_LONGER_CLEAN


def test_the_leader_epochs_know_the_log_start(logs: Path) -> None:
    """A wrong log start offset: what was deleted does not come back, where the first leader epoch says how far that was."""
    (logs / "log-start-offset-checkpoint").write_text("0\n1\ncodec-zstd 0 9999\n")
    (logs / "codec-zstd-0/leader-epoch-checkpoint").write_text("0\n1\n0 150\n")
    plans, _ = repair(logs, "codec-zstd-0")
    assert plans["codec-zstd-0"].log_start_offset == 150
    assert offsets(logs / "log-start-offset-checkpoint") == {"codec-zstd 0": "150"}


@pytest.fixture
def segments(tmp_path: Path) -> Path:
    """many-segments-0 after a clean stop at offset 12050, in a log directory without the checkpoints of the end."""
    data = next((found.data for found in every_log_set() if (found.data / "many-segments-0").is_dir()), None)
    if data is None:
        pytest.skip("neither ../shared nor fixtures/ holds a partition of many segments")
    logs = tmp_path / "logs"
    logs.mkdir()
    directory = logs / "many-segments-0"
    shutil.copytree(data / "many-segments-0", directory)
    for path in (directory, *directory.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    (logs / ".kafka_cleanshutdown").write_bytes(MARK)
    shutil.copyfile(data / "meta.properties", logs / "meta.properties")
    return directory


def cut_at_batch(log: Path, end_offset: int) -> None:
    """Cut a log where the batch that has `end_offset` begins, as if it and the rest had never been written."""
    with SegmentReader(OsDisk(), str(log)) as reader:
        batches = [one for one in reader.batches() if isinstance(one, LogBatch)]
        position = next(one.position for one in batches if one.header.last_offset >= end_offset)
    cut(log, position)


@pytest.mark.parametrize("left", [(), ("12050.snapshot",), ("12000.snapshot",), ("12000.snapshot", "12050.snapshot")])
def test_the_indexes_know_the_end_of_a_cut_log(segments: Path, left: tuple[str, ...]) -> None:
    """The last batch is gone without a trace in the .log: both indexes say that it was there, whatever snapshots there are."""
    log = segments / f"{7126:020d}.log"
    cut_at_batch(log, 12049)
    for path in segments.glob("*.snapshot"):
        if path.name.lstrip("0") not in left:
            path.unlink()
    verified = verify(segments.parent)
    (found,) = [one for one in verified.findings if one.code == "records-missing"]
    assert "it once reached 12050 (" in found.message and "7126.index is 12050" in found.message, found.message
    plans, root = repair(segments.parent, segments.name)
    plan = plans[segments.name]
    assert (plan.log_end_offset, [hole.end_offset for hole in plan.holes]) == (12050, [12050])
    assert root.shutdown == NO_LONGER_CLEAN
    assert repair(segments.parent, segments.name)[0][segments.name].changes == []


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_one_index_alone_is_no_end(segments: Path, suffix: str) -> None:
    """It may be corrupt: a flipped bit in its last entry leaves it in order."""
    for path in segments.glob("*.snapshot"):
        path.unlink()
    index = segments / f"{7126:020d}{suffix}"
    data = bytearray(index.read_bytes())
    at = len(data) - (8 if suffix == ".index" else 4)
    data[at + 1] |= 1
    index.write_bytes(data)
    plans, _ = repair(segments.parent, segments.name)
    assert (plans[segments.name].log_end_offset, plans[segments.name].holes) == (12050, [])


@pytest.mark.parametrize("suffixes", [(".log", ".index", ".timeindex"), (".index", ".timeindex")])
@pytest.mark.parametrize(("source", "target"), [(0, 7126), (7126, 9000), (7126, 20_000), (0, 12_050)])
def test_indexes_of_another_segment_are_no_end(segments: Path, suffixes: tuple[str, ...], source: int, target: int) -> None:
    """Their offsets count from the name: in a copy under a later name they would be beyond everything that was written."""
    if target == 7126 and ".log" in suffixes:
        pytest.skip("the copy replaces the segment")
    for path in segments.glob("*.snapshot"):
        path.unlink()
    for suffix in suffixes:
        shutil.copyfile(segments / f"{source:020d}{suffix}", segments / f"{target:020d}{suffix}")
    assert "records-missing" not in {one.code for one in verify(segments).findings}
    plans, _ = repair(segments.parent, segments.name)
    assert (plans[segments.name].log_end_offset, plans[segments.name].holes) == (12050, [])


@pytest.mark.parametrize("suffixes", [(".log",), (".log", ".index", ".timeindex")])
def test_a_renamed_segment_with_its_indexes_moves_no_end(segments: Path, suffixes: tuple[str, ...]) -> None:
    """Its indexes are renamed back with it, or are where they belong."""
    for suffix in suffixes:
        (segments / f"{7126:020d}{suffix}").rename(segments / f"{9000:020d}{suffix}")
    plans, _ = repair(segments.parent, segments.name)
    assert (plans[segments.name].log_end_offset, plans[segments.name].holes) == (12050, [])


def test_a_removed_snapshot_has_the_reason_of_the_final_log(segments: Path) -> None:
    """Not of the end that the log had for a moment while its first segments were recovered."""
    shutil.copyfile(segments / f"{12_000:020d}.snapshot", segments / f"{9_000:020d}.snapshot")
    (segments / f"{7126:020d}.index").unlink()
    plans, _ = repair(segments.parent, segments.name)
    whys = {Path(change.path).name.lstrip("0"): change.why for change in plans[segments.name].changes}
    assert whys["9000.snapshot"] == "no segment starts at its offset"


def test_a_later_snapshot_proves_the_end(segments: Path) -> None:
    """Two snapshots beyond the batches: the later one has a batch behind the earlier one, so it is not a copy of it."""
    cut_at_batch(segments / f"{7126:020d}.log", 11_990)
    for suffix in (".index", ".timeindex"):
        (segments / f"{7126:020d}{suffix}").unlink()
    assert repair(segments.parent, segments.name)[0][segments.name].log_end_offset == 12_050


def test_a_copied_snapshot_proves_no_end(segments: Path) -> None:
    """The copy of a snapshot under a later name has no batch behind the offset of the original."""
    cut_at_batch(segments / f"{7126:020d}.log", 11_990)
    for suffix in (".index", ".timeindex"):
        (segments / f"{7126:020d}{suffix}").unlink()
    (segments / f"{12_050:020d}.snapshot").unlink()
    shutil.copyfile(segments / f"{12_000:020d}.snapshot", segments / f"{50_000:020d}.snapshot")
    (segments / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    assert repair(segments.parent, segments.name)[0][segments.name].log_end_offset == 12_000


@pytest.mark.parametrize("gone", [[7126], [0, 7126]])
def test_a_deleted_last_segment_is_known_by_its_indexes(segments: Path, gone: list[int]) -> None:
    """Only the .log is gone, after a clean stop: its records are named as lost, and their offsets are not given out again."""
    for base_offset in gone:
        (segments / f"{base_offset:020d}.log").unlink()
    for path in segments.glob("*.snapshot"):
        path.unlink()
    codes = {one.code for one in verify(segments.parent).findings}
    assert "records-missing" in codes and "clean-shutdown-untrue" in codes
    plans, root = repair(segments.parent, segments.name)
    plan = plans[segments.name]
    assert plan.log_end_offset == 12_050
    assert [(hole.first_offset, hole.end_offset) for hole in plan.holes] == [(gone[0], 12_050)]
    assert root.shutdown == NO_LONGER_CLEAN


def test_the_last_leader_epoch_is_the_end_where_a_segment_is_gone(segments: Path) -> None:
    """After a clean stop: the index that continues the batches shows that the end is not what it was at the stop."""
    for path in (*segments.glob("*.snapshot"), segments / f"{7126:020d}.log", segments / f"{7126:020d}.timeindex"):
        path.unlink()
    plans, root = repair(segments.parent, segments.name)
    assert plans[segments.name].log_end_offset == 12_000
    assert root.shutdown == NO_LONGER_CLEAN


@pytest.mark.parametrize("kind", [None, "index_garbage_last"])
def test_leader_epochs_that_deleted_records_have_moved_are_kept(segments: Path, kind: str | None) -> None:
    """The log start offset is lost: verify says that deleted records can be read again, and no repair rewrites the epochs."""
    for suffix in (".log", ".index", ".timeindex"):
        (segments / f"{0:020d}{suffix}").unlink()
    text = "0\n2\n0 9000\n2 12000\n"
    (segments / "leader-epoch-checkpoint").write_text(text)
    if kind is not None:
        damage(segments.parent, segments.name, kind)
    found = verify(segments.parent).findings
    (message,) = [one.message for one in found if one.code == "log-start-behind"]
    assert "starts at offset 9000" in message and "offset 7126, and the records below 9000" in message
    plans, root = repair(segments.parent, segments.name)
    assert (segments / "leader-epoch-checkpoint").read_text() == text
    assert (plans[segments.name].changes == []) == (kind is None)
    assert root.shutdown == CLEAN


def test_a_partition_by_itself_is_judged_by_the_metadata_log_beside_it(logs: Path) -> None:
    """verify found a gap that a cleaner may have left, where the repair had named a hole: the topic is not compacted."""
    log = logs / "orders-0" / f"{0:020}.log"
    flip(log, 2000, 4)
    plans, _ = repair(logs, "orders-0")
    assert [finding.code for finding in plans["orders-0"].left] == ["offset-hole"]
    assert codes(verify(logs / "orders-0")) == {"offset-hole"}
