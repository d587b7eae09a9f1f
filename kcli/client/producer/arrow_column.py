"""Columns of Arrow arrays as compiled loops read them: where each value is, without an object for it.

    class          Arrow's types                                     buffers
    -------------  ------------------------------------------------  ------------------------------------------------------
    BinaryColumn   binary, string (offsets of 32 bits),              validity, offsets, data
                   large_binary, large_string (64 bits)
    NumberColumn   int32, int64, timestamp                           validity, values

The arrays come from pyarrow, whose objects are used by their methods only: `buffers()`, `offset`, `len`. So the package does
not need pyarrow. Validity is a bit for each row, from the lowest of each byte on; no buffer means that no value is null.
This one source runs two ways, as kcli.format.record_scan does; its C types are in arrow_column.pxd.
"""

from __future__ import annotations

from typing import Any

from kcli.format.primitives import Buffer

_NO_BYTES = memoryview(b"")
_NO_INT32, _NO_INT64 = memoryview(b"").cast("i"), memoryview(b"").cast("q")
NULL_SIZE = -1
BINARY_TYPES = ("binary", "string")
LARGE_TYPES = ("large_binary", "large_string")


def _bytes_of(buffer: Any) -> memoryview[int]:
    return _NO_BYTES if buffer is None else memoryview(buffer).cast("B")


def _int32(buffer: Any) -> memoryview[int]:
    return _bytes_of(buffer).cast("i")


def _int64(buffer: Any) -> memoryview[int]:
    return _bytes_of(buffer).cast("q")


class BinaryColumn:
    """Keys or values; `array` is a pyarrow.Array of a type that `is_binary` accepts."""

    def __init__(self, array: Any) -> None:
        validity, offsets, data = array.buffers()
        self.length: int = len(array)
        self.offset: int = array.offset
        self.validity = _bytes_of(validity)
        self.has_nulls = validity is not None
        self.data = _bytes_of(data)
        self.is_large = str(array.type) in LARGE_TYPES
        self.offsets32 = _NO_INT32 if self.is_large else _int32(offsets)
        self.offsets64 = _int64(offsets) if self.is_large else _NO_INT64

    def start(self, row: int) -> int:
        """Return where the value of a row begins in `data`. Raises IndexError."""
        index = row + self.offset
        return self.offsets64[index] if self.is_large else self.offsets32[index]

    def size(self, row: int) -> int:
        """Return the size of a row's value, NULL_SIZE for null.

        Raises IndexError, and ValueError for offsets outside of `data`.
        """
        index = row + self.offset
        if self.has_nulls and not self.validity[index >> 3] >> (index & 7) & 1:
            return NULL_SIZE
        start = self.start(row)
        end = self.offsets64[index + 1] if self.is_large else self.offsets32[index + 1]
        if not 0 <= start <= end <= len(self.data):
            raise ValueError(f"the offsets {start} and {end} of row {row} are outside of the column's {len(self.data)} bytes")
        return end - start

    def value(self, row: int) -> bytes | None:
        """Return the value of a row as an object."""
        size = self.size(row)
        start = self.start(row)
        return None if size < 0 else bytes(self.data[start : start + size])


class NumberColumn:
    """Timestamps or partitions: a value is multiplied by `factor` and divided by `divisor`."""

    def __init__(self, array: Any, is_32_bits: bool, factor: int = 1, divisor: int = 1) -> None:
        validity, values = array.buffers()
        self.length: int = len(array)
        self.offset: int = array.offset
        self.validity = _bytes_of(validity)
        self.has_nulls = validity is not None
        self.is_32_bits = is_32_bits
        self.values32 = _int32(values) if is_32_bits else _NO_INT32
        self.values64 = _NO_INT64 if is_32_bits else _int64(values)
        self.factor = factor
        self.divisor = divisor

    def value(self, row: int, default: int) -> int:
        """Return the value of a row, or `default` for null. Raises IndexError."""
        index = row + self.offset
        if self.has_nulls and not self.validity[index >> 3] >> (index & 7) & 1:
            return default
        found = self.values32[index] if self.is_32_bits else self.values64[index]
        return found * self.factor // self.divisor


def data_of(column: BinaryColumn | None) -> Buffer:
    """Return the data of a column, nothing for a column that is not there."""
    return _NO_BYTES if column is None else column.data
