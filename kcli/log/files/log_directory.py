"""The contents of a log directory by name: root files, partition directories, segments and their other files.

    directory                     recognised by                                      read as
    ----------------------------  -------------------------------------------------  --------------------------------
    a log directory               meta.properties, a checkpoint, or directories       LogDirectory
                                    with names of partitions in it, whatever files
                                    of a partition are in its root
    `<topic>-<partition>`         segment files in it, or its name                    PartitionDirectory
    `__cluster_metadata-0`        its name                                            PartitionDirectory, is_metadata_log

kcli.format.file_names parses the names. Only names are read, so that large directories are listed quickly; separate functions
read the small files (topic id, checkpoints). Every function raises OSError. Paths are returned as the caller gave them.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from typing import NamedTuple

from kcli.format import limits
from kcli.format.file_names import (
    METADATA_TOPIC,
    DirectoryState,
    FileKind,
    FileName,
    FileState,
    parse_file_name,
    parse_partition_directory,
)
from kcli.format.kafka_uuid import Uuid
from kcli.format.primitives import FormatError
from kcli.log.disk.port import Disk, base_name, join_path, parent_path

_SEGMENT_KINDS = (FileKind.LOG, FileKind.INDEX, FileKind.TIME_INDEX, FileKind.TXN_INDEX, FileKind.PRODUCER_SNAPSHOT)
PARTITION_KINDS = frozenset(
    (
        *_SEGMENT_KINDS,
        FileKind.METADATA_SNAPSHOT,
        FileKind.LEADER_EPOCH_CHECKPOINT,
        FileKind.PARTITION_METADATA,
        FileKind.QUORUM_STATE,
    )
)
# The problem of a directory that `is_file_name`.
NOT_PLAIN = "neither a plain file nor a directory (a pipe, socket, device or broken link)"
NOT_OF_KAFKA = "not a file that Kafka writes; name segments (.log, decompressed), indexes, snapshots or directories"
LOCK_HOLDERS = "a broker or another command uses this directory; stop it or wait"
DIRECTORY_NOT_FILE = "a directory, and Kafka has a file of this name: move it away"
_ROOT_KINDS = frozenset(FileKind) - PARTITION_KINDS - {FileKind.UNKNOWN}
# Root files that identify a log directory.
_IDENTITY_KINDS = frozenset(
    (
        FileKind.META_PROPERTIES,
        FileKind.RECOVERY_POINT_CHECKPOINT,
        FileKind.LOG_START_OFFSET_CHECKPOINT,
        FileKind.REPLICATION_CHECKPOINT,
        FileKind.CLEANER_CHECKPOINT,
    )
)


class FoundFile(NamedTuple):
    """A file of a directory: its path and its parsed name."""

    path: str
    parsed: FileName

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.parsed.name

    @property
    def kind(self) -> FileKind:
        """The kind by its name, regardless of a suffix."""
        return self.parsed.kind

    @property
    def base_offset(self) -> int:
        """The offset in its name, or -1."""
        return -1 if self.parsed.base_offset is None else self.parsed.base_offset

    @property
    def state(self) -> FileState:
        """The state by its suffix, CURRENT without one."""
        return self.parsed.state

    @property
    def is_current(self) -> bool:
        """True for a name as Kafka writes it, without a suffix."""
        return self.parsed.is_regular and self.parsed.state is FileState.CURRENT


class Segment(NamedTuple):
    """A segment: the path of its `.log` and of the other files with its base offset, None for a missing one."""

    base_offset: int
    log: str
    offset_index: str | None = None
    time_index: str | None = None
    transaction_index: str | None = None
    snapshot: str | None = None


class PartitionDirectory(NamedTuple):
    """A partition's directory.

    `topic` and `partition` are parsed from its name; if that is not the name of a partition (`is_named` False) the topic is
    the whole name and the partition -1. `segments` and `snapshots` (producer snapshots) are sorted by offset.
    `metadata_snapshots` are the finished `.checkpoint` files of the metadata log. `others` are all other files, `directories`
    all directories in it.
    """

    path: str
    topic: str
    partition: int
    state: DirectoryState
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

    def file(self, kind: FileKind) -> str | None:
        """Return the path of the file of a kind (LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, QUORUM_STATE), or None."""
        return next((file.path for file in self.others if file.kind is kind and file.is_current), None)

    @property
    def log_directory(self) -> str:
        """The path of its log directory."""
        return parent_path(self.path)


def is_file_name(name: str) -> bool:
    """Return True for the name of a file that Kafka writes and opens: a directory of that name is an error."""
    parsed = parse_file_name(name)
    return parsed.is_regular and parsed.kind is not FileKind.UNKNOWN and parsed.state is FileState.CURRENT


def log_bytes(disk: Disk, partition: PartitionDirectory) -> int:
    """Return the total size of a partition's segments; a segment whose size cannot be read counts as 0."""
    total = 0
    for segment in partition.segments:
        try:
            total += disk.size(segment.log)
        except OSError:
            continue
    return total


def was_swapped(disk: Disk, partition: PartitionDirectory) -> bool:
    """Return True if a cleaner has replaced a closed segment, and its old `.log` is still to be deleted. Raises OSError."""
    bases = {segment.base_offset for segment in partition.segments[:-1]}
    swapped = (file for file in partition.others if file.state is FileState.DELETED and file.base_offset in bases)
    return any(file.kind is FileKind.LOG and disk.size(file.path) for file in swapped)


class LogDirectory(NamedTuple):
    """A log directory: its partitions sorted by name, its root files, and the names of its other directories.

    `unreadable` has (path, error) of each partition directory that could not be listed.
    """

    path: str
    partitions: list[PartitionDirectory]
    files: list[FoundFile]
    other_directories: list[str]
    unreadable: list[tuple[str, str]]

    def file(self, kind: FileKind) -> str | None:
        """Return the path of the root file of a kind (META_PROPERTIES and so on), or None."""
        return next((file.path for file in self.files if file.kind is kind and file.is_current), None)


class Checkpoints(NamedTuple):
    """The offsets in the four offset checkpoints of a log directory, by (topic, partition).

    `problems` has (path, error) of each checkpoint that could not be read; its offsets are missing.
    """

    recovery_points: dict[tuple[str, int], int]
    log_start_offsets: dict[tuple[str, int], int]
    high_watermarks: dict[tuple[str, int], int]
    cleaner_offsets: dict[tuple[str, int], int]
    problems: list[tuple[str, str]]


def read_partition(disk: Disk, path: str) -> PartitionDirectory:
    """List a partition's directory."""
    by_offset: dict[int, dict[FileKind, FoundFile]] = {}
    others: list[FoundFile] = []
    snapshots: list[FoundFile] = []
    metadata_snapshots: list[FoundFile] = []
    directories: list[str] = []
    for name in disk.list_directory(path):
        file = FoundFile(join_path(path, name), parse_file_name(name))
        if disk.is_directory(file.path):
            directories.append(name)
        elif not file.is_current or file.kind not in (*_SEGMENT_KINDS, FileKind.METADATA_SNAPSHOT) or file.base_offset < 0:
            others.append(file)
        elif file.kind is FileKind.METADATA_SNAPSHOT:
            metadata_snapshots.append(file)
        else:
            by_offset.setdefault(file.base_offset, {})[file.kind] = file
            if file.kind is FileKind.PRODUCER_SNAPSHOT:
                snapshots.append(file)
    segments = []
    for offset, found in sorted(by_offset.items()):
        if FileKind.LOG in found:
            paths = (found[kind].path if kind in found else None for kind in _SEGMENT_KINDS[1:])
            segments.append(Segment(offset, found[FileKind.LOG].path, *paths))
        else:
            others += (file for file in found.values() if file.kind is not FileKind.PRODUCER_SNAPSHOT)
    topic, partition, state, is_named = _directory_name(base_name(path))
    return PartitionDirectory(
        path, topic, partition, state, is_named, segments, snapshots, metadata_snapshots, others, directories
    )


def _directory_name(name: str) -> tuple[str, int, DirectoryState, bool]:
    try:
        parsed = parse_partition_directory(name)
    except FormatError:
        return name, -1, DirectoryState.CURRENT, False
    return parsed.topic, parsed.partition, parsed.state, True


def read_log_directory(disk: Disk, path: str) -> LogDirectory:
    """List a log directory and its partitions. Raises OSError if the log directory itself cannot be listed."""
    partitions, files, others, unreadable = [], [], [], []
    for name in disk.list_directory(path):
        at = join_path(path, name)
        if not disk.is_directory(at):
            files.append(FoundFile(at, parse_file_name(name)))
        elif not _directory_name(name)[3]:
            others.append(name)
        else:
            try:
                partitions.append(read_partition(disk, at))
            except OSError as error:
                unreadable.append((at, error.strerror or str(error)))
    partitions.sort(key=lambda found: (found.topic, found.partition, found.state, found.path))
    return LogDirectory(path, partitions, files, others, unreadable)


def read_topic_id(disk: Disk, partition: PartitionDirectory) -> Uuid | None:
    """Read the topic id in partition.metadata, None if the file is missing. Raises OSError, CorruptCheckpointError."""
    from kcli.format.metadata_files import decode_partition_metadata

    path = partition.file(FileKind.PARTITION_METADATA)
    if path is None:
        return None
    return decode_partition_metadata(disk.read_file(path, limits.MAX_TEXT_FILE_BYTES)).topic_id


def read_checkpoints(disk: Disk, log_directory: str) -> Checkpoints:
    """Read the four offset checkpoints of a log directory; a missing one has no offsets, a malformed one is a problem."""
    from kcli.format.checkpoint import decode_offset_checkpoint

    problems: list[tuple[str, str]] = []

    def read(kind: FileKind) -> dict[tuple[str, int], int]:
        path = join_path(log_directory, kind.value)
        if not disk.exists(path):
            return {}
        try:
            return decode_offset_checkpoint(disk.read_file(path, limits.MAX_TEXT_FILE_BYTES)).offsets()
        except FormatError as error:
            problems.append((path, error.message))
        except OSError as error:
            problems.append((path, f"the file cannot be read: {error.strerror or error}"))
        return {}

    return Checkpoints(
        read(FileKind.RECOVERY_POINT_CHECKPOINT),
        read(FileKind.LOG_START_OFFSET_CHECKPOINT),
        read(FileKind.REPLICATION_CHECKPOINT),
        read(FileKind.CLEANER_CHECKPOINT),
        problems,
    )


def is_live(disk: Disk, log_directory: str) -> bool:
    """Return True if another process has locked the `.lock` of the log directory: a broker is running on it."""
    return disk.is_locked(join_path(log_directory, FileKind.LOCK.value))


def is_partition_directory(disk: Disk, path: str) -> bool:
    """Return True for a partition's directory: it has a partition's files or name, and not the files of a log directory.

    A directory inside a log directory that is named as a partition always is one.
    """
    names = disk.list_directory(path)
    kinds = {parse_file_name(name).kind for name in names}
    is_named = _directory_name(base_name(path))[3]
    if is_named and _is_in_log_directory(disk, path):
        return True
    if not kinds & PARTITION_KINDS:
        # Any directory may have such a name (/etc/java-17): one with other files only is not Kafka's.
        return is_named and not names and not _has_log_directory_signs(disk, path, names, kinds)
    signs = kinds & _ROOT_KINDS
    if is_named and FileKind.LOG in kinds:
        signs &= _IDENTITY_KINDS
    return not signs and not any(_holds_partition(disk, join_path(path, name)) for name in names)


def is_log_directory(disk: Disk, path: str) -> bool:
    """Return True for a log directory: it has the files of a log directory, or partitions, some of which may be empty.

    Other files in its root do not matter: Kafka ignores them.
    """
    if is_partition_directory(disk, path):
        return False
    names = disk.list_directory(path)
    return _has_log_directory_signs(disk, path, names, {parse_file_name(name).kind for name in names})


def _is_in_log_directory(disk: Disk, path: str) -> bool:
    """Return True if the parent directory of a path has the files by which a broker identifies a log directory."""
    try:
        return any(parse_file_name(name).kind in _IDENTITY_KINDS for name in disk.list_directory(parent_path(path)))
    except OSError:
        return False


def _holds_partition(disk: Disk, path: str) -> bool:
    """Return True for a directory that is named as a partition and has a partition's files."""
    if not _directory_name(base_name(path))[3] or not disk.is_directory(path):
        return False
    try:
        return any(parse_file_name(name).kind in PARTITION_KINDS for name in disk.list_directory(path))
    except OSError:
        return False


def _has_log_directory_signs(disk: Disk, path: str, names: list[str], kinds: set[FileKind]) -> bool:
    if kinds & _ROOT_KINDS:
        return True
    return any(_directory_name(name)[3] and _may_be_partition(disk, join_path(path, name)) for name in names)


def _may_be_partition(disk: Disk, path: str) -> bool:
    """Return True for a directory that is empty, cannot be listed, or has a partition's files."""
    if not disk.is_directory(path):
        return False
    try:
        return not disk.list_directory(path) or _holds_partition(disk, path)
    except OSError:
        return True


class ResolvedPath(NamedTuple):
    """The contents of a path: exactly one of `log_directory`, `partition` and `file` is set."""

    path: str
    log_directory: LogDirectory | None = None
    partition: PartitionDirectory | None = None
    file: FoundFile | None = None


class PathProblem(NamedTuple):
    """A path that cannot be read as one of these, and a message that says what it is."""

    path: str
    message: str


def resolve_paths(disk: Disk, paths: Iterable[str]) -> tuple[list[ResolvedPath], list[PathProblem]]:
    """Resolve paths of files, partition directories, log directories, or patterns (`*`, `?`, `[..]`) of these.

    A directory of several log directories, as `kcli serve --brokers` makes for the nodes of a cluster, counts as these. Return
    the targets in the given order, those of a pattern sorted, without duplicates; and the problems.
    """
    targets: list[ResolvedPath] = []
    problems: list[PathProblem] = []
    seen: set[str] = set()
    for path in paths:
        for found in (one for match in expand_pattern(disk, path) for one in _nodes_of(disk, match)):
            if found in seen:
                continue
            seen.add(found)
            try:
                resolved = _resolve(disk, found)
            except OSError as error:
                resolved = PathProblem(found, f"{found}: {error.strerror or error}")
            if isinstance(resolved, ResolvedPath):
                targets.append(resolved)
            else:
                problems.append(resolved)
    return targets, problems


def _nodes_of(disk: Disk, path: str) -> list[str]:
    """Return the log directories of nodes in a directory that is none itself, in the order of their names; else the path."""
    try:
        names = disk.list_directory(path) if disk.is_directory(path) else []
        if FileKind.META_PROPERTIES.value in names:
            return [path]
        nodes = (join_path(path, name) for name in sorted(names))
        return [one for one in nodes if disk.exists(join_path(one, FileKind.META_PROPERTIES.value))] or [path]
    except OSError:
        return [path]


def _resolve(disk: Disk, path: str) -> ResolvedPath | PathProblem:
    if not disk.exists(path):
        return PathProblem(path, f"{path or '(no path)'}: {why_missing(disk, path)}")
    if not disk.is_directory(path):
        if not disk.is_regular(path):
            return PathProblem(path, f"{path}: {NOT_PLAIN}")
        return ResolvedPath(path, file=FoundFile(path, parse_file_name(base_name(path))))
    if is_partition_directory(disk, path):
        return ResolvedPath(path, partition=read_partition(disk, path))
    if is_log_directory(disk, path):
        return ResolvedPath(path, log_directory=read_log_directory(disk, path))
    if is_file_name(base_name(path)):
        return PathProblem(path, f"{path}: {DIRECTORY_NOT_FILE}")
    what = "an empty directory" if not disk.list_directory(path) else "a directory with no file of Kafka's in it"
    return PathProblem(
        path,
        f"{path}: {what}; a log directory has meta.properties or directories named <topic>-<partition>, "
        "a partition's directory has .log files",
    )


def why_missing(disk: Disk, path: str) -> str:
    """Return the error message for a path that does not exist, or is in a directory that the user may not search."""
    if not path:
        return "the path is empty; . is the working directory"
    try:
        disk.size(path)
    except PermissionError as error:
        return error.strerror or str(error)
    except OSError:
        pass
    pattern = " (nothing matches the pattern)" if _is_pattern(path) else ""
    return f"there is no such file or directory{pattern}"


def _is_pattern(path: str) -> bool:
    return any(sign in path for sign in "*?[")


def expand_pattern(disk: Disk, path: str) -> list[str]:
    """Return the paths that match a pattern, sorted; the path itself if it exists, is not a pattern, or has no matches.

    `*`, `?` and `[..]` match within one part of the path; names that begin with a dot match only a pattern that does.
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
