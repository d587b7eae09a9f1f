"""Protects clusters of nodes through deaths, power losses, partitions and pauses: seeds pass, built-in faults are found.

A seed that fails is repeated by `kcli simulate --workload cluster --seed N`, which prints the end of its trace.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from random import Random
from typing import cast

import pytest

from kcli.client.admin.driver import AdminCore
from kcli.client.admin.topics import NewTopic, create_topics
from kcli.client.client_config import ClientConfig
from kcli.client.errors import ClientError
from kcli.format.kafka_uuid import Uuid
from kcli.server.node import Node
from kcli.server.raft.messages import ReplicaKey
from kcli.simulator.cluster import LAYOUTS, ClusterChecks, ClusterSimulation
from kcli.simulator.partition_ledger import SimulationFailure

sys.path.insert(0, str(Path(__file__).parent))
from wrong_clusters import CLUSTERS
from wrong_replicas import REPLICAS


def failures(runs: Iterable[ClusterSimulation]) -> list[str]:
    """What failed, and how to repeat it."""
    outcomes = (run.run() for run in runs)
    return [f"kcli simulate --workload cluster --seed {one.seed}: {one.failure}" for one in outcomes if one.failure]


def test_one_seed() -> None:
    """In every run of the tests."""
    assert failures([ClusterSimulation(4)]) == []


def test_a_request_to_a_paused_controller_is_answered_by_the_next_one() -> None:
    """As soon as that is elected, not after controller.socket.timeout.ms (30 s), for which a broker of Kafka waits."""
    run = next(one for one in map(ClusterSimulation, range(20)) if one.layout == LAYOUTS[1])
    for machine in run.machines.values():
        machine.start()
    run._until(lambda: all(machine.is_ready for machine in run.machines.values()), "all nodes are ready")
    leader = next(one for one in run.machines.values() if cast(Node, one.node).quorum.client.is_leader)
    client = run.world.core_client("admin", Random(1), ClientConfig(default_api_timeout_ms=120_000, request_timeout_ms=120_000))
    core = AdminCore(client.network)
    client.run(core.poll)

    def create(name: str) -> float:
        """Create a topic, and return how many ms that took."""
        begun_ms = client.now_ms
        operation = client.start(partial(core.start, create_topics([NewTopic(name, 1, 1)])))
        run._until(lambda: hasattr(operation, "result"), f"topic {name} is created")
        assert not isinstance(operation.result, ClientError)
        return client.now_ms - begun_ms

    create("first")  # the brokers have connections to the controller now
    leader.pause()
    assert create("second") < 10_000
    leader.resume()


def test_a_vote_given_twice_is_reported() -> None:
    """By the check of whole nodes; the simulator of quorums has a core that does so. Another disk is another voter."""
    checks, voter = ClusterChecks(), ReplicaKey(1, Uuid(bytes(15) + b"\1"))
    for epoch, candidate in ((3, 2), (3, 2), (4, 3)):
        checks.check_vote(epoch, voter, ReplicaKey(candidate))
    checks.check_vote(3, ReplicaKey(1, Uuid(bytes(15) + b"\2")), ReplicaKey(3))
    with pytest.raises(SimulationFailure, match="node 1 votes for node 3 in epoch 3, after node 2"):
        checks.check_vote(3, voter, ReplicaKey(3))


@pytest.mark.ci
def test_a_few_seeds() -> None:
    """With every layout, groups, share groups, and nodes that are added; leaders and voters changed, snapshots came to running
    nodes, requests between nodes came twice, records were acknowledged and read."""
    runs = [ClusterSimulation(seed) for seed in range(18)]
    assert failures(runs) == []
    assert {run.layout for run in runs} >= {*LAYOUTS}
    assert {run.is_dynamic for run in runs} == {True, False}
    added = {run.newcomer in run.layout.controllers for run in runs if run.newcomer is not None}
    assert added == {True, False}, "brokers and controllers are added"
    assert sum(run.checks.elections() > 2 for run in runs) > 3
    assert sum(producer.acknowledged_batches for run in runs for producer in run.producers) > 1000
    assert sum(run.groups.acknowledged for run in runs if run.groups is not None) > 100
    assert sum(run.groups.read for run in runs if run.groups is not None) > 100
    assert sum(run.groups.read_by_shares for run in runs if run.groups is not None) > 50
    assert sum(machine.repeated_count for run in runs for machine in run.machines.values()) > 100
    assert sum(run.operator.changes for run in runs) > 0
    assert sum(run.operator.unregistrations for run in runs) > 0
    assert sum(run.checks.snapshots for run in runs) > 0
    assert sum(chaos.deaths for run in runs for chaos in run.chaos.values()) > 10


@pytest.mark.ci
@pytest.mark.parametrize("first", range(18, 60, 14))
def test_60_seeds(first: int) -> None:
    """With those above, and 240 of quorums, 300 in CI; in blocks, so that processes share them."""
    assert failures(ClusterSimulation(seed) for seed in range(first, first + 14)) == []


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


@pytest.mark.ci
@pytest.mark.parametrize("what", REPLICAS.faults)
def test_a_wrong_replica_is_found(what: str) -> None:
    """By the seed of the list, or by one of the first 40 with several replicas."""
    REPLICAS.check_is_found(what)


@pytest.mark.ci
def test_replicas_through_faults() -> None:
    """Leaders changed, logs were cut where they diverge, and power was lost; acknowledged records were read."""
    runs = [ClusterSimulation(seed, is_replicated=True, has_groups=False) for seed in range(8)]
    assert failures(runs) == []
    assert {len(run.layout.brokers) for run in runs} == {2, 3}
    assert sum(chaos.deaths for run in runs for chaos in run.chaos.values()) > 20
    assert sum(machine.disk.power_losses for run in runs for machine in run.machines.values()) > 5
    assert sum(run.replicas.leader_changes for run in runs if run.replicas is not None) > 20
    assert sum(run.replicas.truncations for run in runs if run.replicas is not None) > 0
    assert sum(producer.acknowledged_batches for run in runs for producer in run.producers) > 200
