"""The records that wait to be sent: a queue of batches for each partition (Kafka: RecordAccumulator).

    call                        what happens
    --------------------------  ---------------------------------------------------------------------------------------------
    append                      a record goes into the last batch of its partition, or into a new one; None: buffer.memory is
                                full, and the caller waits up to max.block.ms for a batch to end
    ready                       which nodes have a batch to take, and when to ask again; sets the partitioners' weights
    drain                       takes the first batch of each partition of these nodes, max.request.size bytes for a node
    reenqueue                   a batch goes back after an error that may pass, with its backoff
    split_and_reenqueue         a batch goes back in parts after MESSAGE_TOO_LARGE
    expired_batches             batches in the queues that are older than delivery.timeout.ms
    deallocate                  a batch has ended: its memory is free
    begin_flush, end_flush      in between all batches are ready without linger.ms
    close                       no more records; all batches are ready

    a batch is ready            if its partition is not muted, it does not back off after a failure, and
    --------------------------  ---------------------------------------------------------------------------------------------
    full                        another batch follows it, or it has batch.size bytes, or it was closed. While it waits for its
                                request, it takes more records, up to kcli.max.batch.size and for at most MOST_GROWTH_MS
    lingered                    linger.ms have passed since its first record
    wanted at once              flush, close, the end of a transaction, callers that wait for memory

A partition is muted while a batch of it is in flight and a second one might overtake it (max.in.flight.requests.per.connection
= 1). With idempotence, the producer's BatchSequencer decides what may be drained, and returned batches are put in the order
of their sequences; without it, a returned batch goes to the front.

Differences from Kafka: a full batch takes records until it is drained, because a request has one batch of a partition, and
many small requests cost more than the records. After MESSAGE_TOO_LARGE the batches of the topic have batch.size at most.
Batches of a codec count their real size in buffer.memory, which may be above batch.size until they are compressed; the
backoff of a retry is drawn once. Times are in ms of the node's own clock, which is monotonic.
This one source runs two ways, as kcli.format.record_scan does; its C types are in record_accumulator.pxd.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from kcli.client.cluster import NO_LEADER, UNKNOWN_PARTITION, Cluster
from kcli.client.errors import ProducerClosedError, RecordTooLargeError
from kcli.client.producer import partitioner, producer_batch, topic_queues
from kcli.client.producer.accumulator_config import AccumulatorConfig
from kcli.client.producer.buffer_pool import BufferPool
from kcli.client.producer.compression_ratio import CompressionRatioEstimator
from kcli.format import memory_records_builder
from kcli.format.primitives import TopicPartition
from kcli.log.rng import Random
from kcli.network.exponential_backoff import ExponentialBackoff

Headers = memory_records_builder.Headers
NO_HEADERS: Headers = ()
# A full batch is closed after this time. If no broker takes it, delivery.timeout.ms would otherwise end very early for records
# that were appended long after the first one.
MOST_GROWTH_MS = 1000


class BatchSequencer(Protocol):
    """What the accumulator asks of an idempotent or transactional producer (Kafka: TransactionManager)."""

    @property
    def is_completing(self) -> bool:
        """Whether a transaction is being committed or aborted, which waits for its batches."""
        ...

    def must_wait(self, batch: producer_batch.ProducerBatch) -> bool:
        """Return whether the first batch of a partition may not be sent now (Kafka: shouldStopDrainBatchesForPartition)."""
        ...

    def assign_sequence(self, batch: producer_batch.ProducerBatch) -> None:
        """Number a batch that is sent for the first time, and count it as in flight."""
        ...

    def add_in_flight_batch(self, batch: producer_batch.ProducerBatch) -> None:
        """Count a part of a split batch, which has a sequence, as in flight."""
        ...


class ReadyCheckResult(NamedTuple):
    """The nodes that have a ready batch, and the ms until the next check, None if only an append or a response changes it."""

    ready_nodes: set[int]
    next_check_delay_ms: int | None
    unknown_leader_topics: set[str]


class RecordAccumulator:
    """The batches of one producer. It is used by one task or thread at a time."""

    def __init__(self, config: AccumulatorConfig, rng: Random, sequencer: BatchSequencer | None = None) -> None:
        self.config = config
        self.pool = BufferPool(config.buffer_memory)
        self.is_closed = False
        # The sender should run now: a batch is begun or full. `ready` resets it, and so may a caller that wakes the sender.
        self.should_wake_sender = False
        self.next_expiry_ms: int | None = None
        self.incomplete: dict[producer_batch.ProducerBatch, None] = {}
        # Batches that `drain` could not encode; the sender fails them.
        self.broken: list[tuple[producer_batch.ProducerBatch, Exception]] = []
        self._rng = rng
        self._sequencer = sequencer
        self._backoff = ExponentialBackoff(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self.compression_ratios = CompressionRatioEstimator()
        self._topics: dict[str, topic_queues.TopicQueues] = {}
        self._muted: set[TopicPartition] = set()
        self._flushes = 0
        self._drain_indexes: dict[int, int] = {}
        # Of each node: when it last had batches to send, and when it last took some.
        self._node_times: dict[int, tuple[int, int]] = {}
        self._batch_size = config.batch_size
        self._max_batch_size = config.most_batch_bytes
        self._small_topics: set[str] = set()  # whose brokers have refused a batch as too large
        self._max_request_size = config.max_request_size

    # --------------------------------------------------------------------------------------------------------- appending

    def append(
        self,
        topic: str,
        partition: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        callback: producer_batch.Callback | None,
        now_ms: int,
        cluster: Cluster,
    ) -> producer_batch.ProducerBatch | None:
        """Append a record, as its batch's last; None means that buffer.memory is full, and nothing was appended.

        The partition UNKNOWN_PARTITION is the sticky one. Raises RecordTooLargeError, ProducerClosedError, ValueError for a
        negative timestamp, and InvalidPartitionError for a topic that `cluster` does not have.
        """
        if self.is_closed:
            raise ProducerClosedError("the producer is closed")
        queues_of_topic = self._topics.get(topic)
        if queues_of_topic is None:
            queues_of_topic = self._add_topic(topic)
        is_sticky = partition == UNKNOWN_PARTITION
        queue = queues_of_topic.sticky_queue(cluster) if is_sticky else queues_of_topic.queue(partition)
        batch = queue.last
        size = 0
        if batch is not None:
            size = batch.builder.estimated_size()
            if size >= batch.builder.full_size and now_ms - batch.created_ms > MOST_GROWTH_MS:
                batch.builder.close_for_appends()
            if not batch.try_append(timestamp, key, value, headers, callback, self.pool):
                batch = None
        if batch is None:
            size = 0
            batch = self._append_to_new_batch(queue, timestamp, key, value, headers, callback, now_ms)
            if batch is None:
                return None
        is_full = batch.builder.is_full()
        if is_sticky:
            queues_of_topic.partitioner.update(batch.builder.estimated_size() - size, cluster, is_full)
        if is_full and size < batch.builder.full_size:
            self.should_wake_sender = True
        return batch

    def _add_topic(self, topic: str) -> topic_queues.TopicQueues:
        sticky = partitioner.BuiltInPartitioner(topic, self._batch_size, self._rng)
        found = self._topics[topic] = topic_queues.TopicQueues(topic, sticky)
        return found

    def _append_to_new_batch(
        self,
        queue: topic_queues.PartitionQueue,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        callback: producer_batch.Callback | None,
        now_ms: int,
    ) -> producer_batch.ProducerBatch | None:
        """Append a record to a new batch, None if there is no memory for it."""
        size = max(self._batch_size, self._checked_size(key, value, headers))
        if not self.pool.allocate(size):
            return None
        builder = memory_records_builder.MemoryRecordsBuilder(
            size, self.config.codec, self.config.compression_level, self.compression_ratios.estimation(queue.topic)
        )
        if size < self._max_batch_size and queue.topic not in self._small_topics:
            builder.write_limit = self._max_batch_size
        batch = producer_batch.ProducerBatch(queue.topic, queue.partition, builder, now_ms, size)
        try:
            batch.try_append(timestamp, key, value, headers, callback, self.pool)
        except Exception:
            self.pool.deallocate(size)
            raise
        queue.add(batch)
        self.incomplete[batch] = None
        self.should_wake_sender = True
        return batch

    def begin_batch(
        self, topic: str, partition: int, size: int, least: int, now_ms: int
    ) -> producer_batch.ProducerBatch | None:
        """Begin a batch of up to `size` bytes, of which the first record takes `least`; None without memory.

        The last batch of the partition takes no more records. Raises RecordTooLargeError, ProducerClosedError.
        """
        if self.is_closed:
            raise ProducerClosedError("the producer is closed")
        if least > min(self._max_request_size, self.pool.total):
            raise RecordTooLargeError(f"the record may take {least} bytes; max.request.size is {self._max_request_size}")
        size = max(least, min(size, self.pool.total // 2))
        if not self.pool.allocate(size):
            return None
        queues_of_topic = self._topics.get(topic) or self._add_topic(topic)
        queue = queues_of_topic.queue(partition)
        if queue.last is not None:
            queue.last.builder.close_for_appends()
        ratio = self.compression_ratios.estimation(topic)
        builder = memory_records_builder.MemoryRecordsBuilder(size, self.config.codec, self.config.compression_level, ratio)
        batch = producer_batch.ProducerBatch(topic, partition, builder, now_ms, size)
        queue.add(batch)
        self.incomplete[batch] = None
        self.should_wake_sender = True
        return batch

    def sticky_partition(self, topic: str, cluster: Cluster) -> int:
        """Return the sticky partition of a topic."""
        queues_of_topic = self._topics.get(topic) or self._add_topic(topic)
        return queues_of_topic.partitioner.current_partition(cluster)

    def update_sticky(self, topic: str, appended_bytes: int, cluster: Cluster) -> None:
        """Count bytes that were appended to the sticky partition, whose batch is full now."""
        queues_of_topic = self._topics.get(topic) or self._add_topic(topic)
        queues_of_topic.partitioner.update(appended_bytes, cluster, True)

    def _checked_size(self, key: bytes | None, value: bytes | None, headers: Headers) -> int:
        """Return the most bytes that the record takes. A record that is too large never fits into a batch that is there."""
        size = memory_records_builder.estimate_size_upper_bound(key, value, headers)
        if size > self._max_request_size:
            raise RecordTooLargeError(f"the record may take {size} bytes; max.request.size is {self._max_request_size}")
        if size > self.pool.total:
            raise RecordTooLargeError(f"the record may take {size} bytes; buffer.memory is {self.pool.total}")
        return size

    # ------------------------------------------------------------------------------------------------------------- ready

    def ready(self, cluster: Cluster, now_ms: int) -> ReadyCheckResult:
        """Return the nodes that have a ready batch, the ms until the next check, and the topics that need new metadata."""
        self.should_wake_sender = False
        ready_nodes: set[int] = set()
        unknown_leader_topics: set[str] = set()
        next_delay_ms = None
        for queues_of_topic in self._topics.values():
            delay_ms = self._topic_ready(queues_of_topic, cluster, now_ms, ready_nodes, unknown_leader_topics)
            if delay_ms is not None and (next_delay_ms is None or delay_ms < next_delay_ms):
                next_delay_ms = delay_ms
        return ReadyCheckResult(ready_nodes, next_delay_ms, unknown_leader_topics)

    def _topic_ready(
        self,
        queues_of_topic: topic_queues.TopicQueues,
        cluster: Cluster,
        now_ms: int,
        ready_nodes: set[int],
        unknown_leader_topics: set[str],
    ) -> int | None:
        """Check the partitions of a topic, and set the weights of its partitioner; return the ms until the next check."""
        topic = queues_of_topic.topic
        sizes: list[int] = []
        partition_ids: list[int] = []
        next_delay_ms = None
        for partition, queue in queues_of_topic.queues.items():
            leader = cluster.leader_for(topic, partition)
            if leader == NO_LEADER:
                if queue.batches:
                    unknown_leader_topics.add(topic)
                continue
            if not queue.batches or self._is_node_available(leader):
                sizes.append(queue.load(self._batch_size) if self._max_batch_size > self._batch_size else len(queue.batches))
                partition_ids.append(partition)
            if not queue.batches or leader in ready_nodes or (topic, partition) in self._muted:
                continue
            queue.batches[0].update_leader_epoch(cluster.leader_epoch_for(topic, partition))
            delay_ms = self._delay_ms(queue, now_ms)
            if delay_ms == 0:
                ready_nodes.add(leader)
            elif next_delay_ms is None or delay_ms < next_delay_ms:
                next_delay_ms = delay_ms
        count = len(queues_of_topic.queues)
        # Only partitions that have had a batch have a queue; the others would never be chosen.
        is_adaptive = self.config.adaptive_partitioning and count >= len(cluster.partitions_for_topic(topic))
        queues_of_topic.partitioner.update_load(sizes if is_adaptive else None, partition_ids, count)
        return next_delay_ms

    def _is_node_available(self, node: int) -> bool:
        if self.config.availability_timeout_ms <= 0 or node not in self._node_times:
            return True
        ready_ms, drained_ms = self._node_times[node]
        return ready_ms - drained_ms <= self.config.availability_timeout_ms

    def _delay_ms(self, queue: topic_queues.PartitionQueue, now_ms: int) -> int:
        """Return the ms until the first batch of a queue is ready, 0 if it is."""
        batch = queue.batches[0]
        if batch.is_backing_off(now_ms):
            return batch.retry_at_ms - now_ms
        is_wanted = self.is_closed or self._flushes > 0 or self.pool.waiting > 0
        is_wanted = is_wanted or (self._sequencer is not None and self._sequencer.is_completing)
        # A batch that another one follows is closed, which counts as full.
        if is_wanted or batch.builder.is_full():
            return 0
        return max(0, batch.last_attempt_ms + self.config.linger_ms - now_ms)

    def update_node_times(self, node: int, now_ms: int, *, can_drain: bool) -> None:
        """Note that a node has a ready batch and whether it can take it (Kafka: updateNodeLatencyStats)."""
        if self.config.availability_timeout_ms > 0:
            drained_ms = now_ms if can_drain else self._node_times.get(node, (now_ms, now_ms))[1]
            self._node_times[node] = (now_ms, drained_ms)

    # ------------------------------------------------------------------------------------------------------------ drain

    def drain(self, cluster: Cluster, nodes: Iterable[int], now_ms: int) -> dict[int, list[producer_batch.ProducerBatch]]:
        """Take out batches for requests to `nodes`, at most one of each partition and max.request.size bytes for a node.

        One batch may be larger than that. A batch that is not ready is taken, too, if its node gets a request anyway.
        """
        return {node: self._drain_node(cluster, node, now_ms) for node in nodes}

    def _drain_node(self, cluster: Cluster, node: int, now_ms: int) -> list[producer_batch.ProducerBatch]:
        partitions = cluster.partitions_for_node(node)
        drained: list[producer_batch.ProducerBatch] = []
        size = 0
        # Each node continues where its last request ended, so that no partition starves.
        start = self._drain_indexes.get(node, 0)
        for step in range(len(partitions)):
            index = (start + step) % len(partitions)
            topic, partition = partitions[index].topic, partitions[index].partition
            self._drain_indexes[node] = index
            queue = self._queue_if_any(topic, partition)
            if queue is None or not queue.batches or (topic, partition) in self._muted:
                continue
            first = queue.batches[0]
            first.update_leader_epoch(partitions[index].leader_epoch)
            if first.is_backing_off(now_ms):
                continue
            if drained and size + first.builder.estimated_size() > self._max_request_size:
                break
            if self._sequencer is not None and self._sequencer.must_wait(first):
                # Kafka ends the request here. The other partitions of the node do not depend on this one.
                continue
            try:
                size += self._take(queue, now_ms)
            except Exception as error:
                self.broken.append((first, error))
                continue
            drained.append(first)
        return drained

    def _take(self, queue: topic_queues.PartitionQueue, now_ms: int) -> int:
        """Take out the first batch of a queue and encode it; return its size."""
        batch = queue.take_first()
        if self._sequencer is not None and not batch.has_sequence:
            self._sequencer.assign_sequence(batch)
        uncompressed = batch.builder.position
        is_new = not batch.attempts
        size = batch.close(self.pool)
        if is_new and self.config.codec:
            self.compression_ratios.update(batch.topic, size / uncompressed)
        batch.drained_ms = now_ms
        return size

    def _queue_if_any(self, topic: str, partition: int) -> topic_queues.PartitionQueue | None:
        queues_of_topic = self._topics.get(topic)
        return None if queues_of_topic is None else queues_of_topic.queues.get(partition)

    def mute_partition(self, topic: str, partition: int) -> None:
        """Keep the batches of a partition until `unmute_partition`."""
        self._muted.add((topic, partition))

    def unmute_partition(self, topic: str, partition: int) -> None:
        """Let the batches of a partition be drained again."""
        self._muted.discard((topic, partition))

    # -------------------------------------------------------------------------------------------- batches that come back

    def reenqueue(self, batch: producer_batch.ProducerBatch, now_ms: int) -> None:
        """Put a batch back after an error that may pass; it is ready again when its backoff is over.

        Raises ValueError for a batch without a sequence if the producer is idempotent.
        """
        self._check_sequence(batch)
        batch.reenqueued(now_ms, self._backoff.delay_ms(batch.attempts, self._rng))
        self._put_back(batch)

    def split_and_reenqueue(self, batch: producer_batch.ProducerBatch) -> int:
        """Replace a batch that the broker calls too large by smaller ones; return their number.

        The caller deallocates the large one. Batches of a topic whose max.message.bytes is below batch.size are halved until
        they fit (KAFKA-8350). Raises ValueError for a batch of one record, or without a sequence if the producer is idempotent.
        """
        if batch.record_count < 2:
            raise ValueError(f"a batch of one record cannot be split: {batch!r}")
        self._check_sequence(batch)
        self._small_topics.add(batch.topic)
        ratio = batch.builder.compression_ratio()
        self.compression_ratios.reset(batch.topic, ratio)
        size = batch.builder.estimated_size()
        limit = size // 2 if batch.is_split_batch or size <= self._batch_size else self._batch_size
        parts = batch.split(limit, max(1.0, ratio))
        for part in reversed(parts):
            self.incomplete[part] = None
            if self._sequencer is not None:
                self._sequencer.add_in_flight_batch(part)
            self._put_back(part)
        return len(parts)

    def _check_sequence(self, batch: producer_batch.ProducerBatch) -> None:
        if self._sequencer is not None and not batch.has_sequence:
            raise ValueError(f"a batch of an idempotent producer comes back without a sequence: {batch!r}")

    def _put_back(self, batch: producer_batch.ProducerBatch) -> None:
        queues_of_topic = self._topics.get(batch.topic)
        if queues_of_topic is None:
            queues_of_topic = self._add_topic(batch.topic)
        queues_of_topic.queue(batch.partition).put_back(batch, in_sequence=self._sequencer is not None)

    def expired_batches(self, now_ms: int) -> list[producer_batch.ProducerBatch]:
        """Take out the batches that reached delivery.timeout.ms, in order; set `next_expiry_ms` to when to ask again.

        The caller fails and deallocates them. Batches in flight are the sender's.
        """
        expired = []
        self.next_expiry_ms = None
        for queues_of_topic in self._topics.values():
            for queue in queues_of_topic.queues.values():
                while queue.batches and queue.batches[0].has_reached_delivery_timeout(self.config.delivery_timeout_ms, now_ms):
                    batch = queue.take_first()
                    batch.builder.close_for_appends()
                    expired.append(batch)
                if queue.batches:
                    self.note_expiry(queue.batches[0])
        return expired

    def note_expiry(self, batch: producer_batch.ProducerBatch) -> None:
        """Set `next_expiry_ms` not later than the delivery timeout of `batch`, which may be in flight."""
        expiry_ms = batch.created_ms + self.config.delivery_timeout_ms
        if self.next_expiry_ms is None or expiry_ms < self.next_expiry_ms:
            self.next_expiry_ms = expiry_ms

    # ----------------------------------------------------------------------------------------------------------- the end

    def deallocate(self, batch: producer_batch.ProducerBatch) -> None:
        """Return the memory of a batch that has ended; a second call does nothing."""
        self.incomplete.pop(batch, None)
        self.pool.deallocate(batch.reserved_bytes)
        batch.reserved_bytes = 0

    def has_undrained(self) -> bool:
        """Return whether a batch is in a queue."""
        return any(queue.batches for queues_of_topic in self._topics.values() for queue in queues_of_topic.queues.values())

    def begin_flush(self) -> list[producer_batch.ProducerBatch]:
        """Make all batches ready until `end_flush`; return those that have not ended, for which a flush waits."""
        self._flushes += 1
        return list(self.incomplete)

    def end_flush(self) -> None:
        """End a flush. Raises ValueError if there is none."""
        if self._flushes == 0:
            raise ValueError("no flush has begun")
        self._flushes -= 1

    @property
    def is_flushing(self) -> bool:
        """Whether a flush waits for batches."""
        return self._flushes > 0

    def close(self) -> None:
        """Accept no more records and make all batches ready."""
        self.is_closed = True

    def abort_batches(self, error: Exception) -> list[producer_batch.ProducerBatch]:
        """Abort all batches that have not ended, sent or not; return them."""
        return self._abort(list(self.incomplete), error)

    def abort_undrained_batches(self, error: Exception) -> list[producer_batch.ProducerBatch]:
        """Abort the batches that were never sent, at the end of a transaction; return them."""
        return self._abort([one for one in self.incomplete if one.was_never_sent], error)

    def _abort(self, batches: list[producer_batch.ProducerBatch], error: Exception) -> list[producer_batch.ProducerBatch]:
        aborted = []
        for batch in batches:
            queue = self._queue_if_any(batch.topic, batch.partition)
            if queue is not None:
                queue.remove(batch)
            # A batch that expired in flight keeps its memory until the response comes.
            if not batch.is_done:
                batch.abort(error)
                aborted.append(batch)
            self.deallocate(batch)
        return aborted
