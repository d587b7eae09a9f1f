"""What can be wrong with a message: its bytes, its values, or its version."""

from __future__ import annotations

from kcli.format.primitives import FormatError


class MessageError(FormatError):
    """A message that cannot be read or written."""


class DecodeError(MessageError):
    """Bytes that are not the message they should be.

    `java_message` is what Kafka's own exception says about the same bytes; its dump tool prints that text. It is "null"
    where Java's has none (a read past the end of a buffer).
    """

    def __init__(self, message: str, position: int | None = None, java_message: str | None = None) -> None:
        super().__init__(message, position)
        self.java_message = message if java_message is None else java_message


class EncodeError(MessageError):
    """Values that the version asked for cannot carry."""


class UnsupportedVersionError(MessageError):
    """A version that the message does not have."""


class UnknownRecordTypeError(DecodeError):
    """A record of a type that no schema names; `record_type` is its number."""

    def __init__(self, record_type: int) -> None:
        super().__init__(f"no record of this topic has type {record_type}")
        self.record_type = record_type


class MissingKeyError(DecodeError):
    """A record without the key that every record of its topic has; Kafka's dump tool dies of it."""
