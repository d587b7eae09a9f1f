"""Generates the Python source of the encoder of a message for one version: the inverse of kcli.protocol.decoder_source.

For each struct there is a function `encode_NAME(out, m)` that appends to a bytearray. It raises an error for values that the
version cannot represent: null in a field that is not nullable, and a value in a field that the version does not have, unless
it is the default or ignorable. struct raises errors for values of a wrong type or out of range; the caller converts them.
"""

from __future__ import annotations

from kcli.protocol.decoder_source import STRUCT_CODES, Source, packer_name
from kcli.protocol.message import default_source
from kcli.protocol.schema import Field, FieldType, Schema, Struct


class EncoderSource(Source):
    """The encoder of `schema` in `version`."""

    def __init__(self, schema: Schema, version: int) -> None:
        super().__init__()
        self.version = version
        self.is_flexible = schema.flexible.has(version)
        for struct in schema.structs.values():
            self._struct(struct)

    def _struct(self, struct: Struct) -> None:
        self.add(f"def encode_{struct.name}(out, m):")
        self.depth += 1
        run: list[Field] = []
        for field in struct.fields:
            if not field.versions.has(self.version):
                self._refuse_loss(field)
            elif not field.tagged.has(self.version):
                if field.type.is_fixed:
                    run.append(field)
                    continue
                self._write_run(run)
                run = []
                self._write(field, field.type, f"m.{field.attribute}")
        self._write_run(run)
        self._tagged_fields(struct)
        self.add("")
        self.depth -= 1

    def _refuse_loss(self, field: Field) -> None:
        if not field.is_ignorable:
            self.add(f"if {is_set_source(field)}:", f"    raise not_in_version({field.name!r}, {self.version})")

    def _write_run(self, run: list[Field]) -> None:
        if run:
            codes = "".join(STRUCT_CODES[field.type.name] for field in run)
            self.formats.add(codes)
            values = ", ".join(_fixed_value(field, f"m.{field.attribute}") for field in run)
            self.add(f"out += pack_{packer_name(codes)}({values})")

    def _write(self, field: Field, kind: FieldType, value: str, out: str = "out", is_element: bool = False) -> None:
        """Append the value of the expression `value`, of type `kind`, to the bytearray `out`."""
        is_compact = self.is_flexible and not field.is_never_compact
        is_nullable = field.nullable.has(self.version) and not is_element
        if kind.is_fixed:
            codes = STRUCT_CODES[kind.name]
            self.formats.add(codes)
            self.add(f"{out} += pack_{packer_name(codes)}({_fixed_value(field, value)})")
            return
        if kind.struct is not None and not kind.is_array:
            self._write_struct(field, kind.struct, value, out, is_nullable)
            return
        is_wide = kind.is_array or kind.name != "string"
        if is_nullable:
            null = "b'\\0'" if is_compact else "b'\\xff\\xff\\xff\\xff'" if is_wide else "b'\\xff\\xff'"
            self.add(f"if {value} is None:", f"    {out} += {null}", "else:")
            self.depth += 1
        if kind.is_array and is_compact and kind.element.is_fixed and kind.name != "uuid":
            code = packer_name(STRUCT_CODES[kind.name])
            self.add(f"n = len({value}) + 1", "if n == 1:", f"    {out}.append(1)")
            self.add("elif n < 128:", f"    {out} += pack_counted_list_{code}[n - 1](n, *{value})")
            self.add("else:", f"    {out} += write_unsigned_varint(n) + pack_list_{code}[n - 1](*{value})")
        elif kind.is_array:
            self._write_length(f"len({value})", out, is_compact, is_wide)
            self._write_array(field, kind.element, value, out)
        elif kind.name == "string":
            self.add(f"raw = encode_string({value}, {field.name!r})")
            self._write_length("len(raw)", out, is_compact, is_wide)
            self.add(f"{out} += raw")
        else:
            self._write_length(f"len({value})", out, is_compact, is_wide)
            self.add(f"put_records({out}, {value})" if kind.name == "records" else f"{out} += {value}")
        if is_nullable:
            self.depth -= 1

    def _write_length(self, length: str, out: str, is_compact: bool, is_wide: bool) -> None:
        if is_compact:
            self.add(f"n = {length} + 1")
            self.add("if n < 128:", f"    {out}.append(n)", "elif n < 16384:", f"    {out}.append(n & 127 | 128)")
            self.add(f"    {out}.append(n >> 7)", "else:", f"    {out} += write_length(n)")
            return
        codes = "i" if is_wide else "h"
        self.formats.add(codes)
        self.add(f"{out} += pack_{codes}({length})")

    def _write_array(self, field: Field, element: FieldType, value: str, out: str) -> None:
        if element.is_fixed and element.name != "uuid":
            self.add(f"{out} += pack_list_{packer_name(STRUCT_CODES[element.name])}[len({value})](*{value})")
            return
        self.add(f"for item in {value}:")
        self.depth += 1
        self._write(field, element, "item", out, is_element=True)
        self.depth -= 1

    def _write_struct(self, field: Field, struct: Struct, value: str, out: str, is_nullable: bool) -> None:
        write = f"encode_{struct.name}({out}, {value})"
        if not is_nullable:
            self.add(write)
            return
        null = "0" if field.tagged.has(self.version) else "255"
        self.add(f"if {value} is None:", f"    {out}.append({null})", "else:", f"    {out}.append(1)", f"    {write}")

    def _tagged_fields(self, struct: Struct) -> None:
        if not self.is_flexible:
            self.add("if m.unknown_tagged_fields:", f"    raise no_tags_in_version({self.version})")
            return
        tagged = [field for field in struct.fields if field.tagged.has(self.version) and field.versions.has(self.version)]
        if not tagged:
            self.add("if m.unknown_tagged_fields:", "    write_tagged_fields(out, [], m.unknown_tagged_fields)")
            self.add("else:", "    out.append(0)")
            return
        self.add(f"if {' or '.join([*map(is_set_source, tagged), 'm.unknown_tagged_fields'])}:")
        self.depth += 1
        self.add("known = []")
        for field in tagged:
            self.add(f"if {is_set_source(field)}:")
            self.depth += 1
            self.add("part = bytearray()")
            self._write(field, field.type, f"m.{field.attribute}", "part")
            self.add(f"known.append(({field.tag}, part))")
            self.depth -= 1
        self.add("write_tagged_fields(out, known, m.unknown_tagged_fields)")
        self.depth -= 1
        self.add("else:", "    out.append(0)")


def _fixed_value(field: Field, value: str) -> str:
    return f"encode_uuid({value}, {field.name!r})" if field.type.name == "uuid" else value


def is_set_source(field: Field) -> str:
    """Return the condition, in generated code, that a field does not have its default."""
    value, default = f"m.{field.attribute}", default_source(field)
    if default == "None":
        return f"{value} is not None"
    if default in ("[]", "''", "b''"):
        return f"{value} is None or len({value})"
    if default.startswith("DEFAULT_"):
        return f"({value} is not {default} and {value} != {default})"
    return f"{value} != {default}"
