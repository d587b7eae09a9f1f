"""The aborted and open transactions of a partition, and its last stable offset.

    segment                                             source of its aborted transactions
    --------------------------------------------------  ---------------------------------------------------------------
    a sound .txnindex                                   the index
    no .txnindex, but an .index                         none: Kafka creates a .txnindex for the first one
    neither of them (a copied .log)                     its markers: the segment is scanned
    an invalid .txnindex                                its markers
    the last one, after the newest producer snapshot    its markers: the last index entries may be lost in a crash

Transactions that began before a scanned range come from the producer snapshot at its start; if that is missing or damaged, the
scan begins one segment earlier. So after a clean shutdown almost nothing is scanned, and after a crash what Kafka scans. A scan
reads only the headers of batches that are not transactional; a transactional batch counts only if its CRC is correct, so that a
flipped bit does not open a transaction that hides the records after it.

A transaction extends from its first record to its marker, both included. As for Kafka's consumer, only batches with the
transactional flag belong to it, and read_committed returns nothing at or above the last stable offset. The checkpointed high
watermark is not used: it is stale after a crash.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from kcli.format import limits
from kcli.format.end_transaction_marker import ABORT, COMMIT, KEY
from kcli.format.index_entries import TransactionIndex
from kcli.format.primitives import FormatError
from kcli.format.producer_snapshot import decode_producer_snapshot
from kcli.format.record_batch import RecordBatch
from kcli.log.disk.port import Disk
from kcli.log.files.log_directory import PartitionDirectory, Segment
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.header_reader import HeaderReader
from kcli.log.reading.offset_lookup import OffsetLookup
from kcli.log.reading.segment_reader import Damage, LogBatch


class AbortedTransaction(NamedTuple):
    """An aborted transaction: the offsets of its first record and of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int


class OpenTransaction(NamedTuple):
    """A transaction that has not ended by the end of the log."""

    producer_id: int
    producer_epoch: int
    first_offset: int


class AbortedTransactions:
    """The transactions of a partition that did not commit; picklable.

    `aborted` and `open_transactions` are sorted by first offset. `last_stable_offset` is the first offset of the oldest open
    transaction, or `log_end_offset`. `problems` are sentences on files that could not be read and were replaced by a scan.
    """

    def __init__(
        self,
        aborted: list[AbortedTransaction],
        open_transactions: list[OpenTransaction],
        log_end_offset: int,
        problems: list[str] | None = None,
    ) -> None:
        self.aborted = sorted(set(aborted), key=lambda txn: (txn.first_offset, txn.last_offset, txn.producer_id))
        self.open_transactions = sorted(open_transactions, key=lambda txn: txn.first_offset)
        self.log_end_offset = log_end_offset
        self.problems = problems or []
        self._ranges: dict[int, tuple[list[int], list[int]]] = {}
        for producer_id, first, last in self.aborted:
            firsts, lasts = self._ranges.setdefault(producer_id, ([], []))
            firsts.append(first)
            lasts.append(last)
        self._open = {txn.producer_id: txn.first_offset for txn in self.open_transactions}

    @classmethod
    def for_partition(cls, disk: Disk, partition: PartitionDirectory) -> AbortedTransactions:
        """Find the transactions of a partition. Raises OSError if a segment cannot be read; indexes may be missing."""
        return _Finder(disk, partition).find()

    @property
    def last_stable_offset(self) -> int:
        """The end of the records that read_committed returns."""
        return self.open_transactions[0].first_offset if self.open_transactions else self.log_end_offset

    def is_aborted(self, producer_id: int, offset: int) -> bool:
        """Return True if the transactional batch of `producer_id` at `offset` was aborted; also for its marker."""
        found = self._ranges.get(producer_id)
        if found is None:
            return False
        firsts, lasts = found
        slot = bisect_right(firsts, offset) - 1
        return slot >= 0 and lasts[slot] >= offset

    def is_open(self, producer_id: int, offset: int) -> bool:
        """Return True if the transactional batch of `producer_id` at `offset` belongs to a transaction that has not ended."""
        first = self._open.get(producer_id)
        return first is not None and offset >= first

    def within(self, first_offset: int, end_offset: int, known_below: int | None = None) -> AbortedTransactions:
        """Return a copy without the aborted transactions that do not overlap [first_offset, end_offset).

        With `known_below` those whose marker is at or above that offset are left out as well.
        """
        touching = [
            txn
            for txn in self.aborted
            if first_offset <= txn.last_offset
            and txn.first_offset < end_offset
            and (known_below is None or txn.last_offset < known_below)
        ]
        return AbortedTransactions(touching, self.open_transactions, self.log_end_offset, self.problems)


def is_abort(batch: LogBatch, scanner: RecordScanner) -> bool:
    """Return True for a control batch that ends a transaction with an abort."""
    return _marker_type(batch, scanner) == ABORT


def _marker_type(batch: LogBatch, scanner: RecordScanner) -> int:
    for window in batch.windows(scanner):
        if window.count:
            key = window.key(0)
            return int(KEY.unpack_from(key)[1]) if key is not None and len(key) >= KEY.size else -1
    return -1


class TransactionTracker:
    """The transactions of batches that are applied in the order of their offsets: those that are open, and the aborted."""

    def __init__(self) -> None:
        self.aborted: list[AbortedTransaction] = []
        self.open: dict[int, OpenTransaction] = {}
        self._scanner = RecordScanner(16)

    def apply(self, batch: LogBatch) -> None:
        """Apply a sound batch: if it is transactional it begins, continues or ends a transaction."""
        header = batch.header
        if not isinstance(header, RecordBatch) or not header.is_transactional:
            return
        if not header.is_control:
            if header.record_count:
                begun = OpenTransaction(header.producer_id, header.producer_epoch, header.base_offset)
                self.open.setdefault(header.producer_id, begun)
            return
        marker = _marker_type(batch, self._scanner)
        if marker not in (ABORT, COMMIT):
            return
        ended = self.open.pop(header.producer_id, None)
        if ended is not None and marker == ABORT:
            self.aborted.append(AbortedTransaction(header.producer_id, ended.first_offset, header.base_offset))


class _Finder:
    """The search for the transactions of one partition, from the first segment to the last."""

    def __init__(self, disk: Disk, partition: PartitionDirectory) -> None:
        self.disk = disk
        self.segments = partition.segments
        self.snapshots = {file.base_offset: file.path for file in partition.snapshots}
        self.tracker = TransactionTracker()
        self.problems: list[str] = []

    def find(self) -> AbortedTransactions:
        if not self.segments:
            return AbortedTransactions([], [], 0)
        with OffsetLookup(self.disk, self.segments[-1]) as lookup:
            log_end = lookup.end_offset()
        indexes = [self._read_index(segment) for segment in self.segments]
        starts = self._scan_starts(indexes, log_end)
        for segment, index, start in zip(self.segments, indexes, starts, strict=True):
            self.tracker.aborted += index or ()
            if start is not None:
                self._scan(segment, start)
        return AbortedTransactions(self.tracker.aborted, list(self.tracker.open.values()), log_end, self.problems)

    def _read_index(self, segment: Segment) -> list[AbortedTransaction] | None:
        """Return the aborted transactions in the index, None if the segment must be scanned."""
        if segment.transaction_index is None:
            return None if segment.offset_index is None else []
        try:
            index = TransactionIndex.decode(
                self.disk.read_file(segment.transaction_index, limits.MAX_INDEX_FILE_BYTES), segment.base_offset
            )
            index.sanity_check(segment.transaction_index)
            if index.trailing or any(txn.first_offset > txn.last_offset for txn in index.aborted):
                raise FormatError(f"the transaction index {segment.transaction_index} has invalid entries")
        except (OSError, FormatError) as error:
            self.problems.append(f"{error}; the segment's markers were read instead")
            return None
        return [AbortedTransaction(txn.producer_id, txn.first_offset, txn.last_offset) for txn in index.aborted]

    def _scan_starts(self, indexes: list[list[AbortedTransaction] | None], log_end: int) -> list[int | None]:
        """Return for each segment the offset from which it is scanned, or None.

        A scan begins at a snapshot and ends with its segment; the next segment begins at its own snapshot.
        """
        starts: list[int | None] = [None] * len(self.segments)
        starts[-1] = max(
            (offset for offset in self.snapshots if self.segments[-1].base_offset <= offset <= log_end),
            default=self.segments[-1].base_offset,
        )
        for slot in range(len(self.segments) - 1, -1, -1):
            base = self.segments[slot].base_offset
            if indexes[slot] is None:
                starts[slot] = base
            start = starts[slot]
            if start is None or (slot == 0 and start == base):
                continue
            if self._snapshot(start) is None:
                starts[slot] = base
                if slot and self._snapshot(base) is None:
                    starts[slot - 1] = self.segments[slot - 1].base_offset
        return starts

    def _snapshot(self, offset: int) -> dict[int, OpenTransaction] | None:
        """Return the transactions open at `offset` by the snapshot there; None if it is missing or damaged."""
        path = self.snapshots.get(offset)
        if path is None:
            return None
        try:
            entries = decode_producer_snapshot(self.disk.read_file(path, limits.MAX_INDEX_FILE_BYTES)).entries
        except (OSError, FormatError) as error:
            self.problems.append(f"{path}: {error}; the log was read from an earlier point instead")
            del self.snapshots[offset]
            return None
        return {
            entry.producer_id: OpenTransaction(entry.producer_id, entry.producer_epoch, entry.current_txn_first_offset)
            for entry in entries
            if entry.open_txn_first_offset is not None
        }

    def _scan(self, segment: Segment, start_offset: int) -> None:
        known = self._snapshot(start_offset)
        if known is not None:
            self.tracker.open = known
        with OffsetLookup(self.disk, segment) as lookup:
            reader = lookup.reader
            position = 0 if start_offset == segment.base_offset else lookup.first_batch(start_offset)
            headers = HeaderReader(reader.file, position, reader.end_position())
            for header in headers.headers():
                if isinstance(header, RecordBatch) and header.is_transactional:
                    self._apply(segment, reader.batch_at(header.position))
            if headers.position < headers.end:
                for found in reader.batches(headers.position):
                    if isinstance(found, LogBatch) and isinstance(found.header, RecordBatch) and found.header.is_transactional:
                        self._apply(segment, found)

    def _apply(self, segment: Segment, batch: LogBatch | Damage | None) -> None:
        """Apply a transactional batch if its CRC is correct."""
        if not isinstance(batch, LogBatch) or not isinstance(batch.header, RecordBatch):
            return
        if batch.is_valid:
            self.tracker.apply(batch)
        else:
            self.problems.append(
                f"{segment.log}: the transactional batch at byte {batch.position} has a wrong CRC and does not count"
            )
