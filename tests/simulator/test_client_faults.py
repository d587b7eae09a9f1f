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
from kcli.simulator.coordination.node_settings import make_coordination_node
from kcli.simulator.coordination.workload import DEFAULT_STEPS, CoordinationSimulation
from kcli.simulator.node_maker import NodeMaker
from kcli.simulator.runner import Simulation

sys.path.insert(0, str(Path(__file__).parent))
from wrong_clients import LOG_WRONG, WRONG

MAX_SEEDS = 40


def simulation(seed: int, steps: int = DEFAULT_STEPS) -> CoordinationSimulation:
    make_node = make_coordination_node(seed)
    return CoordinationSimulation(
        seed, make_node, make_node.directories, steps=steps, cleaning_rounds=make_node.cleaning_rounds
    )


def log_simulation(seed: int) -> Simulation:
    make_node = NodeMaker(seed)
    return Simulation(seed, make_node, make_node.directories, cleaning_rounds=make_node.cleaning_rounds)


@pytest.mark.ci
@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_client_is_found(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the seed of the list, or by one of the first 40; and by the check of the list."""
    wrong = WRONG[what]
    wrong.patch(monkeypatch)
    found = (simulation(seed).run().failure for seed in (wrong.seed, *range(MAX_SEEDS)))
    is_found = any(failure.startswith(wrong.check) and failure and "TypeError" not in failure for failure in found)
    assert is_found, f"no seed below {MAX_SEEDS} finds a client that {what} by {wrong.check or 'anything'}"


@pytest.mark.ci
@pytest.mark.parametrize("what", LOG_WRONG)
def test_a_wrong_client_is_found_by_the_workload_of_logs(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = LOG_WRONG[what]
    wrong.patch(monkeypatch)
    found = (log_simulation(seed).run().failure for seed in (wrong.seed, *range(MAX_SEEDS)))
    assert any(wrong.check in failure for failure in found), f"no seed below {MAX_SEEDS} finds a client that {what}"


@pytest.mark.ci
def test_the_cores_of_the_workload_of_logs_do_something() -> None:
    runs = [log_simulation(seed) for seed in range(12)]
    assert [outcome.failure for run in runs if (outcome := run.run()).failure] == []
    assert sum(one.acknowledged_batches for run in runs for one in run.core_producers) > 50
    assert sum(one.record_count for run in runs for one in run.core_consumers) > 100


@pytest.mark.ci
def test_the_cores_do_something() -> None:
    runs = [simulation(seed) for seed in range(6)]
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
