"""The main loop of kafka-dump-log (`--output kafka`): prints each file by the suffix of its name, then the summary on stderr.

suffix                 printed by                     other files
---------------------  -----------------------------  ------------------------------------------------
.log, .checkpoint      kafka_text.LogDumper           "Ignoring unknown file F" on stderr, as Kafka
.index, .timeindex     kafka_text_indexes.IndexDumper
.txnindex, .snapshot   kafka_text_indexes.IndexDumper
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from kcli.format.primitives import INT64_MAX
from kcli.inspect.dumping.kafka_text import DamageReport, KafkaDumpOptions, LogDumper
from kcli.inspect.dumping.text_buffer import TextBuffer
from kcli.log.disk.port import Disk

BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
_CHECKPOINT_NAME = re.compile(r"(\d{20})-(\d{10})((?:-.*)?\.checkpoint(?:\.part|\.deleted)?)")


def dump_as_kafka(
    disk: Disk,
    paths: Iterable[str],
    options: KafkaDumpOptions,
    write: Callable[[memoryview], object],
    report_line: Callable[[str], None],
    absolute: Callable[[str], str],
    unread: Callable[[str], object] = str,
) -> bool:
    """Print every file of `paths` as kafka-dump-log does; return True if all of them are sound.

    `write` takes bytes for stdout, `report_line` a line for stderr; `absolute` returns the path that the summary has for a
    file. `unread` is called with the path of each file that is missing or cannot be read; it is reported, and counts as damage.
    Raises what `write` raises.
    """
    out = TextBuffer(write)
    report = DamageReport(report_line)
    logs = LogDumper(disk, out, options, report, absolute)
    for path in paths:
        out.put(b"Dumping %s\n" % path.encode(errors="surrogateescape"))
        try:
            if disk.exists(path):
                _dump_file(disk, path, out, options, report, absolute, logs)
                continue
            from kcli.log.files.log_directory import why_missing

            _put_first_line(path, out)
            report.damage(path, None, why_missing(disk, path))
        except OSError as error:
            report.damage(path, None, f"cannot be read: {error.strerror or error}")
        unread(path)
    out.flush()
    for line in logs.summary.lines():
        report_line(line)
    return not report.damaged


def _dump_file(
    disk: Disk,
    path: str,
    out: TextBuffer,
    options: KafkaDumpOptions,
    report: DamageReport,
    absolute: Callable[[str], str],
    logs: LogDumper,
) -> None:
    name = path.rsplit("/", 1)[-1]
    suffix = name[name.rindex(".") :] if "." in name else ""
    if suffix == ".log":
        base_offset = _base_offset(path, name, report)
        if base_offset is not None:
            out.put(b"Log starting offset: %d\n" % base_offset)
        logs.dump(path)
    elif suffix == ".checkpoint":
        _put_checkpoint_name(path, name, out, report)
        logs.dump(path)
    elif suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
        from kcli.inspect.dumping.kafka_text_indexes import IndexDumper

        indexes = IndexDumper(disk, out, options, report, absolute, logs.summary)
        if suffix == ".snapshot":
            indexes.producer_snapshot(path)
            return
        base_offset = _base_offset(path, name, report) or 0
        dump = {".index": indexes.offset_index, ".timeindex": indexes.time_index, ".txnindex": indexes.transaction_index}
        dump[suffix](path, base_offset)
    else:
        report.ignored(path)


def _put_first_line(path: str, out: TextBuffer) -> None:
    """Print the line that Kafka's tool prints before it opens a log, also for a log that is missing."""
    name = path.rsplit("/", 1)[-1]
    if name.endswith(".log") and (base_offset := _base_offset(path, name, DamageReport(lambda sentence: None))) is not None:
        out.put(b"Log starting offset: %d\n" % base_offset)


def _base_offset(path: str, name: str, report: DamageReport) -> int | None:
    """Return the number before the first dot, parsed as by Java's Long.parseLong; None, and damage, if it is not one."""
    digits = name.split(".")[0]
    if re.fullmatch(r"[+-]?[0-9]+", digits) and -INT64_MAX - 1 <= int(digits) <= INT64_MAX:
        return int(digits)
    report.damage(path, None, "its name does not begin with an offset (Kafka's names have 20 digits); Kafka does not open it")
    return None


def _put_checkpoint_name(path: str, name: str, out: TextBuffer, report: DamageReport) -> None:
    found = _CHECKPOINT_NAME.fullmatch(name)
    if name == BOOTSTRAP_CHECKPOINT:
        out.put(b"KRaft bootstrap snapshot\n")
    elif found:
        out.put(b"Snapshot end offset: %d, epoch: %d\n" % (int(found[1]), int(found[2])))
    else:
        report.damage(
            path, None, "its name is not that of a metadata snapshot (OFFSET-EPOCH.checkpoint); Kafka does not open it"
        )
