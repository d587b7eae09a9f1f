"""From a declaration to working code: the classes of a message, and its decoder and encoder for each version.

Everything is made when it is first asked for and kept: the classes once, a codec once for each version. The generated
source can be read: `MessageType.decoder_source(version)`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from kcli.format.java_text import decode_utf8
from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.format.primitives import Buffer, write_unsigned_varint
from kcli.protocol import codec_support
from kcli.protocol.decoder_source import DecoderSource, packer_name
from kcli.protocol.encoder_source import EncoderSource
from kcli.protocol.errors import EncodeError, UnsupportedVersionError
from kcli.protocol.message import Message, build_class
from kcli.protocol.schema import Schema, Struct

Decode = Callable[[Buffer, int, int], tuple[Message, int]]
Encode = Callable[[bytearray, Message], None]

# The names that generated code may use, besides its own classes, functions and packers.
_SCOPE: dict[str, Any] = {
    "new": object.__new__,
    "unpack_from": struct.unpack_from,
    "pack": struct.pack,
    "decode_utf8": decode_utf8,
    "Uuid": Uuid,
    "ZERO_UUID": ZERO_UUID,
    "write_unsigned_varint": write_unsigned_varint,
    **{name: value for name, value in vars(codec_support).items() if callable(value)},
}


class MessageType:
    """One message of the protocol: its `schema`, its Python classes, its codecs."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.name = schema.name
        self.key = schema.key
        self.newest_version = schema.versions.highest
        self._classes: dict[str, type[Message]] | None = None
        self._decoders: dict[int, Decode] = {}
        self._encoders: dict[int, Encode] = {}

    def __repr__(self) -> str:
        return f"<message type {self.name}>"

    @property
    def classes(self) -> dict[str, type[Message]]:
        """The class of each struct, by Kafka's name; the message's own is among them."""
        if self._classes is None:
            classes: dict[str, Any] = {"ZERO_UUID": ZERO_UUID}
            for nested in _inner_first(self.schema):
                is_root = nested is self.schema.root
                classes[nested.name] = build_class(nested, classes, self.newest_version, is_root)
            del classes["ZERO_UUID"]
            self._classes = classes
        return self._classes

    def new(self, **fields: Any) -> Message:
        """A message of the newest version, or of `schema_version`; fields that are not named have their defaults."""
        return self.classes[self.name](**fields)

    def decode(self, data: Buffer, version: int, position: int = 0) -> tuple[Message, int]:
        """Decode the message that begins at data[position] -> (message, position behind it).

        Bytes behind it are for the caller to judge. Raises DecodeError, and UnsupportedVersionError for a version that
        the message does not have.
        """
        decode = self._decoders.get(version) or self._compile_decoder(version)
        try:
            message, position = decode(data, position, len(data))
        except (struct.error, IndexError):
            raise codec_support.past_the_end(self.name, len(data)) from None
        message.schema_version = version
        return message, position

    def encode(self, message: Message, version: int | None = None) -> bytes:
        """The message as bytes, in `version` or in its own `schema_version`.

        Raises EncodeError for values that the version cannot carry, and UnsupportedVersionError.
        """
        out = bytearray()
        version = message.schema_version if version is None else version
        encode = self._encoders.get(version) or self._compile_encoder(version)
        try:
            encode(out, message)
        except (struct.error, TypeError, AttributeError, OverflowError) as error:
            raise EncodeError(f"{self.name} version {version} cannot carry these values: {error}") from error
        return bytes(out)

    def decoder_source(self, version: int) -> str:
        """The generated source of the decoder. Raises UnsupportedVersionError."""
        self._check(version)
        return DecoderSource(self.schema, version).text()

    def encoder_source(self, version: int) -> str:
        """The generated source of the encoder. Raises UnsupportedVersionError."""
        self._check(version)
        return EncoderSource(self.schema, version).text()

    def _check(self, version: int) -> None:
        if not self.schema.versions.has(version):
            lowest, highest = self.schema.versions
            raise UnsupportedVersionError(f"{self.name} has the versions {lowest} to {highest}, not {version}")

    def _compile_decoder(self, version: int) -> Decode:
        self._check(version)
        source = DecoderSource(self.schema, version)
        scope = self._run(source.text(), "decoder", version)
        for codes in source.formats:
            scope[f"unpack_{packer_name(codes)}"] = struct.Struct(f">{codes}").unpack_from
        decode: Decode = scope[f"decode_{self.name}"]
        self._decoders[version] = decode
        return decode

    def _compile_encoder(self, version: int) -> Encode:
        self._check(version)
        source = EncoderSource(self.schema, version)
        scope = self._run(source.text(), "encoder", version)
        for codes in source.formats:
            scope[f"pack_{packer_name(codes)}"] = struct.Struct(f">{codes}").pack
        encode: Encode = scope[f"encode_{self.name}"]
        self._encoders[version] = encode
        return encode

    def _run(self, source: str, what: str, version: int) -> dict[str, Any]:
        scope = _SCOPE | self.classes
        exec(compile(source, f"<{what} of {self.name} version {version}>", "exec"), scope)
        return scope


def _inner_first(schema: Schema) -> list[Struct]:
    """The structs of a schema, each behind those that its fields name."""
    order: list[Struct] = []

    def visit(nested: Struct) -> None:
        for field in nested.fields:
            if field.type.struct is not None and field.type.struct not in order:
                visit(field.type.struct)
        order.append(nested)

    visit(schema.root)
    return order
