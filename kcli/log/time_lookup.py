"""Finding an offset by time in an open log: through the time indexes of its segments (Kafka: ListOffsets).

    question                               answer
    -------------------------------------  ----------------------------------------------------------------------------------
    the first record at or behind a time   in the first segment whose largest timestamp reaches it: the first record with that
                                           timestamp or a later one, at or behind the log start
    the record with the largest timestamp  in the segment with the largest: the first record of the batch that has it

Timestamps need not rise with offsets, and the answers are Kafka's all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from kcli.format.primitives import FormatError
from kcli.format.record_batch import NO_TIMESTAMP, RecordBatch
from kcli.log.log_reader import LogBatch, SegmentReader
from kcli.log.record_windows import RecordScanner

if TYPE_CHECKING:
    from kcli.log.live_segment import LiveSegment
    from kcli.log.local_log import LocalLog


class TimestampAndOffset(NamedTuple):
    """A record by its timestamp in ms and its offset; the epoch of the leader that wrote it, -1 where there is none."""

    timestamp: int
    offset: int
    leader_epoch: int


def largest_timestamp(local: LocalLog, segment: LiveSegment) -> int:
    """The largest timestamp of a segment in ms; when its file was last modified where its records have none.

    Raises OSError.
    """
    if segment is local.active.segment:
        local.active.load()
    largest = segment.read_largest(local.disk).timestamp
    return largest if largest >= 0 else local.disk.mtime_ms(segment.log_path)


def find_by_time(local: LocalLog, timestamp: int, start_offset: int) -> TimestampAndOffset | None:
    """The first record at or behind `start_offset` with a timestamp of at least `timestamp`, or None. Raises OSError."""
    for segment in local.segments:
        if largest_timestamp(local, segment) >= timestamp:
            return _find_in(local, segment, timestamp, start_offset)
    return None


def _find_in(local: LocalLog, segment: LiveSegment, timestamp: int, start_offset: int) -> TimestampAndOffset | None:
    if segment is local.active.segment:
        local.active.write_indexes()
    known = segment.read_time_index(local.disk).lookup(timestamp).offset
    for batch in _batches(local, segment, max(known, start_offset)):
        header = batch.header
        if header.max_timestamp >= timestamp and header.last_offset >= start_offset:
            found = _first_record(batch, timestamp, start_offset)
            if found is not None:
                return found
    return None


def find_largest(local: LocalLog) -> TimestampAndOffset | None:
    """The first record with the largest timestamp of the log, None where no record has one. Raises OSError."""
    best: LiveSegment | None = None
    local.active.load()
    for segment in local.segments:
        if best is None or segment.read_largest(local.disk).timestamp > best.largest_timestamp:
            best = segment
    if best is None or best.read_largest(local.disk).timestamp < 0:
        return None
    for batch in _batches(local, best, best.offset_of_largest):
        if batch.header.max_timestamp == best.largest_timestamp:
            return _first_record(batch, best.largest_timestamp, batch.header.base_offset)
    return None


def _batches(local: LocalLog, segment: LiveSegment, offset: int) -> Iterator[LogBatch]:
    """The batches from the one on that the offset index knows to lie at or before `offset`."""
    position = local.index_of(segment).lookup(offset).position
    with SegmentReader(local.disk, segment.log_path, end=segment.size_bytes) as reader:
        for batch in reader.batches(position, resynchronise=False):
            if not isinstance(batch, LogBatch):
                return
            yield batch


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
