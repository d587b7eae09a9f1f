"""Protects the records that the cleaner leaves: copied as they were, or with another base timestamp and else the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format import record_copy
from kcli.format.loop_results import COMPLETE
from kcli.format.primitives import InvalidRecordError
from kcli.format.record_scan import RecordColumns
from kcli.format.records import Header, Record, encode_records, read_records
from tests.interpreted import interpreted

WAYS: dict[str, Any] = {"as installed": record_copy, "interpreted": interpreted(record_copy)}
CAPACITY, BASE_OFFSET, BASE_TIMESTAMP = 8, 1000, 5000

blobs = st.none() | st.binary(max_size=12) | st.integers(60, 200).map(bytes)
records = st.builds(
    Record,
    st.integers(-300, 300),
    st.integers(-(2**61), 2**61) | st.integers(-300, 300),
    blobs,
    blobs,
    st.lists(st.builds(Header, st.binary(max_size=5), blobs), max_size=3).map(tuple),
    st.integers(-128, 127),
)


def scanned(given_records: list[Record], before: bytes) -> tuple[bytes, RecordColumns]:
    """The records' bytes behind others, scanned."""
    data, columns = before + encode_records(given_records), RecordColumns(CAPACITY)
    columns.begin_batch(BASE_OFFSET, BASE_TIMESTAMP)
    assert columns.scan(data, len(before), len(data), len(given_records), 0) == COMPLETE
    assert columns.counted == len(given_records)
    return data, columns


@pytest.mark.parametrize("way", WAYS)
@given(st.lists(st.tuples(records, st.booleans()), max_size=CAPACITY), st.binary(max_size=3))
def test_what_stays_is_as_it_was(way: str, rows: list[tuple[Record, bool]], before: bytes) -> None:
    data, columns = scanned([record for record, _ in rows], before)
    kept = bytearray(stays for _, stays in rows)
    copied = WAYS[way].copy_records(data, columns, len(rows), kept, None)
    assert copied == encode_records(record for record, stays in rows if stays)


@pytest.mark.parametrize("way", WAYS)
@given(
    st.lists(st.tuples(records, st.booleans()), max_size=CAPACITY),
    st.binary(max_size=3),
    st.integers(-(2**61), 2**61) | st.integers(4700, 5300),
)
def test_another_base_timestamp_changes_deltas_alone(
    way: str, rows: list[tuple[Record, bool]], before: bytes, base_timestamp: int
) -> None:
    data, columns = scanned([record for record, _ in rows], before)
    kept = bytearray(stays for _, stays in rows)
    copied = WAYS[way].copy_records(data, columns, len(rows), kept, base_timestamp)
    moved = BASE_TIMESTAMP - base_timestamp
    expected = [one._replace(timestamp_delta=one.timestamp_delta + moved) for one, stays in rows if stays]
    assert list(read_records(copied, sum(kept))) == expected
    assert copied == encode_records(expected)


@pytest.mark.parametrize("way", WAYS)
def test_timestamps_that_64_bits_do_not_count_are_refused(way: str) -> None:
    data, columns = scanned([Record(0, 2**62, b"k", b"v")], b"")
    with pytest.raises(InvalidRecordError, match="too far"):
        WAYS[way].copy_records(data, columns, 1, bytearray(b"\1"), -(2**63))
