"""Protects the simulated disk: it is a twin of the real one until it dies, and then keeps all that was flushed, and no more
than a real one may keep of the rest."""

from __future__ import annotations

import errno
import random
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcli.log.disk.os_disk import OsDisk
from kcli.log.disk.port import Disk, DiskFile, LogDisk, LogFile
from kcli.simulator.disk import SimulatedDisk
from kcli.simulator.faults import Fault, SimulatedCrash

_PATHS = st.sampled_from(["a", "b", "d", "d/a", "d/e", "d/e/a", "d//./b", "a/b", "x"])
_DATA = st.binary(max_size=40)
_SIZES = st.integers(0, 60)
_STEPS = st.one_of(
    st.tuples(st.sampled_from(["remove", "make_directory", "remove_directory", "flush", "flush_directory"]), _PATHS),
    st.tuples(st.sampled_from(["list_directory", "is_directory", "exists", "is_regular", "size", "is_locked"]), _PATHS),
    st.tuples(st.just("rename"), _PATHS, _PATHS),
    st.tuples(st.sampled_from(["append", "write_file"]), _PATHS, _DATA),
    st.tuples(st.just("write_at"), _PATHS, _SIZES, _DATA),
    st.tuples(st.sampled_from(["truncate", "read_file"]), _PATHS, _SIZES),
    st.tuples(st.sampled_from(["open", "open_new", "read", "lock", "mtime"]), _PATHS),
    st.tuples(st.just("handle"), st.integers(0, 3), st.sampled_from(["size", "flush", "close", "fileno"])),
    st.tuples(st.just("handle"), st.integers(0, 3), st.just("append"), st.lists(_DATA, min_size=1, max_size=3)),
    st.tuples(st.just("handle"), st.integers(0, 3), st.sampled_from(["truncate"]), _SIZES),
    st.tuples(st.just("handle"), st.integers(0, 3), st.sampled_from(["read_at", "read_into"]), _SIZES, _SIZES),
)


class Twin:
    """One of the two disks, and what it gives for each step: a value, or the errno."""

    def __init__(self, disk: LogDisk, root: str) -> None:
        self.disk = disk
        self.root = root
        self.handles: list[LogFile] = []

    def outcome(self, step: tuple[Any, ...]) -> Any:
        try:
            return self.do(*step)
        except OSError as error:
            return type(error), error.errno

    def do(self, name: str, *args: Any) -> Any:
        if name == "handle":
            return self.on_handle(*args)
        path = f"{self.root}/{args[0]}"
        if name in ("open", "open_new"):
            self.handles.append(self.disk.open_log_file(path, create=name == "open_new"))
            return self.handles[-1].size()
        if name == "read":
            file = self.disk.open_file(path)
            return file.size(), file.read_at(0, 100), file.read_at(7, 5), file.close()
        if name == "lock":
            release = self.disk.lock(path)
            return release and release()
        if name == "mtime":
            self.disk.set_mtime_ms(path, 1_700_000_000_123)
            return self.disk.mtime_ms(path)
        if name == "rename":
            return self.disk.rename(path, f"{self.root}/{args[1]}")
        if name == "size" and self.disk.is_directory(path):
            return None
        return getattr(self.disk, name)(path, *args[1:])

    def on_handle(self, number: int, name: str, *args: Any) -> Any:
        if number >= len(self.handles):
            return None
        handle = self.handles[number]
        if name == "fileno":
            return handle.name.removeprefix(self.root)
        if name == "read_into":
            buffer = bytearray(args[1])
            return handle.read_into(args[0], memoryview(buffer)), buffer
        return getattr(handle, name)(*args)

    def tree(self, path: str = "") -> dict[str, bytes | None]:
        """Everything below, by path: the bytes of a file, None for a directory."""
        found: dict[str, bytes | None] = {}
        for name in self.disk.list_directory(self.root + path):
            at = f"{path}/{name}"
            if self.disk.is_directory(self.root + at):
                found |= {at: None, **self.tree(at)}
            else:
                found[at] = self.disk.read_file(self.root + at, 1000)
        return found


@settings(max_examples=150)
@given(st.lists(_STEPS, max_size=30))
def test_a_twin_of_the_real_one(steps: list[tuple[Any, ...]]) -> None:
    """Any calls give the same values, errors and trees on both."""
    root = tempfile.mkdtemp()
    try:
        simulated = SimulatedDisk(random.Random(0))
        simulated.make_directory(root)
        twins = Twin(OsDisk(), root), Twin(simulated, root)
        for step in steps:
            real, ours = (twin.outcome(step) for twin in twins)
            assert ours == real, step
        assert twins[0].tree() == twins[1].tree()
        for handle in twins[0].handles:
            handle.close()
    finally:
        shutil.rmtree(root)


def test_it_is_the_port() -> None:
    """mypy holds the types against the port; here, that the protocols are the ones meant."""
    disk: LogDisk = SimulatedDisk(random.Random(0))
    reader: Disk = disk
    disk.append("f", b"x")
    file: DiskFile = reader.open_file("f")
    assert file.read_at(0, 9) == b"x" and file.next_data(0) == 0 and file.next_data(5) == 5
    assert disk.open_log_file("f", create=False).fileno() == -1


def fresh() -> SimulatedDisk:
    disk = SimulatedDisk(random.Random(1))
    disk.make_directory("logs/t-0")
    for path in ("", "logs", "logs/t-0"):
        disk.flush_directory(path)
    return disk


def outcomes(prepare: Callable[[SimulatedDisk], None], look: Callable[[SimulatedDisk], Any]) -> set[Any]:
    """All that a power loss leaves, over many seeds."""
    found = set()
    for seed in range(300):
        disk = fresh()
        prepare(disk)
        disk.lose_power(random.Random(seed))
        found.add(look(disk))
    return found


def test_flushed_bytes_stay_and_others_may_not() -> None:
    """What was flushed, with its name, is there after every power loss; of the rest anything from nothing to all."""

    def prepare(disk: SimulatedDisk) -> None:
        file = disk.open_log_file("logs/t-0/0.log", create=True)
        file.append([b"a" * 1000])
        file.flush()
        disk.flush_directory("logs/t-0")
        file.append([b"b" * 1000])
        file.append([b"c" * 1000])

    found = outcomes(prepare, lambda disk: disk.read_file("logs/t-0/0.log", 10_000))
    assert all(data.startswith(b"a" * 1000) for data in found)
    whole = b"a" * 1000 + b"b" * 1000 + b"c" * 1000
    assert {whole[:1000], whole} <= found
    assert any(data != whole[: len(data)] and b"c" in data for data in found), "later bytes without earlier ones"
    assert any(whole.startswith(data) and 1000 < len(data) < 3000 and len(data) % 512 for data in found), "torn at a byte"
    assert any(whole.startswith(data) and 1000 < len(data) < 3000 and len(data) % 512 == 0 for data in found), "at a sector"


def test_names_are_lost_without_a_flush_of_their_directory() -> None:
    """A flushed file whose directory was not flushed may be gone; a renamed one has the old or the new name, never both."""

    def create(disk: SimulatedDisk) -> None:
        disk.append("logs/t-0/0.log", b"x")
        disk.flush("logs/t-0/0.log")

    assert outcomes(create, lambda disk: disk.exists("logs/t-0/0.log")) == {True, False}

    def rename(disk: SimulatedDisk) -> None:
        create(disk)
        disk.flush_directory("logs/t-0")
        disk.rename("logs/t-0/0.log", "logs/t-0/0.log.deleted")

    assert outcomes(rename, lambda disk: tuple(disk.list_directory("logs/t-0"))) == {("0.log",), ("0.log.deleted",)}

    def remove(disk: SimulatedDisk) -> None:
        create(disk)
        disk.flush_directory("logs/t-0")
        disk.remove("logs/t-0/0.log")

    assert outcomes(remove, lambda disk: tuple(disk.list_directory("logs/t-0"))) == {("0.log",), ()}


def test_a_directory_that_moves_between_two_is_in_one_of_them() -> None:
    """A rename is whole or not, and flushing either directory makes it durable."""

    def move(disk: SimulatedDisk) -> None:
        disk.make_directory("other")
        disk.flush_directory("")
        disk.rename("logs/t-0", "other/t-0")

    def where(disk: SimulatedDisk) -> tuple[list[str], ...]:
        return disk.list_directory("logs"), disk.list_directory("other")

    assert outcomes(move, lambda disk: str(where(disk))) == {"(['t-0'], [])", "([], ['t-0'])"}
    for flushed in ("logs", "other"):

        def both(disk: SimulatedDisk, flushed: str = flushed) -> None:
            move(disk)
            disk.flush_directory(flushed)

        assert outcomes(both, lambda disk: str(where(disk))) == {"([], ['t-0'])"}


def test_a_file_written_whole_is_the_old_or_the_new_one() -> None:
    """Wherever in write_file the power goes, the file is whole: the old one or, once it came back, the new one."""
    seen = set()
    for calls in range(12):
        for seed in range(20):
            disk = fresh()
            disk.write_file("logs/checkpoint", b"old" * 300)
            disk.die_in(calls)
            done = True
            try:
                disk.write_file("logs/checkpoint", b"new" * 300)
            except SimulatedCrash:
                done = False
            disk.lose_power(random.Random(seed))
            data = disk.read_file("logs/checkpoint", 10_000)
            assert data in (b"old" * 300, b"new" * 300)
            assert not done or data == b"new" * 300
            seen.add((done, data))
    assert len(seen) == 3


def test_a_killed_process_loses_its_handles_and_nothing_else() -> None:
    """The page cache outlives the process; its open files do not, and the lock is free."""
    disk = fresh()
    file = disk.open_log_file("logs/t-0/0.log", create=True)
    file.append([b"abc", b"def"])
    assert disk.lock("logs/.lock") is not None
    disk.kill()
    assert disk.read_file("logs/t-0/0.log", 10) == b"abcdef"
    with pytest.raises(SimulatedCrash):
        file.append([b"more"])
    assert disk.lock("logs/.lock") is not None
    disk.lock_elsewhere("/logs/.lock")
    assert disk.lock("logs/.lock") is None and disk.is_locked("logs/.lock")


def test_it_dies_in_the_call_asked_for_and_stays_dead() -> None:
    """Before, after or within a call; what follows in the same process changes nothing."""
    left = set()
    for seed in range(200):
        disk = SimulatedDisk(random.Random(seed))
        disk.append("f", b"123")
        disk.die_in(1)
        disk.append("f", b"456")
        with pytest.raises(SimulatedCrash):
            disk.append("f", b"789")
        for call in (disk.exists, disk.remove, disk.flush, disk.make_directory, disk.list_directory):
            with pytest.raises(SimulatedCrash):
                call("f")
        disk.kill()
        left.add(disk.read_file("f", 100))
    assert left == {b"123456", b"1234567", b"12345678", b"123456789"}


def test_a_full_disk_takes_what_fits() -> None:
    """ENOSPC leaves a part of the append, as write(2) does; room comes back with what is removed."""
    disk = SimulatedDisk(random.Random(0), capacity_bytes=100)
    disk.append("old", b"o" * 60)
    file = disk.open_log_file("log", create=True)
    with pytest.raises(OSError) as caught:
        file.append([b"a" * 30, b"b" * 30])
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == "log"
    assert file.size() == 40 and disk.free_bytes("log") == 0
    disk.remove("old")
    assert disk.free_bytes("log") == 60 and file.append([b"c" * 60]) == 60


def test_faults_strike_the_call_they_name() -> None:
    """By name, path and count; a failed flush never makes all of its bytes durable, whatever the next one says."""
    lost = 0
    for seed in range(40):
        disk = SimulatedDisk(random.Random(seed))
        disk.make_directory("logs")
        disk.flush_directory("")
        file = disk.open_log_file("logs/a", create=True)
        disk.flush_directory("logs")
        disk.faults.append(Fault("flush", "logs", skip=1, count=1))
        file.flush()
        file.append([b"x"])
        file.append([b"y"])
        with pytest.raises(OSError, match="Input/output error"):
            file.flush()
        file.flush()
        assert file.read_at(0, 9) == b"xy"
        disk.lose_power(random.Random(seed))
        lost += disk.read_file("logs/a", 9) != b"xy"
    assert 0 < lost < 40
    disk.faults.append(Fault("", "logs", errno.EROFS, count=-1))
    for _ in range(3):
        with pytest.raises(OSError, match="Read-only"):
            disk.append("logs/a", b"z")
    disk.append("logs2", b"z")


def test_the_flushed_image_is_what_every_power_loss_leaves() -> None:
    """Each file of the image is there after each power loss, and begins with its bytes."""
    for seed in range(60):
        rng = random.Random(seed)
        disk = fresh()
        for _ in range(40):
            path = f"logs/t-0/{rng.randrange(4)}"
            match rng.randrange(4):
                case 0:
                    disk.flush_directory("logs/t-0")
                case 1 if disk.exists(path):
                    disk.flush(path)
                case _:
                    disk.append(path, rng.randbytes(rng.randrange(700)))
        image = disk.flushed_image()
        disk.lose_power(rng)
        for name in image.list_directory("logs/t-0"):
            path = f"logs/t-0/{name}"
            assert disk.read_file(path, 1 << 20).startswith(image.read_file(path, 1 << 20))
