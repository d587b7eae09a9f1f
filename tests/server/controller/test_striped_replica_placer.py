"""Protects where replicas go: leaders go round, racks differ while they can, fenced brokers come last in their rack and never
lead; and what follows a leader varies, so that its load is spread over many when it fails (Kafka: StripedReplicaPlacerTest).
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from kcli.server.controller.controller_result import ApiError
from kcli.server.controller.striped_replica_placer import StripedReplicaPlacer, UsableBroker


def brokers(count: int, racks: int = 1, fenced: tuple[int, ...] = ()) -> list[UsableBroker]:
    return [UsableBroker(broker_id, f"rack {broker_id % racks}", broker_id in fenced) for broker_id in range(count)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("count", "racks", "replication_factor"), [(1, 1, 1), (3, 1, 2), (6, 3, 3), (6, 2, 3), (5, 5, 1)])
def test_all_lead_their_share(seed: int, count: int, racks: int, replication_factor: int) -> None:
    """Over many partitions every broker leads, and hosts, as many as the others; no partition has a broker twice."""
    placed = list(StripedReplicaPlacer(random.Random(seed)).place(brokers(count, racks), 60, replication_factor).replicas)
    assert all(len(set(replicas)) == replication_factor for replicas in placed)
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.values()) <= 1 + 60 // 20
    assert set(leaders) == set(range(count))
    if replication_factor <= racks:
        assert all(len({broker_id % racks for broker_id in replicas}) == replication_factor for replicas in placed)


def test_fenced_brokers_are_the_last_resort() -> None:
    """They fill up what is lacking, and do not lead."""
    for replicas in list(StripedReplicaPlacer(random.Random(1)).place(brokers(3, fenced=(1,)), 10, 3).replicas):
        assert replicas[2] == 1
    for replicas in list(StripedReplicaPlacer(random.Random(1)).place(brokers(3, fenced=(1,)), 10, 2).replicas):
        assert 1 not in replicas


def test_a_rack_without_brokers_that_may_lead_gives_followers() -> None:
    """Racks count for more than fencing: the next rack gives its fenced broker, though a third one has another, too."""
    given = [UsableBroker(1, "a", False), UsableBroker(2, "b", True), UsableBroker(3, "c", False)]
    placed = list(StripedReplicaPlacer(random.Random(1)).place(given, 30, 2).replicas)
    assert {replicas[0] for replicas in placed} == {1, 3}
    assert [1, 2] in placed and [1, 3] in placed
    assert all(len(set(replicas)) == 2 for replicas in placed)


def test_the_load_of_a_broker_that_fails_is_spread() -> None:
    """With the same order for ever, the same two brokers followed each leader."""
    placed = list(StripedReplicaPlacer(random.Random(1)).place(brokers(10), 300, 3).replicas)
    for leader in range(10):
        assert len({replicas[1] for replicas in placed if replicas[0] == leader}) >= 7


def test_too_few_brokers() -> None:
    """More replicas than brokers, or nobody to lead, is refused."""
    for given, replication_factor in ((brokers(2), 3), (brokers(0), 1), (brokers(2, fenced=(0, 1)), 1), (brokers(1), 0)):
        with pytest.raises(ApiError):
            StripedReplicaPlacer(random.Random(1)).place(given, 1, replication_factor)
