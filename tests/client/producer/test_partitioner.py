"""Protects the choice of partitions: by key, round robin, by the user, and the sticky choice with its weights."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcli.client.cluster import NO_LEADER, UNKNOWN_PARTITION, Cluster, PartitionInfo
from kcli.client.errors import InvalidPartitionError
from kcli.client.producer.partitioner import RoundRobinPartitioner
from kcli.format.murmur2 import partition_for_key
from tests.client.producer.ways import WAYS

BATCH = 100


def cluster_of(leaders: Iterable[int], topic: str = "t") -> Cluster:
    return Cluster(PartitionInfo(topic, number, leader) for number, leader in enumerate(leaders))


class Numbers:
    """Random numbers that the test names; further ones are zero."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)

    def randint(self, a: int, b: int) -> int:
        number = self.numbers.pop(0) if self.numbers else 0
        assert a <= number <= b == 2**31 - 1
        return number


@pytest.mark.parametrize("way", WAYS)
def test_the_partition_of_a_record(way: str) -> None:
    """A given partition, the producer's own partitioner, the key, the accumulator: in this order."""
    cluster = cluster_of([1, NO_LEADER, 2, 1, 1])
    make = WAYS[way].partitioner.RecordPartitioner
    by_key = partition_for_key(b"key", 5)
    assert make().partition("t", 3, b"key", b"", cluster) == 3
    assert make().partition("t", -1, b"key", b"", cluster) == by_key
    assert make().partition("t", -1, b"", b"", cluster) == partition_for_key(b"", 5)
    assert make().partition("t", -1, None, b"", cluster) == UNKNOWN_PARTITION
    assert make(ignore_keys=True).partition("t", -1, b"key", b"", cluster) == UNKNOWN_PARTITION
    seen: list[Any] = []
    own = make(lambda *given: seen.append(given) or 4, ignore_keys=True)
    assert own.partition("t", -1, b"key", b"value", cluster) == 4
    assert own.partition("t", 2, b"key", b"value", cluster) == 2
    assert seen == [("t", b"key", b"value", cluster)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wrong", [-1, 2])
def test_a_partitioner_that_returns_no_partition(way: str, wrong: int) -> None:
    own = WAYS[way].partitioner.RecordPartitioner(lambda *given: wrong)
    with pytest.raises(InvalidPartitionError, match=f"the partitioner returned partition {wrong} of topic t, which has 2"):
        own.partition("t", -1, None, None, cluster_of([1, 1]))


@pytest.mark.parametrize("way", WAYS)
def test_a_topic_that_is_not_known(way: str) -> None:
    module = WAYS[way].partitioner
    with pytest.raises(ValueError, match="0 partitions"):
        module.RecordPartitioner().partition("t", -1, b"key", None, Cluster())
    with pytest.raises(InvalidPartitionError, match="the partitions of topic t are not known"):
        module.BuiltInPartitioner("t", BATCH, Numbers()).current_partition(Cluster())


def test_round_robin() -> None:
    """Partitions without a leader are left out, but are better than none; each topic has its own turn."""
    own = RoundRobinPartitioner()
    cluster = cluster_of([1, NO_LEADER, 2, 1])
    assert [own("t", b"same", None, cluster) for _ in range(5)] == [0, 2, 3, 0, 2]
    assert [own("u", None, None, cluster_of([-1, -1], "u")) for _ in range(3)] == [0, 1, 0]
    assert own("t", None, None, cluster) == 3


@pytest.mark.parametrize("way", WAYS)
def test_the_sticky_partition_stays_for_batch_size_bytes(way: str) -> None:
    cluster = cluster_of([1, 1, 1, 1])
    sticky = WAYS[way].partitioner.BuiltInPartitioner("t", BATCH, Numbers(6, 9, 3))
    assert [sticky.current_partition(cluster) for _ in range(2)] == [2, 2]
    sticky.update(99, cluster, True)
    assert not sticky.is_switch_due() and sticky.current_partition(cluster) == 2
    sticky.update(1, cluster, True)
    assert sticky.current_partition(cluster) == 1 and sticky.produced_bytes == 0
    sticky.update(199, cluster, False)
    assert sticky.is_switch_due() and sticky.current_partition(cluster) == 1, "its last batch has room"
    sticky.update(1, cluster, False)
    assert sticky.current_partition(cluster) == 3, "twice the size is enough in any case"


@pytest.mark.parametrize("way", WAYS)
def test_partitions_without_a_leader_are_left_out(way: str) -> None:
    choose = WAYS[way].partitioner.BuiltInPartitioner
    leaders = [-1, 1, -1, 2]
    assert [choose("t", BATCH, Numbers(n)).current_partition(cluster_of(leaders)) for n in range(4)] == [1, 3, 1, 3]
    assert [choose("t", BATCH, Numbers(n)).current_partition(cluster_of([-1] * 3)) for n in range(3)] == [0, 1, 2]


@pytest.mark.parametrize("way", WAYS)
def test_the_weights_of_kip_794(way: str) -> None:
    """Queues of 0, 3 and 1 batches have the weights 4, 1 and 3."""
    cluster = cluster_of([1, 1, 1])
    found = []
    for number in range(16):
        sticky = WAYS[way].partitioner.BuiltInPartitioner("t", BATCH, Numbers(number))
        sticky.update_load([0, 3, 1], [7, 8, 9], 3)
        found.append(sticky.current_partition(cluster))
    assert found == [7, 7, 7, 7, 8, 9, 9, 9] * 2


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("sizes", "ids", "count", "expected"),
    [
        ([2, 2], [0, 1], 2, {0, 1, 2}),  # equal queues: all partitions have the same weight
        ([2, 2], [0, 1], 3, {0, 1}),  # one is left out
        ([5], [1], 3, {1}),
        ([5], [0], 1, {0, 1, 2}),  # a topic of one partition
        (None, [], 3, {0, 1, 2}),  # not adaptive
        ([], [], 3, {0, 1, 2}),  # all are left out
    ],
)
def test_when_weights_count(way: str, sizes: list[int] | None, ids: list[int], count: int, expected: set[int]) -> None:
    sticky = WAYS[way].partitioner.BuiltInPartitioner("t", 1, Numbers(*range(12)))
    sticky.update_load([0, 9, 9], [0, 1, 2], 3)
    sticky.update_load(sizes, ids, count)
    chosen = Counter[int]()
    for _ in range(12):
        chosen[sticky.current_partition(cluster_of([1, 1, 1]))] += 1
        sticky.update(1, cluster_of([1, 1, 1]), True)
    assert set(chosen) == expected


@given(st.lists(st.integers(0, 20), min_size=2, max_size=8), st.integers(0, 1000))
def test_both_ways_choose_the_same(sizes: list[int], seed: int) -> None:
    cluster = cluster_of([1] * len(sizes))
    chosen = []
    for way in WAYS.values():
        sticky = way.partitioner.BuiltInPartitioner("t", 1, random.Random(seed))
        sticky.update_load(sizes, list(range(len(sizes))), len(sizes))
        chosen.append([])
        for _ in range(10):
            chosen[-1].append(sticky.current_partition(cluster))
            sticky.update(1, cluster, True)
    assert chosen[0] == chosen[1]
