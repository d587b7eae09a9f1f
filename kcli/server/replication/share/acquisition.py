"""The acquisition of fetched records by a member (Kafka: SharePartition.acquire).

Whole batches of the log are acquired, as ranges of offsets; records are not read. The client reports offsets without a record
as gaps. What was fetched may be in flight already, in part or as a whole:

    in flight                                acquired
    ---------------------------------------  --------------------------------------------------------------------------------
    nothing of it                            new batches: whole batches of the log until max_records are reached. They are
                                             split at the bases of the log's batches if they exceed batch_size
    a batch within the fetched offsets       the batch, if it is available
    another one, or one that is split        its available records in the fetched offsets
    a gap, while the gap window is active    a new batch in the gap

    acquire mode           records beyond max_records
    ---------------------  --------------------------------------------------------------------------------------------------
    batch_optimized (0)    to the end of the batch of the log that max_records end in
    record_limit (1)       none: the rest of that batch stays available

A record that is delivered again and again may be one that its consumers cannot handle. From half of the delivery count limit on
(at least 2) a batch is therefore delivered in parts, each half as long as the one before, and in a fetch of its own; the last
delivery of a record is that record alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kcli.format.index_entries import AbortedTxn
from kcli.server.replication.share.in_flight import ACQUIRED, AcquisitionLock, InFlightState
from kcli.server.replication.share.in_flight_batch import InFlightBatch, is_acquirable
from kcli.server.replication.share.in_flight_records import InFlightRecords
from kcli.server.replication.share.state_runs import StateRun

RECORD_LIMIT = 1
_LEAST_THROTTLED_DELIVERIES = 2


class FetchedBatch(NamedTuple):
    """The header of a batch that was read from the log; it is in bytes [position, end_position) of the file."""

    position: int
    end_position: int
    base_offset: int
    last_offset: int
    producer_id: int = -1
    is_transactional: bool = False
    is_control: bool = False


class AcquiredRecords(NamedTuple):
    """A range of offsets that a member has acquired, and how often they were delivered with this time."""

    first_offset: int
    last_offset: int
    delivery_count: int


class AcquireRequest(NamedTuple):
    """What a member asks for: at most `max_records` of what was read from `fetch_offset` on, in parts of `batch_size`."""

    member_id: str
    mode: int
    batch_size: int
    max_records: int
    fetch_offset: int


class AcquireLimits(NamedTuple):
    """The limits of the group: how many records may be in flight in a partition, and how often a record is delivered."""

    most_records: int
    most_deliveries: int


def throttled_deliveries(most_deliveries: int) -> int:
    """Return after how many deliveries records are delivered in smaller parts."""
    return max(_LEAST_THROTTLED_DELIVERIES, -(-most_deliveries // 2))


class Acquisition:
    """One acquisition; `make_lock(first_offset, last_offset)` begins a lock of the member."""

    def __init__(
        self,
        records: InFlightRecords,
        request: AcquireRequest,
        limits: AcquireLimits,
        make_lock: Callable[[int, int], AcquisitionLock],
    ) -> None:
        self._records = records
        self._request = request
        self._limits = limits
        self._make_lock = make_lock
        self._is_record_limit = request.mode == RECORD_LIMIT
        self._throttled = throttled_deliveries(limits.most_deliveries)
        self._batches: Sequence[FetchedBatch] = ()
        self._last_offset = -1
        self._most = 0
        self._count = 0
        self._acquired: list[AcquiredRecords] = []

    def acquire(self, batches: Sequence[FetchedBatch]) -> list[AcquiredRecords]:
        """Acquire records of `batches`, which were read from the log, and return their ranges in order."""
        records = self._records
        if not batches or batches[-1].last_offset < records.start_offset:
            return []
        self._batches = batches
        self._limit(batches[-1].last_offset)
        if self._most <= 0:
            return []
        first_base = batches[0].base_offset
        records.archive_missing(self._request.fetch_offset, first_base)
        if first_base > self._last_offset:
            # Compaction has removed all records that may be acquired, and no acknowledgement will move the start offset.
            records.advance()
            return []
        base_offset = first_base
        floor = records.floor(base_offset)
        if floor is None:
            base_offset = max(base_offset, records.start_offset)
        elif floor.last_offset >= base_offset:
            base_offset = floor.first_offset
        known = records.beginning_in(min(first_base, base_offset), self._last_offset)
        if not known:
            self._acquire_new(base_offset, self._last_offset)
            return self._acquired
        self._acquire_known(known, base_offset)
        behind = known[-1].last_offset + 1
        if self._count < self._most and behind <= self._last_offset:
            self._acquire_new(behind, self._last_offset)
        if self._acquired:
            records.narrow_gap(self._acquired[-1].last_offset + 1)
        return self._acquired

    def _limit(self, last_offset: int) -> None:
        """Find how many records may be acquired, and the last offset of them.

        With the most records in flight, available ones may still be acquired again.
        """
        records, wanted = self._records, self._request.max_records
        self._last_offset = last_offset
        self._most = min(wanted, self._limits.most_records - records.record_count)
        if self._most <= 0 and self._request.fetch_offset <= records.end_offset:
            self._most = min(wanted, records.end_offset - self._request.fetch_offset + 1)
            self._last_offset = min(last_offset, records.end_offset)

    # ------------------------------------------------------------------------------------------------- known batches

    def _acquire_known(self, known: list[InFlightBatch], base_offset: int) -> None:
        """Acquire what is available of batches in flight, and the gaps between them while the gap window is active."""
        records, first_base = self._records, self._batches[0].base_offset
        gap_offset = base_offset
        for batch in known:
            if self._count >= self._most:
                return
            if records.active_gap is not None:
                if gap_offset < batch.first_offset:
                    self._acquire_new(gap_offset, batch.first_offset - 1)
                gap_offset = batch.last_offset + 1
                if self._count >= self._most:
                    return
            is_throttled = self._is_throttled(batch, first_base)
            if is_throttled and self._count:
                self._most = 0
                return
            is_too_large = self._is_record_limit and batch.count > self._most - self._count
            whole = batch.whole
            if whole is not None and not whole.is_acquirable:
                continue
            if whole is not None and batch.is_within(first_base, self._last_offset) and not is_too_large and not is_throttled:
                self._acquire_whole(batch, whole)
            elif self._acquire_some(batch, first_base) and is_throttled:
                self._most = 0
                return

    def _is_throttled(self, batch: InFlightBatch, first_offset: int) -> bool:
        if batch.whole is not None:
            return self._is_state_throttled(batch.whole)
        offset = batch.first_with(self._is_state_throttled, max(first_offset, batch.first_offset))
        return offset is not None and offset <= self._last_offset

    def _is_state_throttled(self, state: InFlightState) -> bool:
        return state.is_acquirable and state.delivery_count >= self._throttled

    def _acquire_whole(self, batch: InFlightBatch, whole: InFlightState) -> None:
        if not whole.update(ACQUIRED, self._limits.most_deliveries, self._request.member_id):
            return
        whole.hold(self._make_lock(batch.first_offset, batch.last_offset))
        self._acquired.append(AcquiredRecords(batch.first_offset, batch.last_offset, whole.delivery_count))
        self._count += batch.count

    def _acquire_some(self, batch: InFlightBatch, first_offset: int) -> int:
        """Acquire available records of a batch; return how many there were."""
        most_deliveries, batch_size = self._limits.most_deliveries, batch.count
        stops = {self._most - self._count} if self._is_record_limit else set()  # numbers of records to stop at
        acquired: list[StateRun] = []
        count = 0
        is_throttled = False
        batch.is_split = True
        for run in batch.matching(is_acquirable, first_offset, self._last_offset):
            deliveries = run.state.delivery_count
            is_last_delivery = most_deliveries > 2 and deliveries == most_deliveries - 1
            if is_last_delivery and acquired:
                break
            if is_last_delivery:
                stops.add(1)
            if not is_throttled and deliveries >= self._throttled:
                is_throttled = True
                stops.add(max(1, batch_size >> (deliveries - self._throttled + 1)))
            until = min((stop for stop in stops if count < stop <= count + run.record_count), default=count + run.record_count)
            part = run._replace(last_offset=run.first_offset + until - count - 1)
            state = batch.isolate(part.first_offset, part.last_offset)
            if not state.update(ACQUIRED, most_deliveries, self._request.member_id):
                continue
            acquired.append(part._replace(state=state))
            count = until
            if count in stops:
                break
        if acquired:
            self._hold_all(batch, acquired)
        self._count += count
        return count

    def _hold_all(self, batch: InFlightBatch, acquired: list[StateRun]) -> None:
        """Lock runs together, and report neighbours with the same delivery count as one range."""
        lock = self._make_lock(acquired[0].first_offset, acquired[-1].last_offset)
        ranges: list[AcquiredRecords] = []
        for first_offset, last_offset, state in acquired:
            state.hold(lock)
            last = ranges[-1] if ranges else None
            if last is not None and last.last_offset + 1 == first_offset and last.delivery_count == state.delivery_count:
                ranges[-1] = last._replace(last_offset=last_offset)
            else:
                ranges.append(AcquiredRecords(first_offset, last_offset, state.delivery_count))
        for run in acquired:
            batch.changed(run.first_offset)
        self._acquired += ranges

    # --------------------------------------------------------------------------------------------------- new batches

    def _acquire_new(self, first_offset: int, last_offset: int) -> None:
        """Acquire records of [first_offset, last_offset], none of which are in flight, as new batches."""
        records, most = self._records, self._most - self._count
        if not len(records) and records.end_offset > first_offset:
            first_offset = records.end_offset
        last = last_offset
        if most < last - first_offset + 1:
            last = self._end_of_batch_with(first_offset + most - 1)
            if records.active_gap is not None:
                last = min(last, last_offset)
        acquired = self._new_ranges(first_offset, last)
        is_cut = self._is_record_limit and last - first_offset + 1 > most
        for found in acquired:
            self._add(found, found.first_offset + most - 1 if is_cut else found.last_offset)
        first = next(iter(records))
        if first.first_offset == first_offset:
            records.start_offset = first_offset
        records.end_offset = max(records.end_offset, last)
        if is_cut:
            last = first_offset + most - 1
            acquired = [acquired[0]._replace(last_offset=last)]
            records.may_have_available = True
        records.narrow_gap(last + 1)
        self._acquired += acquired
        self._count += last - first_offset + 1

    def _add(self, found: AcquiredRecords, last_acquired: int) -> None:
        """Add a new batch, of which the records up to an offset are acquired."""
        lock = self._make_lock(found.first_offset, last_acquired)
        state = InFlightState(ACQUIRED, found.delivery_count, self._request.member_id, lock)
        batch = InFlightBatch(found.first_offset, found.last_offset, state)
        if last_acquired < found.last_offset:
            batch.split_after(last_acquired)
        self._records.add(batch)

    def _new_ranges(self, first_offset: int, last_offset: int) -> list[AcquiredRecords]:
        """Split new records at the bases of the log's batches, so that no range has fewer than batch_size but the last."""
        ranges = []
        batch_size = self._request.batch_size
        if not self._is_record_limit and last_offset - first_offset + 1 > batch_size:
            for batch in self._batches:
                if batch.base_offset > last_offset:
                    break
                if batch.base_offset - first_offset >= batch_size:
                    ranges.append(AcquiredRecords(first_offset, batch.base_offset - 1, 1))
                    first_offset = batch.base_offset
        ranges.append(AcquiredRecords(first_offset, last_offset, 1))
        return ranges

    def _end_of_batch_with(self, offset: int) -> int:
        """Return the last offset of the batch of the log that contains an offset, or the offset itself."""
        for batch in reversed(self._batches):
            if batch.base_offset <= offset:
                return max(offset, batch.last_offset)
        return offset


def archive_aborted(
    records: InFlightRecords,
    batches: Sequence[FetchedBatch],
    transactions: Sequence[AbortedTxn],
    acquired: Sequence[AcquiredRecords],
) -> list[AcquiredRecords]:
    """Archive acquired records of aborted transactions; return the ranges without them (isolation level read committed)."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    for txn in transactions:
        ranges.setdefault(txn.producer_id, []).append((txn.first_offset, txn.last_offset))
    aborted = [
        batch
        for batch in batches
        if batch.is_transactional
        and not batch.is_control
        and any(first <= batch.base_offset <= last for first, last in ranges.get(batch.producer_id, ()))
    ]
    for batch in aborted:
        known = records.overlapping(batch.base_offset, batch.last_offset)
        records.archive(batch.base_offset, batch.last_offset + 1, known, ACQUIRED, is_counted=True)
    found: list[AcquiredRecords] = []
    for records_range in acquired:
        found += _without(records_range, aborted)
    return found


def _without(acquired: AcquiredRecords, aborted: Sequence[FetchedBatch]) -> list[AcquiredRecords]:
    """Return the parts of a range that are in none of the batches."""
    parts, first = [], acquired.first_offset
    for batch in aborted:
        if batch.last_offset < first or batch.base_offset > acquired.last_offset:
            continue
        if batch.base_offset > first:
            parts.append(acquired._replace(first_offset=first, last_offset=batch.base_offset - 1))
        first = batch.last_offset + 1
    if first <= acquired.last_offset:
        parts.append(acquired._replace(first_offset=first))
    return parts
