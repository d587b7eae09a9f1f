"""The notation in which Kafka's messages are declared, with one block for each message, and its parser.

    KIND NAME [key=API KEY OR RECORD TYPE] versions=VERSIONS [flexible=VERSIONS] [latest-unstable] [on=LISTENERS]
      FIELD TYPE [VERSIONS] [null=VERSIONS] [tag=N@VERSIONS] [default=VALUE] [key] [ignorable] [flexible=none]
        the fields of a struct, or of the elements of an array, indented by two more columns
      struct NAME
        the fields of a struct that several fields use

    word         meaning
    -----------  ---------------------------------------------------------------------------------------------------
    KIND         request, response, header, data, metadata (framed records), coordinator-key, coordinator-value
    VERSIONS     "3", "1-4", "2+" or "none"; a field without VERSIONS is in all versions of the message
    TYPE         bool int8 int16 uint16 int32 uint32 int64 float64 uuid string bytes records, a struct's name, or []T
    null         the versions in which the field may be null
    tag          the versions in which the field is a tagged field, which is not written if it has its default (KIP-482)
    default      the value of a field that is not written; if missing 0, "", an empty array or struct, or false
    key          the field is the key of a collection
    ignorable    a value is dropped in versions without the field; of other fields only the default can be written there
    flexible     the versions with compact strings, bytes and arrays, and with tagged fields at the end of structs;
                 flexible=none on a field keeps its old encoding (only ClientId of RequestHeader)
    unstable     latest-unstable: brokers offer the newest version only with unstable.api.versions.enable
    on           the listeners that serve a request: broker, controller (both options are read by kcli.protocol.apis)

A declaration is parsed into `Schema`, `Struct` and `Field`; kcli.protocol.source_generator and encoder_source generate Python
code from these for each version, when the version is first used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from kcli.format.kafka_uuid import ZERO_UUID

FIXED_SIZE_BYTES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
}
PRIMITIVE_TYPES = (*FIXED_SIZE_BYTES, "string", "bytes", "records")
_NEWEST = 32767  # versions are int16


class SchemaError(Exception):
    """A declaration that does not follow the notation: an error in the package, not in any input."""


class Versions(NamedTuple):
    """The versions from `lowest` to `highest`, both included."""

    lowest: int
    highest: int

    def has(self, version: int) -> bool:
        """Return True for a version within the range."""
        return self.lowest <= version <= self.highest

    @classmethod
    def parse(cls, text: str) -> Versions:
        """Parse "3", "1-4", "2+" or "none". Raises ValueError for any other text."""
        if text == "none":
            return NO_VERSIONS
        if text.endswith("+"):
            return cls(int(text[:-1]), _NEWEST)
        lowest, _, highest = text.partition("-")
        return cls(int(lowest), int(highest or lowest))


NO_VERSIONS = Versions(0, -1)
ALL_VERSIONS = Versions(0, _NEWEST)


class FieldType(NamedTuple):
    """A field's type: a primitive's name or a struct, or an array of those."""

    name: str
    struct: Struct | None
    is_array: bool

    @property
    def element(self) -> FieldType:
        """The type of an array's elements."""
        return FieldType(self.name, self.struct, False)

    @property
    def is_fixed(self) -> bool:
        """True if all values have the same number of bytes."""
        return not self.is_array and self.name in FIXED_SIZE_BYTES


class Field(NamedTuple):
    """One field of a struct.

    `name` is Kafka's name in lower camel case, as in JSON and error messages; `attribute` is the name in snake case.
    `default` is the value of a field that is not written: None is a valid default, [] is a new array, and a Struct is a new
    object of that struct.
    """

    name: str
    attribute: str
    type: FieldType
    versions: Versions
    nullable: Versions
    tag: int
    tagged: Versions
    default: Any
    is_key: bool
    is_ignorable: bool
    is_never_compact: bool


class Struct:
    """A named group of fields; equal by identity."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fields: tuple[Field, ...] = ()

    def __repr__(self) -> str:
        return f"<struct {self.name}>"


class Schema:
    """The declaration of one message; kcli.protocol.compiler generates its code.

    `key` is the API key or record type, or None; `root` has the fields of the message; `structs` has every struct by its
    name, the root included.
    """

    def __init__(self, kind: str, root: Struct, key: int | None, versions: Versions, flexible: Versions) -> None:
        self.kind = kind
        self.root = root
        self.key = key
        self.versions = versions
        self.flexible = flexible
        self.structs: dict[str, Struct] = {root.name: root}

    @property
    def name(self) -> str:
        """Kafka's name for the message."""
        return self.root.name

    def __repr__(self) -> str:
        return f"<schema {self.name}>"


def snake_case(name: str) -> str:
    """Convert Kafka's CamelCase name to an attribute: TopicId to topic_id, KRaftVersion to kraft_version."""
    out = name[0].lower()
    for before, letter in zip(name.replace("KRaft", "Kraft"), name.replace("KRaft", "Kraft")[1:]):
        out += f"_{letter.lower()}" if letter.isupper() and not before.isupper() else letter.lower()
    return out


class _Line(NamedTuple):
    number: int
    depth: int
    words: list[str]


class _Parser:
    """Reads the lines of one file; `position` is the index of the next line."""

    def __init__(self, text: str) -> None:
        self.lines = list(self._significant_lines(text))
        self.position = 0

    @staticmethod
    def _significant_lines(text: str) -> Iterator[_Line]:
        for number, line in enumerate(text.splitlines(), 1):
            stripped = line.strip()
            if stripped and not stripped.startswith("#"):
                yield _Line(number, (len(line) - len(line.lstrip())) // 2, stripped.split())

    def schemas(self) -> Iterator[Schema]:
        while self.position < len(self.lines):
            line = self.lines[self.position]
            try:
                yield self._message(line)
            except (ValueError, IndexError, KeyError) as error:
                at = self.lines[min(self.position, len(self.lines) - 1)]
                raise SchemaError(f"line {at.number}: {' '.join(at.words)}: {error!r}") from error

    def _message(self, line: _Line) -> Schema:
        kind, name, *options = line.words
        values = dict(option.partition("=")[::2] for option in options)
        schema = Schema(
            kind,
            Struct(name),
            int(values["key"]) if "key" in values else None,
            Versions.parse(values["versions"]),
            Versions.parse(values.get("flexible", "none")),
        )
        self.position += 1
        # A struct that several fields share is declared after them, so all structs are created before their fields.
        for later in self.lines[self.position :]:
            if later.depth == 0:
                break
            if later.words[0] == "struct":
                schema.structs[later.words[1]] = Struct(later.words[1])
        self._fields(schema, schema.root, 1)
        return schema

    def _fields(self, schema: Schema, struct: Struct, depth: int) -> None:
        """Read the lines with this depth as the fields of `struct`, and deeper lines as the fields of their structs."""
        fields = []
        while self.position < len(self.lines) and self.lines[self.position].depth == depth:
            words = self.lines[self.position].words
            self.position += 1
            if words[0] == "struct":
                self._fields(schema, schema.structs[words[1]], depth + 1)
                continue
            fields.append(_field(schema, words))
            if self.position < len(self.lines) and self.lines[self.position].depth > depth:
                nested = fields[-1].type.struct
                if nested is None or nested.fields:
                    raise ValueError("only a struct's first field may declare fields")
                self._fields(schema, nested, depth + 1)
        struct.fields = tuple(fields)


def _field(schema: Schema, words: list[str]) -> Field:
    name, type_name, *options = words
    versions = Versions.parse(options.pop(0)) if options and options[0][0].isdigit() else ALL_VERSIONS
    values = dict(option.partition("=")[::2] for option in options)
    tag, _, tagged = values.get("tag", "-1@none").partition("@")
    field_type = _type(schema, type_name)
    return Field(
        name=name[0].lower() + name[1:],
        attribute=snake_case(name),
        type=field_type,
        versions=versions,
        nullable=Versions.parse(values.get("null", "none")),
        tag=int(tag),
        tagged=Versions.parse(tagged),
        default=_default(field_type, values.get("default")),
        is_key="key" in values,
        is_ignorable="ignorable" in values,
        is_never_compact=values.get("flexible") == "none",
    )


def _type(schema: Schema, name: str) -> FieldType:
    element = name.removeprefix("[]")
    struct = None
    if element not in PRIMITIVE_TYPES:
        struct = schema.structs.setdefault(element, Struct(element))
    return FieldType(element, struct, element != name)


def _default(field_type: FieldType, text: str | None) -> Any:
    """Return the default of a field; `text` is the default in the declaration, if any."""
    if text == "null" or (field_type.name == "records" and not field_type.is_array):
        return None
    if field_type.is_array:
        return []
    if field_type.struct is not None:
        return field_type.struct
    empty: dict[str, Any] = {"string": "", "bytes": b"", "bool": False, "float64": 0.0, "uuid": ZERO_UUID}
    if text is None:
        return empty.get(field_type.name, 0)
    if field_type.name == "string":
        return text.strip('"')
    if field_type.name == "bool":
        return text == "true"
    return float(text) if field_type.name == "float64" else int(text, 0)


def parse_schemas(text: str) -> list[Schema]:
    """Parse declarations. Raises SchemaError with the line that does not follow the notation."""
    return list(_Parser(text).schemas())
