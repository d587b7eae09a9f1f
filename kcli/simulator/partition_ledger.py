"""What the clients of a simulation know: the records that were sent, acknowledged and read; and the guarantees to check.

    guarantee                                    violated if
    -------------------------------------------  -------------------------------------------------------------------------
    no offset is assigned twice                  another record was acknowledged or read at the offset
    no record is changed                         a record that was read, or is on the disk, was not sent to the partition
    an idempotent record is written once         it is found at two offsets
    offsets are continuous                       a batch does not start where the previous one ended
    leader epochs are ordered                    an epoch ends before one of its records, or after a record of a higher
                                                 epoch; the end of a past epoch changes
    no acknowledged record is lost               after a start the log ends below the offset that must survive (`restarted`)

What survives: after the death of the process, all records that were written; after a power loss, those that were flushed,
and with flush.messages=1 all that were acknowledged. Records above the log end after a start are removed from the ledger, and
their offsets may be assigned again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from kcli.simulator.sent_records import SentRecord


class SimulationFailure(Exception):
    """A guarantee is violated; the message says which one, and where."""


class TopicFacts(NamedTuple):
    """The facts about a topic that do not change after its creation."""

    name: str
    flushes_each: bool  # flush.messages=1
    has_retention: bool  # while its policy is `delete`, if it ever is
    is_log_append_time: bool
    is_compacted: bool = False  # its policy is or may become `compact`; then all its records have keys
    is_only_compacted: bool = False  # its policy never has `delete`
    delete_retention_ms: int = 0
    min_lag_ms: int = 0  # min.compaction.lag.ms


class PartitionLedger:
    """One partition of a topic with one id."""

    def __init__(self, facts: TopicFacts, index: int) -> None:
        self.facts = facts
        self.index = index
        self.sent: dict[bytes, tuple[SentRecord, bool]] = {}  # by identity; True: by an idempotent producer
        self.known: dict[int, bytes] = {}  # offset -> identity, as acknowledged or read
        self.offset_of: dict[bytes, int] = {}  # identity -> offset, for idempotent producers
        self.acknowledged_end = 0  # the last acknowledged offset plus one
        self.deleted_end = 0  # records below may be missing: DeleteRecords was requested
        self.low_watermark = 0  # the log start offset that DeleteRecords returned since the last start of the node
        self.losses = 0  # how many starts have lost acknowledged records
        self.holes: list[tuple[int, int]] = []  # offsets that a power loss took from between two segments
        self.start = 0  # the log start offset at the last start of the node
        self.epochs: dict[int, int] = {}  # offset -> leader epoch, as read
        self.epoch_ends: dict[int, int] = {}  # the end offsets of past epochs, as returned by the broker

    def __repr__(self) -> str:
        return f"{self.facts.name}-{self.index}"

    def fail(self, sentence: str) -> NoReturn:
        """Raise SimulationFailure with the name of the partition."""
        raise SimulationFailure(f"{self}: {sentence}")

    def send(self, records: Sequence[SentRecord], *, is_idempotent: bool) -> None:
        """Record that these records are about to be sent, perhaps again."""
        for record in records:
            self.sent[record.identity] = (record, is_idempotent)

    def acknowledge(self, base_offset: int, records: Sequence[SentRecord]) -> None:
        """Record that the broker acknowledged these records from `base_offset` on. Raises SimulationFailure."""
        for offset, record in enumerate(records, base_offset):
            self._check_place(offset, record.identity, "was acknowledged")
        self.acknowledged_end = max(self.acknowledged_end, base_offset + len(records))

    def read(self, offset: int, record: SentRecord, how: str) -> None:
        """Check a record that was found at an offset; `how` is a clause for the message. Raises SimulationFailure."""
        sent, _ = self.sent.get(record.identity, (None, False))
        if sent is None:
            self.fail(f"offset {offset} {how} with a record that was never sent: {record}")
        expected = sent._replace(timestamp=record.timestamp) if self.facts.is_log_append_time else sent
        if record != expected:
            self.fail(f"offset {offset} {how} as {record}, but {sent} was sent")
        self._check_place(offset, record.identity, how)

    def read_epoch(self, offset: int, epoch: int) -> None:
        """Check the leader epoch of a record that was read. Raises SimulationFailure."""
        known = self.epochs.setdefault(offset, epoch)
        if known != epoch:
            self.fail(f"offset {offset} was read with leader epoch {epoch}, and before with epoch {known}")

    def epoch_ended(self, requested: int, epoch: int, end: int, before: dict[int, int], *, is_past: bool) -> None:
        """Check a response: `epoch` is the last epoch up to `requested`, and ends at offset `end`. Raises SimulationFailure.

        `before` is a copy of `epochs` from the time of the request: later records need not be in the response.
        """
        returned = f"for leader epoch {requested} the broker returned {(epoch, end)}"
        if epoch > requested or (epoch, end) == (-1, -1):
            self.fail(returned)
        for offset, found in before.items():
            if found <= requested and offset >= end:
                self.fail(f"{returned}, but offset {offset} has epoch {found}")
        if self.deleted_end or self.facts.has_retention or self.facts.is_compacted:
            return  # when the log start offset moves, earlier epochs end there, and an epoch without records is removed
        for offset, found in self.epochs.items():
            if found > requested and offset < end:
                self.fail(f"{returned}, but offset {offset} has epoch {found}")
        if is_past and (known := self.epoch_ends.setdefault(requested, end)) != end:
            self.fail(f"{returned}, and before the end {known}")

    def _check_place(self, offset: int, value: bytes, how: str) -> None:
        known = self.known.setdefault(offset, value)
        if known != value:
            self.fail(f"offset {offset} {how} with {value!r}, but it has {known!r}")
        # A duplicate may be acknowledged with the offset of a deleted record; after a start that forgot it, with a new one.
        is_placed = self.sent[value][1] and offset >= self.start
        if is_placed and self.offset_of.setdefault(value, offset) != offset:
            self.fail(f"{value!r} {how} at offset {offset}, but an idempotent producer wrote it at {self.offset_of[value]}")

    def reached(self, end: int, holes: Sequence[tuple[int, int]]) -> int:
        """Return up to which offset a log that ends at `end` is complete; holes from before the last start do not count."""
        return min((first for first, behind in holes if (first, behind) not in self.holes), default=end)

    def restarted(self, start: int, end: int, must_reach: int, holes: Sequence[tuple[int, int]] = ()) -> None:
        """Check the log after a start: it has the offsets `start` to `end` except `holes`; all below `must_reach` must exist.

        Raises SimulationFailure.
        """
        reached = self.reached(end, holes)
        if reached < must_reach:
            self.fail(f"after the start the log ends at offset {reached}, but all below {must_reach} had to survive")
        self.holes = list(holes)
        self.start = start
        if start > self.deleted_end and start > 0 and not self.facts.has_retention:
            self.fail(f"after the start the log begins at offset {start}, but only {self.deleted_end} was requested")
        self.low_watermark = 0
        self.losses += reached < self.acknowledged_end
        lost = [offset for offset in self.known if offset >= end or any(low <= offset < high for low, high in holes)]
        for offset in lost:
            value = self.known.pop(offset)
            if self.offset_of.get(value) == offset:
                del self.offset_of[value]
        # As with Kafka, a start forgets the producers of deleted records, so that a retry is appended again.
        self.offset_of = {value: offset for value, offset in self.offset_of.items() if offset >= start}
        self.epochs = {offset: epoch for offset, epoch in self.epochs.items() if offset < end}
        self.epoch_ends = {epoch: ended for epoch, ended in self.epoch_ends.items() if ended <= end}
        self.acknowledged_end = min(self.acknowledged_end, end)

    @property
    def readable_end(self) -> int:
        """The offset after the last known acknowledged record: a power loss may take records below the log end."""
        return max((offset + 1 for offset in self.known if offset < self.acknowledged_end), default=0)

    def is_hole(self, start: int, end: int) -> bool:
        """Return True if a power loss took all offsets from `start` to `end`."""
        for low, high in self.holes:  # in order; adjacent holes belong to adjacent segments
            if low <= start < high and start < end:
                start = high
        return start == end
