"""Records of format v2 as objects; the table of their layout is in kcli.format.record_scan.

Objects are for a few records that are read one by one: control records, internal topics, tests. Whole logs go through the
scanner; a property test pins both to kcli.format.layouts.RECORD.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kcli.format.primitives import (
    Buffer,
    InvalidRecordError,
    read_varint,
    read_varlong,
    write_varint,
)


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


def _read_bytes(data: Buffer, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = read_varint(data, position, end)
    if size < 0:
        return None, position
    if size > end - position:
        raise InvalidRecordError(f"a field of {size} bytes extends beyond the end of its record", position)
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
    """Decode `count` headers from data[position:end]. Raises FormatError where they do not parse."""
    return _read_headers(data, position, count, end)[0]


def read_record(data: Buffer, position: int = 0, end: int | None = None) -> tuple[Record, int]:
    """Decode the record at data[position]; return it and the position behind it. Raises FormatError where it does not parse."""
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
    """Decode `count` records that fill `data`. Raises FormatError where they do not."""
    position = 0
    for _ in range(count):
        record, position = read_record(data, position)
        yield record
    if position != len(data):
        raise InvalidRecordError(f"{len(data) - position} bytes are left behind the last record", position)


def _encode_bytes(data: bytes | None) -> bytes:
    return write_varint(-1) if data is None else write_varint(len(data)) + data


def encode_record(record: Record) -> bytes:
    """Encode a record, length prefix included."""
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
    """Encode records one after the other, uncompressed."""
    return b"".join(map(encode_record, records))
