"""Protects: what Arrow's C data interface shows of fetched records, whose memory lives as long as its taker wants, no longer.

pyarrow judges the contents; a taker that moves single columns out, as the interface allows, is written here by hand.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator

import pyarrow
import pytest

from kcli.client.consumer import arrow_export
from kcli.client.consumer.arrow_export import ArrowBatch, ArrowBatches
from kcli.client.consumer.arrow_records import ArrowBuilder

HEADERS = ((("a", b"1"), ("b", None)), (), (("c", b""),))


def batch(rows: int = 3, topic: str = "t") -> ArrowBatch:
    builder = ArrowBuilder(topic, 7)
    for row in range(rows):
        key = None if row % 2 else b"k%d" % row
        builder.add_record(100 + row, 1000 + row, 0, key, b"v%d" % row, HEADERS[row % 3], 5)
    return ArrowBatch(builder.finish())


def rows_of(first: int, count: int, topic: str = "t") -> list[dict[str, object]]:
    return [
        {
            "topic": topic,
            "partition": 7,
            "offset": 100 + row,
            "timestamp": 1000 + row,
            "timestamp_type": 0,
            "key": None if row % 2 else b"k%d" % row,
            "value": b"v%d" % row,
            "headers": [{"key": key, "value": value} for key, value in HEADERS[row % 3]],
            "leader_epoch": 5,
        }
        for row in range(first, first + count)
    ]


def read(found: pyarrow.RecordBatch | pyarrow.Table) -> list[dict[str, object]]:
    index = found.schema.get_field_index("timestamp")
    return found.set_column(index, "timestamp", found.column("timestamp").cast("int64")).to_pylist()  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def all_is_released() -> Iterator[None]:
    yield
    gc.collect()
    batch().__arrow_c_schema__()  # an export looks for capsules that nobody has
    batch().__arrow_c_schema__()
    assert len(arrow_export._exports) <= 1 and not arrow_export._streams


@pytest.mark.parametrize("rows", [0, 1, 3, 1025])
def test_a_batch_is_what_pyarrow_reads(rows: int) -> None:
    found = pyarrow.record_batch(batch(rows))
    found.validate(full=True)
    assert read(found) == rows_of(0, rows)


def test_a_stream_has_all_batches_and_ends() -> None:
    table = pyarrow.table(ArrowBatches([batch(2), batch(3, ""), batch(0)]))
    table.validate(full=True)
    assert read(table) == rows_of(0, 2) + rows_of(0, 3, "")


def test_a_stream_that_is_not_read_to_its_end() -> None:
    reader = pyarrow.RecordBatchReader.from_stream(ArrowBatches([batch(2), batch(3)]))
    assert read(reader.read_next_batch()) == rows_of(0, 2)
    del reader


def test_a_column_outlives_its_batch() -> None:
    column = pyarrow.record_batch(batch()).column("value")
    gc.collect()
    assert column.to_pylist() == [b"v0", b"v1", b"v2"]


def test_capsules_that_nobody_takes_are_released() -> None:
    one = batch()
    capsules = one.__arrow_c_array__()
    assert len(arrow_export._exports) == 2
    del capsules
    stream = ArrowBatches([one]).__arrow_c_stream__()
    assert len(arrow_export._exports) == 0 and len(arrow_export._streams) == 1
    del stream


ARRAY_WORDS, CHILDREN, N_CHILDREN, RELEASE = 10, 6, 4, 8
HEADERS_CHILD = 7


class _Words:
    """A C structure at an address."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __getitem__(self, word: int) -> int:
        return ctypes.c_int64.from_address(self.address + 8 * word).value

    def __setitem__(self, word: int, value: int) -> None:
        ctypes.c_int64.from_address(self.address + 8 * word).value = value

    def release(self) -> None:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self[RELEASE])(self.address)
        assert self[RELEASE] == 0


def test_a_child_that_was_moved_out_lives_on_alone() -> None:
    """The taker copies the column of headers, marks the original as moved, and releases the batch before the column."""
    capsule = batch().__arrow_c_array__()[1]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    root = _Words(pointer(capsule, b"arrow_array"))
    child = _Words(_Words(root[CHILDREN])[HEADERS_CHILD])
    memory = ctypes.create_string_buffer(ctypes.string_at(child.address, 8 * ARRAY_WORDS), 8 * ARRAY_WORDS)
    moved = _Words(ctypes.addressof(memory))
    child[RELEASE] = 0
    root.release()
    (export,) = (one for one in arrow_export._exports.values() if one.layout is arrow_export._ARRAY)
    entries = _Words(_Words(moved[CHILDREN])[0])
    assert entries[0] == 3 and entries[N_CHILDREN] == 2 and entries[RELEASE]
    assert len(export.alive) == 4  # the column, its entries, their keys and values
    moved.release()
    assert not [one for one in arrow_export._exports.values() if one.layout is arrow_export._ARRAY]
