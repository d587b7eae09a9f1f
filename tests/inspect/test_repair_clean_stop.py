"""Protects what a repair knows of a clean stop once .kafka_cleanshutdown is put aside: a wrong checkpoint stays one.

After a clean stop one checkpoint that is ahead of its log is wrong; after a crash it is the trace of lost records.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kcli.format.compression import GZIP, NONE
from kcli.inspect.repairing.repair import UNCLEAN, LogDirectoryRepair, RootPlan
from kcli.inspect.verification.directories import read_root
from kcli.inspect.verification.facts import MOST_GAPS
from kcli.inspect.verification.findings import FindingList
from kcli.log.disk.os_disk import OsDisk
from kcli.log.files.log_directory import read_log_directory, read_partition
from kcli.log.files.quarantine import LostOffsets, Quarantine, checkpoint_digests
from tests.damage.layout import flip
from tests.inspect.verified import TIME, TOPIC_ID, batch, codes, partition, root_files, verify
from tests.log.failing_disk import FailingDisk
from tests.message_sets import NewLegacyRecord, encode_message_set

AHEAD = 99  # of the log of u-0, which ends at 20; nothing else says so
CHECKPOINT = "recovery-point-offset-checkpoint"
CLEAN = ".kafka_cleanshutdown"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A directory that was stopped cleanly: a rotten batch in t-0, and a checkpoint that is ahead of u-0."""
    root = tmp_path / "logs"
    log = partition(root, "t-0", [batch(0, 10), batch(10, 10), batch(20, 10)]) / f"{0:020}.log"
    flip(log, log.stat().st_size // 2)
    partition(root, "u-0", [batch(0, 10), batch(10, 10)])
    root_files(root, recovery_point={"t-0": 30, "u-0": AHEAD}, replication={"t-0": 30, "u-0": 20})
    return root


def repair(logs: Path, *names: str, disk: OsDisk | None = None, quarantine: str | None = None) -> RootPlan:
    """Repair partitions of the directory, or the whole of it."""
    disk = disk or OsDisk()
    folder = quarantine or f"{logs}.quarantine"
    root = read_root(disk, str(logs), FindingList(), quarantine=folder)
    session = LogDirectoryRepair(disk, str(logs), is_whole=not names, root=root)
    kept = Quarantine(disk, folder, str(logs))
    directory = read_log_directory(disk, str(logs))
    for name in names or [found.name for found in directory.partitions]:
        session.apply(read_partition(disk, str(logs / name)), kept)
    return session.apply_root(kept)


def files(logs: Path) -> dict[str, bytes]:
    return {str(path.relative_to(logs)): path.read_bytes() for path in logs.rglob("*") if path.is_file()}


@pytest.mark.parametrize("folder", ["logs.quarantine", "elsewhere"])
def test_a_repair_of_one_partition_first_changes_nothing_of_the_next(logs: Path, tmp_path: Path, folder: str) -> None:
    """The whole directory at once, or one partition and then the rest: the same files, and no segment at offset 99."""
    whole = tmp_path / "whole" / "logs"
    shutil.copytree(logs, whole)
    repair(whole)
    assert f"u-0/{AHEAD:020}.log" not in files(whole)
    assert "u 0 20" in (whole / CHECKPOINT).read_text()
    quarantine = str(tmp_path / folder)
    repair(logs, "t-0", quarantine=quarantine)
    assert not (logs / ".kafka_cleanshutdown").exists()
    assert repair(logs, quarantine=quarantine).shutdown == UNCLEAN
    assert files(logs) == files(whole)
    assert repair(logs, quarantine=quarantine).changes == []


def test_verify_judges_as_the_repair_does(logs: Path) -> None:
    """The checkpoint is what is wrong, before and after the repair of the other partition."""
    assert "records-missing" not in codes(verify(logs))
    repair(logs, "t-0")
    assert "records-missing" not in codes(verify(logs))
    assert "recovery-point-beyond-end" in codes(verify(logs))


def test_a_repair_that_died_does_not_make_the_checkpoint_right(logs: Path, tmp_path: Path) -> None:
    """At every change: it has put the mark aside, and the next one ends as it would have."""
    whole = tmp_path / "whole" / "logs"
    shutil.copytree(logs, whole)
    repair(whole)
    for changes in range(100):
        here = tmp_path / f"after-{changes}" / "logs"
        shutil.copytree(logs, here)
        try:
            repair(here, disk=FailingDisk(changes))
        except OSError:
            repair(here)
        else:
            assert changes > 10
            return
        assert files(here) == files(whole), f"died at change {changes}"
    pytest.fail("the repair never ended")


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_repair_that_died_does_not_forget_where_the_log_ended(tmp_path: Path, *, is_clean: bool) -> None:
    """The header of the torn batch shows it until the batch is cut: a second run ends the log there as well."""
    logs = tmp_path / "logs"
    log = partition(logs, "t-0", [batch(0, 10)], [batch(10, 10), batch(20, 10)]) / f"{10:020}.log"
    log.write_bytes(log.read_bytes()[:-30])
    root_files(logs, clean=is_clean, recovery_point={"t-0": 30 if is_clean else 10})
    whole = tmp_path / "whole" / "logs"
    shutil.copytree(logs, whole)
    repair(whole)
    assert f"t-0/{30:020}.log" in files(whole)
    for changes in range(100):
        here = tmp_path / f"after-{changes}" / "logs"
        shutil.copytree(logs, here)
        try:
            repair(here, disk=FailingDisk(changes))
        except OSError:
            repair(here)
        else:
            assert changes > 5
            return
        assert files(here).keys() - {CLEAN} == files(whole).keys() - {CLEAN}, f"died at change {changes}"
        assert "segment-gap" in codes(verify(here))
    pytest.fail("the repair never ended")


def test_the_end_of_an_interrupted_repair_counts_until_a_broker_has_run(logs: Path) -> None:
    """Its manifest is evidence as long as the checkpoints are those that it names."""
    kept = Quarantine(OsDisk(), f"{logs}.quarantine", str(logs))
    kept.note_checkpoints(checkpoint_digests([OsDisk()], str(logs)))
    kept.announce([], LostOffsets("u-0", TOPIC_ID, ((20, 25),), 25))
    assert "records-missing" in codes(verify(logs / "u-0", logs))
    root_files(logs, recovery_point={"t-0": 30, "u-0": 19}, replication={"t-0": 30, "u-0": 20})
    assert "records-missing" not in codes(verify(logs))


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_offsets_of_old_formats_stay_known_as_lost(tmp_path: Path, magic: int, codec: int) -> None:
    """Gaps are usual in formats 0 and 1; one that a repair has made is reported by its manifest."""
    root = tmp_path / "logs"
    records = [NewLegacyRecord(offset, TIME, b"k", b"v") for offset in range(6)]
    sets = [bytearray(encode_message_set(records[at : at + 2], magic=magic, codec=codec)) for at in (0, 2, 4)]
    sets[1][-1] ^= 1
    partition(root, "t-0", [bytes(one) for one in sets])
    root_files(root)
    repair(root)
    report = verify(root)
    assert [finding.message for finding in report.findings if finding.code == "offset-hole"] == [
        f"missing since a repair: {'offsets 2 to 3' if codec else 'offset 3'}"
    ]


def test_a_lost_offset_is_reported_behind_a_thousand_gaps(tmp_path: Path) -> None:
    """A compacted log has any number of gaps; those with offsets that a repair lost are all kept."""
    root = tmp_path / "logs"
    partition(root, "t-0", [batch(offset) for offset in range(0, 2 * MOST_GAPS + 20, 2)])
    root_files(root, cleaner={"t-0": 2 * MOST_GAPS + 20})
    kept = Quarantine(OsDisk(), f"{root}.quarantine", str(root))
    kept.announce([], LostOffsets("t-0", TOPIC_ID, ((2 * MOST_GAPS + 11, 2 * MOST_GAPS + 12),)))
    (finding,) = [finding for finding in verify(root).findings if finding.code == "offset-hole"]
    assert finding.offset == 2 * MOST_GAPS + 11


def test_once_a_broker_has_run_the_stop_counts_no_longer(logs: Path) -> None:
    """It has written a checkpoint and crashed: one that is ahead is the trace of lost records then."""
    repair(logs, "t-0")
    (logs / "replication-offset-checkpoint").write_text("0\n2\nt 0 31\nu 0 20\n")
    repair(logs)
    assert files(logs)[f"u-0/{AHEAD:020}.log"] == b""


def test_a_mark_that_came_back_is_all_that_counts(logs: Path) -> None:
    """Nothing was lost, the mark came back, and a broker took it and crashed: the quarantine vouches for nothing."""
    shutil.rmtree(logs / "t-0")
    root_files(logs, recovery_point={"u-0": 20}, replication={"u-0": 20})
    (logs / "u-0" / f"{0:020}.index").write_bytes(b"garbage!")
    repair(logs)
    mark = logs / ".kafka_cleanshutdown"
    assert mark.exists()
    mark.unlink()
    assert not LogDirectoryRepair(OsDisk(), str(logs)).root.was_stopped_cleanly
