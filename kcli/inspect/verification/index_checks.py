"""Compares a segment's `.index` and `.timeindex` with its batches while the segment is read.

    entry                    is sound if
    -----------------------  ---------------------------------------------------------------------------------------------
    .index (offset, byte)    a batch begins at that byte; the offset is the last one of it or of a batch that follows it
                               before the next entry (an append of several batches, messages of format 0 and 1)
    .timeindex (time,        the batch with the offset has that maxTimestamp, and no batch before it has a larger one; if
      offset)                  offsets are missing before the batch, and none in it, the offset is its last one or that of
                               a record with that timestamp: no CRC covers the batch's base offset

The entries of both ascend. Which batches have entries depends on the broker's settings and restarts. Entries that point into
damage are skipped: the damage itself is the finding. Preallocated zeros after the entries are sound with `zeros_allowed`, that
is in the active segment of a broker that runs or crashed.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left
from collections.abc import Callable
from itertools import compress, count, islice

from kcli.format import batch_scan
from kcli.format.batch_scan import LEGACY, BatchColumns
from kcli.format.index_entries import OffsetIndex, TimeIndex
from kcli.format.structs import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from kcli.inspect.verification.findings import FindingList
from kcli.log.disk.port import Disk, DiskFile, zeros_follow
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.segment_reader import LogBatch

# The distance of entries depends on index.interval.bytes (default 4096); a segment larger than this should have some.
LARGEST_WITHOUT_ENTRIES = 256 * 1024
# How much of an index is read at once, and in total: a segment of 2 GiB with an entry every 512 bytes needs no more.
PIECE_ENTRIES = 64 * 1024
MOST_BYTES = 32 * 1024 * 1024


class IndexFile(ABC):
    """Common to both indexes: reading, zeros after the entries, and the next entry (`slot`) to compare."""

    code = ""
    entry_bytes = 0

    def __init__(self, path: str, base_offset: int, findings: FindingList) -> None:
        self.path = path
        self.base_offset = base_offset
        self.findings = findings
        self.slot = 0
        self.slots = 0
        self.total = 0
        self._scratch = array("q", (0, 0))
        self._scratch[1] = -(2**63)
        self._last_offset = -1  # of the rows so far

    def add(self, what: str, message: str, slot: int | None = None, offset: int | None = None) -> None:
        """Add a finding about the file, or about one entry."""
        position = None if slot is None else slot * self.entry_bytes
        self.findings.add(f"{self.code}-{what}", self.path, message, position=position, offset=offset)

    def _load(self, disk: Disk, take: Callable[[bytes], None]) -> bool:
        """Pass the file's whole entries to `take`, in pieces, without zeros at the end; return False if it cannot be read.

        Sets `total`, the number of all entries; those that were not passed are zeros, or too many for any segment (a finding).
        """
        try:
            file = disk.open_file(self.path)
        except OSError as error:
            self.findings.add_unreadable(self.path, error)
            return False
        try:
            self.total, rest = divmod(file.size(), self.entry_bytes)
            if rest:
                text = f"the file ends with {rest} bytes of an entry of {self.entry_bytes} bytes"
                self.add("size", text, self.total)
            self._load_entries(file, take)
        except OSError as error:
            self.findings.add_unreadable(self.path, error)
            return False
        finally:
            file.close()
        return True

    def _load_entries(self, file: DiskFile, take: Callable[[bytes], None]) -> None:
        position, end = 0, self.total * self.entry_bytes
        while position < end:
            data = file.read_at(position, min(PIECE_ENTRIES * self.entry_bytes, end - position))
            if len(data) < self.entry_bytes:
                return
            if position and data.count(0) == len(data) and zeros_follow(file, position, end):
                return
            if position >= MOST_BYTES:
                left = self.total - position // self.entry_bytes
                message = f"the file has {end} bytes, more than any segment needs; the last {left} entries were not checked"
                self.add("size", message, position // self.entry_bytes)
                self.total -= left
                return
            take(data)
            position += len(data)

    def _count_entries(self, offsets: array[int], zeros_allowed: bool) -> int:
        """Return the number of entries in use, by the relative `offsets` that were read; zeros after them are a finding."""
        try:
            used = offsets.index(0, 1)
        except ValueError:
            used = len(offsets)
        if used == 1 < self.total and offsets[0] == 0 and self._is_zero(0):
            used = 0
        if used < len(offsets) and any(offsets[used:]):
            return len(offsets)
        if used < self.total and not zeros_allowed:
            self.add("zero-tail", f"{self.total - used} entries of zeros follow the {used} that are in use", used)
        return used

    def _add_mismatch(self, slot: int, offset: int, message: str) -> None:
        self.add("mismatch", f"entry {slot} {message}", slot, offset)

    @abstractmethod
    def _is_zero(self, slot: int) -> bool: ...

    @abstractmethod
    def match(self, rows: BatchColumns, count: int) -> None:
        """Compare the entries that belong to rows [0, count) with them; rows come in the order of the segment."""

    @abstractmethod
    def skip(self, start: int, end: int) -> None:
        """Skip the damaged bytes [start, end) of the segment."""

    @abstractmethod
    def finish(self, end_position: int, batches: int, *, is_closed: bool) -> None:
        """Report what the end of the segment shows, after `end_position` bytes and `batches` batches."""

    def _count_ascending(self, used: int, column: array[int], what: str, *, strictly: bool) -> int:
        """Return how many of `used` entries ascend in a column; the first that does not is a finding."""
        wrong = _first_not_ascending(column, used, strictly=strictly)
        if wrong is None:
            return used
        before = f"{'not above' if strictly else 'below'} {column[wrong - 1]} in the entry before" if wrong else "below 0"
        message = (
            f"entry {wrong} has the {what} {column[wrong]}, {before}; it and the {used - wrong - 1} entries after it were not "
        )
        self.add("order", message + "checked", wrong)
        return wrong


class OffsetIndexCheck(IndexFile):
    """One `.index`."""

    code = "index"
    entry_bytes = OFFSET_INDEX_ENTRY.size

    def __init__(self, disk: Disk, path: str, base_offset: int, findings: FindingList, zeros_allowed: bool) -> None:
        super().__init__(path, base_offset, findings)
        self._offsets, self._positions = array("i"), array("i")
        self._is_empty = False
        self._awaited: tuple[int, int] | None = None  # slot and offset of an entry whose batch is not read yet
        if not self._load(disk, self._take):
            return
        self._is_empty = self.total == 0
        used = self._count_entries(self._offsets, zeros_allowed)
        used = self._count_ascending(used, self._offsets, "offset", strictly=True)
        self.slots = self._count_ascending(used, self._positions, "position", strictly=True)
        del self._offsets[self.slots :], self._positions[self.slots :]

    def _take(self, data: bytes) -> None:
        piece = OffsetIndex.decode(data, self.base_offset)
        self._offsets += piece.relative_offsets
        self._positions += piece.positions

    def _is_zero(self, slot: int) -> bool:
        return self._positions[slot] == 0

    def match(self, rows: BatchColumns, count: int) -> None:
        """Compare the entries that belong to rows [0, count) with them."""
        row = 0
        if self._awaited is not None:
            row = self._await(rows, 0, count)
        while self.slot < self.slots and self._awaited is None:
            self.slot = batch_scan.match_offset_index(
                rows, row, count, self._offsets, self._positions, self.slot, self.base_offset, self._scratch
            )
            row = self._scratch[0]
            if self.slot == self.slots or row == count:
                break
            self._check_entry(rows, row, count)
        if count:
            self._last_offset = rows.last_offset[count - 1]

    def _check_entry(self, rows: BatchColumns, row: int, count: int) -> None:
        """Check the entry in `slot`, which does not fit `row`, the first row at or after the byte that it points at."""
        slot, offset = self.slot, self.base_offset + self._offsets[self.slot]
        self.slot += 1
        position = self._positions[slot]
        if rows.position[row] != position:
            self._add_mismatch(slot, offset, f"points at byte {position} of the segment, where no batch begins")
            return
        before = rows.last_offset[row - 1] if row else self._last_offset
        first = before + 1 if rows.fault[row] == LEGACY else rows.base_offset[row]
        if offset < first:
            batch = f"the batch of the offsets {rows.base_offset[row]} to {rows.last_offset[row]}"
            self._add_mismatch(slot, offset, f"is of offset {offset} and points at byte {position}, where {batch} begins")
            return
        self._awaited = (slot, offset)
        self._await(rows, row, count)

    def _await(self, rows: BatchColumns, row: int, count: int) -> int:
        """Search from `row` on for the batch that ends with the awaited offset; return the row reached."""
        assert self._awaited is not None
        slot, offset = self._awaited
        bound = self._positions[slot + 1] if slot + 1 < self.slots else None
        while row < count and rows.last_offset[row] < offset and (bound is None or rows.position[row] < bound):
            row += 1
        if row == count:
            return row
        self._awaited = None
        is_inside = rows.fault[row] == LEGACY and rows.last_offset[row] > offset  # an entry may have the first offset of a set
        if rows.last_offset[row] != offset and not is_inside:
            where = f"between the byte {self._positions[slot]} that it points at and the next entry's"
            self._add_mismatch(slot, offset, f"is of offset {offset}; no batch {where} ends with it")
        return row

    def skip(self, start: int, end: int) -> None:
        """Skip the entries that point at the damaged bytes [start, end) of the segment."""
        while self.slot < self.slots and self._positions[self.slot] < start:
            slot, message = self.slot, f"points at byte {self._positions[self.slot]} of the segment, where no batch begins"
            self._add_mismatch(slot, self.base_offset + self._offsets[slot], message)
            self.slot += 1
        while self.slot < self.slots and self._positions[self.slot] < end:
            self.slot += 1
        self._awaited = None

    def finish(self, end_position: int, batches: int, *, is_closed: bool) -> None:
        """Report entries after the end of the segment, and an index without entries."""
        left = self.slots - self.slot
        if self._is_empty and batches > 1 and end_position > LARGEST_WITHOUT_ENTRIES:
            self.add("empty", f"the file has no entry; the segment has {batches} batches in {end_position} bytes")
        if left:
            message = f"points at byte {self._positions[self.slot]}, after the last batch of the segment; {left} entries do so"
            offset = self.base_offset + self._offsets[self.slot]
            self._add_mismatch(self.slot, offset, f"{message}; the segment has {end_position} bytes")
        elif self._awaited is not None:
            slot, offset = self._awaited
            self._add_mismatch(slot, offset, f"is of offset {offset}, and no batch of the segment ends with it")


class TimeIndexCheck(IndexFile):
    """One `.timeindex`."""

    code = "timeindex"
    entry_bytes = TIME_INDEX_ENTRY.size

    def __init__(self, disk: Disk, path: str, base_offset: int, findings: FindingList, zeros_allowed: bool) -> None:
        super().__init__(path, base_offset, findings)
        self._timestamps, self._offsets = array("q"), array("i")
        self._damaged = False
        self._readable = False
        if not self._load(disk, self._take):
            return
        used = self._count_entries(self._offsets, zeros_allowed)
        self.slots = used
        if used and self._timestamps[0] >= 0:  # a first record without a timestamp has -1
            self.slots = self._count_ascending(used, self._timestamps, "timestamp", strictly=True)
        self.slots = self._count_ascending(self.slots, self._offsets, "offset", strictly=False)
        self._readable = self.slots == used
        del self._timestamps[self.slots :], self._offsets[self.slots :]

    def _take(self, data: bytes) -> None:
        piece = TimeIndex.decode(data, self.base_offset)
        self._timestamps += piece.timestamps
        self._offsets += piece.relative_offsets

    def _is_zero(self, slot: int) -> bool:
        return self._timestamps[slot] == 0

    def match(self, rows: BatchColumns, count: int) -> None:
        """Compare the entries that belong to rows [0, count) with them."""
        row = 0
        while True:
            self.slot = batch_scan.match_time_index(
                rows, row, count, self._timestamps, self._offsets, self.slot, self.base_offset, self._scratch
            )
            row = self._scratch[0]
            if self.slot == self.slots or row == count:
                break
            self._check_entry(rows, row)
        if count:
            self._last_offset = rows.last_offset[count - 1]
            self._damaged = False

    def _check_entry(self, rows: BatchColumns, row: int) -> None:
        """Check the entry in `slot`, which does not fit `row`, the first row that ends at or after its offset."""
        slot = self.slot
        self.slot += 1
        offset, timestamp = self.base_offset + self._offsets[slot], self._timestamps[slot]
        before = rows.last_offset[row - 1] if row else self._last_offset
        if offset < rows.base_offset[row] and not (rows.fault[row] == LEGACY and offset > before):
            if not (self._damaged and row == 0):
                self._add_mismatch(slot, offset, f"is of offset {offset}, which no batch of the segment has")
        elif rows.max_timestamp[row] != timestamp:
            batch = f"the batch there has {rows.max_timestamp[row]} ms for its largest timestamp"
            self._add_mismatch(slot, offset, f"states {timestamp} ms at offset {offset}; {batch}")
        elif self._scratch[1] > timestamp:
            message = f"states that no record up to offset {offset} is later than {timestamp} ms; one has {self._scratch[1]} ms"
            self._add_mismatch(slot, offset, message)

    def check_record(self, batch: LogBatch, scanner: RecordScanner) -> None:
        """Compare the record that an entry names with it, in a batch of format 2 with a record for each offset."""
        header = batch.header
        first, end = header.base_offset - self.base_offset, header.last_offset - self.base_offset
        slot = bisect_left(self._offsets, end) - 1
        if slot < 0 or self._offsets[slot] < first or self._timestamps[slot] != header.max_timestamp:
            return
        offset = self.base_offset + self._offsets[slot]
        for window in batch.windows(scanner, skip_large=True):
            row = offset - header.base_offset - window.first_index
            if window.error is not None:
                return
            if row < window.count:
                timestamp = window.columns.timestamp[row]
                if timestamp != header.max_timestamp:
                    message = f"states {header.max_timestamp} ms at offset {offset}; the record there has {timestamp} ms"
                    self._add_mismatch(slot, offset, message)
                return

    def skip(self, start: int, end: int) -> None:
        """Note damage: entries with offsets in it cannot be checked."""
        self._damaged = True

    def finish(self, end_position: int, batches: int, *, is_closed: bool) -> None:
        """Report entries after the end of the segment, and a closed segment whose largest timestamp has no entry."""
        if self.slot < self.slots and not self._damaged:
            offset = self.base_offset + self._offsets[self.slot]
            left = self.slots - self.slot
            message = f"is of offset {offset}, after the segment's last offset {self._last_offset}; {left} are"
            self._add_mismatch(self.slot, offset, message)
        last = self._timestamps[-1] if self.slots else -1
        if is_closed and self._readable and last < self._scratch[1]:
            self.add("behind", f"its last entry has {last} ms, the latest record {self._scratch[1]} ms")


def _first_not_ascending(column: array[int], used: int, *, strictly: bool) -> int | None:
    """Return the index of the first of `used` numbers that is below 0 or does not ascend, None if there is none."""
    if used and column[0] < 0:
        return 0
    goes_back = operator.ge if strictly else operator.gt
    backs = map(goes_back, islice(column, used), islice(column, 1, used))
    return next(compress(count(1), backs), None)
