"""The records of internal topics: those of batches with the right CRC. Everything else is a problem.

    found                                result
    -----------------------------------  ---------------------------------------------------------
    a batch with a wrong CRC             a problem; its records are left out
    bytes that are not a batch           a problem; reading continues at the next sound batch
    zeros at the end of the log          nothing: they are preallocated
    a record that cannot be parsed       a problem; the rest of its batch is left out, too
    a record of an unknown type          a remark: a newer Kafka wrote it; brokers skip it, too

A window is valid until the next one is taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kcli.format.primitives import FormatError
from kcli.format.record_batch import RecordBatch
from kcli.inspect.description.remarks import Remarks
from kcli.log.disk.port import Disk
from kcli.log.files.log_directory import PartitionDirectory
from kcli.log.reading.batch_records import RecordScanner, RecordWindow
from kcli.log.reading.segment_reader import ZEROS, LogBatch, SegmentReader
from kcli.protocol.internal_records import DecodedRecord, Decoder
from kcli.protocol.message_errors import UnknownRecordTypeError

if TYPE_CHECKING:
    from kcli.format.legacy_message_set import LegacyBatch

    Header = RecordBatch | LegacyBatch


def open_log(
    disk: Disk, partition: PartitionDirectory, remarks: Remarks, from_offset: int = 0
) -> Iterator[tuple[Header, RecordWindow]]:
    """Yield the headers and windows of records of a partition's batches that end at `from_offset` or later."""
    segments = partition.segments
    for slot, segment in enumerate(segments):
        if slot + 1 < len(segments) and segments[slot + 1].base_offset <= from_offset:
            continue
        yield from open_file(disk, segment.log, remarks, from_offset)


def open_file(disk: Disk, path: str, remarks: Remarks, from_offset: int = 0) -> Iterator[tuple[Header, RecordWindow]]:
    """Yield the same of one `.log` or `.checkpoint` file."""
    scanner = RecordScanner()
    try:
        with SegmentReader(disk, path) as reader:
            for found in reader.batches():
                if not isinstance(found, LogBatch):
                    if found.kind != ZEROS:
                        remarks.problem(path, f"byte {found.position}: {found.message}")
                elif not found.is_valid:
                    remarks.problem(path, f"byte {found.position}: a batch has a wrong CRC; its records are left out")
                elif found.header.last_offset >= from_offset:
                    for window in found.windows(scanner):
                        yield found.header, window
                        if window.error is not None:
                            remarks.problem(path, f"byte {found.position}: {window.error.message}")
    except OSError as error:
        remarks.unreadable(path, error)


def is_control(header: Header) -> bool:
    """Return True for a control batch."""
    return isinstance(header, RecordBatch) and header.is_control


def decoded(
    decoder: Decoder, partition: str, offset: int, key: bytes | None, value: bytes | None, remarks: Remarks
) -> DecodedRecord | None:
    """Decode a record, or return None if it cannot be read; `partition` is the path that the remark names."""
    try:
        return decoder.decode(key, value)
    except UnknownRecordTypeError as error:
        remarks.unknown(
            f"{decoder.topic} has records of type {error.record_type}, which is not known here (a newer Kafka wrote them); "
            "they are passed over."
        )
    except FormatError as error:
        remarks.problem(partition, f"the record at offset {offset} cannot be read: {error.message}")
    return None
