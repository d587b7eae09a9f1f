"""Protects what a crash leaves: whenever the disk dies while a plan is carried out, nothing is lost, and a second repair ends
where the first would have."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kcli.inspect.repairing.repair import LogDirectoryRepair
from kcli.log.disk.os_disk import OsDisk
from kcli.log.files.log_directory import read_partition
from kcli.log.files.quarantine import Quarantine
from tests.conftest import given_partition
from tests.damage import damaged_copy
from tests.log.failing_disk import FailingDisk

# Between them: a cut, a mended header, a truncation, several segments gone, a finished and a dropped swap, epochs anew.
CASES = [
    ("codec-zstd-0", "torn_tail_in_records", False),
    ("codec-zstd-0", "flip_compressed_payload", False),
    ("codec-zstd-0", "leader_epochs_garbage", False),
    ("compacted-0", "clean_torn_swap", False),
    pytest.param("compacted-0", "clean_swap", False, marks=pytest.mark.ci),
    pytest.param("compacted-0", "clean_all_deleted", True, marks=pytest.mark.ci),
    pytest.param("transactions-0", "flip_record", False, marks=pytest.mark.ci),
    pytest.param("transactions-0", "flip_magic", False, marks=pytest.mark.ci),
    pytest.param("transactions-0", "bad_batch_in_old_segment", True, marks=pytest.mark.ci),
]


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def repair(disk: OsDisk, partition: Path, *, like_kafka: bool) -> None:
    log_directory = str(partition.parent)
    session = LogDirectoryRepair(disk, log_directory, like_kafka=like_kafka)
    quarantine = Quarantine(disk, log_directory + ".quarantine", log_directory)
    session.apply(read_partition(disk, str(partition)), quarantine)
    session.apply_root(quarantine)


@pytest.mark.parametrize(("name", "damage", "like_kafka"), CASES)
def test_a_repair_that_died_is_finished_by_the_next(tmp_path: Path, name: str, damage: str, like_kafka: bool) -> None:
    """At every single change: the second repair leaves the very files that one undisturbed repair leaves."""
    damaged = damaged_copy(damage, given_partition(name), tmp_path / "damaged")
    die_at_every_change(tmp_path, damaged, like_kafka=like_kafka)


def die_at_every_change(tmp_path: Path, damaged: Path, *, like_kafka: bool = False) -> None:
    """Repair copies of a partition on disks that die at the first change, the second and so on, then again on a whole disk."""
    name = damaged.name
    (damaged.parent / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":7}')
    whole = tmp_path / "whole"
    shutil.copytree(damaged.parent, whole)
    repair(OsDisk(), whole / name, like_kafka=like_kafka)
    for changes in range(200):
        here = tmp_path / f"after-{changes}"
        shutil.copytree(damaged.parent, here)
        try:
            repair(FailingDisk(changes), here / name, like_kafka=like_kafka)
        except OSError:
            repair(OsDisk(), here / name, like_kafka=like_kafka)
        else:
            assert changes > 3
            return
        assert files(here / name) == files(whole / name), f"died at change {changes}"
        # Once anything was touched, the mark of the clean shutdown does not come back by itself.
        lost = not (whole / ".kafka_cleanshutdown").exists()
        assert not (lost and (here / ".kafka_cleanshutdown").exists())
        shutil.rmtree(here)
    pytest.fail("the repair never ended")


def exchange(directory: Path, *numbers: int) -> None:
    """Give the segments of these numbers each other's names, each the next one's."""
    logs = sorted(directory.glob("*.log"))
    contents = [logs[number].read_bytes() for number in numbers]
    for number, data in zip(numbers, [*contents[1:], contents[0]], strict=True):
        logs[number].write_bytes(data)


def exchange_and_flip(directory: Path) -> None:
    """Two segments have each other's names, and a batch of one is bad: it is rewritten under its own name."""
    log = sorted(directory.glob("*.log"))[0]
    data = bytearray(log.read_bytes())
    data[int.from_bytes(data[8:12], "big") // 2] ^= 4
    log.write_bytes(data)
    exchange(directory, 0, 2)


def move_along(directory: Path) -> None:
    """Each of the first segments has the name of the one behind it, and the first name is missing."""
    first, second, third = sorted(directory.glob("*.log"))[:3]
    third.with_suffix(".keep").write_bytes(third.read_bytes())
    second.replace(third)
    first.replace(second)
    third.with_suffix(".keep").replace(directory / "backup.log")


def lose_a_batch_that_a_damaged_copy_has(directory: Path) -> None:
    """The first segment has lost its first batch, and a copy has all of its batches and garbage at its end."""
    log = sorted(directory.glob("*.log"))[0]
    data = log.read_bytes()
    (directory / "copy.log").write_bytes(data + b"garbage" * 9)
    log.write_bytes(data[12 + int.from_bytes(data[8:12], "big") :])


MISPLACED = {
    "exchanged": lambda directory: exchange(directory, 0, 1),
    "not neighbours": lambda directory: exchange(directory, 0, 2),
    "three": lambda directory: exchange(directory, 0, 1, 2),
    "damaged": exchange_and_flip,
    "moved along": move_along,
    "damaged copy": lose_a_batch_that_a_damaged_copy_has,
}


@pytest.mark.parametrize("kind", MISPLACED)
def test_segments_get_their_names_back_though_the_repair_died(tmp_path: Path, kind: str) -> None:
    """Between two renames the records of a segment are in nothing but a *.log.tmp: the next repair goes on with that."""
    damaged = tmp_path / "damaged" / "transactions-0"
    shutil.copytree(given_partition(damaged.name), damaged)
    for path in (damaged, *damaged.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    MISPLACED[kind](damaged)
    die_at_every_change(tmp_path, damaged)


def test_no_byte_is_lost(tmp_path: Path) -> None:
    """Whatever leaves a segment lies in the quarantine: put back where the manifest says, the damaged file is there again."""
    damaged = damaged_copy("flip_record", given_partition("transactions-0"), tmp_path / "logs")
    before = files(damaged)
    repair(OsDisk(), damaged, like_kafka=False)
    after = files(damaged)
    (folder,) = (tmp_path / "logs.quarantine").iterdir()
    for name, data in before.items():
        if after.get(name) == data:
            continue
        parts = sorted(folder.glob(f"transactions-0/{name}.bytes-*"), key=lambda path: int(path.name.split("-")[-2]))
        if not parts:
            assert (folder / "transactions-0" / name).read_bytes() == data, name
            continue
        whole = after[name]
        for part in parts:
            start, end = map(int, part.name.split("-")[-2:])
            assert part.stat().st_size == end - start
            whole = whole[:start] + part.read_bytes() + whole[start:]
        assert whole == data, name
