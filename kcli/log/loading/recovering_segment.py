"""One segment of a log that is loaded: its batches, its three indexes, and its recovery.

    operation          effect (Kafka: LogSegment)
    -----------------  ----------------------------------------------------------------------------------------------------
    recover            rebuilds the indexes from the batches, applies them to producers and leader epochs, cuts the file at
                       the first batch whose size or CRC is wrong; raises OffsetOverflowError for an offset that does not fit
                       above the base offset in 31 bits, OffsetsGoBackError for one that goes back in an index
    translate_offset   finds the batch with an offset, or the first one after it, from the entry in the offset index on
    read_next_offset   finds the next offset after the last batch in the same way: a wrong index gives a wrong result
    truncate_to        cuts all batches from an offset on
    sanity_check       Kafka's check of a segment: the offset index exists, the offsets in the transaction index are at or
                       above the base offset

Everything here does what Kafka does, including its mistakes with damaged files, and raises where Kafka throws; inspect's
repair, which does better, prepares the files first. Indexes are read at their first use and written by `close`. Files are
accessed through a disk port, so that the result can be planned on a PlannedDisk.

The fast path of `recover` (RecoveryPass) handles the rows of kcli.format.batch_scan without an object for each batch. A batch
is eligible if it is complete and of magic 2, its CRC is correct, it is not a control batch, its offsets fit the segment, and it
does not conflict with an open transaction. The pass stops before the first batch that is not, which RecoveringSegment.recover
then handles; a test checks that both have the same outcome for an eligible batch.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from kcli.format.batch_scan import BatchColumns, scan_batches
from kcli.format.file_names import FileKind, FileState, segment_file_name
from kcli.format.index_entries import AbortedTxn, OffsetIndex, TimeIndex, TransactionIndex
from kcli.format.loop_results import NEED_MORE, OTHER
from kcli.format.primitives import INT32_MAX, CorruptIndexError, CorruptRecordError, FormatError, InvalidRecordError, crc32c
from kcli.format.record_batch import CONTROL_FLAG, HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC, RecordBatch
from kcli.log.disk.port import Disk, join_path
from kcli.log.files.indexes import (
    IndexAppender,
    IndexSettings,
    close_index,
    last_index_entry,
    open_offset_index,
    open_time_index,
    open_transaction_index,
)
from kcli.log.files.leader_epoch_file_cache import LeaderEpochFileCache
from kcli.log.producer_state_manager import ProducerStateManager
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.segment_reader import LogBatch, SegmentReader
from kcli.log.slices import Slices

# Batches that RecoveryPass does not handle, one by one: about fifty microseconds each.
BATCHES_PER_SLICE = 128


class BatchFaultError(FormatError):
    """A sound batch that does not belong at its position; bytes [position, end_position) of its segment."""

    def __init__(self, message: str, batch: LogBatch) -> None:
        super().__init__(message, batch.position)
        self.end_position = batch.end_position


class OffsetOverflowError(BatchFaultError):
    """A batch whose offset does not fit the segment of `base_offset`: below it, or more than 2**31 - 1 above it."""

    def __init__(self, message: str, batch: LogBatch, base_offset: int) -> None:
        super().__init__(message, batch)
        self.base_offset = base_offset


class OffsetsGoBackError(BatchFaultError):
    """A batch whose index entry would not rise above the last one (Kafka: InvalidOffsetException)."""


class MissingIndexError(FormatError):
    """A segment without its offset index (Kafka: NoSuchFileException)."""


class LogRefusedError(FormatError):
    """An error at which Kafka fails to load the log, so that a broker does not start with it.

    `path` is the file, [position, end_position) the bytes that cause it; `position` is None for the whole file.
    """

    def __init__(self, message: str, path: str, position: int | None = None, end_position: int | None = None) -> None:
        super().__init__(message, position)
        self.path = path
        self.end_position = end_position


class OffsetPosition(NamedTuple):
    """A batch: its base offset, position and size."""

    offset: int
    position: int
    size_bytes: int


BeforeCut = Callable[[int, int, str], Slices[None]]


def _cut_at_once(position: int, next_offset: int, why: str) -> Slices[None]:
    """Do nothing: the default of `before_cut`."""
    yield from ()


class RecoveredSegment(NamedTuple):
    """The result of `recover`: the bytes cut off at the end, the reason ("" for none), the next offset after the last batch."""

    truncated_bytes: int
    why: str
    next_offset: int


class RecoveringSegment:
    """The segment of `base_offset` in a partition's directory; `explain` gets the path and the reason of each change."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        base_offset: int,
        settings: IndexSettings,
        explain: Callable[[str, str], None] = lambda path, why: None,
        state: FileState = FileState.CURRENT,
    ) -> None:
        self.base_offset = base_offset
        self.settings = settings
        self._disk = disk
        self._explain = explain
        self.log_path, self.offset_index_path, self.time_index_path, self.transaction_index_path = (
            join_path(directory, segment_file_name(base_offset, kind, state))
            for kind in (FileKind.LOG, FileKind.INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX)
        )
        if not disk.exists(self.log_path):
            explain(self.log_path, "the log needs a segment to append to")
            disk.append(self.log_path, b"")
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._transaction_index: TransactionIndex | None = None
        if self.size_bytes > INT32_MAX:
            message = f"the segment has {self.size_bytes} bytes, more than the {INT32_MAX} that Kafka opens"
            raise LogRefusedError(message, self.log_path, INT32_MAX, self.size_bytes)

    @property
    def paths(self) -> tuple[str, str, str, str]:
        """The paths of `.log`, `.index`, `.timeindex` and `.txnindex`; the last file may be missing."""
        return self.log_path, self.offset_index_path, self.time_index_path, self.transaction_index_path

    @property
    def size_bytes(self) -> int:
        """The size of the `.log`."""
        return self._disk.size(self.log_path)

    @property
    def offset_index(self) -> OffsetIndex:
        """The offset index, read at the first use; a missing one is created."""
        if self._offset_index is None:
            self._offset_index = open_offset_index(self._disk, self.offset_index_path, self.base_offset, self.settings)
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        """The time index, read at the first use; a missing one is created."""
        if self._time_index is None:
            self._time_index = open_time_index(self._disk, self.time_index_path, self.base_offset, self.settings)
        return self._time_index

    def close(self) -> None:
        """Write the indexes that were opened, as Kafka does at a stop; they are read again when needed."""
        for path, index in (
            (self.offset_index_path, self._offset_index),
            (self.time_index_path, self._time_index),
            (self.transaction_index_path, self._transaction_index),
        ):
            if index is not None:
                close_index(self._disk, path, index)
        self._offset_index = self._time_index = self._transaction_index = None

    def batches(self, position: int = 0, end: int | None = None) -> Iterator[LogBatch]:
        """Yield the batches of bytes [position, end) as Kafka reads them. Raises CorruptRecordError where Kafka does."""
        with SegmentReader(self._disk, self.log_path, end=end) as reader:
            yield from reader.batches_as_kafka(position)

    # --------------------------------------------------------------------------------------------------- finding offsets

    def _batches_to_find(self, position: int) -> Iterator[LogBatch]:
        """Yield the batches from `position` on. Raises LogRefusedError for damage: Kafka fails to load the log."""
        try:
            yield from self.batches(position)
        except FormatError as error:
            raise LogRefusedError(error.message, self.log_path, error.position, self.size_bytes) from error

    def translate_offset(self, offset: int) -> OffsetPosition | None:
        """Return the batch with `offset`, or the first one after it, or None."""
        start = max(self.offset_index.lookup(offset).position, 0)
        previous: OffsetPosition | None = None
        previous_last = -1
        for batch in self._batches_to_find(start):
            with refusing(self, batch):
                base_offset = batch.first_offset()
            found = OffsetPosition(base_offset, batch.position, batch.header.size_bytes)
            if base_offset == offset:
                return found
            if base_offset > offset:
                return previous if previous is not None and previous_last >= offset else found
            previous, previous_last = found, batch.header.last_offset
        return previous if previous is not None and previous_last >= offset else None

    def read_next_offset(self) -> int:
        """Return the next offset after the last batch; the base offset for an empty segment."""
        start = self.translate_offset(self.offset_index.last_offset)
        next_offset = self.base_offset
        if start is not None:
            for batch in self._batches_to_find(start.position):
                next_offset = batch.header.next_offset
        return next_offset

    def last_index_entry(self) -> tuple[int, int]:
        """Return the last entry of the `.index` on the disk; see kcli.log.files.indexes.last_index_entry."""
        return last_index_entry(self._disk, self.offset_index_path, self.base_offset, self.size_bytes)

    def read_clean_end(self) -> int:
        """Return the next offset after the last batch. Raises FormatError if a clean stop does not leave such files."""
        relative_offset, start = self.last_index_entry()
        offset, end_position, next_offset = self.base_offset + relative_offset, start, self.base_offset
        for batch in self.batches(start):
            header, end_position, next_offset = batch.header, batch.end_position, batch.header.next_offset
            is_first = start and batch.position == start
            if is_first and isinstance(header, RecordBatch) and not header.base_offset <= offset <= header.last_offset:
                raise FormatError(f"the batch at byte {start} does not have offset {offset}, which the offset index names")
        if end_position != self.size_bytes:
            raise FormatError(f"the last {self.size_bytes - end_position} bytes are not a complete batch")
        return next_offset

    def fits(self, offset: int) -> bool:
        """Return True if an offset fits the indexes of the segment."""
        return 0 <= offset - self.base_offset <= INT32_MAX

    def has_overflow(self) -> bool:
        """Return True if the last batch's last offset does not fit the indexes."""
        next_offset = self.read_next_offset()
        return next_offset > self.base_offset and not self.fits(next_offset - 1)

    # -------------------------------------------------------------------------------------------------------- recovering

    def sanity_check(self, *, has_time_index: bool) -> None:
        """Check a segment as Kafka does. Raises MissingIndexError, CorruptIndexError and LogRefusedError."""
        if not self._disk.exists(self.offset_index_path):
            raise MissingIndexError(f"{self.offset_index_path}: the offset index is missing")
        if not has_time_index:
            self._explain(self.time_index_path, "the time index is missing")
            self._disk.write_file(self.time_index_path, b"")
        index = open_transaction_index(self._disk, self.transaction_index_path, self.base_offset)
        if index is None:
            return
        try:
            index.sanity_check(self.transaction_index_path)
        except CorruptIndexError:
            raise
        except FormatError as error:
            raise LogRefusedError(error.message, self.transaction_index_path) from error

    def recover(
        self,
        producers: ProducerStateManager,
        epochs: LeaderEpochFileCache,
        *,
        keeps_order: bool = False,
        before_cut: BeforeCut = _cut_at_once,
    ) -> Slices[RecoveredSegment]:
        """Rebuild the indexes and cut the file after its last sound batch, applying the batches to producers and epochs.

        The CRC does not cover a batch's offset, which a write torn at a sector may leave 0. Kafka then drops the whole segment,
        or ends the log at that offset; with `keeps_order` such a batch is not sound, and all batches before it are kept. Other
        offsets that go back are handled as in Kafka. `before_cut(position, next_offset, why)` runs before the file is cut at
        byte `position`, with the next offset after the cut.
        `producers` must hold the state at the base offset. Raises OffsetOverflowError, OffsetsGoBackError, LogRefusedError.
        """
        self._offset_index = OffsetIndex.of(self.base_offset)
        self._time_index = TimeIndex.of(self.base_offset)
        self._transaction_index = None
        if self._disk.exists(self.transaction_index_path):
            self._transaction_index = TransactionIndex(self.base_offset, [])
        indexes = IndexAppender(self._offset_index, self._time_index, self.settings.interval_bytes)
        for path in (self.offset_index_path, self.time_index_path, self.transaction_index_path):
            self._explain(path, "rebuilt from the batches of its segment")
        valid_bytes, next_offset, why = yield from self._recover_batches(indexes, producers, epochs, keeps_order)
        truncated_bytes = self.size_bytes - valid_bytes
        if truncated_bytes:
            yield from before_cut(valid_bytes, next_offset, why)
            self._explain(self.log_path, why)
            self._disk.truncate(self.log_path, valid_bytes)
        try:
            indexes.close()
        except FormatError as error:
            raise self._goes_back(error) from error
        return RecoveredSegment(truncated_bytes, why if truncated_bytes else "", next_offset)

    def _goes_back(self, error: FormatError) -> OffsetsGoBackError:
        """Return the error for a last time index entry that goes back, with the first batch whose offset does."""
        found: LogBatch | None = None
        highest = -1
        for batch in self.batches():
            found = batch
            if batch.header.last_offset <= highest:
                break
            highest = batch.header.last_offset
        if found is None:
            raise error  # there is no entry without a batch
        return OffsetsGoBackError(error.message, found)

    def _recover_batches(
        self, indexes: IndexAppender, producers: ProducerStateManager, epochs: LeaderEpochFileCache, keeps_order: bool
    ) -> Slices[tuple[int, int, str]]:
        """Apply the batches; return the number of sound bytes, the next offset after them, and why the rest is not sound."""
        valid_bytes = batches = 0
        scanner = RecordScanner(16)
        with SegmentReader(self._disk, self.log_path) as reader:
            fast = RecoveryPass(reader, self.base_offset, indexes, producers, epochs, keeps_order=keeps_order)
            try:
                while True:
                    valid_bytes = yield from fast.run(valid_bytes)
                    batch = next(reader.batches_as_kafka(valid_bytes), None)
                    batches += 1
                    if batches % BATCHES_PER_SLICE == 0:
                        yield
                    if batch is None:
                        return (
                            valid_bytes,
                            fast.next_offset,
                            f"the last {self.size_bytes - valid_bytes} bytes are not a complete batch",
                        )
                    if not batch.is_valid_for_kafka:
                        offset = batch.header.base_offset
                        why = f"the batch at byte {batch.position} (offset {offset}) has a wrong CRC"
                        return valid_bytes, fast.next_offset, why
                    if fast.least_offset is not None:
                        if is_torn_offset(batch.header.base_offset, fast.least_offset, batch.position):
                            why = f"the offset of the batch at byte {batch.position} was not written completely"
                            return valid_bytes, fast.next_offset, why
                        fast.least_offset = batch.header.last_offset + 1
                    self._recover_indexes(batch, indexes)
                    valid_bytes += batch.header.size_bytes
                    fast.next_offset = batch.header.last_offset + 1
                    if isinstance(batch.header, RecordBatch):
                        self._recover_epochs(batch.header, epochs)
                        self._update_producers(batch, batch.header, producers, scanner)
            except IndexGoesBackError as error:
                found = reader.batch_at(error.position or 0)
                if not isinstance(found, LogBatch):
                    raise OSError(f"{self.log_path}: the file shrank while it was read") from error
                raise OffsetsGoBackError(error.message, found) from error
            except CorruptRecordError as error:
                return valid_bytes, fast.next_offset, error.message
            except InvalidRecordError as error:
                return valid_bytes, fast.next_offset, f"the marker before byte {valid_bytes} cannot be read: {error.message}"

    def _recover_indexes(self, batch: LogBatch, indexes: IndexAppender) -> None:
        header = batch.header
        if not self.fits(header.last_offset):
            message = f"offset {header.last_offset} does not fit a segment of base offset {self.base_offset}"
            raise OffsetOverflowError(message, batch, self.base_offset)
        try:
            indexes.add(batch.position, header.size_bytes, header.last_offset, header.max_timestamp)
        except FormatError as error:
            raise OffsetsGoBackError(error.message, batch) from error

    @staticmethod
    def _recover_epochs(header: RecordBatch, epochs: LeaderEpochFileCache) -> None:
        latest = epochs.latest_epoch
        if header.partition_leader_epoch >= 0 and (latest is None or header.partition_leader_epoch > latest):
            epochs.assign(header.partition_leader_epoch, header.base_offset)

    def _update_producers(
        self, batch: LogBatch, header: RecordBatch, producers: ProducerStateManager, scanner: RecordScanner
    ) -> None:
        if header.has_producer:
            info = producers.prepare_update(header.producer_id)
            # In a recovery Kafka catches InvalidRecordException, and no other exception.
            with refusing(self, batch, passing=InvalidRecordError):
                completed = info.append(header, batch.read_marker(scanner) if header.is_control else None)
                producers.update(info)
                if completed is not None:
                    if completed.is_aborted:
                        last_stable_offset = producers.last_stable_offset(completed)
                        self._add_aborted(AbortedTxn(0, *completed[:3], last_stable_offset))
                    producers.complete(completed)
        producers.map_end_offset = header.next_offset

    def _add_aborted(self, txn: AbortedTxn) -> None:
        if self._transaction_index is None:
            self._transaction_index = TransactionIndex(self.base_offset, [])
        self._transaction_index.append(txn)

    def truncate_to(self, offset: int) -> int:
        """Cut batches and index entries from `offset` on; return the number of bytes cut, 0 if no batch has that offset."""
        found = self.translate_offset(offset)
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        if self._transaction_index is not None:
            aborted = self._transaction_index.aborted
            kept = next((slot for slot, txn in enumerate(aborted) if txn.last_offset >= offset), len(aborted))
            del aborted[kept:]
        if found is None:
            return 0
        truncated_bytes = self.size_bytes - found.position
        self._explain(self.log_path, f"its offsets do not rise: all from offset {offset} on is cut")
        self._disk.truncate(self.log_path, found.position)
        return truncated_bytes


@contextmanager
def refusing(segment: RecoveringSegment, batch: LogBatch, passing: type[FormatError] | tuple[()] = ()) -> Iterator[None]:
    """Turn a FormatError of a batch into a LogRefusedError with its bytes; errors of type `passing` are not turned."""
    try:
        yield
    except passing:
        raise
    except FormatError as error:
        raise LogRefusedError(error.message, segment.log_path, batch.position, batch.end_position) from error


# Batches in a time slice: about ten microseconds each.
ROWS_PER_PASS = 512
# The unit that a disk writes atomically.
SECTOR_BYTES = 512
# A batch begins with its offset, then its length, whose first bytes are 0 below 64 KiB.
_LENGTH_AT, _LENGTH_BYTES = 8, 4


class IndexGoesBackError(FormatError):
    """The batch at byte `position` would get an index entry that does not rise."""


def is_torn_offset(offset: int, expected: int, position: int) -> bool:
    """Return True if the offset of the batch at byte `position` is `expected` after a write torn at a sector boundary.

    Its bytes before the boundary are 0, since they were not written, and the bytes that the CRC covers are after it. Any other
    offset that goes back is handled as in Kafka.
    """
    missing = -position % SECTOR_BYTES
    if not 0 < missing <= _LENGTH_AT + _LENGTH_BYTES or offset >= expected:
        return False
    return offset == expected & (1 << 8 * max(0, _LENGTH_AT - missing)) - 1


class RecoveryPass:
    """The recovery of the segment of `base_offset`: it fills index entries, producers and leader epochs."""

    def __init__(
        self,
        reader: SegmentReader,
        base_offset: int,
        indexes: IndexAppender,
        producers: ProducerStateManager,
        epochs: LeaderEpochFileCache,
        *,
        keeps_order: bool = False,
    ) -> None:
        # With `keeps_order` a batch is eligible only if its offsets are above the previous ones: see is_torn_offset.
        self.least_offset = base_offset if keeps_order else None
        self.next_offset = base_offset  # after the last applied batch, here or in RecoveringSegment.recover
        self._reader = reader
        self._base_offset = base_offset
        self._indexes = indexes
        self._producers = producers
        self._epochs = epochs
        # A small segment gets small columns: those of a whole slice take 50 KB, a tenth of the time to open a log of one batch.
        self._rows = BatchColumns(min(ROWS_PER_PASS, reader.end_position() // HEADER_BYTES + 1))
        self._row = self._count = 0  # rows [_row, _count) are still to be applied
        self._why = OTHER  # why the scan of the rows ended
        self._scratch = array("q", bytes(32))

    def run(self, position: int) -> Slices[int]:
        """Apply the eligible batches from byte `position` on; return their end. Raises IndexGoesBackError and OSError."""
        while True:
            if self._row == self._count or self._rows.position[self._row] != position:
                self._scan(position)
            position, is_eligible = self._apply(position)
            if not is_eligible or self._count == 0 or self._why == OTHER:
                return position
            yield

    def _scan(self, position: int) -> None:
        """Scan the batches from byte `position` on in the reader's buffer; if it has no complete batch, read again."""
        if position == self._reader.end_position():
            self._row = self._count = 0
            return
        for is_fresh in (False, True):
            buffer, index, filled = self._reader.buffered(position, fresh=is_fresh)
            self._row, shift = 0, position - index
            self._count = scan_batches(buffer, buffer, index, filled, shift, crc32c, self._rows, None, self._scratch)
            self._why = self._scratch[1]
            if self._count or self._why != NEED_MORE:
                return

    def _apply(self, position: int) -> tuple[int, bool]:
        """Apply the rows up to the first that is not eligible; return their end in the file and whether all were eligible."""
        rows, base, add = self._rows, self._base_offset, self._indexes.add
        next_offset, is_eligible = None, True
        for row in range(self._row, self._count):
            first_offset, last_offset, epoch = rows.base_offset[row], rows.last_offset[row], rows.leader_epoch[row]
            if (
                rows.attributes[row] & CONTROL_FLAG
                or (self.least_offset is not None and first_offset < self.least_offset)
                or not 0 <= last_offset - base <= INT32_MAX
                or (rows.producer_id[row] >= 0 and not self._update_producer(row))
            ):
                is_eligible = False
                break
            try:
                add(position, rows.size_bytes[row], last_offset, rows.max_timestamp[row])
            except FormatError as error:
                raise IndexGoesBackError(error.message, position) from error
            latest = self._epochs.latest_epoch
            if epoch >= 0 and (latest is None or epoch > latest):
                self._epochs.assign(epoch, first_offset)
            next_offset = last_offset + 1
            if self.least_offset is not None:
                self.least_offset = next_offset
            position += rows.size_bytes[row]
        self._row = self._count if is_eligible else row + 1  # the caller handles the one that is not eligible
        if next_offset is not None:
            self._producers.map_end_offset = self.next_offset = next_offset
        return position, is_eligible

    def _update_producer(self, row: int) -> bool:
        """Apply a row's data batch to its producer; return False, with nothing done, if it conflicts with a transaction."""
        producers, rows = self._producers, self._rows
        producer_id = rows.producer_id[row]
        entry = producers.producers.get(producer_id)
        header = RecordBatch(  # positional: keyword arguments take three times as long
            rows.position[row],
            rows.base_offset[row],
            rows.size_bytes[row] - LOG_OVERHEAD_BYTES,
            rows.leader_epoch[row],
            MAGIC,
            0,  # the CRC was correct
            rows.attributes[row],
            rows.last_offset[row] - rows.base_offset[row],
            rows.base_timestamp[row],
            rows.max_timestamp[row],
            producer_id,
            rows.producer_epoch[row],
            rows.base_sequence[row],
            rows.record_count[row],
        )
        if entry is not None and entry.current_txn_first_offset is not None and not header.is_transactional:
            return False
        info = producers.prepare_update(producer_id)
        info.append(header, None)
        producers.update(info)
        return True
