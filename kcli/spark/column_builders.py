"""Columns of Arrow batches: one object for each column that is asked for, nothing for the rest.

    kind of column                        how it is filled                       cost
    ------------------------------------  -------------------------------------  -----------------------------------
    key, value, headers                   compiled loops copy bytes              by the byte
    offset                                a slice of the scanner's column        one memcpy a window
    timestamp, sequence, sizes            compiled loops                         some ns a record
    numbers that are the same for a       compiled loops                         some ns a record
      whole batch
    what else is the same for a batch     at the end, from the runs of rows      one step a run

Buffers are new for each batch: whoever has one may keep it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from kcli.format.batch_scan import BatchColumns
from kcli.format.compression import codec_name
from kcli.format.java_text import decode_utf8
from kcli.format.legacy_message_set import LegacyBatch
from kcli.format.primitives import INT32_MAX, FormatError
from kcli.format.record_batch import RecordBatch
from kcli.log.record_windows import RecordWindow
from kcli.spark.arrow_columns import (
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    binary_bytes,
    header_totals,
    put_binary,
    put_distances,
    put_headers,
    put_micros,
    put_repeated,
    put_sequences,
    put_sizes,
)

CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP_TYPE = 0, 1, -1

# The room that a column's data begins with; pages that are never written cost nothing.
_KEY_BYTES = 1024 * 1024
_VALUE_BYTES = 6 * 1024 * 1024


class Span(NamedTuple):
    """The batches of a window that holds the records of several: rows [first, first + batch_count) of `batches`.

    `ends` are where each batch's records end in the window's buffer.
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


def _fresh(size: int) -> tuple[pa.Buffer, memoryview]:
    """A buffer of `size` bytes with anything in it, and its bytes."""
    buffer = pa.allocate_buffer(max(size, 1))
    return buffer, memoryview(buffer).cast("B")


class Column:
    """One column of the batch that is being built; `rows` of it are filled."""

    def __init__(self, name: str, data_type: pa.DataType, capacity: int) -> None:
        self.name = name
        self.type = data_type
        self.capacity = capacity
        self.begin()

    def begin(self) -> None:
        """Start anew with empty buffers."""
        raise NotImplementedError

    def finish_runs(self, runs: list[Run], count: int) -> pa.Array:
        """The column of `count` rows, which came in these runs."""
        raise NotImplementedError


class RecordColumn(Column):
    """A column whose values are the records' own: filled window by window."""

    def add(self, rows: Rows, row: int) -> None:
        """Fill `rows.run.length` rows from row `row` on."""
        raise NotImplementedError

    def finish(self, count: int) -> pa.Array:
        """The column of `count` rows."""
        raise NotImplementedError

    def finish_runs(self, runs: list[Run], count: int) -> pa.Array:
        """The column of `count` rows, which were added before."""
        return self.finish(count)

    @property
    def data_bytes(self) -> int:
        """How many bytes of keys, values or headers the column holds."""
        return 0


class _Bits:
    """Validity bits: a set bit is a value that is not null."""

    __slots__ = ("buffer", "nulls", "view")

    def __init__(self, capacity: int) -> None:
        self.view = memoryview(bytearray((capacity + 7) // 8 + 1))
        self.nulls = 0

    def finish(self) -> pa.Buffer | None:
        return pa.py_buffer(self.view) if self.nulls else None


class _Data:
    """The data of a binary or string column; grows where a window needs more than is there."""

    __slots__ = ("buffer", "view")

    def __init__(self, size: int) -> None:
        self.buffer, self.view = _fresh(size)

    def reserve(self, used: int, more: int) -> None:
        if used + more <= len(self.view):
            return
        buffer, view = _fresh(max(used + more, min(2 * len(self.view), INT32_MAX)))
        view[:used] = self.view[:used]
        self.buffer, self.view = buffer, view

    def finish(self, used: int) -> pa.Buffer:
        return self.buffer.slice(0, used)


def _offsets(capacity: int) -> tuple[pa.Buffer, memoryview]:
    buffer, view = _fresh(4 * (capacity + 1))
    offsets = view.cast("i")
    offsets[0] = 0
    return buffer, offsets


class BinaryColumn(RecordColumn):
    """key or value."""

    def begin(self) -> None:
        """Start anew with empty buffers."""
        self.bits = _Bits(self.capacity)
        self.offsets_buffer, self.offsets = _offsets(self.capacity)
        self.data = _Data(_KEY_BYTES if self.name == "key" else _VALUE_BYTES)
        self.used = 0

    def add(self, rows: Rows, row: int) -> None:
        """Copy the records' bytes."""
        columns, first, count = rows.window.columns, rows.first, rows.run.length
        if self.name == "key":
            positions, sizes = columns.key_position, columns.key_size
        else:
            positions, sizes = columns.value_position, columns.value_size
        self.used = self.offsets[row]
        if self.used + len(rows.window.buffer) > len(self.data.view):
            self.data.reserve(self.used, binary_bytes(sizes, first, count))
        self.bits.nulls += put_binary(
            rows.window.buffer, positions, sizes, first, count, self.data.view, self.offsets, self.bits.view, row
        )
        self.used = self.offsets[row + count]

    @property
    def data_bytes(self) -> int:
        """How many bytes of keys or values the column holds."""
        return self.used

    def finish(self, count: int) -> pa.Array:
        """The column of `count` rows."""
        buffers = [self.bits.finish(), self.offsets_buffer, self.data.finish(self.offsets[count])]
        return pa.Array.from_buffers(self.type, count, buffers, self.bits.nulls)


class HeadersColumn(RecordColumn):
    """headers: a list of key and value for each record, null for none."""

    def begin(self) -> None:
        """Start anew; room for headers is made as they come."""
        self.bits = _Bits(self.capacity)
        self.lists_buffer, self.lists = _offsets(self.capacity)
        self.scratch = array("q", (0, 0, 0))
        self.children = self.used_children = 0
        self.key_data, self.value_data = _Data(0), _Data(0)
        self.key_offsets_buffer, self.key_offsets = _offsets(0)
        self.value_offsets_buffer, self.value_offsets = _offsets(0)
        self.value_bits = _Bits(0)

    def _make_room(self, children: int) -> None:
        used = self.used_children
        self.children = max(children, 2 * self.children)
        keys_buffer, keys = _offsets(self.children)
        values_buffer, values = _offsets(self.children)
        bits = _Bits(self.children)
        keys[: used + 1] = self.key_offsets[: used + 1]
        values[: used + 1] = self.value_offsets[: used + 1]
        bits.view[: len(self.value_bits.view)] = self.value_bits.view
        self.key_offsets_buffer, self.key_offsets = keys_buffer, keys
        self.value_offsets_buffer, self.value_offsets = values_buffer, values
        self.value_bits = bits

    def add(self, rows: Rows, row: int) -> None:
        """Copy the records' headers."""
        columns, first, count = rows.window.columns, rows.first, rows.run.length
        more = header_totals(columns.header_count, first, count)
        if more:
            size = len(rows.window.buffer)
            if self.used_children + more > self.children:
                self._make_room(self.used_children + more)
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
        """How many bytes of header keys and values the column holds."""
        return int(self.key_offsets[self.used_children] + self.value_offsets[self.used_children])

    def finish(self, count: int) -> pa.Array:
        """The column of `count` rows."""
        children = self.used_children
        struct = self.type.value_type
        key_buffers = [None, self.key_offsets_buffer, self.key_data.finish(self.key_offsets[children])]
        keys = pa.Array.from_buffers(struct.field("key").type, children, key_buffers, 0)
        if self.scratch[2]:
            # Not all ASCII: bytes that are not UTF-8 become what Java makes of them.
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


class OffsetColumn(RecordColumn):
    """offset."""

    def begin(self) -> None:
        """Start anew with empty buffers."""
        self.buffer, view = _fresh(8 * self.capacity)
        self.values = view.cast("q")

    def add(self, rows: Rows, row: int) -> None:
        """Copy the offsets."""
        first, count = rows.first, rows.run.length
        self.values[row : row + count] = memoryview(rows.window.columns.offset)[first : first + count]

    def finish(self, count: int) -> pa.Array:
        """The column of `count` rows."""
        return pa.Array.from_buffers(self.type, count, [None, self.buffer], 0)


class TimestampColumn(RecordColumn):
    """timestamp: that of the record, or of the batch where the broker's clock gave it."""

    def begin(self) -> None:
        """Start anew with empty buffers."""
        self.bits = _Bits(self.capacity)
        self.buffer, view = _fresh(8 * self.capacity)
        self.values = view.cast("q")

    def add(self, rows: Rows, row: int) -> None:
        """Turn milliseconds into microseconds."""
        timestamps, first = rows.window.columns.timestamp, rows.first
        if rows.span is None and isinstance(rows.run.header, RecordBatch) and rows.run.header.is_log_append_time:
            timestamps, first = array("q", (rows.run.header.max_timestamp,)) * rows.run.length, 0
        self.bits.nulls += put_micros(timestamps, first, rows.run.length, self.values, self.bits.view, row)

    def finish(self, count: int) -> pa.Array:
        """The column of `count` rows."""
        return pa.Array.from_buffers(self.type, count, [self.bits.finish(), self.buffer], self.bits.nulls)


class IntColumn(RecordColumn):
    """A 32-bit number of each record: sequence, keySize, valueSize, recordSize; -1 where there is none."""

    def begin(self) -> None:
        """Start anew with empty buffers."""
        self.buffer, view = _fresh(4 * self.capacity)
        self.values = view.cast("i")

    def add(self, rows: Rows, row: int) -> None:
        """Fill in what the column's name says."""
        columns, first, count = rows.window.columns, rows.first, rows.run.length
        if self.name == "keySize":
            put_sizes(columns.key_size, first, count, self.values, row)
        elif self.name == "valueSize":
            put_sizes(columns.value_size, first, count, self.values, row)
        elif rows.span is not None:
            self._add_span(rows, rows.span, row)
        elif not isinstance(rows.run.header, RecordBatch):
            self.values[row : row + count] = array("i", (-1,)) * count
        elif self.name == "recordSize":
            after = first + count
            end = columns.record_position[after] if after < rows.window.count else columns.end
            put_distances(columns.record_position, first, count, end, self.values, row)
        else:
            header = rows.run.header
            put_sequences(columns.offset, first, count, header.base_offset, header.base_sequence, self.values, row)

    def _add_span(self, rows: Rows, span: Span, row: int) -> None:
        """Fill in recordSize or sequence batch by batch."""
        columns, batches, at = rows.window.columns, span.batches, 0
        for index, end in enumerate(span.ends[: span.batch_count], span.first):
            count = batches.record_count[index]
            if self.name == "recordSize":
                put_distances(columns.record_position, at, count, end, self.values, row + at)
            else:
                base, sequence = batches.base_offset[index], batches.base_sequence[index]
                put_sequences(columns.offset, at, count, base, sequence, self.values, row + at)
            at += count

    def finish(self, count: int) -> pa.Array:
        """The column of `count` rows."""
        return pa.Array.from_buffers(self.type, count, [None, self.buffer], 0)


class BatchNumberColumn(RecordColumn):
    """A number of the batch, the same for all its records: position, batchSize, leaderEpoch, producerId, producerEpoch."""

    def begin(self) -> None:
        """Start anew with empty buffers, of 64 bits whatever the type."""
        self.buffer, view = _fresh(8 * self.capacity)
        self.values = view.cast("q")

    def add(self, rows: Rows, row: int) -> None:
        """Repeat the number for each record."""
        if rows.span is None:
            numbers, counts, first, count = array("q", (_NUMBERS[self.name](rows.run),)), array("q", (rows.run.length,)), 0, 1
        else:
            batches = rows.span.batches
            numbers, counts = getattr(batches, _IN_SPANS[self.name]), batches.record_count
            first, count = rows.span.first, rows.span.batch_count
        put_repeated(numbers, counts, first, count, self.values, row)

    def finish(self, count: int) -> pa.Array:
        """The column of `count` rows."""
        return pa.Array.from_buffers(pa.int64(), count, [None, self.buffer], 0).cast(self.type)


class RunColumn(Column):
    """A column that is the same for a whole batch: made at the end, from the runs of rows that the builder remembers."""

    def begin(self) -> None:
        """Nothing to start."""

    def finish_runs(self, runs: list[Run], count: int) -> pa.Array:
        """The column of `count` rows, which came in these runs."""
        value_of = _OF_RUN[self.name]
        values = [value_of(run) for run in runs]
        if values.count(values[0]) == len(values):
            return pa.repeat(pa.scalar(values[0], self.type), count)
        return pa.concat_arrays(
            [pa.repeat(pa.scalar(value, self.type), run.length) for value, run in zip(values, runs, strict=True)]
        )


class NullColumn(Column):
    """A column of nulls: the report's, in ordinary rows."""

    def begin(self) -> None:
        """Nothing to start."""

    def finish_runs(self, runs: list[Run], count: int) -> pa.Array:
        """The column of `count` nulls."""
        return pa.nulls(count, self.type)


def micros(timestamp_ms: int) -> int | None:
    """Milliseconds as microseconds, None where these do not fit 64 bits."""
    return timestamp_ms * 1000 if MIN_TIMESTAMP_MS <= timestamp_ms <= MAX_TIMESTAMP_MS else None


def timestamp_type(header: RecordBatch | LegacyBatch) -> int:
    """Kafka's id of what gave a batch its timestamps: 0 CreateTime, 1 LogAppendTime, -1 nothing (message format 0)."""
    if header.magic == 0:
        return NO_TIMESTAMP_TYPE
    return LOG_APPEND_TIME if header.is_log_append_time else CREATE_TIME


def compression_name(header: RecordBatch | LegacyBatch) -> str:
    """The codec's name, or its number in brackets where Kafka has none for it."""
    try:
        return codec_name(header.codec)
    except FormatError:
        return f"unknown({header.codec})"


def _field(name: str, otherwise: int) -> Callable[[Run], int]:
    """Return a function that returns a field of a run's header, `otherwise` for a batch of format 0 or 1."""
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

# The columns of kcli.format.batch_scan that hold the same.
_IN_SPANS = {
    "position": "position",
    "batchSize": "size_bytes",
    "leaderEpoch": "leader_epoch",
    "producerId": "producer_id",
    "producerEpoch": "producer_epoch",
}

_OF_RECORD: dict[str, type[RecordColumn]] = {
    "key": BinaryColumn,
    "value": BinaryColumn,
    "headers": HeadersColumn,
    "offset": OffsetColumn,
    "timestamp": TimestampColumn,
    "sequence": IntColumn,
    "keySize": IntColumn,
    "valueSize": IntColumn,
    "recordSize": IntColumn,
    **dict.fromkeys(_IN_SPANS, BatchNumberColumn),
}


def column_for(name: str, data_type: pa.DataType, capacity: int) -> Column:
    """The column of that name, empty, with room for `capacity` rows."""
    return _OF_RECORD.get(name, RunColumn)(name, data_type, capacity)
