"""The sources of describe: log directories, or single partitions, and the small files that say which node they belong to.

    path                         read
    ---------------------------  -----------------------------------------------------------------------------------
    a log directory              all of it; several may belong to one node (log.dirs, metadata.log.dir) or to
                                 nodes of one cluster
    a partition's directory      it, and meta.properties and the checkpoints of its log directory

Directories of two clusters cannot be described together. A partition may be in several directories; each is a replica. If one
value is necessary (for the lag of a group, the records of a topic), it is that of the replica with the largest end offset. A
partition with another topic id than its topic is shown, but not joined with anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar

from kcli.format import limits
from kcli.format.file_names import METADATA_TOPIC, DirectoryState, FileKind
from kcli.format.metadata_files import CleanShutdown, MetaProperties, decode_clean_shutdown, decode_meta_properties
from kcli.format.primitives import FormatError
from kcli.inspect.description.remarks import Remarks
from kcli.log.disk.port import Disk, join_path
from kcli.log.files.log_dir_owner import cluster_conflict, owner_of
from kcli.log.files.log_directory import (
    Checkpoints,
    LogDirectory,
    PartitionDirectory,
    is_live,
    read_checkpoints,
    resolve_paths,
)

_Decoded = TypeVar("_Decoded")


class DescriptionError(Exception):
    """The paths cannot be described; the message is one sentence."""


class SourceDirectory(NamedTuple):
    """A log directory: all of it (`listing`), or, with `listing` None, some partitions of it.

    `clean_shutdown` is None if the marker of a clean stop is missing or cannot be read.
    """

    path: str
    listing: LogDirectory | None
    partitions: list[PartitionDirectory]
    meta: MetaProperties | None
    clean_shutdown: CleanShutdown | None
    is_live: bool
    checkpoints: Checkpoints


class Replica(NamedTuple):
    """A partition's directory and its log directory."""

    source: SourceDirectory
    directory: PartitionDirectory


class Sources:
    """The directories that were given, and their replicas."""

    def __init__(self, directories: list[SourceDirectory]) -> None:
        self.directories = directories
        self.replicas = [Replica(source, partition) for source in directories for partition in source.partitions]
        self.foreign: set[str] = set()  # the paths of partitions of another topic of the same name
        self._current: dict[tuple[str, int], list[Replica]] = {}
        for replica in self.replicas:
            if replica.directory.state is DirectoryState.CURRENT and replica.directory.is_named:
                self._current.setdefault((replica.directory.topic, replica.directory.partition), []).append(replica)
        # A metadata log without a cluster id is not used if there is one with a cluster id.
        metadata_logs = self._current.get((METADATA_TOPIC, 0), [])
        if of_a_cluster := [one for one in metadata_logs if one.source.meta is not None and one.source.meta.cluster_id]:
            self._current[METADATA_TOPIC, 0] = of_a_cluster

    @property
    def cluster_id(self) -> str | None:
        """The id of the cluster as the directories state it, or None."""
        return next((source.meta.cluster_id for source in self.directories if source.meta and source.meta.cluster_id), None)

    @property
    def has_whole_directory(self) -> bool:
        """Whether a log directory was given, and not only partitions."""
        return any(source.listing is not None for source in self.directories)

    def current(self, topic: str, partition: int) -> list[Replica]:
        """Return the replicas of a partition that are in use, in the order given."""
        return self._current.get((topic, partition), [])

    def set_aside(self, replica: Replica) -> None:
        """Exclude a partition from joins: it is of another topic with the same name."""
        key = (replica.directory.topic, replica.directory.partition)
        self.foreign.add(replica.directory.path)
        self._current[key] = [one for one in self._current[key] if one is not replica]
        if not self._current[key]:
            del self._current[key]

    def current_replicas(self) -> list[Replica]:
        """Return the replicas of all partitions that are in use."""
        return [replica for replicas in self._current.values() for replica in replicas]

    def partitions_of(self, topic: str) -> list[int]:
        """Return the numbers of a topic's partitions that are here and in use, ascending."""
        return sorted(partition for name, partition in self._current if name == topic)


def find_sources(disk: Disk, paths: Iterable[str], remarks: Remarks) -> Sources:
    """Find the directories at `paths`; other paths become problems.

    Raises DescriptionError if there is no directory of Kafka, or if the directories belong to several clusters.
    """
    targets, problems = resolve_paths(disk, paths)
    for path, message in problems:
        remarks.unopened(path, message.removeprefix(f"{path}: "))
    whole: dict[str, LogDirectory] = {}
    single: dict[str, list[PartitionDirectory]] = {}
    for target in targets:
        if target.log_directory is not None:
            whole[target.path.rstrip("/") or "/"] = target.log_directory
        elif target.partition is not None:
            single.setdefault(target.partition.log_directory, []).append(target.partition)
        else:
            remarks.unopened(target.path, "a file; describe takes log directories and partitions, kcli dump-log shows files")
    found = [_read_source(disk, path, listing, listing.partitions, remarks) for path, listing in whole.items()]
    for path, partitions in single.items():
        if path not in whole:
            found.append(_read_source(disk, path, None, partitions, remarks))
    if not found:
        sentences = "; ".join(f"{path}: {message}" for path, message in remarks.problems)
        raise DescriptionError(sentences or "name a log directory, or a partition's directory")
    _check_clusters(found)
    return Sources(found)


def _check_clusters(found: list[SourceDirectory]) -> None:
    stated = [owner_of(source.path, source.meta) for source in found]
    first = next((owner for owner in stated if owner.cluster_id), None)
    for other in stated if first else ():
        if first is not None and first.is_other_cluster(other):
            raise DescriptionError(
                f"{cluster_conflict(first, other)}: they belong to several clusters; describe one cluster at a time"
            )


def _read_source(
    disk: Disk, path: str, listing: LogDirectory | None, partitions: list[PartitionDirectory], remarks: Remarks
) -> SourceDirectory:
    if listing is not None:
        for unreadable, message in listing.unreadable:
            remarks.problem(unreadable, f"cannot be read: {message}")
    checkpoints = read_checkpoints(disk, path)
    for bad, message in checkpoints.problems:
        remarks.problem(bad, message)
    return SourceDirectory(
        path,
        listing,
        partitions,
        read_small(disk, join_path(path, FileKind.META_PROPERTIES.value), decode_meta_properties, remarks),
        read_small(disk, join_path(path, FileKind.CLEAN_SHUTDOWN.value), decode_clean_shutdown, remarks),
        is_live(disk, path),
        checkpoints,
    )


def read_small(disk: Disk, path: str | None, decode: Callable[[bytes], _Decoded], remarks: Remarks) -> _Decoded | None:
    """Decode a small file; return None if it is missing, or cannot be read, which is a problem."""
    if path is None or not disk.exists(path):
        return None
    try:
        return decode(disk.read_file(path, limits.MAX_TEXT_FILE_BYTES))
    except FormatError as error:
        remarks.problem(path, error.message)
    except OSError as error:
        remarks.unreadable(path, error)
    return None
