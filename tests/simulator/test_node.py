"""Protects kcli's own node through crashes, torn writes, cut links and bad disks: seeds pass, and faults built in are found.

A seed that fails is repeated by `kcli simulate --seed N`, which prints the end of its trace.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest

from kcli.log import log_opener
from kcli.log.cleaner import cleaner, log_cleaner_manager
from kcli.log.cleaner.cleaned_segment import CleanedSegment
from kcli.log.cleaner.retained_offsets import RetainedOffsets
from kcli.log.files.leader_epoch_file_cache import LeaderEpochFileCache
from kcli.log.log_manager import LogManager
from kcli.log.managing.replica_mover import ReplicaMover
from kcli.log.producer_state_manager import ProducerStateManager
from kcli.log.report_line import WarningLine, fields_of
from kcli.log.unified_log import UnifiedLog
from kcli.network.shell.clock import Clock
from kcli.simulator.disk import SimulatedDisk
from kcli.simulator.node_maker import NodeMaker
from kcli.simulator.runner import DEFAULT_STEPS, Simulation, SimulationResult


def simulate(seed: int, steps: int = DEFAULT_STEPS) -> SimulationResult:
    make_node = NodeMaker(seed)
    return Simulation(seed, make_node, make_node.directories, steps=steps, cleaning_rounds=make_node.cleaning_rounds).run()


def failures(outcomes: Iterable[SimulationResult]) -> list[str]:
    """What failed, and how to repeat it."""
    return [f"kcli simulate --seed {one.seed}: {one.failure}" for one in outcomes if one.failure]


def test_a_few_seeds() -> None:
    """In every run of the tests, as the odd ones below 100 in the next test."""
    assert failures(simulate(seed) for seed in range(0, 20, 2)) == []


def test_what_recoveries_remove_is_reported_and_kept() -> None:
    """After the crashes of some seeds: each recovery says that it begins and ends, each loss has its offsets, and where bytes
    are to be kept they are, whatever crash came later."""
    begun = ended = cuts = kept = 0
    for seed in range(1, 100, 2):
        make_node = NodeMaker(seed)
        simulation = Simulation(seed, make_node, make_node.directories, cleaning_rounds=make_node.cleaning_rounds)
        lines: list[str] = []
        says = simulation._log
        simulation._log = lambda line, says=says, lines=lines: (lines.append(line), says(line))  # type: ignore
        assert simulation.run().failure == ""
        begun += sum("was not stopped cleanly: recovering" in line for line in lines)
        ended += sum(" recovered in " in line for line in lines)
        for line in lines:
            fields = fields_of(line)
            if "recovery cuts" in line and isinstance(line, WarningLine):
                cuts += 1
                assert "lost" in line or "are unknown" in line
                assert {"topic", "partition", "path", "position", "bytes", "error"} <= fields.keys(), line
                assert "kept_in" in fields or ", all zeros:" in line, "zeros need not be kept"
            if "kept_in" in fields and not simulation.disk.has_lost_writes:
                kept += 1
                assert simulation.disk.exists(str(fields["kept_in"])), line
    assert begun >= ended > 10 and cuts > 10 and kept > 10


@pytest.mark.ci
def test_logs_are_cleaned_meanwhile() -> None:
    """Some hundred rounds in forty seeds, and readers who began at the start came to the end."""
    outcomes = [simulate(seed) for seed in range(20, 100, 2)]
    assert failures(outcomes) == []
    assert sum(outcome.cleaning_rounds for outcome in outcomes) > 200
    assert sum(outcome.whole_views for outcome in outcomes) > 50


@pytest.mark.ci
@pytest.mark.parametrize("first", range(100, 300, 40))
def test_300_seeds(first: int) -> None:
    """In CI, the first hundred in the tests above; in blocks, so that processes share them."""
    assert failures(simulate(seed) for seed in range(first, first + 40)) == []


@pytest.mark.parametrize("threshold", [200, 1000])
def test_a_seed_is_the_same_whenever_garbage_is_collected(threshold: int) -> None:
    """Nothing of a process that died may act on the disk of the next one: a seed once lost a file to such a cleaning round."""
    expected = simulate(137)
    assert expected.failure == "" and expected.cleaning_rounds > 0
    thresholds = gc.get_threshold()
    gc.collect()
    gc.set_threshold(threshold, 3, 3)
    try:
        assert simulate(137) == expected
    finally:
        gc.set_threshold(*thresholds)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(100))
def test_10000_seeds(block: int) -> None:
    """Before a release, 100 at a time."""
    assert failures(simulate(seed) for seed in range(1000 + block * 100, 1100 + block * 100)) == []


@pytest.mark.ci
def test_a_seed_is_a_trace_to_the_byte() -> None:
    """Of the whole node as well: in another process, whatever Python's hashes are."""
    here = [simulate(seed).digest[:16] for seed in (3, 4)]
    for hash_seed in ("0", "4711"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        for seed, digest in zip((3, 4), here):
            command = [sys.executable, "-m", "kcli", "simulate", "--seed", str(seed)]
            found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            assert f"digest {digest}" in found.stdout


# ------------------------------------------------------------------------------------------------------------ faults built in


def patched(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """Puts another function in the place of `owner.name`, made of the real one."""
    return lambda monkeypatch: monkeypatch.setattr(owner, name, make(getattr(owner, name)))


def skips_every_third(real: Any) -> Any:
    count = iter(range(1 << 60))
    return lambda self, data: None if next(count) % 3 == 2 else real(self, data)


def commits_before_the_flush(real: Any) -> Any:
    return lambda self: self.log_end_offset


def forgets_producers(real: Any) -> Any:
    def truncate_and_reload(self: ProducerStateManager, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        self.producers.clear()

    return truncate_and_reload


def skips_recovery(real: Any) -> Any:
    return lambda disk, path, settings, journal: real(
        disk, path, settings._replace(recovery_point=1 << 40, had_clean_shutdown=True), journal
    )


def gives_one_offset_twice(real: Any) -> Any:
    def append(self: UnifiedLog, *args: Any, **kwargs: Any) -> Any:
        info = real(self, *args, **kwargs)
        return info._replace(first_offset=max(0, info.first_offset - 1)) if info.first_offset % 5 == 4 else info

    return append


def reads_above(real: Any) -> Any:
    return lambda self, offset, *args, **kwargs: real(self, min(offset + 1, self.log_end_offset), *args, **kwargs)


def ends_epochs_early(real: Any) -> Any:
    return lambda self, epoch, log_end_offset: real(self, epoch, max(0, log_end_offset - 1))


def never_copies(real: Any) -> Any:
    return lambda self, now_ms: now_ms + 1000


def leaves_the_old_one(real: Any) -> Any:
    """Has a moved replica's old directory keep its name, so that the partition lies twice."""
    return lambda self, log, now_ms, *state: real(self, log, now_ms, *state) if state else log.close_files()


def follows_the_wall(real: Any) -> Any:
    return lambda self: int(self._wall() * 1000)


def loses_names(real: Any) -> Any:
    return lambda self, path: None


def forgets_a_retained_offset(real: type[RetainedOffsets]) -> type[RetainedOffsets]:
    """The first one of each window."""

    class Forgetful(real):  # type: ignore[misc, valid-type]
        def move_window(self, offset: int) -> bool:
            is_unfinished: bool = super().move_window(offset)
            word = next((at for at, word in enumerate(self.words) if word), None)
            if not is_unfinished and word is not None:
                self.words[word] &= self.words[word] - 1
            return is_unfinished

    return Forgetful


def gives_tombstones_no_time(real: Any) -> Any:
    return lambda now_ms, delete_retention_ms, *facts: real(now_ms, 0, *facts)


def ignores_the_lag(real: Any) -> Any:
    return lambda log, first_dirty, now_ms: min(log.last_stable_offset, log.active_base_offset)


def flushes_no_cleaned_segment(real: Any) -> Any:
    return lambda self, mtime_ms: real(self, mtime_ms)[:0]


class Fault(NamedTuple):
    """A fault, and a seed that finds it."""

    patch: Callable[[pytest.MonkeyPatch], None]
    seed: int


BROKEN: dict[str, Fault] = {
    "acknowledges without an append": Fault(patched(log_opener.LocalLog, "append", skips_every_third), 0),
    "acknowledges before the flush": Fault(patched(UnifiedLog, "committable_offset", commits_before_the_flush), 0),
    "forgets producers at a start": Fault(patched(ProducerStateManager, "truncate_and_reload", forgets_producers), 0),
    "skips the recovery": Fault(patched(log_opener, "_load", skips_recovery), 0),
    "answers with a wrong offset": Fault(patched(UnifiedLog, "append_as_leader", gives_one_offset_twice), 0),
    "reads from the next batch": Fault(patched(UnifiedLog, "read", reads_above), 1),
    "says that an epoch ends before it does": Fault(patched(LeaderEpochFileCache, "end_offset_for", ends_epochs_early), 21),
    "never moves a replica": Fault(patched(ReplicaMover, "run", never_copies), 2),
    "leaves a moved replica behind": Fault(patched(LogManager, "set_aside", leaves_the_old_one), 31),
    "goes back in time with the wall clock": Fault(patched(Clock, "now_ms", follows_the_wall), 6),
    "flushes no directory": Fault(patched(SimulatedDisk, "flush_directory", loses_names), 0),
    "cleans away the last value of a key": Fault(patched(cleaner, "RetainedOffsets", forgets_a_retained_offset), 8),
    "cleans tombstones away at once": Fault(patched(cleaner, "FilterSettings", gives_tombstones_no_time), 11),
    "cleans what min.compaction.lag.ms keeps": Fault(
        patched(log_cleaner_manager, "first_uncleanable_offset", ignores_the_lag), 9
    ),
    "does not flush what it has cleaned": Fault(patched(CleanedSegment, "finish", flushes_no_cleaned_segment), 11),
}


@pytest.mark.ci
@pytest.mark.parametrize("what", BROKEN)
def test_a_fault_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the seed of the list, or by one of the first 50."""
    BROKEN[what].patch(monkeypatch)
    found = (simulate(seed).failure for seed in (BROKEN[what].seed, *range(50)))
    failure = next(filter(None, found), "")
    assert failure, f"nobody noticed that the node {what}"
    # A fault that does not fit the function it replaces fails by itself, whatever is checked.
    assert not failure.startswith(("AttributeError", "TypeError", "ValueError")), failure
