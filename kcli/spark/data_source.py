"""The data source `kafka-log`: `spark.read.format("kafka-log").load(dir)` and `spark.readStream` likewise.

    Spark calls                in                             module
    -------------------------  -----------------------------  ---------------------------------------------------------
    schema()                   a planning worker, in load()   kcli.spark.table_schemas; checks paths and topics
    reader().partitions()      a planning worker              kcli.spark.planning
    reader().read(split)       a worker for each task         kcli.spark.arrow_spans, kcli.spark.tables
    streamReader()             a worker for the whole query   kcli.spark.streaming

Spark registers the source by itself: it imports the top-level packages `pyspark_kcli` and, for the second name,
`pyspark_kafkalog`. The reader has no `pushFilters`: Spark 4.3.0 keeps the filters that one query has pushed into a source
in Python for later uses of the same DataFrame, in which rows are then missing.

Spark shows the traceback of a worker, then the error. The message of an error of kcli is sufficient for a user, so such
an error is raised again here with a traceback of one entry, the least that Spark shows. Other errors keep their traceback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, wraps
from typing import ParamSpec, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from kcli.log.disk.os_disk import OsDisk
from kcli.spark import table_schemas as columns
from kcli.spark.read_options import OptionError, ReadOptions, parse_options
from kcli.spark.splits import LogSplit

FORMAT, ALIAS = "kafka-log", "kafkalog"
_READ_ONLY = (
    "the format kafka-log is read-only: write the rows to another format, such as parquet, or to Kafka by Spark's format kafka"
)


_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def _is_self_explanatory(error: Exception) -> bool:
    """Return True for an error whose message is sufficient: one of kcli's own, or of a file."""
    return type(error).__module__.startswith("kcli.") or isinstance(error, OSError)


def brief_errors(method: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Wrap a method that Spark calls, so that errors of kcli are shown without a traceback."""

    @wraps(method)
    def called(*args: _Parameters.args, **named: _Parameters.kwargs) -> _Result:
        try:
            return method(*args, **named)
        except Exception as error:
            if _is_self_explanatory(error):
                raise error.with_traceback(None) from None
            raise

    return called


def brief_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a task, with errors as in `brief_errors`. Raises as the task does."""
    try:
        yield from batches
    except Exception as error:
        if _is_self_explanatory(error):
            raise error.with_traceback(None) from None
        raise


class KafkaLogDataSource(DataSource):  # type: ignore[misc]
    """Kafka's log directories as DataFrames; kcli.spark.read_options has the options, kcli.spark.table_schemas the columns."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    @cached_property
    def read_options(self) -> ReadOptions:
        """The options, parsed on first use, which writing does not need. Raises OptionError for one that is invalid."""
        return parse_options(self._given)

    @brief_errors
    def schema(self) -> StructType:
        """Return the columns of the table that is read, after a check that the paths and topics exist.

        Spark calls this in load(), so that a missing path fails there and not in the first action.
        Raises OptionError, PlanError, and TableError for a column that the table does not have.
        """
        from kcli.spark.log_partitions import retry_planning
        from kcli.spark.planning import find_partitions

        options = self.read_options
        found = columns.table_schema(
            options.table,
            columns=options.columns,
            headers=options.include_headers,
            report=options.report_column,
            of_cluster=options.of_cluster,
        )
        retry_planning(find_partitions)(OsDisk(), options)
        return found

    @brief_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query. Raises TableError if `schema` does not fit the table."""
        return KafkaLogReader(self.read_options, schema)

    @brief_errors
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query. Raises TableError if `schema` does not fit the table."""
        from kcli.spark.streaming import KafkaLogStreamReader

        return KafkaLogStreamReader(self.read_options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Refuse to write. Raises OptionError."""
        raise OptionError(_READ_ONLY)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Refuse to write. Raises OptionError."""
        raise OptionError(_READ_ONLY)


class KafkaLogDataSourceAlias(KafkaLogDataSource):
    """The source under a name that SQL accepts without quotes: CREATE TEMPORARY VIEW v USING kafkalog."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return ALIAS


class KafkaLogReader(DataSourceReader):  # type: ignore[misc]
    """Plans a batch query and, in its tasks, reads the splits."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        columns.check_schema(schema, options.table, options.report_column, of_cluster=options.of_cluster)
        self.options = options
        self.schema = schema

    @brief_errors
    def partitions(self) -> list[LogSplit]:
        """Return the splits, one for each task. Raises PlanError for paths and offsets that do not fit, OSError."""
        from kcli.spark.tables import plan_table

        return plan_table(OsDisk(), self.options, set(self.schema.fieldNames()))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of one split. Raises CorruptLogError for corrupt bytes with onCorrupt=fail."""
        from kcli.spark.tables import read_split

        return brief_rows(read_split(partition, self.schema, self.options))
