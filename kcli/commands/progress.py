"""Progress bars of long work: on stderr, where that is a terminal, and only where there is much to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kcli.commands.output import is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress

LEAST_BYTES = 64 * 1024 * 1024  # of what takes long enough for a progress bar
MOST_REFRESHES = 400  # of one bar, from empty to full


class ProgressBar:
    """A bar of `total_bytes`, drawn by `bar`."""

    def __init__(self, bar: Progress, total_bytes: int) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=total_bytes)
        self._step = total_bytes / MOST_REFRESHES
        self._waiting = 0.0

    def advance(self, count: int) -> None:
        """Tell of `count` bytes done since the last time; 0 draws the bar anew."""
        self._bar.start()
        self._bar.update(self._task, advance=count)
        self._waiting += count
        if count == 0 or self._waiting > self._step:
            self._waiting = 0.0
            self._bar.refresh()

    def hide(self) -> None:
        """Take the bar away, so that lines can be printed, until there is more to tell of."""
        self._bar.stop()


@contextmanager
def progress_bar(total_bytes: int) -> Iterator[ProgressBar | None]:
    """A progress bar of `total_bytes` that leaves nothing behind, or None where there is to be none."""
    if total_bytes < LEAST_BYTES or not is_terminal(2):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    bar = Progress(
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,  # a thread would not go well with forked workers
    )
    with bar:
        yield ProgressBar(bar, total_bytes)
