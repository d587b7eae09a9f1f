"""Arrow record batches out of scanned records.

A batch of rows is handed on as soon as it holds `max_rows` rows or `max_bytes` of keys, values and headers, whichever comes
first; the last window of records may take it beyond that. So a task holds a few MB over what Arrow itself needs, whatever the
segment's size.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import StructType

from kcli.format.limits import SCAN_WINDOW_RECORDS
from kcli.spark.column_builders import Column, NullColumn, RecordColumn, Rows, column_for

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
        self._runs: list[Rows] = []
        capacity = max_rows + SCAN_WINDOW_RECORDS
        self._columns: list[Column] = []
        for field in schema:
            make = NullColumn if field.name == report else column_for
            self._columns.append(make(field.name, field.type, capacity))
        self._filled = [column for column in self._columns if isinstance(column, RecordColumn)]
        self._sized = [column for column in self._filled if column.name in ("key", "value", "headers")]

    def add(self, rows: Rows) -> bool:
        """Append at most SCAN_WINDOW_RECORDS rows -> whether the batch is full now and must be finished."""
        for column in self._filled:
            column.add(rows, self.rows)
        # The window is not kept: its buffer is as large as a batch.
        self._runs.append(rows._replace(window=None, span=None))
        self.rows += rows.length
        return self.rows >= self.max_rows or sum([column.data_bytes for column in self._sized]) >= self.max_bytes

    def finish(self) -> pa.RecordBatch:
        """The batch of what was added; the builder is empty again."""
        arrays = [column.finish_runs(self._runs, self.rows) for column in self._columns]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        for column in self._columns:
            column.begin()
        self.rows = 0
        self._runs = []
        return batch
