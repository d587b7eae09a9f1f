"""Message formats 0 and 1: as Kafka's tool prints them, byte-identical both ways, pinned to their declaration, bounded."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format import layouts, limits
from kcli.format.compression import codec_name, deflate, inflate
from kcli.format.legacy_message_set import HEAD, LegacyBatch, LegacyRecord, iter_records, legacy_crc, read_legacy_header
from kcli.format.primitives import CorruptRecordError, FormatError, InflationError, InvalidRecordError
from tests.conftest import peak_bytes
from tests.format.damaged_bytes import damaged
from tests.format.given_files import dump_lines, given_files
from tests.message_sets import NewLegacyRecord, encode_message, encode_message_set

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
int64s = st.integers(-(2**63), 2**63 - 1)
blobs = st.none() | st.binary(max_size=30)
magics = st.sampled_from([0, 1])
codecs = st.sampled_from([0, GZIP, SNAPPY, LZ4])
contents = st.lists(st.tuples(st.integers(-1, 2**42), blobs, blobs), min_size=1, max_size=8)


def records_of(rows: list[tuple[int, bytes | None, bytes | None]], base_offset: int) -> list[NewLegacyRecord]:
    return [NewLegacyRecord(base_offset + i, timestamp, key, value) for i, (timestamp, key, value) in enumerate(rows)]


message_sets = st.builds(
    lambda rows, base, magic, codec: encode_message_set(records_of(rows, base), magic=magic, codec=codec),
    contents,
    st.integers(0, 2**40),
    magics,
    codecs,
)


def entries(data: bytes) -> list[tuple[LegacyBatch, bytes]]:
    found, position = [], 0
    while position < len(data):
        batch = read_legacy_header(data, position, position)
        found.append((batch, data[position : batch.end_position]))
        position = batch.end_position
    return found


def opened(data: bytes) -> list[LegacyRecord]:
    return [record for batch, entry in entries(data) for record in iter_records(batch, entry)]


def legacy_logs() -> list[Path]:
    return [file for file in given_files("*.log") if file.parent.name.startswith(("magic0", "magic1"))]


def printed(batch: LegacyBatch, entry: bytes) -> list[str]:
    kind = "NoTimestampType" if batch.magic == 0 else "LogAppendTime" if batch.is_log_append_time else "CreateTime"
    lines = [
        f"offset: {batch.last_offset} position: {batch.position} {kind}: {batch.max_timestamp} size: {batch.size_bytes} magic: "
        f"{batch.magic} compresscodec: {codec_name(batch.codec)} crc: {batch.crc} isvalid: {legacy_crc(entry) == batch.crc}"
    ]
    for record in iter_records(batch, entry):
        line = (
            f"| offset: {record.offset} {kind}: {record.timestamp} keySize: {record.key_size} valueSize: {record.value_size} "
            f"isValid: {record.is_valid} crc: {record.crc}"
        )
        line += "" if record.key is None else f" key: {record.key.decode()}"
        lines.append(line + ("" if record.value is None else f" payload: {record.value.decode()}"))
    return [line.replace("True", "true") for line in lines]


def test_given_sets_are_as_kafka_prints_them() -> None:
    """Nested sets with absolute and relative offsets, LogAppendTime wrappers, nulls, all three codecs."""
    seen = set()
    for file in legacy_logs():
        data = file.read_bytes()
        expected = [line for batch, entry in entries(data) for line in printed(batch, entry)]
        assert dump_lines(file)[1:] == expected
        seen |= {(batch.magic, batch.codec) for batch, _ in entries(data)}
    assert seen >= {(magic, codec) for magic in (0, 1) for codec in (0, GZIP, SNAPPY, LZ4)}


def test_given_entries_come_back_byte_for_byte() -> None:
    """The wrappers with their payload opaque, and the entries inside them."""
    for file in legacy_logs():
        for batch, entry in entries(file.read_bytes()):
            (own,) = iter_records(batch._replace(attributes=batch.attributes & ~7), entry)
            assert encode_message(own, batch.magic, batch.attributes) == entry
            if batch.codec:
                assert own.value is not None
                inside = inflate(batch.codec, own.value, limit=2**24, magic=batch.magic)
                for inner, inner_entry in entries(inside):
                    (record,) = iter_records(inner, inner_entry)
                    assert encode_message(record, inner.magic, inner.attributes) == inner_entry


@given(rows=contents, base=st.integers(0, 2**40), magic=magics, codec=codecs, append_time=st.none() | st.integers(0, 2**42))
def test_what_is_written_is_read_back(
    rows: list[tuple[int, bytes | None, bytes | None]], base: int, magic: int, codec: int, append_time: int | None
) -> None:
    records = records_of(rows, base)
    data = encode_message_set(records, magic=magic, codec=codec, log_append_time_ms=append_time)
    back = opened(data)
    assert [(record.offset, record.key, record.value) for record in back] == [
        (record.offset, record.key, record.value) for record in records
    ]
    assert all(record.is_valid for record in back)
    for record, wanted in zip(back, records, strict=True):
        expected = -1 if magic == 0 else wanted.timestamp if append_time is None else append_time
        assert record.timestamp == expected
    for batch, entry in entries(data):
        assert legacy_crc(entry) == batch.crc and batch.codec == codec
    if codec:
        assert [batch.last_offset for batch, _ in entries(data)] == [records[-1].offset]


@given(
    offset=int64s,
    timestamp=int64s,
    key=blobs,
    value=blobs,
    magic=magics,
    attributes=st.integers(0, 15).map(lambda bits: bits & 8),
)
def test_the_hand_code_is_pinned_to_the_declaration(
    offset: int, timestamp: int, key: bytes | None, value: bytes | None, magic: int, attributes: int
) -> None:
    entry = encode_message(NewLegacyRecord(offset, timestamp, key, value), magic, attributes)
    declared = layouts.MESSAGE.parse(entry)
    batch = read_legacy_header(entry)
    (record,) = iter_records(batch, entry)
    assert batch == (0, declared.offset, declared.size, declared.crc, declared.magic, declared.attributes, declared.timestamp)
    assert record == (
        declared.offset,
        declared.timestamp,
        declared.key,
        declared.value,
        declared.key_size,
        declared.value_size,
        declared.crc,
        True,
        declared.magic,
        declared.attributes,
        None,
    )
    assert layouts.MESSAGE.build(declared) == entry
    assert batch.size_bytes == len(entry)


@given(spoilt=damaged(message_sets), magic=magics)
def test_damage_raises_format_errors_only(spoilt: bytes, magic: int) -> None:
    position = 0
    while position < len(spoilt):
        try:
            batch = read_legacy_header(spoilt, position, position)
        except struct.error:
            assert len(spoilt) - position < 26
            return
        entry = spoilt[position : position + max(batch.size_bytes, 0)]
        try:
            for record in iter_records(batch, entry):
                assert len(record.key or b"") + len(record.value or b"") <= limits.MAX_INFLATED_MESSAGE_SET_BYTES
        except FormatError:
            pass
        position += max(batch.size_bytes, 1)


@given(sound=message_sets, data=st.data())
def test_every_truncation_of_an_entry_is_noticed(sound: bytes, data: st.DataObject) -> None:
    batch, entry = entries(sound)[0]
    size = data.draw(st.integers(0, len(entry) - 1))
    with pytest.raises(FormatError):
        list(iter_records(batch, entry[:size]))


# ------------------------------------------------------------------------------------- what only some wrappers look like


def wrap(inside: bytes, *, offset: int, magic: int = 1, codec: int = GZIP, timestamp: int = 5, attributes: int = 0) -> bytes:
    value = deflate(min(codec, LZ4), inside, magic=magic)
    return encode_message(NewLegacyRecord(offset, timestamp, None, value), magic, codec | attributes)


def inner(offset: int, value: bytes | None = b"v", *, magic: int = 1, timestamp: int = 3, attributes: int = 0) -> bytes:
    return encode_message(NewLegacyRecord(offset, timestamp, None, value), magic, attributes)


def test_offsets_of_compacted_and_of_absolute_sets() -> None:
    gaps = wrap(inner(0) + inner(4) + inner(9), offset=109)
    assert [record.offset for record in opened(gaps)] == [100, 104, 109]
    # Inner offsets that are absolute already come out as they are.
    assert [record.offset for record in opened(wrap(inner(100) + inner(109), offset=109))] == [100, 109]
    # Old librdkafka left the wrapper's offset 0.
    assert [record.offset for record in opened(wrap(inner(0) + inner(1), offset=0))] == [0, 1]
    # Format 0 has absolute ones, whatever the wrapper's.
    assert [record.offset for record in opened(wrap(inner(7, magic=0) + inner(8, magic=0), offset=99, magic=0))] == [7, 8]


def test_timestamps_of_the_wrapper_count_under_log_append_time() -> None:
    inside = inner(0, timestamp=3) + inner(1, timestamp=4)
    assert [record.timestamp for record in opened(wrap(inside, offset=1))] == [3, 4]
    assert [record.timestamp for record in opened(wrap(inside, offset=1, attributes=8, timestamp=77))] == [77, 77]
    # Messages of format 0 in a wrapper of format 1 have none.
    mixed = wrap(inner(0, magic=0) + inner(1, timestamp=4), offset=1, attributes=8, timestamp=77)
    assert [(record.magic, record.timestamp) for record in opened(mixed)] == [(0, -1), (1, 77)]


def test_an_entry_cut_short_inside_is_passed_over() -> None:
    for cut in range(1, len(inner(1))):
        assert [record.offset for record in opened(wrap(inner(0) + inner(1)[:cut], offset=0))] == [0]
    # However much it claims: where the bytes end, the set does.
    claims = inner(1)[:8] + struct.pack(">i", 2**31 - 1) + inner(1)[12:]
    assert [record.offset for record in opened(wrap(inner(0) + claims, offset=0))] == [0]


def test_an_inner_message_with_a_wrong_crc_is_told_not_refused() -> None:
    spoilt = bytearray(inner(1))
    spoilt[-1] ^= 1
    assert [record.is_valid for record in opened(wrap(inner(0) + bytes(spoilt), offset=1))] == [True, False]


@pytest.mark.parametrize(
    ("entry", "error", "message"),
    [
        (
            encode_message(NewLegacyRecord(3, 1, None, None), 1, GZIP),
            InvalidRecordError,
            "Found invalid compressed record set with null value (magic = 1)",
        ),
        (wrap(b"", offset=3), InvalidRecordError, "Found invalid compressed record set with no inner records"),
        (wrap(inner(0)[:20], offset=3), InvalidRecordError, "Found invalid compressed record set with no inner records"),
        (
            wrap(inner(0), offset=3, codec=ZSTD),
            InvalidRecordError,
            "Invalid wrapper compressionType found in legacy deep record iterator 1",
        ),
        (wrap(inner(0), offset=3, codec=5), FormatError, "Unknown compression type id: 5"),
        (
            wrap(inner(0) + inner(5), offset=3),
            InvalidRecordError,
            "Found invalid wrapper offset in compressed v1 message set, wrapper offset '3' is less than the last inner message "
            "offset '5' and it is not zero.",
        ),
        (wrap(inner(0) + bytes(12), offset=3), CorruptRecordError, "Record size is less than the minimum record overhead (14)"),
    ],
    ids=["null", "empty", "cut", "zstd", "unknown codec", "offset", "size"],
)
def test_wrappers_that_kafka_refuses_give_no_message(entry: bytes, error: type[FormatError], message: str) -> None:
    seen = []
    with pytest.raises(error) as caught:
        for record in iter_records(read_legacy_header(entry), entry):
            seen.append(record)
    assert caught.value.message == message and not seen


@pytest.mark.parametrize(
    ("codec", "message"), [(GZIP, "Inner messages must not be compressed"), (6, "Unknown compression type id: 6")]
)
def test_a_compressed_message_inside_is_refused_when_it_comes(codec: int, message: str) -> None:
    entry = wrap(inner(0) + inner(1, attributes=codec) + inner(2), offset=2)
    messages = iter_records(read_legacy_header(entry), entry)
    assert next(messages).offset == 0
    with pytest.raises(FormatError) as caught:
        next(messages)
    assert caught.value.message == message


def test_sizes_that_lie_are_refused() -> None:
    for lie in (2**31 - 1, 100, 3):
        sound = inner(0, b"vv")
        for place in (26, 30):
            spoilt = sound[:place] + struct.pack(">i", lie) + sound[place + 4 :]
            with pytest.raises(InvalidRecordError):
                opened(spoilt)
    # Any negative size is null to Kafka, and printed as it stands.
    spoilt = inner(0)[:30] + struct.pack(">i", -5) + b"v"
    assert opened(spoilt)[0][3:6] == (None, -1, -5)
    # A message that calls itself format 1 and has the size of one of format 0.
    short = HEAD.pack(0, 14, 0, 1, 0) + bytes(8)
    with pytest.raises(InvalidRecordError):
        opened(short)


# ---------------------------------------------------------------------------------------------------------------- bounds


def test_a_large_set_is_walked_in_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "INFLATE_WINDOW_BYTES", 100_000)
    monkeypatch.setattr(limits, "READ_CHUNK_BYTES", 50_000)
    count = 400
    inside = b"".join(inner(i, bytes(20_000)) for i in range(count))
    for codec in (GZIP, SNAPPY, LZ4):
        entry = wrap(inside, offset=1000 + count - 1, codec=codec)
        found: list[int] = []

        def walk(entry: bytes = entry, found: list[int] = found) -> None:
            found.extend(record.offset for record in iter_records(read_legacy_header(entry), entry))

        assert peak_bytes(walk) < 4_000_000 < len(inside)
        assert found == list(range(1000, 1000 + count))


def test_a_bomb_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "INFLATE_WINDOW_BYTES", 100_000)
    monkeypatch.setattr(limits, "MAX_INFLATED_MESSAGE_SET_BYTES", 1_000_000)
    entry = wrap(inner(0) + inner(1, bytes(3_000_000)), offset=1)

    def walk() -> None:
        with pytest.raises(InflationError):
            list(iter_records(read_legacy_header(entry), entry))

    assert peak_bytes(walk) < 5_000_000
    # One in the other: the inner one is not opened.
    nested = wrap(wrap(bytes(900_000), offset=0), offset=0)
    with pytest.raises(InvalidRecordError, match="Inner messages must not be compressed"):
        list(iter_records(read_legacy_header(nested), nested))


def test_sets_that_cannot_be_are_not_written() -> None:
    record = NewLegacyRecord(0, 0, None, b"v")
    for wrong in ({"magic": 2}, {"magic": 1, "codec": ZSTD}):
        with pytest.raises(ValueError, match="no message set"):
            encode_message_set([record], **wrong)
    with pytest.raises(ValueError, match="no message set"):
        encode_message_set([], magic=1, codec=GZIP)
    assert encode_message_set([], magic=1) == b""
