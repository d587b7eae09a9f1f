"""Message formats 0 and 1, of which a `.log` file consisted before Kafka 0.11; old segments still do.

    byte  field       type    notes
    ----  ----------  ------  ------------------------------------------------------------------------------------
       0  offset      int64   of a compressed set: the offset of its last message
       8  size        int32   bytes after this field; the whole entry has 12 more
      12  crc         uint32  CRC-32 (zlib's) from magic to the end of the entry
      16  magic       int8    0 or 1
      17  attributes  int8    bits: 0-2 codec (not zstd), 3 LogAppendTime (format 1)
      18  timestamp   int64   format 1 only, ms; in a compressed set the largest one, or the broker's
          key         int32   size, -1 for null, then the bytes
          value       int32   size, -1 for null, then the bytes

A compressed set is one message, the wrapper, whose value consists of such entries, compressed. The entries inside:

* Offsets are absolute in format 0. In format 1 they are relative: the wrapper's offset belongs to the last of them, unless
  it is 0 (sets of old librdkafka), where they count from 0.
* With LogAppendTime in the wrapper all have the wrapper's timestamp; their own is the one that the producer wrote.
* None may be compressed again. Kafka, and so kcli, detects that only when it reads that entry, but all other faults of the
  decompressed bytes before the first message. An incomplete entry at the end is ignored.

Messages are read as Kafka reads them, with Kafka's error messages if it has any. The CRC is returned, not checked.

UpgradedBatch makes a batch of format 2 of them, as Kafka's cleaner does (MemoryRecordsBuilder).

    of the batch          is
    --------------------  ---------------------------------------------------------------------------------------------
    base offset           the offset of its first message (MemoryRecordsBuilder); gaps between messages remain
    base timestamp        that of its first message, unless it has a delete horizon
    timestamps            those of the messages, -1 in format 0; their type as it was (format 0 has none: CreateTime)
    leader epoch          -1: unknown
    producer, sequence    none

Of LogAppendTime the whole batch has one timestamp, so messages with another one do not belong in it. A timestamp too far from
the base for 64 bits wraps around, as in Kafka, where readers wrap it back; kcli's do not, so a caller begins another batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

from kcli.format import limits, structs
from kcli.format.codec_streams import NONE, ZSTD, ByteSource
from kcli.format.compression import codec_name, deflate, inflate, inflate_stream
from kcli.format.java_text import wrap_int64
from kcli.format.primitives import (
    INT32_MAX,
    INT64_MAX,
    Buffer,
    CorruptRecordError,
    InflationLimitError,
    InvalidRecordError,
    RecordTooLargeError,
)
from kcli.format.record_batch import LOG_APPEND_TIME_FLAG, NO_LEADER_EPOCH, NewRecordBatch
from kcli.format.records import Record, encode_record

HEAD = structs.MESSAGE_HEAD
TIMESTAMP = structs.MESSAGE_TIMESTAMP
ENTRY_OVERHEAD_BYTES = structs.LOG_OVERHEAD_BYTES
CRC_START = structs.MESSAGE_MAGIC_AT
MIN_MESSAGE_BYTES = 14  # crc, magic, attributes and the sizes of key and value, in format 0
CODEC_MASK = 0x07
NO_TIMESTAMP = -1
# Single messages become batches of format 2 of up to this size: the default of the producer's batch.size.
GATHERED_BYTES = 16384


class LegacyBatch(NamedTuple):
    """The head of an entry as it was read; `position` is its first byte in the file, `timestamp` -1 in format 0."""

    position: int
    offset: int
    size: int
    crc: int
    magic: int
    attributes: int
    timestamp: int

    @property
    def size_bytes(self) -> int:
        """The whole entry in bytes."""
        return self.size + ENTRY_OVERHEAD_BYTES

    @property
    def end_position(self) -> int:
        """The position in the file of the byte after the entry."""
        return self.position + self.size_bytes

    @property
    def base_offset(self) -> int:
        """The offset in the entry; the first one of a compressed set shows only when the set is opened."""
        return self.offset

    @property
    def last_offset(self) -> int:
        """The offset of the last message."""
        return self.offset

    @property
    def next_offset(self) -> int:
        """The offset after the entry's last one (64 bits, as in Kafka)."""
        return wrap_int64(self.offset + 1)

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp in ms, as far as the entry knows; -1 in format 0."""
        return self.timestamp

    @property
    def codec(self) -> int:
        """The codec's id, 0 to 7; 0 to 3 have a meaning here."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        """Whether the broker has set the timestamps; never in format 0."""
        return self.magic != 0 and self.attributes & LOG_APPEND_TIME_FLAG != 0


class LegacyRecord(NamedTuple):
    """One message. `timestamp` is in ms, -1 in format 0; sizes are as stated, negative for null; `crc` is the stored one.

    `value_left` is how many bytes there are of a value that states more and is therefore None; only lenient readers meet it.
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    key_size: int
    value_size: int
    crc: int
    is_valid: bool
    magic: int
    attributes: int
    value_left: int | None = None


def read_legacy_header(buffer: Buffer, index: int = 0, position: int = 0) -> LegacyBatch:
    """Decode the head of the entry at buffer[index]; it is at byte `position` of its file.

    Nothing is checked but that the bytes are there: raises struct.error where they are not.
    """
    offset, size, crc, magic, attributes = HEAD.unpack_from(buffer, index)
    timestamp = NO_TIMESTAMP if magic == 0 else TIMESTAMP.unpack_from(buffer, index + HEAD.size)[0]
    return LegacyBatch(position, offset, size, crc, magic, attributes, timestamp)


def legacy_crc(entry: Buffer) -> int:
    """Compute the CRC of one whole entry."""
    return crc32(memoryview(entry)[CRC_START:])


def iter_records(batch: LegacyBatch, entry: Buffer, *, lenient: bool = False) -> Iterator[LegacyRecord]:
    """Yield the messages of one whole entry, itself or what it wraps, in the order stored.

    Raises InvalidRecordError, CorruptRecordError or InflationError, before the first message where the wrapper or what it
    inflates to is at fault; nothing is inflated beyond MAX_INFLATED_MESSAGE_SET_BYTES or wrapped deeper than once. Above
    INFLATE_WINDOW_BYTES memory is a window and one message: the set is then inflated twice.

    With `lenient` a value that reaches behind its message is not an error, as in Kafka, unless the value is read.
    """
    message = memoryview(entry)[ENTRY_OVERHEAD_BYTES:]
    if batch.codec == NONE:
        yield _open(message, batch.offset, None, lenient)
        return
    if batch.codec == ZSTD:
        raise InvalidRecordError(f"Invalid wrapper compressionType found in legacy deep record iterator {batch.magic}")
    codec_name(batch.codec)
    value = _open(message, batch.offset, None).value
    if value is None:
        raise InvalidRecordError(f"Found invalid compressed record set with null value (magic = {batch.magic})")
    inflated: Buffer | None
    try:
        inflated = inflate(batch.codec, value, limit=limits.INFLATE_WINDOW_BYTES, magic=batch.magic)
    except InflationLimitError:
        inflated = None
    base_offset = _base_offset(batch, _entries(_source(batch, value, inflated)))
    for offset, inner in _entries(_source(batch, value, inflated)):
        if inner[5] & CODEC_MASK:
            codec_name(inner[5] & CODEC_MASK)
            raise InvalidRecordError("Inner messages must not be compressed")
        yield _open(inner, wrap_int64(base_offset + offset), batch, lenient)


def _source(batch: LegacyBatch, value: Buffer, inflated: Buffer | None) -> ByteSource:
    if inflated is not None:
        return ByteSource(inflated)
    return ByteSource(
        inflate_stream(
            batch.codec,
            value,
            window=limits.READ_CHUNK_BYTES,
            limit=limits.MAX_INFLATED_MESSAGE_SET_BYTES,
            magic=batch.magic,
        )
    )


def _entries(source: ByteSource) -> Iterator[tuple[int, memoryview]]:
    """Yield the entries of an inflated set: the offset as stored, and the message from its CRC on."""
    while True:
        head = source.peek(ENTRY_OVERHEAD_BYTES)
        if len(head) < ENTRY_OVERHEAD_BYTES:
            return
        offset = int.from_bytes(head[:8], "big", signed=True)
        size = int.from_bytes(head[8:], "big", signed=True)
        if size < MIN_MESSAGE_BYTES:
            raise CorruptRecordError(f"Record size is less than the minimum record overhead ({MIN_MESSAGE_BYTES})")
        if size > limits.MAX_RECORD_BYTES:
            if source.skip(ENTRY_OVERHEAD_BYTES + size) < ENTRY_OVERHEAD_BYTES + size:
                return
            raise RecordTooLargeError(
                f"a message of {size} bytes in the set is larger than is held at once ({limits.MAX_RECORD_BYTES})"
            )
        entry = source.peek(ENTRY_OVERHEAD_BYTES + size)
        if len(entry) < ENTRY_OVERHEAD_BYTES + size:
            return
        source.take(ENTRY_OVERHEAD_BYTES + size)
        yield offset, entry[ENTRY_OVERHEAD_BYTES:]


def _base_offset(batch: LegacyBatch, entries: Iterator[tuple[int, memoryview]]) -> int:
    """Return what to add to the offsets of a wrapper's entries; reads all entries, so that their faults show first."""
    last = None
    for offset, _ in entries:
        last = offset
    if last is None:
        raise InvalidRecordError("Found invalid compressed record set with no inner records")
    if batch.magic == 0 or batch.offset == 0:
        return 0
    if batch.offset < last:
        raise InvalidRecordError(
            f"Found invalid wrapper offset in compressed v1 message set, wrapper offset '{batch.offset}' is less than "
            f"the last inner message offset '{last}' and it is not zero."
        )
    return wrap_int64(batch.offset - last)


def _open(message: memoryview, offset: int, wrapper: LegacyBatch | None, lenient: bool = False) -> LegacyRecord:
    """Decode a message that begins at its CRC. With LogAppendTime it gets the wrapper's timestamp."""
    end = len(message)
    if end < MIN_MESSAGE_BYTES:
        raise InvalidRecordError(f"a message of {end} bytes is smaller than the least possible {MIN_MESSAGE_BYTES}")
    crc = int.from_bytes(message[:4], "big")
    magic = int.from_bytes(message[4:5], "big", signed=True)
    timestamp, position = NO_TIMESTAMP, 6
    if magic != 0:
        timestamp, position = int.from_bytes(message[6:14], "big", signed=True), 14
        if magic == 1 and wrapper is not None and wrapper.is_log_append_time:
            timestamp = wrapper.timestamp
    key_size, key, position = _read_bytes(message, position, end, "key")
    is_valid = crc == crc32(message[4:])
    if lenient and position + 4 <= end and (stated := _read_size(message, position)) > end - position - 4:
        left = end - position - 4
        return LegacyRecord(offset, timestamp, key, None, key_size, stated, crc, is_valid, magic, message[5], left)
    value_size, value, position = _read_bytes(message, position, end, "value")
    return LegacyRecord(offset, timestamp, key, value, key_size, value_size, crc, is_valid, magic, message[5])


def _read_size(message: memoryview, position: int) -> int:
    return int.from_bytes(message[position : position + 4], "big", signed=True)


def _read_bytes(message: memoryview, position: int, end: int, what: str) -> tuple[int, bytes | None, int]:
    """Decode a key or value; return the size as stated, the bytes or None, and the position behind them."""
    if position + 4 > end:
        raise InvalidRecordError(f"the message ends before the size of its {what}", ENTRY_OVERHEAD_BYTES + position)
    size = _read_size(message, position)
    position += 4
    if size < 0:
        return size, None, position
    if size > end - position:
        raise InvalidRecordError(
            f"the {what} states {size} bytes and {end - position} are left in the message", ENTRY_OVERHEAD_BYTES + position
        )
    return size, bytes(message[position : position + size]), position + size


class UpgradedBatch:
    """A batch in the making; `base_timestamp` is that of a delete horizon, whose flag is in `flags`."""

    def __init__(self, *, is_log_append_time: bool, flags: int = 0, base_timestamp: int | None = None) -> None:
        self.count = 0
        self.base_offset = self.last_offset = self.max_timestamp = 0
        self._flags = flags | (LOG_APPEND_TIME_FLAG if is_log_append_time else 0)
        self._base_timestamp = base_timestamp
        self._records = bytearray()

    def has_room(self, record: LegacyRecord, most_bytes: int = GATHERED_BYTES) -> bool:
        """Return True if the records stay within `most_bytes` with this one, and the delta of its timestamp fits in 64 bits."""
        if self._base_timestamp is None:
            return True
        size_bytes = len(self._records) + len(record.key or b"") + len(record.value or b"")
        return size_bytes <= most_bytes and -INT64_MAX <= record.timestamp - self._base_timestamp <= INT64_MAX

    def add(self, record: LegacyRecord) -> None:
        """Add the next message. Raises CorruptRecordError if its offset cannot follow the others'."""
        if not self.count:
            self.base_offset, self.max_timestamp = record.offset, record.timestamp
        elif not self.last_offset < record.offset <= self.base_offset + INT32_MAX:
            raise CorruptRecordError(
                f"the message of offset {record.offset} behind that of offset {self.last_offset} does not fit into a batch of "
                f"format 2 from offset {self.base_offset} on"
            )
        if self._base_timestamp is None:
            self._base_timestamp = record.timestamp
        timestamp_delta = wrap_int64(record.timestamp - self._base_timestamp)
        self._records += encode_record(Record(record.offset - self.base_offset, timestamp_delta, record.key, record.value))
        self.last_offset = record.offset
        self.max_timestamp = max(self.max_timestamp, record.timestamp)
        self.count += 1

    def end_at(self, offset: int) -> None:
        """Extend the batch to `offset`. Raises CorruptRecordError if it does not fit."""
        if not self.last_offset <= offset <= self.base_offset + INT32_MAX:
            raise CorruptRecordError(f"its messages have the offsets {self.base_offset} to {self.last_offset}, it has {offset}")
        self.last_offset = offset

    def encode(self, codec: int, level: int | None = None) -> bytes:
        """Encode the batch; it must have a message."""
        assert self._base_timestamp is not None, "a batch of no messages"
        return NewRecordBatch(
            base_offset=self.base_offset,
            last_offset_delta=self.last_offset - self.base_offset,
            base_timestamp=self._base_timestamp,
            max_timestamp=self.max_timestamp,
            record_count=self.count,
            records=deflate(codec, self._records, level=level),
            attributes=self._flags | codec,
            partition_leader_epoch=NO_LEADER_EPOCH,
        ).encode()
