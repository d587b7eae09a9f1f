"""Protects the notation of the declarations: what each word means, and that a declaration which breaks it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcli.protocol.compiler import MessageType
from kcli.protocol.message_types import message_types
from kcli.protocol.schema import NO_VERSIONS, SchemaError, Versions, parse_schemas, snake_case
from tests.protocol.messages import FILES

WHOLE_NOTATION = Path(__file__).resolve().parents[2].parent / "shared" / "protocol-schemas.txt"


def test_versions_are_ranges() -> None:
    assert Versions.parse("3") == (3, 3)
    assert Versions.parse("1-4") == (1, 4)
    assert Versions.parse("2+").has(9) and not Versions.parse("2+").has(1)
    assert Versions.parse("none") == NO_VERSIONS and not NO_VERSIONS.has(0)


@pytest.mark.parametrize(
    ("name", "attribute"),
    [
        ("TopicId", "topic_id"),
        ("commitTimestamp", "commit_timestamp"),
        ("KRaftVersion", "kraft_version"),
        ("KRaftVersionFeature", "kraft_version_feature"),
        ("LastKnownElr", "last_known_elr"),
        ("group", "group"),
    ],
)
def test_names_become_attributes(name: str, attribute: str) -> None:
    assert snake_case(name) == attribute


def test_every_word_of_a_field_is_read() -> None:
    (schema,) = parse_schemas(
        """
# a comment
request Sample key=7 versions=0-5 flexible=2+ latest-unstable on=broker,controller
  Names []string 1-3 null=2+ tag=4@2-3 default=null key ignorable
  Old string flexible=none default="a"
  Limit int32 default=0x7fffffff
  Parts []Part 1+
    Id uuid
  Other Part
  struct Shared
    Ratio float64 default=1.5
  More []Shared
"""
    )
    assert (schema.kind, schema.name, schema.key, schema.versions, schema.flexible.has(5)) == (
        "request",
        "Sample",
        7,
        (0, 5),
        True,
    )
    names, old, limit, parts, other, more = schema.root.fields
    assert (names.versions, names.nullable.lowest, names.tag, names.tagged) == ((1, 3), 2, 4, (2, 3))
    assert names.default is None and names.is_key and names.is_ignorable
    assert old.is_never_compact and old.default == "a"
    assert limit.default == 2**31 - 1
    assert parts.type.is_array and parts.type.struct is other.type.struct
    assert more.type.struct is not None and more.type.struct.fields[0].default == 1.5


@pytest.mark.parametrize(
    "text",
    [
        "data Sample versions=0\n  Id",
        "data Sample",
        "data Sample versions=x",
        "data Sample versions=0\n  Id int32 default=x",
        "data Sample versions=0\n  Id int32\n    Deeper int32",
    ],
)
def test_a_broken_declaration_is_named(text: str) -> None:
    with pytest.raises(SchemaError, match=r"line [123]"):
        parse_schemas(text)


def test_a_struct_that_nothing_declares_is_an_empty_one_and_every_shipped_struct_has_fields() -> None:
    empty = {"EndTransactionRecord", "NoOpRecord"}
    for file in FILES:
        for found in message_types(file).values():
            for struct in found.schema.structs.values():
                assert struct.fields or struct.name in empty, (found, struct)


def test_record_types_and_tags_are_there_once() -> None:
    for file in FILES:
        keys = [(found.schema.kind, found.key) for found in message_types(file).values() if found.key is not None]
        assert len(keys) == len(set(keys))
        for found in message_types(file).values():
            for struct in found.schema.structs.values():
                tags = [field.tag for field in struct.fields if field.tag >= 0]
                assert len(tags) == len(set(tags))


@pytest.mark.skipif(not WHOLE_NOTATION.exists(), reason="../shared/protocol-schemas.txt is missing")
def test_every_message_of_the_wire_compiles_in_every_version() -> None:
    schemas = parse_schemas(WHOLE_NOTATION.read_text())
    assert len(schemas) > 270
    for schema in schemas:
        found = MessageType(schema)
        for version in range(schema.versions.lowest, schema.versions.highest + 1):
            message = found.new(schema_version=version)
            assert found.decode(found.encode(message), version)[0] == message
