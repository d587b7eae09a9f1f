"""The moves of partitions within one assignment: a topic has no moves in both directions between two members (KIP-54).

If a partition is to move from A to B, and one of the same topic has moved from B to A, that one moves back instead. Of several,
it is the first of Kafka's HashSet.
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.client.consumer.consumer_protocol import TopicPartition
from kcli.format.java_text import HashSet, java_hash


class MemberPair(NamedTuple):
    """From which member to which one a partition moved."""

    source: str
    destination: str


class PartitionMovements:
    """The moves so far."""

    def __init__(self) -> None:
        self._pairs: dict[TopicPartition, MemberPair] = {}
        self._moved: dict[tuple[str, MemberPair], HashSet[TopicPartition]] = {}
        self._topic_hashes: dict[str, int] = {}

    def find_partition(self, partition: TopicPartition, source: str, destination: str) -> TopicPartition:
        """Return the partition that moves to `destination` if `partition` is to move there."""
        pair = self._pairs.get(partition)
        first_source = source if pair is None else pair.source
        opposite = self._moved.get((partition.topic, MemberPair(destination, first_source)))
        return partition if opposite is None else opposite.first()

    def move(self, partition: TopicPartition, source: str, destination: str) -> None:
        """Note a move. The moves of a partition count as one, and as none if it is back."""
        pair = self._pairs.pop(partition, None)
        if pair is None:
            self._add(partition, MemberPair(source, destination))
            return
        moved = self._moved[partition.topic, pair]
        moved.remove(partition)
        if not moved:
            del self._moved[partition.topic, pair]
        if pair.source != destination:
            self._add(partition, MemberPair(pair.source, destination))

    def _add(self, partition: TopicPartition, pair: MemberPair) -> None:
        self._pairs[partition] = pair
        key = partition.topic, pair
        moved = self._moved.get(key)
        if moved is None:
            moved = self._moved[key] = HashSet(self._hash_code)
        moved.add(partition)

    def _hash_code(self, partition: TopicPartition) -> int:
        """Return TopicPartition.hashCode()."""
        topic = partition.topic
        topic_hash = self._topic_hashes.get(topic)
        if topic_hash is None:
            topic_hash = self._topic_hashes[topic] = java_hash(topic)
        return 31 * (31 + partition.partition) + topic_hash
