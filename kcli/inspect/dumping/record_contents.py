"""Decoded keys and values: of internal topics, of control records, and by decoders of the command line.

    records of                                      key and value become
    ----------------------------------------------  ----------------------------------------------------------
    an internal topic (by the directory's name)     {"name": message, "version": N, "data": {...}} each
    a control batch                                 one such object, with the type of the control record as its name
    --key-decoder-class and --value-decoder-class   the texts that the decoders return

If bytes cannot be decoded, they are shown as they are, with a sentence that says why.

Decoders have names: the four of Kafka, and the user's own as `package.module:callable`.

    org.apache.kafka.tools.api.StringDecoder    UTF-8; invalid bytes are replaced as Java replaces them
    org.apache.kafka.tools.api.IntegerDecoder   int32, big-endian; bytes after it are ignored
    org.apache.kafka.tools.api.LongDecoder      int64, likewise
    org.apache.kafka.tools.api.DefaultDecoder   the bytes, here in hex; Kafka prints the identity of a Java array
    (in Kafka 4.2 and before: kafka.serializer.StringDecoder ...)

The user's own decoder is called with bytes; the str() of what it returns is printed. If it raises, the record is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kcli.format.java_text import decode_utf8
from kcli.format.primitives import FormatError

if TYPE_CHECKING:
    from kcli.inspect.dumping.kafka_text import ContentParser
    from kcli.inspect.json_text import JsonValue
    from kcli.protocol.internal_records import Decoder
    from kcli.protocol.message import Message


class Contents(NamedTuple):
    """A decoded record: JSON values or None; `error` is a sentence if the bytes could not be decoded."""

    key: JsonValue = None
    value: JsonValue = None
    error: str | None = None


class ContentDecoder(Protocol):
    """Decodes records of one file."""

    def decode(self, offset: int, key: bytes | None, value: bytes | None) -> Contents:
        """Decode a record. Raises nothing for bad bytes."""
        ...


class TopicDecoder:
    """Decodes records of an internal topic."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def decode(self, offset: int, key: bytes | None, value: bytes | None) -> Contents:
        """See ContentDecoder.decode."""
        try:
            key_message, value_message = self._decoder.decode(key, value)
        except FormatError as error:
            return Contents(error=error.message)
        return Contents(self._shown(key_message), self._shown(value_message))

    def _shown(self, message: Message | None) -> JsonValue:
        if message is None:
            return None
        return {"name": message.STRUCT.name, "version": message.schema_version, "data": self._decoder.to_dict(message)}


class TextDecoder:
    """Decodes records with the decoders that the command line names."""

    def __init__(self, parser: ContentParser) -> None:
        self._parser = parser

    def decode(self, offset: int, key: bytes | None, value: bytes | None) -> Contents:
        """See ContentDecoder.decode."""
        try:
            return Contents(*self._parser.describe(offset, key, value))
        except FormatError as error:
            return Contents(error=error.message)


def decode_control(key: bytes | None, value: bytes | None) -> Contents:
    """Decode a control record; its contents are in `value`."""
    from kcli.protocol.control_records import decode_control_record
    from kcli.protocol.json_values import to_dict

    try:
        record = decode_control_record(key, value)
    except FormatError as error:
        return Contents(error=error.message)
    shown: dict[str, JsonValue] = {"name": record.name, "type": record.type_id}
    if record.message is not None:
        shown["data"] = to_dict(record.message)
    return Contents(value=shown)


def decoder_for(topic: str | None, parser: ContentParser | None) -> ContentDecoder | None:
    """Return the decoder for the records of a file: `parser` if there is one, else that of the topic, None for other topics."""
    if parser is not None:
        from kcli.protocol.internal_records import Decoder

        return TopicDecoder(parser) if isinstance(parser, Decoder) else TextDecoder(parser)
    if topic is None or not topic.startswith("__"):
        return None
    from kcli.protocol.internal_records import decoder_for_topic

    decoder = decoder_for_topic(topic)
    return None if decoder is None else TopicDecoder(decoder)


Decode = Callable[[bytes], object]


class UnknownDecoder(ValueError):
    """A decoder that does not exist or cannot be loaded; the message is a sentence for the user."""


def _decode_integer(size: int, name: str) -> Decode:
    def decode(data: bytes) -> int:
        if len(data) < size:
            raise FormatError(f"{name} needs {size} bytes, and there are {len(data)}")
        return int.from_bytes(data[:size], "big", signed=True)

    return decode


KAFKA_DECODERS: dict[str, Decode] = {
    "StringDecoder": decode_utf8,
    "IntegerDecoder": _decode_integer(4, "IntegerDecoder"),
    "LongDecoder": _decode_integer(8, "LongDecoder"),
    "DefaultDecoder": bytes.hex,
}
KAFKA_PACKAGES = ("org.apache.kafka.tools.api.", "kafka.serializer.", "")


def find_decoder(name: str) -> Decode:
    """Return the decoder called `name`. Raises UnknownDecoder, whose message names the known decoders."""
    for package in KAFKA_PACKAGES:
        known = KAFKA_DECODERS.get(name.removeprefix(package)) if name.startswith(package) else None
        if known is not None:
            return known
    module_name, colon, attribute = name.partition(":")
    if not colon:
        names = ", ".join(KAFKA_DECODERS)
        raise UnknownDecoder(
            f"{name}: kcli runs no Java classes; it knows {names} of org.apache.kafka.tools.api, "
            "and your own in Python as package.module:callable"
        )
    import importlib

    try:
        found: object = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
        if isinstance(found, type):
            found = found()
    except (ImportError, AttributeError, ValueError) as error:
        raise UnknownDecoder(f"{name}: cannot be loaded: {error}") from error
    except Exception as error:  # the user's module may raise any exception when it is imported
        raise UnknownDecoder(f"{name}: cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise UnknownDecoder(f"{name}: is not callable")
    return found


class ClassParser:
    """A ContentParser of two decoders, for the key and for the value. Raises UnknownDecoder."""

    def __init__(self, key_decoder: str, value_decoder: str) -> None:
        self._key = find_decoder(key_decoder)
        self._value = find_decoder(value_decoder)

    def describe(self, offset: int, key: bytes | None, value: bytes | None) -> tuple[str | None, str | None]:
        """Return key and value as text, None for null. Raises FormatError if a decoder fails."""
        return self._text(self._key, key, offset), self._text(self._value, value, offset)

    def describe_unreadable(self, offset: int, key: bytes | None, java_message: str) -> tuple[str | None, str | None]:
        """Raise FormatError: decoders do not get a record whose value cannot be read."""
        raise FormatError(f"offset {offset}: the value cannot be read: {java_message}")

    @staticmethod
    def _text(decode: Decode, data: bytes | None, offset: int) -> str | None:
        if data is None:
            return None
        try:
            return str(decode(data))
        except FormatError as error:
            raise FormatError(f"offset {offset}: {error.message}") from None
        except Exception as error:
            raise FormatError(f"offset {offset}: the decoder failed: {type(error).__name__}: {error}") from error
