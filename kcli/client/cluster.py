"""The partitions and leaders that a client knows, as one immutable snapshot (Kafka: Cluster, MetadataSnapshot).

    value             meaning
    ----------------  ----------------------------------------------------------------------------------------------
    node              a broker's id
    leader            the leader's id, NO_LEADER if there is none or its broker is not known
    leader_epoch      counts the leaders of the partition (KIP-320), NO_EPOCH if the broker did not report it

A new snapshot is made of each metadata response; the accumulator and the partitioners get it with each call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kcli.format.primitives import TopicPartition

NO_LEADER = -1
NO_EPOCH = -1
UNKNOWN_PARTITION = -1  # of a record: the accumulator chooses


class PartitionInfo(NamedTuple):
    """A partition with its leader (Kafka: PartitionInfo)."""

    topic: str
    partition: int
    leader: int = NO_LEADER
    leader_epoch: int = NO_EPOCH
    replicas: tuple[int, ...] = ()
    in_sync_replicas: tuple[int, ...] = ()
    offline_replicas: tuple[int, ...] = ()


class Cluster:
    """One snapshot; the lists are in the order of the partitions' numbers."""

    def __init__(self, partitions: Iterable[PartitionInfo] = ()) -> None:
        self._by_partition: dict[TopicPartition, PartitionInfo] = {}
        by_topic: dict[str, list[PartitionInfo]] = {}
        by_node: dict[int, list[PartitionInfo]] = {}
        for one in sorted(partitions):
            self._by_partition[one.topic, one.partition] = one
            by_topic.setdefault(one.topic, []).append(one)
            if one.leader != NO_LEADER:
                by_node.setdefault(one.leader, []).append(one)
        self._by_topic = {topic: tuple(found) for topic, found in by_topic.items()}
        self._by_node = {node: tuple(found) for node, found in by_node.items()}
        self._available = {
            topic: tuple(one for one in found if one.leader != NO_LEADER) for topic, found in self._by_topic.items()
        }

    @property
    def topics(self) -> Iterable[str]:
        """The names of the topics."""
        return self._by_topic.keys()

    @property
    def partitions(self) -> Iterable[PartitionInfo]:
        """All partitions."""
        return self._by_partition.values()

    def partition(self, topic: str, partition: int) -> PartitionInfo | None:
        """Return a partition, None if it is not known."""
        return self._by_partition.get((topic, partition))

    def partitions_for_topic(self, topic: str) -> tuple[PartitionInfo, ...]:
        """Return all partitions of a topic, none if the topic is not known."""
        return self._by_topic.get(topic, ())

    def available_partitions_for_topic(self, topic: str) -> tuple[PartitionInfo, ...]:
        """Return the partitions of a topic that have a leader."""
        return self._available.get(topic, ())

    def partitions_for_node(self, node: int) -> tuple[PartitionInfo, ...]:
        """Return the partitions that `node` leads, sorted by topic and partition."""
        return self._by_node.get(node, ())

    def leader_for(self, topic: str, partition: int) -> int:
        """Return the leader of a partition, NO_LEADER if it has none or is not known."""
        found = self._by_partition.get((topic, partition))
        return NO_LEADER if found is None else found.leader

    def leader_epoch_for(self, topic: str, partition: int) -> int:
        """Return the leader epoch of a partition, NO_EPOCH if it is not known."""
        found = self._by_partition.get((topic, partition))
        return NO_EPOCH if found is None else found.leader_epoch
