"""Arrow record batches out of scanned records.

A batch of rows is handed on when it holds `max_rows` rows or `max_bytes` of keys, values and headers, whichever comes
first; a single window of records may be larger than that, and then travels alone. So a task holds a few MB over what Arrow
itself needs, whatever the segment's size.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import StructType

from kcli.format.limits import SCAN_WINDOW_RECORDS
from kcli.spark.arrow_columns import binary_bytes, header_totals
from kcli.spark.column_builders import Column, NullColumn, Rows, column_for

DEFAULT_MAX_ROWS = 16_384
DEFAULT_MAX_BYTES = 4 * 1024 * 1024


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of batches for `schema`: equal in everything, nullability included."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


class ArrowBatchBuilder:
    """Collects records into Arrow batches of `schema`; see the module on when one is full."""

    def __init__(
        self,
        schema: pa.Schema,
        *,
        max_rows: int = DEFAULT_MAX_ROWS,
        max_bytes: int = DEFAULT_MAX_BYTES,
        report: str | None = None,
    ) -> None:
        self.schema = schema
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self.rows = 0
        self.bytes = 0
        capacity = max_rows + SCAN_WINDOW_RECORDS
        self._columns: list[Column] = []
        for field in schema:
            make = NullColumn if field.name == report else column_for
            self._columns.append(make(field.name, field.type, capacity))
        self._sizes = [name for name in ("key", "value", "headers") if name in schema.names]

    def has_room(self, rows: Rows) -> bool:
        """True where the rows fit, or nothing is there yet that could be handed on first."""
        return not self.rows or (
            self.rows + rows.length <= self.max_rows and self.bytes + self._bytes_of(rows) <= self.max_bytes
        )

    def _bytes_of(self, rows: Rows) -> int:
        columns, first, count = rows.window.columns, rows.first, rows.length
        total = 0
        if "key" in self._sizes:
            total += binary_bytes(columns.key_size, first, count)
        if "value" in self._sizes:
            total += binary_bytes(columns.value_size, first, count)
        if "headers" in self._sizes and header_totals(columns.header_count, first, count):
            total += len(rows.window.buffer)
        return total

    def add(self, rows: Rows) -> None:
        """Append the rows; a batch takes at most SCAN_WINDOW_RECORDS rows above `max_rows`."""
        for column in self._columns:
            column.add(rows, self.rows)
        self.bytes += self._bytes_of(rows)
        self.rows += rows.length

    def finish(self) -> pa.RecordBatch:
        """The batch of what was added; the builder is empty again."""
        batch = pa.RecordBatch.from_arrays([column.finish(self.rows) for column in self._columns], schema=self.schema)
        for column in self._columns:
            column.begin()
        self.rows = self.bytes = 0
        return batch
