"""The cluster and node of a log directory, so that several directories are combined only if they belong together.

    meta.properties of the log directory            states
    ----------------------------------------------  --------------------------------------------------------------------
    version 1 (KRaft)                               cluster.id and node.id
    version 0 (ZooKeeper)                           broker.id; cluster.id, but not in every file
    none (copied partitions)                        nothing

    combined                                        if
    ----------------------------------------------  --------------------------------------------------------------------
    the metadata log of one log directory with      both state the same cluster.id and node.id: each node has a copy of the
      the partitions of another one                 metadata log of its own
    partitions of one topic name in several log     no two of them state different clusters (meta.properties) or different
      directories                                   topic ids (partition.metadata)
    a partition with a topic of the metadata log    partition.metadata has the topic id that the metadata log has

Two clusters may have topics of one name, and a topic that was deleted and created again has another id: the id
identifies a topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kcli.format import limits
from kcli.format.file_names import FileKind
from kcli.format.kafka_uuid import Uuid
from kcli.format.metadata_files import MetaProperties, decode_meta_properties
from kcli.format.primitives import CorruptCheckpointError
from kcli.log.disk.port import Disk, join_path
from kcli.log.files.log_directory import PartitionDirectory, read_topic_id


class TwoTopicsError(Exception):
    """Partitions with one topic name that belong to two topics; the message is a clause that names the files."""


class Owner(NamedTuple):
    """The node that a log directory belongs to; an id is None where meta.properties does not state it."""

    directory: str
    cluster_id: str | None = None
    node_id: int | None = None

    @property
    def path(self) -> str:
        """The path of meta.properties, which may be missing."""
        return join_path(self.directory, FileKind.META_PROPERTIES.value)

    @property
    def is_known(self) -> bool:
        """True if both the cluster and the node are stated."""
        return self.cluster_id is not None and self.node_id is not None

    @property
    def sentence(self) -> str:
        """The clause `<path> states cluster.id X and node.id N`."""
        stated = (
            f"{key} {value}" for key, value in (("cluster.id", self.cluster_id), ("node.id", self.node_id)) if value is not None
        )
        return f"{self.path} states {' and '.join(stated) or 'no cluster.id and no node.id'}"

    def is_same_node(self, other: Owner) -> bool:
        """Return True if both state the same cluster and the same node."""
        return self.is_known and (self.cluster_id, self.node_id) == (other.cluster_id, other.node_id)

    def is_other_cluster(self, other: Owner) -> bool:
        """Return True if both state a cluster, and the clusters differ."""
        return None not in (self.cluster_id, other.cluster_id) and self.cluster_id != other.cluster_id

    def is_other_node(self, other: Owner) -> bool:
        """Return True if both state a cluster, or a node, and these differ."""
        if self.is_other_cluster(other):
            return True
        return None not in (self.node_id, other.node_id) and self.node_id != other.node_id


def owner_of(directory: str, meta: MetaProperties | None) -> Owner:
    """Return the owner of a log directory by its decoded meta.properties, None if that is missing."""
    return Owner(directory) if meta is None else Owner(directory, meta.cluster_id, meta.node_id)


def read_owner(disk: Disk, directory: str) -> Owner:
    """Read the owner of a log directory. Raises CorruptCheckpointError, whose message begins with the path, and OSError."""
    path = Owner(directory).path
    if not disk.exists(path):
        return Owner(directory)
    try:
        return owner_of(directory, decode_meta_properties(disk.read_file(path, limits.MAX_TEXT_FILE_BYTES)))
    except CorruptCheckpointError as error:
        raise CorruptCheckpointError(f"{path}: {error.message}") from None


def metadata_owners(owner: Owner, with_metadata_log: Iterable[Owner]) -> list[Owner]:
    """Return the log directories whose metadata log belongs to the log directory of `owner`.

    If it has a metadata log itself, that is the only one. Several of one node are an error: a node has one metadata log.
    """
    candidates = list(with_metadata_log)
    if own := [one for one in candidates if one.directory == owner.directory]:
        return own
    return [one for one in candidates if owner.is_same_node(one)]


def cluster_conflict(one: Owner, other: Owner) -> str:
    """Return the clause that names two clusters and the files that state them."""
    return f"{one.path} states cluster.id {one.cluster_id}, {other.path} states cluster.id {other.cluster_id}"


def topic_id_conflict(topic: str, path: str, topic_id: Uuid, other_path: str, other_id: Uuid) -> str:
    """Return the clause that names two topics of one name by their ids and the files (partition.metadata, a metadata log)."""
    return f"{path} has topic id {topic_id} for {topic}, {other_path} has {other_id}"


def check_one_topic(disk: Disk, partitions: Sequence[PartitionDirectory]) -> None:
    """Check that partitions with one topic name, of several log directories, are not known to belong to two topics.

    Raises TwoTopicsError; CorruptCheckpointError, whose message begins with the path, if only meta.properties can show it and
    cannot be read; OSError. An unreadable partition.metadata does not count: `kcli verify` reports it.
    """
    directories = list(dict.fromkeys(part.log_directory for part in partitions))
    if len(directories) < 2:
        return
    ids: dict[Uuid, str] = {}
    for part in partitions:
        path = part.file(FileKind.PARTITION_METADATA)
        try:
            topic_id = read_topic_id(disk, part)
        except CorruptCheckpointError:
            continue
        if path is None or topic_id is None:
            continue
        ids.setdefault(topic_id, path)
        if len(ids) > 1:
            (first_id, first), *_ = ids.items()
            raise TwoTopicsError(topic_id_conflict(part.topic, first, first_id, path, topic_id))
    stated: list[Owner] = []
    for directory in directories:
        try:
            owner = read_owner(disk, directory)
        except CorruptCheckpointError:
            if not ids:
                raise
            continue
        if owner.cluster_id is not None:
            stated.append(owner)
    for other in stated[1:]:
        if stated[0].is_other_cluster(other):
            raise TwoTopicsError(cluster_conflict(stated[0], other))
