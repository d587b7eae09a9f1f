"""Progress bars on stderr, if stderr is a terminal and there is a lot of work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kcli.commands.output import is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress

MIN_BYTES = 64 * 1024 * 1024  # less work takes too little time for a progress bar
MAX_REFRESHES = 400  # of one bar, from empty to full


class ProgressBar:
    """A bar of `total_bytes`, drawn by `bar`."""

    def __init__(self, bar: Progress, total_bytes: int) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=total_bytes)
        self._step = total_bytes / MAX_REFRESHES
        self._waiting = 0.0

    def advance(self, count: int) -> None:
        """Add `count` bytes that were done since the last call; 0 draws the bar again."""
        self._bar.start()
        self._bar.update(self._task, advance=count)
        self._waiting += count
        if count == 0 or self._waiting > self._step:
            self._waiting = 0.0
            self._bar.refresh()

    def hide(self) -> None:
        """Remove the bar until the next `advance`, so that lines can be printed."""
        self._bar.stop()


@contextmanager
def progress_bar(total_bytes: int) -> Iterator[ProgressBar | None]:
    """Yield a progress bar of `total_bytes` that is removed at the end, or None if no bar is to be shown."""
    if total_bytes < MIN_BYTES or not is_terminal(2):
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
        auto_refresh=False,  # its thread would be a problem for forked workers
    )
    with bar:
        yield ProgressBar(bar, total_bytes)
