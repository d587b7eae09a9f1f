"""A `kcli serve` of a test: in a process of its own, at a free port, until the test is done with it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import ROOT

SECONDS = 30
FREE_PORT = "listeners=PLAINTEXT://127.0.0.1:0"


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[list[str]]:
    """A broker that runs in `folder` -> its log up to the line that says that it is ready. It stops in order."""
    command = [sys.executable, "-m", "kcli.commands.app", "serve", "--override", FREE_PORT, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (folder / "serve.log").open("w+") as log:
        broker = subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
        assert broker.stderr is not None
        lines: list[str] = []
        try:
            for line in broker.stderr:
                lines.append(line)
                if "is ready" in line:
                    break
            assert lines and "is ready" in lines[-1], lines
            yield lines
        finally:
            broker.send_signal(signal.SIGTERM)
            log.write(broker.communicate(timeout=SECONDS)[1])
    assert broker.returncode == 0


def address_of(lines: list[str]) -> str:
    """Where clients reach it."""
    found = re.search(r"is ready: PLAINTEXT://([^;,]+)", lines[-1])
    assert found is not None, lines
    return found[1]
