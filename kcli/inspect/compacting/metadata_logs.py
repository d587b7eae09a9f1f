"""Finds the metadata log that has the settings of a partition, among the named log directories.

    the partition's log directory                    settings come from
    -----------------------------------------------  -------------------------------------------------------------------
    has a metadata log                               that one
    states its cluster and node                      the metadata log of another directory that states the same two
    does not (partitions were copied there)          any metadata log that has the topic with the topic id of
                                                       partition.metadata: ids differ between clusters, names do not

In each case the metadata log must have the topic id of partition.metadata. Otherwise the partition belongs to another topic
of the same name, which was deleted or is in another cluster; its settings are not known, and it is refused.
"""

from __future__ import annotations

from collections.abc import Sequence

from kcli.format.file_names import FileKind
from kcli.format.primitives import CorruptCheckpointError
from kcli.inspect.description.metadata_view import METADATA_DIRECTORY, ClusterTopics, read_cluster_topics
from kcli.log.disk.port import Disk
from kcli.log.files.log_dir_owner import Owner, metadata_owners, read_owner, topic_id_conflict
from kcli.log.files.log_directory import PartitionDirectory, read_topic_id

WAIVER = "--any-policy"


class UnfitError(Exception):
    """None of the named metadata logs belongs to a partition or directory; the message is one sentence."""


class MetadataLogs:
    """The metadata logs of some log directories. Raises UnfitError for a damaged meta.properties, and OSError."""

    def __init__(self, disk: Disk, directories: Sequence[str]) -> None:
        self._disk = disk
        self._owners = {directory: self._read_owner(directory) for directory in directories}
        found = {directory: read_cluster_topics(disk, directory) for directory in directories}
        self._topics = {directory: topics for directory, topics in found.items() if topics is not None}

    def _read_owner(self, directory: str) -> Owner:
        try:
            return read_owner(self._disk, directory)
        except CorruptCheckpointError as error:
            raise UnfitError(f"{error.message}; `kcli verify --repair {directory}` shows what a repair can do") from None

    def owner(self, directory: str) -> Owner:
        """Return the cluster and node of a log directory."""
        return self._owners[directory]

    def other_owners(self) -> tuple[Owner, Owner] | None:
        """Return the owners of two directories that belong to different nodes, or None if all may belong to one node."""
        known = [owner for owner in self._owners.values() if owner.is_known]
        return next(((known[0], other) for other in known[1:] if not known[0].is_same_node(other)), None)

    def of_directory(self, directory: str) -> ClusterTopics | None:
        """Return the topics in the metadata log of a directory's node, None if it was not named.

        Raises UnfitError if two metadata logs of the node were named.
        """
        with_metadata_log = (self._owners[one] for one in self._topics)
        serving = metadata_owners(self._owners[directory], with_metadata_log)
        if len(serving) > 1:
            paths = " and ".join(self._topics[one.directory].path for one in serving)
            raise UnfitError(
                f"{paths} are metadata logs of the same node, so one of them is a copy, and {directory} has none: name only one"
            )
        return self._topics[serving[0].directory] if serving else None

    def of_partition(self, partition: PartitionDirectory) -> ClusterTopics | None:
        """Return the topics of a partition's cluster, None if no metadata log of it was named. Raises UnfitError, OSError."""
        directory, topic = partition.log_directory, partition.topic
        topics = self.of_directory(directory)
        path = partition.file(FileKind.PARTITION_METADATA)
        try:
            topic_id = read_topic_id(self._disk, partition)
        except CorruptCheckpointError as error:
            raise UnfitError(
                f"{path}: {error.message}; the partition was not changed: `kcli verify --repair {directory}` shows what a "
                "repair can do"
            ) from None
        if topics is None:
            if self._owners[directory].is_known or topic_id is None:
                return None
            return next((one for one in self._topics.values() if one.ids.get(topic) == topic_id), None)
        if topics.damage:
            raise UnfitError(
                f"{topics.damage}. The metadata log is damaged, so the present cleanup.policy of {topic} is not certain. The "
                f"partition was not changed: restore the metadata log, or copy the partition elsewhere and give {WAIVER}"
            )
        expected = topics.ids.get(topic)
        if path is None or topic_id is None or expected in (None, topic_id):
            return topics
        conflict = topic_id_conflict(topic, path, topic_id, topics.path, expected)
        raise UnfitError(
            f"{conflict}: the partition belongs to another topic of that name, which was deleted or is in another cluster. It "
            f"was not changed; a broker would rename it to -stray. To compact it, copy it elsewhere and name it with {WAIVER}"
        )

    def mismatch(self, directory: str) -> str | None:
        """Return one sentence if metadata logs were named, but not the one of `directory`; otherwise None."""
        if not self._topics or self.of_directory(directory) is not None:
            return None
        owner, other = self._owners[directory], next(iter(self._topics))
        found = (
            f"{self._topics[other].path} is the metadata log of another node: {self._owners[other].sentence}, {owner.sentence}"
        )
        if not owner.is_known:
            return (
                f"{directory}: only partitions whose partition.metadata has a topic id of {self._topics[other].path} are known "
                f"to belong to its cluster, because {owner.sentence}; name the log directory that the partitions come from"
            )
        return (
            f"{found}; name the log directory of cluster {owner.cluster_id}, node {owner.node_id}, that has "
            f"{METADATA_DIRECTORY}, too"
        )
