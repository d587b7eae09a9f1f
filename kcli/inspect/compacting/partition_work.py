"""Opens one partition on a staged disk, and cleans it in rounds or re-compresses it there.

    step                                         by
    -------------------------------------------  -----------------------------------------------------------------------
    refuse a batch whose offsets an index        kcli.log.reading.offset_witnesses: the indexes are written anew by the
      contradicts                                  headers, and nothing would show the fault after that
    open the log as a broker's start would       kcli.log.log_opener
    set the high watermark to the checkpoint's,  a follower may cut the records above it, so they are not cleaned and do
      or to the log start offset without one       not replace other records; Kafka starts a partition in the same way
    roll the active segment, if asked            kcli.log.unified_log
    rounds until all that may be cleaned is      kcli.log.cleaner, as in a broker, but without a lowest dirty ratio
    close, flush the new files

If the keys do not fit the memory, there are more rounds, each of which starts where the last one ended. If tombstones are
not retained (delete.retention.ms is 0), one more round runs over the whole log: the first round sets their delete horizon,
and the next one finds that it has passed.
"""

from __future__ import annotations

from collections.abc import Callable

from kcli.format.primitives import CorruptRecordError, FormatError
from kcli.inspect.compacting.jobs import CompactionPlan, PartitionJob, PartitionOutcome
from kcli.inspect.compacting.obstacles import HAS_CODEC, find_obstacles
from kcli.inspect.compacting.staged_disk import StagedDisk, Store
from kcli.log.cleaner.cleaner import CleanedLog, Cleaner
from kcli.log.cleaner.log_cleaner_manager import LogToClean, log_to_clean
from kcli.log.cleaner.offset_map import SECRET_BYTES, OffsetMap
from kcli.log.disk.port import LogDisk
from kcli.log.file_cache import FileCache
from kcli.log.files.log_directory import read_partition
from kcli.log.loading.recovering_segment import LogRefusedError
from kcli.log.log_opener import open_log
from kcli.log.reading.header_reader import HeaderReader
from kcli.log.reading.index_positions import IndexPositions
from kcli.log.reading.offset_witnesses import OffsetWitnesses
from kcli.log.unified_log import UnifiedLog

OPEN_FILES = 8


class NotSoundError(Exception):
    """A partition that cannot be compacted in its present state; the message is one sentence."""


def work_on(disk: LogDisk, job: PartitionJob, on_bytes: Callable[[int], None]) -> PartitionOutcome:
    """Do all work on a staged disk and return the outcome; the partition itself is not changed.

    `on_bytes` gets the progress, in all `job.size_bytes`. An error is in the `problem` of the outcome.
    """
    progress = _Progress(job.size_bytes, on_bytes)
    staged: StagedDisk | None = None
    try:
        _check_offsets(disk, job)
        if job.options.recompression is not None:
            from kcli.inspect.compacting.recompressing import recompress

            staged = StagedDisk(disk, job.path, Store(disk, job.store_directory, lambda: not job.is_dry_run))
            plan = recompress(staged, job, job.options.recompression, progress.moved)
            outcome = PartitionOutcome(job, plan, obstacles=(HAS_CODEC,) if plan.is_nothing else ())
        else:
            cleaning = PartitionCleaning(disk, job, progress.moved)
            staged = cleaning.disk
            outcome = cleaning.run()
        if not job.is_dry_run and not outcome.plan.is_nothing:
            staged.flush_made()
    except BaseException as error:
        if staged is not None:
            staged.discard()
        if not isinstance(error, FormatError | NotSoundError | OSError):
            raise
        return PartitionOutcome(job, CompactionPlan(), problem=_sentence(job, error))
    finally:
        progress.finish()
    if job.is_dry_run or outcome.plan.is_nothing:
        staged.discard()
        return outcome._replace(job=job)
    return outcome._replace(job=job, files=staged.outcome())


def _check_offsets(disk: LogDisk, job: PartitionJob) -> None:
    """Raise CorruptRecordError if an index contradicts the offsets of a batch: new indexes would not, and OSError."""
    # Read again: since the job was made, a cleaning that was killed may have been finished.
    for segment in read_partition(disk, job.path).segments:
        file = disk.open_file(segment.log)
        try:
            found = next(OffsetWitnesses(file, IndexPositions(disk, segment.log)).all(), None)
        finally:
            file.close()
        if found is not None:
            raise CorruptRecordError(f"{segment.log}: byte {found.position}: {found.message}", found.position)


def _sentence(job: PartitionJob, error: Exception) -> str:
    """Return why a partition was not changed."""
    if isinstance(error, OSError):
        return f"{error.filename or job.path}: {error.strerror or error}; the partition was not changed"
    if not isinstance(error, FormatError):
        return str(error)
    where = error.path if isinstance(error, LogRefusedError) else job.path
    message = error.message if error.message.startswith(job.path) else f"{where}: {error.message}"
    return (
        f"{message}; the partition was not changed: `kcli verify --repair {job.partition.log_directory}` shows what a repair "
        "can do"
    )


class _Progress:
    """Reports progress in bytes of the log; two bytes that are read or written count as one, since a log is read twice."""

    def __init__(self, size_bytes: int, on_bytes: Callable[[int], None]) -> None:
        self._left = size_bytes
        self._on_bytes = on_bytes
        self._unreported = 0

    def moved(self, size_bytes: int) -> None:
        """Count bytes that were read or written."""
        self._unreported += size_bytes
        done = min(self._unreported // 2, self._left)
        if done:
            self._unreported -= 2 * done
            self._left -= done
            self._on_bytes(done)

    def finish(self) -> None:
        """Report the rest as done."""
        if self._left:
            self._on_bytes(self._left)
            self._left = 0


class PartitionCleaning:
    """The rounds over the log of one partition; `disk` is the staged disk."""

    def __init__(self, disk: LogDisk, job: PartitionJob, on_moved: Callable[[int], None]) -> None:
        self.disk = StagedDisk(disk, job.path, Store(disk, job.store_directory, self._keeps))
        self._job = job
        self._on_moved = on_moved
        self._files = FileCache(self.disk, OPEN_FILES)
        self._offsets: OffsetMap | None = None
        self._end_offset = 0
        self._is_last = False

    def _keeps(self) -> bool:
        """Return True if the files that the current round writes are needed: in a dry run only if another round follows."""
        if not self._job.is_dry_run or self._offsets is None:
            return True
        is_complete = self._offsets.latest_offset + 1 >= self._end_offset
        return not is_complete or (self._drops_at_once and not self._is_last)

    @property
    def _drops_at_once(self) -> bool:
        return self._job.config.delete_retention_ms == 0

    def run(self) -> PartitionOutcome:
        """Clean all records that may be cleaned. Raises NotSoundError, FormatError, OSError.

        The job of the outcome lacks a high watermark that the log shows to be wrong.
        """
        log = self._open()
        try:
            return self._run(log)
        finally:
            self._files.close_all()

    def _run(self, log: UnifiedLog) -> PartitionOutcome:
        job, now_ms = self._job, self._job.options.now_ms
        log_bytes, segments = log.size_bytes, log.segment_count
        is_rolled = self._must_roll(log)
        if is_rolled:
            log.roll(now_ms)
        checkpoint = None if job.options.from_start else job.cleaned_offset
        rounds = self._rounds(log, checkpoint)
        if not rounds:
            plan = CompactionPlan(log_bytes=log_bytes, log_bytes_left=log_bytes)
            return PartitionOutcome(job, plan, obstacles=find_obstacles(log, job, checkpoint))
        cleaned_offset = rounds[-1].end_offset
        if self._drops_at_once and any(one.stats.tombstones_kept > 0 for one in rounds):
            self._is_last = True
            rounds += self._rounds(log, None)
        if is_rolled:
            log.close()
        plan = _plan_of(rounds)._replace(
            segments=segments, segments_left=log.segment_count, log_bytes=log_bytes, log_bytes_left=log.size_bytes
        )
        proven = log.log_start_offset if job.high_watermark is None else job.high_watermark
        return PartitionOutcome(job, plan, cleaned_offset=cleaned_offset, assumes_committed=cleaned_offset > proven)

    def _open(self) -> UnifiedLog:
        """Open the log as a broker does at start. Raises NotSoundError if that would change records."""
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
                f"{job.path}: its log needs a recovery, which would cut records; the partition was not changed: start the "
                f"broker and stop it, or repair it with `kcli verify --repair --apply {job.path}`"
            )
        high_watermark, end_offset = job.high_watermark, log.log_end_offset
        if high_watermark is not None and high_watermark > end_offset and not job.options.is_unclean:
            # After a clean stop the high watermark is not above the log end, so the checkpoint is wrong and cannot be used.
            # After a crash Kafka lowers it to the log end.
            fault = f"the checkpointed one is {high_watermark}, and the log ends at {end_offset}"
            self._job = job = job._replace(high_watermark=None, watermark_fault=fault)
        committed = end_offset if job.options.assume_committed else job.high_watermark
        log.update_high_watermark(log.log_start_offset if committed is None else committed)
        return log

    def _must_roll(self, log: UnifiedLog) -> bool:
        """Return True if the active segment is to be cleaned too."""
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
        """Clean from `checkpoint` in as many rounds as it takes. Raises NotSoundError, FormatError, OSError."""
        rounds: list[CleanedLog] = []
        now_ms = self._job.options.now_ms
        while (cleanable := log_to_clean(log, checkpoint, now_ms)).cleanable_bytes > 0:
            if cleanable.first_dirty_offset >= cleanable.first_uncleanable_offset:
                break
            rounds.append(self._clean(log, cleanable))
            checkpoint = rounds[-1].end_offset
            if checkpoint <= cleanable.first_dirty_offset:
                raise NotSoundError(f"{self._job.path}: the memory for keys is too small for one key; give a larger --memory")
        return rounds

    def _clean(self, log: UnifiedLog, cleanable: LogToClean) -> CleanedLog:
        """Run one round, and remove the files that it replaced on the staged disk."""
        options = self._job.options
        self._offsets = OffsetMap(options.memory_bytes, options.random_bytes(SECRET_BYTES), options.load_factor)
        self._end_offset = cleanable.first_uncleanable_offset
        under_way = Cleaner(log, cleanable, self._offsets, options.now_ms)
        steps = under_way.run()
        moved = 0
        while True:
            try:
                # The round yields what is to be flushed before it continues; `flush_made` does that for all before any file
                # is put in place.
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


def _plan_of(rounds: list[CleanedLog]) -> CompactionPlan:
    """Return what all rounds removed, and what the last one left: each round rewrites the log from its start."""
    last = rounds[-1].stats
    records = sum(one.stats.records_read + one.stats.records_discarded - one.stats.records_kept for one in rounds)
    tombstones = sum(one.stats.tombstones_dropped for one in rounds)
    size_bytes = sum(one.stats.bytes_read - one.stats.bytes_kept for one in rounds)
    return CompactionPlan(
        records=records + last.records_kept,
        records_left=last.records_kept,
        tombstones=tombstones + last.tombstones_kept,
        tombstones_left=last.tombstones_kept,
        without_key=sum(one.stats.without_key for one in rounds),
        keys=sum(one.keys for one in rounds),
        size_bytes=size_bytes + last.bytes_kept,
        size_bytes_left=last.bytes_kept,
        rounds=len(rounds),
    )
