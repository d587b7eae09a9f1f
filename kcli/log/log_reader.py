"""Walking a segment: the one way in which dump-log, verify, the Spark source and the broker read a `.log` file.

A `SegmentReader` yields, in file order, a `LogBatch` for each batch (any format; its CRC is computed, not trusted) and a
`Damage` for each stretch of bytes that is none, after which it goes on at the next sound batch:

    bytes at hand                                   what the reader does                      what Kafka does
    ----------------------------------------------  ----------------------------------------  -------------------------------
    a whole batch, CRC right or wrong               LogBatch, `is_valid` says which           the same
    fewer than 17 bytes, or an entry that reaches   Damage TRUNCATED, then searches inside    takes it for the end of the log
      behind the end of the file                      them for a sound batch
    nothing but zeros to the end of the file        Damage ZEROS (preallocated or sparse)     CorruptRecordException
    a size below 14                                 Damage BAD_SIZE, then searches            CorruptRecordException
    magic not 0, 1 or 2                             Damage BAD_MAGIC, then searches           reads it as 1 or 2
    magic 2, but shorter than its header            Damage SHORT_HEADER, then searches        reads behind it

Records are opened on request, as windows of columns (kcli.format.record_scan). A batch above STREAMED_BATCH_BYTES is never
held whole: its CRC is computed and its records are inflated in pieces, so memory stays flat whatever a file claims.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator
from struct import error as StructError
from typing import TYPE_CHECKING, NamedTuple

from kcli.format import limits
from kcli.format.primitives import (
    Buffer,
    CorruptRecordError,
    FormatError,
    InflationError,
    InflationLimitError,
    InvalidRecordError,
    crc32c,
)
from kcli.format.record_batch import (
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC_POSITION,
    RecordBatch,
)
from kcli.format.record_scan import COMPLETE, NEED_MORE, STATUS_TEXT, RecordColumns, is_compiled, scan_records
from kcli.format.records import Header, read_headers
from kcli.log.disk import Disk, DiskFile

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch, LegacyRecord

ENTRY_HEAD_BYTES = MAGIC_POSITION + 1  # offset, size, leader epoch or CRC, magic: of every format
MIN_ENTRY_SIZE = 14  # the overhead of a message of format 0, behind offset and size
MIN_ENTRY_SIZE_1 = 22  # the same of format 1, with its timestamp

TRUNCATED = "truncated"
ZEROS = "zeros"
BAD_SIZE = "bad-size"
BAD_MAGIC = "bad-magic"
SHORT_HEADER = "short-header"


class Damage(NamedTuple):
    """Bytes [position, end_position) of a file that are no batch; `end_position` is where the reader went on, or the end.

    `end_position` may lie before `position` where the length of the batch before, its CRC wrong, had led past a sound one.
    """

    position: int
    end_position: int
    kind: str
    message: str


class RecordWindow:
    """Up to SCAN_WINDOW_RECORDS records of one batch: columns whose positions count in `buffer`.

    `first_index` is the index of the first within the batch. `error` says what is wrong with the record behind the last one
    of this window (or with the bytes behind the last record), or is None; with an error no window follows. `leftover` is
    True where bytes are left behind the last record: then Kafka withholds that record too. `legacy` holds the records of
    formats 0 and 1 as objects, else None.
    """

    __slots__ = ("buffer", "columns", "count", "error", "first_index", "leftover", "legacy")

    def __init__(self, buffer: Buffer, columns: RecordColumns, count: int, first_index: int) -> None:
        self.buffer = buffer
        self.columns = columns
        self.count = count
        self.first_index = first_index
        self.error: FormatError | None = None
        self.leftover = False
        self.legacy: list[LegacyRecord] | None = None

    def key(self, index: int) -> bytes | None:
        """The key of record `index` of the window, or None for null."""
        size = self.columns.key_size[index]
        if size < 0:
            return None
        start = self.columns.key_position[index]
        return bytes(self.buffer[start : start + size])

    def value(self, index: int) -> bytes | None:
        """The value of record `index` of the window, or None for null."""
        size = self.columns.value_size[index]
        if size < 0:
            return None
        start = self.columns.value_position[index]
        return bytes(self.buffer[start : start + size])

    def headers(self, index: int) -> tuple[Header, ...]:
        """The headers of record `index` of the window."""
        count = self.columns.header_count[index]
        if count == 0:
            return ()
        return read_headers(self.buffer, self.columns.header_position[index], count, len(self.buffer))


class RecordScanner:
    """The columns that windows are scanned into; one a reader, since each window overwrites the one before."""

    __slots__ = ("_keep", "columns", "scratch")

    def __init__(self, capacity: int = limits.SCAN_WINDOW_RECORDS) -> None:
        self.columns = RecordColumns(capacity)
        self.scratch = array("q", (0, 0))
        # Interpreted code reads bytes a third faster than a memoryview.
        self._keep = is_compiled()

    def scan(self, batch: RecordBatch, buffer: Buffer, position: int, wanted: int) -> tuple[int, int]:
        """Scan records of `batch` from buffer[position:] -> (how many, status as in record_scan)."""
        if not self._keep and isinstance(buffer, memoryview):
            buffer = bytes(buffer)
        count = scan_records(
            buffer,
            position,
            len(buffer),
            batch.base_offset,
            batch.base_timestamp,
            wanted,
            self.columns,
            self.scratch,
        )
        return count, self.scratch[1]


class LogBatch:
    """One batch of a file, of any format. `data` is the whole of it, valid until the reader moves on; None where it is large.

    `header` is a RecordBatch for magic 2 and a LegacyBatch for magic 0 and 1; both know position, size_bytes, magic, crc,
    codec, max_timestamp, base_offset and last_offset.
    """

    __slots__ = ("_file", "computed_crc", "data", "header")

    def __init__(self, header: RecordBatch | LegacyBatch, data: memoryview | None, crc: int, file: DiskFile) -> None:
        self.header = header
        self.data = data
        self.computed_crc = crc
        self._file = file

    @property
    def is_valid(self) -> bool:
        """True where the stored CRC is the one computed."""
        return self.computed_crc == self.header.crc

    @property
    def position(self) -> int:
        """The first byte in the file."""
        return self.header.position

    @property
    def end_position(self) -> int:
        """The byte of the file behind the batch."""
        return self.header.position + self.header.size_bytes

    def read_whole(self) -> bytes:
        """All bytes of the batch, however large. Raises CorruptRecordError where the file shrank."""
        if self.data is not None:
            return bytes(self.data)
        data = self._file.read_at(self.position, self.header.size_bytes)
        if len(data) != self.header.size_bytes:
            raise CorruptRecordError("the file shrank while it was read", self.position)
        return data

    def payload_chunks(self) -> Iterator[Buffer]:
        """The bytes behind the header of a batch of magic 2, in pieces of at most READ_CHUNK_BYTES when it is large."""
        if self.data is not None:
            yield self.data[HEADER_BYTES:]
            return
        position, end = self.position + HEADER_BYTES, self.end_position
        while position < end:
            chunk = self._file.read_at(position, min(limits.READ_CHUNK_BYTES, end - position))
            if not chunk:
                raise CorruptRecordError("the file shrank while it was read", position)
            yield chunk
            position += len(chunk)

    def windows(self, scanner: RecordScanner) -> Iterator[RecordWindow]:
        """Open the records -> windows of columns; an empty batch gives none. Faults stand in the last window's `error`."""
        header = self.header
        if isinstance(header, RecordBatch):
            if header.record_count < 0:
                return iter((_failed(scanner, 0, f"the batch states {header.record_count} records"),))
            if header.record_count == 0:
                return iter(())
            return _open_records(self, header, scanner)
        return _open_legacy(self, header, scanner)


def _failed(scanner: RecordScanner, first_index: int, message: str) -> RecordWindow:
    window = RecordWindow(b"", scanner.columns, 0, first_index)
    window.error = InvalidRecordError(message)
    return window


def _open_records(batch: LogBatch, header: RecordBatch, scanner: RecordScanner) -> Iterator[RecordWindow]:
    if header.codec == 0:
        if batch.data is not None:
            yield from _scan_whole(header, scanner, batch.data, HEADER_BYTES)
        else:
            yield from _scan_pieces(header, scanner, batch.payload_chunks())
        return
    from kcli.format.compression import inflate, inflate_stream

    if batch.data is not None:
        try:
            inflated = inflate(header.codec, batch.data[HEADER_BYTES:], limit=limits.INFLATE_WINDOW_BYTES)
        except InflationLimitError:
            pass  # larger than is held at once: inflate it in pieces
        except InflationError as error:
            # What inflates before the fault is still worth showing.
            yield from _scan_pieces(header, scanner, _until_fault(batch, header.codec, error))
            return
        else:
            yield from _scan_whole(header, scanner, inflated, 0)
            return
    yield from _scan_pieces(
        header, scanner, inflate_stream(header.codec, batch.payload_chunks(), window=limits.READ_CHUNK_BYTES)
    )


def _until_fault(batch: LogBatch, codec: int, error: InflationError) -> Iterator[bytes]:
    from kcli.format.compression import inflate_stream

    yield from inflate_stream(codec, batch.payload_chunks(), window=limits.READ_CHUNK_BYTES)
    raise error


def _scan_whole(header: RecordBatch, scanner: RecordScanner, buffer: Buffer, position: int) -> Iterator[RecordWindow]:
    """Windows over records that lie in one buffer."""
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


def _scan_pieces(header: RecordBatch, scanner: RecordScanner, pieces: Iterator[Buffer]) -> Iterator[RecordWindow]:
    """Windows over records whose bytes come in pieces; the rest of one piece is carried into the next."""
    done = 0
    rest = b""
    error: FormatError | None = None
    exhausted = False
    while done < header.record_count and error is None:
        try:
            piece = next(pieces, None)
        except FormatError as fault:
            piece, error = None, fault
        exhausted = piece is None
        if piece is not None:
            rest = b"".join((rest, piece)) if rest else bytes(piece)
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


def _open_legacy(batch: LogBatch, header: LegacyBatch, scanner: RecordScanner) -> Iterator[RecordWindow]:
    """Windows over the messages of a set of format 0 or 1; they are few, so they are objects first and columns after."""
    from kcli.format.legacy_message_set import iter_records

    buffer = bytearray()
    records: list[LegacyRecord] = []
    error: FormatError | None = None
    done = 0
    messages = iter_records(header, batch.read_whole())
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


class SegmentReader:
    """Reads one `.log` or `.checkpoint` file. `end` bounds what is looked at, in bytes (None: the size when asked)."""

    def __init__(self, disk: Disk, path: str, *, end: int | None = None) -> None:
        self.path = path
        self.file = disk.open_file(path)
        self._end = end
        self._buffer = memoryview(bytearray(limits.READ_CHUNK_BYTES))
        self._start = 0  # the file's byte at the start of the buffer
        self._filled = 0

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the file back."""
        self.file.close()

    def end_position(self) -> int:
        """The byte behind the last one that is looked at."""
        size = self.file.size()
        return size if self._end is None else min(self._end, size)

    def batches(self, position: int = 0, *, resynchronise: bool = True, lenient: bool = False) -> Iterator[LogBatch | Damage]:
        """Walk from byte `position`, which must begin a batch, to the end. Raises OSError as the disk does.

        With `resynchronise=False` the walk ends at the first Damage. With `lenient` a BAD_MAGIC or SHORT_HEADER entry is
        taken as Kafka takes it: by its size, as format 2 where the magic is above 1 and else as format 1; never valid.
        """
        end = self.end_position()
        unpack, struct_size = HEADER.struct.unpack_from, HEADER_BYTES
        suspect: int | None = None  # where a batch began whose length may lie
        legacy = False
        while position < end:
            if position < self._start or position + struct_size > self._start + self._filled:
                self._fill(position, limits.READ_CHUNK_BYTES, end)
            index = position - self._start
            fault = self._entry_fault(position, index, end)
            if lenient and fault is not None and fault[0] in (BAD_MAGIC, SHORT_HEADER) and self._filled - index >= struct_size:
                fault = None
            if fault is None:
                magic = self._buffer[index + MAGIC_POSITION]
                legacy = magic < 2 or magic > 127
                header: RecordBatch | LegacyBatch
                if legacy:
                    header = self._legacy_header(position, index)
                else:
                    header = RecordBatch(position, *unpack(self._buffer, index))
                batch = self._load(header, index, end)
                if batch is not None:
                    yield batch
                    suspect = None if batch.is_valid else position
                    position += header.size_bytes
                    continue
                fault = (TRUNCATED, "the file shrank while it was read")
            kind, message = fault
            search_from = (position if suspect is None else suspect) + 1
            found = None
            if kind != ZEROS and resynchronise:
                found = find_batch(self.file, search_from, end, legacy=legacy or position == 0)
            yield Damage(position, end if found is None else found, kind, message)
            if found is None:
                return
            position, suspect = found, None

    def header_at(self, position: int, end: int | None = None) -> RecordBatch | LegacyBatch:
        """The header of the entry at byte `position`, without the batch.

        Raises CorruptRecordError where no entry fits before byte `end`.
        """
        limit = self.end_position() if end is None else min(end, self.end_position())
        head = self.file.read_at(position, HEADER_BYTES)
        if len(head) <= ENTRY_HEAD_BYTES or position < 0:
            raise CorruptRecordError(f"no batch begins at byte {position}", position)
        size = int.from_bytes(head[8:12], "big", signed=True)
        if not MIN_ENTRY_SIZE <= size <= limit - position - LOG_OVERHEAD_BYTES:
            raise CorruptRecordError(f"the entry at byte {position} states {size} bytes, which do not fit", position)
        if 2 <= head[MAGIC_POSITION] < 128:
            if len(head) < HEADER_BYTES:
                raise CorruptRecordError(f"the batch at byte {position} is shorter than its header", position)
            return RecordBatch(position, *HEADER.struct.unpack_from(head))
        from kcli.format.legacy_message_set import read_legacy_header

        try:
            return read_legacy_header(head, 0, position)
        except StructError:
            raise CorruptRecordError(f"the message at byte {position} is shorter than its header", position) from None

    def batch_at(self, position: int) -> LogBatch | Damage | None:
        """The one entry at byte `position`, or None behind the last byte."""
        return next(self.batches(position, resynchronise=False), None)

    def _fill(self, position: int, size: int, end: int) -> None:
        size = min(max(size, limits.READ_CHUNK_BYTES), max(end - position, 0))
        if size > len(self._buffer):
            self._buffer = memoryview(bytearray(size))
        self._start = position
        self._filled = self.file.read_into(position, self._buffer[: max(size, 0)])

    def _entry_fault(self, position: int, index: int, end: int) -> tuple[str, str] | None:
        """What keeps the bytes at `position` from being an entry -> (kind, sentence), or None."""
        left = min(end - position, self._filled - index)
        if left <= ENTRY_HEAD_BYTES:
            if not any(self._buffer[index : index + left]):
                return ZEROS, f"the last {end - position} bytes are zeros"
            return TRUNCATED, f"{left} bytes are too few for a batch"
        size = int.from_bytes(self._buffer[index + 8 : index + 12], "big", signed=True)
        if size < MIN_ENTRY_SIZE:
            if size == 0 and self._zeros_to_end(position, end):
                return ZEROS, f"the last {end - position} bytes are zeros"
            return BAD_SIZE, f"the batch states a size of {size} bytes, less than the least possible {MIN_ENTRY_SIZE}"
        if size > end - position - LOG_OVERHEAD_BYTES:
            return (
                TRUNCATED,
                f"the batch states {size + LOG_OVERHEAD_BYTES} bytes and {end - position} are left in the file",
            )
        magic = self._buffer[index + MAGIC_POSITION]
        if magic > 2:
            return BAD_MAGIC, f"the batch has magic {magic - ((magic & 0x80) << 1)}; 0, 1 and 2 are known"
        if magic == 1 and size < MIN_ENTRY_SIZE_1:
            return SHORT_HEADER, f"the message states {size} bytes, less than the least possible {MIN_ENTRY_SIZE_1} of format 1"
        if magic == 2 and size < HEADER_BYTES - LOG_OVERHEAD_BYTES:
            return (
                SHORT_HEADER,
                f"the batch states {size + LOG_OVERHEAD_BYTES} bytes, less than its header of {HEADER_BYTES}",
            )
        return None

    def _zeros_to_end(self, position: int, end: int) -> bool:
        zeros = bytes(limits.READ_CHUNK_BYTES)
        while position < end:
            chunk = self.file.read_at(position, min(limits.READ_CHUNK_BYTES, end - position))
            if chunk != zeros[: len(chunk)]:
                return False
            if not chunk:
                return True
            position += len(chunk)
        return True

    def _legacy_header(self, position: int, index: int) -> LegacyBatch:
        from kcli.format.legacy_message_set import read_legacy_header

        return read_legacy_header(self._buffer, index, position)

    def _load(self, header: RecordBatch | LegacyBatch, index: int, end: int) -> LogBatch | None:
        """Have the whole batch at hand, compute its CRC -> LogBatch, or None where the file has shrunk."""
        size = header.size_bytes
        if size > limits.STREAMED_BATCH_BYTES:
            crc = _streamed_crc(self.file, header)
            return None if crc is None else LogBatch(header, None, crc, self.file)
        if index + size > self._filled:
            self._fill(header.position, size, end)
            index = 0
            if size > self._filled:
                return None
        data = self._buffer[index : index + size]
        if isinstance(header, RecordBatch):
            crc = crc32c(data[CRC_START:]) if size >= HEADER_BYTES else -1
            return LogBatch(header, data, crc, self.file)
        from kcli.format.legacy_message_set import legacy_crc

        return LogBatch(header, data, legacy_crc(data), self.file)


def _streamed_crc(file: DiskFile, header: RecordBatch | LegacyBatch) -> int | None:
    """The CRC of a batch that is too large to hold, or None where the file has shrunk."""
    function: Callable[..., int] = crc32c
    skip = CRC_START
    if not isinstance(header, RecordBatch):
        from zlib import crc32

        function, skip = crc32, MAGIC_POSITION
    position, end = header.position + skip, header.position + header.size_bytes
    buffer = memoryview(bytearray(limits.READ_CHUNK_BYTES))
    crc = 0
    while position < end:
        count = file.read_into(position, buffer[: min(len(buffer), end - position)])
        if count == 0:
            return None
        crc = function(buffer[:count], crc)
        position += count
    return crc


# A header of magic 2 seen from its magic byte on: crc, attributes below 0x80, counts and times that are not absurd.
_MAGIC_2 = re.compile(rb"\x02(?=.{4}\x00[\x00-\x7f][\x00-\x7f])", re.DOTALL)
# A message of format 0 or 1 seen from its offset on: offset and size not negative, size not below 14, known attributes.
_MAGIC_0_1 = re.compile(rb"[\x00-\x7f](?=.{7}(?!\x00\x00\x00[\x00-\x0d])[\x00-\x7f].{7}[\x00\x01][\x00-\x0f])", re.DOTALL)
# How many bytes of candidates one search may run a CRC over, as a multiple of the bytes searched, and at least.
RESYNC_CRC_FACTOR = 4
RESYNC_CRC_BYTES = 1024 * 1024 * 1024


def find_batch(file: DiskFile, position: int, end: int, *, legacy: bool = False) -> int | None:
    """The first sound batch (size, magic and CRC) that begins at or behind byte `position` -> its position, or None.

    With `legacy` messages of format 0 and 1 count too. Bounded: each byte is looked at once and the CRCs that are tried
    cover at most RESYNC_CRC_FACTOR times the bytes searched (at least RESYNC_CRC_BYTES).
    """
    budget = max(RESYNC_CRC_BYTES, RESYNC_CRC_FACTOR * (end - position))
    overlap = HEADER_BYTES
    while position < end - MIN_ENTRY_SIZE:
        chunk = file.read_at(position, min(limits.READ_CHUNK_BYTES, end - position))
        if len(chunk) < ENTRY_HEAD_BYTES:
            return None
        for start in _candidates(chunk, legacy):
            size = int.from_bytes(chunk[start + 8 : start + 12], "big", signed=True)
            if not MIN_ENTRY_SIZE <= size <= end - position - start - LOG_OVERHEAD_BYTES or size > budget:
                continue
            budget -= size
            if _is_sound(file, position + start):
                return position + start
        if position + len(chunk) >= end:
            return None
        position += max(len(chunk) - overlap, 1)
    return None


def _candidates(chunk: bytes, legacy: bool) -> list[int]:
    if chunk.count(0) == len(chunk):
        return []
    found = [match.start() - MAGIC_POSITION for match in _MAGIC_2.finditer(chunk, MAGIC_POSITION)]
    if legacy:
        found = sorted({*found, *(match.start() for match in _MAGIC_0_1.finditer(chunk))})
    return found


def _is_sound(file: DiskFile, position: int) -> bool:
    head = file.read_at(position, HEADER_BYTES)
    header: RecordBatch | LegacyBatch
    try:
        if head[MAGIC_POSITION] == 2:
            header = RecordBatch(position, *HEADER.struct.unpack_from(head))
            plausible = (
                header.base_offset >= 0
                and header.batch_length >= HEADER_BYTES - LOG_OVERHEAD_BYTES
                and header.last_offset_delta >= 0
                and header.record_count >= 0
                and header.max_timestamp >= -1
            )
        else:
            from kcli.format.legacy_message_set import read_legacy_header

            header = read_legacy_header(head, 0, position)
            plausible = header.base_offset >= 0
    except (IndexError, StructError, FormatError):
        return False
    return plausible and _streamed_crc(file, header) == header.crc
