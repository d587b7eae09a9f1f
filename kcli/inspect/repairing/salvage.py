"""Decides which batches of a damaged log stay.

    batch                                                                is
    -------------------------------------------------------------------  -------------------------------------------------
    the CRC is right, the records are readable, the offsets are between  kept
      those of its neighbours and within the segment
    a header field is wrong and follows from the rest                    corrected and kept (HeaderFixer, explanation)
    its offsets contradict those of others                               kept if the cheapest explanation contains it
                                                                           (explanation)
    it looks like a sound batch inside of a damaged one: it may be the   reported; with take_inner it is kept, and the repair
      payload of a record, or follow a damaged batch with a wrong          counts as one that loses records
      length
    any other                                                            removed

resynchronise decides where the log continues after damage. If the next batch begins where the damaged one says that
it ends, with the next offset, the damaged one is not searched. Offsets never change to close a hole: consumers have seen them.
A segment may have offsets that overflow its name: the load splits it, as Kafka does (kcli.log.loading.log_loader).

The CRC does not cover four fields, nor itself, so the records of a batch with a flipped bit in one of them are intact:

    field         is corrected if                                                  to
    ------------  ---------------------------------------------------------------  --------------------------------------
    batchLength   the CRC is right over all bytes up to the next sound batch       that length
    magic         the same                                                         2
    crc           one bit differs from the one computed; one or two wrong bits     the one computed
                  elsewhere cannot cause that
    baseOffset    explanation says so                                              that value
    leaderEpoch   the same

The records of a corrected batch must be readable too.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from kcli.format.end_transaction_marker import UnreadableMarkerError
from kcli.format.primitives import INT32_MAX, INT64_MAX, FormatError, RecordTooLargeError
from kcli.format.record_batch import (
    CRC_START,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
    RecordBatch,
    read_header,
)
from kcli.format.structs import BATCH_CRC_AT, BATCH_LENGTH_AT, BATCH_PARTITION_LEADER_EPOCH_AT, MESSAGE_CRC_AT
from kcli.inspect.quantities import format_byte_range
from kcli.inspect.verification.evidence import latest_offsets
from kcli.log.disk.port import Disk, DiskFile
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.batch_search import (
    SearchBudget,
    find_batch,
    plausible_header,
    records_end,
    stated_next_offset,
    streamed_crc,
)
from kcli.log.reading.explanation import (
    Batch,
    Batches,
    Chosen,
    EpochRun,
    LogWitnesses,
    OffsetExplanation,
    SegmentWitnesses,
    WrongLength,
    choose_epochs,
    difference,
    is_thinned,
)
from kcli.log.reading.index_positions import IndexPositions
from kcli.log.reading.segment_reader import LOST_PLACE, ZEROS, Damage, LogBatch, SegmentReader

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch


# Runs of more batches with one leader epoch are never corrected.
MOST_CORRECTED_EPOCHS = 64
# The bytes of a record before its value, at least.
LEAST_RECORD_BYTES = 6
CRC_POSITION = CRC_START - 4
# How many batches of an alternative its sentence names.
_MOST_NAMED = 4


class HeaderFix(NamedTuple):
    """The right bytes of a header field: `data` from byte `position` of the segment on."""

    position: int
    data: bytes
    why: str


class SalvageCut(NamedTuple):
    """Bytes [start, end) of a segment to remove, and the offsets [first_offset, end_offset) of them; None: not known."""

    start: int
    end: int
    first_offset: int
    end_offset: int | None
    why: str


class KeptEpoch(NamedTuple):
    """Successive batches of one leader epoch that stay: their offsets and number.

    `positions` are their bytes, none in formats 0 and 1, and none above MOST_CORRECTED_EPOCHS batches.
    """

    epoch: int
    first_offset: int
    last_offset: int
    batches: int
    positions: tuple[int, ...] = ()


class InnerBatches(NamedTuple):
    """Sound batches inside of the damaged bytes [start, end), whose offsets fit there: they may be payload."""

    start: int
    end: int
    batches: list[Batch]

    def message(self, is_taken: bool) -> str:
        """Return a sentence on what was found, and whether it is kept."""
        what = (
            f"the damaged {format_byte_range(self.start, self.end)} contain what looks like sound batches, "
            f"{len(self.batches)} of offsets {self.batches[0].base_offset} to {self.batches[-1].last_offset}"
        )
        if is_taken:
            return f"{what}: kept as asked for (--take-inner), though they may be the payload of a record"
        return f"{what}: they may be the payload of a record, so they are removed; --take-inner keeps them"


class Alternative(NamedTuple):
    """Another explanation that costs the same: base offsets of batches by their bytes, None if it removes the batch."""

    batches: tuple[tuple[int, int | None], ...]

    @property
    def message(self) -> str:
        """A sentence on the batches."""
        named = [
            f"the batch at byte {position} {'is removed' if base_offset is None else f'has base offset {base_offset}'}"
            for position, base_offset in self.batches[:_MOST_NAMED]
        ]
        more = len(self.batches) - len(named)
        return f"another explanation costs the same: {', '.join(named)}{f', and {more} more batches differ' if more else ''}"


class SegmentSalvage(NamedTuple):
    """What is to be done to one segment. `kept` is the number of batches that stay, `next_offset` the offset after them.

    `inner` are batches inside of damaged ones; they stay only with take_inner. `displaced` are the offsets (first, last) of
    sound batches that are removed because they contradict others or the segment's name. `stated_end` is the offset after the
    damaged batches at the end, by their headers; `ends_damaged` is True if bytes at the end are damaged. `moved_end` is the
    offset after displaced batches that continue the log: they were the last ones, and are in a wrong place. `alternatives` are
    explanations that cost as much as the chosen one.
    """

    cuts: list[SalvageCut]
    fixes: list[HeaderFix]
    kept: int
    next_offset: int
    epochs: list[KeptEpoch]
    inner: list[InnerBatches]
    displaced: list[tuple[int, int]]
    stated_end: int | None
    ends_damaged: bool
    moved_end: int | None = None
    alternatives: Sequence[Alternative] = ()


class _Unsound(NamedTuple):
    """Bytes [position, end) of a segment that are not a sound batch; with `is_closed` they are not searched for batches.

    `header` is that of the damaged batch if it has a plausible one; `is_entry` is False if the bytes do not begin with a batch.
    """

    position: int
    end: int
    is_closed: bool
    header: RecordBatch | None = None
    is_entry: bool = True


class LogSalvager:
    """Salvages the segments of one log, in the order of their base offsets.

    `take_inner` keeps batches inside of damaged ones if their offsets fit.
    """

    def __init__(self, disk: Disk, *, take_inner: bool = False) -> None:
        self._disk = disk
        self._take_inner = take_inner
        self._scanner = RecordScanner()
        self._open_transactions: set[int] = set()
        # The bytes of the segment at which it continues after damage that does not state its end.
        self._searched: dict[int, WrongLength | None] = {}
        self._is_thinned = False  # a batch has fewer records than offsets: the cleaner was here

    def salvage(
        self,
        path: str,
        base_offset: int,
        first_offset: int,
        end_offset: int,
        log: LogWitnesses = LogWitnesses(),  # noqa: B008
    ) -> SegmentSalvage:
        """Scan the segment at `path`, which may contain offsets [first_offset, end_offset). Raises OSError."""
        with SegmentReader(self._disk, path, log=log) as reader:
            size_bytes = reader.end_position()
            batches, faults, unsound = self._scan(reader)
            bounds = (max(first_offset, base_offset), end_offset)
            whole = array("q", batches.position)  # ascending, as in the file
            edges = [found.position for found in unsound if found.is_entry]
            fixer = HeaderFixer(reader.file, batches, size_bytes, self._content_fault, edges)
            fixer.fix()
            log = log._replace(is_cleaned=log.is_cleaned or self._is_thinned)
            is_end_sound = len(batches) > 0 and batches.end[-1] == size_bytes
            indexes = IndexPositions(self._disk, path)
            entries = {entry.position: entry.offset for entry in indexes.as_read.entries()}
            is_continued = first_offset == base_offset
            segment = SegmentWitnesses(
                *bounds, base_offset, entries, indexes.times, is_end_sound, is_continued, self._searched, frozenset(fixer.fixes)
            )
            explanation = OffsetExplanation(batches, segment, log)
            chosen = self._choose(reader, batches, explanation)
            kept, fixes = _corrected(batches, chosen)
            payload = batches.pick(explanation.payload(chosen))
            alternatives = [
                Alternative(tuple((batches.position[row], base_offset) for row, base_offset in differing))
                for differing in explanation.alternatives(chosen)
            ]
            fixes += [fix for position in kept.position for fix in fixer.fixes.get(position, ())]
            # What is taken for payload may be behind the damaged bytes too.
            unsound += [_Unsound(row.position, row.end, False, is_entry=False) for row in payload.rows()]
            inner = self._search_inside(reader, kept, sorted(unsound, key=lambda found: found.position), bounds)
        cuts = _cuts(kept, faults, batches, bounds[0], size_bytes)
        next_offset = kept.last_offset[-1] + 1 if len(kept) else bounds[0]
        stays = {*kept.position, *(batch.position for one in inner for batch in one.batches)}
        displaced = [
            (batches.base_offset[row], batches.last_offset[row])
            for row, position in enumerate(batches.position)
            if position not in stays and bisect_right(whole, position) > bisect_left(whole, position)
        ]
        stated_end, ends_damaged = _end_of_damage(kept, unsound, next_offset)
        moved_end = _end_of_moved(batches, kept, next_offset)
        return SegmentSalvage(
            cuts,
            fixes,
            len(kept),
            next_offset,
            _epoch_runs(kept),
            inner,
            displaced,
            stated_end,
            ends_damaged,
            moved_end,
            alternatives,
        )

    def _choose(self, reader: SegmentReader, batches: Batches, explanation: OffsetExplanation) -> list[Chosen]:
        """Return the batches that stay, with their base offsets."""
        if not explanation.is_needed():
            return [Chosen(index, base_offset) for index, base_offset in enumerate(batches.base_offset)]
        rows = (*explanation.contradicted(), len(batches) - 1)
        headers = {row: plausible_header(reader.file, batches.position[row]) for row in rows}
        last = headers[len(batches) - 1]
        latest = None if last is None else latest_offsets(reader, last, self._scanner)
        timestamps = {row: header.max_timestamp for row, header in headers.items() if header is not None}
        return explanation.choose(_copies(reader.file, batches), timestamps, latest)

    def _scan(self, reader: SegmentReader) -> tuple[Batches, dict[int, str], list[_Unsound]]:
        """Read the segment; return its sound batches, the faults of the other ones by position, and the unsound bytes."""
        batches = Batches()
        faults: dict[int, str] = {}
        unsound: list[_Unsound] = []
        self._searched = {}
        awaits: RecordBatch | LegacyBatch | None = None  # the header of a damaged batch that the next entry may continue
        for found in reader.batches():
            if awaits is not None:
                is_closed = isinstance(found, LogBatch) and _continues(awaits, found)
                unsound[-1] = unsound[-1]._replace(is_closed=is_closed)
                awaits = None
            if isinstance(found, Damage):
                faults[found.position] = found.message
                if found.header is None or found.position + found.header.size_bytes != found.end_position:
                    lost = unsound[-1].header if found.kind == LOST_PLACE and unsound else found.header
                    self._searched[found.end_position] = (
                        None if lost is None else _wrong_length(reader, lost, found.end_position)
                    )
                if found.kind != ZEROS:
                    is_entry = found.kind != LOST_PLACE
                    unsound.append(_Unsound(found.position, found.end_position, False, found.header, is_entry))
                continue
            fault = self._fault(found)
            if fault is None:
                row = _row(found)
                self._is_thinned |= row.is_thinned
                batches.insert(len(batches), row)
                continue
            faults[found.position] = fault
            # If the CRC is right, the length is right too.
            header = found.header if isinstance(found.header, RecordBatch) else None
            unsound.append(_Unsound(found.position, found.end_position, found.is_valid, header))
            if not found.is_valid:
                awaits = found.header
        return batches, faults, unsound

    def _search_inside(
        self, reader: SegmentReader, kept: Batches, unsound: list[_Unsound], bounds: tuple[int, int]
    ) -> list[InnerBatches]:
        """Find what looks like sound batches inside of damaged bytes; with take_inner they are added to `kept`."""
        inner: list[InnerBatches] = []
        for damaged in unsound:
            index = bisect_left(kept.position, damaged.position)
            if damaged.is_closed or (index < len(kept) and kept.position[index] < damaged.end):
                continue
            found = self._inside(reader, kept, index, damaged, bounds)
            if found:
                inner.append(InnerBatches(damaged.position, damaged.end, found))
            for slot, batch in enumerate(found if self._take_inner else ()):
                kept.insert(index + slot, batch)
        return inner

    def _inside(
        self, reader: SegmentReader, kept: Batches, index: int, damaged: _Unsound, bounds: tuple[int, int]
    ) -> list[Batch]:
        """Return the sound batches inside of damaged bytes whose offsets ascend between the batches kept before and after."""
        found: list[Batch] = []
        before = max(kept.last_offset[index - 1] if index else -1, bounds[0] - 1)
        behind = kept.base_offset[index] if index < len(kept) else bounds[1]
        budget = SearchBudget(reader.end_position())
        # If the bytes do not begin with an entry, a batch may begin at the first one.
        start = damaged.position + (1 if damaged.is_entry else 0)
        position = find_batch(reader.file, start, damaged.end, budget=budget)
        while position is not None:
            batch = reader.batch_at(position)
            end = position + 1
            if isinstance(batch, LogBatch) and batch.is_valid:
                end = batch.end_position
                fits = before < batch.header.base_offset <= batch.header.last_offset < behind
                if fits and self._content_fault(batch) is None:
                    found.append(_row(batch))
                    before = batch.header.last_offset
            position = find_batch(reader.file, end, damaged.end, budget=budget)
        return found

    def _fault(self, batch: LogBatch) -> str | None:
        """Return what is wrong with a batch, apart from its neighbours, or None."""
        header = batch.header
        if not batch.is_valid:
            return "the CRC of the batch is wrong"
        if header.last_offset < header.base_offset or header.last_offset >= INT64_MAX:
            return "the batch states impossible offsets"
        return self._content_fault(batch) or self._transaction_fault(batch)

    def _content_fault(self, batch: LogBatch) -> str | None:
        header = batch.header
        try:
            if isinstance(header, RecordBatch) and header.is_control and header.has_producer:
                batch.read_marker(self._scanner)
            return self._records_fault(batch)
        except UnreadableMarkerError as error:
            return error.message
        except FormatError as error:
            return f"the records of the batch cannot be read: {error.message}"

    def _records_fault(self, batch: LogBatch) -> str | None:
        header = batch.header
        if isinstance(header, RecordBatch) and header.record_count == 0 and header.size_bytes > HEADER_BYTES:
            return "the batch states 0 records and has bytes of records"
        last = header.base_offset - 1 if isinstance(header, RecordBatch) else -1
        for window in batch.windows(self._scanner, skip_large=True):
            if isinstance(window.error, RecordTooLargeError):
                return None  # too large to check, which is not a fault
            if window.error is not None:
                return f"the records of the batch cannot be read: {window.error.message}"
            offsets = window.columns.offset
            first, end = offsets[0], offsets[window.count - 1]
            if first <= last or end > header.last_offset or end - first < window.count - 1:
                return "the offsets of the batch's records contradict its header"
            last = end
        return None

    def _transaction_fault(self, batch: LogBatch) -> str | None:
        """Return the fault of a batch outside of its producer's open transaction: Kafka does not load such a log."""
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


def _corrected(batches: Batches, chosen: Sequence[Chosen]) -> tuple[Batches, list[HeaderFix]]:
    """Return the chosen batches with their offsets, and the corrections of base offsets."""
    kept = batches.pick([one.row for one in chosen])
    fixes: list[HeaderFix] = []
    for row, (_, base_offset) in enumerate(chosen):
        moved = base_offset - kept.base_offset[row]
        if moved:
            kept.base_offset[row] += moved
            kept.last_offset[row] += moved
            fixes.append(base_offset_fix(kept.position[row], base_offset))
    return kept, fixes


def _wrong_length(reader: SegmentReader, header: RecordBatch, end: int) -> WrongLength | None:
    """Return what the header of a damaged batch shows that ends before byte `end`, where the next batch was found."""
    size = end - header.position
    # If records are not compressed, their lengths show the end of a batch whose own length is wrong.
    if header.magic != MAGIC or header.codec or header.last_offset_delta < 0 or header.size_bytes < HEADER_BYTES:
        return None
    if size - header.size_bytes < HEADER_BYTES + LEAST_RECORD_BYTES:
        return None  # too few bytes for a batch with payload: they were inserted
    if records_end(reader.file, header, SearchBudget(size), end) == end:
        return None
    return WrongLength(header.next_offset, difference(header.size_bytes - LOG_OVERHEAD_BYTES, size - LOG_OVERHEAD_BYTES))


def _continues(header: RecordBatch | LegacyBatch, batch: LogBatch) -> bool:
    """Return True if a batch has the offset that follows from the header of the damaged one before it."""
    if isinstance(header, RecordBatch):
        return batch.header.base_offset == header.next_offset
    return batch.header.last_offset > header.last_offset


def _end_of_damage(kept: Batches, unsound: list[_Unsound], next_offset: int) -> tuple[int | None, bool]:
    """Return the offset after the damaged batches at the end, by their headers (None: none), and whether there are any.

    A damaged batch at the end has used offsets, though its records cannot be read.
    """
    last = kept.position[-1] if len(kept) else -1
    behind = [found for found in unsound if found.position > last]
    expected = next_offset
    for found in behind:
        if found.header is not None:
            expected = stated_next_offset(found.header, expected) or expected
    return (expected if expected > next_offset else None), bool(behind)


def _end_of_moved(batches: Batches, kept: Batches, next_offset: int) -> int | None:
    """Return the offset after the displaced batches that follow each other from `next_offset` on, None without any.

    One that is in the file after the batches that stay was the last one: it may begin below `next_offset`.
    """
    last_position = kept.position[-1] if len(kept) else -1
    expected = next_offset
    stays = set(kept.position)
    for first, last, position in sorted(zip(batches.base_offset, batches.last_offset, batches.position, strict=True)):
        if position not in stays and (first == expected or (position > last_position and first < expected <= last)):
            expected = last + 1
    return expected if expected > next_offset else None


def _row(batch: LogBatch) -> Batch:
    header = batch.header
    epoch, thinned = (header.partition_leader_epoch, is_thinned(header)) if isinstance(header, RecordBatch) else (-1, False)
    return Batch(batch.position, batch.end_position, batch.first_offset(), header.last_offset, epoch, header.magic, thinned)


def _cuts(kept: Batches, faults: dict[int, str], batches: Batches, first_offset: int, size_bytes: int) -> list[SalvageCut]:
    """Return the byte ranges between the batches that stay."""
    cuts: list[SalvageCut] = []
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
            cuts.append(SalvageCut(position, start, offset, behind, why))
        if not is_last:
            position, offset = kept.end[index], kept.last_offset[index] + 1
    return cuts


def _why_not_kept(start: int, batches: Batches) -> str:
    """Return what is wrong with bytes at `start` that have no fault of their own: their offsets."""
    index = bisect_left(batches.position, start)
    if index < len(batches):
        return f"the batch of offsets {batches.base_offset[index]} to {batches.last_offset[index]} contradicts those around it"
    return "it holds no batch"


def _copies(file: DiskFile, batches: Batches) -> frozenset[int]:
    """Return the indexes of the batches whose offsets, size and CRC are those of another one; a stated length may be wrong."""
    first: dict[tuple[int, int], int] = {}
    found: set[int] = set()
    for index in range(len(batches)):
        key = (batches.base_offset[index], batches.end[index] - batches.position[index])
        other = first.setdefault(key, index)
        if other != index:
            starts = ((batches.position[one], batches.magic[one] == MAGIC) for one in (index, other))
            crcs = {file.read_at(start + (BATCH_CRC_AT if is_new else MESSAGE_CRC_AT), 4) for start, is_new in starts}
            found |= {index, other} if len(crcs) == 1 else set()
    return frozenset(found)


def _epoch_runs(kept: Batches) -> list[KeptEpoch]:
    runs: list[KeptEpoch] = []
    for index in range(len(kept)):
        epoch, first, last = kept.leader_epoch[index], kept.base_offset[index], kept.last_offset[index]
        position = (kept.position[index],) if kept.magic[index] == MAGIC else ()
        if runs and runs[-1].epoch == epoch:
            run = runs[-1]
            is_short = bool(run.positions and position) and run.batches < MOST_CORRECTED_EPOCHS
            positions = run.positions + position if is_short else ()
            runs[-1] = KeptEpoch(epoch, run.first_offset, last, run.batches + 1, positions)
        else:
            runs.append(KeptEpoch(epoch, first, last, 1, position))
    return runs


def fix_leader_epochs(salvages: Sequence[SegmentSalvage], log: LogWitnesses = LogWitnesses()) -> None:  # noqa: B008
    """Correct leader epochs that go back in a log, or that leader-epoch-checkpoint contradicts (explanation)."""
    runs = [run for salvage in salvages for run in salvage.epochs]
    chosen = iter(choose_epochs([EpochRun(run.epoch, run.first_offset, run.batches, not run.positions) for run in runs], log))
    for salvage in salvages:
        fixed: list[KeptEpoch] = []
        for run in salvage.epochs:
            epoch = next(chosen)
            if epoch != run.epoch:
                salvage.fixes.extend(leader_epoch_fix(position, epoch) for position in run.positions)
            if fixed and fixed[-1].epoch == epoch:
                fixed[-1] = fixed[-1]._replace(last_offset=run.last_offset, batches=fixed[-1].batches + run.batches)
            else:
                fixed.append(run._replace(epoch=epoch))
        salvage.epochs[:] = fixed


# ---------------------------------------------------------------------------------------------------------- header fields


def base_offset_fix(position: int, base_offset: int) -> HeaderFix:
    """Return the fix that gives the batch at byte `position` the base offset that its neighbours and other files show."""
    why = f"the batch at byte {position} fits its neighbours and the other files with base offset {base_offset}"
    return HeaderFix(position, base_offset.to_bytes(8, "big"), why)


def leader_epoch_fix(position: int, epoch: int) -> HeaderFix:
    """Return the fix that gives the batch at byte `position` the leader epoch of its neighbours."""
    why = f"the batches next to the one at byte {position} have leader epoch {epoch}"
    return HeaderFix(position + BATCH_PARTITION_LEADER_EPOCH_AT, epoch.to_bytes(4, "big"), why)


class HeaderFixer:
    """Corrects headers in the byte ranges between the sound batches of a segment, and adds these batches to `batches`.

    `edges` are the bytes at which unsound entries begin: a range that contains several is also tried in the parts between
    them. `content_fault` returns what is wrong with a batch's records. `fixes` are those of each corrected batch, by its byte.
    """

    def __init__(
        self,
        file: DiskFile,
        batches: Batches,
        size_bytes: int,
        content_fault: Callable[[LogBatch], str | None],
        edges: Sequence[int] = (),
    ) -> None:
        self.file = file
        self.edges = sorted(edges)
        self.batches = batches
        self.size_bytes = size_bytes
        self.content_fault = content_fault
        self.fixes: dict[int, list[HeaderFix]] = {}

    def fix(self) -> None:
        """Try each range between the batches, whole and in its parts. Raises OSError."""
        found: list[Batch] = []
        start = 0
        for position, end in [*zip(self.batches.position, self.batches.end, strict=True), (self.size_bytes, self.size_bytes)]:
            if start < position:
                whole = self._fixed(start, position)
                found += self._fixed_parts(start, position) if whole is None else [whole]
            start = end
        if found:
            self.batches.merge(found)

    def _fixed_parts(self, start: int, end: int) -> list[Batch]:
        """Try the parts of a range between the unsound entries that begin in it."""
        inside = self.edges[bisect_right(self.edges, start) : bisect_left(self.edges, end)]
        parts = pairwise([start, *inside, end]) if inside else ()
        return [fixed for part in parts if (fixed := self._fixed(*part)) is not None]

    def _fixed(self, start: int, end: int) -> Batch | None:
        """Correct length, magic and CRC of bytes [start, end), if these are one batch otherwise."""
        if not HEADER_BYTES <= end - start <= INT32_MAX + LOG_OVERHEAD_BYTES:
            return None
        head = self.file.read_at(start, HEADER_BYTES)
        if len(head) < HEADER_BYTES:
            return None
        stated = read_header(head, 0, start)
        header = stated._replace(batch_length=end - start - LOG_OVERHEAD_BYTES, magic=MAGIC)
        crc = streamed_crc(self.file, header)
        if crc is None or (crc ^ header.crc).bit_count() > 1 or header.last_offset_delta < 0 or header.record_count < 0:
            return None
        fixed = header._replace(crc=crc)
        # If the header was right, the records are wrong, or the batch would have stayed.
        if fixed == stated or fixed.last_offset >= INT64_MAX:
            return None
        if self.content_fault(LogBatch(fixed, None, fixed.crc, self.file)) is not None:
            return None
        self.fixes[start] = list(_fixes(stated, fixed))
        epoch = fixed.partition_leader_epoch
        return Batch(start, end, fixed.base_offset, fixed.last_offset, epoch, is_thinned=is_thinned(fixed))


def _fixes(stated: RecordBatch, fixed: RecordBatch) -> Iterator[HeaderFix]:
    start = stated.position
    if stated.batch_length != fixed.batch_length:
        why = f"the CRC of the batch at byte {start} is right with a length of {fixed.batch_length} bytes"
        yield HeaderFix(start + BATCH_LENGTH_AT, fixed.batch_length.to_bytes(4, "big"), why)
    if stated.crc != fixed.crc:
        yield HeaderFix(
            start + CRC_POSITION, fixed.crc.to_bytes(4, "big"), f"the CRC of the batch at byte {start} has one wrong bit"
        )
    if stated.magic != fixed.magic:
        why = f"the CRC of the batch at byte {start} is right with magic {MAGIC}"
        yield HeaderFix(start + MAGIC_POSITION, bytes([MAGIC]), why)
