"""Where new replicas go: spread over brokers and racks, as Kafka's StripedReplicaPlacer spreads them.

rule
----------------------------------------------------------------------------------------------------------------
the first replica, which is to lead, goes round the racks, so that each leads its share
the other replicas of a partition go to other racks as long as there are any, then to other brokers
within a rack brokers take turns; fenced ones come when all others have had theirs, and never first
where it begins is a matter of dice, so that small topics do not all begin with the same broker
brokers in controlled shutdown take nothing
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kcli.protocol import error_codes
from kcli.server.controller.api_error import ApiError
from kcli.server.rng import Rng


class UsableBroker(NamedTuple):
    """A broker that may get replicas."""

    broker_id: int
    rack: str
    is_fenced: bool


class _Turns:
    """Brokers that take turns: with each partition the one behind the last first one comes first."""

    def __init__(self, brokers: Sequence[int], rng: Rng) -> None:
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
        """Whose turn it is in a partition, or None where all have had theirs."""
        if partition != self._partition:
            self._partition, self._given = partition, 0
            self._first += 1
        if self._given == len(self._brokers):
            return None
        self._given += 1
        return self._brokers[(self._first + self._given - 1) % len(self._brokers)]


class _Rack:
    def __init__(self, brokers: Sequence[UsableBroker], rng: Rng) -> None:
        self.unfenced = _Turns([broker.broker_id for broker in brokers if not broker.is_fenced], rng)
        self.fenced = _Turns([broker.broker_id for broker in brokers if broker.is_fenced], rng)

    def take(self, partition: int, *, also_fenced: bool) -> int | None:
        broker_id = self.unfenced.next(partition)
        if broker_id is None and also_fenced:
            return self.fenced.next(partition)
        return broker_id


def place_replicas(brokers: Sequence[UsableBroker], partitions: int, replication_factor: int, rng: Rng) -> list[list[int]]:
    """The replicas of so many new partitions. Raises ApiError where there are too few brokers."""
    code = error_codes.INVALID_REPLICATION_FACTOR
    if replication_factor < 1:
        raise ApiError(code, f"the replication factor is {replication_factor}; it is 1 or more")
    if replication_factor > len(brokers):
        raise ApiError(code, f"the replication factor is {replication_factor}, and {len(brokers)} broker(s) can take replicas")
    names = sorted({broker.rack for broker in brokers})
    racks = [_Rack([broker for broker in brokers if broker.rack == name], rng) for name in names]
    leading = [rack for rack in racks if len(rack.unfenced)]
    if not leading:
        raise ApiError(code, f"the replication factor is {replication_factor}, and all brokers are fenced or shutting down")
    start = rng.randint(0, len(leading) - 1)
    return [_place_one(racks, leading, start, index, replication_factor) for index in range(partitions)]


def _place_one(racks: list[_Rack], leading: list[_Rack], start: int, partition: int, replication_factor: int) -> list[int]:
    replicas: list[int] = []
    first = leading[(start + partition) % len(leading)]
    leader = first.take(partition, also_fenced=False)
    if leader is not None:
        replicas.append(leader)
    at = racks.index(first) + 1
    # Racks take turns; each round prefers brokers that are not fenced, and fills up with those that are.
    for also_fenced in (False, True):
        idle = 0
        while len(replicas) < replication_factor and idle < len(racks):
            broker_id = racks[at % len(racks)].take(partition, also_fenced=also_fenced)
            at += 1
            if broker_id is None:
                idle += 1
            else:
                idle = 0
                replicas.append(broker_id)
    return replicas
