"""Compares producer snapshots with the batches before their offsets.

in the snapshot                        is sound if
-------------------------------------  -------------------------------------------------------------------------
a producer's last batch, its epoch,    the batches have the same; if offsets are missing (a cleaned log), the
  its open transaction                   snapshot may know of removed batches and markers, but not of fewer
the coordinator epoch                  the markers have the same, or it is -1: the producer had expired and wrote
                                         again
no entry of a producer                 it has no open transaction: a broker forgets producers that are idle for
                                         producer.id.expiration.ms
a producer without a batch             the log began later, or offsets are missing
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kcli.format.primitives import FormatError
from kcli.format.producer_snapshot import ENTRY, HEADER, ProducerEntry, check_producer_snapshot, iter_producer_entries
from kcli.inspect.verification.findings import FindingList
from kcli.inspect.verification.producer_tracker import ProducerTracker
from kcli.log.disk.port import Disk

# A larger file is not read: it would have 700,000 producers.
MOST_SNAPSHOT_BYTES = 32 * 1024 * 1024


class Snapshot(NamedTuple):
    """A producer snapshot that was checked; its entries are decoded one by one, because there may be many."""

    data: bytes
    end: int

    def entries(self) -> Iterator[ProducerEntry]:
        """Yield the entries in the order of the file."""
        return iter_producer_entries(self.data, self.end)


def read_snapshot(disk: Disk, path: str, findings: FindingList) -> Snapshot | None:
    """Read a producer snapshot, None if it cannot be read (a finding)."""
    try:
        data = disk.read_file(path, MOST_SNAPSHOT_BYTES)
        return Snapshot(data, check_producer_snapshot(data))
    except OSError as error:
        findings.add_unreadable(path, error)
    except FormatError as error:
        findings.add("snapshot-corrupt", path, error.message, position=error.position)
    return None


class SnapshotCheck:
    """Compares the snapshots of a partition with the state of its producers at their offsets."""

    def __init__(self, tracker: ProducerTracker, findings: FindingList) -> None:
        self.tracker = tracker
        self.findings = findings

    def compare(self, path: str, offset: int, snapshot: Snapshot) -> None:
        """Compare the snapshot of `offset` with the tracker, to which all steps below that offset were applied."""
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
            # Its marker may be one of the missing batches.
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
        """Return in what an entry differs from the batches, as the end of a sentence; None if in nothing."""
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
        stored, first = entry.open_txn_first_offset, known.open_txn_first_offset
        if stored == first:
            return None
        is_empty = not self.tracker.records_of_open_transaction(entry.producer_id)
        if not is_exact and (first is None or is_empty or (stored is not None and stored < first)):
            return None
        if first is not None and first < self.tracker.gap_offset:
            return None  # its marker may be one of the missing batches
        begins = "no open transaction" if stored is None else f"a transaction open from offset {stored} on"
        return f"{begins}; the batches have " + ("none" if first is None else f"one from offset {first} on")
