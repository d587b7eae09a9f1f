"""Protects the look at records that inflate to much: in windows it finds what it finds in one piece, and holds little."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kcli.format.codec_streams import GZIP, LZ4, SNAPPY, ZSTD
from kcli.format.compression import deflate
from kcli.format.record_batch import NewRecordBatch
from kcli.format.records import Header, Record, encode_records
from kcli.log import record_validator
from kcli.log.errors import AppendError
from kcli.log.log_config import LogConfig
from kcli.log.log_validator import AppendOrigin, validated_batch
from kcli.log.record_validator import validate_records

NOW_MS = 1_750_000_000_000
SIZES = st.one_of(st.none(), st.integers(0, 20), st.integers(30, 400))
HEADERS = st.lists(st.tuples(st.binary(max_size=3), st.one_of(st.none(), st.binary(max_size=90))), max_size=3)
RECORDS = st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 2), SIZES, SIZES, HEADERS), min_size=1, max_size=8)


def outcome(data: bytes, count: int, codec: int) -> Any:
    """What becomes of a batch with these record bytes."""
    made = NewRecordBatch(0, count - 1, NOW_MS, NOW_MS + 5, count, deflate(codec, data), codec).encode()
    batch = validated_batch(memoryview(bytearray(made)), len(made), LogConfig(), AppendOrigin.CLIENT)
    try:
        validate_records(batch, LogConfig(), NOW_MS)
    except AppendError as error:
        return type(error), error.code
    return bytes(batch.data)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(RECORDS, st.sampled_from([GZIP, SNAPPY, LZ4, ZSTD]), st.sampled_from([0, 0, 1, -1]), st.data())
def test_windows_find_what_one_piece_shows(
    monkeypatch: pytest.MonkeyPatch, shapes: list[Any], codec: int, miscount: int, data: st.DataObject
) -> None:
    records = [
        Record(
            index + (wrong == 2),
            delta,
            None if key is None else b"k" * key,
            None if value is None else b"v" * value,
            tuple(Header(name, held) for name, held in headers),
        )
        for index, (delta, wrong, key, value, headers) in enumerate(shapes)
    ]
    body = bytearray(encode_records(records))
    if data.draw(st.booleans()):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        body += data.draw(st.binary(max_size=3))
    count = max(1, len(records) + miscount)
    in_one_piece = outcome(bytes(body), count, codec)
    with monkeypatch.context() as patched:
        patched.setattr(record_validator, "HURRIED_INFLATED_BYTES", 0)
        patched.setattr(record_validator, "_WINDOW_BYTES", 64)
        assert outcome(bytes(body), count, codec) == in_one_piece


@pytest.mark.ci
def test_a_record_of_the_size_of_the_limit_is_not_held() -> None:
    body = encode_records([Record(0, 0, None, bytes(100 * 1024 * 1024))])
    made = NewRecordBatch(0, 0, NOW_MS, NOW_MS, 1, deflate(ZSTD, body), ZSTD).encode()
    del body
    batch = validated_batch(memoryview(bytearray(made)), len(made), LogConfig(), AppendOrigin.CLIENT)
    tracemalloc.start()
    try:
        validate_records(batch, LogConfig(), NOW_MS)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 * 1024 * 1024


def test_a_large_record_of_many_headers_is_refused() -> None:
    """Each would be a step of Python while everybody waits."""
    headers = (Header(b"", None),) * (record_validator.MAX_LARGE_RECORD_HEADERS + 1)
    body = encode_records([Record(0, 0, None, bytes(9 * 1024 * 1024), headers)])
    assert outcome(body, 1, ZSTD)[1] == 87
    assert isinstance(outcome(encode_records([Record(0, 0, None, bytes(9 * 1024 * 1024), headers[1:])]), 1, ZSTD), bytes)
