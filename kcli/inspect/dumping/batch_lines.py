# cython: boundscheck=False
# (the room of every line and the end of every batch is checked before it is touched)
"""Whole stretches of a segment as kafka-dump-log prints them: the lines of batches and of their records in one pass.

A batch that is as a producer sends it costs no Python object but the slice that its CRC is computed over and, where it is
compressed, its inflated bytes. The pass stops at whatever is odd, before it has printed any of it; the caller prints that batch
in Python (kcli.inspect.dumping.kafka_text) and comes back:

    printed here    magic 2, whole in the buffer, its CRC right, no negative offset, delta or count, no control batch, no delete
                    horizon, a codec that Kafka knows; with records also: as many as it states and no byte more, at most
                    as many as the columns hold, none with headers or with bytes that are not ASCII, all inflated at once

This one source runs two ways, as kcli.format.record_scan does; its C types stand in batch_lines.pxd. Interpreted it is slower
than the caller's own way, who then never comes here; the tests do.
"""

from array import array
from collections.abc import Callable

from kcli.format import batch_header, loop_results, record_scan
from kcli.inspect.dumping import record_lines
from kcli.inspect.dumping.record_lines import first_gap, put_int, put_text

Buffer = bytes | bytearray | memoryview

# The slots of the state.
WHY = 0
LAST_OFFSET = 1  # of the last record printed, or NO_OFFSET
STATE_SLOTS = 2
NO_OFFSET = -9223372036854775807

# What the line of a batch takes: its labels and fourteen integers of at most 20 digits.
BATCH_LINE_BYTES = 640
INT32_MAX = 2147483647
CODEC_NAMES = (b"none", b"gzip", b"snappy", b"lz4", b"zstd")


def put_batch_lines(
    out: memoryview,
    buffer: Buffer,
    view: memoryview,
    position: int,
    limit: int,
    file_position: int,
    crc32c: Callable[..., int],
    inflate: Callable[[int, memoryview], bytes | None],
    note_gap: Callable[[int, int], None],
    with_records: bool,
    with_metadata: bool,
    with_contents: bool,
    records: "record_scan.RecordColumns",
    state: array,  # type: ignore[type-arg]
    place: array,  # type: ignore[type-arg]
) -> int:
    """Print the batches of buffer[position:limit] into `out`, from place[0] on -> the position behind the last one printed.

    `view` is a memoryview of `buffer`, whose first byte is byte `file_position` of the file. `inflate` gives None for what
    is to be left to the caller; `note_gap` is told of neighbouring records whose offsets are not consecutive. On return
    state[WHY] says why the pass ended; state[LAST_OFFSET] and place[0] are moved on. Nothing is raised for bad bytes.
    """
    offsets = records.offset
    timestamps = records.timestamp
    key_positions = records.key_position
    key_sizes = records.key_size
    value_positions = records.value_position
    value_sizes = records.value_size
    header_counts = records.header_count
    capacity = records.capacity
    room = len(out)
    header = batch_header.BatchHeader()
    why = loop_results.OTHER
    while True:
        why = header.read(buffer, position, limit)
        if why != loop_results.USUAL:
            break
        if header.end_position > limit:
            why = loop_results.NEED_MORE
            break
        why = loop_results.OTHER
        start = place[0]
        if room - start < BATCH_LINE_BYTES:
            break
        if (
            header.base_sequence < -1
            or header.is_control
            or header.has_delete_horizon
            or header.has_unknown_attributes
            or header.codec > 4
            or not header.has_right_crc(view, crc32c)
        ):
            break
        base_offset = header.base_offset
        delta = header.last_offset - base_offset
        count = header.record_count
        base_sequence = header.base_sequence
        label = b" LogAppendTime: " if header.is_log_append_time else b" CreateTime: "
        to = put_text(out, start, b"baseOffset: ")
        to = put_int(out, to, base_offset)
        to = put_text(out, to, b" lastOffset: ")
        to = put_int(out, to, header.last_offset)
        to = put_text(out, to, b" count: ")
        to = put_int(out, to, count)
        to = put_text(out, to, b" baseSequence: ")
        to = put_int(out, to, base_sequence)
        to = put_text(out, to, b" lastSequence: ")
        if base_sequence < 0:
            last_sequence = base_sequence
        elif base_sequence > INT32_MAX - delta:
            last_sequence = delta - (INT32_MAX - base_sequence) - 1
        else:
            last_sequence = base_sequence + delta
        to = put_int(out, to, last_sequence)
        to = put_text(out, to, b" producerId: ")
        to = put_int(out, to, header.producer_id)
        to = put_text(out, to, b" producerEpoch: ")
        to = put_int(out, to, header.producer_epoch)
        to = put_text(out, to, b" partitionLeaderEpoch: ")
        to = put_int(out, to, header.leader_epoch)
        to = put_text(out, to, b" isTransactional: true" if header.is_transactional else b" isTransactional: false")
        to = put_text(out, to, b" isControl: false deleteHorizonMs: OptionalLong.empty position: ")
        to = put_int(out, to, file_position + position)
        to = put_text(out, to, label)
        to = put_int(out, to, header.max_timestamp)
        to = put_text(out, to, b" size: ")
        to = put_int(out, to, header.end_position - position)
        to = put_text(out, to, b" magic: 2 compresscodec: ")
        to = put_text(out, to, CODEC_NAMES[header.codec])
        to = put_text(out, to, b" crc: ")
        to = put_int(out, to, header.crc)
        to = put_text(out, to, b" isvalid: true\n")
        place[0] = to
        if with_records and count > 0:
            data = buffer
            from_position = header.records_position
            to_position = header.end_position
            if header.codec != 0:
                inflated = inflate(header.codec, view[from_position:to_position])
                if inflated is None:
                    place[0] = start
                    break
                data = inflated
                from_position = 0
                to_position = len(inflated)
            if count > capacity:
                place[0] = start
                break
            records.begin_batch(base_offset, header.base_timestamp)
            why = records.scan(data, from_position, to_position, count, 0)
            if why != loop_results.COMPLETE or records.end != to_position:
                why = loop_results.OTHER
                place[0] = start
                break
            why = loop_results.OTHER
            printed = record_lines.put_lines_from(
                out,
                data,
                offsets,
                timestamps,
                key_positions,
                key_sizes,
                value_positions,
                value_sizes,
                header_counts,
                0,
                count,
                label,
                header.max_timestamp,
                header.is_log_append_time,
                base_offset,
                base_sequence,
                with_metadata,
                with_contents,
                place,
            )
            if printed != count:
                place[0] = start
                break
            if state[1] != NO_OFFSET and offsets[0] - 1 != state[1]:
                note_gap(state[1], offsets[0])
            gap = first_gap(offsets, count)
            while gap < count:
                note_gap(offsets[gap - 1], offsets[gap])
                gap += first_gap(offsets[gap:count], count - gap)
            state[1] = offsets[count - 1]
        position = header.end_position
    state[0] = why
    return position
