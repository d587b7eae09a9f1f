"""Protects the opening of batches: whatever the codec, the size of windows and pieces, the same records; of damaged ones those
before the fault, and the fault in the last window, never raised."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcli.format import limits
from kcli.format.compression import CODECS, codec_id, deflate
from kcli.format.primitives import FormatError, InflationError, InvalidRecordError, RecordTooLargeError
from kcli.format.record_batch import NewRecordBatch
from kcli.format.records import Header, Record, encode_records, read_records
from kcli.log.disk.os_disk import OsDisk
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.segment_reader import LogBatch, SegmentReader
from tests.format.damaged_bytes import damaged
from tests.message_sets import NewLegacyRecord, encode_message_set

Row = tuple[int, int, bytes | None, bytes | None, tuple[Header, ...]]
blobs = st.none() | st.binary(max_size=20) | st.integers(100, 600).map(bytes)
rows = st.lists(
    st.builds(
        Record,
        st.integers(0, 1000),
        st.integers(-1000, 1000),
        blobs,
        blobs,
        st.lists(st.builds(Header, st.binary(max_size=5), blobs), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=12,
)
codecs = st.sampled_from(sorted(CODECS))


@contextmanager
def small_limits(**values: int) -> Iterator[None]:
    """Bounds so small that every way of opening a batch is taken by a few hundred bytes."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in values.items():
            patch.setattr(limits, name, value)
        yield


def a_batch(records: bytes, count: int, codec: int = 0, **fields: Any) -> bytes:
    deflated = deflate(codec, records) if codec else records
    return NewRecordBatch(1000, 2000, 5000, 6000, count, deflated, attributes=codec, **fields).encode()


class Opened:
    """What the windows of the first batch told."""

    def __init__(self, data: bytes, *, capacity: int = limits.SCAN_WINDOW_RECORDS, lenient: bool = False) -> None:
        self.rows: list[Row] = []
        self.error: FormatError | None = None
        self.leftover = False
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "a.log")
            path.write_bytes(data)
            with SegmentReader(OsDisk(), str(path)) as reader:
                batch = next(reader.batches())
                assert isinstance(batch, LogBatch)
                for window in batch.windows(RecordScanner(capacity), lenient=lenient):
                    assert self.error is None, "with an error no window follows"
                    assert window.first_index == len(self.rows) and window.count <= capacity
                    assert window.count or window.error
                    for index in range(window.count):
                        columns = window.columns
                        place = (columns.offset[index], columns.timestamp[index])
                        self.rows.append((*place, window.key(index), window.value(index), window.headers(index)))
                    self.error, self.leftover = window.error, window.leftover


def expected(records: list[Record]) -> list[Row]:
    return [(1000 + r.offset_delta, 5000 + r.timestamp_delta, r.key, r.value, r.headers) for r in records]


@given(rows, codecs, st.integers(1, 5), st.booleans(), st.booleans())
def test_every_way_gives_the_same_records(records: list[Record], codec: int, capacity: int, large: bool, pieces: bool) -> None:
    """Held or streamed, inflated at once or in pieces, in windows of any number of records."""
    bounds = {"STREAMED_BATCH_BYTES": 100} if large else {}
    if pieces:
        bounds |= {"INFLATE_WINDOW_BYTES": 150, "READ_CHUNK_BYTES": 70}
    with small_limits(**bounds):
        opened = Opened(a_batch(encode_records(records), len(records), codec), capacity=capacity)
    assert opened.rows == expected(records) and opened.error is None


@given(rows, codecs, st.booleans(), st.binary(min_size=1, max_size=200))
def test_what_is_left_behind(records: list[Record], codec: int, pieces: bool, rest: bytes) -> None:
    """Bytes behind the last record: all records, and a fault that says so."""
    with small_limits(**({"STREAMED_BATCH_BYTES": 80, "INFLATE_WINDOW_BYTES": 80, "READ_CHUNK_BYTES": 70} if pieces else {})):
        opened = Opened(a_batch(encode_records(records) + rest, len(records), codec))
    assert opened.rows == expected(records) and opened.leftover
    assert isinstance(opened.error, InvalidRecordError) and "left behind the last record" in opened.error.message


@given(rows, codecs, st.booleans(), st.data())
@settings(max_examples=200)
def test_records_cut_short(records: list[Record], codec: int, pieces: bool, data: st.DataObject) -> None:
    """Cut before they were deflated: those that are whole, and a fault at the next, by its number."""
    encoded = encode_records(records)
    cut = encoded[: data.draw(st.integers(0, len(encoded) - 1))]
    whole = next(count for count in range(len(records), -1, -1) if len(encode_records(records[:count])) <= len(cut))
    with small_limits(**({"STREAMED_BATCH_BYTES": 80, "INFLATE_WINDOW_BYTES": 80, "READ_CHUNK_BYTES": 70} if pieces else {})):
        opened = Opened(a_batch(cut, len(records), codec))
    assert opened.rows == expected(records[:whole])
    assert isinstance(opened.error, InvalidRecordError) and f"record {whole} of {len(records)}" in opened.error.message


@given(rows, codecs, st.booleans(), st.data())
@settings(max_examples=300)
def test_damaged_payloads(records: list[Record], codec: int, pieces: bool, data: st.DataObject) -> None:
    """Damage to the bytes as they lie in the file never raises; held or in pieces, an uncompressed batch tells the same."""
    encoded = encode_records(records)
    payload = data.draw(damaged(st.just(deflate(codec, encoded) if codec else encoded)))
    batch = NewRecordBatch(1000, 2000, 5000, 6000, len(records), payload, attributes=codec).encode()
    small = {"STREAMED_BATCH_BYTES": 80, "INFLATE_WINDOW_BYTES": 80, "READ_CHUNK_BYTES": 70}
    with small_limits(**(small if pieces else {})):
        opened = Opened(batch)
    if codec:
        return
    told: list[Record] = []
    try:
        told.extend(read_records(payload, len(records)))
    except FormatError:
        assert opened.error is not None
    else:
        assert opened.rows == expected(told) and opened.error is None


@pytest.mark.parametrize("codec", [codec_id("gzip"), codec_id("snappy"), codec_id("lz4"), codec_id("zstd")])
def test_what_inflates_before_a_fault_is_shown(codec: int) -> None:
    """Of a large compressed batch that is damaged in its last tenth: the records before, then the fault."""
    import random

    rng = random.Random(1)
    records = [Record(i, i, b"key", rng.randbytes(1000)) for i in range(1000)]
    deflated = bytearray(deflate(codec, encode_records(records)))
    at = len(deflated) * 9 // 10
    deflated[at : at + 2000] = bytes(2000)
    opened = Opened(NewRecordBatch(1000, 2000, 5000, 6000, 1000, bytes(deflated), attributes=codec).encode())
    assert opened.error is not None and 500 < len(opened.rows) < 1000
    sound = expected(records)
    assert sum(row == sound[index] for index, row in enumerate(opened.rows)) > 500


@pytest.mark.parametrize(
    ("count", "attributes", "message"),
    [(-1, 0, "states -1 records"), (1, 7, "Unknown compression type id: 7"), (1, 5, "Unknown compression type id: 5")],
)
def test_headers_that_cannot_be(count: int, attributes: int, message: str) -> None:
    """A negative count, a codec that nobody knows: a fault and no record."""
    opened = Opened(NewRecordBatch(0, 0, 0, 0, count, b"abc", attributes).encode())
    assert not opened.rows and opened.error is not None and message in opened.error.message


def test_an_empty_batch_has_no_window() -> None:
    """What the cleaner leaves is nothing to open."""
    opened = Opened(NewRecordBatch(0, 9, 0, 0, 0, b"").encode())
    assert not opened.rows and opened.error is None


@pytest.mark.parametrize("codec", [0, codec_id("zstd")])
def test_a_record_too_large_to_hold(codec: int) -> None:
    """Refused by who must hold it whole, before it is held; what stands before it is shown."""
    records = [Record(0, 0, b"k", b"v"), Record(1, 0, b"k", bytes(5000))]
    with small_limits(MAX_RECORD_BYTES=2000, STREAMED_BATCH_BYTES=200, INFLATE_WINDOW_BYTES=200, READ_CHUNK_BYTES=100):
        opened = Opened(a_batch(encode_records(records), 2, codec))
    assert opened.rows == expected(records[:1]) and isinstance(opened.error, RecordTooLargeError)


@given(
    st.lists(st.tuples(st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=300)), min_size=1, max_size=9),
    st.sampled_from([0, 1]),
    st.sampled_from([0, 1, 2, 3]),
    st.integers(1, 4),
)
def test_old_formats(pairs: list[tuple[bytes | None, bytes | None]], magic: int, codec: int, capacity: int) -> None:
    """Messages of formats 0 and 1 come as columns of the same shape, in windows of any number."""
    messages = [NewLegacyRecord(7 + i, 100 + i, key, value) for i, (key, value) in enumerate(pairs if codec else pairs[:1])]
    with small_limits(INFLATE_WINDOW_BYTES=500):
        opened = Opened(encode_message_set(messages, magic=magic, codec=codec), capacity=capacity)
    timestamps = [message.timestamp if magic else -1 for message in messages]
    assert [row[:4] for row in opened.rows] == [
        (message.offset, timestamp, message.key, message.value) for message, timestamp in zip(messages, timestamps, strict=True)
    ]
    assert opened.error is None


@given(damaged(st.just(encode_message_set([NewLegacyRecord(i, 5, b"k", b"value") for i in range(5)], magic=1, codec=1))))
def test_damaged_old_formats(data: bytes) -> None:
    """Damage inside a wrapper never raises: messages, and a fault."""
    if len(data) < 30 or data[16] > 1 or int.from_bytes(data[8:12], "big") != len(data) - 12:
        return
    opened = Opened(data)
    assert opened.error is None or isinstance(opened.error, FormatError | InflationError)
