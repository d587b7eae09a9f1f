"""Checks all of one batch: its header, its records, its control records; every fault becomes a sentence.

The columns of kcli.format.batch_scan only show that a batch has a fault. A batch may have any size and format: it is read in
windows, so memory stays flat.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

from kcli.format import batch_scan
from kcli.format.compression import codec_name
from kcli.format.end_transaction_marker import EndTransactionMarker, UnreadableMarkerError
from kcli.format.primitives import INT64_MAX, CorruptRecordError, FormatError, InflationError, InflationLimitError
from kcli.format.record_batch import CODEC_MASK as CODEC_BITS
from kcli.format.record_batch import (
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    TRANSACTIONAL_FLAG,
    RecordBatch,
)
from kcli.inspect.verification.findings import FindingList
from kcli.inspect.verification.large_messages import LargeMessages, is_large
from kcli.log.reading.batch_records import RecordScanner, RecordWindow
from kcli.log.reading.segment_reader import LogBatch

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch

_KNOWN_ATTRIBUTES = CODEC_BITS | LOG_APPEND_TIME_FLAG | TRANSACTIONAL_FLAG | CONTROL_FLAG | DELETE_HORIZON_FLAG
_LAST_CODEC = 4
_LAST_LEGACY_CODEC = 3


class BatchFacts(NamedTuple):
    """How many records of a batch could be read, and the offset of the first one."""

    record_count: int
    first_offset: int


class BatchInspector:
    """Checks batches of one file and adds to `findings`."""

    def __init__(self, path: str, findings: FindingList, scanner: RecordScanner) -> None:
        self.path = path
        self.findings = findings
        self.scanner = scanner
        self._scratch = array("q", (0, 0))

    def add(self, code: str, batch: LogBatch, message: str) -> None:
        """Add a finding at a batch."""
        offset = batch.header.base_offset
        self.findings.add(code, self.path, message, position=batch.position, offset=offset if offset >= 0 else None)

    def inspect(self, batch: LogBatch) -> BatchFacts:
        """Check a batch of any format whose CRC is right. Raises OSError."""
        header = batch.header
        if not isinstance(header, RecordBatch):
            return self._inspect_legacy(batch, header)
        nothing = BatchFacts(0, header.base_offset)
        if header.base_offset < 0 or header.last_offset_delta < 0 or header.record_count < 0:
            self.add(
                "batch-header",
                batch,
                f"the batch states base offset {header.base_offset}, last offset delta {header.last_offset_delta} and "
                f"{header.record_count} records; none can be negative",
            )
            return nothing
        if header.last_offset >= INT64_MAX:
            message = f"the batch ends at offset {header.last_offset}; no offset can follow it, so Kafka never gave it out"
            self.add("batch-header", batch, message)
            return nothing
        if header.record_count > header.last_offset_delta + 1:
            self.add(
                "batch-header",
                batch,
                f"the batch states {header.record_count} records, but its offsets {header.base_offset} to "
                f"{header.last_offset} allow {header.last_offset_delta + 1}",
            )
        if header.attributes & ~_KNOWN_ATTRIBUTES:
            self.add(
                "batch-attributes", batch, f"the batch has attributes 0x{header.attributes & 0xFFFF:04x}; bits 0 to 6 are known"
            )
        if header.codec > _LAST_CODEC:
            self.add("batch-codec", batch, f"the batch is compressed by codec {header.codec}; 0 to {_LAST_CODEC} are known")
            return nothing
        return self._inspect_records(batch, header)

    def _inspect_records(self, batch: LogBatch, header: RecordBatch) -> BatchFacts:
        done, first, previous = 0, header.base_offset, header.base_offset - 1
        largest: int | None = None
        if header.record_count == 0 and header.size_bytes != HEADER_BYTES:
            left = header.size_bytes - HEADER_BYTES
            self.add("batch-records", batch, f"the batch states 0 records and has {left} bytes of records")
        for window in batch.windows(self.scanner, skip_large=True):
            columns = window.columns
            wrong = batch_scan.summarise(columns, window.count, previous, self._scratch)
            if window.count:
                largest = self._scratch[1] if largest is None else max(largest, self._scratch[1])
                first = columns.offset[0] if done == 0 else first
                if wrong >= 0:
                    self._add_record_offset(batch, header, window, wrong, previous)
                elif columns.offset[window.count - 1] > header.last_offset:
                    self._add_record_offset(batch, header, window, window.count - 1, previous)
                previous = columns.offset[window.count - 1]
            done += window.count
            if window.error is not None:
                self._add_unreadable(batch, window.error)
                return BatchFacts(done, first)
        if largest is not None and largest != header.max_timestamp and not header.is_log_append_time:
            self.add(
                "batch-max-timestamp",
                batch,
                f"the batch states {header.max_timestamp} ms for its largest timestamp; that of its records is {largest} ms",
            )
        return BatchFacts(done, first)

    def _add_record_offset(self, batch: LogBatch, header: RecordBatch, window: RecordWindow, row: int, previous: int) -> None:
        offset = window.columns.offset[row]
        before = window.columns.offset[row - 1] if row else previous
        self.add(
            "record-offset",
            batch,
            f"record {window.first_index + row} of the batch has offset {offset}; it must be above {before} and within "
            f"the batch's own {header.base_offset} to {header.last_offset}",
        )

    def _add_unreadable(self, batch: LogBatch, error: FormatError) -> None:
        if isinstance(error, InflationLimitError):
            code = "batch-inflate-limit"
        elif isinstance(error, InflationError):
            code = "batch-inflate"
        elif isinstance(error, CorruptRecordError) and batch.header.magic == 2:
            code = "file-shrank"
        else:
            code = "batch-records"
        self.add(code, batch, f"the records of the batch ({codec_name(batch.header.codec)}) cannot be read: {error.message}")

    def _inspect_legacy(self, batch: LogBatch, header: LegacyBatch) -> BatchFacts:
        if header.base_offset < 0:
            self.add("batch-header", batch, f"the message states offset {header.base_offset}; it cannot be negative")
            return BatchFacts(0, 0)
        if header.base_offset >= INT64_MAX:
            message = f"the message states offset {header.base_offset}; no offset can follow it, so Kafka never gave it out"
            self.add("batch-header", batch, message)
            return BatchFacts(0, 0)
        if header.codec > _LAST_LEGACY_CODEC:
            self.add("batch-codec", batch, f"the message set has codec {header.codec}; 0 to {_LAST_LEGACY_CODEC} are known")
            return BatchFacts(0, header.base_offset)
        if is_large(batch, header):
            return self._inspect_large_set(batch, header)
        done, first, previous = 0, header.base_offset, -1
        for window in batch.windows(self.scanner):
            records = window.legacy or []
            for record in records:
                if done == 0:
                    first = record.offset
                if not record.is_valid and header.codec:
                    self.add("record-crc", batch, f"message {done} of the set, at offset {record.offset}, has a wrong CRC")
                if not previous < record.offset <= header.last_offset:
                    self.add(
                        "record-offset",
                        batch,
                        f"message {done} of the set has offset {record.offset}; it must be above {previous} and not above "
                        f"{header.last_offset}",
                    )
                previous = record.offset
                done += 1
            if window.error is not None:
                self._add_unreadable(batch, window.error)
                return BatchFacts(done, first)
        return BatchFacts(done, first)

    def _inspect_large_set(self, batch: LogBatch, header: LegacyBatch) -> BatchFacts:
        """Check a message or message set that is too large for memory."""
        messages = LargeMessages(batch, header)
        first, previous = header.base_offset, -1
        try:
            for message in messages.walk():
                if not message.is_valid and header.codec:
                    self.add("record-crc", batch, f"message {messages.count - 1} of the set has a wrong CRC")
                if message.offset <= previous:
                    self.add(
                        "record-offset",
                        batch,
                        f"message {messages.count - 1} of the set has offset {message.offset}; it must be above {previous}",
                    )
                first = message.offset if messages.count == 1 else first
                previous = message.offset
        except FormatError as error:
            self._add_unreadable(batch, error)
            return BatchFacts(messages.count, header.base_offset)
        # In format 1 the offsets inside are relative; the wrapper has the absolute offset of the last message.
        shift = header.offset - previous if header.magic == 1 and header.codec and header.offset else 0
        if shift < 0 or (header.magic == 0 and previous > header.offset):
            self.add("record-offset", batch, f"the set's last message has offset {previous}, the set itself {header.offset}")
        return BatchFacts(messages.count, first + max(shift, 0))

    def marker(self, batch: LogBatch) -> EndTransactionMarker | None:
        """Return the marker in a producer's control batch, None if there is none or it cannot be read (a finding)."""
        try:
            return batch.read_marker(self.scanner)
        except (UnreadableMarkerError, FormatError) as error:
            self.add("control-record", batch, f"the control batch of a producer: {error.message}")
            return None

    def raft_control_types(self, batch: LogBatch) -> list[int]:
        """Return the types of KRaft's control records in a batch without a producer; an unreadable one is a finding."""
        from kcli.protocol.control_records import decode_control_record

        types: list[int] = []
        for window in batch.windows(self.scanner):
            for row in range(window.count):
                try:
                    record = decode_control_record(window.key(row), window.value(row))
                except FormatError as error:
                    self.add("control-record", batch, f"control record {window.first_index + row}: {error.message}")
                    continue
                types.append(record.type_id)
                if record.is_marker or record.message is None:
                    self.add(
                        "control-record", batch, f"a control record of type {record.type_id} is in a batch without a producer"
                    )
        return types
