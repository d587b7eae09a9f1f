"""The cleaner of a broker: which log is next, and its round in slices between requests (Kafka: LogCleaner and its manager).

    state of a log     means                                                left by
    -----------------  ---------------------------------------------------  ---------------------------------------------
    idle               nobody cleans it                                     being the filthiest of those that need it
    in its round       slices go on; reads and appends too                  the round's end, or giving it up
    uncleanable        a round found damage, or a fault of kcli: told once  a start of the broker
                       with the reason

The filthiest log is cleaned first: the largest dirty ratio of those that are above their min.cleanable.dirty.ratio or overdue
(max.compaction.lag.ms). Where none needs it, it is looked again log.cleaner.backoff.ms later. As many rounds are under way at a
time as there are log.cleaner.threads, slice by slice in turn, which share log.cleaner.dedupe.buffer.size; one whose log is not
compacted any more is given up. What rounds read and write together is held to log.cleaner.io.max.bytes.per.second.

`kcli-uncleanable-partitions` of each log directory tells which of its logs were given up, for `kcli describe`.
`cleaner-offset-checkpoint` of each log directory tells up to where its logs are cleaned. It is written behind each round and
when logs are deleted or moved; a line that is lost, or is that of an earlier topic of the name, costs a round and no record.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from kcli.format.primitives import FormatError
from kcli.format.uncleanable_partitions import UncleanablePartition
from kcli.log.cleaner.cleaner import CleanedLog, CleaningAbortedError, CleaningRound, CleaningSteps
from kcli.log.cleaner.log_cleaner_manager import LogToClean, dirty_bytes, first_dirty_offset, log_to_clean
from kcli.log.cleaner.offset_map import SECRET_BYTES, SLOT_BYTES, OffsetMap
from kcli.log.cleaner.throttler import Throttle
from kcli.log.disk.deletion_queue import NEVER_MS
from kcli.log.disk.flush_request import FlushRequest
from kcli.log.disk.port import parent_path
from kcli.log.managing.log_registry import LogRegistry
from kcli.log.report_line import WarningLine
from kcli.log.unified_log import UnifiedLog

# Of logs that are looked at to find the filthiest: some microseconds each, more where time bounds are set.
LOGS_PER_STEP = 64
# Kafka's cleaner is a thread, which may look again at once; here requests are served by whoever would look all the time.
LEAST_BACKOFF_MS = 10
# Larger batches than a buffer are looked at singly, so that a small one costs time.
LEAST_BUFFER_BYTES = 16 * 1024


class CleanerTotals:
    """What all rounds of this run of the broker have met."""

    __slots__ = ("bytes_kept", "bytes_read", "rounds")

    def __init__(self) -> None:
        self.rounds = self.bytes_read = self.bytes_kept = 0


class LastRound(NamedTuple):
    """The round of a thread that ended last; `map_used` is how much of its memory for offsets it took, from 0 to 1."""

    bytes_read: int = 0
    bytes_kept: int = 0
    took_ms: int = 0
    map_used: float = 0.0


class ThreadStats:
    """What is told of a thread: the round that ended last, and how overdue logs were when the last one began."""

    __slots__ = ("delay_ms", "last_round")

    def __init__(self) -> None:
        self.last_round = LastRound()
        self.delay_ms = 0


class LastLook(NamedTuple):
    """What the last look at all logs found: its time, the largest dirty ratio, by how much the latest log is overdue."""

    at_ms: int
    dirtiest_ratio: float = 0.0
    delay_ms: int = 0


class Uncleanable(NamedTuple):
    """Of a log directory: how many logs are not cleaned any more, and their bytes that should be."""

    logs: int
    size_bytes: int


class GivenUp(NamedTuple):
    """When and why a log was given up, and from where on it is not cleaned."""

    at_ms: int
    dirty_offset: int
    reason: str


class _CleanerThread:
    """A round under way over `log`, with `map_bytes` for its keys; no thread of the system's. `number` is from 0 on."""

    __slots__ = ("began_ms", "is_flushing", "log", "map_bytes", "number", "round", "steps")

    def __init__(self, number: int, log: UnifiedLog, under_way: CleaningRound, now_ms: int, map_bytes: int) -> None:
        self.number = number
        self.log = log
        self.round = under_way
        self.steps: CleaningSteps[CleanedLog] = under_way.run()
        self.began_ms = now_ms
        self.map_bytes = map_bytes
        self.is_flushing = False


class LogCleaner:
    """Cleans the compacted logs of a registry, a slice a call of `run`, which `wake(at_ms)` has called.

    `uncleanable` are logs that it gave up; `on_cleaned(log)` is called when it is known anew up to where a log is cleaned, and
    `on_uncleanable(path)` when it is known anew which logs of a log directory are given up.
    """

    def __init__(self, registry: LogRegistry, wake: Callable[[int], None]) -> None:
        self.totals = CleanerTotals()
        self.last_look: LastLook | None = None
        self.uncleanable: dict[UnifiedLog, GivenUp] = {}
        self.on_cleaned: Callable[[UnifiedLog], None] = lambda log: None
        self.on_uncleanable: Callable[[str], None] = lambda path: None
        self._registry = registry
        self._wake = wake
        self._candidates: list[UnifiedLog] | None = None
        self._filthiest: tuple[float, UnifiedLog, LogToClean] | None = None
        self._look_now = LastLook(0)
        self._threads: list[_CleanerThread] = []  # whose turn it is first
        self._stats: dict[int, ThreadStats] = {}  # by the number of a thread
        self._throttle = Throttle()
        self._rest_until_ms = 0

    def run(self, now_ms: int) -> int:
        """The next slice -> when to come again."""
        settings, rest_until_ms = self._registry.settings, NEVER_MS
        if len(self._threads) < settings.cleaner_threads:
            if now_ms >= self._rest_until_ms:
                if self._look(now_ms) or self._begin(now_ms):
                    return now_ms
                self._rest_until_ms = now_ms + max(LEAST_BACKOFF_MS, settings.cleaner_backoff_ms)
            rest_until_ms = self._rest_until_ms
        thread = next((one for one in self._threads if not one.is_flushing), None)
        if thread is None:
            return rest_until_ms
        due_ms = self._throttle.due_ms(now_ms, settings.cleaner_max_bytes_per_second)
        if due_ms > now_ms:
            return min(due_ms, rest_until_ms)
        self._threads.remove(thread)
        self._threads.append(thread)
        self._step(thread, now_ms)
        return now_ms

    def look_again(self) -> None:
        """Do not rest: what is to be cleaned may be other logs now."""
        self._rest_until_ms = 0
        self._wake(0)

    def thread_stats(self) -> list[ThreadStats]:
        """Of the threads that there are now and that have had a round."""
        return [stats for number, stats in self._stats.items() if number < self._registry.settings.cleaner_threads]

    def uncleanable_by_directory(self, now_ms: int) -> dict[str, Uncleanable]:
        """By log directory; those without any are left out."""
        found: dict[str, Uncleanable] = {}
        for log in self.uncleanable:
            if self._registry.is_live(log):
                path = self._registry.log_dir_of(log).path
                before = found.get(path, Uncleanable(0, 0))
                found[path] = Uncleanable(before.logs + 1, before.size_bytes + dirty_bytes(log, self._registry.wall.at(now_ms)))
        return found

    def uncleanable_in(self, path: str) -> list[UncleanablePartition]:
        """The logs of a log directory that are given up."""
        return [
            UncleanablePartition(log.topic, log.partition, *given_up)
            for log, given_up in self.uncleanable.items()
            if self._registry.is_live(log) and parent_path(log.directory) == path
        ]

    def forget_the_gone(self) -> None:
        """Drop the logs that are out of service of those that were given up."""
        gone = [log for log in self.uncleanable if not self._registry.is_live(log)]
        for log in gone:
            del self.uncleanable[log]
        for path in {parent_path(log.directory): None for log in gone}:
            self.on_uncleanable(path)

    # ------------------------------------------------------------------------------------------------------- choosing

    def _look(self, now_ms: int) -> bool:
        """Look at some of the compacted logs -> whether there are more to look at."""
        registry = self._registry
        if self._candidates is None:
            self.forget_the_gone()
            taken = {*self.uncleanable, *(thread.log for thread in self._threads)}
            self._candidates = [log for log in registry.logs.values() if log.config.is_compacted and log not in taken]
            self._filthiest, self._look_now = None, LastLook(now_ms)
        for _ in range(min(LOGS_PER_STEP, len(self._candidates))):
            log = self._candidates.pop()
            if not registry.is_live(log):
                continue
            self._correct(log)
            try:
                found = log_to_clean(log, log.cleaned_offset, registry.wall.at(now_ms))
            except FormatError as error:
                self._tell_uncleanable(log, error.message, now_ms)
                continue
            except OSError as error:
                registry.take_offline(log.directory, error)
                continue
            self._look_now = LastLook(
                self._look_now.at_ms,
                max(self._look_now.dirtiest_ratio, found.dirty_ratio),
                max(self._look_now.delay_ms, found.delay_ms),
            )
            if found.needs_cleaning(log.config.min_cleanable_dirty_ratio):
                filthier = (found.dirty_ratio, log, found)
                if self._filthiest is None or filthier[0] > self._filthiest[0]:
                    self._filthiest = filthier
        if self._candidates:
            return True
        self._candidates = None
        self.last_look = self._look_now
        return False

    def _correct(self, log: UnifiedLog) -> None:
        """Have the next round begin where the log does, if the last one's end lies outside of the log, and the file say so.

        It is told of, unless retention has moved the start past what was cleaned, which is in order with compact,delete.
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

    def _begin(self, now_ms: int) -> bool:
        """Begin the round of the filthiest log -> whether there is one."""
        if self._filthiest is None:
            return False
        (_, log, cleanable), self._filthiest = self._filthiest, None
        registry, settings = self._registry, self._registry.settings
        secret, map_bytes = (
            registry.random_bytes(SECRET_BYTES),
            settings.cleaner_dedupe_buffer_bytes // settings.cleaner_threads,
        )
        offsets = OffsetMap(map_bytes, secret, settings.cleaner_load_factor)
        # Half of it for what is read, half for what is left.
        buffer_bytes = max(settings.cleaner_io_buffer_bytes // settings.cleaner_threads // 2, LEAST_BUFFER_BYTES)
        under_way = CleaningRound(log, cleanable, offsets, registry.wall.at(now_ms), buffer_bytes)
        number = min(set(range(len(self._threads) + 1)) - {thread.number for thread in self._threads})
        self._threads.append(_CleanerThread(number, log, under_way, now_ms, map_bytes))
        self._stats.setdefault(number, ThreadStats()).delay_ms = self._look_now.delay_ms
        return True

    # ------------------------------------------------------------------------------------------------------- cleaning

    def _step(self, thread: _CleanerThread, now_ms: int) -> None:
        """Go on with a round."""
        log = thread.log
        try:
            if not self._registry.is_live(log) or not log.config.is_compacted:
                raise CleaningAbortedError(f"{log} is out of service, or not compacted any more")
            paths = self._next_step(thread, now_ms)
        except StopIteration as end:
            self._put_aside(thread, now_ms)
            self._finish(thread, end.value, now_ms)
        except CleaningAbortedError:
            self._end(thread)
        except FormatError as error:
            self._end(thread)
            self._tell_uncleanable(log, error.message, now_ms)
        except OSError as error:
            self._fail(thread, error)
        except Exception as error:  # whatever it is, requests are served, and the other logs cleaned
            where = traceback.extract_tb(error.__traceback__)[-1]
            at = f"{where.filename.rpartition('/')[2]}:{where.lineno}"
            self._end(thread)
            self._tell_uncleanable(log, f"a fault of kcli at {at}: {error!r}; please report it", now_ms)
        else:
            self._put_aside(thread, now_ms)
            if paths:
                thread.is_flushing = True
                self._registry.queue_flush(FlushRequest(paths, partial(self._flushed, thread)))

    def _next_step(self, thread: _CleanerThread, now_ms: int) -> tuple[str, ...]:
        """A step of a round -> what it wants flushed; its bytes are held to the rate."""
        moved_before = thread.round.moved_bytes
        try:
            return next(thread.steps)
        finally:
            moved = thread.round.moved_bytes - moved_before
            self._throttle.add(moved, now_ms, self._registry.settings.cleaner_max_bytes_per_second)

    def _flushed(self, thread: _CleanerThread, error: OSError | None) -> None:
        """What a round wanted on the device is there, or not."""
        thread.is_flushing = False
        if isinstance(error, FileNotFoundError):
            self._end(thread)  # retention was faster; it is looked again at what is left
        elif error is not None and thread in self._threads:
            self._fail(thread, error)
        self._wake(0)

    def _put_aside(self, thread: _CleanerThread, now_ms: int) -> None:
        """Have the files go that were replaced, for good."""
        removed = thread.round.take_removed()
        if removed:
            self._registry.deletions.add(removed, now_ms + thread.log.config.file_delete_delay_ms)

    def _finish(self, thread: _CleanerThread, done: CleanedLog, now_ms: int) -> None:
        self._end(thread)
        thread.log.cleaned_offset = done.end_offset
        totals = self.totals
        totals.rounds += 1
        totals.bytes_read += done.counts.bytes_read
        totals.bytes_kept += done.counts.bytes_kept
        map_used = done.keys / (thread.map_bytes / SLOT_BYTES)
        last_round = LastRound(done.counts.bytes_read, done.counts.bytes_kept, now_ms - thread.began_ms, map_used)
        self._stats[thread.number].last_round = last_round
        self.on_cleaned(thread.log)

    def _tell_uncleanable(self, log: UnifiedLog, why: str, now_ms: int) -> None:
        """Have no round look at a log again until the broker starts anew."""
        self.uncleanable[log] = GivenUp(self._registry.wall.at(now_ms), first_dirty_offset(log, log.cleaned_offset), why)
        text = f"{log.directory}: it is not cleaned any more: {why}; `kcli verify {log.directory}` tells what is wrong"
        self._registry.report(WarningLine(text, path=log.directory, topic=log.topic, partition=log.partition, error=why))
        self.on_uncleanable(parent_path(log.directory))

    def _fail(self, thread: _CleanerThread, error: OSError) -> None:
        """A disk that refuses the cleaner refuses the broker; a log that was deleted meanwhile is no matter."""
        self._end(thread)
        if self._registry.is_live(thread.log):
            self._registry.take_offline(thread.log.directory, error)

    def give_up_rounds(self) -> None:
        """All that is under way is over, and what it had begun to write goes."""
        for thread in list(self._threads):
            self._end(thread)

    def _end(self, thread: _CleanerThread) -> None:
        """A round is over; what it had begun to write goes. Its thread looks for another at once."""
        if thread in self._threads:
            self._threads.remove(thread)
            self._rest_until_ms = 0
        with suppress(OSError):  # its log directory failed: what is left goes with the next start
            thread.round.discard()
