"""Checks the names in a partition's directory, and the small files of a log directory and of KRaft.

file                                     must be
---------------------------------------  ---------------------------------------------------------------------------
*-offset-checkpoint, meta.properties,    readable as Kafka reads it
  leader-epoch-checkpoint, quorum-state,
  partition.metadata
N-E.checkpoint, bootstrap.checkpoint     sound batches, a snapshot header first, a snapshot footer last

Names are those of leftovers of a crash, and of files that do not belong there.

name                        finding
--------------------------  ----------------------------------------------------------------------
*.deleted                   leftover-deleted: a broker removes it after file.delete.delay.ms, or at start
*.cleaned                   leftover-cleaned
*.swap                      leftover-swap
*.tmp, *.part               leftover-temporary
an index without its .log   index-orphan
5.log, backup.log           name-irregular
any other                   file-unknown: Kafka ignores it

leader-epoch-checkpoint is compared with the leader epochs of the batches.

    in the file                  is sound if
    ---------------------------  ---------------------------------------------------------------------------------------
    entry (epoch, start offset)  both ascend from entry to entry; the start is not after the log's end
    the epoch at the offset of   the batch has it; batches below the log start offset and those without an epoch
      a batch                      (formats 0 and 1) are not compared
    no file                      no batch has an epoch

The first entry of a sound file may start inside of its epoch's batches: a broker moves it when records are deleted. If the
checkpointed log start offset is below it, the checkpoint has lost the offset: the file is right, and earlier batches are not
compared.

An epoch in which nothing was written has no batch; the last entry of a sound log may start exactly at the log's end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

from kcli.format import limits
from kcli.format.checkpoint import EpochStart, decode_leader_epochs, decode_offset_checkpoint
from kcli.format.file_names import FileKind, FileState, parse_file_name, segment_file_name
from kcli.format.metadata_files import (
    MetaProperties,
    PartitionMetadata,
    decode_clean_shutdown,
    decode_meta_properties,
    decode_partition_metadata,
    decode_quorum_state,
)
from kcli.format.primitives import FormatError
from kcli.inspect.verification.facts import EpochRun, SegmentOptions
from kcli.inspect.verification.findings import FindingList
from kcli.inspect.verification.segments import SegmentVerifier
from kcli.log.disk.port import Disk
from kcli.log.files.leader_epoch_file_cache import LeaderEpochFileCache
from kcli.log.files.log_directory import DIRECTORY_NOT_FILE, FoundFile, PartitionDirectory, Segment, is_file_name

# Types of KRaft's control records. The import of kcli.protocol.control_records is slow.
_SNAPSHOT_HEADER = 3
_SNAPSHOT_FOOTER = 4
_META_PROPERTIES_CORRUPT = "meta-properties-corrupt"
_PARTITION_METADATA_CORRUPT = "partition-metadata-corrupt"

_Decoded = TypeVar("_Decoded")
_DECODERS: dict[FileKind, tuple[Callable[[bytes], object], str]] = {
    FileKind.RECOVERY_POINT_CHECKPOINT: (decode_offset_checkpoint, "checkpoint-corrupt"),
    FileKind.LOG_START_OFFSET_CHECKPOINT: (decode_offset_checkpoint, "checkpoint-corrupt"),
    FileKind.REPLICATION_CHECKPOINT: (decode_offset_checkpoint, "checkpoint-corrupt"),
    FileKind.CLEANER_CHECKPOINT: (decode_offset_checkpoint, "checkpoint-corrupt"),
    FileKind.LEADER_EPOCH_CHECKPOINT: (decode_leader_epochs, "checkpoint-corrupt"),
    FileKind.QUORUM_STATE: (decode_quorum_state, "checkpoint-corrupt"),
    FileKind.PARTITION_METADATA: (decode_partition_metadata, _PARTITION_METADATA_CORRUPT),
    FileKind.META_PROPERTIES: (decode_meta_properties, _META_PROPERTIES_CORRUPT),
    FileKind.CLEAN_SHUTDOWN: (decode_clean_shutdown, "clean-shutdown-corrupt"),
}
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


def check_leader_epochs(
    disk: Disk,
    path: str | None,
    directory: str,
    runs: Sequence[tuple[str, EpochRun]],
    log_start_offset: int,
    log_end_offset: int,
    findings: FindingList,
    *,
    is_live: bool,
    is_start_known: bool,
) -> None:
    """Check the file at `path` (None: there is none) of a partition's `directory`.

    `runs` are the batches' epochs in the order of the log, each with the path of its segment. With `is_live` the log may have
    grown since the file was read; without `is_start_known` the log may start after `log_start_offset`.
    """
    known = [(log, run) for log, run in runs if run.epoch >= 0]
    if path is None:
        if known and not is_live:
            message = f"the file is missing; the batches have leader epochs up to {known[-1][1].epoch}"
            findings.add("leader-epoch-missing", directory, message)
        return
    entries = read_decoded(disk, path, _decode, "checkpoint-corrupt", findings)
    if entries is None:
        return
    for slot, (before, after) in enumerate(pairwise(entries), 1):
        if after.epoch <= before.epoch or after.start_offset <= before.start_offset:
            findings.add(
                "leader-epoch-order",
                path,
                f"entry {slot} is epoch {after.epoch} from offset {after.start_offset} on, after epoch {before.epoch} from "
                f"offset {before.start_offset} on",
            )
    for entry in entries:
        if entry.start_offset > log_end_offset and not is_live:
            message = f"epoch {entry.epoch} starts at offset {entry.start_offset}; the log ends at {log_end_offset}"
            findings.add("leader-epoch-beyond-end", path, message, offset=entry.start_offset)
    # The last batch of a run ends where the next run begins, or with the log.
    ends = [*(run.first_offset for _, run in known[1:]), log_end_offset]
    ranges = [(run.epoch, run.first_offset, end - 1) for (_, run), end in zip(known, ends, strict=False)]
    is_moved = start_is_moved(entries, ranges)
    if is_moved and is_start_known and log_start_offset < entries[0].start_offset and not is_live:
        start = entries[0].start_offset
        message = f"the first leader epoch starts at offset {start}, where the log probably started; a broker starts it at "
        message += f"offset {log_start_offset}, and the records below {start} can be read again"
        findings.add("log-start-behind", path, message, offset=log_start_offset)
    if entries and (is_moved or not is_start_known):
        log_start_offset = max(log_start_offset, entries[0].start_offset)
    _compare(entries, known, path, log_start_offset, findings, is_live=is_live)


def start_is_moved(entries: Sequence[EpochStart], runs: Iterable[tuple[int, int, int]]) -> bool:
    """Return True if the first of `entries` starts inside of the batches of its epoch: the records before it were deleted.

    `runs` are the batches' epochs as (epoch, first offset, last offset).
    """
    if not entries:
        return False
    start = entries[0].start_offset
    return any(epoch == entries[0].epoch and first < start <= last for epoch, first, last in runs)


def _decode(data: bytes) -> tuple[EpochStart, ...]:
    """Decode a leader-epoch-checkpoint. Raises FormatError, also for entries that a broker does not load."""
    entries = decode_leader_epochs(data).entries
    LeaderEpochFileCache(entries)
    return entries


def _compare(
    entries: tuple[EpochStart, ...],
    known: Sequence[tuple[str, EpochRun]],
    path: str,
    log_start_offset: int,
    findings: FindingList,
    *,
    is_live: bool,
) -> None:
    """Check that the file has the epoch of each run for its first and its last batch."""
    cache = LeaderEpochFileCache(entries)
    for log, run in known:
        for offset in (run.first_offset, run.last_base_offset):
            if offset < log_start_offset:
                continue
            stored = cache.epoch_for_offset(offset)
            if stored == run.epoch or (is_live and run.epoch > (-1 if cache.latest_epoch is None else cache.latest_epoch)):
                continue
            what = "no epoch" if stored is None else f"epoch {stored}"
            message = f"the file has {what} for offset {offset}; the batch there, in {log}, has {run.epoch}"
            findings.add("leader-epoch-mismatch", path, message, offset=offset)
            break


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


def can_check(kind: FileKind) -> bool:
    """Return True for the kinds of files that `check_small_file` checks."""
    return kind in _DECODERS


def check_small_file(disk: Disk, path: str, kind: FileKind, findings: FindingList) -> None:
    """Add a finding if a small file cannot be read. Raises KeyError for a kind that it does not check."""
    read_decoded(disk, path, *_DECODERS[kind], findings)


def check_meta_properties(disk: Disk, path: str, findings: FindingList) -> MetaProperties | None:
    """Return the contents of a meta.properties, None if it cannot be read (a finding)."""
    return read_decoded(disk, path, decode_meta_properties, _META_PROPERTIES_CORRUPT, findings)


def check_partition_metadata(disk: Disk, path: str, findings: FindingList) -> PartitionMetadata | None:
    """Return the contents of a partition.metadata, None if it cannot be read (a finding)."""
    return read_decoded(disk, path, decode_partition_metadata, _PARTITION_METADATA_CORRUPT, findings)


def read_decoded(
    disk: Disk, path: str, decode: Callable[[bytes], _Decoded], code: str, findings: FindingList
) -> _Decoded | None:
    """Return the decoded contents of a small file, None if it cannot be read or decoded (a finding, the latter of `code`)."""
    try:
        return decode(disk.read_file(path, limits.MAX_TEXT_FILE_BYTES))
    except OSError as error:
        findings.add_unreadable(path, error)
    except FormatError as error:
        findings.add(code, path, error.message)
    return None


def check_metadata_snapshot(disk: Disk, path: str, findings: FindingList) -> None:
    """Verify a KRaft snapshot or bootstrap.checkpoint."""
    verifier = SegmentVerifier(disk, Segment(0, path), SegmentOptions(is_last=False), findings, lambda step: None)
    try:
        types = verifier.run().control_types
    except OSError as error:
        findings.add_unreadable(path, error)
        return
    missing = []
    if types[:1] != [_SNAPSHOT_HEADER]:
        missing.append("header")
    if types[-1:] != [_SNAPSHOT_FOOTER]:
        missing.append("footer")
    if missing:
        findings.add("metadata-snapshot-incomplete", path, f"the snapshot has no {' and no '.join(missing)}")
