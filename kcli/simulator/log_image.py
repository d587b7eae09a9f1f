"""The log of a partition as it is on a disk: its records by offset, up to the first damaged or missing one.

It also reads what a power loss left. It does not use the code of the log that is under test: it reads the directory listing,
the batch headers and the CRCs.
"""

from __future__ import annotations

from typing import NamedTuple

from kcli.format.record_batch import RecordBatch
from kcli.log.files.log_directory import read_partition
from kcli.simulator.disk import SimulatedDisk
from kcli.simulator.sent_records import SentRecord, placed_records, whole_batches

MAX_SEGMENT_BYTES = 1 << 30


class LogImage(NamedTuple):
    """The offsets `start` to `end`; `is_whole`: there are no further bytes that do not belong to them.

    `holes` are offsets [from, to) that are missing between two segments: a power loss took the end of the first one. In a
    compacted topic (`is_compacted`) any offsets may be missing, and these are not holes.
    """

    start: int
    end: int
    batches: list[tuple[bytes, RecordBatch]]  # the segment's bytes, the batch in them
    is_whole: bool
    holes: list[tuple[int, int]]
    is_compacted: bool = False

    def records(self) -> list[tuple[int, SentRecord]]:
        """Return all records with their offsets."""
        return [
            placed for data, batch in self.batches for placed in placed_records(data, batch, is_compacted=self.is_compacted)
        ]

    def identities(self) -> dict[int, bytes]:
        """Return the identity of each record by its offset."""
        return {offset: record.identity for offset, record in self.records()}


def read_log_image(disk: SimulatedDisk, path: str, *, is_compacted: bool = False) -> LogImage:
    """Read the directory of a partition. Raises OSError if it does not exist."""
    start = end = -1
    batches: list[tuple[bytes, RecordBatch]] = []
    holes: list[tuple[int, int]] = []
    is_whole = True
    for segment in read_partition(disk, path).segments:
        if start < 0:
            start = end = segment.base_offset
        if segment.base_offset < end:
            is_whole = False
            break
        if segment.base_offset > end:
            if not is_compacted:
                holes.append((end, segment.base_offset))
            end = segment.base_offset
        data = disk.read_file(segment.log, MAX_SEGMENT_BYTES)
        position = 0
        for batch in whole_batches(data):
            if batch.base_offset != end and not (is_compacted and batch.base_offset > end):
                break
            batches.append((data, batch))
            end, position = batch.next_offset, batch.end_position
        if position != len(data):
            is_whole = False
            break
    return LogImage(max(start, 0), max(end, 0), batches, is_whole, holes, is_compacted)


def read_device_image(seen: SimulatedDisk, device: SimulatedDisk, path: str) -> LogImage:
    """Read what is certainly on the device of a compacted log: up to the first segment that is not completely flushed."""
    image = read_log_image(device, path, is_compacted=True)
    end = image.end
    for segment in read_partition(seen, path).segments:
        data = seen.read_file(segment.log, MAX_SEGMENT_BYTES)
        stored = device.read_file(segment.log, MAX_SEGMENT_BYTES) if device.exists(segment.log) else b""
        if data != stored:
            last = [batch.next_offset for batch in whole_batches(stored)]
            end = last[-1] if last else segment.base_offset
            break
    kept = [(data, batch) for data, batch in image.batches if batch.next_offset <= end]
    return image._replace(end=min(end, image.end), batches=kept)
