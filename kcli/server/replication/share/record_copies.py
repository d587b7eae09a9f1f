"""The keys and values of a range of offsets, read from a segment for a dead letter queue (Kafka: ShareGroupDLQRecordFetcher).

Compression does not need more memory than the copies: a record above the size limit is left out, and at a limit for all of them
the reading ends, for the next call to continue.
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.format.primitives import FormatError
from kcli.format.record_batch import RecordBatch
from kcli.log.disk.port import Disk
from kcli.log.local_log import LocalLog
from kcli.log.reading.batch_records import RecordScanner, RecordWindow
from kcli.log.reading.segment_reader import LogBatch, SegmentReader


class Copies(NamedTuple):
    """Keys and values by offset, for the offsets below `end`; those without an entry cannot be copied."""

    records: dict[int, tuple[bytes | None, bytes | None]]
    end: int


class CopyRange(NamedTuple):
    """The offsets first_offset..last_offset in bytes [position, end) of a segment, whose last offset is `segment_last_offset`.

    The file is only read, so that the log may change while a copy runs.
    """

    path: str
    position: int
    end: int
    first_offset: int
    last_offset: int
    most_bytes: int

    @classmethod
    def of(cls, local: LocalLog, first_offset: int, last_offset: int, most_bytes: int) -> CopyRange:
        """Find the range in the segment that contains its first offset. Raises OSError."""
        segment, position = local.locate(first_offset)
        following = min((one.base_offset for one in local.segments if one.base_offset > first_offset), default=last_offset + 1)
        return cls(segment.log_path, position, segment.size_bytes, first_offset, min(last_offset, following - 1), most_bytes)

    def run(self, disk: Disk) -> Copies:
        """Copy the keys and values; an error of the disk or of a batch ends the copies."""
        copier = _Copier(self)
        try:
            with SegmentReader(disk, self.path, end=self.end) as reader:
                for batch in reader.batches(self.position, resynchronise=False):
                    if not isinstance(batch, LogBatch) or not batch.is_valid or copier.is_finished_by(batch):
                        break
        except (OSError, FormatError):
            pass
        return Copies(copier.records, copier.end)


class _Copier:
    """The copies so far; `end` is the offset up to which they are complete."""

    def __init__(self, wanted: CopyRange) -> None:
        self.records: dict[int, tuple[bytes | None, bytes | None]] = {}
        self.end = wanted.last_offset + 1
        self._wanted = wanted
        self._left = wanted.most_bytes
        self._scanner = RecordScanner()

    def is_finished_by(self, batch: LogBatch) -> bool:
        """Copy records of a batch; return whether no later batch is wanted."""
        header, wanted = batch.header, self._wanted
        if header.base_offset > wanted.last_offset:
            return True
        is_control = isinstance(header, RecordBatch) and header.is_control
        if header.last_offset >= wanted.first_offset and not is_control:
            for window in batch.windows(self._scanner, skip_large=True):
                if not self._copy(window):
                    return True
        return header.last_offset >= wanted.last_offset

    def _copy(self, window: RecordWindow) -> bool:
        """Copy the records of a window; return False if there is no room for one."""
        for row in range(window.count):
            offset = window.columns.offset[row]
            if not self._wanted.first_offset <= offset <= self._wanted.last_offset or window.left_out:
                continue
            size = max(0, window.columns.key_size[row]) + max(0, window.columns.value_size[row])
            if size > self._wanted.most_bytes:
                continue
            if size > self._left:
                self.end = offset
                return False
            self._left -= size
            self.records[offset] = window.key(row), window.value(row)
        return True
