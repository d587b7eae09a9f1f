"""Protects the search behind damage: it finds the first sound batch, takes nothing else for one, and costs a bounded number of
bytes whatever the headers on its way claim."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcli.format import limits
from kcli.format.legacy_message_set import read_legacy_header
from kcli.format.record_batch import NewRecordBatch, read_header
from kcli.log.disk.os_disk import OsFile
from kcli.log.disk.port import zeros_follow
from kcli.log.reading.batch_search import MIN_BUDGET_BYTES, SearchBudget, find_batch, streamed_crc
from tests.message_sets import NewLegacyRecord, encode_message

BATCH = NewRecordBatch(7, 0, 10, 10, 1, b"records").encode()
MESSAGE = encode_message(NewLegacyRecord(7, 10, b"k", b"v"), 1)


class Bytes:
    """A DiskFile of bytes, which counts what is read of it; `holes` are passed over."""

    name = "bytes"

    def __init__(self, data: bytes, holes_from: int | None = None) -> None:
        self.data = data
        self.bytes_read = 0
        self._holes_from = holes_from

    def size(self) -> int:
        return len(self.data)

    def read_into(self, position: int, buffer: memoryview) -> int:
        piece = self.read_at(position, len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def read_at(self, position: int, size: int) -> bytes:
        piece = self.data[position : position + size]
        self.bytes_read += len(piece)
        return piece

    def next_data(self, position: int) -> int:
        if self._holes_from is not None and position >= self._holes_from:
            return len(self.data)
        return position

    def close(self) -> None:
        return None


def found_at(data: bytes, position: int = 0, *, legacy: bool = False, end: int | None = None) -> int | None:
    return find_batch(Bytes(data), position, len(data) if end is None else end, legacy=legacy)


@given(st.binary(max_size=300), st.binary(max_size=100), st.sampled_from([BATCH, MESSAGE]))
@settings(max_examples=200)
def test_it_finds_the_first(before: bytes, behind: bytes, batch: bytes) -> None:
    """Wherever a sound batch begins, at or behind the place that it is told; nothing where there is none."""
    data = before + batch + batch + behind
    legacy = batch is MESSAGE
    assert found_at(data, legacy=legacy) == len(before)
    assert found_at(data, len(before) + 1, legacy=legacy) == len(before) + len(batch)
    assert found_at(data, len(before) + len(batch) + 1, legacy=legacy) is None
    assert found_at(data, legacy=legacy, end=len(before) + len(batch) - 1) is None
    assert found_at(before + batch[:-1], legacy=legacy) is None


@pytest.mark.parametrize("distance", [4096 - 61, 4096 - 17, 4096 - 1, 4096, 4097, limits.READ_CHUNK_BYTES * 3 - 20])
@pytest.mark.parametrize("filler", [b"\x00", b"\x02"])
def test_it_looks_across_pieces(distance: int, filler: bytes) -> None:
    """A batch that begins in one piece and ends in the next is found, behind zeros and behind would-be headers."""
    assert found_at(filler * distance + BATCH) == distance


@given(st.integers(0, len(BATCH) - 1), st.integers(0, 7))
def test_a_batch_with_a_flipped_bit_is_none(at: int, bit: int) -> None:
    """Where its CRC looks, or where its size and magic stand."""
    flipped = bytearray(BATCH)
    flipped[at] ^= 1 << bit
    expected = 3 if 1 <= at < 8 or 12 <= at < 16 or (at == 0 and bit < 7) else None
    assert found_at(b"abc" + flipped) == expected


def test_messages_only_where_they_may_be() -> None:
    """Small messages look like much; they count only where the log has them."""
    data = b"abc" + MESSAGE + BATCH
    assert found_at(data) == 3 + len(MESSAGE) and found_at(data, legacy=True) == 3


def test_lies_cost_no_more_than_the_budget() -> None:
    """A thousand headers that each claim most of the file: the CRCs of five are paid for, and then that of a small batch."""
    lying = bytearray(BATCH[:61])
    lying[8:12] = (200_000).to_bytes(4, "big")
    data = bytes(lying) * 1000 + bytes(200_000)
    file = Bytes(data + BATCH)
    budget = SearchBudget(0)
    budget.left = 5 * 200_000 + 100
    assert find_batch(file, 0, file.size(), budget=budget) == len(data)
    assert budget.left == 100 and file.bytes_read < 5 * 200_000 + 2 * len(data)


def test_what_is_found_is_not_spent() -> None:
    """Only bytes that were read in vain count."""
    budget = SearchBudget(100)
    assert budget.left == MIN_BUDGET_BYTES
    assert find_batch(Bytes(b"abc" + BATCH), 0, 3 + len(BATCH), budget=budget) == 3 and budget.left == MIN_BUDGET_BYTES
    assert budget.take(MIN_BUDGET_BYTES) and not budget.take(1)


def test_holes_are_not_read(tmp_path: Path) -> None:
    """Behind a hole of 1 TB the batch is found; of nothing but holes nothing is read."""
    path = tmp_path / "sparse"
    path.write_bytes(b"garbage")
    os.truncate(path, 1 << 40)
    with open(path, "r+b") as file:
        file.seek((1 << 40) - len(BATCH))
        file.write(BATCH)
    opened = OsFile(str(path))
    assert find_batch(opened, 0, 1 << 40) == (1 << 40) - len(BATCH)
    assert not zeros_follow(opened, 7, 1 << 40) and zeros_follow(opened, 7, (1 << 40) - len(BATCH) - 4096)
    opened.close()


@pytest.mark.parametrize("size", [1, 16, 4095, 4096, 4097, 3_000_000])
def test_zeros(size: int) -> None:
    """Nothing but zeros, up to the end that is asked for; one other byte is seen wherever it is."""
    assert zeros_follow(Bytes(bytes(size)), 0, size)
    assert zeros_follow(Bytes(bytes(size) + b"x"), 0, size)
    for at in {0, size // 2, size - 1}:
        data = bytearray(size)
        data[at] = 1
        assert not zeros_follow(Bytes(bytes(data)), 0, size)
        assert zeros_follow(Bytes(bytes(data)), at + 1, size)
    assert zeros_follow(Bytes(b"x"), 1, 100), "a file that has shrunk"


@given(st.binary(max_size=3_000))
def test_a_crc_in_pieces(records: bytes) -> None:
    """The CRC of a batch that is not held is the one in its header; None where the file has shrunk."""
    data = NewRecordBatch(7, 0, 10, 10, 1, records).encode()
    assert streamed_crc(Bytes(b"ab" + data), read_header(data, 0, 2)) == read_header(data).crc
    assert streamed_crc(Bytes(data[:-1]), read_header(data)) is None
    message = encode_message(NewLegacyRecord(7, 10, None, records), 0)
    assert streamed_crc(Bytes(message), read_legacy_header(message)) == read_legacy_header(message).crc
