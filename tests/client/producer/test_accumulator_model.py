"""Protects the accumulator in drawn runs against a model of its promises: nothing lost, nothing twice, order, memory.

    mode        requests in flight for a partition           records that expire
    ----------  -------------------------------------------  --------------------------------------------
    muted       one: the partition is muted until it ends    yes
    idempotent  five: the broker takes sequences in order    no, since a lost sequence needs a new epoch

The broker answers in any order: it writes a batch, or returns an error that may pass, or calls it too large.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from kcli.client.cluster import UNKNOWN_PARTITION, Cluster, PartitionInfo
from kcli.format.record_batch import increment_sequence
from tests.client.producer.batches import Sequencer, accumulator_of, values_of
from tests.client.producer.ways import WAYS

PARTITIONS = 4
STEPS = 300
MAX_IN_FLIGHT = 5
RUNS = 12


class Run:
    """One drawn run of one accumulator."""

    def __init__(self, way: str, mode: str, seed: int) -> None:
        self.rng = random.Random(f"{mode} {seed}")
        self.is_idempotent = mode == "idempotent"
        self.sequencer = Sequencer() if self.is_idempotent else None
        self.sequencer_start = self.rng.choice((0, 2**31 - 20))
        if self.sequencer is not None:
            self.sequencer.first_sequence = self.sequencer_start
        self.accumulator = accumulator_of(
            way,
            self.sequencer,
            batch_size=self.rng.choice((1, 200, 1000)),
            max_batch_size=self.rng.choice((0, 1400)),
            linger_ms=self.rng.choice((0, 20)),
            buffer_memory=self.rng.choice((3000, 8000)),
            max_request_size=1500,
            codec=self.rng.choice((0, 0, 1, 2, 3, 4)),
            delivery_timeout_ms=10**9 if self.is_idempotent else 300,
        )
        self.now_ms = 0
        self.number = 0
        self.appended: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.written: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.expired: set[bytes] = set()
        self.expected_sequence = [self.sequencer_start] * PARTITIONS
        self.in_flight: list[Any] = []
        self.results: dict[bytes, Any] = {}
        self.move_leaders()

    def move_leaders(self) -> None:
        infos = [PartitionInfo("t", index, self.rng.choice((-1, 1, 2, 2)), self.number) for index in range(PARTITIONS)]
        self.cluster = Cluster(infos)

    def append(self) -> None:
        value = b"%d " % self.number + bytes(self.rng.choice((0, 10, 100, 300)))
        self.number += 1

        def note(found: Any, error: Exception | None) -> None:
            assert value not in self.results
            self.results[value] = found or error

        partition = self.rng.choice((UNKNOWN_PARTITION, *range(PARTITIONS)))
        headers = ((b"h", value),) if self.rng.random() < 0.1 else ()
        batch = self.accumulator.append(
            "t", partition, 1000 + self.number, None, value, headers, note, self.now_ms, self.cluster
        )
        if batch is None:
            # The caller waits, and its batches are sent at once.
            self.accumulator.pool.waiting = 1
            return
        self.accumulator.pool.waiting = 0
        assert partition in (UNKNOWN_PARTITION, batch.partition)
        self.appended[batch.partition].append(value)

    def send(self) -> None:
        found = self.accumulator.ready(self.cluster, self.now_ms)
        assert found.next_check_delay_ms is None or found.next_check_delay_ms > 0
        for node, batches in self.accumulator.drain(self.cluster, found.ready_nodes, self.now_ms).items():
            assert all(self.cluster.leader_for("t", batch.partition) == node for batch in batches)
            assert len(batches) < 2 or sum(len(batch.encoded()) for batch in batches) <= 1500
            for batch in batches:
                self.in_flight.append(batch)
                if self.sequencer is None:
                    self.accumulator.mute_partition("t", batch.partition)

    def can_send(self) -> bool:
        return len(self.in_flight) < (MAX_IN_FLIGHT if self.is_idempotent else 100)

    def respond(self) -> None:
        """A response to one of the batches in flight, of any node."""
        batch = self.in_flight.pop(self.rng.randrange(len(self.in_flight)))
        index = batch.partition
        draw = self.rng.random()
        is_next = not self.is_idempotent or batch.base_sequence == self.expected_sequence[index]
        if draw < 0.2 or not is_next:
            self.accumulator.reenqueue(batch, self.now_ms)
        elif draw < 0.35 and batch.record_count > 1:
            if self.sequencer is not None:
                self.sequencer.end(batch)
            self.accumulator.split_and_reenqueue(batch)
            self.accumulator.deallocate(batch)
        else:
            assert batch.complete(len(self.written[index]))
            self.written[index] += [value for value in values_of(batch) if value is not None]
            if self.sequencer is not None:
                assert batch.builder.base_sequence == self.expected_sequence[index]
                self.expected_sequence[index] = increment_sequence(batch.base_sequence, batch.record_count)
                self.sequencer.end(batch)
            self.end(batch)
        if self.sequencer is None:
            self.accumulator.unmute_partition("t", index)

    def expire(self) -> None:
        for batch in self.accumulator.expired_batches(self.now_ms):
            assert batch.fail(TimeoutError())
            self.expired |= {value for value in values_of(batch) if value is not None}
            self.end(batch)

    def end(self, batch: Any) -> None:
        for callback, found, error in batch.deliveries():
            callback(found, error)
        self.accumulator.deallocate(batch)

    def step(self) -> None:
        draw = self.rng.random()
        if draw < 0.5:
            self.append()
        elif draw < 0.7 and self.can_send():
            self.send()
        elif draw < 0.9 and self.in_flight:
            self.respond()
        elif draw < 0.92:
            self.move_leaders()
        else:
            self.now_ms += self.rng.choice((1, 10, 100))
            self.expire()
        pool = self.accumulator.pool
        assert 0 <= pool.available == pool.total - sum(batch.reserved_bytes for batch in self.accumulator.incomplete)

    def finish(self) -> None:
        self.accumulator.close()
        self.cluster = Cluster(PartitionInfo("t", index, 1, self.number + 1) for index in range(PARTITIONS))
        while self.accumulator.has_undrained() or self.in_flight:
            if self.can_send():
                self.send()
            if self.in_flight:
                self.respond()
            self.now_ms += 5


@pytest.mark.parametrize("seed", range(RUNS))
@pytest.mark.parametrize("mode", ["muted", "idempotent"])
@pytest.mark.parametrize("way", WAYS)
def test_drawn_runs(way: str, mode: str, seed: int) -> None:
    run = Run(way, mode, seed)
    for _ in range(STEPS):
        run.step()
    run.finish()
    for index in range(PARTITIONS):
        assert run.written[index] == [value for value in run.appended[index] if value not in run.expired]
        for offset, value in enumerate(run.written[index]):
            found = run.results[value]
            assert (found.partition, found.offset, found.value_size) == (index, offset, len(value))
    assert all(isinstance(run.results[value], TimeoutError) for value in run.expired)
    assert len(run.results) == sum(map(len, run.appended))
    assert run.accumulator.pool.available == run.accumulator.pool.total and not run.accumulator.incomplete


def test_runs_have_all_that_they_are_for() -> None:
    """Over all runs, batches expire, and some records are refused since the memory is full."""
    runs = [Run("as installed", mode, seed) for mode in ("muted", "idempotent") for seed in range(RUNS)]
    for run in runs:
        for _ in range(STEPS):
            run.step()
    assert sum(len(run.expired) for run in runs) > 20
    assert sum(run.number - sum(map(len, run.appended)) for run in runs) > 100
    assert max(len(run.in_flight) for run in runs) > 2


@pytest.mark.parametrize("mode", ["muted", "idempotent"])
def test_both_ways_do_the_same(mode: str) -> None:
    runs = [Run(way, mode, 77) for way in WAYS]
    for _ in range(STEPS):
        for run in runs:
            run.step()
        first, second = ([bytes(batch.encoded()) for batch in run.in_flight] for run in runs)
        assert first == second
    first, second = ((run.written, run.results.keys(), run.expired, run.now_ms) for run in runs)
    assert first == second and runs[0].number > 100
