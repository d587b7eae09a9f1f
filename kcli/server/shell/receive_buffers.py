"""Receive buffers of connections: none while a connection is idle, as much as its request needs while one is received.

    buffer     bytes                                used
    ---------  -----------------------------------  ---------------------------------------------------------------------
    small      SMALL_BUFFER_BYTES                   when bytes come
    medium     MEDIUM_BUFFER_BYTES                  instead of a large one while their limit is reached: for a whole request of
                                                    64 KiB, or the first bytes of a larger one
    large      LARGE_BUFFER_BYTES                   while the current request does not fit the small one; at once if the
                                                    previous request did not
    huge       doubled as bytes come in             for a larger request; a stated size alone takes no memory

A connection returns its buffer as soon as it is empty, so memory grows with the requests in progress and not with the number of
connections. Large and huge buffers together, and the request memory of the node (`hold`), stay below `max_bytes`
(queued.max.request.bytes): then a connection that needs a large buffer waits, unread, until one is returned, and a request that
needs a huge one loses its connection. Those that need one large buffer are served first, and of these the ones whose bytes the
operating system has already. While connections wait, one that holds a large or huge buffer and has received less than
LEAST_PROGRESS_BYTES of its request in STALLED_AFTER_S is closed, and so is one that waits itself and has sent less: a client
that states a large size and sends no more must not stop the others, nor may many of them take the one buffer in turn.

The first large buffers are slices of one mapping with huge pages: one page table entry instead of 512, which saves a sixth of
the time for a produced megabyte on a virtual machine.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable
from typing import Protocol

SMALL_BUFFER_BYTES = 16 * 1024
MEDIUM_BUFFER_BYTES = 66 * 1024
LARGE_BUFFER_BYTES = 2 * 1024 * 1024
STALLED_AFTER_S = 3.0
LEAST_PROGRESS_BYTES = 16 * 1024
# The number of free buffers that are kept; more are freed.
MAX_KEPT_SMALL = 64
# These are mapped together when the first one is needed.
MAX_KEPT_LARGE = 8
# The number of waiting connections that are asked at a time whether they have bytes: a system call each.
MAX_ASKED = 64
WritableBuffer = bytearray | memoryview
# The limit of large and huge buffers together if queued.max.request.bytes sets none.
DEFAULT_MAX_BYTES = 1 << 30


class Waiting(Protocol):
    """A connection that waits for a large buffer."""

    def has_bytes(self) -> bool:
        """Return whether more of its request can be read at once."""
        ...

    def buffer_available(self) -> None:
        """Take a buffer, and continue to read."""
        ...


def map_buffers(count: int) -> list[memoryview]:
    """Map `count` large buffers, which take memory when they are written to."""
    mapping = mmap.mmap(-1, count * LARGE_BUFFER_BYTES)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            mapping.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # a kernel without huge pages
    view = memoryview(mapping)
    return [view[at : at + LARGE_BUFFER_BYTES] for at in range(0, len(view), LARGE_BUFFER_BYTES)]


class BufferPool:
    """The buffers of one server."""

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.taken_bytes = 0  # large and huge buffers, and what is held
        self._small: list[bytearray] = []
        self._large: list[memoryview] = []
        self._is_mapped = False
        self._waiting: tuple[deque[Waiting], ...] = (deque(), deque())  # for one large buffer, for more
        self.on_wait: Callable[[], None] = lambda: None

    @property
    def is_awaited(self) -> bool:
        """Whether a connection waits for a large buffer."""
        return any(self._waiting)

    def has_room(self, more_bytes: int = LARGE_BUFFER_BYTES) -> bool:
        """Return whether `more_bytes` are within the limit; one large buffer always is, so that one request makes progress."""
        return not self.taken_bytes or self.taken_bytes + more_bytes <= self.max_bytes

    def first(self, wants_large: bool) -> WritableBuffer:
        """Return a buffer for the first bytes of a request."""
        if wants_large and self.has_room():
            return self.take_large()
        return self._small.pop() if self._small else bytearray(SMALL_BUFFER_BYTES)

    def can_grow(self, size: int) -> bool:
        """Return whether there is a buffer larger than one of `size` bytes, which is less than a large one has."""
        return size < MEDIUM_BUFFER_BYTES or self.has_room()

    def take_larger(self, size: int) -> WritableBuffer:
        """Return a buffer larger than one of `size` bytes; a medium one if the limit is reached."""
        return bytearray(MEDIUM_BUFFER_BYTES) if size < MEDIUM_BUFFER_BYTES and not self.has_room() else self.take_large()

    def take_large(self) -> WritableBuffer:
        """Return a large buffer."""
        self.taken_bytes += LARGE_BUFFER_BYTES
        if not self._is_mapped:
            self._is_mapped = True
            self._large = map_buffers(MAX_KEPT_LARGE)
        return self._large.pop() if self._large else bytearray(LARGE_BUFFER_BYTES)

    def take_huge(self, size: int) -> bytearray:
        """Return a buffer of `size` bytes, which is more than a large one has."""
        self.taken_bytes += size
        return bytearray(size)

    def give_back(self, buffer: WritableBuffer) -> None:
        """Take a buffer back; a connection that waits for it continues."""
        size = len(buffer)
        if size == SMALL_BUFFER_BYTES:
            if len(self._small) < MAX_KEPT_SMALL and isinstance(buffer, bytearray):
                self._small.append(buffer)
            return
        if size == MEDIUM_BUFFER_BYTES:
            return
        self.taken_bytes -= size
        if isinstance(buffer, memoryview):
            self._large.append(buffer)
        self._wake()

    def hold(self, size_bytes: int) -> None:
        """Count request memory of the node; a negative number releases as many bytes, and a waiting connection may continue."""
        self.taken_bytes += size_bytes
        if size_bytes < 0:
            self._wake()

    def _wake(self) -> None:
        while self.is_awaited and self.has_room():
            waiting = self._waiting[0] or self._waiting[1]
            # One that has sent nothing goes behind the others; after MAX_ASKED of them the first is served.
            for _ in range(min(len(waiting), MAX_ASKED) - 1):
                if waiting[0].has_bytes():
                    break
                waiting.rotate(-1)
            waiting.popleft().buffer_available()

    def wait(self, waiting: Waiting, need: int = 0) -> None:
        """Have `waiting.buffer_available` called when a large buffer is within the limit; it takes the buffer at once.

        `need` are the bytes of the request.
        """
        self._waiting[need > LARGE_BUFFER_BYTES].append(waiting)
        self.on_wait()
