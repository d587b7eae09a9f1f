"""Decoded keys and values: of internal topics, of control records, and by decoders of the command line.

    records of                                      key and value become
    ----------------------------------------------  ----------------------------------------------------------
    an internal topic (by the directory's name)     {"name": message, "version": N, "data": {...}} each
    a control batch                                 one such object, with the type of the control record as its name
    --key-decoder-class and --value-decoder-class   the texts that the decoders return

If bytes cannot be decoded, they are shown as they are, with a sentence that says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

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
