"""Protects kcli simulate: what it prints, its exit codes, and the command that repeats a failure."""

from __future__ import annotations

import pytest

from kcli.commands.app import main
from kcli.simulator.machine import Machine
from kcli.simulator.partition_ledger import SimulationFailure

STEPS = ["--steps", "120"]


def test_a_seed_that_passes(capfd: pytest.CaptureFixture[str]) -> None:
    """One line on stdout with the digest, the same each time; the progress is on stderr."""
    assert main(["simulate", "--seed", "5", *STEPS]) == 0
    first = capfd.readouterr()
    assert first.out.startswith("1 seed, 0 failed, ") and "; digest " in first.out and first.out.count("\n") == 1
    assert first.err.startswith("1/1, 0 failed; seed 5: ")
    assert main(["simulate", "--seed", "5", *STEPS]) == 0
    assert capfd.readouterr().out.rpartition("digest")[2] == first.out.rpartition("digest")[2]


def test_a_whole_trace(capfd: pytest.CaptureFixture[str]) -> None:
    """--trace prints each line of it."""
    assert main(["simulate", "--seeds", "5-6", *STEPS, "--trace"]) == 0
    out = capfd.readouterr().out
    assert out.count("machine      start 1\n") == 2 and out.count("runner       end\n") == 2
    assert out.splitlines()[-1].startswith("2 seeds, 0 failed")


def test_a_seed_that_fails(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It says why, shows the end of the trace and how to repeat it, goes on with the next, and exits with 1."""

    def refuse(self: Machine) -> None:
        self._trace.add("machine", "refuses")
        raise SimulationFailure("this one does not start")

    monkeypatch.setattr(Machine, "start", refuse)
    assert main(["simulate", "--seeds", "7-8", *STEPS]) == 1
    out = capfd.readouterr().out
    assert "refuses\n---\nseed 7 failed: this one does not start\nrepeat it with: kcli simulate --seed 7 --steps 120\n" in out
    assert "seed 8 failed" in out and out.splitlines()[-1].startswith("2 seeds, 2 failed")


@pytest.mark.parametrize("seeds", ["5", "x-9", "9-5", "-"])
def test_seeds_that_are_none(seeds: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A sentence, and exit code 2."""
    assert main(["simulate", "--seeds", seeds]) == 2
    assert "give the first and the last one" in capfd.readouterr().err
