"""Records to Parquet: one pass of Spark over the log directories, and an account of it at the end.

    log directories -> source kafka-log ------------> decode key and value -> partition columns -> Parquet
                                              |
                                              +-- the tasks' reports (kcli.spark.report)

Rows map one to one from the source to the files, and a task whose attempt failed or was repeated reports once, so what the
tasks report to have given out is what was written. The offsets are decided once, before reading: the tasks read up to there,
and the account is about these offsets, whatever a broker appends meanwhile. Where corrupt bytes were passed over
(onCorrupt=skip), the files that they are in are read once more, as the table `corrupt`, into a directory beside: OUT.corrupt.
An incremental run (kcli.spark.incremental) stages both, and its commit moves them.

Records whose key or value did not decode are in the side table OUT.undecoded (kcli.spark.decoding). It is written by one more
pass, only where there are any, over the offsets that the first pass read: while something is decoded, the end of each partition
is fixed before the first pass.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, MapType, StructType

from kcli.format.file_names import FileKind
from kcli.format.primitives import INT64_MAX
from kcli.log.disk.os_disk import OsDisk
from kcli.spark import schema as tables
from kcli.spark.data_source import FORMAT, KafkaLogDataSource
from kcli.spark.decoding import JSON, UNDECODED_COLUMNS, Decoding, undecoded_rows
from kcli.spark.incremental import IncrementalRun, check_incremental, start_run
from kcli.spark.json_schema import (
    INFERRED,
    SchemaTextError,
    given_schema,
    inferred_schema,
    save_schema,
    schema_ddl,
    written_schema,
)
from kcli.spark.left_out import Account, account_of
from kcli.spark.options import ALL, ReadOptions, parse_options
from kcli.spark.parquet_output import CORRUPT_SUFFIX, UNDECODED_SUFFIX, OutputDirectory, check_output, check_saved_file
from kcli.spark.partitions import UnknownTopicError, find_partitions, given_paths, plan_anew
from kcli.spark.planning import OffsetRange, offset_ranges, pinned
from kcli.spark.report import Report
from kcli.spark.run_state import ROWS
from kcli.spark.session import is_here
from kcli.spark.spark_errors import ExportError, translated
from kcli.spark.task_progress import watched

REPORT_COLUMN = "_kcli_report"
# As Spark cuts files, of which each task writes one; who calls `export` sees to it that all cores have a task.
SPLIT_BYTES = 128 * 1024 * 1024
DATE = "date"
VALUE = "value"
# What we call a codec, and what Spark does: its `lz4` is Hadoop's framing, which other readers of Parquet lack.
_CODECS = {"zstd": "zstd", "snappy": "snappy", "gzip": "gzip", "lz4": "lz4_raw", "none": "none"}
# Spark would take 3, which costs twice the time; 1 is pyarrow's, too.
DEFAULT_COMPRESSION = "zstd:1"
_ZSTD_LEVELS = range(1, 23)


class ExportOptions(NamedTuple):
    """What is written where; `source` are the options of the source as strings (see kcli.spark.options)."""

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
    """What was done: the tasks' reports summed, what did not decode, and where corrupt places are listed.

    `undecoded` are the rows of which the key or the value did not decode, `undecoded_columns` how many of each these are.
    They are listed in `undecoded_path`, `undecoded_listed` of them: fewer where the log lost records since.
    Of the partitions read `to_high_watermark` end at their checkpointed high watermark, `to_log_end` at the end of their logs.
    `run` is the incremental run that it was.
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
    run: IncrementalRun | None = None


def check_export(options: ExportOptions) -> list[OffsetRange]:
    """Check options and paths before Spark is started -> the offsets that would be read.

    Raises ExportError, UnknownTopicError, and OSError as the disk does.
    """
    try:
        compression_options(options.compression)
        read = parse_options(options.source)
        names = set(_written_columns(options, read))
        if options.incremental:
            check_incremental(options.out, options.mode, read)
        found = plan_anew(lambda: _chosen(options, read))
        inputs = _inputs(found, read)
        check_output(options.out, options.mode, inputs, incremental=options.incremental)
        for option, path in (("--save-schema", options.save_schema), ("--report", options.report)):
            if path is not None:
                check_saved_file(option, path, options.out, inputs)
    except UnknownTopicError:
        raise
    except ValueError as error:
        raise ExportError(str(error)) from None
    if not found and read.pattern is not None:
        message = f"no topic in {', '.join(given_paths(OsDisk(), read))} matches {read.pattern!r}"
        raise UnknownTopicError(message, (), frozenset())
    if not found:
        raise ExportError(f"{', '.join(given_paths(OsDisk(), read))}: no partition is chosen")
    _check_decoding(options, names, read.table)
    fields = (f"{VALUE}_",) if options.flatten else ()
    if unknown := [name for name in options.partition_by if name not in {*names, DATE} and not name.startswith(fields)]:
        raise ExportError(f"cannot partition by {', '.join(unknown)}: the columns are {', '.join(sorted(names))} and {DATE}")
    if names | {DATE} <= {*options.partition_by, DATE}:
        raise ExportError("cannot partition by every column: no column would be left for the files; choose more --columns")
    if DATE in options.partition_by and "timestamp" not in names:
        raise ExportError(f"cannot partition by {DATE} without the column timestamp")
    return found


def _check_decoding(options: ExportOptions, names: set[str], table: str) -> None:
    """Raises ExportError for options of decoding that do not fit each other or the columns."""
    for column, how in (("key", options.decode_key), (VALUE, options.decode_value)):
        if how is not None and (column not in names or table != tables.RECORDS):
            raise ExportError(f"there is no column {column} to decode")
    if options.decode_value != JSON:
        for option, given in (("--flatten", options.flatten), ("--save-schema", options.save_schema is not None)):
            if given:
                raise ExportError(f"{option} is for JSON values: give --decode-value json as well")


def _chosen(options: ExportOptions, read: ReadOptions) -> list[OffsetRange]:
    """Return the offsets of each partition; all of them for an incremental run, whose plan needs the lock of its output."""
    partitions = find_partitions(OsDisk(), read)
    return [OffsetRange(part, 0, INT64_MAX) for part in partitions] if options.incremental else offset_ranges(partitions, read)


def begin_run(options: ExportOptions) -> IncrementalRun:
    """Lock the output and plan an incremental run with options that are checked. Raises ExportError, UnknownTopicError."""
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


def export(
    spark: SparkSession,
    options: ExportOptions,
    tell: Callable[[str], None] = lambda sentence: None,
    run: IncrementalRun | None = None,
    on_bytes: Callable[[int], None] | None = None,
) -> ExportResult:
    """Write the Parquet files, and commit them if they are of an incremental run.

    Before the job starts, `tell` is called once for each thing to report, such as an inferred schema. If the tasks run on this
    machine, a thread calls `on_bytes` with the number of bytes they have read since its last call. Raises
    ExportError for damage that is to fail the job and for what Spark refuses.
    """
    translated(lambda: spark.dataSource.register(KafkaLogDataSource))
    options = options._replace(source={"maxPartitionBytes": str(SPLIT_BYTES), **options.source})
    read = parse_options(options.source)
    if read.table != tables.RECORDS:
        return _export_table(spark, options)
    ranges, account = (
        (run.plan.ranges, run.plan.account) if run is not None else translated(lambda: plan_anew(lambda: _planned(read)))
    )
    options = options._replace(source=_with_fixed_offsets(options, read, ranges))
    decodings = _decodings(spark, options, tell, run)
    with tempfile.TemporaryDirectory(prefix="kcli-reports-") as folder:
        if is_here(spark.sparkContext.master):
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
            was_written = _write(spark, frame, options, options.out if run is None else run.stage(ROWS))
        if observed is not None:
            texts = observed.get["reports"] if was_written else ()
        else:
            texts = [path.read_text("utf-8") for path in sorted(Path(folder).glob("*.json"))]
    report = Report.sum(texts)
    result = ExportResult(report, sum(report.rows.values()), 0, None, run=run)
    if not was_written:
        return result
    result = _accounted(result, account)
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
    """The result with what did not decode, which is written to the side table."""
    counts = {name: int(count) for name, count in counted.get.items()}
    rows = counts.pop("any")
    if not rows:
        _remove_old(spark, options, UNDECODED_SUFFIX)
        return result
    path, listed = _write_undecoded(spark, options, decodings, result.run)
    return result._replace(undecoded=rows, undecoded_columns=counts, undecoded_path=path, undecoded_listed=listed)


def _remove_old(spark: SparkSession, options: ExportOptions, suffix: str) -> None:
    """Remove the side table of an earlier run: what it lists is not true of an output that was replaced."""
    if options.mode == "overwrite":
        OutputDirectory(spark, options.out.rstrip("/") + suffix).remove()


def _check_partition_by(frame: DataFrame, options: ExportOptions) -> None:
    """Raises ExportError for columns of --partition-by that no field became; others were checked before Spark started."""
    for field in frame.schema.fields:
        if field.name in options.partition_by and isinstance(field.dataType, StructType | ArrayType | MapType):
            raise ExportError(f"cannot partition by {field.name}: it is not one value but {field.dataType.typeName()}")
    names = [*frame.columns, DATE]
    if unknown := [name for name in options.partition_by if name not in names]:
        raise ExportError(f"cannot partition by {', '.join(unknown)}: the columns are {', '.join(sorted(names))}")


def _planned(read: ReadOptions) -> tuple[list[OffsetRange], Account]:
    ranges = offset_ranges(find_partitions(OsDisk(), read), read)
    return ranges, account_of(ranges, read, {})


def finish_without_rows(run: IncrementalRun) -> ExportResult:
    """Commit a run for which there is nothing to read: no Spark is needed for that. Raises ExportError."""
    translated(run.commit_nothing)
    return _accounted(ExportResult(Report(), 0, 0, None, run=run), run.plan.account)


def _accounted(result: ExportResult, account: Account) -> ExportResult:
    """The result with what planning left out added."""
    result.report.add_json(account.left_out.to_json())
    return result._replace(to_high_watermark=account.to_high_watermark, to_log_end=account.to_log_end)


def _export_table(spark: SparkSession, options: ExportOptions) -> ExportResult:
    """Write one of the tables beside records."""
    observed = Observation("kcli")
    frame = _load(spark, options.source).observe(observed, F.count(F.lit(1)).alias("rows"))
    rows = int(observed.get["rows"]) if _write(spark, frame, options, options.out) else 0
    return ExportResult(Report(), rows, 0, None)


def _load(spark: SparkSession, source: dict[str, str]) -> DataFrame:
    return translated(lambda: spark.read.format(FORMAT).options(**source).load())


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
        translated(lambda: writer.parquet(path), out)

    return bool(translated(lambda: OutputDirectory(spark, out).write(options.mode, write), out))


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
    frame = translated(lambda: run.not_listed(spark, frame))
    _write(spark, frame, options._replace(mode="error", partition_by=()), run.stage(CORRUPT_SUFFIX))
    return out


# ------------------------------------------------------------------------------------------------------------- decoding


def _decodings(
    spark: SparkSession, options: ExportOptions, tell: Callable[[str], None], run: IncrementalRun | None
) -> tuple[Decoding, ...]:
    """How key and value are decoded, and by which schema, which is told and saved where it is inferred or asked for.

    The runs of an incremental output have one schema.
    """
    known = run.before.value_schema if run is not None and run.before is not None else None
    if known is not None and options.value_schema == INFERRED:
        options = options._replace(value_schema=known)
    found = []
    for column, how in (("key", options.decode_key), ("value", options.decode_value)):
        if how == JSON:
            schema = _json_schema(spark, options, tell)
            if known is not None and known != schema_ddl(spark, schema):
                raise ExportError(
                    f"the runs before decoded the values by the schema {known}, not {schema_ddl(spark, schema)}; leave "
                    "--value-schema out, or write to another directory from the beginning"
                )
            found.append(Decoding(column, how, schema, written_schema(schema, tell), options.flatten))
        elif how is not None:
            found.append(Decoding(column, how))
    return tuple(found)


def _json_schema(spark: SparkSession, options: ExportOptions, tell: Callable[[str], None]) -> StructType:
    """The schema that was given, or the one that the values have. Raises ExportError for one that is none."""
    try:
        if options.value_schema != INFERRED:
            schema = given_schema(options.value_schema)
        else:
            # A pass of its own over the values, read without anything else.
            source = {**options.source, "columns": "value"}
            values = _load(spark, source).where(F.col("value").isNotNull())
            if options.infer_from is not None:
                values = values.limit(options.infer_from)
            schema = translated(lambda: inferred_schema(spark, values), options.out)
            tell(f"the schema of the values, inferred; --value-schema takes it: {schema_ddl(spark, schema)}")
        if options.save_schema is not None:
            save_schema(options.save_schema, schema)
    except SchemaTextError as error:
        raise ExportError(str(error)) from None
    return schema


def _decode(frame: DataFrame, decodings: tuple[Decoding, ...]) -> tuple[DataFrame, Observation | None]:
    """The frame with key and value decoded, and what counts those that did not: `key`, `value` and, of the rows, `any`."""
    if not decodings:
        return frame, None
    any_failed = F.lit(False)
    for decoding in decodings:
        frame = decoding.with_decoded(frame)
        any_failed = any_failed | F.col(decoding.failed)
    observed = Observation("kcli-decoding")
    counts = [F.count_if(F.col(decoding.failed)).alias(decoding.column) for decoding in decodings]
    frame = frame.observe(observed, F.count_if(any_failed).alias("any"), *counts)
    for decoding in decodings:
        frame = decoding.replaced(frame)
    return frame.drop(*(decoding.failed for decoding in decodings)), observed


def _with_fixed_offsets(options: ExportOptions, read: ReadOptions, ranges: list[OffsetRange]) -> dict[str, str]:
    """The source's options with the offsets of the plan, so that each pass over the partitions reads the same ones."""
    if read.duplicate_partitions != ALL:
        return pinned(options.source, ranges)
    # A partition that is here twice has one end in the options: no copy is read beyond the longest one's end of now.
    ends: dict[str, dict[str, int]] = {}
    for part, _, end in ranges:
        of_topic = ends.setdefault(part.topic, {})
        of_topic[str(part.partition)] = max(end, of_topic.get(str(part.partition), 0))
    replaced = {"endingoffsets", "endingtimestamp", "endingoffsetsbytimestamp"}
    source = {name: value for name, value in options.source.items() if name.lower() not in replaced}
    return {**source, "endingOffsets": json.dumps(ends)}


def _write_undecoded(
    spark: SparkSession, options: ExportOptions, decodings: tuple[Decoding, ...], run: IncrementalRun | None
) -> tuple[str, int]:
    """Write the records that did not decode to OUT.undecoded -> (that path, how many keys and values it has)."""
    out = options.out.rstrip("/") + UNDECODED_SUFFIX
    frame = _load(spark, {**options.source, "columns": ",".join(UNDECODED_COLUMNS)})
    observed = Observation("kcli-undecoded")
    rows = undecoded_rows(frame, decodings).observe(observed, F.count(F.lit(1)).alias("rows"))
    mode = "error" if run is not None else "append" if options.mode == "append" else "overwrite"
    path = out if run is None else run.stage(UNDECODED_SUFFIX)
    _write(spark, rows, options._replace(mode=mode, partition_by=()), path)
    return out, int(observed.get["rows"])
