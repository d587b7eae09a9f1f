"""Records to Parquet: one pass of Spark over the log directories, and an account of it at the end.

    log directories -> source kafka-log ------------> decode key and value -> partition columns -> Parquet
                                              |
                                              +-- the tasks' reports (kcli.spark.report)

Rows map one to one from the source to the files, and a task whose attempt failed or was repeated reports once, so what the
tasks report to have given out is what was written. The offsets are decided once, before reading: the tasks read up to there,
and the account is about these offsets, whatever a broker appends meanwhile. Where corrupt bytes were passed over
(onCorrupt=skip), the files that they are in are read once more, as the table `corrupt`, into a directory beside: OUT.corrupt.
An incremental run (kcli.spark.incremental) stages both, and its commit moves them.

    decoding          the column becomes                             what does not decode
    ----------------  ---------------------------------------------  ----------------------------------------------------
    utf8              string                                         null; the bytes stand in keyBytes or valueBytes
    json              a struct of the schema that is given, or that  null or what of it fits; the bytes stand in valueBytes
                      is inferred from the values
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from kcli.format.file_names import FileKind
from kcli.log.disk import OsDisk
from kcli.spark import schema as tables
from kcli.spark.data_source import FORMAT, KafkaLogDataSource
from kcli.spark.incremental import IncrementalRun, check_incremental, start_run
from kcli.spark.left_out import Account, account_of
from kcli.spark.options import ALL, OptionError, ReadOptions, parse_options
from kcli.spark.parquet_output import CORRUPT_SUFFIX, OutputDirectory, OutputError, check_output
from kcli.spark.partitions import UnknownTopicError, find_partitions, given_paths, plan_anew
from kcli.spark.planning import OffsetRange, offset_ranges, pinned
from kcli.spark.report import Report
from kcli.spark.run_commit import RunError
from kcli.spark.run_state import ROWS
from kcli.spark.session import is_here

REPORT_COLUMN = "_kcli_report"
# As Spark cuts files, of which each task writes one; who calls `export` sees to it that all cores have a task.
SPLIT_BYTES = 128 * 1024 * 1024
DATE = "date"
JSON, UTF8 = "json", "utf8"
INFERRED = "inferred"
_CORRUPT_RECORD = "_corrupt_record"
# What we call a codec, and what Spark does: its `lz4` is Hadoop's framing, which other readers of Parquet lack.
_CODECS = {"zstd": "zstd", "snappy": "snappy", "gzip": "gzip", "lz4": "lz4_raw", "none": "none"}
# Spark would take 3, which costs twice the time; 1 is pyarrow's, too.
DEFAULT_COMPRESSION = "zstd:1"
_ZSTD_LEVELS = range(1, 23)


class ExportError(Exception):
    """The export failed for what it was asked or for what it read; `is_damage` tells which. The message is a sentence."""

    def __init__(self, message: str, *, is_damage: bool = False) -> None:
        super().__init__(message)
        self.is_damage = is_damage


class ExportOptions(NamedTuple):
    """What is written where; `source` are the options of the source as strings (see kcli.spark.options)."""

    out: str
    source: dict[str, str]
    partition_by: tuple[str, ...] = ()
    decode_key: str | None = None
    decode_value: str | None = None
    value_schema: str = INFERRED
    infer_from: int | None = None
    compression: str = DEFAULT_COMPRESSION
    mode: str = "error"
    incremental: bool = False


class ExportResult(NamedTuple):
    """What was done: the tasks' reports summed, rows whose value did not decode, and where corrupt places are listed.

    Of the partitions read `to_high_watermark` end at their checkpointed high watermark, `to_log_end` at the end of their logs.
    `run` is the incremental run that it was.
    """

    report: Report
    rows: int
    undecoded: int
    corrupt_path: str | None
    to_high_watermark: int = 0
    to_log_end: int = 0
    run: IncrementalRun | None = None


def check_export(options: ExportOptions) -> list[OffsetRange]:
    """Check options and paths before Spark is started -> the offsets that would be read.

    Raises ExportError, UnknownTopicError, and OSError as the disk does.
    """
    try:
        compression_options(options.compression)
        read = parse_options(options.source)
        if options.incremental:
            check_incremental(options.out, options.mode, read)
        found = plan_anew(lambda: _chosen(options, read))
        check_output(options.out, options.mode, _inputs(found, read), incremental=options.incremental)
    except UnknownTopicError:
        raise
    except ValueError as error:
        raise ExportError(str(error)) from None
    if not found and read.pattern is not None:
        message = f"no topic in {', '.join(given_paths(OsDisk(), read))} matches {read.pattern!r}"
        raise UnknownTopicError(message, (), frozenset())
    if not found:
        raise ExportError(f"{', '.join(given_paths(OsDisk(), read))}: no partition is chosen")
    names = set(_written_columns(options, read))
    if unknown := [name for name in options.partition_by if name not in names and name != DATE]:
        raise ExportError(f"cannot partition by {', '.join(unknown)}: the columns are {', '.join(sorted(names))} and {DATE}")
    if DATE in options.partition_by and "timestamp" not in names:
        raise ExportError(f"cannot partition by {DATE} without the column timestamp")
    for column, how in (("key", options.decode_key), ("value", options.decode_value)):
        if how is not None and (column not in names or read.table != tables.RECORDS):
            raise ExportError(f"there is no column {column} to decode")
    return found


def _chosen(options: ExportOptions, read: ReadOptions) -> list[OffsetRange]:
    """The offsets of each partition; those of an incremental run are not known before its output is locked."""
    partitions = find_partitions(OsDisk(), read)
    return [OffsetRange(part, 0, 0) for part in partitions] if options.incremental else offset_ranges(partitions, read)


def begin_run(options: ExportOptions) -> IncrementalRun:
    """Lock the output and plan an incremental run with options that are checked. Raises ExportError, UnknownTopicError."""
    written = {
        "--partition-by": ",".join(options.partition_by),
        "--decode-key": options.decode_key or "",
        "--decode-value": options.decode_value or "",
    }
    try:
        return start_run(OsDisk(), options.out, parse_options(options.source), written)
    except UnknownTopicError:
        raise
    except (ValueError, OSError) as error:
        raise ExportError(str(error)) from None


def _inputs(found: list[OffsetRange], read: ReadOptions) -> list[str]:
    """The directories that must not be written to: what is read, and the log directories of partitions named one by one."""
    partitions = {offsets.partition.directory.path: offsets.partition.directory.log_directory for offsets in found}
    log_directories = {path for path in partitions.values() if Path(path, FileKind.META_PROPERTIES).exists()}
    return [*(path for path in given_paths(OsDisk(), read) if Path(path).exists()), *partitions, *sorted(log_directories)]


def compression_options(compression: str) -> dict[str, str]:
    """The options of Spark's Parquet writer for a codec, `zstd` also with its level behind a colon. Raises ValueError."""
    codec, colon, level = compression.partition(":")
    if codec not in _CODECS or (colon and codec != "zstd"):
        raise ValueError(f"--compression takes zstd, zstd:LEVEL, snappy, gzip, lz4 or none, not {compression!r}")
    options = {"compression": _CODECS[codec]}
    if colon:
        if not (level.isascii() and level.isdigit() and int(level) in _ZSTD_LEVELS):
            raise ValueError(f"the levels of zstd are {_ZSTD_LEVELS[0]} to {_ZSTD_LEVELS[-1]}, not {level!r}")
        options["parquet.compression.codec.zstd.level"] = str(int(level))
    return options


def _written_columns(options: ExportOptions, read: ReadOptions) -> list[str]:
    names: list[str] = tables.table_schema(read.table, columns=read.columns, headers=read.include_headers).fieldNames()
    return names


def export(spark: SparkSession, options: ExportOptions, run: IncrementalRun | None = None) -> ExportResult:
    """Write the Parquet files, and commit them if they are of an incremental run.

    Raises ExportError for damage that is to fail the job and for what Spark refuses.
    """
    spark.dataSource.register(KafkaLogDataSource)
    options = options._replace(source={"maxPartitionBytes": str(SPLIT_BYTES), **options.source})
    read = parse_options(options.source)
    if read.table != tables.RECORDS:
        return _export_table(spark, options)
    ranges, account = (run.plan.ranges, run.plan.account) if run is not None else plan_anew(lambda: _planned(read))
    if read.duplicate_partitions != ALL:
        options = options._replace(source=pinned(options.source, ranges))
    if run is not None:
        options = _with_schema_of(run, spark, options)
    with tempfile.TemporaryDirectory(prefix="kcli-reports-") as folder:
        if is_here(spark.sparkContext.master):
            frame, observed = _load(spark, {**options.source, "reportPath": folder}), None
        else:
            frame = _load(spark, {**options.source, "reportColumn": REPORT_COLUMN})
            observed = Observation("kcli")
            frame = frame.observe(observed, F.collect_list(REPORT_COLUMN).alias("reports"))
            frame = frame.where(F.col(REPORT_COLUMN).isNull()).drop(REPORT_COLUMN)
        frame, decoded = _decode(spark, frame, options)
        if run is not None:
            _translated(lambda: run.begin(Path(folder).name, frame.schema.simpleString()))
        was_written = _write(spark, frame, options, options.out if run is None else run.stage(ROWS))
        if observed is not None:
            texts = observed.get["reports"] if was_written else ()
        else:
            texts = [path.read_text("utf-8") for path in sorted(Path(folder).glob("*.json"))]
    report = Report.sum(texts)
    rows = sum(report.rows.values())
    undecoded = int(decoded.get["undecoded"]) if decoded is not None and was_written else 0
    corrupt_path = _write_corrupt(spark, options, report, run) if report.corrupt_files else None
    if was_written and corrupt_path is None and options.mode == "overwrite":
        # What an earlier run listed is no longer true of the output.
        OutputDirectory(spark, options.out.rstrip("/") + CORRUPT_SUFFIX).remove()
    if run is not None:
        value_schema = options.value_schema if options.decode_value == JSON else None
        _translated(lambda: run.commit(rows, value_schema))
    result = ExportResult(report, rows, undecoded, corrupt_path, run=run)
    return _accounted(result, account) if was_written else result


def _planned(read: ReadOptions) -> tuple[list[OffsetRange], Account]:
    ranges = offset_ranges(find_partitions(OsDisk(), read), read)
    return ranges, account_of(ranges, read, {})


def finish_without_rows(run: IncrementalRun) -> ExportResult:
    """Commit a run for which there is nothing to read: no Spark is needed for that. Raises ExportError."""
    _translated(run.commit_nothing)
    return _accounted(ExportResult(Report(), 0, 0, None, run=run), run.plan.account)


def _accounted(result: ExportResult, account: Account) -> ExportResult:
    """The result with what planning left out added."""
    result.report.add_json(account.left_out.to_json())
    return result._replace(to_high_watermark=account.to_high_watermark, to_log_end=account.to_log_end)


def _with_schema_of(run: IncrementalRun, spark: SparkSession, options: ExportOptions) -> ExportOptions:
    """The options with the schema of the values' JSON: that of the runs before, or what this one finds for all."""
    if options.decode_value != JSON:
        return options
    known = run.before.value_schema if run.before is not None else None
    if known is not None and options.value_schema == INFERRED:
        return options._replace(value_schema=known)
    schema = _json_schema(spark, options).toDDL()
    if known is not None and known != schema:
        raise ExportError(
            f"the runs before decoded the values by the schema {known}, not {schema}; leave --value-schema out, or write to "
            "another directory from the beginning"
        )
    return options._replace(value_schema=schema)


def _export_table(spark: SparkSession, options: ExportOptions) -> ExportResult:
    """Write one of the tables beside records."""
    observed = Observation("kcli")
    frame = _load(spark, options.source).observe(observed, F.count(F.lit(1)).alias("rows"))
    rows = int(observed.get["rows"]) if _write(spark, frame, options, options.out) else 0
    return ExportResult(Report(), rows, 0, None)


def _load(spark: SparkSession, source: dict[str, str]) -> DataFrame:
    return _translated(lambda: spark.read.format(FORMAT).options(**source).load())


def _write(spark: SparkSession, frame: DataFrame, options: ExportOptions, out: str) -> bool:
    """Write the frame -> False where something was there and the mode is to leave it."""
    if DATE in options.partition_by and DATE not in frame.columns:
        frame = frame.withColumn(DATE, F.to_date("timestamp"))
    if options.partition_by:
        # Without this Spark would sort each task's rows by the partition's columns.
        spark.conf.set("spark.sql.maxConcurrentOutputFileWriters", "32")

    def write(path: str, mode: str) -> None:
        writer = frame.write.mode(mode).options(**compression_options(options.compression))
        if options.partition_by:
            writer = writer.partitionBy(*options.partition_by)
        _translated(lambda: writer.parquet(path))

    return bool(_translated(lambda: OutputDirectory(spark, out).write(options.mode, write)))


def _write_corrupt(spark: SparkSession, options: ExportOptions, report: Report, run: IncrementalRun | None) -> str:
    """Write the corrupt places of the files that have any to OUT.corrupt -> that path.

    An incremental run stages those among its offsets that are not listed yet.
    """
    out = options.out.rstrip("/") + CORRUPT_SUFFIX
    kept = ("onCorrupt", "kafka.isolation.level", "duplicatePartitions")
    source = {name: value for name, value in options.source.items() if name in kept}
    source |= {"paths": json.dumps(sorted(report.corrupt_files)), "table": tables.CORRUPT}
    mode = "append" if options.mode == "append" else "overwrite"
    if run is None:
        _write(spark, _load(spark, source), options._replace(mode=mode, partition_by=()), out)
        return out
    wanted = [found for found in run.plan.ranges if report.corrupt[found.partition.key]]
    # Each of the files has some of these offsets only.
    frame = _load(spark, {**source, **pinned({}, wanted), "exactOffsets": "false", "failOnDataLoss": "false"})
    frame = _translated(lambda: run.not_listed(spark, frame))
    _write(spark, frame, options._replace(mode="error", partition_by=()), run.stage(CORRUPT_SUFFIX))
    return out


# ------------------------------------------------------------------------------------------------------------- decoding


def _decode(spark: SparkSession, frame: DataFrame, options: ExportOptions) -> tuple[DataFrame, Observation | None]:
    """The frame with key and value decoded as asked, and what counts the rows that did not decode."""
    failed: list[Column] = []
    for column, how in (("key", options.decode_key), ("value", options.decode_value)):
        if how == UTF8:
            frame = _decode_utf8(frame, column)
        elif how == JSON:
            frame = _decode_json(frame, column, _json_schema(spark, options))
        if how is not None:
            failed.append(F.col(f"{column}Bytes").isNotNull())
    if not failed:
        return frame, None
    any_failed = failed[0] if len(failed) == 1 else failed[0] | failed[1]
    observed = Observation("kcli-decoding")
    return frame.observe(observed, F.count_if(any_failed).alias("undecoded")), observed


def _decode_utf8(frame: DataFrame, column: str) -> DataFrame:
    text = F.col(column).cast(StringType())
    is_text = F.is_valid_utf8(text)
    return _replace(frame, column, F.when(is_text, text), F.when(~is_text, F.col(column)))


def _decode_json(frame: DataFrame, column: str, schema: StructType) -> DataFrame:
    with_corrupt = StructType([*schema.fields]).add(_CORRUPT_RECORD, StringType())
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT_RECORD}
    frame = frame.withColumn("_parsed", F.from_json(F.col(column).cast(StringType()), with_corrupt, options))
    parsed = F.col("_parsed")
    is_bad = F.col(column).isNotNull() & (parsed.isNull() | parsed.getField(_CORRUPT_RECORD).isNotNull())
    value = F.when(parsed.isNotNull(), parsed.dropFields(_CORRUPT_RECORD))
    return _replace(frame, column, value, F.when(is_bad, F.col(column))).drop("_parsed")


def _replace(frame: DataFrame, column: str, decoded: Column, left: Column) -> DataFrame:
    """The frame with `column` decoded in its place, and behind it the bytes that did not decode."""
    columns: list[Column] = []
    for name in frame.columns:
        columns += [decoded.alias(name), left.alias(f"{name}Bytes")] if name == column else [F.col(name)]
    return frame.select(*columns)


def _json_schema(spark: SparkSession, options: ExportOptions) -> StructType:
    """The schema that was given, or the one that the values have. Raises ExportError for one that is none."""
    if options.value_schema != INFERRED:
        try:
            schema = StructType.fromDDL(options.value_schema)
        except Exception as error:
            raise ExportError(f"{options.value_schema!r} is no schema: {_sentence(error)}") from None
    else:
        # A pass of its own over the values, read without anything else.
        source = {**options.source, "columns": "value"}
        values = _load(spark, source).where(F.col("value").isNotNull())
        if options.infer_from is not None:
            values = values.limit(options.infer_from)
        texts = values.select(F.col("value").cast(StringType()).alias("value"))
        schema = _translated(lambda: spark.read.option("columnNameOfCorruptRecord", _CORRUPT_RECORD).json(texts).schema)
        schema = StructType([field for field in schema.fields if field.name != _CORRUPT_RECORD])
    if not schema.fields:
        raise ExportError("no value is a JSON object, so there is no schema; leave --decode-value json out")
    return schema


# --------------------------------------------------------------------------------------------------------------- Spark


_OWN_ERROR = re.compile(r"kcli\.[\w.]+\.(\w+Error): ([^\n]+)")
_DAMAGE = "CorruptLogError"


def _translated(act: Callable[[], Any]) -> Any:
    """Do something with Spark; its errors become ExportError with our own sentence where it was us who raised it."""
    try:
        return act()
    except (OptionError, ExportError):
        raise
    except (OutputError, RunError) as error:
        raise ExportError(str(error)) from None
    except Exception as error:
        own = _OWN_ERROR.search(str(error))
        if own is not None:
            raise ExportError(own[2].strip(), is_damage=own[1] == _DAMAGE) from error
        raise ExportError(_sentence(error)) from error


def _sentence(error: BaseException) -> str:
    """The first line of an error of Spark's that tells something, without its class of error and SQL state."""
    lines = [line.strip(" :") for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("An error occurred while calling"):
        lines = lines[1:]
    text = lines[0] if lines else type(error).__name__
    return re.sub(r"^\[[A-Z_.]+\]\s*|\s*SQLSTATE: \w+$", "", text)
