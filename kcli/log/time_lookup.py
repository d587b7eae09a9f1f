"""Finding an offset by time in an open log: through the time indexes of its segments (Kafka: ListOffsets).

    question                               answer
    -------------------------------------  ----------------------------------------------------------------------------------
    the first record at or behind a time   in the first segment whose largest timestamp reaches it: the first record with that
                                           timestamp or a later one, at or behind the log start
    the record with the largest timestamp  in the segment with the largest: the first record of the batch that has it

Timestamps need not rise with offsets, and the answers are Kafka's all the same.

The indexes say in which segment, and from which byte on. What is left, a `SegmentScan`, may take long: a batch of some KB
inflates to a hundred MB, and where timestamps fall the time index has no entries for the rest of a segment. A broker does it
beside its loop, unless it is a small batch that is not compressed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from kcli.format.primitives import FormatError
from kcli.format.record_batch import NO_TIMESTAMP, RecordBatch
from kcli.log.disk.port import Disk
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.segment_reader import LogBatch, SegmentReader

if TYPE_CHECKING:
    from kcli.log.local_log import LocalLog
    from kcli.log.log_segment import LogSegment


# How many bytes of records that are not compressed a broker looks through at once.
SHORT_SCAN_BYTES = 64 * 1024


class TimestampAndOffset(NamedTuple):
    """A record by its timestamp in ms and its offset; the epoch of the leader that wrote it, -1 where there is none."""

    timestamp: int
    offset: int
    leader_epoch: int


def largest_timestamp(local: LocalLog, segment: LogSegment) -> int:
    """The largest timestamp of a segment in ms; when its file was last modified where its records have none.

    Raises OSError.
    """
    if segment is local.active.segment:
        local.active.load()
    largest = segment.read_largest(local.disk).timestamp
    return largest if largest >= 0 else local.disk.mtime_ms(segment.log_path)


class LongScanError(Exception):
    """A scan would hold the loop: it is to be done without hurry, elsewhere."""


class SegmentScan(NamedTuple):
    """The search for the first record with a `timestamp`, or a later one, in bytes [position, end) of a segment.

    It knows the file and nothing of the log, which may change while it runs.
    """

    path: str
    position: int
    end: int
    timestamp: int
    start_offset: int

    def run(self, disk: Disk, *, is_hurried: bool = False) -> TimestampAndOffset | None:
        """Find the record, None where there is none. Raises OSError, and LongScanError where it `is_hurried`."""
        for batch in self._batches(disk):
            header = batch.header
            may_hold = header.max_timestamp >= self.timestamp and header.last_offset >= self.start_offset
            if is_hurried and (batch.end_position - self.position > SHORT_SCAN_BYTES or (may_hold and header.codec)):
                raise LongScanError
            if may_hold and (found := _first_record(batch, self.timestamp, self.start_offset)) is not None:
                return found
        return None

    def _batches(self, disk: Disk) -> Iterator[LogBatch]:
        with SegmentReader(disk, self.path, end=self.end) as reader:
            for batch in reader.batches(self.position, resynchronise=False):
                if not isinstance(batch, LogBatch):
                    return
                yield batch


def scan_by_time(local: LocalLog, timestamp: int, start_offset: int) -> SegmentScan | None:
    """How to find the first record at or behind `start_offset` with a timestamp of at least `timestamp`, None for none.

    Raises OSError.
    """
    for segment in local.segments:
        if largest_timestamp(local, segment) >= timestamp:
            if segment is local.active.segment:
                known = local.active.time_entry_at_or_below(timestamp).offset
            else:
                known = segment.read_time_index(local.disk).lookup(timestamp).offset
            return _scan(local, segment, max(known, start_offset), timestamp, start_offset)
    return None


def scan_for_largest(local: LocalLog) -> SegmentScan | None:
    """How to find the first record with the largest timestamp of the log, None where no record has one. Raises OSError."""
    best: LogSegment | None = None
    local.active.load()
    for segment in local.segments:
        if best is None or segment.read_largest(local.disk).timestamp > best.largest_timestamp:
            best = segment
    if best is None or best.read_largest(local.disk).timestamp < 0:
        return None
    return _scan(local, best, best.offset_of_largest, best.largest_timestamp, 0)


def _scan(local: LocalLog, segment: LogSegment, offset: int, timestamp: int, start_offset: int) -> SegmentScan:
    """A scan from the batch on that the offset index knows to be at or before `offset`."""
    position = local.index_of(segment).lookup(offset).position
    return SegmentScan(segment.log_path, position, segment.size_bytes, timestamp, start_offset)


def _first_record(batch: LogBatch, timestamp: int, start_offset: int) -> TimestampAndOffset | None:
    header = batch.header
    epoch = header.partition_leader_epoch if isinstance(header, RecordBatch) else -1
    fixed = header.log_append_time_ms if isinstance(header, RecordBatch) else None
    try:
        for window in batch.windows(RecordScanner(), skip_large=True):
            columns = window.columns
            for row in range(window.count):
                at = columns.timestamp[row] if fixed is None else fixed
                if at >= timestamp and columns.offset[row] >= start_offset:
                    return TimestampAndOffset(at, columns.offset[row], epoch)
    except FormatError:
        return None
    return None


NOT_FOUND = TimestampAndOffset(NO_TIMESTAMP, -1, -1)
