"""The tables of the data source, and their columns.

`records`, the first one, begins with the columns of Spark's Kafka source, same names, same types, same order:

    key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int,
    headers array<struct<key string, value binary>> (unless includeHeaders is false)

and continues with columns that only the log has. All columns are nullable, as theirs are. `headers` is null for a record
without headers; `timestampType` is 0 (CreateTime), 1 (LogAppendTime) or -1 (none, message format 0), as in Kafka's clients. The
timestamp of a record without one is 1 ms before 1970, as there; a timestamp that does not fit microseconds is null.

A user's schema (`.schema("offset bigint, value binary")`) or the option `columns` chooses among a table's columns, in any
order; other columns are not computed. It replaces column pruning, which Spark does not have for sources in Python.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

RECORDS = "records"
BATCHES = "batches"
OFFSET_INDEX = "offset_index"
TIME_INDEX = "time_index"
ABORTED_TRANSACTIONS = "aborted_transactions"
PRODUCERS = "producers"
LEADER_EPOCHS = "leader_epochs"
INTERNAL_RECORDS = "internal_records"
CORRUPT = "corrupt"
# Read from other files than segments.
OF_FILES = (OFFSET_INDEX, TIME_INDEX, ABORTED_TRANSACTIONS, PRODUCERS, LEADER_EPOCHS)

_TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "boolean": BooleanType(),
    "timestamp": TimestampType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}

# The columns of a file of the log, which a running cluster does not show.
FILE_COLUMNS = ("segment", "position")

# The type of the option reportColumn's column, which has the tasks' reports (see kcli.spark.report).
REPORT_TYPE = "string"


# table: column type, column type, ...
_COLUMNS = """
records:
    key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int,
    headers headers, leaderEpoch int, producerId bigint, producerEpoch int, sequence int,
    isTransactional boolean, isControl boolean, aborted boolean, compression string, magic int, segment string,
    position bigint, keySize int, valueSize int, recordSize int, batchSize int

batches:
    topic string, partition int, segment string, position bigint, baseOffset bigint, lastOffset bigint,
    recordCount int, size int, magic int, compression string, timestampType int, baseTimestamp timestamp,
    maxTimestamp timestamp, deleteHorizon timestamp, leaderEpoch int, producerId bigint, producerEpoch int,
    baseSequence int, lastSequence int, isTransactional boolean, isControl boolean, aborted boolean, crc bigint,
    computedCrc bigint, isValid boolean

offset_index:
    topic string, partition int, segment string, file string, entry int, offset bigint, position bigint

time_index:
    topic string, partition int, segment string, file string, entry int, timestamp timestamp, offset bigint

aborted_transactions:
    topic string, partition int, producerId bigint, firstOffset bigint, lastOffset bigint

producers:
    topic string, partition int, file string, snapshotOffset bigint, producerId bigint, producerEpoch int,
    lastSequence int, lastOffset bigint, offsetDelta int, timestamp timestamp, coordinatorEpoch int,
    currentTxnFirstOffset bigint

leader_epochs:
    topic string, partition int, file string, leaderEpoch int, startOffset bigint

internal_records:
    topic string, partition int, offset bigint, timestamp timestamp, keyType string, keyVersion int, key string,
    valueType string, valueVersion int, value string, isTombstone boolean, aborted boolean, error string,
    segment string, position bigint

corrupt:
    topic string, partition int, segment string, position bigint, endPosition bigint, baseOffset bigint,
    lastOffset bigint, recordCount int, kind string, message string, bytes binary
"""
TABLES: dict[str, dict[str, str]] = {}
for _block in _COLUMNS.strip().split("\n\n"):
    _table, _, _columns = _block.partition(":")
    TABLES[_table] = dict(column.split() for column in _columns.split(","))


class TableError(ValueError):
    """A table or column that does not exist, or has another type; the message is one sentence."""


def table_schema(
    table: str,
    *,
    columns: Iterable[str] = (),
    headers: bool = True,
    report: str | None = None,
    of_cluster: bool = False,
) -> StructType:
    """Return the schema of a table, with only `columns` if any are given. Raises TableError for an unknown name.

    The table of a running cluster does not have FILE_COLUMNS.
    """
    types = _columns_of(table, of_cluster)
    names = list(columns) or [name for name in types if headers or name != "headers" or table != RECORDS]
    unknown = [name for name in names if name not in types]
    if unknown:
        raise TableError(f"the table {table} has no column {', '.join(unknown)}; it has {', '.join(types)}")
    fields = [StructField(name, _TYPES[types[name]]) for name in names]
    if report is not None:
        fields.append(StructField(report, _TYPES[REPORT_TYPE]))
    return StructType(fields)


def check_schema(schema: StructType, table: str, report: str | None = None, *, of_cluster: bool = False) -> None:
    """Check that the table has the columns of a schema, with the same types. Raises TableError."""
    types = _columns_of(table, of_cluster)
    for field in schema.fields:
        wanted = REPORT_TYPE if field.name == report else types.get(field.name)
        if wanted is None:
            raise TableError(f"the table {table} has no column {field.name}; it has {', '.join(types)}")
        if not _same_type(field.dataType, _TYPES[wanted]):
            raise TableError(
                f"the column {field.name} of the table {table} has type {_TYPES[wanted].simpleString()}, "
                f"not {field.dataType.simpleString()}"
            )


def _columns_of(table: str, of_cluster: bool) -> dict[str, str]:
    try:
        types = TABLES[table]
    except KeyError:
        raise TableError(f"there is no table {table!r}; there are {', '.join(TABLES)}") from None
    return {name: kind for name, kind in types.items() if not of_cluster or name not in FILE_COLUMNS}


def _same_type(given: DataType, wanted: DataType) -> bool:
    """Return True for the same type, whether nullable or not."""
    return bool(given.simpleString() == wanted.simpleString())
