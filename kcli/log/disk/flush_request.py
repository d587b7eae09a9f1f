"""Sequences of writes with flushes between them, for a broker that never waits for the device.

A sequence is a generator: it yields the paths that must be on the device before it continues, and the OSError of a failed flush
is raised at that yield. `begin_flushes` makes a FlushRequest of it, which the broker turns into a Flush effect. At the Flushed
event the broker calls `done`, which runs the sequence up to its next flush. `replace_files` is such a sequence (Kafka:
Utils.atomicMoveWithFallback):

    step                                            files after a crash
    ----------------------------------------------  -----------------------------------------------------------
    the bytes are written to `<path>.tmp`           the old file, and a temporary one that the next write replaces
    flushed: it is renamed to `<path>`              the old file or the new one, complete
    flushed (the directory)                         the new file

A FlushGroup runs the sequences of many logs of one log directory together, since a device flushes many files in hardly more
time than one: the next flushes of up to GROUP_MEMBERS sequences are one request, and a path that several of them need is
flushed once. Sequences that are added during that request wait for the next one.

    the request ends with                 the members
    ------------------------------------  ------------------------------------------------------------------------------
    no error                              continue, MEMBERS_PER_SLICE in a time slice
    FileNotFoundError                     flush their paths again, each by itself: a file of one of them was removed or
                                          renamed, and nothing is lost by it
    any other error                       get the error, all of them: the log directory has failed, and a system reports an
                                          error of a file only once, so that a second flush would succeed without its bytes
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import NamedTuple, TypeVar

from kcli.format.file_names import FileState
from kcli.log.disk.port import Disk, parent_path

# The logs whose flushes are one request, which is several hundred files, and those that continue in one time slice.
GROUP_MEMBERS = 512
MEMBERS_PER_SLICE = 32

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


class FlushGroup:
    """Sequences that flush together; `queue` takes requests that flush alone. See the module's table."""

    def __init__(self, queue: Callable[[FlushRequest | None], None]) -> None:
        self._queue = queue
        self._waiting: deque[FlushRequest] = deque()
        self._is_busy = False

    def add(self, flushes: FlushSequence[None]) -> None:
        """Run a sequence up to its first flush at once, and further with the group. Raises what it raises before that flush."""
        request = begin_flushes(flushes)
        if request is not None:
            self._waiting.append(request)

    def begin(self) -> FlushRequest | None:
        """Return the next request of the group; None if no sequence waits, or the last one has not ended."""
        if self._is_busy or not self._waiting:
            return None
        self._is_busy = True
        return begin_flushes(self._run())

    def _run(self) -> FlushSequence[None]:
        while self._waiting:
            members = [self._waiting.popleft() for _ in range(min(GROUP_MEMBERS, len(self._waiting)))]
            failed = None
            try:
                yield tuple(dict.fromkeys(path for member in members for path in member.paths))
            except FileNotFoundError:
                for member in members:
                    self._queue(member)
                continue
            except OSError as error:
                failed = error
            for number, member in enumerate(members, 1):
                following = member.done(failed)
                if following is not None:
                    self._waiting.append(following)
                if number % MEMBERS_PER_SLICE == 0:
                    yield ()
        self._is_busy = False


def replace_files(disk: Disk, files: Mapping[str, bytes], is_wanted: Callable[[], bool] = lambda: True) -> FlushSequence[None]:
    """Replace the files of these paths by these bytes, all with two flushes: of the bytes and of the names. Raises OSError.

    If `is_wanted` returns False after the first flush, the sequence ends there: newer bytes were or will be written.
    """
    if not files:
        return
    temporary = {path + FileState.TEMPORARY.value: path for path in files}
    for name, data in zip(temporary, files.values(), strict=True):
        write_unflushed(disk, name, data)
    try:
        yield tuple(temporary)
    except OSError:
        if is_wanted():
            raise
    if is_wanted():
        for name, path in temporary.items():
            disk.rename(name, path)
        yield tuple(dict.fromkeys(map(parent_path, files)))


def write_unflushed(disk: Disk, path: str, data: bytes) -> None:
    """Write a file whole without waiting for the device. Raises OSError."""
    if disk.exists(path):
        disk.truncate(path, 0)
    disk.append(path, data)
