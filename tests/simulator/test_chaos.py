"""Protects the bad days themselves: what they break they mend again, so that nobody waits for the end in vain."""

from __future__ import annotations

import sys
from pathlib import Path

from kcli.simulator.runner import Simulation

sys.path.insert(0, str(Path(__file__).parent))
from small_node import SmallNode


def test_a_directory_that_is_back_is_sound_for_the_next_start() -> None:
    """Also where no process runs at that moment: the one that comes next took it for lost until the end (seed 398)."""
    simulation = Simulation(0, SmallNode, ["/data"])
    disk, checker = simulation.disk, simulation.checker
    steps = simulation.chaos._lose_directory()
    next(steps)
    assert [fault.path for fault in disk.faults] == ["/data"]
    simulation.chaos._died()
    assert [fault.path for fault in disk.faults] == ["/data"] and checker.dead_directory == "/data"
    assert list(steps) != [] and not simulation.machine.is_up
    assert disk.faults == [] and checker.dead_directory is None
