"""Random messages of any declaration and version, for Hypothesis and, from a seed, for the Java judge."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from kcli.format.kafka_uuid import Uuid
from kcli.protocol.compiler import MessageType
from kcli.protocol.message import Message
from kcli.protocol.message_types import message_types
from kcli.protocol.schema import Field, FieldType, Struct
from tests.conftest import ROOT

# The names of the files that declare records: messages/NAME.txt.
FILES = sorted(path.stem for path in (ROOT / "kcli" / "protocol" / "messages").glob("*_records.txt"))
ALL_TYPES = [found for file in FILES for found in message_types(file).values()]
ALL_VERSIONS = [
    (found, version) for found in ALL_TYPES for version in range(found.schema.versions.lowest, found.newest_version + 1)
]
INTEGER_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


def version_id(value: Any) -> str:
    return value.name if isinstance(value, MessageType) else str(value)


def _integers(kind: str) -> st.SearchStrategy[int]:
    if kind.startswith("u"):
        return st.integers(0, 2 ** int(kind.removeprefix("uint")) - 1)
    bits = INTEGER_BITS[kind]
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _values(found: MessageType, kind: FieldType, version: int) -> st.SearchStrategy[Any]:
    if kind.is_array:
        return st.lists(_values(found, kind.element, version), max_size=3)
    if kind.struct is not None:
        return messages(found, version, kind.struct)
    plain: dict[str, st.SearchStrategy[Any]] = {
        "string": st.text(max_size=12) | st.text("ab", min_size=120, max_size=140),
        "bytes": st.binary(max_size=12) | st.binary(min_size=127, max_size=130),
        "records": st.none() | st.binary(max_size=20),
        "bool": st.booleans(),
        "uuid": st.binary(min_size=16, max_size=16).map(Uuid),
        "float64": st.floats(allow_nan=False),
    }
    return plain[kind.name] if kind.name in plain else _integers(kind.name)


def _field_values(found: MessageType, field: Field, version: int) -> st.SearchStrategy[Any]:
    values = _values(found, field.type, version)
    if field.nullable.has(version):
        values = st.none() | values
    if field.tagged.has(version) and not isinstance(field.default, Struct):
        values = st.just(field.default) | values
    return values


@st.composite
def messages(draw: st.DrawFn, found: MessageType, version: int, struct: Struct | None = None) -> Message:
    """A message, or one of its structs, with any values that the version can carry."""
    of = found.schema.root if struct is None else struct
    fields = {field.attribute: draw(_field_values(found, field, version)) for field in of.fields if field.versions.has(version)}
    if found.schema.flexible.has(version) and draw(st.integers(0, 4)) == 0:
        known = {field.tag for field in of.fields}
        tags = draw(st.lists(st.integers(0, 300).filter(lambda tag: tag not in known), max_size=2, unique=True))
        fields["unknown_tagged_fields"] = tuple((tag, draw(st.binary(max_size=5))) for tag in sorted(tags))
    message = found.classes[of.name](**fields)
    if struct is None:
        message.schema_version = version
    return message


def same(left: Any, right: Any) -> bool:
    """Equality in which NaN equals itself."""
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return bool(left == right)
