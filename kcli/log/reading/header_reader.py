"""Read the batch headers of a segment without its records.

    batch size         read
    -----------------  ------------------------------------------------------
    8 KiB and more     PROBE_BYTES for each batch; the records are skipped
    less               chunks of CHUNK_BYTES, sequentially

No CRC is computed, so a header is not proven: read the batch with a `SegmentReader` before acting on it. Reading ends at an
entry that cannot be a batch (see segment_reader), at byte `position`, where a `SegmentReader` may continue.
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
from kcli.log.disk.port import DiskFile, LogFile

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch

PROBE_BYTES = 256
CHUNK_BYTES = 64 * 1024
SMALL_BATCH_BYTES = 8 * 1024


class HeaderReader:
    """The headers of file[position:end]; `position` is always the end of the batch whose header was yielded last."""

    def __init__(self, file: DiskFile | LogFile, position: int, end: int) -> None:
        self.position = position
        self.end = end
        self._file = file
        self._data = b""
        self._start = position

    def headers(self) -> Iterator[RecordBatch | LegacyBatch]:
        """Yield the headers, of every format, in file order. Raises OSError."""
        size = 0
        while self.position + ENTRY_HEAD_BYTES <= self.end:
            index = self._read_header(size)
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

    def _read_header(self, last_size: int) -> int:
        """Read a whole header; return its index in the data."""
        index = self.position - self._start
        if index + HEADER_BYTES > len(self._data):
            wanted = CHUNK_BYTES if 0 < last_size < SMALL_BATCH_BYTES else PROBE_BYTES
            self._data = self._file.read_at(self.position, min(wanted, self.end - self.position))
            self._start, index = self.position, 0
        return index
