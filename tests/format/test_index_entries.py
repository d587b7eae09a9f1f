"""Indexes: byte-identical both ways, entries as Kafka's tool prints them, lookups and checks that find what Kafka's find."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format import layouts
from kcli.format.file_names import parse_file_name
from kcli.format.index_entries import (
    AbortedTxn,
    OffsetIndex,
    OffsetIndexEntry,
    TimeIndex,
    TimeIndexEntry,
    TransactionIndex,
    overlapping_transactions,
)
from kcli.format.primitives import CorruptIndexError, FormatError
from kcli.format.structs import ABORTED_TXN, OFFSET_INDEX_ENTRY, TIME_INDEX_ENTRY
from tests.format.given_files import dump_lines, given_files

int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
small = st.integers(-3, 30)


def base_offset(name: str) -> int:
    offset = parse_file_name(name).base_offset
    assert offset is not None
    return offset


def test_offset_indexes_are_as_kafka_prints_them() -> None:
    for file in given_files("*.index"):
        index = OffsetIndex.decode(file.read_bytes(), base_offset(file.name))
        assert index.encode() == file.read_bytes()
        expected = [f"offset: {entry.offset} position: {entry.position}" for entry in index.entries()]
        lines = dump_lines(file)
        assert lines == (expected or lines) and (expected or lines[0].endswith(" is empty."))
        index.sanity_check("/x")
        assert OffsetIndex.of(index.base_offset, index.entries()).encode() == file.read_bytes()


def test_time_indexes_are_as_kafka_prints_them() -> None:
    for file in given_files("*.timeindex"):
        index = TimeIndex.decode(file.read_bytes(), base_offset(file.name))
        assert index.encode() == file.read_bytes()
        assert dump_lines(file) == [f"timestamp: {entry.timestamp} offset: {entry.offset}" for entry in index.entries()]
        index.sanity_check("/x")
        assert TimeIndex.of(index.base_offset, index.entries()).encode() == file.read_bytes()


def test_transaction_indexes_are_as_kafka_prints_them() -> None:
    aborted = 0
    for file in given_files("*.txnindex"):
        index = TransactionIndex.decode(file.read_bytes(), base_offset(file.name))
        assert index.encode() == file.read_bytes()
        assert dump_lines(file) == [
            f"version: {txn.kafka_version} producerId: {txn.producer_id} firstOffset: {txn.first_offset} "
            f"lastOffset: {txn.last_offset} lastStableOffset: {txn.last_stable_offset}"
            for txn in index.aborted
        ]
        index.sanity_check("/x")
        aborted += len(index)
    assert aborted > 0


@given(data=st.binary(max_size=400), base=st.integers(0, 2**62))
def test_any_bytes_decode_and_encode_to_themselves(data: bytes, base: int) -> None:
    for kind, size in ((OffsetIndex, 8), (TimeIndex, 12), (TransactionIndex, 34)):
        index = kind.decode(memoryview(data), base)
        assert index.encode() == data
        assert (len(index), len(index.trailing)) == divmod(len(data), size)


@given(rows=st.lists(st.tuples(int32s, int32s, int64s), max_size=20), base=st.integers(0, 2**62))
def test_columns_agree_with_the_declared_layouts(rows: list[tuple[int, int, int]], base: int) -> None:
    """The fast decoding of whole files is pinned to the declaration."""
    data = b"".join(OFFSET_INDEX_ENTRY.pack(offset, position) for offset, position, _ in rows)
    offsets = OffsetIndex.decode(data, base)
    assert [offsets.entry(i) for i in range(len(rows))] == [(base + offset, position) for offset, position, _ in rows]
    parsed = layouts.OFFSET_INDEX_ENTRY[len(rows)].parse(data)
    assert [(base + row.relative_offset, row.position) for row in parsed] == [offsets.entry(i) for i in range(len(rows))]
    data = b"".join(TIME_INDEX_ENTRY.pack(timestamp, offset) for offset, _, timestamp in rows)
    times = TimeIndex.decode(data, base)
    assert [times.entry(i) for i in range(len(rows))] == [(timestamp, base + offset) for offset, _, timestamp in rows]
    parsed = layouts.TIME_INDEX_ENTRY[len(rows)].parse(data)
    assert [(row.timestamp, base + row.relative_offset) for row in parsed] == [times.entry(i) for i in range(len(rows))]


@given(st.tuples(st.integers(-(2**15), 2**15 - 1), int64s, int64s, int64s, int64s))
def test_aborted_transactions_agree_with_the_declared_layout(values: tuple[int, ...]) -> None:
    data = ABORTED_TXN.pack(*values)
    assert TransactionIndex.decode(data, 0).aborted == [values]
    assert tuple(layouts.ABORTED_TXN.parse(data)[name] for name in AbortedTxn._fields) == values
    # Kafka takes the first byte of the two for the version.
    assert TransactionIndex.decode(data, 0).aborted[0].kafka_version == struct.unpack("b", data[:1])[0]


def test_the_tail_of_zeros_begins_at_the_second_entry_or_later() -> None:
    sound = [OffsetIndexEntry(100, 0), OffsetIndexEntry(107, 4100), OffsetIndexEntry(111, 9000)]
    data = OffsetIndex.of(100, sound).encode()
    index = OffsetIndex.decode(data + bytes(8 * 5 + 3), 100)
    assert list(index.entries()) == sound and len(index) == 8 and index.used_entries == 3
    trimmed = index.trimmed()
    assert trimmed.encode() == data and trimmed.last_offset == 111
    # What a broker preallocated and never wrote to: the first entry is taken for one.
    assert list(OffsetIndex.decode(bytes(80), 100).entries()) == [(100, 0)]
    # What follows in such a file begins at its start.
    assert len(OffsetIndex.decode(bytes(80), 100).trimmed()) == len(TimeIndex.decode(bytes(120), 100).trimmed()) == 0
    assert len(OffsetIndex.decode(bytes(8), 100).trimmed()) == len(TimeIndex.decode(bytes(12), 100).trimmed()) == 1
    times = TimeIndex.decode(TimeIndex.of(100, [TimeIndexEntry(5, 103)]).encode() + bytes(24), 100)
    assert list(times.entries()) == [(5, 103)] and times.trimmed().last_entry == (5, 103)


@given(
    keys=st.lists(st.integers(0, 2000), unique=True, max_size=3000).map(sorted), targets=st.lists(small | st.integers(0, 2100))
)
def test_lookups_find_the_last_entry_at_or_before(keys: list[int], targets: list[int]) -> None:
    index = OffsetIndex.of(1000, [OffsetIndexEntry(1000 + key, key * 3) for key in keys])
    times = TimeIndex.of(1000, [TimeIndexEntry(key, 1000 + key) for key in keys])
    for target in targets:
        below = [key for key in keys if key <= target]
        assert index.lookup(1000 + target) == ((1000 + below[-1], below[-1] * 3) if below else (1000, 0))
        assert times.lookup(target) == ((below[-1], 1000 + below[-1]) if below else (-1, 1000))


def kafka_slot(keys: list[int], target: int, warm: int) -> int:
    """Kafka's search, told in another way: which half of the file first, then halves of the range."""
    if not keys:
        return -1
    border = max(0, len(keys) - 1 - warm)
    if keys[border] < target:
        candidates = range(border, len(keys))
    elif keys[0] > target:
        return -1
    else:
        candidates = range(border + 1)
    while len(candidates) > 1:
        half = len(candidates) // 2
        middle = candidates[half]
        if keys[middle] == target:
            return middle
        candidates = candidates[half:] if keys[middle] < target else candidates[:half]
    return candidates[0]


@given(keys=st.lists(int32s | small, max_size=60), target=small)
def test_lookups_in_an_unsorted_index_end_where_kafkas_do(keys: list[int], target: int) -> None:
    data = b"".join(OFFSET_INDEX_ENTRY.pack(key, number) for number, key in enumerate(keys))
    slot = kafka_slot(keys, target, 1024)
    assert OffsetIndex.decode(data, 0).lookup(target) == ((0, 0) if slot < 0 else (keys[slot], slot))


def test_appends_keep_the_order() -> None:
    index = OffsetIndex.of(10)
    assert index.lookup(50) == (10, 0) and index.last_offset == 10
    index.append(10, 0)
    index.append(15, 4096)
    for offset in (15, 14, 9, 10 + 2**31):
        with pytest.raises(FormatError):
            index.append(offset, 5000)
    with pytest.raises(FormatError, match="does not fit"):
        OffsetIndex.of(10).append(9, 0)
    times = TimeIndex.of(10, [TimeIndexEntry(100, 12)])
    times.maybe_append(100, 14)  # the same time again: nothing to learn from it
    assert list(times.entries()) == [(100, 12)]
    times.maybe_append(101, 14)
    for timestamp, offset in ((100, 15), (102, 13), (103, 10 + 2**31)):
        with pytest.raises(FormatError):
            times.maybe_append(timestamp, offset)
    assert list(times.entries()) == [(100, 12), (101, 14)]
    aborted = TransactionIndex.decode(b"", 0)
    aborted.append(AbortedTxn(0, 1, 5, 9, 10))
    with pytest.raises(FormatError):
        aborted.append(AbortedTxn(0, 2, 6, 9, 10))


def test_truncation_drops_the_offset_and_all_above() -> None:
    for target, kept in ((200, 3), (112, 3), (111, 2), (108, 2), (107, 1), (101, 1), (100, 0), (50, 0)):
        index = OffsetIndex.of(100, [OffsetIndexEntry(100, 0), OffsetIndexEntry(107, 41), OffsetIndexEntry(111, 90)])
        times = TimeIndex.of(100, [TimeIndexEntry(1, 100), TimeIndexEntry(2, 107), TimeIndexEntry(3, 111)])
        index.truncate_to(target)
        times.truncate_to(target)
        assert (len(index), len(index.positions), len(times), len(times.relative_offsets)) == (kept,) * 4


def test_overlapping_transactions_are_those_a_reader_must_know() -> None:
    index = TransactionIndex.decode(b"", 0)
    for txn in (
        AbortedTxn(0, 1, 0, 10, 11),
        AbortedTxn(0, 2, 5, 15, 13),
        AbortedTxn(0, 3, 18, 35, 25),
        AbortedTxn(0, 4, 32, 50, 40),
    ):
        index.append(txn)
    data = index.encode()
    assert [txn.producer_id for txn in overlapping_transactions(data, 0, 100)[0]] == [1, 2, 3, 4]
    assert overlapping_transactions(data, 0, 100)[1] is False
    assert [txn.producer_id for txn in overlapping_transactions(data, 0, 32)[0]] == [1, 2, 3]
    assert [txn.producer_id for txn in overlapping_transactions(data, 0, 35)[0]] == [1, 2, 3, 4]
    assert overlapping_transactions(data, 0, 35)[1] is True
    assert [txn.producer_id for txn in overlapping_transactions(data, 10, 14)[0]] == [1, 2]
    # The first one's last stable offset says that nothing before it was open any more.
    assert [txn.producer_id for txn in overlapping_transactions(data, 0, 11)[0]] == [1]
    assert [txn.producer_id for txn in overlapping_transactions(data, 11, 16)[0]] == [2]


def test_sanity_checks_speak_kafkas_words() -> None:
    with pytest.raises(CorruptIndexError) as caught:
        OffsetIndex.decode(OFFSET_INDEX_ENTRY.pack(-1, 0), 7).sanity_check("/d/7.index")
    assert caught.value.message == (
        "Corrupt index found, index file /d/7.index has non-zero size but the last offset is 6 which is less than "
        "the base offset 7"
    )
    with pytest.raises(CorruptIndexError) as caught:
        OffsetIndex.decode(bytes(17), 0).sanity_check("/d/0.index")
    assert caught.value.message == (
        "Index file /d/0.index is corrupt, found 17 bytes which is neither positive nor a multiple of 8"
    )
    with pytest.raises(CorruptIndexError) as caught:
        TimeIndex.decode(TIME_INDEX_ENTRY.pack(9, 0) + TIME_INDEX_ENTRY.pack(3, 5), 0).sanity_check("/t")
    assert caught.value.message == (
        "Corrupt time index found, time index file (/t) has non-zero size but the last timestamp is 3 which is less than "
        "the first timestamp 9"
    )
    with pytest.raises(CorruptIndexError) as caught:
        TimeIndex.decode(TIME_INDEX_ENTRY.pack(9, -4), 20).sanity_check("/t")
    assert caught.value.message == (
        "Corrupt time index found, time index file (/t) has non-zero size but the last offset is 16 which is less than "
        "the first offset 20"
    )
    with pytest.raises(CorruptIndexError) as caught:
        TimeIndex.decode(bytes(13), 0).sanity_check("/t")
    assert (
        caught.value.message == "Time index file /t is corrupt, found 13 bytes which is neither positive nor a multiple of 12"
    )
    index = TransactionIndex.decode(ABORTED_TXN.pack(0, 1, 2, 3, 4), 9)
    with pytest.raises(CorruptIndexError) as caught:
        index.sanity_check("/x")
    assert caught.value.message == (
        "Last offset of aborted transaction AbortedTxn(version=0, producerId=1, firstOffset=2, lastOffset=3, "
        "lastStableOffset=4) in index /x is less than start offset 9"
    )
    index = TransactionIndex.decode(ABORTED_TXN.pack(0x0100, 1, 2, 30, 4), 9)
    for check in (index.sanity_check, index.check_versions):
        with pytest.raises(FormatError) as unknown:
            check("/x")
        assert unknown.value.message == (
            "Unexpected aborted transaction version 1 in transaction index /x, current version is 0"
        )
    TransactionIndex.decode(ABORTED_TXN.pack(1, 1, 2, 30, 4), 9).sanity_check("/x")
