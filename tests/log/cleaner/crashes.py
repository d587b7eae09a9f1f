"""A partition on a simulated disk whose process dies or whose power fails during the work of a cleaner."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from kcli.inspect.verification.facts import PartitionOptions
from kcli.inspect.verification.finding_kinds import ERROR
from kcli.inspect.verification.partition_verifier import verify_partition
from kcli.log.files.log_directory import read_partition
from kcli.simulator.disk import SimulatedDisk
from kcli.simulator.faults import SimulatedCrash


def compacted_errors(disk: SimulatedDisk, directory: str) -> list[str]:
    """What a verifier finds wrong in a compacted partition."""
    found = verify_partition(disk, read_partition(disk, directory), PartitionOptions(is_compacted=True))
    return [str(finding) for finding in found.findings if finding.severity == ERROR]


def died(disk: SimulatedDisk, work: Callable[[], object], seed: int, *, loses_power: bool) -> bool:
    """Call `work`, in which the disk may die, and then end the process or the power -> whether the disk died before."""
    try:
        work()
        disk.die_never()
        dies = False
    except SimulatedCrash:
        dies = True
    if loses_power:
        disk.lose_power(Random(seed))
    else:
        disk.kill()
    return dies
