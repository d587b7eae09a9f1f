"""What a producer counts, by Kafka's names (Kafka: SenderMetricsRegistry, KafkaProducerMetrics, BufferPool).

    name ends with    value
    ----------------  ------------------------------------------------------------------------------------
    -total            since the producer was made
    -avg, -max        of all values since then; Kafka: of the last 30 seconds. NaN before the first one
    -rate             not here: a monitoring system computes it from the total

The size of a record is the mean of its batch, as it is sent; Kafka takes the largest of the batch, before compression.
"""

from __future__ import annotations

import math

from kcli.client.producer.producer_batch import ProducerBatch


class Statistic:
    """The mean and the maximum of values."""

    __slots__ = ("count", "highest", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.highest = -math.inf

    def add(self, value: float) -> None:
        """Take a value."""
        self.count += 1
        self.total += value
        if value > self.highest:
            self.highest = value

    def values(self, name: str) -> dict[str, float]:
        """Return the metrics `name`-avg and `name`-max."""
        if not self.count:
            return {f"{name}-avg": math.nan, f"{name}-max": math.nan}
        return {f"{name}-avg": self.total / self.count, f"{name}-max": self.highest}


class ProducerMetrics:
    """The counts of one producer; times are in ms."""

    def __init__(self) -> None:
        self.record_send_total = 0
        self.record_retry_total = 0
        self.record_error_total = 0
        self.batch_split_total = 0
        self.byte_total = 0
        self.request_total = 0
        self.response_total = 0
        self.batch_size = Statistic()
        self.records_per_request = Statistic()
        self.record_size = Statistic()
        self.record_queue_time = Statistic()
        self.compression_rate = Statistic()
        self.request_latency = Statistic()
        self.produce_throttle_time = Statistic()

    def sent(self, batches: list[ProducerBatch], now_ms: int) -> None:
        """Count a request."""
        records = 0
        for batch in batches:
            size, count = len(batch.encoded()), batch.record_count
            records += count
            self.byte_total += size
            self.batch_size.add(size)
            self.record_size.add(size / count)
            self.record_queue_time.add(now_ms - batch.created_ms)
            self.compression_rate.add(batch.builder.compression_ratio())
        self.record_send_total += records
        self.request_total += 1
        self.records_per_request.add(records)

    def answered(self, latency_ms: int, throttle_ms: int) -> None:
        """Count an answer."""
        self.response_total += 1
        self.request_latency.add(latency_ms)
        self.produce_throttle_time.add(throttle_ms)

    def retried(self, batch: ProducerBatch) -> None:
        """Count the records of a batch that is sent again."""
        self.record_retry_total += batch.record_count

    def failed(self, batch: ProducerBatch) -> None:
        """Count the records of a batch that failed."""
        self.record_error_total += batch.record_count

    def values(self) -> dict[str, float]:
        """Return the metrics of the group producer-metrics."""
        return {
            "record-send-total": self.record_send_total,
            "record-retry-total": self.record_retry_total,
            "record-error-total": self.record_error_total,
            "batch-split-total": self.batch_split_total,
            "outgoing-byte-total": self.byte_total,
            "request-total": self.request_total,
            "response-total": self.response_total,
            **self.batch_size.values("batch-size"),
            **self.record_size.values("record-size"),
            **self.record_queue_time.values("record-queue-time"),
            **self.request_latency.values("request-latency"),
            **self.produce_throttle_time.values("produce-throttle-time"),
            "records-per-request-avg": self.records_per_request.values("")["-avg"],
            "compression-rate-avg": self.compression_rate.values("")["-avg"],
        }
