"""The three indexes of a segment: `.index`, `.timeindex` and `.txnindex`; rows of fixed entries without a header.

    file        entry                                                                        bytes
    ----------  ---------------------------------------------------------------------------  -----
    .index      relativeOffset int32, position int32                                             8
    .timeindex  timestamp int64 (ms), relativeOffset int32                                      12
    .txnindex   version int16 (0), producerId int64, firstOffset int64, lastOffset int64,       34
                lastStableOffset int64

Relative offsets count from the base offset in the file's name and are those of the *last* record of a batch. An entry of
`.timeindex` says: no record up to that offset is younger than that timestamp. `.txnindex` has one entry an aborted
transaction and is there only where one ended in the segment.

The first two are preallocated while their segment is active, so a file may end in zeros. The preallocated tail begins at the
first entry after entry 0 with relative offset 0, as in kafka-dump-log (`used_entries`). Lookups and checks count all whole
entries, as in Kafka; call `trimmed()` first if the file may have a tail. Bytes after the last whole entry are in `trailing`.

The entries are columns (array.array), decoded without a step per entry: an index of 10 MB takes some 10 ms.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from operator import le, lt
from typing import NamedTuple

from kcli.format.primitives import INT32_MAX, Buffer, CorruptIndexError, FormatError
from kcli.format.structs import ABORTED_TXN, OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY

ABORTED_TXN_VERSION = 0
NO_TIMESTAMP = -1
# The end of an index that Kafka searches first, because it is likely to be cached.
_WARM_BYTES = 8192


class OffsetIndexEntry(NamedTuple):
    """The batch that ends with `offset` begins at byte `position` of the segment."""

    offset: int
    position: int


class TimeIndexEntry(NamedTuple):
    """No record up to `offset` has a timestamp (ms) above `timestamp`."""

    timestamp: int
    offset: int


class AbortedTxn(NamedTuple):
    """A transaction that ended in an abort marker at `last_offset`; the last stable offset is the one from then on."""

    version: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int

    @property
    def kafka_version(self) -> int:
        """The version as Kafka reads it: only the first of the two bytes."""
        return self.version >> 8

    def __str__(self) -> str:
        """As Kafka prints it in its messages."""
        return (
            f"AbortedTxn(version={self.kafka_version}, producerId={self.producer_id}, firstOffset={self.first_offset}, "
            f"lastOffset={self.last_offset}, lastStableOffset={self.last_stable_offset})"
        )


class OffsetIndex:
    """A decoded `.index`: columns `relative_offsets` and `positions` (int32 each), and the bytes `trailing` behind them."""

    __slots__ = ("base_offset", "positions", "relative_offsets", "trailing")

    def __init__(self, base_offset: int, relative_offsets: array[int], positions: array[int], trailing: bytes = b"") -> None:
        self.base_offset = base_offset
        self.relative_offsets = relative_offsets
        self.positions = positions
        self.trailing = trailing

    @classmethod
    def decode(cls, data: Buffer, base_offset: int) -> OffsetIndex:
        """Decode the bytes of a whole file; any bytes are an index, sound or not (see `sanity_check`)."""
        numbers, trailing = _int32_columns(data, OFFSET_INDEX_ENTRY.size)
        return cls(base_offset, numbers[0::2], numbers[1::2], trailing)

    @classmethod
    def of(cls, base_offset: int, entries: Iterable[OffsetIndexEntry] = ()) -> OffsetIndex:
        """Return a new index of `entries`. Raises FormatError as `append` does."""
        index = cls(base_offset, array("i"), array("i"))
        for offset, position in entries:
            index.append(offset, position)
        return index

    def encode(self) -> bytes:
        """Encode the file, trailing bytes included."""
        numbers = array("i", bytes(4 * 2 * len(self)))
        numbers[0::2], numbers[1::2] = self.relative_offsets, self.positions
        return _big_endian(numbers) + self.trailing

    def __len__(self) -> int:
        """How many whole entries there are, a tail of zeros included."""
        return len(self.relative_offsets)

    def entry(self, slot: int) -> OffsetIndexEntry:
        """Return the entry in `slot`. Raises IndexError."""
        return OffsetIndexEntry(self.base_offset + self.relative_offsets[slot], self.positions[slot])

    def entries(self) -> Iterator[OffsetIndexEntry]:
        """Yield the entries up to the tail of zeros, as Kafka's dump tool does."""
        offsets = map(self.base_offset.__add__, self.relative_offsets[: self.used_entries])
        return map(OffsetIndexEntry, offsets, self.positions)

    @property
    def used_entries(self) -> int:
        """How many entries lie before the tail of zeros."""
        return _used_entries(self.relative_offsets)

    @property
    def last_offset(self) -> int:
        """The offset of the last entry; the base offset in an empty index."""
        return self.base_offset + (self.relative_offsets[-1] if self.relative_offsets else 0)

    def trimmed(self) -> OffsetIndex:
        """Return this index without its tail of zeros and without trailing bytes; a preallocated one has no entry."""
        used = self.used_entries
        if used == 1 < len(self) and not (self.relative_offsets[0] or self.positions[0]):
            used = 0
        return OffsetIndex(self.base_offset, self.relative_offsets[:used], self.positions[:used])

    def lookup(self, target_offset: int) -> OffsetIndexEntry:
        """Return the last entry at or below `target_offset`, (base offset, 0) if there is none."""
        slot = _last_slot_at_or_below(
            self.relative_offsets, target_offset - self.base_offset, _WARM_BYTES // OFFSET_INDEX_ENTRY.size
        )
        return OffsetIndexEntry(self.base_offset, 0) if slot < 0 else self.entry(slot)

    def append(self, offset: int, position: int) -> None:
        """Add an entry. Raises FormatError unless `offset` is above the last one and at most 2**31 - 1 above the base."""
        if self.relative_offsets and offset <= self.last_offset:
            raise FormatError(f"offset {offset} is not above the last one of the index, {self.last_offset}")
        self.relative_offsets.append(_relative(offset, self.base_offset))
        self.positions.append(position)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at and above `offset`, as Kafka does."""
        del self.relative_offsets[_kept(self, offset) :]
        del self.positions[len(self.relative_offsets) :]

    def sanity_check(self, path: str) -> None:
        """Check the file at `path` (absolute) as Kafka does. Raises CorruptIndexError with Kafka's own words."""
        if len(self) and self.last_offset < self.base_offset:
            raise CorruptIndexError(
                f"Corrupt index found, index file {path} has non-zero size but the last offset is {self.last_offset} "
                f"which is less than the base offset {self.base_offset}"
            )
        _check_size(self, OFFSET_INDEX_ENTRY.size, f"Index file {path}")


class TimeIndex:
    """A decoded `.timeindex`: columns `timestamps` (int64, ms) and `relative_offsets` (int32), and `trailing` bytes."""

    __slots__ = ("base_offset", "relative_offsets", "timestamps", "trailing")

    def __init__(self, base_offset: int, timestamps: array[int], relative_offsets: array[int], trailing: bytes = b"") -> None:
        self.base_offset = base_offset
        self.timestamps = timestamps
        self.relative_offsets = relative_offsets
        self.trailing = trailing

    @classmethod
    def decode(cls, data: Buffer, base_offset: int) -> TimeIndex:
        """Decode the bytes of a whole file; any bytes are an index, sound or not (see `sanity_check`)."""
        numbers, trailing = _int32_columns(data, TIME_INDEX_ENTRY.size)
        halves = array("i", bytes(4 * 2 * (len(numbers) // 3)))
        halves[_HIGH_HALF::2], halves[1 - _HIGH_HALF :: 2] = numbers[0::3], numbers[1::3]
        timestamps = array("q")
        timestamps.frombytes(halves.tobytes())
        return cls(base_offset, timestamps, numbers[2::3], trailing)

    @classmethod
    def of(cls, base_offset: int, entries: Iterable[TimeIndexEntry] = ()) -> TimeIndex:
        """Return a new index of `entries`. Raises FormatError as `maybe_append` does."""
        index = cls(base_offset, array("q"), array("i"))
        for timestamp, offset in entries:
            index.maybe_append(timestamp, offset)
        return index

    def encode(self) -> bytes:
        """Encode the file, trailing bytes included."""
        halves = array("i")
        halves.frombytes(self.timestamps.tobytes())
        numbers = array("i", bytes(4 * 3 * len(self)))
        numbers[0::3], numbers[1::3], numbers[2::3] = (
            halves[_HIGH_HALF::2],
            halves[1 - _HIGH_HALF :: 2],
            self.relative_offsets,
        )
        return _big_endian(numbers) + self.trailing

    def __len__(self) -> int:
        """How many whole entries there are, a tail of zeros included."""
        return len(self.timestamps)

    def entry(self, slot: int) -> TimeIndexEntry:
        """Return the entry in `slot`. Raises IndexError."""
        return TimeIndexEntry(self.timestamps[slot], self.base_offset + self.relative_offsets[slot])

    def entries(self) -> Iterator[TimeIndexEntry]:
        """Yield the entries up to the tail of zeros, as Kafka's dump tool does."""
        offsets = map(self.base_offset.__add__, self.relative_offsets[: self.used_entries])
        return map(TimeIndexEntry, self.timestamps, offsets)

    @property
    def used_entries(self) -> int:
        """How many entries lie before the tail of zeros."""
        return _used_entries(self.relative_offsets)

    @property
    def last_entry(self) -> TimeIndexEntry:
        """The last entry; (-1, base offset) in an empty index."""
        return self.entry(-1) if self.timestamps else TimeIndexEntry(NO_TIMESTAMP, self.base_offset)

    def trimmed(self) -> TimeIndex:
        """Return this index without its tail of zeros and without trailing bytes; a preallocated one has no entry."""
        used = self.used_entries
        if used == 1 < len(self) and not (self.relative_offsets[0] or self.timestamps[0]):
            used = 0
        return TimeIndex(self.base_offset, self.timestamps[:used], self.relative_offsets[:used])

    def lookup(self, target_timestamp: int) -> TimeIndexEntry:
        """Return the last entry at or before `target_timestamp` (ms), (-1, base offset) if there is none."""
        slot = _last_slot_at_or_below(self.timestamps, target_timestamp, _WARM_BYTES // TIME_INDEX_ENTRY.size)
        return TimeIndexEntry(NO_TIMESTAMP, self.base_offset) if slot < 0 else self.entry(slot)

    def maybe_append(self, timestamp: int, offset: int) -> None:
        """Add an entry, or nothing where `timestamp` is the last one's.

        Raises FormatError when the timestamp or the offset goes back, or the offset does not fit above the base.
        """
        last = self.last_entry
        if self.timestamps and (timestamp < last.timestamp or offset < last.offset):
            raise FormatError(f"({timestamp}, {offset}) goes back behind the last entry of the index, {tuple(last)}")
        if timestamp > last.timestamp:
            self.relative_offsets.append(_relative(offset, self.base_offset))
            self.timestamps.append(timestamp)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at and above `offset`, as Kafka does."""
        del self.relative_offsets[_kept(self, offset) :]
        del self.timestamps[len(self.relative_offsets) :]

    def sanity_check(self, path: str) -> None:
        """Check the file at `path` (absolute) as Kafka does. Raises CorruptIndexError with Kafka's own words."""
        last = self.last_entry
        if len(self) and last.timestamp < self.timestamps[0]:
            raise CorruptIndexError(
                f"Corrupt time index found, time index file ({path}) has non-zero size but the last timestamp is "
                f"{last.timestamp} which is less than the first timestamp {self.timestamps[0]}"
            )
        if len(self) and last.offset < self.base_offset:
            raise CorruptIndexError(
                f"Corrupt time index found, time index file ({path}) has non-zero size but the last offset is "
                f"{last.offset} which is less than the first offset {self.base_offset}"
            )
        _check_size(self, TIME_INDEX_ENTRY.size, f"Time index file {path}")


class TransactionIndex:
    """A decoded `.txnindex`: the aborted transactions of a segment, by their markers' offsets, and `trailing` bytes."""

    __slots__ = ("aborted", "base_offset", "trailing")

    def __init__(self, base_offset: int, aborted: list[AbortedTxn], trailing: bytes = b"") -> None:
        self.base_offset = base_offset
        self.aborted = aborted
        self.trailing = trailing

    @classmethod
    def decode(cls, data: Buffer, base_offset: int) -> TransactionIndex:
        """Decode the bytes of a whole file; any bytes are an index, sound or not (see `sanity_check`)."""
        end = len(data) - len(data) % ABORTED_TXN.size
        view = memoryview(data)
        return cls(base_offset, [AbortedTxn(*raw) for raw in ABORTED_TXN.iter_unpack(view[:end])], bytes(view[end:]))

    def encode(self) -> bytes:
        """Encode the file, trailing bytes included."""
        return b"".join(ABORTED_TXN.pack(*txn) for txn in self.aborted) + self.trailing

    def __len__(self) -> int:
        """How many whole entries there are."""
        return len(self.aborted)

    def append(self, txn: AbortedTxn) -> None:
        """Add an entry. Raises FormatError unless its last offset is above the last one's."""
        if self.aborted and txn.last_offset <= self.aborted[-1].last_offset:
            raise FormatError(
                f"the last offset {txn.last_offset} is not above the last one of the index, {self.aborted[-1].last_offset}"
            )
        self.aborted.append(txn)

    def sanity_check(self, path: str) -> None:
        """Check the file at `path` (absolute) as Kafka does. Raises CorruptIndexError with Kafka's own words.

        For a version above 0 Kafka throws a KafkaException, which its start does not survive: `check_versions`.
        """
        for txn in self.aborted:
            _check_version(txn, path)
            if txn.last_offset < self.base_offset:
                raise CorruptIndexError(
                    f"Last offset of aborted transaction {txn} in index {path} is less than start offset {self.base_offset}"
                )

    def check_versions(self, path: str) -> None:
        """Check the versions. Raises FormatError, with Kafka's own words, for the first one that Kafka does not know."""
        for txn in self.aborted:
            _check_version(txn, path)


def overlapping_transactions(data: Buffer, first_offset: int, end_offset: int) -> tuple[list[AbortedTxn], bool]:
    """Return the transactions of whole entries that touch offsets [first_offset, end_offset), and whether later ones do not.

    Only these entries become objects: while a long transaction is open, a fetch scans all aborted ones after it.
    """
    found: list[AbortedTxn] = []
    for version, producer_id, first, last, last_stable_offset in ABORTED_TXN.iter_unpack(data):
        if first < end_offset and last >= first_offset:
            found.append(AbortedTxn(version, producer_id, first, last, last_stable_offset))
        if last_stable_offset >= end_offset:
            return found, True
    return found, False


def _check_version(txn: AbortedTxn, path: str) -> None:
    if txn.kafka_version > ABORTED_TXN_VERSION:
        raise FormatError(
            f"Unexpected aborted transaction version {txn.kafka_version} in transaction index {path}, "
            f"current version is {ABORTED_TXN_VERSION}"
        )


# ------------------------------------------------------------------------------------------------------------- columns

_IS_LITTLE_ENDIAN = sys.byteorder == "little"
# The index of the high one of the two int32 halves of an int64 in memory.
_HIGH_HALF = 1 if _IS_LITTLE_ENDIAN else 0


def ascends(numbers: Sequence[int], *, strictly: bool = True) -> bool:
    """Return True if each number of a column is above the one before it, or at least as large."""
    return all(map(lt if strictly else le, numbers, numbers[1:]))


def _int32_columns(data: Buffer, entry_bytes: int) -> tuple[array[int], bytes]:
    """Return the whole entries of `data` as one array of int32, and the bytes after them."""
    view = memoryview(data)
    end = len(view) - len(view) % entry_bytes
    numbers = array("i")
    numbers.frombytes(view[:end])
    if _IS_LITTLE_ENDIAN:
        numbers.byteswap()
    return numbers, bytes(view[end:])


def _big_endian(numbers: array[int]) -> bytes:
    if _IS_LITTLE_ENDIAN:
        numbers.byteswap()
    return numbers.tobytes()


def _used_entries(relative_offsets: array[int]) -> int:
    try:
        return relative_offsets.index(0, 1)
    except ValueError:
        return len(relative_offsets)


def _relative(offset: int, base_offset: int) -> int:
    if not 0 <= offset - base_offset <= INT32_MAX:
        raise FormatError(f"offset {offset} does not fit an index of base offset {base_offset}: 0 to {INT32_MAX} above it")
    return offset - base_offset


def _check_size(index: OffsetIndex | TimeIndex, entry_bytes: int, what: str) -> None:
    if index.trailing:
        size = len(index) * entry_bytes + len(index.trailing)
        raise CorruptIndexError(
            f"{what} is corrupt, found {size} bytes which is neither positive nor a multiple of {entry_bytes}"
        )


def _kept(index: OffsetIndex | TimeIndex, offset: int) -> int:
    """Return the number of entries that a truncation to `offset` leaves."""
    relative_offsets, target = index.relative_offsets, offset - index.base_offset
    entry_bytes = OFFSET_INDEX_ENTRY.size if isinstance(index, OffsetIndex) else TIME_INDEX_ENTRY.size
    slot = _last_slot_at_or_below(relative_offsets, target, _WARM_BYTES // entry_bytes)
    return slot if slot >= 0 and relative_offsets[slot] == target else slot + 1


def _last_slot_at_or_below(keys: Sequence[int], target: int, warm_entries: int) -> int:
    """Return the slot of the largest key <= target, or -1; in an unsorted (damaged) index, the slot that Kafka would find."""
    if not keys:
        return -1
    first_warm = max(0, len(keys) - 1 - warm_entries)
    if keys[first_warm] < target:
        low, high = first_warm, len(keys) - 1
    elif keys[0] > target:
        return -1
    else:
        low, high = 0, first_warm
    while low < high:
        middle = (low + high + 1) // 2
        if keys[middle] > target:
            high = middle - 1
        elif keys[middle] < target:
            low = middle
        else:
            return middle
    return low
