"""Random messages of the wire protocol from a seed: every field that the version has, at its edges as often as within."""

from __future__ import annotations

from random import Random
from typing import Any

from kcli.format.kafka_uuid import ZERO_UUID, Uuid
from kcli.protocol.apis import API_KEYS, Api
from kcli.protocol.compiler import MessageType
from kcli.protocol.error_codes import NAMES
from kcli.protocol.message import Message
from kcli.protocol.schema import Field, FieldType, Struct

APIS = list(API_KEYS.values())
# (api, "request" or "response", version) of everything there is.
EVERY_FORM = [
    (api, side, version)
    for api in APIS
    for side in ("request", "response")
    for version in range(api.lowest_version, api.highest_version + 1)
]
# What came with Kafka 4.4, by API key: the first version that peers of an earlier release do not read.
SINCE_KAFKA_4_4 = {18: 5, 28: 6, 42: 3, 88: 1, 89: 1, 93: 0, 94: 0}
EARLIER_FORMS = [form for form in EVERY_FORM if form[2] < SINCE_KAFKA_4_4.get(form[0].key, 1000)]
INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
ERROR_CODES = sorted(code for code in NAMES if code < 134)  # those of Kafka 4.3
TEXTS = ("", "a", "topic-1", "é😀", "x" * 126, "y" * 127, "z" * 128, "w" * 300)
BLOBS = (b"", b"\0", b"\xff" * 126, b"b" * 127, b"c" * 128, bytes(range(256)) * 2)
# Where a compact length takes one byte more.
EDGE_SIZES = (126, 127, 16382, 16383, 2**21 - 2, 2**21 - 1)


def form_id(value: Any) -> str:
    """How a test calls a form or a part of it."""
    return value.name if isinstance(value, Api) else str(value)


def message_type(api: Api, side: str) -> MessageType:
    """The request or the response of an API."""
    return api.request if side == "request" else api.response


class RandomMessages:
    """Makes messages of one type; a `gentle` one keeps to values that kio has Python types for."""

    def __init__(self, rng: Random, *, gentle: bool = False, unknown_tags: bool = False) -> None:
        self.rng = rng
        self.gentle = gentle
        self.unknown_tags = unknown_tags

    def message(self, found: MessageType, version: int) -> Message:
        """A whole message that `version` can carry."""
        message = self._struct(found, found.schema.root, version)
        message.schema_version = version
        return message

    def _struct(self, found: MessageType, struct: Struct, version: int) -> Message:
        fields = {field.attribute: self._field(found, field, version) for field in struct.fields if field.versions.has(version)}
        if self.unknown_tags and found.schema.flexible.has(version) and self.rng.random() < 0.3:
            known = {field.tag for field in struct.fields}
            tags = sorted({self.rng.choice((3, 9, 100, 127, 128, 5000)) for _ in range(2)} - known)
            fields["unknown_tagged_fields"] = tuple((tag, self.rng.choice(BLOBS)) for tag in tags)
        return found.classes[struct.name](**fields)

    def _field(self, found: MessageType, field: Field, version: int) -> Any:
        if field.nullable.has(version) and self.rng.random() < 0.25:
            return None
        is_plain_default = not isinstance(field.default, Struct) and (field.default is not None or field.nullable.has(version))
        if is_plain_default and self.rng.random() < (0.5 if field.tagged.has(version) else 0.1):
            return list(field.default) if isinstance(field.default, list) else field.default
        return self._value(found, field, field.type, version)

    def _value(self, found: MessageType, field: Field, kind: FieldType, version: int) -> Any:
        rng = self.rng
        if kind.is_array:
            count = rng.choice((0, 1, 1, 2, 3)) if kind.struct or rng.random() < 0.9 else 130
            return [self._value(found, field, kind.element, version) for _ in range(count)]
        if kind.struct is not None:
            return self._struct(found, kind.struct, version)
        if kind.name == "string":
            return rng.choice(TEXTS)
        if kind.name in ("bytes", "records"):
            return rng.choice(BLOBS)
        if kind.name == "bool":
            return rng.random() < 0.5
        if kind.name == "uuid":
            return ZERO_UUID if rng.random() < 0.2 else Uuid(rng.randbytes(16))
        if kind.name == "float64":
            return rng.choice((0.0, -1.5, 1e300, 5e-324))
        return self._integer(field, kind.name)

    def _integer(self, field: Field, kind: str) -> int:
        if kind == "int16" and "error" in field.name.lower() and self.gentle:
            return self.rng.choice(ERROR_CODES)
        if kind.startswith("u"):
            highest = 2 ** int(kind.removeprefix("uint")) - 1
            return self.rng.choice((0, 1, highest, self.rng.randint(0, highest)))
        half = 2 ** (INTEGER_BITS[kind] - 1)
        if self.gentle and kind == "int64":
            return self.rng.choice((0, 1, 127, 2**31, self.rng.randint(0, 2**40)))
        return self.rng.choice((0, 1, -1, 127, -half, half - 1, self.rng.randint(-half, half - 1)))


def random_bytes(rng: Random, api: Api, side: str, version: int, **options: bool) -> tuple[Message, bytes]:
    """A random message of a form, and its bytes."""
    found = message_type(api, side)
    message = RandomMessages(rng, **options).message(found, version)
    return message, found.encode(message)
