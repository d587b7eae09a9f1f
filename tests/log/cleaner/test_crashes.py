"""Protects a cleaned log from crashes: whichever disk call a round dies in, with or without the power, nothing is lost.

What must stay stays, nothing comes back that was not there, a broker opens what is left, and the next round ends as if nothing
had happened.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from kcli.log.cleaner.cleaner import Cleaner
from kcli.log.cleaner.log_cleaner_manager import log_to_clean
from kcli.log.cleaner.offset_map import OffsetMap
from kcli.log.file_cache import FileCache
from kcli.log.files.log_directory import read_partition
from kcli.log.log_opener import open_log
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.segment_reader import LogBatch, SegmentReader
from kcli.log.unified_log import UnifiedLog
from kcli.simulator.disk import SimulatedDisk
from tests.log.cleaner.crashes import compacted_errors, died
from tests.log.cleaner.random_logs import SECRET, RandomLog

DIRECTORY = "/data/t-0"

Row = tuple[int, bytes | None, bytes | None]


class Machine:
    """A simulated disk with a copy of a log on it, as a clean stop left it."""

    def __init__(self, log: RandomLog, seed: int) -> None:
        self.log = log
        self.disk = SimulatedDisk(Random(seed), lambda: log.now_ms)
        self.disk.make_directory(DIRECTORY)
        for path in sorted(log.live.directory.iterdir()):
            self.disk.append(f"{DIRECTORY}/{path.name}", path.read_bytes())
            self.disk.flush(f"{DIRECTORY}/{path.name}")
        for path in ("/data/t-0", "/data", "/"):
            self.disk.flush_directory(path)

    def open(self, *, clean: bool) -> UnifiedLog:
        """Open it as a start does, after a clean stop or a crash."""
        live = self.log.live.log
        config = self.log.compacted
        opened = open_log(
            self.disk,
            FileCache(self.disk, 8),
            DIRECTORY,
            "t",
            0,
            config,
            self.log.now_ms,
            clean_shutdown=clean,
            recovery_point=live.log_end_offset,
            log_start_offset=live.log_start_offset,
        )
        opened.update_high_watermark(opened.log_end_offset)
        return opened

    def clean(self, log: UnifiedLog) -> None:
        """One round, with everything flushed that it wants flushed, and removed what it replaced."""
        cleanable = log_to_clean(log, self.log.checkpoint, self.log.now_ms)
        under_way = Cleaner(log, cleanable, OffsetMap(self.log.memory_bytes, SECRET), self.log.now_ms)
        steps = under_way.run()
        for paths in steps:
            for path in paths:
                self.disk.flush(path)
            for path in under_way.take_removed():
                self.disk.remove(path)
        for path in under_way.take_removed():
            self.disk.remove(path)

    def rows(self) -> list[Row]:
        """Every record."""
        found: list[Row] = []
        for segment in read_partition(self.disk, DIRECTORY).segments:
            with SegmentReader(self.disk, segment.log) as reader:
                for batch in reader.batches():
                    assert isinstance(batch, LogBatch) and batch.is_valid
                    for window in batch.windows(RecordScanner()):
                        assert window.error is None
                        found += [(window.columns.offset[at], window.key(at), window.value(at)) for at in range(window.count)]
        return found

    def errors(self) -> list[str]:
        """What a verifier finds wrong."""
        return compacted_errors(self.disk, DIRECTORY)


def check(log: RandomLog, seed: int, calls: int | None, *, loses_power: bool, before: list[Row], after: list[Row]) -> bool:
    """A round that dies after this many calls, and a start -> whether it made that many calls."""
    machine = Machine(log, seed)
    opened = machine.open(clean=True)
    if calls is not None:
        machine.disk.die_in(calls)
    dies = died(machine.disk, lambda: machine.clean(opened), seed, loses_power=loses_power)
    again = machine.open(clean=False)
    left = machine.rows()
    assert again.log_end_offset == log.live.log.log_end_offset
    assert set(after) <= set(left) <= set(before)
    assert left == sorted(left, key=lambda row: row[0])
    assert machine.errors() == []
    names = machine.disk.list_directory(DIRECTORY)
    assert not [name for name in names if name.endswith((".cleaned", ".swap"))]
    machine.clean(again)
    assert machine.rows() == after
    assert machine.errors() == []
    return dies


def check_seed(seed: int, directory: Path, every: int) -> int:
    """A crash at every so-manieth call of a round -> how many crashes there were."""
    log = RandomLog(directory / "t-0", seed)
    for _ in range(Random(seed).randrange(3)):
        log.grow()
        log.clean()
        log.now_ms += 700
    log.grow()
    whole = Machine(log, seed)
    before = whole.rows()
    whole.clean(whole.open(clean=True))
    after = whole.rows()
    calls, crashes = seed % every, 0
    while check(log, seed * 1000 + calls, calls, loses_power=calls % 3 > 0, before=before, after=after):
        calls += every
        crashes += 1
    return crashes


def test_no_crash_loses_anything(tmp_path: Path) -> None:
    assert sum(check_seed(seed, tmp_path / str(seed), every=5) for seed in range(6)) > 20


@pytest.mark.ci
@pytest.mark.parametrize("first", range(6, 30, 4))
def test_no_crash_at_any_call_loses_anything(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 4):
        check_seed(seed, tmp_path / str(seed), every=1)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(30, 530, 20))
def test_no_crash_of_500_seeds_loses_anything(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 20):
        check_seed(seed, tmp_path / str(seed), every=1)
