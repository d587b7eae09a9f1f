"""What of a log may be cleaned, and how much it needs it (Kafka: LogCleanerManager).

    first dirty offset     the cleaner's checkpoint, or the log start offset where it has none, one below the log start, or
                           one behind the log end
    first uncleanable      the base offset of the segment that holds the least of: the last stable offset, the active
    offset                 segment's base offset, and with min.compaction.lag.ms the first dirty segment with a timestamp
                           younger than that
    dirty ratio            bytes of the segments from the first dirty to the first uncleanable offset, by those and the
                           bytes of the segments that begin before the first dirty offset
    overdue                max.compaction.lag.ms, and the first batch of some dirty segment is older; one with a timestamp of
                           0 or below does not count (LogCleanerManager.maxCompactionDelay of Kafka 4.3)

A log is cleaned when its ratio is above min.cleanable.dirty.ratio, or when it is overdue and has dirty bytes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from kcli.format.primitives import INT64_MAX, FormatError
from kcli.format.record_batch import NO_TIMESTAMP
from kcli.log.reading.header_reader import HeaderReader
from kcli.log.time_lookup import largest_timestamp

if TYPE_CHECKING:
    from kcli.log.log_segment import LogSegment
    from kcli.log.unified_log import UnifiedLog


class LogToClean(NamedTuple):
    """A log's part that was not cleaned yet, [first_dirty_offset, first_uncleanable_offset), and what lies before it.

    `delay_ms` is for how long a dirty segment has waited beyond max.compaction.lag.ms, 0 where none has.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    delay_ms: int

    @property
    def dirty_ratio(self) -> float:
        """From 0 to 1; 0 where nothing is there."""
        total_bytes = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total_bytes if total_bytes else 0.0

    def needs_cleaning(self, min_dirty_ratio: float) -> bool:
        """Whether it should be cleaned now."""
        return self.cleanable_bytes > 0 and (self.dirty_ratio > min_dirty_ratio or self.delay_ms > 0)


class Segment(Protocol):
    """What is asked of a segment."""

    @property
    def base_offset(self) -> int:
        """The first offset that it may hold."""

    @property
    def size_bytes(self) -> int:
        """The bytes of its `.log`."""


_Segment = TypeVar("_Segment", bound=Segment)


# ------------------------------------------------------------------------------------- of any log whose segments are known


def dirty_from(log_start_offset: int, log_end_offset: int, checkpoint: int | None) -> int:
    """Where the part begins that no round has seen, in a log from one offset to another."""
    if checkpoint is None or not log_start_offset <= checkpoint <= log_end_offset:
        return log_start_offset
    return checkpoint


def uncleanable_from(
    segments: Sequence[_Segment],
    first_dirty: int,
    last_stable_offset: int,
    now_ms: int,
    lag_ms: int,
    largest_timestamp_of: Callable[[_Segment], int],
) -> int:
    """Where a round must stop; the last of the segments is the active one, the lag is min.compaction.lag.ms."""
    least = min(last_stable_offset, segments[-1].base_offset)
    if lag_ms > 0:
        for segment in closed_from(segments, first_dirty):
            if largest_timestamp_of(segment) > now_ms - lag_ms:
                return min(least, segment.base_offset)
    return least


def measure(segments: Sequence[Segment], first_dirty: int, first_uncleanable: int, delay_ms: int = 0) -> LogToClean:
    """How much lies between these offsets, in whole segments, and how much before them."""
    end = next((one.base_offset for one in closed_from(segments, first_uncleanable)), segments[-1].base_offset)
    return LogToClean(
        first_dirty,
        end,
        sum(one.size_bytes for one in segments if one.base_offset < first_dirty),
        sum(one.size_bytes for one in closed_from(segments, first_dirty) if one.base_offset < end),
        delay_ms,
    )


def closed_from(segments: Sequence[_Segment], offset: int) -> Sequence[_Segment]:
    """The segments from the one on that holds an offset, without the active one."""
    return segments[max(bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1, 0) : -1]


# ------------------------------------------------------------------------------------------------------- of a broker's log


def first_dirty_offset(log: UnifiedLog, checkpoint: int | None) -> int:
    """Where the part begins that no round has seen."""
    return dirty_from(log.log_start_offset, log.log_end_offset, checkpoint)


def log_to_clean(log: UnifiedLog, checkpoint: int | None, now_ms: int) -> LogToClean:
    """What a round may clean now, given the offset that the last one has reached. Raises OSError."""
    first_dirty = first_dirty_offset(log, checkpoint)
    first_uncleanable = first_uncleanable_offset(log, first_dirty, now_ms)
    return measure(log.local_log().segments, first_dirty, first_uncleanable, _delay_ms(log, first_dirty, now_ms))


def first_uncleanable_offset(log: UnifiedLog, first_dirty: int, now_ms: int) -> int:
    """Where a round must stop. Raises OSError."""
    local, lag_ms = log.local_log(), log.config.min_compaction_lag_ms
    return uncleanable_from(
        local.segments, first_dirty, log.last_stable_offset, now_ms, lag_ms, lambda segment: largest_timestamp(local, segment)
    )


def _delay_ms(log: UnifiedLog, first_dirty: int, now_ms: int) -> int:
    """For how long the oldest dirty segment is overdue. Raises OSError."""
    lag_ms = log.config.max_compaction_lag_ms
    if lag_ms == INT64_MAX:
        return 0
    stamps = [_first_timestamp(log, segment) for segment in closed_from(log.local_log().segments, first_dirty)]
    oldest = min((stamp for stamp in stamps if stamp > 0), default=None)
    return 0 if oldest is None else max(0, now_ms - lag_ms - oldest)


def _first_timestamp(log: UnifiedLog, segment: LogSegment) -> int:
    """The largest timestamp of a segment's first batch, -1 where it has none."""
    file = log.local_log().disk.open_file(segment.log_path)
    try:
        return next((header.max_timestamp for header in HeaderReader(file, 0, segment.size_bytes).headers()), NO_TIMESTAMP)
    finally:
        file.close()


def dirty_bytes(log: UnifiedLog, now_ms: int) -> int:
    """What a round should clean of a log that none does any more; where the damage hides its times, as if it had no lags."""
    try:
        return log_to_clean(log, log.cleaned_offset, now_ms).cleanable_bytes
    except (FormatError, OSError):
        first_dirty = first_dirty_offset(log, log.cleaned_offset)
        end = min(log.last_stable_offset, log.active_base_offset)
        return measure(log.local_log().segments, first_dirty, end).cleanable_bytes
