"""The check of a batch that nearly every produce request passes: a plain batch, read and checked by one compiled call.

    a plain batch    fills the buffer; magic 2, a right CRC, base offset 0, one offset for each record, at least one record; no
                     compression, no LogAppendTime, no transaction, not control, no unknown attribute; a producer has
                     sequences; maxTimestamp is that of the records

Any other batch is left to kcli.log.record_validator, which finds out what it is, with objects and sentences. This one source
runs two ways, as kcli.format.record_scan does; its C types are in plain_batch.pxd.
"""

from collections.abc import Callable

from kcli.format import batch_header, loop_results, record_scan
from kcli.format.primitives import Buffer

MOST_TIMESTAMP = 4611686018427387904  # 2**62: the sum with a delta is checked without an overflow


class PlainBatch(batch_header.BatchHeader):
    """The header of the batch that was checked last, which is at position 0, and the counts of its records."""

    def __init__(self) -> None:
        super().__init__()
        self.records = record_scan.RecordColumns(0)

    def check(self, buffer: Buffer, view: memoryview, crc32c: Callable[..., int]) -> bool:
        """Read the batch in `buffer`; return True if it is plain. It never raises. `view` is a memoryview of `buffer`."""
        records = self.records
        size = len(buffer)
        if (
            self.read(buffer, 0, size) != loop_results.USUAL
            or self.end_position != size
            or self.base_offset != 0
            or self.attributes != 0
            # The CRC before the scan: at full speed it loads the bytes into the cache; the scan, record by record, is slower.
            or not self.has_right_crc(view, crc32c)
        ):
            return False
        if (
            self.record_count == 0
            or self.last_offset != self.record_count - 1
            or (self.producer_id >= 0 and self.base_sequence < 0)
            or self.base_timestamp < 0
            or self.base_timestamp > MOST_TIMESTAMP
        ):
            return False
        records.begin_batch(0, self.base_timestamp)
        status = records.scan(buffer, self.records_position, size, self.record_count, record_scan.NO_ROWS)
        return (
            status == loop_results.COMPLETE
            and records.end == size
            and not records.is_renumbered
            and records.largest_delta == self.max_timestamp - self.base_timestamp
            and records.smallest_delta >= -self.base_timestamp
        )
