"""Accumulators, clusters and records for the tests, and batches read back by kcli's strict reader."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from kcli.client.cluster import Cluster, PartitionInfo
from kcli.format.compression import inflate
from kcli.format.record_batch import HEADER_BYTES, check_batch, increment_sequence
from kcli.format.records import read_records
from tests.client.producer.ways import WAYS

TIMESTAMP = 1_700_000_000_000
NODE, OTHER_NODE = 1, 2


def cluster_of(leaders: Iterable[int], topic: str = "t", leader_epoch: int = 0) -> Cluster:
    """A topic with a partition for each of the leaders."""
    return Cluster(PartitionInfo(topic, number, leader, leader_epoch) for number, leader in enumerate(leaders))


ONE = cluster_of([NODE])
TWO = cluster_of([NODE, NODE])


def accumulator_of(way: str = "as installed", sequencer: Any = None, **config: Any) -> Any:
    module = WAYS[way].accumulator
    return module.RecordAccumulator(module.AccumulatorConfig(**config), random.Random(1), sequencer)


def put(
    accumulator: Any,
    value: bytes = b"v",
    *,
    topic: str = "t",
    partition: int = 0,
    key: bytes | None = None,
    headers: tuple[Any, ...] = (),
    callback: Any = None,
    now_ms: int = 0,
    cluster: Cluster = ONE,
) -> Any:
    return accumulator.append(topic, partition, TIMESTAMP, key, value, headers, callback, now_ms, cluster)


def fill(accumulator: Any, partition: int = 0, now_ms: int = 0) -> Any:
    """Append until a record does not fit into the first batch; return that one. The record is in another one."""
    batch = put(accumulator, bytes(100), partition=partition, now_ms=now_ms)
    while put(accumulator, bytes(100), partition=partition, now_ms=now_ms) is batch:
        pass
    return batch


def drain(accumulator: Any, now_ms: int = 0, cluster: Cluster = ONE, node: int = NODE) -> list[Any]:
    return list(accumulator.drain(cluster, [node], now_ms)[node])


def values_of(batch: Any) -> list[bytes | None]:
    """The values in the bytes of a batch, which have to be sound."""
    data = bytes(batch.encoded())
    header = check_batch(data)
    assert header.record_count == batch.record_count == header.last_offset_delta + 1
    payload = inflate(header.codec, data[HEADER_BYTES:], limit=2**24)
    return [record.value for record in read_records(payload, header.record_count)]


class Sequencer:
    """An idempotent producer with one id and epoch, which keeps the order of sequences as Kafka's TransactionManager does."""

    def __init__(self) -> None:
        self.is_completing = False
        self.first_sequence = 0
        self.next_sequences: dict[tuple[str, int], int] = {}
        self.in_flight: dict[tuple[str, int], list[Any]] = {}

    def must_wait(self, batch: Any) -> bool:
        """A returned batch waits for those before it."""
        in_flight = self.in_flight.get((batch.topic, batch.partition), [])
        return bool(in_flight) and batch.has_sequence and in_flight[0] is not batch

    def assign_sequence(self, batch: Any) -> None:
        key = batch.topic, batch.partition
        sequence = self.next_sequences.get(key, self.first_sequence)
        batch.builder.set_producer_state(9, 0, sequence, False)
        self.next_sequences[key] = increment_sequence(sequence, batch.record_count)
        self.add_in_flight_batch(batch)

    def add_in_flight_batch(self, batch: Any) -> None:
        in_flight = self.in_flight.setdefault((batch.topic, batch.partition), [])
        in_flight.append(batch)
        in_flight.sort(key=lambda one: (one.base_sequence - self.first_sequence) % 2**31)

    def end(self, batch: Any) -> None:
        """A batch is written, or its parts replace it."""
        self.in_flight[batch.topic, batch.partition].remove(batch)
