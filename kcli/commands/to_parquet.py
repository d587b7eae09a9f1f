"""`kcli to-parquet`: the records of log directories as Parquet files, through Spark."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kcli.commands.output import EXIT_CANNOT_RUN, EXIT_FINDINGS, EXIT_OK, CannotRun, is_terminal, print_message, print_text
from kcli.commands.progress import progress_bar
from kcli.distribution import other_kcli, pip_command
from kcli.inspect.quantities import format_bytes, format_count, format_offsets
from kcli.log.disk.os_disk import OsDisk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kcli.spark.incremental import IncrementalRun
    from kcli.spark.parquet_export import ExportOptions, ExportResult
    from kcli.spark.planning import OffsetRange
    from kcli.spark.report import Report

ARGUMENTS = "DIR... --out PATH"
DESCRIPTION = """\
Writes the records of log directories to Parquet, through Spark: no broker is needed. Control records,
records below the log start offset and, under read_committed, those of transactions that did not commit
are left out, and counted."""
EPILOG = """\
DIR is a log directory, a partition's directory, a segment or a glob; several are read as one. The last lines
tell, for each partition, the rows written and what was left out. Exit codes: 0 done, 1 damage was found (the
job failed for it, or it was skipped as asked) or no topic has the name, 2 could not run. docs/to-parquet.md has
columns and options."""

MOST_RANGES = 5  # of lost offsets that a line names
SMALL_INPUT_BYTES = 64 * 1024 * 1024
Key = tuple[str, int]
# As kcli.spark.parquet_export.DEFAULT_COMPRESSION, which --help must not load Spark for; a test holds them together.
_COMPRESSION = "zstd:1"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `kcli to-parquet`."""
    parser.add_argument("paths", nargs="+", metavar="DIR", help="log directories, partitions, segments or globs")
    parser.add_argument("--out", required=True, metavar="PATH", help="where to write: a path or URL that Spark can write to")
    _add_choice(parser.add_argument_group("what is read"))
    _add_writing(parser.add_argument_group("what is written"))
    group = parser.add_argument_group("Spark")
    group.add_argument("--master", default="local[*]", metavar="URL", help="where Spark runs (%(default)s)")
    group.add_argument("--driver-memory", default="2g", metavar="SIZE", help="heap of the driver's JVM (%(default)s)")
    group.add_argument("--conf", action="append", default=[], metavar="K=V", help="a setting of Spark; may be repeated")


def _add_choice(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--topic", action="append", default=[], metavar="NAME", help="these topics only; may be repeated")
    group.add_argument("--topic-pattern", metavar="REGEX", help="topics whose whole name matches")
    group.add_argument("--starting-offsets", metavar="JSON", help='earliest, or {"topic":{"0":23}} (-2: earliest)')
    group.add_argument("--ending-offsets", metavar="JSON", help='latest, or {"topic":{"0":50}} (-1: latest)')
    group.add_argument("--starting-time", metavar="TIME", help="from the first record of that time on: ISO 8601, or ms")
    group.add_argument(
        "--ending-time", metavar="TIME", help="up to the first record of that time; up to the end of a day or a month"
    )
    group.add_argument(
        "--isolation",
        choices=["read_uncommitted", "read_committed"],
        default="read_uncommitted",
        help="read_committed: what a consumer would see, nothing of open or aborted transactions",
    )
    group.add_argument(
        "--on-corrupt",
        choices=["fail", "skip"],
        default="fail",
        help="skip: go on behind corrupt bytes, list them in OUT.corrupt (%(default)s)",
    )
    group.add_argument("--table", default="records", metavar="NAME", help="another table of the source, such as batches")
    group.add_argument("--columns", metavar="A,B", help="these columns only")
    group.add_argument(
        "--option", action="append", default=[], metavar="K=V", help="any other option of the source; may be repeated"
    )


def _add_writing(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--partition-by", metavar="A,B", help="directories by these columns: topic,date,partition, or others")
    group.add_argument("--decode-value", choices=["json", "utf8"], help="the value as text, or as columns of its JSON")
    group.add_argument("--decode-key", choices=["utf8"], help="the key as text")
    group.add_argument(
        "--value-schema",
        default="inferred",
        metavar="DDL|FILE",
        help="the JSON's schema, such as 'id bigint, name string', or a file that has one; else it is inferred and printed, "
        "which reads the values twice",
    )
    group.add_argument("--save-schema", metavar="FILE", help="write the JSON's schema to a file that --value-schema takes")
    group.add_argument("--flatten", action="store_true", help="the JSON's fields as columns value_FIELD, not as one struct")
    group.add_argument("--infer-from", type=int, metavar="N", help="infer the schema from N values, not from all")
    group.add_argument(
        "--compression",
        metavar="CODEC",
        default=_COMPRESSION,
        help="of the Parquet files: zstd:LEVEL (1 to 22), zstd (Spark's level, 3), snappy, gzip, lz4, none (%(default)s)",
    )
    group.add_argument(
        "--mode",
        choices=["error", "overwrite", "append", "ignore"],
        default="error",
        help="what to do when OUT is there (%(default)s); append twice writes the rows twice",
    )
    group.add_argument(
        "--incremental",
        action="store_true",
        help="add the records that no earlier run has written to OUT, each once; the state is in OUT/_kcli_state",
    )
    group.add_argument("--report", metavar="FILE", help="write the account to FILE as JSON too, also where the job fails")


def run(args: argparse.Namespace) -> int:
    """Write the Parquet files -> exit code. Raises CannotRun for options that do not fit and where Spark is missing."""
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError:
        other = other_kcli()
        if other is not None:
            print_message(other)
        raise CannotRun(f"to-parquet needs Apache Spark and pyarrow: {pip_command('spark')} installs them") from None
    from kcli.inspect.description.remarks import missing_name
    from kcli.spark.parquet_export import check_export
    from kcli.spark.partitions import UnknownTopicError
    from kcli.spark.session import SparkError
    from kcli.spark.spark_errors import ExportError

    options = _export_options(args)
    begin = time.monotonic()
    wanted: list[OffsetRange] | None = None  # until the checks have passed, that of the report's path too
    account: dict[str, object] = {}
    code = EXIT_CANNOT_RUN
    try:
        wanted = check_export(options)
        check_topics(wanted, args.paths)
        result, partitions, wanted = _export(args, options, wanted)
    except UnknownTopicError as error:
        sentences = [f"{', '.join(args.paths)}: {missing_name('topic', topic, error.known)}" for topic in error.missing]
        code = _failed(sentences or [str(error)], EXIT_FINDINGS, account)
    except ExportError as error:
        code = _failed([str(error)], EXIT_FINDINGS if error.is_damage else EXIT_CANNOT_RUN, account)
    except SparkError as error:
        code, account["error"] = EXIT_CANNOT_RUN, str(error)
        raise CannotRun(str(error)) from None
    else:
        account |= account_members(options, result, partitions)
        print_text(summary(options, result, partitions))
        if wanted:
            print_text(expense_line(_size_bytes(wanted), time.monotonic() - begin, options.out, account))
        for fault in result.report.first_faults:
            sys.stderr.write(f"kcli: {fault}\n")
        code = EXIT_FINDINGS if result.report.corrupt else EXIT_OK
    finally:
        if args.report is not None and wanted is not None:
            head = {"type": "to-parquet", "version": 1, "exitCode": code, "seconds": round(time.monotonic() - begin, 3)}
            members = {**head, "logSizeInBytes": _size_bytes(wanted), **account}
            Path(args.report).write_text(json.dumps(members) + "\n", "utf-8")
    return code


def check_topics(wanted: list[OffsetRange], paths: Sequence[str]) -> None:
    """Raises ExportError for a partition, not named itself, that has another topic id than the broker's metadata log has."""
    from kcli.inspect.verification.directories import check_topic_id, read_root, with_sibling_topics
    from kcli.inspect.verification.findings import FindingList
    from kcli.log.files.log_directory import is_live
    from kcli.spark.spark_errors import ExportError

    disk, named = OsDisk(), {os.path.realpath(path) for path in paths}
    partitions = [offsets.partition.directory for offsets in wanted]
    chosen = {one.path: one for one in partitions if os.path.realpath(one.path) not in named}
    log_directories = dict.fromkeys(one.log_directory for one in chosen.values())
    # A running broker's metadata log is ahead of its directories or behind them, so it is not compared, and not read.
    found = [read_root(disk, path, FindingList(), with_topics=not is_live(disk, path)) for path in log_directories]
    roots = {root.path: root for root in with_sibling_topics(found)}
    for directory in chosen.values():
        root, findings = roots[directory.log_directory], FindingList()
        check_topic_id(disk, directory, root, root.topics or root.sibling_topics, findings)
        for finding in findings.finish():
            if finding.code == "topic-id-mismatch":
                raise ExportError(
                    f"{finding.message}: the partition is of another topic of that name, deleted since or of another cluster; "
                    f"move it away, or export it by itself ({directory.path})"
                )


def _failed(sentences: list[str], code: int, account: dict[str, object]) -> int:
    """Say what went wrong on stderr and in the account -> the exit code."""
    for sentence in sentences:
        print_message(sentence)
    account["error"] = "; ".join(sentences)
    return code


def account_members(options: ExportOptions, result: ExportResult, partitions: list[Key]) -> dict[str, object]:
    """Return what --report says of an export that has ended: docs/to-parquet.md has the members."""
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
        "corruptPlaces": sum(report.corrupt.values()),
        "corruptPath": result.corrupt_path,
        "firstFaults": report.first_faults,
        "recordsLost": [] if run is None else run.plan.losses,
    }


def _export(
    args: argparse.Namespace, options: ExportOptions, wanted: list[OffsetRange]
) -> tuple[ExportResult, list[Key], list[OffsetRange]]:
    """Start Spark where there is something to read, and export -> what was done, the partitions chosen, the offsets read."""
    from kcli.spark.parquet_export import begin_run, finish_without_rows

    partitions = [part.partition.key for part in wanted]
    if not options.incremental:
        _warn_of_doubled_rows(options)
        return _with_spark(args, wanted, options, None), partitions, wanted
    with begin_run(options) as run:
        for sentence in run.remarks():
            print_message(sentence)
        wanted = run.plan.new_ranges
        if not wanted:
            return finish_without_rows(run), partitions, wanted
        return _with_spark(args, wanted, options, run), partitions, wanted


def _with_spark(
    args: argparse.Namespace, wanted: list[OffsetRange], options: ExportOptions, run: IncrementalRun | None
) -> ExportResult:
    """Start Spark for an export of the offsets wanted, show how far it is, and stop it at the end."""
    from kcli.spark.parquet_export import export
    from kcli.spark.session import start_session

    progress = _progress(args.master)
    conf = {"spark.driver.memory": args.driver_memory, **_jvm_options(wanted), **progress, **_pairs("--conf", args.conf)}
    spark = start_session(args.master, "kcli to-parquet", conf, log_level="OFF")
    try:
        options.source.setdefault("minPartitions", str(spark.sparkContext.defaultParallelism))
        with progress_bar(0 if progress else _size_bytes(wanted)) as bar:
            return export(spark, options, print_message, run, None if bar is None else bar.advance)
    finally:
        spark.stop()


def _warn_of_doubled_rows(options: ExportOptions) -> None:
    from kcli.spark.parquet_output import holds_data

    if options.mode == "append" and holds_data(options.out):
        print_message(
            f"{options.out} has data: --mode append may write rows again that are there already; --incremental, to a directory "
            "of its own from the beginning, writes each record once"
        )


def _jvm_options(wanted: list[OffsetRange]) -> dict[str, str]:
    """For little input a JVM that starts fast and compiles lightly: it saves some seconds."""
    if _size_bytes(wanted) > SMALL_INPUT_BYTES:
        return {}
    return {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"}


def _size_bytes(wanted: list[OffsetRange]) -> int:
    """How many bytes the segments have that hold the offsets wanted; one that is gone meanwhile has none."""
    from kcli.format.primitives import INT64_MAX

    size_bytes = 0
    for offsets in wanted:
        segments = offsets.partition.segments
        ends = [*(segment.base_offset for segment in segments[1:]), INT64_MAX]
        for segment, end_offset in zip(segments, ends, strict=False):
            if segment.base_offset < offsets.end and end_offset > offsets.first:
                with suppress(OSError):
                    size_bytes += OsDisk().size(segment.log)
    return size_bytes


def _progress(master: str) -> dict[str, str]:
    """Spark's own progress bar, which it draws on stderr, where ours cannot see how far the executors are."""
    from kcli.spark.session import is_here

    return {"spark.ui.showConsoleProgress": "true"} if is_terminal(2) and not is_here(master) else {}


def _export_options(args: argparse.Namespace) -> ExportOptions:
    from kcli.spark.parquet_export import ExportOptions

    source = {"paths": json.dumps(args.paths), "table": args.table, "kafka.isolation.level": args.isolation}
    source["onCorrupt"] = args.on_corrupt
    given = {
        "subscribe": ",".join(args.topic),
        "subscribePattern": args.topic_pattern,
        "startingOffsets": args.starting_offsets,
        "endingOffsets": args.ending_offsets,
        # Of many partitions some have no record of the time: the account shows it.
        "startingOffsetsByTimestampStrategy": "latest" if args.starting_time else None,
        "startingTimestamp": _instant("--starting-time", args.starting_time),
        "endingTimestamp": _instant("--ending-time", args.ending_time),
        "columns": args.columns,
    }
    source |= {name: value for name, value in given.items() if value}
    source |= _pairs("--option", args.option)
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
    pairs = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise CannotRun(f"{option} takes NAME=VALUE, not {text!r}")
        pairs[name.strip()] = value
    return pairs


def _instant(option: str, text: str | None) -> str | None:
    from kcli.inspect.instants import parse_period

    if text is None:
        return None
    try:
        period = parse_period(text)
    except ValueError as error:
        raise CannotRun(f"{option}: {error}") from None
    return str(period.end_ms if option == "--ending-time" else period.first_ms)


def summary(options: ExportOptions, result: ExportResult, partitions: list[Key]) -> str:
    """The account of an export: a line for each partition, with what was left out of it and why, and the sums.

    An incremental run has lines of the partitions that it has read or left records out of.
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
        rest = f", of {result.to_log_end} to the end of the log" if result.to_log_end else ""
        lines.append(
            f"records of {format_count(result.to_high_watermark, 'partition')} are read up to the high watermark{rest}"
        )
    if run is not None and not offsets:
        since = f" since run {run.before.run}" if run.before is not None else ""
        lines.append(f"nothing new{since}: no rows written to {options.out}")
    else:
        lines.append(f"{result.rows} rows written to {options.out}" + (f" by run {run.number}" if run is not None else ""))
    if result.undecoded:
        lines.append(undecoded_line(result))
    if result.corrupt_path is not None:
        places = sum(report.corrupt.values())
        lines.append(
            f"{format_count(places, 'corrupt place')} {'is' if places == 1 else 'are'} listed in {result.corrupt_path}"
        )
    return "\n".join(lines)


def expense_line(log_bytes: int, seconds: float, out: str, account: Mapping[str, object]) -> str:
    """The last line of the account: how much was read in which time, and the files that the output has now."""
    line = f"{format_bytes(log_bytes)} of segments read in {seconds:.1f} s"
    files, size_bytes = account["outputFiles"], account["outputSizeInBytes"]
    if isinstance(files, int) and isinstance(size_bytes, int):
        line += f"; {out} has {format_count(files, 'Parquet file')}, {format_bytes(size_bytes)}"
    return line


def undecoded_line(result: ExportResult) -> str:
    """The line of rows that did not decode: which column of how many, and where their bytes are."""
    columns = [(column, count) for column, count in result.undecoded_columns.items() if count]
    which = " and ".join(f"the {column} of {count}" for column, count in columns)
    line = f"{result.undecoded} rows did not decode ({which}); the raw records are in {result.undecoded_path}"
    lost = sum(count for _, count in columns) - result.undecoded_listed
    return f"{line}, but for {lost} that the log lost since" if lost > 0 else line


def _ranges(ranges: Sequence[tuple[int, int]], offsets: int) -> str:
    """The first of the ranges of lost offsets, and how many more there are."""
    named = ranges[:MOST_RANGES]
    more = offsets - sum(end - first for first, end in named)
    return ", ".join(format_offsets(*one) for one in named) + (f" and {more:,} more" if more else "")


def _notes(report: Report, key: Key, left_out: Mapping[str, int]) -> list[str]:
    """What was left out of a partition and why."""
    from kcli.spark.report import REASONS

    notes = [f"{count} {REASONS[reason]} left out" for reason, count in left_out.items()]
    if report.corrupt[key]:
        notes.append(f"{format_count(report.corrupt[key], 'corrupt place')} skipped ({report.corrupt_bytes[key]} bytes)")
    if report.lost_offsets[key]:
        notes.append(f"lost: {_ranges(report.lost.get(key, []), report.lost_offsets[key])}")
    return notes
