"""Protects the batch of format 2: byte-identical both ways, pinned to its declaration, no flipped bit unnoticed."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format import layouts
from kcli.format.primitives import CorruptRecordError
from kcli.format.record_batch import (
    CRC_START,
    HEADER_BYTES,
    NewRecordBatch,
    RecordBatch,
    check_batch,
    empty_batch,
    increment_sequence,
    read_header,
)
from tests.format.damaged_bytes import damaged
from tests.format.given_files import given_files

int16s, int32s, int64s = (st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (16, 32, 64))
batches = st.builds(
    NewRecordBatch,
    base_offset=int64s,
    last_offset_delta=int32s,
    base_timestamp=int64s,
    max_timestamp=int64s,
    record_count=int32s,
    records=st.binary(max_size=60),
    attributes=int16s,
    partition_leader_epoch=int32s,
    producer_id=int64s,
    producer_epoch=int16s,
    base_sequence=int32s,
)
encoded_batches = batches.map(NewRecordBatch.encode)


def again(header: RecordBatch, data: bytes) -> bytes:
    """The batch encoded from what was read of it."""
    fields = set(NewRecordBatch._fields) - {"records"}
    return NewRecordBatch(**{name: getattr(header, name) for name in fields}, records=data[HEADER_BYTES:]).encode()


@given(batches, st.binary(max_size=5))
def test_a_batch_comes_back(batch: NewRecordBatch, before: bytes) -> None:
    """Every field as it was written; the declaration reads the same; its place is where the caller says."""
    data = batch.encode()
    header = check_batch(data)
    assert again(header, data) == data
    assert all(getattr(header, name) == getattr(batch, name) for name in set(batch._fields) - {"records"})
    assert (header.size_bytes, header.end_position, header.magic) == (len(data), len(data), 2)
    moved = read_header(before + data, len(before), 1000)
    assert moved == header._replace(position=1000) and moved.end_position == 1000 + len(data)
    declared = layouts.RECORD_BATCH_HEADER.parse(data)
    assert tuple(declared[name] for name in header._fields[1:]) == header[1:]
    assert layouts.RECORD_BATCH_HEADER.build(header._asdict()) == data[:HEADER_BYTES]


def test_given_batches_come_back_byte_for_byte() -> None:
    """All that Kafka wrote: whole, sound, and the same when written again."""
    count = 0
    for path in given_files("*.log"):
        data, position = path.read_bytes(), 0
        while position + HEADER_BYTES <= len(data) and data[position + 16] == 2:
            size = 12 + int.from_bytes(data[position + 8 : position + 12], "big")
            batch = data[position : position + size]
            assert again(check_batch(batch), batch) == batch
            position, count = position + size, count + 1
    assert count > 100


@given(encoded_batches, st.data())
def test_every_flipped_bit_is_noticed(data: bytes, drawing: st.DataObject) -> None:
    """Wherever it is, but for base offset and leader epoch, which brokers set and the CRC leaves out."""
    at, bit = drawing.draw(st.integers(0, len(data) - 1)), drawing.draw(st.integers(0, 7))
    flipped = bytearray(data)
    flipped[at] ^= 1 << bit
    if at < 8 or 12 <= at < 16:
        assert check_batch(flipped) != check_batch(data)
    else:
        with pytest.raises(CorruptRecordError) as refused:
            check_batch(flipped)
        assert refused.value.position in (8, 16, CRC_START - 4)


@given(encoded_batches)
def test_every_truncation_is_noticed(data: bytes) -> None:
    """Byte by byte, up to the last."""
    for size in range(len(data)):
        with pytest.raises(CorruptRecordError):
            check_batch(data[:size])
    with pytest.raises(CorruptRecordError, match="states a size"):
        check_batch(data + b"\0")


@given(damaged(encoded_batches))
def test_damage_raises_its_own_error_only(data: bytes) -> None:
    """Lengths that lie, pieces put in or taken out: sound or CorruptRecordError; properties never raise."""
    try:
        header = check_batch(data)
    except CorruptRecordError:
        if len(data) < HEADER_BYTES:
            with pytest.raises(struct.error):
                read_header(data)
            return
        header = read_header(data)
    derived = (header.last_offset, header.next_offset, header.last_sequence)
    assert all(-(2**63) <= value < 2**63 for value in derived)
    assert header.delete_horizon_ms is None or header.delete_horizon_ms == header.base_timestamp
    assert header.log_append_time_ms in (None, header.max_timestamp)


ATTRIBUTES = {
    0: (0, False, False, False, False),
    4: (4, False, False, False, False),
    8: (0, True, False, False, False),
    0x10: (0, False, True, False, False),
    0x20: (0, False, False, True, False),
    0x40: (0, False, False, False, True),
    0x7B: (3, True, True, True, True),
}


@pytest.mark.parametrize(("attributes", "expected"), ATTRIBUTES.items())
def test_each_attribute_has_its_bit(attributes: int, expected: tuple[object, ...]) -> None:
    """Codec, LogAppendTime, transactional, control, delete horizon."""
    header = check_batch(NewRecordBatch(5, 2, 10, 20, 3, b"", attributes).encode())
    seen = (header.codec, header.is_log_append_time, header.is_transactional, header.is_control)
    assert (*seen, header.delete_horizon_ms is not None) == expected
    assert header.log_append_time_ms == (20 if attributes & 8 else None)


@pytest.mark.parametrize(
    ("sequence", "increment", "expected"),
    [(0, 0, 0), (5, 3, 8), (2**31 - 1, 1, 0), (2**31 - 3, 5, 2), (2**31 - 1, 2**31 - 1, 2**31 - 2), (5, -1, 4 - 2**31)],
)
def test_sequences_wrap_to_zero(sequence: int, increment: int, expected: int) -> None:
    """Behind 2**31 - 1 comes 0, as producers count; a negative increment, which only damage has, overflows as Java does."""
    assert increment_sequence(sequence, increment) == expected


@given(batches)
def test_an_emptied_batch(batch: NewRecordBatch) -> None:
    """The cleaner's: the producer's last sequence and the offsets stay, the records and their codec go."""
    before = check_batch(batch.encode())
    left = check_batch(empty_batch(before).encode())
    assert (left.record_count, left.size_bytes, left.codec, left.base_timestamp) == (0, HEADER_BYTES, 0, -1)
    assert (left.last_offset, left.last_sequence, left.producer_id) == (
        before.last_offset,
        before.last_sequence,
        before.producer_id,
    )
