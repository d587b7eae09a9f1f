"""How a round of the cleaner is cut into slices: by the bytes that were moved since the last pause."""

# A slice ends behind so many bytes of a segment, read or written.
SLICE_BYTES = 512 * 1024
# Bytes that are written anew, and maybe deflated, count for so many.
REWRITTEN = 8


class Pace:
    """Counts what a round has read and written; `moved_bytes` is all of it so far."""

    __slots__ = ("_since_pause", "moved_bytes")

    def __init__(self) -> None:
        self.moved_bytes = 0
        self._since_pause = 0

    def pause_due(self, size_bytes: int, work_bytes: int = 0) -> bool:
        """Whether the slice is over after so many more bytes, which took as much work as `work_bytes` where that is more."""
        self.moved_bytes += size_bytes
        self._since_pause += max(size_bytes, work_bytes)
        if self._since_pause < SLICE_BYTES:
            return False
        self._since_pause = 0
        return True
