"""Walking a segment exactly as Kafka does, for whoever must decide what Kafka would: where it stops, what it takes, what fails.

    bytes at hand                               a Kafka broker                               `walk_batches`
    ------------------------------------------  -------------------------------------------  ----------------------
    17 bytes or fewer, or an entry that         takes it for the end of the log              ends
      reaches behind the end
    a size below 14, zeros                      throws CorruptRecordException                raises CorruptRecordError
    magic 2, shorter than its header            a batch, never valid (is_valid_for_kafka)    the same
    magic 3 and above                           a batch of magic 2: its CRC does not cover   the same
                                                the magic, so it may be valid
    a negative magic                            a message of format 0 or 1, never valid      the same

The SegmentReader of kcli.log.reading.log_reader is stricter and goes on behind damage; this never does.
"""

from __future__ import annotations

from collections.abc import Iterator

from kcli.format.end_transaction_marker import EndTransactionMarker, UnreadableMarkerError, decode_marker
from kcli.format.primitives import CorruptRecordError, InvalidRecordError, RecordTooLargeError
from kcli.format.record_batch import ENTRY_HEAD_BYTES, HEADER_BYTES, RecordBatch
from kcli.log.reading.log_reader import BAD_SIZE, ZEROS, Damage, LogBatch, SegmentReader
from kcli.log.reading.record_windows import RecordScanner


def walk_batches(reader: SegmentReader, position: int = 0) -> Iterator[LogBatch]:
    """The batches from byte `position` on, as Kafka finds them. Raises CorruptRecordError where Kafka does, and OSError."""
    for found in reader.batches(position, resynchronise=False, lenient=True):
        if not isinstance(found, Damage):
            yield found
        elif found.kind in (ZEROS, BAD_SIZE) and reader.end_position() - found.position > ENTRY_HEAD_BYTES:
            raise CorruptRecordError(found.message, found.position)


def is_valid_for_kafka(batch: LogBatch) -> bool:
    """Whether Kafka takes a batch: its CRC is right and it is no shorter than its header."""
    return batch.is_valid and (not isinstance(batch.header, RecordBatch) or batch.header.size_bytes >= HEADER_BYTES)


def read_marker(batch: LogBatch, scanner: RecordScanner) -> EndTransactionMarker | None:
    """The marker in a control batch of a producer, None in one without records.

    Raises InvalidRecordError where Kafka cuts the log, UnreadableMarkerError where it refuses to load it.
    """
    header = batch.header
    if not isinstance(header, RecordBatch) or not header.is_control:
        raise ValueError("a marker stands in a control batch of format 2")
    window = next(batch.windows(scanner), None)
    if window is None:
        return None
    # Kafka reads the first record only; of a compressed batch, and behind a single record, the rest must be right as well.
    if window.error is not None and (window.count == 0 or header.codec or header.record_count == 1):
        if isinstance(window.error, InvalidRecordError):
            raise window.error
        raise UnreadableMarkerError(f"a control batch does not inflate: {window.error.message}", header.position)
    timestamp = header.log_append_time_ms
    if timestamp is None:
        timestamp = window.columns.timestamp[0]
    return decode_marker(window.key(0), window.value(0), timestamp)


def first_offset(batch: LogBatch) -> int:
    """The offset of the first record; that of a compressed set of format 0 or 1 shows only inside. Raises FormatError.

    Of a set too large to open it is the last one's.
    """
    header = batch.header
    if isinstance(header, RecordBatch) or not header.codec:
        return header.base_offset
    from kcli.format.legacy_message_set import iter_records

    try:
        return next((record.offset for record in iter_records(header, batch.read_whole())), header.base_offset)
    except RecordTooLargeError:
        return header.base_offset
