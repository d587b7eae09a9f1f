"""Finds the field because of which a message cannot be encoded, for the error message.

The generated encoders do not check types and ranges: struct does, and its errors do not name a field.

    value of a field                            type                          error
    ------------------------------------------  ----------------------------  ----------------------------------
    null                                        nullable in another version   NotInVersionError
    null, of another type, or out of its range  any                           EncodeError
"""

from __future__ import annotations

import struct
from collections.abc import Sized
from typing import Any

from kcli.protocol.decoder_source import STRUCT_CODES
from kcli.protocol.message import Message
from kcli.protocol.message_errors import EncodeError, NotInVersionError
from kcli.protocol.schema import FIXED_SIZE_BYTES, NO_VERSIONS, Field, FieldType, Schema, Struct

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
