"""Messages as JSON objects, as Kafka's generated JsonConverter classes write them.

in a message             in JSON
-----------------------  ------------------------------------------------------------------------------------
a field                  its name in lower camel case, in the order of the declaration; null as null
a field that is not in   left out, and so is a tagged field with its default
  the version
bytes, uuid              base64, base64url without padding
records                  "" (Kafka hides the contents)
float64                  Java's Double.toString; infinite values and NaN as strings
unknown tagged fields    left out
"""

from __future__ import annotations

import binascii
from functools import cache
from typing import Any

from kcli.format.kafka_uuid import Uuid
from kcli.protocol.message import Message
from kcli.protocol.schema import Field, FieldType, Struct

JsonValue = Any  # dict, list, str, int, float, bool or None


def to_dict(message: Message, version: int | None = None) -> dict[str, JsonValue]:
    """Return a message as a JSON object, in `version`, or in its `schema_version`."""
    return _struct_to_dict(message, message.schema_version if version is None else version)


def _struct_to_dict(message: Message, version: int) -> dict[str, JsonValue]:
    out = {}
    for field, is_tagged in _fields_of(message.STRUCT, version):
        value = getattr(message, field.attribute)
        if not is_tagged or not is_default(field, value):
            out[field.name] = _value_to_json(field.type, value, version)
    return out


@cache
def _fields_of(struct: Struct, version: int) -> tuple[tuple[Field, bool], ...]:
    """Return the fields of a struct in a version, each with True if it is a tagged field."""
    return tuple((field, field.tagged.has(version)) for field in struct.fields if field.versions.has(version))


def is_default(field: Field, value: Any) -> bool:
    """Return True if a field has its default."""
    if not isinstance(field.default, Struct):
        return bool(value == field.default)
    return (
        value is not None
        and not value.unknown_tagged_fields
        and all(is_default(inner, getattr(value, inner.attribute)) for inner in field.default.fields)
    )


def _value_to_json(kind: FieldType, value: Any, version: int) -> JsonValue:
    if value is None:
        return None
    if kind.is_array:
        element = kind.element
        return [_value_to_json(element, item, version) for item in value]
    if kind.struct is not None:
        return _struct_to_dict(value, version)
    if kind.name == "bytes":
        return binascii.b2a_base64(value, newline=False).decode("ascii")
    if kind.name == "uuid":
        return str(Uuid(value))
    if kind.name == "float64":
        return float(value)
    return "" if kind.name == "records" else value
