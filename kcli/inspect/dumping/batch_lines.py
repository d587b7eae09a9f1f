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

from kcli.format import record_scan
from kcli.format.batch_scan import read_int32, read_int64
from kcli.inspect.dumping import record_lines
from kcli.inspect.dumping.record_lines import first_gap, put_int, put_text

Buffer = bytes | bytearray | memoryview

# Why a pass ended.
NEED_MORE = 0  # the buffer ends, or holds no whole batch any more
OTHER = 1  # the next batch is odd, or too large for the room that is left

# The slots of the state.
WHY = 0
LAST_OFFSET = 1  # of the last record printed, or NO_OFFSET
STATE_SLOTS = 2
NO_OFFSET = -9223372036854775807

# What the line of a batch takes: its labels and fourteen integers of at most 20 digits.
BATCH_LINE_BYTES = 640
INT32_MAX = 2147483647
MOST_OFFSET = 4611686018427387904
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
    records: record_scan.RecordColumns,
    scratch: array,  # type: ignore[type-arg]
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
    header_positions = records.header_position
    header_counts = records.header_count
    record_positions = records.record_position
    capacity = records.capacity
    room = len(out)
    why = OTHER
    while True:
        if limit - position < 61:
            why = NEED_MORE
            break
        size = read_int32(buffer, position + 8)
        if buffer[position + 16] != 2 or size < 49:
            break
        if size > limit - position - 12:
            why = NEED_MORE
            break
        start = place[0]
        if room - start < BATCH_LINE_BYTES:
            break
        end = position + 12 + size
        stored = read_int32(buffer, position + 17)
        if stored < 0:
            stored += 4294967296
        base_offset = read_int64(buffer, position)
        delta = read_int32(buffer, position + 23)
        count = read_int32(buffer, position + 57)
        attributes = buffer[position + 21] << 8 | buffer[position + 22]
        codec = attributes & 7
        base_sequence = read_int32(buffer, position + 53)
        if (
            base_offset < 0
            or base_offset > MOST_OFFSET
            or delta < 0
            or count < 0
            or base_sequence < -1
            or attributes & 65504  # a control batch, a delete horizon, or bits without meaning
            or codec > 4
            or crc32c(view[position + 21 : end]) != stored
        ):
            break
        base_timestamp = read_int64(buffer, position + 27)
        max_timestamp = read_int64(buffer, position + 35)
        label = b" LogAppendTime: " if attributes & 8 else b" CreateTime: "
        epoch = buffer[position + 51] << 8 | buffer[position + 52]
        to = put_text(out, start, b"baseOffset: ")
        to = put_int(out, to, base_offset)
        to = put_text(out, to, b" lastOffset: ")
        to = put_int(out, to, base_offset + delta)
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
        to = put_int(out, to, read_int64(buffer, position + 43))
        to = put_text(out, to, b" producerEpoch: ")
        to = put_int(out, to, epoch - 65536 if epoch > 32767 else epoch)
        to = put_text(out, to, b" partitionLeaderEpoch: ")
        to = put_int(out, to, read_int32(buffer, position + 12))
        to = put_text(out, to, b" isTransactional: true" if attributes & 16 else b" isTransactional: false")
        to = put_text(out, to, b" isControl: false deleteHorizonMs: OptionalLong.empty position: ")
        to = put_int(out, to, file_position + position)
        to = put_text(out, to, label)
        to = put_int(out, to, max_timestamp)
        to = put_text(out, to, b" size: ")
        to = put_int(out, to, size + 12)
        to = put_text(out, to, b" magic: 2 compresscodec: ")
        to = put_text(out, to, CODEC_NAMES[codec])
        to = put_text(out, to, b" crc: ")
        to = put_int(out, to, stored)
        to = put_text(out, to, b" isvalid: true\n")
        place[0] = to
        if with_records and count > 0:
            data = buffer
            from_position = position + 61
            to_position = end
            if codec != 0:
                inflated = inflate(codec, view[from_position:end])
                if inflated is None:
                    place[0] = start
                    break
                data = inflated
                from_position = 0
                to_position = len(inflated)
            if count > capacity:
                place[0] = start
                break
            found = record_scan.scan_into(
                data,
                from_position,
                to_position,
                base_offset,
                base_timestamp,
                count,
                offsets,
                timestamps,
                key_positions,
                key_sizes,
                value_positions,
                value_sizes,
                header_positions,
                header_counts,
                record_positions,
                scratch,
            )
            if found != count or scratch[1] != 0 or scratch[0] != to_position:
                place[0] = start
                break
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
                max_timestamp,
                attributes & 8 != 0,
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
        position = end
    state[0] = why
    return position
