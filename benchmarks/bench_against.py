"""Compares this tree with another checkout of it, such as the commit at which a piece of work began.

    python -m benchmarks.bench_against TREE [--pairs 11] [--rows start,dump-log,verify]

TREE is a worktree with its own build (`git worktree add TREE COMMIT`, then `python setup.py build_ext --inplace` there).

    row              a run
    ---------------  ---------------------------------------------------------------------------------------------------------
    start            `--help` of each command that both trees have
    serve            a broker from its start to its first response, on the log directory of the input
    dump-log, json   the records of the input as text and as JSON
    kafka            the same as kafka-dump-log prints them, with --print-data-log
    verify           the input, in one process
    describe         the input
    replay           the input to a topic of its own in a broker of this tree
    to-parquet       the input; starts Spark, so it is measured only if it is named

The two trees run in pairs, in turn first and second, and a pair gives one ratio of CPU seconds (user and system), which a busy
machine disturbs less than time on the clock. The table has the median ratio and the interval of order statistics that covers
the median with a probability of 95 % or a little more; fewer than six pairs have none. Output is discarded.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from math import comb
from pathlib import Path

from benchmarks.brokers import Broker, started
from benchmarks.measure import ENVIRONMENT, ROOT, kcli, markdown_table
from kcli.client import Producer
from kcli.commands.app import COMMANDS

RECORDS = 300_000
TOPIC = "input"
COVERAGE = 0.95
ROWS = ("start", "serve", "dump-log", "json", "kafka", "verify", "describe", "replay")


class TreeBroker(Broker):
    """A broker of kcli that runs from the sources of a tree."""

    def __init__(self, tree: Path, directory: Path) -> None:
        super().__init__("kcli", directory)
        self.tree = tree

    def _command(self) -> list[str]:
        words = super()._command()
        # `python -m` would take the package of the working directory, which is this tree's.
        return [
            words[0],
            "-c",
            f"import os, runpy; os.chdir({str(self.tree)!r}); runpy.run_module('kcli', alter_sys=True)",
            *words[3:],
        ]


def cpu_seconds(tree: Path, command: Sequence[str]) -> float:
    """Run a command of a tree to its end; return the CPU seconds of it and its children. Raises RuntimeError if it fails."""
    process = subprocess.Popen(
        list(command), cwd=tree, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} in {tree} ended with exit code {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def ratios(trees: tuple[Path, Path], run: Callable[[Path], float], pairs: int) -> list[float]:
    """Run both trees in pairs after a warm-up; return the ratio of the first to the second of each pair, sorted."""
    found = []
    for number in range(pairs + 1):
        order = trees if number % 2 else trees[::-1]
        seconds = {tree: run(tree) for tree in order}
        if number:
            found.append(seconds[trees[0]] / seconds[trees[1]])
    return sorted(found)


def interval(sorted_values: Sequence[float]) -> tuple[float, float] | None:
    """Return the narrowest symmetric pair of order statistics that covers the median with COVERAGE; None for too few values."""
    count = len(sorted_values)
    found = None
    for skipped in range(count // 2):
        outside = 2 * sum(comb(count, below) for below in range(skipped + 1)) / 2**count
        if 1 - outside < COVERAGE:
            break
        found = sorted_values[skipped], sorted_values[count - 1 - skipped]
    return found


def make_input(directory: Path) -> Path:
    """Write the records with a broker of this tree, and return its log directory after a clean stop."""
    broker = Broker("kcli", directory)
    broker.start()
    try:
        with Producer({"bootstrap.servers": f"127.0.0.1:{broker.port}"}) as producer:
            for number in range(RECORDS):
                producer.send(
                    TOPIC, key=b"key-%d" % (number % 5000), value=b'{"number": %d, "text": "%s"}' % (number, b"x" * 70)
                )
            producer.flush()
    finally:
        broker.stop()
    return directory / "data"


def start_of_broker(tree: Path, data: Path, scratch: Path) -> float:
    """Start a broker of a tree on a copy of the log directory; return its CPU seconds until the first response."""
    directory = scratch / "broker"
    shutil.copytree(data, directory / "data")
    with started(TreeBroker(tree, directory)) as broker:
        return broker.cpu_seconds()


def runs_of(rows: Sequence[str], data: Path, scratch: Path, target: Broker) -> dict[str, Callable[[Path], float]]:
    """Return what runs a row in a tree."""
    partition = str(data / f"{TOPIC}-0")
    log = str(next(Path(partition).glob("*.log")))
    commands = {
        "dump-log": ("dump-log", "--output", "text", log),
        "json": ("dump-log", "--output", "json", log),
        "kafka": ("dump-log", "--print-data-log", log),
        "verify": ("verify", partition),
        "describe": ("describe", str(data)),
    }
    sent = iter(range(1_000_000))

    def replay(tree: Path) -> float:
        number = next(sent)
        words = ("--to", f"127.0.0.1:{target.port}", "--map", f"{TOPIC}=copy-{number}", "--name", f"run-{number}")
        return cpu_seconds(tree, kcli("replay", partition, *words))

    def to_parquet(tree: Path) -> float:
        return cpu_seconds(tree, kcli("to-parquet", partition, "--out", str(scratch / f"parquet-{next(sent)}")))

    every: dict[str, Callable[[Path], float]] = {
        "start": lambda tree: sum(cpu_seconds(tree, kcli(command, "--help")) for command in COMMANDS),
        "serve": lambda tree: start_of_broker(tree, data, scratch),
        "replay": replay,
        "to-parquet": to_parquet,
        **{name: lambda tree, words=words: cpu_seconds(tree, kcli(*words)) for name, words in commands.items()},
    }
    return {name: every[name] for name in rows}


def main() -> None:
    """Measure, and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path)
    parser.add_argument("--pairs", type=int, default=11)
    parser.add_argument("--rows", default=",".join(ROWS))
    args = parser.parse_args()
    trees = ROOT, args.tree.resolve()
    table = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        data = make_input(scratch / "input")
        with started(Broker("kcli", scratch / "target")) as target:
            for name, run in runs_of(args.rows.split(","), data, scratch, target).items():
                found = ratios(trees, run, args.pairs)
                bounds = interval(found)
                between = "too few pairs" if bounds is None else f"{bounds[0]:.3f} to {bounds[1]:.3f}"
                table.append((name, f"{statistics.median(found):.3f}", between))
                print(name, *table[-1][1:], file=sys.stderr, flush=True)
    print(markdown_table(("what", "median ratio of CPU seconds", "interval"), table))


if __name__ == "__main__":
    main()
