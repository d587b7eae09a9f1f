"""Why a log refuses records: one class an answer that a client gets, with Kafka's code of it.

    class                          code  Kafka's name                     when
    -----------------------------  ----  -------------------------------  ------------------------------------------------
    OffsetOutOfRangeError             1  OFFSET_OUT_OF_RANGE              a read outside of [log start, log end]
    CorruptMessageError               2  CORRUPT_MESSAGE                  size, magic or CRC of a batch is wrong
    MessageTooLargeError             10  MESSAGE_TOO_LARGE                a batch above max.message.bytes, or a bomb
    RecordListTooLargeError          18  RECORD_LIST_TOO_LARGE            more than a segment holds
    InvalidTimestampError            32  INVALID_TIMESTAMP                outside message.timestamp.before/after.max.ms
    UnsupportedMessageFormatError    43  UNSUPPORTED_FOR_MESSAGE_FORMAT   a batch of format 0 or 1, which 4.x does not write
    OutOfOrderSequenceError          45  OUT_OF_ORDER_SEQUENCE_NUMBER     a gap in a producer's sequence
    InvalidProducerEpochError        47  INVALID_PRODUCER_EPOCH           an epoch below the producer's last one
    InvalidTransactionStateError     48  INVALID_TXN_STATE                not transactional while a transaction is open
    CoordinatorFencedError           52  TRANSACTION_COORDINATOR_FENCED   a marker of an older coordinator
    UnknownProducerError             59  UNKNOWN_PRODUCER_ID              a marker or read of a producer not known
    UnsupportedCompressionError      76  UNSUPPORTED_COMPRESSION_TYPE     a codec that does not exist
    InvalidRecordsError              87  INVALID_RECORD                   counts, offsets, control batches, null keys ...
    UnreadableCompressionError       -1  UNKNOWN_SERVER_ERROR             compressed bytes that do not inflate
    UnexpectedAppendOffsetError      -1  UNKNOWN_SERVER_ERROR             a follower's records do not continue its log

`record_errors` name single records of the batch, where Kafka does (KIP-467). kcli.protocol.error_codes has the same
numbers under Kafka's names; log/ and protocol/ do not import each other, and a test pins them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class RecordError(NamedTuple):
    """What is wrong with one record: its place in the batch, from 0, and a sentence."""

    batch_index: int
    message: str


class LogError(Exception):
    """A request that a log refuses; `code` is what Kafka answers."""

    code = -1

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class OffsetOutOfRangeError(LogError):
    """A read of an offset that the log does not have."""

    code = 1


class AppendError(LogError):
    """Records that a log does not take; nothing of them was written."""

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
    """Kafka: a plain KafkaException, for which it has no code of its own."""


class UnexpectedAppendOffsetError(AppendError):
    """Kafka: UnexpectedAppendOffsetException and OffsetsOutOfOrderException."""
