"""`kcli to-parquet`: the records of log directories as Parquet files, through Spark."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from kcli.commands.client_options import common_settings, read_properties
from kcli.commands.output import EXIT_CANNOT_RUN, EXIT_FINDINGS, EXIT_OK, CannotRun, is_terminal, print_message, print_text
from kcli.commands.progress import progress_bar
from kcli.distribution import other_kcli, pip_command
from kcli.inspect.quantities import format_bytes, format_count, format_offsets
from kcli.log.disk.os_disk import OsDisk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from kcli.format.primitives import TopicPartition
    from kcli.spark.incremental import IncrementalRun
    from kcli.spark.parquet_export import ExportOptions, ExportResult
    from kcli.spark.planning import OffsetRange
    from kcli.spark.report import Report

ARGUMENTS = "DIR... --out PATH"
DESCRIPTION = """\
Writes the records of log directories to Parquet, through Spark: no broker is needed. Control records,
records below the log start offset and, with --isolation read_committed, those of transactions that are
not committed are left out and counted. Where the directories are out of reach, kafka://HOST:PORT reads
the same records from a running cluster."""
EPILOG = """\
DIR is a log directory, a partition's directory, a segment or a glob; several are read as one. A cluster,
kafka://HOST:PORT[,HOST:PORT...], is the only path; its table has no columns segment and position. At the end
a summary is printed: for each partition, the rows written and the records left out. Exit codes: 0 success;
1 corrupt data (the job failed, or skipped it), or no topic with that name; 2 could not run.
docs/to-parquet.md has columns and options."""

MAX_RANGES = 5  # ranges of lost offsets that a line shows
SMALL_INPUT_BYTES = 64 * 1024 * 1024
# As kcli.spark.parquet_export.DEFAULT_COMPRESSION, without loading Spark for --help; a test compares them.
_COMPRESSION = "zstd:1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `kcli to-parquet`."""
    parser.add_argument(
        "paths", nargs="+", metavar="DIR", help="log directories, partitions, segments, globs, or kafka://HOST:PORT"
    )
    parser.add_argument("--out", required=True, metavar="PATH", help="the output: a path or URL that Spark can write to")
    _add_choice(parser.add_argument_group("input"))
    _add_writing(parser.add_argument_group("output"))
    group = parser.add_argument_group("Spark")
    group.add_argument("--master", default="local[*]", metavar="URL", help="Spark's master (%(default)s)")
    group.add_argument("--driver-memory", default="2g", metavar="SIZE", help="heap of the driver's JVM (%(default)s)")
    group.add_argument("--conf", action="append", default=[], metavar="K=V", help="a setting of Spark; may be repeated")


def _add_choice(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--command-config", metavar="FILE", help="TLS and SASL of the client of kafka://HOST:PORT (properties file)"
    )
    group.add_argument("--topic", action="append", default=[], metavar="NAME", help="read only these topics; may be repeated")
    group.add_argument("--topic-pattern", metavar="REGEX", help="read only topics whose whole name matches")
    group.add_argument("--starting-offsets", metavar="JSON", help='earliest, or {"topic":{"0":23}} (-2: earliest)')
    group.add_argument("--ending-offsets", metavar="JSON", help='latest, or {"topic":{"0":50}} (-1: latest)')
    group.add_argument("--starting-time", metavar="TIME", help="begin at the first record of that time: ISO 8601, or ms")
    group.add_argument(
        "--ending-time", metavar="TIME", help="end at the first record of that time, or at the end of that day or month"
    )
    group.add_argument(
        "--isolation",
        choices=["read_uncommitted", "read_committed"],
        default="read_uncommitted",
        help="read_committed: like a consumer, without records of open and aborted transactions",
    )
    group.add_argument(
        "--on-corrupt",
        choices=["fail", "skip"],
        default="fail",
        help="skip: skip corrupt bytes and list them in OUT.corrupt (%(default)s)",
    )
    group.add_argument("--table", default="records", metavar="NAME", help="another table of the data source, such as batches")
    group.add_argument("--columns", metavar="A,B", help="write only these columns")
    group.add_argument(
        "--option", action="append", default=[], metavar="K=V", help="another option of the data source; may be repeated"
    )


def _add_writing(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--partition-by", metavar="A,B", help="a directory for each value of these columns, such as topic,date")
    group.add_argument("--decode-value", choices=["json", "utf8"], help="decode the value as text or as JSON")
    group.add_argument("--decode-key", choices=["utf8"], help="decode the key as text")
    group.add_argument(
        "--value-schema",
        default="inferred",
        metavar="DDL|FILE",
        help="schema of the JSON, such as 'id bigint, name string', or a file with it; by default it is inferred and printed, "
        "which reads the values twice",
    )
    group.add_argument("--save-schema", metavar="FILE", help="write the schema of the JSON to a file for --value-schema")
    group.add_argument("--flatten", action="store_true", help="write the JSON's fields as columns value_FIELD, not as a struct")
    group.add_argument("--infer-from", type=int, metavar="N", help="infer the schema from N values, not from all values")
    group.add_argument(
        "--compression",
        metavar="CODEC",
        default=_COMPRESSION,
        help="zstd:LEVEL (1 to 22), zstd (Spark's level, 3), snappy, gzip, lz4 or none (%(default)s)",
    )
    group.add_argument(
        "--mode",
        choices=["error", "overwrite", "append", "ignore"],
        default="error",
        help="what to do if OUT exists (%(default)s); a second append writes the same rows again",
    )
    group.add_argument(
        "--incremental",
        action="store_true",
        help="add only records that no earlier run has written to OUT; the state is in OUT/_kcli_state",
    )
    group.add_argument("--report", metavar="FILE", help="write the summary to FILE as JSON, also if the job fails")


def run(args: argparse.Namespace) -> int:
    """Write the Parquet files and return the exit code. Raises CannotRun for invalid options and if Spark is not installed."""
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError:
        other = other_kcli()
        if other is not None:
            print_message(other)
        raise CannotRun(f"to-parquet needs Apache Spark and pyarrow: {pip_command('spark')} installs them") from None
    from kcli.client.client_config import SCHEME
    from kcli.inspect.description.remarks import missing_name
    from kcli.spark.log_partitions import UnknownTopicError
    from kcli.spark.parquet_export import check_export
    from kcli.spark.session import SparkError
    from kcli.spark.spark_errors import ExportError

    options = _export_options(args)
    begin = time.monotonic()
    wanted: list[OffsetRange] | None = None  # until the options are checked, also that of the report's path
    members: dict[str, object] = {}
    code = EXIT_CANNOT_RUN
    try:
        wanted = check_export(options)
        if not any(path.startswith(SCHEME) for path in args.paths):
            check_topics(wanted, args.paths)
        result, partitions, wanted = _export(args, options, wanted)
    except UnknownTopicError as error:
        sentences = [f"{', '.join(args.paths)}: {missing_name('topic', topic, error.known)}" for topic in error.missing]
        code = _failed(sentences or [str(error)], EXIT_FINDINGS, members)
    except ExportError as error:
        code = _failed([str(error)], EXIT_FINDINGS if error.is_damage else EXIT_CANNOT_RUN, members)
    except SparkError as error:
        code, members["error"] = EXIT_CANNOT_RUN, str(error)
        raise CannotRun(str(error)) from None
    else:
        members |= report_members(options, result, partitions)
        print_text(summary(options, result, partitions))
        if wanted:
            print_text(totals_line(_size_bytes(wanted), time.monotonic() - begin, options.out, members))
        for fault in result.report.first_faults:
            sys.stderr.write(f"kcli: {fault}\n")
        code = EXIT_FINDINGS if result.report.corrupt else EXIT_OK
    finally:
        if args.report is not None and wanted is not None:
            head = {"type": "to-parquet", "version": 1, "exitCode": code, "seconds": round(time.monotonic() - begin, 3)}
            report = {**head, "logSizeInBytes": _size_bytes(wanted), **members}
            Path(args.report).write_text(json.dumps(report) + "\n", "utf-8")
    return code


def check_topics(wanted: list[OffsetRange], paths: Sequence[str]) -> None:
    """Raise ExportError if a partition has another topic id than the metadata log, unless `paths` name it."""
    from kcli.inspect.verification.directories import check_topic_id, read_root, with_sibling_topics
    from kcli.inspect.verification.findings import FindingList
    from kcli.log.files.log_directory import is_live
    from kcli.spark.spark_errors import ExportError

    disk, named = OsDisk(), {os.path.realpath(path) for path in paths}
    partitions = [offsets.partition.directory for offsets in wanted]
    chosen = {one.path: one for one in partitions if os.path.realpath(one.path) not in named}
    log_directories = dict.fromkeys(one.log_directory for one in chosen.values())
    # The metadata log of a running broker may be newer or older than its directories, so it is not compared.
    found = [read_root(disk, path, FindingList(), with_topics=not is_live(disk, path)) for path in log_directories]
    roots = {root.path: root for root in with_sibling_topics(found)}
    for directory in chosen.values():
        root, findings = roots[directory.log_directory], FindingList()
        check_topic_id(disk, directory, root, root.topics or root.sibling_topics, findings)
        for finding in findings.finish():
            if finding.code == "topic-id-mismatch":
                raise ExportError(
                    f"{finding.message}: the partition belongs to a deleted topic of that name or to another cluster; move "
                    f"it away, or export it by itself ({directory.path})"
                )


def _failed(sentences: list[str], code: int, members: dict[str, object]) -> int:
    """Report errors on stderr and in the members of --report, and return the exit code."""
    for sentence in sentences:
        print_message(sentence)
    members["error"] = "; ".join(sentences)
    return code


def report_members(options: ExportOptions, result: ExportResult, partitions: list[TopicPartition]) -> dict[str, object]:
    """Return the members of --report for an export that succeeded; docs/to-parquet.md describes them."""
    report, run = result.report, result.run
    offsets = {} if run is None else run.plan.new_by_partition()
    left_out = report.left_out_of()
    rows = []
    for key in partitions:
        row: dict[str, object] = {"topic": key[0], "partition": key[1], "rows": report.rows[key]}
        row["leftOut"] = left_out.get(key, {})
        row |= {"corruptPlaces": report.corrupt[key], "corruptSizeInBytes": report.corrupt_bytes[key]}
        row |= {"lostOffsets": report.lost_offsets[key], "lostRanges": report.lost.get(key, [])}
        if key in offsets:
            row |= {"firstOffset": offsets[key].first, "endOffset": offsets[key].end}
        rows.append(row)
    from kcli.spark.parquet_output import local_path
    from kcli.spark.run_commit import STATE_DIRECTORY

    local = local_path(options.out)
    files = [path for path in Path(local).rglob("*.parquet") if STATE_DIRECTORY not in path.parts] if local is not None else []
    return {
        "out": options.out,
        "run": run.number if run is not None and offsets else None,
        "rows": result.rows,
        "outputFiles": None if local is None else len(files),
        "outputSizeInBytes": None if local is None else sum(path.stat().st_size for path in files),
        "partitionsToHighWatermark": result.to_high_watermark,
        "partitionsToLogEnd": result.to_log_end,
        "partitions": rows,
        "undecoded": {"rows": result.undecoded, **result.undecoded_columns, "path": result.undecoded_path},
        "unknownFields": {"rows": result.unknown, "names": list(result.unknown_names)},
        "corruptPlaces": sum(report.corrupt.values()),
        "corruptPath": result.corrupt_path,
        "firstFaults": report.first_faults,
        "recordsLost": [] if run is None else run.plan.losses,
    }


def _export(
    args: argparse.Namespace, options: ExportOptions, wanted: list[OffsetRange]
) -> tuple[ExportResult, list[TopicPartition], list[OffsetRange]]:
    """Export, by Spark if there is anything to read; return the result, the chosen partitions and the offsets read."""
    from kcli.spark.parquet_export import begin_run, check_value_schema, finish_without_rows

    partitions = [part.partition.key for part in wanted]
    if not options.incremental:
        _warn_of_duplicates(options)
        return _with_spark(args, wanted, options, None), partitions, wanted
    with begin_run(options) as run:
        for sentence in run.remarks():
            print_message(sentence)
        wanted = run.plan.new_ranges
        if not wanted:
            if run.is_schema_unknown(options.value_schema):
                # Only Spark can parse the schema and compare it.
                with _session(args, wanted) as spark:
                    check_value_schema(spark, options, run)
            return finish_without_rows(run), partitions, wanted
        return _with_spark(args, wanted, options, run), partitions, wanted


def _with_spark(
    args: argparse.Namespace, wanted: list[OffsetRange], options: ExportOptions, run: IncrementalRun | None
) -> ExportResult:
    """Start Spark, export, show the progress, and stop Spark."""
    from kcli.spark.parquet_export import export

    with _session(args, wanted) as spark:
        options.source.setdefault("minPartitions", str(spark.sparkContext.defaultParallelism))
        with progress_bar(0 if _progress(args.master) else _size_bytes(wanted)) as bar:
            return export(spark, options, print_message, run, None if bar is None else bar.advance)


@contextmanager
def _session(args: argparse.Namespace, wanted: list[OffsetRange]) -> Iterator[SparkSession]:
    """Start Spark for an export of these offsets, and stop it. Raises SparkError."""
    from kcli.spark.session import start_session

    conf = {"spark.driver.memory": args.driver_memory, **_jvm_options(wanted), **_progress(args.master)}
    spark = start_session(args.master, "kcli to-parquet", conf | _pairs("--conf", args.conf), log_level="OFF")
    try:
        yield spark
    finally:
        spark.stop()


def _warn_of_duplicates(options: ExportOptions) -> None:
    from kcli.spark.parquet_output import holds_data

    if options.mode == "append" and holds_data(options.out):
        print_message(
            f"{options.out} has data: --mode append may write the same rows again; --incremental, with a new directory, writes "
            "each record once"
        )


def _jvm_options(wanted: list[OffsetRange]) -> dict[str, str]:
    """Return options with which the JVM starts faster, for small inputs: they save some seconds."""
    if _size_bytes(wanted) > SMALL_INPUT_BYTES:
        return {}
    return {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"}


def _size_bytes(wanted: list[OffsetRange]) -> int:
    """Return the size of the segments with the wanted offsets; an estimate for a running cluster."""
    return sum(offsets.partition.size_of(offsets.first, offsets.end) for offsets in wanted)


def _progress(master: str) -> dict[str, str]:
    """Return the setting for Spark's own progress bar on stderr, for executors whose progress kcli does not know."""
    from kcli.spark.session import is_on_this_machine

    return {"spark.ui.showConsoleProgress": "true"} if is_terminal(2) and not is_on_this_machine(master) else {}


def _export_options(args: argparse.Namespace) -> ExportOptions:
    from kcli.spark.parquet_export import ExportOptions

    source = {"paths": json.dumps(args.paths), "table": args.table, "kafka.isolation.level": args.isolation}
    source["onCorrupt"] = args.on_corrupt
    given = {
        "subscribe": ",".join(args.topic),
        "subscribePattern": args.topic_pattern,
        "startingOffsets": args.starting_offsets,
        "endingOffsets": args.ending_offsets,
        # Some of many partitions may have no record of that time; the summary shows it.
        "startingOffsetsByTimestampStrategy": "latest" if args.starting_time else None,
        "startingTimestamp": _instant("--starting-time", args.starting_time),
        "endingTimestamp": _instant("--ending-time", args.ending_time),
        "columns": args.columns,
    }
    for end in ("starting", "ending"):
        if getattr(args, f"{end}_time") is not None and getattr(args, f"{end}_offsets") is not None:
            raise CannotRun(f"--{end}-time and --{end}-offsets exclude each other: each says where the read is {end}")
    source |= {name: value for name, value in given.items() if value}
    if args.command_config is not None:
        from kcli.client.client_config import SCHEME

        if not any(path.startswith(SCHEME) for path in args.paths):
            raise CannotRun(f"--command-config is for {SCHEME}HOST:PORT; log directories are read without a client")
        settings = common_settings(read_properties(args.command_config))
        source |= {f"kafka.{name}": value for name, value in settings.items()}
    more = _pairs("--option", args.option)
    own = {name.lower(): name for name, value in given.items() if value}
    if twice := next((name for name in more if name.lower() in own), None):
        raise CannotRun(f"--option {twice} repeats another option of the command line; use one of the two")
    replaced = {name.lower() for name in more}
    source = {name: value for name, value in source.items() if name.lower() not in replaced} | more
    return ExportOptions(
        out=args.out,
        source=source,
        partition_by=tuple(word.strip() for word in (args.partition_by or "").split(",") if word.strip()),
        decode_key=args.decode_key,
        decode_value=args.decode_value,
        value_schema=args.value_schema,
        infer_from=args.infer_from,
        save_schema=args.save_schema,
        report=args.report,
        flatten=args.flatten,
        compression=args.compression,
        mode=args.mode,
        incremental=args.incremental,
    )


def _pairs(option: str, given: list[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise CannotRun(f"{option} must be NAME=VALUE, not {text!r}")
        if name.strip().lower() in (known.lower() for known in pairs):
            raise CannotRun(f"{option} {name.strip()} is given twice; use it once")
        pairs[name.strip()] = value
    return pairs


def _instant(option: str, text: str | None) -> str | None:
    from kcli.selecting.selection import parse_period

    if text is None:
        return None
    try:
        period = parse_period(text)
    except ValueError as error:
        raise CannotRun(f"{option}: {error}") from None
    return str(period.end_ms if option == "--ending-time" else period.first_ms)


def summary(options: ExportOptions, result: ExportResult, partitions: list[TopicPartition]) -> str:
    """Return the summary of an export: a line for each partition, with the records left out by reason, and the totals.

    An incremental run has lines only for partitions that it has read or left records out of.
    """
    report, run = result.report, result.run
    offsets = {} if run is None else run.plan.new_by_partition()
    left_out = report.left_out_of()
    lines = []
    for key in partitions if offsets or report.rows or report.left_out or report.corrupt else ():
        notes = _notes(report, key, left_out.get(key, {}))
        if key in offsets:
            notes.insert(0, f"offsets {offsets[key].first} to {offsets[key].end - 1}")
        if run is None or notes:
            lines.append(f"{key[0]}-{key[1]}: {report.rows[key]} rows" + (f"; {'; '.join(notes)}" if notes else ""))
    if result.to_high_watermark:
        rest = f", {result.to_log_end} up to the end of the log" if result.to_log_end else ""
        lines.append(f"{format_count(result.to_high_watermark, 'partition')} read up to the high watermark{rest}")
    if run is not None and not offsets:
        since = f" since run {run.before.run}" if run.before is not None else ""
        lines.append(f"nothing new{since}: no rows written to {options.out}")
    else:
        lines.append(f"{result.rows} rows written to {options.out}" + (f" by run {run.number}" if run is not None else ""))
    if result.undecoded:
        lines.append(undecoded_line(result))
    if result.unknown:
        have = "has" if result.unknown == 1 else "have"
        lines.append(
            f"{format_count(result.unknown, 'value')} {have} fields that the schema does not have, such as "
            f"{' and '.join(result.unknown_names)}: they are not in the output"
        )
    if result.corrupt_path is not None:
        places = sum(report.corrupt.values())
        lines.append(
            f"{format_count(places, 'corrupt place')} {'is' if places == 1 else 'are'} listed in {result.corrupt_path}"
        )
    return "\n".join(lines)


def totals_line(log_bytes: int, seconds: float, out: str, members: Mapping[str, object]) -> str:
    """Return the last line of the summary: the bytes read, the time, and the files in the output."""
    line = f"{format_bytes(log_bytes)} of segments read in {seconds:.1f} s"
    files, size_bytes = members["outputFiles"], members["outputSizeInBytes"]
    if isinstance(files, int) and isinstance(size_bytes, int):
        line += f"; {out} has {format_count(files, 'Parquet file')}, {format_bytes(size_bytes)}"
    return line


def undecoded_line(result: ExportResult) -> str:
    """Return the line about rows that were not decoded: how many of which column, and where their bytes are."""
    columns = [(column, count) for column, count in result.undecoded_columns.items() if count]
    which = " and ".join(f"the {column} of {count}" for column, count in columns)
    line = f"{result.undecoded} rows were not decoded ({which}); the raw records are in {result.undecoded_path}"
    missing = sum(count for _, count in columns) - result.undecoded_listed
    return f"{line}, except {missing} that the log has lost since" if missing > 0 else line


def _ranges(ranges: Sequence[tuple[int, int]], offsets: int) -> str:
    """Return the first ranges of lost offsets, and the number of other lost offsets."""
    named = ranges[:MAX_RANGES]
    more = offsets - sum(end - first for first, end in named)
    return ", ".join(format_offsets(*one) for one in named) + (f" and {more:,} more" if more else "")


def _notes(report: Report, key: TopicPartition, left_out: Mapping[str, int]) -> list[str]:
    """Return the clauses about records of a partition that were left out, skipped or lost."""
    from kcli.spark.report import REASONS

    notes = []
    for reason, count in left_out.items():
        what = REASONS[reason].replace("records", "record", 1) if count == 1 else REASONS[reason]
        notes.append(f"{count} {what} left out")
    if report.corrupt[key]:
        notes.append(f"{format_count(report.corrupt[key], 'corrupt place')} skipped ({report.corrupt_bytes[key]} bytes)")
    if report.lost_offsets[key]:
        notes.append(f"lost: {_ranges(report.lost.get(key, []), report.lost_offsets[key])}")
    return notes
