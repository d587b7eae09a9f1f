"""What must reach the device before something else may happen: asked for here, done by a shell, answered here.

A core never waits for a device. What it wants flushed it hands out as a FlushRequest; the broker makes a Flush effect of the
paths and, when Flushed comes, calls `done`, which may hand out the next request. So a file is replaced in three steps that a
crash may fall between (Kafka: Utils.atomicMoveWithFallback):

    step                                            a crash then leaves
    ----------------------------------------------  -----------------------------------------------------------
    the bytes are written to `<path>.tmp`           the old file, and a temporary one that the next write replaces
    Flushed: it is renamed to `<path>`              the old file or the new one, whole
    Flushed (the directory)                         the new file
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kcli.format.file_names import FileState
from kcli.log.disk.port import Disk, parent_path

# Called when a flush is done (None) or has failed; returns what is to be flushed next.
Flushed = Callable[[OSError | None], "FlushRequest | None"]


class FlushRequest(NamedTuple):
    """Files and directories to be made durable, in this order.

    `done` is to be called with None when they are, or with the error; it returns what is to be flushed next, or None.
    """

    paths: tuple[str, ...]
    done: Flushed


def replace_file(
    disk: Disk, path: str, data: bytes, done: Flushed, is_wanted: Callable[[], bool] = lambda: True
) -> FlushRequest:
    """Begin to replace a file by one of these bytes -> what is to be flushed first; `done` is told how it ended.

    What is not wanted any more when it could be renamed is let be: something newer was or will be written in its place.
    Raises OSError where the temporary file cannot be written.
    """
    temporary = path + FileState.TEMPORARY.value
    write_unflushed(disk, temporary, data)

    def renamed(error: OSError | None) -> FlushRequest | None:
        if not is_wanted():
            return done(None)
        if error is None:
            try:
                disk.rename(temporary, path)
            except OSError as failed:
                error = failed
        return FlushRequest((parent_path(path),), done) if error is None else done(error)

    return FlushRequest((temporary,), renamed)


def write_unflushed(disk: Disk, path: str, data: bytes) -> None:
    """Write a file whole without waiting for the device. Raises OSError."""
    if disk.exists(path):
        disk.truncate(path, 0)
    disk.append(path, data)
