"""Producer snapshots: byte-identical both ways, entries as Kafka's tool prints them, faults in Kafka's words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format import layouts
from kcli.format.primitives import CorruptSnapshotError, crc32c
from kcli.format.producer_snapshot import (
    HEADER,
    ProducerEntry,
    decode_producer_snapshot,
    encode_producer_snapshot,
)
from tests.format.damaged_bytes import damaged
from tests.format.given_files import dump_lines, given_files

int16s, int32s, int64s = (st.integers(-(2**bits), 2**bits - 1) for bits in (15, 31, 63))
entries = st.builds(ProducerEntry, int64s, int16s, int32s, int64s, int32s, int64s, int32s, int64s)
snapshots = st.lists(entries, max_size=6).map(encode_producer_snapshot)


def optional(value: int | None) -> str:
    return "OptionalLong.empty" if value is None else f"OptionalLong[{value}]"


def test_snapshots_are_as_kafka_prints_them() -> None:
    with_batch = 0
    for file in given_files("*.snapshot"):
        snapshot = decode_producer_snapshot(file.read_bytes())
        assert encode_producer_snapshot(snapshot.entries) == file.read_bytes() and not snapshot.trailing
        expected = []
        for entry in snapshot.entries:
            line = (
                f"producerId: {entry.producer_id} producerEpoch: {entry.producer_epoch} coordinatorEpoch: "
                f"{entry.coordinator_epoch} currentTxnFirstOffset: {optional(entry.open_txn_first_offset)} "
                f"lastTimestamp: {entry.timestamp}"
            )
            if entry.has_batch:
                with_batch += 1
                line += (
                    f" firstSequence: {entry.first_sequence} lastSequence: {entry.last_sequence} lastOffset: "
                    f"{entry.last_offset} offsetDelta: {entry.offset_delta} timestamp: {entry.timestamp}"
                )
            expected.append(line)
        assert dump_lines(file) == expected
    assert with_batch > 0


@given(wanted=st.lists(entries, max_size=6), trailing=st.binary(max_size=5))
def test_any_entries_come_back_in_their_order(wanted: list[ProducerEntry], trailing: bytes) -> None:
    """Doubled producers and odd values too: what to make of them is the reader's affair."""
    data = encode_producer_snapshot([*wanted, *wanted], trailing)
    snapshot = decode_producer_snapshot(memoryview(data))
    assert snapshot.entries == (*wanted, *wanted) and snapshot.trailing == trailing
    assert encode_producer_snapshot(*snapshot) == data


@given(wanted=st.lists(entries, max_size=4))
def test_the_layout_is_the_declared_one(wanted: list[ProducerEntry]) -> None:
    data = encode_producer_snapshot(wanted)
    head = layouts.PRODUCER_SNAPSHOT_HEADER.parse(data)
    assert (head.version, head.crc, head.count) == (1, crc32c(data[6:]), len(wanted))
    rows = layouts.PRODUCER_SNAPSHOT_ENTRY[head.count].parse(data[HEADER.size :])
    assert [tuple(row[name] for name in ProducerEntry._fields) for row in rows] == wanted


@given(spoilt=damaged(snapshots) | st.binary(max_size=120))
def test_damage_raises_corrupt_snapshot_errors_only(spoilt: bytes) -> None:
    try:
        snapshot = decode_producer_snapshot(spoilt)
    except CorruptSnapshotError:
        return
    assert encode_producer_snapshot(*snapshot) == spoilt


@given(sound=st.lists(entries, min_size=1, max_size=4).map(encode_producer_snapshot), data=st.data())
def test_every_flipped_bit_and_every_truncation_is_noticed(sound: bytes, data: st.DataObject) -> None:
    bit = data.draw(st.integers(0, 8 * len(sound) - 1))
    flipped = bytearray(sound)
    flipped[bit // 8] ^= 1 << bit % 8
    for spoilt in (flipped, sound[: data.draw(st.integers(0, len(sound) - 1))]):
        with pytest.raises(CorruptSnapshotError):
            decode_producer_snapshot(spoilt)


def test_faults_are_told_in_kafkas_words() -> None:
    sound = encode_producer_snapshot([ProducerEntry(1, 2, 3, 4, 0, 5, 6, -1)])
    schema = "Snapshot failed schema validation: "
    spoilt = {
        b"": schema + "null",
        sound[:9]: schema + "null",
        sound[:-1]: schema + "null",
        b"\0\2" + sound[2:]: schema + "Snapshot contained an unknown file version 2",
        b"\xff\xff" + sound[2:]: schema + "Snapshot contained an unknown file version -1",
        sound[:6] + b"\xff\xff\xff\xff" + sound[10:]: schema + "non-nullable field producerEntries was serialized as null",
        sound[:6] + b"\0\0\1\0" + sound[10:]: schema
        + "Tried to allocate a collection of size 256, but there are only 46 bytes remaining.",
    }
    for data, message in spoilt.items():
        with pytest.raises(CorruptSnapshotError) as caught:
            decode_producer_snapshot(data)
        assert caught.value.message == message
    stored, computed = 0xFFFF_FFFF, crc32c(sound[6:])
    with pytest.raises(CorruptSnapshotError) as caught:
        decode_producer_snapshot(sound[:2] + b"\xff\xff\xff\xff" + sound[6:])
    assert caught.value.message == (
        f"Snapshot is corrupt (CRC is no longer valid). Stored crc: {stored}. Computed crc: {computed}"
    )


def test_sequences_wrap_below_zero() -> None:
    assert ProducerEntry(1, 0, 2, 10, 5, 0, 0, -1).first_sequence == 2**31 - 3
    assert ProducerEntry(1, 0, 5, 10, 5, 0, 0, -1).first_sequence == 0
    assert ProducerEntry(1, 0, 5, 10, 5, 0, 0, -1).first_offset == 5
