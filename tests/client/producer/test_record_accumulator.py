"""Protects the rules of the accumulator: what is ready when, what is drained, memory, retries, splits, expiry, flush, close."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kcli.client.cluster import NO_LEADER, UNKNOWN_PARTITION, Cluster, PartitionInfo
from kcli.client.errors import ProducerClosedError, RecordTooLargeError
from kcli.format.codec_streams import LZ4
from tests.client.producer.batches import (
    NODE,
    ONE,
    OTHER_NODE,
    TIMESTAMP,
    TWO,
    Sequencer,
    accumulator_of,
    cluster_of,
    drain,
    fill,
    put,
    values_of,
)
from tests.client.producer.ways import WAYS

BATCH = 16384
ALL_WAYS = pytest.mark.parametrize("way", WAYS)


def drain_all(accumulator: Any, sequencer: Any = None) -> list[Any]:
    found: list[Any] = []
    while batches := drain(accumulator, 10**6):
        found += batches
        for batch in batches:
            if sequencer is not None:
                sequencer.end(batch)
    assert not accumulator.has_undrained()
    return found


@ALL_WAYS
def test_records_share_a_batch_until_it_is_full(way: str) -> None:
    accumulator = accumulator_of(way, linger_ms=0)
    first = fill(accumulator)
    assert first.builder.is_full() and BATCH - 200 < first.builder.position <= BATCH
    assert accumulator.should_wake_sender
    assert [batch.record_count for batch in drain(accumulator)] == [first.record_count]
    assert values_of(first) == [bytes(100)] * first.record_count
    assert [values_of(batch) for batch in drain(accumulator)] == [[bytes(100)]]
    assert drain(accumulator) == [] and not accumulator.has_undrained()


@ALL_WAYS
def test_a_batch_is_ready_after_linger_ms(way: str) -> None:
    accumulator = accumulator_of(way, linger_ms=10)
    assert accumulator.ready(ONE, 0) == (set(), None, set())
    put(accumulator, now_ms=100)
    assert accumulator.should_wake_sender
    assert accumulator.ready(ONE, 100) == (set(), 10, set())
    assert not accumulator.should_wake_sender
    put(accumulator, now_ms=105)
    assert not accumulator.should_wake_sender, "the sender sleeps until the first record's linger.ms have passed"
    assert accumulator.ready(ONE, 109) == (set(), 1, set())
    assert accumulator.ready(ONE, 110) == ({NODE}, None, set())


@ALL_WAYS
def test_a_full_batch_does_not_linger(way: str) -> None:
    accumulator = accumulator_of(way, linger_ms=1000)
    fill(accumulator)
    assert accumulator.ready(ONE, 0).ready_nodes == {NODE}
    drain(accumulator)
    assert accumulator.ready(ONE, 0) == (set(), 1000, set())


@ALL_WAYS
def test_a_large_record_has_a_batch_of_its_own(way: str) -> None:
    accumulator = accumulator_of(way, linger_ms=1000)
    put(accumulator)
    put(accumulator, bytes(3 * BATCH))
    put(accumulator, bytes(30))
    assert accumulator.ready(ONE, 0).ready_nodes == {NODE}
    sizes = []
    while accumulator.has_undrained():
        sizes += [batch.record_count for batch in drain(accumulator)]
    assert sizes == [1, 1, 1]


@ALL_WAYS
def test_records_that_are_too_large(way: str) -> None:
    accumulator = accumulator_of(way, max_request_size=1000, buffer_memory=700, batch_size=100)
    with pytest.raises(RecordTooLargeError, match=r"the record may take \d+ bytes; max.request.size is 1000"):
        put(accumulator, bytes(1000))
    with pytest.raises(RecordTooLargeError, match=r"the record may take \d+ bytes; buffer.memory is 700"):
        put(accumulator, bytes(700))
    with pytest.raises(ValueError, match="the timestamp -5 is negative"):
        accumulator.append("t", 0, -5, None, b"", (), None, 0, ONE)
    assert accumulator.pool.available == 700 and not accumulator.has_undrained() and not accumulator.incomplete
    assert put(accumulator, bytes(600)) is not None


@ALL_WAYS
def test_full_memory_is_an_answer(way: str) -> None:
    """The caller waits and tries again; as long as it waits, batches do not linger."""
    accumulator = accumulator_of(way, buffer_memory=2 * BATCH, linger_ms=1000)
    assert put(accumulator, partition=0) and put(accumulator, partition=1)
    assert put(accumulator, partition=2) is None
    assert put(accumulator, partition=0) is not None, "there is room in a batch that is there"
    assert accumulator.ready(TWO, 0).ready_nodes == set()
    accumulator.pool.waiting += 1
    assert accumulator.ready(TWO, 0).ready_nodes == {NODE}
    accumulator.pool.waiting -= 1
    for batch in drain(accumulator, cluster=TWO):
        batch.complete(0)
        accumulator.deallocate(batch)
        accumulator.deallocate(batch)
    assert accumulator.pool.available == 2 * BATCH and not accumulator.incomplete
    assert put(accumulator, partition=2) is not None


@ALL_WAYS
def test_topics_without_a_leader(way: str) -> None:
    accumulator = accumulator_of(way, linger_ms=0)
    put(accumulator, topic="t")
    put(accumulator, topic="u")
    put(accumulator, topic="t", partition=1)
    cluster = Cluster([PartitionInfo("t", 0, NODE), PartitionInfo("t", 1, NO_LEADER)])
    found = accumulator.ready(cluster, 0)
    assert (found.ready_nodes, found.unknown_leader_topics) == ({NODE}, {"t", "u"})
    assert len(drain(accumulator, cluster=cluster)) == 1
    assert accumulator.ready(cluster_of([NODE, OTHER_NODE]), 0).ready_nodes == {OTHER_NODE}


@ALL_WAYS
def test_a_request_has_at_most_max_request_size_bytes(way: str) -> None:
    """No partition starves: the next request begins with the partition that did not fit."""
    accumulator = accumulator_of(way, linger_ms=0, batch_size=1000, max_request_size=2500)
    cluster = cluster_of([NODE] * 5)
    for partition in range(5):
        for _ in range(2):
            put(accumulator, bytes(880), partition=partition)
    requests = []
    while accumulator.has_undrained():
        requests.append([batch.partition for batch in drain(accumulator, cluster=cluster)])
    assert requests == [[0, 1], [2, 3], [4, 0], [1, 2], [3, 4]]


@ALL_WAYS
def test_a_batch_larger_than_a_request_is_sent_alone(way: str) -> None:
    accumulator = accumulator_of(way, linger_ms=0, batch_size=5000, max_request_size=1000)
    for _ in range(4):
        put(accumulator, bytes(900))
        put(accumulator, bytes(900), partition=1)
    assert [batch.record_count for batch in drain(accumulator, cluster=TWO)] == [4]
    assert [batch.record_count for batch in drain(accumulator, cluster=TWO)] == [4]


@ALL_WAYS
def test_muted_partitions(way: str) -> None:
    """With one request in flight, a partition is muted until its batch has ended."""
    accumulator = accumulator_of(way, linger_ms=0)
    put(accumulator)
    accumulator.mute_partition("t", 0)
    assert accumulator.ready(ONE, 100) == (set(), None, set()) and drain(accumulator, 100) == []
    put(accumulator, partition=1)
    assert [batch.partition for batch in drain(accumulator, 100, TWO)] == [1]
    accumulator.unmute_partition("t", 0)
    assert accumulator.ready(ONE, 100).ready_nodes == {NODE} and len(drain(accumulator)) == 1


@ALL_WAYS
def test_a_retry_comes_first_and_waits_for_its_backoff(way: str) -> None:
    accumulator = accumulator_of(way, linger_ms=0, retry_backoff_ms=100, retry_backoff_max_ms=100)
    batch = put(accumulator, b"first")
    drain(accumulator)
    other = put(accumulator, b"second")
    accumulator.reenqueue(batch, 50)
    assert accumulator.ready(ONE, 60) == (set(), 90, set()) and drain(accumulator, 60) == []
    assert accumulator.ready(ONE, 150).ready_nodes == {NODE}
    assert drain(accumulator, 150) == [batch] and drain(accumulator, 150) == [other]


@ALL_WAYS
def test_backoffs_grow_with_jitter(way: str) -> None:
    accumulator = accumulator_of(way, linger_ms=0)
    batch = put(accumulator)
    delays = []
    now_ms = 0
    for _ in range(8):
        now_ms = 10_000 + (batch.retry_at_ms if batch.attempts else 0)
        assert drain(accumulator, now_ms) == [batch]
        accumulator.reenqueue(batch, now_ms)
        delays.append(batch.retry_at_ms - now_ms)
    for delay, middle in zip(delays, (100, 200, 400, 800, 1000, 1000, 1000, 1000), strict=True):
        assert 0.8 * middle <= delay <= min(1.2 * middle, 1000)
    assert len(set(delays)) > 4


@ALL_WAYS
def test_a_new_leader_gets_a_retry_at_once(way: str) -> None:
    accumulator = accumulator_of(way, linger_ms=0)
    batch = put(accumulator)
    drain(accumulator)
    accumulator.reenqueue(batch, 0)
    assert accumulator.ready(cluster_of([NODE], leader_epoch=0), 1).ready_nodes == set()
    moved = cluster_of([OTHER_NODE], leader_epoch=1)
    assert accumulator.ready(moved, 1).ready_nodes == {OTHER_NODE}
    assert drain(accumulator, 1, moved, OTHER_NODE) == [batch]


@ALL_WAYS
def test_a_retried_batch_keeps_its_bytes(way: str) -> None:
    """Also if the next record of its partition is appended while it waits."""
    accumulator = accumulator_of(way, linger_ms=0, sequencer=Sequencer())
    batch = put(accumulator, b"one")
    drain(accumulator)
    sent = bytes(batch.encoded())
    accumulator.reenqueue(batch, 0)
    assert put(accumulator, b"two") is not batch
    assert drain(accumulator, 1000) == [batch] and bytes(batch.encoded()) == sent


@ALL_WAYS
def test_sequences_order_what_comes_back(way: str) -> None:
    """Five batches are in flight, and the responses come in any order."""
    sequencer = Sequencer()
    accumulator = accumulator_of(way, linger_ms=0, sequencer=sequencer)
    sequencer.first_sequence = 2**31 - 3
    batches = []
    for number in range(5):
        put(accumulator, b"%d" % number)
        batches += drain(accumulator)
    assert [batch.base_sequence for batch in batches] == [2**31 - 3, 2**31 - 2, 2**31 - 1, 0, 1]
    waiting = put(accumulator, b"5")
    for index in (3, 0, 4, 2, 1):
        accumulator.reenqueue(batches[index], 0)
    for batch in batches:
        assert drain(accumulator, 2000) == [batch]
        assert batch is batches[4] or drain(accumulator, 2000) == [], "the next one waits for it"
        sequencer.end(batch)
    assert drain(accumulator, 2000) == [waiting]


@ALL_WAYS
def test_a_partition_that_waits_does_not_delay_others(way: str) -> None:
    sequencer = Sequencer()
    accumulator = accumulator_of(way, linger_ms=0, sequencer=sequencer)
    put(accumulator, b"0")
    first = drain(accumulator)[0]
    put(accumulator, b"1")
    second = drain(accumulator)[0]
    accumulator.reenqueue(second, 0)
    put(accumulator, partition=1)
    assert first in sequencer.in_flight["t", 0]
    assert [batch.partition for batch in drain(accumulator, 2000, TWO)] == [1]


@ALL_WAYS
def test_an_idempotent_batch_without_a_sequence_cannot_come_back(way: str) -> None:
    accumulator = accumulator_of(way)
    batch = put(accumulator)
    put(accumulator)
    drain(accumulator)
    idempotent = accumulator_of(way, sequencer=Sequencer())
    for call in (lambda: idempotent.reenqueue(batch, 0), lambda: idempotent.split_and_reenqueue(batch)):
        with pytest.raises(ValueError, match="comes back without a sequence"):
            call()


@ALL_WAYS
@pytest.mark.parametrize("codec", [0, LZ4])
def test_a_batch_that_is_too_large_is_split_until_it_fits(way: str, codec: int) -> None:
    """The broker's limit is far below batch.size, which Kafka clients before 4.1 did not survive (KAFKA-8350)."""
    sequencer = Sequencer()
    accumulator = accumulator_of(way, linger_ms=0, codec=codec, batch_size=4000, sequencer=sequencer)
    values = [b"%d " % number * 12 for number in range(80)]
    for value in values:
        put(accumulator, value)
    written: list[Any] = []
    splits = 0
    while accumulator.has_undrained():
        for batch in drain(accumulator):
            sequencer.end(batch)
            if len(batch.encoded()) > 300:
                assert accumulator.split_and_reenqueue(batch) > 1
                splits += 1
            else:
                batch.complete(len(written))
                written += values_of(batch)
            accumulator.deallocate(batch)
    assert written == values and splits > (0 if codec else 3)
    assert not accumulator.incomplete and accumulator.pool.available == accumulator.pool.total


@ALL_WAYS
@pytest.mark.parametrize("codec", [0, LZ4])
def test_a_full_batch_takes_records_until_it_is_drained(way: str, codec: int) -> None:
    """It is ready at batch.size, so that it waits for its request alone, and one request has many records."""
    accumulator = accumulator_of(way, linger_ms=1000, batch_size=1000, max_batch_size=20_000, codec=codec)
    values = [random.Random(number).randbytes(100) for number in range(400)]
    first = put(accumulator, values[0])
    assert accumulator.ready(ONE, 0).ready_nodes == set()
    taken = 1
    while put(accumulator, values[taken]) is first:
        taken += 1
        assert not first.builder.is_full() or accumulator.ready(ONE, 0).ready_nodes == {NODE}
        assert first.reserved_bytes == first.builder.capacity <= 20_000
    assert taken > 150 and accumulator.pool.total - accumulator.pool.available == first.reserved_bytes + 1000
    (drained,) = drain(accumulator)
    assert drained is first and values_of(first) == values[:taken] and len(first.encoded()) <= 20_000
    assert put(accumulator, values[0]) is not first
    for batch in (first, *drain_all(accumulator)):
        accumulator.deallocate(batch)
    assert accumulator.pool.available == accumulator.pool.total


@ALL_WAYS
def test_a_full_batch_wakes_the_sender_once(way: str) -> None:
    accumulator = accumulator_of(way, linger_ms=1000, batch_size=1000, max_batch_size=20_000)
    wakes = 0
    for _ in range(100):
        put(accumulator, bytes(100))
        wakes += accumulator.should_wake_sender
        accumulator.should_wake_sender = False
    assert wakes == 2  # when it is begun, and when it is full


@ALL_WAYS
def test_a_batch_that_begins_with_a_large_record_wakes_the_sender_when_it_is_full(way: str) -> None:
    """It is full above batch.size. The sender would sleep until linger.ms have passed."""
    accumulator = accumulator_of(way, linger_ms=1000, batch_size=1000, max_batch_size=20_000)
    batch = put(accumulator, bytes(5000))
    while not batch.builder.is_full():
        assert accumulator.ready(ONE, 0).ready_nodes == set() and not accumulator.should_wake_sender
        assert put(accumulator, b"") is batch
    assert batch.record_count > 1 and accumulator.should_wake_sender


@ALL_WAYS
def test_a_full_batch_that_no_broker_takes_is_closed(way: str) -> None:
    """A record has most of delivery.timeout.ms, also if the first one of its partition has waited for long."""
    accumulator = accumulator_of(way, linger_ms=0, batch_size=1000, max_batch_size=20_000, delivery_timeout_ms=5000)
    for now_ms in range(0, 5000, 100):
        put(accumulator, bytes(100), now_ms=now_ms)
    (expired,) = accumulator.expired_batches(5000)
    assert 10 <= expired.record_count <= 11
    assert accumulator.expired_batches(20_000)[0].record_count >= 8


@ALL_WAYS
def test_a_full_batch_does_not_take_the_memory_that_is_left(way: str) -> None:
    accumulator = accumulator_of(way, linger_ms=0, batch_size=1000, max_batch_size=20_000, buffer_memory=3500)
    batches = []
    while (batch := put(accumulator, bytes(100))) is not None:
        if batch not in batches:
            batches.append(batch)
    assert [batch.reserved_bytes for batch in batches] == [1000, 1000, 1000]
    assert sum(batch.record_count for batch in batches) > 20


@ALL_WAYS
def test_batches_stay_small_after_one_was_too_large(way: str) -> None:
    sequencer = Sequencer()
    accumulator = accumulator_of(way, linger_ms=0, batch_size=1000, max_batch_size=20_000, sequencer=sequencer)
    for _ in range(40):
        put(accumulator, bytes(100))
    (large,) = drain(accumulator)
    assert len(large.encoded()) > 4000
    sequencer.end(large)
    accumulator.split_and_reenqueue(large)
    accumulator.deallocate(large)
    for _ in range(40):
        put(accumulator, bytes(100))
    assert max(len(batch.encoded()) for batch in drain_all(accumulator, sequencer)) <= 1000


@ALL_WAYS
def test_a_single_record_cannot_be_split(way: str) -> None:
    accumulator = accumulator_of(way, linger_ms=0)
    put(accumulator)
    with pytest.raises(ValueError, match="a batch of one record cannot be split"):
        accumulator.split_and_reenqueue(drain(accumulator)[0])


@ALL_WAYS
def test_expired_batches(way: str) -> None:
    accumulator = accumulator_of(way, delivery_timeout_ms=1000)
    old = put(accumulator, now_ms=0)
    young = put(accumulator, partition=1, now_ms=400)
    put(accumulator, partition=2, now_ms=500)
    assert accumulator.expired_batches(999) == [] and accumulator.next_expiry_ms == 1000
    assert accumulator.expired_batches(1000) == [old] and accumulator.next_expiry_ms == 1400
    assert accumulator.expired_batches(1400) == [young] and accumulator.next_expiry_ms == 1500
    assert put(accumulator, now_ms=1400) is not old, "an expired batch takes no more records"
    in_flight = drain(accumulator, 1400, cluster_of([OTHER_NODE, OTHER_NODE, NODE]))[0]
    assert accumulator.expired_batches(1400) == [] and accumulator.next_expiry_ms == 2400
    accumulator.note_expiry(in_flight)
    assert accumulator.next_expiry_ms == 1500


@ALL_WAYS
def test_a_flush_makes_all_ready_until_it_ends(way: str) -> None:
    accumulator = accumulator_of(way, linger_ms=10_000)
    first, second = put(accumulator), put(accumulator, partition=1)
    sent = drain(accumulator)
    assert sent == [first]
    assert accumulator.begin_flush() == [first, second] and accumulator.is_flushing
    assert accumulator.ready(TWO, 0).ready_nodes == {NODE}
    accumulator.begin_flush()
    accumulator.end_flush()
    assert accumulator.ready(TWO, 0).ready_nodes == {NODE}, "another flush waits"
    accumulator.end_flush()
    assert accumulator.ready(TWO, 0).ready_nodes == set() and not accumulator.is_flushing
    with pytest.raises(ValueError, match="no flush has begun"):
        accumulator.end_flush()


@ALL_WAYS
def test_the_end_of_a_transaction_does_not_linger(way: str) -> None:
    sequencer = Sequencer()
    accumulator = accumulator_of(way, linger_ms=10_000, sequencer=sequencer)
    put(accumulator)
    assert accumulator.ready(ONE, 0).ready_nodes == set()
    sequencer.is_completing = True
    assert accumulator.ready(ONE, 0).ready_nodes == {NODE}


@ALL_WAYS
def test_after_close_batches_are_sent_and_records_refused(way: str) -> None:
    accumulator = accumulator_of(way, linger_ms=10_000)
    put(accumulator)
    accumulator.close()
    with pytest.raises(ProducerClosedError, match="the producer is closed"):
        put(accumulator)
    assert accumulator.ready(ONE, 0).ready_nodes == {NODE} and len(drain(accumulator)) == 1


@ALL_WAYS
def test_aborted_batches(way: str) -> None:
    """At the end of a transaction those that were never sent; when the producer is killed, all."""
    accumulator = accumulator_of(way, sequencer=Sequencer())
    error = ValueError("aborted")
    sent = put(accumulator)
    drain(accumulator)
    back = put(accumulator, partition=1)
    drain(accumulator, cluster=TWO)
    accumulator.reenqueue(back, 0)
    waiting = put(accumulator)
    expired = put(accumulator, partition=2)
    drain(accumulator, cluster=cluster_of([OTHER_NODE, OTHER_NODE, NODE]))
    expired.fail(TimeoutError())
    assert accumulator.abort_undrained_batches(error) == [waiting]
    assert accumulator.abort_batches(error) == [sent, back]
    assert not accumulator.has_undrained() and accumulator.pool.available == accumulator.pool.total
    assert [batch.error for batch in (sent, back, waiting)] == [error] * 3
    assert not sent.complete(5), "a late response does not matter"


@ALL_WAYS
def test_compressed_batches_learn_their_ratio(way: str) -> None:
    """They get more records than batch.size bytes, whose memory is counted, and give back what they do not need."""
    accumulator = accumulator_of(way, codec=LZ4, batch_size=2000, linger_ms=0, buffer_memory=200_000)
    counts = []
    for _ in range(160):
        first = put(accumulator, b"0123456789" * 10)
        while put(accumulator, b"0123456789" * 10) is first:
            pass
        batch = drain(accumulator)[0]
        counts.append(batch.record_count)
        assert batch.reserved_bytes == len(batch.encoded()) < 2000
        batch.complete(0)
        accumulator.deallocate(batch)
    assert counts[0] == 16 and counts[-1] > 40 and accumulator.pool.available == 200_000 - 2000


@ALL_WAYS
def test_a_compressed_batch_ends_where_memory_does(way: str) -> None:
    accumulator = accumulator_of(way, codec=LZ4, batch_size=1000, linger_ms=0, buffer_memory=3000)
    for _ in range(200):
        accumulator.compression_ratios.update("t", 0.01)
    batch = put(accumulator, bytes(100))
    while put(accumulator, bytes(100)) is batch:
        pass
    assert batch.builder.capacity == batch.reserved_bytes == 2000, "doubled once, and 4000 are more than there are"


@ALL_WAYS
def test_a_sticky_partition_changes_with_its_full_batch(way: str) -> None:
    """Without linger.ms it changes after batch.size bytes; a batch with room is not left behind."""
    cluster = cluster_of([NODE] * 4)
    accumulator = accumulator_of(way, linger_ms=500)
    sizes = {}
    for _ in range(5000):
        batch = put(accumulator, bytes(100), partition=UNKNOWN_PARTITION, cluster=cluster)
        sizes[batch] = batch.builder.position
    assert {batch.partition for batch in sizes} == {0, 1, 2, 3}
    assert sum(size < BATCH - 200 for size in sizes.values()) <= 4, "at most the last batch of a partition has room"


@ALL_WAYS
def test_a_sticky_partition_that_had_its_bytes_changes_after_its_batch_is_drained(way: str) -> None:
    """While the batch has room it stays, up to twice batch.size."""
    cluster = cluster_of([NODE] * 4)
    accumulator = accumulator_of(way, linger_ms=0, batch_size=1000)
    chosen = []
    for _ in range(40):
        for size in (950, 1):
            batch = put(accumulator, bytes(size), partition=UNKNOWN_PARTITION, cluster=cluster)
            assert not batch.builder.is_full()
            chosen.append(batch.partition)
        assert drain(accumulator, cluster=cluster) == [batch]
    assert chosen[::2] == chosen[1::2], "both records are in one batch"
    assert 20 < sum(before != after for before, after in zip(chosen[::2], chosen[2::2], strict=False)) < 38
    assert set(chosen) == {0, 1, 2, 3}


@ALL_WAYS
@pytest.mark.parametrize("max_batch_size", [0, 20_000])
def test_adaptive_partitioning_avoids_long_queues(way: str, max_batch_size: int) -> None:
    """Partition 0 has ten batches that its node does not take, or a grown one; the weights then favour partition 1."""
    cluster = cluster_of([NODE, OTHER_NODE])
    shares = {}
    for adaptive in (True, False):
        config = {"batch_size": 200, "max_batch_size": max_batch_size}
        accumulator = accumulator_of(way, linger_ms=0, adaptive_partitioning=adaptive, **config)
        put(accumulator, partition=1, cluster=cluster)
        for _ in range(20):
            put(accumulator, bytes(100), partition=0, cluster=cluster)
        chosen = []
        for _ in range(200):
            accumulator.ready(cluster, 0)
            chosen.append(put(accumulator, bytes(150), partition=UNKNOWN_PARTITION, cluster=cluster).partition)
            for batch in drain(accumulator, 0, cluster, OTHER_NODE):
                batch.complete(0)
                accumulator.deallocate(batch)
        shares[adaptive] = chosen.count(0) / len(chosen)
    assert shares[True] < 0.2 < 0.35 < shares[False]


@ALL_WAYS
def test_partitions_of_a_node_that_takes_nothing_are_left_out(way: str) -> None:
    cluster = cluster_of([NODE, OTHER_NODE, NODE])
    accumulator = accumulator_of(way, linger_ms=0, batch_size=200, availability_timeout_ms=50)
    for partition in range(3):
        put(accumulator, bytes(150), partition=partition, cluster=cluster)
    for node in (NODE, OTHER_NODE):
        accumulator.update_node_times(node, 0, can_drain=True)

    def chosen() -> set[int]:
        accumulator.ready(cluster, 0)
        return {put(accumulator, bytes(150), partition=-1, cluster=cluster).partition for _ in range(30)}

    assert chosen() == {0, 1, 2}
    accumulator.update_node_times(OTHER_NODE, 51, can_drain=False)
    chosen()  # the partition that is sticky when the node becomes slow
    assert chosen() == {0, 2}
    accumulator.update_node_times(OTHER_NODE, 60, can_drain=True)
    assert 1 in chosen() | chosen()


def test_the_last_record_of_the_batch_is_the_appended_one() -> None:
    accumulator = accumulator_of()
    for number in range(3):
        batch = put(accumulator, b"%d" % number)
        assert (batch.record_count, batch.topic, batch.partition) == (number + 1, "t", 0)
    assert batch.builder.base_timestamp == TIMESTAMP
