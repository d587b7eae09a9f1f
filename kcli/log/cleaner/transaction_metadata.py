"""Which batches of transactions a cleaner may discard, told front to back (Kafka: CleanedTransactionMetadata).

    batch                             may be discarded when
    --------------------------------  --------------------------------------------------------------------------------
    data of a transaction             it was aborted
    COMMIT marker                     no data batch of its producer's transaction was seen before it
    ABORT marker                      the same; where one was seen, the transaction stays in the `.txnindex`
    control batch of no records       always: a round before has taken its record

A control record of a producer that is no marker is damage: whoever reads it refuses the log.
A marker outlives the last batch of its transaction: a reader that began at that batch must find out how it ended.

What strides (kcli.log.cleaner.batch_strides) ask of each batch is `open`: the producers whose aborted transactions go on, and
those with data of a transaction since their last marker, which strides add and take.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import NamedTuple

from kcli.format.end_transaction_marker import EndTransactionMarker
from kcli.format.index_entries import AbortedTxn
from kcli.format.primitives import INT64_MAX
from kcli.format.record_batch import RecordBatch
from kcli.log.cleaner.batch_reader import OpenTransactions


class LastRecord(NamedTuple):
    """What of a producer that is active must stay: the batch of its last data offset, or (None) its last marker by epoch."""

    last_data_offset: int | None
    producer_epoch: int


class _Ongoing:
    """An aborted transaction whose marker was not read yet."""

    def __init__(self, txn: AbortedTxn) -> None:
        self.txn = txn
        self.is_seen = False


class CleanedTransactions:
    """The transactions of a pass over a log."""

    def __init__(self) -> None:
        self.open = OpenTransactions()
        self._retained: list[AbortedTxn] = []
        self._aborted: dict[int, _Ongoing] = {}
        self._waiting: list[tuple[int, int, AbortedTxn]] = []

    def add_aborted(self, transactions: Iterable[AbortedTxn]) -> None:
        """These aborted transactions touch the offsets that are read next; one may be given more than once."""
        for txn in transactions:
            heappush(self._waiting, (txn.first_offset, txn.producer_id, txn))
        self._tell_strides()

    def take_retained(self) -> list[AbortedTxn]:
        """Entries for the `.txnindex`: aborted transactions with data left, whose markers were read since the last call."""
        taken, self._retained = self._retained, []
        return taken

    def on_data(self, batch: RecordBatch) -> bool:
        """A data batch is read -> whether it belongs to an aborted transaction."""
        self._begin_up_to(batch.last_offset)
        if not batch.is_transactional:
            return False
        ongoing = self._aborted.get(batch.producer_id)
        if ongoing is None:
            self.open.note_open(batch.producer_id)
            return False
        ongoing.is_seen = True
        return True

    def on_control(self, batch: RecordBatch, marker: EndTransactionMarker | None) -> bool:
        """A control batch of a producer is read, `marker` None where it has no records -> whether it may be discarded."""
        self._begin_up_to(batch.last_offset)
        if marker is None:
            return True
        if not marker.is_abort:
            return not self.open.close_open(batch.producer_id)
        ongoing = self._aborted.pop(batch.producer_id, None)
        self._tell_strides()
        if ongoing is None or not ongoing.is_seen:
            return True
        self._retained.append(ongoing.txn)
        return False

    def _begin_up_to(self, offset: int) -> None:
        while self._waiting and self._waiting[0][0] <= offset:
            txn = heappop(self._waiting)[2]
            self._aborted.setdefault(txn.producer_id, _Ongoing(txn))
            self._tell_strides()

    def _tell_strides(self) -> None:
        self.open.set_aborted(self._waiting[0][0] if self._waiting else INT64_MAX, self._aborted)
