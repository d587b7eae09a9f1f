"""Chooses the brokers of new replicas, as Kafka's StripedReplicaPlacer does.

rule
----------------------------------------------------------------------------------------------------------------
the first replica, the preferred leader, alternates between the racks, so that each has its share of leaders; it is
never on a fenced broker: a rack that has no other is skipped
the other replicas alternate between the racks, too, from the next one on; a rack gives a fenced broker if it has no
other left: racks count for more than fencing
within a rack brokers alternate: for each partition the list of its brokers begins one further
the first rack and the first broker of a rack are random, so that small topics do not all begin with the same broker
after as many partitions as there are brokers that are not fenced, racks and brokers are shuffled: the same brokers do
not follow each other again, so that the leaders of one that fails are spread over many
brokers in controlled shutdown, and those whose directories are all cordoned, are not given to the placer
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from kcli.log.rng import Random
from kcli.protocol import error_codes
from kcli.server.controller.controller_result import ApiError


class UsableBroker(NamedTuple):
    """A broker that can get replicas."""

    broker_id: int
    rack: str
    is_fenced: bool


class Assignments(NamedTuple):
    """The replicas of new partitions; those that are placed are made while they are iterated over, which is possible once."""

    partitions: int
    replication_factor: int
    replicas: Iterable[list[int]]


class _BrokerList:
    """Some brokers of a rack. For each partition the list begins one position later."""

    def __init__(self, brokers: Sequence[int], rng: Random) -> None:
        self._rng = rng
        self._brokers = sorted(brokers)
        self._partition = -1
        self._first = rng.randint(0, len(brokers) - 1) if brokers else 0
        self._given = 0

    def shuffle(self) -> None:
        """Change the order."""
        _shuffle(self._brokers, self._rng)

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

    def next(self, partition: int) -> int | None:
        broker_id = self.unfenced.next(partition)
        return self.fenced.next(partition) if broker_id is None else broker_id


def _shuffle(items: list[Any], rng: Random) -> None:
    for at in range(len(items) - 1, 0, -1):
        other = rng.randint(0, at)
        items[at], items[other] = items[other], items[at]


class StripedReplicaPlacer:
    """Places the replicas of new partitions on brokers and racks."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def place(self, brokers: Sequence[UsableBroker], partitions: int, replication_factor: int) -> Assignments:
        """Return the replicas of each new partition, one of them not fenced. Raises ApiError if there are too few brokers."""
        fault, rng = None, self._rng
        unfenced = sum(not broker.is_fenced for broker in brokers)
        if replication_factor < 1:
            fault = "it must be at least 1"
        elif replication_factor > len(brokers):
            fault = f"only {len(brokers)} broker(s) can get replicas"
        elif not unfenced:
            fault = "all brokers are fenced or shutting down"
        if fault is not None:
            text = f"the replication factor is {replication_factor}, but {fault}"
            raise ApiError(error_codes.INVALID_REPLICATION_FACTOR, text)
        names = sorted({broker.rack for broker in brokers})
        racks = [_Rack([broker for broker in brokers if broker.rack == name], rng) for name in names]
        start = rng.randint(0, len(racks) - 1)
        return Assignments(partitions, replication_factor, self._placed(racks, start, unfenced, partitions, replication_factor))

    def _placed(
        self, racks: list[_Rack], start: int, unfenced: int, partitions: int, replication_factor: int
    ) -> Iterator[list[int]]:
        """Yield the replicas of each partition: some us each."""
        for partition in range(partitions):
            if partition and partition % unfenced == 0 and unfenced > 1:
                _shuffle(racks, self._rng)
                for rack in racks:
                    rack.unfenced.shuffle()
                    rack.fenced.shuffle()
            yield _place_one(racks, (start + partition) % len(racks), partition, replication_factor)


def _place_one(racks: list[_Rack], start: int, partition: int, replication_factor: int) -> list[int]:
    """Return the replicas of a partition, beginning with the rack at `start`; there are enough brokers."""
    at, leader = start, racks[start].unfenced.next(partition)
    while leader is None:
        at = (at + 1) % len(racks)
        leader = racks[at].unfenced.next(partition)
    replicas, skipped, at = [leader], at, start
    while len(replicas) < replication_factor:
        if at == skipped:
            skipped = -1  # the leader's rack had its turn
        elif (broker_id := racks[at].next(partition)) is not None:
            replicas.append(broker_id)
        at = (at + 1) % len(racks)
    return replicas
