"""What lies in a log directory: root files, partition directories, segments and the files beside them, by name alone.

    directory                     recognised by                                      becomes
    ----------------------------  -------------------------------------------------  --------------------------------
    a log directory               meta.properties, a checkpoint, or directories       LogDirectory
                                    with names of partitions in it
    `<topic>-<partition>`         segment files in it, or its name                    PartitionDirectory, NORMAL
      `.<hex>-delete`             scheduled for deletion                              PartitionDirectory, DELETE
      `.<hex>-future`             a replica that moves between log directories        PartitionDirectory, FUTURE
      `.<hex>-stray`              a replica that the metadata does not know           PartitionDirectory, STRAY
    `__cluster_metadata-0`        its name                                            PartitionDirectory, is_metadata_log

Nothing but names is looked at, so a directory of any size is read in no time; the few readers of small files (topic id,
checkpoints) are functions of their own. Every function raises OSError as the disk does. Paths stay as the caller typed them.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from typing import NamedTuple

from kcli.log.disk import Disk

METADATA_TOPIC = "__cluster_metadata"
REMOTE_INDEX_CACHE = "remote-log-index-cache"
LOCK_FILE = ".lock"

NORMAL = "normal"
DELETE = "delete"
FUTURE = "future"
STRAY = "stray"

# The kinds of files in a partition directory, and in the root of a log directory.
LOG = "log"
INDEX = "index"
TIME_INDEX = "timeindex"
TXN_INDEX = "txnindex"
PRODUCER_SNAPSHOT = "snapshot"
METADATA_SNAPSHOT = "metadata-snapshot"
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
QUORUM_STATE = "quorum-state"
META_PROPERTIES = "meta.properties"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
CLEANER_OFFSET_CHECKPOINT = "cleaner-offset-checkpoint"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
UNKNOWN = "unknown"

# Suffixes behind a file's own: what became of it, or has yet to.
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
TEMPORARY_SUFFIX = ".tmp"
PART_SUFFIX = ".part"

_ROOT_NAMES = frozenset(
    (
        META_PROPERTIES,
        RECOVERY_POINT_CHECKPOINT,
        LOG_START_OFFSET_CHECKPOINT,
        HIGH_WATERMARK_CHECKPOINT,
        CLEANER_OFFSET_CHECKPOINT,
        CLEAN_SHUTDOWN,
        BOOTSTRAP_CHECKPOINT,
        LOCK_FILE,
    )
)
_PARTITION_NAMES = frozenset((LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, QUORUM_STATE))
_SEGMENT_KINDS = {
    ".log": LOG,
    ".index": INDEX,
    ".timeindex": TIME_INDEX,
    ".txnindex": TXN_INDEX,
    ".snapshot": PRODUCER_SNAPSHOT,
}
_SUFFIXES = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, TEMPORARY_SUFFIX, PART_SUFFIX)
_METADATA_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})(-[^.]*)?\.checkpoint")


class FileName(NamedTuple):
    """A name taken apart. `base_offset` and `epoch` are -1 where the name has none; `suffix` is "" or one of the five."""

    name: str
    kind: str
    base_offset: int = -1
    suffix: str = ""
    epoch: int = -1


class DirectoryName(NamedTuple):
    """The name of a partition directory taken apart."""

    topic: str
    partition: int
    state: str


def parse_file_name(name: str) -> FileName:
    """Take the name of a file in a log directory or a partition directory apart -> FileName; kind UNKNOWN for any other."""
    stem, suffix = name, ""
    for candidate in _SUFFIXES:
        if name.endswith(candidate):
            stem, suffix = name[: -len(candidate)], candidate
            break
    if stem in _ROOT_NAMES or stem in _PARTITION_NAMES:
        return FileName(name, stem, suffix=suffix)
    if found := _METADATA_SNAPSHOT.fullmatch(stem):
        return FileName(name, METADATA_SNAPSHOT, int(found[1]), suffix, int(found[2]))
    prefix, dot, extension = stem.rpartition(".")
    kind = _SEGMENT_KINDS.get(dot + extension, UNKNOWN)
    if kind == UNKNOWN:
        return FileName(name, UNKNOWN)
    offset = int(prefix) if len(prefix) == 20 and prefix.isascii() and prefix.isdigit() else -1
    return FileName(name, kind, offset if offset < 2**63 else -1, suffix)


_STATES = {"-delete": DELETE, "-future": FUTURE, "-stray": STRAY}
_STATE_PATTERN = re.compile(r"(\S+-\S+)\.\S+(-delete|-future|-stray)")


def parse_directory_name(name: str) -> DirectoryName | None:
    """Take the name of a partition directory apart -> DirectoryName, or None where it is not Kafka's."""
    state = NORMAL
    if name.endswith(tuple(_STATES)):
        found = _STATE_PATTERN.fullmatch(name)
        if found is None:
            return None
        state = _STATES[found[2]]
        name = name[: name.rindex(".")]
    topic, _, partition = name.rpartition("-")
    if not topic or not (partition.isascii() and partition.isdigit()) or int(partition) >= 2**31:
        return None
    return DirectoryName(topic, int(partition), state)


class FoundFile(NamedTuple):
    """A file of a directory: where it lies and its name taken apart."""

    path: str
    parsed: FileName

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.parsed.name

    @property
    def kind(self) -> str:
        """What its name says that it is, whatever suffix stands behind."""
        return self.parsed.kind

    @property
    def base_offset(self) -> int:
        """The offset in its name, or -1."""
        return self.parsed.base_offset

    @property
    def suffix(self) -> str:
        """Empty, or what stands behind the name: `.deleted`, `.cleaned`, `.swap`, `.tmp`, `.part`."""
        return self.parsed.suffix


class Segment(NamedTuple):
    """A segment: its `.log` and the paths of what lies beside it under the same base offset, None where it is missing."""

    base_offset: int
    log: str
    offset_index: str | None = None
    time_index: str | None = None
    transaction_index: str | None = None
    snapshot: str | None = None


class PartitionDirectory(NamedTuple):
    """A partition's directory.

    `topic` and `partition` come from its name; of a directory whose name is not Kafka's (`is_named` False) the topic is the
    whole name and the partition -1. `segments` and `snapshots` (producer snapshots) are sorted by offset. `metadata_snapshots`
    are the finished `.checkpoint` files of the metadata log. `others` is every other file, `directories` every directory in it.
    """

    path: str
    topic: str
    partition: int
    state: str
    is_named: bool
    segments: list[Segment]
    snapshots: list[FoundFile]
    metadata_snapshots: list[FoundFile]
    others: list[FoundFile]
    directories: list[str]

    @property
    def name(self) -> str:
        """The directory's own name."""
        return base_name(self.path)

    @property
    def is_metadata_log(self) -> bool:
        """True for KRaft's `__cluster_metadata-0`."""
        return self.topic == METADATA_TOPIC

    def file(self, kind: str) -> str | None:
        """The path of the one file of a kind (LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, QUORUM_STATE), or None."""
        return next((file.path for file in self.others if file.kind == kind and not file.suffix), None)

    @property
    def log_directory(self) -> str:
        """The path of the log directory that it lies in."""
        return parent_path(self.path)


class LogDirectory(NamedTuple):
    """A log directory: its partitions sorted by name, its own files, and the names of directories that are no partition's.

    `unreadable` is one (path, sentence) for each partition's directory that could not be listed.
    """

    path: str
    partitions: list[PartitionDirectory]
    files: list[FoundFile]
    other_directories: list[str]
    unreadable: list[tuple[str, str]]

    def file(self, kind: str) -> str | None:
        """The path of the one root file of a kind (META_PROPERTIES and so on), or None where it is missing."""
        return next((file.path for file in self.files if file.kind == kind and not file.suffix), None)


class Checkpoints(NamedTuple):
    """What the four offset checkpoints of a log directory say, each keyed by (topic, partition), values in offsets.

    `problems` is one (path, sentence) for each that could not be read; its values are then missing.
    """

    recovery_points: dict[tuple[str, int], int]
    log_start_offsets: dict[tuple[str, int], int]
    high_watermarks: dict[tuple[str, int], int]
    cleaner_offsets: dict[tuple[str, int], int]
    problems: list[tuple[str, str]]


def join_path(directory: str, name: str) -> str:
    """The path of a name in a directory, as the caller typed the directory."""
    return f"{directory}{name}" if directory.endswith("/") else f"{directory}/{name}" if directory else name


def base_name(path: str) -> str:
    """The last part of a path, whatever slashes are behind it."""
    return path.rstrip("/").rpartition("/")[2] or path


def parent_path(path: str) -> str:
    """The directory that a path lies in; "." for a plain name."""
    head, slash, _ = path.rstrip("/").rpartition("/")
    return (head or slash) if slash else "."


def read_partition(disk: Disk, path: str) -> PartitionDirectory:
    """List a partition's directory -> PartitionDirectory. Raises OSError where it cannot be listed."""
    parsed = parse_directory_name(base_name(path))
    by_offset: dict[int, dict[str, str]] = {}
    loose: list[FoundFile] = []
    snapshots: list[FoundFile] = []
    metadata_snapshots: list[FoundFile] = []
    directories: list[str] = []
    for name in disk.list_directory(path):
        file = FoundFile(join_path(path, name), parse_file_name(name))
        kind, offset = file.kind, file.base_offset
        if disk.is_directory(file.path):
            directories.append(name)
        elif offset < 0 or file.suffix:
            loose.append(file)
        elif kind == METADATA_SNAPSHOT:
            metadata_snapshots.append(file)
        elif kind == PRODUCER_SNAPSHOT:
            snapshots.append(file)
            by_offset.setdefault(offset, {})[kind] = file.path
        else:
            by_offset.setdefault(offset, {})[kind] = file.path
    segments = []
    for offset, found in sorted(by_offset.items()):
        if LOG in found:
            segments.append(_segment(offset, found))
        else:
            loose += (FoundFile(at, parse_file_name(base_name(at))) for kind, at in found.items() if kind != PRODUCER_SNAPSHOT)
    topic, partition, state = parsed or (base_name(path), -1, NORMAL)
    return PartitionDirectory(
        path, topic, partition, state, parsed is not None, segments, snapshots, metadata_snapshots, loose, directories
    )


def _segment(base_offset: int, found: dict[str, str]) -> Segment:
    beside = (found.get(kind) for kind in (INDEX, TIME_INDEX, TXN_INDEX, PRODUCER_SNAPSHOT))
    return Segment(base_offset, found[LOG], *beside)


def read_log_directory(disk: Disk, path: str) -> LogDirectory:
    """List a log directory and the partitions in it -> LogDirectory. Raises OSError where it itself cannot be listed."""
    partitions, files, others, unreadable = [], [], [], []
    for name in disk.list_directory(path):
        at = join_path(path, name)
        if not disk.is_directory(at):
            files.append(FoundFile(at, parse_file_name(name)))
        elif parse_directory_name(name) is None:
            others.append(name)
        else:
            try:
                partitions.append(read_partition(disk, at))
            except OSError as error:
                unreadable.append((at, error.strerror or str(error)))
    partitions.sort(key=lambda found: (found.topic, found.partition, found.state, found.path))
    return LogDirectory(path, partitions, files, others, unreadable)


def is_partition_directory(disk: Disk, path: str) -> bool:
    """True where a directory holds a partition: segment files or a partition's own, or nothing but a partition's name."""
    names = disk.list_directory(path)
    kinds = {parse_file_name(name).kind for name in names}
    if kinds.intersection(_SEGMENT_KINDS.values()) or kinds.intersection(_PARTITION_NAMES) or METADATA_SNAPSHOT in kinds:
        return True
    return not _has_log_directory_signs(disk, path, names, kinds) and parse_directory_name(base_name(path)) is not None


def is_log_directory(disk: Disk, path: str) -> bool:
    """True where a directory has a log directory's own files, or directories named as partitions are."""
    names = disk.list_directory(path)
    return _has_log_directory_signs(disk, path, names, {parse_file_name(name).kind for name in names})


def _has_log_directory_signs(disk: Disk, path: str, names: list[str], kinds: set[str]) -> bool:
    if kinds.intersection(_ROOT_NAMES):
        return True
    return any(parse_directory_name(name) is not None and disk.is_directory(join_path(path, name)) for name in names)


class Target(NamedTuple):
    """What one path turned out to be: exactly one of `log_directory`, `partition` and `file` is set."""

    path: str
    log_directory: LogDirectory | None = None
    partition: PartitionDirectory | None = None
    file: FoundFile | None = None


class PathProblem(NamedTuple):
    """A path that is nothing that can be opened, and one sentence that says what it is instead."""

    path: str
    message: str


def resolve_paths(disk: Disk, paths: Iterable[str]) -> tuple[list[Target], list[PathProblem]]:
    """Find out what paths are: files, partitions' directories, log directories, or patterns (`*`, `?`, `[..]`) of these.

    -> targets in the order given, those of one pattern sorted and each path once; and the problems.
    """
    targets: list[Target] = []
    problems: list[PathProblem] = []
    seen: set[str] = set()
    for path in paths:
        for found in expand_pattern(disk, path):
            if found in seen:
                continue
            seen.add(found)
            try:
                resolved = _resolve(disk, found)
            except OSError as error:
                resolved = PathProblem(found, f"{found}: {error.strerror or error}")
            if isinstance(resolved, Target):
                targets.append(resolved)
            else:
                problems.append(resolved)
    return targets, problems


def _resolve(disk: Disk, path: str) -> Target | PathProblem:
    if not disk.exists(path):
        pattern = " (nothing matches the pattern)" if _is_pattern(path) else ""
        return PathProblem(path, f"{path}: there is no such file or directory{pattern}")
    if not disk.is_directory(path):
        if not disk.is_regular(path):
            return PathProblem(path, f"{path}: neither a plain file nor a directory (a pipe, socket, device or broken link)")
        return Target(path, file=FoundFile(path, parse_file_name(base_name(path))))
    if is_partition_directory(disk, path):
        return Target(path, partition=read_partition(disk, path))
    if is_log_directory(disk, path):
        return Target(path, log_directory=read_log_directory(disk, path))
    what = "an empty directory" if not disk.list_directory(path) else "a directory with no file of Kafka's in it"
    return PathProblem(
        path,
        f"{path}: {what}; a log directory has meta.properties or directories named <topic>-<partition>, "
        "a partition's directory has .log files",
    )


def _is_pattern(path: str) -> bool:
    return any(sign in path for sign in "*?[")


def expand_pattern(disk: Disk, path: str) -> list[str]:
    """The paths that a pattern matches, sorted; the path itself where it exists, is no pattern or matches nothing.

    `*`, `?` and `[..]` match within one part of the path; names that begin with a dot only match a pattern that does.
    """
    if not _is_pattern(path) or disk.exists(path):
        return [path]
    found = ["/"] if path.startswith("/") else [""]
    for part in path.strip("/").split("/"):
        if not _is_pattern(part):
            found = [at for at in (join_path(head, part) for head in found) if disk.exists(at)]
            continue
        matched = []
        for head in found:
            if head and not disk.is_directory(head):
                continue
            try:
                names = disk.list_directory(head or ".")
            except OSError:
                continue
            names = [name for name in names if not name.startswith(".") or part.startswith(".")]
            matched += [join_path(head, name) for name in sorted(fnmatch.filter(names, part))]
        found = matched
    return found or [path]
