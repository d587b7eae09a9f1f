"""Verifies one segment: its batches, their offsets and leader epochs, its `.index` and `.timeindex`.

What depends on earlier segments is not decided here: the producers' steps are passed to the caller one by one, everything
else is in the SegmentFacts. So segments can be verified in different processes and joined afterwards.

Batches are read as rows, many at a time (kcli.log.reading.columnar_reader). A row is regular if it continues the offsets, the
leader epoch and the producer's sequence of the row before and has no fault. Only the other rows, the notable ones, are checked
one by one.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from kcli.format import limits
from kcli.format.batch_scan import (
    LEADER_EPOCH,
    LEGACY,
    LOOK,
    NEXT_OFFSET,
    RECORDS,
    STATE_SLOTS,
    STOP_OFFSET,
    UNOPENED,
    next_notable,
)
from kcli.format.compression import inflate
from kcli.format.primitives import INT32_MAX, INT64_MAX, FormatError
from kcli.format.record_batch import (
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    LOG_APPEND_TIME_FLAG,
    TRANSACTIONAL_FLAG,
    RecordBatch,
)
from kcli.inspect.offset_ranges import OffsetRanges
from kcli.inspect.quantities import format_count, format_offsets
from kcli.inspect.verification.batches import BatchInspector
from kcli.inspect.verification.facts import MOST_GAPS, EpochRun, SegmentFacts, SegmentOptions
from kcli.inspect.verification.findings import Finding, FindingList
from kcli.inspect.verification.index_checks import IndexFile, OffsetIndexCheck, TimeIndexCheck
from kcli.inspect.verification.producer_tracker import ProducerStep, StepGatherer, last_sequence
from kcli.log.disk.port import Disk
from kcli.log.files.log_directory import Segment
from kcli.log.reading.batch_search import stated_next_offset
from kcli.log.reading.columnar_reader import BatchRows, ColumnarReader
from kcli.log.reading.segment_reader import BAD_MAGIC, TRUNCATED, ZEROS, Damage

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch

# How many steps are kept of a segment that is read ahead: 20 MB. One with more is read again by its partition's process.
MOST_STEPS = 100_000
_DAMAGE_CODES = {ZEROS: "log-zero-tail", BAD_MAGIC: "batch-magic"}


def _lost_bytes(damage: Damage) -> str:
    """Return a clause on where the log continues. A damaged batch may state bytes that belong to the next sound one."""
    lost = damage.end_position - damage.position
    if lost <= 0:
        return f"; the next sound batch begins at byte {damage.end_position}, inside of the size that the damaged batch states"
    return f"; {format_count(lost, 'byte')} up to the next sound batch {'is' if lost == 1 else 'are'} lost"


class SegmentVerifier:
    """Verifies one segment; `on_step` is called with the producers' steps, `on_bytes` with the bytes read."""

    def __init__(
        self,
        disk: Disk,
        segment: Segment,
        options: SegmentOptions,
        findings: FindingList,
        on_step: Callable[[ProducerStep], None],
        on_bytes: Callable[[int], None] = lambda count: None,
    ) -> None:
        self._disk = disk
        self._segment = segment
        self._options = options
        self._findings = findings
        self._on_bytes = on_bytes
        self.facts = SegmentFacts(segment.base_offset, segment.log)
        self._indexes: list[IndexFile] = []
        self._state = array("q", bytes(8 * STATE_SLOTS))
        self._state[NEXT_OFFSET] = -1
        self._gatherer = StepGatherer(on_step)
        self._stops = list(options.stops)
        self._lost = OffsetRanges(options.lost)
        self._after_damage = False
        self._damage: list[tuple[str, int, str]] = []  # code, byte and message of each damage since the last sound batch
        self._epoch: EpochRun | None = None  # the present one, without its last offset
        self._last_of_epoch = 0
        self._below_start = options.log_start_offset > segment.base_offset

    def run(self) -> SegmentFacts:
        """Read the segment. Raises OSError."""
        segment, options = self._segment, self._options
        common = segment.base_offset, self._findings, options.zeros_allowed
        if segment.offset_index is not None:
            self._indexes.append(OffsetIndexCheck(self._disk, segment.offset_index, *common))
        if segment.time_index is not None:
            self._indexes.append(TimeIndexCheck(self._disk, segment.time_index, *common))
        self._walk = ColumnarReader(self._disk, segment.log)
        self.facts.size_bytes = self._walk.end
        self._inspector = BatchInspector(segment.log, self._findings, self._walk.scanner)
        self._next_stop()
        try:
            for step in self._walk.steps():
                if isinstance(step, Damage):
                    self._pass_damage(step)
                else:
                    self._add_stretch(step)
        finally:
            self._walk.close()
            self._report_damage("")
        self._gatherer.flush()
        self._end_epoch()
        self.facts.gap_offset = self._gatherer.gap_offset
        self.facts.producer_batches = self._gatherer.batches
        if self._below_start:
            self.facts.data_records_below_start = self.facts.data_records
        for index in self._indexes:
            index.finish(self._walk.end, self.facts.batches, is_closed=options.is_closed and not self.facts.is_damaged)
        return self.facts

    # ----------------------------------------------------------------------------------------------------- stretches

    def _pass_damage(self, damage: Damage) -> None:
        self._on_bytes(max(0, damage.end_position - damage.position))
        at_end = damage.end_position >= self._walk.end
        if self._options.is_live and self._options.is_last and at_end:
            return
        code = _DAMAGE_CODES.get(damage.kind, "batch-size")
        if damage.kind == TRUNCATED and at_end:
            code = "log-torn-tail"
        message = damage.message
        if not at_end:
            message += _lost_bytes(damage)
        self._add_damage(code, damage.position, damage.end_position, message, damage.header)

    def _add_damage(
        self, code: str, position: int, end_position: int, message: str, header: RecordBatch | LegacyBatch | None = None
    ) -> None:
        facts = self.facts
        if code != "log-zero-tail":
            facts.ends_damaged = True
            if isinstance(header, RecordBatch):
                expected = facts.end_offset if facts.stated_end is None else facts.stated_end
                facts.stated_end = stated_next_offset(header, expected) or facts.stated_end
        self._damage.append((code, position, message))
        self._gatherer.flush()
        self._gatherer.is_after_damage = True
        self.facts.is_damaged = True
        self._after_damage = True
        self.facts.damaged.append((self._state[NEXT_OFFSET], INT64_MAX))
        for index in self._indexes:
            index.skip(position, end_position)

    def _report_damage(self, clause: str) -> None:
        """Add findings for the damage since the last sound batch, the last one with a clause on the lost offsets."""
        for number, (code, position, message) in enumerate(self._damage, 1):
            self._findings.add(
                code, self._segment.log, message + (clause if number == len(self._damage) else ""), position=position
            )
        self._damage.clear()

    def _add_stretch(self, stretch: BatchRows) -> None:
        rows, count = self._walk.rows, stretch.rows
        self._on_bytes(rows.position[count - 1] + rows.size_bytes[count - 1] - rows.position[0])
        batch = stretch.batch
        if batch is not None and not batch.is_valid:
            header = batch.header
            message = f"the stored CRC of the batch is {header.crc}, the computed one {batch.computed_crc}; its header states "
            message += format_offsets(header.base_offset, header.next_offset)
            self._add_damage("batch-crc", batch.position, batch.end_position, message, batch.header)
            return
        if stretch.faulty:
            self._check_irregular(stretch)
        is_possible = 0 <= rows.base_offset[0] <= rows.last_offset[0] < INT64_MAX and rows.record_count[0] >= 0
        if not is_possible:
            self._after_damage = True  # an impossible header, which is always a stretch of one row
            return
        for index in self._indexes:
            index.match(rows, count)
        self._add_rows(stretch)

    def _check_irregular(self, stretch: BatchRows) -> None:
        """Check compressed rows and rows with faults; a row without a fault becomes SOUND."""
        rows = self._walk.rows
        for row in range(stretch.rows):
            if rows.fault[row] == UNOPENED and stretch.batch is None:
                try:
                    records = inflate(rows.attributes[row] & 7, self._walk.payload(row), limit=limits.INFLATE_WINDOW_BYTES)
                except FormatError:
                    rows.fault[row] = LOOK
                else:
                    self._walk.check_inflated(row, records)
            if rows.fault[row] in (LOOK, LEGACY):
                facts = self._inspector.inspect(stretch.batch or self._walk.batch(row))
                if rows.fault[row] == LEGACY:
                    rows.base_offset[row] = min(rows.base_offset[row], max(facts.first_offset, 0))
                    rows.record_count[row] = facts.record_count

    # ---------------------------------------------------------------------------------------------------------- rows

    def _add_rows(self, stretch: BatchRows) -> None:
        rows, state = self._walk.rows, self._state
        facts = self.facts
        facts.batches += stretch.rows
        facts.ends_damaged, facts.stated_end = False, None
        row = 0
        while row < stretch.rows:
            state[RECORDS] = 0
            regular_end = next_notable(rows, row, stretch.rows, state, self._gatherer.runs)
            if regular_end > row:
                self._add_regular(regular_end - 1, state[RECORDS])
            if regular_end == stretch.rows:
                break
            self._add_notable(stretch, regular_end)
            row = regular_end + 1

    def _add_regular(self, last_row: int, records: int) -> None:
        """Add the regular rows up to `last_row`."""
        rows, facts = self._walk.rows, self.facts
        facts.data_records += records
        facts.end_offset = rows.last_offset[last_row] + 1
        facts.last_jump = None
        if self._epoch is not None and self._epoch.epoch == rows.leader_epoch[last_row]:
            self._last_of_epoch = rows.base_offset[last_row]

    def _add_notable(self, stretch: BatchRows, row: int) -> None:
        """Add one notable row: check its offsets, leader epoch, producer and control records."""
        rows = self._walk.rows
        expected = self._state[NEXT_OFFSET]
        if rows.base_offset[row] != expected or rows.last_offset[row] >= self._state[STOP_OFFSET]:
            self._gatherer.flush()
        self._check_offsets(row, expected)
        is_jump = rows.base_offset[row] != expected and rows.fault[row] != LEGACY
        self.facts.last_jump = (rows.position[row], expected) if is_jump else None
        if 0 <= expected < rows.base_offset[row]:
            self._check_time_entry(stretch, row)
        self._count_records(stretch, row)
        self._check_leader_epoch(row)
        if rows.producer_id[row] >= 0:
            self._add_producer_batch(stretch, row)
        elif not self._check_without_producer(stretch, row):
            self._gatherer.begin(rows, row)
        self._expect_after(row)

    def _check_offsets(self, row: int, expected: int) -> None:
        rows, facts = self._walk.rows, self.facts
        base, last = rows.base_offset[row], rows.last_offset[row]
        if expected < 0:
            if facts.first_offset < 0:
                facts.first_offset = base
                facts.starts_damaged = self._after_damage
        elif base < expected:
            message = f"the batch begins at offset {base}; the one before it ends at offset {expected - 1}"
            self._add_at_row("offset-back", row, message)
        elif base > expected and not self._after_damage:
            self._add_gap(row, expected)
        if base != expected and expected >= 0:
            self._note_gap(base)
        self._report_damage(f"; no sound batch has {format_offsets(expected, base)}" if 0 <= expected < base else "")
        if self._after_damage:
            self._note_gap(last)
            if facts.damaged:
                facts.damaged[-1] = (facts.damaged[-1][0], base)
        self._after_damage = False
        if base < self._segment.base_offset:
            message = f"the batch begins at offset {base}, below {self._segment.base_offset} in the segment's name"
            self._add_at_row("offset-before-segment", row, message)
        elif last - self._segment.base_offset > INT32_MAX:
            largest = self._segment.base_offset + INT32_MAX
            message = f"the batch ends at offset {last}; the segment's name allows offsets up to {largest}"
            self._add_at_row("offset-overflow", row, message)

    def _add_gap(self, row: int, expected: int) -> None:
        """Add the gap before a row; formats 0 and 1 have gaps where nothing is missing."""
        rows, facts = self._walk.rows, self.facts
        gap = expected, rows.base_offset[row]
        is_legacy = rows.fault[row] == LEGACY
        if not is_legacy:
            facts.gaps += 1
            facts.first_gap = facts.first_gap or (*gap, rows.position[row])
        ranges = facts.legacy_gap_ranges if is_legacy else facts.gap_ranges
        if len(ranges) < MOST_GAPS:
            ranges.append(gap)
        if self._lost.overlaps(*gap):
            facts.lost_gaps.append(gap)

    def _check_time_entry(self, stretch: BatchRows, row: int) -> None:
        """Check the entry of .timeindex in a batch after a gap. The cleaner may leave one of another record."""
        rows = self._walk.rows
        is_whole = rows.record_count[row] == rows.last_offset[row] - rows.base_offset[row] + 1
        if is_whole and rows.fault[row] != LEGACY and not rows.attributes[row] & LOG_APPEND_TIME_FLAG:
            for index in self._indexes:
                if isinstance(index, TimeIndexCheck):
                    index.check_record(stretch.batch or self._walk.batch(row), self._walk.scanner)

    def _note_gap(self, offset: int) -> None:
        """Note that something is missing before the end of the batch at `offset`."""
        self._gatherer.gap_offset = max(self._gatherer.gap_offset, offset)

    def _count_records(self, stretch: BatchRows, row: int) -> None:
        rows, facts = self._walk.rows, self.facts
        records = rows.record_count[row]
        if rows.attributes[row] & CONTROL_FLAG and rows.fault[row] != LEGACY:
            facts.control_records += records
        else:
            if self._below_start and rows.last_offset[row] >= self._options.log_start_offset:
                self._below_start = False
                facts.data_records_below_start = facts.data_records + self._records_below_start(stretch, row)
            facts.data_records += records
        if rows.fault[row] != LEGACY and (
            records <= rows.last_offset[row] - rows.base_offset[row] or rows.attributes[row] & DELETE_HORIZON_FLAG
        ):
            facts.is_thinned = True
            self._gatherer.flush()
            self._note_gap(rows.last_offset[row])

    def _records_below_start(self, stretch: BatchRows, row: int) -> int:
        """Return the number of records of the batch that are below the log start offset."""
        if self._walk.rows.base_offset[row] >= self._options.log_start_offset:
            return 0
        batch = stretch.batch or self._walk.batch(row)
        below = 0
        for window in batch.windows(self._walk.scanner, skip_large=True):
            below += sum(offset < self._options.log_start_offset for offset in window.columns.offset[: window.count])
        return below

    def _check_leader_epoch(self, row: int) -> None:
        rows = self._walk.rows
        epoch, base = rows.leader_epoch[row], rows.base_offset[row]
        before = self._epoch
        if before is not None and before.epoch == epoch:
            self._last_of_epoch = base
        elif before is not None and epoch < before.epoch and rows.fault[row] != LEGACY:
            message = f"the batch is of leader epoch {epoch}; the one before it of {before.epoch}"
            self._add_at_row("leader-epoch-back", row, message)
        else:
            self._end_epoch()
            self._epoch = EpochRun(epoch, base, base, rows.position[row])
            self._last_of_epoch = base

    def _end_epoch(self) -> None:
        if self._epoch is not None:
            self.facts.epochs.append(self._epoch._replace(last_base_offset=self._last_of_epoch))
            self._epoch = None

    def _check_producer_fields(self, row: int) -> None:
        rows = self._walk.rows
        is_control = bool(rows.attributes[row] & CONTROL_FLAG)
        why = None
        if rows.producer_epoch[row] < 0:
            why = f"producer epoch {rows.producer_epoch[row]}"
        elif not is_control and rows.base_sequence[row] < 0:
            why = f"base sequence {rows.base_sequence[row]}"
        if why is not None:
            message = f"the batch of producer {rows.producer_id[row]} has {why}"
            self._add_at_row("producer-fields", row, message)

    def _check_without_producer(self, stretch: BatchRows, row: int) -> bool:
        """Check a batch without a producer; return True if it ends the run of regular rows."""
        rows = self._walk.rows
        if rows.fault[row] == LEGACY:
            return True
        if rows.attributes[row] & TRANSACTIONAL_FLAG:
            self._add_at_row("producer-fields", row, "the batch is transactional and has no producer")
        elif rows.producer_id[row] < -1:
            self._add_at_row("producer-fields", row, f"the batch has producer id {rows.producer_id[row]}")
        elif rows.attributes[row] & CONTROL_FLAG:
            types = self._inspector.raft_control_types(stretch.batch or self._walk.batch(row))
            known = self.facts.control_types
            known += types
            del known[4:-4]
        else:
            return False
        return True

    def _add_at_row(self, code: str, row: int, message: str) -> None:
        rows = self._walk.rows
        self._findings.add(code, self._segment.log, message, position=rows.position[row], offset=rows.base_offset[row])

    # --------------------------------------------------------------------------------------------------------- steps

    def _add_producer_batch(self, stretch: BatchRows, row: int) -> None:
        """Add a batch of a producer: records, which begin a run, or a transaction marker."""
        rows = self._walk.rows
        self._check_producer_fields(row)
        if not rows.attributes[row] & CONTROL_FLAG:
            self._gatherer.begin(rows, row)
            return
        self._gatherer.add(
            ProducerStep(
                producer_id=rows.producer_id[row],
                producer_epoch=rows.producer_epoch[row],
                is_transactional=bool(rows.attributes[row] & TRANSACTIONAL_FLAG),
                first_position=rows.position[row],
                first_offset=rows.base_offset[row],
                first_sequence=rows.base_sequence[row],
                batch_offset=rows.base_offset[row],
                last_offset=rows.last_offset[row],
                last_sequence=last_sequence(rows, row),
                max_timestamp=rows.max_timestamp[row],
                records=rows.record_count[row],
                gap_offset=self._gatherer.gap_offset,
                is_after_damage=self._gatherer.is_after_damage,
                marker=self._inspector.marker(stretch.batch or self._walk.batch(row)),
                is_control=True,
            )
        )

    def _expect_after(self, row: int) -> None:
        """Set what the next row must have to be regular."""
        rows, state = self._walk.rows, self._state
        self.facts.end_offset = max(self.facts.end_offset, rows.last_offset[row] + 1)
        state[NEXT_OFFSET] = rows.last_offset[row] + 1
        state[LEADER_EPOCH] = rows.leader_epoch[row]
        self._next_stop()

    def _next_stop(self) -> None:
        reached = self._state[NEXT_OFFSET]
        while self._stops and self._stops[0] < reached:
            self._stops.pop(0)
        self._state[STOP_OFFSET] = self._stops[0] if self._stops else INT64_MAX


class SegmentReading(NamedTuple):
    """What was read of a segment apart from its partition; `steps` is None where there were too many to keep."""

    facts: SegmentFacts
    steps: list[ProducerStep] | None
    findings: list[Finding]


ReadAhead = Callable[[Segment], SegmentReading | None]


def read_segment(disk: Disk, segment: Segment, options: SegmentOptions, on_bytes: Callable[[int], None]) -> SegmentReading:
    """Verify a segment apart from its partition. Raises OSError."""
    findings = FindingList(is_live=options.is_live)
    steps: list[ProducerStep] = []

    def keep(step: ProducerStep) -> None:
        if len(steps) <= MOST_STEPS:
            steps.append(step)

    facts = SegmentVerifier(disk, segment, options, findings, keep, on_bytes).run()
    if len(steps) > MOST_STEPS:
        return SegmentReading(facts, None, [])
    return SegmentReading(facts, steps, findings.finish())
