"""A reader of segments that returns batches as columns, filled by the compiled scanner.

    bytes                                           yielded as
    ----------------------------------------------  --------------------------------------------------------------
    sound batches of magic 2, up to the buffer      BatchRows: rows of kcli.format.batch_scan; records that are not
                                                      compressed are checked
    a batch of magic 0 or 1, a large one, one with  BatchRows of one row, with the LogBatch
      a wrong CRC or an invalid header, and one
      whose offsets the indexes contradict
    not a batch                                     Damage of kcli.log.reading.segment_reader

The rows and their bytes are valid until the next step: buffers are reused.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from kcli.format import batch_scan, loop_results
from kcli.format.batch_scan import LEGACY, LOOK, BatchColumns
from kcli.format.primitives import INT64_MAX, crc32c
from kcli.format.record_batch import HEADER_BYTES, RecordBatch, read_header
from kcli.log.disk.port import Disk
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.segment_reader import TRUNCATED, Damage, LogBatch, SegmentReader

BUFFER_BYTES = 512 * 1024


class BatchRows(NamedTuple):
    """Rows [0, rows) of the reader's columns, `faulty` of which are not SOUND. `batch` is set for a single row."""

    rows: int
    faulty: int
    batch: LogBatch | None


class ColumnarReader:
    """The reader of bytes [start, end) of a `.log` or `.checkpoint` file, by default up to its size at the construction.

    A batch must begin at byte `start`. `buffer_bytes` are read at once; a larger batch is yielded alone. For
    `doubts_offsets` see SegmentReader.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        *,
        start: int = 0,
        end: int | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        doubts_offsets: bool = False,
    ) -> None:
        self.reader = SegmentReader(disk, path, end=disk.size(path) if end is None else end, doubts_offsets=doubts_offsets)
        self.end = self.reader.end_position()
        self.rows = BatchColumns(buffer_bytes // HEADER_BYTES + 1)
        self.scanner = RecordScanner()
        self.position = start  # the end of what was yielded
        self._buffer_bytes = buffer_bytes
        self._buffer = bytearray(buffer_bytes)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._floor = 0  # the next offset after the last sound batch
        self._scratch = array("q", bytes(32))

    def close(self) -> None:
        """Close the file."""
        self.reader.close()

    def steps(self) -> Iterator[BatchRows | Damage]:
        """Yield the rows and the damage of the file, in file order. Raises OSError."""
        while self.position < self.end:
            count = self._scan()
            end, why, faulty = self._scratch[:3]
            if count:
                self._floor = self.rows.last_offset[count - 1] + 1
                yield BatchRows(count, faulty, None)
                self.position = self._start + end
                if why != loop_results.OTHER:
                    continue
            yield from self._step_by_step()

    def _scan(self) -> int:
        """Fill the buffer and the rows from the current position on; return the number of rows."""
        self._start = self.position
        wanted = min(self._buffer_bytes, self.end - self.position)
        filled = self.reader.file.read_into(self.position, self._view[:wanted])
        doubt = self.reader.contradiction_in(self._view, 0, filled, self._start)
        filled = filled if doubt is None else doubt.position - self._start
        return batch_scan.scan_batches(
            self._buffer,
            self._view,
            0,
            filled,
            self._start,
            crc32c,
            self.rows,
            self.scanner.columns,
            self._scratch,
        )

    def _step_by_step(self) -> Iterator[BatchRows | Damage]:
        """Yield the batches that the scanner cannot read, up to the next sound batch of magic 2 that fits into the buffer."""
        found: LogBatch | Damage | None = None
        for found in self.reader.batches(self.position, floor=self._floor):
            self.position = found.end_position
            if isinstance(found, Damage):
                yield found
                continue
            self._put_row(found)
            yield BatchRows(1, 1, found)
            header = found.header
            self._floor = header.next_offset if found.is_valid else self._floor
            if found.is_valid and isinstance(header, RecordBatch) and header.size_bytes <= self._buffer_bytes:
                return
        if not isinstance(found, Damage) and self.position < self.end:
            yield Damage(self.position, self.end, TRUNCATED, "the file shrank while it was read")
        self.position = self.end

    def batch(self, row: int) -> LogBatch:
        """Return the batch of a row of the last BatchRows that has no `batch`."""
        start = self.rows.position[row] - self._start
        data = self._view[start : start + self.rows.size_bytes[row]]
        header = read_header(data, 0, self.rows.position[row])
        return LogBatch(header, data, header.crc, self.reader.file)

    @property
    def buffer(self) -> bytearray:
        """The bytes from which the rows were scanned; they begin at byte `buffer_start` of the file."""
        return self._buffer

    @property
    def buffer_start(self) -> int:
        """The position in the file of the start of the buffer."""
        return self._start

    def payload(self, row: int) -> memoryview:
        """Return the records' bytes, compressed or not, of such a row."""
        start = self.rows.position[row] - self._start
        return self._view[start + HEADER_BYTES : start + self.rows.size_bytes[row]]

    def check_inflated(self, row: int, records: bytes) -> None:
        """Check the inflated records of a row and set its fault."""
        self.rows.fault[row] = batch_scan.check_records(records, 0, len(records), self.rows, row, self.scanner.columns)

    def _put_row(self, batch: LogBatch) -> None:
        """Put a single batch into row 0, marked LOOK."""
        header, rows = batch.header, self.rows
        rows.position[0], rows.size_bytes[0] = header.position, header.size_bytes
        rows.base_offset[0] = header.base_offset
        rows.last_offset[0] = max(-INT64_MAX, min(INT64_MAX, header.last_offset))
        rows.attributes[0], rows.max_timestamp[0], rows.fault[0] = header.attributes, header.max_timestamp, LOOK
        if isinstance(header, RecordBatch):
            rows.attributes[0] = header.attributes & 0xFFFF
            rows.leader_epoch[0], rows.base_timestamp[0] = header.partition_leader_epoch, header.base_timestamp
            rows.producer_id[0], rows.producer_epoch[0] = header.producer_id, header.producer_epoch
            rows.base_sequence[0], rows.record_count[0] = header.base_sequence, header.record_count
            return
        rows.leader_epoch[0] = rows.base_timestamp[0] = -1
        rows.producer_id[0] = rows.producer_epoch[0] = rows.base_sequence[0] = -1
        rows.record_count[0], rows.fault[0] = 1, LEGACY
