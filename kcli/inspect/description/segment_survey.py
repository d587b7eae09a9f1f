"""Counts, codecs, message formats and time span of a segment, from batch headers.

    a segment of                     is read                                            known
    -------------------------------  -------------------------------------------------  ------------------------------------
    no more batches and bytes than   every batch, and its CRC is computed               all
      its share of the budget, or
      with --deep
    more                             the first headers; half as many more at            codecs and formats that were seen, the
                                     evenly spaced entries of its .index                time span; no counts

Counts are those of sound batches (kcli.inspect.sound_batches), so that describe, dump-log and verify count the same.

The budget keeps describe fast for a directory of any size: a 1 GiB segment may have 65,000 batches, a broker thousands of
segments. It limits the bytes, and the cost of headers: for the header of a large batch one read is necessary, which takes 10 us
if the page is cached and some 200 us if it is not; headers of small batches are read together. Small segments leave the rest of
their share to the others.

The span begins at the timestamp of the first record and ends at the largest timestamp. The largest timestamp is that of the
headers if all were read, else that of the .timeindex, whose last entry a broker always writes when it closes a segment. If the
first batch has a delete horizon, or is a message set of format 0 or 1, its header does not contain the timestamp of the first
record, and the records of this batch are read.

Offsets are missing between two segments if the first was read completely, has no damage at its end, and ends below the name of
the second (`missing_between`). The cleaner removes batches, so this is not checked if a batch of the log shows its work.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from kcli.format.compression import CODECS
from kcli.format.index_entries import OffsetIndex
from kcli.format.record_batch import RecordBatch
from kcli.format.structs import OFFSET_INDEX_ENTRY
from kcli.inspect.description.remarks import MOST_OF_A_PATH, Remarks
from kcli.inspect.sound_batches import LeftOutBatches, is_left_out
from kcli.log.disk.port import Disk
from kcli.log.files.log_directory import Segment
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.explanation import is_thinned
from kcli.log.reading.header_reader import SMALL_BATCH_BYTES, HeaderReader
from kcli.log.reading.segment_reader import ZEROS, Damage, LogBatch, SegmentReader
from kcli.selecting.lookup import largest_timestamp

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch

# The cost of a header, and its limit in a run without --deep: some 0.2 s if the files are cached, else 0.4 s.
SMALL_BATCH_COST = 1
LARGE_BATCH_COST = 8
COST_PER_RUN = 16_384
LEAST_COST_PER_SEGMENT = 64
# How many bytes of batches a run may read without --deep: some 0.2 s cached.
BYTES_PER_RUN = 256 * 1024 * 1024
LEAST_BYTES_PER_SEGMENT = 256 * 1024
# How many headers are read at each index entry of a segment that is too large for its share.
HEADERS_AT_A_PLACE = 2
_NO_TIMESTAMP = -1


def header_cost(size_bytes: int) -> int:
    """Return the cost of reading the header of a batch of `size_bytes`."""
    return SMALL_BATCH_COST if size_bytes < SMALL_BATCH_BYTES else LARGE_BATCH_COST


class HeaderBudget:
    """The cost and the bytes that `segments` segments may still use; `limit` None for any number."""

    def __init__(self, limit: int | None, segments: int) -> None:
        self._left = limit
        self._bytes_left = BYTES_PER_RUN
        self._segments = segments

    def share(self) -> int | None:
        """Return the limit for the next segment, None for any number of headers."""
        if self._left is None:
            return None
        return max(self._left // max(self._segments, 1), LEAST_COST_PER_SEGMENT)

    def may_read(self, size_bytes: int) -> bool:
        """Return True if the next segment, of `size_bytes`, may be read as a whole."""
        share = self._bytes_left // max(self._segments, 1)
        return self._left is None or size_bytes <= max(share, LEAST_BYTES_PER_SEGMENT)

    def spend(self, cost: int, size_bytes: int = 0) -> None:
        """Count the cost of a segment, and the bytes that were read as batches."""
        self._segments -= 1
        self._bytes_left = max(self._bytes_left - size_bytes, 0)
        if self._left is not None:
            self._left = max(self._left - cost, 0)


class CodecUse(NamedTuple):
    """The number and the bytes of the batches that a codec compressed."""

    batches: int
    size_bytes: int


class SegmentSurvey(NamedTuple):
    """The survey of a segment. `records` is None if the log has a compressed set of format 0 or 1, which hides the number.

    Unless `is_complete`, `batches`, `records` and `control_records` are None, and `codecs` counts only the headers that were
    read. Control batches and empty batches do not count in `codecs`. Timestamps are in ms, None if there is none.
    `batches_end` is the offset after the last sound batch, None unless all batches were read and none is damaged after it.
    `shows_cleaner` is True if one of the batches has fewer records than offsets or a delete horizon, or if there is a gap
    before it.
    """

    base_offset: int
    end_offset: int
    codecs: dict[str, CodecUse]
    size_bytes: int = 0
    batches: int | None = None
    records: int | None = None
    control_records: int | None = None
    formats: tuple[int, ...] = ()
    timestamp_types: tuple[str, ...] = ()
    first_timestamp: int | None = None
    max_timestamp: int | None = None
    is_complete: bool = False
    is_readable: bool = True
    batches_end: int | None = None
    shows_cleaner: bool = False


def unreadable_segment(segment: Segment, end_offset: int) -> SegmentSurvey:
    """Return the survey of a segment that cannot be read."""
    return SegmentSurvey(segment.base_offset, end_offset, {}, is_readable=False)


def missing_between(surveys: Sequence[SegmentSurvey]) -> list[tuple[int, int]]:
    """Return the offsets [first, end) missing between the segments of a log, none if a batch shows that it was cleaned."""
    if any(survey.shows_cleaner for survey in surveys):
        return []
    return [
        (before.batches_end, after.base_offset)
        for before, after in pairwise(surveys)
        if before.batches_end is not None and before.batches_end < after.base_offset
    ]


def survey_segment(
    disk: Disk, segment: Segment, end_offset: int, *, is_last: bool, budget: HeaderBudget, remarks: Remarks
) -> SegmentSurvey:
    """Read the headers of a segment that ends at `end_offset`. Raises OSError as the disk does."""
    counts = _Counts()
    share = budget.share()
    with SegmentReader(disk, segment.log, doubts_offsets=True) as reader:
        end = reader.end_position()
        is_read = budget.may_read(end)
        is_complete = is_read and counts.add_all(reader, share, segment, remarks)
        if not is_read and share is not None:
            counts.add_first(reader, share)
        if not is_complete and share is not None:
            places = share // 2 // LARGE_BATCH_COST // HEADERS_AT_A_PLACE
            for position in _places(disk, segment, counts.position, end, places):
                walk = HeaderReader(reader.file, position, end)
                for _, header in zip(range(HEADERS_AT_A_PLACE), walk.headers()):
                    counts.add(header)
        first_timestamp = counts.first_timestamp(reader)
    budget.spend(counts.cost, end if is_complete else counts.position)
    max_timestamp = counts.max_timestamp
    if not is_complete:
        max_timestamp = max(max_timestamp, largest_timestamp(disk, segment, is_closed=not is_last))
    return SegmentSurvey(
        segment.base_offset,
        end_offset,
        counts.codecs,
        end,
        counts.batches if is_complete else None,
        counts.records if is_complete and not counts.hides_records else None,
        counts.control_records if is_complete else None,
        tuple(sorted(counts.formats)),
        tuple(sorted(counts.timestamp_types)),
        first_timestamp,
        max_timestamp if max_timestamp > _NO_TIMESTAMP else None,
        is_complete,
        batches_end=max(counts.next_offset, segment.base_offset) if is_complete and not counts.ends_damaged else None,
        shows_cleaner=counts.shows_cleaner,
    )


class _Counts:
    """The sums over the headers that were read."""

    def __init__(self) -> None:
        self.cost = self.batches = self.records = self.control_records = 0
        self.codecs: dict[str, CodecUse] = {}
        self.formats: set[int] = set()
        self.timestamp_types: set[str] = set()
        self.max_timestamp = _NO_TIMESTAMP
        self.hides_records = self.shows_cleaner = self.ends_damaged = False
        self.position = 0
        self.next_offset = -1
        self._first: int | None = None  # the byte of the first batch with records
        self._first_timestamp: int | None = None

    def add_all(self, reader: SegmentReader, limit: int | None, segment: Segment, remarks: Remarks) -> bool:
        """Add the sound batches from the beginning, up to a cost of `limit`; return whether these are all.

        Damage is a problem.
        """
        end, is_complete = reader.end_position(), True
        left_out, faults = LeftOutBatches(), list[Damage]()
        for found in reader.batches():
            if is_left_out(found):
                left_out.add(found.position)
            if isinstance(found, Damage):
                faults += [found] if found.kind != ZEROS and len(faults) < MOST_OF_A_PATH else []
                self.ends_damaged = self.ends_damaged or found.kind != ZEROS
            elif found.is_valid:
                self._follow(found.header)
                self.add(found.header)
            else:
                self.ends_damaged = True
            if limit is not None and self.cost >= limit and found.end_position < end:
                self.position, is_complete = found.end_position, False
                break
        if left_out.count:
            remarks.problem(segment.log, left_out.sentence())
        for fault in faults:
            remarks.problem(segment.log, f"byte {fault.position}: {fault.message}")
        return is_complete

    def _follow(self, header: RecordBatch | LegacyBatch) -> None:
        """Advance to the end of the next sound batch, and note a gap before it that no damage explains."""
        if 0 <= self.next_offset < header.base_offset and not self.ends_damaged:
            self.shows_cleaner = True
        self.next_offset = max(self.next_offset, header.last_offset + 1)
        self.ends_damaged = False

    def add_first(self, reader: SegmentReader, limit: int) -> None:
        """Add the headers from the beginning, up to a cost of `limit`."""
        walk = HeaderReader(reader.file, 0, reader.end_position())
        for header in walk.headers():
            self.add(header)
            if self.cost >= limit:
                break
        self.position = walk.position

    def add(self, header: RecordBatch | LegacyBatch) -> None:
        """Add one header, of any format."""
        self.cost += header_cost(header.size_bytes)
        self.batches += 1
        if not isinstance(header, RecordBatch):
            self._add_legacy(header)
            return
        self.formats.add(header.magic)
        self.max_timestamp = max(self.max_timestamp, header.max_timestamp)
        self.shows_cleaner = self.shows_cleaner or is_thinned(header)
        if header.is_control:
            self.control_records += header.record_count
            return
        if header.record_count <= 0:
            return
        self.records += header.record_count
        self.timestamp_types.add("LogAppendTime" if header.is_log_append_time else "CreateTime")
        self._add_codec(header.codec, header.size_bytes)
        if self._first is None:
            self._first = header.position
            if header.delete_horizon_ms is None:
                self._first_timestamp = header.max_timestamp if header.is_log_append_time else header.base_timestamp

    def _add_legacy(self, header: LegacyBatch) -> None:
        self.formats.add(header.magic)
        self.max_timestamp = max(self.max_timestamp, header.max_timestamp)
        self.records += 1
        self.hides_records = self.hides_records or header.codec != 0
        if header.magic > 0:
            self.timestamp_types.add("LogAppendTime" if header.is_log_append_time else "CreateTime")
        self._add_codec(header.codec, header.size_bytes)
        if self._first is None:
            self._first = header.position
            if header.codec == 0 or header.is_log_append_time:
                self._first_timestamp = header.timestamp

    def _add_codec(self, codec: int, size_bytes: int) -> None:
        name = CODECS.get(codec, f"codec {codec}")
        before = self.codecs.get(name, CodecUse(0, 0))
        self.codecs[name] = CodecUse(before.batches + 1, before.size_bytes + size_bytes)

    def first_timestamp(self, reader: SegmentReader) -> int | None:
        """Return the timestamp of the first record in ms, None if it has none or cannot be read."""
        timestamp = self._first_timestamp
        if timestamp is None and self._first is not None:
            batch = reader.batch_at(self._first)
            if isinstance(batch, LogBatch):
                window = next(batch.windows(RecordScanner(1)), None)
                timestamp = window.columns.timestamp[0] if window is not None and window.count else None
        return timestamp if timestamp is not None and timestamp > _NO_TIMESTAMP else None


def _places(disk: Disk, segment: Segment, start: int, end: int, count: int) -> Iterator[int]:
    """Yield up to `count` positions after `start` at which batches begin, by evenly spaced entries of the `.index`.

    Entries are read one by one, because the index of a large segment is large, too. Entries that point at no batch are skipped.
    """
    if segment.offset_index is None or count <= 0:
        return
    size = OFFSET_INDEX_ENTRY.size
    file = disk.open_file(segment.offset_index)
    log = SegmentReader(disk, segment.log)
    try:
        entries = file.size() // size
        first = min(entries, start * entries // max(end, 1))
        for slot in range(first, entries, max((entries - first) // count, 1)):
            index = OffsetIndex.decode(file.read_at(slot * size, size), segment.base_offset)
            if not len(index):
                return
            entry = index.entry(0)
            if not start < entry.position < end:
                continue
            head = next(HeaderReader(log.file, entry.position, end).headers(), None)
            if head is not None and head.last_offset == entry.offset:
                yield entry.position
    finally:
        log.close()
        file.close()
