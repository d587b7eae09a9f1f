"""What a task does with its split: walk the batches of each range, check them, give out the records that are wanted.

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

import pyarrow as pa

from kcli.format.legacy_message_set import LegacyBatch
from kcli.format.record_batch import RecordBatch
from kcli.log.disk import Disk
from kcli.log.log_reader import Damage, LogBatch, SegmentReader
from kcli.log.record_windows import RecordScanner, RecordWindow
from kcli.spark.arrow_batches import ArrowBatchBuilder
from kcli.spark.arrow_columns import count_below
from kcli.spark.column_builders import Rows
from kcli.spark.options import SKIP, ReadOptions
from kcli.spark.report import ABORTED, CONTROL, OPEN_TRANSACTION, Report
from kcli.spark.splits import LogSplit, SegmentRange

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

    def entries(self, part: SegmentRange) -> Iterator[LogBatch | Fault]:
        """The batches of a range that touch the offsets wanted and have a sound frame, and the faults between them."""
        last_offset = part.least_offset - 1
        with SegmentReader(self.disk, part.file, end=part.end_position) as reader:
            for found in reader.batches(part.position):
                if isinstance(found, Damage):
                    yield Fault(part, found.position, found.end_position, found.kind, found.message, None)
                    continue
                header = found.header
                fault = None
                if not found.is_valid:
                    fault = (BAD_CRC, f"the batch's CRC is {header.crc}, the bytes give {found.computed_crc}")
                elif header.base_offset <= last_offset or header.last_offset < header.base_offset:
                    fault = (BAD_OFFSETS, f"the batch begins at offset {header.base_offset}, behind offset {last_offset}")
                elif header.last_offset >= part.bound_offset:
                    fault = (BAD_OFFSETS, f"the batch reaches offset {header.last_offset}, {part.bound_offset} comes behind it")
                elif header.base_offset > last_offset + 1:
                    behind = _next_base(reader, found.end_position)
                    if behind is not None and last_offset < behind <= header.last_offset:
                        fault = (BAD_OFFSETS, f"the batch reaches offset {header.last_offset}, {behind} comes behind it")
                if fault is not None:
                    yield Fault(part, header.position, found.end_position, *fault, found)
                    continue
                last_offset = header.last_offset
                if last_offset >= part.first_offset and (
                    header.base_offset < part.end_offset or isinstance(header, LegacyBatch)
                ):
                    yield found

    def batches(self, part: SegmentRange) -> Iterator[LogBatch]:
        """The sound batches alone; faults are dealt with. Raises CorruptLogError as `fault` does."""
        for found in self.entries(part):
            if isinstance(found, Fault):
                self.fault(found)
            else:
                yield found

    def windows(self, part: SegmentRange, batch: LogBatch) -> Iterator[RecordWindow]:
        """A batch's records; those before a fault in them count. Raises CorruptLogError as `fault` does."""
        for window in batch.windows(self.scanner):
            error = _error_of(window)
            if error is not None:
                self.fault(records_fault(part, batch, error))
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


def read_records(disk: Disk, split: LogSplit, schema: pa.Schema, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The records of a split as Arrow batches of `schema`; the report as a last row or in a file, where one is asked for.

    Raises CorruptLogError for corrupt bytes where the job is to fail, OSError as the disk does.
    """
    report = Report()
    walker = RangeWalker(disk, options, report)
    builder = ArrowBatchBuilder(
        schema, max_rows=options.arrow_batch_rows, max_bytes=options.arrow_batch_bytes, report=options.report_column
    )
    for part in split.ranges:
        given = 0
        for batch in walker.batches(part):
            reason = walker.left_out(part, batch)
            if reason is not None:
                assert isinstance(batch.header, RecordBatch)
                report.leave_out(part.topic, part.partition, reason, batch.header.record_count)
                continue
            for rows in _wanted(walker, part, batch):
                given += rows.length
                if builder.add(rows):
                    yield builder.finish()
        if given:
            report.rows[part.topic, part.partition] += given
    if builder.rows:
        yield builder.finish()
    if options.report_column is not None:
        yield report_row(schema, options.report_column, report)
    if options.report_path is not None:
        disk.write_file(f"{options.report_path}/{split.number}.json", report.to_json().encode())


def _wanted(walker: RangeWalker, part: SegmentRange, batch: LogBatch) -> Iterator[Rows]:
    """The batch's records, window by window, cut to the offsets wanted."""
    header = batch.header
    aborted = is_aborted(part, header)
    whole = isinstance(header, RecordBatch) and header.base_offset >= part.first_offset and header.last_offset < part.end_offset
    for window in walker.windows(part, batch):
        first, end = 0, window.count
        if not whole:
            offsets = window.columns.offset
            first = count_below(offsets, window.count, part.first_offset)
            end = count_below(offsets, window.count, part.end_offset)
        if end > first:
            yield Rows(header, window, first, end - first, part.topic, part.partition, part.file, aborted)


def report_row(schema: pa.Schema, column: str, report: Report) -> pa.RecordBatch:
    """One row of nulls but for the report."""
    arrays = [pa.array([report.to_json()], field.type) if field.name == column else pa.nulls(1, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
