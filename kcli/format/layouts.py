"""The layouts of Kafka's files, declared once with construct: every reader and writer of these bytes follows this module.

    layout                                file                               reader
    ------------------------------------  ---------------------------------  -------------------------------------------
    LOG_OVERHEAD                          .log, every format                 kcli.format.record_batch
    RECORD_BATCH_HEADER, RECORD           .log, format 2 (KIP-98)            kcli.format.record_batch, record_scan
    MESSAGE_HEAD, MESSAGE                 .log, formats 0 and 1              kcli.format.legacy_message_set
    CONTROL_RECORD_KEY, END_TXN_MARKER    control records in a .log          kcli.format.end_transaction_marker
    OFFSET_INDEX_ENTRY                    .index                             kcli.format.index_entries
    TIME_INDEX_ENTRY                      .timeindex                         kcli.format.index_entries
    ABORTED_TXN                           .txnindex                          kcli.format.index_entries
    PRODUCER_SNAPSHOT_HEADER and _ENTRY   .snapshot of a partition           kcli.format.producer_snapshot
    OFFSET_CHECKPOINT                     *-offset-checkpoint                kcli.format.checkpoint
    LEADER_EPOCH_CHECKPOINT               leader-epoch-checkpoint            kcli.format.checkpoint

construct takes 50 ms to import, so kcli imports this module only when a declaration is asked for, never at its start. From the
layouts of fixed size `python -m kcli.format.layouts` writes kcli/format/structs.py, which has a `struct.Struct` for each
layout and the position of each field, and structs.pxd with the same positions for the compiled modules. A test fails if these
files are not what the writer would write. Property tests hold the readers of the other layouts to their declarations. The
readers are stricter than construct, as Kafka is.

Integers are big-endian. The text after a field is its meaning.

The generated files:

    in structs.py                     from RECORD_BATCH_HEADER
    --------------------------------  -------------------------------------------------------------------------
    a struct.Struct                   RECORD_BATCH_HEADER = Struct(">qiibIhiqqqhii")
    its size                          RECORD_BATCH_HEADER_BYTES = 61
    the position of each field        BATCH_CRC_AT = 17

A .pxd has the numbers of its module as a C enum, so that compiled modules have them as constants. The files are
checked in, and a test fails if they are not what this module writes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import construct as c

from kcli.format.primitives import UINT32_MASK, UINT64_MASK, write_varint, zigzag_decode


class _Varint(c.Construct):  # type: ignore[misc]
    """A zigzag integer of at most `most_bytes` bytes: 5 for int32 (varint), 10 for int64 (varlong)."""

    def __init__(self, most_bytes: int) -> None:
        super().__init__()
        self._most_bytes = most_bytes
        self._mask = UINT32_MASK if most_bytes == 5 else UINT64_MASK

    def _parse(self, stream: Any, context: Any, path: str) -> int:
        raw = 0
        for count in range(self._most_bytes):
            byte = c.core.stream_read(stream, 1, path)[0]
            raw |= (byte & 0x7F) << 7 * count
            if byte < 0x80:
                return zigzag_decode(raw & self._mask)
        raise c.IntegerError("varint is too long", path=path)

    def _build(self, obj: int, stream: Any, context: Any, path: str) -> int:
        c.core.stream_write(stream, data := write_varint(obj), len(data), path)
        return obj


VARINT, VARLONG = _Varint(5), _Varint(10)


def _nullable(name: str, size_type: Any, meaning: str) -> list[Any]:
    """Return a size, -1 for null, and the bytes behind it."""
    size = f"{name}_size"
    return [
        size / c.Rebuild(size_type, lambda this: -1 if this[name] is None else len(this[name])) * "-1: null",
        name / c.IfThenElse(lambda this: this[size] < 0, c.Computed(None), c.Bytes(lambda this: this[size])) * meaning,
    ]


# ----------------------------------------------------------------------------------------------------- .log, format 2

# What an entry of every format begins with: a batch, or a message of formats 0 and 1.
LOG_OVERHEAD = c.Struct(
    "offset" / c.Int64sb * "of a batch: the offset of the first record; of a compressed set of messages: that of the last one",
    "size" / c.Int32sb * "the number of bytes after this field; the whole entry has 12 more",
)

RECORD_BATCH_HEADER = c.Struct(
    "base_offset" / c.Int64sb * "the offset of the first record; set by the broker",
    "batch_length" / c.Int32sb * "the number of bytes after this field; the whole batch has 12 more",
    "partition_leader_epoch" / c.Int32sb * "set by the broker, and like the two fields above not part of the CRC",
    "magic" / c.Int8sb * "2",
    "crc" / c.Int32ub * "CRC-32C from the attributes to the end of the batch",
    "attributes" / c.Int16sb * "bits: 0-2 codec, 3 LogAppendTime, 4 transactional, 5 control, 6 delete horizon (KIP-534)",
    "last_offset_delta" / c.Int32sb * "the cleaner keeps it, so it may be beyond the last record",
    "base_timestamp" / c.Int64sb * "ms; the records' deltas are relative to it; with bit 6 it is the delete horizon",
    "max_timestamp" / c.Int64sb * "ms; with LogAppendTime the timestamp of every record",
    "producer_id" / c.Int64sb * "-1: none",
    "producer_epoch" / c.Int16sb * "-1: none",
    "base_sequence" / c.Int32sb * "-1: none",
    "record_count" / c.Int32sb * "0: an empty batch, which the cleaner keeps for its producer's sequence",
)

RECORD_HEADER = c.Struct(
    *_nullable("key", VARINT, "UTF-8"),
    c.Check(lambda this: this.key is not None),
    *_nullable("value", VARINT, "any bytes"),
)

RECORD = c.Prefixed(
    VARINT,
    c.Struct(
        "attributes" / c.Int8sb * "unused, 0",
        "timestamp_delta" / VARLONG * "ms after the batch's base timestamp",
        "offset_delta" / VARINT * "after the batch's base offset",
        *_nullable("key", VARINT, "any bytes"),
        *_nullable("value", VARINT, "any bytes; null is a tombstone in a compacted topic"),
        "header_count" / c.Rebuild(VARINT, lambda this: len(this.headers)),
        "headers" / c.Array(lambda this: this.header_count, RECORD_HEADER),
        c.Terminated,
    ),
)

CONTROL_RECORD_KEY = c.Struct(
    "version" / c.Int16sb * "0; a later version is read as 0",
    "type" / c.Int16sb * "0 ABORT, 1 COMMIT; 2 to 6 are the control records of KRaft",
)

END_TXN_MARKER = c.Struct(
    "version" / c.Int16sb * "0; a later version is read as 0",
    "coordinator_epoch" / c.Int32sb * "the epoch of the transaction coordinator that wrote the marker",
)

# ----------------------------------------------------------------------------------------------- .log, formats 0 and 1

MESSAGE_HEAD = c.Struct(
    "offset" / c.Int64sb * "of a compressed set: the offset of its last message",
    "size" / c.Int32sb * "the number of bytes after this field; the whole message has 12 more",
    "crc" / c.Int32ub * "CRC-32 (zlib's) from the magic to the end of the message",
    "magic" / c.Int8sb * "0 or 1",
    "attributes" / c.Int8sb * "bits: 0-2 codec (not zstd), 3 LogAppendTime (format 1)",
)

MESSAGE_TIMESTAMP = c.Struct("timestamp" / c.Int64sb * "ms; of a compressed set the largest one, or the broker's time")

MESSAGE = c.Struct(
    *MESSAGE_HEAD.subcons,
    "timestamp" / c.IfThenElse(lambda this: this.magic == 0, c.Computed(-1), c.Int64sb) * "format 1 only",
    *_nullable("key", c.Int32sb, "any bytes"),
    *_nullable("value", c.Int32sb, "any bytes; of a compressed set the messages inside, compressed"),
)

# ------------------------------------------------------------------------------------------------------------- indexes

OFFSET_INDEX_ENTRY = c.Struct(
    "relative_offset" / c.Int32sb * "the last offset of a batch, less the base offset in the file's name",
    "position" / c.Int32sb * "the byte of the .log at which the batch begins",
)

TIME_INDEX_ENTRY = c.Struct(
    "timestamp" / c.Int64sb * "ms; no record up to the offset has a larger one",
    "relative_offset" / c.Int32sb * "as in OFFSET_INDEX_ENTRY",
)

ABORTED_TXN = c.Struct(
    "version" / c.Int16sb * "0",
    "producer_id" / c.Int64sb * "the producer of the transaction",
    "first_offset" / c.Int64sb * "the first offset of the transaction",
    "last_offset" / c.Int64sb * "the offset of the abort marker",
    "last_stable_offset" / c.Int64sb * "the last stable offset after the marker",
)

# --------------------------------------------------------------------------------------------------- producer snapshots

PRODUCER_SNAPSHOT_HEADER = c.Struct(
    "version" / c.Int16sb * "1",
    "crc" / c.Int32ub * "CRC-32C from the count to the end of the file",
    "count" / c.Int32sb * "the number of entries that follow",
)

PRODUCER_SNAPSHOT_ENTRY = c.Struct(
    "producer_id" / c.Int64sb,
    "producer_epoch" / c.Int16sb,
    "last_sequence" / c.Int32sb * "-1: no batch",
    "last_offset" / c.Int64sb * "the last offset of the producer's last batch; -1: no batch",
    "offset_delta" / c.Int32sb * "the last offset delta of that batch",
    "timestamp" / c.Int64sb * "the largest timestamp of that batch, ms",
    "coordinator_epoch" / c.Int32sb * "-1: the producer never ended a transaction",
    "current_txn_first_offset" / c.Int64sb * "-1: no open transaction",
)

# -------------------------------------------------------------------------------------------------- checkpoints (text)


def _decimal() -> Any:
    """Return a decimal number that ends with a line."""
    return c.ExprAdapter(_line(), lambda text, context: int(text), lambda number, context: str(number))


def _line() -> Any:
    return c.NullTerminated(c.GreedyString("utf-8"), term=b"\n")


def _words(*types: type) -> Any:
    """Return a line of as many words as there are types, with one space between two."""
    return c.ExprAdapter(
        _line(),
        lambda text, context: tuple(parse(word) for parse, word in zip(types, text.split(" "), strict=True)),
        lambda values, context: " ".join(map(str, values)),
    )


def _checkpoint(entry: Any) -> Any:
    return c.Struct(
        "version" / _decimal() * "0",
        "count" / c.Rebuild(_decimal(), lambda this: len(this.entries)),
        "entries" / c.Array(lambda this: this.count, entry),
        c.Terminated,
    )


OFFSET_CHECKPOINT = _checkpoint(_words(str, int, int) * "topic, partition, offset")
LEADER_EPOCH_CHECKPOINT = _checkpoint(_words(int, int) * "leader epoch, its first offset")

# The layouts of fixed size, in the order of the generated files, with the prefix of their fields' names there.
FIXED: dict[str, tuple[str, Any]] = {
    "LOG_OVERHEAD": ("ENTRY", LOG_OVERHEAD),
    "RECORD_BATCH_HEADER": ("BATCH", RECORD_BATCH_HEADER),
    "CONTROL_RECORD_KEY": ("CONTROL_RECORD_KEY", CONTROL_RECORD_KEY),
    "END_TXN_MARKER": ("END_TXN_MARKER", END_TXN_MARKER),
    "MESSAGE_HEAD": ("MESSAGE", MESSAGE_HEAD),
    "MESSAGE_TIMESTAMP": ("MESSAGE_TIMESTAMP", MESSAGE_TIMESTAMP),
    "OFFSET_INDEX_ENTRY": ("OFFSET_INDEX", OFFSET_INDEX_ENTRY),
    "TIME_INDEX_ENTRY": ("TIME_INDEX", TIME_INDEX_ENTRY),
    "ABORTED_TXN": ("ABORTED_TXN", ABORTED_TXN),
    "PRODUCER_SNAPSHOT_HEADER": ("SNAPSHOT", PRODUCER_SNAPSHOT_HEADER),
    "PRODUCER_SNAPSHOT_ENTRY": ("SNAPSHOT_ENTRY", PRODUCER_SNAPSHOT_ENTRY),
}


_HEAD = "Generated from kcli.format.layouts: change them, then run `python -m kcli.format.layouts`."
_PXD_HEAD = "Generated from the module of the same name: run `python -m kcli.format.layouts` after a change."
# construct's format character -> that of `struct` for the same big-endian integer, and its name.
_TYPES = {"b": ("b", "int8"), "h": ("h", "int16"), "l": ("i", "int32"), "q": ("q", "int64"), "L": ("I", "uint32")}


class StructField(NamedTuple):
    """One field of a fixed layout: its format character for `struct`, its type, its first byte."""

    name: str
    code: str
    type: str
    position: int


def fields_of(layout: Any) -> list[StructField]:
    """Return the fields of a layout of big-endian integers. Raises AttributeError or KeyError for any other layout."""
    fields: list[StructField] = []
    position = 0
    for subcon in layout.subcons:
        number = subcon.subcon
        code, type_name = _TYPES[number.fmtstr.removeprefix(">")]
        fields.append(StructField(subcon.name, code, type_name, position))
        position += number.sizeof()
    return fields


def structs_py() -> str:
    """Return the text of structs.py."""
    lines = [f'"""The layouts of fixed size as structs, and the positions of their fields in bytes.\n\n{_HEAD}\n"""', ""]
    lines += ["from struct import Struct", ""]
    for name, (prefix, layout) in FIXED.items():
        fields = fields_of(layout)
        lines += [
            f'{name} = Struct(">{"".join(field.code for field in fields)}")',
            f"{name}_BYTES = {layout.sizeof()}",
            *(f"{position_name(prefix, field)} = {field.position}  # {field.type}" for field in fields),
            "",
        ]
    return "\n".join(lines)


def enum_pxd(source: str) -> str:
    """Return a .pxd with the numbers that a module's `source` assigns to names in capitals."""
    numbers = re.findall(r"^([A-Z][A-Z0-9_]*) = ([0-9]+)\b", source, re.MULTILINE)
    return "\n".join([f"# {_PXD_HEAD}", "cdef enum:", *(f"    {name} = {number}" for name, number in numbers), ""])


def position_name(prefix: str, field: StructField) -> str:
    """Return the name in structs.py of a field's position."""
    return f"{prefix}_{field.name.upper().removeprefix(prefix + '_')}_AT"


def generated() -> dict[Path, str]:
    """Return the text of each generated file."""
    folder = Path(__file__).parent
    return {
        folder / "structs.py": structs_py(),
        folder / "structs.pxd": enum_pxd(structs_py()),
        folder / "loop_results.pxd": enum_pxd((folder / "loop_results.py").read_text("utf-8")),
    }


def main() -> None:
    """Write the files next to this module."""
    for path, text in generated().items():
        path.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
