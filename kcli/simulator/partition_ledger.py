"""What the clients of a simulation know: what they sent, what was acknowledged, what they read; and the promises held to it.

    promise                                      broken when
    -------------------------------------------  -------------------------------------------------------------------------
    no offset is given twice                     an acknowledged or read record's offset holds another record
    no record is changed                         a record that is read, or lies on the disk, is none that was sent there
    an idempotent producer's record stands once  it is seen at two offsets
    offsets are continuous                       a batch begins elsewhere than the one before it ended
    leader epochs lie one behind the other       an epoch is said to end before one of its records, or behind one of a
                                                 higher epoch; one that is past ends elsewhere than it did
    nothing acknowledged is lost                 after a start the log ends before what must have survived, see `restarted`

What survives: with the machine still up, all that was written; without power, what was flushed, and with flush.messages=1
all that was acknowledged. What lies above the log's end after a start is forgotten, and its offsets may be given again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from kcli.simulator.records import SentRecord


class SimulationFailure(Exception):
    """A promise is broken; the message says which, where, and by what."""


class TopicFacts(NamedTuple):
    """A topic as it was made; its configs that matter here do not change afterwards."""

    name: str
    flushes_each: bool  # flush.messages=1
    has_retention: bool  # while its policy is `delete`, if it ever is
    is_log_append_time: bool
    is_compacted: bool = False  # its policy is or may become `compact`; all its records have keys then
    is_only_compacted: bool = False  # its policy never has `delete`
    delete_retention_ms: int = 0
    min_lag_ms: int = 0  # min.compaction.lag.ms


class PartitionLedger:
    """One partition of a topic with one id."""

    def __init__(self, facts: TopicFacts, index: int) -> None:
        self.facts = facts
        self.index = index
        self.sent: dict[bytes, tuple[SentRecord, bool]] = {}  # by identity; True: by an idempotent producer
        self.standing: dict[int, bytes] = {}  # offset -> identity, as acknowledged or read
        self.places: dict[bytes, int] = {}  # the reverse, of idempotent producers
        self.acknowledged_end = 0  # behind the last offset that was acknowledged
        self.deleted_end = 0  # records below may be gone: somebody asked for it
        self.low_watermark = 0  # where DeleteRecords said that the log begins, in this life of the node
        self.losses = 0  # how often a start has lost acknowledged records
        self.holes: list[tuple[int, int]] = []  # offsets that a power cut took from between two segments
        self.start = 0  # where the log began when the node started last
        self.epochs: dict[int, int] = {}  # offset -> leader epoch, as read
        self.epoch_ends: dict[int, int] = {}  # where epochs that are past have ended, as answered

    def __repr__(self) -> str:
        return f"{self.facts.name}-{self.index}"

    def fail(self, sentence: str) -> NoReturn:
        """Raise SimulationFailure, with the partition's name."""
        raise SimulationFailure(f"{self}: {sentence}")

    def send(self, records: Sequence[SentRecord], *, is_idempotent: bool) -> None:
        """These are about to be sent, perhaps once more."""
        for record in records:
            self.sent[record.identity] = (record, is_idempotent)

    def acknowledge(self, base_offset: int, records: Sequence[SentRecord]) -> None:
        """The broker says that these stand from `base_offset` on. Raises SimulationFailure."""
        for offset, record in enumerate(records, base_offset):
            self._stand(offset, record.identity, "was acknowledged")
        self.acknowledged_end = max(self.acknowledged_end, base_offset + len(records))

    def read(self, offset: int, record: SentRecord, how: str) -> None:
        """This record was found at an offset. Raises SimulationFailure."""
        sent, _ = self.sent.get(record.identity, (None, False))
        if sent is None:
            self.fail(f"offset {offset} {how} with a record that nobody sent: {record}")
        expected = sent._replace(timestamp=record.timestamp) if self.facts.is_log_append_time else sent
        if record != expected:
            self.fail(f"offset {offset} {how} as {record}, but {sent} was sent")
        self._stand(offset, record.identity, how)

    def read_epoch(self, offset: int, epoch: int) -> None:
        """A record was read that was written in a leader epoch. Raises SimulationFailure."""
        known = self.epochs.setdefault(offset, epoch)
        if known != epoch:
            self.fail(f"offset {offset} was read with leader epoch {epoch}, but it was of epoch {known}")

    def epoch_ended(self, asked: int, epoch: int, end: int, before: dict[int, int], *, is_past: bool) -> None:
        """The broker says that `epoch`, the last one up to `asked`, ended before offset `end`. Raises SimulationFailure.

        `before` is what `epochs` held when it was asked: what was read meanwhile it need not have known.
        """
        if epoch > asked or (epoch, end) == (-1, -1):
            self.fail(f"epoch {asked} is said to have ended at {(epoch, end)}")
        for offset, of in before.items():
            if of <= asked and offset >= end:
                self.fail(f"epoch {asked} is said to have ended at {(epoch, end)}, but offset {offset} is of epoch {of}")
        if self.deleted_end or self.facts.has_retention or self.facts.is_compacted:
            return  # where the log begins anew, the epochs before it end; one whose records are gone may be forgotten
        for offset, of in self.epochs.items():
            if of > asked and offset < end:
                self.fail(f"epoch {asked} is said to have ended at {(epoch, end)}, but offset {offset} is of epoch {of}")
        if is_past and (known := self.epoch_ends.setdefault(asked, end)) != end:
            self.fail(f"epoch {asked} is said to have ended at {(epoch, end)}, and had ended at {known} before")

    def _stand(self, offset: int, value: bytes, how: str) -> None:
        known = self.standing.setdefault(offset, value)
        if known != value:
            self.fail(f"offset {offset} {how} with {value!r}, but it holds {known!r}")
        # A duplicate may be answered with the place of a record that was deleted; if a start forgot it, a retry got another.
        is_placed = self.sent[value][1] and offset >= self.start
        if is_placed and self.places.setdefault(value, offset) != offset:
            self.fail(f"{value!r} {how} at offset {offset}, but an idempotent producer's record stands at {self.places[value]}")

    def reached(self, end: int, holes: Sequence[tuple[int, int]]) -> int:
        """Up to where a log that ends at `end` holds every offset, but for `holes` that were there at the last start."""
        return min((first for first, behind in holes if (first, behind) not in self.holes), default=end)

    def restarted(self, start: int, end: int, must_reach: int, holes: Sequence[tuple[int, int]] = ()) -> None:
        """After a start the log has the offsets `start` to `end` but for `holes`; all below `must_reach` had to survive.

        Raises SimulationFailure.
        """
        reached = self.reached(end, holes)
        if reached < must_reach:
            self.fail(f"after the start the log ends at offset {reached}, but all below {must_reach} had to survive")
        self.holes = list(holes)
        self.start = start
        if start > self.deleted_end and start > 0 and not self.facts.has_retention:
            self.fail(f"after the start the log begins at offset {start}; nobody asked for more than {self.deleted_end} to go")
        self.low_watermark = 0
        self.losses += reached < self.acknowledged_end
        lost = [offset for offset in self.standing if offset >= end or any(low <= offset < high for low, high in holes)]
        for offset in lost:
            value = self.standing.pop(offset)
            if self.places.get(value) == offset:
                del self.places[value]
        # A start forgets the producers of records that are deleted, as Kafka's does: a retry of one is new to it.
        self.places = {value: offset for value, offset in self.places.items() if offset >= start}
        self.epochs = {offset: epoch for offset, epoch in self.epochs.items() if offset < end}
        self.epoch_ends = {epoch: ended for epoch, ended in self.epoch_ends.items() if ended <= end}
        self.acknowledged_end = min(self.acknowledged_end, end)

    @property
    def readable_end(self) -> int:
        """Behind the last acknowledged record: a power loss may take those before the log's end, which stays."""
        return max((offset + 1 for offset in self.standing if offset < self.acknowledged_end), default=0)

    def is_hole(self, start: int, end: int) -> bool:
        """Whether a power cut took all from offset `start` to `end`."""
        for low, high in self.holes:  # in order; of whole segments that are gone one begins where another ends
            if low <= start < high and start < end:
                start = high
        return start == end
