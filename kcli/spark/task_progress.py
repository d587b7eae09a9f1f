"""The progress of tasks on this machine: each reports the bytes of its split that it has read, and the driver adds them up.

    process     action                                                                         when
    ----------  -----------------------------------------------------------------------------  ---------------------------
    a task      appends the number of bytes that it has read, as a line, to DIR/<split>.bytes  each STEP_BYTES, at the end
    the driver  adds up the largest numbers of the files and reports the increase              each POLL_S, and at the end

A task that is repeated appends smaller numbers at first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from kcli.log.disk.port import Disk

STEP_BYTES = 4 * 1024 * 1024
POLL_S = 0.2
_SUFFIX = ".bytes"


class TaskProgress:
    """Reports the progress of the task with the split `number` in the folder `report_path`, if that is not None."""

    def __init__(self, disk: Disk, report_path: str | None, number: int) -> None:
        self._disk = disk
        self._path = None if report_path is None else f"{report_path}/{number}{_SUFFIX}"
        self._reported_bytes = 0

    def reach(self, read_bytes: int, *, is_end: bool = False) -> None:
        """Report that `read_bytes` of the split are read, each STEP_BYTES and at the end."""
        if self._path is not None and (is_end or read_bytes - self._reported_bytes >= STEP_BYTES):
            self._reported_bytes = read_bytes
            self._disk.append(self._path, f"{read_bytes}\n".encode())


@contextmanager
def watched(folder: str, on_bytes: Callable[[int], None] | None) -> Iterator[None]:
    """Call `on_bytes`, while the body runs, in a thread with the bytes that the tasks have read since the last call."""
    if on_bytes is None:
        yield
        return
    ended = Event()
    watcher = Thread(target=_watch, args=(folder, on_bytes, ended), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _watch(folder: str, on_bytes: Callable[[int], None], ended: Event) -> None:
    reported: dict[str, int] = {}
    is_last = False
    while not is_last:
        is_last = ended.wait(POLL_S)
        new_bytes = 0
        for path in Path(folder).glob(f"*{_SUFFIX}"):
            lines = path.read_bytes().split(b"\n")[:-1]  # the last line may be incomplete
            reached = max(map(int, lines), default=0)
            new_bytes += reached - reported.get(path.name, 0)
            reported[path.name] = reached
        on_bytes(new_bytes)
