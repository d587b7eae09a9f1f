"""Which batches of a damaged log can stay.

A batch stays where its CRC is right, its records open, and its offsets rise between those before and behind it, within what
its segment stands for. Behind damage the next sound batch is searched for. What of a damaged batch's header follows from the
rest is put right (header_mending), so that the batch stays, too. Of batches that contradict each other in their offsets most
stay (salvage_batches). All else goes.

Offsets never change to close a hole: consumers have seen them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from kcli.format.end_transaction_marker import UnreadableMarkerError
from kcli.format.primitives import INT32_MAX, INT64_MAX, FormatError, RecordTooLargeError
from kcli.format.record_batch import HEADER_BYTES, RecordBatch
from kcli.inspect.repairing.header_mending import Mend, leader_epoch_mend, mend_headers
from kcli.inspect.repairing.salvage_batches import Batch, Batches, choose
from kcli.log.batch_walk import first_offset, read_marker
from kcli.log.disk import Disk
from kcli.log.log_reader import Damage, LogBatch, SegmentReader
from kcli.log.record_windows import RecordScanner
from kcli.log.resynchronise import find_batch


class Cut(NamedTuple):
    """Bytes [start, end) of a segment that go. Offsets [first_offset, end_offset) went with them, as far as is known."""

    start: int
    end: int
    first_offset: int
    end_offset: int | None
    why: str


class EpochRun(NamedTuple):
    """Batches of one leader epoch that follow each other in a segment: their offsets, the first one's byte, how many."""

    epoch: int
    first_offset: int
    last_offset: int
    position: int
    batches: int


class SegmentSalvage(NamedTuple):
    """What is to be done to one segment. `next_offset` is the offset behind what stays; `kept` how many batches do."""

    cuts: list[Cut]
    mends: list[Mend]
    kept: int
    next_offset: int
    epochs: list[EpochRun]


class LogSalvager:
    """Salvages the segments of one log, which must be given in the order of their base offsets."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._scanner = RecordScanner()
        self._open_transactions: set[int] = set()

    def salvage(self, path: str, base_offset: int, first_offset: int, end_offset: int) -> SegmentSalvage:
        """Look through the segment at `path`, which may hold offsets [first_offset, end_offset). Raises OSError."""
        with SegmentReader(self._disk, path) as reader:
            size_bytes = reader.end_position()
            batches, faults = self._scan(reader)
            self._search(reader, batches, faults)
            end_offset = min(end_offset, base_offset + INT32_MAX + 1)
            first_offset = max(first_offset, base_offset)
            kept = batches.pick(choose(batches, first_offset, end_offset))
            mends = mend_headers(reader.file, kept, (first_offset, end_offset), size_bytes, self._content_fault)
        cuts = _cuts(kept, faults, batches, first_offset, size_bytes)
        next_offset = kept.last_offset[-1] + 1 if len(kept) else first_offset
        return SegmentSalvage(cuts, mends, len(kept), next_offset, _epoch_runs(kept))

    def _scan(self, reader: SegmentReader) -> tuple[Batches, dict[int, str]]:
        """Read the segment -> its sound batches, and by position what is wrong with the rest."""
        batches = Batches()
        faults: dict[int, str] = {}
        for found in reader.batches():
            if isinstance(found, Damage):
                faults[found.position] = found.message
                continue
            fault = self._fault(found)
            if fault is not None:
                faults[found.position] = fault
                continue
            batches.insert(len(batches), _row(found))
        return batches, faults

    def _search(self, reader: SegmentReader, batches: Batches, faults: dict[int, str]) -> None:
        """Look for sound batches inside of the damaged stretches: a length that lies may have led past some.

        What only looks like a batch, in the records of a damaged one, has other offsets than those between its neighbours.
        """
        index = 0
        while index <= len(batches) and faults:
            start = batches.end[index - 1] if index else 0
            end = batches.position[index] if index < len(batches) else reader.end_position()
            before = batches.last_offset[index - 1] if index else -1
            behind = batches.base_offset[index] if index < len(batches) else INT64_MAX
            index += 1
            found = find_batch(reader.file, start + 1, end) if end - start > HEADER_BYTES else None
            while found is not None:
                batch = reader.batch_at(found)
                if not isinstance(batch, LogBatch) or batch.end_position > end:
                    break
                if before < batch.header.base_offset and batch.header.last_offset < behind and self._fault(batch) is None:
                    batches.insert(index - 1, _row(batch))
                    break
                found = find_batch(reader.file, found + 1, end)

    def _fault(self, batch: LogBatch) -> str | None:
        """What is wrong with a batch by itself, or None."""
        header = batch.header
        if not batch.is_valid:
            return "the CRC of the batch is wrong"
        if header.base_offset < 0 or header.last_offset < header.base_offset:
            return "the batch states impossible offsets"
        return self._content_fault(batch) or self._transaction_fault(batch)

    def _content_fault(self, batch: LogBatch) -> str | None:
        header = batch.header
        try:
            if isinstance(header, RecordBatch) and header.is_control and header.has_producer:
                read_marker(batch, self._scanner)
            return self._records_fault(batch)
        except UnreadableMarkerError as error:
            return error.message
        except FormatError as error:
            return f"the records of the batch cannot be read: {error.message}"

    def _records_fault(self, batch: LogBatch) -> str | None:
        header = batch.header
        if isinstance(header, RecordBatch) and header.record_count == 0 and header.size_bytes > HEADER_BYTES:
            return "the batch states no records and has bytes of them"
        last = header.base_offset - 1 if isinstance(header, RecordBatch) else -1
        for window in batch.windows(self._scanner, skip_large=True):
            if isinstance(window.error, RecordTooLargeError):
                return None  # too large to look into, which is no fault of its own
            if window.error is not None:
                return f"the records of the batch cannot be read: {window.error.message}"
            offsets = window.columns.offset
            first, end = offsets[0], offsets[window.count - 1]
            if first <= last or end > header.last_offset or end - first < window.count - 1:
                return "the offsets of the batch's records contradict its header"
            last = end
        return None

    def _transaction_fault(self, batch: LogBatch) -> str | None:
        """A batch outside of the transaction that its producer has open: Kafka does not load a log with one."""
        header = batch.header
        if not isinstance(header, RecordBatch) or not header.has_producer:
            return None
        if header.is_control:
            self._open_transactions.discard(header.producer_id)
        elif header.is_transactional:
            self._open_transactions.add(header.producer_id)
        elif header.producer_id in self._open_transactions:
            return f"the batch is outside of the transaction that its producer {header.producer_id} has open"
        return None


def _row(batch: LogBatch) -> Batch:
    header = batch.header
    epoch = header.partition_leader_epoch if isinstance(header, RecordBatch) else -1
    return Batch(batch.position, batch.end_position, first_offset(batch), header.last_offset, epoch, header.magic)


def _cuts(kept: Batches, faults: dict[int, str], batches: Batches, first_offset: int, size_bytes: int) -> list[Cut]:
    """The stretches between the batches that stay."""
    cuts: list[Cut] = []
    faulty = sorted(faults)
    position, offset = 0, first_offset
    for index in range(len(kept) + 1):
        is_last = index == len(kept)
        start = size_bytes if is_last else kept.position[index]
        if start > position:
            behind = None if is_last else kept.base_offset[index]
            index_of_first = bisect_left(faulty, position)
            is_faulty = index_of_first < len(faulty) and faulty[index_of_first] < start
            why = faults[faulty[index_of_first]] if is_faulty else _why_not_kept(position, batches)
            cuts.append(Cut(position, start, offset, behind, why))
        if not is_last:
            position, offset = kept.end[index], kept.last_offset[index] + 1
    return cuts


def _why_not_kept(start: int, batches: Batches) -> str:
    """What is wrong with a stretch without a fault: its offsets."""
    index = bisect_left(batches.position, start)
    if index < len(batches):
        return f"the batch of offsets {batches.base_offset[index]} to {batches.last_offset[index]} contradicts those around it"
    return "it holds no batch"


def _epoch_runs(kept: Batches) -> list[EpochRun]:
    runs: list[EpochRun] = []
    for index in range(len(kept)):
        epoch, first, last = kept.leader_epoch[index], kept.base_offset[index], kept.last_offset[index]
        if runs and runs[-1].epoch == epoch:
            runs[-1] = runs[-1]._replace(last_offset=last, batches=runs[-1].batches + 1)
        else:
            runs.append(EpochRun(epoch, first, last, kept.position[index], 1))
    return runs


def mend_epochs_across(salvages: Sequence[SegmentSalvage]) -> None:
    """Put right the leader epoch of a batch at a segment's edge that lies between batches of one other epoch."""
    runs = [(salvage, slot) for salvage in salvages for slot in range(len(salvage.epochs))]
    for (before, i), (salvage, slot), (behind, j) in zip(runs, runs[1:], runs[2:], strict=False):
        run, epoch = salvage.epochs[slot], before.epochs[i].epoch
        if run.batches == 1 and run.epoch != epoch == behind.epochs[j].epoch >= 0:
            salvage.epochs[slot] = run._replace(epoch=epoch)
            salvage.mends.append(leader_epoch_mend(run.position, epoch))
