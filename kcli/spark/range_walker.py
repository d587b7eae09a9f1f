"""Walking the ranges of a split batch by batch: what is corrupt, and what is left out.

    a batch                                              what becomes of it
    ---------------------------------------------------  -------------------------------------------------------------
    wholly outside the offsets wanted                    passed over
    bytes that are no batch; a wrong CRC; offsets that   onCorrupt=fail: CorruptLogError with file and byte
      go back or reach into the next range; records      onCorrupt=skip: counted, named in the report, to be read as
      that do not parse                                    the table `corrupt`
    control records                                      left out and counted, unless includeControl
    of an aborted transaction, under read_committed      left out and counted, unless includeAborted
    of an open transaction, under read_committed         the range ends before it, unless includeOpen
    anything else                                        its records, copied into Arrow batches

The CRC does not cover a batch's base offset. That is why offsets are checked against the batch before and against where the
next range begins: a flipped bit there must not move records out of what is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kcli.format.legacy_message_set import LegacyBatch
from kcli.format.record_batch import RecordBatch
from kcli.log.disk.port import Disk
from kcli.log.reading.batch_records import RecordScanner, RecordWindow
from kcli.log.reading.segment_reader import Damage, LogBatch, SegmentReader
from kcli.spark.options import SKIP, ReadOptions
from kcli.spark.report import ABORTED, CONTROL, OPEN_TRANSACTION, Report
from kcli.spark.splits import SegmentRange

BAD_CRC = "bad-crc"
BAD_OFFSETS = "bad-offsets"
BAD_RECORDS = "bad-records"


class CorruptLogError(Exception):
    """A batch that cannot be read, where the job is to fail then; the message names file, byte and what to do."""


class Fault(NamedTuple):
    """Bytes [position, end_position) of a range's file that cannot be read as they should; `batch` where they are one.

    The batch is valid until the walk goes on.
    """

    part: SegmentRange
    position: int
    end_position: int
    kind: str
    message: str
    batch: LogBatch | None

    def __str__(self) -> str:
        return f"{self.part.file}: byte {self.position}: {self.message}"


class RangeWalker:
    """Walks ranges batch by batch; what is corrupt goes the way that `onCorrupt` says and into `report`."""

    def __init__(self, disk: Disk, options: ReadOptions, report: Report | None = None) -> None:
        self.disk = disk
        self.options = options
        self.report = report or Report()
        self.scanner = RecordScanner()

    def fault(self, fault: Fault) -> None:
        """Fail the job (raises CorruptLogError), or count the fault and go on."""
        if self.options.on_corrupt != SKIP:
            raise CorruptLogError(
                f"{fault}. Option onCorrupt=skip (--on-corrupt skip) goes on without these bytes and lists them; "
                f"kcli verify {fault.part.file} says more"
            )
        key = (fault.part.topic, fault.part.partition)
        self.report.corrupt[key] += 1
        self.report.corrupt_bytes[key] += max(fault.end_position - fault.position, 0)
        self.report.corrupt_files.add(fault.part.file)
        self.report.first_faults.append(str(fault))

    def lose(self, part: SegmentRange, first_offset: int, end_offset: int) -> None:
        """Report those of the offsets [first_offset, end_offset) as lost that are wanted of the range."""
        first, end = max(first_offset, part.first_offset), min(end_offset, part.end_offset, part.bound_offset)
        self.report.lose(part.topic, part.partition, first, end)

    def entries(self, part: SegmentRange) -> Iterator[LogBatch | Fault]:
        """The batches of a range that touch the offsets wanted and have a sound frame, and the faults between them."""
        last_offset = part.least_offset - 1
        with SegmentReader(self.disk, part.file, end=part.end_position) as reader:
            for found in reader.batches(part.position):
                if isinstance(found, Damage):
                    yield self.damage_fault(part, found)
                    continue
                fault = self.batch_fault(part, reader, found, last_offset)
                if fault is not None:
                    yield fault
                    continue
                last_offset = found.header.last_offset
                if self.touches(part, found):
                    yield found

    @staticmethod
    def damage_fault(part: SegmentRange, damage: Damage) -> Fault:
        """The fault of bytes that are no batch."""
        return Fault(part, damage.position, damage.end_position, damage.kind, damage.message, None)

    @staticmethod
    def batch_fault(part: SegmentRange, reader: SegmentReader, batch: LogBatch, last_offset: int) -> Fault | None:
        """What is wrong with the frame of a batch that follows `last_offset`, or None."""
        header = batch.header
        fault = None
        if not batch.is_valid:
            fault = (BAD_CRC, f"the batch's CRC is {header.crc}, the bytes give {batch.computed_crc}")
        elif header.base_offset <= last_offset or header.last_offset < header.base_offset:
            fault = (BAD_OFFSETS, f"the batch begins at offset {header.base_offset}, behind offset {last_offset}")
        elif header.last_offset >= part.bound_offset:
            fault = (BAD_OFFSETS, f"the batch reaches offset {header.last_offset}, {part.bound_offset} comes behind it")
        elif header.base_offset > last_offset + 1:
            behind = _next_base(reader, batch.end_position)
            # One that leaves no room for this batch is wrong itself.
            least = last_offset + 1 + header.last_offset - header.base_offset
            if behind is not None and least < behind <= header.last_offset:
                fault = (BAD_OFFSETS, f"the batch reaches offset {header.last_offset}, {behind} comes behind it")
        return None if fault is None else Fault(part, header.position, batch.end_position, *fault, batch)

    @staticmethod
    def touches(part: SegmentRange, batch: LogBatch) -> bool:
        """True where a batch may hold offsets that are wanted; a set of format 0 or 1 may begin before what it states."""
        header = batch.header
        return header.last_offset >= part.first_offset and (
            header.base_offset < part.end_offset or isinstance(header, LegacyBatch)
        )

    def batches(self, part: SegmentRange) -> Iterator[LogBatch]:
        """The sound batches alone; faults are dealt with. Raises CorruptLogError as `fault` does."""
        for found in self.entries(part):
            if isinstance(found, Fault):
                self.fault(found)
            else:
                yield found

    def windows(self, part: SegmentRange, batch: LogBatch) -> Iterator[RecordWindow]:
        """A batch's records; those before a fault in them count. Raises CorruptLogError as `fault` does."""
        next_offset = batch.header.base_offset
        for window in batch.windows(self.scanner):
            error = _error_of(window)
            next_offset = window.columns.offset[window.count - 1] + 1 if window.count else next_offset
            if error is not None:
                self.fault(records_fault(part, batch, error))
                self.lose(part, next_offset, batch.header.last_offset + 1)
            yield window

    def first_error(self, batch: LogBatch) -> Exception | None:
        """What is wrong with the records of a batch, or None."""
        return next((error for window in batch.windows(self.scanner) if (error := _error_of(window)) is not None), None)

    def left_out(self, part: SegmentRange, batch: LogBatch) -> str | None:
        """Why the records of a batch are not given out (see kcli.spark.report), or None where they are."""
        header, options = batch.header, self.options
        if isinstance(header, LegacyBatch):
            return None
        if header.is_control:
            return None if options.include_control else CONTROL
        if not options.read_committed or not header.is_transactional or part.transactions is None:
            return None
        if not options.include_aborted and part.transactions.is_aborted(header.producer_id, header.base_offset):
            return ABORTED
        if part.transactions.is_open(header.producer_id, header.base_offset):
            return OPEN_TRANSACTION if not options.include_open else None
        return None


def _next_base(reader: SegmentReader, position: int) -> int | None:
    """The base offset of the batch at byte `position` as it stands there, or None behind the last byte."""
    if position + 8 > reader.end_position():
        return None
    return int.from_bytes(reader.file.read_at(position, 8), "big", signed=True)


def _error_of(window: RecordWindow) -> Exception | None:
    if window.error is None and window.legacy is not None:
        for index, record in enumerate(window.legacy):
            if not record.is_valid:
                return ValueError(f"message {index} of the set has a wrong CRC")
    return window.error


def records_fault(part: SegmentRange, batch: LogBatch, error: Exception) -> Fault:
    """The fault of a batch whose frame is sound and whose records do not parse."""
    message = f"the batch at offset {batch.header.base_offset} holds records that cannot be read: {error}"
    return Fault(part, batch.position, batch.end_position, BAD_RECORDS, message, batch)


def is_aborted(part: SegmentRange, header: RecordBatch | LegacyBatch) -> bool:
    """True where a batch belongs to a transaction that was aborted."""
    return (
        isinstance(header, RecordBatch)
        and header.is_transactional
        and part.transactions is not None
        and part.transactions.is_aborted(header.producer_id, header.base_offset)
    )
