"""The batches of a range, as many at once as may be: spans of usual batches as one window, all else batch by batch.

    on the disk                                      becomes
    -----------------------------------------------  ------------------------------------------------------------
    usual batches, not compressed                    Rows over the bytes as they were read
    usual batches, compressed                        Rows over up to SPAN_BYTES of them, inflated one behind the other
    any other sound batch that is wanted             its LogBatch, for the caller to open
    anything that is corrupt                         the walker's fault

What is usual is said in kcli.spark.batch_spans; the rows are the same either way.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from kcli.format import limits
from kcli.format.compression import inflate
from kcli.format.primitives import Buffer, FormatError
from kcli.format.record_batch import CONTROL_FLAG, HEADER_BYTES, TRANSACTIONAL_FLAG, RecordBatch
from kcli.format.record_scan import RecordColumns
from kcli.log.reading.batch_records import RecordWindow
from kcli.log.reading.columnar_reader import ColumnarReader
from kcli.log.reading.segment_reader import Damage, LogBatch
from kcli.spark.batch_spans import scan_span, usual_batches
from kcli.spark.column_builders import Rows, Span
from kcli.spark.range_walker import Fault, RangeWalker
from kcli.spark.splits import SegmentRange

# What fits a core's own cache is read twice as fast as a MiB.
BUFFER_BYTES = 256 * 1024
SPAN_BYTES = 512 * 1024
SPAN_RECORDS = limits.SCAN_WINDOW_RECORDS


class SpanWalk:
    """Walks one range for `walker`, whose `fault` gets what is corrupt. Rows are valid until the next step."""

    def __init__(self, walker: RangeWalker, part: SegmentRange, records: RecordColumns) -> None:
        self._walker = walker
        self._part = part
        self._records = records
        self._walk = ColumnarReader(
            walker.disk, part.file, start=part.position, end=part.end_position, buffer_bytes=BUFFER_BYTES
        )
        self._refused = CONTROL_FLAG if part.transactions is None else CONTROL_FLAG | TRANSACTIONAL_FLAG
        self._last_offset = part.least_offset - 1
        self._has_fault = False  # since the last sound batch
        self._scratch = array("q", (0, 0))

    @property
    def read_bytes(self) -> int:
        """How many bytes of the range are walked."""
        return self._walk.position - self._part.position

    def close(self) -> None:
        """Close the file; `steps` does it at its end."""
        self._walk.close()

    def steps(self) -> Iterator[Rows | LogBatch]:
        """What the range holds, in its order. Raises CorruptLogError as the walker does, OSError as the disk does."""
        try:
            for step in self._walk.steps():
                if isinstance(step, Damage):
                    self._fault(self._walker.damage_fault(self._part, step))
                elif step.batch is not None:
                    yield from self._single(step.batch)
                else:
                    yield from self._stretch(step.rows)
            self._reach(self._part.end_offset)
        finally:
            self._walk.close()

    def _fault(self, fault: Fault) -> None:
        self._walker.fault(fault)
        self._has_fault = True

    def _reach(self, base_offset: int) -> None:
        """Go on with what begins at `base_offset`: after a fault the offsets before it are lost."""
        if self._has_fault:
            self._has_fault = False
            self._walker.lose(self._part, self._last_offset + 1, base_offset)

    def _stretch(self, rows: int) -> Iterator[Rows | LogBatch]:
        """The rows of a stretch: spans as long as there are any."""
        part, batches = self._part, self._walk.rows
        row = 0
        while row < rows:
            count = usual_batches(
                batches,
                row,
                rows,
                self._last_offset,
                part.first_offset,
                part.end_offset,
                part.bound_offset,
                self._refused,
                SPAN_RECORDS,
            )
            span = self._scan(row, count) if count else None
            if span is None:
                yield from self._single(self._walk.batch(row))
                row += 1
            else:
                assert span.span is not None
                self._reach(batches.base_offset[row])
                row += span.span.batch_count
                self._last_offset = batches.last_offset[row - 1]
                yield span

    def _single(self, batch: LogBatch) -> Iterator[LogBatch]:
        """A batch by itself, where it is sound and wanted."""
        fault = self._walker.batch_fault(self._part, self._walk.reader, batch, self._last_offset)
        if fault is not None:
            self._fault(fault)
            return
        self._reach(batch.header.base_offset)
        self._last_offset = batch.header.last_offset
        if self._walker.touches(self._part, batch):
            yield batch

    def _scan(self, row: int, count: int) -> Rows | None:
        """The records of `count` usual batches, or of the first of them, as rows; None where the first has a fault."""
        batches, part = self._walk.rows, self._part
        header = self._walk.batch(row).header
        assert isinstance(header, RecordBatch)
        buffer: Buffer
        if header.codec:
            buffer, starts, ends = self._inflate(header.codec, row, count)
        else:
            # The interpreted scanner reads bytes faster than anything else.
            buffer = self._walk.buffer
            shift = HEADER_BYTES - self._walk.buffer_start
            starts = array("q", [position + shift for position in batches.position[row : row + count]])
            sizes = batches.size_bytes[row : row + count]
            ends = array("q", [start + size - HEADER_BYTES for start, size in zip(starts, sizes, strict=True)])
        done = scan_span(buffer, starts, ends, batches, row, len(starts), self._records, self._scratch)
        if done == 0:
            return None
        window = RecordWindow(buffer, self._records, self._scratch[0], 0)
        return Rows(
            header, window, 0, window.count, part.topic, part.partition, part.file, False, Span(batches, row, done, ends)
        )

    def _inflate(self, codec: int, row: int, count: int) -> tuple[bytes, array[int], array[int]]:
        """Inflate batches one behind the other, up to SPAN_BYTES or to one that cannot be -> bytes, starts and ends."""
        pieces: list[bytes] = []
        bounds = [0]
        for index in range(row, row + count):
            try:
                piece = inflate(codec, self._walk.payload(index), limit=limits.INFLATE_WINDOW_BYTES)
            except FormatError:
                break
            pieces.append(piece)
            bounds.append(bounds[-1] + len(piece))
            if bounds[-1] >= SPAN_BYTES:
                break
        buffer = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return buffer, array("q", bounds[:-1]), array("q", bounds[1:])
