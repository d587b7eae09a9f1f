"""A member of a group as a process that prints its events: a line has the monotonic time in ns, a word and numbers."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from tests.conftest import ROOT

LEAVE_SECONDS = 60  # as long as a JVM may need for its end on a machine that has other work


class Event(NamedTuple):
    """An event of a member: the time in ns, what happened, and its numbers."""

    at_ns: int
    kind: str
    numbers: tuple[int, ...]


class MemberProcess:
    """A member that runs; `gone_ns` is when it was killed or paused, from when on it does not know what it has."""

    def __init__(self, command: Sequence[str]) -> None:
        self.events: list[Event] = []
        self.errors: list[str] = []
        self.gone_ns: int | None = None
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            at_ns, kind, *numbers = line.split()
            if kind == "error":
                self.errors.append(line)
            else:
                self.events.append(Event(int(at_ns), kind, tuple(map(int, numbers))))

    @property
    def is_alive(self) -> bool:
        return self.gone_ns is None and self.process.poll() is None

    def write(self, line: str) -> None:
        """Write a line to its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def leave(self) -> None:
        """End as a client that closes its consumer."""
        self.write("")
        self.process.wait(LEAVE_SECONDS)
        self._reader.join(LEAVE_SECONDS)

    def kill(self) -> None:
        self.gone_ns = time.monotonic_ns()
        self.process.kill()
        self.process.wait(LEAVE_SECONDS)
        self._reader.join(LEAVE_SECONDS)

    def pause(self) -> None:
        self.gone_ns = time.monotonic_ns()
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue; the judge decides from when on it counts as alive again."""
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the process at the end of a test."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(LEAVE_SECONDS)
