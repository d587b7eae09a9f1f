"""Which batches of a damaged log can stay, and what of a batch's header can be put right again.

A batch stays where its CRC is right, its records open, and its offsets rise between those before and behind it, within what
its segment stands for. Four fields of its header lie outside of the CRC, so a batch with a bit flipped in one of them is
whole, and the field follows from the rest:

    field         it is put right where                                          with
    ------------  -------------------------------------------------------------  ----------------------------------------
    batchLength   the CRC is right over all bytes up to the next sound batch     that length
    magic         likewise                                                       2
    baseOffset    the batch fills the gap that it leaves in the offsets exactly  the first offset of the gap
    leaderEpoch   the batches before and behind it have one and the same         theirs

Where offsets contradict each other (a batch twice, two changed about, a forged delta) the largest number of batches that
agree stays, and of equal choices the one in which more of them follow each other without a gap.

All else goes. Offsets never change to close a hole: consumers have seen them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

from kcli.format.end_transaction_marker import UnreadableMarkerError
from kcli.format.primitives import INT32_MAX, FormatError
from kcli.format.record_batch import (
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
    RecordBatch,
    read_header,
)
from kcli.log.batch_walk import read_marker
from kcli.log.disk import Disk, DiskFile
from kcli.log.log_reader import Damage, LogBatch, SegmentReader
from kcli.log.record_windows import RecordScanner
from kcli.log.resynchronise import streamed_crc

LENGTH_POSITION = HEADER.offset_of("batch_length")
LEADER_EPOCH_POSITION = HEADER.offset_of("partition_leader_epoch")


class Cut(NamedTuple):
    """Bytes [start, end) of a segment that go. Offsets [first_offset, end_offset) went with them, as far as is known."""

    start: int
    end: int
    first_offset: int
    end_offset: int | None
    why: str


class Mend(NamedTuple):
    """Bytes of a header that are put right: `data` from byte `position` of the segment on."""

    position: int
    data: bytes
    why: str


class SegmentSalvage(NamedTuple):
    """What is to be done to one segment. `next_offset` is the offset behind what stays; `kept` how many batches do.

    `epochs` is one (leader epoch, first offset, last offset) for each run of batches of one epoch.
    """

    cuts: list[Cut]
    mends: list[Mend]
    kept: int
    next_offset: int
    epochs: list[tuple[int, int, int]]


class Batch(NamedTuple):
    """Where a batch lies, bytes [position, end), and its offsets; the leader epoch is -1 in formats 0 and 1."""

    position: int
    end: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    magic: int = MAGIC


class Batches:
    """Batches of a segment as columns named as the fields of Batch: a segment may have millions."""

    def __init__(self) -> None:
        self.position = array("q")
        self.end = array("q")
        self.base_offset = array("q")
        self.last_offset = array("q")
        self.leader_epoch = array("q")
        self.magic = array("q")
        self._columns = (self.position, self.end, self.base_offset, self.last_offset, self.leader_epoch, self.magic)

    def __len__(self) -> int:
        return len(self.position)

    def insert(self, index: int, batch: Batch) -> None:
        """Put a batch before the one at `index`."""
        for column, value in zip(self._columns, batch, strict=True):
            column.insert(index, value)

    def pick(self, indexes: list[int]) -> Batches:
        """Those at `indexes`."""
        picked = Batches()
        for mine, theirs in zip(self._columns, picked._columns, strict=True):
            theirs.extend(mine[index] for index in indexes)
        return picked


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
            end_offset = min(end_offset, base_offset + INT32_MAX + 1)
            first_offset = max(first_offset, base_offset)
            chosen = batches.pick(choose(batches, first_offset, end_offset))
            mender = _Mender(reader.file, chosen, (first_offset, end_offset), size_bytes, self._content_fault)
            kept, mends = mender.mend()
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
            header = found.header
            epoch = header.partition_leader_epoch if isinstance(header, RecordBatch) else -1
            batch = Batch(found.position, found.end_position, header.base_offset, header.last_offset, epoch, header.magic)
            batches.insert(len(batches), batch)
        return batches, faults

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
        last = header.base_offset - 1 if isinstance(header, RecordBatch) else -1
        for window in batch.windows(self._scanner):
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


def choose(batches: Batches, first_offset: int, end_offset: int) -> list[int]:
    """The batches that agree in offsets [first_offset, end_offset) -> their indexes; see the head of this module."""
    fitting = [
        index
        for index in range(len(batches))
        if batches.base_offset[index] >= first_offset and batches.last_offset[index] < end_offset
    ]
    before = first_offset - 1
    for index in fitting:
        if batches.base_offset[index] <= before:
            return _largest_choice(batches, fitting)
        before = batches.last_offset[index]
    return fitting


def _largest_choice(batches: Batches, fitting: list[int]) -> list[int]:
    """The choice with the highest score: two for each batch, one for each that follows its predecessor without a gap.

    Batches are tried in the order of the file; the best choice that ends with one depends on the best that end below it,
    which a tree of prefix maxima over the last offsets (Fenwick) gives in log n steps.
    """
    lasts = sorted({batches.last_offset[index] for index in fitting})
    tree: list[tuple[int, int]] = [(0, -1)] * (len(lasts) + 1)  # (score, index of the batch that it ends with)
    ending_at: dict[int, tuple[int, int]] = {}
    before: dict[int, int] = {}
    best_of_all = (0, -1)
    for index in fitting:
        base_offset, last_offset = batches.base_offset[index], batches.last_offset[index]
        best = (0, -1)
        slot = bisect_left(lasts, base_offset)
        while slot > 0:
            best = max(best, tree[slot])
            slot &= slot - 1
        if base_offset - 1 in ending_at:
            score, neighbour = ending_at[base_offset - 1]
            best = max(best, (score + 1, neighbour))
        before[index] = best[1]
        found = (best[0] + 2, index)
        if found[0] > ending_at.get(last_offset, (0, -1))[0]:
            ending_at[last_offset] = found
        slot = bisect_left(lasts, last_offset) + 1
        while slot <= len(lasts):
            tree[slot] = max(tree[slot], found)
            slot += slot & -slot
        best_of_all = max(best_of_all, found)
    chosen = []
    index = best_of_all[1]
    while index >= 0:
        chosen.append(index)
        index = before[index]
    return chosen[::-1]


class _Mender:
    """Puts headers of one segment right; what it mends joins the batches that stay."""

    def __init__(
        self,
        file: DiskFile,
        kept: Batches,
        offsets: tuple[int, int],
        size_bytes: int,
        content_fault: Callable[[LogBatch], str | None],
    ) -> None:
        self.file = file
        self.kept = kept
        self.first_offset, self.end_offset = offsets
        self.size_bytes = size_bytes
        self.content_fault = content_fault
        self.mends: list[Mend] = []
        # In a log without gaps the batch behind the last sound one begins at the next offset.
        self.has_gaps = any(
            self.kept.base_offset[index] != self.kept.last_offset[index - 1] + 1 for index in range(1, len(self.kept))
        )

    def mend(self) -> tuple[Batches, list[Mend]]:
        """Try each stretch between the chosen batches -> the batches that stay, what is mended."""
        index = 0
        while index <= len(self.kept):
            start = self.kept.end[index - 1] if index else 0
            end = self.kept.position[index] if index < len(self.kept) else self.size_bytes
            if end - start >= HEADER_BYTES:
                self._mend_stretch(index, start, end)
            index += 1
        self._mend_leader_epochs()
        return self.kept, self.mends

    def _mend_stretch(self, index: int, start: int, end: int) -> None:
        """Where bytes [start, end) are one whole batch but for its first 17 bytes, put those right."""
        head = self.file.read_at(start, HEADER_BYTES)
        if len(head) < HEADER_BYTES:
            return
        stated = read_header(head, 0, start)
        header = stated._replace(batch_length=end - start - LOG_OVERHEAD_BYTES, magic=MAGIC)
        if streamed_crc(self.file, header) != header.crc or header.last_offset_delta < 0 or header.record_count < 0:
            return
        offset = self._offset_that_fits(index, header)
        if offset is None:
            return
        mended = header._replace(base_offset=offset)
        # Where its header was right its records are not, or it would have stayed.
        if mended != stated and self.content_fault(LogBatch(mended, None, mended.crc, self.file)) is None:
            self._note(stated, mended)
            self.kept.insert(index, Batch(start, end, offset, mended.last_offset, mended.partition_leader_epoch))

    def _offset_that_fits(self, index: int, header: RecordBatch) -> int | None:
        """The stated base offset where it lies between the neighbours', else that of a gap which the batch fills."""
        before = self.kept.last_offset[index - 1] if index else self.first_offset - 1
        behind = self.kept.base_offset[index] if index < len(self.kept) else None
        if before < header.base_offset and header.last_offset < (self.end_offset if behind is None else behind):
            return header.base_offset
        last = before + 1 + header.last_offset_delta
        if behind is None:
            return before + 1 if index and not self.has_gaps and last < self.end_offset else None
        return before + 1 if last + 1 == behind else None

    def _note(self, stated: RecordBatch, mended: RecordBatch) -> None:
        start = stated.position
        if stated.base_offset != mended.base_offset:
            why = f"the batch at byte {start} fills the gap before the next: its base offset is {mended.base_offset}"
            self.mends.append(Mend(start, mended.base_offset.to_bytes(8, "big"), why))
        if stated.batch_length != mended.batch_length:
            why = f"the CRC of the batch at byte {start} is right with a length of {mended.batch_length} bytes"
            self.mends.append(Mend(start + LENGTH_POSITION, mended.batch_length.to_bytes(4, "big"), why))
        if stated.magic != mended.magic:
            why = f"the CRC of the batch at byte {start} is right with magic {MAGIC}"
            self.mends.append(Mend(start + MAGIC_POSITION, bytes([MAGIC]), why))

    def _mend_leader_epochs(self) -> None:
        """Leader epochs never go back: one between two equal others, or above the next, or below the one before, is wrong."""
        epochs = self.kept.leader_epoch
        last = len(epochs) - 1
        for index in range(1, last):
            if epochs[index] != epochs[index - 1] == epochs[index + 1]:
                self._set_leader_epoch(index, epochs[index - 1])
        if last > 0 and epochs[0] > epochs[1]:
            self._set_leader_epoch(0, epochs[1])
        if last > 0 and epochs[last] < epochs[last - 1]:
            self._set_leader_epoch(last, epochs[last - 1])

    def _set_leader_epoch(self, index: int, epoch: int) -> None:
        if epoch >= 0 and self.kept.magic[index] == MAGIC:
            self.kept.leader_epoch[index] = epoch
            start = self.kept.position[index]
            why = f"the batches beside the one at byte {start} have leader epoch {epoch}"
            self.mends.append(Mend(start + LEADER_EPOCH_POSITION, epoch.to_bytes(4, "big"), why))


def _cuts(kept: Batches, faults: dict[int, str], batches: Batches, first_offset: int, size_bytes: int) -> list[Cut]:
    """The stretches between the batches that stay."""
    cuts: list[Cut] = []
    position, offset = 0, first_offset
    for index in range(len(kept) + 1):
        is_last = index == len(kept)
        start = size_bytes if is_last else kept.position[index]
        if start > position:
            behind = None if is_last else kept.base_offset[index]
            cuts.append(Cut(position, start, offset, behind, _why(position, start, faults, batches)))
        if not is_last:
            position, offset = kept.end[index], kept.last_offset[index] + 1
    return cuts


def _why(start: int, end: int, faults: dict[int, str], batches: Batches) -> str:
    """What is wrong with a stretch: the first fault in it, else its offsets."""
    found = [faults[position] for position in sorted(faults) if start <= position < end]
    if found:
        return found[0]
    index = bisect_left(batches.position, start)
    if index < len(batches):
        return f"the batch of offsets {batches.base_offset[index]} to {batches.last_offset[index]} contradicts those around it"
    return "it holds no batch"


def _epoch_runs(kept: Batches) -> list[tuple[int, int, int]]:
    runs: list[tuple[int, int, int]] = []
    for index in range(len(kept)):
        epoch, first, last = kept.leader_epoch[index], kept.base_offset[index], kept.last_offset[index]
        if runs and runs[-1][0] == epoch:
            runs[-1] = (epoch, runs[-1][1], last)
        else:
            runs.append((epoch, first, last))
    return runs
