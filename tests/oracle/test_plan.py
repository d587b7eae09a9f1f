"""Protects the tests of clients from hanging: a driver that falls silent, or ends, costs a step's limit and is named."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.oracle.clients import plan

# Answers the first step, then does as each test says.
ONE_ANSWER = """
import subprocess, sys
sys.stdin.readline()
print("{}", flush=True)
print("last words", file=sys.stderr, flush=True)
"""
WAIT_FOR_EVER = "import threading; threading.Event().wait()"


def answers_of(program: str) -> dict[str, plan.Answer]:
    return plan.run_plan([sys.executable, "-c", program], "127.0.0.1:1", [plan.create("one", "t"), plan.create("two", "t")])


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        (ONE_ANSWER + WAIT_FOR_EVER, "the driver was silent for 0.5 s after 1 of 2 answers, and was ended"),
        (ONE_ANSWER + "sys.exit(3)", "the driver ended with exit code 3"),
    ],
)
def test_a_driver_that_answers_no_more(monkeypatch: pytest.MonkeyPatch, program: str, sentence: str) -> None:
    """What it had answered counts; the rest has no answer, with the reason and the driver's last words."""
    monkeypatch.setattr(plan, "STEP_SECONDS", 0.5)
    assert answers_of(program) == {
        "one": {},
        "two": {"error": plan.NO_ANSWER, "message": f"{sentence}; it said: last words\n"},
    }


def test_a_process_that_a_driver_leaves_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the driver's stdout, which so never ends; nobody waits for that."""
    monkeypatch.setattr(plan, "STEP_SECONDS", 0.5)
    left = f"left = subprocess.Popen([sys.executable, '-c', {WAIT_FOR_EVER!r}])\nprint(left.pid, file=sys.stderr)\n"
    message = answers_of(ONE_ANSWER + left)["two"]["message"]
    subprocess.run(["kill", message.split()[-1]], check=True)
    assert message.startswith("the driver was silent for 0.5 s")
