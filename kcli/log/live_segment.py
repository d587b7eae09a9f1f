"""A segment of an open log: what is kept in memory of it, and how its indexes are asked.

    of every segment        base offset and size; once read, also the largest timestamp and the offset of its batch, and whether
                            it has aborted transactions, which hardly any has
    of the active one       a SegmentAppender (kcli.log.segment_appender) besides

An index is read when it is asked, and not kept open. What it says is believed: a broker starts with indexes that it wrote
itself or has rebuilt.
"""

from __future__ import annotations

from kcli.format import limits
from kcli.format.file_names import FileKind, segment_file_name
from kcli.format.index_entries import OffsetIndex, TimeIndex, TimeIndexEntry, TransactionIndex
from kcli.log.disk import Disk
from kcli.log.log_directory import join_path

UNREAD = -2  # of a largest timestamp: nobody has asked yet


class LiveSegment:
    """One segment; sizes in bytes, timestamps in ms. `largest_timestamp` is UNREAD until `read_largest` was called.

    `may_have_aborted` is False once its `.txnindex` was found empty or missing; who writes to that sets it again.
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
        """The path of one of the segment's files."""
        return self.log_path[: -len(FileKind.LOG)] + kind.value

    @property
    def paths(self) -> tuple[str, str, str, str]:
        """The paths of `.log`, `.index`, `.timeindex` and `.txnindex`; the last file may be missing."""
        return self.log_path, self.path(FileKind.INDEX), self.path(FileKind.TIME_INDEX), self.path(FileKind.TXN_INDEX)

    def move(self, directory: str) -> None:
        """The partition's directory has a new name."""
        self.log_path = join_path(directory, segment_file_name(self.base_offset, FileKind.LOG))

    def read_offset_index(self, disk: Disk) -> OffsetIndex:
        """The entries of the `.index`, none where it is missing. Raises OSError."""
        data = _read(disk, self.path(FileKind.INDEX))
        return OffsetIndex.decode(data, self.base_offset).trimmed()

    def read_time_index(self, disk: Disk) -> TimeIndex:
        """The entries of the `.timeindex`, none where it is missing. Raises OSError."""
        data = _read(disk, self.path(FileKind.TIME_INDEX))
        return TimeIndex.decode(data, self.base_offset).trimmed()

    def read_transaction_index(self, disk: Disk) -> TransactionIndex:
        """The entries of the `.txnindex`, none where it is missing. Raises OSError."""
        data = _read(disk, self.path(FileKind.TXN_INDEX)) if self.may_have_aborted else b""
        self.may_have_aborted = bool(data)
        return TransactionIndex.decode(data, self.base_offset)

    def read_largest(self, disk: Disk) -> TimeIndexEntry:
        """The largest timestamp of the segment and the last offset of its batch, by the `.timeindex`; (-1, base) for none."""
        if self.largest_timestamp == UNREAD:
            self.largest_timestamp, self.offset_of_largest = self.read_time_index(disk).last_entry
        return TimeIndexEntry(self.largest_timestamp, self.offset_of_largest)


def _read(disk: Disk, path: str) -> bytes:
    try:
        return disk.read_file(path, limits.MAX_INDEX_FILE_BYTES)
    except FileNotFoundError:
        return b""
