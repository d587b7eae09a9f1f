"""Faults built into kcli on purpose, and how the simulators look for them.

A fault replaces a function of kcli with a wrong one. Its test simulates seeds until a check of the workload reports it:

    workload      list                         what has the fault
    ------------  ---------------------------  --------------------------------------------------
    nodes         wrong_nodes.FAULTS           logs, cleaner, start and stop of a node
    coordination  wrong_coordinators.FAULTS    groups, transactions, share groups
    clients       wrong_clients.FAULTS         kcli's own client, in the workload of coordination
    log-clients   wrong_clients.LOG_FAULTS     kcli's own client, in the workload of logs
    quorums       wrong_quorums.FAULTS         the raft core
    clusters      wrong_clusters.FAULTS        what carries the raft core out, on several nodes
    replicas      wrong_replicas.FAULTS        leaders and followers of partitions

Most faults of coordinators need a rare sequence of events. A fault has a `SmallWorld` that brings most of its seeds to that
sequence: the groups that can meet it and no others, with or without deaths. So a change of the program, after which each seed
has other events, does not make the test slow: one of the next seeds finds the fault, each in a second or two. The tests of the
small worlds without a fault show that they pass.

`seeds.txt` has the seed to begin with of each fault that seed 0 does not find. `python -m tests.simulator.find_seeds WORKLOAD`
searches the cheapest one of each fault and writes the file anew.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kcli.simulator.chaos import Chaos
from kcli.simulator.coordination.node_settings import make_coordination_node
from kcli.simulator.coordination.workload import DEFAULT_STEPS, CoordinationSimulation

Patch = Callable[[pytest.MonkeyPatch], None]
SEEDS = Path(__file__).parent / "seeds.txt"
MAX_SEEDS = 40
# A fault that does not fit the function it replaces any more fails with its own exception, whatever is checked.
_MISFITS = ("AttributeError", "TypeError", "ValueError")


def patched(owner: Any, name: str, make: Callable[[Any], Any]) -> Patch:
    """Return a patch that puts another function in the place of `owner.name`, made of the real one."""
    return lambda monkeypatch: monkeypatch.setattr(owner, name, make(getattr(owner, name)))


class SmallWorld(NamedTuple):
    """A part of the workload of coordination: these groups only, without deaths if it is calm.

    `constants` replaces some of the workload: owner, name, value.
    """

    only: tuple[str, ...] = ()
    steps: int = DEFAULT_STEPS
    is_calm: bool = False
    constants: tuple[tuple[Any, str, Any], ...] = ()

    def enter(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Change the workload."""
        if self.is_calm:
            monkeypatch.setattr(Chaos, "run", lambda self: iter(()))
        for owner, name, value in self.constants:
            monkeypatch.setattr(owner, name, value)

    def simulation(self, seed: int) -> CoordinationSimulation:
        """Make the simulation of a seed."""
        make_node = make_coordination_node(seed)
        directories, rounds = make_node.directories, make_node.cleaning_rounds
        return CoordinationSimulation(seed, make_node, directories, steps=self.steps, cleaning_rounds=rounds, only=self.only)


WHOLE = SmallWorld()


class Fault(NamedTuple):
    """A fault, how the failure begins that reports it ("": any), and its world; `space` is a small world of a quorum."""

    patch: Patch
    check: str = ""
    world: SmallWorld = WHOLE
    space: str = ""

    def is_found(self, failure: str) -> bool:
        """Return whether a failure reports this fault."""
        return bool(failure) and not failure.startswith(_MISFITS) and re.match(self.check, failure) is not None


class Search(NamedTuple):
    """One seed that was simulated with a fault."""

    seed: int
    is_found: bool
    seconds: float
    failure: str


class FaultList(NamedTuple):
    """The faults of a workload, and `simulate(seed, world)`, which returns the failure of a seed."""

    workload: str
    faults: dict[str, Fault]
    simulate: Callable[[int, SmallWorld], str]

    def search(self, what: str, seeds: Iterator[int]) -> Iterator[Search]:
        """Simulate seeds with a fault, which is put in anew for each: some faults count."""
        fault = self.faults[what]
        for seed in seeds:
            with pytest.MonkeyPatch.context() as monkeypatch:
                fault.world.enter(monkeypatch)
                fault.patch(monkeypatch)
                begin_s = time.process_time()
                failure = self.simulate(seed, fault.world)
                seconds = time.process_time() - begin_s
            yield Search(seed, fault.is_found(failure), seconds, failure)

    def check_is_found(self, what: str) -> None:
        """Fail unless the listed seed or one of the first ones finds a fault, by its check."""
        first = listed_seeds().get((self.workload, what), 0)
        seeds = dict.fromkeys((first, *range(MAX_SEEDS)))
        failures = []
        for found in self.search(what, iter(seeds)):
            if found.is_found:
                return
            failures.append(found.failure)
        by = self.faults[what].check or "anything"
        others = "; ".join(sorted({failure[:100] for failure in failures if failure}))
        pytest.fail(f"no seed below {MAX_SEEDS} finds what {what} by {by}; other failures: {others or 'none'}")


def listed_seeds() -> dict[tuple[str, str], int]:
    """Read the seeds to begin with: (workload, fault) -> seed."""
    rows = (line.split(None, 2) for line in SEEDS.read_text().splitlines() if line and not line.startswith("#"))
    return {(workload, what): int(seed) for workload, seed, what in rows}


def write_seeds(seeds: dict[tuple[str, str], int]) -> None:
    """Write the seeds to begin with; seed 0 needs no line."""
    head = [line for line in SEEDS.read_text().splitlines() if line.startswith("#")]
    rows = [f"{workload:<13}{seed:>5}  {what}" for (workload, what), seed in sorted(seeds.items()) if seed]
    SEEDS.write_text("\n".join((*head, *rows)) + "\n")
