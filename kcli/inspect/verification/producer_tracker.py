"""Checks the producers of a partition: sequences, epochs, transactions, and the .txnindex files.

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
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from kcli.format.end_transaction_marker import EndTransactionMarker
from kcli.format.index_entries import AbortedTxn
from kcli.format.producer_snapshot import ProducerEntry
from kcli.format.record_batch import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, increment_sequence
from kcli.inspect.verification.findings import FindingList
from kcli.inspect.verification.producer_steps import ProducerStep
from kcli.inspect.verification.transaction_index import TransactionIndexCheck


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
