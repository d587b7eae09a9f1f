"""Protects the repair from what nobody thought of: random damage to any files of a partition, in both ways.

Whatever it is, a plan is made and carried out without a traceback; our own repair leaves a log that needs no second one and
has no batch that a verifier calls bad.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from kcli.inspect.repairing.repair import LogDirectoryRepair
from kcli.inspect.verification.facts import PartitionOptions
from kcli.inspect.verification.finding_kinds import INFO
from kcli.inspect.verification.partition_verifier import verify_partition
from kcli.log.disk.os_disk import OsDisk
from kcli.log.files.log_directory import read_partition
from kcli.log.files.quarantine import Quarantine
from tests.conftest import every_log_set
from tests.damage.random_bytes import mutate, reseal

NAMES = ("codec-gzip-0", "compacted-0", "open-transaction-0", "orders-0", "magic1-gzip-0", "magic0-none-0")
# What is left: holes, and what is wrong in batches that open and whose CRCs are right.
LEFT = {
    "batch-attributes",
    "batch-max-timestamp",
    "coordinator-epoch-back",
    "leader-epoch-back",
    "offset-hole",
    "producer-epoch-back",
    "producer-fields",
    "producer-sequence-back",
    "producer-sequence-gap",
    "segment-gap",
}


def damage(directory: Path, rng: random.Random) -> None:
    """Change, remove or rename some of the files."""
    files = sorted(directory.iterdir())
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        file = rng.choice(files)
        if not file.exists():
            continue
        data = file.read_bytes()
        if rng.random() < 0.85:
            spoilt = mutate(data, rng)
            file.write_bytes(reseal(file.name, spoilt) if rng.random() < 0.3 else spoilt)
            continue
        file.unlink()
        if rng.random() < 0.5:
            file.with_name(file.name + rng.choice([".swap", ".deleted", ".cleaned", ".tmp"])).write_bytes(data)
        elif rng.random() < 0.5:
            file.with_name(f"{rng.randrange(500):020d}{file.suffix}").write_bytes(data)


def given(rng: random.Random) -> Path:
    found = [log_set.data / name for log_set in every_log_set() for name in NAMES if (log_set.data / name).is_dir()]
    return rng.choice(found)


SEEDS = [pytest.param(seed, marks=() if seed < 5 else pytest.mark.ci if seed < 25 else pytest.mark.slow) for seed in range(80)]
ROUNDS = 25


@pytest.mark.parametrize("seed", SEEDS)
def test_random_damage_is_repaired(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    disk = OsDisk()
    for i in range(ROUNDS):
        source = given(rng)
        logs = tmp_path / str(i)
        copy = logs / source.name
        copy.mkdir(parents=True)
        for path in source.iterdir():
            shutil.copyfile(path, copy / path.name)
        damage(copy, rng)
        like_kafka = rng.random() < 0.4
        session = LogDirectoryRepair(disk, str(logs), like_kafka=like_kafka)
        session.apply(read_partition(disk, str(copy)), Quarantine(disk, f"{logs}.quarantine", str(logs)))
        again = LogDirectoryRepair(disk, str(logs), like_kafka=like_kafka).plan(read_partition(disk, str(copy)))
        if not like_kafka:
            assert again.changes == [], (i, source.name)
            found = verify_partition(disk, read_partition(disk, str(copy)), PartitionOptions(is_clean=False)).findings
            assert {finding.code for finding in found if finding.severity != INFO} <= LEFT, (i, source.name)
