"""The loops that fill Arrow's buffers: compiled and interpreted do the same, and refuse what would not fit."""

from __future__ import annotations

from array import array
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.format import arrow_columns
from kcli.format.primitives import write_varint
from tests.interpreted import interpreted

MODULES = [arrow_columns, interpreted(arrow_columns)]
NULLABLE = st.lists(st.none() | st.binary(max_size=40), max_size=20)


def layout(values: list[bytes | None]) -> tuple[bytes, array, array]:
    """Values as the scanner leaves them: one buffer, positions and sizes, -1 for null."""
    source, positions, sizes = b"", array("q"), array("q")
    for value in values:
        source += b"#"
        positions.append(len(source))
        sizes.append(-1 if value is None else len(value))
        source += value or b""
    return source, positions, sizes


def bits(view: bytes | memoryview, count: int) -> list[bool]:
    return [bool(view[i >> 3] >> (i & 7) & 1) for i in range(count)]


@pytest.mark.parametrize("module", MODULES)
@given(values=NULLABLE, before=st.integers(0, 9))
def test_binary(module: ModuleType, values: list[bytes | None], before: int) -> None:
    """Bytes, offsets and nulls are copied unchanged, after the rows that the column already has."""
    source, positions, sizes = layout(values)
    total = module.sum_of(sizes, 0, len(values))
    assert total == sum(len(value) for value in values if value is not None)
    data = memoryview(bytearray(before + total))
    offsets = memoryview(bytearray(4 * (before + len(values) + 1))).cast("i")
    offsets[before] = before
    validity = memoryview(bytearray((before + len(values) + 8) // 8))
    nulls = module.put_binary(source, positions, sizes, 0, len(values), data, offsets, validity, before)
    assert nulls == values.count(None)
    for index, value in enumerate(values):
        assert bytes(data[offsets[before + index] : offsets[before + index + 1]]) == (value or b"")
    assert bits(validity, before + len(values))[before:] == [value is not None for value in values]


@pytest.mark.parametrize("module", MODULES)
def test_what_does_not_fit_is_refused(module: ModuleType) -> None:
    """Too little space, and positions outside of the bytes, raise before anything is written."""
    source, positions, sizes = layout([b"abc", b"defg"])
    offsets = memoryview(bytearray(4 * 3)).cast("i")
    validity = memoryview(bytearray(1))
    for bad_position, bad_size, room in ((1, 9**9, 99), (-1, 2, 99), (2**60, 2, 99), (7, 4, 99), (1, 3, 2)):
        with pytest.raises(IndexError):
            module.put_binary(
                source,
                array("q", (bad_position,)),
                array("q", (bad_size,)),
                0,
                1,
                memoryview(bytearray(room)),
                offsets,
                validity,
                0,
            )
    for first, count, row in ((0, 3, 0), (-1, 1, 0), (0, 2, 1), (0, 1, -1), (0, -1, 0)):
        with pytest.raises(IndexError):
            module.put_binary(source, positions, sizes, first, count, memoryview(bytearray(99)), offsets, validity, row)
    small = memoryview(bytearray(4)).cast("i")
    for call in (
        lambda: module.put_sizes(sizes, 0, 2, small, 0),
        lambda: module.put_distances(positions, 1, 1, 9, small, 1),
        lambda: module.put_sequences(positions, 0, 3, 0, 0, offsets, 0),
        lambda: module.put_micros(positions, 0, 2, memoryview(bytearray(8)).cast("q"), validity, 0),
        lambda: module.sum_of(sizes, 1, 2),
        lambda: module.count_below(sizes, 3, 1),
        lambda: module.sum_of(sizes, 0, 3),
    ):
        with pytest.raises(IndexError):
            call()


@pytest.mark.parametrize("module", MODULES)
@given(values=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_micros(module: ModuleType, values: list[int]) -> None:
    """Milliseconds become microseconds; a timestamp that does not fit 64 bits becomes null."""
    out = memoryview(bytearray(8 * max(len(values), 1))).cast("q")
    validity = memoryview(bytearray((len(values) + 8) // 8))
    nulls = module.put_micros(array("q", values), 0, len(values), out, validity, 0)
    fits = [-(2**63) <= value * 1000 <= 2**63 - 1 and abs(value) <= 9223372036854775 for value in values]
    assert bits(validity, len(values)) == fits
    assert nulls == fits.count(False)
    assert [out[i] for i, fit in enumerate(fits) if fit] == [v * 1000 for v, fit in zip(values, fits, strict=True) if fit]


@pytest.mark.parametrize("module", MODULES)
def test_sequences_wrap(module: ModuleType) -> None:
    """A sequence wraps from 2**31 - 1 to 0; a batch without one gives -1; an offset before the batch's gives -1."""
    out = memoryview(bytearray(16)).cast("i")
    module.put_sequences(array("q", (100, 101, 103)), 0, 3, 100, 2**31 - 2, out, 1)
    assert list(out) == [0, 2**31 - 2, 2**31 - 1, 1]
    module.put_sequences(array("q", (100, 101)), 0, 2, 100, -1, out, 0)
    assert list(out)[:2] == [-1, -1]
    module.put_sequences(array("q", (90,)), 0, 1, 100, 5, out, 0)
    assert out[0] == -1


@pytest.mark.parametrize("module", MODULES)
@given(offsets=st.lists(st.integers(0, 50), max_size=30, unique=True), limit=st.integers(-1, 60))
def test_count_below(module: ModuleType, offsets: list[int], limit: int) -> None:
    """A search among ascending offsets counts as a loop would."""
    offsets.sort()
    assert module.count_below(array("q", offsets), len(offsets), limit) == sum(1 for offset in offsets if offset < limit)


HEADERS = st.lists(st.lists(st.tuples(st.binary(max_size=9), st.none() | st.binary(max_size=9)), max_size=4), max_size=8)


@pytest.mark.parametrize("module", MODULES)
@given(records=HEADERS)
def test_headers(module: ModuleType, records: list[list[tuple[bytes, bytes | None]]]) -> None:
    """Lists of headers: null values differ from empty ones, and keys that are not ASCII are reported."""
    source, positions, counts = b"", array("q"), array("q")
    for headers in records:
        positions.append(len(source))
        counts.append(len(headers))
        for key, value in headers:
            source += write_varint(len(key)) + key + (write_varint(-1) if value is None else write_varint(len(value)) + value)
    total = module.sum_of(counts, 0, len(records))
    views = [memoryview(bytearray(4 * (size + 1))).cast("i") for size in (len(records), total, total)]
    lists, key_offsets, value_offsets = views
    list_bits, value_bits = memoryview(bytearray(len(records) // 8 + 1)), memoryview(bytearray(total // 8 + 1))
    key_data, value_data = memoryview(bytearray(len(source))), memoryview(bytearray(len(source)))
    scratch = array("q", (0, 0, 0))
    args = (source, positions, counts, 0, len(records), lists, list_bits, 0, key_data, key_offsets, value_data, value_offsets)
    without = module.put_headers(*args, value_bits, scratch)
    flat = [header for headers in records for header in headers]
    assert without == sum(1 for headers in records if not headers)
    assert bits(list_bits, len(records)) == [bool(headers) for headers in records]
    assert [lists[i + 1] - lists[i] for i in range(len(records))] == [len(headers) for headers in records]
    keys = [bytes(key_data[key_offsets[i] : key_offsets[i + 1]]) for i in range(total)]
    values = [bytes(value_data[value_offsets[i] : value_offsets[i + 1]]) for i in range(total)]
    assert keys == [key for key, _ in flat]
    assert values == [value or b"" for _, value in flat]
    assert bits(value_bits, total) == [value is not None for _, value in flat]
    assert scratch[1] == sum(1 for _, value in flat if value is None)
    assert bool(scratch[2]) == any(not key.isascii() for key in keys)


@pytest.mark.parametrize("module", MODULES)
@given(garbage=st.binary(max_size=30), count=st.integers(1, 5))
def test_headers_of_garbage(module: ModuleType, garbage: bytes, count: int) -> None:
    """Bytes that are not headers raise IndexError or are read within their bounds."""
    lists = memoryview(bytearray(8)).cast("i")
    offsets = [memoryview(bytearray(4 * (count + 1))).cast("i") for _ in range(2)]
    data = [memoryview(bytearray(30)) for _ in range(2)]
    scratch = array("q", (0, 0, 0))
    position, counts = array("q", (0,)), array("q", (count,))
    try:
        module.put_headers(
            garbage, position, counts, 0, 1, lists, memoryview(bytearray(1)), 0, data[0], offsets[0], data[1], offsets[1],
            memoryview(bytearray(2)), scratch,
        )  # fmt: skip
    except IndexError:
        return
    assert offsets[0][count] <= len(garbage) and offsets[1][count] <= len(garbage)
