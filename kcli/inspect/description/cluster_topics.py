"""Topic ids and settings from the cluster's metadata log, if it is in the same log directory as the partitions.

A repair uses them: the id for a partition.metadata that was lost, index.interval.bytes for indexes that are rebuilt, and
whether another replica has the records that are lost here. Records that cannot be read are skipped; the verification of the
metadata log reports them.
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.format.file_names import METADATA_TOPIC
from kcli.format.kafka_uuid import Uuid
from kcli.inspect.description.metadata_view import read_metadata_log
from kcli.inspect.description.remarks import Remarks
from kcli.inspect.quantities import format_count
from kcli.log.disk.port import Disk, join_path
from kcli.log.files.indexes import IndexSettings
from kcli.log.files.log_directory import read_partition
from kcli.state.metadata_values import PartitionRegistration

METADATA_DIRECTORY = f"{METADATA_TOPIC}-0"
_INTERVAL = "index.interval.bytes"
_INDEX_BYTES = "segment.index.bytes"


class OtherReplicas(NamedTuple):
    """The number of replicas of a partition, and of those on other nodes that have all records: the ISR and the ELR."""

    replicas: int
    others_in_sync: int

    @property
    def are_in_sync(self) -> bool:
        """Whether another replica has the records."""
        return self.replicas > 1 and self.others_in_sync > 0

    @property
    def sentence(self) -> str:
        """A clause on the number of replicas, without a full stop."""
        if self.replicas > 1 and not self.others_in_sync:
            return f"the partition has {self.replicas} replicas, and no other one is in sync"
        return f"the partition has {format_count(self.replicas, 'replica')}"


class ClusterTopics(NamedTuple):
    """Topic ids by name, and the settings of topics, by topic and setting.

    `partitions` are the registrations by topic and partition. `brokers` are the dynamic settings of brokers, by id; those of
    the cluster have the id "". `path` is the directory of the metadata log. `damage` is a sentence if the metadata log is
    damaged and its contents may therefore be out of date, else "".
    """

    path: str
    ids: dict[str, Uuid]
    configs: dict[str, dict[str, str]]
    brokers: dict[str, dict[str, str]]
    damage: str
    partitions: dict[tuple[str, int], PartitionRegistration]

    def other_replicas(self, topic: str, partition: int, node_id: int | None) -> OtherReplicas | None:
        """Return which other replicas have the records of the one on a node, None for a partition that is not in the log."""
        found = self.partitions.get((topic, partition))
        if found is None or not found.replicas:
            return None
        have_records = {*found.isr, *found.eligible_leader_replicas}
        in_sync = len(have_records - {node_id}) if node_id is not None else len(have_records) - 1
        return OtherReplicas(len(found.replicas), in_sync)

    def index_settings(self, topic: str) -> IndexSettings:
        """Return the topic's settings for indexes: its own, else Kafka's defaults."""
        own = self.configs.get(topic, {})
        default = IndexSettings()
        interval, most = own.get(_INTERVAL, ""), own.get(_INDEX_BYTES, "")
        return IndexSettings(
            int(interval) if interval.isdecimal() else default.interval_bytes,
            int(most) if most.isdecimal() else default.max_bytes,
        )


def read_cluster_topics(disk: Disk, log_directory: str) -> ClusterTopics | None:
    """Read the metadata log of a log directory; return None if there is none. Raises OSError."""
    directory = join_path(log_directory, METADATA_DIRECTORY)
    if not disk.is_directory(directory):
        return None
    remarks = Remarks()
    image = read_metadata_log(disk, read_partition(disk, directory), None, remarks).image
    damage = next((f"{problem.path}: {problem.message}" for problem in remarks.problems), "")
    partitions = {
        (topic.name, number): partition for topic in image.topics.values() for number, partition in topic.partitions.items()
    }
    topics, brokers = image.configs_of("TOPIC"), image.configs_of("BROKER")
    return ClusterTopics(directory, dict(image.topic_ids), topics, brokers, damage, partitions)
