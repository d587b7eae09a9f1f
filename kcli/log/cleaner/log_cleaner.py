"""The cleaner of a broker: rounds in time slices between requests (Kafka: LogCleaner).

    state of a log     means                                                ends with
    -----------------  ---------------------------------------------------  ---------------------------------------------
    idle               no round cleans it                                   being the filthiest of those that need it
    in its round       it is cleaned, and read and appended to              the end of the round, or its abort
    uncleanable        a round found damage, or failed by an error of       a start of the broker
                       kcli, which is reported once with the reason

LogCleanerManager chooses the log. If none needs cleaning, it checks again after log.cleaner.backoff.ms. There are up to
log.cleaner.threads rounds at a time, in alternating time slices, which share log.cleaner.dedupe.buffer.size; the round of a log
that is not compacted any more is aborted. What all rounds read and write is limited to log.cleaner.io.max.bytes.per.second.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from kcli.format.primitives import FormatError
from kcli.log.cleaner.cleaner import CleanedLog, Cleaner, CleaningAbortedError
from kcli.log.cleaner.log_cleaner_manager import LogCleanerManager
from kcli.log.cleaner.offset_map import SECRET_BYTES, SLOT_BYTES, OffsetMap
from kcli.log.cleaner.throttler import Throttler
from kcli.log.disk.deletion_queue import NEVER_MS
from kcli.log.disk.flush_request import FlushRequest, FlushSequence
from kcli.log.managing.log_registry import LogRegistry
from kcli.log.report_line import fault_line
from kcli.log.unified_log import UnifiedLog

# Kafka's cleaner is a thread, which may check again at once; here that would take the time of requests.
LEAST_BACKOFF_MS = 10
# Batches above the buffer are filtered one by one, so that a small buffer costs time.
LEAST_BUFFER_BYTES = 16 * 1024


class CleanerTotals:
    """What all rounds of this run of the broker have read and written."""

    __slots__ = ("bytes_kept", "bytes_read", "rounds")

    def __init__(self) -> None:
        self.rounds = self.bytes_read = self.bytes_kept = 0


class LastRound(NamedTuple):
    """The last round of a thread; `map_used` is the part of its memory for offsets that was used, from 0 to 1."""

    bytes_read: int = 0
    bytes_kept: int = 0
    took_ms: int = 0
    map_used: float = 0.0


class ThreadStats:
    """The last round of a thread, and how overdue logs were when the last one began."""

    __slots__ = ("delay_ms", "last_round")

    def __init__(self) -> None:
        self.last_round = LastRound()
        self.delay_ms = 0


class _Round:
    """A round over `log`, with `map_bytes` for its keys. `number`, from 0 on, is that of Kafka's thread for it."""

    __slots__ = ("began_ms", "cleaner", "is_flushing", "log", "map_bytes", "number", "steps")

    def __init__(self, number: int, log: UnifiedLog, cleaner: Cleaner, now_ms: int, map_bytes: int) -> None:
        self.number = number
        self.log = log
        self.cleaner = cleaner
        self.steps: FlushSequence[CleanedLog] = cleaner.run()
        self.began_ms = now_ms
        self.map_bytes = map_bytes
        self.is_flushing = False


class LogCleaner:
    """Cleans the compacted logs of a registry, a time slice a call of `run`; `wake(at_ms)` asks for a call."""

    def __init__(self, registry: LogRegistry, manager: LogCleanerManager, wake: Callable[[int], None]) -> None:
        self.manager = manager
        self.totals = CleanerTotals()
        self._registry = registry
        self._wake = wake
        self._rounds: list[_Round] = []  # the one that runs next is first
        self._stats: dict[int, ThreadStats] = {}  # by the number of a thread
        self._throttler = Throttler()
        self._next_check_ms = 0

    def run(self, now_ms: int) -> int:
        """Do the next slice; return when `run` is to be called again."""
        settings, next_check_ms = self._registry.settings, NEVER_MS
        if len(self._rounds) < settings.cleaner_threads:
            if now_ms >= self._next_check_ms:
                in_progress = [cleaning.log for cleaning in self._rounds]
                if self.manager.check_some_logs(now_ms, in_progress) or self._begin(now_ms):
                    return now_ms
                self._next_check_ms = now_ms + max(LEAST_BACKOFF_MS, settings.cleaner_backoff_ms)
            next_check_ms = self._next_check_ms
        cleaning = next((one for one in self._rounds if not one.is_flushing), None)
        if cleaning is None:
            return next_check_ms
        due_ms = self._throttler.due_ms(now_ms, settings.cleaner_max_bytes_per_second)
        if due_ms > now_ms:
            return min(due_ms, next_check_ms)
        self._rounds.remove(cleaning)
        self._rounds.append(cleaning)
        self._step(cleaning, now_ms)
        return now_ms

    def skip_backoff(self) -> None:
        """Check the logs at once: the settings changed, and so may which logs need cleaning."""
        self._next_check_ms = 0
        self._wake(0)

    def thread_stats(self) -> list[ThreadStats]:
        """Return those of the current threads that have had a round."""
        return [stats for number, stats in self._stats.items() if number < self._registry.settings.cleaner_threads]

    def abort_rounds(self) -> None:
        """Abort all rounds and remove what they were writing."""
        for cleaning in list(self._rounds):
            self._end(cleaning)

    def _begin(self, now_ms: int) -> bool:
        """Begin the round of the filthiest log; return whether there is one."""
        found = self.manager.take_filthiest()
        if found is None:
            return False
        log, cleanable = found
        registry, settings = self._registry, self._registry.settings
        map_bytes = settings.cleaner_dedupe_buffer_bytes // settings.cleaner_threads
        offsets = OffsetMap(map_bytes, registry.random_bytes(SECRET_BYTES), settings.cleaner_load_factor)
        # Half of it for input, half for output.
        buffer_bytes = max(settings.cleaner_io_buffer_bytes // settings.cleaner_threads // 2, LEAST_BUFFER_BYTES)
        cleaner = Cleaner(log, cleanable, offsets, registry.wall.at(now_ms), buffer_bytes)
        number = min(set(range(len(self._rounds) + 1)) - {cleaning.number for cleaning in self._rounds})
        self._rounds.append(_Round(number, log, cleaner, now_ms, map_bytes))
        last_run = self.manager.last_run
        self._stats.setdefault(number, ThreadStats()).delay_ms = 0 if last_run is None else last_run.delay_ms
        return True

    def _step(self, cleaning: _Round, now_ms: int) -> None:
        """Continue a round."""
        log = cleaning.log
        try:
            if not self._registry.is_live(log) or not log.config.is_compacted:
                raise CleaningAbortedError(f"{log} is out of service, or is not compacted any more")
            paths = self._next_step(cleaning, now_ms)
        except StopIteration as end:
            self._delete_replaced(cleaning, now_ms)
            self._finish(cleaning, end.value, now_ms)
        except CleaningAbortedError:
            self._end(cleaning)
        except FormatError as error:
            self._end(cleaning)
            self.manager.mark_uncleanable(log, error.message)
        except OSError as error:
            self._fail(cleaning, error)
        except Exception as error:  # requests are served, and other logs cleaned, whatever it is
            self._end(cleaning)
            self.manager.mark_uncleanable(log, fault_line("", error))
        else:
            self._delete_replaced(cleaning, now_ms)
            if paths:
                cleaning.is_flushing = True
                self._registry.queue_flush(FlushRequest(paths, partial(self._flushed, cleaning)))

    def _next_step(self, cleaning: _Round, now_ms: int) -> tuple[str, ...]:
        """Do a step of a round, count its bytes, and return the paths that it wants flushed."""
        moved_before = cleaning.cleaner.moved_bytes
        try:
            return next(cleaning.steps)
        finally:
            moved = cleaning.cleaner.moved_bytes - moved_before
            self._throttler.add(moved, now_ms, self._registry.settings.cleaner_max_bytes_per_second)

    def _flushed(self, cleaning: _Round, error: OSError | None) -> None:
        """Continue a round after its flush."""
        cleaning.is_flushing = False
        if isinstance(error, FileNotFoundError):
            self._end(cleaning)  # retention removed the file: the log is checked again
        elif error is not None and cleaning in self._rounds:
            self._fail(cleaning, error)
        self._wake(0)

    def _delete_replaced(self, cleaning: _Round, now_ms: int) -> None:
        """Delete the files that were replaced after file.delete.delay.ms."""
        removed = cleaning.cleaner.take_removed()
        if removed:
            self._registry.deletions.add(removed, now_ms + cleaning.log.config.file_delete_delay_ms)

    def _finish(self, cleaning: _Round, done: CleanedLog, now_ms: int) -> None:
        self._end(cleaning)
        totals = self.totals
        totals.rounds += 1
        totals.bytes_read += done.stats.bytes_read
        totals.bytes_kept += done.stats.bytes_kept
        map_used = done.keys / (cleaning.map_bytes / SLOT_BYTES)
        last_round = LastRound(done.stats.bytes_read, done.stats.bytes_kept, now_ms - cleaning.began_ms, map_used)
        self._stats[cleaning.number].last_round = last_round
        self.manager.done_cleaning(cleaning.log, done.end_offset)

    def _fail(self, cleaning: _Round, error: OSError) -> None:
        """Take the log directory offline, as after any disk error, unless the log was deleted."""
        self._end(cleaning)
        if self._registry.is_live(cleaning.log):
            self._registry.take_offline(cleaning.log.directory, error)

    def _end(self, cleaning: _Round) -> None:
        """End a round and remove what it was writing; the logs are checked at once for the next one."""
        if cleaning in self._rounds:
            self._rounds.remove(cleaning)
            self._next_check_ms = 0
        with suppress(OSError):  # the log directory failed: the next start removes the files
            cleaning.cleaner.discard()
