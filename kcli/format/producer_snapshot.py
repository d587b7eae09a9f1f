"""`N.snapshot`: what a partition knew of its producers up to offset N, so that a restart need not read the whole log.

    byte  field             type
    ----  ----------------  ------------------------------------------------------------------
       0  version           int16   1
       2  crc               uint32  CRC-32C from byte 6 to the end of the file
       6  count             int32
      10  entries, 46 bytes each:
          producerId             int64
          producerEpoch          int16
          lastSequence           int32  -1: no batch
          lastOffset             int64  -1: no batch; the last offset of the producer's last batch
          offsetDelta            int32  that batch's last offset delta
          timestamp              int64  that batch's max timestamp, ms
          coordinatorEpoch       int32  -1: never ended a transaction
          currentTxnFirstOffset  int64  -1: no open transaction

Of the up to five batches that a broker remembers for a producer only the last is stored. Kafka keeps the order of its hash
map and, on reading, the last of several entries for one producer; entries stay as they are here. Bytes behind the last
entry count in the CRC and are otherwise ignored, by Kafka and here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kcli.format import structs
from kcli.format.primitives import INT32_MAX, Buffer, CorruptSnapshotError, crc32c

HEADER = structs.PRODUCER_SNAPSHOT_HEADER
ENTRY = structs.PRODUCER_SNAPSHOT_ENTRY
VERSION = 1
CRC_START = structs.SNAPSHOT_COUNT_AT


class ProducerEntry(NamedTuple):
    """One producer; timestamps in ms, -1 where there is nothing (see the table above)."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int

    @property
    def has_batch(self) -> bool:
        """Whether a batch of the producer is known; a marker leaves none."""
        return self.last_offset >= 0

    @property
    def first_sequence(self) -> int:
        """The first sequence of that batch; sequences wrap from 2**31 - 1 to 0."""
        first = self.last_sequence - self.offset_delta
        return first if self.offset_delta <= self.last_sequence else first + INT32_MAX + 1

    @property
    def first_offset(self) -> int:
        """The first offset of that batch."""
        return self.last_offset - self.offset_delta

    @property
    def open_txn_first_offset(self) -> int | None:
        """Where the open transaction begins, or None."""
        return self.current_txn_first_offset if self.current_txn_first_offset >= 0 else None


class ProducerSnapshot(NamedTuple):
    """A decoded snapshot: its entries in the order of the file, and the bytes behind them (none in a sound file)."""

    entries: tuple[ProducerEntry, ...]
    trailing: bytes = b""


def decode_producer_snapshot(data: Buffer) -> ProducerSnapshot:
    """Decode and check the bytes of a whole file. Raises CorruptSnapshotError with Kafka's own words."""
    end = check_producer_snapshot(data)
    return ProducerSnapshot(tuple(iter_producer_entries(data, end)), bytes(memoryview(data)[end:]))


def iter_producer_entries(data: Buffer, end: int) -> Iterator[ProducerEntry]:
    """Yield the entries of a file that was checked; the last one ends at byte `end`."""
    return (ProducerEntry(*raw) for raw in ENTRY.iter_unpack(memoryview(data)[HEADER.size : end]))


def check_producer_snapshot(data: Buffer) -> int:
    """Check the bytes of a whole file; return where its entries end. Raises CorruptSnapshotError with Kafka's own words."""
    view = memoryview(data)
    version = int.from_bytes(view[:2], "big", signed=True) if len(view) >= 2 else None
    if version is not None and version != VERSION:
        raise _schema_error(f"Snapshot contained an unknown file version {version}", 0)
    if len(view) < HEADER.size:
        raise _schema_error("null", len(view))
    _, stored_crc, count = HEADER.unpack_from(view)
    left = len(view) - HEADER.size
    if count < 0:
        raise _schema_error("non-nullable field producerEntries was serialized as null", CRC_START)
    if count > left:
        raise _schema_error(
            f"Tried to allocate a collection of size {count}, but there are only {left} bytes remaining.", CRC_START
        )
    end: int = HEADER.size + count * ENTRY.size
    if end > len(view):
        raise _schema_error("null", len(view))
    computed_crc = crc32c(view[CRC_START:])
    if stored_crc != computed_crc:
        raise CorruptSnapshotError(
            f"Snapshot is corrupt (CRC is no longer valid). Stored crc: {stored_crc}. Computed crc: {computed_crc}", 2
        )
    return end


def encode_producer_snapshot(entries: Iterable[ProducerEntry], trailing: bytes = b"") -> bytes:
    """Encode the file, CRC included. Raises struct.error if a value does not fit its type."""
    packed = [ENTRY.pack(*entry) for entry in entries]
    checked = b"".join((len(packed).to_bytes(4, "big"), *packed, trailing))
    return HEADER.pack(VERSION, crc32c(checked), len(packed)) + checked[4:]


def _schema_error(reason: str, position: int) -> CorruptSnapshotError:
    # "null" is the text of Java's exception for bytes that are missing.
    return CorruptSnapshotError(f"Snapshot failed schema validation: {reason}", position)
