"""The batches of each partition in the order in which they are sent, and the sticky partition of a topic (Kafka: TopicInfo).

    end of a queue    which batches
    ----------------  -------------------------------------------------------------------------------------------------------
    first             the next one to send. A batch that comes back after an error is put here; that of an idempotent producer
                      behind the returned ones with lower sequences
    last              the only one that may be open, which takes records

This one source runs two ways, as kcli.format.record_scan does; its C types are in topic_queues.pxd.
"""

from __future__ import annotations

from collections import deque

from kcli.client.cluster import Cluster
from kcli.client.producer import partitioner, producer_batch

# Sequences wrap at 2**31; at most five batches of a partition are in flight.
_SEQUENCE_MASK = 0x7FFF_FFFF
_HALF_OF_SEQUENCES = 0x4000_0000


class PartitionQueue:
    """The batches of a partition; `last` is the last of them, None if there are none."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.batches: deque[producer_batch.ProducerBatch] = deque()
        self.last: producer_batch.ProducerBatch | None = None

    def add(self, batch: producer_batch.ProducerBatch) -> None:
        """Put a new batch at the end."""
        self.batches.append(batch)
        self.last = batch

    def remove(self, batch: producer_batch.ProducerBatch) -> None:
        """Take a batch out if it is in the queue."""
        if batch in self.batches:
            self.batches.remove(batch)
            self._find_last()

    def take_first(self) -> producer_batch.ProducerBatch:
        """Take out the first batch."""
        batch = self.batches.popleft()
        if not self.batches:
            self.last = None
        return batch

    def put_back(self, batch: producer_batch.ProducerBatch, *, in_sequence: bool) -> None:
        """Put a batch that was sent at the front, or behind those with lower sequences."""
        index = 0
        if in_sequence:
            while index < len(self.batches) and _is_before(self.batches[index], batch):
                index += 1
        self.batches.insert(index, batch)
        self._find_last()

    def _find_last(self) -> None:
        # Compiled code has no negative indexes.
        count = len(self.batches)
        self.last = self.batches[count - 1] if count else None

    def load(self, batch_size: int) -> int:
        """Return the number of batches. One that has grown counts as many times as it has `batch_size`."""
        total = 0
        for batch in self.batches:
            total += max(batch.builder.estimated_size() // max(batch_size, 1), 1)
        return total

    def has_room(self) -> bool:
        """Return whether the last batch is not full. Another batch is never open."""
        return self.last is not None and not self.last.builder.is_full()


def _is_before(batch: producer_batch.ProducerBatch, other: producer_batch.ProducerBatch) -> bool:
    if not batch.has_sequence:
        return False
    return 0 < (other.base_sequence - batch.base_sequence & _SEQUENCE_MASK) < _HALF_OF_SEQUENCES


class TopicQueues:
    """The queues of a topic and its sticky partition (Kafka: TopicInfo)."""

    def __init__(self, topic: str, built_in_partitioner: partitioner.BuiltInPartitioner) -> None:
        self.topic = topic
        self.partitioner = built_in_partitioner
        self.queues: dict[int, PartitionQueue] = {}

    def queue(self, partition: int) -> PartitionQueue:
        """Return the queue of a partition; the first call makes it."""
        found = self.queues.get(partition)
        if found is None:
            found = self.queues[partition] = PartitionQueue(self.topic, partition)
        return found

    def sticky_queue(self, cluster: Cluster) -> PartitionQueue:
        """Return the queue of the sticky partition. A change that waited for a full batch is made first."""
        found = self.queue(self.partitioner.current_partition(cluster))
        if self.partitioner.is_switch_due() and not found.has_room():
            self.partitioner.update(0, cluster, True)
            found = self.queue(self.partitioner.current_partition(cluster))
        return found
