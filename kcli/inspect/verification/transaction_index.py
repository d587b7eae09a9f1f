"""Compares a segment's `.txnindex` with the transactions that were aborted in the segment.

    entry                   must be
    ----------------------  --------------------------------------------------------------------------------------------
    version                 0
    last offset             that of an abort marker in the segment, of the entry's producer; it ascends
    first offset            where the transaction begins; if offsets are missing, at or before what is left of it
    last stable offset      the start of the first transaction that was open when the marker was written, else the offset
                              after the marker; if offsets are missing, at most that

An aborted transaction with a remaining record must have an entry: without it consumers read the records. The cleaner removes
the entry with the last of the records, and the marker later.
"""

from __future__ import annotations

from collections.abc import Iterator

from kcli.format.index_entries import AbortedTxn
from kcli.format.structs import ABORTED_TXN
from kcli.inspect.verification.findings import MOST_OF_A_KIND, FindingList
from kcli.log.disk.port import Disk
from kcli.log.files.log_directory import Segment

# A larger file is not read: it would have a million transactions that were aborted in one segment.
MOST_BYTES = 32 * 1024 * 1024


class TransactionIndexCheck:
    """The `.txnindex` of one segment.

    `expect` or `allow` is called for each abort marker in the order of the log, then `finish`. Entries are decoded one by one.
    `tail_may_be_missing`: a running broker writes to the segment.
    """

    def __init__(
        self, disk: Disk, segment: Segment, findings: FindingList, *, log_start_offset: int, tail_may_be_missing: bool
    ) -> None:
        self.path = segment.transaction_index
        self.log_path = segment.log
        self.base_offset = segment.base_offset
        self.findings = findings
        self.log_start_offset = log_start_offset
        self.tail_may_be_missing = tail_may_be_missing
        self._entries: Iterator[tuple[int, AbortedTxn]] = iter(())  # slot, entry
        self._next: tuple[int, AbortedTxn] | None = None
        self._passed: list[tuple[int, AbortedTxn]] = []  # entries without a marker
        self._is_readable = True
        if self.path is not None:
            self._read(disk, self.path)

    def _add(self, code: str, message: str, slot: int | None = None, offset: int | None = None) -> None:
        position = None if slot is None else slot * ABORTED_TXN.size
        self.findings.add(code, self.path or self.log_path, message, position=position, offset=offset)

    def _read(self, disk: Disk, path: str) -> None:
        try:
            data = disk.read_file(path, MOST_BYTES)
        except OSError as error:
            self._is_readable = False
            self.findings.add_unreadable(path, error)
            return
        slots, rest = divmod(len(data), ABORTED_TXN.size)
        if rest:
            self._add("txnindex-size", f"the file ends with {rest} bytes of an entry of {ABORTED_TXN.size} bytes", slots)
        self._entries = self._sound_entries(memoryview(data)[: len(data) - rest])
        self._next = next(self._entries, None)

    def _sound_entries(self, data: memoryview) -> Iterator[tuple[int, AbortedTxn]]:
        """Yield the entries of version 0 whose last offsets ascend; the others are findings."""
        last = self.base_offset - 1
        for slot, raw in enumerate(ABORTED_TXN.iter_unpack(data)):
            txn = AbortedTxn(*raw)
            if txn.version != 0:
                self._add("txnindex-version", f"entry {slot} has version {txn.version}; 0 is known", slot)
            elif txn.last_offset <= last:
                self._add(
                    "txnindex-mismatch",
                    f"entry {slot} has the last offset {txn.last_offset}; it must be above {last}",
                    slot,
                    txn.last_offset if txn.last_offset >= 0 else None,
                )
            else:
                last = txn.last_offset
                yield slot, txn

    def _take(self, last_offset: int) -> tuple[int, AbortedTxn] | None:
        """Return the entry that ends at an offset, None if there is none; those before it have no marker."""
        while self._next is not None and self._next[1].last_offset < last_offset:
            if len(self._passed) <= MOST_OF_A_KIND:
                self._passed.append(self._next)
            self._next = next(self._entries, None)
        if self._next is None or self._next[1].last_offset != last_offset:
            return None
        found, self._next = self._next, next(self._entries, None)
        return found

    def expect(self, txn: AbortedTxn, position: int, records: int, *, is_exact: bool, is_damaged: bool) -> None:
        """Compare the entry of an aborted transaction, of which `records` are left, with `txn`, which follows from the batches.

        `position` is the marker's byte in the log. `is_exact`: nothing is missing in the partition; `is_damaged`: markers may
        be missing.
        """
        found = self._take(txn.last_offset)
        if found is None:
            if records and self._is_readable and not self.tail_may_be_missing:
                where = "there is no .txnindex file" if self.path is None else "the .txnindex file has no entry for it"
                self.findings.add(
                    "txnindex-missing-entry",
                    self.log_path,
                    f"producer {txn.producer_id} aborted its transaction from offset {txn.first_offset} on; {where}",
                    position=position,
                    offset=txn.last_offset,
                )
            return
        slot, entry = found
        if txn.first_offset < self.log_start_offset and txn.first_offset < entry.first_offset <= txn.last_offset:
            # A recovery reads the batches from the log start on: the entry begins with the first one that it read.
            entry = entry._replace(first_offset=txn.first_offset)
        if is_exact:
            fits = entry == txn
        else:
            fits = (
                entry.producer_id == txn.producer_id
                and (entry.first_offset <= txn.first_offset or is_damaged)
                and entry.last_stable_offset <= txn.last_offset + 1
            )
        if not fits:
            self._add_mismatch(slot, entry, f"the batches have {txn}")

    def allow(self, last_offset: int, producer_id: int, *, is_known: bool) -> None:
        """Allow an entry for an abort marker without records, unless `is_known` shows that there was no transaction."""
        found = self._take(last_offset)
        if found is not None and (is_known or found[1].producer_id != producer_id):
            self._add_mismatch(*found, f"the marker at offset {last_offset}, of producer {producer_id}, ends no transaction")

    def finish(self, damaged: list[tuple[int, int]]) -> None:
        """Report the entries without a marker, unless their last offset is in a `damaged` range [first, end)."""
        self._take(2**63)
        for slot, entry in self._passed:
            if not any(start <= entry.last_offset < end for start, end in damaged):
                self._add_mismatch(slot, entry, f"no transaction was aborted at offset {entry.last_offset}")

    def _add_mismatch(self, slot: int, entry: AbortedTxn, why: str) -> None:
        self._add("txnindex-mismatch", f"entry {slot} is {entry}; {why}", slot, entry.last_offset)
