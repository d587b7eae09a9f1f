"""Records to Parquet: one pass of Spark over the log directories, and a summary of it at the end.

    log directories -> source kafka-log ------------> decode key and value -> partition columns -> Parquet
                                              |
                                              +-- the tasks' reports (kcli.spark.report)

Each row of the source is one row of the files, and each task reports once, also if an attempt failed or was repeated. So the
rows that the tasks report are the rows that are written. The offsets are fixed before reading: the tasks read only these, and
the summary is about these, whatever a broker appends while the job runs. If corrupt bytes were skipped (onCorrupt=skip), the
files with such bytes are read again, as the table `corrupt`, and written to the directory OUT.corrupt. Records whose key or
value was not decoded are written to the side table OUT.undecoded (kcli.spark.decoding), by one more pass over the same offsets.
An incremental run (kcli.spark.incremental) stages all of these, and its commit moves them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

from kcli.format.file_names import FileKind
from kcli.format.primitives import INT64_MAX
from kcli.log.disk.os_disk import OsDisk
from kcli.spark import table_schemas as tables
from kcli.spark.data_source import FORMAT, KafkaLogDataSource
from kcli.spark.decoding import JSON, UNDECODED_COLUMNS, Decoding, undecoded_rows, with_all_decoded
from kcli.spark.incremental import IncrementalRun, check_incremental, known_partitions, start_run, state_before
from kcli.spark.json_schema import (
    INFERRED,
    SchemaTextError,
    given_schema,
    inferred_schema,
    save_schema,
    schema_ddl,
    written_schema,
)
from kcli.spark.log_partitions import UnknownTopicError, given_paths, retry_planning
from kcli.spark.parquet_output import CORRUPT_SUFFIX, UNDECODED_SUFFIX, OutputDirectory, check_output, check_saved_file
from kcli.spark.planning import OffsetRange, PlanCounts, count_plan, find_partitions, offset_ranges, pinned
from kcli.spark.read_options import ALL, ReadOptions, parse_options
from kcli.spark.report import Report
from kcli.spark.run_state import ROWS
from kcli.spark.session import is_on_this_machine, random_mark
from kcli.spark.spark_errors import ExportError, translated
from kcli.spark.task_progress import watched

REPORT_COLUMN = "_kcli_report"
# The size at which Spark cuts files, of which each task writes one; the caller of `export` sets minPartitions to use all cores.
SPLIT_BYTES = 128 * 1024 * 1024
# Rows of logs up to this size are collected by the directories of --partition-by; of a larger log each task writes its own.
MAX_REBALANCED_BYTES = 1024 * 1024 * 1024
# The columns of which a task has few values, since it reads segments one after the other; and the order of rows.
_OF_A_TASK = {"topic", "partition", "segment"}
_ORDER = ("topic", "partition", "offset")
DATE = "date"
VALUE = "value"
# Observed columns.
_UNKNOWN, _FIRST_UNKNOWN, _LAST_UNKNOWN = "_kcli_unknown", "_kcli_first_unknown", "_kcli_last_unknown"
# Our name of a codec, and Spark's: its `lz4` has Hadoop's framing, which other readers of Parquet do not support.
_CODECS = {"zstd": "zstd", "snappy": "snappy", "gzip": "gzip", "lz4": "lz4_raw", "none": "none"}
# The default of Spark is 3, which takes twice the time; that of pyarrow is 1, too.
DEFAULT_COMPRESSION = "zstd:1"
_ZSTD_LEVELS = range(1, 23)


class ExportOptions(NamedTuple):
    """The options of an export; `source` are those of the data source, as strings (see kcli.spark.read_options)."""

    out: str
    source: dict[str, str]
    partition_by: tuple[str, ...] = ()
    decode_key: str | None = None
    decode_value: str | None = None
    value_schema: str = INFERRED
    infer_from: int | None = None
    save_schema: str | None = None
    report: str | None = None
    flatten: bool = False
    compression: str = DEFAULT_COMPRESSION
    mode: str = "error"
    incremental: bool = False


class ExportResult(NamedTuple):
    """The result of an export: the sum of the tasks' reports, and the side tables.

    `undecoded` is the number of rows whose key or value was not decoded, `undecoded_columns` has the number for each column.
    `undecoded_path` lists `undecoded_listed` of these keys and values: fewer if the log lost records before the second pass.
    `unknown` decoded values have fields that the schema does not have; `unknown_names` are the first and the last of these.
    `to_high_watermark` partitions were read to their checkpointed high watermark, `to_log_end` to the end of their logs.
    """

    report: Report
    rows: int
    undecoded: int
    corrupt_path: str | None
    to_high_watermark: int = 0
    to_log_end: int = 0
    undecoded_columns: dict[str, int] = {}  # noqa: RUF012
    undecoded_path: str | None = None
    undecoded_listed: int = 0
    unknown: int = 0
    unknown_names: tuple[str, ...] = ()
    run: IncrementalRun | None = None


def check_export(options: ExportOptions) -> list[OffsetRange]:
    """Check options and paths before Spark starts; return the offsets that the export reads.

    Raises ExportError, UnknownTopicError, and OSError as the disk does.
    """
    try:
        compression_options(options.compression)
        read = parse_options(options.source)
        names = set(_written_columns(options, read))
        if options.incremental:
            check_incremental(options.out, options.mode, read)
        found = _chosen(options, read)
        inputs = _inputs(found, read)
        check_output(options.out, options.mode, inputs, incremental=options.incremental)
        for option, path in (("--save-schema", options.save_schema), ("--report", options.report)):
            if path is not None:
                check_saved_file(option, path, options.out, inputs)
    except UnknownTopicError:
        raise
    except ValueError as error:
        raise ExportError(str(error)) from None
    # A later run may find that all partitions of the runs before it are gone: its plan decides.
    may_be_empty = options.incremental and state_before(OsDisk(), options.out) is not None
    if not found and not may_be_empty and read.pattern is not None:
        message = f"no topic in {', '.join(given_paths(OsDisk(), read))} matches {read.pattern!r}"
        raise UnknownTopicError(message, (), frozenset())
    if not found and not may_be_empty:
        raise ExportError(f"the options choose no partition of {', '.join(given_paths(OsDisk(), read))}")
    if read.read_committed and read.table not in (tables.RECORDS, tables.INTERNAL_RECORDS):
        raise ExportError(f"--isolation read_committed is for records: the table {read.table} has everything in the files")
    _check_decoding(options, names, read.table)
    fields = (f"{VALUE}_",) if options.flatten else ()
    if unknown := [name for name in options.partition_by if name not in {*names, DATE} and not name.startswith(fields)]:
        raise ExportError(f"cannot partition by {', '.join(unknown)}: the columns are {', '.join(sorted(names))} and {DATE}")
    if names | {DATE} <= {*options.partition_by, DATE}:
        raise ExportError("cannot partition by all columns: the files would have no column; choose more --columns")
    if DATE in options.partition_by and "timestamp" not in names:
        raise ExportError(f"cannot partition by {DATE} without the column timestamp")
    return found


def _check_decoding(options: ExportOptions, names: set[str], table: str) -> None:
    """Raise ExportError for options of decoding that need other options, or columns that are not read."""
    for column, how in (("key", options.decode_key), (VALUE, options.decode_value)):
        if how is not None and (column not in names or table != tables.RECORDS):
            raise ExportError(f"there is no column {column} to decode")
    of_json = {
        "--flatten": options.flatten,
        "--save-schema": options.save_schema is not None,
        "--value-schema": options.value_schema != INFERRED,
        "--infer-from": options.infer_from is not None,
    }
    for option, given in of_json.items():
        if given and options.decode_value != JSON:
            raise ExportError(f"{option} is for JSON values: add --decode-value json")
    if options.infer_from is not None and options.value_schema != INFERRED:
        raise ExportError("--infer-from is for an inferred schema; --value-schema states it: use one of the two")
    if options.infer_from is not None and options.infer_from < 1:
        raise ExportError(f"--infer-from must be 1 or more, not {options.infer_from}")


@retry_planning
def _chosen(options: ExportOptions, read: ReadOptions) -> list[OffsetRange]:
    """Return the offsets of each partition; all offsets for an incremental run, since its plan needs the lock of its output."""
    if options.incremental:
        partitions = known_partitions(OsDisk(), read, state_before(OsDisk(), options.out))
        return [OffsetRange(part, 0, INT64_MAX) for part in partitions]
    return offset_ranges(find_partitions(OsDisk(), read), read)


def begin_run(options: ExportOptions) -> IncrementalRun:
    """Lock the output and plan an incremental run; the options are checked. Raises ExportError, UnknownTopicError."""
    written = {
        "--partition-by": ",".join(options.partition_by),
        "--decode-key": options.decode_key or "",
        "--decode-value": options.decode_value or "",
        "--flatten": "true" if options.flatten else "",
    }
    try:
        return start_run(OsDisk(), options.out, parse_options(options.source), written)
    except UnknownTopicError:
        raise
    except (ValueError, OSError) as error:
        raise ExportError(str(error)) from None


def _inputs(found: list[OffsetRange], read: ReadOptions) -> list[str]:
    """Return the directories that must not be written to: the inputs, and the log directories of the partitions."""
    if read.of_cluster:
        return []
    partitions = {offsets.partition.directory.path: offsets.partition.directory.log_directory for offsets in found}
    log_directories = {path for path in partitions.values() if Path(path, FileKind.META_PROPERTIES).exists()}
    return [*(path for path in given_paths(OsDisk(), read) if Path(path).exists()), *partitions, *sorted(log_directories)]


def compression_options(compression: str) -> dict[str, str]:
    """Return the options of Spark's Parquet writer for a codec, such as snappy, zstd or zstd:3. Raises ValueError."""
    codec, colon, level = compression.partition(":")
    if codec not in _CODECS or (colon and codec != "zstd"):
        raise ValueError(f"--compression must be zstd, zstd:LEVEL, snappy, gzip, lz4 or none, not {compression!r}")
    options = {"compression": _CODECS[codec]}
    if colon:
        if not (level.isascii() and level.isdigit() and int(level) in _ZSTD_LEVELS):
            raise ValueError(f"the level of zstd must be {_ZSTD_LEVELS[0]} to {_ZSTD_LEVELS[-1]}, not {level!r}")
        options["parquet.compression.codec.zstd.level"] = str(int(level))
    return options


def _written_columns(options: ExportOptions, read: ReadOptions) -> list[str]:
    names: list[str] = tables.table_schema(
        read.table, columns=read.columns, headers=read.include_headers, of_cluster=read.of_cluster
    ).fieldNames()
    return names


def export(
    spark: SparkSession,
    options: ExportOptions,
    on_remark: Callable[[str], None] = lambda sentence: None,
    run: IncrementalRun | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> ExportResult:
    """Write the Parquet files, and commit them if this is an incremental run.

    `on_remark` is called before the job starts, with a sentence for each remark such as an inferred schema. If the tasks run on
    this machine, a thread calls `on_bytes` with the number of bytes that they have read since its last call.
    Raises ExportError for corrupt bytes with onCorrupt=fail and for errors of Spark.
    """
    translated(lambda: spark.dataSource.register(KafkaLogDataSource))
    options = options._replace(source={"maxPartitionBytes": str(SPLIT_BYTES), **options.source})
    read = parse_options(options.source)
    if read.table != tables.RECORDS:
        return _export_table(spark, options)
    ranges, counts = (run.plan.ranges, run.plan.counts) if run is not None else translated(lambda: _planned(read))
    options = options._replace(source=_with_fixed_offsets(options, read, ranges))
    decodings = _decodings(spark, options, on_remark, run)
    with tempfile.TemporaryDirectory(prefix="kcli-reports-") as folder:
        if is_on_this_machine(spark.sparkContext.master):
            frame, observed = _load(spark, {**options.source, "reportPath": folder}), None
        else:
            frame = _load(spark, {**options.source, "reportColumn": REPORT_COLUMN})
            observed = Observation("kcli")
            frame = frame.observe(observed, F.collect_list(REPORT_COLUMN).alias("reports"))
            frame = frame.where(F.col(REPORT_COLUMN).isNull()).drop(REPORT_COLUMN)
        frame, decoded = _decode(frame, decodings)
        _check_partition_by(frame, options)
        if run is not None:
            translated(lambda: run.begin(Path(folder).name, frame.schema.simpleString()))
        with watched(folder, on_bytes):
            size_bytes = sum(wanted.partition.size_of(wanted.first, wanted.end) for wanted in ranges)
            is_small = size_bytes <= MAX_REBALANCED_BYTES
            was_written = _write(spark, frame, options, options.out if run is None else run.stage(ROWS), is_small=is_small)
        if observed is not None:
            texts = observed.get["reports"] if was_written else ()
        else:
            texts = [path.read_text("utf-8") for path in sorted(Path(folder).glob("*.json"))]
    report = Report.sum(texts)
    result = ExportResult(report, sum(report.rows.values()), 0, None, run=run)
    if not was_written:
        return result
    result = _with_plan_counts(result, counts)
    if decoded is not None:
        result = _with_undecoded(spark, options, decodings, decoded, result)
    corrupt_path = _write_corrupt(spark, options, report, run) if report.corrupt_files else None
    if corrupt_path is None:
        _remove_old(spark, options, CORRUPT_SUFFIX)
    if run is not None:
        schemas = [schema_ddl(spark, one.schema) for one in decodings if one.schema is not None]
        translated(lambda: run.commit(result.rows, schemas[0] if schemas else None))
    return result._replace(corrupt_path=corrupt_path)


def _with_undecoded(
    spark: SparkSession,
    options: ExportOptions,
    decodings: tuple[Decoding, ...],
    counted: Observation,
    result: ExportResult,
) -> ExportResult:
    """Write the records that were not decoded to OUT.undecoded, and add their number to the result."""
    found = dict(counted.get)
    names = [found.pop(_FIRST_UNKNOWN, None), found.pop(_LAST_UNKNOWN, None)]
    counts = {name: int(count) for name, count in found.items()}
    rows, unknown = counts.pop("any"), counts.pop(_UNKNOWN, 0)
    result = result._replace(unknown=unknown, unknown_names=tuple(dict.fromkeys(name for name in names if name is not None)))
    if not rows:
        _remove_old(spark, options, UNDECODED_SUFFIX)
        return result
    frame = _load(spark, {**options.source, "columns": ",".join(UNDECODED_COLUMNS)})
    observed = Observation("kcli-undecoded")
    frame = undecoded_rows(frame, decodings).observe(observed, F.count(F.lit(1)).alias("rows"))
    out = _write_side_table(spark, frame, options, UNDECODED_SUFFIX, result.run)
    listed = int(observed.get["rows"])
    return result._replace(undecoded=rows, undecoded_columns=counts, undecoded_path=out, undecoded_listed=listed)


def _write_side_table(
    spark: SparkSession, frame: DataFrame, options: ExportOptions, suffix: str, run: IncrementalRun | None
) -> str:
    """Write the table OUT + `suffix`; return its path. An incremental run stages its files, mode append adds to the table."""
    out = options.out.rstrip("/") + suffix
    mode = "error" if run is not None else "append" if options.mode == "append" else "overwrite"
    _write(spark, frame, options._replace(mode=mode, partition_by=()), out if run is None else run.stage(suffix))
    return out


def _remove_old(spark: SparkSession, options: ExportOptions, suffix: str) -> None:
    """Remove the side table of an output that was overwritten."""
    if options.mode == "overwrite":
        OutputDirectory(spark, options.out.rstrip("/") + suffix).remove()


def _check_partition_by(frame: DataFrame, options: ExportOptions) -> None:
    """Raise ExportError for columns of --partition-by that are not fields of the values, or are not scalar."""
    for field in frame.schema.fields:
        if field.name in options.partition_by and isinstance(field.dataType, StructType | ArrayType | MapType):
            raise ExportError(f"cannot partition by {field.name}: its type is {field.dataType.typeName()}")
    names = [*frame.columns, DATE]
    if unknown := [name for name in options.partition_by if name not in names]:
        raise ExportError(f"cannot partition by {', '.join(unknown)}: the columns are {', '.join(sorted(names))}")


@retry_planning
def _planned(read: ReadOptions) -> tuple[list[OffsetRange], PlanCounts]:
    ranges = offset_ranges(find_partitions(OsDisk(), read), read)
    return ranges, count_plan(ranges, read, {})


def finish_without_rows(run: IncrementalRun) -> ExportResult:
    """Commit a run with nothing to read, without Spark. Raises ExportError."""
    translated(run.commit_nothing)
    return _with_plan_counts(ExportResult(Report(), 0, 0, None, run=run), run.plan.counts)


def _with_plan_counts(result: ExportResult, counts: PlanCounts) -> ExportResult:
    """Add the records that planning left out to the result."""
    result.report.add_json(counts.left_out.to_json())
    return result._replace(to_high_watermark=counts.to_high_watermark, to_log_end=counts.to_log_end)


def _export_table(spark: SparkSession, options: ExportOptions) -> ExportResult:
    """Write a table other than records."""
    observed = Observation("kcli")
    frame = _load(spark, options.source).observe(observed, F.count(F.lit(1)).alias("rows"))
    rows = int(observed.get["rows"]) if _write(spark, frame, options, options.out) else 0
    return ExportResult(Report(), rows, 0, None)


def _load(spark: SparkSession, source: dict[str, str]) -> DataFrame:
    return translated(lambda: spark.read.format(FORMAT).options(**source).load())


def _with_directory_names(frame: DataFrame, partition_by: tuple[str, ...]) -> DataFrame:
    """Return the frame with texts in the columns that name directories; the job fails for a text that cannot name one.

    Spark names the directory of an empty text as that of null, replaces bytes that are not UTF-8, and cannot write a NUL.
    """
    place = F.lit("")
    if {"topic", "partition", "offset"} <= set(frame.columns):
        of_record = (F.lit(" of "), F.col("topic"), F.lit("-"), F.col("partition"), F.lit(" at offset "), F.col("offset"))
        place = F.concat(*(part.cast(StringType()) for part in of_record))
    for field in frame.schema.fields:
        if field.name not in partition_by or not isinstance(field.dataType, StringType | BinaryType):
            continue
        text = F.col(field.name).cast(StringType())
        fault = F.when(text == "", "is empty, which has the directory of null").when(~F.is_valid_utf8(text), "is not UTF-8")
        fault = fault.when(F.locate("\0", text) > 0, "contains the character NUL")
        message = F.concat(F.lit(f"cannot partition by {field.name}: that"), place, F.lit(" "), fault)
        frame = frame.withColumn(field.name, F.when(fault.isNull(), text).otherwise(F.raise_error(message)))
    return frame


def _write(spark: SparkSession, frame: DataFrame, options: ExportOptions, out: str, *, is_small: bool = False) -> bool:
    """Write the frame; return False if the output exists and the mode is ignore.

    The rows of a small export are collected by their directories first, so that a directory has one file and not one of each
    task.
    """
    if DATE in options.partition_by and DATE not in frame.columns:
        frame = frame.withColumn(DATE, F.to_date("timestamp"))
    if options.partition_by:
        # With the default, 0, Spark sorts each task's rows by the partition columns.
        spark.conf.set("spark.sql.maxConcurrentOutputFileWriters", "32")
        frame = _with_directory_names(frame, options.partition_by)
        if is_small and not set(options.partition_by) <= _OF_A_TASK:
            frame = frame.hint("rebalance", *(F.col(name) for name in options.partition_by))
            order = [*options.partition_by, *(name for name in _ORDER if name in frame.columns)]
            frame = frame.sortWithinPartitions(*dict.fromkeys(order))

    def write(path: str, mode: str) -> None:
        writer = frame.write.mode(mode).options(**compression_options(options.compression))
        if options.partition_by:
            writer = writer.partitionBy(*options.partition_by)
        translated(lambda: writer.parquet(path), out)

    return bool(translated(lambda: OutputDirectory(spark, out).write(options.mode, write), out))


def _write_corrupt(spark: SparkSession, options: ExportOptions, report: Report, run: IncrementalRun | None) -> str:
    """Write the corrupt places to OUT.corrupt; return that path.

    An incremental run stages those of its offsets that are not listed yet.
    """
    kept = ("onCorrupt", "kafka.isolation.level", "duplicatePartitions")
    source = {name: value for name, value in options.source.items() if name in kept}
    source |= {"paths": json.dumps(sorted(report.corrupt_files)), "table": tables.CORRUPT}
    if run is not None:
        wanted = [found for found in run.plan.ranges if report.corrupt[found.partition.key]]
        # Each file has only some of these offsets.
        source |= {**pinned({}, wanted), "exactOffsets": "false", "failOnDataLoss": "false"}
    frame = _load(spark, source)
    if run is not None:
        frame = translated(lambda: run.not_listed(spark, frame))
    return _write_side_table(spark, frame, options, CORRUPT_SUFFIX, run)


# ------------------------------------------------------------------------------------------------------------- decoding


def _decodings(
    spark: SparkSession, options: ExportOptions, on_remark: Callable[[str], None], run: IncrementalRun | None
) -> tuple[Decoding, ...]:
    """Return how key and value are decoded. All runs of an incremental output use the schema of its first run."""
    known = run.before.value_schema if run is not None and run.before is not None else None
    if known is not None and options.value_schema == INFERRED:
        options = options._replace(value_schema=known)
    found = []
    for column, how in (("key", options.decode_key), ("value", options.decode_value)):
        if how == JSON:
            schema = _json_schema(spark, options, on_remark)
            if schema is None and run is not None:
                raise ExportError("all values are null, so no schema can be inferred for the runs: add --value-schema")
            if schema is None:
                on_remark("all values are null: there is nothing to decode, and the column value stays binary")
                continue
            is_inferred = options.value_schema == INFERRED and options.infer_from is None
            if known is not None and known != schema_ddl(spark, schema):
                raise ExportError(
                    f"earlier runs decoded the values by the schema {known}, not {schema_ddl(spark, schema)}; run without "
                    "--value-schema, or write to a new directory"
                )
            written = written_schema(schema, on_remark)
            found.append(Decoding(column, how, schema, written, options.flatten, random_mark(), is_inferred))
        elif how is not None:
            found.append(Decoding(column, how))
    return tuple(found)


def check_value_schema(spark: SparkSession, options: ExportOptions, run: IncrementalRun) -> None:
    """Check that a run without new records has the schema of the runs before it. Raises ExportError."""
    _decodings(spark, options, lambda sentence: None, run)


def _json_schema(spark: SparkSession, options: ExportOptions, on_remark: Callable[[str], None]) -> StructType | None:
    """Return the schema of --value-schema, or infer it from the values, None if all are null; save it if asked for.

    Raises ExportError.
    """
    try:
        if options.value_schema != INFERRED:
            schema = given_schema(options.value_schema)
        else:
            # A separate pass, which reads only the values.
            source = {**options.source, "columns": "value"}
            values = _load(spark, source).where(F.col("value").isNotNull())
            if options.infer_from is not None:
                values = values.limit(options.infer_from)
            found = translated(lambda: inferred_schema(spark, values), options.out)
            if found is None:
                return None
            schema = found
            on_remark(f"the inferred schema of the values, for --value-schema: {schema_ddl(spark, schema)}")
        if options.save_schema is not None:
            save_schema(options.save_schema, schema)
    except SchemaTextError as error:
        raise ExportError(str(error)) from None
    return schema


def _decode(frame: DataFrame, decodings: tuple[Decoding, ...]) -> tuple[DataFrame, Observation | None]:
    """Decode key and value; return the frame and an observation of those not decoded: `key`, `value`, and `any` for rows."""
    if not decodings:
        return frame, None
    frame, any_failed = with_all_decoded(frame, decodings)
    observed = Observation("kcli-decoding")
    counts = [F.count_if(F.col(decoding.failed)).alias(decoding.column) for decoding in decodings]
    for decoding in decodings:
        if decoding.schema is not None:
            frame = frame.withColumn(_UNKNOWN, decoding.unknown_fields())
            counts.append(F.count_if(F.size(_UNKNOWN) > 0).alias(_UNKNOWN))
            counts += [F.min(F.array_min(_UNKNOWN)).alias(_FIRST_UNKNOWN), F.max(F.array_max(_UNKNOWN)).alias(_LAST_UNKNOWN)]
    frame = frame.observe(observed, F.count_if(any_failed).alias("any"), *counts)
    for decoding in decodings:
        frame = decoding.replaced(frame)
    return frame.drop(_UNKNOWN, *(decoding.failed for decoding in decodings)), observed


def _with_fixed_offsets(options: ExportOptions, read: ReadOptions, ranges: list[OffsetRange]) -> dict[str, str]:
    """Return the source's options with the offsets of the plan, so that each pass over the partitions reads the same."""
    if read.duplicate_partitions != ALL:
        return pinned(options.source, ranges)
    # The options have one end for each partition: if there are several copies, that of the longest one in the plan.
    ends: dict[str, dict[str, int]] = {}
    for part, _, end in ranges:
        of_topic = ends.setdefault(part.topic, {})
        of_topic[str(part.partition)] = max(end, of_topic.get(str(part.partition), 0))
    replaced = {"endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"}
    source = {name: value for name, value in options.source.items() if name.lower() not in replaced}
    return {**source, "endingOffsets": json.dumps(ends)}
