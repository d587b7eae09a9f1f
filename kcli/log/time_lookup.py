"""Lookup of offsets by timestamp in an open log, with the time indexes of its segments (Kafka: ListOffsets).

    question                               answer
    -------------------------------------  ----------------------------------------------------------------------------------
    the first record at or after a time    in the first segment with a largest timestamp at or after it: the first record with
                                           that timestamp or a later one, at or above the log start offset
    the record with the largest timestamp  in the segment with the largest timestamp: the first record that has it

The answers are Kafka's, also if timestamps do not rise with offsets.

The indexes give the segment and the byte to begin at. The rest, a `SegmentScan`, may take long: a batch of some KB may
decompress to a hundred MB, and if timestamps fall, the time index has no entries for the rest of a segment. A broker runs it in
a thread, unless the batch is small and not compressed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from kcli.format.primitives import FormatError
from kcli.format.record_batch import RecordBatch
from kcli.log.disk.port import Disk
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.segment_reader import LogBatch, SegmentReader

if TYPE_CHECKING:
    from kcli.log.local_log import LocalLog
    from kcli.log.log_segment import LogSegment


# The most bytes of uncompressed batches that are scanned with `is_hurried`.
SHORT_SCAN_BYTES = 64 * 1024


class TimestampAndOffset(NamedTuple):
    """The result of a lookup; the timestamp is in ms, the leader epoch -1 if the batch has none."""

    timestamp: int
    offset: int
    leader_epoch: int


def largest_timestamp(local: LocalLog, segment: LogSegment) -> int:
    """Return the largest timestamp of a segment in ms, or the mtime of its file if no record has a timestamp.

    Raises OSError.
    """
    if segment is local.active.segment:
        local.active.load()
    largest = segment.read_largest(local.disk).timestamp
    return largest if largest >= 0 else local.disk.mtime_ms(segment.log_path)


class LongScanError(Exception):
    """The scan would block the broker's loop for too long: repeat it in a thread without `is_hurried`."""


class SegmentScan(NamedTuple):
    """The search for the first record at or after `timestamp` in bytes [position, end) of a segment.

    It reads the file only, so that the log may change while it runs.
    """

    path: str
    position: int
    end: int
    timestamp: int
    start_offset: int

    def run(self, disk: Disk, *, is_hurried: bool = False) -> TimestampAndOffset | None:
        """Return the record, None if there is none. Raises OSError, and LongScanError with `is_hurried`."""
        for batch in self._batches(disk):
            header = batch.header
            may_hold = header.max_timestamp >= self.timestamp and header.last_offset >= self.start_offset
            if is_hurried and (batch.end_position - self.position > SHORT_SCAN_BYTES or (may_hold and header.codec)):
                raise LongScanError
            if may_hold and (found := first_record(batch, self.timestamp, self.start_offset)) is not None:
                return found
        return None

    def _batches(self, disk: Disk) -> Iterator[LogBatch]:
        with SegmentReader(disk, self.path, end=self.end) as reader:
            for batch in reader.batches(self.position, resynchronise=False):
                if not isinstance(batch, LogBatch):
                    return
                yield batch


def scan_by_time(local: LocalLog, timestamp: int, start_offset: int) -> SegmentScan | None:
    """Prepare the search for the first record at or above `start_offset` and at or after `timestamp`; None if there is none.

    Segments below `start_offset`, which retention has not removed yet, are passed over; Kafka answers -1 if one of them has
    such a timestamp. Raises OSError.
    """
    for segment in local.segments[local.floor(start_offset) :]:
        if largest_timestamp(local, segment) >= timestamp:
            if segment is local.active.segment:
                known = local.active.time_entry_at_or_below(timestamp).offset
            else:
                known = segment.read_time_index(local.disk).lookup(timestamp).offset
            return _scan(local, segment, max(known, start_offset), timestamp, start_offset)
    return None


def scan_for_largest(local: LocalLog) -> SegmentScan | None:
    """Prepare the search for the first record with the largest timestamp; None if no record has one. Raises OSError."""
    best: LogSegment | None = None
    local.active.load()
    for segment in local.segments:
        if best is None or segment.read_largest(local.disk).timestamp > best.largest_timestamp:
            best = segment
    if best is None or best.read_largest(local.disk).timestamp < 0:
        return None
    return _scan(local, best, best.offset_of_largest, best.largest_timestamp, 0)


def _scan(local: LocalLog, segment: LogSegment, offset: int, timestamp: int, start_offset: int) -> SegmentScan:
    """Return a scan that begins at the offset index entry at or below `offset`."""
    position = local.index_of(segment).lookup(offset).position
    return SegmentScan(segment.log_path, position, segment.size_bytes, timestamp, start_offset)


def first_record(batch: LogBatch, timestamp: int, start_offset: int) -> TimestampAndOffset | None:
    """Return the first record of a batch at or above `start_offset` and at or after `timestamp` (ms), or None."""
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
