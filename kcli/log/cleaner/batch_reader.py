"""One batch at a time for the compiled loops of the cleaner: header, CRC, decompression, and its records as columns.

A loop makes one reader and reads batch after batch into it, so that no object is made for a batch. It handles batches of format
2 with sound records that fit the columns: data of transactions that are not aborted, and markers. Any other batch is left to
kcli.log.reading.

This one source runs two ways, as kcli.format.record_scan does; its C types are in batch_reader.pxd.
"""

from __future__ import annotations

from collections.abc import Callable

from kcli.format import batch_header, loop_results, record_scan
from kcli.format.batch_header import read_int32
from kcli.format.primitives import Buffer
from kcli.log.cleaner import transaction_metadata

# The markers of kcli.format.end_transaction_marker.
ABORT = 0
COMMIT = 1
NO_MARKER = -1


class BatchReader:
    """The batch that was read last. `decompress(codec, data)` returns None for data that it leaves to kcli.log.reading."""

    def __init__(
        self,
        columns: record_scan.RecordColumns,
        crc32c: Callable[..., int],
        decompress: Callable[[int, memoryview], bytes | None],
    ) -> None:
        self.header = batch_header.BatchHeader()
        self.crc32c = crc32c
        self.decompress = decompress
        self.columns = columns  # `read_records` fills it; positions count in `data`
        self.data: Buffer = b""  # the buffer of the batch, or its records decompressed
        self.records_end = 0  # the index in `data` after the last record

    def read_header(
        self,
        buffer: Buffer,
        view: memoryview,
        position: int,
        limit: int,
        transactions: transaction_metadata.CleanedTransactionMetadata,
    ) -> int:
        """Read the header of the batch at buffer[position] and check its CRC; return USUAL, NEED_MORE or OTHER.

        `view` is a memoryview of `buffer`, which ends at `limit`.
        """
        header = self.header
        result = header.read(buffer, position, limit)
        if result != loop_results.USUAL:
            return result
        if header.end_position > limit:
            return loop_results.NEED_MORE
        if header.record_count == 0 or header.has_unknown_attributes:
            return loop_results.OTHER
        is_of_transaction = header.is_transactional or header.is_control
        if is_of_transaction and transactions.may_be_aborted(header.producer_id, header.last_offset):
            return loop_results.OTHER
        return loop_results.USUAL if header.has_right_crc(view, self.crc32c) else loop_results.OTHER

    def read_records(self, buffer: Buffer, view: memoryview) -> bool:
        """Scan the records of the batch into the columns; return False if this reader does not handle them."""
        header = self.header
        if not header.codec:
            return self._scan(buffer, header.records_position, header.end_position)
        records = self.decompress(header.codec, view[header.records_position : header.end_position])
        return records is not None and self._scan(records, 0, len(records))

    def read_marker(self, buffer: Buffer) -> int:
        """Scan the record of a control batch; return ABORT, COMMIT, or NO_MARKER if this reader does not handle it."""
        header = self.header
        if header.codec or header.record_count != 1:
            return NO_MARKER
        if not self._scan(buffer, header.records_position, header.end_position):
            return NO_MARKER
        if self.columns.key_size_view[0] != 4 or self.columns.value_size_view[0] != 6:
            return NO_MARKER
        key = read_int32(buffer, self.columns.key_position_view[0])
        version = buffer[self.columns.value_position_view[0]]
        return NO_MARKER if key < ABORT or key > COMMIT or version > 127 else key

    def _scan(self, data: Buffer, start: int, end: int) -> bool:
        """Scan data[start:end]; return whether it is the records that the header states and nothing else."""
        self.data = data
        self.records_end = end
        return self.columns.scan_batch(data, start, end, self.header)
