"""Runs of `kcli replay` as processes, some of which are killed."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from tests.replay.delivered import Records, delivered

RUN_S = 120


class Run:
    """The end of one run."""

    def __init__(self, process: subprocess.CompletedProcess[str]) -> None:
        self.code = process.returncode
        self.table = process.stdout
        self.messages = process.stderr


def command(*args: object) -> list[str]:
    """The command line of a replay."""
    return [sys.executable, "-m", "kcli", "replay", *map(str, args)]


def replay(*args: object) -> Run:
    """Run a replay to its end."""
    return Run(subprocess.run(command(*args), capture_output=True, text=True, timeout=RUN_S))


def replay_killed(kills: int, seed: int, *args: object, least_s: float = 0.3, most_s: float = 1.6) -> Run:
    """Run a replay, kill it (SIGKILL) after a random time, again and again; then let it end."""
    rng = random.Random(seed)
    while kills:
        process = subprocess.Popen(command(*args), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(rng.uniform(least_s, most_s))
            break  # it had nothing left to do
        except subprocess.TimeoutExpired:
            kills -= 1
        finally:
            process.kill()
            process.wait()
    return replay(*args)


def arrived(log_directory: Path, prefix: str = "") -> Records:
    """What the topics of a target with a prefix have, for any consumer: each record once, however it is read."""
    # Other tests may have sent much to other topics.
    paths = sorted(path for path in log_directory.iterdir() if path.is_dir() and path.name.startswith(prefix)) if prefix else []
    found = delivered(*(paths or [log_directory]), options=("--isolation", "read_uncommitted"))
    return {(topic.removeprefix(prefix), number): rows for (topic, number), rows in found.items() if topic.startswith(prefix)}
