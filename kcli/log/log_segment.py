"""A segment of an open log: its state in memory and the lookups in its indexes (Kafka: LogSegment).

    segment       kept in memory
    ------------  ---------------------------------------------------------------------------------------------------------
    every one     base offset and size; after the first read also the largest timestamp, the offset of its batch, and whether
                  the segment has aborted transactions
    active one    in addition a SegmentAppender (kcli.log.segment_appender)

An index file is read for each lookup and not kept open. Its entries are not verified: when a broker starts, it has written or
rebuilt all of them. Only those after the end of the segment are not used. A `.txnindex` is searched on disk, because decoding
60,000 aborted transactions takes 60 ms.
"""

from __future__ import annotations

from bisect import bisect_left

from kcli.format import limits
from kcli.format.file_names import FileKind, segment_file_name
from kcli.format.index_entries import (
    AbortedTxn,
    OffsetIndex,
    TimeIndex,
    TimeIndexEntry,
    TransactionIndex,
    overlapping_transactions,
)
from kcli.format.structs import ABORTED_TXN, ABORTED_TXN_LAST_OFFSET_AT
from kcli.log.disk.port import Disk, DiskFile, join_path

UNREAD = -2  # the value of a largest timestamp that was not read yet
# The number of entries of a `.txnindex` that are read at once.
_ABORTED_TXNS_A_READ = 128


class LogSegment:
    """One segment; sizes in bytes, timestamps in ms. `largest_timestamp` is UNREAD until `read_largest` was called.

    `may_have_aborted` is False after its `.txnindex` was found empty or missing, until an entry is appended.
    """

    __slots__ = ("base_offset", "largest_timestamp", "log_path", "may_have_aborted", "offset_of_largest", "size_bytes")

    def __init__(self, directory: str, base_offset: int, size_bytes: int = 0) -> None:
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        self.log_path = join_path(directory, segment_file_name(base_offset, FileKind.LOG))
        self.largest_timestamp = UNREAD
        self.offset_of_largest = base_offset
        self.may_have_aborted = True

    def path(self, kind: FileKind) -> str:
        """Return the path of one of the segment's files."""
        return self.log_path[: -len(FileKind.LOG)] + kind.value

    @property
    def paths(self) -> tuple[str, str, str, str]:
        """The paths of `.log`, `.index`, `.timeindex` and `.txnindex`; the last file may be missing."""
        return self.log_path, self.path(FileKind.INDEX), self.path(FileKind.TIME_INDEX), self.path(FileKind.TXN_INDEX)

    def move(self, directory: str) -> None:
        """Follow a rename of the partition's directory."""
        self.log_path = join_path(directory, segment_file_name(self.base_offset, FileKind.LOG))

    def read_offset_index(self, disk: Disk) -> OffsetIndex:
        """Read the `.index` up to the end of the segment; a missing file has no entries. Raises OSError."""
        data = _read(disk, self.path(FileKind.INDEX))
        index = OffsetIndex.decode(data, self.base_offset).trimmed()
        while len(index) and index.positions[-1] >= self.size_bytes:  # the `.log` was cut while no broker ran
            del index.relative_offsets[-1], index.positions[-1]
        return index

    def read_time_index(self, disk: Disk) -> TimeIndex:
        """Read the `.timeindex`; a missing file has no entries. Raises OSError."""
        data = _read(disk, self.path(FileKind.TIME_INDEX))
        return TimeIndex.decode(data, self.base_offset).trimmed()

    def read_transaction_index(self, disk: Disk) -> TransactionIndex:
        """Read the `.txnindex`; a missing file has no entries. Raises OSError."""
        data = _read(disk, self.path(FileKind.TXN_INDEX)) if self.may_have_aborted else b""
        self.may_have_aborted = bool(data)
        return TransactionIndex.decode(data, self.base_offset)

    def aborted_transactions(self, disk: Disk, first_offset: int, end_offset: int) -> tuple[list[AbortedTxn], bool]:
        """Return the aborted transactions with records in [first_offset, end_offset), and whether later segments have none.

        Entries are in the order of their markers: the first one is found by bisection, and the search ends when no
        transaction below `end_offset` is open any more. While a long transaction is open, the aborted ones after it are read,
        as in Kafka. Raises OSError.
        """
        found: list[AbortedTxn] = []
        if not self.may_have_aborted:
            return found, False
        try:
            file = disk.open_file(self.path(FileKind.TXN_INDEX))
        except FileNotFoundError:
            self.may_have_aborted = False
            return found, False
        try:
            count = file.size() // ABORTED_TXN.size
            self.may_have_aborted = count > 0
            slot = bisect_left(range(count), first_offset, key=lambda at: _last_offset(file, at))
            while slot < count:
                data = file.read_at(slot * ABORTED_TXN.size, min(count - slot, _ABORTED_TXNS_A_READ) * ABORTED_TXN.size)
                touching, is_complete = overlapping_transactions(data, first_offset, end_offset)
                found += touching
                if is_complete:
                    return found, True
                slot += _ABORTED_TXNS_A_READ
        finally:
            file.close()
        return found, False

    def read_largest(self, disk: Disk) -> TimeIndexEntry:
        """Return the largest timestamp and the last offset of its batch, by the `.timeindex`; (-1, base offset) for none."""
        if self.largest_timestamp == UNREAD:
            self.largest_timestamp, self.offset_of_largest = self.read_time_index(disk).last_entry
        return TimeIndexEntry(self.largest_timestamp, self.offset_of_largest)


def _last_offset(file: DiskFile, slot: int) -> int:
    return int.from_bytes(file.read_at(slot * ABORTED_TXN.size + ABORTED_TXN_LAST_OFFSET_AT, 8), "big", signed=True)


def _read(disk: Disk, path: str) -> bytes:
    try:
        return disk.read_file(path, limits.MAX_INDEX_FILE_BYTES)
    except FileNotFoundError:
        return b""
