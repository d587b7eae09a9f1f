"""Measures whole processes: the commands run in turn, A B A B, so that changes in the machine's speed affect all of them; and
formats the results as tables.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
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


# The figures of one round, by row and by field.
Figures = dict[str, dict[str, float]]


def compare_rounds(names: Sequence[str], rounds: int, measure: Callable[[str, Path], Figures]) -> str:
    """Measure the programs in turn, each round in an empty directory -> a table with the medians, the least and the most.

    The figures of each round are a line of JSON on stderr.
    """
    found: dict[str, list[Figures]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            with tempfile.TemporaryDirectory(prefix="kcli-bench-") as work:
                figures = measure(name, Path(work))
            print(json.dumps({"program": name, **figures}), file=sys.stderr, flush=True)
            found[name].append(figures)
    table = []
    for row, fields in found[names[0]][0].items():
        for field in fields:
            values = [[figures[row][field] for figures in found[name]] for name in names]
            cells = [f"{statistics.median(one):.2f} ({min(one):.2f} to {max(one):.2f})" for one in values]
            table.append((f"{row}, {field}", *cells))
    return markdown_table(("median (least to most)", *names), table)


def warm(path: Path) -> None:
    """Bring a file into the page cache, so that no row pays for the disk."""
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """As RESULTS.md has them."""
    first, *lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([first, "|---" * len(head) + "|", *lines])
