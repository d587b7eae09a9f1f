"""Protects the pass over records that a broker makes before it takes them: pinned to the scanner, on sound and bad bytes."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from kcli.format import append_scan, loop_results, record_scan
from kcli.format.append_scan import COUNTED, END, LARGEST, NULL_KEYS, PLAIN, RENUMBERED, SMALLEST, new_counters
from kcli.format.record_batch import NewRecordBatch, read_header
from kcli.format.records import Header, Record, encode_record, encode_records

TEXT = st.binary(max_size=200)
HEADERS = st.lists(st.builds(Header, TEXT, st.none() | TEXT), max_size=2).map(tuple)
DELTAS = st.one_of(st.integers(-70, 70), st.integers(-(2**40), 2**40))


@st.composite
def record_rows(draw: st.DrawFn) -> list[Record]:
    count = draw(st.integers(1, 8))
    offsets = list(range(count))
    if draw(st.integers(0, 4)) == 0:
        offsets[draw(st.integers(0, count - 1))] = draw(st.integers(-5, 300))
    return [Record(offset, draw(DELTAS), draw(st.none() | TEXT), draw(st.none() | TEXT), draw(HEADERS)) for offset in offsets]


def scan(data: bytes, limit: int, count: int) -> tuple[int, int, int, list[int]]:
    """What record_scan says of the bytes -> status, records, end, columns that the check counts."""
    columns, scratch = record_scan.RecordColumns(max(count, 1)), array("q", (0, 0))
    scanned = record_scan.scan_records(data, 0, limit, 0, 0, count, columns, scratch)
    stamps = columns.timestamp[:scanned]
    null_keys = sum(size < 0 for size in columns.key_size[:scanned])
    renumbered = int(any(offset != at for at, offset in enumerate(columns.offset[:scanned])))
    return scratch[1], scanned, columns.end, [min(stamps, default=0), max(stamps, default=0), null_keys, renumbered]


def check(data: bytes, limit: int, count: int) -> tuple[int, int, int, list[int]]:
    out = new_counters()
    status = append_scan.check_records(data, 0, limit, count, out, array("q", (0, 0)))
    return status, out[COUNTED], out[END], [out[SMALLEST], out[LARGEST], out[NULL_KEYS], out[RENUMBERED]]


@given(record_rows(), st.integers(0, 2))
def test_sound_records_count_as_the_scanner_reads_them(rows: list[Record], more: int) -> None:
    """Status, count, end, range of time, null keys and numbering, of all records and of more than there are."""
    data = encode_records(rows)
    expected, found = scan(data, len(data), len(rows) + more), check(data, len(data), len(rows) + more)
    assert found[:3] == expected[:3]
    assert found[3] == expected[3]


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
    # A record whose fields end too early is noticed only behind the records that follow by its length.
    assert found[:3] == expected[:3]


@given(record_rows(), st.integers(1, 50))
def test_a_scan_goes_on_where_the_one_before_ended(rows: list[Record], window: int) -> None:
    """Windows of any size, the rest of each put before the next, count what one scan counts."""
    data = encode_records(rows)
    out, rest, status = new_counters(), b"", loop_results.NEED_MORE
    for start in range(0, len(data), window):
        piece = rest + data[start : start + window]
        status = append_scan.check_records(piece, 0, len(piece), len(rows), out, array("q", (0, 0)))
        rest = piece[out[END] :]
    assert status == loop_results.COMPLETE
    assert not rest
    assert [out[SMALLEST], out[LARGEST], out[NULL_KEYS], out[RENUMBERED]] == check(data, len(data), len(rows))[3]


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
    return append_scan.read_plain_batch(data, new_counters(), array("q", (0, 0))) == PLAIN


ROWS = [Record(0, 0, b"k", b"v"), Record(1, 70, None, b"w" * 100, (Header(b"h", None),)), Record(2, 5, b"", None)]


def test_a_plain_batch_gives_the_fields_of_its_header() -> None:
    """Every slot is what the header's declaration reads."""
    data = plain(ROWS, producer_id=2**40, producer_epoch=-1 + 2**15, base_sequence=17)
    out = new_counters()
    assert append_scan.read_plain_batch(data, out, array("q", (0, 0))) == PLAIN
    header = read_header(data)
    assert list(out[append_scan.SIZE_BYTES :]) == [
        len(data),
        header.crc,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    ]


def test_whatever_is_odd_in_any_way_is_not_plain() -> None:
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
    for magic in (0, 1, 3):
        assert not is_plain(whole[:16] + bytes([magic]) + whole[17:])


def test_a_record_that_claims_to_be_longer_than_its_fields_is_named() -> None:
    """The first wrong record counts, whatever follows."""
    good, wrong = encode_record(ROWS[0]), bytearray(encode_record(ROWS[0]))
    wrong[0] += 2
    data = good + bytes(wrong) + b"\0" + good
    assert check(data, len(data), 3)[:3] == (loop_results.BAD_LENGTH, 1, len(good))
