"""Protects what the simulation may excuse: a hole between segments and a forgotten producer, each only where Kafka has them."""

from __future__ import annotations

import pytest

from kcli.simulator.ledger import PartitionLedger, SimulationFailure, TopicFacts
from kcli.simulator.records import SentRecord


@pytest.fixture
def partition() -> PartitionLedger:
    return PartitionLedger(TopicFacts("t", flushes_each=False, has_retention=True, is_log_append_time=False), 0)


def record(value: bytes) -> SentRecord:
    return SentRecord(1_750_000_000_000, None, value, ())


def send(partition: PartitionLedger, *values: bytes) -> list[SentRecord]:
    records = [record(value) for value in values]
    partition.send(records, is_idempotent=True)
    return records


def test_what_lies_behind_a_new_hole_need_not_survive_it(partition: PartitionLedger) -> None:
    """A segment's name may be on the device before the segment below it is: only what is below the hole had to survive."""
    assert partition.reached(13, [(5, 13)]) == 5
    partition.restarted(0, 5, must_reach=5)


def test_what_lies_behind_a_hole_of_an_earlier_start_has_to_survive(partition: PartitionLedger) -> None:
    """The log went on behind it, and what was acknowledged there counts."""
    partition.restarted(0, 13, must_reach=5, holes=[(5, 13)])
    assert partition.reached(20, [(5, 13)]) == 20
    assert partition.reached(20, [(5, 13), (15, 17)]) == 15
    with pytest.raises(SimulationFailure, match="ends at offset 15, but all below 20 had to survive"):
        partition.restarted(0, 15, must_reach=20, holes=[(5, 13)])


def test_a_retry_is_new_where_a_start_has_forgotten_its_producer_and_only_there(partition: PartitionLedger) -> None:
    """A retry of a record that retention took stands once more; a crash may bring back what knew the first place."""
    records = send(partition, b"a", b"b")
    partition.acknowledge(18, records)
    partition.restarted(19, 20, must_reach=20)
    partition.acknowledge(20, records[:1])
    partition.acknowledge(18, records[:1])
    with pytest.raises(SimulationFailure, match="stands at 19"):
        partition.acknowledge(21, records[1:])
