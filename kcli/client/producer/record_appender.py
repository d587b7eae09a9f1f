"""The way of a record into its batch: topic, partition, timestamp, accumulator, transaction (Kafka: KafkaProducer.doSend).

One compiled call does all of it, since each record takes it. `set_cluster` follows each change of the metadata.
This one source runs two ways, as kcli.format.record_scan does; its C types are in record_appender.pxd.
"""

from __future__ import annotations

from typing import Protocol

from kcli.client.cluster import UNKNOWN_PARTITION, Cluster
from kcli.client.errors import ClientError, RecordTooLargeError
from kcli.client.producer import partitioner, record_accumulator
from kcli.client.producer.producer_batch import Callback, Headers


class AppendTransactions(Protocol):
    """What an append asks of an idempotent or transactional producer (Kafka: TransactionManager)."""

    can_append: bool

    def check_can_append(self) -> None:
        """Raise the error because of which nothing may be appended."""
        ...

    def record_failed(self, error: ClientError) -> None:
        """Take a record that the transaction lacks."""
        ...

    def add_partition(self, topic: str, partition: int) -> None:
        """Let a partition take part in the transaction."""
        ...


class RecordAppender:
    """Appends the records of one producer."""

    def __init__(
        self,
        accumulator: record_accumulator.RecordAccumulator,
        record_partitioner: partitioner.RecordPartitioner,
        transactions: AppendTransactions | None,
        is_transactional: bool,
        cluster: Cluster,
    ) -> None:
        self.accumulator = accumulator
        self._partitioner = record_partitioner
        self._transactions = transactions
        self._is_transactional = is_transactional
        self._partition_counts: dict[str, int] = {}
        self._cluster = cluster

    def set_cluster(self, cluster: Cluster) -> None:
        """Take another snapshot of the metadata."""
        self._cluster = cluster
        self._partition_counts = {topic: len(cluster.partitions_for_topic(topic)) for topic in cluster.topics}

    def append(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        partition: int,
        timestamp: int,
        on_delivery: Callback | None,
        now_ms: int,
    ) -> bool:
        """Append a record; return False if it has to wait for metadata or memory, and nothing was appended.

        The sender is to be woken if the accumulator's `should_wake_sender` is set. Raises ValueError for a negative partition,
        and what check_can_append, RecordPartitioner.partition and RecordAccumulator.append raise.
        """
        count = self._partition_counts.get(topic)
        if count is None or partition >= count:
            return False
        if partition < UNKNOWN_PARTITION:
            raise ValueError(f"the partition {partition} is negative")
        if self._transactions is not None and not self._transactions.can_append:
            self._transactions.check_can_append()
        partition = self._partitioner.partition(topic, partition, key, value, self._cluster)
        try:
            batch = self.accumulator.append(
                topic, partition, timestamp, key, value, headers, on_delivery, now_ms, self._cluster
            )
        except RecordTooLargeError as error:
            if self._transactions is not None:
                self._transactions.record_failed(error)
            raise
        if batch is None:
            return False
        if self._is_transactional and self._transactions is not None:
            self._transactions.add_partition(topic, batch.partition)
        return True
