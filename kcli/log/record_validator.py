"""The checks of a batch's records before an append, and the conversion of the batch (Kafka: LogValidator).

    checked in each record                                    else (`record_errors` lists the invalid records)
    --------------------------------------------------------  ------------------------------------------------------------
    it parses; count and size are those of the header         InvalidRecordsError, without a list
    it has a key, in a compacted topic                        InvalidRecordsError
    CreateTime: its timestamp is -1 or in                     InvalidTimestampError
      [now - message.timestamp.before.max.ms, now + ...after]
    LogAppendTime: the client has not set that type           InvalidTimestampError

    changed                                                   when
    --------------------------------------------------------  ------------------------------------------------------------
    maxTimestamp, the bit of LogAppendTime, the CRC           they differ from the records or message.timestamp.type
    the whole batch is rebuilt                                compression.type is another codec than the batch's, or the
                                                              records' offsets are not 0, 1, 2 ... (Kafka does not rebuild
                                                              uncompressed batches, and two records could have one offset)

Compressed records are decompressed for the check, small batches in one piece, others in windows. More than
MAX_APPENDED_INFLATED_BYTES are refused. max.message.bytes applies again to a rebuilt batch.

Nearly every batch is checked within two milliseconds. With `is_hurried`, a batch that would take longer raises
LongCheckError; the broker then checks it in a thread, since the check uses nothing but the batch.
"""

from __future__ import annotations

from collections.abc import Iterator

from kcli.format import limits
from kcli.format.compression import CODECS, codec_id, deflate, inflate, inflate_stream
from kcli.format.loop_results import COMPLETE, NEED_MORE
from kcli.format.primitives import INT64_MAX, InflationError, InflationLimitError, InvalidRecordError, crc32c
from kcli.format.record_batch import (
    CODEC_MASK,
    CRC_START,
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    NO_TIMESTAMP,
    TRANSACTIONAL_FLAG,
    NewRecordBatch,
)
from kcli.format.record_scan import NO_ROWS, STATUS_TEXT, RecordColumns
from kcli.format.records import Record, encode_records, read_record, read_records
from kcli.format.structs import BATCH_ATTRIBUTES_AT, BATCH_MAX_TIMESTAMP_AT
from kcli.log.errors import (
    InvalidRecordsError,
    InvalidTimestampError,
    MessageTooLargeError,
    RecordError,
    UnreadableCompressionError,
    UnsupportedCompressionError,
)
from kcli.log.log_config import LOG_APPEND_TIME, LogConfig
from kcli.log.log_validator import ValidBatch
from kcli.log.reading.large_records import PieceReader, record_end, scan_large_record

# The most records of one batch that an error lists.
MAX_RECORD_ERRORS = 1000
# The most bytes that are decompressed in one piece, and the most with `is_hurried`.
HURRIED_INFLATED_BYTES = 2 * 1024 * 1024
# The size of a window for larger batches.
_WINDOW_BYTES = 1024 * 1024
# The largest batch that is decoded record by record, or rebuilt, with `is_hurried`.
HURRIED_REBUILT_BYTES = 64 * 1024
# A record larger than a window is checked in Python, header by header.
MAX_LARGE_RECORD_HEADERS = 10_000
_KNOWN_ATTRIBUTES = 0x7F
# Counts that no check uses now: making them takes 2 us of the 20 us of an append. Checks also run in threads.
_FREE_COUNTS: list[RecordColumns] = []


class LongCheckError(Exception):
    """The check would block the broker's loop for too long: repeat it in a thread without `is_hurried`."""


class _RecordCheck:
    """The check of one batch's records; `counts` are the totals so far (kcli.format.record_scan.RecordColumns)."""

    __slots__ = ("counts", "is_hurried")

    def __init__(self, batch: ValidBatch, is_hurried: bool) -> None:
        self.counts = _FREE_COUNTS.pop() if _FREE_COUNTS else RecordColumns(0)
        self.counts.begin_batch(0, batch.base_timestamp)
        self.is_hurried = is_hurried

    def scan(self, batch: ValidBatch, data: memoryview | bytes, position: int, end: int) -> int:
        """Check the next records of the batch, in data[position:end]; return the scan's status."""
        return self.counts.scan(data, position, end, batch.record_count - self.counts.counted, NO_ROWS)

    def require_time_to_rebuild(self, batch: ValidBatch) -> None:
        """Raise LongCheckError if the batch is too large to be decoded in Python now."""
        if self.is_hurried and batch.size_bytes > HURRIED_REBUILT_BYTES:
            raise LongCheckError


def validate_records(batch: ValidBatch, config: LogConfig, now_ms: int, *, is_hurried: bool = False) -> None:
    """Check the records of a batch and convert the batch if necessary; its bytes are changed in place or replaced.

    Raises InvalidRecordsError, InvalidTimestampError, MessageTooLargeError, UnsupportedCompressionError,
    UnreadableCompressionError, and with `is_hurried` LongCheckError, which leaves the batch unchanged.
    """
    check = _RecordCheck(batch, is_hurried)
    counts = check.counts
    codec = batch.attributes & CODEC_MASK
    target = codec if config.compression_type == "producer" else _target_codec(config)
    inflated = None
    if codec:
        inflated = _check_compressed(check, batch, codec, keep=codec != target)
    else:
        _check_outcome(check, batch, check.scan(batch, batch.data, HEADER_BYTES, batch.size_bytes), batch.size_bytes)
    if counts.null_keys and config.is_compacted:
        _raise_record_errors(check, batch, config, now_ms)
    largest = _check_timestamps(check, batch, config, now_ms)
    if (codec != target or counts.is_renumbered) and not batch.is_control:
        check.require_time_to_rebuild(batch)
        _rebuild(batch, config, target, inflated, largest, now_ms, is_renumbered=counts.is_renumbered)
    elif config.message_timestamp_type == LOG_APPEND_TIME:
        _set_max_timestamp(batch, LOG_APPEND_TIME_FLAG, now_ms)
    elif largest != batch.max_timestamp or batch.attributes & LOG_APPEND_TIME_FLAG:
        _set_max_timestamp(batch, 0, largest)
    _FREE_COUNTS.append(counts)


def _target_codec(config: LogConfig) -> int:
    return 0 if config.compression_type == "uncompressed" else codec_id(config.compression_type)


# --------------------------------------------------------------------------------------------------------- checking


def _check_outcome(check: _RecordCheck, batch: ValidBatch, status: int, end: int) -> None:
    if status != COMPLETE:
        raise InvalidRecordsError(
            f"record {check.counts.counted} of {batch.record_count} in the batch is invalid: {STATUS_TEXT[status]}"
        )
    left = end - check.counts.end
    if left:
        raise InvalidRecordsError(f"the batch has {left} bytes after its {batch.record_count} records")


def _check_compressed(check: _RecordCheck, batch: ValidBatch, codec: int, *, keep: bool) -> bytes | None:
    """Decompress and check the records; return their bytes if they were decompressed in one piece."""
    if codec not in CODECS:
        raise UnsupportedCompressionError(f"the compression codec of the batch is {codec}; the known codecs are 1 to 4")
    limit = HURRIED_INFLATED_BYTES
    if keep and not check.is_hurried:
        limit = limits.MAX_APPENDED_INFLATED_BYTES
    elif keep:
        check.require_time_to_rebuild(batch)
    try:
        whole = inflate(codec, batch.data[HEADER_BYTES:], limit=limit)
    except InflationLimitError as error:
        if check.is_hurried:
            raise LongCheckError from error
        if keep:
            raise _too_large(batch) from error
    except InflationError as error:
        raise _unreadable(error) from error
    else:
        _check_outcome(check, batch, check.scan(batch, whole, 0, len(whole)), len(whole))
        return whole
    _check_in_windows(check, batch, codec)
    return None


def _check_in_windows(check: _RecordCheck, batch: ValidBatch, codec: int) -> None:
    """Decompress and check the records window by window; a record larger than a window is never in memory as a whole."""
    counts = check.counts
    windows = _windows(batch, codec)
    rest = b""
    status = NEED_MORE
    for window in windows:
        piece = rest + window
        status = check.scan(batch, piece, 0, len(piece))
        end = record_end(piece, counts.end)
        if status == NEED_MORE and end is not None and end - counts.end > _WINDOW_BYTES:
            rest = _check_large_record(counts, batch, PieceReader(piece, counts.end, windows))
            status = COMPLETE if counts.counted == batch.record_count else NEED_MORE
            counts.end = 0
            continue
        if status == COMPLETE:
            _check_outcome(check, batch, status, len(piece))
        elif status != NEED_MORE:
            break
        rest = piece[counts.end :]
    if status == NEED_MORE and rest:
        status = check.scan(batch, rest, 0, len(rest))
        rest = rest[counts.end :]
    _check_outcome(check, batch, status, counts.end + len(rest))


def _check_large_record(counts: RecordColumns, batch: ValidBatch, source: PieceReader) -> bytes:
    """Check and count one record; return the decompressed bytes after it."""
    found = RecordColumns(1)
    try:
        scan_large_record(batch, source, found, MAX_LARGE_RECORD_HEADERS)
    except InvalidRecordError as error:
        raise InvalidRecordsError(
            f"record {counts.counted} of {batch.record_count} in the batch is invalid: {error.message}"
        ) from error
    delta = found.timestamp[0] - batch.base_timestamp
    counts.smallest_delta = min(counts.smallest_delta, delta)
    counts.largest_delta = max(counts.largest_delta, delta)
    counts.null_keys += found.key_size[0] < 0
    if found.offset[0] - batch.base_offset != counts.counted:
        counts.is_renumbered = True
    counts.counted += 1
    return source.rest[source.position :]


def _windows(batch: ValidBatch, codec: int) -> Iterator[bytes]:
    try:
        yield from inflate_stream(
            codec,
            batch.data[HEADER_BYTES:],
            window=_WINDOW_BYTES,
            limit=limits.MAX_APPENDED_INFLATED_BYTES,
        )
    except InflationLimitError as error:
        raise _too_large(batch) from error
    except InflationError as error:
        raise _unreadable(error) from error


def _too_large(batch: ValidBatch) -> MessageTooLargeError:
    return MessageTooLargeError(
        f"the batch of {batch.size_bytes} bytes has more than {limits.MAX_APPENDED_INFLATED_BYTES} bytes when decompressed"
    )


def _unreadable(error: InflationError) -> UnreadableCompressionError:
    return UnreadableCompressionError(f"cannot decompress the records of the batch: {error.message}")


# ------------------------------------------------------------------------------------------------------ timestamps


def _check_timestamps(check: _RecordCheck, batch: ValidBatch, config: LogConfig, now_ms: int) -> int:
    """Return the largest timestamp of the records. Raises InvalidTimestampError."""
    if batch.attributes & LOG_APPEND_TIME_FLAG:
        smallest = largest = batch.max_timestamp
    else:
        smallest = batch.base_timestamp + check.counts.smallest_delta
        largest = batch.base_timestamp + check.counts.largest_delta
    if config.message_timestamp_type == LOG_APPEND_TIME:
        if batch.attributes & LOG_APPEND_TIME_FLAG:
            _raise_record_errors(check, batch, config, now_ms)
    elif (
        largest > now_ms + config.message_timestamp_after_max_ms
        or smallest < now_ms - config.message_timestamp_before_max_ms
        or largest > INT64_MAX
        or (largest == NO_TIMESTAMP and batch.attributes & LOG_APPEND_TIME_FLAG)
    ):
        _raise_record_errors(check, batch, config, now_ms)
    return max(largest, NO_TIMESTAMP)


def _raise_record_errors(check: _RecordCheck, batch: ValidBatch, config: LogConfig, now_ms: int) -> None:
    """Raise the error that lists the invalid records; return if all records are valid."""
    check.require_time_to_rebuild(batch)
    errors: list[RecordError] = []
    has_timestamp_error = False
    for index, record in enumerate(_records(batch)):
        key_error = record.key is None and config.is_compacted
        if key_error:
            errors.append(RecordError(index, "a record of a compacted topic must have a key"))
        else:
            error = _timestamp_error(batch, record.timestamp_delta, config, now_ms)
            if error is not None:
                errors.append(RecordError(index, error))
                has_timestamp_error = True
        if len(errors) == MAX_RECORD_ERRORS:
            break
    if has_timestamp_error:
        raise InvalidTimestampError("one or more records have timestamps that this topic does not accept", errors)
    if errors:
        raise InvalidRecordsError(
            f"{len(errors)} records are invalid; the first is record {errors[0].batch_index}: {errors[0].message}", errors
        )


def _timestamp_error(batch: ValidBatch, delta: int, config: LogConfig, now_ms: int) -> str | None:
    is_append_time = batch.attributes & LOG_APPEND_TIME_FLAG
    timestamp = batch.max_timestamp if is_append_time else batch.base_timestamp + delta
    if config.message_timestamp_type != LOG_APPEND_TIME and timestamp != NO_TIMESTAMP:
        first, last = now_ms - config.message_timestamp_before_max_ms, now_ms + config.message_timestamp_after_max_ms
        if not first <= timestamp <= min(last, INT64_MAX):
            return f"the timestamp {timestamp} is outside of [{first}, {last}], the range that this topic accepts now"
    elif is_append_time:
        return "a producer must not set the timestamp type LogAppendTime"
    return None


def _records(batch: ValidBatch) -> Iterator[Record]:
    codec = batch.attributes & CODEC_MASK
    data: memoryview | bytes = batch.data[HEADER_BYTES:]
    if codec:
        data = b"".join(_windows(batch, codec))
    return read_records(data, batch.record_count)


# --------------------------------------------------------------------------------------------------------- converting


def _set_max_timestamp(batch: ValidBatch, append_time_flag: int, max_timestamp: int) -> None:
    """Change the header; unknown attributes are cleared, as Kafka does."""
    data = batch.data
    batch.attributes = batch.attributes & _KNOWN_ATTRIBUTES & ~LOG_APPEND_TIME_FLAG | append_time_flag
    batch.max_timestamp = max_timestamp
    data[BATCH_ATTRIBUTES_AT : BATCH_ATTRIBUTES_AT + 2] = batch.attributes.to_bytes(2, "big")
    data[BATCH_MAX_TIMESTAMP_AT : BATCH_MAX_TIMESTAMP_AT + 8] = max_timestamp.to_bytes(8, "big", signed=True)
    data[CRC_START - 4 : CRC_START] = crc32c(data[CRC_START:]).to_bytes(4, "big")


def _rebuild(
    batch: ValidBatch,
    config: LogConfig,
    target: int,
    inflated: bytes | None,
    largest: int,
    now_ms: int,
    *,
    is_renumbered: bool,
) -> None:
    """Rebuild the batch with another codec; its records are numbered from 0."""
    body: memoryview | bytes = batch.data[HEADER_BYTES:] if inflated is None else inflated
    if batch.attributes & CODEC_MASK and inflated is None:
        body = b"".join(_windows(batch, batch.attributes & CODEC_MASK))
    first, _ = read_record(body)
    base_timestamp = batch.base_timestamp + first.timestamp_delta
    if is_renumbered or first.timestamp_delta or batch.attributes & LOG_APPEND_TIME_FLAG:
        is_append_time = batch.attributes & LOG_APPEND_TIME_FLAG
        base_timestamp = batch.max_timestamp if is_append_time else base_timestamp
        records = (
            record._replace(
                offset_delta=index,
                timestamp_delta=0 if is_append_time else record.timestamp_delta - first.timestamp_delta,
            )
            for index, record in enumerate(read_records(body, batch.record_count))
        )
        body = encode_records(records)
    append_time = config.message_timestamp_type == LOG_APPEND_TIME
    built = NewRecordBatch(
        base_offset=0,
        last_offset_delta=batch.record_count - 1,
        base_timestamp=base_timestamp,
        max_timestamp=now_ms if append_time else largest,
        record_count=batch.record_count,
        records=deflate(target, body, level=_level(config, target)) if target else body,
        attributes=target | (LOG_APPEND_TIME_FLAG if append_time else 0) | batch.attributes & TRANSACTIONAL_FLAG,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
    )
    data = memoryview(bytearray(built.encode()))
    if len(data) > config.max_message_bytes:
        raise MessageTooLargeError(
            f"the batch has {len(data)} bytes with {config.compression_type} compression, "
            f"more than max.message.bytes of this topic, {config.max_message_bytes}"
        )
    batch.data, batch.size_bytes = data, len(data)
    batch.attributes, batch.last_offset_delta = built.attributes, built.last_offset_delta
    batch.base_timestamp, batch.max_timestamp = built.base_timestamp, built.max_timestamp


def _level(config: LogConfig, codec: int) -> int | None:
    name = CODECS[codec]
    if name == "gzip":
        return None if config.compression_gzip_level == -1 else config.compression_gzip_level
    if name == "lz4":
        return config.compression_lz4_level
    return config.compression_zstd_level if name == "zstd" else None
