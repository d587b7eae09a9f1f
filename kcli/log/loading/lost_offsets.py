"""The offsets in bytes that a recovery removes, by the headers of their batches.

Most of these bytes are damaged, or were never written, so that their CRC is wrong. A header is trusted if something else
confirms it:

    sign                                                        of a header of
    ----------------------------------------------------------  --------------------------
    it begins at the offset that follows, and its last offset   format 2, also of a batch that the end of the file cuts off
      delta is its record count less one
    the next header begins above its last offset                any format

A header below the next offset is a copy, or wrong. Only headers are read, and only those of the removed bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from struct import error as StructError
from typing import TYPE_CHECKING, NamedTuple

from kcli.format import limits
from kcli.format.file_names import FileKind
from kcli.format.index_entries import OffsetIndex
from kcli.format.primitives import INT32_MAX, FormatError
from kcli.format.record_batch import HEADER_BYTES, MAGIC, RecordBatch, read_header
from kcli.log.disk.port import Disk, DiskFile, zeros_follow
from kcli.log.log_segment import LogSegment
from kcli.log.reading.header_reader import HeaderReader

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch


class HeldOffsets(NamedTuple):
    """The offsets of removed bytes are below `end_offset`; if not `is_whole` there may be more above it."""

    end_offset: int
    is_whole: bool


def offsets_in_tail(disk: Disk, path: str, base_offset: int, position: int, next_offset: int) -> HeldOffsets:
    """Return the offsets in bytes [position, end) of a segment, the first of which is `next_offset`. Raises OSError."""
    file = disk.open_file(path)
    try:
        return _read_offsets(file, position, next_offset, base_offset + INT32_MAX)
    finally:
        file.close()


def offsets_in_segment(disk: Disk, directory: str, base_offset: int) -> HeldOffsets:
    """Return the offsets of a segment: by its last index entry, if correct, and the headers after it. Raises OSError."""
    segment = LogSegment(directory, base_offset)
    index = OffsetIndex.of(base_offset)
    if disk.exists(segment.path(FileKind.INDEX)) and disk.size(segment.path(FileKind.INDEX)) <= limits.MAX_INDEX_FILE_BYTES:
        index = segment.read_offset_index(disk)
    file = disk.open_file(segment.log_path)
    try:
        if len(index):
            offset, position = index.entry(len(index) - 1)
            first = next(_headers(HeaderReader(file, position, file.size())), None) if position >= 0 else None
            if first is not None and base_offset <= first.base_offset <= first.last_offset == offset:
                return _read_offsets(file, position, first.base_offset, base_offset + INT32_MAX)
        return _read_offsets(file, 0, base_offset, base_offset + INT32_MAX)
    finally:
        file.close()


def _read_offsets(file: DiskFile, position: int, next_offset: int, max_offset: int) -> HeldOffsets:
    size = file.size()
    headers = HeaderReader(file, position, size)
    before: RecordBatch | LegacyBatch | None = None  # not yet confirmed
    for header in _headers(headers):
        if before is not None and next_offset <= before.base_offset <= before.last_offset < header.base_offset <= max_offset:
            next_offset = before.last_offset + 1
        before = None
        if _is_next(header, next_offset, max_offset):
            next_offset = header.last_offset + 1
        elif header.base_offset >= next_offset:
            before = header
    torn = _torn_header(file, headers.position, size)
    if torn is not None and _is_next(torn, next_offset, max_offset):
        # Its length may be wrong, and more batches may have been lost before they were written.
        return HeldOffsets(torn.last_offset + 1, is_whole=False)
    is_whole = before is None and zeros_follow(file, headers.position, size)
    return HeldOffsets(next_offset, is_whole)


def _headers(reader: HeaderReader) -> Iterator[RecordBatch | LegacyBatch]:
    """Yield the headers up to one that cannot be read."""
    with suppress(FormatError, StructError):
        yield from reader.headers()


def _is_next(header: RecordBatch | LegacyBatch, next_offset: int, max_offset: int) -> bool:
    """Return True if a header of format 2 begins at `next_offset` and has as many offsets as records."""
    return (
        isinstance(header, RecordBatch)
        and header.base_offset == next_offset
        and 0 <= header.last_offset_delta == header.record_count - 1
        and header.last_offset <= max_offset
    )


def _torn_header(file: DiskFile, position: int, size: int) -> RecordBatch | None:
    """Return the header at a byte where the file has no complete batch; None if it is not of a torn batch."""
    data = file.read_at(position, HEADER_BYTES)
    if len(data) < HEADER_BYTES:
        return None
    header = read_header(data, 0, position)
    return header if header.magic == MAGIC and position + header.size_bytes > size else None
