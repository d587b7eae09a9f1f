"""Records without a key, which show that the log cleaner did not take what is missing after them.

Each round of the cleaner goes over a log from its first segment on. It removes every record without a key that is below the
offset which the round reaches. A gap that the round left is below that offset, too. So if a record without a key is before a
gap, no cleaner left the gap: not this broker's, and not that of the leader from which a follower copied the log. This counts
where the topic's cleanup.policy is not known.
"""

from __future__ import annotations

from kcli.format.primitives import FormatError
from kcli.format.record_batch import RecordBatch
from kcli.log.disk.port import Disk
from kcli.log.files.log_directory import Segment
from kcli.log.reading.batch_records import RecordScanner
from kcli.log.reading.segment_reader import LogBatch, SegmentReader

# How much of a log is searched, from its start.
MOST_BYTES = 16 * 1024 * 1024


def first_keyless_offset(disk: Disk, segments: list[Segment], below: int) -> int | None:
    """Return the offset of the first data record without a key that is below the offset `below`, None if none is found.

    Only the first MOST_BYTES of the log are searched.
    """
    left, scanner = MOST_BYTES, RecordScanner()
    try:
        for segment in segments:
            with SegmentReader(disk, segment.log) as reader:
                for found in reader.batches():
                    if left <= 0 or segment.base_offset >= below:
                        return None
                    left -= found.end_position - found.position
                    offset = _keyless_in(found, scanner) if isinstance(found, LogBatch) and found.is_valid else None
                    if offset is not None:
                        return offset if offset < below else None
    except (OSError, FormatError):
        return None  # what cannot be read is a finding of the segment
    return None


def _keyless_in(batch: LogBatch, scanner: RecordScanner) -> int | None:
    if isinstance(batch.header, RecordBatch) and batch.header.is_control:
        return None
    for window in batch.windows(scanner, skip_large=True):
        for index in range(window.count):
            if window.columns.key_size[index] < 0:
                return window.columns.offset[index]
    return None
