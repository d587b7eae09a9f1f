"""Kafka judges what the repair of fuzzed directories leaves: it loads every partition and serves what the plan said.

Each case of tests/fuzz is repaired; Kafka then loads copies of its partitions in one JVM, with the offsets that it reads
from the checkpoints next to them:

    load             Kafka must
    ---------------  ------------------------------------------------------------------------------------------------
    after a crash    load the log from the recovery point on, to the start and end offsets that the plan stated, and
                     leave every .log file as it is: nothing to cut
    after a clean    the same; only where the repaired directory counts as cleanly stopped
      stop
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.fuzz import outputs
from tests.fuzz.cases import seeded_case
from tests.fuzz.properties import PartitionOutcome
from tests.oracle.peer import LoadCase, Peer, digests, stated

pytestmark = [pytest.mark.oracle, pytest.mark.ci]

# Not those of tests/fuzz/test_fuzzed_directories.py, so that both together try more.
CI_SEEDS = range(100_000, 100_040)
SLOW_SEEDS = [range(first, first + 40) for first in range(100_040, 100_400, 40)]
BLOCKS = [
    pytest.param(CI_SEEDS, id="ci"),
    *(pytest.param(seeds, id=str(seeds[0]), marks=pytest.mark.slow) for seeds in SLOW_SEEDS),
]


class Repaired(NamedTuple):
    """A partition of a repaired directory, and what the repair said of it."""

    where: str
    path: Path
    outcome: PartitionOutcome
    clean: bool


def repaired_partitions(parent: Path, seed: int) -> list[Repaired]:
    """Damage and repair the case of a seed -> its partitions that are still there."""
    case = seeded_case(parent, seed)
    outcome = case.check()
    found = []
    for directory in case.scene.directories:
        is_clean = (directory.path / ".kafka_cleanshutdown").exists()
        for partition in directory.partitions:
            stated_outcome = outcome.partitions.get(str(partition.path))
            if stated_outcome is not None and partition.path.is_dir():
                where = f"seed {seed}: {directory.path.name}/{partition.name}: {' | '.join(case.damages)}"
                found.append(Repaired(where, partition.path, stated_outcome, is_clean))
    return found


@pytest.mark.parametrize("seeds", BLOCKS)
def test_kafka_serves_what_the_plan_said(seeds: range, kafka_peer: Peer, tmp_path: Path) -> None:
    """Every partition loads, to the offsets that were stated, without a change of a .log file."""
    partitions = [one for seed in seeds for one in repaired_partitions(tmp_path / str(seed), seed)]
    loads: list[tuple[Repaired, bool, Path]] = []
    for number, partition in enumerate(partitions):
        for clean in (True, False) if partition.clean else (False,):
            copy = tmp_path / "loads" / f"{number}-{clean}" / partition.path.name
            shutil.copytree(partition.path, copy)
            for checkpoint in partition.path.parent.glob("*-checkpoint"):
                shutil.copyfile(checkpoint, copy.parent / checkpoint.name)
            loads.append((partition, clean, copy))
    answers = kafka_peer.load_logs(LoadCase(copy, clean) for _, clean, copy in loads)
    wrong = []
    for (partition, clean, copy), answer in zip(loads, answers, strict=True):
        how = "after a clean stop" if clean else "after a crash"
        if "exception" in answer:
            wrong.append(f"{partition.where}: {how}: Kafka refuses: {answer['exception']}")
            continue
        offsets = (answer["log"]["start_offset"], answer["log"]["end_offset"])
        if offsets != (partition.outcome.log_start, partition.outcome.log_end):
            wrong.append(f"{partition.where}: {how}: Kafka has offsets {offsets}, the plan {partition.outcome}")
        before, after = (
            {name: one for name, one in files.items() if name.endswith(".log")}
            for files in (digests(partition.path), stated(answer))
        )
        if before != after:
            wrong.append(f"{partition.where}: {how}: Kafka changes {sorted(before.items() ^ after.items())}")
        served, kept = ({one.record for one in outputs.dumped_json(at)} for at in (copy, partition.path))
        if served != kept:
            wrong.append(f"{partition.where}: {how}: {len(served)} records are served, {len(kept)} were kept")
    assert not wrong, "\n".join(wrong)
