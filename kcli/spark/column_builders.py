"""Columns of Arrow batches: one object for each column that is asked for.

    kind of column                        how it is filled                       cost
    ------------------------------------  -------------------------------------  -----------------------------------
    key, value, headers                   compiled loops copy bytes              by the byte
    offset                                a slice of the scanner's column        one memcpy for each window
    timestamp, sequence, sizes            compiled loops                         some ns for each record
    numbers that are the same for a       compiled loops                         some ns for each record
      whole batch
    other values that are the same for    at the end, from the runs of rows      one step for each run
      a whole batch

The buffers are new for each Arrow batch, so the batches may be kept.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import pyarrow as pa

from kcli.format.arrow_columns import (
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    put_binary,
    put_distances,
    put_headers,
    put_micros,
    put_repeated,
    put_sequences,
    put_sizes,
    sum_of,
)
from kcli.format.batch_scan import BatchColumns
from kcli.format.compression import codec_name
from kcli.format.java_text import decode_utf8
from kcli.format.legacy_message_set import LegacyBatch
from kcli.format.primitives import INT32_MAX, FormatError
from kcli.format.record_batch import RecordBatch
from kcli.log.reading.batch_records import RecordWindow

CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP_TYPE = 0, 1, -1

# How many bytes a column's data begins with; pages that are never written need no memory.
_KEY_BYTES = 1024 * 1024
_VALUE_BYTES = 6 * 1024 * 1024


class Span(NamedTuple):
    """The batches of a span: rows [first, first + batch_count) of `batches`.

    `ends` has, for each batch, the position in the window's buffer after its records.
    """

    batches: BatchColumns
    first: int
    batch_count: int
    ends: array[int]


class Run(NamedTuple):
    """Consecutive rows of one batch or span, and the values that are the same for all of them.

    In a span `header` is that of the first batch; the other batches have the same attributes.
    """

    header: RecordBatch | LegacyBatch
    length: int
    topic: str
    partition: int
    segment: str
    aborted: bool


class Rows(NamedTuple):
    """A run with its records: those from record `first` of `window` on; of a `span` all records of the window."""

    run: Run
    window: RecordWindow
    first: int
    span: Span | None = None


def _new_buffer(size: int) -> tuple[pa.Buffer, memoryview]:
    """Return a buffer of `size` bytes, not initialised, and its bytes."""
    buffer = pa.allocate_buffer(max(size, 1))
    return buffer, memoryview(buffer).cast("B")


class Column(ABC):
    """One column of the Arrow batch that is being built."""

    def __init__(self, name: str, data_type: pa.DataType, capacity: int) -> None:
        self.name = name
        self.type = data_type
        self.capacity = capacity
        self.begin()

    def begin(self) -> None:  # noqa: B027 - a column of runs keeps nothing between batches
        """Begin a new Arrow batch."""

    @abstractmethod
    def finish(self, runs: list[Run], count: int) -> pa.Array:
        """Return the column of the `count` rows of these runs."""


class RecordColumn(Column):
    """A column whose values differ from record to record: filled window by window.

    `data_bytes` is the size of the keys, values or headers that the column has.
    """

    data_bytes = 0

    @abstractmethod
    def add(self, rows: Rows, row: int) -> None:
        """Fill in `rows` from row `row` on."""


class _Bits:
    """Validity bits: a set bit is a value that is not null."""

    __slots__ = ("nulls", "view")

    def __init__(self, capacity: int) -> None:
        self.view = memoryview(bytearray((capacity + 7) // 8 + 1))
        self.nulls = 0

    def finish(self) -> pa.Buffer | None:
        return pa.py_buffer(self.view) if self.nulls else None


def _new_offsets(capacity: int) -> tuple[pa.Buffer, memoryview]:
    buffer, view = _new_buffer(4 * (capacity + 1))
    offsets = view.cast("i")
    offsets[0] = 0
    return buffer, offsets


class _Binaries:
    """The buffers of a binary or string array, which grow if a window needs more."""

    def __init__(self, capacity: int, size: int) -> None:
        self.bits = _Bits(capacity)
        self._offsets_buffer, self.offsets = _new_offsets(capacity)
        self._buffer, self.data = _new_buffer(size)

    def reserve(self, used: int, more: int) -> None:
        """Make space for `more` bytes after the `used` ones."""
        if used + more > len(self.data):
            old = self.data
            self._buffer, self.data = _new_buffer(max(used + more, min(2 * len(old), INT32_MAX)))
            self.data[:used] = old[:used]

    def reserve_rows(self, used: int, capacity: int) -> None:
        """Make space for `capacity` rows, of which `used` are filled."""
        old_offsets, old_bits = self.offsets, self.bits.view
        self.bits = _Bits(capacity)
        self.bits.view[: len(old_bits)] = old_bits
        self._offsets_buffer, self.offsets = _new_offsets(capacity)
        self.offsets[: used + 1] = old_offsets[: used + 1]

    def finish(self, kind: pa.DataType, count: int) -> pa.Array:
        """Return the array of `count` rows."""
        buffers = [self.bits.finish(), self._offsets_buffer, self._buffer.slice(0, self.offsets[count])]
        return pa.Array.from_buffers(kind, count, buffers, self.bits.nulls)


class _BinaryColumn(RecordColumn):
    """key or value."""

    def begin(self) -> None:
        self.values = _Binaries(self.capacity, _KEY_BYTES if self.name == "key" else _VALUE_BYTES)
        self.data_bytes = 0

    def add(self, rows: Rows, row: int) -> None:
        window, first, count, values = rows.window, rows.first, rows.run.length, self.values
        columns = window.columns
        if self.name == "key":
            positions, sizes = columns.key_position, columns.key_size
        else:
            positions, sizes = columns.value_position, columns.value_size
        if self.data_bytes + len(window.buffer) > len(values.data):
            values.reserve(self.data_bytes, sum_of(sizes, first, count))
        values.bits.nulls += put_binary(
            window.buffer, positions, sizes, first, count, values.data, values.offsets, values.bits.view, row
        )
        self.data_bytes = values.offsets[row + count]

    def finish(self, runs: list[Run], count: int) -> pa.Array:
        return self.values.finish(self.type, count)


class _HeadersColumn(RecordColumn):
    """headers: a list of key and value for each record, null for a record without headers."""

    def begin(self) -> None:
        self.bits = _Bits(self.capacity)
        self.lists_buffer, self.lists = _new_offsets(self.capacity)
        self.scratch = array("q", (0, 0, 0))
        self.children = self.used_children = self.data_bytes = 0
        self.keys, self.values = _Binaries(0, 0), _Binaries(0, 0)

    def add(self, rows: Rows, row: int) -> None:
        columns, first, count, used = rows.window.columns, rows.first, rows.run.length, self.used_children
        more = sum_of(columns.header_count, first, count)
        if more:
            if used + more > self.children:
                self.children = max(used + more, 2 * self.children)
                self.keys.reserve_rows(used, self.children)
                self.values.reserve_rows(used, self.children)
            self.keys.reserve(self.keys.offsets[used], len(rows.window.buffer))
            self.values.reserve(self.values.offsets[used], len(rows.window.buffer))
        self.bits.nulls += put_headers(
            rows.window.buffer,
            columns.header_position,
            columns.header_count,
            first,
            count,
            self.lists,
            self.bits.view,
            row,
            self.keys.data,
            self.keys.offsets,
            self.values.data,
            self.values.offsets,
            self.values.bits.view,
            self.scratch,
        )
        self.used_children = self.lists[row + count]
        self.data_bytes = self.keys.offsets[self.used_children] + self.values.offsets[self.used_children]

    def finish(self, runs: list[Run], count: int) -> pa.Array:
        children, struct = self.used_children, self.type.value_type
        if self.scratch[2]:
            # Some bytes are not ASCII: decode them as Java does, also those that are not UTF-8.
            raw = self.keys.finish(pa.binary(), children)
            keys = pa.array([decode_utf8(key) for key in raw.to_pylist()], pa.string())
        else:
            keys = self.keys.finish(struct.field("key").type, children)
        self.values.bits.nulls = self.scratch[1]
        values = self.values.finish(struct.field("value").type, children)
        entries = pa.StructArray.from_arrays([keys, values], fields=list(struct))
        return pa.Array.from_buffers(
            self.type, count, [self.bits.finish(), self.lists_buffer], self.bits.nulls, children=[entries]
        )


class _NumberColumn(RecordColumn):
    """A column of int32 or int64 without nulls."""

    array_code: Literal["i", "q"] = "q"

    def begin(self) -> None:
        self.buffer, view = _new_buffer(array(self.array_code).itemsize * self.capacity)
        self.values = view.cast(self.array_code)

    def finish(self, runs: list[Run], count: int) -> pa.Array:
        return pa.Array.from_buffers(self.type, count, [None, self.buffer], 0)


class _OffsetColumn(_NumberColumn):
    """offset."""

    def add(self, rows: Rows, row: int) -> None:
        first, count = rows.first, rows.run.length
        self.values[row : row + count] = memoryview(rows.window.columns.offset)[first : first + count]


class _TimestampColumn(_NumberColumn):
    """timestamp: that of the record, or of the batch if it is LogAppendTime; null if it does not fit."""

    def begin(self) -> None:
        super().begin()
        self.bits = _Bits(self.capacity)

    def add(self, rows: Rows, row: int) -> None:
        timestamps, first, count, header = rows.window.columns.timestamp, rows.first, rows.run.length, rows.run.header
        if rows.span is None and isinstance(header, RecordBatch) and header.is_log_append_time:
            timestamps, first = array("q", (header.max_timestamp,)) * count, 0
        self.bits.nulls += put_micros(timestamps, first, count, self.values, self.bits.view, row)

    def finish(self, runs: list[Run], count: int) -> pa.Array:
        return pa.Array.from_buffers(self.type, count, [self.bits.finish(), self.buffer], self.bits.nulls)


class _IntColumn(_NumberColumn):
    """sequence, keySize, valueSize or recordSize; -1 if the record has none."""

    array_code: Literal["i", "q"] = "i"

    def add(self, rows: Rows, row: int) -> None:
        columns, first, count = rows.window.columns, rows.first, rows.run.length
        if self.name == "keySize":
            put_sizes(columns.key_size, first, count, self.values, row)
        elif self.name == "valueSize":
            put_sizes(columns.value_size, first, count, self.values, row)
        elif isinstance(rows.run.header, RecordBatch):
            for length, end, base_offset, base_sequence in _batches_of(rows, rows.run.header):
                if self.name == "recordSize":
                    put_distances(columns.record_position, first, length, end, self.values, row)
                else:
                    put_sequences(columns.offset, first, length, base_offset, base_sequence, self.values, row)
                first, row = first + length, row + length
        else:
            self.values[row : row + count] = array("i", (-1,)) * count


def _batches_of(rows: Rows, header: RecordBatch) -> Iterator[tuple[int, int, int, int]]:
    """Yield, for each batch of `rows`, its rows, the position after them, its base offset and its base sequence."""
    if rows.span is None:
        columns, after = rows.window.columns, rows.first + rows.run.length
        end = columns.record_position[after] if after < rows.window.count else columns.end
        yield rows.run.length, end, header.base_offset, header.base_sequence
    else:
        batches, first, count, ends = rows.span
        for index, end in enumerate(ends[:count], first):
            yield batches.record_count[index], end, batches.base_offset[index], batches.base_sequence[index]


class _BatchNumberColumn(_NumberColumn):
    """position, batchSize, leaderEpoch, producerId or producerEpoch: a number of the batch, the same for all its records."""

    def add(self, rows: Rows, row: int) -> None:
        if rows.span is None:
            number = getattr(rows.run.header, _BATCH_NUMBERS[self.name][0], -1)
            numbers, counts, first, count = array("q", (number,)), array("q", (rows.run.length,)), 0, 1
        else:
            batches, first, count, _ = rows.span
            numbers, counts = getattr(batches, _BATCH_NUMBERS[self.name][1]), batches.record_count
        put_repeated(numbers, counts, first, count, self.values, row)

    def finish(self, runs: list[Run], count: int) -> pa.Array:
        return pa.Array.from_buffers(pa.int64(), count, [None, self.buffer], 0).cast(self.type)


class _RunColumn(Column):
    """A column with one value for each run."""

    def finish(self, runs: list[Run], count: int) -> pa.Array:
        value_of = _OF_RUN[self.name]
        values = [value_of(run) for run in runs]
        if values.count(values[0]) == len(values):
            return pa.repeat(pa.scalar(values[0], self.type), count)
        return pa.concat_arrays(
            [pa.repeat(pa.scalar(value, self.type), run.length) for value, run in zip(values, runs, strict=True)]
        )


class NullColumn(Column):
    """A column of nulls: that of the report, in the rows of records."""

    def finish(self, runs: list[Run], count: int) -> pa.Array:
        """Return the column of `count` nulls."""
        return pa.nulls(count, self.type)


def micros(timestamp_ms: int) -> int | None:
    """Convert milliseconds to microseconds; return None if these do not fit 64 bits."""
    return timestamp_ms * 1000 if MIN_TIMESTAMP_MS <= timestamp_ms <= MAX_TIMESTAMP_MS else None


def timestamp_type(header: RecordBatch | LegacyBatch) -> int:
    """Return Kafka's id of a batch's timestamp type: 0 CreateTime, 1 LogAppendTime, -1 none (message format 0)."""
    if header.magic == 0:
        return NO_TIMESTAMP_TYPE
    return LOG_APPEND_TIME if header.is_log_append_time else CREATE_TIME


def compression_name(header: RecordBatch | LegacyBatch) -> str:
    """Return the codec's name, or its number in brackets if Kafka has no name for it."""
    try:
        return codec_name(header.codec)
    except FormatError:
        return f"unknown({header.codec})"


# column -> the name of the number in a batch header, and in BatchColumns; formats 0 and 1 do not have all of them
_BATCH_NUMBERS = {
    "position": ("position", "position"),
    "batchSize": ("size_bytes", "size_bytes"),
    "leaderEpoch": ("partition_leader_epoch", "leader_epoch"),
    "producerId": ("producer_id", "producer_id"),
    "producerEpoch": ("producer_epoch", "producer_epoch"),
}
_OF_RUN: dict[str, Callable[[Run], str | int]] = {
    "topic": lambda run: run.topic,
    "partition": lambda run: run.partition,
    "segment": lambda run: run.segment,
    "aborted": lambda run: run.aborted,
    "timestampType": lambda run: timestamp_type(run.header),
    "compression": lambda run: compression_name(run.header),
    "magic": lambda run: run.header.magic,
    "isTransactional": lambda run: getattr(run.header, "is_transactional", False),
    "isControl": lambda run: getattr(run.header, "is_control", False),
}

_OF_RECORD: dict[str, type[RecordColumn]] = {
    "key": _BinaryColumn,
    "value": _BinaryColumn,
    "headers": _HeadersColumn,
    "offset": _OffsetColumn,
    "timestamp": _TimestampColumn,
    "sequence": _IntColumn,
    "keySize": _IntColumn,
    "valueSize": _IntColumn,
    "recordSize": _IntColumn,
    **dict.fromkeys(_BATCH_NUMBERS, _BatchNumberColumn),
}


def column_for(name: str, data_type: pa.DataType, capacity: int) -> Column:
    """Return the column of that name, empty, for up to `capacity` rows."""
    return _OF_RECORD.get(name, _RunColumn)(name, data_type, capacity)
