"""Protects: the rows of an Arrow table become the records that single appends make, whatever types and slices the table has."""

from __future__ import annotations

from typing import Any

import pytest

from kcli.client.errors import InvalidRecordError, RecordTooLargeError
from kcli.format.murmur2 import partition_for_key
from kcli.format.record_batch import HEADER_BYTES, check_batch
from kcli.format.records import read_records
from tests.client.producer.batches import TIMESTAMP, TWO, accumulator_of, cluster_of
from tests.client.producer.ways import WAYS

pa = pytest.importorskip("pyarrow")

BOTH_WAYS = pytest.mark.parametrize("way", WAYS)
COUNT = 300
Row = tuple[int, bytes | None, bytes | None, tuple[Any, ...]]


def appended(way: str, table: Any, partitions: int = 1, batch_bytes: int = 4000, **config: Any) -> dict[int, list[Row]]:
    """The records of a table by partition: timestamp, key, value, headers."""
    accumulator = accumulator_of(way, buffer_memory=2**26, **config)
    cluster = cluster_of([1] * partitions)
    for batch in WAYS[way].arrow.record_batches(table):
        rows = WAYS[way].arrow.ArrowRows(batch)
        appender = WAYS[way].arrow.ArrowAppender(rows, accumulator, "t", batch_bytes, None, None)
        while appender.row < rows.count:
            assert appender.append(partitions, 70, TIMESTAMP, 0, cluster)
    return drained(accumulator, cluster, partitions)


def drained(accumulator: Any, cluster: Any, partitions: int) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {partition: [] for partition in range(partitions)}
    accumulator.begin_flush()
    while accumulator.has_undrained():
        for batch in accumulator.drain(cluster, [1], 1000)[1]:
            data = bytes(batch.encoded())
            header = check_batch(data)
            for one in read_records(data[HEADER_BYTES:], header.record_count):
                headers = tuple((header.key, header.value) for header in one.headers)
                found[batch.partition].append((header.base_timestamp + one.timestamp_delta, one.key, one.value, headers))
            batch.complete(0)
            accumulator.deallocate(batch)
    assert accumulator.pool.available == accumulator.pool.total
    return found


def values() -> list[bytes | None]:
    return [None if number % 11 == 0 else b"value %d " % number * (number % 40) for number in range(COUNT)]


@BOTH_WAYS
@pytest.mark.parametrize("kind", ["binary", "large_binary", "string", "large_string"])
def test_all_types_of_text_and_bytes(way: str, kind: str) -> None:
    array = pa.array(values(), type=pa.binary()).cast(getattr(pa, kind)())
    found = appended(way, pa.table({"value": array}))
    assert found[0] == [(TIMESTAMP, None, value, ()) for value in values()]


@BOTH_WAYS
def test_slices_and_chunks(way: str) -> None:
    table = pa.concat_tables([pa.table({"value": values(), "key": values()}).slice(7, 100)] * 2)
    found = appended(way, table)
    assert [row[2] for row in found[0]] == values()[7:107] * 2
    assert [row[1] for row in found[0]] == values()[7:107] * 2


@BOTH_WAYS
def test_keys_choose_their_partitions(way: str) -> None:
    keys = [b"key %d" % number for number in range(COUNT)]
    found = appended(way, pa.table({"key": keys, "value": keys}), 5)
    for partition in range(5):
        assert [row[1] for row in found[partition]] == [key for key in keys if partition_for_key(key, 5) == partition]


@BOTH_WAYS
def test_partitions_and_timestamps_of_the_rows(way: str) -> None:
    numbers = list(range(COUNT))
    micros = pa.array(
        [None if number % 3 == 0 else (TIMESTAMP + number) * 1000 + 999 for number in numbers], pa.timestamp("us")
    )
    partitions = pa.array([number % 2 for number in numbers], pa.int32())
    table = pa.table({"value": [b"%d" % number for number in numbers], "timestamp": micros, "partition": partitions})
    found = appended(way, table, 2)
    for partition in range(2):
        assert found[partition] == [
            (TIMESTAMP + (number if number % 3 else 0), None, b"%d" % number, ())
            for number in numbers
            if number % 2 == partition
        ]
    with pytest.raises(InvalidRecordError):
        appended(way, table, 1)


@BOTH_WAYS
def test_headers(way: str) -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array([None, [], [("a", b"1"), ("b", None)]] * 50, kind)
    found = appended(way, pa.table({"value": [b"x"] * 150, "key": [None, b"k", b"k"] * 50, "headers": headers}))
    expected: list[Any] = [(TIMESTAMP, None, b"x", ()), (TIMESTAMP, b"k", b"x", ())]
    assert found[0] == [*expected, (TIMESTAMP, b"k", b"x", ((b"a", b"1"), (b"b", None)))] * 50


@BOTH_WAYS
def test_rows_wait_for_memory(way: str) -> None:
    accumulator = accumulator_of(way, buffer_memory=10_000)
    rows = WAYS[way].arrow.ArrowRows(pa.record_batch({"value": [bytes(1000)] * 30}))
    appender = WAYS[way].arrow.ArrowAppender(rows, accumulator, "t", 4000, None, None)
    found = []
    while appender.row < rows.count:
        before = appender.row
        if not appender.append(2, 1000, TIMESTAMP, 0, TWO):
            assert appender.row > before
            drained_rows = drained(accumulator, TWO, 2)
            found += drained_rows[0] + drained_rows[1]
    last = drained(accumulator, TWO, 2)
    found += last[0] + last[1]
    assert len(found) == 30


@BOTH_WAYS
def test_large_rows_have_batches_of_their_own(way: str) -> None:
    found = appended(way, pa.table({"value": [bytes(9000), b"a", bytes(9000)]}))
    assert [len(row[2] or b"") for row in found[0]] == [9000, 1, 9000]
    with pytest.raises(RecordTooLargeError):
        appended(way, pa.table({"value": [bytes(9000)]}), max_request_size=5000)


@BOTH_WAYS
@pytest.mark.parametrize(
    "table",
    [{"key": [b"a"]}, {"value": [1]}, {"value": [b"a"], "other": [1]}, {"value": [b"a"], "timestamp": ["x"]}],
    ids=["no value", "numbers", "another column", "times as text"],
)
def test_tables_that_are_no_records(way: str, table: Any) -> None:
    with pytest.raises(InvalidRecordError):
        appended(way, pa.table(table))
