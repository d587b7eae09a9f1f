"""Verifies the files of log directories, the identity of their partitions, and several log directories against each other.

    what                    is sound if
    ----------------------  -------------------------------------------------------------------------------------------
    .kafka_cleanshutdown    it exists after a clean stop
    meta.properties         it exists, and its directory id is unique
    checkpoints             they can be read; every partition that they name has a directory; the one of the high
                              watermarks exists
    names                   each directory is a partition, each file is one of Kafka's
    partition.metadata      it exists in a KRaft cluster, with the topic id of the metadata log of the same node, which
                              has the partition and places a replica of it on the node
    partitions              each exists once on a broker (a replica that moves exists as -future too)

If .lock is held, a broker is running: the files that it changes are not checked.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, NamedTuple

from kcli.format.file_names import METADATA_TOPIC, REMOTE_INDEX_CACHE_DIRECTORY, DirectoryState, FileKind, FileState
from kcli.format.metadata_files import MetaProperties
from kcli.inspect.quantities import format_count
from kcli.inspect.verification.facts import COMPACTED_TOPICS, PartitionOptions
from kcli.inspect.verification.findings import FindingList
from kcli.inspect.verification.small_file_checks import (
    check_meta_properties,
    check_metadata_snapshot,
    check_partition_metadata,
    check_small_file,
)
from kcli.log.disk.port import Disk, join_path
from kcli.log.files.log_dir_owner import Owner, owner_of, topic_id_conflict
from kcli.log.files.log_directory import (
    PARTITION_KINDS,
    Checkpoints,
    FoundFile,
    LogDirectory,
    PartitionDirectory,
    is_live,
    read_checkpoints,
)
from kcli.log.files.quarantine import LostOffsets, default_folder, is_as_stopped, read_lost

if TYPE_CHECKING:
    from kcli.inspect.description.metadata_view import ClusterTopics

_OF_LOG_DIRECTORY = (
    FileKind.META_PROPERTIES,
    FileKind.CLEAN_SHUTDOWN,
    FileKind.RECOVERY_POINT_CHECKPOINT,
    FileKind.LOG_START_OFFSET_CHECKPOINT,
    FileKind.REPLICATION_CHECKPOINT,
    FileKind.CLEANER_CHECKPOINT,
)
_NOT_KAFKAS = "not a file that Kafka writes"
_KRAFT_VERSION = 1  # of meta.properties
_NO_META_PROPERTIES = (
    "there is no meta.properties in the log directory: cluster.id is in that of another log directory of the cluster, node.id "
    "in server.properties; `kcli describe --show brokers` lists the directory ids of the node: take the one that no other "
    "directory has"
)


class Root(NamedTuple):
    """The contents of a log directory's own files. `topics` is None if the metadata log is not in it.

    `sibling_topics` are those of another log directory of the same broker, if it is known. `is_clean`: .kafka_cleanshutdown
    exists; `was_stopped_cleanly`: it exists, or a repair has moved it. `lost` are the offsets that repairs have lost.
    """

    path: str
    is_live: bool
    is_clean: bool
    was_stopped_cleanly: bool
    checkpoints: Checkpoints
    meta: MetaProperties | None
    topics: ClusterTopics | None
    sibling_topics: ClusterTopics | None = None
    lost: tuple[LostOffsets, ...] = ()

    @property
    def owner(self) -> Owner:
        """The node that the log directory belongs to."""
        return owner_of(self.path, self.meta)

    def options(self, partition: PartitionDirectory) -> PartitionOptions:
        """Return what the log directory's files contain about one of its partitions."""
        key = (partition.topic, partition.partition)
        of_current = partition.state is DirectoryState.CURRENT and not partition.is_metadata_log
        checkpoints = self.checkpoints
        policy, is_known = "", False
        topics = self.topics or self.sibling_topics
        if topics is not None:
            policy = topics.configs.get(partition.topic, {}).get("cleanup.policy", "")
            is_known = partition.topic in topics.ids and partition.topic not in COMPACTED_TOPICS
        return PartitionOptions(
            is_live=self.is_live,
            # A broker closes the metadata log after it wrote .kafka_cleanshutdown, and always loads it as after a crash.
            is_clean=False if self.is_live else None if partition.is_metadata_log else self.was_stopped_cleanly,
            is_compacted="compact" in policy,
            is_never_compacted=is_known and "compact" not in policy,
            recovery_point=checkpoints.recovery_points.get(key) if of_current else None,
            log_start_offset=checkpoints.log_start_offsets.get(key) if of_current else None,
            high_watermark=checkpoints.high_watermarks.get(key) if of_current else None,
            cleaner_offset=checkpoints.cleaner_offsets.get(key) if of_current else None,
            lost=self.lost,
        )


def read_root(
    disk: Disk,
    path: str,
    findings: FindingList,
    *,
    quarantine: str | None = None,
    with_topics: bool = True,
    asks_lock: bool = True,
) -> Root:
    """Read the files of the log directory at `path` that exist; what cannot be read is a finding.

    The metadata log may be large: `with_topics=False` does not read it. A process that holds .lock itself must not test it
    (`asks_lock=False`): closing the file would release the lock. `quarantine` is the quarantine of the directory's repairs,
    None for the default.
    """
    checkpoints = read_checkpoints(disk, path)
    for at, message in checkpoints.problems:
        findings.add("checkpoint-corrupt", at, message)
    meta = None
    meta_path = join_path(path, FileKind.META_PROPERTIES.value)
    if disk.exists(meta_path):
        meta = check_meta_properties(disk, meta_path, findings)
    clean_path = join_path(path, FileKind.CLEAN_SHUTDOWN.value)
    is_clean = disk.is_regular(clean_path)  # a directory of this name is a finding of its own
    if is_clean:
        check_small_file(disk, clean_path, FileKind.CLEAN_SHUTDOWN, findings)
    topics = read_topics(disk, path) if with_topics else None
    folder = quarantine or default_folder(path)
    was_stopped_cleanly = is_clean or is_as_stopped(disk, folder, path)
    lost = tuple(read_lost(disk, folder, path))
    live = asks_lock and is_live(disk, path)
    return Root(path, live, is_clean, was_stopped_cleanly, checkpoints, meta, topics, lost=lost)


def read_topics(disk: Disk, path: str) -> ClusterTopics | None:
    """Read the topics from the metadata log in a log directory, None if there is none or it cannot be read."""
    from kcli.inspect.description.metadata_view import read_cluster_topics

    try:
        return read_cluster_topics(disk, path)
    except OSError:
        return None  # the verification of the metadata log reports the reason


def with_sibling_topics(roots: Sequence[Root]) -> list[Root]:
    """Return the log directories, those without a metadata log with the topics of one of the same broker that has it."""
    known = [root for root in roots if root.topics is not None]
    return [
        root._replace(sibling_topics=next((one.topics for one in known if one.owner.is_same_node(root.owner)), None))
        for root in roots
    ]


def check_log_directory(
    disk: Disk, directory: LogDirectory, root: Root, findings: FindingList, *, elsewhere: Set[tuple[str, int]] = frozenset()
) -> None:
    """Check the files and names of a log directory, without the contents of its partitions.

    `elsewhere` are the partitions (topic, number) in other log directories of the same broker.
    """
    if root.is_live:
        findings.add("directory-live", directory.path, "a running broker holds .lock in the log directory")
    elif any(directory.file(kind) is not None for kind in _OF_LOG_DIRECTORY):  # not only a folder with copied partitions
        if not root.is_clean:
            findings.add("unclean-shutdown", directory.path, "there is no .kafka_cleanshutdown in the log directory")
        if directory.file(FileKind.META_PROPERTIES) is None:
            findings.add("meta-properties-missing", directory.path, _NO_META_PROPERTIES)
        if directory.file(FileKind.REPLICATION_CHECKPOINT) is None and any(map(_has_high_watermark, directory.partitions)):
            message = "there is no replication-offset-checkpoint in the log directory: no high watermark is known, and kcli "
            message += "compact cleans nothing before a broker has run"
            findings.add("high-watermark-missing", directory.path, message)
    for path, why in directory.unreadable:
        if root.is_live and not disk.exists(path):
            continue
        findings.add("file-unreadable", path, f"the partition's directory cannot be read: {why}")
    for name in directory.other_directories:
        if name != REMOTE_INDEX_CACHE_DIRECTORY:
            message = f"{name!r} is not in the form <topic>-<partition>"
            findings.add("directory-name", join_path(directory.path, name), message)
    for file in directory.files:
        if root.is_live and not disk.exists(file.path):
            continue  # a temporary file, or the directory of a topic that was deleted
        _check_file(disk, file, findings, is_live=root.is_live)
    _check_states(directory, findings)
    if not root.is_live:
        _check_missing_partitions(directory, root, findings, elsewhere)


def _has_high_watermark(partition: PartitionDirectory) -> bool:
    """Return True if a broker checkpoints the high watermark of the partition."""
    return partition.state is DirectoryState.CURRENT and not partition.is_metadata_log


def _check_file(disk: Disk, file: FoundFile, findings: FindingList, *, is_live: bool) -> None:
    if file.state is FileState.TEMPORARY:
        if not is_live:
            findings.add("leftover-temporary", file.path, file.parsed.sentence())
    elif file.kind is FileKind.BOOTSTRAP_CHECKPOINT and file.is_current:
        check_metadata_snapshot(disk, file.path, findings)
    elif file.kind in PARTITION_KINDS:
        sentence = file.parsed.sentence() if file.parsed.is_regular else _NOT_KAFKAS
        message = f"{sentence}; it is in the root of a log directory, where a broker reads no file of a partition"
        findings.add("file-unknown", file.path, message)
    elif file.kind is FileKind.UNKNOWN or not file.is_current:
        findings.add("file-unknown", file.path, f"{file.parsed.sentence()} in the root of a log directory")


def _check_states(directory: LogDirectory, findings: FindingList) -> None:
    for partition in directory.partitions:
        if partition.state is DirectoryState.STRAY:
            findings.add("directory-stray", partition.path, "the partition is set aside as stray")
        elif partition.state is DirectoryState.DELETE:
            findings.add("leftover-deleted", partition.path, "the partition is marked to be deleted")


def _check_missing_partitions(
    directory: LogDirectory, root: Root, findings: FindingList, elsewhere: Set[tuple[str, int]]
) -> None:
    of_kinds = (
        (FileKind.RECOVERY_POINT_CHECKPOINT, "recovery point", root.checkpoints.recovery_points),
        (FileKind.REPLICATION_CHECKPOINT, "high watermark", root.checkpoints.high_watermarks),
    )
    for key in missing_partitions(directory, root):
        stated = [(kind, what, offsets[key]) for kind, what, offsets in of_kinds if key in offsets]
        topic, partition = key
        message = f"the file names {topic}-{partition}, which has no directory here"
        end_offset = max(offset for _, _, offset in stated)
        if end_offset > 0:
            why = ", ".join(f"the {what} is {offset}" for _, what, offset in stated)
            message += f"; it held offsets up to {end_offset - 1} ({why})"
        if root.topics is not None:
            message += f"; the metadata log {'has' if topic in root.topics.ids else 'does not have'} the topic"
        if key in elsewhere:
            message += "; another log directory of the node has the partition: if it was moved there, nothing is missing"
        findings.add("partition-missing", join_path(directory.path, stated[0][0].value), message)


def missing_partitions(directory: LogDirectory, root: Root) -> list[tuple[str, int]]:
    """Return the partitions that a checkpoint of the log directory names and that are not in it, sorted."""
    here = {(partition.topic, partition.partition) for partition in directory.partitions}
    here.update(_named(path) for path, _ in directory.unreadable)
    named = root.checkpoints.recovery_points.keys() | root.checkpoints.high_watermarks.keys()
    return sorted(named - here)


def _named(path: str) -> tuple[str, int]:
    topic, _, partition = path.rpartition("/")[2].rpartition("-")
    return topic, int(partition) if partition.isdecimal() else -1


def check_topic_id(
    disk: Disk, partition: PartitionDirectory, root: Root, topics: ClusterTopics | None, findings: FindingList
) -> None:
    """Check partition.metadata of a partition; `topics` are those of the cluster's metadata log, if it is known."""
    if partition.state not in (DirectoryState.CURRENT, DirectoryState.FUTURE):
        return
    path = partition.file(FileKind.PARTITION_METADATA)
    is_known_to = topics is not None and not root.is_live and partition.topic != METADATA_TOPIC
    if path is None:
        is_kraft = root.meta is not None and root.meta.version >= _KRAFT_VERSION
        is_directory = FileKind.PARTITION_METADATA.value in partition.directories  # a finding of its own
        if is_kraft and not root.is_live and not partition.is_metadata_log and not is_directory:
            message = "there is no partition.metadata in the partition's directory"
            findings.add("partition-metadata-missing", partition.path, message)
        if topics is not None and is_known_to and partition.topic in topics.ids:
            _check_placement(partition, root, topics, partition.path, findings)
        return
    metadata = check_partition_metadata(disk, path, findings)
    if metadata is None or topics is None or not is_known_to:
        return
    expected = topics.ids.get(partition.topic)
    if expected is None:
        findings.add("topic-unknown", path, f"the metadata log has no topic {partition.topic}")
    elif expected != metadata.topic_id:
        message = topic_id_conflict(partition.topic, path, metadata.topic_id, topics.path, expected)
        findings.add("topic-id-mismatch", path, message)
    else:
        _check_placement(partition, root, topics, path, findings)


def _check_placement(
    partition: PartitionDirectory, root: Root, topics: ClusterTopics, path: str, findings: FindingList
) -> None:
    """Check that the metadata log, which has the topic, has the partition and places a replica on the node.

    Kafka renames other partitions to *-stray (LogManager.isStrayReplica). The log directory does not matter: a broker reports
    to the controller in which one it found the replica.
    """
    name = f"{partition.topic}-{partition.partition}"
    registration = topics.partitions.get((partition.topic, partition.partition))
    if registration is None:
        count = sum(topic == partition.topic for topic, _ in topics.partitions)
        if count:  # a topic has at least one partition; with none the metadata log has lost records
            message = f"the metadata log has no {name}, only {format_count(count, 'other partition')} of {partition.topic}"
            findings.add("topic-unknown", path, message)
        return
    node_id = root.meta.node_id if root.meta is not None else None
    if node_id is not None and node_id not in registration.replicas:
        nodes = ", ".join(map(str, registration.replicas))
        message = f"the metadata log does not place {name} on node {node_id}: its replicas are on {nodes}"
        findings.add("topic-unknown", path, message)


def check_across(directories: Sequence[LogDirectory], roots: Sequence[Root], findings: FindingList) -> None:
    """Check several log directories against each other: identities, and partitions that exist twice on one broker."""
    _check_identities(roots, findings)
    seen: dict[tuple[str, int, DirectoryState], list[tuple[Root, str]]] = {}
    for directory, root in zip(directories, roots, strict=True):
        for partition in directory.partitions:
            if partition.state not in (DirectoryState.CURRENT, DirectoryState.FUTURE):
                continue
            others = seen.setdefault((partition.topic, partition.partition, partition.state), [])
            for other, path in others:
                if not root.owner.is_other_node(other.owner):
                    message = f"the partition {partition.topic}-{partition.partition} exists in {path} too"
                    findings.add("partition-duplicate", partition.path, message)
                    break
            others.append((root, partition.path))


def _check_identities(roots: Sequence[Root], findings: FindingList) -> None:
    known = [root for root in roots if root.meta is not None]
    ids: dict[str, str] = {}
    for root in known:
        path = join_path(root.path, FileKind.META_PROPERTIES.value)
        if root.owner.is_other_node(known[0].owner):
            message = f"the log directory is of another broker: {root.owner.sentence}, {known[0].owner.sentence}"
            findings.add("meta-properties-differ", path, message)
        directory_id = root.meta.directory_id if root.meta is not None else None
        if directory_id is not None:
            other_path = ids.setdefault(str(directory_id), root.path)
            if other_path != root.path:
                findings.add("directory-id-twice", path, f"directory.id {directory_id} is also that of {other_path}")
