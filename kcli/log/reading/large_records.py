"""Scan records that are too large to hold in memory: piece by piece, for their offsets, timestamps and sizes only.

One record may inflate to 2 GiB from a few hundred bytes. The layout and the error messages are those of
kcli.format.record_scan.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from kcli.format.loop_results import BAD_HEADER_KEY, BAD_HEADERS, BAD_LENGTH, BAD_VARINT, NEED_MORE, OUT_OF_INT64
from kcli.format.primitives import (
    INT32_MAX,
    INT64_MAX,
    MAX_VARINT_BYTES,
    MAX_VARLONG_BYTES,
    UINT32_MASK,
    UINT64_MASK,
    Buffer,
    FormatError,
    InvalidRecordError,
    read_varint,
    zigzag_decode,
)
from kcli.format.record_scan import STATUS_TEXT, RecordColumns


def record_end(buffer: Buffer, position: int) -> int | None:
    """Return the end of the record at buffer[position] by its own length; None if that length is cut off or impossible."""
    try:
        size, body = read_varint(buffer, position, len(buffer))
    except FormatError:
        return None
    return body + size if size >= 0 else None


class PieceReader:
    """Bytes in pieces: `rest[position:]`, then `pieces`. Raises what these raise, and InvalidRecordError at their end."""

    def __init__(self, rest: bytes, position: int, pieces: Iterator[Buffer]) -> None:
        self.rest = rest
        self.position = position
        self.taken = 0
        self._pieces = pieces

    def is_at_end(self) -> bool:
        """Return True if no byte is left."""
        while self.position >= len(self.rest):
            piece = next(self._pieces, None)
            if piece is None:
                return True
            self.rest, self.position = bytes(piece), 0
        return False

    def byte(self) -> int:
        """Return the next byte."""
        self._need_more()
        self.position += 1
        self.taken += 1
        return self.rest[self.position - 1]

    def _need_more(self) -> None:
        if self.is_at_end():
            raise InvalidRecordError(STATUS_TEXT[NEED_MORE])

    def walk(self, count: int) -> Iterator[memoryview]:
        """Yield the next `count` bytes in pieces."""
        while count > 0:
            self._need_more()
            piece = memoryview(self.rest)[self.position : self.position + count]
            self.position += len(piece)
            self.taken += len(piece)
            count -= len(piece)
            yield piece

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes, which must be few."""
        return b"".join(self.walk(count))

    def skip(self, count: int) -> None:
        """Skip bytes."""
        for _ in self.walk(count):
            pass

    def zigzag(self, max_bytes: int) -> int:
        """Return the next zigzag integer. Raises InvalidRecordError if it has more than `max_bytes` (5 or 10) bytes."""
        raw = 0
        for shift in range(0, 7 * max_bytes, 7):
            byte = self.byte()
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                return zigzag_decode(raw & (UINT32_MASK if max_bytes == MAX_VARINT_BYTES else UINT64_MASK))
        raise InvalidRecordError(STATUS_TEXT[BAD_VARINT])


class TimesAndOffsets(Protocol):
    """The base of the timestamps and offsets of records."""

    @property
    def base_offset(self) -> int:
        """The batch's base offset."""
        ...

    @property
    def base_timestamp(self) -> int:
        """The batch's base timestamp."""
        ...


def scan_large_record(
    batch: TimesAndOffsets, source: PieceReader, columns: RecordColumns, max_headers: int = INT32_MAX
) -> None:
    """Scan one record of `batch` into row 0 of `columns`, with sizes but without positions.

    Raises InvalidRecordError, also for more than `max_headers` headers: each takes a step of interpreted code.
    """
    source.taken = 0
    size = source.zigzag(MAX_VARINT_BYTES)
    end = source.taken + size
    if size < 0:
        raise InvalidRecordError(STATUS_TEXT[BAD_LENGTH])
    source.byte()  # attributes
    timestamp = batch.base_timestamp + source.zigzag(MAX_VARLONG_BYTES)
    offset = batch.base_offset + source.zigzag(MAX_VARINT_BYTES)
    if not -INT64_MAX - 1 <= timestamp <= INT64_MAX or not -INT64_MAX - 1 <= offset <= INT64_MAX:
        raise InvalidRecordError(STATUS_TEXT[OUT_OF_INT64])
    columns.offset[0], columns.timestamp[0] = offset, timestamp
    columns.key_size[0] = _skip_bytes(source, end)
    columns.value_size[0] = _skip_bytes(source, end)
    headers = source.zigzag(MAX_VARINT_BYTES)
    if headers < 0 or headers > min(end - source.taken, max_headers):
        raise InvalidRecordError(STATUS_TEXT[BAD_HEADERS])
    for _ in range(headers):
        if _skip_bytes(source, end) < 0:
            raise InvalidRecordError(STATUS_TEXT[BAD_HEADER_KEY])
        _skip_bytes(source, end)
    if source.taken != end:
        raise InvalidRecordError(STATUS_TEXT[BAD_LENGTH])
    columns.header_count[0] = headers
    columns.record_position[0] = columns.key_position[0] = columns.value_position[0] = columns.header_position[0] = 0
    columns.end = 0


def _skip_bytes(source: PieceReader, end: int) -> int:
    """Skip a length and that many bytes, which must end before `end`; return the length, -1 for null."""
    size = source.zigzag(MAX_VARINT_BYTES)
    if size > end - source.taken:
        raise InvalidRecordError(STATUS_TEXT[BAD_LENGTH])
    if size > 0:
        source.skip(size)
    return max(size, -1)
