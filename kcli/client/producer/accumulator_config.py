"""The settings of the accumulator (Kafka: ProducerConfig, as far as RecordAccumulator needs it)."""

from __future__ import annotations

from typing import NamedTuple


class AccumulatorConfig(NamedTuple):
    """Kafka's settings by their names, with the defaults of 4.3.1; `compression_level` None is the codec's default.

    A batch of `batch_size` bytes is full; while it waits for its request it takes records up to `max_batch_size` bytes.
    """

    batch_size: int = 16384
    max_batch_size: int = 0
    linger_ms: int = 5
    buffer_memory: int = 33554432
    max_request_size: int = 1048576
    delivery_timeout_ms: int = 120000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1000
    codec: int = 0
    compression_level: int | None = None
    adaptive_partitioning: bool = True
    availability_timeout_ms: int = 0

    @property
    def most_batch_bytes(self) -> int:
        """The size of a batch of several records that is not compressed."""
        return max(self.batch_size, min(self.max_batch_size, self.max_request_size))
