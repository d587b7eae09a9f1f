"""The check of a batch that nearly every produce request passes: a plain batch, read and checked by one compiled call.

    a plain batch    fills the buffer; magic 2, a right CRC, base offset 0, one offset for each record, at least one record; no
                     compression, no LogAppendTime, no transaction, not control, no unknown attribute; a producer has
                     sequences; maxTimestamp is that of the records

Any other batch is left to kcli.log.record_validator, which finds out what it is, with objects and sentences. This one source
runs two ways, as kcli.format.record_scan does; its C types are in plain_batch.pxd.
"""

from collections.abc import Callable

from kcli.format import batch_header, loop_results, record_scan

MOST_TIMESTAMP = 4611686018427387904  # 2**62: the sum with a delta is checked without an overflow


class PlainBatch:
    """The plain batch that was read last: fields of its header, its smallest timestamp, how many records have no key."""

    def __init__(self) -> None:
        self.header = batch_header.BatchHeader()
        self.records = record_scan.RecordColumns(0)
        self.size_bytes = 0
        self.last_offset_delta = 0
        self.smallest_timestamp = 0
        self.max_timestamp = 0
        self.producer_id = 0
        self.producer_epoch = 0
        self.base_sequence = 0
        self.null_keys = 0

    def read(self, buffer: record_scan.Buffer, view: memoryview, crc32c: Callable[..., int]) -> bool:
        """Read and check the batch in `buffer` -> whether it is plain; never raises. `view` is a memoryview of `buffer`."""
        header, records = self.header, self.records
        size = len(buffer)
        if (
            header.read(buffer, 0, size) != loop_results.USUAL
            or header.end_position != size
            or header.base_offset != 0
            or header.attributes != 0
            # The CRC before the scan: at full speed it loads the bytes into the cache; the scan, record by record, is slower.
            or not header.has_right_crc(view, crc32c)
        ):
            return False
        count = header.record_count
        base_timestamp = header.base_timestamp
        if (
            count == 0
            or header.last_offset != count - 1
            or (header.producer_id >= 0 and header.base_sequence < 0)
            or base_timestamp < 0
            or base_timestamp > MOST_TIMESTAMP
        ):
            return False
        records.begin_batch(0, base_timestamp)
        if (
            records.scan(buffer, header.records_position, size, count, record_scan.NO_ROWS) != loop_results.COMPLETE
            or records.end != size
            or records.is_renumbered
            or records.largest_delta != header.max_timestamp - base_timestamp
            or records.smallest_delta < -base_timestamp
        ):
            return False
        self.size_bytes = size
        self.last_offset_delta = count - 1
        self.smallest_timestamp = base_timestamp + records.smallest_delta
        self.max_timestamp = header.max_timestamp
        self.producer_id = header.producer_id
        self.producer_epoch = header.producer_epoch
        self.base_sequence = header.base_sequence
        self.null_keys = records.null_keys
        return True
