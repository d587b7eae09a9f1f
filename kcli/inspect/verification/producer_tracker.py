"""Checks the producers of a partition: sequences, epochs, transactions, .txnindex files and snapshots.

kcli.log.producer_state_manager decides how a batch changes its producer's state. This module only checks whether a broker could
have written the batches, and its state is that of a snapshot's entry, because a log may have many producers. Successive batches
of a producer come as one ProducerStep.

    step                                     is a finding if
    ---------------------------------------  ---------------------------------------------------------------------------
    records, epoch as before                 its sequence is not the next one: lower is a repetition; higher is a gap,
                                               unless offsets are missing since (the log was cleaned, or is damaged);
                                               0 may always follow, because the broker may have forgotten the producer
    records, a new epoch                     its sequence is not 0, unless offsets are missing since
    records outside of an open transaction   always: a broker does not load such a log
    any                                      its epoch, or a marker's coordinator epoch, is lower than before
    an abort marker                          its transaction is not in the .txnindex of the marker's segment, unless no
                                               record of it is left

Before `gap_offset` something may be missing: the state is only a lower bound there. A snapshot may lack producers that wrote
nothing for their expiration time (one day by default); the timestamps of the records do not show that.

A ProducerStep has batches of a producer that follow each other in its sequence, joined while a segment is read. Several
producers write to a partition alternately, so several runs of batches grow at the same time (kcli.format.batch_scan). All
become steps, in the order of their first batches, before anything that needs their total: a control batch, an offset at which a
snapshot is compared, missing offsets, damage, the end of the segment.

A segment's `.txnindex` is compared with the transactions that were aborted in the segment.

    entry                   must be
    ----------------------  --------------------------------------------------------------------------------------------
    version                 0
    last offset             that of an abort marker in the segment, of the entry's producer; it ascends
    first offset            where the transaction begins; if offsets are missing, at or before what is left of it
    last stable offset      the start of the first transaction that was open when the marker was written, else the offset
                              after the marker; if offsets are missing, at most that

An aborted transaction with a remaining record must have an entry: without it consumers read the records. The cleaner removes
the entry with the last of the records, and the marker later.

A producer snapshot is compared with the batches before its offset.

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

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from kcli.format.batch_scan import BatchColumns, ProducerRuns
from kcli.format.end_transaction_marker import EndTransactionMarker
from kcli.format.index_entries import AbortedTxn
from kcli.format.primitives import FormatError
from kcli.format.producer_snapshot import ENTRY, HEADER, ProducerEntry, check_producer_snapshot, iter_producer_entries
from kcli.format.record_batch import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, TRANSACTIONAL_FLAG, increment_sequence
from kcli.format.structs import ABORTED_TXN
from kcli.inspect.verification.findings import MOST_OF_A_KIND, FindingList
from kcli.log.disk.port import Disk
from kcli.log.files.log_directory import Segment

MOST_RUNS = 64
# A larger file is not read: it would have a million transactions that were aborted in one segment.
MOST_INDEX_BYTES = 32 * 1024 * 1024
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
            data = disk.read_file(path, MOST_INDEX_BYTES)
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


class ProducerStep(NamedTuple):
    """Batches of one producer, each next in its sequence; or one control batch, with its marker.

    `first_offset`, `first_sequence`, `first_position` are those of the first batch, `batch_offset` (its base offset),
    `last_offset`, `last_sequence` and `max_timestamp` (ms) those of the last one. `records` is their number. `gap_offset` is
    the highest offset, at or below the end of the first batch, before which something is missing in the segment, or -1;
    `is_after_damage`: some of it is missing because of damage.
    """

    producer_id: int
    producer_epoch: int
    is_transactional: bool
    first_position: int
    first_offset: int
    first_sequence: int
    batch_offset: int
    last_offset: int
    last_sequence: int
    max_timestamp: int
    records: int
    gap_offset: int
    is_after_damage: bool = False
    marker: EndTransactionMarker | None = None
    is_control: bool = False


def last_sequence(rows: BatchColumns, row: int) -> int:
    """Return the sequence of the last record of a row's batch, -1 where it has none."""
    first = rows.base_sequence[row]
    return first if first < 0 else increment_sequence(first, rows.last_offset[row] - rows.base_offset[row])


class StepGatherer:
    """The runs of one segment; `on_step` is called with each step. `gap_offset`, `is_after_damage`: see ProducerStep."""

    def __init__(self, on_step: Callable[[ProducerStep], None]) -> None:
        self.runs = ProducerRuns(MOST_RUNS)
        self.batches = 0  # of producers, in the steps so far
        self.gap_offset = -1
        self.is_after_damage = False
        self._on_step = on_step

    def begin(self, rows: BatchColumns, row: int) -> None:
        """Begin a run with a row of `rows`, a batch of records."""
        runs = self.runs
        producer_id = rows.producer_id[row]
        if runs.used == runs.capacity or producer_id in runs.producer_id[: runs.used]:
            self.flush()
        slot = runs.used
        runs.producer_id[slot], runs.producer_epoch[slot] = producer_id, rows.producer_epoch[row]
        runs.attributes[slot] = rows.attributes[row] & -8
        runs.first_position[slot] = rows.position[row]
        runs.first_offset[slot] = runs.batch_offset[slot] = rows.base_offset[row]
        runs.first_sequence[slot] = rows.base_sequence[row]
        runs.last_offset[slot], runs.last_sequence[slot] = rows.last_offset[row], last_sequence(rows, row)
        runs.max_timestamp[slot] = rows.max_timestamp[row]
        runs.records[slot], runs.batches[slot] = rows.record_count[row], 1
        runs.used = slot + 1

    def flush(self) -> None:
        """Make steps of all runs."""
        runs = self.runs
        for slot in range(runs.used):
            if runs.producer_id[slot] < 0:
                continue
            self.batches += runs.batches[slot]
            self._on_step(
                ProducerStep(
                    runs.producer_id[slot],
                    runs.producer_epoch[slot],
                    bool(runs.attributes[slot] & TRANSACTIONAL_FLAG),
                    runs.first_position[slot],
                    runs.first_offset[slot],
                    runs.first_sequence[slot],
                    runs.batch_offset[slot],
                    runs.last_offset[slot],
                    runs.last_sequence[slot],
                    runs.max_timestamp[slot],
                    runs.records[slot],
                    self.gap_offset,
                    self.is_after_damage,
                )
            )
        runs.used = 0

    def add(self, step: ProducerStep) -> None:
        """Make steps of all runs, then add the step of a control batch."""
        self.flush()
        self.batches += 1
        self._on_step(step)


class OpenTransactionCount(NamedTuple):
    """A transaction without an end in the log, and the number of its records."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    records: int


class TransactionCounts:
    """How many transactions of a partition ended in which way, and the records of the aborted ones."""

    def __init__(self) -> None:
        self.committed = 0
        self.aborted = 0
        self.aborted_records = 0


class ProducerTracker:
    """The producers of one partition, changed by steps in the order of the log.

    If `knows_all` is False, producers may have written before their first step.
    """

    def __init__(self, findings: FindingList, *, knows_all: bool) -> None:
        self.findings = findings
        self.knows_all = knows_all
        self.producers: dict[int, ProducerEntry] = {}
        self.counts = TransactionCounts()
        self.gap_offset = -1
        self.is_damaged = False
        self._path = ""
        self._index: TransactionIndexCheck | None = None
        self._open: dict[int, int] = {}  # producer id -> first offset of its open transaction
        self._records: dict[int, int] = {}  # producer id -> number of records of its open transaction

    def load(self, entries: Iterable[ProducerEntry]) -> None:
        """Begin with the entries of a snapshot."""
        for entry in entries:
            self.producers[entry.producer_id] = entry
            if entry.open_txn_first_offset is not None:
                self._open[entry.producer_id] = entry.open_txn_first_offset
                self._records[entry.producer_id] = 0

    def begin_segment(self, path: str, index: TransactionIndexCheck) -> None:
        """Set the path and the transaction index of the segment that the next steps come from."""
        self._path, self._index = path, index

    def apply(self, step: ProducerStep) -> None:
        """Check a step and change the state of its producer."""
        self.note_gap(step)
        state = self.producers.get(step.producer_id)
        if state is None:
            state = ProducerEntry(step.producer_id, NO_PRODUCER_EPOCH, NO_SEQUENCE, -1, 0, NO_TIMESTAMP, -1, -1)
        elif step.producer_epoch < state.producer_epoch:
            self._add(
                "producer-epoch-back",
                step,
                f"producer {step.producer_id} writes with epoch {step.producer_epoch} after epoch {state.producer_epoch}",
            )
        if step.is_control:
            if step.marker is not None:
                self.producers[step.producer_id] = self._end_transaction(step, state, step.marker)
            return
        self._check_sequence(step, state)
        self.producers[step.producer_id] = self._append(step, state)

    def note_gap(self, step: ProducerStep) -> None:
        """Note what is missing before a step."""
        self.gap_offset = max(self.gap_offset, step.gap_offset)
        self.is_damaged = self.is_damaged or step.is_after_damage

    def open_transactions(self) -> list[OpenTransactionCount]:
        """Return the transactions that have not ended, by their first offsets."""
        found = [
            OpenTransactionCount(producer_id, self.producers[producer_id].producer_epoch, first, self._records[producer_id])
            for producer_id, first in self._open.items()
        ]
        return sorted(found, key=lambda txn: txn.first_offset)

    def records_of_open_transaction(self, producer_id: int) -> int:
        """Return the number of records in the producer's open transaction."""
        return self._records.get(producer_id, 0)

    def _add(self, code: str, step: ProducerStep, message: str) -> None:
        self.findings.add(code, self._path, message, position=step.first_position, offset=step.first_offset)

    def _check_sequence(self, step: ProducerStep, state: ProducerEntry) -> None:
        if step.first_sequence in (0, NO_SEQUENCE) or state.producer_epoch == NO_PRODUCER_EPOCH:
            return
        if not state.has_batch or step.producer_epoch != state.producer_epoch:
            if self.knows_all and self.gap_offset < 0:
                self._add(
                    "producer-sequence-gap",
                    step,
                    f"producer {step.producer_id} begins epoch {step.producer_epoch} with sequence {step.first_sequence}",
                )
            return
        expected = 0 if state.last_sequence == NO_SEQUENCE else increment_sequence(state.last_sequence, 1)
        ahead = step.first_sequence - expected & 0x7FFF_FFFF
        if ahead == 0:
            return
        where = (
            f"producer {step.producer_id} (epoch {step.producer_epoch}) writes sequence {step.first_sequence}; "
            f"{expected} is next after its batch that ends at offset {state.last_offset}"
        )
        if ahead >= 0x4000_0000:
            self._add("producer-sequence-back", step, where)
        elif self.gap_offset <= state.last_offset:
            self._add("producer-sequence-gap", step, where)

    def _append(self, step: ProducerStep, state: ProducerEntry) -> ProducerEntry:
        """Return the producer's state after a step of records."""
        first = state.current_txn_first_offset
        if step.is_transactional:
            if first < 0:
                first = self._open[step.producer_id] = step.first_offset
                self._records[step.producer_id] = 0
            self._records[step.producer_id] += step.records
        elif first >= 0:
            self._add(
                "transaction-mixed",
                step,
                f"producer {step.producer_id} writes outside of a transaction while the one that began at offset {first} is "
                "open",
            )
        return ProducerEntry(
            step.producer_id,
            step.producer_epoch,
            step.last_sequence,
            step.last_offset,
            step.last_offset - step.batch_offset,
            step.max_timestamp,
            state.coordinator_epoch,
            first,
        )

    def _end_transaction(self, step: ProducerStep, state: ProducerEntry, marker: EndTransactionMarker) -> ProducerEntry:
        """Return the producer's state after a marker, which ends its open transaction if it has one."""
        if marker.coordinator_epoch < state.coordinator_epoch:
            self._add(
                "coordinator-epoch-back",
                step,
                f"a marker of producer {step.producer_id} is of coordinator epoch {marker.coordinator_epoch}, after one of "
                f"epoch {state.coordinator_epoch}",
            )
        first = self._open.pop(step.producer_id, None)
        records = self._records.pop(step.producer_id, 0)
        if marker.is_abort:
            self._abort(step, first, records)
        elif first is not None:
            self.counts.committed += 1
        if step.producer_epoch != state.producer_epoch:  # the batches of another epoch are forgotten
            state = state._replace(
                producer_epoch=step.producer_epoch, last_sequence=NO_SEQUENCE, last_offset=-1, offset_delta=0
            )
        return state._replace(
            timestamp=marker.timestamp, coordinator_epoch=marker.coordinator_epoch, current_txn_first_offset=-1
        )

    def _abort(self, step: ProducerStep, first: int | None, records: int) -> None:
        if first is not None:
            self.counts.aborted += 1
            self.counts.aborted_records += records
        if self._index is None:
            return
        if first is None:
            self._index.allow(step.first_offset, step.producer_id, is_known=self.knows_all and self.gap_offset < 0)
            return
        stable = min(self._open.values(), default=step.first_offset + 1)
        expected = AbortedTxn(0, step.producer_id, first, step.first_offset, stable)
        self._index.expect(
            expected, step.first_position, records, is_exact=self.knows_all and self.gap_offset < 0, is_damaged=self.is_damaged
        )
