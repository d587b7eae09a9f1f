"""`kcli produce`: sends the lines of a file, or of stdin, as records."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from kcli.commands.client_options import (
    ClientLog,
    add_client_options,
    add_producer_options,
    check_cluster,
    client_errors,
    client_properties,
    producer_settings,
)
from kcli.commands.output import EXIT_FINDINGS, EXIT_OK, CannotRun, print_message
from kcli.commands.record_formats import FormatTextError, LineParser, json_parser, unescape, value_parser
from kcli.format.primitives import INT32_MAX, INT64_MAX
from kcli.inspect.quantities import format_count

if TYPE_CHECKING:
    from kcli.client import Producer, RecordMetadata

ARGUMENTS = "--topic TOPIC [FILE...]"
DESCRIPTION = """\
Sends each line of files, or of stdin, as a record to a topic. A line is a value; with --input json it is a record
with key, value, headers, partition and timestamp, as `kcli dump-log --output json` and `kcli consume --output json`
print it."""
EPILOG = """\
Exit codes: 0 all records were acknowledged; 1 a record was not acknowledged, or a line cannot be read or
sent as a record (the message has the number of the line); 2 the command could not run. docs/console.md has examples."""

STDIN = 0
READ_BYTES = 1024 * 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `kcli produce`."""
    parser.add_argument("files", nargs="*", metavar="FILE", help="files to send (stdin); - is stdin")
    parser.add_argument("--topic", required=True, metavar="TOPIC", help="send the records to this topic")
    add_client_options(parser)
    group = parser.add_argument_group("input")
    group.add_argument(
        "--input",
        choices=["value", "json"],
        default="value",
        help="what a line contains: a value, or a record as JSON (%(default)s)",
    )
    group.add_argument(
        "--delimiter", default="\\n", metavar="TEXT", help="the characters that end a line, also as \\t or \\x00 (\\n)"
    )
    group.add_argument("--key-separator", metavar="TEXT", help="split each line at this text into key and value")
    group.add_argument("--null-marker", metavar="TEXT", help="send null (for a value: a tombstone) instead of this text")
    group = parser.add_argument_group("records")
    group.add_argument(
        "--header", action="append", default=[], metavar="NAME=VALUE", help="add this header to all records; may be repeated"
    )
    group.add_argument("--partition", type=int, metavar="N", help="send all records to this partition")
    group.add_argument("--timestamp", type=int, metavar="MS", help="the timestamp of all records, in ms since 1970")
    add_producer_options(group)


def run(args: argparse.Namespace) -> int:
    """Send the records and return the exit code. Raises CannotRun."""
    properties = client_properties(args, producer_settings(args))
    parse, delimiter = _parser(args), _delimiter(args.delimiter)
    for name, most in (("partition", INT32_MAX), ("timestamp", INT64_MAX)):
        number = getattr(args, name)
        if number is not None and not 0 <= number <= most:
            raise CannotRun(f"--{name} {number}: write a whole number from 0 to {most}")
    if not delimiter:
        raise CannotRun("--delimiter is empty: it has to be the bytes that end a line")
    if args.key_separator == "":
        raise CannotRun("--key-separator is empty: it has to be the text between key and value")
    from kcli.client import Producer

    deliveries = _Deliveries()
    wrong = None
    with client_errors(), ClientLog() as log, Producer(properties, log=log) as producer:
        check_cluster(properties, log)
        log.watch(producer)
        if args.partition is not None:
            count = len(producer.partitions_for(args.topic))
            if args.partition >= count:
                raise CannotRun(f"{args.topic} has no partition {args.partition}, only {count} from 0 on")
        try:
            for path in args.files or ["-"]:
                _send_lines(producer, path, parse, delimiter, args, deliveries)
        except _WrongLine as error:
            wrong = error
    if wrong is not None:
        print_message(f"{wrong}; {format_count(deliveries.count, 'record')} before it {_were(deliveries.count)} sent")
    if deliveries.error is not None:
        refused = deliveries.sent - deliveries.count
        where = f", first that of {deliveries.refused}"
        what = f"{refused:,} of {format_count(deliveries.sent, 'record')} {_were(refused)} not acknowledged"
        print_message(f"{what}{where}: {deliveries.error}")
    return EXIT_OK if wrong is None and deliveries.error is None else EXIT_FINDINGS


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _send_lines(
    producer: Producer, path: str, parse: LineParser, delimiter: bytes, args: argparse.Namespace, deliveries: _Deliveries
) -> None:
    """Send the lines of a file until one is not acknowledged. Raises _WrongLine."""
    from kcli.client.errors import InvalidRecordError, RecordTooLargeError

    of_file = f" of {path}" if len(args.files) > 1 else ""
    for number, line in enumerate(lines_of(path, delimiter), 1):
        if deliveries.error is not None:
            return
        where = f"line {number}{of_file}"
        try:
            record = parse(line)
        except FormatTextError as error:
            raise _WrongLine(f"{where} cannot be read as a record: {error}") from None
        if record is None:
            continue
        try:
            producer.send(
                args.topic,
                record.value,
                key=record.key,
                headers=record.headers,
                partition=record.partition if args.partition is None else args.partition,
                timestamp=record.timestamp if args.timestamp is None else args.timestamp,
                on_delivery=partial(deliveries.delivered, where),
            )
        except (RecordTooLargeError, InvalidRecordError) as error:
            raise _WrongLine(f"{where} cannot be sent: {error}") from None
        deliveries.sent += 1


class _WrongLine(Exception):
    """A line that is not a record, or that cannot be sent; the lines before it are sent."""


class _Deliveries:
    """What became of the records: how many were acknowledged, the first error and its line."""

    def __init__(self) -> None:
        self.sent = self.count = 0
        self.error: Exception | None = None
        self.refused = ""

    def delivered(self, line: str, metadata: RecordMetadata | None, error: Exception | None) -> None:
        """Take the end of a record."""
        if error is None:
            self.count += 1
        elif self.error is None:
            self.error, self.refused = error, line


def _parser(args: argparse.Namespace) -> LineParser:
    headers = [_header(text) for text in args.header]
    if args.input == "json":
        for name in ("key_separator", "null_marker"):
            if getattr(args, name) is not None:
                raise CannotRun(
                    f"--{name.replace('_', '-')} is for --input value: a JSON line has a member for the key, and null"
                )
        return json_parser(headers)
    separator = None if args.key_separator is None else _delimiter(args.key_separator)
    marker = None if args.null_marker is None else os.fsencode(args.null_marker)
    return value_parser(separator, marker, headers)


def _delimiter(text: str) -> bytes:
    try:
        return unescape(text)
    except FormatTextError as error:
        raise CannotRun(str(error)) from None


def _header(text: str) -> tuple[bytes, bytes | None]:
    name, found, value = text.partition("=")
    if not found:
        raise CannotRun(f"--header {text}: write NAME=VALUE; with --input json, a header of a record may be null")
    return os.fsencode(name), os.fsencode(value)


def lines_of(path: str, delimiter: bytes) -> Iterator[bytes]:
    """Yield the lines of a file, "-" for stdin, without their ends, as soon as each is read. Raises OSError."""
    descriptor = STDIN if path == "-" else os.open(path, os.O_RDONLY)
    try:
        yield from _lines(descriptor, delimiter)
    except IsADirectoryError as error:
        raise IsADirectoryError(error.errno, error.strerror, path) from None
    finally:
        if descriptor != STDIN:
            os.close(descriptor)


def _lines(descriptor: int, delimiter: bytes) -> Iterator[bytes]:
    left = b""
    while chunk := os.read(descriptor, READ_BYTES):
        *lines, left = (left + chunk).split(delimiter) if delimiter in chunk or len(delimiter) > 1 else ([left + chunk])
        yield from lines
    if left:
        yield left
