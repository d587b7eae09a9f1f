"""Checks all of one batch: its header, its records, its control records; every fault becomes a sentence.

The columns of kcli.format.batch_scan only show that a batch has a fault. A batch may have any size and format: it is read in
windows, so memory stays flat. Messages of format 0 and 1 that are too large for memory are read piece by piece: a set of a few
hundred KiB may inflate to 512 MiB, also as one message. Of each message only its offset is returned, and whether its CRC and
sizes are right. The layout is that of kcli.format.legacy_message_set.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from kcli.format import batch_scan, limits
from kcli.format.compression import codec_name
from kcli.format.end_transaction_marker import EndTransactionMarker, UnreadableMarkerError
from kcli.format.primitives import (
    INT64_MAX,
    Buffer,
    CorruptRecordError,
    FormatError,
    InflationError,
    InflationLimitError,
    InvalidRecordError,
)
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
from kcli.log.reading.batch_records import RecordScanner, RecordWindow
from kcli.log.reading.large_records import PieceReader
from kcli.log.reading.segment_reader import LogBatch

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch

_KNOWN_ATTRIBUTES = CODEC_BITS | LOG_APPEND_TIME_FLAG | TRANSACTIONAL_FLAG | CONTROL_FLAG | DELETE_HORIZON_FLAG
_LAST_CODEC = 4
_LAST_LEGACY_CODEC = 3
_OVERHEAD_BYTES = 12  # offset and size
_LEAST_SIZE = 14
_CODEC_MASK = 0x07
# The bytes that one byte may inflate to: at most 1032 with deflate, far fewer with lz4 and snappy. There is no zstd here.
_LARGEST_RATIO = 1100
_MOST_HELD_BYTES = 64 * 1024 * 1024


class LargeMessage(NamedTuple):
    """The stored offset of a message, and whether its CRC is right."""

    offset: int
    is_valid: bool


def is_large(batch: LogBatch, header: LegacyBatch) -> bool:
    """Return True if a message or set is too large for memory, or may inflate to be."""
    if header.size_bytes > limits.INFLATE_WINDOW_BYTES:
        return True
    return header.codec != 0 and header.size_bytes * _LARGEST_RATIO > _MOST_HELD_BYTES


class LargeMessages:
    """The messages of one entry; `count` is how many were read."""

    def __init__(self, batch: LogBatch, header: LegacyBatch) -> None:
        self.count = 0
        self._batch = batch
        self._header = header

    def walk(self) -> Iterator[LargeMessage]:
        """Yield the messages. Raises FormatError if they cannot be read; they end where the file does."""
        source = PieceReader(b"", 0, self._batch.payload_chunks(0))
        if not self._header.codec:
            offset, size = self._head(source)
            self.count += 1
            yield LargeMessage(offset, self._is_valid(source, size))
            return
        source.skip(_OVERHEAD_BYTES + 6 + (8 if self._header.magic else 0))
        key_size = _int32(source.take(4))
        source.skip(max(key_size, 0))
        value_size = _int32(source.take(4))
        if value_size < 0:
            raise InvalidRecordError("a compressed set has a null value")
        yield from self._inner(source.walk(value_size))

    def _head(self, source: PieceReader) -> tuple[int, int]:
        head = source.take(_OVERHEAD_BYTES)
        size = _int32(head[8:])
        if size < _LEAST_SIZE:
            raise CorruptRecordError(f"a message states {size} bytes, fewer than the least possible {_LEAST_SIZE}")
        return int.from_bytes(head[:8], "big", signed=True), size

    def _inner(self, pieces: Iterator[Buffer]) -> Iterator[LargeMessage]:
        from kcli.format.compression import inflate_stream

        inflated = inflate_stream(
            self._header.codec,
            pieces,
            window=limits.READ_CHUNK_BYTES,
            limit=limits.MAX_INFLATED_MESSAGE_SET_BYTES,
            magic=self._header.magic,
        )
        source = PieceReader(b"", 0, inflated)
        while not source.is_at_end():
            offset, size = self._head(source)
            is_valid = self._is_valid(source, size)
            self.count += 1
            yield LargeMessage(offset, is_valid)

    def _is_valid(self, source: PieceReader, size: int) -> bool:
        """Read a message from its CRC on; return True if that is right. Raises InvalidRecordError for sizes that do not fit."""
        end = source.taken + size
        stored = int.from_bytes(source.take(4), "big")
        head = source.take(2)
        if head[0]:
            head += source.take(8)
        if self._header.codec and head[1] & _CODEC_MASK:
            raise InvalidRecordError("a message inside a set is compressed")
        crc = crc32(head)
        for field in ("key", "value"):
            if end - source.taken < 4:
                raise InvalidRecordError(f"a message ends before the size of its {field}")
            stated = source.take(4)
            crc = crc32(stated, crc)
            length = max(_int32(stated), 0)
            if length > end - source.taken:
                raise InvalidRecordError(f"the {field} of a message goes beyond its end")
            for piece in source.walk(length):
                crc = crc32(piece, crc)
        for piece in source.walk(end - source.taken):
            crc = crc32(piece, crc)
        return crc == stored


def _int32(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


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
