"""Measures whole processes: the commands run in turn, A B A B, so that changes in the machine's speed affect all of them; and
formats the results as tables.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
KAFKA = ROOT.parent / "shared" / "apache-kafka" / "kafka"
# As with an installed kcli, byte code is cached: the first run, which is not counted, writes it.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


class Run(NamedTuple):
    """One finished process: seconds and peak memory of the largest process in it, in MB."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    exit_code: int


class Figure(NamedTuple):
    """The medians of several runs."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def run_once(command: Sequence[str]) -> Run:
    """Run a command to its end, its output thrown away."""
    start = time.perf_counter()
    process = subprocess.Popen(
        list(command), cwd=ROOT, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Run(time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, process.returncode)


def side_by_side(commands: dict[str, Sequence[str]], runs: int, *, may_end_with: Sequence[int] = (0,)) -> dict[str, Figure]:
    """Run the commands in turn, `runs` times after a warm-up -> the medians by name.

    Raises RuntimeError on an exit code that is not among those that a command may end with.
    """
    found: dict[str, list[Run]] = {name: [] for name in commands}
    for number in range(runs + 1):
        for name, command in commands.items():
            done = run_once(command)
            if done.exit_code not in may_end_with:
                raise RuntimeError(f"{name} ended with exit code {done.exit_code}: {' '.join(command)}")
            if number:
                found[name].append(done)
    return {
        name: Figure(*(statistics.median(getattr(done, field) for done in all_runs) for field in Figure._fields))
        for name, all_runs in found.items()
    }


def kcli(*arguments: str) -> list[str]:
    """The command line of kcli, run by this interpreter."""
    return [sys.executable, "-m", "kcli", *arguments]


def warm(path: Path) -> None:
    """Bring a file into the page cache, so that no row pays for the disk."""
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """As RESULTS.md has them."""
    first, *lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([first, "|---" * len(head) + "|", *lines])
