"""Which batches of transactions a cleaner may discard, reported in the order of the log (Kafka: CleanedTransactionMetadata).

    batch                             may be discarded if
    --------------------------------  --------------------------------------------------------------------------------
    data of a transaction             it was aborted
    COMMIT marker                     no data batch of its producer's transaction was read before it
    ABORT marker                      the same; if one was read, the transaction is retained in the `.txnindex`
    control batch without records     always: a round before has removed its record

A control record of a producer that is not a marker is damage, which the reader of the log reports.
A marker outlives the last batch of its transaction: a reader that began at that batch must find out how it ended.

This one source runs two ways, as kcli.format.record_scan does; its C types are in transaction_metadata.pxd. The compiled
loops call `may_be_aborted`, `add_ongoing` and `complete`; batches of aborted transactions are left to the other methods.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from heapq import heappop, heappush

from kcli.format.end_transaction_marker import EndTransactionMarker
from kcli.format.index_entries import AbortedTxn
from kcli.format.primitives import INT64_MAX
from kcli.format.record_batch import RecordBatch

# The producers with a transaction that the lists are made for at first.
FIRST_PRODUCERS = 16


class _OngoingAborted:
    """An aborted transaction whose marker was not read yet."""

    def __init__(self, txn: AbortedTxn) -> None:
        self.txn = txn
        self.has_data = False  # one of its batches was read


class CleanedTransactionMetadata:
    """The transactions of one pass over a log."""

    def __init__(self) -> None:
        self.next_aborted = INT64_MAX  # the first offset of the next aborted transaction that has not begun
        self.aborted_count = 0  # producers with an aborted transaction that has begun
        self.aborted_ids = array("q", bytes(8 * FIRST_PRODUCERS))  # their ids
        self.ongoing_count = 0  # producers with data, since their last marker, of a transaction that is not aborted
        self.ongoing_ids = array("q", bytes(8 * FIRST_PRODUCERS))  # their ids
        self._aborted: dict[int, _OngoingAborted] = {}  # by producer: transactions that have begun
        self._waiting: list[tuple[int, int, AbortedTxn]] = []  # heap of those that have not begun, by first offset
        self._retained: list[AbortedTxn] = []  # for the `.txnindex`

    # ------------------------------------------------------------------------------------------------ for compiled loops

    def may_be_aborted(self, producer_id: int, last_offset: int) -> bool:
        """Return whether a producer's batch may belong to an aborted transaction that has begun, or begins in the batch."""
        if last_offset >= self.next_aborted:
            return True
        index = 0
        while index < self.aborted_count:
            if self.aborted_ids[index] == producer_id:
                return True
            index += 1
        return False

    def find_ongoing(self, producer_id: int) -> int:
        """Return the index in `ongoing_ids`, -1 if the producer is not there."""
        index = self.ongoing_count - 1
        while index >= 0 and self.ongoing_ids[index] != producer_id:
            index -= 1
        return int(index)

    def add_ongoing(self, producer_id: int) -> None:
        """Note data of a transaction that is not aborted."""
        if self.find_ongoing(producer_id) >= 0:
            return
        if self.ongoing_count == len(self.ongoing_ids):
            larger = array("q", self.ongoing_ids)
            larger.extend(self.ongoing_ids)
            self.ongoing_ids = larger
        self.ongoing_ids[self.ongoing_count] = producer_id
        self.ongoing_count += 1

    def complete(self, producer_id: int) -> bool:
        """Note the marker of a committed transaction; return whether data of it was read."""
        index = self.find_ongoing(producer_id)
        if index < 0:
            return False
        self.ongoing_count -= 1
        self.ongoing_ids[index] = self.ongoing_ids[self.ongoing_count]
        return True

    # ------------------------------------------------------------------------------------------------- batch by batch

    def add_aborted(self, transactions: Iterable[AbortedTxn]) -> None:
        """Add aborted transactions that touch the offsets that are read next; one may be added more than once."""
        for txn in transactions:
            heappush(self._waiting, (txn.first_offset, txn.producer_id, txn))
        self._list_aborted()

    def take_retained(self) -> list[AbortedTxn]:
        """Return entries for the `.txnindex`: aborted transactions with data, whose markers were read since the last call."""
        taken, self._retained = self._retained, []
        return taken

    def on_batch_read(self, batch: RecordBatch) -> bool:
        """Note a data batch; return whether it belongs to an aborted transaction."""
        self._begin_up_to(batch.last_offset)
        if not batch.is_transactional:
            return False
        aborted = self._aborted.get(batch.producer_id)
        if aborted is None:
            self.add_ongoing(batch.producer_id)
            return False
        aborted.has_data = True
        return True

    def on_control_batch_read(self, batch: RecordBatch, marker: EndTransactionMarker | None) -> bool:
        """Note a producer's control batch, with `marker` None if it has no records; return whether it may be discarded."""
        self._begin_up_to(batch.last_offset)
        if marker is None:
            return True
        if not marker.is_abort:
            return not self.complete(batch.producer_id)
        aborted = self._aborted.pop(batch.producer_id, None)
        self._list_aborted()
        if aborted is None or not aborted.has_data:
            return True
        self._retained.append(aborted.txn)
        return False

    def _begin_up_to(self, offset: int) -> None:
        while self._waiting and self._waiting[0][0] <= offset:
            txn = heappop(self._waiting)[2]
            self._aborted.setdefault(txn.producer_id, _OngoingAborted(txn))
            self._list_aborted()

    def _list_aborted(self) -> None:
        """Copy what `may_be_aborted` reads to `next_aborted` and `aborted_ids`."""
        self.next_aborted = self._waiting[0][0] if self._waiting else INT64_MAX
        self.aborted_count = len(self._aborted)
        self.aborted_ids = array("q", (*self._aborted, -1))
