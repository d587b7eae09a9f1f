"""Errors of logs and of the log manager, each with Kafka's error code for the client.

LogError: a log refuses records or a read.

    class                          code  Kafka's name                     when
    -----------------------------  ----  -------------------------------  ------------------------------------------------
    OffsetOutOfRangeError             1  OFFSET_OUT_OF_RANGE              a read outside of [log start, log end]
    CorruptMessageError               2  CORRUPT_MESSAGE                  size, magic or CRC of a batch is wrong
    MessageTooLargeError             10  MESSAGE_TOO_LARGE                a batch above max.message.bytes, or inflated too large
    RecordListTooLargeError          18  RECORD_LIST_TOO_LARGE            more bytes than segment.bytes
    InvalidTimestampError            32  INVALID_TIMESTAMP                outside message.timestamp.before/after.max.ms
    UnsupportedMessageFormatError    43  UNSUPPORTED_FOR_MESSAGE_FORMAT   a batch of magic 0 or 1, which 4.x does not write
    OutOfOrderSequenceError          45  OUT_OF_ORDER_SEQUENCE_NUMBER     a gap in a producer's sequence
    InvalidProducerEpochError        47  INVALID_PRODUCER_EPOCH           an epoch below the producer's
    InvalidTransactionStateError     48  INVALID_TXN_STATE                not transactional while a transaction is open
    CoordinatorFencedError           52  TRANSACTION_COORDINATOR_FENCED   a marker of an older coordinator
    UnknownProducerError             59  UNKNOWN_PRODUCER_ID              a marker of an unknown producer
    UnsupportedCompressionError      76  UNSUPPORTED_COMPRESSION_TYPE     a codec that does not exist
    InvalidRecordsError              87  INVALID_RECORD                   counts, offsets, control batches, null keys ...
    UnreadableCompressionError       -1  UNKNOWN_SERVER_ERROR             compressed records that cannot be decompressed
    UnexpectedAppendOffsetError      -1  UNKNOWN_SERVER_ERROR             a follower's records begin below its log end

StorageError: the log manager refuses an operation, or the broker stops.

    class                          code  Kafka's name                     when
    -----------------------------  ----  -------------------------------  ------------------------------------------------
    NotHostedError                    6  NOT_LEADER_OR_FOLLOWER           this broker has no replica of the partition (yet)
    InvalidTopicError                17  INVALID_TOPIC_EXCEPTION          the name is too long for a future log's directory
    KafkaStorageError                56  KAFKA_STORAGE_ERROR              the partition's log directory is offline
    LogDirNotFoundError              57  LOG_DIR_NOT_FOUND                the named log directory is not in log.dirs
    InconsistentTopicIdError        103  INCONSISTENT_TOPIC_ID            the directory belongs to another topic id
    LogDirLockedError                -1  UNKNOWN_SERVER_ERROR             another process holds the lock: the broker stops
    DuplicateLogError                -1  UNKNOWN_SERVER_ERROR             a partition in two directories: the broker stops
    AllLogDirsOfflineError           -1  UNKNOWN_SERVER_ERROR             every log directory is offline: the broker stops

`record_errors` lists the invalid records of a batch where Kafka lists them (KIP-467). kcli.protocol.error_codes has the same
numbers under Kafka's names: log/ and protocol/ do not import each other, so a test compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class RecordError(NamedTuple):
    """An invalid record: its index in the batch, from 0, and the reason."""

    batch_index: int
    message: str


class LogError(Exception):
    """A log refuses a request; `code` is Kafka's error code."""

    code = -1

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class OffsetOutOfRangeError(LogError):
    """The offset is outside of the log."""

    code = 1


class AppendError(LogError):
    """A log refuses records; nothing was written."""

    def __init__(self, message: str, record_errors: Sequence[RecordError] = ()) -> None:
        super().__init__(message)
        self.record_errors = record_errors


class CorruptMessageError(AppendError):
    """Kafka: CorruptRecordException."""

    code = 2


class MessageTooLargeError(AppendError):
    """Kafka: RecordTooLargeException."""

    code = 10


class RecordListTooLargeError(AppendError):
    """Kafka: RecordBatchTooLargeException."""

    code = 18


class InvalidTimestampError(AppendError):
    """Kafka: InvalidTimestampException."""

    code = 32


class UnsupportedMessageFormatError(AppendError):
    """Kafka: UnsupportedForMessageFormatException."""

    code = 43


class OutOfOrderSequenceError(AppendError):
    """Kafka: OutOfOrderSequenceException."""

    code = 45


class InvalidProducerEpochError(AppendError):
    """Kafka: InvalidProducerEpochException."""

    code = 47


class InvalidTransactionStateError(AppendError):
    """Kafka: InvalidTxnStateException."""

    code = 48


class CoordinatorFencedError(AppendError):
    """Kafka: TransactionCoordinatorFencedException."""

    code = 52


class UnknownProducerError(AppendError):
    """Kafka: UnknownProducerIdException."""

    code = 59


class UnsupportedCompressionError(AppendError):
    """Kafka: UnsupportedCompressionTypeException."""

    code = 76


class InvalidRecordsError(AppendError):
    """Kafka: InvalidRecordException."""

    code = 87


class UnreadableCompressionError(AppendError):
    """Kafka: a KafkaException, which has no error code of its own."""


class UnexpectedAppendOffsetError(AppendError):
    """Kafka: UnexpectedAppendOffsetException and OffsetsOutOfOrderException."""


class StorageError(Exception):
    """The log manager refuses an operation; `code` is Kafka's error code."""

    code = -1


class KafkaStorageError(StorageError):
    """The log directory is offline."""

    code = 56


class LogDirNotFoundError(StorageError):
    """The log directory is not in log.dirs."""

    code = 57


class InconsistentTopicIdError(StorageError):
    """The directory on disk belongs to another topic id."""

    code = 103


class InvalidTopicError(StorageError):
    """The topic's name is too long for the operation."""

    code = 17


class NotHostedError(StorageError):
    """This broker has no replica of the partition."""

    code = 6


class LogDirLockedError(StorageError):
    """Another process holds the lock of the log directory."""


class DuplicateLogError(StorageError):
    """Two log directories have a log of one partition."""


class AllLogDirsOfflineError(StorageError):
    """Every log directory is offline."""
