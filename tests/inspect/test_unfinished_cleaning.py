"""Protects the records of an interrupted cleaning: a repair keeps the only copy of them, and brings no deleted key back.

A broker removes every *.cleaned file, and each *.swap above one, and it cuts a torn *.swap at its first bad batch.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.inspect.repairing.repair_plan import PartitionPlan, plan_partition
from kcli.log.disk.file_changes import Discard, apply_changes
from kcli.log.disk.os_disk import OsDisk
from tests.inspect.verified import batch, partition, verify


def name(base: int, suffix: str = "") -> str:
    return f"{base:020}.log{suffix}"


def repair(path: Path) -> PartitionPlan:
    plan = plan_partition(OsDisk(), str(path))
    apply_changes(OsDisk(), plan.changes, Discard(OsDisk()))
    assert {found.name for found in path.iterdir() if found.name.endswith((".swap", ".cleaned", ".deleted"))} == set()
    return plan


def logs(path: Path) -> dict[str, bytes]:
    return {found.name: found.read_bytes() for found in path.glob("*.log")}


def lost(plan: PartitionPlan) -> list[tuple[int, int | None]]:
    return [(hole.first_offset, hole.end_offset) for hole in plan.holes]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Three segments: offsets 0 to 9, 10 to 19 and 20 to 29."""
    return partition(tmp_path, "t-0", *([batch(at, 5), batch(at + 5, 5)] for at in (0, 10, 20)))


def cleaned(*batches: int) -> bytes:
    return b"".join(batch(at, 5).encode() for at in batches)


def without_indexes(path: Path, base: int) -> None:
    for suffix in ("index", "timeindex"):
        (path / f"{base:020}.{suffix}").unlink()


@pytest.mark.parametrize("state", [".swap", ".cleaned"])
def test_the_only_copy_of_records_becomes_a_segment(path: Path, state: str) -> None:
    """The segment that it was made from is gone: nothing is lost."""
    before = logs(path)
    (path / name(10)).rename(path / name(10, state))
    if state == ".swap":
        (path / f"{20:020}.index.cleaned").write_bytes(b"")
        (path / f"{10:020}.timeindex.cleaned").write_bytes(b"")
    without_indexes(path, 10)
    plan = repair(path)
    assert logs(path) == before and lost(plan) == []
    assert verify(path).is_sound


def test_a_torn_swap_without_the_old_segments_keeps_its_sound_batches(path: Path) -> None:
    """Kafka finishes the swap and cuts its tail; the offsets of the tail are named as lost."""
    (path / name(10)).rename(path / name(10, ".swap"))
    without_indexes(path, 10)
    data = cleaned(10, 15)
    (path / name(10, ".swap")).write_bytes(data[:-20])
    plan = repair(path)
    assert logs(path)[name(10)] == cleaned(10)
    assert lost(plan) == [(15, 20)] and plan.loses_records


def test_a_torn_swap_is_not_used_while_the_old_segments_exist(path: Path) -> None:
    """Nor is the sound one above it: it may lack tombstones of keys that the old segments still have."""
    before = logs(path)
    (path / name(0, ".swap")).write_bytes(cleaned(0)[:-20])
    (path / name(10, ".swap")).write_bytes(cleaned(15))
    plan = repair(path)
    assert logs(path) == before and lost(plan) == []


def test_a_sound_swap_below_a_torn_one_is_finished(path: Path) -> None:
    before = logs(path)
    (path / name(0, ".swap")).write_bytes(cleaned(5))
    (path / name(10, ".swap")).write_bytes(cleaned(10)[:-20])
    repair(path)
    assert logs(path) == {**before, name(0): cleaned(5)}


def test_a_removed_swap_brings_its_segments_back(path: Path) -> None:
    """They were about to be deleted; a later segment is not what the swap was made from."""
    before = logs(path)
    (path / name(10)).rename(path / name(10, ".deleted"))
    without_indexes(path, 10)
    (path / name(10, ".swap")).write_bytes(cleaned(10)[:-20])
    repair(path)
    assert logs(path) == before


def test_a_swap_of_zeros_names_what_is_lost(path: Path) -> None:
    (path / name(10)).unlink()
    without_indexes(path, 10)
    (path / name(10, ".swap")).write_bytes(bytes(500))
    plan = repair(path)
    assert lost(plan) == [(10, 20)] and plan.loses_records


def test_a_cleaned_file_is_removed_while_the_log_has_its_batches(path: Path) -> None:
    before = logs(path)
    (path / name(10, ".cleaned")).write_bytes(cleaned(15))
    (path / f"{10:020}.1.log.cleaned").write_bytes(cleaned(15))
    plan = repair(path)
    assert logs(path) == before and lost(plan) == []
