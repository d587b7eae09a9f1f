"""What the processes of members share: a line for each event, with the monotonic time in ns, and the lines that they read.

a line on stdin  then
---------------  --------------------------------------------------------------------------------
stall SECONDS    a member that calls `stall_if_asked` does not poll for that time
any other        the member ends
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable

stopped = threading.Event()
_stalls: queue.SimpleQueue[float] = queue.SimpleQueue()


def note(event: str, *values: object) -> None:
    sys.stdout.write(f"{time.monotonic_ns()} {event} {' '.join(map(str, values))}\n")
    sys.stdout.flush()


def stall_if_asked() -> None:
    """Work for a time, without a poll, if a line asked for it: `stalled` and `resumed` are its events."""
    if not _stalls.empty():
        note("stalled")
        time.sleep(_stalls.get())
        note("resumed")


def run_until_a_line(run: Callable[[], None]) -> None:
    """Run a member, which ends when `stopped` is set."""

    def wait_for_the_end() -> None:
        for line in sys.stdin:
            word, *seconds = line.split() or [""]
            if word != "stall":
                break
            _stalls.put(float(seconds[0]))
        stopped.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    run()
    note("closed")
