"""Protects the decoding of fetched records: every codec, what is left out, and bytes that a broker should not send."""

from __future__ import annotations

import pickle
import random
from types import ModuleType
from typing import Any

import pytest

from kcli.client.consumer import arrow_records, completed_fetch, consumer_record
from kcli.client.errors import FetchedRecordError, RecordDeserializationError
from kcli.format.compression import CODECS, deflate
from kcli.format.end_transaction_marker import KEY, VALUE
from kcli.format.record_batch import CONTROL_FLAG, LOG_APPEND_TIME_FLAG, TRANSACTIONAL_FLAG, NewRecordBatch
from kcli.format.record_scan import RecordColumns
from kcli.format.records import Header, Record, encode_records
from tests.interpreted import interpreted

_PLAIN_RECORD = interpreted(consumer_record)
_PLAIN_ARROW = interpreted(arrow_records)
INTERPRETED = interpreted(completed_fetch, consumer_record=_PLAIN_RECORD, arrow_records=_PLAIN_ARROW)
MODULES = [completed_fetch, INTERPRETED]
BUILDERS = {completed_fetch: arrow_records, INTERPRETED: _PLAIN_ARROW}
TIME = 1_700_000_000_000
RECORDS = [
    Record(0, 0, None, b"value"),
    Record(1, 5, b"key", None, (Header(b"h", b"x"), Header("ü".encode(), None))),
    Record(2, -3, b"", b"", (Header(b"", b""),)),
    Record(5, 9, b"k" * 300, b"v" * 20_000),
]
OFFSETS = [record.offset_delta for record in RECORDS]


def batch(base: int, records: list[Record], codec: int = 0, attributes: int = 0, **fields: Any) -> bytes:
    last = fields.pop("last_offset_delta", records[-1].offset_delta if records else 0)
    encoded = deflate(codec, encode_records(records))
    made = NewRecordBatch(base, last, TIME, TIME + 9, len(records), encoded, attributes | codec)
    return made._replace(**fields).encode()


def marker(offset: int, producer: int, kind: int) -> bytes:
    record = Record(0, 0, KEY.pack(0, kind), VALUE.pack(0, 0))
    return batch(offset, [record], 0, CONTROL_FLAG | TRANSACTIONAL_FLAG, producer_id=producer, producer_epoch=0)


def fetched(module: ModuleType, data: bytes, offset: int = 0, **words: Any) -> Any:
    return module.CompletedFetch("t", 3, memoryview(data), offset, RecordColumns(64), **words)


def taken(fetch: Any, most: int = 1000) -> list[Any]:
    out: list[Any] = []
    while not fetch.is_drained:
        fetch.take(out, len(out) + most)
    return out


def rows(module: ModuleType, fetch: Any, most: int = 1000) -> list[tuple[Any, ...]]:
    """What `take_columns` makes, as tuples."""
    builder = BUILDERS[module].ArrowBuilder("t", 3)
    while not fetch.is_drained:
        fetch.take_columns(builder, most, 2**40)
    made = builder.finish()
    keys, values, names, datas = (cells(one) for one in (made.keys, made.values, made.header_keys, made.header_values))
    found = []
    for row in range(made.rows):
        first, end = made.header_lists[row], made.header_lists[row + 1]
        headers = tuple((name.decode(), data) for name, data in zip(names[first:end], datas[first:end]))
        found.append((made.offsets[row], made.timestamps[row], made.timestamp_types[row], keys[row], values[row], headers))
    return found


def cells(column: Any) -> list[bytes | None]:
    data, offsets, validity = (memoryview(one) for one in (column.data, column.offsets, column.validity))
    found = []
    for row in range(len(offsets) - 1):
        is_valid = not column.nulls or validity[row >> 3] >> (row & 7) & 1
        found.append(bytes(data[offsets[row] : offsets[row + 1]]) if is_valid else None)
    return found


def as_tuple(record: Any) -> tuple[Any, ...]:
    return (record.offset, record.timestamp, record.timestamp_type, record.key, record.value, record.headers)


EXPECTED = [
    (0, TIME, 0, None, b"value", ()),
    (1, TIME + 5, 0, b"key", None, (("h", b"x"), ("ü", None))),
    (2, TIME - 3, 0, b"", b"", (("", b""),)),
    (5, TIME + 9, 0, b"k" * 300, b"v" * 20_000, ()),
]


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("codec", CODECS)
def test_records_of_each_codec_are_as_they_were_written(module: ModuleType, codec: int) -> None:
    """As objects and as columns, in one call or in many."""
    data = batch(0, RECORDS, codec)
    for most in (1, 3, 1000):
        found = taken(fetched(module, data), most)
        assert [as_tuple(record) for record in found] == EXPECTED
        assert {(record.topic, record.partition, record.leader_epoch) for record in found} == {("t", 3, 0)}
        assert rows(module, fetched(module, data), most) == EXPECTED


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize("is_in_headers", [False, True])
def test_columns_have_about_the_bytes_that_are_enough(module: ModuleType, codec: int, is_in_headers: bool) -> None:
    """Also of records that compress well: memory is bounded, and the next call goes on where this one has ended."""
    key, value = b"k" * 10, b"v" * 1000
    parts = (None, None, (Header(key, value),)) if is_in_headers else (key, value)
    records = [Record(at, at, *parts) for at in range(50)]
    fetch = fetched(module, b"".join(batch(at * 50, records, codec) for at in range(20)))
    counts = []
    while not fetch.is_drained:
        builder = BUILDERS[module].ArrowBuilder("t", 3)
        first = fetch.next_offset
        taken_rows = fetch.take_columns(builder, 10_000, 100_000)
        assert builder.size_bytes() == 1010 * taken_rows <= 100_000 + 64 * 1010
        assert list(builder.finish().offsets[:taken_rows]) == list(range(first, first + taken_rows))
        counts.append(taken_rows)
    assert sum(counts) == 1000 and min(counts[:-2]) >= 100


@pytest.mark.parametrize("module", MODULES)
def test_log_append_time_is_that_of_the_batch(module: ModuleType) -> None:
    data = batch(0, RECORDS, 0, LOG_APPEND_TIME_FLAG, max_timestamp=77)
    assert {(one.timestamp, one.timestamp_type) for one in taken(fetched(module, data))} == {(77, 1)}
    assert {one[1:3] for one in rows(module, fetched(module, data))} == {(77, 1)}


@pytest.mark.parametrize("module", MODULES)
def test_records_before_the_wanted_offset_are_left_out(module: ModuleType) -> None:
    data = batch(0, RECORDS) + batch(6, RECORDS, 4)
    for offset in range(12):
        expected = [one for one in [*OFFSETS, *(6 + delta for delta in OFFSETS)] if one >= offset]
        assert [record.offset for record in taken(fetched(module, data, offset))] == expected
        assert [one[0] for one in rows(module, fetched(module, data, offset))] == expected


@pytest.mark.parametrize("module", MODULES)
def test_aborted_records_markers_and_empty_batches_are_left_out(module: ModuleType) -> None:
    """Of two producers whose transactions overlap; without a list of aborted transactions, only the markers are."""
    words = {"attributes": TRANSACTIONAL_FLAG, "producer_epoch": 0}
    data = (
        batch(0, RECORDS, producer_id=1, **words)
        + batch(6, RECORDS, producer_id=2, **words)
        + marker(12, 1, 0)
        + batch(13, RECORDS, producer_id=1, **words)
        + batch(19, [], last_offset_delta=4)
        + marker(24, 2, 1)
        + marker(25, 1, 1)
    )
    fetch = fetched(module, data, aborted=[(1, 0)])
    assert [record.offset for record in taken(fetch)] == [6 + one for one in OFFSETS] + [13 + one for one in OFFSETS]
    assert fetch.next_offset == 26
    assert len(taken(fetched(module, data))) == 12
    assert rows(module, fetched(module, data, aborted=[(1, 0)]))[0][0] == 6


@pytest.mark.parametrize("module", MODULES)
def test_the_end_of_an_answer_may_cut_a_batch_anywhere(module: ModuleType) -> None:
    """What is whole is returned, and the next fetch begins with the batch that is not."""
    data = batch(0, RECORDS[:3]) + batch(3, RECORDS[:3])
    for end in range(len(data)):
        fetch = fetched(module, data[:end])
        first_size = len(data) // 2
        assert fetch.end_offset() == (3 if end >= first_size else 0)
        assert len(taken(fetch)) == (3 if end >= first_size else 0)
        assert fetch.next_offset == (3 if end >= first_size else 0)


@pytest.mark.parametrize("module", MODULES)
def test_a_wrong_crc_is_an_error_that_can_be_passed(module: ModuleType) -> None:
    """The sound batch before it comes first; the error names the place and where to continue."""
    damaged = bytearray(batch(0, RECORDS) + batch(6, RECORDS))
    damaged[-5] ^= 1
    fetch = fetched(module, bytes(damaged))
    out: list[Any] = []
    assert fetch.take(out, 100) == 4
    for _ in range(2):
        with pytest.raises(FetchedRecordError, match=r"t-3@6: the CRC of the batch is wrong.*seek to offset 12") as caught:
            fetch.take([], 100)
    assert (caught.value.offset, caught.value.next_offset) == (6, 12)
    assert len(taken(fetched(module, bytes(damaged), checks_crcs=False))) == 8


@pytest.mark.parametrize("module", MODULES)
def test_a_record_that_a_deserializer_refuses_is_named(module: ModuleType) -> None:
    """Those before it are returned; null keys and values are not deserialized."""

    def refuse(data: bytes) -> str:
        if data == b"":
            raise ValueError("empty")
        return data.decode()

    fetch = fetched(module, batch(10, RECORDS), 10)
    out: list[Any] = []
    assert fetch.take(out, 100, None, refuse) == 2
    assert [one.value for one in out] == ["value", None]
    with pytest.raises(
        RecordDeserializationError, match="t-3@12: the value cannot be deserialized: ValueError: empty"
    ) as caught:
        fetch.take([], 100, None, refuse)
    assert caught.value.next_offset == 13 and isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("seed", range(4))
def test_no_bytes_lead_to_another_error(module: ModuleType, seed: int) -> None:
    """Flipped and lying bytes, with right CRCs too: an answer ends or is an error, and the offset never goes back."""
    rng = random.Random(seed)
    for _ in range(150):
        codec = rng.choice(list(CODECS))
        data = bytearray(batch(0, RECORDS[:3], codec) + batch(3, RECORDS[:3], codec))
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        fetch = fetched(module, bytes(data[: rng.randint(1, len(data))]), checks_crcs=rng.random() < 0.3)
        builder = BUILDERS[module].ArrowBuilder("t", 3)
        out: list[Any] = []
        offset = 0
        assert fetch.end_offset() >= 0
        for _ in range(20):
            if fetch.is_drained:
                break
            try:
                fetch.take(out, 1) if seed % 2 else fetch.take_columns(builder, 1, 2**40)
            except FetchedRecordError as error:
                assert error.next_offset > error.offset >= 0
                break
            if fetch.error is not None:
                break
            assert fetch.next_offset >= offset
            offset = fetch.next_offset
        assert [one.offset for one in out] == sorted({one.offset for one in out})


def test_a_record_is_a_value() -> None:
    """It has an equal copy by pickle, and shows its fields."""
    (record,) = taken(fetched(completed_fetch, batch(0, RECORDS[:1])))
    assert pickle.loads(pickle.dumps(record)) == record != None  # noqa: E711
    assert hash(record) == hash(pickle.loads(pickle.dumps(record)))
    assert "offset=0" in repr(record) and "b'value'" in repr(record)
