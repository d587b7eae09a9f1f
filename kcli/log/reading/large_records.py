"""Records too large to hold: walked over piece by piece, their fields checked, their keys and values never in memory whole.

One record may inflate to 2 GiB from a few hundred bytes. Who looks at offsets, timestamps and sizes only need not hold it;
the layout is that of kcli.format.record_scan, the faults have its words.
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
    """Where the record at buffer[position] ends by its own length, None where that length is not whole or impossible."""
    try:
        size, body = read_varint(buffer, position, len(buffer))
    except FormatError:
        return None
    return body + size if size >= 0 else None


class PieceReader:
    """Bytes that come in pieces: `rest[position:]`, then `pieces`. Raises what these raise, InvalidRecordError at their end."""

    def __init__(self, rest: bytes, position: int, pieces: Iterator[Buffer]) -> None:
        self.rest = rest
        self.position = position
        self.taken = 0
        self._pieces = pieces

    def is_at_end(self) -> bool:
        """True where no byte is left."""
        while self.position >= len(self.rest):
            piece = next(self._pieces, None)
            if piece is None:
                return True
            self.rest, self.position = bytes(piece), 0
        return False

    def byte(self) -> int:
        """The next byte."""
        self._need_more()
        self.position += 1
        self.taken += 1
        return self.rest[self.position - 1]

    def _need_more(self) -> None:
        if self.is_at_end():
            raise InvalidRecordError(STATUS_TEXT[NEED_MORE])

    def walk(self, count: int) -> Iterator[memoryview]:
        """The next `count` bytes, in the pieces in which they come."""
        while count > 0:
            self._need_more()
            piece = memoryview(self.rest)[self.position : self.position + count]
            self.position += len(piece)
            self.taken += len(piece)
            count -= len(piece)
            yield piece

    def take(self, count: int) -> bytes:
        """The next `count` bytes, few, in one."""
        return b"".join(self.walk(count))

    def skip(self, count: int) -> None:
        """Pass over bytes."""
        for _ in self.walk(count):
            pass

    def zigzag(self, most_bytes: int) -> int:
        """The next zigzag integer of at most `most_bytes` (5 or 10) bytes. Raises InvalidRecordError where it has more."""
        raw = 0
        for shift in range(0, 7 * most_bytes, 7):
            byte = self.byte()
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                return zigzag_decode(raw & (UINT32_MASK if most_bytes == MAX_VARINT_BYTES else UINT64_MASK))
        raise InvalidRecordError(STATUS_TEXT[BAD_VARINT])


class TimesAndOffsets(Protocol):
    """What records' times and offsets count from."""

    @property
    def base_offset(self) -> int:
        """The batch's base offset."""
        ...

    @property
    def base_timestamp(self) -> int:
        """The batch's base timestamp."""
        ...


def scan_large_record(
    batch: TimesAndOffsets, source: PieceReader, columns: RecordColumns, most_headers: int = INT32_MAX
) -> None:
    """Walk over one record of `batch` -> row 0 of `columns`, with sizes but no positions.

    Raises InvalidRecordError, also for more than `most_headers` headers: each is a step of Python.
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
    if headers < 0 or headers > min(end - source.taken, most_headers):
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
    """Pass over a length and that many bytes, which must lie before `end` -> the length, -1 for null."""
    size = source.zigzag(MAX_VARINT_BYTES)
    if size > end - source.taken:
        raise InvalidRecordError(STATUS_TEXT[BAD_LENGTH])
    if size > 0:
        source.skip(size)
    return max(size, -1)
