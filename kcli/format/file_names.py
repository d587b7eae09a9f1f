"""The names of the files and directories of a Kafka log directory: what each is, by its name alone.

    name                                         where      what
    -------------------------------------------  ---------  -----------------------------------------------------------
    <20 digits>.log .index .timeindex .txnindex  partition  a segment and its indexes, by the segment's base offset
    <20 digits>.snapshot                         partition  producer state up to that offset
    <20 digits>-<10 digits>.checkpoint           metadata   KRaft snapshot: end offset and epoch
    leader-epoch-checkpoint, partition.metadata  partition
    quorum-state                                 metadata
    meta.properties, .lock, .kafka_cleanshutdown, *-offset-checkpoint, bootstrap.checkpoint        log directory
    kcli-uncleanable-partitions                  log dir    written by earlier versions of kcli; nothing reads it
    <start offset>_<id>.index ...                remote-log-index-cache

    behind it   state of the file
    ----------  --------------------------------------------------------------------------------------------
    .deleted    about to be removed; Kafka removes it at start (of KRaft snapshots: when it cleans)
    .cleaned    the cleaner was writing it; removed at start
    .swap       complete, about to replace segments; Kafka finishes that at start
    .tmp        a text file being written, not yet renamed
    .part       a KRaft snapshot being written; its name has a random number before the suffix

    directory                                    state
    -------------------------------------------  ----------------------------------------------------------
    <topic>-<partition>                          the partition
    <topic>-<partition>.<32 hex digits>-delete   about to be removed; the topic may be cut to fit 255 bytes
    <topic>-<partition>.<32 hex digits>-future   a replica moving here from another log directory
    <topic>-<partition>.<32 hex digits>-stray    a replica that the metadata no longer places here

Parsed as Kafka parses them: LogFileUtils.offsetFromFileName, Snapshots.parse, LocalLog.parseTopicPartitionName.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from kcli.format.java_text import parse_integer
from kcli.format.primitives import FormatError

OFFSET_DIGITS = 20
EPOCH_DIGITS = 10
MAX_NAME_CHARACTERS = 255
REMOTE_INDEX_CACHE_DIRECTORY = "remote-log-index-cache"
METADATA_TOPIC = "__cluster_metadata"


class FileKind(StrEnum):
    """What a file is; the value is the word for it."""

    LOG = "log"
    INDEX = "index"
    TIME_INDEX = "timeindex"
    TXN_INDEX = "txnindex"
    PRODUCER_SNAPSHOT = "snapshot"
    METADATA_SNAPSHOT = "checkpoint"
    BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
    LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
    PARTITION_METADATA = "partition.metadata"
    QUORUM_STATE = "quorum-state"
    META_PROPERTIES = "meta.properties"
    CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
    LOCK = ".lock"
    RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
    LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
    REPLICATION_CHECKPOINT = "replication-offset-checkpoint"
    CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
    UNCLEANABLE_PARTITIONS = "kcli-uncleanable-partitions"
    UNKNOWN = "unknown"


class FileState(StrEnum):
    """The state of a file, given by the suffix of its name."""

    CURRENT = ""
    DELETED = ".deleted"
    CLEANED = ".cleaned"
    SWAP = ".swap"
    TEMPORARY = ".tmp"
    PARTIAL = ".part"


class DirectoryState(StrEnum):
    """The state of a partition directory, given by the suffix of its name."""

    CURRENT = ""
    DELETE = "-delete"
    FUTURE = "-future"
    STRAY = "-stray"


class FileName(NamedTuple):
    """A file's name, understood.

    `base_offset` is the number in front (of a snapshot: its end offset), None if there is none or it is not an int64;
    `epoch` is that of a KRaft snapshot; `remote_id` is the id in the name of a cached remote index.
    """

    name: str
    kind: FileKind
    state: FileState = FileState.CURRENT
    base_offset: int | None = None
    epoch: int | None = None
    remote_id: str | None = None

    @property
    def is_regular(self) -> bool:
        """Whether Kafka writes this name for this kind, offset, epoch and state."""
        return self.kind is not FileKind.UNKNOWN and self.name == _regular_name(self)

    def sentence(self) -> str:
        """Describe the file for people, in one sentence without its name."""
        text = _SENTENCES[self.kind]
        if self.kind is FileKind.UNKNOWN:
            return text
        if self.remote_id is not None:
            text = f"a copy of {text}, cached from remote storage"
        return f"{text}{_STATE_SENTENCES[self.state]}"


class PartitionDirectoryName(NamedTuple):
    """The parsed name of a partition directory; `unique_id` is the id before a state's suffix."""

    topic: str
    partition: int
    state: DirectoryState = DirectoryState.CURRENT
    unique_id: str | None = None


_SEGMENT_SUFFIXES = {
    ".log": FileKind.LOG,
    ".index": FileKind.INDEX,
    ".timeindex": FileKind.TIME_INDEX,
    ".txnindex": FileKind.TXN_INDEX,
    ".snapshot": FileKind.PRODUCER_SNAPSHOT,
}
_SEGMENT_KINDS = {kind: suffix for suffix, kind in _SEGMENT_SUFFIXES.items()}
_CHECKPOINT_SUFFIX = ".checkpoint"
# Patterns are compiled when a name needs them: each takes 0.1 ms of every command.
_PARTIAL_SNAPSHOT = rf"[0-9]{{{OFFSET_DIGITS}}}-[0-9]{{{EPOCH_DIGITS}}}-[0-9]+\.checkpoint\.part"
_NAMED_KINDS: dict[str, FileKind] = {
    kind.value: kind
    for kind in FileKind
    if kind not in _SEGMENT_KINDS and kind not in (FileKind.METADATA_SNAPSHOT, FileKind.UNKNOWN)
}
_FILE_STATES = [state for state in FileState if state.value]
_DIRECTORY_STATES = [state for state in DirectoryState if state.value]
_SUFFIXED_DIRECTORY = {
    state: rf"[^ \t\n\x0b\f\r]+-[^ \t\n\x0b\f\r]+\.([^ \t\n\x0b\f\r]+){state.value}" for state in _DIRECTORY_STATES
}

_SENTENCES = {
    FileKind.LOG: "a log segment: record batches one behind the other",
    FileKind.INDEX: "an offset index: where in its segment the batches of some offsets begin",
    FileKind.TIME_INDEX: "a time index: up to which offset no record of its segment is younger than a time",
    FileKind.TXN_INDEX: "a transaction index: the aborted transactions that ended in its segment",
    FileKind.PRODUCER_SNAPSHOT: "a producer snapshot: the producers and open transactions up to an offset",
    FileKind.METADATA_SNAPSHOT: "a KRaft snapshot: the state that the records before an offset add up to",
    FileKind.BOOTSTRAP_CHECKPOINT: "the bootstrap snapshot: the first metadata records, written when storage was formatted",
    FileKind.LEADER_EPOCH_CHECKPOINT: "the leader epochs of the partition and the offset at which each begins",
    FileKind.PARTITION_METADATA: "the id of the topic that the partition belongs to",
    FileKind.QUORUM_STATE: "the KRaft election state of this node: leader, epoch and vote",
    FileKind.META_PROPERTIES: "the identity of the log directory: cluster, node and directory ids",
    FileKind.CLEAN_SHUTDOWN: "the mark of a clean shutdown: logs need no recovery at the next start",
    FileKind.LOCK: "the lock that the broker using this directory holds",
    FileKind.RECOVERY_POINT_CHECKPOINT: "the offsets up to which the partitions were flushed to disk",
    FileKind.LOG_START_OFFSET_CHECKPOINT: "the log start offsets of partitions whose first records were deleted",
    FileKind.REPLICATION_CHECKPOINT: "the high watermarks of the partitions",
    FileKind.CLEANER_CHECKPOINT: "the offsets up to which the log cleaner has cleaned",
    FileKind.UNCLEANABLE_PARTITIONS: "a file of an earlier version of kcli, which nothing reads any more",
    FileKind.UNKNOWN: "not a file that Kafka writes",
}
_STATE_SENTENCES = {
    FileState.CURRENT: "",
    FileState.DELETED: ", marked to be deleted",
    FileState.CLEANED: ", unfinished output of the log cleaner",
    FileState.SWAP: ", about to replace the segments it was made of",
    FileState.TEMPORARY: ", a temporary file left while it was written",
    FileState.PARTIAL: ", left while it was written",
}


@lru_cache(maxsize=8192)  # the partitions of a broker have many names in common
def parse_file_name(name: str) -> FileName:
    """Classify a file's name, which has no directories in it; the kind is UNKNOWN if the name is not one of Kafka's."""
    snapshot = _parse_metadata_snapshot(name)
    if snapshot is not None:
        return snapshot
    stem, state = name, FileState.CURRENT
    while True:
        suffix = next((suffix for suffix in _FILE_STATES if stem.endswith(suffix.value)), None)
        if suffix is None:
            break
        stem = stem.removesuffix(suffix.value)
        # Of two suffixes the later one, which is the last in the name, counts.
        state = state or suffix
    kind = _NAMED_KINDS.get(stem)
    if kind is not None:
        return FileName(name, kind, state)
    head, dot, extension = stem.rpartition(".")
    kind = _SEGMENT_SUFFIXES.get(dot + extension)
    if kind is None:
        return FileName(name, FileKind.UNKNOWN, state)
    # Kafka takes the text before the first dot for the number.
    number, underscore, remote_id = head.partition(".")[0].partition("_")
    return FileName(name, kind, state, parse_integer(number, 64), None, remote_id if underscore else None)


def _parse_metadata_snapshot(name: str) -> FileName | None:
    """Parse as Snapshots.parse does: fixed columns, whatever follows them; None for any other name."""
    for state in (FileState.PARTIAL, FileState.DELETED, FileState.CURRENT):
        if not name.endswith(_CHECKPOINT_SUFFIX + state.value):
            continue
        if name.removesuffix(state.value) == FileKind.BOOTSTRAP_CHECKPOINT.value:
            return FileName(name, FileKind.BOOTSTRAP_CHECKPOINT, state)
        end_offset = parse_integer(name[:OFFSET_DIGITS], 64)
        epoch = parse_integer(name[OFFSET_DIGITS + 1 : OFFSET_DIGITS + 1 + EPOCH_DIGITS], 32)
        if end_offset is None or epoch is None:
            return FileName(name, FileKind.UNKNOWN, state)
        return FileName(name, FileKind.METADATA_SNAPSHOT, state, end_offset, epoch)
    return None


def _regular_name(file: FileName) -> str | None:
    if file.kind in _SEGMENT_KINDS:
        if file.base_offset is None:
            return None
        if file.remote_id is not None:
            return f"{file.base_offset}_{file.remote_id}{_SEGMENT_KINDS[file.kind]}{file.state}"
        return segment_file_name(file.base_offset, file.kind, file.state)
    if file.kind is FileKind.METADATA_SNAPSHOT:
        if file.state is FileState.PARTIAL:
            return file.name if re.fullmatch(_PARTIAL_SNAPSHOT, file.name) else None
        return metadata_snapshot_name(file.base_offset or 0, file.epoch or 0, file.state)
    return f"{file.kind}{file.state}"


def parse_partition_directory(name: str) -> PartitionDirectoryName:
    """Parse a partition directory's name (no parent in it). Raises FormatError where Kafka refuses to start over it."""
    stem, state, unique_id = name, DirectoryState.CURRENT, None
    for suffix in _DIRECTORY_STATES:
        if name.endswith(suffix.value):
            match = re.fullmatch(_SUFFIXED_DIRECTORY[suffix], name)
            if match is None:
                raise _no_partition(name)
            stem, _, last = name.rpartition(".")
            state, unique_id = suffix, last.removesuffix(suffix.value)
            break
    topic, _, partition_text = stem.rpartition("-")
    partition = parse_integer(partition_text, 32)
    if not topic or partition is None:
        raise _no_partition(name)
    return PartitionDirectoryName(topic, partition, state, unique_id)


def _no_partition(name: str) -> FormatError:
    return FormatError(
        f"{name!r} is not in the form of topic-partition or topic-partition.uniqueId-delete, as a partition directory is"
    )


def file_name_prefix(offset: int) -> str:
    """Return the 20 digits in front of a file's name."""
    return f"{offset:0{OFFSET_DIGITS}d}"


def segment_file_name(base_offset: int, kind: FileKind, state: FileState = FileState.CURRENT) -> str:
    """Return the name of a LOG, INDEX, TIME_INDEX, TXN_INDEX or PRODUCER_SNAPSHOT. Raises KeyError for other kinds."""
    return f"{file_name_prefix(base_offset)}{_SEGMENT_KINDS[kind]}{state.value}"


def metadata_snapshot_name(end_offset: int, epoch: int, state: FileState = FileState.CURRENT) -> str:
    """Return the name of a KRaft snapshot, complete (CURRENT) or marked to be deleted (DELETED)."""
    return f"{file_name_prefix(end_offset)}-{epoch:0{EPOCH_DIGITS}d}{_CHECKPOINT_SUFFIX}{state.value}"


def partition_directory_name(
    topic: str, partition: int, state: DirectoryState = DirectoryState.CURRENT, unique_id: str = ""
) -> str:
    """Return the name of a partition directory; a state needs `unique_id`, 32 hex digits.

    DELETE and STRAY cut the topic where the name would pass 255 characters; FUTURE and CURRENT do not, as in Kafka.
    """
    if state is DirectoryState.CURRENT:
        return f"{topic}-{partition}"
    suffix = f"-{partition}.{unique_id}{state.value}"
    if state is not DirectoryState.FUTURE:
        topic = topic[: MAX_NAME_CHARACTERS - len(suffix)]
    return topic + suffix
