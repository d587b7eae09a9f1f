"""A small file that a broker writes whole, again and again, and never waits for.

asked for                     what happens
----------------------------  ------------------------------------------------------------------------------------------
a write                       by way of `<name>.tmp`, see kcli.log.disk.flush_request
another one meanwhile         it waits until the first has ended; of several that wait the last counts
one that changes nothing      is left out
a write at a clean stop       waits for the device
"""

from __future__ import annotations

from collections.abc import Callable

from kcli.log.disk.flush_request import FlushRequest, replace_file
from kcli.log.disk.port import Disk


class WholeFile:
    """The file at `path`."""

    __slots__ = ("_disk", "_in_flight", "_next", "_written", "path")

    def __init__(self, disk: Disk, path: str) -> None:
        self.path = path
        self._disk = disk
        self._written: bytes | None = None
        self._in_flight = False
        self._next: bytes | None = None

    def is_known_to_hold(self, data: bytes) -> None:
        """It was just read, and holds this (or is gone, which is told by the bytes that stand for as much)."""
        self._written = data

    def write(self, data: bytes, done: Callable[[OSError | None], None]) -> FlushRequest | None:
        """Begin to write -> what is to be flushed; None where nothing changed, or where an earlier write comes first.

        `done` is told how it ended. Raises OSError.
        """
        if self._in_flight:
            self._next = data
            return None
        return self._begin(data, done)

    def _begin(self, data: bytes, done: Callable[[OSError | None], None]) -> FlushRequest | None:
        if data == self._written:
            return None
        self._written = None

        def ended(error: OSError | None) -> FlushRequest | None:
            self._in_flight = False
            waiting, self._next = self._next, None
            if error is None:
                self._written = data
                if waiting is not None:
                    try:
                        return self._begin(waiting, done)
                    except OSError as failed:
                        error = failed
            done(error)
            return None

        request = replace_file(self._disk, self.path, data, ended)
        self._in_flight = True
        return request

    def write_now(self, data: bytes) -> None:
        """Write and wait for the device. Raises OSError."""
        self._next = None
        if self._in_flight or data != self._written:
            self._disk.write_file(self.path, data)
            self._written = data
