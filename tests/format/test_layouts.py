"""Protects the one home of layouts: the structs that the readers use are generated from construct's declarations."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kcli.format import layouts, structs
from kcli.format.checkpoint import (
    EpochStart,
    PartitionOffset,
    decode_leader_epochs,
    decode_offset_checkpoint,
    encode_leader_epochs,
    encode_offset_checkpoint,
)


def test_the_generated_files_are_what_the_writer_writes() -> None:
    """Whoever changes a layout runs `python -m kcli.format.layouts`."""
    for path, text in layouts.generated().items():
        assert path.read_text("utf-8") == text, path.name


@pytest.mark.parametrize("name", layouts.FIXED)
def test_a_struct_reads_what_its_declaration_writes(name: str) -> None:
    """Size, order, sign and width of each field; the position of a field is where its bytes are."""
    prefix, layout = layouts.FIXED[name]
    packer, fields = getattr(structs, name), layouts.fields_of(layout)
    rng = random.Random(name)
    for _ in range(50):
        data = rng.randbytes(packer.size)
        declared = layout.parse(data)
        values = packer.unpack(data)
        assert values == tuple(declared[field.name] for field in fields)
        assert packer.pack(*values) == layout.build(declared) == data
        for field in fields:
            changed = bytearray(data)
            changed[field.position] ^= 0xFF
            found = packer.unpack(changed)
            assert [one.name for one, old, new in zip(fields, values, found, strict=True) if old != new] == [field.name]
    assert getattr(structs, f"{name}_BYTES") == packer.size == layout.sizeof()
    for field in fields:
        assert getattr(structs, layouts.position_name(prefix, field)) == field.position


def test_every_field_of_the_batch_header_has_its_meaning_beside_it() -> None:
    assert all(subcon.docs for subcon in layouts.RECORD_BATCH_HEADER.subcons)


def test_offset_checkpoints_are_as_declared() -> None:
    entries = [PartitionOffset("orders", 0, 17), PartitionOffset("ä", 12, 0)]
    data = encode_offset_checkpoint(entries)
    assert list(layouts.OFFSET_CHECKPOINT.parse(data).entries) == entries == list(decode_offset_checkpoint(data).entries)
    assert layouts.OFFSET_CHECKPOINT.build({"version": 0, "entries": entries}) == data


def test_leader_epoch_checkpoints_are_as_declared() -> None:
    entries = [EpochStart(0, 0), EpochStart(7, 2**40)]
    data = encode_leader_epochs(entries)
    assert list(layouts.LEADER_EPOCH_CHECKPOINT.parse(data).entries) == entries == list(decode_leader_epochs(data).entries)
    assert layouts.LEADER_EPOCH_CHECKPOINT.build({"version": 0, "entries": entries}) == data


def test_no_other_module_imports_construct() -> None:
    """It takes 50 ms to import; the dump of a small file may take 150."""
    code = "import kcli.format.records, kcli.log.reading.segment_reader, sys; sys.exit('construct' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    imports = re.compile(r"^\s*(import|from) construct\b", re.MULTILINE)
    sources = Path(structs.__file__).parents[1].rglob("*.py")
    assert [path.name for path in sources if imports.search(path.read_text("utf-8"))] == ["layouts.py"]
