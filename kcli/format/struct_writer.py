"""Writes kcli/format/structs.py and structs.pxd from the layouts of fixed size: `python -m kcli.format.struct_writer`.

    in structs.py                     from RECORD_BATCH_HEADER
    --------------------------------  -------------------------------------------------------------------------
    a struct.Struct                   RECORD_BATCH_HEADER = Struct(">qiibIhiqqqhii")
    its size                          RECORD_BATCH_HEADER_BYTES = 61
    the position of each field        BATCH_CRC_AT = 17

structs.pxd has the same numbers as a C enum, so that a compiled module has them as constants. Both files are checked in, and a
test fails if they are not what this module writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from kcli.format import layouts

_HEAD = "Generated from kcli.format.layouts by kcli.format.struct_writer: change the layouts, then run the writer."
# construct's format character -> that of `struct` for the same big-endian integer, and its name.
_TYPES = {"b": ("b", "int8"), "h": ("h", "int16"), "l": ("i", "int32"), "q": ("q", "int64"), "L": ("I", "uint32")}


class Field(NamedTuple):
    """One field of a fixed layout: its format character for `struct`, its type, its first byte."""

    name: str
    code: str
    type: str
    position: int


def fields_of(layout: Any) -> list[Field]:
    """Return the fields of a layout of big-endian integers. Raises AttributeError or KeyError for any other layout."""
    fields: list[Field] = []
    position = 0
    for subcon in layout.subcons:
        number = subcon.subcon
        code, type_name = _TYPES[number.fmtstr.removeprefix(">")]
        fields.append(Field(subcon.name, code, type_name, position))
        position += number.sizeof()
    return fields


def structs_py() -> str:
    """Return the text of structs.py."""
    lines = [f'"""The layouts of fixed size as structs, and the positions of their fields in bytes.\n\n{_HEAD}\n"""', ""]
    lines += ["from struct import Struct", ""]
    for name, (prefix, layout) in layouts.FIXED.items():
        fields = fields_of(layout)
        lines += [
            f'{name} = Struct(">{"".join(field.code for field in fields)}")',
            f"{name}_BYTES = {layout.sizeof()}",
            *(f"{_position_name(prefix, field)} = {field.position}  # {field.type}" for field in fields),
            "",
        ]
    return "\n".join(lines)


def structs_pxd() -> str:
    """Return the text of structs.pxd."""
    lines = [f"# {_HEAD}", "cdef enum:"]
    for name, (prefix, layout) in layouts.FIXED.items():
        lines += [f"    {name}_BYTES = {layout.sizeof()}"]
        lines += [f"    {_position_name(prefix, field)} = {field.position}" for field in fields_of(layout)]
    return "\n".join(lines) + "\n"


def _position_name(prefix: str, field: Field) -> str:
    return f"{prefix}_{field.name.upper().removeprefix(prefix + '_')}_AT"


def main() -> None:
    """Write both files next to this module."""
    folder = Path(__file__).parent
    (folder / "structs.py").write_text(structs_py(), "utf-8")
    (folder / "structs.pxd").write_text(structs_pxd(), "utf-8")


if __name__ == "__main__":
    main()
