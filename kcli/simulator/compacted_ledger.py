"""What is known about a partition of a compacted topic, and which of its records may be missing.

    missing record                     allowed if
    ---------------------------------  -----------------------------------------------------------------------------------
    at or above the log start offset   there is a later record with its key, and it is older than min.compaction.lag.ms
    any                                a tombstone of its key, at its offset or later, is older than delete.retention.ms
    a tombstone                        the same, and there is no earlier record with its key: deleted values do not return
    below the log start offset         the policy has `delete`, or DeleteRecords was requested

So a reader that starts at the log start gets the last value of each key. An offset is not assigned again although its record
was removed. After a power loss the records that were on the device are expected: files that the cleaner has replaced may be
back, and a hole that the power loss left cannot be distinguished from offsets that the cleaner removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kcli.simulator.partition_ledger import PartitionLedger, TopicFacts
from kcli.simulator.sent_records import SentRecord


class Clocks(NamedTuple):
    """The right time in ms, and the sum of the largest errors of the machine's clock, forward and back."""

    now_ms: int
    max_error_ms: int


class View:
    """What a reader has read since it started at the log start; `expected` are the records below `goal` at that time."""

    def __init__(self, expected: dict[int, bytes], start: int, goal: int, started_ms: int, power_losses: int) -> None:
        self.expected = expected
        self.start = start
        self.goal = goal
        self.started_ms = started_ms
        self.power_losses = power_losses
        self.found: dict[int, bytes] = {}


class CompactedLedger(PartitionLedger):
    """One partition; `durable` has the records that were certainly on the device, offset -> identity."""

    def __init__(self, facts: TopicFacts, index: int) -> None:
        super().__init__(facts, index)
        self.durable: dict[int, bytes] = {}
        self.whole_views = 0
        self._last_batch_end = 0

    @property
    def readable_end(self) -> int:
        """The end of the last batch, which the cleaner never removes."""
        return min(self._last_batch_end, self.acknowledged_end)

    def acknowledge(self, base_offset: int, records: Sequence[SentRecord]) -> None:
        """Record that the broker acknowledged these records from `base_offset` on. Raises SimulationFailure."""
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
        """Check the records after a start; `must` had to survive. To be called after `restarted`.

        If power was lost, a missing record may be lost or cleaned; both are allowed. Raises SimulationFailure.
        """
        self._last_batch_end = last_batch_end
        low = max(self.start, self.deleted_end)
        for offset, why in self._unexplained(must, found, low, clocks, is_strict=True):
            self.fail(f"after the start {must[offset]!r} of offset {offset} is missing: {why}")
        has_lost = False
        # A lost tombstone does not allow other records to be missing, so the records before it are checked again.
        while lost := [offset for offset, _ in self._unexplained(self.known, found, low, clocks, is_strict=True)]:
            has_lost = True
            for offset in lost:
                identity = self.known.pop(offset)
                if self.offset_of.get(identity) == offset:
                    del self.offset_of[identity]
        if has_lost_power:
            # A segment that was begun behind them may be there, empty, so that the log ends above what is lost. And what seems
            # cleaned may be lost all the same; it may then seem too young for the cleaner at a later start.
            lost_end = {offset for offset in self.known if offset >= last_batch_end}
            missing = lost_end | {offset for offset in self.known if offset not in found and offset not in must}
            has_lost = has_lost or bool(missing - lost_end)
            self.known = {offset: identity for offset, identity in self.known.items() if offset not in missing}
            self.offset_of = {identity: offset for identity, offset in self.offset_of.items() if offset not in missing}
            self.durable |= found
        self.losses += has_lost

    def ended(self, found: dict[int, bytes], start: int, clocks: Clocks) -> None:
        """Check the records at the end of the simulation. Raises SimulationFailure."""
        low = max(start, self.deleted_end)
        for offset, why in self._unexplained(self.known, found, low, clocks, is_strict=True):
            self.fail(f"at the end {self.known[offset]!r} of offset {offset} is missing: {why}")

    # ------------------------------------------------------------------------------------------------------------ views

    def begin_view(self, start: int, clocks: Clocks, power_losses: int) -> View:
        """Return the view of a reader that starts at the log start."""
        goal = self.acknowledged_end
        expected = {offset: identity for offset, identity in self.known.items() if offset < goal}
        return View(expected, start, goal, clocks.now_ms, power_losses)

    def end_view(self, view: View, clocks: Clocks, power_losses: int) -> None:
        """Check the view of a reader that has reached the log end. Raises SimulationFailure.

        A reader that takes longer than delete.retention.ms may have read a value and not its tombstone, as with Kafka.
        """
        if self.facts.has_retention or view.power_losses != power_losses:
            return
        low = max(view.start, self.deleted_end)
        expected = {offset: identity for offset, identity in view.expected.items() if self.known.get(offset) == identity}
        is_quick = clocks.now_ms - view.started_ms + clocks.max_error_ms < self.facts.delete_retention_ms
        for offset, why in self._unexplained(expected, view.found, low, clocks, is_strict=is_quick):
            self.fail(f"a reader from offset {view.start} to {view.goal} did not get {expected[offset]!r} of {offset}: {why}")
        self.whole_views += 1

    # ---------------------------------------------------------------------------------------------------------- reasons

    def _unexplained(
        self, expected: Mapping[int, bytes], found: Mapping[int, bytes], low: int, clocks: Clocks, *, is_strict: bool
    ) -> Iterator[tuple[int, str]]:
        """Yield the offsets from `low` on whose records are missing without a valid reason, each with what is wrong.

        `is_strict`: if a tombstone is missing, no earlier record with its key may be found.
        """
        first: dict[bytes | None, int] = {}
        last: dict[bytes | None, int] = {}
        for offset in sorted(found):
            key = self.sent[found[offset]][0].key
            first.setdefault(key, offset)
            last[key] = offset
        removable = self._last_tombstones(clocks)
        for offset, identity in list(expected.items()):
            if offset < low or found.get(offset) == identity:
                continue
            record = self.sent[identity][0]
            if last.get(record.key, -1) > offset:
                if self._is_young(record, clocks):
                    yield offset, f"it is younger than min.compaction.lag.ms={self.facts.min_lag_ms}"
            elif removable.get(record.key, -1) < offset:
                yield offset, "there is no later record with its key"
            elif is_strict and record.value is None and first.get(record.key, offset) < offset:
                yield offset, f"it was a tombstone, and there is a record with its key at offset {first[record.key]}"

    def _is_young(self, record: SentRecord, clocks: Clocks) -> bool:
        lag_ms = self.facts.min_lag_ms
        if self.facts.is_log_append_time or not lag_ms:
            return False
        return record.timestamp > clocks.now_ms + clocks.max_error_ms - lag_ms

    def _last_tombstones(self, clocks: Clocks) -> dict[bytes | None, int]:
        """Return by key the last offset of a tombstone that may have been removed; an unknown offset is the largest one."""
        places = {identity: offset for offset, identity in sorted(self.known.items())}
        last: dict[bytes | None, int] = {}
        for identity, (record, _) in self.sent.items():
            is_over = clocks.now_ms + clocks.max_error_ms >= record.timestamp + self.facts.delete_retention_ms
            if record.value is None and is_over:
                last[record.key] = max(last.get(record.key, -1), places.get(identity, 1 << 62))
        return last
