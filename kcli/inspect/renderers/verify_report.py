"""Prints the result of a verification, as text or as JSON.

text      <path>: [byte N, ][offset N, ]<severity> <code>: <sentence>      one line for each finding, in a fixed order
          a Kafka broker at start, about <code>: ...                       one line for each code that was found
          what to do about <code>: ...                                     one line for each code that a repair leaves
          <counts>, the result, the next step

JSON      one object a line; docs/verify.md documents the schema. SCHEMA_VERSION grows when a field changes its meaning or is
  removed, not when one is added. Types: schema (the first line), finding, directory, partition, problem, summary (the last
  line). A path that is not UTF-8 is in pathBase64, in base64, instead of path.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kcli.inspect.json_text import dump, json_string, path_member
from kcli.inspect.quantities import format_bytes, format_count
from kcli.inspect.renderers.human_text import Palette
from kcli.inspect.renderers.terminal_text import escape, shorten
from kcli.inspect.verification.facts import PartitionResult
from kcli.inspect.verification.finding_kinds import ERROR, HOLES, INFO, KINDS, WARNING
from kcli.inspect.verification.findings import Finding
from kcli.inspect.verification.verifier import VerifyReport
from kcli.log.files.log_directory import PathProblem

SCHEMA_NAME = "kcli.verify"
SCHEMA_VERSION = 1
_WORDS = {ERROR: "error", WARNING: "warning", INFO: "note"}


def report_lines(report: VerifyReport, *, colour: bool = False) -> Iterator[str]:
    """Yield the lines of the text output without line ends; `colour` for a terminal with colours."""
    palette = Palette(colour)
    colours = {ERROR: palette.red, WARNING: palette.yellow, INFO: palette.dim}
    for finding in report.findings:
        place = [f"byte {finding.position}"] if finding.position is not None else []
        if finding.offset is not None:
            place.append(f"offset {finding.offset}")
        where = f" {', '.join(place)}:" if place else ""
        severity = f"{colours[finding.severity]}{finding.severity}{palette.plain}"
        path = f"{palette.bold}{escape(finding.file)}{palette.plain}"
        yield f"{path}:{where} {severity} {finding.code}: {shorten(escape(finding.message))}"
    codes = {finding.code for finding in report.findings if finding.severity != INFO}
    for code, kind in KINDS.items():
        if code in codes:
            yield f"{palette.dim}a Kafka broker at start, about {code}: {kind.broker_does}{palette.plain}"
    for code, kind in KINDS.items():
        if code in codes and "left for you" in kind.repair_does.lower():
            yield f"{palette.dim}what to do about {code}: {kind.to_do}{palette.plain}"
    yield from _text_summary(report)


def _text_summary(report: VerifyReport) -> Iterator[str]:
    partitions = report.partitions
    parts = [format_count(len(report.directories), "log directory")] if report.directories else []
    if partitions:
        parts += [
            format_count(len(partitions), "partition"),
            format_count(sum(one.segments for one in partitions), "segment"),
            format_bytes(sum(one.size_bytes for one in partitions)),
            format_count(sum(one.batches for one in partitions), "batch"),
            format_count(sum(one.data_records for one in partitions), "record"),
        ]
    others = len(report.files)
    if others and not partitions:
        parts.append(format_count(others, "file"))
    yield ", ".join(parts) if parts else "nothing to verify"
    counts = [format_count(report.count_of(severity), word) for severity, word in _WORDS.items() if report.count_of(severity)]
    verdict = "sound" if report.is_sound else "no damage, but offsets are missing" if report.is_undamaged else "not sound"
    yield f"{verdict}: {', '.join(counts)}" if counts else verdict
    if not report.is_undamaged:
        paths = " ".join(escape(path) for path in _damaged(report))
        if paths:
            yield f"next: kcli verify --repair {paths} shows what a repair would do, and changes nothing"


def _damaged(report: VerifyReport) -> Iterator[str]:
    """Yield the log directories, and the partitions that were named alone, that a repair may change."""
    files = [one.file for one in report.findings if one.severity != INFO and one.code not in HOLES]
    roots = [directory.path.rstrip("/") for directory in report.directories]
    alone = [one.path for one in report.partitions if not any(one.path.startswith(f"{root}/") for root in roots)]
    live = {directory.path for directory in report.directories if directory.is_live}
    for path in dict.fromkeys([*(directory.path for directory in report.directories), *alone]):
        if path not in live and any(f"{file}/".startswith(f"{path.rstrip('/')}/") for file in files):
            yield path


def json_lines(report: VerifyReport, problems: Sequence[PathProblem] = ()) -> Iterator[str]:
    """Yield the lines of the JSON output without line ends."""
    yield f'{{"type":"schema","name":"{SCHEMA_NAME}","version":{SCHEMA_VERSION}}}'
    for finding in report.findings:
        yield _finding(finding)
    for directory in report.directories:
        meta = directory.meta
        cluster_id, node_id = (None, None) if meta is None else (meta.cluster_id, meta.node_id)
        yield (
            f'{{"type":"directory",{path_member(directory.path)},"isLive":{dump(directory.is_live)},'
            f'"isClean":{dump(directory.is_clean)},"clusterId":{dump(cluster_id)},"nodeId":{dump(node_id)}}}'
        )
    for partition in report.partitions:
        yield _partition(partition)
    for problem in problems:
        yield f'{{"type":"problem",{path_member(problem.path)},"message":{json_string(problem.message)}}}'
    partitions = report.partitions
    yield dump(
        {
            "type": "summary",
            "sound": report.is_sound,
            "undamaged": report.is_undamaged,
            "errors": report.count_of(ERROR),
            "warnings": report.count_of(WARNING),
            "infos": report.count_of(INFO),
            "problems": len(problems),
            "partitions": len(partitions),
            "segments": sum(one.segments for one in partitions),
            "sizeInBytes": sum(one.size_bytes for one in partitions),
            "batches": sum(one.batches for one in partitions),
            "dataRecords": sum(one.data_records for one in partitions),
            "controlRecords": sum(one.control_records for one in partitions),
        }
    )


def _finding(finding: Finding) -> str:
    return (
        f'{{"type":"finding","code":"{finding.code}","severity":"{finding.severity}",{path_member(finding.file)},'
        f'"position":{dump(finding.position)},"offset":{dump(finding.offset)},"message":{json_string(finding.message)},'
        f'"brokerDoes":{json_string(finding.broker_does)},"repairDoes":{json_string(finding.repair_does)}}}'
    )


def _partition(partition: PartitionResult) -> str:
    fields = {
        "topic": partition.topic,
        "partition": partition.partition,
        "state": partition.state.value.lstrip("-") or "current",
        "segments": partition.segments,
        "sizeInBytes": partition.size_bytes,
        "batches": partition.batches,
        "dataRecords": partition.data_records,
        "controlRecords": partition.control_records,
        "abortedRecords": partition.aborted_records,
        "recordsBelowStart": partition.records_below_start,
        "logStartOffset": partition.log_start_offset,
        "endOffset": partition.end_offset,
        "lastStableOffset": partition.last_stable_offset,
        "committedTransactions": partition.committed_transactions,
        "abortedTransactions": partition.aborted_transactions,
        "openTransactions": [
            {
                "producerId": txn.producer_id,
                "producerEpoch": txn.producer_epoch,
                "firstOffset": txn.first_offset,
                "records": txn.records,
            }
            for txn in partition.open_transactions
        ],
    }
    return f'{{"type":"partition",{path_member(partition.path)},{dump(fields)[1:]}'
