"""Generates the classes of a message, and its decoder, encoder and JSON printer for each version, from the declaration.

Classes and functions are generated when they are first used, and cached: the classes once, a function for each version.
`MessageType.source("decode", version)` returns the generated source.

`unencodable` finds the field because of which a message cannot be encoded, for the error message. The generated encoders do not
check types and ranges: struct does, and its errors do not name a field.

    value of a field                            type                          error
    ------------------------------------------  ----------------------------  ----------------------------------
    null                                        nullable in another version   NotInVersionError
    null, of another type, or out of its range  any                           EncodeError
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sized
from functools import partial
from typing import Any

from kcli.format.java_text import decode_utf8, json_text, quote
from kcli.format.kafka_uuid import ZERO_UUID
from kcli.format.primitives import Buffer, write_unsigned_varint
from kcli.protocol import codec_support
from kcli.protocol.message import Message, build_class, build_shared_default, has_shared_default
from kcli.protocol.message_errors import EncodeError, NotInVersionError, UnsupportedVersionError
from kcli.protocol.schema import FIXED_SIZE_BYTES, NO_VERSIONS, Field, FieldType, Schema, Struct
from kcli.protocol.source_generator import STRUCT_CODES, DecoderSource, EncoderSource, JsonSource, Source, packer_name

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


_MISSING = object()


def unencodable(schema: Schema, message: Message, version: int, error: Exception) -> EncodeError:
    """Return the error for a message whose encoder raised `error`."""
    what = f"{schema.name} version {version}"
    found = _bad_field(schema.root, message, version, "")
    if found is None:
        return EncodeError(f"{what} cannot represent these values: {error}")
    kind, text = found
    return kind(f"{what}: field {text}")


_Found = tuple[type[EncodeError], str]


def _bad_field(declared: Struct, value: object, version: int, path: str) -> _Found | None:
    for field in declared.fields:
        if field.versions.has(version):
            found = _bad_value(field, field.type, getattr(value, field.attribute, _MISSING), version, f"{path}{field.name}")
            if found is not None:
                return found
    return None


def _bad_value(field: Field, kind: FieldType, value: Any, version: int, path: str) -> _Found | None:
    """Return what is wrong with a value, None if nothing is."""
    if value is None:
        if field.nullable.has(version) and kind == field.type:
            return None
        is_elsewhere = field.nullable != NO_VERSIONS and kind == field.type
        return NotInVersionError if is_elsewhere else EncodeError, f"{path} must not be null"
    if kind.is_array:
        if not isinstance(value, (list, tuple)):
            return EncodeError, f"{path} must be a list, not {value!r}"
        for index, one in enumerate(value):
            found = _bad_value(field, kind.element, one, version, f"{path}[{index}]")
            if found is not None:
                return found
        return None
    if kind.struct is not None:
        if not isinstance(value, Message) or value.STRUCT is not kind.struct:
            return EncodeError, f"{path} must be a {kind.name}, not {value!r}"
        return _bad_field(kind.struct, value, version, f"{path}.")
    return None if _fits(kind, value) else (EncodeError, f"{path} must be of type {kind.name}, not {value!r}")


def _fits(kind: FieldType, value: object) -> bool:
    """Return whether the encoder takes a value of a primitive type."""
    if kind.name == "string":
        return isinstance(value, str)
    if kind.name == "uuid":
        return isinstance(value, bytes) and len(value) == FIXED_SIZE_BYTES["uuid"]
    if kind.name == "records":
        return isinstance(value, Sized)
    if kind.name == "bytes":
        return isinstance(value, (bytes, bytearray, memoryview))
    try:
        struct.pack(f">{STRUCT_CODES[kind.name]}", value)
    except struct.error:
        return False
    return True
