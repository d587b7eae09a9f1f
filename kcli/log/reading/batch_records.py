"""Open a batch: its records as windows of columns, in bounded memory regardless of the sizes that the batch states.

    batch                          records
    -----------------------------  --------------------------------------------------------------------------------
    uncompressed, held whole       scanned in place
    compressed, held whole         inflated at once up to INFLATE_WINDOW_BYTES, else in pieces
    above STREAMED_BATCH_BYTES     read and inflated in pieces; a record cut by a piece's end waits for the next one
    a record above                 with `skip_large` its sizes without its bytes (large_records), else held whole
      INFLATE_WINDOW_BYTES
    format 0 and 1                 objects first (they are few), then columns over a buffer of keys and values

Errors are not raised: they are in the last window, after the records that were sound.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from kcli.format import limits
from kcli.format.loop_results import COMPLETE, NEED_MORE
from kcli.format.primitives import (
    Buffer,
    FormatError,
    InflationError,
    InflationLimitError,
    InvalidRecordError,
    RecordTooLargeError,
)
from kcli.format.record_batch import HEADER_BYTES, RecordBatch
from kcli.format.record_scan import STATUS_TEXT, RecordColumns, is_compiled
from kcli.format.records import Header, read_headers
from kcli.log.reading.large_records import PieceReader, record_end, scan_large_record

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch, LegacyRecord


class BatchSource(Protocol):
    """A batch of a file (kcli.log.reading.segment_reader.LogBatch), held whole or to be read in pieces."""

    header: RecordBatch | LegacyBatch
    data: memoryview | None

    def payload_chunks(self) -> Iterator[Buffer]:
        """Yield the bytes after the header of format 2, in pieces. Raises CorruptRecordError if the file shrank."""
        ...

    def read_whole(self) -> bytes:
        """Return all bytes of the batch. Raises RecordTooLargeError, CorruptRecordError."""
        ...


class RecordWindow:
    """Up to SCAN_WINDOW_RECORDS records of one batch: columns with positions in `buffer`.

    `first_index` is the index of the first record within the batch. `error` is the error of the record after the last one of
    this window (or of the bytes after the last record), or None; it ends the windows. `leftover` is True if bytes follow the
    last record: then Kafka does not return that record either. `legacy` are the records of formats 0 and 1 as objects, else
    None. `left_out` is True if the window is one record whose bytes were skipped.
    """

    __slots__ = ("buffer", "columns", "count", "error", "first_index", "left_out", "leftover", "legacy")

    def __init__(self, buffer: Buffer, columns: RecordColumns, count: int, first_index: int) -> None:
        self.buffer = buffer
        self.columns = columns
        self.count = count
        self.first_index = first_index
        self.error: FormatError | None = None
        self.leftover = False
        self.left_out = False
        self.legacy: list[LegacyRecord] | None = None

    def key(self, index: int) -> bytes | None:
        """Return the key of record `index` of the window, or None for null."""
        size = self.columns.key_size[index]
        if size < 0:
            return None
        start = self.columns.key_position[index]
        return bytes(self.buffer[start : start + size])

    def value(self, index: int) -> bytes | None:
        """Return the value of record `index` of the window, or None for null."""
        size = self.columns.value_size[index]
        if size < 0:
            return None
        start = self.columns.value_position[index]
        return bytes(self.buffer[start : start + size])

    def headers(self, index: int) -> tuple[Header, ...]:
        """Return the headers of record `index` of the window."""
        count = self.columns.header_count[index]
        if count == 0:
            return ()
        return read_headers(self.buffer, self.columns.header_position[index], count, len(self.buffer))


class RecordScanner:
    """The columns into which windows are scanned; one for each reader, since a window overwrites the previous one."""

    __slots__ = ("_keep", "columns")

    def __init__(self, capacity: int = limits.SCAN_WINDOW_RECORDS) -> None:
        self.columns = RecordColumns(capacity)
        # Interpreted code reads bytes a third faster than a memoryview.
        self._keep = is_compiled()

    def scan(self, batch: RecordBatch, buffer: Buffer, position: int, wanted: int) -> tuple[int, int]:
        """Scan up to `wanted` records of `batch` from buffer[position:]; return their number and the status of record_scan."""
        if not self._keep and isinstance(buffer, memoryview):
            buffer = bytes(buffer)
        columns = self.columns
        columns.begin_batch(batch.base_offset, batch.base_timestamp)
        status = columns.scan(buffer, position, len(buffer), wanted, 0)
        return columns.counted, status


def open_windows(
    batch: BatchSource,
    scanner: RecordScanner,
    *,
    lenient: bool = False,
    skip_large: bool = False,
    large_bytes: int = limits.INFLATE_WINDOW_BYTES,
) -> Iterator[RecordWindow]:
    """Return the records of a batch as windows of columns, none for an empty batch; an error is in the last one's `error`.

    `lenient` is that of kcli.format.legacy_message_set.iter_records. With `skip_large` a record above `large_bytes` (at
    least INFLATE_WINDOW_BYTES) has a window of its own, `left_out`, without key, value and headers.
    """
    header = batch.header
    if isinstance(header, RecordBatch):
        if header.record_count < 0:
            return iter((_failed(scanner, 0, InvalidRecordError(f"the batch states {header.record_count} records")),))
        if header.record_count == 0:
            return iter(())
        return _open_records(batch, header, scanner, max(large_bytes, limits.INFLATE_WINDOW_BYTES) if skip_large else None)
    return _open_legacy(batch, header, scanner, lenient)


def _failed(scanner: RecordScanner, first_index: int, error: FormatError) -> RecordWindow:
    window = RecordWindow(b"", scanner.columns, 0, first_index)
    window.error = error
    return window


def _open_records(
    batch: BatchSource, header: RecordBatch, scanner: RecordScanner, large_bytes: int | None
) -> Iterator[RecordWindow]:
    if header.codec == 0:
        if batch.data is not None:
            yield from _scan_whole(header, scanner, batch.data, HEADER_BYTES)
        else:
            yield from _scan_pieces(header, scanner, batch.payload_chunks(), large_bytes)
        return
    from kcli.format.compression import CODECS, inflate, inflate_stream

    if header.codec not in CODECS:
        yield _failed(scanner, 0, InvalidRecordError(f"Unknown compression type id: {header.codec}"))
        return
    if batch.data is not None:
        try:
            inflated = inflate(header.codec, batch.data[HEADER_BYTES:], limit=limits.INFLATE_WINDOW_BYTES)
        except InflationLimitError:
            pass  # too large to hold: inflate it in pieces
        except InflationError as error:
            # The records before the error are still of use.
            yield from _scan_pieces(header, scanner, _until_fault(batch, header.codec, error), large_bytes)
            return
        else:
            yield from _scan_whole(header, scanner, inflated, 0)
            return
    pieces = inflate_stream(header.codec, batch.payload_chunks(), window=limits.READ_CHUNK_BYTES)
    yield from _scan_pieces(header, scanner, pieces, large_bytes)


def _until_fault(batch: BatchSource, codec: int, error: InflationError) -> Iterator[bytes]:
    from kcli.format.compression import inflate_stream

    yield from inflate_stream(codec, batch.payload_chunks(), window=limits.READ_CHUNK_BYTES)
    raise error


def _scan_whole(header: RecordBatch, scanner: RecordScanner, buffer: Buffer, position: int) -> Iterator[RecordWindow]:
    """Yield windows over records in one buffer."""
    done = 0
    while done < header.record_count:
        count, status = scanner.scan(header, buffer, position, header.record_count - done)
        window = RecordWindow(buffer, scanner.columns, count, done)
        done += count
        position = scanner.columns.end
        if status != COMPLETE:
            window.error = InvalidRecordError(f"record {done} of {header.record_count}: {STATUS_TEXT[status]}", position)
            yield window
            return
        if done == header.record_count and position != len(buffer):
            window.leftover = True
            window.error = InvalidRecordError(f"{len(buffer) - position} bytes are left behind the last record", position)
        yield window


def _scan_pieces(
    header: RecordBatch, scanner: RecordScanner, pieces: Iterator[Buffer], large_bytes: int | None
) -> Iterator[RecordWindow]:
    """Yield windows over records in pieces of bytes; the rest of one piece is prepended to the next."""
    done = 0
    rest = b""
    error: FormatError | None = None
    exhausted = False
    while done < header.record_count and error is None:
        end = record_end(rest, 0) if rest else None
        if large_bytes is not None and end is not None and end > large_bytes:
            window, rest = _skip_large(header, scanner, rest, pieces, done)
            yield window
            done += window.count
            if window.error is not None or done == header.record_count:
                return
        elif end is not None and end > limits.MAX_RECORD_BYTES:
            why = f"it states {end} bytes, more than are held at once ({limits.MAX_RECORD_BYTES})"
            yield _failed(scanner, done, RecordTooLargeError(f"record {done} of {header.record_count}: {why}"))
            return
        else:
            rest, exhausted, error = _gather(rest, pieces, end or 0)
        position = 0
        while done < header.record_count:
            count, status = scanner.scan(header, rest, position, header.record_count - done)
            window = RecordWindow(rest, scanner.columns, count, done)
            done += count
            position = scanner.columns.end
            if status == NEED_MORE and not exhausted:
                if count:
                    yield window
                break
            if status != COMPLETE:
                window.error = error or InvalidRecordError(
                    f"record {done} of {header.record_count}: {STATUS_TEXT[status]}", position
                )
                yield window
                return
            if done == header.record_count:
                window.error, window.leftover = _check_leftover(rest, position, pieces, error)
            yield window
        rest = rest[position:]


def _gather(rest: bytes, pieces: Iterator[Buffer], end: int) -> tuple[bytes, bool, FormatError | None]:
    """Append pieces to `rest`, at least one, up to `end` bytes; return it, whether the pieces ended, and their error."""
    parts: list[Buffer] = [rest]
    size = len(rest)
    while True:
        try:
            piece = next(pieces, None)
        except FormatError as fault:
            return b"".join(parts), True, fault
        if piece is None:
            return b"".join(parts), True, None
        parts.append(bytes(piece))
        size += len(piece)
        if size >= end:
            return b"".join(parts), False, None


def _skip_large(
    header: RecordBatch, scanner: RecordScanner, rest: bytes, pieces: Iterator[Buffer], done: int
) -> tuple[RecordWindow, bytes]:
    """Return the window of the large record at the start of `rest`, without its bytes, and the bytes after the record."""
    source = PieceReader(rest, 0, pieces)
    window = RecordWindow(b"", scanner.columns, 1, done)
    window.left_out = True
    try:
        scan_large_record(header, source, scanner.columns)
    except InvalidRecordError as fault:
        window.count = 0
        window.error = InvalidRecordError(f"record {done} of {header.record_count}: {fault.message}")
    except FormatError as fault:
        window.count, window.error = 0, fault
    rest = source.rest[source.position :]
    if window.error is None and done + 1 == header.record_count:
        window.error, window.leftover = _check_leftover(rest, 0, pieces, None)
    return window, rest


def _check_leftover(
    rest: bytes, position: int, pieces: Iterator[Buffer], error: FormatError | None
) -> tuple[FormatError | None, bool]:
    if error is not None:
        return error, False
    left = len(rest) - position
    try:
        left += len(next(pieces, b""))
    except FormatError as fault:
        return fault, False
    if left:
        return InvalidRecordError("bytes are left behind the last record", position), True
    return None, False


def _open_legacy(batch: BatchSource, header: LegacyBatch, scanner: RecordScanner, lenient: bool) -> Iterator[RecordWindow]:
    """Yield windows over the messages of a set of format 0 or 1; they are few: first objects, then columns."""
    from kcli.format.legacy_message_set import iter_records

    buffer = bytearray()
    records: list[LegacyRecord] = []
    error: FormatError | None = None
    done = 0
    try:
        messages = iter_records(header, batch.read_whole(), lenient=lenient)
    except FormatError as fault:
        yield _failed(scanner, 0, fault)
        return
    while error is None:
        try:
            record = next(messages, None)
        except FormatError as fault:
            record, error = None, fault
        if record is not None:
            _put_legacy(scanner.columns, len(records), record, buffer)
            records.append(record)
        if record is None or len(records) == scanner.columns.capacity or len(buffer) > limits.INFLATE_WINDOW_BYTES:
            window = RecordWindow(bytes(buffer), scanner.columns, len(records), done)
            window.legacy, window.error = records, error
            if records or error is not None:
                yield window
            done += len(records)
            buffer, records = bytearray(), []
        if record is None:
            return


def _put_legacy(columns: RecordColumns, index: int, record: LegacyRecord, buffer: bytearray) -> None:
    columns.offset[index] = record.offset
    columns.timestamp[index] = record.timestamp
    columns.header_count[index] = 0
    columns.record_position[index] = columns.key_position[index] = len(buffer)
    columns.key_size[index] = -1 if record.key is None else len(record.key)
    buffer += record.key or b""
    columns.value_position[index] = len(buffer)
    columns.value_size[index] = -1 if record.value is None else len(record.value)
    buffer += record.value or b""
    columns.end = len(buffer)
