"""What the processes of members share: a line for each event, with the monotonic time in ns; a line on stdin ends them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

stopped = threading.Event()


def note(event: str, *values: object) -> None:
    sys.stdout.write(f"{time.monotonic_ns()} {event} {' '.join(map(str, values))}\n")
    sys.stdout.flush()


def run_until_a_line(run: Callable[[], None]) -> None:
    """Run a member, which ends when `stopped` is set."""

    def wait_for_the_end() -> None:
        sys.stdin.readline()
        stopped.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    run()
    note("closed")
