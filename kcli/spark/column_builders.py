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

from array import array
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import pyarrow as pa

from kcli.format.batch_scan import BatchColumns
from kcli.format.compression import codec_name
from kcli.format.java_text import decode_utf8
from kcli.format.legacy_message_set import LegacyBatch
from kcli.format.primitives import INT32_MAX, FormatError
from kcli.format.record_batch import RecordBatch
from kcli.log.reading.batch_records import RecordWindow
from kcli.spark.arrow_columns import (
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


class Column:
    """One column of the Arrow batch that is being built."""

    def __init__(self, name: str, data_type: pa.DataType, capacity: int) -> None:
        self.name = name
        self.type = data_type
        self.capacity = capacity
        self.begin()

    def begin(self) -> None:
        """Begin a new Arrow batch."""

    def finish(self, runs: list[Run], count: int) -> pa.Array:
        """Return the column of the `count` rows of these runs."""
        raise NotImplementedError


class RecordColumn(Column):
    """A column whose values differ from record to record: filled window by window."""

    def add(self, rows: Rows, row: int) -> None:
        """Fill in `rows` from row `row` on."""
        raise NotImplementedError

    @property
    def data_bytes(self) -> int:
        """The bytes of keys, values or headers that the column has."""
        return 0


class _Bits:
    """Validity bits: a set bit is a value that is not null."""

    __slots__ = ("nulls", "view")

    def __init__(self, capacity: int) -> None:
        self.view = memoryview(bytearray((capacity + 7) // 8 + 1))
        self.nulls = 0

    def finish(self) -> pa.Buffer | None:
        return pa.py_buffer(self.view) if self.nulls else None


class _Data:
    """The data of a binary or string column; grows if a window needs more."""

    __slots__ = ("buffer", "view")

    def __init__(self, size: int) -> None:
        self.buffer, self.view = _new_buffer(size)

    def reserve(self, used: int, more: int) -> None:
        if used + more <= len(self.view):
            return
        buffer, view = _new_buffer(max(used + more, min(2 * len(self.view), INT32_MAX)))
        view[:used] = self.view[:used]
        self.buffer, self.view = buffer, view

    def finish(self, used: int) -> pa.Buffer:
        return self.buffer.slice(0, used)


def _new_offsets(capacity: int) -> tuple[pa.Buffer, memoryview]:
    buffer, view = _new_buffer(4 * (capacity + 1))
    offsets = view.cast("i")
    offsets[0] = 0
    return buffer, offsets


class _BinaryColumn(RecordColumn):
    """key or value."""

    def begin(self) -> None:
        self.bits = _Bits(self.capacity)
        self.offsets_buffer, self.offsets = _new_offsets(self.capacity)
        self.data = _Data(_KEY_BYTES if self.name == "key" else _VALUE_BYTES)
        self.used = 0

    def add(self, rows: Rows, row: int) -> None:
        columns, first, count = rows.window.columns, rows.first, rows.run.length
        if self.name == "key":
            positions, sizes = columns.key_position, columns.key_size
        else:
            positions, sizes = columns.value_position, columns.value_size
        self.used = self.offsets[row]
        if self.used + len(rows.window.buffer) > len(self.data.view):
            self.data.reserve(self.used, sum_of(sizes, first, count))
        self.bits.nulls += put_binary(
            rows.window.buffer, positions, sizes, first, count, self.data.view, self.offsets, self.bits.view, row
        )
        self.used = self.offsets[row + count]

    @property
    def data_bytes(self) -> int:
        return self.used

    def finish(self, runs: list[Run], count: int) -> pa.Array:
        buffers = [self.bits.finish(), self.offsets_buffer, self.data.finish(self.offsets[count])]
        return pa.Array.from_buffers(self.type, count, buffers, self.bits.nulls)


class _HeadersColumn(RecordColumn):
    """headers: a list of key and value for each record, null for a record without headers."""

    def begin(self) -> None:
        self.bits = _Bits(self.capacity)
        self.lists_buffer, self.lists = _new_offsets(self.capacity)
        self.scratch = array("q", (0, 0, 0))
        self.children = self.used_children = 0
        self.key_data, self.value_data = _Data(0), _Data(0)
        self.key_offsets_buffer, self.key_offsets = _new_offsets(0)
        self.value_offsets_buffer, self.value_offsets = _new_offsets(0)
        self.value_bits = _Bits(0)

    def _reserve(self, children: int) -> None:
        used = self.used_children
        self.children = max(children, 2 * self.children)
        keys_buffer, keys = _new_offsets(self.children)
        values_buffer, values = _new_offsets(self.children)
        bits = _Bits(self.children)
        keys[: used + 1] = self.key_offsets[: used + 1]
        values[: used + 1] = self.value_offsets[: used + 1]
        bits.view[: len(self.value_bits.view)] = self.value_bits.view
        self.key_offsets_buffer, self.key_offsets = keys_buffer, keys
        self.value_offsets_buffer, self.value_offsets = values_buffer, values
        self.value_bits = bits

    def add(self, rows: Rows, row: int) -> None:
        columns, first, count = rows.window.columns, rows.first, rows.run.length
        more = sum_of(columns.header_count, first, count)
        if more:
            size = len(rows.window.buffer)
            if self.used_children + more > self.children:
                self._reserve(self.used_children + more)
            self.key_data.reserve(self.key_offsets[self.used_children], size)
            self.value_data.reserve(self.value_offsets[self.used_children], size)
        self.bits.nulls += put_headers(
            rows.window.buffer,
            columns.header_position,
            columns.header_count,
            first,
            count,
            self.lists,
            self.bits.view,
            row,
            self.key_data.view,
            self.key_offsets,
            self.value_data.view,
            self.value_offsets,
            self.value_bits.view,
            self.scratch,
        )
        self.used_children = self.lists[row + count]

    @property
    def data_bytes(self) -> int:
        return int(self.key_offsets[self.used_children] + self.value_offsets[self.used_children])

    def finish(self, runs: list[Run], count: int) -> pa.Array:
        children = self.used_children
        struct = self.type.value_type
        key_buffers = [None, self.key_offsets_buffer, self.key_data.finish(self.key_offsets[children])]
        keys = pa.Array.from_buffers(struct.field("key").type, children, key_buffers, 0)
        if self.scratch[2]:
            # Some bytes are not ASCII: decode them as Java does, also those that are not UTF-8.
            raw = pa.Array.from_buffers(pa.binary(), children, key_buffers, 0)
            keys = pa.array([decode_utf8(key) for key in raw.to_pylist()], pa.string())
        self.value_bits.nulls = self.scratch[1]
        value_buffers = [
            self.value_bits.finish(),
            self.value_offsets_buffer,
            self.value_data.finish(self.value_offsets[children]),
        ]
        values = pa.Array.from_buffers(struct.field("value").type, children, value_buffers, self.scratch[1])
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


class _TimestampColumn(RecordColumn):
    """timestamp: that of the record, or of the batch if it is LogAppendTime."""

    def begin(self) -> None:
        self.bits = _Bits(self.capacity)
        self.buffer, view = _new_buffer(8 * self.capacity)
        self.values = view.cast("q")

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
            numbers, counts, first, count = array("q", (_NUMBERS[self.name](rows.run),)), array("q", (rows.run.length,)), 0, 1
        else:
            batches, first, count, _ = rows.span
            numbers, counts = getattr(batches, _IN_SPANS[self.name]), batches.record_count
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


def _field(name: str, otherwise: int) -> Callable[[Run], int]:
    """Return a function that returns a header's field, or `otherwise` for a batch of format 0 or 1."""
    return lambda run: getattr(run.header, name) if isinstance(run.header, RecordBatch) else otherwise


_NUMBERS: dict[str, Callable[[Run], int]] = {
    "position": lambda run: run.header.position,
    "batchSize": lambda run: run.header.size_bytes,
    "leaderEpoch": _field("partition_leader_epoch", -1),
    "producerId": _field("producer_id", -1),
    "producerEpoch": _field("producer_epoch", -1),
}
_OF_RUN: dict[str, Callable[[Run], str | int]] = {
    "topic": lambda run: run.topic,
    "partition": lambda run: run.partition,
    "segment": lambda run: run.segment,
    "aborted": lambda run: run.aborted,
    "timestampType": lambda run: timestamp_type(run.header),
    "compression": lambda run: compression_name(run.header),
    "magic": lambda run: run.header.magic,
    "isTransactional": _field("is_transactional", False),
    "isControl": _field("is_control", False),
}

# The same numbers in the columns of kcli.format.batch_scan.
_IN_SPANS = {
    "position": "position",
    "batchSize": "size_bytes",
    "leaderEpoch": "leader_epoch",
    "producerId": "producer_id",
    "producerEpoch": "producer_epoch",
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
    **dict.fromkeys(_IN_SPANS, _BatchNumberColumn),
}


def column_for(name: str, data_type: pa.DataType, capacity: int) -> Column:
    """Return the column of that name, empty, for up to `capacity` rows."""
    return _OF_RECORD.get(name, _RunColumn)(name, data_type, capacity)
