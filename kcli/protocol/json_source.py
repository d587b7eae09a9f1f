"""Generates the Python source that prints a message as JSON, for one version: to_dict and json_text in one step.

For each struct there is a function `json_NAME(m) -> str`, which is six times as fast as printing the dict of
kcli.protocol.json_values; this matters when a whole topic is dumped. kcli.protocol.json_values describes the JSON; tests
check that both give the same. Every member is printed with a comma before it, and the first comma is cut off, because
tagged fields with their defaults are left out.
"""

from __future__ import annotations

from kcli.protocol.decoder_source import Source
from kcli.protocol.encoder_source import is_set_source
from kcli.protocol.schema import Field, FieldType, Schema, Struct

_PLAIN = {
    "string": "quote({})",
    "bytes": "quoted_base64({})",
    "uuid": "f'\"{{{}}}\"'",
    "bool": "('true' if {} else 'false')",
    "float64": "json_text(float({}))",
    "records": "'\"\"'",
}


class JsonSource(Source):
    """The JSON printer of `schema` in `version`."""

    def __init__(self, schema: Schema, version: int) -> None:
        super().__init__()
        self.version = version
        for struct in schema.structs.values():
            self._struct(struct)

    def _struct(self, struct: Struct) -> None:
        self.add(f"def json_{struct.name}(m):", '    return "{" + "".join((')
        self.depth = 2
        for field in struct.fields:
            if field.versions.has(self.version):
                self._field(field)
        self.depth = 0
        self.add('    ))[1:] + "}"', "")

    def _field(self, field: Field) -> None:
        value = f"m.{field.attribute}"
        text = _text(field.type, value)
        if field.nullable.has(self.version) or field.default is None:
            text = f'("null" if {value} is None else {text})'
        name = repr(f',"{field.name}":')
        if field.tagged.has(self.version):
            self.add(f"{name} + {text} if {is_set_source(field)} else '',")
        else:
            self.add(f"{name}, {text},")


def _text(kind: FieldType, value: str) -> str:
    """Return the expression, in generated code, for the JSON of a value that is not null."""
    if kind.is_array:
        inner = kind.element
        printer = f"json_{inner.name}" if inner.struct is not None else "str"
        if inner.name in _PLAIN:
            printer = f"lambda item: {_text(inner, 'item')}"
        return f'"[" + ",".join(map({printer}, {value})) + "]"'
    if kind.struct is not None:
        return f"json_{kind.name}({value})"
    return _PLAIN.get(kind.name, "str({})").format(value)
