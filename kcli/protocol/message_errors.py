"""The errors of messages: invalid bytes, values or versions."""

from __future__ import annotations

from kcli.format.primitives import FormatError


class MessageError(FormatError):
    """A message that cannot be read or written."""


class DecodeError(MessageError):
    """Bytes that cannot be decoded.

    `java_message` is the message of Kafka's exception for the same bytes, which kafka-dump-log prints. It is "null" if the
    exception has none (a read past the end of a buffer).
    """

    def __init__(self, message: str, position: int | None = None, java_message: str | None = None) -> None:
        super().__init__(message, position)
        self.java_message = message if java_message is None else java_message


class EncodeError(MessageError):
    """Values that the version cannot represent."""


class NotInVersionError(EncodeError):
    """Values that other versions of the message can represent."""


class UnsupportedVersionError(MessageError):
    """A version that the message does not have."""


class UnknownRecordTypeError(DecodeError):
    """A record with an unknown type; `record_type` is its number."""

    def __init__(self, record_type: int) -> None:
        super().__init__(f"no record of this topic has type {record_type}")
        self.record_type = record_type


class MissingKeyError(DecodeError):
    """A record without a key in a topic whose records all have keys; kafka-dump-log stops with an exception."""
