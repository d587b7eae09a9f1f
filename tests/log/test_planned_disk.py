"""Protects the plan: a planned disk shows what was done to it, tells the changes that lead there, and touches nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kcli.log.disk.file_changes import Discard, apply_changes
from kcli.log.disk.os_disk import OsDisk
from kcli.log.disk.planned_disk import REMOVE, RENAME, REWRITE, TRUNCATE, WRITE, PlannedDisk


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "0.log").write_bytes(bytes(range(100)))
    (tmp_path / "0.index").write_bytes(b"entries!" + bytes(80))
    (tmp_path / "note").write_bytes(b"text")
    (tmp_path / "sub").mkdir()
    return tmp_path


def kinds(planned: PlannedDisk) -> list[tuple[str, str]]:
    return [(change.kind, Path(change.path).name) for change in planned.changes()]


def test_nothing_done_is_no_change(directory: Path) -> None:
    """Reading, and writing what is there already, leaves no trace; nor do steps that undo each other."""
    planned = PlannedDisk(OsDisk())
    note = str(directory / "note")
    assert planned.read_file(note, 10) == b"text"
    planned.write_file(note, b"text")
    planned.rename(note, note + ".swap")
    planned.rename(note + ".swap", note)
    planned.write_file(str(directory / "new"), b"x")
    planned.remove(str(directory / "new"))
    assert planned.changes() == []


def test_each_kind_of_change_is_told_for_what_it_is(directory: Path) -> None:
    """A cut file is not a written one, a trimmed tail of zeros not a new file."""
    planned = PlannedDisk(OsDisk())
    planned.truncate(str(directory / "0.log"), 60)
    planned.write_file(str(directory / "0.index"), b"entries!")
    assert kinds(planned) == [(TRUNCATE, "0.index"), (TRUNCATE, "0.log")]
    assert [change.dropped for change in planned.changes()] == [((8, 88),), ((60, 100),)]
    planned.cut_out(str(directory / "0.log"), [(10, 20), (30, 31)])
    planned.write_file(str(directory / "0.index"), b"entriesX")
    rewrite, write = sorted(planned.changes())
    assert (rewrite.kind, rewrite.dropped, rewrite.size_bytes) == (REWRITE, ((10, 20), (30, 31), (60, 100)), 49)
    assert (write.kind, write.replaces) == (WRITE, True)


def test_a_renamed_file_makes_room_and_may_be_cut(directory: Path) -> None:
    """What lies under the new name goes first; the rest of the file follows its new name."""
    planned = PlannedDisk(OsDisk())
    planned.rename(str(directory / "0.log"), str(directory / "note"))
    planned.truncate(str(directory / "note"), 5)
    assert sorted(kinds(planned)) == [(REMOVE, "note"), (RENAME, "0.log"), (TRUNCATE, "note")]
    assert planned.list_directory(str(directory)) == ["0.index", "note", "sub"]
    assert not planned.exists(str(directory / "0.log"))


def test_reasons_stand_with_their_changes(directory: Path) -> None:
    """The last reason that was given for a file is the one that people read."""
    planned = PlannedDisk(OsDisk())
    log = str(directory / "0.log")
    planned.explain(log, "first")
    planned.explain(log, "last")
    planned.remove(log)
    assert [change.why for change in planned.changes()] == ["last"]
    with pytest.raises(FileNotFoundError):
        planned.open_file(log)


def do_something(planned: PlannedDisk, directory: Path, rng: random.Random) -> None:
    """One random step on one of the files that are there."""
    names = [name for name in planned.list_directory(str(directory)) if planned.is_regular(str(directory / name))]
    path = str(directory / rng.choice(names))
    other = str(directory / f"{rng.randrange(4)}{rng.choice(['.log', '.index', ''])}")
    size = planned.size(path)
    start = rng.randint(0, size)
    step = rng.randrange(6)
    if step == 0:
        planned.truncate(path, rng.randint(0, size + 3))
    elif step == 1:
        planned.cut_out(path, [(start, rng.randint(start, size))])
    elif step == 2:
        planned.rename(path, other)
    elif step == 3:
        planned.write_file(other, rng.randbytes(rng.randint(0, 30)))
    elif step == 4 and size:
        planned.write_at(path, rng.randrange(size), b"!")
    elif len(names) > 2:
        planned.remove(path)


def contents(disk: OsDisk | PlannedDisk, directory: Path) -> dict[str, bytes]:
    listed = disk.list_directory(str(directory))
    return {name: disk.read_file(str(directory / name), 1 << 20) for name in listed if disk.is_regular(str(directory / name))}


@pytest.mark.parametrize("seed", range(60))
def test_the_changes_lead_to_what_the_plan_shows(directory: Path, seed: int) -> None:
    """Whatever was done, in whatever order: nothing is touched before, and afterwards the directory is as planned."""
    rng = random.Random(seed)
    disk = OsDisk()
    before = contents(disk, directory)
    planned = PlannedDisk(disk)
    for _ in range(rng.randint(1, 12)):
        do_something(planned, directory, rng)
    wanted = contents(planned, directory)
    changes = planned.changes()
    assert contents(disk, directory) == before
    apply_changes(disk, changes, Discard(disk))
    assert contents(disk, directory) == wanted
