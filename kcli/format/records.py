"""Records of format v2 as objects, and their layout declared; the layout table stands in kcli.format.record_scan.

Objects are for the few records that someone looks at: control records, internal topics, tests. Whole logs go through the
scanner, which a property test pins to `record_declaration`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

from kcli.format.primitives import (
    Buffer,
    InvalidRecordError,
    read_varint,
    read_varlong,
    write_varint,
    zigzag_decode,
)

CONTROL_RECORD_VERSION = 0


class Header(NamedTuple):
    """A record's header: a key in UTF-8 and a value or None, both as bytes."""

    key: bytes
    value: bytes | None


class Record(NamedTuple):
    """One record; deltas count from its batch's base offset and base timestamp."""

    offset_delta: int
    timestamp_delta: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()
    attributes: int = 0


@cache
def record_declaration() -> Any:
    """The layout of a record as a construct.Struct, strict on varints and lengths."""
    import construct as c

    class Varint(c.Construct):  # type: ignore[misc]
        """A zigzag integer of at most `most_bytes` bytes."""

        def __init__(self, most_bytes: int) -> None:
            super().__init__()
            self.most_bytes = most_bytes

        def _parse(self, stream: Any, context: Any, path: str) -> int:
            raw = 0
            for count in range(self.most_bytes):
                byte = c.core.stream_read(stream, 1, path)[0]
                raw |= (byte & 0x7F) << 7 * count
                if byte < 0x80:
                    return zigzag_decode(raw & (2**32 - 1 if self.most_bytes == 5 else 2**64 - 1))
            raise c.IntegerError("varint is too long", path=path)

        def _build(self, obj: int, stream: Any, context: Any, path: str) -> int:
            c.core.stream_write(stream, data := write_varint(obj), len(data), path)
            return obj

    varint, varlong = Varint(5), Varint(10)

    def nullable(name: str) -> list[Any]:
        size = f"{name}_size"
        return [
            size / c.Rebuild(varint, lambda this: -1 if this[name] is None else len(this[name])),
            name / c.IfThenElse(lambda this: this[size] < 0, c.Computed(None), c.Bytes(lambda this: this[size])),
        ]

    header = c.Struct(*nullable("key"), c.Check(lambda this: this.key is not None), *nullable("value"))
    body = c.Struct(
        "attributes" / c.Int8sb,
        "timestamp_delta" / varlong,
        "offset_delta" / varint,
        *nullable("key"),
        *nullable("value"),
        "header_count" / c.Rebuild(varint, lambda this: len(this.headers)),
        "headers" / c.Array(lambda this: this.header_count, header),
        c.Terminated,
    )
    return c.Prefixed(varint, body)


def _read_bytes(data: Buffer, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = read_varint(data, position, end)
    if size < 0:
        return None, position
    if size > end - position:
        raise InvalidRecordError(f"a length of {size} bytes reaches behind its record", position)
    return bytes(data[position : position + size]), position + size


def _read_headers(data: Buffer, position: int, count: int, end: int) -> tuple[tuple[Header, ...], int]:
    headers = []
    for _ in range(count):
        key, position = _read_bytes(data, position, end)
        if key is None:
            raise InvalidRecordError("a header key has a negative length", position)
        value, position = _read_bytes(data, position, end)
        headers.append(Header(key, value))
    return tuple(headers), position


def read_headers(data: Buffer, position: int, count: int, end: int) -> tuple[Header, ...]:
    """Decode `count` headers from data[position:end] -> Headers. Raises FormatError where they do not parse."""
    return _read_headers(data, position, count, end)[0]


def read_record(data: Buffer, position: int = 0, end: int | None = None) -> tuple[Record, int]:
    """Decode the record at data[position] -> (Record, position behind it). Raises FormatError where it does not parse."""
    limit = len(data) if end is None else end
    size, position = read_varint(data, position, limit)
    if size < 0 or size > limit - position:
        raise InvalidRecordError(f"a record of {size} bytes does not fit into the {limit - position} that are left", position)
    end = position + size
    if size == 0:
        raise InvalidRecordError("a record without a body", position)
    attributes = data[position] - ((data[position] & 0x80) << 1)
    timestamp_delta, position = read_varlong(data, position + 1, end)
    offset_delta, position = read_varint(data, position, end)
    key, position = _read_bytes(data, position, end)
    value, position = _read_bytes(data, position, end)
    header_count, after = read_varint(data, position, end)
    if header_count < 0 or header_count > end - after:
        raise InvalidRecordError(f"a record states {header_count} headers", position)
    headers, after = _read_headers(data, after, header_count, end)
    if after != end:
        raise InvalidRecordError("a record's fields do not add up to its length", after)
    return Record(offset_delta, timestamp_delta, key, value, headers, attributes), end


def read_records(data: Buffer, count: int) -> Iterator[Record]:
    """Decode `count` records that fill `data` -> Records. Raises FormatError where they do not."""
    position = 0
    for _ in range(count):
        record, position = read_record(data, position)
        yield record
    if position != len(data):
        raise InvalidRecordError(f"{len(data) - position} bytes are left behind the last record", position)


def _encode_bytes(data: bytes | None) -> bytes:
    return write_varint(-1) if data is None else write_varint(len(data)) + data


def encode_record(record: Record) -> bytes:
    """The record as bytes, length prefix included."""
    parts = [
        (record.attributes & 0xFF).to_bytes(1, "big"),
        write_varint(record.timestamp_delta),
        write_varint(record.offset_delta),
        _encode_bytes(record.key),
        _encode_bytes(record.value),
        write_varint(len(record.headers)),
    ]
    for header in record.headers:
        parts += (_encode_bytes(header.key), _encode_bytes(header.value))
    body = b"".join(parts)
    return write_varint(len(body)) + body


def encode_records(records: Iterable[Record]) -> bytes:
    """All records as bytes, one after the other, uncompressed."""
    return b"".join(map(encode_record, records))
