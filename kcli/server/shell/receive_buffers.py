"""Memory for what connections receive: none while a connection is idle, as much as its request needs while one comes in.

    buffer     bytes                                given
    ---------  -----------------------------------  ---------------------------------------------------------------------
    small      SMALL_BUFFER_BYTES                   when bytes come
    large      LARGE_BUFFER_BYTES                   while the request at hand does not fit the small one; at once where the
                                                    one before it did not
    huge       doubled as bytes come in             for a request larger than that; a size that is only claimed costs nothing

A connection gives its buffer back as soon as nothing is left in it, so memory follows the requests that are under way and not
the connections there are. Large and huge buffers together, and what the node keeps of requests while it checks them (`hold`),
stay below `max_bytes` (queued.max.request.bytes): a connection that needs a large one then waits, unread, until one is given
back; a request that needs a huge one then loses its connection.

The first large buffers are slices of one mapping that asks for huge pages: what fills and reads them then looks up one
page where it would look up 512, which is a sixth of what a produced megabyte costs on a virtual machine.
"""

from __future__ import annotations

import mmap
from collections import deque
from collections.abc import Callable

SMALL_BUFFER_BYTES = 16 * 1024
LARGE_BUFFER_BYTES = 2 * 1024 * 1024
# How many buffers are kept for the next request; more are given back to the system.
MAX_KEPT_SMALL = 64
# These are mapped together, when the first of them is needed.
MAX_KEPT_LARGE = 8
WritableBuffer = bytearray | memoryview
# All large and huge buffers together, where queued.max.request.bytes sets no limit.
DEFAULT_MAX_BYTES = 1 << 30


def map_buffers(count: int) -> list[memoryview]:
    """So many large buffers, which take memory as they are written to."""
    mapping = mmap.mmap(-1, count * LARGE_BUFFER_BYTES)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            mapping.madvise(mmap.MADV_HUGEPAGE)
        except OSError:
            pass  # a kernel without them
    view = memoryview(mapping)
    return [view[at : at + LARGE_BUFFER_BYTES] for at in range(0, len(view), LARGE_BUFFER_BYTES)]


class BufferPool:
    """The buffers of one server."""

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self.taken_bytes = 0  # of large and huge ones, and of what is held
        self._small: list[bytearray] = []
        self._large: list[memoryview] = []
        self._is_mapped = False
        self._waiting: deque[Callable[[], None]] = deque()

    def has_room(self, more_bytes: int = LARGE_BUFFER_BYTES) -> bool:
        """Whether so many bytes more are within the limit; one large buffer always is, so that somebody gets on."""
        return not self.taken_bytes or self.taken_bytes + more_bytes <= self.max_bytes

    def first(self, wants_large: bool) -> WritableBuffer:
        """A buffer for bytes of which nothing is known yet."""
        if wants_large and self.has_room():
            return self.take_large()
        return self._small.pop() if self._small else bytearray(SMALL_BUFFER_BYTES)

    def take_large(self) -> WritableBuffer:
        """A large buffer."""
        self.taken_bytes += LARGE_BUFFER_BYTES
        if not self._is_mapped:
            self._is_mapped = True
            self._large = map_buffers(MAX_KEPT_LARGE)
        return self._large.pop() if self._large else bytearray(LARGE_BUFFER_BYTES)

    def take_huge(self, size: int) -> bytearray:
        """A buffer of so many bytes, more than a large one has."""
        self.taken_bytes += size
        return bytearray(size)

    def give_back(self, buffer: WritableBuffer) -> None:
        """Return what was taken; one that waits for it may go on."""
        size = len(buffer)
        if size == SMALL_BUFFER_BYTES:
            if len(self._small) < MAX_KEPT_SMALL and isinstance(buffer, bytearray):
                self._small.append(buffer)
            return
        self.taken_bytes -= size
        if isinstance(buffer, memoryview):
            self._large.append(buffer)
        self._wake()

    def hold(self, size_bytes: int) -> None:
        """Count bytes of requests that are kept elsewhere; a negative number releases as many, and a connection may go on."""
        self.taken_bytes += size_bytes
        if size_bytes < 0:
            self._wake()

    def _wake(self) -> None:
        while self._waiting and self.has_room():
            self._waiting.popleft()()

    def wait(self, go_on: Callable[[], None]) -> None:
        """Have `go_on` called when there is room for a large buffer, which it takes at once."""
        self._waiting.append(go_on)
