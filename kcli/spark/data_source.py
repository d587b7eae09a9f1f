"""The data source `kafka-log`: `spark.read.format("kafka-log").load(dir)` and `spark.readStream` likewise.

    Spark asks                 where it runs                  who answers
    -------------------------  -----------------------------  ---------------------------------------------------------
    schema()                   a planning worker, in load()   kcli.spark.schema; paths and topics are looked for
    reader().partitions()      a planning worker              kcli.spark.planning
    reader().read(split)       one worker a task              kcli.spark.record_reader, kcli.spark.tables
    streamReader()             a worker for the whole query   kcli.spark.streaming

Spark finds it by itself: the top-level package `pyspark_kcli` names it, and `pyspark_kafkalog` its other name for SQL. A reader
that defines `pushFilters` fails while spark.sql.python.filterPushdown.enabled is off, as Spark has it. So there are two
readers, and the one that takes filters is given out for option pushdown=true only. Filters serve to read less; Spark still
applies each of them itself.

Spark shows a user the traceback of a worker, then the error. Our own errors are sentences, so they are raised anew here, where
their traceback has one entry, the least that Spark shows; the traceback of a fault of this program stays whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, wraps
from typing import ParamSpec, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from kcli.log.disk.os_disk import OsDisk
from kcli.spark import schema as columns
from kcli.spark.options import OptionError, ReadOptions, parse_options
from kcli.spark.pushdown import Pushed, push_filters
from kcli.spark.splits import LogSplit

FORMAT, ALIAS = "kafka-log", "kafkalog"
_READ_ONLY = (
    "the format kafka-log is read-only: write the rows to another format, such as parquet, or to Kafka by Spark's format kafka"
)


_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def _is_sentence(error: Exception) -> bool:
    """True for an error that says all there is to say: one of kcli's own, or of a file."""
    return type(error).__module__.startswith("kcli.") or isinstance(error, OSError)


def brief_errors(method: Callable[_Parameters, _Result]) -> Callable[_Parameters, _Result]:
    """Wrap a method that Spark calls so that our own errors reach the user without the way that they took."""

    @wraps(method)
    def called(*args: _Parameters.args, **named: _Parameters.kwargs) -> _Result:
        try:
            return method(*args, **named)
        except Exception as error:
            if _is_sentence(error):
                raise error.with_traceback(None) from None
            raise

    return called


def brief_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of a task, with errors as `brief_errors` has them. Raises as the task does."""
    try:
        yield from batches
    except Exception as error:
        if _is_sentence(error):
            raise error.with_traceback(None) from None
        raise


class KafkaLogDataSource(DataSource):  # type: ignore[misc]
    """Kafka's log directories as DataFrames; options in kcli.spark.options, columns in kcli.spark.schema."""

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    @cached_property
    def read_options(self) -> ReadOptions:
        """The options, parsed when reading is asked for. Raises OptionError for one that is wrong."""
        return parse_options(self._given)

    @brief_errors
    def schema(self) -> StructType:
        """The columns of the table that is asked for.

        Spark asks for them in load(): paths and topics that are not there are found then, not by the first action.
        Raises OptionError, PlanError, and SchemaError for a column that the table does not have.
        """
        from kcli.spark.partitions import find_partitions, plan_anew

        options = self.read_options
        found = columns.table_schema(
            options.table, columns=options.columns, headers=options.include_headers, report=options.report_column
        )
        plan_anew(lambda: find_partitions(OsDisk(), options))
        return found

    @brief_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query. Raises SchemaError where `schema` does not fit the table."""
        kind = PushdownReader if self.read_options.pushdown else KafkaLogReader
        return kind(self.read_options, schema)

    @brief_errors
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader of a streaming query. Raises SchemaError where `schema` does not fit the table."""
        from kcli.spark.streaming import KafkaLogStreamReader

        return KafkaLogStreamReader(self.read_options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Refuse to write. Raises OptionError."""
        raise OptionError(_READ_ONLY)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Refuse to write. Raises OptionError."""
        raise OptionError(_READ_ONLY)


class KafkaLogDataSourceAlias(KafkaLogDataSource):
    """The same under a name that SQL takes without quotes: CREATE TABLE t USING kafkalog."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return ALIAS


class KafkaLogReader(DataSourceReader):  # type: ignore[misc]
    """Plans a batch query and, in the tasks, reads its splits."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        columns.check_schema(schema, options.table, options.report_column)
        self.options = options
        self.schema = schema
        self.pushed = Pushed()

    @brief_errors
    def partitions(self) -> list[LogSplit]:
        """The splits, one task each. Raises PlanError for paths and offsets that do not fit, OSError as the disk does."""
        from kcli.spark.tables import plan_table

        return plan_table(OsDisk(), self.options, set(self.schema.fieldNames()), self.pushed)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one split. Raises CorruptLogError for corrupt bytes where the job is to fail."""
        from kcli.spark.tables import read_split

        return brief_rows(read_split(partition, self.schema, self.options))


class PushdownReader(KafkaLogReader):
    """The reader that lets Spark's filters choose partitions, offsets and times."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take from the filters what narrows the read -> all of them, since Spark must still apply each to the rows."""
        self.pushed = push_filters(filters)
        return filters
