"""Sequences of writes with flushes between them, for a broker that never waits for the device.

A sequence is a generator: it yields the paths that must be on the device before it continues, and the OSError of a failed flush
is raised at that yield. `begin_flushes` makes a FlushRequest of it, which the broker turns into a Flush effect. At the Flushed
event the broker calls `done`, which runs the sequence up to its next flush. `replace_file` is such a sequence (Kafka:
Utils.atomicMoveWithFallback):

    step                                            files after a crash
    ----------------------------------------------  -----------------------------------------------------------
    the bytes are written to `<path>.tmp`           the old file, and a temporary one that the next write replaces
    flushed: it is renamed to `<path>`              the old file or the new one, complete
    flushed (the directory)                         the new file
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import NamedTuple, TypeVar

from kcli.format.file_names import FileState
from kcli.log.disk.port import Disk, parent_path

_Result = TypeVar("_Result")
# A generator that yields paths, none at the end of a time slice, and returns the result.
FlushSequence = Generator[tuple[str, ...], None, _Result]


class FlushRequest(NamedTuple):
    """Files and directories to be flushed, in this order.

    `done` must be called with None when they are on the device, or with the error; it returns the next request, or None.
    """

    paths: tuple[str, ...]
    done: Callable[[OSError | None], FlushRequest | None]


def begin_flushes(flushes: FlushSequence[None]) -> FlushRequest | None:
    """Run a sequence up to its first flush; None if it ends without one. Raises what the sequence raises before it."""
    return _continue(flushes, None)


def _continue(flushes: FlushSequence[None], error: OSError | None) -> FlushRequest | None:
    try:
        paths = next(flushes) if error is None else flushes.throw(error)
    except StopIteration:
        return None
    return FlushRequest(paths, partial(_continue, flushes))


def replace_file(disk: Disk, path: str, data: bytes, is_wanted: Callable[[], bool] = lambda: True) -> FlushSequence[None]:
    """Replace a file by one of these bytes. Raises OSError.

    If `is_wanted` returns False after a flush, the sequence ends there: newer bytes were or will be written.
    """
    temporary = path + FileState.TEMPORARY.value
    write_unflushed(disk, temporary, data)
    try:
        yield (temporary,)
    except OSError:
        if is_wanted():
            raise
    if is_wanted():
        disk.rename(temporary, path)
        yield (parent_path(path),)


def write_unflushed(disk: Disk, path: str, data: bytes) -> None:
    """Write a file whole without waiting for the device. Raises OSError."""
    if disk.exists(path):
        disk.truncate(path, 0)
    disk.append(path, data)
