"""What a leader checks of a batch before it takes it, and what it changes in it (Kafka: UnifiedLog, LogValidator).

checked, in this order                                     else
---------------------------------------------------------  -----------------------------------------------------------
one whole batch is there, and one only (from clients)      InvalidRecordsError
size at least that of a header, magic 0 to 2               CorruptMessageError
magic is 2                                                 InvalidRecordsError from clients (as Kafka's produce
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
    UnsupportedMessageFormatError,
)
from kcli.log.log_config import LogConfig


class AppendOrigin(Enum):
    """Who appends: a client's batches are checked most, the others' were made by this broker or checked by a leader."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    RAFT_LEADER = "raft leader"
    REPLICATION = "replication"


# The metadata log has no such limit; and what a leader once took is copied, even where the limit was lowered since.
_OF_ANY_SIZE = (AppendOrigin.RAFT_LEADER, AppendOrigin.REPLICATION)


class ValidBatch:
    """A batch that was found right: `data` is the whole of it, to be written; the rest are fields of its header."""

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
        """True where the records are control records."""
        return self.attributes & CONTROL_FLAG != 0

    @property
    def is_transactional(self) -> bool:
        """True where the batch belongs to a transaction."""
        return self.attributes & TRANSACTIONAL_FLAG != 0

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, or -1 where the batch has none."""
        return NO_SEQUENCE if self.base_sequence < 0 else increment_sequence(self.base_sequence, self.last_offset_delta)


def whole_batch(records: memoryview, start: int = 0) -> int:
    """The size of the batch that begins at byte `start`, 0 where no whole one does. Raises CorruptMessageError."""
    left = len(records) - start
    if left < ENTRY_HEAD_BYTES:
        return 0
    size = entry_size(records, start)
    if size < MIN_ENTRY_SIZE + LOG_OVERHEAD_BYTES:
        raise CorruptMessageError(f"a batch states a size of {size - LOG_OVERHEAD_BYTES} bytes, less than any has")
    magic = records[start + MAGIC_POSITION]
    if magic > MAGIC:
        raise CorruptMessageError(f"a batch has magic {magic}; 0, 1 and 2 are known")
    return size if size <= left else 0


def check_batch(records: memoryview, size_bytes: int, config: LogConfig, origin: AppendOrigin) -> ValidBatch:
    """Check the header, size and CRC of the batch that lies at the start of `records`. Raises AppendError."""
    if records[MAGIC_POSITION] != MAGIC:
        message = f"a batch of format {records[MAGIC_POSITION]} is not taken: Kafka 4.x writes format {MAGIC} only"
        raise InvalidRecordsError(message) if origin is AppendOrigin.CLIENT else UnsupportedMessageFormatError(message)
    if size_bytes < HEADER_BYTES:
        raise CorruptMessageError(f"a batch of {size_bytes} bytes is shorter than its header of {HEADER_BYTES}")
    data = records if len(records) == size_bytes else records[:size_bytes]
    header = read_header(data)
    batch = ValidBatch(data, size_bytes, header)
    if origin is AppendOrigin.CLIENT and batch.base_offset != 0:
        raise InvalidRecordsError(f"the base offset of a batch from a client is 0, and this is {batch.base_offset}")
    if size_bytes > config.max_message_bytes and origin not in _OF_ANY_SIZE:
        raise MessageTooLargeError(
            f"the batch has {size_bytes} bytes; this topic takes {config.max_message_bytes} (max.message.bytes)"
        )
    if crc32c(data[CRC_START:]) != header.crc:
        raise CorruptMessageError(f"the CRC of the batch is wrong: {header.crc} is stored")
    if origin is AppendOrigin.CLIENT:
        _check_client_header(batch)
    return batch


def _check_client_header(batch: ValidBatch) -> None:
    if batch.last_offset_delta < 0:
        raise InvalidRecordsError(f"the batch has a last offset delta of {batch.last_offset_delta}")
    if batch.record_count <= 0:
        raise InvalidRecordsError(f"the batch states {batch.record_count} records")
    if batch.record_count != batch.last_offset_delta + 1:
        raise InvalidRecordsError(
            f"the batch states {batch.record_count} records and takes {batch.last_offset_delta + 1} offsets"
        )
    if batch.attributes & CONTROL_FLAG:
        raise InvalidRecordsError("clients may not write control records")
    if batch.producer_id >= 0 and batch.base_sequence < 0:
        raise InvalidRecordsError(f"producer {batch.producer_id} sends a batch with sequence {batch.base_sequence}")
