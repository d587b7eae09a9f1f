"""Where tests find their inputs: fixtures/ always, ../shared where this checkout lies beside it."""

from __future__ import annotations

import gc
import gzip
import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest
from hypothesis import HealthCheck, settings

from tests.forked_commands import CommandServer

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
FIXTURES = ROOT / "fixtures"
LOG_SETS = ("kafka-logs", "kafka-logs-legacy")


def open_descriptors() -> int:
    """How many descriptors this process has open, but for those of objects that nobody has any more."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def peak_bytes(action: Callable[[], object]) -> int:
    """The most memory that Python's objects take while `action` runs."""
    tracemalloc.start()
    try:
        action()
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return peak


class LogSet(NamedTuple):
    """A log directory that Kafka wrote, and Kafka's own dump of each of its files."""

    data: Path
    dumps: Path

    def dumped_paths(self) -> list[str]:
        """The files, relative to `data`, of which there is a dump."""
        names = (str(path.relative_to(self.dumps)).removesuffix(".gz") for path in self.dumps.rglob("*.txt*"))
        return sorted(name.removesuffix(".txt") for name in names)

    def golden(self, path: str, kind: str = "txt") -> bytes:
        """What Kafka's dump tool printed of file `path`, on stdout ("txt") or stderr ("err")."""
        plain, zipped = self.dumps / f"{path}.{kind}", self.dumps / f"{path}.{kind}.gz"
        if plain.exists():
            return plain.read_bytes()
        return gzip.decompress(zipped.read_bytes()) if zipped.exists() else b""


def log_sets(root: Path) -> list[LogSet]:
    """The log directories below `root` (fixtures/ or ../shared), as far as they are there."""
    return [LogSet(root / name / "data", root / name / "dumps") for name in LOG_SETS if (root / name / "data").is_dir()]


def every_log_set() -> list[LogSet]:
    """The given directories where they are, else the part of them in fixtures/."""
    return log_sets(SHARED) or log_sets(FIXTURES)


def given_partition(name: str) -> Path:
    """The directory of a given partition; the test is skipped where it is missing."""
    for log_set in every_log_set():
        if (log_set.data / name).is_dir():
            return log_set.data / name
    pytest.skip(f"neither ../shared nor fixtures/ holds {name}")


def missing(reason: str) -> NoReturn:
    """Skip a test for what is missing here; where CI wants all of it (KCLI_STRICT) and ../shared is there, fail instead."""
    if os.environ.get("KCLI_STRICT") and SHARED.is_dir():
        pytest.fail(f"missing: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of given inputs beside the checkout; the test is skipped where it is missing."""
    if not SHARED.is_dir():
        pytest.skip("../shared, the folder of given inputs, is not beside this checkout")
    return SHARED


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """The inputs that every clone has."""
    return FIXTURES


@pytest.fixture(scope="session")
def command_server() -> Iterator[CommandServer]:
    """Runs commands, each in a bounded process of its own."""
    with CommandServer() as running:
        yield running


# The fast and ci tiers try the same cases in each run, so that a change is judged by itself; the slow one looks for new cases
# (`--hypothesis-profile searching`, which any tier takes) and prints how to repeat what it finds.
_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("fixed", _COMMON, derandomize=True)
settings.register_profile("searching", _COMMON)
settings.load_profile("fixed")
