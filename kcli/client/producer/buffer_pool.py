"""The account of buffer.memory (Kafka: BufferPool).

    call          effect
    ------------  ----------------------------------------------------------------------------------------------------
    allocate      takes bytes if they are available; else nothing happens, and the caller waits (max.block.ms) and tries again
    deallocate    returns bytes, when a batch is completed or compressed
    waiting       the number of callers that wait; as long as it is not 0, all batches are sent without linger.ms

Kafka's pool also keeps buffers for reuse. Python allocates a buffer of 16 KB in 1 us, once for 150 records of 100 bytes, and a
buffer that is never reused cannot change while a connection still sends it (KAFKA-19012).
"""

from __future__ import annotations


class BufferPool:
    """Counts the bytes of all batches; `total` is buffer.memory."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.available = total
        self.waiting = 0

    def allocate(self, size: int) -> bool:
        """Take `size` bytes; return False and take none if fewer are available."""
        if size > self.available:
            return False
        self.available -= size
        return True

    def deallocate(self, size: int) -> None:
        """Return `size` bytes. Raises ValueError for more than were taken."""
        if self.available + size > self.total:
            raise ValueError(f"{size} bytes are returned, but only {self.total - self.available} were taken")
        self.available += size
