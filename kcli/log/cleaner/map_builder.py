"""The first half of a cleaning round: the keys of the dirty part are noted in the offset map (Kafka: Cleaner.buildOffsetMap).

    batch                                          its records
    ---------------------------------------------  -----------------------------------------------------------------------
    control, or data of an aborted transaction     are not noted
    usual (kcli.log.cleaner.batch_strides)         are noted with those of its neighbours, in one call
    any other                                      are opened as windows and noted

The map ends at the end of the last segment, or where it is full, which may be within a batch. What batches are not sound, or do
not hold sound records, ends the round (FormatError).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager

from kcli.format.batch_header import read_int64
from kcli.format.compression import inflate_at_once
from kcli.format.loop_results import NEED_MORE, NO_ROOM
from kcli.format.primitives import CorruptRecordError, FormatError, crc32c
from kcli.format.record_batch import MAGIC, RecordBatch
from kcli.log.cleaner.batch_strides import Stride, note_batches
from kcli.log.cleaner.noted_runs import NotedRuns
from kcli.log.cleaner.offset_map import OffsetMap
from kcli.log.cleaner.pace import Pace
from kcli.log.cleaner.stride_state import StrideColumns
from kcli.log.cleaner.transactions import CleanedTransactions
from kcli.log.log_segment import LogSegment
from kcli.log.reading.batch_records import RecordScanner, RecordWindow
from kcli.log.reading.segment_reader import LogBatch, SegmentReader
from kcli.log.unified_log import UnifiedLog

Steps = Generator[tuple[str, ...], None, bool]


def sound_batch(reader: SegmentReader, position: int) -> LogBatch:
    """The batch at byte `position`, before the segment's end. Raises CorruptRecordError where it is none, or not sound.

    Bytes that are no whole batch are no end here: what lies behind them may be told by a repair, and would be gone.
    """
    batch = next(reader.batches_as_kafka(position), None)
    if batch is None:
        raise CorruptRecordError(
            f"{reader.path}: the bytes from {position} on, up to {reader.end_position()}, are no whole batch", position
        )
    if not batch.is_valid:
        raise CorruptRecordError(f"{reader.path}: the batch at byte {batch.position} has a wrong CRC", batch.position)
    return batch


@contextmanager
def located(reader: SegmentReader, batch: LogBatch) -> Iterator[None]:
    """A FormatError of the records in a batch is told with the file and the byte of the batch."""
    try:
        yield
    except FormatError as error:
        if not error.message.startswith(reader.path):
            error.message = f"{reader.path}: the batch at byte {batch.position}: {error.message}"
        raise


class MapBuilder:
    """Fills `offsets` from the batches of `log`; `check(segments)` raises where these are no longer part of it.

    `keyless` and `tombstones` are how many records without a key, and without a value, it has met in batches that
    kcli.log.cleaner.live_offsets holds. `runs` are where whole strides of such lie. So much as `buffer_bytes` is read at once.
    """

    def __init__(
        self,
        log: UnifiedLog,
        offsets: OffsetMap,
        pace: Pace,
        check: Callable[[list[LogSegment]], None],
        buffer_bytes: int,
    ) -> None:
        self.keyless = self.tombstones = 0
        self.runs = NotedRuns()
        self._log = log
        self._local = log.local_log()
        self._offsets = offsets
        self._pace = pace
        self._check = check
        self._buffer_bytes = buffer_bytes
        self._scanner = RecordScanner()
        self._columns = StrideColumns(self._scanner.columns)
        self._noted = Stride()

    def build(self, start: int, end: int) -> Generator[tuple[str, ...], None, None]:
        """Note the keys of offsets [start, end). Raises FormatError, OSError, and what `check` raises."""
        segments = [one for one in self._local.segments[self._local.floor(start) :] if one.base_offset < end]
        transactions = CleanedTransactions()
        transactions.add_aborted(self._log.aborted_transactions(start, end))
        for slot, segment in enumerate(segments):
            next_start = segments[slot + 1].base_offset if slot + 1 < len(segments) else end
            if (yield from self._note_segment(segment, start, transactions)):
                return
            self._offsets.latest_offset = next_start - 1

    def _note_segment(self, segment: LogSegment, start: int, transactions: CleanedTransactions) -> Steps:
        """Note the keys of a segment -> whether the map is full."""
        # An index is read whole, some milliseconds for a large one: only where the round begins within the segment.
        position = 0 if start <= segment.base_offset else self._local.index_of(segment).lookup(start).position
        with SegmentReader(
            self._local.disk, segment.log_path, end=segment.size_bytes, chunk_bytes=self._buffer_bytes
        ) as reader:
            is_fresh, noted = False, self._noted
            while position < segment.size_bytes:
                buffer, index, filled = reader.buffered(position, fresh=is_fresh)
                passed = self._stride(buffer, index, filled, start, transactions) - index
                first_offset = read_int64(buffer, index) if passed else start - 1
                if first_offset >= start and noted.is_plain:
                    run = segment.base_offset, position, position + passed
                    self.runs.add(*run, first_offset, noted.last_offset, noted.records)
                position += passed
                if self._pace.pause_due(passed, noted.work_bytes):
                    yield ()
                    self._check([segment])
                if noted.why == NO_ROOM and self._offsets.may_grow:
                    yield from self._grow()
                    continue
                is_fresh = noted.why == NEED_MORE and (passed > 0 or not is_fresh)
                if passed or is_fresh:
                    continue
                batch = sound_batch(reader, position)
                with located(reader, batch):
                    if (yield from self._note(batch, start, transactions)):
                        return True
                position = batch.end_position
                self._check([segment])
        return False

    def _stride(self, buffer: memoryview, index: int, limit: int, start: int, transactions: CleanedTransactions) -> int:
        """Note the keys of usual batches -> the index behind them; `_noted` says why it ended."""
        offsets, noted = self._offsets, self._noted
        noted.last_offset = offsets.latest_offset
        codecs = crc32c, inflate_at_once
        stopped = note_batches(buffer, buffer, index, limit, *codecs, start, transactions.open, self._columns, offsets, noted)
        self.keyless += noted.keyless
        self.tombstones += noted.tombstones
        if noted.last_offset >= start:
            offsets.latest_offset = noted.last_offset
        return stopped

    def _grow(self) -> Generator[tuple[str, ...], None, None]:
        while self._offsets.grow():
            yield ()

    def _note(self, batch: LogBatch, start: int, transactions: CleanedTransactions) -> Steps:
        """Note the keys of a batch -> whether the map was full before its end."""
        header, offsets = batch.header, self._offsets
        is_data, is_held = True, False
        if isinstance(header, RecordBatch):
            if header.is_control:
                transactions.on_control(header, batch.read_marker(self._scanner))
                is_data = False
            else:
                is_data = not transactions.on_data(header)
                is_held = is_data and header.magic == MAGIC and header.base_offset >= start
        keyless = tombstones = 0
        if is_data:
            for window in batch.windows(self._scanner):
                if (yield from self._note_window(window, start)):
                    return True
                columns, count = window.columns, window.count
                if is_held and count:
                    keyless += sum(size < 0 for size in columns.key_size[:count])
                    tombstones += sum(size < 0 for size in columns.value_size[:count])
                    if columns.offset[0] < header.base_offset or columns.offset[count - 1] > header.last_offset:
                        offsets.is_in_order = False
                if self._pace.pause_due(0, columns.end):
                    yield ()
        self.keyless += keyless
        self.tombstones += tombstones
        if header.last_offset >= start:
            offsets.latest_offset = header.last_offset
        if self._pace.pause_due(header.size_bytes):
            yield ()
        return False

    def _note_window(self, window: RecordWindow, start: int) -> Steps:
        """Note the keys of a window -> whether the map was full before its end. Raises FormatError for a damaged one."""
        if window.error is not None:
            raise window.error
        offsets, noted = self._offsets, 0
        while True:
            noted = offsets.note(window.buffer, window.columns, window.count, start, noted)
            if noted == window.count:
                return False
            if not offsets.may_grow:
                break
            yield from self._grow()
        # Accounted for is all up to the last key that was noted: a record without one behind it goes next time.
        keyed = (at for at in range(noted - 1, -1, -1) if window.columns.key_size[at] >= 0)
        last = next((window.columns.offset[at] for at in keyed), offsets.latest_offset)
        offsets.latest_offset = max(offsets.latest_offset, last)
        return True
