"""The record batch, message format 2, of which a `.log` file consists since Kafka 0.11 (KIP-98).

    byte  field                   type     notes
    ----  ----------------------  -------  ---------------------------------------------------------------
       0  baseOffset              int64    set by the broker
       8  batchLength             int32    bytes after this field; the whole batch has 12 more
      12  partitionLeaderEpoch    int32    set by the broker; like the two above not in the CRC
      16  magic                   int8     2
      17  crc                     uint32   CRC-32C from attributes to the end of the batch
      21  attributes              int16    bits: 0-2 codec, 3 LogAppendTime, 4 transactional, 5 control,
                                           6 delete horizon (KIP-534: baseTimestamp holds the horizon)
      23  lastOffsetDelta         int32    kept by the cleaner, so it may be above the last record's
      27  baseTimestamp           int64    ms; the deltas of the records are added to it
      35  maxTimestamp            int64    ms; with LogAppendTime the timestamp of all records
      43  producerId              int64    -1: none
      51  producerEpoch           int16    -1: none
      53  baseSequence            int32    -1: none
      57  recordsCount            int32    0: an empty batch, kept by the cleaner for its producer's sequence
      61  records                          see kcli.format.records; compressed as one block

`RecordBatch` is a batch that was read, `NewRecordBatch` one that is to be written: its length and CRC are derived and cannot be
set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kcli.format import structs
from kcli.format.java_text import wrap_int32, wrap_int64
from kcli.format.primitives import INT32_MAX, Buffer, CorruptRecordError, crc32c

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch

HEADER = structs.RECORD_BATCH_HEADER
HEADER_BYTES = structs.RECORD_BATCH_HEADER_BYTES
LOG_OVERHEAD_BYTES = structs.LOG_OVERHEAD_BYTES
MAGIC_POSITION = structs.BATCH_MAGIC_AT  # of every format
CRC_START = structs.BATCH_ATTRIBUTES_AT
ENTRY_HEAD_BYTES = MAGIC_POSITION + 1  # the part that all formats have: offset, size, leader epoch or CRC, magic
MIN_ENTRY_SIZE = 14  # the smallest size field of an entry of any format: an empty message of format 0
MIN_ENTRY_SIZE_1 = 22  # the same of format 1, with its timestamp
MAGIC = 2

CODEC_MASK = 0x07
LOG_APPEND_TIME_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
NO_LEADER_EPOCH = -1


class Producer(NamedTuple):
    """The id and epoch of a producer; both are -1 for none."""

    producer_id: int
    producer_epoch: int


NO_PRODUCER = Producer(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


def increment_sequence(sequence: int, increment: int) -> int:
    """Return a producer's sequence plus `increment`; it wraps from 2**31 - 1 to 0 (Kafka: DefaultRecordBatch).

    A negative increment, which occurs in damaged batches only, overflows 32 bits as in Kafka.
    """
    if increment < 0:
        if sequence > wrap_int32(INT32_MAX - increment):
            return wrap_int32(increment - (INT32_MAX - sequence) - 1)
        return wrap_int32(sequence + increment)
    if sequence > INT32_MAX - increment:
        return increment - (INT32_MAX - sequence) - 1
    return sequence + increment


class _Header(NamedTuple):
    position: int
    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int


class RecordBatch(_Header):
    """The header of a batch; `position` is its first byte in the file."""

    __slots__ = ()

    @property
    def size_bytes(self) -> int:
        """The size of the batch, header included."""
        return self.batch_length + LOG_OVERHEAD_BYTES

    @property
    def end_position(self) -> int:
        """The position in the file of the byte after the batch."""
        return self.position + self.batch_length + LOG_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        """The last offset of the batch; in a damaged one it may overflow 64 bits, as in Kafka."""
        return wrap_int64(self.base_offset + self.last_offset_delta)

    @property
    def next_offset(self) -> int:
        """The offset after the last one of the batch."""
        return wrap_int64(self.base_offset + self.last_offset_delta + 1)

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, -1 if the batch has no sequence."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return increment_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def codec(self) -> int:
        """The codec's id, 0 to 7; 0 to 4 have a meaning (kcli.format.compression)."""
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        """Whether the broker, not the producer, has set the timestamps."""
        return self.attributes & LOG_APPEND_TIME_FLAG != 0

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return self.attributes & TRANSACTIONAL_FLAG != 0

    @property
    def is_control(self) -> bool:
        """Whether the records are control records: markers, or those of KRaft."""
        return self.attributes & CONTROL_FLAG != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time from which the tombstones and markers of the batch may be removed, None if no cleaner has set it."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_FLAG else None

    @property
    def has_producer(self) -> bool:
        """Whether an idempotent or transactional producer wrote the batch."""
        return self.producer_id > NO_PRODUCER_ID

    @property
    def log_append_time_ms(self) -> int | None:
        """The timestamp of all records with LogAppendTime, else None."""
        return self.max_timestamp if self.attributes & LOG_APPEND_TIME_FLAG else None


def read_header(buffer: Buffer, index: int = 0, position: int = 0) -> RecordBatch:
    """Decode the 61 bytes at buffer[index]; the batch is at byte `position` of its file.

    Nothing is checked. Raises struct.error if there are fewer bytes.
    """
    return RecordBatch(position, *HEADER.unpack_from(buffer, index))


def entry_size(buffer: Buffer, index: int = 0) -> int:
    """Return the size in bytes that the entry at buffer[index], of any format, states. Raises struct.error if it is cut off."""
    return int(structs.LOG_OVERHEAD.unpack_from(buffer, index)[1]) + LOG_OVERHEAD_BYTES


def read_entry_header(buffer: Buffer, index: int = 0, position: int = 0) -> RecordBatch | LegacyBatch:
    """Decode the header of the entry at buffer[index], of any format; `position` is its byte in the file.

    As in Kafka a magic above 2 is read as format 2 and a negative one as format 1. Nothing is checked: raises IndexError,
    struct.error and FormatError if bytes are missing.
    """
    if MAGIC <= buffer[index + MAGIC_POSITION] < 128:
        return read_header(buffer, index, position)
    from kcli.format.legacy_message_set import read_legacy_header

    return read_legacy_header(buffer, index, position)


def check_batch(batch: Buffer) -> RecordBatch:
    """Decode and check one whole batch. Raises CorruptRecordError for its size, magic or CRC."""
    if len(batch) < HEADER_BYTES:
        raise CorruptRecordError(f"a batch of {len(batch)} bytes is shorter than its header of {HEADER_BYTES} bytes", 0)
    header = read_header(batch)
    if header.size_bytes != len(batch):
        raise CorruptRecordError(f"the batch states a size of {header.size_bytes} bytes and has {len(batch)}", 8)
    if header.magic != MAGIC:
        raise CorruptRecordError(f"the batch has magic {header.magic}, not {MAGIC}", MAGIC_POSITION)
    computed = crc32c(memoryview(batch)[CRC_START:])
    if computed != header.crc:
        raise CorruptRecordError(f"the stored CRC is {header.crc}, the computed one {computed}", CRC_START - 4)
    return header


class NewRecordBatch(NamedTuple):
    """A batch to be written; `records` are the encoded records, already compressed as `attributes` say.

    `encode()` derives the length and the CRC.
    """

    base_offset: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    record_count: int
    records: Buffer
    attributes: int = 0
    partition_leader_epoch: int = 0
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE

    def encode_header(self) -> bytearray:
        """Encode the header, with a CRC of 0. Raises struct.error if a field does not fit its type."""
        return bytearray(
            HEADER.pack(
                self.base_offset,
                HEADER_BYTES - LOG_OVERHEAD_BYTES + len(self.records),
                self.partition_leader_epoch,
                MAGIC,
                0,
                self.attributes,
                self.last_offset_delta,
                self.base_timestamp,
                self.max_timestamp,
                self.producer_id,
                self.producer_epoch,
                self.base_sequence,
                self.record_count,
            )
        )

    def encode(self) -> bytes:
        """Encode the batch. Raises struct.error if a field does not fit its type."""
        header = self.encode_header()
        crc = crc32c(self.records, crc32c(bytes(header[CRC_START:])))
        header[CRC_START - 4 : CRC_START] = crc.to_bytes(4, "big")
        return bytes(header) + bytes(self.records)


def with_records(batch: RecordBatch, records: Buffer) -> NewRecordBatch:
    """Return the batch with other records and the rest of its header; change other fields with `_replace`."""
    return NewRecordBatch(
        base_offset=batch.base_offset,
        last_offset_delta=batch.last_offset_delta,
        base_timestamp=batch.base_timestamp,
        max_timestamp=batch.max_timestamp,
        record_count=batch.record_count,
        records=records,
        attributes=batch.attributes,
        partition_leader_epoch=batch.partition_leader_epoch,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
    )


def empty_batch(batch: RecordBatch) -> NewRecordBatch:
    """Return what Kafka's cleaner leaves of a batch without surviving records whose producer still needs its sequence."""
    attributes = batch.attributes & ~(CODEC_MASK | DELETE_HORIZON_FLAG)
    return with_records(batch, b"")._replace(base_timestamp=NO_TIMESTAMP, record_count=0, attributes=attributes)
