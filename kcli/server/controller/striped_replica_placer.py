"""Chooses the brokers of new replicas, as Kafka's StripedReplicaPlacer does.

rule
----------------------------------------------------------------------------------------------------------------
the first replica, the preferred leader, alternates between the racks, so that each has its share of leaders
the other replicas of a partition are on other racks as long as there are any, then on other brokers
within a rack brokers alternate; fenced ones follow all others and are never the first replica
the first broker is random, so that small topics do not all begin with the same broker
brokers in controlled shutdown get no replicas
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kcli.log.rng import Random
from kcli.protocol import error_codes
from kcli.server.controller.controller_result import ApiError


class UsableBroker(NamedTuple):
    """A broker that can get replicas."""

    broker_id: int
    rack: str
    is_fenced: bool


class _BrokerList:
    """Shuffled brokers of a rack; for each partition the list begins one position later."""

    def __init__(self, brokers: Sequence[int], rng: Random) -> None:
        self._brokers = list(brokers)
        for at in range(len(self._brokers) - 1, 0, -1):
            other = rng.randint(0, at)
            self._brokers[at], self._brokers[other] = self._brokers[other], self._brokers[at]
        self._partition = -1
        self._first = rng.randint(0, len(brokers) - 1) if brokers else 0
        self._given = 0

    def __len__(self) -> int:
        return len(self._brokers)

    def next(self, partition: int) -> int | None:
        """Return the next broker for a partition, or None after all of them."""
        if partition != self._partition:
            self._partition, self._given = partition, 0
            self._first += 1
        if self._given == len(self._brokers):
            return None
        self._given += 1
        return self._brokers[(self._first + self._given - 1) % len(self._brokers)]


class _Rack:
    def __init__(self, brokers: Sequence[UsableBroker], rng: Random) -> None:
        self.unfenced = _BrokerList([broker.broker_id for broker in brokers if not broker.is_fenced], rng)
        self.fenced = _BrokerList([broker.broker_id for broker in brokers if broker.is_fenced], rng)

    def next(self, partition: int, *, also_fenced: bool) -> int | None:
        broker_id = self.unfenced.next(partition)
        if broker_id is None and also_fenced:
            return self.fenced.next(partition)
        return broker_id


class StripedReplicaPlacer:
    """Places the replicas of new partitions on brokers and racks."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def place(self, brokers: Sequence[UsableBroker], partitions: int, replication_factor: int) -> list[list[int]]:
        """Return the replicas of each new partition. Raises ApiError if there are too few brokers."""
        fault, rng = None, self._rng
        names = sorted({broker.rack for broker in brokers})
        if replication_factor < 1:
            fault = "it must be at least 1"
        elif replication_factor > len(brokers):
            fault = f"only {len(brokers)} broker(s) can get replicas"
        elif all(broker.is_fenced for broker in brokers):
            fault = "all brokers are fenced or shutting down"
        if fault is not None:
            text = f"the replication factor is {replication_factor}, but {fault}"
            raise ApiError(error_codes.INVALID_REPLICATION_FACTOR, text)
        racks = [_Rack([broker for broker in brokers if broker.rack == name], rng) for name in names]
        leading = [rack for rack in racks if len(rack.unfenced)]
        start = rng.randint(0, len(leading) - 1)
        return [
            _place_one(racks, leading[(start + index) % len(leading)], index, replication_factor) for index in range(partitions)
        ]


def _place_one(racks: list[_Rack], first: _Rack, partition: int, replication_factor: int) -> list[int]:
    replicas: list[int] = []
    leader = first.next(partition, also_fenced=False)
    if leader is not None:
        replicas.append(leader)
    at = racks.index(first) + 1
    # The racks alternate: at first with brokers that are not fenced, then with all.
    for also_fenced in (False, True):
        exhausted = 0
        while len(replicas) < replication_factor and exhausted < len(racks):
            broker_id = racks[at % len(racks)].next(partition, also_fenced=also_fenced)
            at += 1
            if broker_id is None:
                exhausted += 1
            else:
                exhausted = 0
                replicas.append(broker_id)
    return replicas
