"""Protects what the simulation may excuse: holes between segments, forgotten producers, records that were compacted away."""

from __future__ import annotations

import pytest

from kcli.format.records import Header
from kcli.simulator.compacted_ledger import Clocks, CompactedLedger
from kcli.simulator.partition_ledger import PartitionLedger, SimulationFailure, TopicFacts
from kcli.simulator.sent_records import IDENTITY_HEADER, SentRecord


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
    with pytest.raises(SimulationFailure, match="wrote it at 19"):
        partition.acknowledge(21, records[1:])


# ------------------------------------------------------------------------------------------------------------- compacted logs

SENT_MS = 1_750_000_000_000
NOW = Clocks(SENT_MS + 5000, 0)


@pytest.fixture
def compacted() -> CompactedLedger:
    """Two keys: `a` has the values a1 and a2, `b` the value b1 and a tombstone."""
    facts = TopicFacts("t", flushes_each=False, has_retention=False, is_log_append_time=False, is_compacted=True)
    found = CompactedLedger(facts._replace(delete_retention_ms=1000, min_lag_ms=2000), 0)
    tombstone = SentRecord(SENT_MS, b"b", None, (Header(IDENTITY_HEADER, b"b2"),))
    records = [SentRecord(SENT_MS, key, value) for key, value in ((b"a", b"a1"), (b"b", b"b1"), (b"a", b"a2"))]
    found.send([*records, tombstone], is_idempotent=True)
    found.acknowledge(0, [*records, tombstone])
    return found


def ended(compacted: CompactedLedger, found: dict[int, bytes], now: Clocks = NOW) -> str:
    """What is wrong where these are left; nothing for nothing."""
    try:
        compacted.ended(found, 0, now)
    except SimulationFailure as error:
        return str(error)
    return ""


def test_what_a_cleaner_may_leave(compacted: CompactedLedger) -> None:
    """Everything, the last of each key, and in the end no word of a key that was deleted."""
    for left in ({0: b"a1", 1: b"b1", 2: b"a2", 3: b"b2"}, {2: b"a2", 3: b"b2"}, {2: b"a2"}, {0: b"a1", 2: b"a2"}):
        assert ended(compacted, left) == ""


def test_what_a_cleaner_must_not_leave(compacted: CompactedLedger) -> None:
    """A key without its last value, a value that was deleted, a tombstone or a value that went too early."""
    assert "a2' of offset 2 is missing: there is no later record" in ended(compacted, {0: b"a1", 3: b"b2"})
    assert "it was a tombstone, and there is a record with its key at offset 1" in ended(compacted, {1: b"b1", 2: b"a2"})
    early = Clocks(SENT_MS + 900, 0)
    assert "b2' of offset 3 is missing: there is no later record" in ended(compacted, {0: b"a1", 1: b"b1", 2: b"a2"}, early)
    assert "younger than min.compaction.lag.ms=2000" in ended(compacted, {1: b"b1", 2: b"a2", 3: b"b2"}, early)
    # A clock that was set forward may have made it old enough.
    assert ended(compacted, {1: b"b1", 2: b"a2", 3: b"b2"}, early._replace(max_error_ms=3000)) == ""


def test_what_was_on_the_device_must_be_there_or_be_replaced(compacted: CompactedLedger) -> None:
    """What was not may go with the power, and is looked for no more."""
    compacted.restarted(0, 4, must_reach=4)
    compacted.recovered({0: b"a1", 1: b"b1"}, {0: b"a1"}, 2, NOW, has_lost_power=True)
    assert set(compacted.known) == {0, 1} and compacted.losses == 1
    assert ended(compacted, {0: b"a1", 1: b"b1"}) == ""
    with pytest.raises(SimulationFailure, match="after the start b'a1' of offset 0 is missing"):
        compacted.recovered({1: b"b1"}, compacted.durable, 2, NOW, has_lost_power=False)


def test_who_reads_from_the_start_sees_the_last_value_of_each_key(compacted: CompactedLedger) -> None:
    """But for a tombstone that went while it read for longer than tombstones stay."""
    view = compacted.begin_view(0, NOW, power_losses=0)
    view.found |= {1: b"b1", 2: b"a2"}
    with pytest.raises(SimulationFailure, match="did not get b'b2' of 3: it was a tombstone"):
        compacted.end_view(view, NOW, 0)
    compacted.end_view(view, NOW._replace(now_ms=NOW.now_ms + 1000), 0)
    del view.found[2]
    with pytest.raises(SimulationFailure, match="did not get b'a1' of 0"):
        compacted.end_view(view, NOW, 0)
    compacted.end_view(view, NOW, power_losses=1)  # what it saw may have gone since


def test_a_hole_may_be_as_long_as_several_segments(partition: PartitionLedger) -> None:
    partition.restarted(0, 50, must_reach=0, holes=[(0, 22), (22, 40), (45, 50)])
    assert partition.is_hole(0, 40) and partition.is_hole(3, 22) and partition.is_hole(45, 50)
    assert not partition.is_hole(0, 41) and not partition.is_hole(40, 45) and not partition.is_hole(0, 30)
