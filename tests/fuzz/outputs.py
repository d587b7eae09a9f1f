"""What the commands print about a directory, as values: they run in this process, which costs milliseconds and not a start.

A traceback is passed on as it is (KCLI_TRACEBACK): no input may cause one.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from kcli.commands.app import main
from tests.fuzz.batches import LogRecord


class Printed(NamedTuple):
    """What a command left: its exit code, and the bytes of stdout and stderr."""

    exit_code: int
    stdout: bytes
    stderr: str

    def json_lines(self) -> list[dict[str, Any]]:
        """The objects of --output json."""
        return [json.loads(line) for line in self.stdout.splitlines()]


@contextmanager
def _caught(descriptor: int) -> Iterator[io.BytesIO]:
    """Catch what goes to a descriptor of the process; the result is filled at the end."""
    result = io.BytesIO()
    saved, memory = os.dup(descriptor), os.memfd_create("printed")
    os.dup2(memory, descriptor)
    try:
        yield result
    finally:
        os.dup2(saved, descriptor)
        os.close(saved)
        size = os.lseek(memory, 0, os.SEEK_END)
        result.write(os.pread(memory, size, 0))
        os.close(memory)


def run(*words: str | Path) -> Printed:
    """Run `kcli WORDS` in this process -> Printed. A fault of kcli's own is raised as it is."""
    import contextlib

    errors = io.StringIO()
    os.environ["KCLI_TRACEBACK"] = "1"
    with _caught(1) as out, contextlib.redirect_stderr(errors):
        try:
            exit_code = main([str(word) for word in words])
        except SystemExit as stop:
            exit_code = stop.code if isinstance(stop.code, int) else 2
    return Printed(exit_code, out.getvalue(), errors.getvalue())


class ShownRecord(NamedTuple):
    """A record in an output: in which partition's directory, and what it is said to be."""

    directory: str
    record: LogRecord


def dumped_json(*paths: Path, options: tuple[str, ...] = ()) -> list[ShownRecord]:
    """The records that `dump-log --output json` shows in batches whose CRC is right, of segments that are in use."""
    shown: list[ShownRecord] = []
    directory, is_log, is_valid = "", False, False
    for line in run("dump-log", "--output", "json", *options, *paths).json_lines():
        kind = line["type"]
        if kind == "file":
            directory = str(Path(line["path"]).parent)
            is_log = re.fullmatch(r"\d{20}\.log", Path(line["path"]).name) is not None
        elif kind == "batch":
            is_valid = line["isValid"]
        elif kind == "record" and is_log and is_valid:
            key, value = (_content(line, member) for member in ("key", "value"))
            headers = tuple((_content(one, "key") or b"", _content(one, "value") or b"") for one in line["headers"])
            is_control = line.get("isControl", False)
            record = LogRecord(line["offset"], line["timestamp"], key, value, is_control, headers)
            shown.append(ShownRecord(directory, record))
    return shown


def _content(line: dict[str, Any], member: str) -> bytes | None:
    encoded = line.get(f"{member}Base64")
    if encoded is not None:
        return base64.b64decode(encoded)
    text = line.get(member)
    return None if text is None else text.encode("utf-8", "surrogatepass")


def dumped_csv(*directories: Path) -> list[ShownRecord]:
    """The rows of `dump-log --output csv` of partitions' directories, which must differ in their names; without headers."""
    paths = {path.name: str(path) for path in directories}
    csv.field_size_limit(1 << 30)
    text = run("dump-log", "--output", "csv", "--timestamps", "ms", *directories).stdout.decode("utf-8", "surrogateescape")
    shown = []
    for row in csv.DictReader(io.StringIO(text, newline="")):
        key, value = (_cell(row, member) for member in ("key", "value"))
        record = LogRecord(int(row["offset"]), int(row["timestamp"]), key, value, row["isControl"] == "true")
        shown.append(ShownRecord(paths[f"{row['topic']}-{row['partition']}"], record))
    return shown


def _cell(row: dict[str, str], member: str) -> bytes | None:
    if row[f"{member}Size"] == "-1":
        return None
    if row[f"{member}Encoding"] == "base64":
        return base64.b64decode(row[member])
    return row[member].encode("utf-8", "surrogateescape")


def dumped_text_offsets(*logs: Path) -> list[tuple[str, int]]:
    """(directory, offset) of the record lines of `dump-log --output text`."""
    found: list[tuple[str, int]] = []
    directory = ""
    for line in run("dump-log", "--output", "text", *logs).stdout.splitlines():
        head = re.match(rb"(/.*)/\d{20}\.log  a log segment", line)
        record = re.match(rb" +(\d+)  \d{4}-\d\d-\d\dT", line)
        if head:
            directory = os.fsdecode(head[1])
        elif record:
            found.append((directory, int(record[1])))
    return found


def dumped_kafka_offsets(*logs: Path) -> list[tuple[str, int]]:
    """(directory, offset) of the record lines of `dump-log --output kafka --deep-iteration`."""
    found: list[tuple[str, int]] = []
    directory = ""
    for line in run("dump-log", "--output", "kafka", "--deep-iteration", *logs).stdout.splitlines():
        if line.startswith(b"Dumping "):
            directory = str(Path(os.fsdecode(line[8:])).parent)
        match = re.match(rb"\| offset: (\d+) ", line)
        if match:
            found.append((directory, int(match[1])))
    return found


def spark_rows(path: Path) -> list[ShownRecord]:
    """The rows that the Spark source gives with onCorrupt=skip, with its own classes and without Spark.

    No rows where it refuses the directory with a sentence. Raises AssertionError where that advises an option that was given.
    """
    from kcli.spark.data_source import KafkaLogDataSource
    from kcli.spark.log_partitions import PlanError

    options = {
        "path": str(path),
        "onCorrupt": "skip",
        "includeControl": "true",
        "includeBelowLogStart": "true",
        "duplicatePartitions": "all",
        "columns": "offset,timestamp,key,value,isControl,headers,segment",
    }
    source = KafkaLogDataSource(options)
    reader = source.reader(source.schema())
    shown: list[ShownRecord] = []
    try:
        splits = reader.partitions()
    except PlanError as refusal:
        advised = [name for name, value in options.items() if f"{name}={value}" in str(refusal)]
        assert not advised, f"the source advises {advised}, which was given: {refusal}"
        return []
    for split in splits:
        for batch in reader.read(split):
            for row in batch.to_pylist():
                timestamp_ms = round(row["timestamp"].timestamp() * 1000)
                headers = tuple((one["key"].encode(), one["value"]) for one in row["headers"] or ())
                record = LogRecord(row["offset"], timestamp_ms, row["key"], row["value"], row["isControl"], headers)
                shown.append(ShownRecord(str(Path(row["segment"]).parent), record))
    return shown
