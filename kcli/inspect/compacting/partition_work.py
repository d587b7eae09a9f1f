"""One partition: opened on a staged disk, cleaned in rounds or re-compressed there, and what came of it.

    step                                         by
    -------------------------------------------  -----------------------------------------------------------------------
    open the log, as a broker's start would      kcli.log.log_opener
    let the high watermark be the checkpoint's,  records above it may be cut by a follower, so none is cleaned, and none
      or the log start offset without one          makes another one obsolete; Kafka starts a partition the same way
    roll the active segment, where asked         kcli.log.unified_log
    rounds until all is clean that may be        kcli.log.cleaner, as in a broker; any dirty byte is reason enough
    close, flush what was made

More keys than fit the memory take more rounds, each of which begins where the one before has ended. Where tombstones are not
to be retained at all, one more goes over the whole log: the first has set their delete horizon, the second finds it past.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kcli.format.primitives import FormatError
from kcli.inspect.compacting.jobs import Obstacle, PartitionJob, PartitionOutcome, PartitionPlan
from kcli.inspect.compacting.obstacles import HAS_CODEC, find_obstacles
from kcli.inspect.compacting.staged_disk import StagedDisk
from kcli.inspect.compacting.staged_files import Store
from kcli.log.cleaner.cleanable import LogToClean, log_to_clean
from kcli.log.cleaner.cleaning_round import CleanedLog, CleaningRound
from kcli.log.cleaner.offset_map import SECRET_BYTES, OffsetMap
from kcli.log.disk.port import LogDisk
from kcli.log.file_cache import FileCache
from kcli.log.loading.recovering_segment import LogRefusedError
from kcli.log.log_opener import open_log
from kcli.log.reading.header_reader import HeaderReader
from kcli.log.unified_log import UnifiedLog

OPEN_FILES = 8


class NotSoundError(Exception):
    """A partition that cannot be worked on as it is; the message is one sentence."""


class WorkedOn(NamedTuple):
    """A plan, up to where the log is cleaned then (None: as before), and why nothing is; see PartitionOutcome."""

    plan: PartitionPlan
    cleaned_offset: int | None
    obstacles: tuple[Obstacle, ...] = ()
    assumes_committed: bool = False


def work_on(disk: LogDisk, job: PartitionJob, on_bytes: Callable[[int], None]) -> PartitionOutcome:
    """Do it all on a staged disk -> what came of it; nothing of the partition has changed then.

    `on_bytes` is told of progress: all in all `job.size_bytes`. What went wrong stands in the outcome's `problem`.
    """
    progress = _Progress(job.size_bytes, on_bytes)
    staged: StagedDisk | None = None
    try:
        if job.options.recompression is not None:
            from kcli.inspect.compacting.recompressing import recompress

            staged = StagedDisk(disk, job.path, Store(disk, job.store_directory, lambda: not job.is_dry_run))
            plan = recompress(staged, job, job.options.recompression, progress.moved)
            worked = WorkedOn(plan, None, (HAS_CODEC,) if plan.is_nothing else ())
        else:
            cleaning = PartitionCleaning(disk, job, progress.moved)
            staged = cleaning.disk
            worked = cleaning.run()
        if not job.is_dry_run and not worked.plan.is_nothing:
            staged.flush_made()
    except BaseException as error:
        if staged is not None:
            staged.discard()
        if not isinstance(error, FormatError | NotSoundError | OSError):
            raise
        return PartitionOutcome(job, PartitionPlan(), problem=_sentence(job, error))
    finally:
        progress.finish()
    files = None
    if job.is_dry_run or worked.plan.is_nothing:
        staged.discard()
    else:
        files = staged.outcome()
    return PartitionOutcome(
        job,
        worked.plan,
        files,
        worked.cleaned_offset,
        obstacles=worked.obstacles,
        assumes_committed=worked.assumes_committed,
    )


def _sentence(job: PartitionJob, error: Exception) -> str:
    """Why a partition is left as it was."""
    if isinstance(error, OSError):
        return f"{error.filename or job.path}: {error.strerror or error}; it is left as it was"
    if not isinstance(error, FormatError):
        return str(error)
    where = error.path if isinstance(error, LogRefusedError) else job.path
    message = error.message if error.message.startswith(job.path) else f"{where}: {error.message}"
    return f"{message}; it is left as it was: `kcli verify --repair {job.partition.log_directory}` shows what a repair can do"


class _Progress:
    """Tells of work in bytes of the log: what is moved is read twice, and partly written."""

    def __init__(self, size_bytes: int, on_bytes: Callable[[int], None]) -> None:
        self._left = size_bytes
        self._on_bytes = on_bytes
        self._odd = 0

    def moved(self, size_bytes: int) -> None:
        """So many more bytes were read or written."""
        self._odd += size_bytes
        done = min(self._odd // 2, self._left)
        if done:
            self._odd -= 2 * done
            self._left -= done
            self._on_bytes(done)

    def finish(self) -> None:
        """The rest is done."""
        if self._left:
            self._on_bytes(self._left)
            self._left = 0


class PartitionCleaning:
    """The rounds over one partition's log; `disk` is the staged one."""

    def __init__(self, disk: LogDisk, job: PartitionJob, on_moved: Callable[[int], None]) -> None:
        self.disk = StagedDisk(disk, job.path, Store(disk, job.store_directory, self._keeps))
        self._job = job
        self._on_moved = on_moved
        self._files = FileCache(self.disk, OPEN_FILES)
        self._offsets: OffsetMap | None = None
        self._end_offset = 0
        self._is_last = False

    def _keeps(self) -> bool:
        """Whether what the round at hand writes will be read: it is a plan's alone, unless another round comes behind it."""
        if not self._job.is_dry_run or self._offsets is None:
            return True
        is_complete = self._offsets.latest_offset + 1 >= self._end_offset
        return not is_complete or (self._drops_at_once and not self._is_last)

    @property
    def _drops_at_once(self) -> bool:
        return self._job.config.delete_retention_ms == 0

    def run(self) -> WorkedOn:
        """Clean all that may be cleaned. Raises NotSoundError, FormatError, OSError."""
        log = self._open()
        try:
            return self._run(log)
        finally:
            self._files.close_all()

    def _run(self, log: UnifiedLog) -> WorkedOn:
        job, now_ms = self._job, self._job.options.now_ms
        log_bytes, segments = log.size_bytes, log.segment_count
        is_rolled = self._must_roll(log)
        if is_rolled:
            log.roll(now_ms)
        checkpoint = None if job.options.from_start else job.cleaned_offset
        rounds = self._rounds(log, checkpoint)
        if not rounds:
            plan = PartitionPlan(log_bytes=log_bytes, log_bytes_left=log_bytes)
            return WorkedOn(plan, None, find_obstacles(log, job, checkpoint))
        cleaned_offset = rounds[-1].end_offset
        if self._drops_at_once and any(one.counts.tombstones_kept > 0 for one in rounds):
            self._is_last = True
            rounds += self._rounds(log, None)
        if is_rolled:
            log.close()
        plan = _plan_of(rounds)._replace(
            segments=segments, segments_left=log.segment_count, log_bytes=log_bytes, log_bytes_left=log.size_bytes
        )
        proven = log.log_start_offset if job.high_watermark is None else job.high_watermark
        return WorkedOn(plan, cleaned_offset, assumes_committed=cleaned_offset > proven)

    def _open(self) -> UnifiedLog:
        """Open the log as a start of a broker does. Raises NotSoundError where that would change records."""
        job, partition = self._job, self._job.partition
        log = open_log(
            self.disk,
            self._files,
            job.path,
            partition.topic,
            partition.partition,
            job.config,
            job.options.now_ms,
            clean_shutdown=not job.options.is_unclean,
            recovery_point=job.recovery_point,
            log_start_offset=job.log_start_offset,
        )
        if self.disk.made(".log"):
            raise NotSoundError(
                f"{job.path}: its log needs a recovery, which would cut records; it is left as it was: start the broker "
                f"and stop it, or repair it with `kcli verify --repair --apply {job.path}`"
            )
        high_watermark, end_offset = job.high_watermark, log.log_end_offset
        if high_watermark is not None and high_watermark > end_offset and not job.options.is_unclean:
            # After a clean stop the two agree: a wrong one proves nothing. After a crash Kafka lowers it to the log end.
            fault = f"the checkpointed one is {high_watermark}, and the log ends at {end_offset}"
            self._job = job = job._replace(high_watermark=None, watermark_fault=fault)
        committed = end_offset if job.options.assume_committed else job.high_watermark
        log.update_high_watermark(log.log_start_offset if committed is None else committed)
        return log

    def _must_roll(self, log: UnifiedLog) -> bool:
        """Whether the active segment is to be cleaned as well."""
        options, active = self._job.options, log.local_log().segments[-1]
        if not active.size_bytes:
            return False
        if options.with_active:
            return True
        oldest_ms = options.now_ms - self._job.config.max_compaction_lag_ms
        if oldest_ms < 0:
            return False
        file = self.disk.open_file(active.log_path)
        try:
            first = next(HeaderReader(file, 0, active.size_bytes).headers(), None)
        finally:
            file.close()
        return first is not None and 0 <= first.max_timestamp < oldest_ms

    def _rounds(self, log: UnifiedLog, checkpoint: int | None) -> list[CleanedLog]:
        """Rounds from where the cleaner was on until all is clean that may be. Raises NotSoundError, FormatError, OSError."""
        rounds: list[CleanedLog] = []
        now_ms = self._job.options.now_ms
        while (cleanable := log_to_clean(log, checkpoint, now_ms)).cleanable_bytes > 0:
            if cleanable.first_dirty_offset >= cleanable.first_uncleanable_offset:
                break
            rounds.append(self._clean(log, cleanable))
            checkpoint = rounds[-1].end_offset
            if checkpoint <= cleanable.first_dirty_offset:
                raise NotSoundError(f"{self._job.path}: the memory for keys has no room for one; it is left as it was")
        return rounds

    def _clean(self, log: UnifiedLog, cleanable: LogToClean) -> CleanedLog:
        """One round; what it replaced is gone then."""
        options = self._job.options
        self._offsets = OffsetMap(options.memory_bytes, options.random_bytes(SECRET_BYTES), options.load_factor)
        self._end_offset = cleanable.first_uncleanable_offset
        under_way = CleaningRound(log, cleanable, self._offsets, options.now_ms)
        steps = under_way.run()
        moved = 0
        while True:
            try:
                # What it wants flushed before it goes on is so before anything is put in place.
                next(steps)
            except StopIteration as end:
                done: CleanedLog = end.value
                break
            self._on_moved(under_way.moved_bytes - moved)
            moved = under_way.moved_bytes
            for path in under_way.take_removed():
                self.disk.remove(path)
        for path in under_way.take_removed():
            self.disk.remove(path)
        return done


def _plan_of(rounds: list[CleanedLog]) -> PartitionPlan:
    """What all rounds took, and what the last one left: each goes over the log from its start."""
    last = rounds[-1].counts
    records = sum(one.counts.records_read + one.counts.records_discarded - one.counts.records_kept for one in rounds)
    tombstones = sum(one.counts.tombstones_dropped for one in rounds)
    size_bytes = sum(one.counts.bytes_read - one.counts.bytes_kept for one in rounds)
    return PartitionPlan(
        records=records + last.records_kept,
        records_left=last.records_kept,
        tombstones=tombstones + last.tombstones_kept,
        tombstones_left=last.tombstones_kept,
        without_key=sum(one.counts.without_key for one in rounds),
        keys=sum(one.keys for one in rounds),
        size_bytes=size_bytes + last.bytes_kept,
        size_bytes_left=last.bytes_kept,
        rounds=len(rounds),
    )
