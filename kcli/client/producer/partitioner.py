"""The choice of a record's partition (Kafka: KafkaProducer.partition, BuiltInPartitioner, RoundRobinPartitioner).

    record                                       partition
    -------------------------------------------  --------------------------------------------------------------------------
    has a partition                              that one
    the producer has a partitioner of its own    what it returns (partitioner.class)
    has a key                                    hash of the key modulo partitions, unless partitioner.ignore.keys is set;
                                                 it counts partitions without a leader, so that a key never moves
    no key                                       the sticky partition of its topic (KIP-480, KIP-794)

The sticky partition changes after batch.size bytes, but not while its last batch has room for more: batches would be sent half
empty. At 2 * batch.size bytes it changes in any case.

    choice of the next sticky partition          when
    -------------------------------------------  --------------------------------------------------------------------------
    random, weighted: most batches in a queue    partitioner.adaptive.partitioning.enable, each partition of the topic had
    + 1 - the batches in this partition's queue  a batch, and the queues differ or one is left out. Partitions without leader
                                                 are left out, and so are those of a node that could not take its batches
                                                 for partitioner.availability.timeout.ms
    random, all with the same weight             else: of the partitions with a leader, or of all if none has one

Apache Kafka removed UniformStickyPartitioner and DefaultPartitioner in 4.0; the sticky choice has replaced them.
This one source runs two ways, as kcli.format.record_scan does; its C types are in partitioner.pxd.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from kcli.client.cluster import UNKNOWN_PARTITION, Cluster
from kcli.client.errors import InvalidPartitionError
from kcli.format import murmur2
from kcli.log.rng import Random

MOST_RANDOM = 0x7FFF_FFFF

# (topic, key, value, cluster) -> partition
Partitioner = Callable[[str, bytes | None, bytes | None, Cluster], int]


class RecordPartitioner:
    """Chooses the partition of each record of a producer, by the first table of this module."""

    def __init__(self, partitioner: Partitioner | None = None, *, ignore_keys: bool = False) -> None:
        self._partitioner = partitioner
        self._ignore_keys = ignore_keys

    def partition(self, topic: str, partition: int, key: bytes | None, value: bytes | None, cluster: Cluster) -> int:
        """Return a record's partition, UNKNOWN_PARTITION if the accumulator is to choose; `partition` is the given one or -1.

        Raises InvalidPartitionError if the producer's own partitioner returns a partition that the topic does not have.
        """
        if partition != UNKNOWN_PARTITION:
            return partition
        if self._partitioner is not None:
            return self._own_choice(topic, key, value, cluster)
        if key is None or self._ignore_keys:
            return UNKNOWN_PARTITION
        return murmur2.partition_for_key(key, len(cluster.partitions_for_topic(topic)))

    def _own_choice(self, topic: str, key: bytes | None, value: bytes | None, cluster: Cluster) -> int:
        assert self._partitioner is not None
        chosen = self._partitioner(topic, key, value, cluster)
        count = len(cluster.partitions_for_topic(topic))
        if not 0 <= chosen < count:
            raise InvalidPartitionError(f"the partitioner returned partition {chosen} of topic {topic}, which has {count}")
        return chosen


class RoundRobinPartitioner:
    """Writes to one partition after the other, also records with a key (Kafka: RoundRobinPartitioner)."""

    def __init__(self) -> None:
        self._counters: dict[str, int] = {}

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, cluster: Cluster) -> int:
        """Return the next partition of `topic` that has a leader, or the next of all if none has one."""
        count = self._counters.get(topic, 0)
        self._counters[topic] = count + 1 & MOST_RANDOM
        partitions = cluster.available_partitions_for_topic(topic) or cluster.partitions_for_topic(topic)
        return partitions[count % len(partitions)].partition


class BuiltInPartitioner:
    """The sticky partition of one topic; sizes are in bytes."""

    def __init__(self, topic: str, sticky_batch_size: int, rng: Random) -> None:
        self.topic = topic
        self.sticky_batch_size = max(1, sticky_batch_size)
        self.partition = UNKNOWN_PARTITION
        self.produced_bytes = 0
        self._rng = rng
        # Running sums of the weights, and the partitions that they belong to; None: all partitions have the same weight.
        self._sums: list[int] | None = None
        self._partition_ids: list[int] = []
        self._sum = 0

    def current_partition(self, cluster: Cluster) -> int:
        """Return the sticky partition; the first call chooses it."""
        if self.partition == UNKNOWN_PARTITION:
            self.partition = self._next_partition(cluster)
        return self.partition

    def update(self, appended_bytes: int, cluster: Cluster, can_switch: bool) -> None:
        """Count bytes that were appended to the sticky partition, and choose another one if they are enough.

        `can_switch` is False while the last batch of the partition has room for more.
        """
        self.produced_bytes += appended_bytes
        if self.produced_bytes < self.sticky_batch_size:
            return
        if can_switch or self.produced_bytes >= 2 * self.sticky_batch_size:
            self.partition = self._next_partition(cluster)
            self.produced_bytes = 0

    def is_switch_due(self) -> bool:
        """Return whether the sticky partition has had its bytes and changes as soon as its last batch is full."""
        return self.produced_bytes >= self.sticky_batch_size

    def update_load(self, queue_sizes: list[int] | None, partition_ids: list[int], partition_count: int) -> None:
        """Set the weights by the numbers of batches in the queues of the partitions `partition_ids`.

        `partition_count` includes the partitions that are left out. None, or a topic of one partition, sets equal weights.
        """
        self._sums = None
        if not queue_sizes or partition_count < 2:
            return
        if len(queue_sizes) == partition_count and min(queue_sizes) == max(queue_sizes):
            return
        most = max(queue_sizes) + 1
        total = 0
        sums = []
        for size in queue_sizes:
            total += most - size
            sums.append(total)
        self._sums, self._partition_ids, self._sum = sums, list(partition_ids), total

    def _next_partition(self, cluster: Cluster) -> int:
        number = self._rng.randint(0, MOST_RANDOM)
        if self._sums is not None:
            return self._partition_ids[bisect_right(self._sums, number % self._sum)]
        partitions = cluster.available_partitions_for_topic(self.topic) or cluster.partitions_for_topic(self.topic)
        if not partitions:
            raise InvalidPartitionError(f"the partitions of topic {self.topic} are not known")
        return partitions[number % len(partitions)].partition
