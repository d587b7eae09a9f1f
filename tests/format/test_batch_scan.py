"""Protects the scanner of batches and the passes over its columns: interpreted and compiled they do the same on any bytes,
and what they call usual is what the declarations of the formats say."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcli.format import batch_scan, loop_results, record_scan
from kcli.format.primitives import FormatError, crc32c
from kcli.format.record_batch import NewRecordBatch, check_batch
from kcli.format.records import Record, encode_records, read_records
from tests.interpreted import interpreted

PLAIN_RECORD_SCAN = interpreted(record_scan)
WAYS: dict[str, tuple[Any, Any]] = {
    "as installed": (batch_scan, record_scan),
    "interpreted": (interpreted(batch_scan, record_scan=PLAIN_RECORD_SCAN), PLAIN_RECORD_SCAN),
}
COLUMNS = (
    "position",
    "size_bytes",
    "base_offset",
    "last_offset",
    "leader_epoch",
    "attributes",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "record_count",
    "fault",
)

records_of_a_batch = st.lists(
    st.tuples(
        st.integers(0, 3), st.integers(-5, 2**40), st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=200)
    ),
    max_size=5,
)


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """A few batches one after the other, most of them sound; offsets, deltas and counts near the truth."""
    out, offset = b"", draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(0, 4))):
        drawn = draw(records_of_a_batch)
        deltas, last = [], -1
        for step, *_ in drawn:
            last += step + draw(st.sampled_from((1, 1, 1, 0)))
            deltas.append(max(last, 0))
        stamps = [stamp for _, stamp, _, _ in drawn]
        out += NewRecordBatch(
            base_offset=offset,
            last_offset_delta=max(deltas, default=0) + draw(st.sampled_from((0, 0, 0, 1, -1, -9))),
            base_timestamp=10,
            max_timestamp=10 + max(stamps, default=0) + draw(st.sampled_from((0, 0, 0, 1))),
            record_count=len(drawn) + draw(st.sampled_from((0, 0, 0, 0, 1, -1))),
            records=encode_records(
                Record(delta, stamp, key, value) for delta, (_, stamp, key, value) in zip(deltas, drawn, strict=True)
            )
            + draw(st.sampled_from((b"", b"", b"", b"\0"))),
            attributes=draw(st.sampled_from((0, 0, 0, 4, 8, 0x10, 0x100))),
            partition_leader_epoch=draw(st.integers(0, 1)),
            producer_id=draw(st.sampled_from((-1, 7, 8))),
            producer_epoch=draw(st.sampled_from((0, 0, 1))),
            base_sequence=draw(st.sampled_from((0, 1, 2**31 - 1))),
        ).encode()
        offset += max(deltas, default=0) + 1
    return out


def scan(way: str, data: bytes, rows: int = 8) -> tuple[Any, ...]:
    """Everything that a scan returns: rows, place, reason, faults, columns."""
    scanner, parser = WAYS[way]
    columns, records, scratch = scanner.BatchColumns(rows), parser.RecordColumns(0), array("q", bytes(32))
    buffer = bytearray(data)
    count = scanner.scan_batches(buffer, memoryview(buffer), 0, len(data), 1000, crc32c, columns, records, scratch)
    table = [getattr(columns, name)[:count].tolist() for name in COLUMNS]
    return count, *scratch[:3], table


@given(batches(), st.data())
@settings(max_examples=300, deadline=None)
def test_both_ways_scan_alike(data: bytes, drawing: st.DataObject) -> None:
    """Whole, truncated, and with bytes changed: the same rows, faults and places."""
    data = data[: drawing.draw(st.integers(0, len(data)))] if drawing.draw(st.booleans()) else data
    changed = bytearray(data)
    for _ in range(drawing.draw(st.integers(0, 2)) if data else 0):
        changed[drawing.draw(st.integers(0, len(data) - 1))] ^= drawing.draw(st.integers(1, 255))
    first, second = (scan(way, bytes(changed)) for way in WAYS)
    assert first == second


@pytest.mark.parametrize("way", WAYS)
@given(data=batches())
@settings(max_examples=200, deadline=None)
def test_sound_is_what_the_declaration_says(way: str, data: bytes) -> None:
    """A row is SOUND exactly where the batch holds what its header states; a scan ends where no plain batch follows."""
    scanner = WAYS[way][0]
    count, end, why, faulty, table = scan(way, data)
    columns = dict(zip(COLUMNS, table, strict=True))
    position = 0
    for row in range(count):
        size = columns["size_bytes"][row]
        batch = data[position : position + size]
        header = check_batch(batch)
        assert columns["position"][row] == 1000 + position
        assert columns["base_offset"][row] == header.base_offset and columns["last_offset"][row] == header.last_offset
        assert columns["attributes"][row] == header.attributes and columns["base_sequence"][row] == header.base_sequence
        expected = scanner.LOOK
        if header.attributes < 128 and header.codec and header.record_count:
            expected = scanner.UNOPENED
        elif header.attributes < 128 and holds_what_it_states(header, batch[61:]):
            expected = scanner.SOUND
        assert columns["fault"][row] == expected
        position += size
    assert position == end and faulty == sum(fault != scanner.SOUND for fault in columns["fault"])
    assert why == loop_results.NEED_MORE or position < len(data)


def holds_what_it_states(header: Any, data: bytes) -> bool:
    try:
        records = list(read_records(data, header.record_count))
    except FormatError:
        return False
    deltas = [record.offset_delta for record in records]
    rising = all(before < after for before, after in zip([-1, *deltas], deltas, strict=False))
    if not rising or (deltas and deltas[-1] > header.last_offset_delta):
        return False
    stamps = [header.base_timestamp + record.timestamp_delta for record in records]
    return not records or header.is_log_append_time or max(stamps) == header.max_timestamp


small = st.integers(-2, 6)
row_columns = st.lists(st.tuples(*(small for _ in range(9)), st.sampled_from((0, 0, 0, 0, 1))), max_size=8)


@given(row_columns, st.lists(small, min_size=5, max_size=5), st.lists(st.tuples(small, small, small, small), max_size=3))
@settings(max_examples=300, deadline=None)
def test_both_ways_pass_over_rows_alike(rows: list[tuple[int, ...]], expected: list[int], runs: list[tuple[int, ...]]) -> None:
    """next_notable stops at the same row and leaves the same state and runs behind."""
    results = []
    names = ("base_offset", "last_offset", "leader_epoch", "attributes", "producer_id", "producer_epoch", "base_sequence")
    for scanner, _ in WAYS.values():
        columns, growing, state = scanner.BatchColumns(8), scanner.ProducerRuns(4), array("q", expected)
        for slot, row in enumerate(rows):
            for name, value in zip((*names, "record_count", "max_timestamp", "fault"), row, strict=True):
                getattr(columns, name)[slot] = value
        for slot, run in enumerate(runs):
            fields = ("producer_id", "producer_epoch", "attributes", "last_sequence")
            for name, value in zip(fields, run, strict=True):
                getattr(growing, name)[slot] = value
        growing.used = len(runs)
        state[scanner.STOP_OFFSET] = 2**62 if expected[2] > 0 else expected[2]
        state[scanner.LATEST_RUN] = 0
        index = scanner.next_notable(columns, 0, len(rows), state, growing)
        after = [getattr(growing, name) for name in growing.__slots__]
        results.append((index, state.tolist(), after))
    assert results[0] == results[1]


@given(row_columns, st.lists(small, max_size=5), st.lists(small, max_size=5), small)
@settings(max_examples=300, deadline=None)
def test_both_ways_match_indexes_alike(rows: list[tuple[int, ...]], keys: list[int], values: list[int], base: int) -> None:
    """match_offset_index and match_time_index stop at the same entry and the same row."""
    slots = min(len(keys), len(values))
    results = []
    for scanner, _ in WAYS.values():
        columns = scanner.BatchColumns(8)
        for slot, row in enumerate(rows):
            columns.position[slot], columns.base_offset[slot], columns.last_offset[slot] = row[:3]
            columns.max_timestamp[slot] = row[3]
        scratch = array("q", (0, 0))
        offset_slot = scanner.match_offset_index(
            columns, 0, len(rows), array("i", keys[:slots]), array("i", values[:slots]), 0, base, scratch
        )
        reached = scratch.tolist()
        time_slot = scanner.match_time_index(
            columns, 0, len(rows), array("q", keys[:slots]), array("i", values[:slots]), 0, base, scratch
        )
        results.append((offset_slot, reached, time_slot, scratch.tolist()))
    assert results[0] == results[1]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=6), st.lists(st.integers(-3, 9), max_size=6))
@settings(max_examples=300, deadline=None)
def test_both_ways_match_headers_alike(batches: list[tuple[int, int]], shifts: list[int]) -> None:
    """An entry is passed over if it names its batch, or one behind that does not begin above it; both ways stop there alike."""
    data, places, offset = bytearray(), list[tuple[int, int, int]](), 0
    for gap, delta in batches:
        offset += gap
        places.append((len(data), offset, offset + delta))
        data += NewRecordBatch(offset, delta, 0, 0, delta + 1, b"").encode()
        offset += delta + 1
    entries = [(last + shift, at) for (at, _, last), shift in zip(places, shifts, strict=False)]
    bases = [base for _, base, _ in places]
    wrong = (
        slot
        for slot, (named, _) in enumerate(entries)
        if named != places[slot][2] and (named < places[slot][2] or slot + 1 == len(bases) or bases[slot + 1] > named)
    )
    expected = next(wrong, len(entries))
    columns = array("i", [named for named, _ in entries]), array("i", [at + 7 for _, at in entries])
    for scanner, _ in WAYS.values():
        assert scanner.match_headers(b"-" + data, 1, len(data) + 1, 7, *columns, 0, 0) == expected


@given(st.lists(st.tuples(small, small), max_size=8), small)
@settings(max_examples=200, deadline=None)
def test_a_summary_is_what_python_says(rows: list[tuple[int, int]], previous: int) -> None:
    """The first offset that does not go up, the smallest and the largest timestamp."""
    for scanner, records in WAYS.values():
        columns, out = records.RecordColumns(8), array("q", (0, 0))
        for slot, (offset, timestamp) in enumerate(rows):
            columns.offset[slot], columns.timestamp[slot] = offset, timestamp
        offsets = [previous, *(offset for offset, _ in rows)]
        expected = next((slot for slot in range(len(rows)) if offsets[slot + 1] <= offsets[slot]), -1)
        assert scanner.summarise(columns, len(rows), previous, out) == expected
        stamps = [timestamp for _, timestamp in rows] or [0]
        assert out.tolist() == [min(stamps), max(stamps)]
