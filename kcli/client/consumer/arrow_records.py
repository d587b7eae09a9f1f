# cython: boundscheck=False
# (`reserve` makes room for the rows, and the scan has checked the positions)
"""Fetched records as buffers of Arrow arrays, filled by compiled loops: no object is made for a record.

    column           Arrow type                        buffers
    ---------------  --------------------------------  ---------------------------------------------------------------
    topic            dictionary<int8, string>          int8: all 0; the dictionary is the one topic
    partition        int32                             int32
    offset           int64                             int64
    timestamp        timestamp[ms, UTC]                int64; -1 for none (message format 0), as in Kafka
    timestamp_type   int8                              int8: kcli.client.consumer.consumer_record
    key, value       binary                            validity bits, int32 offsets, bytes
    headers          list<struct<key: string,          int32 offsets; of the children: int32 offsets and bytes, and the
                     value: binary>>                   validity of the values. A record without headers has an empty list
    leader_epoch     int32                             int32, -1 if it is not known

A builder takes records of one partition. Its buffers grow by doubling, and `finish` gives them away
(kcli.client.consumer.arrow_export shows them to Arrow). The offsets of a column are 32 bits: CompletedFetch adds no records
to a builder that has enough bytes. This one source runs two ways, as kcli.format.record_scan does; its C types are in
arrow_records.pxd.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from kcli.format import arrow_columns, batch_header, byte_address, record_scan
from kcli.format.java_text import decode_utf8
from kcli.format.primitives import Buffer

FIRST_ROWS = 1024
FIRST_BYTES = 16 * 1024


class BinaryColumn:
    """A column of bytes with nulls."""

    def __init__(self) -> None:
        self.nulls = 0
        self.offsets = memoryview(bytearray(4 * (FIRST_ROWS + 1))).cast("i")
        self.validity = memoryview(bytearray(FIRST_ROWS // 8))
        self.data = memoryview(bytearray(FIRST_BYTES))

    def grow_rows(self, rows: int, capacity: int) -> None:
        """Make room for `capacity` rows, a multiple of 8; `rows` are kept."""
        offsets = memoryview(bytearray(4 * (capacity + 1))).cast("i")
        offsets[: rows + 1] = self.offsets[: rows + 1]
        self.offsets = offsets
        validity = memoryview(bytearray(capacity // 8))
        kept = (rows + 7) // 8
        validity[:kept] = self.validity[:kept]
        self.validity = validity

    def reserve(self, rows: int, size: int) -> None:
        """Make room for `size` more bytes after those of `rows` rows."""
        used = self.offsets[rows]
        if used + size > len(self.data):
            data = memoryview(bytearray(max(used + size, 2 * len(self.data))))
            data[:used] = self.data[:used]
            self.data = data

    def add(self, value: bytes | None, row: int) -> None:
        """Put one value into row `row`, for which there is room."""
        used = self.offsets[row]
        size = 0
        if value is None:
            self.nulls += 1
        else:
            size = len(value)
            self.reserve(row, size)
            byte_address.copy_part(self.data, used, value, 0, size)
            self.validity[row >> 3] |= 1 << (row & 7)
        self.offsets[row + 1] = used + size

    def scan(
        self,
        buffer: Buffer,
        positions: array,  # type: ignore[type-arg]
        sizes: array,  # type: ignore[type-arg]
        first: int,
        count: int,
        row: int,
    ) -> None:
        """Put `count` scanned keys or values into the rows from `row` on, for which there is room."""
        self.reserve(row, arrow_columns.sum_of(sizes, first, count))
        self.nulls += arrow_columns.put_binary(
            buffer, positions, sizes, first, count, self.data, self.offsets, self.validity, row
        )


class ArrowColumns(NamedTuple):
    """The buffers of `rows` records of one partition; the module has their types."""

    topic: str
    partition: int
    rows: int
    topic_index: memoryview
    partitions: memoryview
    offsets: memoryview
    timestamps: memoryview
    timestamp_types: memoryview
    leader_epochs: memoryview
    keys: BinaryColumn
    values: BinaryColumn
    header_lists: memoryview
    header_keys: BinaryColumn
    header_values: BinaryColumn


class ArrowBuilder:
    """Collects the records of one partition; `rows` is their number."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.rows = 0
        self.capacity = FIRST_ROWS
        self._offsets = memoryview(bytearray(8 * FIRST_ROWS)).cast("q")
        self._timestamps = memoryview(bytearray(8 * FIRST_ROWS)).cast("q")
        self._timestamp_types = memoryview(bytearray(FIRST_ROWS)).cast("b")
        self._leader_epochs = memoryview(bytearray(4 * FIRST_ROWS)).cast("i")
        self._lists = memoryview(bytearray(4 * (FIRST_ROWS + 1))).cast("i")
        self._list_validity = memoryview(bytearray(FIRST_ROWS // 8))
        self._keys = BinaryColumn()
        self._values = BinaryColumn()
        self._header_keys = BinaryColumn()
        self._header_values = BinaryColumn()
        self._header_capacity = FIRST_ROWS
        self._scratch = array("q", (0, 0, 0))

    def size_bytes(self) -> int:
        """Return the bytes of the keys, values and headers."""
        headers = self._lists[self.rows]
        size = self._keys.offsets[self.rows] + self._values.offsets[self.rows]
        return size + self._header_keys.offsets[headers] + self._header_values.offsets[headers]

    def reserve(self, count: int) -> None:
        """Make room for `count` more rows."""
        rows = self.rows
        if rows + count <= self.capacity:
            return
        capacity = (max(rows + count, 2 * self.capacity) + 7) // 8 * 8
        offsets = memoryview(bytearray(8 * capacity)).cast("q")
        offsets[:rows] = self._offsets[:rows]
        self._offsets = offsets
        timestamps = memoryview(bytearray(8 * capacity)).cast("q")
        timestamps[:rows] = self._timestamps[:rows]
        self._timestamps = timestamps
        types = memoryview(bytearray(capacity)).cast("b")
        types[:rows] = self._timestamp_types[:rows]
        self._timestamp_types = types
        epochs = memoryview(bytearray(4 * capacity)).cast("i")
        epochs[:rows] = self._leader_epochs[:rows]
        self._leader_epochs = epochs
        lists = memoryview(bytearray(4 * (capacity + 1))).cast("i")
        lists[: rows + 1] = self._lists[: rows + 1]
        self._lists = lists
        self._list_validity = memoryview(bytearray(capacity // 8))
        self._keys.grow_rows(rows, capacity)
        self._values.grow_rows(rows, capacity)
        self.capacity = capacity

    def expect(self, count: int, size: int) -> None:
        """Make room at once for about `count` more rows, with values of `size` bytes."""
        self.reserve(count)
        self._values.reserve(self.rows, size)

    def add(
        self,
        buffer: Buffer,
        columns: record_scan.RecordColumns,
        first: int,
        count: int,
        header: batch_header.BatchHeader,
        timestamp_type: int,
    ) -> None:
        """Add the scanned records [first, first + count) of a batch."""
        self.reserve(count)
        row = self.rows
        index = 0
        headers = 0
        while index < count:
            self._offsets[row + index] = columns.offset_view[first + index]
            self._timestamps[row + index] = columns.timestamp_view[first + index]
            self._timestamp_types[row + index] = timestamp_type
            self._leader_epochs[row + index] = header.leader_epoch
            headers += columns.header_count_view[first + index]
            index += 1
        if header.is_log_append_time:
            index = 0
            while index < count:
                self._timestamps[row + index] = header.max_timestamp
                index += 1
        self._keys.scan(buffer, columns.key_position_view, columns.key_size_view, first, count, row)
        self._values.scan(buffer, columns.value_position_view, columns.value_size_view, first, count, row)
        if headers:
            self._add_headers(buffer, columns, first, count, headers)
        else:
            child = self._lists[row]
            index = 1
            while index <= count:
                self._lists[row + index] = child
                index += 1
        self.rows += count

    def _add_headers(self, buffer: Buffer, columns: record_scan.RecordColumns, first: int, count: int, headers: int) -> None:
        row = self.rows
        child = self._lists[row]
        self._reserve_headers(child, headers)
        size = columns.end - columns.record_position_view[first]
        self._header_keys.reserve(child, size)
        self._header_values.reserve(child, size)
        self._scratch[1] = 0
        arrow_columns.put_headers(
            buffer,
            columns.header_position_view,
            columns.header_count_view,
            first,
            count,
            self._lists,
            self._list_validity,
            row,
            self._header_keys.data,
            self._header_keys.offsets,
            self._header_values.data,
            self._header_values.offsets,
            self._header_values.validity,
            self._scratch,
        )
        self._header_values.nulls += self._scratch[1]

    def _reserve_headers(self, child: int, headers: int) -> None:
        if child + headers > self._header_capacity:
            capacity = (max(child + headers, 2 * self._header_capacity) + 7) // 8 * 8
            self._header_keys.grow_rows(child, capacity)
            self._header_values.grow_rows(child, capacity)
            self._header_capacity = capacity

    def add_record(
        self,
        offset: int,
        timestamp: int,
        timestamp_type: int,
        key: bytes | None,
        value: bytes | None,
        headers: tuple[tuple[str, bytes | None], ...],
        leader_epoch: int,
    ) -> None:
        """Add one record that was not scanned."""
        self.reserve(1)
        row = self.rows
        self._offsets[row] = offset
        self._timestamps[row] = timestamp
        self._timestamp_types[row] = timestamp_type
        self._leader_epochs[row] = leader_epoch
        self._keys.add(key, row)
        self._values.add(value, row)
        child = self._lists[row]
        self._reserve_headers(child, len(headers))
        for name, data in headers:
            self._header_keys.add(name.encode(), child)
            self._header_values.add(data, child)
            child += 1
        self._lists[row + 1] = child
        self.rows += 1

    def finish(self) -> ArrowColumns:
        """Return the buffers; the builder is not used any more."""
        rows = self.rows
        children = self._lists[rows]
        header_keys = self._header_keys
        if self._scratch[2]:
            header_keys = _valid_text(header_keys, children)
        return ArrowColumns(
            self.topic,
            self.partition,
            rows,
            memoryview(bytearray(rows or 1)),
            memoryview(bytearray(array("i", (self.partition,)) * (rows or 1))).cast("i"),
            memoryview(self._offsets),
            memoryview(self._timestamps),
            memoryview(self._timestamp_types),
            memoryview(self._leader_epochs),
            self._keys,
            self._values,
            memoryview(self._lists),
            header_keys,
            self._header_values,
        )


def _valid_text(keys: BinaryColumn, count: int) -> BinaryColumn:
    """Return header keys of which each is UTF-8: what is not gets replacement characters, as in Kafka's clients."""
    valid = BinaryColumn()
    valid.grow_rows(0, (count + 8) // 8 * 8)
    data = bytes(keys.data)
    for row in range(count):
        valid.add(decode_utf8(data[keys.offsets[row] : keys.offsets[row + 1]]).encode("utf-8", "replace"), row)
    return valid
