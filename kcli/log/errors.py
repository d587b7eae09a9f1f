"""Errors of logs and of the log manager, each with Kafka's error code for the client.

A docstring begins with Kafka's name of the code. UNKNOWN_SERVER_ERROR, -1, is the code of errors for which Kafka has none.
kcli.protocol.error_codes has the same numbers under Kafka's names: log/ and protocol/ do not import each other, so a test
compares the two.
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
    """OFFSET_OUT_OF_RANGE: a read outside of [log start, log end]."""

    code = 1


class AppendError(LogError):
    """A log refuses records; nothing was written. `record_errors` are those that Kafka lists, too (KIP-467)."""

    def __init__(self, message: str, record_errors: Sequence[RecordError] = ()) -> None:
        super().__init__(message)
        self.record_errors = record_errors


class CorruptMessageError(AppendError):
    """CORRUPT_MESSAGE: size, magic or CRC of a batch is wrong."""

    code = 2


class MessageTooLargeError(AppendError):
    """MESSAGE_TOO_LARGE: a batch above max.message.bytes, or one whose records are too large when decompressed."""

    code = 10


class RecordListTooLargeError(AppendError):
    """RECORD_LIST_TOO_LARGE: an append of more bytes than segment.bytes."""

    code = 18


class InvalidTimestampError(AppendError):
    """INVALID_TIMESTAMP: a timestamp outside message.timestamp.before/after.max.ms."""

    code = 32


class UnsupportedMessageFormatError(AppendError):
    """UNSUPPORTED_FOR_MESSAGE_FORMAT: a batch of magic 0 or 1, which Kafka 4.x does not write."""

    code = 43


class OutOfOrderSequenceError(AppendError):
    """OUT_OF_ORDER_SEQUENCE_NUMBER: a gap in a producer's sequence."""

    code = 45


class InvalidProducerEpochError(AppendError):
    """INVALID_PRODUCER_EPOCH: an epoch below the producer's."""

    code = 47


class InvalidTransactionStateError(AppendError):
    """INVALID_TXN_STATE: a batch outside of the producer's open transaction."""

    code = 48


class CoordinatorFencedError(AppendError):
    """TRANSACTION_COORDINATOR_FENCED: a marker of an earlier transaction coordinator."""

    code = 52


class UnsupportedCompressionError(AppendError):
    """UNSUPPORTED_COMPRESSION_TYPE: a codec that does not exist."""

    code = 76


class InvalidRecordsError(AppendError):
    """INVALID_RECORD: wrong counts or offsets, a client's control batch, a missing key and the like."""

    code = 87


class NotOneBatchError(InvalidRecordsError):
    """INVALID_RECORD: not exactly one complete batch of magic 2, which Kafka refuses before it looks for the log."""


class UnreadableCompressionError(AppendError):
    """UNKNOWN_SERVER_ERROR: compressed records that cannot be decompressed."""


class UnexpectedAppendOffsetError(AppendError):
    """UNKNOWN_SERVER_ERROR: a follower's records begin below its log end."""


class StorageError(Exception):
    """The log manager refuses an operation; `code` is Kafka's error code."""

    code = -1


class KafkaStorageError(StorageError):
    """KAFKA_STORAGE_ERROR: the partition's log directory is offline."""

    code = 56


class LogDirNotFoundError(StorageError):
    """LOG_DIR_NOT_FOUND: the named log directory is not in log.dirs."""

    code = 57


class InconsistentTopicIdError(StorageError):
    """INCONSISTENT_TOPIC_ID: the directory belongs to another topic id."""

    code = 103


class InvalidTopicError(StorageError):
    """INVALID_TOPIC_EXCEPTION: the name is too long for a future log's directory."""

    code = 17


class NotHostedError(StorageError):
    """NOT_LEADER_OR_FOLLOWER: this broker has no replica of the partition (yet)."""

    code = 6


class LogDirLockedError(StorageError):
    """UNKNOWN_SERVER_ERROR: another process holds the lock: the broker stops."""


class DuplicateLogError(StorageError):
    """UNKNOWN_SERVER_ERROR: a partition in two directories: the broker stops."""


class PartitionMetadataError(StorageError):
    """UNKNOWN_SERVER_ERROR: the partition.metadata of a log with records cannot be read: the broker stops."""


class UnknownTopicsError(StorageError):
    """UNKNOWN_SERVER_ERROR: the metadata log has none of the topics in the log directories: the broker stops."""


class TieredStorageError(StorageError):
    """UNKNOWN_SERVER_ERROR: topics have records in remote storage, which is not served: the broker stops."""


class AllLogDirsOfflineError(StorageError):
    """UNKNOWN_SERVER_ERROR: every log directory is offline: the broker stops."""
