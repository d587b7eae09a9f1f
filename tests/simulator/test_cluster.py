"""Protects clusters of nodes through deaths, power losses, partitions and pauses: seeds pass, built-in faults are found.

A seed that fails is repeated by `kcli simulate --workload cluster --seed N`, which prints the end of its trace.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from kcli.simulator.cluster import LAYOUTS, ClusterSimulation

sys.path.insert(0, str(Path(__file__).parent))
from wrong_clusters import CLUSTERS


def failures(runs: Iterable[ClusterSimulation]) -> list[str]:
    """What failed, and how to repeat it."""
    outcomes = (run.run() for run in runs)
    return [f"kcli simulate --workload cluster --seed {one.seed}: {one.failure}" for one in outcomes if one.failure]


def test_one_seed() -> None:
    """In every run of the tests."""
    assert failures([ClusterSimulation(4)]) == []


@pytest.mark.ci
def test_a_few_seeds() -> None:
    """With every layout; and leaders and voters changed, snapshots came to running nodes, records were acknowledged."""
    runs = [ClusterSimulation(seed) for seed in range(12)]
    assert failures(runs) == []
    assert {run.layout for run in runs} == {*LAYOUTS}
    assert {run.is_dynamic for run in runs} == {True, False}
    assert sum(run.checks.elections() > 2 for run in runs) > 3
    assert sum(producer.acknowledged_batches for run in runs for producer in run.producers) > 1000
    assert sum(run.operator.changes for run in runs) > 0
    assert sum(run.checks.snapshots for run in runs) > 0
    assert sum(chaos.deaths for run in runs for chaos in run.chaos.values()) > 10


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_1000_seeds(block: int) -> None:
    """Before a release, 50 at a time."""
    assert failures(ClusterSimulation(seed) for seed in range(1000 + block * 50, 1050 + block * 50)) == []


@pytest.mark.ci
def test_a_seed_is_a_trace_to_the_byte() -> None:
    """In another process, whatever Python's hashes are."""
    digest = ClusterSimulation(4).run().digest[:16]
    environment = os.environ | {"PYTHONHASHSEED": "4711", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "kcli", "simulate", "--workload", "cluster", "--seed", "4"]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert f"digest {digest}" in found.stdout


@pytest.mark.ci
@pytest.mark.parametrize("what", CLUSTERS.faults)
def test_a_wrong_node_of_a_cluster_is_found(what: str) -> None:
    """By the seed of the list, or by one of the first 40."""
    CLUSTERS.check_is_found(what)
