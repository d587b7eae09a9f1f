"""Hopping over a segment from batch header to batch header: what lies where, without reading the records.

    batches of         are read
    -----------------  ------------------------------------------------------
    8 KiB and more     PROBE_BYTES each, the records between are never touched
    less               in chunks of CHUNK_BYTES, front to back

No CRC is computed, so nothing that is found here is proven: whoever acts on a header reads its batch with a `SegmentReader`
first. The walk ends where an entry cannot be one (see segment_reader); `position` says where, and a `SegmentReader` may
go on from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kcli.format.record_batch import (
    ENTRY_HEAD_BYTES,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    MAGIC_POSITION,
    MIN_ENTRY_SIZE,
    RecordBatch,
    entry_size,
    read_entry_header,
)
from kcli.log.disk.port import DiskFile

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch

PROBE_BYTES = 256
CHUNK_BYTES = 64 * 1024
SMALL_BATCH_BYTES = 8 * 1024


class HeaderReader:
    """Walks the headers of file[position:end]; `position` is always the byte behind the last header that was given out."""

    def __init__(self, file: DiskFile, position: int, end: int) -> None:
        self.position = position
        self.end = end
        self._file = file
        self._data = b""
        self._start = position

    def headers(self) -> Iterator[RecordBatch | LegacyBatch]:
        """The headers, in file order, of every format. Raises OSError as the disk does."""
        size = 0
        while self.position + ENTRY_HEAD_BYTES <= self.end:
            index = self._at_hand(size)
            if len(self._data) - index < ENTRY_HEAD_BYTES:
                return
            size = entry_size(self._data, index)
            magic = self._data[index + MAGIC_POSITION]
            if size < MIN_ENTRY_SIZE + LOG_OVERHEAD_BYTES or self.position + size > self.end or magic > MAGIC:
                return
            if magic == MAGIC and (size < HEADER_BYTES or len(self._data) - index < HEADER_BYTES):
                return
            header = read_entry_header(self._data, index, self.position)
            self.position += size
            yield header

    def _at_hand(self, last_size: int) -> int:
        """Have a whole header at hand -> its index in the data."""
        index = self.position - self._start
        if index + HEADER_BYTES > len(self._data):
            wanted = CHUNK_BYTES if 0 < last_size < SMALL_BATCH_BYTES else PROBE_BYTES
            self._data = self._file.read_at(self.position, min(wanted, self.end - self.position))
            self._start, index = self.position, 0
        return index
