"""What may be cleaned, which log is cleaned next, and which logs are uncleanable (Kafka: LogCleanerManager).

    first dirty offset     the cleaner's checkpoint, or the log start offset if there is none, or if it is below the log start
                           or after the log end
    first uncleanable      the base offset of the segment that contains the lowest of: the last stable offset, the active
    offset                 segment's base offset, and with min.compaction.lag.ms the first dirty segment with a timestamp
                           younger than that
    dirty ratio            bytes of the segments from the first dirty to the first uncleanable offset, divided by those and the
                           bytes of the segments that begin before the first dirty offset
    overdue                max.compaction.lag.ms, and the first batch of some dirty segment is older; one with a timestamp of
                           0 or below does not count (LogCleanerManager.maxCompactionDelay of Kafka 4.3)

A log is cleaned if its ratio is above min.cleanable.dirty.ratio, or if it is overdue and has dirty bytes. The filthiest log,
with the largest ratio, is cleaned first. A log in which damage is found, or whose round fails by an error of kcli, is
uncleanable until the broker is restarted; the broker's log has the reason. As in Kafka, no file lists such logs.

`cleaner-offset-checkpoint` of each log directory has the first dirty offset of each log. It is written after each round, and
when logs are deleted or moved. If a line is lost or is from a deleted topic of the same name, the cleaner cleans again; no
record is lost.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from kcli.format.primitives import INT64_MAX, FormatError
from kcli.format.record_batch import NO_TIMESTAMP
from kcli.log.reading.header_reader import HeaderReader
from kcli.log.report_line import WarningLine
from kcli.log.time_lookup import largest_timestamp

if TYPE_CHECKING:
    from kcli.log.log_segment import LogSegment
    from kcli.log.managing.log_registry import LogRegistry
    from kcli.log.unified_log import UnifiedLog

# The logs that a call of `check_some_logs` checks: some microseconds each, more if there are compaction lags.
LOGS_PER_STEP = 64


class LogToClean(NamedTuple):
    """The part of a log to clean, [first_dirty_offset, first_uncleanable_offset), and the bytes before it.

    `delay_ms` is for how long a dirty segment has waited beyond max.compaction.lag.ms, 0 if none has.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    delay_ms: int

    @property
    def dirty_ratio(self) -> float:
        """The dirty part of the bytes, from 0 to 1; 0 for an empty log."""
        total_bytes = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total_bytes if total_bytes else 0.0

    def needs_cleaning(self, min_dirty_ratio: float) -> bool:
        """Return whether it should be cleaned now."""
        return self.cleanable_bytes > 0 and (self.dirty_ratio > min_dirty_ratio or self.delay_ms > 0)


class SizedSegment(Protocol):
    """What these functions need of a segment."""

    @property
    def base_offset(self) -> int:
        """The first offset that it may contain."""

    @property
    def size_bytes(self) -> int:
        """The bytes of its `.log`."""


_Segment = TypeVar("_Segment", bound=SizedSegment)


# ------------------------------------------------------------------------------------------- any log, by its segments


def dirty_from(log_start_offset: int, log_end_offset: int, checkpoint: int | None) -> int:
    """Return the first dirty offset of the log [log_start_offset, log_end_offset)."""
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
    """Return the first uncleanable offset; the last segment is the active one, `lag_ms` is min.compaction.lag.ms."""
    least = min(last_stable_offset, segments[-1].base_offset)
    if lag_ms > 0:
        for segment in closed_from(segments, first_dirty):
            if largest_timestamp_of(segment) > now_ms - lag_ms:
                return min(least, segment.base_offset)
    return least


def measure(segments: Sequence[SizedSegment], first_dirty: int, first_uncleanable: int, delay_ms: int = 0) -> LogToClean:
    """Measure the part between these offsets, in whole segments, and the part before them."""
    end = next((one.base_offset for one in closed_from(segments, first_uncleanable)), segments[-1].base_offset)
    return LogToClean(
        first_dirty,
        end,
        sum(one.size_bytes for one in segments if one.base_offset < first_dirty),
        sum(one.size_bytes for one in closed_from(segments, first_dirty) if one.base_offset < end),
        delay_ms,
    )


def closed_from(segments: Sequence[_Segment], offset: int) -> Sequence[_Segment]:
    """Return the segments from the one that contains an offset on, without the active one."""
    return segments[max(bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1, 0) : -1]


# ----------------------------------------------------------------------------------------------------- a broker's log


def first_dirty_offset(log: UnifiedLog, checkpoint: int | None) -> int:
    """Return the first dirty offset."""
    return dirty_from(log.log_start_offset, log.log_end_offset, checkpoint)


def log_to_clean(log: UnifiedLog, checkpoint: int | None, now_ms: int) -> LogToClean:
    """Return what a round may clean now; `checkpoint` is where the last one ended. Raises OSError."""
    first_dirty = first_dirty_offset(log, checkpoint)
    first_uncleanable = first_uncleanable_offset(log, first_dirty, now_ms)
    return measure(log.local_log().segments, first_dirty, first_uncleanable, _delay_ms(log, first_dirty, now_ms))


def first_uncleanable_offset(log: UnifiedLog, first_dirty: int, now_ms: int) -> int:
    """Return the first uncleanable offset. Raises OSError."""
    local, lag_ms = log.local_log(), log.config.min_compaction_lag_ms
    return uncleanable_from(
        local.segments, first_dirty, log.last_stable_offset, now_ms, lag_ms, lambda segment: largest_timestamp(local, segment)
    )


def _delay_ms(log: UnifiedLog, first_dirty: int, now_ms: int) -> int:
    """Return for how long the oldest dirty segment is overdue. Raises OSError."""
    lag_ms = log.config.max_compaction_lag_ms
    if lag_ms == INT64_MAX:
        return 0
    stamps = [_first_timestamp(log, segment) for segment in closed_from(log.local_log().segments, first_dirty)]
    oldest = min((stamp for stamp in stamps if stamp > 0), default=None)
    return 0 if oldest is None else max(0, now_ms - lag_ms - oldest)


def _first_timestamp(log: UnifiedLog, segment: LogSegment) -> int:
    """Return the largest timestamp of a segment's first batch, -1 if it has none."""
    file = log.local_log().disk.open_file(segment.log_path)
    try:
        return next((header.max_timestamp for header in HeaderReader(file, 0, segment.size_bytes).headers()), NO_TIMESTAMP)
    finally:
        file.close()


def dirty_bytes(log: UnifiedLog, now_ms: int) -> int:
    """Return the dirty bytes of an uncleanable log; if damage hides its timestamps, as if it had no compaction lags."""
    try:
        return log_to_clean(log, log.cleaned_offset, now_ms).cleanable_bytes
    except (FormatError, OSError):
        first_dirty = first_dirty_offset(log, log.cleaned_offset)
        end = min(log.last_stable_offset, log.active_base_offset)
        return measure(log.local_log().segments, first_dirty, end).cleanable_bytes


# ----------------------------------------------------------------------------------------------------- all logs of a broker


class LastRun(NamedTuple):
    """The last check of all logs: its time, the largest dirty ratio, by how much the latest log is overdue."""

    at_ms: int
    dirtiest_ratio: float = 0.0
    delay_ms: int = 0


class UncleanableTotals(NamedTuple):
    """The uncleanable logs of a log directory, and their dirty bytes."""

    logs: int
    size_bytes: int


class LogCleanerManager:
    """Chooses the logs of a registry that are cleaned.

    `on_cleaned(log)` is called when the first dirty offset of a log changes. `uncleanable` has the reason for each such log.
    """

    def __init__(self, registry: LogRegistry, on_cleaned: Callable[[UnifiedLog], None]) -> None:
        self.uncleanable: dict[UnifiedLog, str] = {}
        self.last_run: LastRun | None = None
        self.on_cleaned = on_cleaned
        self._registry = registry
        self._candidates: list[UnifiedLog] | None = None  # logs that are still to be checked in this run
        self._filthiest: tuple[float, UnifiedLog, LogToClean] | None = None
        self._run = LastRun(0)

    def check_some_logs(self, now_ms: int, in_progress: Collection[UnifiedLog]) -> bool:
        """Check some of the compacted logs; return whether there are more. `take_filthiest` returns what was found."""
        registry = self._registry
        if self._candidates is None:
            self.remove_deleted()
            taken = {*self.uncleanable, *in_progress}
            self._candidates = [log for log in registry.logs.values() if log.config.is_compacted and log not in taken]
            self._filthiest, self._run = None, LastRun(now_ms)
        for _ in range(min(LOGS_PER_STEP, len(self._candidates))):
            log = self._candidates.pop()
            if registry.is_live(log):
                self._check(log, now_ms)
        if self._candidates:
            return True
        self._candidates = None
        self.last_run = self._run
        return False

    def take_filthiest(self) -> tuple[UnifiedLog, LogToClean] | None:
        """Return the log to clean next, once; None if no log needs it."""
        found, self._filthiest = self._filthiest, None
        return None if found is None else found[1:]

    def _check(self, log: UnifiedLog, now_ms: int) -> None:
        """Compare a log with the filthiest one so far."""
        self._correct_checkpoint(log)
        try:
            found = log_to_clean(log, log.cleaned_offset, self._registry.wall.at(now_ms))
        except FormatError as error:
            self.mark_uncleanable(log, error.message)
            return
        except OSError as error:
            self._registry.take_offline(log.directory, error)
            return
        run = self._run
        self._run = LastRun(run.at_ms, max(run.dirtiest_ratio, found.dirty_ratio), max(run.delay_ms, found.delay_ms))
        if found.needs_cleaning(log.config.min_cleanable_dirty_ratio) and (
            self._filthiest is None or found.dirty_ratio > self._filthiest[0]
        ):
            self._filthiest = (found.dirty_ratio, log, found)

    def _correct_checkpoint(self, log: UnifiedLog) -> None:
        """Move the checkpoint to the log start if it is outside of the log.

        This is reported, unless retention has moved the log start above it, which is normal with compact,delete.
        """
        cleaned = log.cleaned_offset
        if cleaned is None or (first_dirty := first_dirty_offset(log, cleaned)) == cleaned:
            return
        log.cleaned_offset = first_dirty
        self.on_cleaned(log)
        if cleaned > log.log_end_offset or not log.config.is_retained:
            text = (
                f"{log.directory}: cleaner-offset-checkpoint says that it is cleaned up to {cleaned}, but the log has "
                f"[{log.log_start_offset}, {log.log_end_offset}): it is cleaned from {first_dirty} on"
            )
            self._registry.report(
                WarningLine(text, path=log.directory, topic=log.topic, partition=log.partition, offset=cleaned)
            )

    def done_cleaning(self, log: UnifiedLog, end_offset: int) -> None:
        """Move the checkpoint of a log to the end of its round."""
        log.cleaned_offset = end_offset
        self.on_cleaned(log)

    # ----------------------------------------------------------------------------------------------------- uncleanable

    def mark_uncleanable(self, log: UnifiedLog, why: str) -> None:
        """Exclude a log from cleaning until the broker starts anew, and report it."""
        self.uncleanable[log] = why
        text = f"{log.directory}: it is not cleaned any more: {why}; `kcli verify {log.directory}` reports what is wrong"
        self._registry.report(WarningLine(text, path=log.directory, topic=log.topic, partition=log.partition, error=why))

    def remove_deleted(self) -> None:
        """Remove the logs that are out of service from the uncleanable ones."""
        deleted = [log for log in self.uncleanable if not self._registry.is_live(log)]
        for log in deleted:
            del self.uncleanable[log]

    def uncleanable_by_directory(self, now_ms: int) -> dict[str, UncleanableTotals]:
        """Return totals by log directory, without directories that have none."""
        found: dict[str, UncleanableTotals] = {}
        for log in self.uncleanable:
            if self._registry.is_live(log):
                path = self._registry.log_dir_of(log).path
                before = found.get(path, UncleanableTotals(0, 0))
                size_bytes = before.size_bytes + dirty_bytes(log, self._registry.wall.at(now_ms))
                found[path] = UncleanableTotals(before.logs + 1, size_bytes)
        return found
