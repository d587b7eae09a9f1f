"""Wall clock time, for comparisons with timestamps of records and files; everything else uses the node's own time.

    time        ms since 1970                jumps         used for
    ----------  ---------------------------  ------------  ------------------------------------------------------------------
    the node's  the wall clock at the start  never         timers: waiting requests, heartbeats, sessions, backoffs, flush.ms,
    (`now_ms`)  of the node, then a                        deletions
                monotonic clock
    wall        the wall clock               if the clock  timestamps of records and batches, log.retention.ms, segment.ms,
                                             is set        compaction lags, delete horizons, producer.id.expiration.ms,
                                                           message.timestamp.*.max.ms

A core does not read a clock: each event brings the node's time, and `WallTime` has the difference of the wall clock from it,
which the shell updates each time it reads its clock. Without a shell (commands without a broker, most tests) it is 0.
"""

from __future__ import annotations


class WallTime:
    """The wall clock; it is `off_ms` ahead of the node's time."""

    __slots__ = ("off_ms",)

    def __init__(self) -> None:
        self.off_ms = 0

    def at(self, now_ms: int) -> int:
        """Convert the node's time `now_ms` to wall clock time in ms since 1970."""
        return now_ms + self.off_ms
