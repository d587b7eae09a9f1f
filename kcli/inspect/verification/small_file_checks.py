"""Checks the small files of a log directory and of KRaft, each alone.

file                                     must be
---------------------------------------  ---------------------------------------------------------------------------
*-offset-checkpoint, meta.properties,    readable as Kafka reads it
  leader-epoch-checkpoint, quorum-state,
  partition.metadata
N-E.checkpoint, bootstrap.checkpoint     sound batches, a snapshot header first, a snapshot footer last
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from kcli.format import limits
from kcli.format.checkpoint import decode_leader_epochs, decode_offset_checkpoint
from kcli.format.file_names import FileKind
from kcli.format.metadata_files import (
    MetaProperties,
    PartitionMetadata,
    decode_clean_shutdown,
    decode_meta_properties,
    decode_partition_metadata,
    decode_quorum_state,
)
from kcli.format.primitives import FormatError
from kcli.inspect.verification.facts import SegmentOptions
from kcli.inspect.verification.findings import FindingList
from kcli.inspect.verification.segments import SegmentVerifier
from kcli.log.disk.port import Disk
from kcli.log.files.log_directory import Segment

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
