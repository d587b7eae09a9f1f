"""Fetched batches that the compiled loop of kcli.client.consumer.completed_fetch does not read, record by record.

batch                                          why
---------------------------------------------  ------------------------------------------------------
message formats 0 and 1                        they are rare: only old segments have them
more than INFLATE_WINDOW_BYTES when inflated   they are inflated in windows, so that memory is bounded
compressed in a form with no one-call decoder  a snappy block without frames, for example
damaged                                        the sound records before the damage are returned first
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

from kcli.client.consumer.consumer_record import CREATE_TIME, LOG_APPEND_TIME, NO_TIMESTAMP_TYPE, Headers
from kcli.format.end_transaction_marker import ABORT, KEY
from kcli.format.java_text import decode_utf8
from kcli.format.legacy_message_set import CRC_START, LegacyBatch
from kcli.format.primitives import Buffer, CorruptRecordError, crc32c
from kcli.format.record_batch import CRC_START as BATCH_CRC_START
from kcli.format.record_batch import HEADER_BYTES, RecordBatch, read_entry_header
from kcli.format.records import read_headers, read_record
from kcli.log.reading.batch_records import RecordScanner, open_windows

MIN_ENTRY_BYTES = 17  # up to the magic: offset, size, leader epoch or CRC, magic


class GeneralRecord(NamedTuple):
    """A record before its key and value are deserialized."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class FetchedBatch:
    """A whole batch of any format (kcli.log.reading.batch_records.BatchSource)."""

    def __init__(self, data: memoryview) -> None:
        """Raises CorruptRecordError for a header that cannot be one."""
        self.data: memoryview | None = data
        self.view = data
        if data[16] > 2:
            raise CorruptRecordError(f"the batch has magic {data[16]}, and 0 to 2 are known")
        if data[16] == 2 and len(data) < HEADER_BYTES:
            raise CorruptRecordError(f"a batch of {len(data)} bytes is shorter than its header of {HEADER_BYTES} bytes")
        self.header: RecordBatch | LegacyBatch = read_entry_header(data)

    @property
    def is_valid(self) -> bool:
        """Whether the CRC is right."""
        if isinstance(self.header, RecordBatch):
            return bool(crc32c(self.view[BATCH_CRC_START:]) == self.header.crc)
        return crc32(self.view[CRC_START:]) == self.header.crc

    def payload_chunks(self) -> Iterator[Buffer]:
        """Yield the bytes after the header of format 2."""
        yield self.view[HEADER_BYTES:]

    def read_whole(self) -> bytes:
        """Return all bytes of the batch."""
        return bytes(self.view)


def headers_of(buffer: Buffer, position: int, count: int) -> Headers:
    """Return the headers at buffer[position], which the scan has checked."""
    return tuple((decode_utf8(header.key), header.value) for header in read_headers(buffer, position, count, len(buffer)))


def is_abort_marker(records: memoryview) -> bool:
    """Return whether the first record of a control batch is an ABORT marker. Raises FormatError."""
    key = read_record(records)[0].key
    return key is not None and len(key) >= KEY.size and KEY.unpack_from(key)[1] == ABORT


def general_records(batch: FetchedBatch, checks_crcs: bool) -> Iterator[GeneralRecord]:
    """Yield the records of a batch. Raises FormatError at the first one that cannot be read."""
    header = batch.header
    is_legacy = isinstance(header, LegacyBatch)
    timestamp_type = LOG_APPEND_TIME if header.is_log_append_time else CREATE_TIME
    for window in open_windows(batch, RecordScanner()):
        columns = window.columns
        for row in range(window.count):
            timestamp = columns.timestamp[row]
            if window.legacy is not None:
                message = window.legacy[row]
                if checks_crcs and not message.is_valid:
                    raise CorruptRecordError(f"the CRC of the message at offset {message.offset} is wrong")
                if message.magic == 0:
                    timestamp_type = NO_TIMESTAMP_TYPE
            elif not is_legacy and timestamp_type == LOG_APPEND_TIME:
                timestamp = header.max_timestamp
            headers: Headers = ()
            if columns.header_count[row]:
                headers = headers_of(window.buffer, columns.header_position[row], columns.header_count[row])
            yield GeneralRecord(columns.offset[row], timestamp, timestamp_type, window.key(row), window.value(row), headers)
        if window.error is not None:
            raise window.error
