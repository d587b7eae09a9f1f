"""One round of the cleaner over one log: gather the last offsets, write what stays, put it in place (Kafka: Cleaner.doClean).

    step                                           slices   a crash then leaves
    ---------------------------------------------  -------  ----------------------------------------------------------
    what it will read is flushed                   flush    the log as it was
    the offset map of [first dirty, first          yes      the log as it was
      uncleanable), as far as the memory goes
    of each group of segments (segment_groups):
      what stays is written to `*.cleaned`         yes      the log as it was: starts remove `*.cleaned`
      they are flushed                             flush    the same
      they become `*.swap`, the last first         flush    the log as it was, or all of them: starts put `*.swap` in
                                                            place, unless a `*.cleaned` at or below it is left
      the group becomes `*.deleted`, they lose     flush    the group or what replaces it: `*.deleted` goes, `*.swap`
        their suffix                                        is put in place

Kafka flushes the directory once, at the end; here no old file may be gone before a new one is there to stay.

All segments up to the map's end are cleaned, those from before too: a later record may have made theirs obsolete. Every step
gives the paths that are to be flushed before the next one, mostly none. Where segments of the log went meanwhile (retention,
a truncation) the round is given up: CleaningAbortedError; what it has put in place stays, and nothing is lost.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator
from typing import NamedTuple, TypeVar

from kcli.format import limits
from kcli.format.file_names import FileKind
from kcli.format.loop_results import CUT, NEED_MORE, OTHER, WINDOW
from kcli.format.primitives import Buffer
from kcli.format.record_batch import read_header
from kcli.log.cleaner.batch_filter import BatchFilter, FilterCounts, RoundFacts
from kcli.log.cleaner.cleanable import LogToClean
from kcli.log.cleaner.cleaned_segment import CleanedSegment
from kcli.log.cleaner.cut_strides import ROW_SLOTS
from kcli.log.cleaner.live_offsets import LiveOffsets
from kcli.log.cleaner.map_builder import MapBuilder, located, sound_batch
from kcli.log.cleaner.noted_runs import NotedRuns
from kcli.log.cleaner.offset_map import OffsetMap
from kcli.log.cleaner.pace import REWRITTEN, Pace
from kcli.log.cleaner.segment_groups import SegmentSize, group_segments
from kcli.log.cleaner.transactions import CleanedTransactions, LastRecord
from kcli.log.log_segment import LogSegment
from kcli.log.reading.segment_reader import SegmentReader
from kcli.log.unified_log import UnifiedLog

_Result = TypeVar("_Result")
# Steps that give the paths that are to be on the device before the next one.
CleaningSteps = Generator[tuple[str, ...], None, _Result]


class CleaningAbortedError(Exception):
    """The log changed under a round: its segments went, or it went out of service."""


class CleanedLog(NamedTuple):
    """What a round did: the next one begins at `end_offset`; what it met."""

    end_offset: int
    counts: FilterCounts
    keys: int


class CleaningRound:
    """A round over `log`, whose segments must not be changed by another round meanwhile; times in ms.

    So much as `buffer_bytes` is read at once, and held of what was cleaned; 0 leaves it to kcli.format.limits.
    """

    def __init__(
        self,
        log: UnifiedLog,
        cleanable: LogToClean,
        offsets: OffsetMap,
        now_ms: int,
        buffer_bytes: int = 0,
    ) -> None:
        self._log = log
        self._local = log.local_log()
        self._cleanable = cleanable
        self._offsets = offsets
        self._now_ms = now_ms
        self._buffer_bytes = buffer_bytes or limits.READ_CHUNK_BYTES
        self._pace = Pace()
        self._being_written: list[CleanedSegment] = []
        self._runs = NotedRuns()
        self._removed: list[str] = []

    @property
    def moved_bytes(self) -> int:
        """What it has read and written so far."""
        return self._pace.moved_bytes

    def take_removed(self) -> list[str]:
        """The paths of files that were replaced since the last call, and nobody needs any more."""
        taken, self._removed = self._removed, []
        return taken

    def run(self) -> CleaningSteps[CleanedLog]:
        """The round in steps. Raises CleaningAbortedError; FormatError for a damaged batch; OSError.

        Who does not take it to its end calls `discard`: closing the steps does not touch the disk, as who forgets them in a
        process that has given its log directory back may be told of that by the garbage collector, whenever that likes.
        """
        try:
            # A record goes for the sake of a later one of its key, which must not go with the power then.
            yield tuple(self._log.unflushed_paths()[:-1])
            dirty = self._cleanable.first_dirty_offset, self._cleanable.first_uncleanable_offset
            builder = MapBuilder(self._log, self._offsets, self._pace, self._check, self._buffer_bytes)
            yield from builder.build(*dirty)
            return (yield from self._clean_groups(builder))
        except Exception:
            self.discard()
            raise

    def discard(self) -> None:
        """Give the round up: what it was writing goes. Raises OSError."""
        being_written, self._being_written = self._being_written, []
        for segment in being_written:
            segment.discard()

    def _check(self, segments: list[LogSegment]) -> None:
        """Raises CleaningAbortedError where one of these is no longer part of the log."""
        standing = self._local.segments
        if not all(segment in standing for segment in segments):
            raise CleaningAbortedError(f"{self._log}: its segments changed while it was cleaned")

    # --------------------------------------------------------------------------------------------------------- writing

    def _clean_groups(self, builder: MapBuilder) -> CleaningSteps[CleanedLog]:
        end_offset = self._offsets.latest_offset + 1
        segments = [one for one in self._local.segments[:-1] if one.base_offset < end_offset]
        facts = RoundFacts(
            self._now_ms,
            self._log.config.delete_retention_ms,
            self._cleanable.first_uncleanable_offset,
            last_records_of(self._log),
        )
        self._runs = builder.runs
        transactions = CleanedTransactions()
        live = LiveOffsets(self._offsets, self._cleanable.first_dirty_offset)
        batches = BatchFilter(self._offsets, transactions, facts, live, self._buffer_bytes)
        if self._offsets.is_in_order:
            batches.counts.without_key, batches.counts.tombstones_dropped = builder.keyless, builder.tombstones
        legacy_horizon_ms = self._legacy_horizon_ms(segments)
        by_base = {segment.base_offset: segment for segment in segments}
        sizes = [self._size_of(segment) for segment in segments]
        config = self._log.config
        uncleanable = self._cleanable.first_uncleanable_offset
        for group in group_segments(sizes, config.segment_bytes, config.segment_index_bytes, uncleanable):
            olds = [by_base[base] for base in group]
            yield from self._write_group(olds, batches, transactions, legacy_horizon_ms)
            mtime_ms = self._local.disk.mtime_ms(olds[-1].log_path)
            news = self._being_written
            yield (*(path for segment in news for path in segment.finish(mtime_ms)), self._local.directory)
            self._check(olds)
            for segment in reversed(news):
                segment.become_swap()
            yield (self._local.directory,)
            self._check(olds)
            self._being_written = []
            replaced = self._log.replace_segments([(one.base_offset, one.size_bytes) for one in news], olds)
            yield (self._local.directory,)
            self._removed += replaced
        return CleanedLog(end_offset, batches.counts, len(self._offsets))

    def _legacy_horizon_ms(self, segments: list[LogSegment]) -> int:
        """Tombstones of format 0 and 1 go from segments that were modified no later than this."""
        clean = [segment for segment in segments if segment.base_offset < self._cleanable.first_dirty_offset]
        if not clean:
            return 0
        return self._local.disk.mtime_ms(clean[-1].log_path) - self._log.config.delete_retention_ms

    def _size_of(self, segment: LogSegment) -> SegmentSize:
        disk = self._local.disk
        index, time_index = (segment.path(kind) for kind in (FileKind.INDEX, FileKind.TIME_INDEX))
        return SegmentSize(segment.base_offset, segment.size_bytes, disk.size(index), disk.size(time_index))

    def _write_group(
        self, olds: list[LogSegment], batches: BatchFilter, transactions: CleanedTransactions, legacy_horizon_ms: int
    ) -> CleaningSteps[None]:
        """Write what stays of a group to segments that are not in place yet."""
        self._check(olds)
        disk, interval = self._local.disk, self._log.config.index_interval_bytes
        self._being_written.append(CleanedSegment(disk, self._local.directory, olds[0].base_offset, interval))
        for slot, old in enumerate(olds):
            following = self._next_start(olds, slot)
            transactions.add_aborted(self._log.aborted_transactions(old.base_offset, following))
            keeps_legacy_tombstones = disk.mtime_ms(old.log_path) > legacy_horizon_ms
            with SegmentReader(disk, old.log_path, end=old.size_bytes, chunk_bytes=self._buffer_bytes) as reader:
                position = yield from self._clean_usual(reader, 0, old, batches, olds)
                while position < old.size_bytes:
                    batch = sound_batch(reader, position)
                    with located(reader, batch):
                        left = batches.clean(batch, keeps_legacy_tombstones=keeps_legacy_tombstones)
                    if left is not None:
                        header = read_header(left)
                        self._append(left, header.last_offset, header.max_timestamp)
                    self._being_written[-1].add_aborted(transactions.take_retained())
                    if self._pace.pause_due(batch.header.size_bytes, REWRITTEN * batch.header.size_bytes):
                        yield ()
                        self._check(olds)
                    position = yield from self._clean_usual(reader, batch.end_position, old, batches, olds)

    def _clean_usual(
        self, reader: SegmentReader, position: int, old: LogSegment, batches: BatchFilter, olds: list[LogSegment]
    ) -> CleaningSteps[int]:
        """Clean the usual batches from byte `position` on -> where one begins that is to be looked at, or the end."""
        live, stride, size_bytes, is_fresh = batches.live, batches.stride, old.size_bytes, False
        while True:
            behind, end = batches.pass_runs(self._runs, old.base_offset, position)
            self._pace.moved_bytes += behind - position
            position = behind
            if position >= size_bytes:
                break
            buffer, index, filled = reader.buffered(position, fresh=is_fresh)
            limit = min(filled, index + end - position)
            passed = batches.clean_usual(buffer, index, limit, index + size_bytes - position) - index
            if stride.row_count:
                self._append_rows(batches.left, stride.rows, stride.row_count)
            if stride.why == CUT:
                self._append(batches.deflate_cut(), batches.cutter.head.last_offset, batches.cutter.max_timestamp)
            position += passed
            if self._pace.pause_due(passed, stride.work_bytes):
                yield ()
                self._check(olds)
            if stride.why == WINDOW:
                offset = read_header(buffer, index + passed).base_offset
                while live.move(offset):
                    yield ()
                    self._check(olds)
            elif stride.why == OTHER or (is_fresh and not passed):
                break
            is_fresh = stride.why == NEED_MORE and not passed
        return position

    def _next_start(self, olds: list[LogSegment], slot: int) -> int:
        """Where the offsets of a segment of a group end."""
        segments = self._local.segments
        return segments[segments.index(olds[slot]) + 1].base_offset

    def _append_rows(self, left: memoryview, rows: array, count: int) -> None:  # type: ignore[type-arg]
        """Add batches that lie one behind the other, as `count` rows of kcli.log.cleaner.cut_strides tell of them."""
        last_offset = rows[ROW_SLOTS * (count - 1) + 1]
        if self._being_written[-1].fits(len(left), last_offset):
            self._being_written[-1].append_rows(left, rows, count)
            self._pace.moved_bytes += len(left)
            return
        position = 0
        for row in range(0, ROW_SLOTS * count, ROW_SLOTS):
            size_bytes, last_offset, max_timestamp = rows[row : row + ROW_SLOTS]
            self._append(left[position : position + size_bytes], last_offset, max_timestamp)
            position += size_bytes

    def _append(self, left: Buffer, last_offset: int, max_timestamp: int) -> None:
        """Add a batch; where it does not fit the segment, a new one begins with it (Kafka 4.4: KAFKA-20036)."""
        if not self._being_written[-1].fits(len(left), last_offset):
            interval = self._log.config.index_interval_bytes
            segment = CleanedSegment(self._local.disk, self._local.directory, read_header(left).base_offset, interval)
            self._being_written.append(segment)
        self._being_written[-1].append(left, last_offset, max_timestamp)
        self._pace.moved_bytes += len(left)


def last_records_of(log: UnifiedLog) -> dict[int, LastRecord]:
    """What of each active producer must stay."""
    return {
        producer_id: LastRecord(entry.batches[-1].last_offset if entry.batches else None, entry.producer_epoch)
        for producer_id, entry in log.producers.producers.items()
    }
