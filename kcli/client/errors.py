"""Errors of a client, by the names of Kafka's exceptions (-Exception becomes -Error).

error                  when
---------------------  ------------------------------------------------------------------------------------------
KafkaError             a broker answered with an error code
KafkaTimeoutError      a call did not end in its time (max.block.ms, default.api.timeout.ms, delivery.timeout.ms)
DisconnectedError      the connection ended before the answer
UnsupportedVersionError  the broker has no version of an API that a call needs
RecordTooLargeError    a record is above max.request.size or buffer.memory; it is not sent
ProducerClosedError    a record is appended after close()
InvalidPartitionError  a partitioner returned a partition that does not exist
IllegalStateError      a call that the state of the client forbids
ConfigError            a setting that does not exist, or a value that it cannot have

`is_retriable` says whether the same call may succeed later.
"""

from __future__ import annotations

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


class UnsupportedVersionError(ClientError):
    """An API that the broker does not have in a version that the call needs (Kafka: UnsupportedVersionException)."""


class RecordTooLargeError(ClientError):
    """A record that is larger than max.request.size or buffer.memory (Kafka: RecordTooLargeException)."""


class ProducerClosedError(ClientError):
    """A record that was appended after the producer was closed."""


class InvalidPartitionError(ClientError, ValueError):
    """A partition, returned by a partitioner, that does not exist."""


class IllegalStateError(ClientError):
    """A call that the state of the client forbids (Kafka: IllegalStateException)."""


class ConfigError(ClientError, ValueError):
    """A setting that does not exist, or a value that it cannot have (Kafka: ConfigException)."""
