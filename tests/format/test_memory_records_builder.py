"""Protects batches that are built record by record: kcli's strict reader finds what was appended, with both kinds of code."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format import memory_records_builder
from kcli.format.compression import CODECS, inflate
from kcli.format.record_batch import HEADER_BYTES, check_batch
from kcli.format.records import Header, Record, encode_record, read_records
from tests.interpreted import interpreted

WAYS: dict[str, Any] = {"as installed": memory_records_builder, "interpreted": interpreted(memory_records_builder)}
NO_ROOM, NEEDS_MEMORY = memory_records_builder.NO_ROOM, memory_records_builder.NEEDS_MEMORY

blobs = st.none() | st.binary(max_size=12) | st.integers(60, 200).map(bytes) | st.just(bytes(9000))
headers = st.lists(st.builds(Header, st.binary(max_size=5), blobs), max_size=3).map(tuple)
rows = st.lists(st.tuples(st.integers(0, 2**62) | st.integers(0, 300), blobs, blobs, headers), min_size=1, max_size=70)


def read_back(batch: bytearray) -> list[tuple[Any, ...]]:
    header = check_batch(bytes(batch))
    payload = inflate(header.codec, bytes(batch[HEADER_BYTES:]), limit=2**24)
    found = list(read_records(payload, header.record_count))
    assert [one.offset_delta for one in found] == list(range(header.last_offset_delta + 1))
    return [(header.base_timestamp + one.timestamp_delta, one.key, one.value, one.headers) for one in found]


@pytest.mark.parametrize("way", WAYS)
@given(rows, st.sampled_from(sorted(CODECS)))
def test_records_are_read_back(way: str, given_rows: list[tuple[Any, ...]], codec: int) -> None:
    builder = WAYS[way].MemoryRecordsBuilder(2**22, codec)
    sizes = [builder.append(*row) for row in given_rows]
    base = given_rows[0][0]
    for index, (row, size) in enumerate(zip(given_rows, sizes, strict=True)):
        assert size == len(encode_record(Record(index, row[0] - base, *row[1:])))
        assert size + HEADER_BYTES <= WAYS[way].estimate_size_upper_bound(*row[1:])
    batch = builder.build()
    assert read_back(batch) == given_rows
    header = check_batch(bytes(batch))
    assert (header.codec, header.max_timestamp) == (codec, max(row[0] for row in given_rows))
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.partition_leader_epoch) == (-1,) * 4
    assert builder.estimated_size() == len(batch)


@pytest.mark.parametrize("way", WAYS)
@given(rows, st.integers(HEADER_BYTES, HEADER_BYTES + 400), st.sampled_from((0, 3)), st.sampled_from((0.1, 1.0)))
def test_nothing_is_written_behind_the_buffer(
    way: str, given_rows: list[tuple[Any, ...]], capacity: int, codec: int, ratio: float
) -> None:
    builder = WAYS[way].MemoryRecordsBuilder(capacity, codec, None, ratio)
    appended = []
    for row in given_rows:
        before = builder.position
        if builder.append(*row) > 0:
            appended.append(row)
        else:
            assert builder.position == before
        assert builder.position <= capacity == len(builder.buffer)
    if appended:
        assert read_back(builder.build()) == appended


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_ends_at_its_limit(way: str) -> None:
    builder = WAYS[way].MemoryRecordsBuilder(HEADER_BYTES + 25)
    assert builder.append(0, None, b"x" * 5, ()) == 12
    assert builder.append(0, None, b"x" * 7, ()) == NO_ROOM
    assert builder.append(0, None, b"x" * 6, ()) == 13
    assert builder.is_full() and builder.estimated_size() == HEADER_BYTES + 25
    assert builder.append(0, None, None, ()) == NO_ROOM
    assert [value for _, _, value, _ in read_back(builder.build())] == [b"x" * 5, b"x" * 6]


@pytest.mark.parametrize("way", WAYS)
def test_a_compressed_batch_asks_for_memory(way: str) -> None:
    """Ten times batch.size of records fit into a batch if they are known to compress to a tenth."""
    builder = WAYS[way].MemoryRecordsBuilder(2000, 3, None, 0.1)
    appended = 0
    while (size := builder.append(0, None, b"x" * 50, ())) != NO_ROOM:
        if size == NEEDS_MEMORY:
            builder.grow(builder.capacity + 2000)
        else:
            appended += 1
    assert 17_000 < builder.position < 2000 / 0.1
    assert len(read_back(builder.build())) == appended
    assert builder.capacity == len(builder.build()) < 2000


@pytest.mark.parametrize("way", WAYS)
def test_a_producer_numbers_a_batch(way: str) -> None:
    """The bytes that a connection may still send do not change when a batch is numbered again."""
    builder = WAYS[way].MemoryRecordsBuilder(500)
    builder.append(7, b"k", b"v", ())
    builder.set_producer_state(5, 1, 10, False)
    first = builder.build()
    sent = bytes(first)
    builder.set_producer_state(5, 2, 0, True)
    header, again = check_batch(sent), check_batch(bytes(builder.build()))
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.is_transactional) == (5, 1, 10, False)
    assert (again.producer_id, again.producer_epoch, again.base_sequence, again.is_transactional) == (5, 2, 0, True)
    assert first == sent and first is not builder.build()
    assert (builder.producer_id, builder.producer_epoch, builder.base_sequence, builder.is_transactional) == (5, 2, 0, True)


@pytest.mark.parametrize("way", WAYS)
def test_bad_records(way: str) -> None:
    builder = WAYS[way].MemoryRecordsBuilder(500)
    with pytest.raises(ValueError, match="the timestamp -1 is negative"):
        builder.append(-1, None, b"", ())
    for bad in ((0, None, b"", ((None, b""),)), (0, None, b"", None), (0, 5, b"", ())):
        with pytest.raises(TypeError):
            builder.append(*bad)
    assert builder.record_count == 0 and builder.position == HEADER_BYTES
    builder.close_for_appends()
    assert builder.append(0, None, b"", ()) == NO_ROOM
