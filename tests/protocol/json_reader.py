"""Reads the JSON that kcli.protocol.json_values and Kafka write back into messages, for tests of the way there and back."""

from __future__ import annotations

import binascii
from typing import Any

from kcli.format.kafka_uuid import Uuid
from kcli.protocol.compiler import MessageType
from kcli.protocol.message import Message
from kcli.protocol.schema import Field, FieldType, Struct


def from_dict(message_type: MessageType, version: int, value: Any) -> Message:
    """The message of a JSON object; a tagged field that it lacks has its default."""
    message = _struct(message_type, message_type.schema.root, version, value)
    message.schema_version = version
    return message


def _struct(message_type: MessageType, struct: Struct, version: int, value: Any) -> Message:
    fields = {
        field.attribute: _value(message_type, field, field.type, version, value[field.name])
        for field in struct.fields
        if field.versions.has(version) and (field.name in value or not field.tagged.has(version))
    }
    return message_type.classes[struct.name](**fields)


def _value(message_type: MessageType, field: Field, kind: FieldType, version: int, value: Any) -> Any:
    if value is None:
        assert field.nullable.has(version) or kind.name == "records"
        return None
    if kind.is_array:
        return [_value(message_type, field, kind.element, version, item) for item in value]
    if kind.struct is not None:
        return _struct(message_type, kind.struct, version, value)
    if kind.name in ("bytes", "records"):
        return binascii.a2b_base64(value.encode("ascii"), strict_mode=True)
    if kind.name == "uuid":
        return Uuid.parse(value)
    return float(value) if kind.name == "float64" else value
