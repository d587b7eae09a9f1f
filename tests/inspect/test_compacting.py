"""Protects an offline compaction from crashes: whichever disk call it dies in, a partition is what it was or what it becomes.

Byte for byte, all rounds of it together; a broker opens what is left, also after a repair, and the next run ends as if nothing
had happened.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from kcli.format.checkpoint import PartitionOffset, encode_offset_checkpoint
from kcli.inspect.compacting.compaction import Compaction, RunOptions
from kcli.inspect.compacting.jobs import CompactOptions, Recompression
from kcli.inspect.compacting.partition_selection import asked_for
from kcli.inspect.repairing.repair import LogDirectoryRepair
from kcli.log.file_cache import FileCache
from kcli.log.files.log_directory import read_partition, resolve_paths
from kcli.log.files.quarantine import Quarantine
from kcli.log.log_opener import open_log
from kcli.simulator.disk import SimulatedDisk
from kcli.simulator.faults import Fault
from tests.log.cleaner.crashes import compacted_errors, died
from tests.log.cleaner.random_logs import SECRET, RandomLog

ROOT = "/data"
DIRECTORY = "/data/t-0"
Logs = dict[str, bytes]
MOST_CRASHES = 200


class Machine:
    """A simulated disk with a copy of a log in a log directory on it, as a clean stop left it."""

    def __init__(self, log: RandomLog, seed: int, options: CompactOptions) -> None:
        self.log = log
        self.options = options
        self.disk = SimulatedDisk(Random(seed), lambda: log.now_ms)
        self.disk.make_directory(DIRECTORY)
        self._write(".kafka_cleanshutdown", b'{"version":0,"brokerEpoch":7}')
        committed = PartitionOffset("t", 0, log.live.log.log_end_offset)
        self._write("replication-offset-checkpoint", encode_offset_checkpoint([committed]))
        if log.checkpoint is not None:
            entry = PartitionOffset("t", 0, log.checkpoint)
            self._write("cleaner-offset-checkpoint", encode_offset_checkpoint([entry]))
        for path in sorted(log.live.directory.iterdir()):
            self._write(f"t-0/{path.name}", path.read_bytes())
        for directory in (DIRECTORY, ROOT, "/"):
            self.disk.flush_directory(directory)

    def _write(self, name: str, data: bytes) -> None:
        self.disk.append(f"{ROOT}/{name}", data)
        self.disk.flush(f"{ROOT}/{name}")

    def compact(self) -> None:
        """One run, all of which goes well."""
        assert self.problems() == [None]

    def problems(self) -> list[str | None]:
        """One run -> what it could not do, for each partition."""
        targets, problems = resolve_paths(self.disk, [DIRECTORY])
        asked, sentences = asked_for(targets, ())
        assert not problems and not sentences
        overrides = {key.removeprefix("internal."): value for key, value in self.log.settings.items()}
        told = []
        with Compaction(self.disk, asked, RunOptions(self.options, overrides)) as run:
            for outcome in run.outcomes(1, None):
                told.append(outcome.problem)
                run.place(outcome)
        return told

    def start(self) -> int:
        """Open the log as a broker does, whose mark of a clean stop is still there -> its end offset."""
        config, start = self.log.compacted, self.log.live.log.log_start_offset
        files = FileCache(self.disk, 8)
        log = open_log(
            self.disk, files, DIRECTORY, "t", 0, config, self.log.now_ms, clean_shutdown=True, log_start_offset=start
        )
        files.close_all()
        return log.log_end_offset

    def repair(self) -> None:
        """Repair the log directory, whose mark of a clean stop is still there."""
        session, quarantine = LogDirectoryRepair(self.disk, ROOT), Quarantine(self.disk, "/quarantine", ROOT)
        session.apply(read_partition(self.disk, DIRECTORY), quarantine)
        session.apply_root(quarantine)

    def logs(self) -> Logs:
        """The bytes of all segments."""
        names = [name for name in self.disk.list_directory(DIRECTORY) if name.endswith(".log")]
        return {name: self.disk.read_file(f"{DIRECTORY}/{name}", 1 << 30) for name in names}

    def errors(self) -> list[str]:
        """What a verifier finds wrong."""
        return compacted_errors(self.disk, DIRECTORY)


def check(machine: Machine, seed: int, calls: int, *, loses_power: bool, before: Logs, after: Logs) -> bool:
    """A run that dies behind so many calls, and a start -> whether it came so far as to die."""
    machine.disk.die_in(calls)
    dies = died(machine.disk, machine.compact, seed, loses_power=loses_power)
    if calls % 2:
        machine.repair()
    assert machine.start() == machine.log.live.log.log_end_offset
    left = machine.logs()
    assert left in (before, after)
    assert dies or left == after
    assert machine.errors() == []
    names = machine.disk.list_directory(DIRECTORY)
    assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted", ".tmp"))]
    machine.compact()
    assert machine.logs() == after or (left == after and machine.options.recompression is None)
    assert machine.errors() == []
    return dies


def options_of(log: RandomLog, way: str) -> CompactOptions:
    recompression = Recompression(log.rng.randrange(5), None) if way == "recompress" else None
    return CompactOptions(
        log.now_ms, lambda count: SECRET[:count], log.memory_bytes, with_active=way == "active", recompression=recompression
    )


def check_seed(seed: int, directory: Path, way: str, every: int) -> int:
    """A crash at every so-manieth call of a run, some MOST_CRASHES of them at most -> how many crashes there were."""
    log = RandomLog(directory / "t-0", seed)
    for _ in range(Random(seed).randrange(3)):
        log.grow()
        log.clean()
        log.now_ms += 700
    log.grow()
    options = options_of(log, way)
    whole = Machine(log, seed, options)
    before, made = whole.logs(), whole.disk.changes
    whole.compact()
    after = whole.logs()
    assert whole.errors() == []
    # A log of thousands of keys and a memory for seven has a thousand rounds, and takes hours.
    every = max(every, (whole.disk.changes - made) // MOST_CRASHES)
    calls, crashes = seed % every, 0
    while check(
        Machine(log, seed * 1000 + calls, options),
        seed * 1000 + calls,
        calls,
        loses_power=calls % 3 > 0,
        before=before,
        after=after,
    ):
        calls += every
        crashes += 1
    return crashes


@pytest.mark.parametrize("way", ["clean", "active", "recompress"])
def test_no_crash_leaves_anything_between(way: str, tmp_path: Path) -> None:
    assert sum(check_seed(seed, tmp_path / str(seed), way, every=5) for seed in range(6)) > 20


@pytest.mark.ci
@pytest.mark.parametrize("way", ["clean", "active", "recompress"])
def test_no_crash_at_any_call_leaves_anything_between(way: str, tmp_path: Path) -> None:
    for seed in range(6, 9):
        check_seed(seed, tmp_path / str(seed), way, every=1)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["clean", "active", "recompress"])
@pytest.mark.parametrize("first", range(10, 110, 10))
def test_no_crash_of_many_seeds_leaves_anything_between(first: int, way: str, tmp_path: Path) -> None:
    for seed in range(first, first + 10):
        check_seed(seed, tmp_path / str(seed), way, every=1)


@pytest.mark.parametrize("call", ["rename", "flush"])
@pytest.mark.parametrize("count", [1, -1])
def test_a_call_that_fails_leaves_nothing_between(call: str, count: int, tmp_path: Path) -> None:
    """One that fails once, or from then on: what is tidied up behind it must not make a part of the new files the log."""
    log = RandomLog(tmp_path / "t-0", 6)
    log.grow()
    options = options_of(log, "recompress")._replace(recompression=Recompression(4, 1))
    whole = Machine(log, 6, options)
    before = whole.logs()
    whole.compact()
    after = whole.logs()
    assert len(after) > 2 and sum(before[name] != data for name, data in after.items()) > 1
    seen, skip, failed = set(), 0, True
    while failed:
        machine = Machine(log, 6, options)
        machine.disk.faults.append(Fault(call, DIRECTORY, skip=skip, count=count))
        try:
            failed = machine.problems() != [None]
        except OSError:
            failed = True
        machine.disk.faults.clear()
        assert machine.start() == log.live.log.log_end_offset
        left = machine.logs()
        assert left in (before, after), skip
        seen.add(left == after)
        names = machine.disk.list_directory(DIRECTORY)
        assert not [name for name in names if name.endswith((".cleaned", ".swap"))]
        skip += 1
    assert seen == {True, False} and skip > 5


@pytest.mark.parametrize("way", ["clean", "recompress"])
def test_a_full_disk_leaves_a_partition_as_it_was(way: str, tmp_path: Path) -> None:
    """Told in one sentence; what had been written is gone."""
    log = RandomLog(tmp_path / "t-0", 3)
    log.grow()
    machine = Machine(log, 3, options_of(log, way))
    before, names = machine.logs(), machine.disk.list_directory(DIRECTORY)
    used = sum(machine.disk.size(f"{DIRECTORY}/{name}") for name in names)
    machine.disk.capacity_bytes = used + 500
    (problem,) = machine.problems()
    assert problem is not None and problem.endswith("No space left on device; the partition was not changed")
    assert machine.logs() == before and machine.disk.list_directory(DIRECTORY) == names
