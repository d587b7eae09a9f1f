"""Checks the names in a partition's directory: leftovers of a crash, and files that do not belong there.

name                        finding
--------------------------  ----------------------------------------------------------------------
*.deleted                   leftover-deleted: a broker removes it after file.delete.delay.ms, or at start
*.cleaned                   leftover-cleaned
*.swap                      leftover-swap
*.tmp, *.part               leftover-temporary
an index without its .log   index-orphan
5.log, backup.log           name-irregular
any other                   file-unknown: Kafka ignores it
"""

from __future__ import annotations

from kcli.format.file_names import FileKind, FileState, parse_file_name, segment_file_name
from kcli.inspect.verification.findings import FindingList
from kcli.log.files.log_directory import DIRECTORY_NOT_FILE, FoundFile, PartitionDirectory, is_file_name

INDEX_KINDS = (FileKind.INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX)
SEGMENT_KINDS = (FileKind.LOG, *INDEX_KINDS)
_OF_PARTITION = (FileKind.LEADER_EPOCH_CHECKPOINT, FileKind.PARTITION_METADATA, FileKind.QUORUM_STATE)
_LEFTOVERS = {
    FileState.DELETED: "leftover-deleted",
    FileState.CLEANED: "leftover-cleaned",
    FileState.SWAP: "leftover-swap",
    FileState.TEMPORARY: "leftover-temporary",
    FileState.PARTIAL: "leftover-temporary",
}


def check_names(partition: PartitionDirectory, findings: FindingList, *, is_live: bool) -> None:
    """Check every file of a partition that does not belong to a segment; a running broker has leftovers of its own."""
    segments = {name for name in partition.directories if _is_segment(name)}
    for file in partition.others:
        if file.kind in INDEX_KINDS and segment_file_name(file.base_offset, FileKind.LOG) in segments:
            continue  # the directory that has the name of its .log is the finding
        if file.state is not FileState.CURRENT and file.kind is not FileKind.UNKNOWN:
            if not is_live:
                findings.add(_LEFTOVERS[file.state], file.path, file.parsed.sentence())
        elif file.kind in (*SEGMENT_KINDS, FileKind.PRODUCER_SNAPSHOT):
            _check_segment_file(file, findings, is_live=is_live)
        elif file.kind is FileKind.METADATA_SNAPSHOT:
            findings.add("file-unknown", file.path, "the name of a KRaft snapshot has 20 digits, a dash and 10 digits")
        elif file.kind is not FileKind.UNKNOWN and file.kind not in _OF_PARTITION:
            findings.add("file-unknown", file.path, f"{file.name} belongs in a log directory, not in a partition's directory")
        elif file.kind not in _OF_PARTITION:
            findings.add("file-unknown", file.path, f"{file.parsed.sentence()} in a partition's directory")
    for name in partition.directories:
        path = f"{partition.path.rstrip('/')}/{name}"
        if is_file_name(name):
            findings.add("file-unreadable", path, DIRECTORY_NOT_FILE)
        else:
            findings.add("file-unknown", path, "a directory inside a partition's directory")


def _is_segment(name: str) -> bool:
    parsed = parse_file_name(name)
    return parsed.kind is FileKind.LOG and parsed.state is FileState.CURRENT


def _check_segment_file(file: FoundFile, findings: FindingList, *, is_live: bool) -> None:
    if file.is_current and file.kind in INDEX_KINDS:
        if not is_live:
            log = segment_file_name(file.base_offset, FileKind.LOG)
            findings.add("index-orphan", file.path, f"{log} does not exist", offset=file.base_offset)
        return
    if file.parsed.base_offset is None:
        message = "the name does not begin with an offset"
    else:
        regular = segment_file_name(file.parsed.base_offset, file.kind)
        message = f"the name for offset {file.parsed.base_offset} is {regular}"
    findings.add("name-irregular", file.path, message)
