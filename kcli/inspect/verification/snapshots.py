"""Holds producer snapshots against what the batches before their offsets add up to.

in the snapshot                        is sound where
-------------------------------------  -----------------------------------------------------------------------------
a producer's last batch, its epoch,    the batches say the same; where offsets are missing (a cleaned log), the
  its open transaction                   snapshot may know of batches and markers that are gone, not of fewer
the coordinator epoch                  the same, or -1: the broker had forgotten the producer and met it again
no word of a producer                  it has no open transaction: brokers forget producers that were idle for a day
a producer without a batch             the log began later, or offsets are missing
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kcli.format.primitives import FormatError
from kcli.format.producer_snapshot import ENTRY, HEADER, ProducerEntry, check_producer_snapshot, iter_producer_entries
from kcli.inspect.verification.findings import FindingList
from kcli.inspect.verification.producers import ProducerTracker
from kcli.log.disk.port import Disk

# A larger file is refused: it would name 700,000 producers.
MOST_SNAPSHOT_BYTES = 32 * 1024 * 1024


class Snapshot(NamedTuple):
    """A producer snapshot that was checked; its entries, of which there may be many, come one by one."""

    data: bytes
    end: int

    def entries(self) -> Iterator[ProducerEntry]:
        """The entries in the order of the file."""
        return iter_producer_entries(self.data, self.end)


def read_snapshot(disk: Disk, path: str, findings: FindingList) -> Snapshot | None:
    """Read a producer snapshot -> it, or None where it cannot be read (a finding)."""
    try:
        data = disk.read_file(path, MOST_SNAPSHOT_BYTES)
        return Snapshot(data, check_producer_snapshot(data))
    except OSError as error:
        findings.add_unreadable(path, error)
    except FormatError as error:
        findings.add("snapshot-corrupt", path, error.message, position=error.position)
    return None


class SnapshotCheck:
    """Compares the snapshots of a partition with a tracker that stands at their offsets."""

    def __init__(self, tracker: ProducerTracker, findings: FindingList) -> None:
        self.tracker = tracker
        self.findings = findings

    def compare(self, path: str, offset: int, snapshot: Snapshot) -> None:
        """Hold the snapshot of `offset` against the tracker, which has seen every batch below it."""
        open_transactions = self.tracker.open_transactions()
        unnamed = {txn.producer_id for txn in open_transactions}
        for slot, entry in enumerate(snapshot.entries()):
            unnamed.discard(entry.producer_id)
            why = self._difference(entry, offset)
            if why is not None:
                position = HEADER.size + slot * ENTRY.size
                self.findings.add(
                    "snapshot-mismatch",
                    path,
                    f"the snapshot has for producer {entry.producer_id} {why}",
                    position=position,
                    offset=offset,
                )
        for txn in open_transactions:
            # Its end may have been among offsets that are missing.
            may_have_ended = txn.first_offset < self.tracker.gap_offset
            if txn.producer_id in unnamed and txn.records and txn.first_offset < offset and not may_have_ended:
                self.findings.add(
                    "snapshot-mismatch",
                    path,
                    f"the snapshot does not name producer {txn.producer_id}, whose transaction from offset "
                    f"{txn.first_offset} on was open",
                    offset=offset,
                )

    def _difference(self, entry: ProducerEntry, offset: int) -> str | None:
        """What an entry tells otherwise than the batches, as the end of a sentence; None where nothing."""
        known = self.tracker.producers.get(entry.producer_id)
        is_exact = self.tracker.gap_offset < 0
        if max(entry.last_offset, entry.current_txn_first_offset) >= offset:
            return f"offset {max(entry.last_offset, entry.current_txn_first_offset)}, which is not below its own, {offset}"
        if known is None:
            if is_exact and self.tracker.knows_all:
                return "an entry, but no batch before it is from that producer"
            return None
        if entry.producer_epoch != known.producer_epoch and (is_exact or entry.producer_epoch < known.producer_epoch):
            return f"epoch {entry.producer_epoch}; the batches have {known.producer_epoch}"
        if entry.last_offset != known.last_offset and (is_exact or 0 <= entry.last_offset < known.last_offset):
            return f"a last batch that ends at offset {entry.last_offset}; the batches have {known.last_offset}"
        same_batch = entry.last_offset == known.last_offset >= 0
        if same_batch and (entry.last_sequence, entry.offset_delta) != (known.last_sequence, known.offset_delta):
            return (
                f"a last batch of sequence {entry.last_sequence} and offset delta {entry.offset_delta}; the batch has "
                f"{known.last_sequence} and {known.offset_delta}"
            )
        if is_exact and entry.coordinator_epoch not in (known.coordinator_epoch, -1):
            return f"coordinator epoch {entry.coordinator_epoch}; the batches have {known.coordinator_epoch}"
        if is_exact and same_batch and entry.timestamp != known.timestamp:
            return f"timestamp {entry.timestamp} ms; the batches have {known.timestamp}"
        return self._transaction_difference(entry, known, is_exact)

    def _transaction_difference(self, entry: ProducerEntry, known: ProducerEntry, is_exact: bool) -> str | None:
        told, first = entry.open_txn_first_offset, known.open_txn_first_offset
        if told == first:
            return None
        is_empty = not self.tracker.records_of_open_transaction(entry.producer_id)
        if not is_exact and (first is None or is_empty or (told is not None and told < first)):
            return None
        if first is not None and first < self.tracker.gap_offset:
            return None  # its end may have been among offsets that are missing
        begins = "no open transaction" if told is None else f"a transaction open from offset {told} on"
        return f"{begins}; the batches have " + ("none" if first is None else f"one from offset {first} on")
