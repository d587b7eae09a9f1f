"""Joins small batches: the records of adjacent batches become those of one batch, which has one CRC and one request.

`JoinedBatch.take` is the compiled loop over the batches of a buffer. It takes a batch if nothing about it is unusual:

    a batch is taken if        because
    -------------------------  -----------------------------------------------------------------------------------------------
    its attributes are 0       compressed records cannot be appended; transactions, control records and LogAppendTime need rules
    it is below `small_bytes`  a larger batch is worth a request of its own, as it is
    it fits in `most_bytes`    the topic limits the size of a batch (max.message.bytes)
    it fits in `most_records`  the caller knows how many records this batch had in an earlier run
    its CRC is right, and its  all else is for the caller, who reports damage with objects and sentences
    records fill it, with the
    offset deltas 0, 1, 2 ...
    its offsets are between    the caller wants to see the batches of all others
    `least_offset` and
    `stop_offset`

The records get the offset deltas after those before them, and timestamp deltas that count from the first batch.

This one source runs two ways, as kcli.format.record_scan does; its C types are in batch_join.pxd.
"""

from collections.abc import Callable

from kcli.format import batch_header, loop_results, record_copy, record_scan, structs
from kcli.format.primitives import Buffer
from kcli.format.record_batch import NewRecordBatch

# A batch with more records is left to the caller.
MOST_RECORDS = 2048
MOST_TIMESTAMP = 2305843009213693952  # 2**61: the difference of two sums with a delta is checked without an overflow
UNLIMITED = 4611686018427387904  # 2**62: more records than there are


class JoinSpace:
    """What `JoinedBatch.take` needs for one batch after the other: its header, and the columns of its records."""

    def __init__(self) -> None:
        self.header = batch_header.BatchHeader()
        self.columns = record_scan.RecordColumns(MOST_RECORDS)
        self.kept = bytearray(b"\1") * MOST_RECORDS


class JoinedBatch:
    """A batch in the making: `count` records; with its header it has `size` bytes.

    It begins at `first_offset` of the source (-1: it has not begun), and ends before `next_offset`. There it has
    `source_bytes`. `status` says why `take` has stopped: NEED_MORE, FULL or OTHER.
    """

    def __init__(self, space: JoinSpace, most_bytes: int, small_bytes: int) -> None:
        self.count = 0
        self.size = structs.RECORD_BATCH_HEADER_BYTES
        self.first_offset = -1
        self.next_offset = -1
        self.base_timestamp = 0
        self.max_timestamp = 0
        self.source_bytes = 0
        self.status = loop_results.OTHER
        self.least_offset = 0
        self.stop_offset = 0
        self.most_records = UNLIMITED
        self.most_bytes = most_bytes
        self.small_bytes = small_bytes
        self._space = space
        self._data = bytearray(most_bytes)

    def fits(self, size_bytes: int, record_count: int) -> bool:
        """Return whether a batch may be added: it is the first one, or the largest that it can become fits."""
        return self.first_offset < 0 or (
            self.size + size_bytes + record_count * record_copy.MOST_RENUMBERED_GROWTH_BYTES <= self.most_bytes
            and self.count + record_count <= self.most_records
        )

    def begin(self, first_offset: int, base_timestamp: int, max_timestamp: int) -> None:
        """Begin with a batch."""
        self.first_offset = first_offset
        self.base_timestamp = base_timestamp
        self.max_timestamp = max_timestamp

    def take(self, buffer: Buffer, view: memoryview, position: int, limit: int, crc32c: Callable[..., int]) -> int:
        """Take batches from buffer[position:limit]; return the position behind the last one. `view` is one of `buffer`.

        Nothing is raised for bad bytes.
        """
        header = self._space.header
        while True:
            self.status = header.read(buffer, position, limit)
            if self.status != loop_results.USUAL:
                break
            self.status = loop_results.OTHER
            if not self.may_take(header):
                break
            if header.end_position > limit:
                self.status = loop_results.NEED_MORE
                break
            if not header.has_right_crc(view, crc32c):
                break
            if not self.fits(
                header.end_position - position, header.record_count
            ):  # after the CRC: a damaged batch ends no batch
                self.status = loop_results.FULL
                break
            if not self.take_records(buffer, header):
                break
            position = header.end_position
        return position

    def may_take(self, header: "batch_header.BatchHeader") -> bool:
        """Return whether nothing about a header is unusual."""
        size_bytes = header.end_position - header.position
        return (
            header.attributes == 0
            and size_bytes < self.small_bytes
            and size_bytes < self.most_bytes
            and header.record_count > 0
            and header.record_count <= MOST_RECORDS
            and header.last_offset - header.base_offset == header.record_count - 1
            and header.base_offset >= self.least_offset
            and header.last_offset < self.stop_offset
            and header.base_timestamp >= 0
            and header.base_timestamp <= MOST_TIMESTAMP
            and (self.first_offset < 0 or (self.base_timestamp >= 0 and self.base_timestamp <= MOST_TIMESTAMP))
        )

    def take_records(self, buffer: Buffer, header: "batch_header.BatchHeader") -> bool:
        """Append the records of a batch; return False, and append nothing, if they are unusual."""
        columns = self._space.columns
        out = memoryview(self._data)
        if self.size + header.end_position - header.position > len(out):
            return False
        columns.begin_batch(header.base_offset, header.base_timestamp)
        if (
            columns.scan(buffer, header.records_position, header.end_position, header.record_count, 0) != loop_results.COMPLETE
            or columns.end != header.end_position
            or columns.is_renumbered
            or columns.smallest_delta < -MOST_TIMESTAMP
            or columns.largest_delta > MOST_TIMESTAMP
        ):
            return False
        if self.first_offset < 0:
            self.begin(header.base_offset, header.base_timestamp, header.max_timestamp)
        self.size += record_copy.copy_rebased(
            buffer,
            columns.record_position_view,
            columns.timestamp_view,
            columns.end,
            header.record_count,
            self._space.kept,
            self.base_timestamp,
            self.count,
            out[self.size :],
            columns.scratch,
        )
        self.count += header.record_count
        self.next_offset = header.last_offset + 1
        self.source_bytes += header.end_position - header.position
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
        return True

    def append(self, records: Buffer, count: int) -> None:
        """Append `count` records whose deltas are already those that they have here."""
        end = self.size + len(records)
        self._data[self.size : end] = records
        self.size = end
        self.count += count

    def pass_batch(self, next_offset: int, max_timestamp: int, source_bytes: int) -> None:
        """Note the end of a batch whose records were appended."""
        self.next_offset = next_offset
        self.max_timestamp = max(self.max_timestamp, max_timestamp)
        self.source_bytes += source_bytes

    def finish(self) -> bytearray:
        """Return the batch, with base offset 0 and without a CRC; nothing may be taken after that."""
        data = self._data
        del data[self.size :]
        data[: structs.RECORD_BATCH_HEADER_BYTES] = NewRecordBatch(
            base_offset=0,
            last_offset_delta=self.count - 1,
            base_timestamp=self.base_timestamp,
            max_timestamp=self.max_timestamp,
            record_count=self.count,
            records=memoryview(data)[structs.RECORD_BATCH_HEADER_BYTES :],
        ).encode_header()
        return data
