"""Protects what the simulator says about kcli's own client: faults built into the client are found, too.

And the clients do something: a workload whose applications are never served proves nothing.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kcli.simulator.coordination.core_member import CoreMember
from kcli.simulator.coordination.core_producer import CoreProducerSession
from kcli.simulator.coordination.core_share_member import CoreShareMember
from kcli.simulator.coordination.history import Fate
from kcli.simulator.node_maker import NodeMaker
from kcli.simulator.runner import Simulation

sys.path.insert(0, str(Path(__file__).parent))
from built_in_faults import WHOLE, SmallWorld
from wrong_clients import CLIENTS, LOG_CLIENTS, SMALL_WORLDS


def log_simulation(seed: int) -> Simulation:
    make_node = NodeMaker(seed)
    return Simulation(seed, make_node, make_node.directories, cleaning_rounds=make_node.cleaning_rounds)


@pytest.mark.ci
@pytest.mark.parametrize("what", CLIENTS.faults)
def test_a_wrong_client_is_found(what: str) -> None:
    """See built_in_faults."""
    CLIENTS.check_is_found(what)


@pytest.mark.ci
@pytest.mark.parametrize("what", LOG_CLIENTS.faults)
def test_a_wrong_client_is_found_by_the_workload_of_logs(what: str) -> None:
    """See built_in_faults."""
    LOG_CLIENTS.check_is_found(what)


@pytest.mark.ci
@pytest.mark.parametrize("world", SMALL_WORLDS, ids=lambda world: " ".join(world.only))
def test_a_small_world_passes(world: SmallWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it finds is the fault, not the world."""
    world.enter(monkeypatch)
    outcome = world.simulation(0).run()
    assert outcome.failure == "" and outcome.batches > 10


@pytest.mark.ci
def test_the_cores_of_the_workload_of_logs_do_something() -> None:
    runs = [log_simulation(seed) for seed in range(12)]
    assert [outcome.failure for run in runs if (outcome := run.run()).failure] == []
    assert sum(one.acknowledged_batches for run in runs for one in run.core_producers) > 50
    assert sum(one.record_count for run in runs for one in run.core_consumers) > 100


@pytest.mark.ci
def test_the_cores_do_something() -> None:
    runs = [WHOLE.simulation(seed) for seed in range(8)]
    assert [outcome.failure for run in runs if (outcome := run.run()).failure] == []
    sharing = [one for run in runs for one in run.share_members if isinstance(one, CoreShareMember)]
    assert len(sharing) > 4 and sum(one.record_count for one in sharing) > 100
    members = [one for run in runs for one in run.members if isinstance(one, CoreMember)]
    assert len(members) > 10 and sum(one.record_count for one in members) > 200
    writes = [
        write
        for run in runs
        for writer in run.writers
        for write in run.stage.history.writes.values()
        if isinstance(writer.session, CoreProducerSession) and write.session.startswith(f"{writer.name}/")
    ]
    assert sum(write.is_acknowledged for write in writes) > 100
    fates = [one.fate for one in {write.transaction for write in writes} if one is not None]
    assert fates.count(Fate.COMMITTED) > 5 and fates.count(Fate.ABORTED) > 2
    commits = [one for run in runs for one in run.stage.history.commits if one.member == ""]
    assert sum(one.answered_ms is not None for one in commits) > 50
