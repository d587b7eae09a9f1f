"""Protects records of format 2: the declaration, the hand-written decoder and the scanner, interpreted and compiled, say the
same of any bytes, and of no bytes more than their own error."""

from __future__ import annotations

from typing import Any

import construct
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcli.format import layouts, record_scan
from kcli.format.loop_results import BAD_HEADER_KEY, BAD_HEADERS, BAD_LENGTH, BAD_VARINT, COMPLETE, NEED_MORE, OUT_OF_INT64
from kcli.format.primitives import FormatError, write_varint
from kcli.format.records import (
    Header,
    Record,
    encode_record,
    encode_records,
    read_headers,
    read_record,
    read_records,
)
from tests.format.damaged_bytes import damaged
from tests.interpreted import interpreted

BASE_OFFSET, BASE_TIMESTAMP = 1000, 5000
CAPACITY = 8


WAYS: dict[str, Any] = {"as installed": record_scan, "interpreted": interpreted(record_scan)}

blobs = st.none() | st.binary(max_size=12) | st.integers(60, 200).map(bytes)
records = st.builds(
    Record,
    st.integers(-(2**31), 2**31 - 1) | st.integers(0, 300),
    st.integers(-(2**62), 2**62) | st.integers(-300, 300),
    blobs,
    blobs,
    st.lists(st.builds(Header, st.binary(max_size=5), blobs), max_size=3).map(tuple),
    st.integers(-128, 127),
)
several = st.lists(records, max_size=5)
encoded = several.map(encode_records)


def scan(
    way: str, data: bytes, wanted: int = CAPACITY, position: int = 0, *, timestamp: int = BASE_TIMESTAMP
) -> tuple[list[tuple[int, ...]], int, int]:
    """Rows of the columns, the position behind the last whole record, the status."""
    module = WAYS[way]
    columns = module.RecordColumns(CAPACITY)
    columns.begin_batch(BASE_OFFSET, timestamp)
    status = columns.scan(data, position, len(data), wanted, 0)
    rows = []
    for i in range(columns.counted):
        row = (columns.offset[i], columns.timestamp[i], columns.key_size[i], columns.value_size[i], columns.header_count[i])
        places = (
            columns.record_position[i],
            columns.key_position[i] if columns.key_size[i] >= 0 else -1,
            columns.value_position[i] if columns.value_size[i] >= 0 else -1,
            columns.header_position[i] if columns.header_count[i] else -1,
        )
        rows.append(row + places)
    return rows, columns.end, status


def as_record(data: bytes, row: tuple[int, ...]) -> tuple[int, int, bytes | None, bytes | None, tuple[Header, ...]]:
    """What a row says a record is."""
    offset, timestamp, key_size, value_size, header_count, _, key_at, value_at, headers_at = row
    key = None if key_size < 0 else data[key_at : key_at + key_size]
    value = None if value_size < 0 else data[value_at : value_at + value_size]
    return offset, timestamp, key, value, read_headers(data, headers_at, header_count, len(data)) if header_count else ()


def expected(record: Record) -> tuple[int, int, bytes | None, bytes | None, tuple[Header, ...]]:
    offset, timestamp = BASE_OFFSET + record.offset_delta, BASE_TIMESTAMP + record.timestamp_delta
    return offset, timestamp, record.key, record.value, record.headers


def declared(data: bytes) -> list[Record]:
    """The whole records at the start of `data`, by the declaration."""
    found, position = [], 0
    record_and_end = construct.Struct("record" / layouts.RECORD, "end" / construct.Tell)
    while position < len(data):
        try:
            parsed = record_and_end.parse(data[position:])
        except construct.ConstructError:
            break
        found.append(of_declaration(parsed.record))
        position += parsed.end
    return found


def of_declaration(parsed: Any) -> Record:
    headers = tuple(Header(header.key, header.value) for header in parsed.headers)
    return Record(parsed.offset_delta, parsed.timestamp_delta, parsed.key, parsed.value, headers, parsed.attributes)


@given(several)
def test_records_come_back(rows: list[Record]) -> None:
    """Written, then read by each way; the declaration writes the same bytes."""
    data = encode_records(rows)
    assert list(read_records(data, len(rows))) == rows
    assert declared(data) == rows
    assert b"".join(layouts.RECORD.build(as_container(record)) for record in rows) == data
    for way in WAYS:
        found, end, status = scan(way, data, len(rows))
        assert (status, end) == (COMPLETE, len(data))
        assert [as_record(data, row) for row in found] == [expected(record) for record in rows]


def as_container(record: Record) -> dict[str, Any]:
    return record._asdict() | {"headers": [header._asdict() for header in record.headers]}


@given(encoded, st.integers(1, 4), st.binary(max_size=4))
def test_scans_go_on_where_they_stopped(data: bytes, step: int, before: bytes) -> None:
    """A few records at a time, from any place in a buffer: the same records as at once."""
    whole = list(read_records(data, len(scan("interpreted", data)[0])))
    for way in WAYS:
        position, seen = len(before), []
        while len(seen) < len(whole):
            rows, position, status = scan(way, before + data, step, position)
            assert len(rows) == min(step, len(whole) - len(seen)) or status == NEED_MORE
            seen += [as_record(before + data, row) for row in rows]
        assert seen == [expected(record) for record in whole]


@given(encoded)
@settings(max_examples=25)
def test_byte_by_byte(data: bytes) -> None:
    """Of every beginning: the records that are whole, then NEED_MORE at the one that is not."""
    ends, position = [], 0
    while position < len(data):
        position = read_record(data, position)[1]
        ends.append(position)
    for size in range(len(data)):
        whole = sum(end <= size for end in ends)
        for way in WAYS:
            rows, end, status = scan(way, data[:size], len(ends))
            assert (len(rows), status, end) == (whole, NEED_MORE, ends[whole - 1] if whole else 0)
        assert len(declared(data[:size])) == whole
        with pytest.raises(FormatError):
            list(read_records(data[:size], len(ends)))


@given(damaged(encoded) | st.binary(max_size=60))
@settings(max_examples=300)
def test_damage_is_the_same_to_all(data: bytes) -> None:
    """Truncated, flipped, lying: both scanners agree in everything, and with decoder and declaration on what is whole."""
    first, second = (scan(way, data) for way in WAYS)
    assert first == second
    rows, end, status = first
    told = []
    position = 0
    try:
        while position < len(data) and len(told) < CAPACITY:
            record, position = read_record(data, position)
            told.append(record)
    except FormatError:
        pass
    assert declared(data)[:CAPACITY] == told
    if status != OUT_OF_INT64:
        assert [as_record(data, row) for row in rows] == [expected(record) for record in told]
    assert status != COMPLETE or len(rows) == CAPACITY
    assert 0 <= end <= len(data) and all(row[5] < end for row in rows)


START, KEY, VALUE, NO_HEADERS = b"\0\0\0", b"\x02k", b"\x02v", b"\0"
TEN = b"\xff" * 9 + b"\x01"


def body(*parts: bytes) -> bytes:
    joined = b"".join(parts)
    return write_varint(len(joined)) + joined


LIES = {
    "length of six bytes": (TEN, BAD_VARINT),
    "negative length": (b"\x01" + bytes(9), BAD_LENGTH),
    "length 0": (b"\x00" + bytes(9), BAD_LENGTH),
    "length behind the buffer": (write_varint(2**31 - 1) + bytes(20), NEED_MORE),
    "timestamp of eleven bytes": (body(b"\0", b"\xff" * 10 + b"\x01", b"\0", KEY, VALUE, NO_HEADERS), BAD_VARINT),
    "offset of six bytes": (body(b"\0\0", TEN, KEY, VALUE, NO_HEADERS), BAD_VARINT),
    "key of six bytes": (body(START, TEN, VALUE, NO_HEADERS), BAD_VARINT),
    "value of six bytes": (body(START, KEY, TEN, NO_HEADERS), BAD_VARINT),
    "header count of six bytes": (body(START, KEY, VALUE, TEN), BAD_VARINT),
    "header key of six bytes": (body(START, KEY, VALUE, b"\x02", TEN, b"\x01"), BAD_VARINT),
    "header value of six bytes": (body(START, KEY, VALUE, b"\x02\x02h", TEN), BAD_VARINT),
    "key behind the record": (body(START, write_varint(2**31 - 1), VALUE, NO_HEADERS), BAD_LENGTH),
    "value behind the record": (body(START, KEY, write_varint(100), VALUE, NO_HEADERS), BAD_LENGTH),
    "negative header count": (body(START, KEY, VALUE, b"\x01"), BAD_HEADERS),
    "more headers than bytes": (body(START, KEY, VALUE, write_varint(2**31 - 1)), BAD_HEADERS),
    "header key null": (body(START, KEY, VALUE, b"\x02\x01\x01"), BAD_HEADER_KEY),
    "header key behind the record": (body(START, KEY, VALUE, b"\x02", write_varint(100)), BAD_LENGTH),
    "a byte left": (body(START, KEY, VALUE, NO_HEADERS, b"\0"), BAD_LENGTH),
    "a byte short": (body(START, KEY, b"\x04v"), BAD_LENGTH),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("behind", [b"", bytes(30), b"\xff" * 30])
def test_lies(way: str, lie: str, behind: bytes) -> None:
    """Each lie has its status, with the sound record before it whole; decoder and declaration refuse it as well."""
    sound = encode_record(Record(0, 0, b"k", b"v"))
    data, status = LIES[lie]
    if lie == "length behind the buffer" or (lie == "length 0" and not behind):
        behind = b""
    rows, end, told = scan(way, sound + data + behind, 2)
    assert (len(rows), end) == (1, len(sound)) and told in (status, NEED_MORE if not behind else status)
    assert declared(sound + data + behind)[1:] == []
    with pytest.raises(FormatError):
        read_record(data + behind)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("delta", [1, 2**62, 2**63 - 1, -(2**63), -1])
@pytest.mark.parametrize("base", [0, 2**63 - 1, -(2**63)])
def test_timestamps_stay_in_64_bits(way: str, base: int, delta: int) -> None:
    """Beyond 64 bits is told, where C would wrap."""
    data = encode_record(Record(0, delta, None, None))
    rows, _, status = scan(way, data, 1, timestamp=base)
    if -(2**63) <= base + delta < 2**63:
        assert status == COMPLETE and rows[0][1] == base + delta
    else:
        assert status == OUT_OF_INT64 and not rows


def test_what_a_status_says() -> None:
    """Every status but COMPLETE has a sentence."""
    statuses = {NEED_MORE, BAD_LENGTH, BAD_VARINT, BAD_HEADERS, BAD_HEADER_KEY, OUT_OF_INT64}
    assert set(record_scan.STATUS_TEXT) == statuses
    assert not WAYS["interpreted"].is_compiled()
