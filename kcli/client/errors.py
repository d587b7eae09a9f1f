"""Errors of a client, by the names of Kafka's exceptions (-Exception becomes -Error).

error                  when
---------------------  ------------------------------------------------------------------------------------------
KafkaError             a broker answered with an error code
KafkaTimeoutError      a call did not end in its time (max.block.ms, default.api.timeout.ms, delivery.timeout.ms)
DisconnectedError      the connection ended before the answer
AuthenticationError    TLS or SASL does not let the client use a broker: correct what the message says
UnsupportedVersionError  the broker has no version of an API that a call needs
RequestEncodingError   a value that the protocol cannot represent; nothing is sent
RecordTooLargeError    a record is above max.request.size or buffer.memory; it is not sent
SerializationError     a serializer refused a key or value; it is not sent
InvalidRecordError     a record that no batch takes, such as one with a negative timestamp
ProducerClosedError    a record is appended after close()
TransactionAbortableError  the transaction has failed: abort_transaction(), then another one may begin
TransactionAbortedError  a record was not sent, since its transaction was aborted
TransactionFatalError  the producer cannot be used any more: close it, and correct what the message says
ProducerFencedError    the same, since another producer has the transactional id
InvalidPartitionError  a partitioner returned a partition that does not exist
CommitFailedError      offsets of partitions that another member may have now; they are not committed
RebalanceListenerError a rebalance listener of the application raised an error
IllegalStateError      a call that the state of the client forbids
FetchedRecordError     a fetched record that cannot be read; the caller can seek past it
ConfigError            a setting that does not exist, or a value that it cannot have

`is_retriable` says whether the same call may succeed later.
"""

from __future__ import annotations

from collections.abc import Mapping

from kcli.protocol import error_codes


class ClientError(Exception):
    """An error that the client reports to its caller; the message is one sentence."""

    is_retriable = False


class KafkaError(ClientError):
    """An error code of a broker; the message is Kafka's name of it, and what the broker wrote or what was asked."""

    def __init__(self, code: int, detail: str | None = None) -> None:
        self.code = code
        self.name = error_codes.NAMES.get(code, f"error code {code}")
        super().__init__(f"{self.name}: {detail}" if detail else self.name)

    @property
    def is_retriable(self) -> bool:  # type: ignore[override]
        """Whether Kafka calls the error retriable."""
        return self.code in error_codes.RETRIABLE


class KafkaTimeoutError(ClientError):
    """A call that did not end in its time (Kafka: TimeoutException)."""

    is_retriable = True


class DisconnectedError(ClientError):
    """A request whose connection ended before its answer (Kafka: DisconnectException)."""

    is_retriable = True


class AuthenticationError(ClientError):
    """A broker that TLS or SASL does not let the client use (Kafka: SaslAuthenticationException, SslAuthenticationException).

    The message names the address, the reason and the setting. The client goes on to connect, so that a later call may succeed.
    """


class UnsupportedVersionError(ClientError):
    """An API that the broker does not have in a version that the call needs (Kafka: UnsupportedVersionException)."""


class RequestEncodingError(ClientError, ValueError):
    """A request with a value that the protocol cannot represent; the message names the field."""


class RecordTooLargeError(ClientError):
    """A record that is larger than max.request.size or buffer.memory (Kafka: RecordTooLargeException)."""


class SerializationError(ClientError):
    """A key or value that its serializer refused (Kafka: SerializationException)."""


class InvalidRecordError(ClientError, ValueError):
    """A record that no batch takes."""


class ProducerClosedError(ClientError):
    """A record that was appended after the producer was closed."""


class TransactionAbortableError(ClientError):
    """A transaction that can only be aborted (KIP-1050; Kafka: TransactionAbortableException)."""


class TransactionAbortedError(ClientError):
    """A record that was not sent, since its transaction was aborted (Kafka: TransactionAbortedException)."""


class TransactionFatalError(ClientError):
    """An error after which a producer can only be closed."""


class ProducerFencedError(TransactionFatalError):
    """A producer whose transactional id another one has taken over (Kafka: ProducerFencedException)."""


class InvalidPartitionError(ClientError, ValueError):
    """A partition, returned by a partitioner, that does not exist."""


class IllegalStateError(ClientError):
    """A call that the state of the client forbids (Kafka: IllegalStateException)."""


class ConfigError(ClientError, ValueError):
    """A setting that does not exist, or a value that it cannot have (Kafka: ConfigException)."""


class CommitFailedError(ClientError):
    """Offsets of partitions that the member may not have any more (Kafka: CommitFailedException)."""


class RebalanceListenerError(ClientError):
    """What a method of the rebalance listener raised; it is the cause of this error."""


class FetchedRecordError(ClientError):
    """A fetched record, or the batch around it, that cannot be read.

    It is raised again by each poll until the caller seeks past it: to `next_offset`, the first offset after what is damaged.
    """

    def __init__(self, topic: str, partition: int, offset: int, next_offset: int, reason: str) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.next_offset = next_offset
        super().__init__(f"{topic}-{partition}@{offset}: {reason}; to continue without it, seek to offset {next_offset}")


class RecordDeserializationError(FetchedRecordError):
    """A record whose key or value a deserializer refused; `__cause__` is what it raised."""


class OffsetOutOfRangeError(ClientError):
    """Positions that the partitions' logs do not have, of a consumer without auto.offset.reset; `offsets` has them."""

    def __init__(self, offsets: Mapping[tuple[str, int], int]) -> None:
        self.offsets = dict(offsets)
        named = ", ".join(f"{topic}-{partition}@{offset}" for (topic, partition), offset in sorted(offsets.items()))
        super().__init__(f"the logs do not have the offsets {named} and auto.offset.reset is none: seek to another offset")


class LogTruncationError(OffsetOutOfRangeError):
    """Positions behind the end of a leader's log that lost records (KIP-320), of a consumer without auto.offset.reset."""

    def __init__(self, offsets: Mapping[tuple[str, int], int], diverging_offsets: Mapping[tuple[str, int], int]) -> None:
        super().__init__(offsets)
        self.diverging_offsets = dict(diverging_offsets)


class TopicRecreatedError(OffsetOutOfRangeError):
    """Positions in a topic that was deleted and created again, of a consumer without auto.offset.reset."""

    def __init__(self, offsets: Mapping[tuple[str, int], int]) -> None:
        super().__init__(offsets)
        named = ", ".join(f"{topic}-{partition}@{offset}" for (topic, partition), offset in sorted(offsets.items()))
        self.args = (
            f"the topic of {named} was deleted and created again and auto.offset.reset is none: seek to another offset",
        )


class WakeupError(ClientError):
    """A call that another thread ended by `wakeup` (Kafka: WakeupException)."""


def as_client_error(error: Exception) -> ClientError:
    """Return the error with which a send ends that `error` ended."""
    if isinstance(error, ClientError):
        return error
    is_plain = isinstance(error, (TypeError, ValueError))
    failure = InvalidRecordError(str(error) if is_plain else f"{type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
