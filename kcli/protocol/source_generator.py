"""Generates the Python source of the decoder, the encoder and the JSON printer of a message for one version.

Decoder: for each struct there is a function `decode_NAME(data, at, end) -> (object, position after it)`, with straight-line
code for its fields: whether a field exists in the version, is nullable, compact or tagged is decided here, not at run time.
Adjacent fields of fixed size are read by one call of struct. For PartitionRecord in version 0, the source begins with:

    def decode_PartitionRecord(data, at, end):
        m = new(PartitionRecord)
        m.partition_id, m.topic_id = unpack_i16s(data, at)
        m.topic_id = interned_uuid(m.topic_id)
        at += 20
        n = data[at] - 1
        at += 1
        if n > 126:
            n += (data[at] << 7) - 128
            at += 1
            if n > 16382:
                n, at = read_length(data, at - 2)
        ...

The objects of many small elements in a large message could fill the memory. For large messages there is another
decoder, which counts the elements (kcli.protocol.codec_support.ElementBudget).

As in Kafka's readers, the stated size of a known tagged field is not used (the field has its own length), the last one of
duplicate tags is taken, and text that is not UTF-8 gets replacement characters.

Encoder, the inverse: for each struct there is a function `encode_NAME(out, m)` that appends to a bytearray. It raises an error
for values that the version cannot represent: null in a field that is not nullable, and a value in a field that the version does
not have, unless it is the default or ignorable. struct raises errors for values of a wrong type or out of range; the caller
converts them.

JSON printer: for each struct there is a function `json_NAME(m) -> str`, to_dict and json_text in one step. It is six times as
fast as printing the dict of kcli.protocol.json_values, which matters when a whole topic is dumped. kcli.protocol.json_values
describes the JSON; tests check that both give the same. Every member is printed with a comma before it, and the first comma is
cut off, because tagged fields with their defaults are left out.
"""

from __future__ import annotations

from kcli.protocol.codec_support import MAX_INTERNED_BYTES
from kcli.protocol.message import default_source
from kcli.protocol.schema import FIXED_SIZE_BYTES, Field, FieldType, Schema, Struct

STRUCT_CODES = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
# The names of string fields that have the same few values in many requests.
_REPEATED_NAMES = ("name", "topic", "topicName")


class Source:
    """Lines of Python source; `depth` is the indentation of the next one.

    `formats` collects the struct codes for which the lines use packers and unpackers.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0
        self.formats: set[str] = set()

    def add(self, *lines: str) -> None:
        """Append lines at the present depth; their own indentation is kept."""
        self.lines += ["    " * self.depth + line for line in lines]

    def text(self) -> str:
        """Return all lines as one source."""
        return "\n".join(self.lines) + "\n"


class DecoderSource(Source):
    """The decoder of `schema` in `version`; a counted one calls `spend` with the number of elements before it creates them."""

    def __init__(self, schema: Schema, version: int, *, is_counted: bool = False) -> None:
        super().__init__()
        self.is_counted = is_counted
        self.version = version
        self.is_flexible = schema.flexible.has(version)
        self.root_name = schema.name
        self.has_records = any(field.type.name == "records" for nested in schema.structs.values() for field in nested.fields)
        for struct in schema.structs.values():
            self._struct(struct)

    def _struct(self, struct: Struct) -> None:
        self.add(f"def decode_{struct.name}(data, at, end):")
        self.depth += 1
        if self.has_records and struct.name == self.root_name:
            self.add("if type(data) is not memoryview:", "    data = memoryview(data)")
        self.add(f"m = new({struct.name})")
        present = [field for field in struct.fields if self._is_plain(field)]
        for field in struct.fields:
            if not self._is_plain(field):
                self.add(f"m.{field.attribute} = {default_source(field)}")
        while present:
            run = self._fixed_run(present)
            if run:
                self._read_run(run)
            else:
                self._read(present[0], present[0].type, f"m.{present[0].attribute}")
            present = present[max(len(run), 1) :]
        if self.is_flexible:
            self._tagged_fields(struct)
        else:
            self.add("m.unknown_tagged_fields = ()")
        self.add("return m, at", "")
        self.depth -= 1

    def _is_plain(self, field: Field) -> bool:
        return field.versions.has(self.version) and not field.tagged.has(self.version)

    @staticmethod
    def _fixed_run(fields: list[Field]) -> list[Field]:
        """Return the fields at the head of the list that one call of struct can read."""
        run = []
        for field in fields:
            if not field.type.is_fixed:
                break
            run.append(field)
        return run

    def _read_run(self, run: list[Field]) -> None:
        codes = "".join(STRUCT_CODES[field.type.name] for field in run)
        self.formats.add(codes)
        targets = ", ".join(f"m.{field.attribute}" for field in run)
        self.add(f"{targets}{',' if len(run) == 1 else ''} = unpack_{packer_name(codes)}(data, at)")
        for field in run:
            if field.type.name == "uuid":
                self.add(f"m.{field.attribute} = interned_uuid(m.{field.attribute})")
        self.add(f"at += {sum(FIXED_SIZE_BYTES[field.type.name] for field in run)}")

    def _read(self, field: Field, kind: FieldType, target: str, is_element: bool = False) -> None:
        """Read one value of type `kind` into `target`."""
        is_compact = self.is_flexible and not field.is_never_compact
        is_nullable = field.nullable.has(self.version) and not is_element
        name = f"{field.name} element" if is_element else field.name
        if kind.is_fixed:
            codes = STRUCT_CODES[kind.name]
            self.formats.add(codes)
            self.add(f"{target}, = unpack_{packer_name(codes)}(data, at)", f"at += {FIXED_SIZE_BYTES[kind.name]}")
            if kind.name == "uuid":
                self.add(f"{target} = interned_uuid({target})")
            return
        if kind.struct is not None and not kind.is_array:
            self._read_struct(field, kind.struct, target, is_nullable)
            return
        self._read_length(is_compact, is_wide=kind.is_array or kind.name != "string")
        if is_nullable:
            self.add("if n < 0:", f"    {target} = None", "else:")
            self.depth += 1
        else:
            self.add("if n < 0:", f"    raise null_refused({name!r}, at)")
        if kind.is_array:
            self._read_array(field, kind.element, target)
        else:
            self._read_blob(kind.name, name, target)
        if is_nullable:
            self.depth -= 1

    def _read_length(self, is_compact: bool, is_wide: bool) -> None:
        if is_compact:
            self.add("n = data[at] - 1", "at += 1", "if n > 126:", "    n += (data[at] << 7) - 128", "    at += 1")
            self.add("    if n > 16382:", "        n, at = read_length(data, at - 2)")
            return
        codes = "i" if is_wide else "h"
        self.formats.add(codes)
        self.add(f"n, = unpack_{codes}(data, at)", f"at += {4 if is_wide else 2}")

    def _read_blob(self, kind: str, name: str, target: str) -> None:
        self.add("stop = at + n")
        if kind == "string":
            self.add("if n > 32767 or stop > end:", f"    raise bad_string({name!r}, n, end - at, at)")
            if name in _REPEATED_NAMES:
                self.add(f"if n <= {MAX_INTERNED_BYTES}:", f"    {target} = interned_text(bytes(data[at:stop]))", "else:")
                self.add(f"    {target} = decode_utf8(data[at:stop])")
            else:
                self.add(f"{target} = decode_utf8(data[at:stop])")
        elif kind == "bytes":
            self.add("if stop > end:", "    raise bad_bytes(n, end - at, at)", f"{target} = bytes(data[at:stop])")
        else:
            self.add("if stop > end:", "    raise bad_records(n, end - at, at)")
            self.add(f"{target} = data[at:stop]")
        self.add("at = stop")

    def _read_array(self, field: Field, element: FieldType, target: str) -> None:
        self.add("if n > end - at:", "    raise bad_count(n, end - at, at)")
        if self.is_counted:
            self.add("spend(n)")
        if element.is_fixed and element.name != "uuid":
            size, code = FIXED_SIZE_BYTES[element.name], STRUCT_CODES[element.name]
            self.add(f"{target} = list(unpack_list_{packer_name(code)}[n](data, at))", f"at += {size} * n")
            return
        self.add(f"items = {target} = []", "for _ in range(n):")
        self.depth += 1
        self._read(field, element, "item", is_element=True)
        self.add("items.append(item)")
        self.depth -= 1

    def _read_struct(self, field: Field, struct: Struct, target: str, is_nullable: bool) -> None:
        read = f"{target}, at = decode_{struct.name}(data, at, end)"
        if not is_nullable:
            self.add(read)
        elif field.tagged.has(self.version):
            self.add("n, at = read_int32_varint(data, at)", "if n <= 0:", f"    {target} = None", "else:", f"    {read}")
        else:
            # The first byte is negative for null.
            self.add("at += 1", "if data[at - 1] > 127:", f"    {target} = None", "else:", f"    {read}")

    def _tagged_fields(self, struct: Struct) -> None:
        tagged = [field for field in struct.fields if field.tag >= 0]
        if self.is_counted:
            self.add("spend(read_int32_varint(data, at)[0])")
        if not tagged:
            self.add("if data[at]:", "    m.unknown_tagged_fields, at = read_unknown_tagged_fields(data, at, end)")
            self.add("else:", "    m.unknown_tagged_fields = ()", "    at += 1")
            return
        self.add("m.unknown_tagged_fields = ()", "tags = data[at]", "at += 1", "if tags:")
        self.depth += 1
        self.add("tags, at = read_int32_varint(data, at - 1)", "unknown = []", "for _ in range(tags):")
        self.depth += 1
        self.add("tag, at = read_int32_varint(data, at)", "size, at = read_int32_varint(data, at)")
        branch = "if"
        for field in tagged:
            self.add(f"{branch} tag == {field.tag}:")
            self.depth += 1
            if field.tagged.has(self.version):
                self._read(field, field.type, f"m.{field.attribute}")
            else:
                self.add(f"raise tag_refused(tag, {self.version}, at)")
            self.depth -= 1
            branch = "elif"
        self.add("else:")
        self.depth += 1
        self.add("if size < 0 or size > end - at:", "    raise bad_bytes(size, end - at, at)")
        self.add("unknown.append((tag, bytes(data[at : at + size])))", "at += size")
        self.depth -= 2
        self.add("m.unknown_tagged_fields = tuple(unknown)")
        self.depth -= 1


def packer_name(codes: str) -> str:
    """Return the part of an identifier in generated code for the packer of these struct codes."""
    return codes.replace("?", "t")


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
