"""The time on the wall, for what is compared with timestamps of records and files; everything else has the node's own time.

    time        ms since        steps            for
    ----------  --------------  ---------------  --------------------------------------------------------------------------
    the node's  1970 when it    never            timers: requests that wait, heartbeats, sessions, pauses, flush.ms, deletions
    (`now_ms`)  started
    wall        1970            where the        timestamps of records and batches, log.retention.ms, segment.ms, compaction
                                clock is set     lags, delete horizons, producer.id.expiration.ms, message.timestamp.*.max.ms

A core never asks for a time. It is given the node's, and `WallTime` says how far the wall clock is off that: the shell's clock
sets it each time that it is read. Both agree where nobody sets it, as in commands without a broker and in most tests.
"""

from __future__ import annotations


class WallTime:
    """How far the wall clock is ahead of the node's time, `off_ms`."""

    __slots__ = ("off_ms",)

    def __init__(self) -> None:
        self.off_ms = 0

    def at(self, now_ms: int) -> int:
        """What the wall clock shows now, in ms since 1970, where the node's time is `now_ms`."""
        return now_ms + self.off_ms
