"""Protects the check of a plain batch before it is appended: what it counts is what the scan into columns finds."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kcli.format import loop_results, record_scan
from kcli.format.batch_scan import PlainBatch
from kcli.format.primitives import crc32c
from kcli.format.record_batch import NewRecordBatch, read_header
from kcli.format.records import Header, Record, encode_record, encode_records

TEXT = st.binary(max_size=200)
HEADERS = st.lists(st.builds(Header, TEXT, st.none() | TEXT), max_size=2).map(tuple)
NO_RANGE = 2**63 - 1, -(2**63)
DELTAS = st.one_of(st.integers(-70, 70), st.integers(-(2**40), 2**40))


@st.composite
def record_rows(draw: st.DrawFn) -> list[Record]:
    count = draw(st.integers(1, 8))
    offsets = list(range(count))
    if draw(st.integers(0, 4)) == 0:
        offsets[draw(st.integers(0, count - 1))] = draw(st.integers(-5, 300))
    return [Record(offset, draw(DELTAS), draw(st.none() | TEXT), draw(st.none() | TEXT), draw(HEADERS)) for offset in offsets]


def counts(records: record_scan.RecordColumns) -> tuple[int, ...]:
    found = records.smallest_delta, records.largest_delta, records.null_keys, records.is_renumbered, records.is_rising
    return records.counted, records.end, *found


def scan(data: bytes, limit: int, count: int) -> tuple[int, tuple[int, ...]]:
    """Fill columns from the bytes -> the status, and what the columns say of the counts."""
    columns = record_scan.RecordColumns(max(count, 1))
    columns.begin_batch(0, 0)
    status = columns.scan(data, 0, limit, count, 0)
    counted = columns.counted
    stamps, offsets = columns.timestamp[:counted], [-1, *columns.offset[:counted]]
    null_keys = sum(size < 0 for size in columns.key_size[:counted])
    is_renumbered = any(offset != at for at, offset in enumerate(offsets[1:]))
    is_rising = all(before < after for before, after in pairwise(offsets))
    smallest, largest = min(stamps, default=NO_RANGE[0]), max(stamps, default=NO_RANGE[1])
    found = (counted, columns.end, smallest, largest, null_keys, is_renumbered, is_rising)
    assert counts(columns) == found
    return status, found


def check(data: bytes, limit: int, count: int) -> tuple[int, tuple[int, ...]]:
    """Count the records without keeping them -> the status and the counts."""
    records = record_scan.RecordColumns(0)
    records.begin_batch(0, 0)
    return records.scan(data, 0, limit, count, record_scan.NO_ROWS), counts(records)


@given(record_rows(), st.integers(0, 2))
def test_sound_records_count_as_the_scanner_reads_them(rows: list[Record], more: int) -> None:
    """Status, count, end, range of time, null keys and numbering, of all records and of more than there are."""
    data = encode_records(rows)
    assert check(data, len(data), len(rows) + more) == scan(data, len(data), len(rows) + more)


@given(record_rows(), st.data())
def test_bad_bytes_get_the_scanners_verdict(rows: list[Record], data: st.DataObject) -> None:
    """A byte flipped, the end cut: the same status at the same record; nothing is raised."""
    raw = bytearray(encode_records(rows))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    limit = data.draw(st.integers(0, len(raw)))
    expected, found = scan(bytes(raw), limit, len(rows)), check(bytes(raw), limit, len(rows))
    if expected[0] == loop_results.OUT_OF_INT64:
        return  # without a base nothing overflows here; the caller adds it with care
    # A record whose fields end too early is noticed only behind the records that follow by its length: they are in the ranges.
    assert (found[0], found[1][:2]) == (expected[0], expected[1][:2])


@given(record_rows(), st.integers(1, 50))
def test_a_scan_goes_on_where_the_one_before_ended(rows: list[Record], window: int) -> None:
    """Windows of any size, the rest of each put before the next, count what one scan counts."""
    data = encode_records(rows)
    records, rest, status = record_scan.RecordColumns(0), b"", loop_results.NEED_MORE
    records.begin_batch(0, 0)
    for start in range(0, len(data), window):
        piece = rest + data[start : start + window]
        status = records.scan(piece, 0, len(piece), len(rows) - records.counted, record_scan.NO_ROWS)
        rest = piece[records.end :]
    assert status == loop_results.COMPLETE
    assert not rest
    once = check(data, len(data), len(rows))[1]
    assert (records.counted, *counts(records)[2:]) == (once[0], *once[2:])


def plain(rows: list[Record], **changes: int) -> bytes:
    stamps = [1000 + row.timestamp_delta for row in rows]
    fields = {
        "base_offset": 0,
        "last_offset_delta": len(rows) - 1,
        "base_timestamp": 1000,
        "max_timestamp": max(stamps),
        "record_count": len(rows),
    }
    return NewRecordBatch(records=encode_records(rows), **{**fields, **changes}).encode()


def is_plain(data: bytes) -> bool:
    return PlainBatch().check(data, memoryview(data), crc32c)


NOT_CHECKED = range(12, 16)  # the leader epoch, which the leader sets, is outside of the CRC
ROWS = [Record(0, 0, b"k", b"v"), Record(1, 70, None, b"w" * 100, (Header(b"h", None),)), Record(2, 5, b"", None)]


def test_a_plain_batch_gives_the_fields_of_its_header() -> None:
    """Every field is what the header's declaration reads, the rest what the records hold."""
    data = plain(ROWS, producer_id=2**40, producer_epoch=-1 + 2**15, base_sequence=17)
    batch, header = PlainBatch(), read_header(data)
    assert batch.check(data, memoryview(data), crc32c)
    assert (batch.end_position, batch.last_offset, batch.crc) == (len(data), header.last_offset_delta, header.crc)
    assert (batch.base_timestamp, batch.max_timestamp) == (header.base_timestamp, header.max_timestamp)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (2**40, -1 + 2**15, 17)
    assert (batch.records.smallest_delta, batch.records.null_keys) == (0, 1)


def test_each_departure_is_not_plain() -> None:
    """Each single departure from a plain batch is left to the careful path."""
    assert is_plain(plain(ROWS))
    odd = [
        {"base_offset": 1},
        {"last_offset_delta": 3},
        {"record_count": 2},
        {"record_count": 0, "last_offset_delta": -1},
        {"max_timestamp": 1071},
        {"max_timestamp": 1069},
        {"base_timestamp": -1},
        {"producer_id": 5, "base_sequence": -1},
        *({"attributes": attribute} for attribute in (1, 2, 4, 8, 16, 32, 64, 128, 256)),
    ]
    for changes in odd:
        assert not is_plain(plain(ROWS, **changes)), changes
    assert not is_plain(plain([ROWS[0], ROWS[0]]))
    whole = plain(ROWS)
    for size in range(len(whole)):
        assert not is_plain(whole[:size]), size
    assert not is_plain(whole + b"\0")
    for at in range(len(whole)):
        if at not in NOT_CHECKED:
            assert not is_plain(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]), at
    for magic in (0, 1, 3):
        assert not is_plain(whole[:16] + bytes([magic]) + whole[17:])


def test_a_record_that_claims_to_be_longer_than_its_fields_is_named() -> None:
    """The first wrong record counts, whatever follows."""
    good, wrong = encode_record(ROWS[0]), bytearray(encode_record(ROWS[0]))
    wrong[0] += 2
    data = good + bytes(wrong) + b"\0" + good
    status, found = check(data, len(data), 3)
    assert (status, found[:2]) == (loop_results.BAD_LENGTH, (1, len(good)))
