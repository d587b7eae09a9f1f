"""`kcli serve` with measurements of how long each call of its event loop takes.

    python -m benchmarks.held_server REPORTS serve [ARGUMENT ...]

At each SIGUSR1, and when it exits, it writes the next file in REPORTS (0000.json, 0001.json, ...) and resets the values:

    longest_ms, longest_cpu_ms   the longest call of the event loop, and the CPU time of that call: if it is much lower, the
                                 loop waited for a disk, or for a CPU that another process used
    parts                        the longest time in ms of each kind of work, by name: a request by its API (with * if the
                                 node sent it to itself), Flushed and the other events, a timer or time slice by its function
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import json
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import GeneratorType
from typing import Any

from kcli.log.log_manager import Task
from kcli.network.timing_wheel import Timer, TimerTask
from kcli.protocol.apis import API_KEYS
from kcli.server.events import DeadlineReached, Effect, Event, RequestReceived
from kcli.server.node import Node


class Holds:
    """The longest times since the last `take`."""

    def __init__(self) -> None:
        self._longest_ms = self._longest_cpu_ms = 0.0
        self._parts: dict[str, float] = {}

    def note_call(self, ms: float, cpu_ms: float) -> None:
        """Record the time of a call of the loop."""
        if ms > self._longest_ms:
            self._longest_ms, self._longest_cpu_ms = ms, cpu_ms

    def note_part(self, name: str, ms: float) -> None:
        """Record the time of one kind of work of the node."""
        if ms > self._parts.get(name, 0):
            self._parts[name] = ms

    def take(self) -> dict[str, Any]:
        """Return the values, and reset them."""
        found = {"longest_ms": self._longest_ms, "longest_cpu_ms": self._longest_cpu_ms, "parts": self._parts}
        self.__init__()  # type: ignore[misc]
        return found


def event_name(event: Event) -> str:
    """Return the name of an event in a report."""
    if not isinstance(event, RequestReceived):
        return type(event).__name__
    return API_KEYS[int.from_bytes(event.frame[:2], "big")].name + "*" * event.connection.is_internal


def callback_name(callback: Callable[..., object]) -> str:
    """Return the name of a timer's function; for a time slice the function that the slices belong to."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, Task):
        return callback_name(owner._run)
    held: list[object] = [cell.cell_contents for cell in getattr(callback, "__closure__", None) or ()]
    if isinstance(callback, partial):
        held, callback = [*callback.args], callback.func
    for value in held:
        if isinstance(value, GeneratorType):
            return value.__qualname__
    return getattr(callback, "__qualname__", type(callback).__name__)


def watch(holds: Holds) -> None:
    """Measure all calls of the loop and of the node from now on."""
    run, handle, schedule = asyncio.Handle._run, Node.handle, Timer.schedule
    clock, cpu_clock = time.perf_counter, time.thread_time

    def timed_run(self: asyncio.Handle) -> None:
        began, cpu_began = clock(), cpu_clock()
        run(self)
        holds.note_call((clock() - began) * 1e3, (cpu_clock() - cpu_began) * 1e3)

    def timed_handle(self: Node, event: Event, now_ms: int) -> list[Effect]:
        if isinstance(event, DeadlineReached):
            return handle(self, event, now_ms)  # its timers are measured one by one
        name, began = event_name(event), clock()  # the frame is released when the request is handled
        try:
            return handle(self, event, now_ms)
        finally:
            holds.note_part(name, (clock() - began) * 1e3)

    def timed_schedule(self: Timer, at_ms: int, callback: Callable[[int], None]) -> TimerTask:
        def timed(now_ms: int) -> None:
            began = clock()
            try:
                callback(now_ms)
            finally:
                holds.note_part(callback_name(callback), (clock() - began) * 1e3)

        return schedule(self, at_ms, timed)

    asyncio.Handle._run = timed_run  # type: ignore[method-assign]
    Node.handle = timed_handle  # type: ignore[method-assign]
    Timer.schedule = timed_schedule  # type: ignore[method-assign]


def main() -> None:
    """Run the server with measurements."""
    from kcli.commands.app import main as kcli

    reports = Path(sys.argv[1])
    reports.mkdir(exist_ok=True)
    numbers = itertools.count(len(list(reports.glob("*.json"))))
    holds = Holds()

    def report(*_: object) -> None:
        path = reports / f"{next(numbers):04}.part"
        path.write_text(json.dumps(holds.take()))
        path.rename(path.with_suffix(".json"))

    watch(holds)
    signal.signal(signal.SIGUSR1, report)
    atexit.register(report)
    sys.exit(kcli(sys.argv[2:]))


if __name__ == "__main__":
    main()
