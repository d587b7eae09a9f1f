"""Memory for what connections receive: small while a connection is idle, large while a large request comes in.

    buffer     bytes                                given
    ---------  -----------------------------------  ---------------------------------------------------------------------
    small      SMALL_BUFFER_BYTES                   to each connection
    large      LARGE_BUFFER_BYTES, from a pool      while the requests at hand do not fit the small one
    huge       doubled as bytes come in             for a request larger than that; a size that is only claimed costs nothing

A connection gives a large buffer back as soon as nothing is left in it, so memory follows the requests that are under way and
not the connections there are.
"""

from __future__ import annotations

SMALL_BUFFER_BYTES = 16 * 1024
LARGE_BUFFER_BYTES = 2 * 1024 * 1024
# How many large buffers are kept for the next request; more are given back to the system.
MAX_KEPT_BUFFERS = 8


class BufferPool:
    """Large buffers that nobody uses at the moment."""

    def __init__(self) -> None:
        self._kept: list[bytearray] = []

    def take(self, need_bytes: int, have_bytes: int) -> bytearray:
        """A buffer for a request of `need_bytes`, of which `have_bytes` have come."""
        if need_bytes > LARGE_BUFFER_BYTES and have_bytes >= LARGE_BUFFER_BYTES // 2:
            return bytearray(min(need_bytes, max(2 * have_bytes, LARGE_BUFFER_BYTES)))
        return self._kept.pop() if self._kept else bytearray(LARGE_BUFFER_BYTES)

    def give_back(self, buffer: bytearray) -> None:
        """Return what `take` gave."""
        if len(buffer) == LARGE_BUFFER_BYTES and len(self._kept) < MAX_KEPT_BUFFERS:
            self._kept.append(buffer)
