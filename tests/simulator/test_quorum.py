"""Protects the raft core in quorums that lose messages, disks and power: seeds pass, and wrong cores are found.

A seed that fails is repeated by `kcli simulate --workload quorum --seed N`, which prints the end of its trace.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kcli.server.raft.messages import EpochEnd, LeaderChangeEntry, SnapshotId
from kcli.simulator.quorum.memory_log import MemoryLog
from kcli.simulator.quorum.scripts import ScriptError, run_script
from kcli.simulator.quorum.simulation import QuorumResult, QuorumSimulation
from kcli.simulator.quorum.small_worlds import LARGE, SMALL, TOGETHER, search

sys.path.insert(0, str(Path(__file__).parent))
from wrong_quorums import QUORUMS

SCRIPTS = sorted((Path(__file__).parent / "quorum_scripts").glob("*.txt"))


def simulate(seed: int) -> QuorumResult:
    return QuorumSimulation(seed).run()


def failures(outcomes: list[QuorumResult]) -> list[str]:
    """What failed, and how to repeat it."""
    return [f"kcli simulate --workload quorum --seed {one.seed}: {one.failure}" for one in outcomes if one.failure]


def test_one_seed() -> None:
    """In every run of the tests; and a seed is a trace to the byte."""
    outcomes = [simulate(3), simulate(3)]
    assert failures(outcomes) == []
    assert outcomes[0].digest == outcomes[1].digest


@pytest.mark.ci
def test_some_seeds() -> None:
    """And everything happens in them: a simulation in which nothing happens proves nothing."""
    outcomes = [simulate(seed) for seed in range(100)]
    assert failures(outcomes) == []
    assert sum(one.epochs for one in outcomes) > 300
    assert sum(one.committed for one in outcomes) > 5000
    assert sum(one.crashes for one in outcomes) > 300
    assert sum(one.snapshots for one in outcomes) > 150
    assert sum(one.voter_changes for one in outcomes) > 50


@pytest.mark.ci
def test_240_seeds() -> None:
    """The first hundred in the test above; with those of clusters 300 in CI."""
    assert failures([simulate(seed) for seed in range(100, 240)]) == []


@pytest.mark.slow
@pytest.mark.parametrize("block", range(30))
def test_3000_seeds(block: int) -> None:
    """Before a release, 100 at a time."""
    assert failures([simulate(seed) for seed in range(1000 + block * 100, 1100 + block * 100)]) == []


@pytest.mark.ci
@pytest.mark.parametrize("what", QUORUMS.faults)
def test_a_wrong_core_is_found(what: str) -> None:
    """By the check of the list; see built_in_faults."""
    QUORUMS.check_is_found(what)


# ----------------------------------------------------------------------------------------------------------- small worlds


@pytest.mark.ci
@pytest.mark.parametrize("name", SMALL)
def test_a_small_world_is_searched_completely(name: str) -> None:
    """Every order of deliveries, flushes and timeouts; the number of states is printed by `pytest -s`."""
    config, bounds, is_led = SMALL[name]
    found = search(config, bounds, is_led=is_led)
    print(f"{name}: {found.states} states, {found.steps} steps")
    assert found.failure == "", "\n".join(found.trace)
    assert found.is_complete and found.states > 100


@pytest.mark.ci
@pytest.mark.parametrize("name", TOGETHER)
def test_a_world_with_everything_is_searched_for_some_seconds(name: str) -> None:
    """Elections, appends, a crash, a lost message and a change of the voters in one: all orders of the first steps."""
    config, bounds, is_led = TOGETHER[name]
    found = search(config, bounds, is_led=is_led, most_states=50_000)
    print(f"{name}: {found.states} states, {found.steps} steps")
    assert found.failure == "", "\n".join(found.trace)
    assert found.states >= 50_000


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_large_world_is_searched_as_far_as_time_allows(name: str) -> None:
    """`kcli simulate --small-worlds STATES` goes further."""
    config, bounds, is_led = LARGE[name]
    found = search(config, bounds, is_led=is_led, most_states=50_000)
    assert found.failure == "", "\n".join(found.trace)


@pytest.mark.ci
@pytest.mark.parametrize("what", [what for what, fault in QUORUMS.faults.items() if fault.space])
def test_a_small_world_finds_a_wrong_core(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the check of the list; the trace ends with what led to it."""
    fault = QUORUMS.faults[what]
    fault.patch(monkeypatch)
    config, bounds, is_led = (SMALL | LARGE)[fault.space]
    found = search(config, bounds, is_led=is_led, most_states=10_000)
    assert found.failure.startswith(fault.check)
    assert found.trace[-1] == f"QuorumFailure: {found.failure}"


# ---------------------------------------------------------------------------------------------------------------- scripts


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_does_what_is_recorded(script: Path) -> None:
    """KCLI_WRITE_DOCS=1 records it anew; read the difference before you commit it."""
    text = script.read_text()
    found = run_script(text)
    if os.environ.get("KCLI_WRITE_DOCS"):
        script.write_text(found)
        return
    assert found == text


@pytest.mark.parametrize("text", ["settle", "voters 1\nvote 1", "voters 1\nadd x", "voters 1\ncrash 7"])
def test_a_script_that_cannot_be_run_is_refused(text: str) -> None:
    """With a sentence, not a traceback."""
    with pytest.raises(ScriptError):
        run_script(text)


# ------------------------------------------------------------------------------------------------------- the log in memory


def log_of(*epochs: int) -> MemoryLog:
    """A log with a batch of two values of each epoch; nothing is flushed."""
    log = MemoryLog()
    for epoch in epochs:
        log.append_as_leader(epoch, ("a", "b"), 0)
    return log


def test_a_loss_of_power_leaves_any_state_since_the_last_flush() -> None:
    """With tears between batches, and with a truncation that is undone."""
    log = log_of(1, 1)
    log.begin_flush()
    log.append_as_leader(2, ("c",), 0)
    log.end_flush()
    assert (log.durable_end_offset, log.end_offset) == (4, 5)
    log.truncate_to(2)
    assert log.durable_end_offset == 2
    ends = []
    for survivor in range(len(log.states)):
        crashed = log.copy()
        crashed.restart(survivor)
        ends.append((crashed.end_offset, crashed.durable_end_offset))
    assert ends == [(4, 4), (5, 5), (2, 2)]


def test_the_ends_of_epochs() -> None:
    """The largest epoch that is not above the one asked for, as leader-epoch-checkpoint has it."""
    log = log_of(1, 1, 3)
    assert [log.end_of_epoch(epoch) for epoch in range(5)] == [
        EpochEnd(0, 0),
        EpochEnd(1, 4),
        EpochEnd(1, 4),
        EpochEnd(3, 6),
        EpochEnd(3, 6),
    ]


def test_equal_logs_have_equal_digests_whatever_they_begin_with() -> None:
    """A log behind a snapshot is compared with a whole one; a log with another epoch is another log."""
    log, whole = log_of(1, 1, 3), log_of(1, 1, 3)
    snapshot = log.snapshot_at(4)
    assert snapshot.id == SnapshotId(4, 1)
    log.add_snapshot(snapshot)
    log.clean()
    assert (log.start_offset, log.now.chain_at(6)) == (4, whole.now.chain_at(6))
    assert log_of(1, 2, 3).now.chain_at(6) != whole.now.chain_at(6)


def test_a_snapshot_beyond_the_log_empties_it() -> None:
    """A follower's snapshot is flushed before the log: after a loss of power the log begins behind it."""
    log = log_of(1)
    log.append_control(2, (LeaderChangeEntry(1, (1,), (1,)),), 0)
    log.add_snapshot(log.snapshot_at(3))
    log.restart(0)
    assert (log.start_offset, log.end_offset, log.last_epoch) == (3, 3, 2)
