"""Protects the compiled joining of batches: compiled and interpreted it does the same, and no bytes make it raise."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format import batch_join, loop_results, record_copy
from kcli.format.primitives import crc32c
from kcli.format.record_batch import HEADER_BYTES, NewRecordBatch, check_batch
from kcli.format.records import Header, Record, encode_records, read_records
from tests.format.damaged_bytes import damaged
from tests.interpreted import interpreted

WAYS: dict[str, Any] = {
    "as installed": batch_join,
    "interpreted": interpreted(batch_join, record_copy=interpreted(record_copy)),
}
BLOBS = st.none() | st.binary(max_size=40) | st.integers(60, 200).map(bytes)
HEADERS = st.lists(st.builds(Header, st.binary(max_size=5), BLOBS), max_size=2).map(tuple)
ROWS = st.lists(st.tuples(st.integers(-300, 2**40), BLOBS, BLOBS, HEADERS), min_size=1, max_size=5)
STAMPS = st.sampled_from([0, 1, 1_700_000_000_000, 2**61, 2**61 + 1, -1])
SOUND = st.lists(st.tuples(STAMPS, ROWS, st.sampled_from([0, 0, 0, 0, 1, 8, 16])), min_size=1, max_size=5)


def encode(batches: list[tuple[int, list[tuple[Any, ...]], int]]) -> bytes:
    data, offset = b"", 0
    for base_timestamp, rows, attributes in batches:
        records = encode_records(Record(at, *row) for at, row in enumerate(rows))
        largest = base_timestamp + max(row[0] for row in rows)
        data += NewRecordBatch(offset, len(rows) - 1, base_timestamp, largest, len(rows), records, attributes).encode()
        offset += len(rows)
    return data


def join(module: Any, data: bytes, most_bytes: int, stop_offset: int) -> tuple[Any, ...]:
    """All that can be seen of a batch that was joined from the start of `data`; the position behind what was taken."""
    joined = module.JoinedBatch(module.JoinSpace(), most_bytes, most_bytes)
    joined.stop_offset = stop_offset
    position = joined.take(data, memoryview(data), 0, len(data), crc32c)
    names = ("count", "size", "first_offset", "next_offset", "base_timestamp", "max_timestamp", "source_bytes", "status")
    return position, *(getattr(joined, name) for name in names), bytes(joined.finish())


@given(SOUND, st.sampled_from([100, 300, 900, 20_000]), st.integers(0, 30))
def test_the_records_of_what_is_taken_stay(
    batches: list[tuple[int, list[tuple[Any, ...]], int]], most_bytes: int, stop_offset: int
) -> None:
    data = encode(batches)
    position, count, size, first_offset, next_offset, *_, status, out = found = join(batch_join, data, most_bytes, stop_offset)
    assert found == join(WAYS["interpreted"], data, most_bytes, stop_offset)
    taken: list[tuple[Any, ...]] = []
    for base_timestamp, rows, attributes in batches:
        if len(taken) == count:
            break
        assert attributes == 0 and 0 <= base_timestamp <= 2**61
        taken += [(base_timestamp + delta, key, value, headers) for delta, key, value, headers in rows]
    assert len(taken) == count and (not count or (first_offset, next_offset) == (0, count)) and size <= most_bytes
    if count:
        whole = bytearray(out)
        whole[17:21] = crc32c(out[21:]).to_bytes(4, "big")
        header = check_batch(whole)
        assert (header.base_offset, header.last_offset_delta + 1, header.record_count) == (0, count, count)
        records = list(read_records(out[HEADER_BYTES:], count))
        assert [one.offset_delta for one in records] == list(range(count))
        assert [(header.base_timestamp + one.timestamp_delta, one.key, one.value, one.headers) for one in records] == taken
        assert header.max_timestamp == max(stamp for stamp, *_ in taken)
    assert status == loop_results.NEED_MORE or position < len(data)


def with_right_crcs(data: bytes) -> bytes:
    """Each batch that fits gets the CRC of its bytes."""
    right, position = bytearray(data), 0
    while len(data) - position >= HEADER_BYTES:
        end = position + 12 + int.from_bytes(data[position + 8 : position + 12], "big", signed=True)
        if not position + HEADER_BYTES <= end <= len(data):
            break
        right[position + 17 : position + 21] = crc32c(memoryview(right)[position + 21 : end]).to_bytes(4, "big")
        position = end
    return bytes(right)


@given(damaged(SOUND.map(encode)) | st.binary(max_size=200), st.booleans(), st.sampled_from([100, 900, 20_000]))
def test_bad_bytes_are_left_to_the_caller(data: bytes, is_believed: bool, most_bytes: int) -> None:
    """Also if the CRC is right in spite of the damage."""
    if is_believed:
        data = with_right_crcs(data)
    found = join(batch_join, data, most_bytes, 2**40)
    assert found == join(WAYS["interpreted"], data, most_bytes, 2**40)
    assert 0 <= found[0] <= len(data)


@pytest.mark.parametrize("way", WAYS)
def test_why_it_stops(way: str) -> None:
    row = (0, None, b"v" * 30, ())
    data = encode([(5, [row, row], 0), (6, [row], 0), (7, [row], 1), (8, [row], 0)])
    module = WAYS[way]
    assert join(module, data, 1000, 2**40)[1] == 3 and join(module, data, 1000, 2**40)[8] == loop_results.OTHER
    assert join(module, data, 200, 2**40)[1:9:7] == (2, loop_results.FULL)
    assert join(module, data, 1000, 2)[1:9:7] == (2, loop_results.OTHER)
    assert join(module, data[: len(data) // 2 - 1], 1000, 2**40)[8] == loop_results.NEED_MORE
