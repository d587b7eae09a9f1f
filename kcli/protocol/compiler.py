"""Generates the classes of a message, and its decoder, encoder and JSON printer for each version, from the declaration.

Classes and functions are generated when they are first used, and cached: the classes once, a function for each version.
`MessageType.source("decode", version)` returns the generated source.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from kcli.format.java_text import decode_utf8, json_text, quote
from kcli.format.kafka_uuid import ZERO_UUID
from kcli.format.primitives import Buffer, write_unsigned_varint
from kcli.protocol import codec_support
from kcli.protocol.decoder_source import DecoderSource, Source, packer_name
from kcli.protocol.encoder_source import EncoderSource
from kcli.protocol.field_check import unencodable
from kcli.protocol.json_source import JsonSource
from kcli.protocol.message import Message, build_class, build_shared_default, has_shared_default
from kcli.protocol.message_errors import EncodeError, UnsupportedVersionError
from kcli.protocol.schema import Schema, Struct

_SOURCES: dict[str, Callable[[Schema, int], Source]] = {
    "decode": DecoderSource,
    "decode_counted": partial(DecoderSource, is_counted=True),
    "encode": EncoderSource,
    "json": JsonSource,
}
# The names that generated code may use, in addition to its own classes, functions and packers.
_SCOPE: dict[str, Any] = {
    "new": object.__new__,
    "decode_utf8": decode_utf8,
    "write_unsigned_varint": write_unsigned_varint,
    "quote": quote,
    "json_text": json_text,
    "interned_uuid": codec_support.interned_uuid,
    "interned_text": codec_support.interned_text,
    **{f"pack_list_{code}": packers for code, packers in codec_support.LIST_PACKERS.items()},
    **{f"pack_counted_list_{code}": packers for code, packers in codec_support.COUNTED_LIST_PACKERS.items()},
    **{f"unpack_list_{code}": unpackers for code, unpackers in codec_support.LIST_UNPACKERS.items()},
    "ZERO_UUID": ZERO_UUID,
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
        # The default values that messages share, by their names in generated code.
        self._defaults: dict[str, Any] = {"ZERO_UUID": ZERO_UUID}
        self._functions: dict[tuple[str, int], Callable[..., Any]] = {}
        self._budget = codec_support.ElementBudget()

    def __repr__(self) -> str:
        return f"<message type {self.name}>"

    @property
    def classes(self) -> dict[str, type[Message]]:
        """The classes of all structs by Kafka's names, including the class of the message."""
        if self._classes is None:
            classes: dict[str, Any] = {}
            for nested in _inner_first(self.schema):
                is_root = nested is self.schema.root
                made = build_class(nested, classes | self._defaults, self.newest_version, is_root)
                classes[nested.name] = made
                if not is_root and has_shared_default(nested):
                    self._defaults[f"DEFAULT_{nested.name}"] = build_shared_default(made)
            self._classes = classes
        return self._classes

    def new(self, **fields: Any) -> Message:
        """Create a message of the newest version, or of `schema_version`; missing fields have their defaults."""
        return self.classes[self.name](**fields)

    def decode(self, data: Buffer, version: int, position: int = 0) -> tuple[Message, int]:
        """Decode the message at data[position]; return it and the position after it. Bytes after it are not checked.

        Raises DecodeError, also for too many elements, and UnsupportedVersionError for a version that does not exist.
        """
        what = "decode" if len(data) <= codec_support.MAX_MESSAGE_ELEMENTS else "decode_counted"
        decode = self._functions.get((what, version)) or self._compile(what, version)
        self._budget.left = codec_support.MAX_MESSAGE_ELEMENTS
        message: Message
        try:
            message, position = decode(data, position, len(data))
        except (struct.error, IndexError):
            raise codec_support.past_the_end(self.name, len(data)) from None
        message.schema_version = version
        return message, position

    def encode(self, message: Message, version: int | None = None) -> bytes:
        """Encode the message in `version`, or in its `schema_version`.

        Raises EncodeError for values that the version cannot represent, and UnsupportedVersionError.
        """
        out = bytearray()
        self.encode_into(out, message, message.schema_version if version is None else version)
        return bytes(out)

    def encode_into(self, out: bytearray, message: Message, version: int) -> None:
        """Append the message to `out`. Raises as `encode` does."""
        encode = self._functions.get(("encode", version)) or self._compile("encode", version)
        try:
            encode(out, message)
        except EncodeError:
            raise
        except (struct.error, TypeError, AttributeError, OverflowError, ValueError) as error:
            raise unencodable(self.schema, message, version, error) from error

    def json(self, message: Message, version: int | None = None) -> str:
        """Return the message as JSON as Kafka prints it, in `version`, or in its `schema_version`.

        Raises UnsupportedVersionError.
        """
        version = message.schema_version if version is None else version
        text: str = (self._functions.get(("json", version)) or self._compile("json", version))(message)
        return text

    def source(self, what: str, version: int) -> str:
        """Return the generated source of "decode", "encode" or "json" in a version. Raises UnsupportedVersionError."""
        return self._generate(what, version).text()

    def _generate(self, what: str, version: int) -> Source:
        if not self.schema.versions.has(version):
            lowest, highest = self.schema.versions
            raise UnsupportedVersionError(f"{self.name} has no version {version}, only {lowest} to {highest}")
        return _SOURCES[what](self.schema, version)

    def _compile(self, what: str, version: int) -> Callable[..., Any]:
        generated = self._generate(what, version)
        scope = _SCOPE | self.classes | self._defaults | {"spend": self._budget.spend}
        for codes in generated.formats:
            packer = struct.Struct(f">{codes}")
            scope[f"unpack_{packer_name(codes)}"] = packer.unpack_from
            scope[f"pack_{packer_name(codes)}"] = packer.pack
        exec(compile(generated.text(), f"<{what} {self.name} version {version}>", "exec"), scope)
        function: Callable[..., Any] = scope[f"{what.removesuffix('_counted')}_{self.name}"]
        self._functions[what, version] = function
        return function


def _inner_first(schema: Schema) -> list[Struct]:
    """Return the structs of a schema, each after the structs of its fields."""
    order: list[Struct] = []

    def visit(nested: Struct) -> None:
        for field in nested.fields:
            if field.type.struct is not None and field.type.struct not in order:
                visit(field.type.struct)
        order.append(nested)

    visit(schema.root)
    return order
