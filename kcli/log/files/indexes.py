"""When a batch gets an entry in its segment's indexes, and how the index files of a segment are opened and closed.

The rule is one for appending and for recovering (Kafka: LogSegment.append, LogSegment.recover):

    before a batch counts    where more than index.interval.bytes lie since the batch of the last entry (or since the start),
                             the offset index gets (its last offset, its position), the time index (the largest timestamp
                             so far, this batch's included, and the last offset of the batch that has it)
    at roll, close, the      the time index gets the largest timestamp, though no bytes went by
    end of a recovery

So do the two agree? A recovery counts the bytes from the start of the file. A broker that appends begins anew from where it
opened the segment (a restart) or cut it (a truncation), the cleaner with each segment it writes; versions of Kafka before
4.0 looked once an append, not once a batch. After any of these the rebuilt entries lie elsewhere, and both are right.

The time index takes an entry only when the largest timestamp has risen, so it may have fewer entries.
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.format import limits
from kcli.format.index_entries import NO_TIMESTAMP, OffsetIndex, TimeIndex, TimeIndexEntry, TransactionIndex
from kcli.format.structs import OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from kcli.log.disk.port import Disk


class IndexSettings(NamedTuple):
    """The topic settings that indexes depend on: index.interval.bytes and segment.index.bytes."""

    interval_bytes: int = 4096
    max_bytes: int = 10 * 1024 * 1024


class IndexAppender:
    """Applies the rule to batches given in the order of the file."""

    __slots__ = ("_bytes_since_entry", "_interval_bytes", "largest", "offset_index", "time_index")

    def __init__(self, offset_index: OffsetIndex, time_index: TimeIndex, interval_bytes: int) -> None:
        self.offset_index = offset_index
        self.time_index = time_index
        # The largest timestamp so far and the last offset of the batch that has it.
        self.largest = TimeIndexEntry(NO_TIMESTAMP, time_index.base_offset)
        self._interval_bytes = interval_bytes
        self._bytes_since_entry = 0

    def add(self, position: int, size_bytes: int, last_offset: int, max_timestamp: int) -> None:
        """Take a batch into account. Raises FormatError where an entry would go back (Kafka: InvalidOffsetException)."""
        if max_timestamp > self.largest.timestamp:
            self.largest = TimeIndexEntry(max_timestamp, last_offset)
        if self._bytes_since_entry > self._interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.maybe_append(*self.largest)
            self._bytes_since_entry = 0
        self._bytes_since_entry += size_bytes

    def close(self) -> None:
        """Give the time index its last entry. Raises FormatError as `add` does."""
        self.time_index.maybe_append(*self.largest)


def open_offset_index(disk: Disk, path: str, base_offset: int, settings: IndexSettings) -> OffsetIndex:
    """Read an `.index`; a missing one is created with the size of an active segment's, as Kafka does, and has no entries."""
    if not disk.exists(path):
        _preallocate(disk, path, settings.max_bytes, OFFSET_INDEX_ENTRY.size)
        return OffsetIndex.of(base_offset)
    return OffsetIndex.decode(disk.read_file(path, limits.MAX_INDEX_FILE_BYTES), base_offset)


def open_time_index(disk: Disk, path: str, base_offset: int, settings: IndexSettings) -> TimeIndex:
    """Read a `.timeindex`; a missing one is created likewise."""
    if not disk.exists(path):
        _preallocate(disk, path, settings.max_bytes, TIME_INDEX_ENTRY.size)
        return TimeIndex.of(base_offset)
    return TimeIndex.decode(disk.read_file(path, limits.MAX_INDEX_FILE_BYTES), base_offset)


def open_transaction_index(disk: Disk, path: str, base_offset: int) -> TransactionIndex | None:
    """Read a `.txnindex`, None where there is none: it is created when the first transaction is aborted."""
    if not disk.exists(path):
        return None
    return TransactionIndex.decode(disk.read_file(path, limits.MAX_INDEX_FILE_BYTES), base_offset)


def close_index(disk: Disk, path: str, index: OffsetIndex | TimeIndex | TransactionIndex) -> None:
    """Write an index as Kafka leaves it when it is closed: whole entries, nothing behind them."""
    index.trailing = b""
    disk.write_file(path, index.encode())


def _preallocate(disk: Disk, path: str, max_bytes: int, entry_bytes: int) -> None:
    disk.append(path, b"")
    disk.truncate(path, max_bytes - max_bytes % entry_bytes)
