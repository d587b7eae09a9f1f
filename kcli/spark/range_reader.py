"""Reading a range of a segment: which batches have offsets that are wanted, which of them are left out, and what is corrupt.

    bytes or batch                                       what the reader does
    ---------------------------------------------------  -------------------------------------------------------------
    a batch without wanted offsets                       skips it
    bytes that are not a batch; a wrong CRC; offsets     onCorrupt=fail: raises CorruptLogError with file and byte
      that go back or reach into the next range;         onCorrupt=skip: counts it in the report and continues; the
      records that do not parse                            table `corrupt` lists it
    control records                                      leaves them out and counts them, unless includeControl
    of an aborted transaction, under read_committed      leaves them out and counts them, unless includeAborted
    of an open transaction, under read_committed         leaves them out and counts them, unless includeOpen
    any other batch                                      returns its records

A broker rolls, cleans and deletes segments while a job runs: if a segment was replaced since planning, its offsets are looked
up again (`ranges_now`).

The offsets of batches are compared with those of the batch before and with the first offset after the range
(kcli.selecting.lookup.offset_fault): a flipped bit in a base offset must not move records out of what is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kcli.format.legacy_message_set import LegacyBatch
from kcli.format.record_batch import RecordBatch
from kcli.log.disk.port import Disk, parent_path
from kcli.log.files.log_directory import read_partition
from kcli.log.reading.batch_records import RecordScanner, RecordWindow
from kcli.log.reading.segment_reader import Damage, LogBatch, SegmentReader
from kcli.selecting.lookup import offset_fault
from kcli.selecting.selected_log import BAD_CRC, BAD_OFFSETS, BAD_RECORDS
from kcli.spark.log_partitions import LogPartition, PlanError
from kcli.spark.planning import OffsetRange, RangeChoice, segment_ranges
from kcli.spark.read_options import SKIP, ReadOptions
from kcli.spark.report import ABORTED, CONTROL, OPEN_TRANSACTION, Report
from kcli.spark.splits import SegmentRange


class CorruptLogError(Exception):
    """A batch that cannot be read, with onCorrupt=fail; the message contains file, byte and what to do."""


class CorruptRange(NamedTuple):
    """Bytes [position, end_position) of a range's file that are corrupt; `batch`, if they are one batch.

    The batch is valid until the next one is read.
    """

    part: SegmentRange
    position: int
    end_position: int
    kind: str
    message: str
    batch: LogBatch | None

    def __str__(self) -> str:
        return f"{self.part.file}: byte {self.position}: {self.message}"


class RangeReader:
    """Reads one range; `report` counts what is corrupt, and each window of records overwrites the one before in `scanner`."""

    def __init__(self, disk: Disk, part: SegmentRange, options: ReadOptions, report: Report, scanner: RecordScanner) -> None:
        self.disk = disk
        self.part = part
        self.options = options
        self.report = report
        self.scanner = scanner
        self._last_offset = part.least_offset - 1

    def batches_and_faults(self) -> Iterator[LogBatch | CorruptRange]:
        """Yield the batches with wanted offsets and the faults, in the order of the file. Raises OSError as the disk does."""
        with SegmentReader(self.disk, self.part.file, end=self.part.end_position, doubts_offsets=True) as reader:
            for found in reader.batches(self.part.position):
                fault = self.damage_fault(found) if isinstance(found, Damage) else self.batch_fault(found, reader)
                if fault is not None:
                    yield fault
                elif isinstance(found, LogBatch) and self.follows(found):
                    yield found

    def batches(self) -> Iterator[LogBatch]:
        """Yield the sound batches with wanted offsets. Raises CorruptLogError as `handle` does."""
        for found in self.batches_and_faults():
            if isinstance(found, CorruptRange):
                self.handle(found)
            else:
                yield found

    def handle(self, fault: CorruptRange) -> None:
        """Count a fault if onCorrupt is skip. Raises CorruptLogError otherwise."""
        if self.options.of_cluster:
            raise CorruptLogError(f"{fault}. The broker returned these bytes; run kcli verify on its log directory")
        if self.options.on_corrupt != SKIP:
            raise CorruptLogError(
                f"{fault}. Option onCorrupt=skip (--on-corrupt skip) skips these bytes and lists them; "
                f"run kcli verify {fault.part.file} for details"
            )
        self.report.add_corrupt(fault.part, max(fault.end_position - fault.position, 0), str(fault))

    def damage_fault(self, damage: Damage) -> CorruptRange:
        """Return the fault of bytes that are not a batch."""
        return CorruptRange(self.part, damage.position, damage.end_position, damage.kind, damage.message, None)

    def batch_fault(self, batch: LogBatch, reader: SegmentReader) -> CorruptRange | None:
        """Return what is wrong with the CRC or the offsets of the next batch, or None."""
        header, fault = batch.header, None
        if batch.contradiction is not None:
            fault = (BAD_OFFSETS, batch.contradiction)
        elif not batch.is_valid:
            fault = (BAD_CRC, f"the batch's CRC is {header.crc}, the bytes give {batch.computed_crc}")
        elif (message := offset_fault(batch, reader, self._last_offset, self.part.bound_offset)) is not None:
            fault = (BAD_OFFSETS, message)
        return None if fault is None else CorruptRange(self.part, header.position, batch.end_position, *fault, batch)

    def follows(self, batch: LogBatch) -> bool:
        """Take a batch without a fault as the last one read; return True if it may have wanted offsets.

        A message set of format 0 or 1 may begin before the base offset that it states.
        """
        header, part = batch.header, self.part
        self._last_offset = header.last_offset
        return header.last_offset >= part.first_offset and (
            header.base_offset < part.end_offset or isinstance(header, LegacyBatch)
        )

    def left_out(self, batch: LogBatch) -> str | None:
        """Return why the records of a batch are left out (see kcli.spark.report), or None."""
        header, options, transactions = batch.header, self.options, self.part.transactions
        if isinstance(header, LegacyBatch):
            return None
        if header.is_control:
            return None if options.include_control else CONTROL
        if not options.read_committed or not header.is_transactional or transactions is None:
            return None
        if not options.include_aborted and transactions.is_aborted(header.producer_id, header.base_offset):
            return ABORTED
        if not options.include_open and transactions.is_open(header.producer_id, header.base_offset):
            return OPEN_TRANSACTION
        return None

    def is_aborted(self, header: RecordBatch | LegacyBatch) -> bool:
        """Return True if a batch belongs to a transaction that was aborted."""
        return (
            isinstance(header, RecordBatch)
            and header.is_transactional
            and self.part.transactions is not None
            and self.part.transactions.is_aborted(header.producer_id, header.base_offset)
        )

    def windows(self, batch: LogBatch) -> Iterator[RecordWindow]:
        """Yield a batch's records, up to the first fault in them. Raises CorruptLogError as `handle` does."""
        next_offset = batch.header.base_offset
        for window in batch.windows(self.scanner):
            fault = self._records_fault(batch, window)
            next_offset = window.columns.offset[window.count - 1] + 1 if window.count else next_offset
            if fault is not None:
                self.handle(fault)
                self.report.add_lost(self.part, next_offset, batch.header.last_offset + 1)
            yield window

    def records_fault(self, batch: LogBatch) -> CorruptRange | None:
        """Return the first fault in the records of a batch, or None."""
        faults = (self._records_fault(batch, window) for window in batch.windows(self.scanner))
        return next((fault for fault in faults if fault is not None), None)

    def _records_fault(self, batch: LogBatch, window: RecordWindow) -> CorruptRange | None:
        error: object = window.error
        if error is None and window.legacy is not None:
            invalid = (index for index, record in enumerate(window.legacy) if not record.is_valid)
            error = next((f"message {index} of the set has a wrong CRC" for index in invalid), None)
        if error is None:
            return None
        message = f"the batch at offset {batch.header.base_offset} has records that cannot be read: {error}"
        return CorruptRange(self.part, batch.position, batch.end_position, BAD_RECORDS, message, batch)


def ranges_now(disk: Disk, part: SegmentRange, options: ReadOptions, report: Report) -> list[SegmentRange]:
    """Return the range itself if its file was not replaced since planning, else the ranges that have its offsets now.

    Offsets that were deleted are reported as lost if failOnDataLoss is false, otherwise raise PlanError. Raises OSError.
    """
    if is_unchanged(disk, part):
        return [part]
    first, end = max(part.first_offset, part.least_offset), min(part.end_offset, part.bound_offset)
    try:
        directory = read_partition(disk, parent_path(part.file))
    except FileNotFoundError:
        directory = None
    found = LogPartition(disk, directory) if directory is not None and directory.segments else None
    start = end if found is None else found.first_offset
    if start > first and options.fail_on_data_loss:
        raise PlanError(
            f"{part.topic}-{part.partition}: offsets {first} to {min(start, end) - 1} were deleted while the job ran; "
            "option failOnDataLoss=false continues without them"
        )
    report.add_lost(part, first, min(start, end))
    if found is None or start >= end:
        return []
    wanted = OffsetRange(found, max(first, start), end)
    choice = RangeChoice(with_transactions=False, with_torn_tail=False)
    return [now._replace(transactions=part.transactions) for _, now in segment_ranges(wanted, choice)]


def is_unchanged(disk: Disk, part: SegmentRange) -> bool:
    """Return True if the file of a range was not replaced since planning, and still has its bytes."""
    try:
        return not part.file_id or (disk.file_id(part.file) == part.file_id and disk.size(part.file) >= part.end_position)
    except FileNotFoundError:
        return False
