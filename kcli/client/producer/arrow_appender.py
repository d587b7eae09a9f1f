"""The rows of an Arrow table as records, from the columns' buffers into batches, without a Python object for each.

    column      Arrow's types                                     without it, or null
    ----------  ------------------------------------------------  ---------------------------------------------------------
    value       binary, string, large_binary, large_string        null
    key         the same                                          null
    headers     list<struct<key: string, value: binary>>          none; such rows take the way of single records
    timestamp   timestamp of any unit; int64: ms since 1970       the time of the call
    partition   int32, int64                                      by the key's hash, without a key the sticky partition

All rows are there, so batches need not stay small to be sent soon: they get up to `batch_bytes`, which is more than batch.size.
What was in the last batch of a partition is sent before. `append` can be called again and again until all rows are in batches:
it stops when buffer.memory is full.

This one source runs two ways, as kcli.format.record_scan does; its C types are in arrow_appender.pxd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kcli.client.cluster import UNKNOWN_PARTITION
from kcli.client.errors import InvalidRecordError
from kcli.client.producer import arrow_column, producer_batch, record_accumulator
from kcli.format import byte_address, memory_records_builder, murmur2

COLUMNS = ("key", "value", "headers", "timestamp", "partition")
_UNITS = {"s": (1000, 1), "ms": (1, 1), "us": (1, 1000), "ns": (1, 1_000_000)}
# A batch of all rows whose partitions are not known yet gets so much more than its share.
_SPREAD = 2


class ArrowRows:
    """The columns of one record batch; its objects are pyarrow's."""

    def __init__(self, batch: Any) -> None:
        """Raises InvalidRecordError for columns that are not records."""
        names = list(batch.schema.names)
        unknown = [name for name in names if name not in COLUMNS]
        if unknown or "value" not in names:
            what = f"it has {', '.join(unknown)}" if unknown else "it has no column value"
            raise InvalidRecordError(f"the columns of a table of records are {', '.join(COLUMNS)}: {what}")
        columns = {name: batch.column(index) for index, name in enumerate(names)}
        self.count = batch.num_rows
        self.values = _binary("value", columns["value"])
        self.keys = _binary("key", columns["key"]) if "key" in columns else None
        self.timestamps = _timestamps(columns["timestamp"]) if "timestamp" in columns else None
        self.partitions = _partitions(columns["partition"]) if "partition" in columns else None
        self.headers = columns.get("headers")
        self.value_bytes = byte_address.readable(self.values.data)
        self.key_bytes = byte_address.readable(arrow_column.data_of(self.keys))
        self.byte_count = sum(buffer.size for name in ("key", "value") if name in columns for buffer in _buffers(columns[name]))

    def headers_of(self, row: int) -> memory_records_builder.Headers:
        """Return the headers of a row as objects."""
        if self.headers is None:
            return ()
        found = self.headers[row].as_py() or ()
        return tuple((_text(one["key"]), _text(one["value"])) for one in found)


def _text(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def _buffers(array: Any) -> list[Any]:
    return [buffer for buffer in array.buffers() if buffer is not None]


def _binary(name: str, array: Any) -> arrow_column.BinaryColumn:
    kind = str(array.type)
    if kind not in (*arrow_column.BINARY_TYPES, *arrow_column.LARGE_TYPES):
        raise InvalidRecordError(f"the column {name} is of type {kind}: cast it to binary or string")
    return arrow_column.BinaryColumn(array)


def _timestamps(array: Any) -> arrow_column.NumberColumn:
    kind = str(array.type)
    if kind == "int64":
        return arrow_column.NumberColumn(array, False)
    unit = kind.removeprefix("timestamp[").rstrip("]").split(",")[0]
    if not kind.startswith("timestamp[") or unit not in _UNITS:
        raise InvalidRecordError(
            f"the column timestamp is of type {kind}: cast it to a timestamp, or to int64 in ms since 1970"
        )
    return arrow_column.NumberColumn(array, False, *_UNITS[unit])


def _partitions(array: Any) -> arrow_column.NumberColumn:
    kind = str(array.type)
    if kind not in ("int32", "int64"):
        raise InvalidRecordError(f"the column partition is of type {kind}: cast it to int32")
    return arrow_column.NumberColumn(array, kind == "int32")


def record_batches(table: Any) -> Iterable[Any]:
    """Return the record batches of a table, a record batch, or a reader of record batches. Raises TypeError."""
    if not any(hasattr(table, name) for name in ("to_batches", "num_rows", "read_next_batch", "__next__")) and not (
        isinstance(table, list) and all(hasattr(one, "num_rows") for one in table)
    ):
        raise TypeError(f"produce_arrow takes a table or record batches of Arrow, not {table!r}")
    if hasattr(table, "to_batches"):
        return table.to_batches()  # type: ignore[no-any-return]
    return [table] if hasattr(table, "num_rows") else table


class ArrowAppender:
    """Appends the rows of a record batch to a topic; `row` is the next one."""

    def __init__(
        self,
        rows: ArrowRows,
        accumulator: record_accumulator.RecordAccumulator,
        topic: str,
        batch_bytes: int,
        on_batch: producer_batch.Callback | None,
        added: Callable[[str, int], object] | None,
    ) -> None:
        """`on_batch` is the callback of each batch's first record; `added(topic, partition)` is called for each new batch."""
        self.row = 0
        self._rows = rows
        self._accumulator = accumulator
        self._topic = topic
        self._batch_bytes = batch_bytes
        self._on_batch = on_batch
        self._added = added
        self._sticky = UNKNOWN_PARTITION
        self._sticky_bytes = 0
        # The batches that this call has begun and that are open, by partition.
        self._open: dict[int, producer_batch.ProducerBatch] = {}

    def append(self, count: int, most: int, wall_ms: int, now_ms: int, cluster: Any) -> bool:
        """Append up to `most` rows to the `count` partitions of the topic; return False if memory is missing.

        Raises InvalidRecordError for a partition that the topic does not have, RecordTooLargeError, ValueError.
        """
        rows = self._rows
        end = min(self.row + most, rows.count)
        batch: producer_batch.ProducerBatch | None = None
        last = UNKNOWN_PARTITION
        while self.row < end:
            partition = self._partition_of(self.row, count)
            number = partition
            if partition == UNKNOWN_PARTITION:
                if self._sticky == UNKNOWN_PARTITION:
                    self._sticky = self._accumulator.sticky_partition(self._topic, cluster)
                number = self._sticky
            if number != last:
                batch, last = self._open.get(number), number
            timestamp = wall_ms if rows.timestamps is None else rows.timestamps.value(self.row, wall_ms)
            size = 0 if batch is None else self._put(batch, timestamp)
            if size <= 0:
                if partition == UNKNOWN_PARTITION and batch is not None:
                    self._accumulator.update_sticky(self._topic, self._sticky_bytes, cluster)
                    self._sticky = number = self._accumulator.sticky_partition(self._topic, cluster)
                    self._sticky_bytes = 0
                batch, last = self._begin(number, count, now_ms), number
                if batch is None:
                    return False
                size = self._put(batch, timestamp)
            if partition == UNKNOWN_PARTITION:
                self._sticky_bytes += size
            self.row += 1
        return True

    def _partition_of(self, row: int, count: int) -> int:
        rows = self._rows
        found = UNKNOWN_PARTITION
        if rows.partitions is not None:
            found = rows.partitions.value(row, UNKNOWN_PARTITION)
            if found < UNKNOWN_PARTITION or found >= count:
                raise InvalidRecordError(f"row {row}: topic {self._topic} has no partition {found}, but {count} partitions")
        if found == UNKNOWN_PARTITION and rows.keys is not None:
            size = rows.keys.size(row)
            if size >= 0:
                found = murmur2.partition_for_part(rows.key_bytes, rows.keys.start(row), size, count)
        return found

    def _put(self, batch: producer_batch.ProducerBatch, timestamp: int) -> int:
        """Append the row to a batch; return its size, or 0 if it has no room or no memory."""
        rows = self._rows
        if rows.headers is not None:
            headers = rows.headers_of(self.row)
            if headers:
                before = batch.builder.position
                key = None if rows.keys is None else rows.keys.value(self.row)
                pool = self._accumulator.pool
                if not batch.try_append(timestamp, key, rows.values.value(self.row), headers, None, pool):
                    return 0
                return batch.builder.position - before
        key_size, key_start = -1, 0
        if rows.keys is not None:
            key_size = rows.keys.size(self.row)
            key_start = rows.keys.start(self.row)
        value_size = rows.values.size(self.row)
        value_start = rows.values.start(self.row)
        builder = batch.builder
        size = builder.append_parts(timestamp, rows.key_bytes, key_start, key_size, rows.value_bytes, value_start, value_size)
        if size < 0 and batch.grow_by(max(key_size, 0) + max(value_size, 0) + 100, self._accumulator.pool):
            size = builder.append_parts(
                timestamp, rows.key_bytes, key_start, key_size, rows.value_bytes, value_start, value_size
            )
        if size <= 0:
            builder.close_for_appends()
            return 0
        return size

    def _begin(self, partition: int, count: int, now_ms: int) -> producer_batch.ProducerBatch | None:
        """Begin a batch for the row; None without memory."""
        rows = self._rows
        left = rows.count - self.row
        share = (rows.byte_count + 30 * rows.count) * left // max(rows.count, 1)
        if count > 1 and (rows.keys is not None or rows.partitions is not None):
            share = share * _SPREAD // count
        value_size = max(rows.values.size(self.row), 0)
        least = value_size + 100 + (0 if rows.keys is None else max(rows.keys.size(self.row), 0))
        if rows.headers is not None:
            least += memory_records_builder.estimate_size_upper_bound(None, None, rows.headers_of(self.row))
        size = min(self._batch_bytes, share + 200)
        batch = self._accumulator.begin_batch(self._topic, partition, max(size, least), least, now_ms)
        if batch is None:
            return None
        if self._on_batch is not None:
            batch.set_first_callback(self._on_batch)
        if self._added is not None:
            self._added(self._topic, partition)
        self._open[partition] = batch
        return batch
