"""The shell around `kcli dump-log --follow`: it waits between polls, until Ctrl-C ends it."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

from kcli.commands.output import print_message
from kcli.inspect.dumping.follow import dump_followed
from kcli.log.disk.os_disk import OsDisk

if TYPE_CHECKING:
    from kcli.inspect.dumping.dump import DumpOptions
    from kcli.inspect.dumping.renderer import DumpResult, Renderer
    from kcli.selecting.selection import Selection

# How long to wait if there is nothing new.
POLL_INTERVAL_S = 0.2


def follow_until_stopped(paths: list[str], selection: Selection, renderer: Renderer, options: DumpOptions) -> DumpResult:
    """Follow the paths until SIGINT, SIGTERM, the limit, or the deletion of all logs; return counts of what was shown."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())

    def wait() -> bool:
        return not stopped.wait(POLL_INTERVAL_S)

    return dump_followed(paths, selection, renderer, options, OsDisk(), wait, report=print_message, absolute=os.path.abspath)
