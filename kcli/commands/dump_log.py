"""`kcli dump-log`: a replacement for kafka-dump-log, with selections, statistics, following and more outputs."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from kcli.commands.output import CannotRun, exit_code, print_message, write_out
from kcli.commands.selection_options import BATCH_OPTIONS, READ_UNCOMMITTED, add_selection_options
from kcli.log.disk.os_disk import OsDisk

if TYPE_CHECKING:
    from kcli.inspect.dumping.kafka_text import ContentParser, KafkaDumpOptions

ARGUMENTS = "PATH..."
DESCRIPTION = """\
Shows the files of a log directory: segments, indexes, snapshots, checkpoints. Takes all options of
kafka-dump-log; --output kafka prints the same bytes."""
EPILOG = """\
Paths are files, directories and globs. Exit codes: 0 all sound, 1 something is damaged (all else is shown),
2 could not run. docs/dump-log.md has examples, docs/json-output.md the schema of --output json."""

STRING_DECODER = "org.apache.kafka.tools.api.StringDecoder"
# The topic whose records each option decodes, in the order in which Kafka's tool prefers the options.
TOPIC_DECODERS = {
    "offsets_decoder": "__consumer_offsets",
    "transaction_log_decoder": "__transaction_state",
    "cluster_metadata_decoder": "__cluster_metadata",
    "remote_log_metadata_decoder": "__remote_log_metadata",
    "share_group_state_decoder": "__share_group_state",
}

# The options that --output kafka does not have.
SELECTING = (
    *("offset", "time", "key", "header", "producer_id", "transactional", "control", "aborted"),
    *("limit", "tail", "stats", "follow"),
)
# The options that only --output kafka has, for it alone checks indexes.
INDEX_OPTIONS = ("verify_index_only", "index_sanity_check", "max_message_size")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `kcli dump-log`."""
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files, directories or globs")
    parser.add_argument(
        "--files", metavar="A,B", action="append", default=[], help="files, directories or globs, separated by commas"
    )
    parser.add_argument(
        "--output",
        choices=["auto", "text", "kafka", "json", "csv"],
        default="auto",
        help="auto: text on a terminal and with options that select, else kafka",
    )
    _add_kafka_arguments(parser.add_argument_group("as in kafka-dump-log"))
    add_selection_options(
        parser.add_argument_group("selecting (not with --output kafka)"),
        batch_options=list(BATCH_OPTIONS),
        default_isolation=READ_UNCOMMITTED,
        isolation_help="read_committed: only what such a consumer would receive, no records of open or aborted transactions",
    )
    group = parser.add_argument_group("more")
    group.add_argument(
        "--stats", action="store_true", help="counts, sizes, codecs, rates, top keys, producers instead of records"
    )
    group.add_argument(
        "--timestamps",
        choices=["iso", "ms"],
        help="with --output csv: iso (2023-11-14T22:13:20.000Z; the default) or ms since 1970",
    )
    group.add_argument("--follow", action="store_true", help="continue with the records that a running broker appends")


def _add_kafka_arguments(group: argparse._ArgumentGroup) -> None:
    from kcli.format.primitives import INT32_MAX
    from kcli.inspect.dumping.kafka_text import DEFAULT_MAX_MESSAGE_BYTES

    group.add_argument("--print-data-log", action="store_true", help="print keys and values; any decoder option implies it")
    group.add_argument("--deep-iteration", action="store_true", help="print records; --print-data-log implies it")
    group.add_argument("--skip-record-metadata", action="store_true", help="leave out record metadata and control records")
    group.add_argument("--verify-index-only", action="store_true", help="compare indexes with the log, print no entries")
    group.add_argument("--index-sanity-check", action="store_true", help="check each index without its log")
    group.add_argument(
        "--max-message-size",
        type=int,
        metavar="BYTES",
        help=f"of a batch when an index is checked ({DEFAULT_MAX_MESSAGE_BYTES})",
    )
    group.add_argument(
        "--max-bytes", type=int, default=INT32_MAX, metavar="BYTES", help="read at most this many bytes of each .log"
    )
    for side in ("key", "value"):
        group.add_argument(
            f"--{side}-decoder-class",
            nargs="?",
            const=STRING_DECODER,
            metavar="CLASS",
            help="Kafka's StringDecoder, IntegerDecoder, LongDecoder or DefaultDecoder, or your own as package.module:callable",
        )
    for option, topic in TOPIC_DECODERS.items():
        group.add_argument(f"--{option.replace('_', '-')}", action="store_true", help=f"decode as records of {topic}")


def run(args: argparse.Namespace) -> int:
    """Dump the files of the command line and return the exit code. Raises CannotRun for invalid options."""
    paths = list(args.paths) + [path for files in args.files for path in files.split(",") if path]
    if not paths:
        raise CannotRun("name what to show: kcli dump-log PATH..., or --files A,B")
    output = _chosen_output(args)
    if args.timestamps and output != "csv":
        raise CannotRun("--timestamps is only for --output csv: text has ISO 8601, json and kafka have milliseconds")
    if output == "kafka":
        return _run_kafka(args, paths)
    from kcli.commands.dump_log_selected import run_selected

    return run_selected(args, paths, output, content_parser(args))


def _selects(args: argparse.Namespace) -> str | None:
    """Return the first option on the command line that --output kafka does not have, or None."""
    given = [name for name in SELECTING if getattr(args, name) not in (None, False, [])]
    if args.isolation != READ_UNCOMMITTED:
        given.append("isolation")
    return f"--{given[0].replace('_', '-')}" if given else None


def _chosen_output(args: argparse.Namespace) -> str:
    selects = _selects(args)
    checks = next((f"--{name.replace('_', '-')}" for name in INDEX_OPTIONS if getattr(args, name) not in (None, False)), None)
    output = str(args.output)
    if output == "auto":
        output = "text" if selects or (os.isatty(1) and not checks) else "kafka"
    elif output == "kafka" and selects:
        raise CannotRun(f"{selects} is not possible with --output kafka; use text, json or csv")
    if checks and output != "kafka":
        why = f"{selects} needs another output" if selects else f"this is --output {output}"
        raise CannotRun(f"{checks} is only for --output kafka, which checks indexes, and {why}")
    return output


def kafka_options(args: argparse.Namespace) -> KafkaDumpOptions:
    """Return the options of kafka-dump-log. Raises CannotRun for an invalid value."""
    from kcli.inspect.dumping.kafka_text import DEFAULT_MAX_MESSAGE_BYTES, KafkaDumpOptions

    if args.max_bytes < 0:
        raise CannotRun("--max-bytes takes a number of bytes, 0 or more")
    parser = content_parser(args)
    decoded = parser is not None or args.key_decoder_class or args.value_decoder_class
    return KafkaDumpOptions(
        print_data_log=bool(args.print_data_log or decoded),
        deep_iteration=args.deep_iteration,
        skip_record_metadata=args.skip_record_metadata,
        verify_index_only=args.verify_index_only,
        index_sanity_check=args.index_sanity_check,
        max_message_bytes=DEFAULT_MAX_MESSAGE_BYTES if args.max_message_size is None else args.max_message_size,
        max_bytes=args.max_bytes,
        parser=parser,
    )


def _run_kafka(args: argparse.Namespace, paths: list[str]) -> int:
    from kcli.inspect.dumping.kafka_text import dump_as_kafka

    options, disk = kafka_options(args), OsDisk()

    def report_line(line: str) -> None:
        sys.stderr.write(line + "\n")  # some lines are Kafka's, the others begin with "kcli: "

    unreadable: dict[str, str] = {}
    files = expand(disk, paths, unreadable)
    for path, why in unreadable.items():
        print_message(f"{path}: {why}")
    unread = set(unreadable)
    sound = dump_as_kafka(disk, files, options, write_out, report_line, os.path.abspath, unread.add)
    unknown = {path: why for path in paths if (why := _why_unknown(disk, path))}
    for path, why in unknown.items():
        print_message(f"{path}: {why}")
    return exit_code(is_sound=sound and not unread, all_opened=unread.isdisjoint(paths) and not unknown)


def _why_unknown(disk: OsDisk, path: str) -> str:
    """Return why a path of the command line can be no file of Kafka's; kafka-dump-log would end as if all had been shown."""
    from kcli.format.file_names import FileKind, parse_file_name
    from kcli.log.disk.port import base_name

    if not disk.exists(path) or disk.is_directory(path):
        return ""
    is_plain = disk.is_regular(path)
    if is_plain and parse_file_name(base_name(path)).kind is not FileKind.UNKNOWN:
        return ""
    from kcli.log.files.log_directory import NOT_OF_KAFKA, NOT_PLAIN

    return NOT_OF_KAFKA if is_plain else NOT_PLAIN


def expand(disk: OsDisk, paths: list[str], problems: dict[str, str]) -> list[str]:
    """Return files as they are, existing or not; the files of a directory by name; the matches of a pattern.

    Adds to `problems` the reason for each pattern without a match and each directory that cannot be listed or is empty.
    """
    found: list[str] = []
    for path in paths:
        if disk.is_directory(path):
            files = _files_below(disk, path.rstrip("/") or "/", set(), problems)
            if not files and path not in problems:
                from kcli.log.files.log_directory import resolve_paths

                problems |= {where: message.removeprefix(f"{where}: ") for where, message in resolve_paths(disk, [path])[1]}
            found += files
        elif any(sign in path for sign in "*?[") and not disk.exists(path):
            from kcli.log.files.log_directory import expand_pattern, why_missing

            matches = expand_pattern(disk, path)
            if matches == [path]:
                problems[path] = why_missing(disk, path)
                continue
            for match in matches:
                found += _files_below(disk, match, set(), problems) if disk.is_directory(match) else [match]
        else:
            found.append(path)
    return found


def _files_below(disk: OsDisk, directory: str, seen: set[str], problems: dict[str, str]) -> list[str]:
    """Return the files below a directory; one that symbolic links lead to several times is listed once."""
    from kcli.log.disk.port import base_name
    from kcli.log.files.log_directory import DIRECTORY_NOT_FILE, is_file_name

    real = os.path.realpath(directory)
    if real in seen:
        return []
    seen.add(real)
    if is_file_name(base_name(directory)):
        problems[directory] = DIRECTORY_NOT_FILE
    files: list[str] = []
    try:
        names = disk.list_directory(directory)
    except OSError as error:
        problems[directory] = f"cannot be read: {error.strerror or error}"
        return files
    for name in names:
        path = f"{directory.rstrip('/')}/{name}"
        if disk.is_directory(path):
            files += _files_below(disk, path, seen, problems)
        else:
            files.append(path)
    return files


def content_parser(args: argparse.Namespace) -> ContentParser | None:
    """Return the decoder for keys and values of all files, in Kafka's order of preference; None for the StringDecoder.

    Raises CannotRun for a decoder that does not exist.
    """
    for option, topic in TOPIC_DECODERS.items():
        if getattr(args, option):
            from kcli.protocol.internal_records import decoder_for_topic

            return decoder_for_topic(topic)
    names = (args.key_decoder_class or STRING_DECODER, args.value_decoder_class or STRING_DECODER)
    if names == (STRING_DECODER, STRING_DECODER):
        return None
    from kcli.inspect.dumping.record_contents import ClassParser, UnknownDecoder

    try:
        return ClassParser(*names)
    except UnknownDecoder as error:
        raise CannotRun(str(error)) from None
