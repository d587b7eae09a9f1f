"""Protects: no damage to any file that Kafka writes makes a command hang, crash, take more than bounded time and memory, or
change anything on disk.

A case is one damaged file, on which up to three commands run; tests.bad_input_worker says what is demanded of each.

    tier    random damage                      drawn by Hypothesis
    ------  ---------------------------------  ----------------------------------------------
    fast    100 of the 300 files               -
    ci      1,200 cases, each file 4 times     300 cases, 100 files 3 times
    slow    20,000 cases, each file 66 times   some 7,500 cases, each file up to 25 times

A failure names the command line that repeats it.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bad_input_worker import CASE_SECONDS, fixture_files

ROOT = Path(__file__).resolve().parents[1]
SEED = 20_261
# A worker that is silent for so long hangs where its own alarm cannot reach it. Hypothesis says nothing while it works.
SILENT_SECONDS = {"random": 4 * CASE_SECONDS, "hypothesis": 20 * CASE_SECONDS}


def run_worker(scratch: Path, way: str, *numbers: int, program: tuple[str, ...] = ("-m", "tests.bad_input_worker")) -> int:
    """Run a worker whose files lie below `scratch` -> how many damaged files it tried. Fails with what it told."""
    words = [sys.executable, *program, way, *map(str, numbers)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(scratch)}
    again = f"to repeat it: python -m tests.bad_input_worker {way} {' '.join(map(str, numbers))}"
    with open(scratch / "stderr", "wb") as errors:
        worker = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=errors)
    assert worker.stdout is not None
    told, is_hung = bytearray(), False
    with worker.stdout as pipe:
        poller = select.poll()  # select itself takes no descriptor beyond 1023
        poller.register(pipe, select.POLLIN)
        while poller.poll(SILENT_SECONDS[way] * 1000):
            if not (piece := os.read(pipe.fileno(), 65536)):
                break
            told += piece
        else:
            is_hung = True
            worker.kill()
    code = worker.wait()
    lines = told.decode().splitlines()
    failures = [json.loads(line) for line in lines if line.startswith("{")]
    assert not failures, f"{len(failures)} failures, {again}\n" + "\n".join(
        f"case {f['case']}: {f['failure']}" for f in failures
    )
    if code != 0 or not lines or not lines[-1].startswith("done "):
        last = next((line for line in reversed(lines) if line.startswith("start ")), "start")
        how = "hung" if is_hung else f"ended with code {code}"
        pytest.fail(
            f"the worker {how} in case {last.removeprefix('start ')}, {again}\n{(scratch / 'stderr').read_text()[-3000:]}"
        )
    return int(lines[-1].removeprefix("done "))


def test_random_damage_in_short(tmp_path: Path) -> None:
    """A hundred files with random damage."""
    assert run_worker(tmp_path, "random", SEED, 0, 100) == 100


@pytest.mark.ci
@pytest.mark.parametrize("first", range(0, 1200, 600))
def test_random_damage(tmp_path: Path, first: int) -> None:
    """Each file four times."""
    assert run_worker(tmp_path, "random", SEED + 1, first, 600) == 600


@pytest.mark.ci
def test_drawn_damage_in_short(tmp_path: Path) -> None:
    """A third of the files, a few times each."""
    assert run_worker(tmp_path, "hypothesis", SEED + 2, 0, 100, 3) >= 250


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 20_000, 500))
def test_random_damage_at_length(tmp_path: Path, first: int) -> None:
    """Each file 66 times, 20,000 cases in all."""
    assert run_worker(tmp_path, "random", SEED + 3, first, 500) == 500


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, len(fixture_files(0)), 20))
def test_drawn_damage(tmp_path: Path, first: int) -> None:
    """Each file 25 times; a file of a few bytes has fewer ways to be damaged."""
    assert run_worker(tmp_path, "hypothesis", SEED + 4, first, 20, 25) >= 20 * 10


FAULTS = {
    "raises": ("1 / 0", "ZeroDivisionError"),
    "writes": ("open(words[-1] + '.new', 'w').close() or 0", "changed on disk"),
    "exits": ("3", "exit code 3"),
    "crashes": ("os.abort()", "ended with code -6 in case 7"),
    "hangs": (
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM]) and signal.pause() or signal.pause()",
        "hung in case 7",
    ),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_the_judge_sees_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A command that raises, writes, ends otherwise, crashes or hangs is told, with its case."""
    does, told = FAULTS[kind]
    program = (
        "import os, signal, sys; import tests.bad_input_worker as worker; "
        f"worker.kcli = lambda words: {does}; worker.main('random', {SEED}, 7, 1)"
    )
    monkeypatch.setitem(SILENT_SECONDS, "random", 3)
    with pytest.raises((AssertionError, pytest.fail.Exception), match=told):
        run_worker(tmp_path, "random", SEED, 7, 1, program=("-c", program))
