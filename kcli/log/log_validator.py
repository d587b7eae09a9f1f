"""The checks of a batch before an append, without its records (Kafka: UnifiedLog.analyzeAndValidateRecords, LogValidator).

checked, in this order                                     else
---------------------------------------------------------  -----------------------------------------------------------
exactly one complete batch (from clients)                  NotOneBatchError
size at least that of a header, magic 0 to 2               CorruptMessageError
magic is 2                                                 NotOneBatchError from clients (as Kafka's produce
                                                           handler), else UnsupportedMessageFormatError
base offset is 0 (from clients)                            InvalidRecordsError
at most max.message.bytes                                  MessageTooLargeError
CRC                                                        CorruptMessageError
last offset delta and record count agree (from clients)    InvalidRecordsError
no control batch; a producer has sequences (from clients)  InvalidRecordsError
"""

from __future__ import annotations

from enum import Enum

from kcli.format.primitives import crc32c
from kcli.format.record_batch import (
    CONTROL_FLAG,
    CRC_START,
    ENTRY_HEAD_BYTES,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
    MIN_ENTRY_SIZE,
    NO_SEQUENCE,
    TRANSACTIONAL_FLAG,
    RecordBatch,
    entry_size,
    increment_sequence,
    read_header,
)
from kcli.log.errors import (
    CorruptMessageError,
    InvalidRecordsError,
    MessageTooLargeError,
    NotOneBatchError,
    UnsupportedMessageFormatError,
)
from kcli.log.log_config import LogConfig


class AppendOrigin(Enum):
    """The source of a batch: all checks apply to clients; this broker or a leader has made or checked the other batches."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    RAFT_LEADER = "raft leader"
    REPLICATION = "replication"


# The metadata log has no max.message.bytes, and a follower copies what its leader has, even if the limit was lowered since.
_WITHOUT_SIZE_LIMIT = (AppendOrigin.RAFT_LEADER, AppendOrigin.REPLICATION)


class ValidBatch:
    """A checked batch: `data` are its bytes, the other attributes fields of its header."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "data",
        "last_offset_delta",
        "leader_epoch",
        "max_timestamp",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size_bytes",
    )

    def __init__(self, data: memoryview, size_bytes: int, header: RecordBatch) -> None:
        self.data = data
        self.size_bytes = size_bytes
        self.base_offset = header.base_offset
        self.leader_epoch = header.partition_leader_epoch
        self.attributes = header.attributes
        self.last_offset_delta = header.last_offset_delta
        self.base_timestamp = header.base_timestamp
        self.max_timestamp = header.max_timestamp
        self.producer_id = header.producer_id
        self.producer_epoch = header.producer_epoch
        self.base_sequence = header.base_sequence
        self.record_count = header.record_count

    def __len__(self) -> int:
        return self.size_bytes

    @property
    def is_control(self) -> bool:
        """Whether the records are control records."""
        return self.attributes & CONTROL_FLAG != 0

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return self.attributes & TRANSACTIONAL_FLAG != 0

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, -1 if the batch has no sequence."""
        return NO_SEQUENCE if self.base_sequence < 0 else increment_sequence(self.base_sequence, self.last_offset_delta)


def whole_batch(records: memoryview, start: int = 0) -> int:
    """Return the size of the batch at byte `start`, 0 if it is incomplete. Raises CorruptMessageError."""
    left = len(records) - start
    if left < ENTRY_HEAD_BYTES:
        return 0
    size = entry_size(records, start)
    if size < MIN_ENTRY_SIZE + LOG_OVERHEAD_BYTES:
        raise CorruptMessageError(
            f"the length field of a batch is {size - LOG_OVERHEAD_BYTES}, but the smallest batch has {MIN_ENTRY_SIZE} bytes"
        )
    magic = records[start + MAGIC_POSITION]
    if magic > MAGIC:
        raise CorruptMessageError(f"a batch has magic {magic}; the known values are 0, 1 and 2")
    return size if size <= left else 0


def validated_batch(records: memoryview, size_bytes: int, config: LogConfig, origin: AppendOrigin) -> ValidBatch:
    """Check header, size and CRC of the batch at the start of `records`. Raises AppendError."""
    if records[MAGIC_POSITION] != MAGIC:
        message = f"cannot append a batch with magic {records[MAGIC_POSITION]}: Kafka 4.x writes magic {MAGIC} only"
        raise NotOneBatchError(message) if origin is AppendOrigin.CLIENT else UnsupportedMessageFormatError(message)
    if size_bytes < HEADER_BYTES:
        raise CorruptMessageError(f"a batch of {size_bytes} bytes is shorter than its header of {HEADER_BYTES} bytes")
    data = records if len(records) == size_bytes else records[:size_bytes]
    header = read_header(data)
    batch = ValidBatch(data, size_bytes, header)
    if origin is AppendOrigin.CLIENT and batch.base_offset != 0:
        raise InvalidRecordsError(f"the base offset of the batch is {batch.base_offset}; clients must send 0")
    if size_bytes > config.max_message_bytes and origin not in _WITHOUT_SIZE_LIMIT:
        raise MessageTooLargeError(
            f"the batch has {size_bytes} bytes, more than max.message.bytes of this topic, {config.max_message_bytes}"
        )
    if crc32c(data[CRC_START:]) != header.crc:
        raise CorruptMessageError(f"the CRC of the batch, {header.crc}, does not match its bytes")
    if origin is AppendOrigin.CLIENT:
        _check_client_header(batch)
    return batch


def _check_client_header(batch: ValidBatch) -> None:
    if batch.last_offset_delta < 0:
        raise InvalidRecordsError(f"the last offset delta of the batch is negative: {batch.last_offset_delta}")
    if batch.record_count <= 0:
        raise InvalidRecordsError(f"the record count of the batch must be positive and is {batch.record_count}")
    if batch.record_count != batch.last_offset_delta + 1:
        raise InvalidRecordsError(
            f"the record count of the batch is {batch.record_count}, but its offsets are {batch.last_offset_delta + 1}"
        )
    if batch.attributes & CONTROL_FLAG:
        raise InvalidRecordsError("clients must not write control records")
    if batch.producer_id >= 0 and batch.base_sequence < 0:
        raise InvalidRecordsError(f"the batch of producer {batch.producer_id} has no sequence: {batch.base_sequence}")
