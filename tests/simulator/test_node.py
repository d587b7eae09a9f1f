"""Protects kcli's own node through crashes, torn writes, cut links and bad disks: seeds pass, and faults built in are found.

A seed that fails is repeated by `kcli simulate --seed N`, which prints the end of its trace.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from kcli.log.report_line import WarningLine, fields_of
from kcli.simulator.node_maker import NodeMaker
from kcli.simulator.runner import DEFAULT_STEPS, Simulation, SimulationResult

sys.path.insert(0, str(Path(__file__).parent))
from wrong_nodes import NODES


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
    """Some hundred rounds in fifty seeds, and readers who began at the start came to the end."""
    outcomes = [simulate(seed) for seed in range(20, 120, 2)]
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
    expected = simulate(143)
    assert expected.failure == "" and expected.cleaning_rounds > 0
    thresholds = gc.get_threshold()
    gc.collect()
    gc.set_threshold(threshold, 3, 3)
    try:
        assert simulate(143) == expected
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


@pytest.mark.ci
@pytest.mark.parametrize("what", NODES.faults)
def test_a_fault_is_found(what: str) -> None:
    """See built_in_faults."""
    NODES.check_is_found(what)
