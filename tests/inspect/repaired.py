"""Repairs of the partition t-0 of a small log directory, and what is in it afterwards."""

from __future__ import annotations

from pathlib import Path

from kcli.inspect.repairing.repair import LogDirectoryRepair
from kcli.inspect.repairing.repair_plan import PartitionPlan
from kcli.log.disk.os_disk import OsDisk
from kcli.log.files.log_directory import read_partition
from kcli.log.files.quarantine import Quarantine
from kcli.log.reading.segment_reader import LogBatch, SegmentReader


def repair(root: Path, *, like_kafka: bool = False) -> tuple[PartitionPlan, str]:
    """Repair t-0 -> its plan, and how the directory counts afterwards."""
    disk = OsDisk()
    session = LogDirectoryRepair(disk, str(root), like_kafka=like_kafka)
    quarantine = Quarantine(disk, str(root) + ".quarantine", str(root))
    plan = session.apply(read_partition(disk, str(root / "t-0")), quarantine)
    return plan, session.apply_root(quarantine).shutdown


def segments(root: Path) -> dict[int, list[int]]:
    """The base offsets of the sound batches, by the offset in the segment's name."""
    found = {}
    for log in sorted((root / "t-0").glob("*.log")):
        with SegmentReader(OsDisk(), str(log)) as reader:
            batches = [one for one in reader.batches() if isinstance(one, LogBatch) and one.is_valid]
            found[int(log.stem)] = [one.header.base_offset for one in batches]
    return found


def holes(plan: PartitionPlan) -> list[tuple[int, int | None]]:
    return [(hole.first_offset, hole.end_offset) for hole in plan.holes]
