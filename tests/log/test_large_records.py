"""Protects batches that are not held whole: their records tell the same offsets and sizes, and the same faults."""

from __future__ import annotations

from itertools import chain, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcli.format import limits
from kcli.format.compression import deflate
from kcli.format.primitives import FormatError
from kcli.format.record_batch import NewRecordBatch, RecordBatch, read_header
from kcli.format.record_scan import RecordColumns
from kcli.format.records import Header, Record, encode_record, encode_records, read_record
from kcli.log.disk.os_disk import OsDisk
from kcli.log.reading.batch_records import RecordScanner, RecordWindow
from kcli.log.reading.large_records import PieceReader, record_end, scan_large_record
from kcli.log.reading.segment_reader import LogBatch, SegmentReader

records = st.builds(
    Record,
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**62), 2**62),
    st.none() | st.binary(max_size=300),
    st.none() | st.binary(max_size=300),
    st.lists(st.builds(Header, st.binary(max_size=9), st.none() | st.binary(max_size=9)), max_size=3).map(tuple),
)
EMPTY = NewRecordBatch(base_offset=2**40, last_offset_delta=9, base_timestamp=5, max_timestamp=9, record_count=1, records=b"")
HEADER = read_header(EMPTY.encode())


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    bounds = [0, *sorted({cut for cut in cuts if cut < len(data)}), len(data)]
    return [data[start:end] for start, end in pairwise(bounds)]


@given(records, st.lists(st.integers(0, 700), max_size=6), st.binary(max_size=3))
@settings(max_examples=300, deadline=None)
def test_a_record_in_pieces_is_the_record(record: Record, cuts: list[int], behind: bytes) -> None:
    """However its bytes are cut: the same offset, timestamp and sizes, and the reader stands behind it."""
    encoded = encode_record(record)
    source = PieceReader(b"", 0, iter(pieces_of(encoded + behind, cuts)))
    columns = RecordColumns(1)
    scan_large_record(HEADER, source, columns)
    assert columns.offset[0] == HEADER.base_offset + record.offset_delta
    assert columns.timestamp[0] == HEADER.base_timestamp + record.timestamp_delta
    assert columns.key_size[0] == (-1 if record.key is None else len(record.key))
    assert columns.value_size[0] == (-1 if record.value is None else len(record.value))
    assert columns.header_count[0] == len(record.headers)
    assert record_end(encoded, 0) == len(encoded)
    assert b"".join(source.walk(len(behind))) == behind and source.is_at_end()


@given(records, st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_record_is_refused_as_one_that_is_held(record: Record, drawing: st.DataObject) -> None:
    """Truncated or with a byte changed: refused where the whole record would be, and never an exception of another kind."""
    data = bytearray(encode_record(record))
    if drawing.draw(st.booleans()):
        del data[drawing.draw(st.integers(0, len(data) - 1)) :]
    else:
        data[drawing.draw(st.integers(0, len(data) - 1))] ^= drawing.draw(st.integers(1, 255))
    columns = RecordColumns(1)
    try:
        scan_large_record(HEADER, PieceReader(bytes(data), 0, iter(())), columns)
        taken: Record | None = read_record(bytes(data))[0]
    except FormatError:
        with pytest.raises(FormatError):
            held = read_record(bytes(data))[0]
            if abs(held.timestamp_delta) + 5 >= 2**63:
                raise FormatError("beyond 64 bits") from None
        return
    assert taken is not None and columns.offset[0] == HEADER.base_offset + taken.offset_delta


def windows(path: Path, *, skip_large: bool) -> list[tuple[list[int], list[int], str | None]]:
    with SegmentReader(OsDisk(), str(path)) as reader:
        batch = next(reader.batches())
        assert isinstance(batch, LogBatch)
        return [summary(window) for window in batch.windows(RecordScanner(), skip_large=skip_large)]


def summary(window: RecordWindow) -> tuple[list[int], list[int], str | None]:
    count = window.count
    error = None if window.error is None else window.error.message
    return window.columns.offset[:count].tolist(), window.columns.value_size[:count].tolist(), error


@pytest.mark.parametrize("codec", [0, 4])
@pytest.mark.parametrize("behind", [b"", b"\0", None])
def test_windows_without_the_large_ones_tell_the_same(tmp_path: Path, codec: int, behind: bytes | None) -> None:
    """A batch with a record above the window's size between small ones: the same rows either way, the same end."""
    large = limits.INFLATE_WINDOW_BYTES + 100
    data = encode_records([Record(i, i, b"k", bytes(large if i == 1 else 10)) for i in range(4)])
    data = data[:-3] if behind is None else data + behind
    if not codec:  # an uncompressed batch comes in pieces only above STREAMED_BATCH_BYTES
        data = encode_records([Record(9, 9, None, bytes(limits.STREAMED_BATCH_BYTES))]) + data
    path = tmp_path / "a.log"
    path.write_bytes(
        EMPTY._replace(
            record_count=4 if codec else 5, records=deflate(codec, data) if codec else data, attributes=codec
        ).encode()
    )
    held, walked = windows(path, skip_large=False), windows(path, skip_large=True)
    for column in (0, 1):
        assert list(chain(*(window[column] for window in held))) == list(chain(*(window[column] for window in walked)))
    assert (held[-1][2] is None) == (walked[-1][2] is None) == (behind == b"")


def test_a_reader_of_nothing_is_at_its_end() -> None:
    """An empty source has no byte, and says so by the error of a record that is cut short."""
    assert PieceReader(b"", 0, iter(())).is_at_end()
    with pytest.raises(FormatError, match="end inside a record"):
        PieceReader(b"", 0, iter((b"", b""))).byte()
    assert isinstance(HEADER, RecordBatch)
