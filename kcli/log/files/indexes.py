"""The rule for entries in a segment's indexes, and opening and closing the index files of a segment.

The rule is the same for appending and for recovering (Kafka: LogSegment.append, LogSegment.recover):

    for each batch           if more than index.interval.bytes were written since the batch of the last entry (or since the
                             start), the offset index gets (its last offset, its position), the time index (the largest
                             timestamp so far, including this batch, and the last offset of the batch that has it)
    at roll, close, the      the time index gets the largest timestamp, regardless of the bytes since the last entry
    end of a recovery

A recovery counts the bytes from the start of the file. A broker that appends counts from where it opened the segment (a
restart) or cut it (a truncation), the cleaner from the start of each segment it writes; versions of Kafka before 4.0 applied
the rule once for each append, not for each batch. After any of these a recovery puts the entries at other batches, and both are
valid.

The time index gets an entry only if the largest timestamp has risen, so it may have fewer entries.
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.format import limits
from kcli.format.index_entries import NO_TIMESTAMP, OffsetIndex, TimeIndex, TimeIndexEntry, TransactionIndex
from kcli.format.primitives import CorruptIndexError
from kcli.format.structs import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from kcli.log.disk.port import Disk


class IndexSettings(NamedTuple):
    """The topic settings that indexes depend on: index.interval.bytes and segment.index.bytes."""

    interval_bytes: int = 4096
    max_bytes: int = 10 * 1024 * 1024


class IndexAppender:
    """The indexes of a segment whose batches are added in file order."""

    __slots__ = ("_bytes_since_entry", "_interval_bytes", "largest", "offset_index", "time_index")

    def __init__(self, offset_index: OffsetIndex, time_index: TimeIndex, interval_bytes: int) -> None:
        self.offset_index = offset_index
        self.time_index = time_index
        # The largest timestamp so far and the last offset of the batch that has it.
        self.largest = TimeIndexEntry(NO_TIMESTAMP, time_index.base_offset)
        self._interval_bytes = interval_bytes
        self._bytes_since_entry = 0

    def add(self, position: int, size_bytes: int, last_offset: int, max_timestamp: int) -> None:
        """Add a batch. Raises FormatError if an entry would not rise (Kafka: InvalidOffsetException)."""
        if max_timestamp > self.largest.timestamp:
            self.largest = TimeIndexEntry(max_timestamp, last_offset)
        if self._bytes_since_entry > self._interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(*self.largest)
            self._bytes_since_entry = 0
        self._bytes_since_entry += size_bytes

    def close(self) -> None:
        """Append the last entry of the time index. Raises FormatError as `add` does."""
        self.time_index.maybe_append(*self.largest)


def open_offset_index(disk: Disk, path: str, base_offset: int, settings: IndexSettings) -> OffsetIndex:
    """Read an `.index`; a missing one is created empty and preallocated, as Kafka does."""
    if not disk.exists(path):
        _preallocate(disk, path, settings.max_bytes, OFFSET_INDEX_ENTRY.size)
        return OffsetIndex.of(base_offset)
    return OffsetIndex.decode(disk.read_file(path, limits.MAX_INDEX_FILE_BYTES), base_offset)


def open_time_index(disk: Disk, path: str, base_offset: int, settings: IndexSettings) -> TimeIndex:
    """Read a `.timeindex`; a missing one is created empty and preallocated."""
    if not disk.exists(path):
        _preallocate(disk, path, settings.max_bytes, TIME_INDEX_ENTRY.size)
        return TimeIndex.of(base_offset)
    return TimeIndex.decode(disk.read_file(path, limits.MAX_INDEX_FILE_BYTES), base_offset)


def last_index_entry(disk: Disk, path: str, base_offset: int, segment_bytes: int) -> tuple[int, int]:
    """Return the relative offset and the position in the last entry of an `.index`, (0, 0) for an empty file.

    Raises CorruptIndexError if no stop leaves such an index next to a `.log` of that size, and OSError.
    """
    file = disk.open_file(path)
    try:
        size = file.size()
        if size % OFFSET_INDEX_ENTRY.size:
            raise CorruptIndexError(f"the offset index has {size} bytes, which is not a multiple of {OFFSET_INDEX_ENTRY.size}")
        if not size:
            return 0, 0
        entry = file.read_at(size - OFFSET_INDEX_ENTRY.size, OFFSET_INDEX_ENTRY.size)
    finally:
        file.close()
    relative_offset, position = OFFSET_INDEX_ENTRY.unpack(entry)
    if (relative_offset, position) == (0, 0):
        raise CorruptIndexError("the offset index ends with zeros")
    if relative_offset < 0 or not 0 < position < segment_bytes:
        raise CorruptIndexError(
            f"the last entry of the offset index is offset {base_offset + relative_offset} at byte {position}, "
            f"and the segment has {segment_bytes} bytes"
        )
    return relative_offset, position


def open_transaction_index(disk: Disk, path: str, base_offset: int) -> TransactionIndex | None:
    """Read a `.txnindex`; None if there is none: Kafka creates it when the first transaction is aborted."""
    if not disk.exists(path):
        return None
    return TransactionIndex.decode(disk.read_file(path, limits.MAX_INDEX_FILE_BYTES), base_offset)


def close_index(disk: Disk, path: str, index: OffsetIndex | TimeIndex | TransactionIndex) -> None:
    """Write an index as Kafka closes it: without the preallocated tail."""
    index.trailing = b""
    disk.write_file(path, index.encode())


def _preallocate(disk: Disk, path: str, max_bytes: int, entry_bytes: int) -> None:
    disk.append(path, b"")
    disk.truncate(path, max_bytes - max_bytes % entry_bytes)
