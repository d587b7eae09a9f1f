"""Protects an application of Quix Streams: it counts every word once, also after it was stopped, and after it was killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import missing
from tests.oracle import word_counts
from tests.oracle.clients.installed import HERE
from tests.oracle.conftest import Served
from tests.oracle.word_counts import Counting

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

PACKAGE = "quixstreams==3.28.1"
INSTALL_SECONDS = 600
BROKER_SETTINGS = word_counts.BROKER_SETTINGS


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python that has Quix Streams, whose packages pip caches; the test is skipped where they cannot be had."""
    home = tmp_path_factory.mktemp("quix") / "python"
    program = home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    for command in (
        [sys.executable, "-m", "venv", str(home)],
        [str(program), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", PACKAGE],
    ):
        ran = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        if ran.returncode:
            missing(f"{PACKAGE} could not be installed: {(ran.stdout + ran.stderr).strip()[-500:]}")
    return program


@pytest.fixture
def counting(served: Served, python: Path, tmp_path: Path) -> Iterator[Counting]:
    command = [str(python), str(HERE / "quix_word_count.py"), served.bootstrap, "quix", "quix-words", "quix-counts"]
    made = Counting(served.bootstrap, "quix", lambda _, state: [*command, str(state)], tmp_path)
    yield made
    made.close()


def test_an_application_stops_and_goes_on(counting: Counting) -> None:
    """It is stopped and started, gets a second instance, and loses the first one by a kill."""
    counting.start(0)
    counting.go_on("the first instance")
    counting.stop(0)
    counting.start(0)
    counting.go_on("it is back")
    counting.start(1)
    counting.go_on("two instances")
    counting.kill(0)
    counting.go_on("the first one is killed")
    counting.end()
