"""What is known of a partition whose topic is compacted, and what may be missing of it.

    a record that stood is missing  and that is right where
    ------------------------------  --------------------------------------------------------------------------------------
    at or above the log's start     a later record of its key is there, and it is older than min.compaction.lag.ms
    of any kind                     a tombstone of its key, at its offset or behind, is older than delete.retention.ms
    a tombstone                     the same, and no earlier record of its key is there: what was deleted does not come back
    below the log's start           the policy has `delete`, or somebody asked for it

So who reads from the start ends with the last value of each key. An offset that was given is not given again, though its record
is gone. What survives a power loss is told by the records that were on the device: the files that a cleaner has replaced may
be there in its place, and where offsets are missing nobody can tell a hole that the power has left from one of the cleaner.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kcli.simulator.partition_ledger import PartitionLedger, TopicFacts
from kcli.simulator.records import SentRecord


class Clocks(NamedTuple):
    """The right time in ms, and how far the machine's clock has ever been off it, forward and back together."""

    now_ms: int
    off_ms: int


class View:
    """What a reader has seen who began at the log's start; `expected` is what stood then, up to `goal`."""

    def __init__(self, expected: dict[int, bytes], start: int, goal: int, began_ms: int, power_losses: int) -> None:
        self.expected = expected
        self.start = start
        self.goal = goal
        self.began_ms = began_ms
        self.power_losses = power_losses
        self.found: dict[int, bytes] = {}


class CompactedLedger(PartitionLedger):
    """One partition; `durable` is what was on the device for certain, offset -> identity."""

    def __init__(self, facts: TopicFacts, index: int) -> None:
        super().__init__(facts, index)
        self.durable: dict[int, bytes] = {}
        self.whole_views = 0
        self._last_batch_end = 0

    @property
    def readable_end(self) -> int:
        """Behind the last batch, which no cleaner takes."""
        return min(self._last_batch_end, self.acknowledged_end)

    def acknowledge(self, base_offset: int, records: Sequence[SentRecord]) -> None:
        """The broker says that these stand from `base_offset` on. Raises SimulationFailure."""
        super().acknowledge(base_offset, records)
        self._last_batch_end = max(self._last_batch_end, base_offset + len(records))

    # ----------------------------------------------------------------------------------------------------------- starts

    def recovered(
        self,
        found: dict[int, bytes],
        must: Mapping[int, bytes],
        last_batch_end: int,
        clocks: Clocks,
        *,
        has_lost_power: bool,
    ) -> None:
        """After a start these records are there; `must` had to survive. To be called behind `restarted`.

        What a power loss took and what a cleaner took are not told apart where both may have been.

        Raises SimulationFailure.
        """
        self._last_batch_end = last_batch_end
        low = max(self.start, self.deleted_end)
        for offset, why in self._unexplained(must, found, low, clocks, is_strict=True):
            self.fail(f"after the start {must[offset]!r} of offset {offset} is gone: {why}")
        has_lost = False
        # A tombstone that was lost explains nothing any more: what is before it is looked at again.
        while lost := [offset for offset, _ in self._unexplained(self.standing, found, low, clocks, is_strict=True)]:
            has_lost = True
            for offset in lost:
                identity = self.standing.pop(offset)
                if self.places.get(identity) == offset:
                    del self.places[identity]
        if has_lost_power:
            gone = {offset for offset in self.standing if offset not in found and offset not in must}
            has_lost = has_lost or bool(gone)
            self.places = {identity: offset for identity, offset in self.places.items() if offset not in gone}
            self.durable |= found
        self.losses += has_lost

    def ended(self, found: dict[int, bytes], start: int, clocks: Clocks) -> None:
        """At the end of all these records are there. Raises SimulationFailure."""
        low = max(start, self.deleted_end)
        for offset, why in self._unexplained(self.standing, found, low, clocks, is_strict=True):
            self.fail(f"at the end {self.standing[offset]!r} of offset {offset} is gone: {why}")

    # ------------------------------------------------------------------------------------------------------------ views

    def begin_view(self, start: int, clocks: Clocks, power_losses: int) -> View:
        """A reader begins at the log's start."""
        goal = self.acknowledged_end
        expected = {offset: identity for offset, identity in self.standing.items() if offset < goal}
        return View(expected, start, goal, clocks.now_ms, power_losses)

    def end_view(self, view: View, clocks: Clocks, power_losses: int) -> None:
        """A reader has come to the log's end. Raises SimulationFailure.

        Who reads for longer than delete.retention.ms may have seen a value and not its tombstone, as Kafka has it.
        """
        if self.facts.has_retention or view.power_losses != power_losses:
            return
        low = max(view.start, self.deleted_end)
        expected = {offset: identity for offset, identity in view.expected.items() if self.standing.get(offset) == identity}
        is_quick = clocks.now_ms - view.began_ms + clocks.off_ms < self.facts.delete_retention_ms
        for offset, why in self._unexplained(expected, view.found, low, clocks, is_strict=is_quick):
            self.fail(f"a reader from offset {view.start} to {view.goal} has not seen {expected[offset]!r} of {offset}: {why}")
        self.whole_views += 1

    # ---------------------------------------------------------------------------------------------------------- reasons

    def _unexplained(
        self, expected: Mapping[int, bytes], found: Mapping[int, bytes], low: int, clocks: Clocks, *, is_strict: bool
    ) -> Iterator[tuple[int, str]]:
        """The offsets from `low` on whose records are not found and nothing explains it, each with what is wrong.

        `is_strict`: behind a tombstone that is gone nothing of its key may be found.
        """
        first: dict[bytes | None, int] = {}
        last: dict[bytes | None, int] = {}
        for offset in sorted(found):
            key = self.sent[found[offset]][0].key
            first.setdefault(key, offset)
            last[key] = offset
        gone = self._last_tombstones(clocks)
        for offset, identity in list(expected.items()):
            if offset < low or found.get(offset) == identity:
                continue
            record = self.sent[identity][0]
            if last.get(record.key, -1) > offset:
                if self._is_young(record, clocks):
                    yield offset, f"it is younger than min.compaction.lag.ms={self.facts.min_lag_ms}"
            elif gone.get(record.key, -1) < offset:
                yield offset, "no later record of its key is there"
            elif is_strict and record.value is None and first.get(record.key, offset) < offset:
                yield offset, f"it was a tombstone, and offset {first[record.key]} of its key is there"

    def _is_young(self, record: SentRecord, clocks: Clocks) -> bool:
        lag_ms = self.facts.min_lag_ms
        if self.facts.is_log_append_time or not lag_ms:
            return False
        return record.timestamp > clocks.now_ms + clocks.off_ms - lag_ms

    def _last_tombstones(self, clocks: Clocks) -> dict[bytes | None, int]:
        """By key: the last offset at which a tombstone may have gone; where one stands is not always known."""
        places = {identity: offset for offset, identity in sorted(self.standing.items())}
        gone: dict[bytes | None, int] = {}
        for identity, (record, _) in self.sent.items():
            is_over = clocks.now_ms + clocks.off_ms >= record.timestamp + self.facts.delete_retention_ms
            if record.value is None and is_over:
                gone[record.key] = max(gone.get(record.key, -1), places.get(identity, 1 << 62))
        return gone
